"""The page of a rehearsal: sentences first, charts, then every number with its Monte Carlo error; and results.json.

Shapes: S trials, L seasons, K arms, U users.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from drimed.formatting import counted, percent, short
from drimed.formatting import measured as in_unit
from drimed.rehearsal import results as numbers
from drimed.rehearsal.designs import OWN, Answer, Plan, Records
from drimed.rehearsal.scenarios import Estimates, level_text, residuals_with_source
from drimed.reports import svg
from drimed.reports.frame import PAGE, environment, style, write_files
from drimed.reports.svg import Chart, Key, Panel, RangeRow, Series, Table

RESULTS = "results.json"
MOST_USERS = 40  # of the chart of harm: the worst ones
BESIDE = (
    "power, {claim}", "power, at all times", "false claims, {claim}", "share of control", "gain against the control",
    "regret against the best arm", numbers.HARMED_USERS, "expected loss of the worst user",
    "ideal design percentage",
)  # fmt: skip


@dataclass(frozen=True)
class Results:
    """A plan and its records."""

    plan: Plan
    records: Records
    answer: Answer | None = None

    @cached_property
    def rules(self) -> list[str]:
        return [] if self.plan.spec.stopping is None else list(self.plan.spec.stopping.rules)

    @cached_property
    def measured(self) -> dict[tuple[str, str], numbers.Measures]:
        return {name: numbers.measures(record, self.rules) for name, record in self.records.items()}

    @cached_property
    def own(self) -> dict[str, numbers.Record]:
        return {name: self.records[name, OWN] for name in self.plan.scenarios}

    @cached_property
    def seasons(self) -> dict[str, int]:
        return {name: self.plan.simulated(name).setting.seasons for name in self.plan.scenarios}

    def sentences(self, scenario: str) -> list[numbers.Sentence]:
        measured, seasons = self.measured[scenario, OWN], self.seasons[scenario]
        return numbers.describe(self.own[scenario], measured, self.rules, seasons, self.plan.spec)

    def verdict(self) -> list[numbers.Sentence]:
        """All warnings, each with its scenario."""
        warnings = [
            numbers.Sentence(f"{name[:1].upper()}{name[1:]}: {sentence.text}", True)
            for name in self.plan.scenarios
            for sentence in self.sentences(name)
            if sentence.warns
        ]
        return warnings or [numbers.Sentence("Nothing in these scenarios speaks against starting this trial.")]

    def summary(self) -> list[dict[str, str]]:
        """A table of the trial's most important numbers by scenario."""
        claim = self.own[self.plan.main].first_claim
        columns = {
            "found it": f"power, {claim}", "wrong claim": f"false claims, {claim}",
            "stayed with the control": "share of control", "harmed": numbers.HARMED_USERS,
            in_unit("lost against the best", self.plan.spec.reward.unit): "regret against the best arm",
        }  # fmt: skip
        return [
            {"scenario": name} | {column: _text(self.measured[name, OWN][k]) for column, k in columns.items()}
            for name in self.plan.scenarios
        ]

    def best_by_user(self, scenario: str) -> dict[str, numbers.Number]:
        """The chance that the best arm is found, for each user who is looked at and each group."""
        return numbers.best_by_user(self.own[scenario], self.plan.simulated(self.plan.main).looked_at)


def write(results: Results, out: Path, *, force: bool = False) -> Path:
    """Write the page and the numbers into a folder."""
    numbers = json.dumps(as_json(results), indent=1, ensure_ascii=False) + "\n"
    return write_files(out, {PAGE: page(results).encode(), RESULTS: numbers.encode()}, force=force)


