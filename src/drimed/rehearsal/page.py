"""One page of a rehearsal: words first, pictures, then every number with its Monte Carlo error; and results.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from drimed.errors import InputError
from drimed.findings.charts.svg import SERIES, Chart, Table
from drimed.findings.page import environment, style
from drimed.formatting import counted, short
from drimed.outputs import replacing
from drimed.rehearsal import charts, words
from drimed.rehearsal.designs import OWN
from drimed.rehearsal.find import Answer
from drimed.rehearsal.history import History
from drimed.rehearsal.measures import (
    CLAIMS,
    Measured,
    Number,
    best_by_user,
    called,
    first_claim,
    measures,
    power_by_season,
)
from drimed.rehearsal.run import Plan, Records
from drimed.rehearsal.scenarios import Population, Scenario, SimulatedTrials

PAGE, RESULTS = "index.html", "results.json"
SHARES = (
    "share of control", "share of control in the last season", "trials that stand on the control",
    "decisions that the guard changed", "decisions harmful beyond the tolerance", "users harmed beyond the tolerance",
    "best arm found for a user", "likely ranges that hold", "trials whose ranges at all times hold",
    *(f"{what}, {claim}" for what in ("power", "harm found", "false claims") for claim in CLAIMS),
)  # fmt: skip


@dataclass(frozen=True)
class Results:
    """A plan and its results."""

    plan: Plan
    records: Records
    answer: Answer | None = None

    @property
    def measured(self) -> dict[tuple[str, str], Measured]:
        """By scenario and design."""
        return {name: measures(record, self.rules) for name, record in self.records.items()}

    @property
    def rules(self) -> list[str]:
        """The names of the stopping rules."""
        stopping = self.plan.spec.stopping
        return [] if stopping is None else list(stopping.rules)

    def trials(self, scenario: str) -> SimulatedTrials:
        """A scenario in numbers, and the users of its trials."""
        return SimulatedTrials.of(self.plan.spec, self.plan.scenarios[scenario], (), self.plan.seasons)

    @property
    def seasons(self) -> dict[str, int]:
        """Of each scenario."""
        return {name: self.trials(name).setting.seasons for name in self.plan.scenarios}

    @property
    def main(self) -> str:
        """The scenario of which pictures are shown: the first in which an arm is better."""
        return main_scenario(self.plan.scenarios)


def main_scenario(scenarios: dict[str, Scenario]) -> str:
    """The first in which an arm differs from the control."""
    for name, s in scenarios.items():
        if s.history or any(any(own.values()) for own in s.effects.values()) or any(s.spread.values()):
            return name
    return next(iter(scenarios))


def write(results: Results, out: Path, *, force: bool = False) -> Path:
    """The page and the numbers, into a folder."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror or error}") from None
    files = {PAGE: page(results), RESULTS: json.dumps(as_json(results), indent=1, ensure_ascii=False) + "\n"}
    with ExitStack() as stack:  # both are in place, or none
        beside = {n: stack.enter_context(replacing(out / n, force=force)) for n in files}
        for name, text in files.items():
            beside[name].write_text(text, encoding="utf-8")
    return out / PAGE


def page(results: Results) -> str:
    """The page."""
    plan, measured = results.plan, results.measured
    people = results.trials(results.main).population
    own = {s: results.records[s, OWN] for s in plan.scenarios}
    harmful = max(plan.scenarios, key=lambda s: _value(measured[s, OWN]["users harmed beyond the tolerance"]))
    designs = {d.name: measured[results.main, d.name] for d in plan.designs}
    arms, unit = list(plan.spec.arms), plan.spec.reward.unit
    pictures: list[Chart | None] = [
        charts.power(own),
        charts.trade_off(designs, unit),
        charts.allocation(own[results.main], arms, results.main),
        charts.harm(own[harmful], people.users, harmful, unit),
    ]
    scenes = [
        {
            "name": name,
            "about": s.about,
            "seasons": results.seasons[name],
            "assumed": _assumed(results, name),
            "said": words.told(results.seasons[name], measured[name, OWN], unit),
        }
        for name, s in plan.scenarios.items()
    ]
    return environment("drimed.rehearsal").get_template("rehearsal.html").render(
        spec=plan.spec,
        style=style(),
        series=range(SERIES),
        trials=counted(plan.trials, "simulated trial"),
        verdict=words.verdict(measured, results.seasons, unit),
        scenes=scenes,
        answer=None if results.answer is None else results.answer.words(),
        charts=[c for c in pictures if c is not None],
        tables=[_by_scenario(results, measured), *_by_design(results, measured), *_by_user(results, people)],
        history=None if plan.history is None else _components(plan.history),
        hash=plan.hash(),
        seed=plan.seed,
        version=version("drimed"),
    )  # fmt: skip


