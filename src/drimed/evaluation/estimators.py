"""Off-policy estimators, each as three parts per decision, so that all of them stream, merge and get intervals alike.

    value = mean(base) + mean(correction) / mean(normaliser)

Symbols: r reward, q the model's prediction, pi the target, w = pi(a) / propensity of the arm a that was played,
direct = sum_a pi(a) q(a). Sources: Dudik et al. (2014) for the direct method, IPS and doubly robust; Swaminathan and
Joachims (2015) for self-normalisation; Wang et al. (2017) for the switch; Su et al. (2020) for optimistic shrinkage;
Li et al. (2011) for replay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from drimed import streams
from drimed.errors import ConfigError, InputError, UnknownNameError
from drimed.evaluation.target import Decisions
from drimed.linear.arrays import FloatArray

BOUND_TOLERANCE = 1e-9  # relative: a weight of K computed as (1 / K) / (1 / K^2) is not above K


@final
@dataclass(frozen=True, slots=True)
class Parts:
    """One estimator's terms on n decisions; None stands for zeros, and for ones as normaliser."""

    base: FloatArray | None = None  # (n,)
    correction: FloatArray | None = None  # (n,)
    normaliser: FloatArray | None = None  # (n,)

    @property
    def has(self) -> tuple[bool, bool, bool]:
        """Which of the three are there."""
        return self.base is not None, self.correction is not None, self.normaliser is not None

    @property
    def columns(self) -> list[FloatArray]:
        """Those that are there."""
        return [part for part in (self.base, self.correction, self.normaliser) if part is not None]

    def terms(self) -> FloatArray:
        """Per-decision terms whose mean is the value: (n,)."""
        terms = self.base
        if self.correction is not None:
            c = self.correction if self.normaliser is None else self.correction / self.normaliser.mean()
            terms = c if terms is None else terms + c
        if terms is None:
            raise ConfigError("an estimator needs a base or a correction")
        return terms


@final
@dataclass(frozen=True, slots=True)
class Estimator:
    """A name, what the log must have for it, and its parts."""

    name: str
    parts: Callable[[Decisions], Parts] = field(compare=False, repr=False)
    weighs: bool = True  # needs propensities, and support
    predicts: bool = True  # needs predictions
    setting: float | None = None


def dm() -> Estimator:
    """The direct method: what the model says; as biased as the model."""
    return Estimator("dm", lambda d: Parts(base=d.direct), weighs=False)


def ips() -> Estimator:
    """Inverse propensity score, w r: unbiased, noisy where weights are large."""
    return Estimator("ips", lambda d: Parts(correction=d.weight * d.reward), predicts=False)


def snips() -> Estimator:
    """Self-normalised, w r over w: a weighted mean, so it stays within the range of rewards; bias of order 1 / n."""
    return Estimator("snips", lambda d: Parts(None, d.weight * d.reward, d.weight), predicts=False)


def clipped(cap: float = 10.0) -> Estimator:
    """min(w, cap) r: for non-negative rewards, biased downwards and less noisy."""
    if not cap > 0:
        raise ConfigError(f"cap must be positive, got {cap}")
    return Estimator(
        "clipped", lambda d: Parts(correction=np.minimum(d.weight, cap) * d.reward), predicts=False, setting=cap
    )


def dr() -> Estimator:
    """Doubly robust, direct + w (r - q): unbiased if the propensities are right, whatever the model."""
    return Estimator("dr", lambda d: Parts(d.direct, d.weight * d.residual))


def sndr() -> Estimator:
    """Doubly robust with weights that sum to n, direct + w (r - q) over w."""
    return Estimator("sndr", lambda d: Parts(d.direct, d.weight * d.residual, d.weight))


def switch_dr(threshold: float = 10.0) -> Estimator:
    """Doubly robust where w <= threshold, the model alone elsewhere: direct + w 1{w <= threshold} (r - q)."""
    if not threshold >= 0:
        raise ConfigError(f"threshold must be at least 0, got {threshold}")

    def parts(d: Decisions) -> Parts:
        return Parts(d.direct, d.weight * (d.weight <= threshold) * d.residual)

    return Estimator("switch-dr", parts, setting=threshold)


def dros(shrinkage: float = 100.0) -> Estimator:
    """Doubly robust with optimistic shrinkage lambda: direct + lambda w / (w^2 + lambda) (r - q).

    A shrinkage of 0 is the direct method, an infinite one doubly robust.
    """
    if not shrinkage >= 0:
        raise ConfigError(f"shrinkage must be at least 0, got {shrinkage}")

    def parts(d: Decisions) -> Parts:
        w = d.weight
        if shrinkage == 0:
            return Parts(base=d.direct)
        shrunk = w if np.isinf(shrinkage) else shrinkage * w / (w * w + shrinkage)
        return Parts(d.direct, shrunk * d.residual)

    return Estimator("dros", parts, setting=shrinkage)


def replay(bound: float | None = None, *, seed: int = 0) -> Estimator:
    """Rejection sampling: a decision is kept with probability w / bound; kept rewards are as if the target had played.

    Without a `bound` it is the number of arms, which is right for a log that was played uniformly; there, a target that
    plays one arm keeps exactly the decisions that agree with it.
    """
    if bound is not None and not bound > 0:
        raise ConfigError(f"bound must be positive, got {bound}")

    def parts(d: Decisions) -> Parts:
        most = float(d.log.K) if bound is None else bound
        if len(d.weight) and d.weight.max() > most * (1 + BOUND_TOLERANCE):
            largest = float(d.weight.max())
            raise InputError(
                f"replay keeps a decision with probability weight / bound, and a weight of {largest:g} is above "
                f"the bound {most:g}; give a larger one: replay={largest * 1.01:.3g}"
            )
        u = _draws(seed, d.log.start, len(d.log))
        kept = (u * most * (1 - BOUND_TOLERANCE) < d.weight).astype(np.float64)
        return Parts(None, kept * d.reward, kept)

    return Estimator("replay", parts, predicts=False, setting=bound)


def _draws(seed: int, start: int, n: int) -> FloatArray:
    """A uniform for each decision start, ..., start + n - 1, whichever piece it comes in: (n,).

    Four decisions share one address of the stream: it is made of blocks of four numbers.
    """
    first = start // 4
    u = streams.uniforms(seed, "replay", first, -(-(start + n) // 4) - first, 4).ravel()
    return u[start - 4 * first :][:n]


Makers = dict[str, Callable[..., Estimator]]
WITH_SETTING: Makers = {"clipped": clipped, "switch-dr": switch_dr, "dros": dros, "replay": replay}
ESTIMATORS: Makers = {"dm": dm, "ips": ips, "snips": snips, "dr": dr, "sndr": sndr, **WITH_SETTING}


def parse(text: str) -> Estimator:
    """An estimator as it is written on a command line, with its setting if it has one: `clipped=5`.

    >>> parse("switch-dr=3")
    Estimator(name='switch-dr=3', weighs=True, predicts=True, setting=3.0)
    """
    name, _, value = text.partition("=")
    if name not in ESTIMATORS:
        raise UnknownNameError("estimator", name, ESTIMATORS)
    if not value:
        return ESTIMATORS[name]()
    if name not in WITH_SETTING:
        raise ConfigError(f"estimator {name!r} has no setting, got {text!r}")
    try:
        number = float(value)
    except ValueError as error:
        raise ConfigError(f"the setting of {name!r} must be a number, got {value!r}") from error
    return replace(WITH_SETTING[name](number), name=text)