def page(results: Results) -> str:
    plan, main, unit = results.plan, results.plan.main, results.plan.spec.reward.unit
    harmed = {s: results.measured[s, OWN][numbers.HARMED_USERS] for s in results.own}
    harmful = max(harmed, key=lambda s: 0.0 if (n := harmed[s]) is None else n.value)
    charts = [
        _power_chart(results.own),
        _designs_chart({d.name: results.measured[main, d.name] for d in plan.designs}, results.own[main], unit),
        _allocation_chart(results.own[main], list(plan.spec.arms), main),
        _harm_chart(results.own[harmful], plan.simulated(harmful).users, harmful, unit),
    ]
    scenes = [
        {"name": name, "about": s.about, "seasons": results.seasons[name], "assumed": assumed(plan, name),
         "sentences": results.sentences(name)}
        for name, s in plan.scenarios.items()
    ]  # fmt: skip
    return environment("drimed.rehearsal").get_template("rehearsal.html").render(
        spec=plan.spec, title=f"Rehearsal of {plan.spec.name}", style=style(),
        trials=counted(plan.trials, "simulated trial"), main=main,
        assumed=assumed(plan, main), verdict=results.verdict(), scenes=scenes,
        answer=None if results.answer is None else results.answer.text(),
        charts=[c for c in charts if c is not None], tables=_tables(results), hash=plan.hash(), seed=plan.seed,
        version=version("drimed"),
    )  # fmt: skip


def as_json(results: Results) -> dict[str, Any]:
    """Every number, with its error."""
    plan, answer = results.plan, results.answer

    def pairs(some: Mapping[str, numbers.Number | None]) -> dict[str, list[float] | None]:
        return {name: None if n is None else [n.value, n.error] for name, n in some.items()}

    def design(scenario: str, name: str) -> dict[str, Any]:
        record = results.records[scenario, name]
        return {
            "trials": len(record.control),
            "measures": pairs(results.measured[scenario, name]),
            "looks": (record.looks + 1).tolist(),
            "power by look": {c: [[n.value, n.error] for n in record.power_by_look(c)] for c in numbers.CLAIMS},
            "allocation": np.nanmean(record.shares, 0).tolist(),
        }

    return {
        "rehearsal": plan.hash(),
        "trial": plan.spec.name,
        "drimed": version("drimed"),
        "trials": plan.trials,
        "seed": plan.seed,
        "answer": None if answer is None else {
            "what": answer.what, "goal": answer.power, "claim": answer.claim,
            "scenario": answer.scenario, "value": answer.first(), "low": answer.first(numbers.SURE),
            "high": answer.first(-numbers.SURE),
            "tried": [[v, n.value, n.error] for v, n in answer.tried],
        },
        "scenarios": {
            name: {
                "about": s.about,
                "seasons": results.seasons[name],
                "decisions": sum(map(len, plan.simulated(name).places)),
                "designs": {d.name: design(name, d.name) for d in plan.designs},
                "best arm found": pairs(results.best_by_user(name)),
            }
            for name, s in plan.scenarios.items()
        },
    }  # fmt: skip


def _text(number: numbers.Number | None) -> str:
    return "–" if number is None else number.text()


def _tables(results: Results) -> list[Table]:
    """The past, this trial by scenario, designs side by side, and the best arm by user."""
    plan, names, measured = results.plan, list(results.plan.scenarios), results.measured
    tables = []
    if (past := plan.history) is not None:
        estimated = Estimates.of(plan.spec, past)
        size = f"{counted(len(past.seasons), 'season')}, {counted(len(estimated.sites), 'site')}"
        kinds, values = zip(*estimated.components.items(), strict=True)
        rows = [[metric, *(short(float(v[m])) for v in values)] for m, metric in enumerate(plan.spec.metrics)]
        columns = ["metric", *(kind.replace("_", " x ") for kind in kinds)]
        tables.append(Table(f"Standard deviations estimated from the past: {size}", columns, rows))
    unit, designs = plan.spec.reward.unit, [d.name for d in plan.designs]
    shown = {k: n for s in names for k, n in measured[s, OWN].items()}
    rows = [[numbers.with_unit(k, n, unit), *(_text(measured[s, OWN].get(k)) for s in names)] for k, n in shown.items()]
    tables.append(Table("This trial, by scenario (± standard error of the simulation)", ["", *names], rows))
    compared = [k.format(claim=results.own[plan.main].first_claim) for k in BESIDE]
    for s in names if len(designs) > 1 else ():
        rows = [[d, *(_text(measured[s, d].get(k)) for k in compared)] for d in designs]
        columns = ["", *(numbers.with_unit(k, shown.get(k), unit) for k in compared)]
        tables.append(Table(f"Designs side by side: {s}", columns, rows))
    best = {s: results.best_by_user(s) for s in names}
    rows = [[who, *(best[s][who].text() for s in names)] for who in best[names[0]]]
    title = "Chance that the arm with the largest estimate is the best one"
    return [*tables, Table(title, ["", *names], rows)] if rows else tables


