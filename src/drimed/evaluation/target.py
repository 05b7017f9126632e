"""Policies to ask about: for each logged decision, how likely they would have played each arm, and what that weighs.

A target is a function of the log alone, so that it streams. Its answer is (K,) where it is the same for every
decision, else (n, K). How much a log tells about a target: effective sample size, largest weight, arms without support.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from drimed.errors import InputError, ShapeError, UnknownNameError
from drimed.evaluation.log import SUM_TOLERANCE, Log, unknown_propensity
from drimed.linear import checks
from drimed.linear.arrays import FloatArray, pick

NAMED = ("uniform", "control", "logged", "arm=NAME", "columns=PREFIX")
SUSPECT = 4.0  # standard errors that the mean weight may be away from 1: by chance once in 16,000 logs
THIN = 0.01  # an effective share of the log below this gives a warning
FEW = 50.0  # effective decisions below which the central limit theorem has not set in


@final
@dataclass(frozen=True, slots=True)
class Target:
    """A policy to evaluate, by name."""

    name: str
    probabilities: Callable[[Log], FloatArray]  # -> (K,) or (n, K)


def uniform() -> Target:
    """Every available arm alike."""

    def probabilities(log: Log) -> FloatArray:
        if log.available is None:
            return np.full(log.K, 1 / log.K)
        return log.available / log.available.sum(-1, keepdims=True)

    return Target("uniform", probabilities)


def always(arm: str, *, name: str | None = None) -> Target:
    """One arm for everybody."""

    def probabilities(log: Log) -> FloatArray:
        if arm not in log.arms:
            raise UnknownNameError("arm", arm, log.arms)
        return np.eye(log.K)[log.arms.index(arm)]

    return Target(name or f"arm={arm}", probabilities)


def logged() -> Target:
    """The policy that wrote the log: needs the probabilities of all arms."""

    def probabilities(log: Log) -> FloatArray:
        if log.probabilities is None:
            raise InputError(
                "target 'logged' needs the logged probabilities of all arms; this log has only that of the arm played"
            )
        return log.probabilities

    return Target("logged", probabilities)


def columns(prefix: str) -> Target:
    """Probabilities that the log itself carries, one column for each arm."""

    def probabilities(log: Log) -> FloatArray:
        if prefix not in log.targets:
            raise InputError(f"the log has no target probabilities under {prefix!r}; read it with columns={prefix!r}")
        return log.targets[prefix]

    return Target(f"columns={prefix}", probabilities)


def fixed(name: str, pmf: Any) -> Target:
    """The same lottery (K,) at every decision, or one row (n, K) for each decision of the whole log."""
    p = checks.probabilities("pmf", checks.finite("pmf", pmf))

    def probabilities(log: Log) -> FloatArray:
        if p.shape[-1] != log.K:
            raise InputError(f"target {name!r} has {p.shape[-1]} arms, the log has {log.K}")
        if p.ndim == 1:
            return p
        end = log.start + len(log)
        if end > len(p):
            raise InputError(f"target {name!r} has {len(p)} rows, the log has at least {end} decisions")
        return p[log.start : end]

    return Target(name, probabilities)


def by_user(name: str, pmfs: Mapping[Any, Any]) -> Target:
    """A lottery for each user, for example what each of them was recommended: user -> (K,)."""
    table = {user: checks.probabilities(f"pmf of {user}", checks.finite("pmf", p)) for user, p in pmfs.items()}

    def probabilities(log: Log) -> FloatArray:
        if log.user is None:
            raise InputError(f"target {name!r} depends on the user, and the log has no users")
        labels, index = np.unique(log.user, return_inverse=True)
        missing = [label for label in labels.tolist() if label not in table]
        if missing:
            raise InputError(f"target {name!r} says nothing about user {missing[0]!r}")
        return np.stack([table[label] for label in labels.tolist()])[index]

    return Target(name, probabilities)


def parse(text: str, *, control: str | None = None) -> Target:
    """A target as it is written on a command line.

    >>> parse("arm=new").name
    'arm=new'
    """
    if text == "uniform":
        return uniform()
    if text == "logged":
        return logged()
    if text == "control":
        if control is None:
            raise InputError("target 'control' needs to know which arm is the control; say so with --control NAME")
        return always(control, name="control")
    kind, _, value = text.partition("=")
    if kind == "arm" and value:
        return always(value)
    if kind == "columns" and value:
        return columns(value)
    raise UnknownNameError("target policy", text, NAMED)


@final
class Decisions:
    """A log seen with a target policy's eyes: what all estimators share, computed once and only when asked for.

    >>> from drimed.evaluation.log import make_log
    >>> log = make_log(action=[0, 1], reward=[1.0, 0.0], propensity=[0.5, 0.25])
    >>> Decisions(log, np.array([0.5, 0.5])).weight.tolist()
    [1.0, 2.0]
    """

    def __init__(self, log: Log, target: FloatArray) -> None:
        if target.shape not in ((log.K,), (len(log), log.K)):
            raise ShapeError(f"target must have shape ({log.K},) or ({len(log)}, {log.K}), got {target.shape}")
        self.log, self.target = log, target

    @property
    def reward(self) -> FloatArray:
        """(n,)."""
        return self.log.reward

    @cached_property
    def chance(self) -> FloatArray:
        """How likely the target plays the arm that was played: (n,)."""
        if self.target.ndim == 1:
            return self.target.take(self.log.action)
        return np.asarray(pick(self.target, self.log.action))

    @cached_property
    def weight(self) -> FloatArray:
        """chance / propensity: (n,)."""
        unknown = unknown_propensity(self.log)
        if unknown:
            raise InputError(unknown)
        return self.chance / self.log.propensity

    @cached_property
    def predicted(self) -> FloatArray:
        """q of the arm that was played: (n,)."""
        return np.asarray(pick(self._q, self.log.action))

    @cached_property
    def residual(self) -> FloatArray:
        """reward - q of the arm that was played: (n,)."""
        return self.reward - self.predicted

    @cached_property
    def direct(self) -> FloatArray:
        """The target's mean reward according to the model: (n,)."""
        return self._q @ self.target if self.target.ndim == 1 else np.vecdot(self.target, self._q)

    @property
    def _q(self) -> FloatArray:
        if self.log.predictions is None:
            raise InputError(
                "this estimator needs predictions of the reward of every arm (columns q_ARM), and the log has none"
            )
        return self.log.predictions


