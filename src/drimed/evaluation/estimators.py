"""Off-policy estimators, each as three parts per decision, so that all of them stream, merge and get intervals alike.

    value = mean(base) + mean(correction) / mean(normaliser)

Symbols: r reward, q the model's prediction, pi the target, w = pi(a) / propensity of the arm a that was played,
direct = sum_a pi(a) q(a). Sources: Dudik et al. (2014) for the direct method, IPS and doubly robust; Swaminathan and
Joachims (2015) for self-normalisation; Wang et al. (2017) for the switch; Su et al. (2020) for optimistic shrinkage;
Li et al. (2011) for replay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import numpy as np

from drimed import streams
from drimed.errors import ConfigError, InputError, UnknownNameError
from drimed.evaluation.decisions import Decisions
from drimed.linear.arrays import FloatArray

BOUND_TOLERANCE = 1e-9  # relative: a weight of K computed as (1 / K) / (1 / K^2) is not above K


@final
@dataclass(frozen=True, slots=True)
class Parts:
    """One estimator's terms on n decisions; None stands for zeros, and for ones as normaliser."""

    base: FloatArray | None = None  # (n,)
    correction: FloatArray | None = None  # (n,)
    normaliser: FloatArray | None = None  # (n,)

    def terms(self) -> FloatArray:
        """Per-decision terms whose mean is the value: (n,)."""
        terms = self.base
        if self.correction is not None:
            c = self.correction if self.normaliser is None else self.correction / self.normaliser.mean()
            terms = c if terms is None else terms + c
        if terms is None:
            raise ConfigError("an estimator needs a base or a correction")
        return terms


class Estimator(Protocol):
    """What the streaming evaluation needs of an estimator."""

    @property
    def name(self) -> str: ...

    @property
    def weighs(self) -> bool: ...  # whether it needs propensities, and support

    @property
    def predicts(self) -> bool: ...  # whether it needs predictions

    def parts(self, decisions: Decisions) -> Parts: ...


@final
@dataclass(frozen=True, slots=True)
class DirectMethod:
    """What the model says; as biased as the model."""

    name: str = "dm"
    weighs: bool = False
    predicts: bool = True

    def parts(self, decisions: Decisions) -> Parts:
        """direct."""
        return Parts(base=decisions.direct)


@final
@dataclass(frozen=True, slots=True)
class IPS:
    """Inverse propensity score: unbiased, noisy where weights are large."""

    name: str = "ips"
    weighs: bool = True
    predicts: bool = False

    def parts(self, decisions: Decisions) -> Parts:
        """w r."""
        return Parts(correction=decisions.weight * decisions.reward)


@final
@dataclass(frozen=True, slots=True)
class SNIPS:
    """Self-normalised: a weighted mean, so it stays within the range of rewards; bias of order 1 / n."""

    name: str = "snips"
    weighs: bool = True
    predicts: bool = False

    def parts(self, decisions: Decisions) -> Parts:
        """w r over w."""
        return Parts(correction=decisions.weight * decisions.reward, normaliser=decisions.weight)


@final
@dataclass(frozen=True, slots=True)
class ClippedIPS:
    """Weights cut at `cap`: for non-negative rewards, biased downwards and less noisy."""

    cap: float = 10.0
    name: str = "clipped"
    weighs: bool = True
    predicts: bool = False

    def __post_init__(self) -> None:
        _positive("cap", self.cap)

    def parts(self, decisions: Decisions) -> Parts:
        """min(w, cap) r."""
        return Parts(correction=np.minimum(decisions.weight, self.cap) * decisions.reward)


@final
@dataclass(frozen=True, slots=True)
class DoublyRobust:
    """The model, corrected by weighted residuals: unbiased if the propensities are right, whatever the model."""

    name: str = "dr"
    weighs: bool = True
    predicts: bool = True

    def parts(self, decisions: Decisions) -> Parts:
        """direct + w (r - q)."""
        return Parts(base=decisions.direct, correction=decisions.weight * decisions.residual)


@final
@dataclass(frozen=True, slots=True)
class SelfNormalisedDR:
    """Doubly robust with weights that sum to n."""

    name: str = "sndr"
    weighs: bool = True
    predicts: bool = True

    def parts(self, decisions: Decisions) -> Parts:
        """direct + w (r - q) over w."""
        return Parts(decisions.direct, decisions.weight * decisions.residual, decisions.weight)


