"""Policies to ask about: for each logged decision, how likely they would have played each arm, and what that weighs.

A target is a function of the log alone, so that it streams. Its answer is (K,) where it is the same for every
decision, else (n, K).
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
        return f"the target plays {log.arms[arm]!r} at decision {log.start + row}, where that arm was not available"
    if log.probabilities is not None:
        without = played & (log.probabilities <= 0)
        if without.any():
            row, arm = np.argwhere(without)[0]
            share = float(without.any(-1).mean())
            return (
                f"support is missing: the target plays {log.arms[arm]!r} at decision {log.start + row}, where the "
                f"log gave it no chance (in {share:.1%} of the decisions of this piece)"
            )
    return None