def assumed(plan: Plan, name: str) -> list[str]:
    """The assumptions of a scenario, in the units of the metrics."""
    s, spec, scenario = plan.simulated(name).setting, plan.spec, plan.scenarios[name]
    lines, sources = [], residuals_with_source(spec, scenario)
    kinds = {"single plots": s.noise, "sites": s.site, "seasons": s.season, "sites in a season": s.block,
             "arms by site": s.site_arm, "arms by season": s.season_arm}  # fmt: skip
    for m, (metric, part) in enumerate(spec.metrics.items()):
        level, plain = float(s.level[m]), part.kind == "number"
        effects = [f"{arm} {short(e[m])}" for arm, e in zip(spec.arms, s.effects, strict=True) if e[m]]
        if part.kind == "yes/no":
            effects = [
                f"{a} {level_text(part, level + e[m])}" for a, e in zip(spec.arms, s.effects, strict=True) if e[m]
            ]
        spread = ", ".join(
            f"{k} {short(float(v[m]))}" for k, v in kinds.items() if v[m] and (plain or v is not s.noise)
        )
        single = f"single plots: {sources[metric][1]}" if plain else f"single outcomes scatter {sources[metric][1]}"
        single += "" if part.of is None else f"; {part.of}: 1 each"
        lines.append(
            f"{in_unit(metric, part.unit)}: control {level_text(part, level) if not plain else short(level)}; effects "
            f"{', '.join(effects) or 'none'}; standard deviations of {spread} ({single})"
        )
    more = {"drift of contexts": s.drift, "seasons of delay": float(s.delay), "share of outcomes lost": s.dropout}
    if plan.history is not None:
        lines.append(f"the trial begins with {plan.history.file}, as it will, and the sites in it have their levels")
    return lines + [f"{what} {short(v)}" for what, v in more.items() if v]


def _power_chart(records: Mapping[str, numbers.Record]) -> Chart | None:
    """The chance of a right claim after each season, by scenario, with two standard errors."""
    shown = {name: r for name, r in records.items() if (r.meant > 0).any()}
    if not shown:
        return None
    powers = {
        name: {t: (n.value, *n.ends) for t, n in zip(r.looks.tolist(), r.power_by_look(r.first_claim), strict=True)}
        for name, r in list(shown.items())[: svg.SERIES]
    }
    claim = numbers.CLAIM_TEXT[next(iter(shown.values())).first_claim]
    text = (
        f"Chance that a better arm is called better ({claim}) by the end of each season; bands are two standard errors "
        "of the simulation, the dashed line is 80 %."
    )
    caption = "Power by season, with two standard errors of the simulation"
    return _seasons_chart("power-chart", "Power against seasons", text, caption, powers, 0.8)


def _allocation_chart(record: numbers.Record, arms: Sequence[str], scenario: str) -> Chart:
    """The mean share of each arm in each season, with the middle half of the trials that go on."""
    parts = [np.nanmean(record.shares, 0), *np.nanquantile(record.shares, [0.25, 0.75], axis=0)]  # (L, K) each
    shares = {arm: dict(enumerate(np.stack(parts, -1)[:, k].tolist())) for k, arm in enumerate(arms)}
    text = f"Mean share of each arm, with the middle half of the trials in its band ({scenario})."
    caption = "Share of decisions by season: mean, and the middle half of trials"
    return _seasons_chart("allocation-chart", "Allocation over time", text, caption, shares)


