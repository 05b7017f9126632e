"""The page of a rehearsal: sentences first, charts, then every number with its Monte Carlo error; and results.json.

Shapes: S trials, L seasons, K arms, U users.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from drimed.errors import InputError
from drimed.formatting import counted, percent, short
from drimed.formatting import measured as in_unit
from drimed.outputs import replacing
from drimed.rehearsal.designs import OWN, STANDS, SURE, WEAK, Answer, Plan, Records
from drimed.rehearsal.results import (
    ALL_TIMES,
    CLAIMS,
    LIKELY,
    PROPENSITIES,
    Measures,
    Number,
    Record,
    best_by_user,
    measures,
    with_unit,
)
from drimed.reports import svg
from drimed.reports.page import environment, style
from drimed.reports.svg import Chart, Key, Panel, RangeRow, Scale, Series, Table, el

PAGE, RESULTS = "index.html", "results.json"
OFTEN = 0.1  # share of false claims beyond which something is wrong with the design
HARMED = 0.05  # share of users beyond which it is a warning
MOST_USERS = 40  # of the chart of harm: the worst ones
CLAIM_TEXT = {LIKELY: "likely, 95 %", PROPENSITIES: "by a range from the propensities"}
NONE = Number(0.0, 0.0)
SHARES = re.compile(
    "share of control.*|trials that .*|trials whose .*|decisions .*|users harmed.*|best arm found.*|likely ranges.*|"
    "(power|harm found|false claims), .*|rule .* met( by a false claim)?"
)
BESIDE = (
    "power, {claim}", "power, at all times", "false claims, {claim}", "share of control", "gain against the control",
    "regret against the best arm", "users harmed beyond the tolerance", "expected loss of the worst user",
    "ideal design percentage",
)  # fmt: skip


class Sentence(NamedTuple):
    """A sentence for readers."""

    text: str
    warns: bool = False


@dataclass(frozen=True)
class Results:
    """A plan and its records."""

    plan: Plan
    records: Records
    answer: Answer | None = None

    @cached_property
    def rules(self) -> list[str]:
        """Names of the stopping rules."""
        return [] if self.plan.spec.stopping is None else list(self.plan.spec.stopping.rules)

    @cached_property
    def measured(self) -> dict[tuple[str, str], Measures]:
        """By scenario and design."""
        return {name: measures(record, self.rules) for name, record in self.records.items()}

    @cached_property
    def own(self) -> dict[str, Record]:
        """Of the trial itself, by scenario."""
        return {name: self.records[name, OWN] for name in self.plan.scenarios}

    @cached_property
    def seasons(self) -> dict[str, int]:
        """Of each scenario."""
        return {name: self.plan.simulated(name).setting.seasons for name in self.plan.scenarios}

    @property
    def unit(self) -> str:
        """Of the reward."""
        return self.plan.spec.reward.unit

    def sentences(self, scenario: str) -> list[Sentence]:
        """The results of the trial in one scenario."""
        m, claim, seasons = self.measured[scenario, OWN], self.own[scenario].first_claim, self.seasons[scenario]
        told: list[Sentence] = []

        def say(text: str, warns: bool = False) -> None:
            told.append(Sentence(text, warns))

        def number(name: str) -> Number:
            return m[name] or NONE

        power, harm, false = m[f"power, {claim}"], m[f"harm found, {claim}"], number(f"false claims, {claim}")
        control, frozen = number("share of control"), number("trials that stand on the control")
        if power is not None and frozen.value > WEAK:  # where no arm is better, the control is where it should be
            say(
                f"The trial is frozen: in {percent(frozen.value)} of simulated trials every user has the control in "
                f"all of {seasons} seasons. A wider tolerance, a lower confidence or more users would let it learn.",
                True,
            )
        elif power is not None and control.value > STANDS:
            never = f"{percent(frozen.value)} of simulated trials never leave it"
            say(f"The trial stays on the control: {amount(control)} of decisions, and {never}.", True)
        else:
            say(f"{amount(control)} of decisions are for the control.")
        if power is not None:
            at_all_times = m.get(f"power, {ALL_TIMES}")
            more = "" if at_all_times is None else f", in {amount(at_all_times)} by ranges that hold at all times"
            few = f" {seasons} seasons are too few to count on an answer." if power.value < WEAK else ""
            text = f"After {seasons} seasons a better arm is called better in {amount(power)} of trials"
            say(f"{text} ({CLAIM_TEXT[claim]}){more}.{few}", power.value < WEAK)
        if harm is not None:
            costs = amount(m["decisions harmful beyond the tolerance"])
            say(
                f"A harmful arm is called worse in {amount(harm)} of trials; {costs} of decisions give an arm that "
                "costs its user more than the tolerance."
            )
        say(f"An arm that is not better is called better in {amount(false)} of trials.", false.value > OFTEN)
        for rule in self.rules:
            met, wrong = m[f"rule {rule} met"], number(f"rule {rule} met by a false claim")
            text = f"Stopping rule {rule!r} is met in {amount(met)} of trials, by a false claim in {amount(wrong)}."
            say(text, wrong.value > OFTEN)
        if number("seasons").value < seasons:
            say(f"A trial ends after {amount(m['seasons'], share=False)} of {seasons} seasons on average.")
        gain, regret = number("gain against the control"), number("regret against the best arm")
        if gain == regret == NONE:
            say("A decision brings what the control would: all arms do the same.")
        else:
            least = amount(regret, share=False, unit=self.unit)
            brings = _side(gain, "more", "less", self.unit)
            say(f"A decision brings {brings} than the control would, and {least} less than the best arm for each user.")
        harmed, worst = number("users harmed beyond the tolerance"), number("expected loss of the worst user")
        say(
            f"{amount(harmed)} of users lose more than the tolerance over the trial; the worst one is expected to end "
            f"{_side(worst, 'below', 'above', self.unit)} the control with a decision.",
            harmed.value > HARMED,
        )
        return told

    def verdict(self) -> list[Sentence]:
        """All warnings, each with its scenario."""
        warnings = [
            Sentence(f"{name[:1].upper()}{name[1:]}: {sentence.text}", True)
            for name in self.plan.scenarios
            for sentence in self.sentences(name)
            if sentence.warns
        ]
        return warnings or [Sentence("Nothing in these scenarios speaks against starting this trial.")]

    def summary(self) -> list[dict[str, str]]:
        """A table of the trial's most important numbers by scenario."""
        claim = self.own[self.plan.main].first_claim
        shares = {"power": f"power, {claim}", "false": f"false claims, {claim}", "control": "share of control",
                  "harmed": "users harmed beyond the tolerance"}  # fmt: skip
        return [
            {"scenario": name}
            | {column: amount(self.measured[name, OWN][measure]) for column, measure in shares.items()}
            | {
                with_unit("regret", self.unit): amount(
                    self.measured[name, OWN]["regret against the best arm"], share=False
                )
            }
            for name in self.plan.scenarios
        ]

    def best_by_user(self, scenario: str) -> dict[str, Number]:
        """The chance that the best arm is found, for each user who is looked at and each group."""
        looked_at = self.plan.simulated(self.plan.main).looked_at
        groups: dict[str, list[int]] = {}
        for h, profile in enumerate(looked_at):
            if profile.group is not None:
                groups.setdefault(f"group {profile.group}", []).append(h)
        return best_by_user(self.own[scenario], [p.user for p in looked_at], groups)