@final
@dataclass(frozen=True, slots=True)
class SwitchDR:
    """Doubly robust where w <= `threshold`, the model alone elsewhere."""

    threshold: float = 10.0
    name: str = "switch-dr"
    weighs: bool = True
    predicts: bool = True

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise ConfigError(f"threshold must be at least 0, got {self.threshold}")

    def parts(self, decisions: Decisions) -> Parts:
        """direct + w 1{w <= threshold} (r - q)."""
        w = decisions.weight
        return Parts(base=decisions.direct, correction=w * (w <= self.threshold) * decisions.residual)


@final
@dataclass(frozen=True, slots=True)
class DRos:
    """Doubly robust with optimistic shrinkage: weights w are replaced by shrinkage w / (w^2 + shrinkage)."""

    shrinkage: float = 100.0  # lambda; 0 is the direct method, infinity is doubly robust
    name: str = "dros"
    weighs: bool = True
    predicts: bool = True

    def __post_init__(self) -> None:
        if not self.shrinkage >= 0:
            raise ConfigError(f"shrinkage must be at least 0, got {self.shrinkage}")

    def parts(self, decisions: Decisions) -> Parts:
        """direct + lambda w / (w^2 + lambda) (r - q)."""
        w, lam = decisions.weight, self.shrinkage
        if lam == 0:
            return Parts(base=decisions.direct)
        shrunk = w if np.isinf(lam) else lam * w / (w * w + lam)
        return Parts(base=decisions.direct, correction=shrunk * decisions.residual)


@final
@dataclass(frozen=True, slots=True)
class Replay:
    """Rejection sampling: a decision is kept with probability w / bound; kept rewards are as if the target had played.

    Without a `bound` it is the number of arms, which is right for a log that was played uniformly; there, a target that
    plays one arm keeps exactly the decisions that agree with it.
    """

    bound: float | None = None
    seed: int = 0
    name: str = "replay"
    weighs: bool = True
    predicts: bool = False

    def __post_init__(self) -> None:
        if self.bound is not None:
            _positive("bound", self.bound)

    def parts(self, decisions: Decisions) -> Parts:
        """kept r over kept."""
        log, w = decisions.log, decisions.weight
        bound = float(log.K) if self.bound is None else self.bound
        if len(w) and w.max() > bound * (1 + BOUND_TOLERANCE):
            raise InputError(
                f"replay keeps a decision with probability weight / bound, and a weight of {float(w.max()):g} is above "
                f"the bound {bound:g}; give a larger one: replay={float(w.max()) * 1.01:.3g}"
            )
        u = _draws(self.seed, log.start, len(log))
        kept = (u * bound * (1 - BOUND_TOLERANCE) < w).astype(np.float64)
        return Parts(correction=kept * log.reward, normaliser=kept)


def _draws(seed: int, start: int, n: int) -> FloatArray:
    """A uniform for each decision start, ..., start + n - 1, whichever piece it comes in: (n,).

    Four decisions share one address of the stream: it is made of blocks of four numbers.
    """
    first = start // 4
    u = streams.uniforms(seed, "replay", first, -(-(start + n) // 4) - first, 4).ravel()
    return u[start - 4 * first :][:n]


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{name} must be positive, got {value}")


ESTIMATORS: dict[str, Callable[..., Estimator]] = {
    "dm": DirectMethod,
    "ips": IPS,
    "snips": SNIPS,
    "clipped": lambda value=10.0: ClippedIPS(cap=value),
    "dr": DoublyRobust,
    "sndr": SelfNormalisedDR,
    "switch-dr": lambda value=10.0: SwitchDR(threshold=value),
    "dros": lambda value=100.0: DRos(shrinkage=value),
    "replay": lambda value=None: Replay(bound=value),
}
_WITH_VALUE = ("clipped", "switch-dr", "dros", "replay")


def parse(text: str) -> Estimator:
    """An estimator as it is written on a command line, with its setting if it has one: `clipped=5`.

    >>> parse("switch-dr=3")
    SwitchDR(threshold=3.0, name='switch-dr=3', weighs=True, predicts=True)
    """
    name, _, value = text.partition("=")
    if name not in ESTIMATORS:
        raise UnknownNameError("estimator", name, ESTIMATORS)
    if not value:
        return ESTIMATORS[name]()
    if name not in _WITH_VALUE:
        raise ConfigError(f"estimator {name!r} has no setting, got {text!r}")
    try:
        number = float(value)
    except ValueError as error:
        raise ConfigError(f"the setting of {name!r} must be a number, got {value!r}") from error
    chosen: Any = ESTIMATORS[name](number)
    return replace(chosen, name=text)