def _seasons_chart(
    id: str, title: str, text: str, caption: str, shares: Mapping[str, Mapping[int, Sequence[float]]], *levels: float
) -> Chart:
    """Shares over the seasons with their low and high ends, by name and season."""
    L = 1 + max(t for some in shares.values() for t in some)
    series, names = [], list(shares)[: svg.SERIES]
    for k, name in enumerate(names):
        value, low, high = zip(*(shares[name].get(t, (None, None, None)) for t in range(L)), strict=True)
        series.append(Series(value, low, high, line=f"l{k}", band=f"b{k}"))
    rows = []
    for t in range(L):
        now = [list(map(percent, some[t])) if t in some else None for some in shares.values()]
        rows.append([str(t + 1), *("" if one is None else "{} ({} to {})".format(*one) for one in now)])
    last = "; ".join(f"{name} {percent(some[max(some)][0])}" for name, some in shares.items())
    draw = svg.lines(
        [Panel(series, [str(t + 1) for t in range(L)], levels=levels)], (0.0, 1.0), "season", number=percent
    )
    table, keys = Table(caption, ["season", *shares], rows), [Key(name, f"k{k}") for k, name in enumerate(names)]
    return Chart(id, title, f"{text} At the end: {last}.", draw, table, keys)


def _designs_chart(measured: Mapping[str, numbers.Measures], record: numbers.Record, unit: str) -> Chart | None:
    """Losses of each design, with how often it finds a better arm beside it."""
    rows, marks = [], []
    for name, m in measured.items():
        power, cost = m.get(f"power, {record.first_claim}"), m["regret against the best arm"]
        if power is not None and cost is not None:
            marks.append(RangeRow(name, percent(power.value), cost.value, cost.ends, strong=name == OWN))
            rows.append([name, power.text(), cost.text()])
    if len(marks) < 2:
        return None
    lost = in_unit("lost against the best, in a decision", unit)
    text = (
        "Designs in the same simulated worlds, with two standard errors of the simulation: those further left cost "
        "users less; the percentage is the chance to find a better arm."
    )
    ends = svg.spread([0.0, *(x for row in marks for x in row.thick or ())])
    table = Table("Designs", ["design", "found it", lost], rows)
    return Chart("designs-chart", "Lost and found, by design", text, svg.ranges(marks, ends, lost), table)


def _harm_chart(record: numbers.Record, users: Sequence[str], scenario: str, unit: str) -> Chart:
    """Expected losses of each user against the control: the median and 90 % of trials."""
    q, tolerated = np.quantile(record.loss, [0.05, 0.5, 0.95], axis=0), record.tolerated.mean(0)  # (3, U), (U,)
    rows, marks = [], []
    for u in np.argsort(-q[2])[:MOST_USERS].tolist():
        low, middle, high, most = (float(v) for v in (*q[:, u], tolerated[u]))
        marks.append(RangeRow(users[u], short(middle), middle, (low, high), limit=most))
        rows.append([users[u], *map(short, (middle, low, high, most))])
    beyond = (record.loss > record.tolerated).mean(0)
    worst = int(beyond.argmax())
    text = f"Mean expected loss of each user over the trial, against the control ({scenario}); left of zero is a gain. "
    text += (
        f"Beyond the tolerance most often: {users[worst]}, in {percent(float(beyond[worst]))} of trials."
        if beyond[worst]
        else "No user goes beyond the tolerance in any trial."
    )
    table = Table(in_unit("Expected loss by user", unit), ["user", "median loss", "5 %", "95 %", "tolerated"], rows)
    ends = svg.spread([*q.ravel().tolist(), *tolerated.tolist(), 0.0])
    draw = svg.ranges(marks, ends, in_unit("expected loss of a decision", unit), zero=True)
    keys = [Key("median, and 90 % of trials", "key-level"), Key("tolerated", "key-allowed")]
    return Chart("harm-chart", "Harm by user", text, draw, table, keys)