def write(results: Results, out: Path, *, force: bool = False) -> Path:
    """Write the page and the numbers into a folder."""
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
    """The page as HTML."""
    plan, main, unit = results.plan, results.plan.main, results.unit
    harmful = max(
        results.own, key=lambda s: (results.measured[s, OWN]["users harmed beyond the tolerance"] or NONE).value
    )
    users = plan.simulated(harmful).users
    charts = [
        _power_chart(results.own),
        _designs_chart({d.name: results.measured[main, d.name] for d in plan.designs}, results.own[main], unit),
        _allocation_chart(results.own[main], list(plan.spec.arms), main),
        _harm_chart(results.own[harmful], users, harmful, unit),
    ]
    scenes = [
        {"name": name, "about": s.about, "seasons": results.seasons[name], "assumed": _assumed(results, name),
         "sentences": results.sentences(name)}
        for name, s in plan.scenarios.items()
    ]  # fmt: skip
    return environment("drimed.rehearsal").get_template("rehearsal.html").render(
        spec=plan.spec,
        style=style(),
        series=range(svg.SERIES),
        trials=counted(plan.trials, "simulated trial"),
        verdict=results.verdict(),
        scenes=scenes,
        answer=None if results.answer is None else results.answer.text(),
        charts=[c for c in charts if c is not None],
        tables=_tables(results),
        hash=plan.hash(),
        seed=plan.seed,
        version=version("drimed"),
    )  # fmt: skip


