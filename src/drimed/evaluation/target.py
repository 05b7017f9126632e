"""Policies to ask about: for each logged decision, how likely they would have played each arm.

A target is a function of the log alone, so that it streams. Its answer is (K,) where it is the same for every
decision, else (n, K).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from drimed.errors import InputError, UnknownNameError
from drimed.evaluation.log import Log
from drimed.linear import checks
from drimed.linear.arrays import FloatArray

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
