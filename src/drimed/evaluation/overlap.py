"""How much a log tells about a target: effective sample size, largest weight, arms without support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from drimed.evaluation.log import SUM_TOLERANCE
from drimed.evaluation.target import Decisions
from drimed.linear.arrays import FloatArray

SUSPECT = 4.0  # standard errors that the mean weight may be away from 1: by chance once in 16,000 logs
THIN = 0.01  # an effective share of the log below this gives a warning


@final
@dataclass(frozen=True, slots=True)
class Weights:
    """Sums over the weights of some decisions; they merge."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    largest: float = 0.0

    @classmethod
    def of(cls, weight: FloatArray) -> Weights:
        """From the weights themselves: (n,)."""
        squares = float(np.einsum("i,i->", weight, weight))
        return cls(len(weight), float(weight.sum()), squares, float(weight.max(initial=0.0)))

    def merge(self, other: Weights) -> Weights:
        """Of both sets of decisions."""
        return Weights(
            self.count + other.count,
            self.total + other.total,
            self.squares + other.squares,
            max(self.largest, other.largest),
        )

    @property
    def effective(self) -> float:
        """Kish's effective sample size: how many decisions of the target itself would be as informative.

        >>> Weights.of(np.array([1.0, 1.0, 2.0, 0.0])).effective
        2.6666666666666665
        """
        return self.total**2 / self.squares if self.squares else 0.0

    @property
    def mean(self) -> float:
        """Near 1 if the propensities are right and support is complete."""
        return self.total / self.count if self.count else np.nan

    @property
    def mean_off(self) -> float:
        """How many standard errors the mean weight is away from 1."""
        if self.count < 2:
            return 0.0
        variance = max(self.squares / self.count - self.mean**2, 0.0) / self.count
        return float((self.mean - 1) / np.sqrt(variance)) if variance > 0 else 0.0


@final
@dataclass(frozen=True, slots=True)
class Overlap:
    """What a log can say about one target, in sums that merge."""

    arms: tuple[str, ...]
    weights: Weights
    logged: FloatArray  # (K,), how often each arm was played
    wanted: FloatArray  # (K,), how often the target would play it
    by_user: dict[Any, Weights]

    @classmethod
    def of(cls, decisions: Decisions, *, by_user: bool = False) -> Overlap:
        """From one piece of a log."""
        log, target = decisions.log, decisions.target
        wanted = target * len(log) if target.ndim == 1 else target.sum(0)
        logged = np.bincount(log.action, minlength=log.K).astype(np.float64)
        users = _by_user(log.user, decisions.weight) if by_user and log.user is not None else {}
        return cls(log.arms, Weights.of(decisions.weight), logged, wanted, users)

    def merge(self, other: Overlap) -> Overlap:
        """Of both pieces."""
        users = dict(self.by_user)
        for user, weights in other.by_user.items():
            users[user] = users[user].merge(weights) if user in users else weights
        return Overlap(
            self.arms,
            self.weights.merge(other.weights),
            self.logged + other.logged,
            self.wanted + other.wanted,
            users,
        )

    def missing(self) -> str | None:
        """Why weighting cannot answer: arms that the target plays and the log never did."""
        never = (self.wanted > SUM_TOLERANCE * self.weights.count) & (self.logged == 0)
        if not never.any():
            return None
        names = ", ".join(repr(self.arms[k]) for k in np.flatnonzero(never))
        share = self.wanted[never].sum() / self.wanted.sum()
        return (
            f"support is missing: the target plays {names} in {share:.1%} of decisions, and the log never did; "
            "only a model (dm) can answer, by extrapolation"
        )

    def warnings(self) -> list[str]:
        """What a reader of the estimates should know."""
        told, w = [], self.weights
        if abs(w.mean_off) > SUSPECT:
            told.append(
                f"the weights average {w.mean:.3g} instead of 1 ({w.mean_off:+.1f} standard errors): propensities are "
                "wrong, or support is missing for some decisions"
            )
        if w.count and w.effective < THIN * w.count:
            told.append(f"only {w.effective:.0f} of {w.count} decisions count effectively: weights are very unequal")
        thin = [user for user, each in self.by_user.items() if not each.total]
        if thin:
            told.append(f"nothing was logged that the target would do for {len(thin)} users, {thin[0]!r} among them")
        return told


def _by_user(user: Any, weight: FloatArray) -> dict[Any, Weights]:
    labels, index = np.unique(user, return_inverse=True)
    count = np.bincount(index)
    total, squares = np.bincount(index, weight), np.bincount(index, weight * weight)
    largest = np.zeros(len(labels))
    np.maximum.at(largest, index, weight)
    return {
        label: Weights(int(n), float(t), float(s), float(m))
        for label, n, t, s, m in zip(labels.tolist(), count, total, squares, largest, strict=True)
    }