def as_json(results: Results) -> dict[str, Any]:
    """Every number, with its error."""
    plan, answer = results.plan, results.answer

    def pairs(numbers: Mapping[str, Number | None]) -> dict[str, list[float] | None]:
        return {name: None if n is None else [n.value, n.error] for name, n in numbers.items()}

    def design(scenario: str, name: str) -> dict[str, Any]:
        record = results.records[scenario, name]
        return {
            "trials": record.trials,
            "measures": pairs(results.measured[scenario, name]),
            "looks": (record.looks + 1).tolist(),
            "power by look": {c: [[n.value, n.error] for n in record.power_by_look(c)] for c in CLAIMS},
            "allocation": np.nanmean(record.shares, 0).tolist(),
        }

    return {
        "rehearsal": plan.hash(),
        "trial": plan.spec.name,
        "spec": hashlib.sha256(json.dumps(plan.spec.plain(), sort_keys=True).encode()).hexdigest(),
        "drimed": version("drimed"),
        "trials": plan.trials,
        "seed": plan.seed,
        "answer": None if answer is None else {
            "what": answer.what, "goal": answer.goal.share, "claim": answer.goal.claim, "scenario": answer.scenario,
            "value": answer.first(), "low": answer.first(SURE), "high": answer.first(-SURE),
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


def amount(number: Number | None, *, share: bool = True, unit: str = "") -> str:
    """A number with its error, and its unit where it has one.

    >>> amount(Number(0.4212, 0.0156)), amount(Number(-12.34, 0.5), share=False, unit="EUR")
    ('42 % (± 2)', '−12.3 (± 0.5) EUR')
    """
    if number is None:
        return "–"
    error = f"{float(f'{number.error * (100 if share else 1):.1g}'):,.10g}"  # one figure, without an exponent
    if share:
        return f"{percent(number.value)} (± {error})"
    return f"{short(number.value)} (± {error}){f' {unit}' if unit else ''}"


def _side(number: Number, more: str, less: str, unit: str) -> str:
    """A size, and the side of zero."""
    size = amount(Number(abs(number.value), number.error), share=False, unit=unit)
    return f"{size} {less if number.value < 0 else more}"


def _tables(results: Results) -> list[Table]:
    """The past, this trial by scenario, designs side by side, and the best arm by user."""
    plan, names, measured = results.plan, list(results.plan.scenarios), results.measured
    tables = []
    if (past := plan.history) is not None:
        title = (
            f"Standard deviations estimated from the past: {counted(len(past.seasons), 'season')}, "
            f"{counted(len(past.sites), 'site')}"
        )
        by_metric = [
            [metric, *(short(float(v[m])) for v in past.components.values())] for m, metric in enumerate(past.metrics)
        ]
        tables.append(Table(title, ["metric", *(k.replace("_", " x ") for k in past.components)], by_metric))

    def cell(scenario: str, design: str, name: str) -> str:
        return amount(measured[scenario, design].get(name), share=SHARES.fullmatch(name) is not None)

    kinds = dict.fromkeys(k for s in names for k in measured[s, OWN])
    rows = [[with_unit(k, results.unit), *(cell(s, OWN, k) for s in names)] for k in kinds]
    tables.append(Table("This trial, by scenario (± standard error of the simulation)", ["", *names], rows))
    designs = [d.name for d in plan.designs]
    compared = [k.format(claim=results.own[plan.main].first_claim) for k in BESIDE]
    for s in names if len(designs) > 1 else ():
        rows = [[d, *(cell(s, d, k) for k in compared)] for d in designs]
        columns = ["", *(with_unit(k, results.unit) for k in compared)]
        tables.append(Table(f"Designs side by side: {s}", columns, rows))
    best = {s: results.best_by_user(s) for s in names}
    rows = [[who, *(amount(best[s][who]) for s in names)] for who in best[names[0]]]
    title = "Chance that the arm with the largest estimate is the best one"
    return [*tables, Table(title, ["", *names], rows)] if rows else tables


def _assumed(results: Results, name: str) -> list[str]:
    """The assumptions of a scenario, in the units of the metrics."""
    s, spec = results.plan.simulated(name).setting, results.plan.spec
    if results.plan.scenarios[name].history:
        return ["outcomes as they were measured in the past"]
    lines = []
    kinds = {"single plots": s.noise, "sites": s.site, "seasons": s.season, "sites in a season": s.block,
             "arms by site": s.site_arm, "arms by season": s.season_arm}  # fmt: skip
    for m, (metric, part) in enumerate(spec.metrics.items()):
        effects = [f"{arm} {short(e[m])}" for arm, e in zip(spec.arms, s.effects, strict=True) if e[m]]
        spread = ", ".join(f"{k} {short(float(v[m]))}" for k, v in kinds.items() if v[m])
        lines.append(
            f"{in_unit(metric, part.unit)}: control {short(float(s.level[m]))}; effects "
            f"{', '.join(effects) or 'none'}; standard deviations of {spread}"
        )
    more = {"drift of contexts": s.drift, "seasons of delay": float(s.delay), "share of outcomes lost": s.dropout}
    return lines + [f"{what} {short(v)}" for what, v in more.items() if v]


def _power_chart(records: Mapping[str, Record]) -> Chart | None:
    """The chance of a right claim after each season, by scenario."""
    shown = {name: r for name, r in records.items() if (r.meant > 0).any()}
    shown = dict(list(shown.items())[: svg.SERIES])
    if not shown:
        return None
    L = max(int(r.looks[-1]) + 1 for r in shown.values())
    powers = {
        name: dict(zip(r.looks.tolist(), r.power_by_look(r.first_claim), strict=True)) for name, r in shown.items()
    }
    series = []
    for k, by_season in enumerate(powers.values()):
        points = [by_season.get(t) for t in range(L)]
        low, high = ([0.0 if n is None else n.value + side * SURE * n.error for n in points] for side in (-1, 1))
        series.append(Series([None if n is None else n.value for n in points], low, high, line=f"l{k}", band=f"b{k}"))
    tips, rows = [], []
    for t in range(L):
        values = {name: v[t] for name, v in powers.items() if t in v}
        tips.append("; ".join([f"season {t + 1}", *(f"{name}: {percent(n.value)}" for name, n in values.items())]))
        rows.append([str(t + 1), *(_plus_minus(values[name]) if name in values else "" for name in powers)])
    claim = CLAIM_TEXT[next(iter(shown.values())).first_claim]
    last = "; ".join(f"{name} {percent(v[max(v)].value)}" for name, v in powers.items())
    text = (
        f"Chance that a better arm is called better ({claim}) by the end of each season; bands are two standard errors "
        f"of the simulation, the dashed line is 80 %. After season {L}: {last}."
    )
    table = Table("Power by season, ± standard error", ["season", *powers], rows)
    panel = Panel(series, [str(t + 1) for t in range(L)], tips, levels=[0.8])
    draw = svg.lines([panel], (0.0, 1.0), "season", number=percent)
    keys = [Key(name, f"k{k}") for k, name in enumerate(powers)]
    return svg.chart("power-chart", "Power against seasons", text, draw, table, keys)


def _designs_chart(measured: Mapping[str, Measures], record: Record, unit: str) -> Chart | None:
    """Regret against power, one point for each design."""
    points = [
        (name, p, r)
        for name, m in measured.items()
        if (p := m.get(f"power, {record.first_claim}")) is not None
        and (r := m["regret against the best arm"]) is not None
    ]
    if len(points) < 2:
        return None
    regret = in_unit("regret of a decision", unit)
    low, high = svg.spread([x for _, _, r in points for x in (r.value - r.error, r.value + r.error)], margin=0.15)
    top = min(1.0, max(0.1, 1.15 * max(p.value + SURE * p.error for _, p, _ in points)))

    def draw(width: int) -> tuple[float, list[Markup]]:
        left, right, bottom = 62.0, width - 14.0, 260.0
        x, y = Scale(0.0, top, left + 10, right), Scale(low, high, bottom, 22.0)
        made = []
        for t in svg.ticks(low, high):
            made += [svg.line(left, y(t), right, y(t), "grid"), svg.text(left - 8, y(t) + 4, short(t), anchor="end")]
        made += [svg.text(x(t), bottom + 18, percent(t), anchor="middle") for t in svg.ticks(0.0, top)]
        made.append(svg.text(right, bottom + 36, "power", look="label", anchor="end"))
        made.append(svg.text(right, 10, f"{regret}, upwards", look="label", anchor="end"))
        for k, (name, p, r) in enumerate(points):
            at, look = (x(p.value), y(r.value)), f"l{k % svg.SERIES}"
            made.append(svg.line(x(max(p.value - p.error, 0)), at[1], x(min(p.value + p.error, top)), at[1], look))
            made.append(svg.line(at[0], y(r.value - r.error), at[0], y(r.value + r.error), look))
            tip = f"{name}: power {percent(p.value)}, regret {short(r.value)}"
            size = 6.5 if name == OWN else 4.5
            made.append(el("circle", cx=at[0], cy=at[1], r=size, class_=f"{svg.colour(k)} dot", data_tip=tip))
            made.append(svg.text(at[0], at[1] - 10, str(k + 1), anchor="middle", look="strong"))
        return 304.0, made

    text = (
        "Designs in the same simulated worlds: those further right find a better arm more often, those further down "
        "cost users less."
    )
    rows = [[name, _plus_minus(p), f"{short(r.value)} ± {r.error:.1g}"] for name, p, r in points]
    keys = [Key(f"{k + 1} {name}", f"k{k % svg.SERIES}") for k, (name, _, _) in enumerate(points)]
    table = Table("Designs", ["design", "power", regret], rows)
    return svg.chart("designs-chart", "Regret against power, by design", text, draw, table, keys)


def _allocation_chart(record: Record, arms: Sequence[str], scenario: str) -> Chart:
    """The mean share of each arm in each season, with the middle half of the trials."""
    low, high = np.nanquantile(record.shares, [0.25, 0.75], axis=0)  # (L, K) each, of the trials that go on
    mean = np.nanmean(record.shares, 0)
    series = [
        Series(mean[:, k].tolist(), low[:, k].tolist(), high[:, k].tolist(), line=f"l{k}", band=f"b{k}")
        for k in range(min(len(arms), svg.SERIES))
    ]
    tips, rows = [], []
    for t, shares in enumerate(mean):
        tips.append("; ".join([f"season {t + 1}", *(f"{a}: {percent(s)}" for a, s in zip(arms, shares, strict=True))]))
        ends = zip(shares, low[t], high[t], strict=True)
        rows.append([str(t + 1), *(f"{percent(s)} ({percent(a)} to {percent(b)})" for s, a, b in ends)])
    final = "; ".join(f"{a} {percent(s)}" for a, s in zip(arms, mean[-1], strict=True))
    text = (
        f"Mean share of each arm, with the middle half of the trials in its band ({scenario}). In the last season: "
        f"{final}."
    )
    table = Table("Share of decisions by season: mean, and the middle half of trials", ["season", *arms], rows)
    panel = Panel(series, [row[0] for row in rows], tips)
    draw = svg.lines([panel], (0.0, 1.0), "season", number=percent)
    keys = [Key(a, f"k{k}") for k, a in enumerate(arms[: svg.SERIES])]
    return svg.chart("allocation-chart", "Allocation over time", text, draw, table, keys)


def _harm_chart(record: Record, users: Sequence[str], scenario: str, unit: str) -> Chart:
    """Expected losses of each user against the control: the median and 90 % of trials."""
    q, tolerated = np.quantile(record.loss, [0.05, 0.5, 0.95], axis=0), record.tolerated.mean(0)  # (3, U), (U,)
    rows, marks = [], []
    for u in np.argsort(-q[2])[:MOST_USERS].tolist():
        low, middle, high, most = (float(v) for v in (*q[:, u], tolerated[u]))
        tip = f"{users[u]}: {short(middle)}, 90 % of trials {short(low)} to {short(high)}; tolerated {short(most)}"
        marks.append(RangeRow(users[u], short(middle), tip, estimate=middle, thick=(low, high), limit=most))
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
    return svg.chart("harm-chart", "Harm by user", text, draw, table, keys)


def _plus_minus(number: Number) -> str:
    return f"{percent(number.value)} ± {100 * number.error:.1f}"
