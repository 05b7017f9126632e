"""Plans of rehearsals: designs beside the trial's own, the smallest trial that reaches a goal, and a quick rehearsal.

All designs meet the same worlds. Seasons to reach a goal come from one long rehearsal that is looked at after each: the
first seasons of a trial do not depend on how many follow. Tolerances and floors are rehearsed one by one.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drimed.errors import ConfigError, DrimedError, InputError
from drimed.formatting import percent
from drimed.policies.policy import Policy
from drimed.policies.registry import make
from drimed.rehearsal import scenarios
from drimed.rehearsal.history import History
from drimed.rehearsal.history import load as load_history
from drimed.rehearsal.play import CONTROL, FIXED, UNIFORM, Design, Rehearsal
from drimed.rehearsal.results import CLAIMS, LIKELY, PROPENSITIES, SURE, Number, Record, describe, measures
from drimed.rehearsal.scenarios import Scenario, SimulatedTrials
from drimed.simulation.sweep import sweep
from drimed.trial.events import Rehearsed
from drimed.trial.spec import Floors, PolicyPart, TrialSpec

OWN = "this trial"  # the name of the file's own design
CONTROL_FLOORS = (0.1, 0.3)  # of designs beside one without floors
FEWER = 5  # designs beside the trial's own are rehearsed with so many times fewer trials,
FEWEST = 100  # but with no fewer than these
LENGTHS = (8, 16, 32)  # seasons that are rehearsed until the goal is reached
TRIED = {
    "tolerance": (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0),  # times the file's
    "floor": (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5),  # of the control
}
QUICK_TRIALS = 20
QUICK_LARGEST = 100  # decisions of a season times arms times metrics; more would take longer than a person waits

Records = dict[tuple[str, str], Record]  # by scenario and design


@dataclass(frozen=True)
class Plan:
    """Designs and scenarios of a rehearsal."""

    spec: TrialSpec
    scenarios: dict[str, Scenario]
    designs: tuple[Design, ...]
    trials: int = 1000
    seed: int = 0
    seasons: int | None = None
    history: History | None = None

    def __post_init__(self) -> None:
        if self.trials < 2:
            raise ConfigError(f"a rehearsal needs at least 2 trials, got {self.trials}")

    @staticmethod
    def of_files(
        file: Path, scenario_file: Path | None = None, past: Path | None = None, *, every_design: bool, **sizes: Any
    ) -> Plan:
        """The trial of a file in its scenarios, with other designs beside it; `sizes` are trials, seasons and seed."""
        spec, chosen = scenarios.load(file, scenario_file)
        history = None if past is None else load_history(spec, past)
        if history is not None:
            chosen = history.scenarios(spec, sizes["seasons"]) | chosen
        elif any(s.history for s in chosen.values()):
            raise InputError("a scenario is as in the past: give the past with --history FILE")
        beside = [*without_learning(spec), *variants(spec)] if every_design else without_learning(spec)[:1]
        chosen = chosen or scenarios.usual(spec, sizes["seasons"])
        return Plan(spec, chosen, (own(spec), *beside), history=history, **sizes)

    @property
    def main(self) -> str:
        """The scenario that is shown first: one in which an arm differs from the control, if there is any."""
        differ = (
            name
            for name, s in self.scenarios.items()
            if s.history or any(any(own.values()) for own in (s.spread, *s.effects.values()))
        )
        return next(differ, next(iter(self.scenarios)))

    def simulated(self, scenario: str) -> SimulatedTrials:
        """A scenario in numbers, and the users of its trials, without any seed."""
        return SimulatedTrials.of(self.spec, self.scenarios[scenario], (), self.seasons, self.history)

    def tasks(self) -> dict[tuple[str, str], Rehearsal]:
        """By scenario and design."""
        few = min(self.trials, max(FEWEST, self.trials // FEWER))
        first = self.seed * 1_000_000
        return {
            (name, design.name): Rehearsal(
                spec=self.spec, design=design, scenario=scenario, seasons=self.seasons, history=self.history,
                seeds=tuple(range(first, first + (self.trials if design.name == OWN else few))),
            )
            for name, scenario in self.scenarios.items()
            for design in self.designs
        }  # fmt: skip

    def hash(self) -> str:
        """Of everything that the results depend on."""
        keys = [block.key() for task in self.tasks().values() for block in task.blocks()]
        return hashlib.sha256(json.dumps(keys).encode()).hexdigest()

    def run(self, store: Path | None, **how: Any) -> Records:
        """Play what is not stored yet, and return all of it; `how` is that of `sweep`."""
        return sweep(self.tasks(), store, **how)


def own(spec: TrialSpec) -> Design:
    """The design of the file."""
    return Design(OWN, spec)


def without_learning(spec: TrialSpec) -> list[Design]:
    """Designs whose decisions do not depend on outcomes."""
    names = {UNIFORM: "uniform allocation", FIXED: "fixed randomised design", CONTROL: "always the control"}
    return [Design(name, spec, allocation) for allocation, name in names.items()]


def variants(spec: TrialSpec) -> list[Design]:
    """The same policy with half and twice the tolerance, with floors, and with other guards."""
    specs = {"half the tolerance": tolerating(spec, 0.5), "twice the tolerance": tolerating(spec, 2.0)}
    if spec.floors is None:
        specs |= {f"a floor of {percent(f)} for the control": with_floor(spec, f) for f in CONTROL_FLOORS}
    policy = make(spec.policy.name, **spec.policy.settings)
    if isinstance(policy, Policy) and "guard" in policy.traits.settings:
        for guard, name in (("certain", "guard on every arm"), ("off", "no guard")):
            if guard != spec.policy.settings.get("guard", "expected") and not (guard == "off" and spec.guardrails):
                changed = PolicyPart(name=spec.policy.name, **spec.policy.settings | {"guard": guard})
                specs[name] = spec.model_copy(update={"policy": changed})
    return [Design(name, changed) for name, changed in specs.items()]


def tolerating(spec: TrialSpec, times: float) -> TrialSpec:
    """The trial with so many times the tolerance."""
    t = spec.tolerance
    wider = {"relative": min(times * t.relative, 0.99), "absolute": times * t.absolute}
    return spec.model_copy(update={"tolerance": t.model_copy(update=wider)})


def with_floor(spec: TrialSpec, control: float) -> TrialSpec:
    """The trial with another floor of the control."""
    return spec.model_copy(update={"floors": (spec.floors or Floors()).model_copy(update={"control": control})})


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
        """From text such as "power 0.8" or "power at all times 0.8"."""
        pattern = rf"power(?:\s+({'|'.join(CLAIMS)}))?\s+(0?\.\d+|\d{{1,2}}(?:\.\d+)?\s*%)"
        match = re.fullmatch(pattern, text.strip().lower())
        if match is None:
            others = ", ".join(f'"power {c} 0.8"' for c in CLAIMS if c != LIKELY)
            raise InputError(f'a goal is "power 0.8", {others}, got {text!r}')
        number = match[2]
        share = float(number.rstrip("% ")) / 100 if number.endswith("%") else float(number)
        if not 0 < share < 1:
            raise InputError(f"a power is between 0 and 1, got {number}")
        return Goal(match[1] or LIKELY, share)


@dataclass(frozen=True)
class Answer:
    """The smallest number of seasons, tolerance or floor that reaches a goal."""

    what: str
    goal: Goal
    scenario: str
    tried: list[tuple[float, Number]]  # each value with the power that it reaches

    def first(self, errors: float = 0.0) -> float | None:
        """The smallest value whose power reaches the goal, with so many standard errors added; None: none does."""
        return next((v for v, n in self.tried if n.value + errors * n.error >= self.goal.share), None)

    def text(self) -> str:
        """In a sentence."""
        goal = f"a power of {self.goal.share:g} ({self.goal.claim})"
        unit = {"seasons": " seasons", "tolerance": " times the tolerance of the file", "floor": " for the control"}
        value, low, high, last = self.first(), self.first(SURE), self.first(-SURE), self.tried[-1][0]
        if value is None:
            power, at = max((n.value, v) for v, n in self.tried)
            return f"Nothing up to {last:g}{unit[self.what]} reaches {goal}: the most is {power:.2f}, with {at:g}."
        surely = f"{high:g}" if high is not None else f"more than {last:g}"
        between = "" if low == high else f" (within Monte Carlo error: {low:g} to {surely})"
        return f"{value:g}{unit[self.what]} reach {goal}{between}."


def find(what: str, goal: Goal, plan: Plan, scenario: str, store: Path | None, **how: Any) -> Answer:
    """The smallest that reaches the goal in a scenario; `how` is that of `sweep`."""
    if what != "seasons" and what not in TRIED:
        raise InputError(f"--find is one of seasons, {', '.join(TRIED)}, got {what!r}")
    tried: list[tuple[float, Number]] = []
    for value in LENGTHS if what == "seasons" else TRIED[what]:
        changed, seasons = plan.spec, plan.seasons
        if what == "seasons":
            seasons = int(value)
        else:
            changed = (tolerating if what == "tolerance" else with_floor)(plan.spec, value)
        worlds = {scenario: plan.scenarios[scenario]}
        only = replace(plan, scenarios=worlds, designs=(Design(OWN, changed),), seasons=seasons)
        (record,) = only.run(store, **how).values()
        if goal.claim != PROPENSITIES and not record.estimates:
            ask = f'ask for "power {PROPENSITIES} {goal.share:g}"'
            raise InputError(f"this policy estimates no effects, and has no power {goal.claim}; {ask}")
        if not (record.meant > 0).any():
            raise InputError(f"in scenario {scenario!r} no arm is better: there is no power to find; name another one")
        powers = record.power_by_look(goal.claim)
        if what == "seasons":
            tried = [(t + 1.0, n) for t, n in zip(record.looks, powers, strict=True)]
        else:
            tried.append((value, powers[-1]))
        if tried[-1][1].value - SURE * tried[-1][1].error >= goal.share:
            break
    return Answer(what, goal, scenario, tried)


def quick(spec: TrialSpec, given: dict[str, Scenario] | None = None) -> tuple[Rehearsed | None, list[str]]:
    """A rehearsal of a second or two before a trial is created: its record and notes; none where it would take long.

    `given` are the scenarios of the file.
    """
    try:
        worlds = {n: s for n, s in (given or {}).items() if not s.history} or scenarios.usual(spec)
        plan = Plan(spec, worlds, (own(spec),), trials=QUICK_TRIALS)
        name = plan.main
        plan = replace(plan, scenarios={name: worlds[name]})
        trials = plan.simulated(name)
    except DrimedError as error:
        return None, [f"not rehearsed: {error}"]
    seasons, size = trials.setting.seasons, max(map(len, trials.places)) * len(spec.arms) * len(spec.metrics)
    if size > QUICK_LARGEST or seasons > 2 * scenarios.SEASONS:
        return None, []
    record = plan.run(None, jobs=1)[name, OWN]
    m = measures(record)
    control, power = m["share of control"], m[f"power, {record.first_claim}"]
    warnings = [s.text for s in describe(record, m, (), seasons, spec.reward.unit) if s.warns]
    about = f"a quick rehearsal ({name}: {plan.scenarios[name].about or 'as the file says'})"
    notes = [f"{about}: {text} See `drimed trial rehearse`." for text in warnings]
    kept: Rehearsed = {
        "hash": plan.hash(), "scenario": name, "seasons": seasons, "trials": QUICK_TRIALS,
        "control": 0.0 if control is None else control.value, "power": None if power is None else power.value,
    }  # fmt: skip
    return kept, notes
