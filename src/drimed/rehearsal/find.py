"""The smallest number of seasons, tolerance or floor with which a trial reaches a goal, and how sure that is.

Seasons come from one long rehearsal that is looked at after each: what a trial does in its first seasons does not
depend on how many follow. Tolerances and floors are rehearsed one by one, in the same worlds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drimed.errors import InputError
from drimed.rehearsal import designs
from drimed.rehearsal.designs import OWN, Design
from drimed.rehearsal.results import CLAIMS, LIKELY, PROPENSITIES, Number, Record, measures, power_by_season
from drimed.rehearsal.run import Plan, rehearse
from drimed.trial.spec import TrialSpec

LENGTHS = (8, 16, 32)  # seasons that are rehearsed until the goal is reached
TOLERANCES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)  # times the file's
FLOORS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # of the control
WHAT = ("seasons", "tolerance", "floor")
SURE = 2.0  # standard errors
_GOAL = re.compile(r"power(?:\s+(likely|at all times|from propensities))?\s+(0?\.\d+|\d{1,2}(?:\.\d+)?\s*%)")


@dataclass(frozen=True)
class Goal:
    """A chance of a right claim.

    >>> Goal.parse("power 0.8"), Goal.parse("power at all times 90 %").share
    (Goal(claim='likely', share=0.8), 0.9)
    """

    claim: str
    share: float

    @staticmethod
    def parse(text: str) -> Goal:
        """From words such as "power 0.8" or "power at all times 0.8"."""
        found = _GOAL.fullmatch(text.strip().lower())
        if found is None:
            known = ", ".join(f'"power {c} 0.8"' for c in CLAIMS if c != LIKELY)
            raise InputError(f'a goal is "power 0.8", {known}, got {text!r}')
        number = found[2]
        share = float(number.rstrip("% ")) / 100 if number.endswith("%") else float(number)
        if not 0 < share < 1:
            raise InputError(f"a power is between 0 and 1, got {number}")
        return Goal(found[1] or LIKELY, share)


@dataclass(frozen=True)
class Answer:
    """What was found."""

    what: str
    goal: Goal
    scenario: str
    tried: list[tuple[float, Number]]  # each value with the power that it reaches
    value: float | None  # the smallest that reaches the goal; None: none that was tried does
    low: float | None  # the smallest that may reach it, within Monte Carlo error
    high: float | None  # the smallest that does so surely

    def words(self) -> str:
        """In a sentence."""
        goal = f"a power of {self.goal.share:g} ({self.goal.claim})"
        last, best = self.tried[-1]
        unit = {"seasons": " seasons", "tolerance": " times the tolerance of the file", "floor": " for the control"}
        if self.value is None:
            reached = max((n.value, v) for v, n in self.tried)
            return (
                f"Nothing up to {last:g}{unit[self.what]} reaches {goal}: the most is {reached[0]:.2f}, with "
                f"{reached[1]:g}."
            )
        surely = f"{self.high:g}" if self.high is not None else f"more than {last:g}"
        between = "" if self.low == self.high else f" (within Monte Carlo error: {self.low:g} to {surely})"
        del best
        return f"{self.value:g}{unit[self.what]} reach {goal}{between}."


def find(
    what: str, goal: Goal, plan: Plan, scenario: str, store: Path | None,
    **how: Any,
) -> Answer:  # fmt: skip
    """The smallest that reaches the goal in a scenario."""
    if what not in WHAT:
        raise InputError(f"--find is one of {', '.join(WHAT)}, got {what!r}")
    tried: list[tuple[float, Number]] = []
    if what == "seasons":
        for seasons in LENGTHS:
            own = (designs.own(plan.spec),)
            (record,) = rehearse(_only(plan, scenario, own, seasons), store, **how).values()
            _must_have(goal, record)
            tried = [(t + 1.0, n) for t, n in zip(record.looks, power_by_season(record, goal.claim), strict=True)]
            if tried[-1][1].value - SURE * tried[-1][1].error >= goal.share:
                break
        return _answer(what, goal, scenario, tried)
    values = TOLERANCES if what == "tolerance" else FLOORS
    for value in values:
        changed = _changed(plan.spec, what, value)
        asked = _only(plan, scenario, (Design(OWN, changed),), plan.seasons)
        (record,) = rehearse(asked, store, **how).values()
        _must_have(goal, record)
        power = measures(record)[f"power, {goal.claim}"]
        if power is None:
            raise InputError(f"in scenario {scenario!r} no arm is better: there is no power to find; name another one")
        tried.append((value, power))
        if power.value - SURE * power.error >= goal.share:
            break
    return _answer(what, goal, scenario, tried)


def _must_have(goal: Goal, record: Record) -> None:
    if goal.claim != PROPENSITIES and not record.estimates:
        raise InputError(
            f"this policy estimates no effects, and has no power {goal.claim}; ask for "
            f'"power {PROPENSITIES} {goal.share:g}"'
        )


def _only(plan: Plan, scenario: str, some: tuple[Design, ...], seasons: int | None) -> Plan:
    return Plan(plan.spec, {scenario: plan.scenarios[scenario]}, some, plan.trials, plan.seed, seasons, plan.history)


def _changed(spec: TrialSpec, what: str, value: float) -> TrialSpec:
    return designs.tolerating(spec, value) if what == "tolerance" else designs.with_floor(spec, value)


def _answer(what: str, goal: Goal, scenario: str, tried: list[tuple[float, Number]]) -> Answer:
    def first(errors: float) -> float | None:
        return next((v for v, n in tried if n.value + errors * n.error >= goal.share), None)

    return Answer(what, goal, scenario, tried, first(0.0), first(SURE), first(-SURE))