def missing_support(log: Log, target: FloatArray) -> str | None:
    """Why weighting cannot answer for this target on this piece of a log, or None.

    Only what a piece can tell: an arm that the target plays where the log says that it had no chance.
    """
    if log.available is None and log.probabilities is None:
        return None
    played = np.broadcast_to(target, (len(log), log.K)) > SUM_TOLERANCE  # (n, K)
    if log.available is not None and (played & ~log.available).any():
        row, arm = np.argwhere(played & ~log.available)[0]
        return f"the target plays {log.arms[arm]!r} in row {log.row(int(row))}, where that arm was not available"
    if log.probabilities is None or not (without := played & (log.probabilities <= 0)).any():
        return None
    row, arm = np.argwhere(without)[0]
    return (
        f"support is missing: the target plays {log.arms[arm]!r} in row {log.row(int(row))}, where the log gave it "
        f"no chance (in {float(without.any(-1).mean()):.1%} of the decisions of this piece)"
    )


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
        count, total, squares = self.count + other.count, self.total + other.total, self.squares + other.squares
        return Weights(count, total, squares, max(self.largest, other.largest))

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
        logged, wanted = self.logged + other.logged, self.wanted + other.wanted
        return Overlap(self.arms, self.weights.merge(other.weights), logged, wanted, users)

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
        if w.count and w.effective < max(THIN * w.count, FEW):
            unequal = ", because weights are unequal" if w.effective < 0.9 * w.count else ""
            told.append(
                f"only {w.effective:.0f} of {w.count} decisions count effectively{unequal}: normal and bootstrap "
                "intervals are too narrow; give the reward's range (--reward-range) for one that holds with few "
                "decisions too"
            )
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