def as_json(results: Results) -> dict[str, Any]:
    """Every number, with its error."""
    plan, people = results.plan, results.trials(results.main).population
    return {
        "rehearsal": plan.hash(),
        "trial": plan.spec.name,
        "spec": hashlib.sha256(json.dumps(plan.spec.plain(), sort_keys=True).encode()).hexdigest(),
        "drimed": version("drimed"),
        "trials": plan.trials,
        "seed": plan.seed,
        "answer": None if results.answer is None else {
            "what": results.answer.what, "goal": results.answer.goal.share, "claim": results.answer.goal.claim,
            "scenario": results.answer.scenario, "value": results.answer.value, "low": results.answer.low,
            "high": results.answer.high, "tried": [[v, n.value, n.error] for v, n in results.answer.tried],
        },
        "scenarios": {
            name: {
                "about": s.about,
                "seasons": results.seasons[name],
                "decisions": sum(map(len, results.trials(name).population.seasons)),
                "designs": {
                    d.name: {
                        "trials": results.records[name, d.name].trials,
                        "measures": {
                            k: None if n is None else [n.value, n.error]
                            for k, n in measures(results.records[name, d.name], results.rules).items()
                        },
                        "looks": (results.records[name, d.name].looks + 1).tolist(),
                        "power by look": {
                            claim: [[n.value, n.error] for n in power_by_season(results.records[name, d.name], claim)]
                            for claim in CLAIMS
                        },
                        "allocation": np.nanmean(results.records[name, d.name].shares, 0).tolist(),
                    }
                    for d in plan.designs
                },
                "best arm found": {
                    who: [n.value, n.error]
                    for who, n in best_by_user(results.records[name, OWN], *_who(people)).items()
                },
            }
            for name, s in plan.scenarios.items()
        },
    }  # fmt: skip


def _who(people: Population) -> tuple[list[str], dict[str, list[int]]]:
    """Those who are looked at, and the members of their groups."""
    groups: dict[str, list[int]] = {}
    for h, profile in enumerate(people.looked_at):
        if profile.group is not None:
            groups.setdefault(f"group {profile.group}", []).append(h)
    return [p.user for p in people.looked_at], groups


def _value(number: Number | None) -> float:
    return 0.0 if number is None else number.value


def _cell(name: str, number: Number | None) -> str:
    share = name in SHARES or (name.startswith("rule ") and " met" in name)
    return words.amount(number, share=share)


def _by_scenario(results: Results, measured: dict[tuple[str, str], Measured]) -> Table:
    names = list(results.plan.scenarios)
    kinds = dict.fromkeys(k for s in names for k in measured[s, OWN])
    unit = results.plan.spec.reward.unit
    rows = [[called(k, unit), *(_cell(k, measured[s, OWN].get(k)) for s in names)] for k in kinds]
    return Table("This trial, by scenario (± standard error of the simulation)", ["", *names], rows)


def _by_design(results: Results, measured: dict[tuple[str, str], Measured]) -> list[Table]:
    designs = [d.name for d in results.plan.designs]
    if len(designs) < 2:
        return []
    claim = first_claim(measured[results.main, OWN])
    kinds = (
        f"power, {claim}", "power, at all times", f"false claims, {claim}", "share of control",
        "gain against the control", "regret against the best arm", "users harmed beyond the tolerance",
        "expected loss of the worst user", "ideal design percentage",
    )  # fmt: skip
    return [
        Table(
            f"Designs side by side: {name}",
            ["", *(called(k, results.plan.spec.reward.unit) for k in kinds)],
            [[d, *(_cell(k, measured[name, d].get(k)) for k in kinds)] for d in designs],
        )
        for name in results.plan.scenarios
    ]


def _by_user(results: Results, people: Population) -> list[Table]:
    names = list(results.plan.scenarios)
    found = {s: best_by_user(results.records[s, OWN], *_who(people)) for s in names}
    rows = [[who, *(words.amount(found[s][who]) for s in names)] for who in found[names[0]]]
    title = "Chance that the arm with the largest estimate is the best one"
    return [Table(title, ["", *names], rows)] if rows else []


def _assumed(results: Results, name: str) -> list[str]:
    """What a scenario takes for granted, in the units of the metrics."""
    s, spec = results.trials(name).setting, results.plan.spec
    if results.plan.scenarios[name].history:
        return ["outcomes as they were measured in the past"]
    found = []
    for m, (metric, part) in enumerate(spec.metrics.items()):
        unit = f" {part.unit}" if part.unit else ""
        effects = [f"{arm} {short(e[m])}" for arm, e in zip(spec.arms, s.effects, strict=True) if e[m]]
        kinds = {"single plots": s.noise, "sites": s.site, "seasons": s.season, "sites in a season": s.block,
                 "arms by site": s.site_arm, "arms by season": s.season_arm}  # fmt: skip
        spread = ", ".join(f"{k} {short(float(v[m]))}" for k, v in kinds.items() if v[m])
        found.append(
            f"{metric}{f' ({unit.strip()})' if unit else ''}: control {short(float(s.level[m]))}; effects "
            f"{', '.join(effects) or 'none'}; standard deviations of {spread}"
        )
    more = {"drift of contexts": s.drift, "seasons of delay": float(s.delay), "share of outcomes lost": s.dropout}
    return found + [f"{what} {short(v)}" for what, v in more.items() if v]


def _components(history: History) -> Table:
    kinds = history.components
    rows: Sequence[list[str]] = [
        [metric, *(short(float(v[m])) for v in kinds.values())] for m, metric in enumerate(history.metrics)
    ]
    return Table(
        f"Standard deviations estimated from the past: {counted(len(history.seasons), 'season')}, "
        f"{counted(len(history.sites), 'site')}",
        ["metric", *(k.replace("_", " x ") for k in kinds)],
        list(rows),
    )
