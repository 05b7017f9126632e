"""Requests to a trial: the same for Python, HTTP, pages, sheets, command line and client.

Paths of faults begin with the names of these fields: ("contexts", "north", "rain"), ("reports", 0, "outcome", "yield").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drimed.records.decision import Report

LONGEST_KEY = 200  # characters of an idempotency key

Context = Mapping[str, float | str]
Plots = Mapping[str, Sequence[str]] | Sequence[str]  # block -> plots, or plots


@dataclass(frozen=True, kw_only=True)
class AskRequest:
    """Users to decide for, and what is known about them."""

    users: Sequence[str] | None = None  # None: all users of the trial
    contexts: Mapping[str, Context] = field(default_factory=dict)  # user -> field -> value
    enrol: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # new user -> attributes, cohort, group, plots
    plots: Mapping[str, Plots] = field(default_factory=dict)  # user -> plots to decide for; left out: all of its own
    unavailable: Sequence[str] = ()  # arms that none of these users can get
    episode: int | None = None  # None: the open one; the next one is opened
    season: str | None = None  # the episode by its name
    date: str | None = None  # of a season that is opened
    key: str | None = None  # idempotency key: a repeated request is answered with the first decisions
    confirm: bool = False  # accept unlikely values and undeclared plots


@dataclass(frozen=True, kw_only=True)
class TellRequest:
    """Outcomes to record together, all or none."""

    reports: Sequence[Report]
    confirm: bool = False  # accept unlikely values


@dataclass(frozen=True, kw_only=True)
class AmendRequest:
    """A correction of an outcome; None takes a value back."""

    report: Report
    reason: str
    saw: Report | None = None  # values that the correction is about; refused if one of them has changed since
    confirm: bool = False
