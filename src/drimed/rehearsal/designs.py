"""Plans of rehearsals: designs beside the trial's own, the smallest trial that reaches a goal, and a quick rehearsal.

All designs meet the same worlds. Seasons to reach a goal come from one long rehearsal that is looked at after each.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from drimed.errors import ConfigError, DrimedError, InputError
from drimed.formatting import counted, percent
from drimed.policies.policy import Policy
from drimed.policies.registry import make
from drimed.rehearsal import scenarios
from drimed.rehearsal.play import CONTROL, FIXED, UNIFORM, Design, Rehearsal
from drimed.rehearsal.results import AT_THE_END, CLAIMS, PROPENSITIES, SURE, Number, Record, describe, measures
from drimed.rehearsal.scenarios import Scenario, SimulatedTrials
from drimed.simulation.sweep import sweep
from drimed.trial import past
from drimed.trial.events import Calibration, HistoryRead, Rehearsed
from drimed.trial.queries import not_rehearsed
from drimed.trial.spec import Floors, PolicyPart, TrialSpec

OWN = "this trial"  # the name of the file's own design
CONTROL_FLOORS = (0.1, 0.3)  # of designs beside one without floors
FEWER = 5  # other designs are rehearsed with one fifth of the trials,
FEWEST = 100  # but with at least these
TRIED = {  # until the goal is reached
    "seasons": (8, 16, 32),
    "tolerance": (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0),  # times the file's
    "floor": (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5),  # of the control
}
UNITS = {"seasons": " seasons", "tolerance": " times the tolerance of the file", "floor": " as a floor of the control"}
QUICK_TRIALS = 20
QUICK_LARGEST = 100  # decisions of a season times arms times metrics; more would take longer than a person waits
QUICK_PEOPLE = 200  # the same where people come

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
    history: HistoryRead | None = None  # that the trial begins with
    calibration: Calibration | None = None  # of its rules
    given: dict[str, Scenario] = field(default_factory=dict)  # the scenarios of the file

    def __post_init__(self) -> None:
        if self.trials < 2:
            raise ConfigError(f"a rehearsal needs at least 2 trials, got {self.trials}")

    @staticmethod
    def of_files(
        file: Path, history: Path | None = None, scenario_file: Path | None = None, *, every_design: bool, **sizes: Any
    ) -> Plan:
        """The trial of a file in its scenarios, with other designs beside it; `sizes` are trials, seasons and seed."""
        spec, chosen = scenarios.load(file, scenario_file)
        known = past.of_trial(spec, file, history)
        given, chosen = chosen, ({} if known is None else scenarios.of_past(spec, known, sizes["seasons"])) | chosen
        beside = [*without_learning(spec), *variants(spec)] if every_design else without_learning(spec)[:1]
        chosen = chosen or scenarios.usual(spec, sizes["seasons"])
        return Plan(spec, chosen, (own(spec), *beside), history=known, given=given, **sizes)

    @property
    def main(self) -> str:
        """The scenario that is shown first: one in which an arm differs from the control, if there is any."""
        differ = (
            name
            for name, s in self.scenarios.items()
            if any(any(own.values()) for own in (s.spread, *s.effects.values()))
        )
        return next(differ, next(iter(self.scenarios)))

    def simulated(self, scenario: str) -> SimulatedTrials:
        """A scenario in numbers, and the users of its trials, without any seed."""
        return SimulatedTrials.of(self.spec, self.scenarios[scenario], (), self.seasons, self.history)

    def tasks(self) -> dict[tuple[str, str], Rehearsal]:
        few = min(self.trials, max(FEWEST, self.trials // FEWER))
        first = self.seed * 1_000_000
        return {
            (name, design.name): Rehearsal(
                spec=self.spec, design=design, scenario=scenario, seasons=self.seasons, history=self.history,
                calibration=self.calibration,
                seeds=tuple(range(first, first + (self.trials if design.name == OWN else few))),
            )
            for name, scenario in self.scenarios.items()
            for design in self.designs
        }  # fmt: skip

    def hash(self) -> str:
        """The hash of everything that the results depend on."""
        keys = [block.key() for task in self.tasks().values() for block in task.blocks()]
        return hashlib.sha256(json.dumps(keys).encode()).hexdigest()

    def run(self, store: Path | None, **how: Any) -> Records:
        """Play what is not stored yet, and return all of it; `how` is passed on to `sweep`."""
        return sweep(self.tasks(), store, **how)


def own(spec: TrialSpec) -> Design:
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
    t = spec.tolerance
    wider = {"relative": min(times * t.relative, 0.99), "absolute": times * t.absolute}
    return spec.model_copy(update={"tolerance": t.model_copy(update=wider)})


def with_floor(spec: TrialSpec, control: float) -> TrialSpec:
    return spec.model_copy(update={"floors": (spec.floors or Floors()).model_copy(update={"control": control})})


def parse_goal(text: str) -> tuple[float, str]:
    """The power of a goal, and its claim; empty: the one that is reported first.

    >>> parse_goal("power 0.8"), parse_goal("power at all times 90 %")
    ((0.8, ''), (0.9, 'at all times'))
    """
    pattern = rf"power(?:\s+({'|'.join(CLAIMS)}))?\s+(0?\.\d+|\d{{1,2}}(?:\.\d+)?\s*%)"
    match = re.fullmatch(pattern, text.strip().lower())
    share = 0.0 if match is None else float(match[2].rstrip("% ")) / (100 if match[2].endswith("%") else 1)
    if match is None or not 0 < share < 1:
        raise InputError(
            f'a goal is a power between 0 and 1, such as "power 0.8" or "power at all times 0.8", got {text!r}'
        )
    return share, match[1] or ""


@dataclass(frozen=True)
class Answer:
    """The smallest number of seasons, tolerance or floor that reaches a goal."""

    what: str
    power: float
    claim: str
    scenario: str
    tried: list[tuple[float, Number]]  # each with the power that it reaches

    def first(self, errors: float = 0.0) -> float | None:
        """The smallest number whose power reaches the goal, with so many standard errors added; None: none does."""
        return next((v for v, n in self.tried if n.value + errors * n.error >= self.power), None)

    def text(self) -> str:
        goal = f"a power of {self.power:g} ({self.claim})"
        value, low, high, last = self.first(), self.first(SURE), self.first(-SURE), self.tried[-1][0]
        if value is None:
            power, at = max((n.value, v) for v, n in self.tried)
            return f"Nothing up to {last:g}{UNITS[self.what]} reaches {goal}: the most is {power:.2f}, with {at:g}."
        surely = f"{high:g}" if high is not None else f"more than {last:g}"
        between = "" if low == high else f" (within Monte Carlo error: {low:g} to {surely})"
        return f"{value:g}{UNITS[self.what]} reach{'es' * (self.what != 'seasons')} {goal}{between}."


def find(
    goal: tuple[float, str], plan: Plan, scenario: str, store: Path | None, what: str = "seasons", **how: Any
) -> Answer:
    """The smallest number of seasons, tolerance or floor that reaches a power in a scenario; `how` goes to `sweep`."""
    if what not in TRIED:
        raise InputError(f"--find is one of {', '.join(TRIED)}, got {what!r}")
    power, claim = goal
    only, tried = replace(plan, scenarios={scenario: plan.scenarios[scenario]}), list[tuple[float, Number]]()
    for value in TRIED[what]:
        if what == "seasons":
            only = replace(only, designs=(own(plan.spec),), seasons=int(value))
        else:
            changed = (tolerating if what == "tolerance" else with_floor)(plan.spec, value)
            only = replace(only, designs=(own(changed),))
        (record,) = only.run(store, **how).values()
        if not (record.meant > 0).any():
            raise InputError(f"in scenario {scenario!r} no arm is better: there is no power to find; name another one")
        if claim not in ("", PROPENSITIES) and not record.estimates:
            raise InputError(f'this policy estimates no effects: ask for "power {PROPENSITIES} {power:g}"')
        by_look = record.power_by_look(claim or record.first_claim)
        if what == "seasons":
            tried = [(int(t) + 1, n) for t, n in zip(record.looks, by_look, strict=True)]
        else:
            tried.append((value, by_look[-1]))
        if tried[-1][1].value - SURE * tried[-1][1].error >= power:
            break
    return Answer(what, power, claim or record.first_claim, scenario, tried)


def quick(
    spec: TrialSpec,
    given: dict[str, Scenario] | None = None,
    history: HistoryRead | None = None,
    calibration: Calibration | None = None,
) -> tuple[Rehearsed | None, list[str]]:
    """A rehearsal of a second or two before a trial is created: its record, or none where it takes long, and notes.

    `given` are the scenarios of the file.
    """
    try:
        worlds = given or (scenarios.of_past(spec, history) if history is not None else {}) or scenarios.usual(spec)
        plan = Plan(spec, worlds, (own(spec),), trials=QUICK_TRIALS, history=history, calibration=calibration)
        name = plan.main
        world = worlds[name]
        if spec.enrols and world.users is None:  # as many people as are planned, or as a person waits for
            limit = None if spec.stopping is None else spec.stopping.decisions
            each = (limit or scenarios.PEOPLE * scenarios.SEASONS) // scenarios.SEASONS
            most = QUICK_PEOPLE // (len(spec.arms) * len(spec.metrics))
            world = world.model_copy(update={"users": max(1, min(each, most))})
        plan = replace(plan, scenarios={name: world})
        trials = plan.simulated(name)
    except DrimedError as error:
        return None, [f"not rehearsed: {error}"]
    seasons, size = trials.setting.seasons, max(map(len, trials.places)) * len(spec.arms) * len(spec.metrics)
    if size > (QUICK_PEOPLE if spec.enrols else QUICK_LARGEST) or seasons > 2 * scenarios.SEASONS:
        return None, [not_rehearsed(", since that takes longer than a moment")]
    record = plan.run(None, jobs=1)[name, OWN]
    m = measures(record)
    control, power = m[AT_THE_END], m[f"power, {record.first_claim}"]
    warnings = [s.text for s in describe(record, m, (), seasons, spec) if s.warns]
    decisions = counted(sum(map(len, trials.places)), "decision")
    levels = ", ".join(
        f"{metric} {scenarios.level_text(part, scenarios.levels(spec, world)[metric])}"
        for metric, part in spec.metrics.items()
    )
    about = f"a quick rehearsal of {decisions} ({name}: {world.about or 'as the file says'}; control: {levels})"
    notes = [f"{about}: {text} See `drimed trial rehearse`." for text in warnings]
    kept: Rehearsed = {
        "hash": plan.hash(), "scenario": name, "seasons": seasons, "trials": QUICK_TRIALS,
        "control": 0.0 if control is None else control.value, "power": None if power is None else power.value,
    }  # fmt: skip
    return kept, notes
