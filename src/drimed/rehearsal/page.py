"""One page of a rehearsal: words first, pictures, then every number with its Monte Carlo error; and results.json."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from drimed.errors import InputError
from drimed.formatting import counted, percent, short
from drimed.formatting import measured as in_unit
from drimed.outputs import replacing
from drimed.rehearsal.designs import OWN
from drimed.rehearsal.find import Answer
from drimed.rehearsal.history import History
from drimed.rehearsal.results import (
    ALL_TIMES,
    CALLED,
    CLAIMS,
    LIKELY,
    PROPENSITIES,
    Measured,
    Number,
    Record,
    best_by_user,
    called,
    first_claim,
    harm_by_user,
    measures,
    power_by_season,
)
from drimed.rehearsal.run import Plan, Records
from drimed.rehearsal.scenarios import Population, Scenario, SimulatedTrials
from drimed.reports.charts import svg
from drimed.reports.charts.svg import SERIES, Chart, Key, Panel, RangeRow, Scale, Series, Table, el
from drimed.reports.page import environment, style

# A rehearsal in words: what a person should know before the trial starts.

STANDS = 0.8  # share of the control beyond which a trial learns little about anything else
WEAK = 0.5  # power below which a trial more often finds nothing than something
OFTEN = 0.1  # false claims beyond which something is wrong with the design
FROZEN = "trials that stand on the control"
RULE_MET = re.compile("rule .+ met")
HARMED = 0.05  # share of users beyond which it is told first


@dataclass(frozen=True)
class Said:
    """A sentence, and whether it is a warning."""

    text: str
    warns: bool = False


def amount(number: Number | None, *, share: bool = True, unit: str = "") -> str:
    """A number with its error, and its unit where it has one.

    >>> amount(Number(0.4212, 0.0156)), amount(Number(-12.34, 0.5), share=False, unit="EUR")
    ('42 % (± 2)', '−12.3 (± 0.5) EUR')
    """
    if number is None:
        return "–"
    if share:
        return f"{percent(number.value)} (± {_rough(100 * number.error)})"
    return f"{short(number.value)} (± {_rough(number.error)}){f' {unit}' if unit else ''}"


def _rough(error: float) -> str:
    """One figure, without an exponent.

    >>> [_rough(e) for e in (0.0312, 1.6, 11.2)]
    ['0.03', '2', '10']
    """
    return f"{float(f'{error:.1g}'):,.10g}"


def known(m: Measured, name: str) -> Number:
    """A number that every scenario has."""
    return m[name] or Number(0.0, 0.0)


def told(seasons: int, m: Measured, unit: str = "") -> list[Said]:
    """What the trial would do in one scenario; `unit` is that of the reward."""
    harmed, worst = known(m, "users harmed beyond the tolerance"), m["expected loss of the worst user"]
    false, gain = known(m, f"false claims, {first_claim(m)}"), m["gain against the control"]
    return [
        _control(seasons, m),
        *_found(seasons, m),
        Said(f"An arm that is not better is called better in {amount(false)} of trials.", false.value > OFTEN),
        *_rules(seasons, m),
        _brings(gain, m["regret against the best arm"], unit),
        Said(
            f"{amount(harmed)} of users lose more than the tolerance over the trial; the worst one is expected to end "
            f"{_against(worst, 'below', 'above', unit)} the control with a decision.",
            harmed.value > HARMED,
        ),
    ]


def _brings(gain: Number | None, regret: Number | None, unit: str) -> Said:
    """What a decision is worth."""
    if gain == regret == Number(0.0, 0.0):
        return Said("A decision brings what the control would: all arms do the same.")
    return Said(
        f"A decision brings {_against(gain, 'more', 'less', unit)} than the control would, and "
        f"{amount(regret, share=False, unit=unit)} less than the best arm for each user."
    )


def _rules(seasons: int, m: Measured) -> list[Said]:
    """What the stopping rules of the file do."""
    found = []
    for name in (key.removeprefix("rule ").removesuffix(" met") for key in m if RULE_MET.fullmatch(key)):
        met, wrong = known(m, f"rule {name} met"), known(m, f"rule {name} met by a false claim")
        found.append(
            Said(
                f"Stopping rule {name!r} is met in {amount(met)} of trials, by a false claim in {amount(wrong)}.",
                wrong.value > OFTEN,
            )
        )
    lasts = m["seasons"]
    if lasts is not None and lasts.value < seasons:
        found.append(Said(f"A trial ends after {amount(lasts, share=False)} of {seasons} seasons on average."))
    return found


def _against(number: Number | None, more: str, less: str, unit: str = "") -> str:
    """How much, and which way.

    >>> _against(Number(-12.34, 0.5), "more", "less"), _against(Number(3.0, 0.5), "more", "less")
    ('12.3 (± 0.5) less', '3 (± 0.5) more')
    """
    found = number or Number(0.0, 0.0)
    far = amount(Number(abs(found.value), found.error), share=False, unit=unit)
    return f"{far} {less if found.value < 0 else more}"


def _control(seasons: int, m: Measured) -> Said:
    control, frozen = known(m, "share of control"), known(m, FROZEN)
    if m[f"power, {first_claim(m)}"] is None:  # no arm is better: the control is where it should be
        return Said(f"{amount(control)} of decisions are for the control.")
    if frozen.value > WEAK:
        return Said(
            f"The trial is frozen: in {percent(frozen.value)} of simulated trials every user has the control in all of "
            f"{seasons} seasons. A wider tolerance, a lower confidence or more users would let it learn.",
            True,
        )
    if control.value > STANDS:
        return Said(
            f"The trial stays on the control: {amount(control)} of decisions, and {percent(frozen.value)} of "
            "simulated trials never leave it.",
            True,
        )
    return Said(f"{amount(control)} of decisions are for the control.")


def _found(seasons: int, m: Measured) -> list[Said]:
    claim = first_claim(m)
    power, sure, harm = m[f"power, {claim}"], m.get(f"power, {ALL_TIMES}"), m[f"harm found, {claim}"]
    found = []
    if power is not None:
        few = f" {seasons} seasons are too few to count on an answer." if power.value < WEAK else ""
        found.append(
            Said(
                f"After {seasons} seasons a better arm is called better in {amount(power)} of trials ({CALLED[claim]})"
                f"{'' if sure is None else f', in {amount(sure)} by ranges that hold at all times'}.{few}",
                power.value < WEAK,
            )
        )
    if harm is not None:
        costs = amount(m["decisions harmful beyond the tolerance"])
        found.append(
            Said(
                f"A harmful arm is called worse in {amount(harm)} of trials; {costs} of decisions give an arm that "
                "costs its user more than the tolerance."
            )
        )
    return found


def verdict(all_measures: Mapping[tuple[str, str], Measured], seasons: Mapping[str, int], unit: str = "") -> list[Said]:
    """The few things that hold for the trial as a whole: what is wrong comes first."""
    found: list[Said] = []
    for (scenario, design), m in all_measures.items():
        if design != OWN:
            continue
        for said in told(seasons[scenario], m, unit):
            if said.warns:
                found.append(Said(f"{scenario[:1].upper()}{scenario[1:]}: {said.text}", True))
    return found or [Said("Nothing in these scenarios speaks against starting this trial.")]


def short_notes(scenario: str, seasons: int, m: Measured, *, own: bool = False) -> list[str]:
    """What a quick rehearsal says when a trial is created; `own`: its scenario is one of the trial file."""
    power, frozen, control = m[f"power, {first_claim(m)}"], m[FROZEN], m["share of control"]
    said = []
    if frozen is not None and frozen.value > WEAK:
        said.append(
            f"a quick rehearsal ({scenario}, {seasons} seasons) stands on the control in {percent(frozen.value)} of "
            "simulated trials: the guard never lets another arm be tried; widen the tolerance, or see "
            "`drimed trial rehearse`"
        )
    elif control is not None and control.value > STANDS:
        said.append(
            f"a quick rehearsal ({scenario}, {seasons} seasons) plays the control in {percent(control.value)} of "
            "decisions; `drimed trial rehearse` says what other tolerances would do"
        )
    if power is not None and power.value < WEAK:
        said.append(
            f"a quick rehearsal finds {_what(scenario, own)} in {percent(power.value)} of simulated trials after "
            f"{seasons} seasons: too few to count on an answer; `drimed trial rehearse FILE --find seasons "
            '--for "power 0.8"` says how many are needed'
        )
    return said


def _what(scenario: str, own: bool) -> str:
    """What a rehearsal looks for, and where that is set."""
    if own:
        return f"what is better in the scenario {scenario!r} of the file"
    return (
        "a difference that matters (one arm better than the control by as much as [tolerance] lets a decision lose; "
        "[scenarios] in the file says otherwise)"
    )


# The pictures of a rehearsal: power by season, regret against power, allocation, harm by user.

MOST_LINES = svg.SERIES
MOST_USERS = 40  # of the picture of harm: the worst ones
SURE = 2.0  # standard errors of a band


def power(records: Mapping[str, Record]) -> Chart | None:
    """The chance of a right claim after each season, by scenario."""
    shown = {name: r for name, r in records.items() if (r.meant > 0).any()}
    if not shown:
        return None
    shown = dict(list(shown.items())[:MOST_LINES])
    L = max(int(r.looks[-1]) + 1 for r in shown.values())
    found = {name: power_by_season(r, _claim(r)) for name, r in shown.items()}
    series = []
    for k, (name, numbers) in enumerate(found.items()):
        by_season = dict(zip(shown[name].looks.tolist(), numbers, strict=True))
        points = [by_season.get(t) for t in range(L)]
        low, high = ([0.0 if n is None else n.value + side * SURE * n.error for n in points] for side in (-1, 1))
        series.append(Series([None if n is None else n.value for n in points], low, high, line=f"l{k}", band=f"b{k}"))
    tips = [
        "; ".join([f"season {t + 1}", *(f"{n}: {percent(v[t].value)}" for n, v in found.items() if t < len(v))])
        for t in range(L)
    ]
    panel = Panel(series, [str(t + 1) for t in range(L)], tips, levels=[0.8])
    called = CALLED[_claim(next(iter(shown.values())))]
    rows = [[str(t + 1), *(_pm(v[t]) if t < len(v) else "" for v in found.values())] for t in range(L)]
    last = {name: v[-1] for name, v in found.items()}
    says = (
        f"Chance that a better arm is called better ({called}) by the end of each season; bands are two standard "
        f"errors of the simulation, the dashed line is 80 %. After season {L}: "
        + "; ".join(f"{name} {percent(n.value)}" for name, n in last.items()) + "."
    )  # fmt: skip
    keys = [Key(name, f"k{k}") for k, name in enumerate(found)]
    table = Table("Power by season, ± standard error", ["season", *found], rows)
    draw = svg.lines([panel], (0.0, 1.0), "season", number=percent)
    return svg.chart("power-chart", "Power against seasons", says, draw, table, keys)


def trade_off(measured: Mapping[str, Measured], unit: str = "") -> Chart | None:
    """Regret against power, one point for each design."""
    points = [
        (name, p, r)
        for name, m in measured.items()
        if (p := m[f"power, {first_claim(m)}"]) is not None and (r := m["regret against the best arm"]) is not None
    ]
    if len(points) < 2:
        return None
    what = in_unit("regret of a decision", unit)
    low, high = svg.spread([x for _, _, r in points for x in (r.value - r.error, r.value + r.error)], margin=0.15)
    top = min(1.0, max(0.1, 1.15 * max(p.value + SURE * p.error for _, p, _ in points)))

    def draw(width: int) -> tuple[float, list[Markup]]:
        left, right, bottom = 62.0, width - 14.0, 260.0
        x, y = Scale(0.0, top, left + 10, right), Scale(low, high, bottom, 22.0)
        made = []
        for t in svg.ticks(low, high):
            made += [svg.line(left, y(t), right, y(t), "grid"), svg.text(left - 8, y(t) + 4, short(t), anchor="end")]
        for t in svg.ticks(0.0, top):
            made.append(svg.text(x(t), bottom + 18, percent(t), anchor="middle"))
        made.append(svg.text(right, bottom + 36, "power", look="label", anchor="end"))
        made.append(svg.text(right, 10, f"{what}, upwards", look="label", anchor="end"))
        for k, (name, p, r) in enumerate(points):
            at = x(p.value), y(r.value)
            made.append(
                svg.line(
                    x(max(p.value - p.error, 0)), at[1], x(min(p.value + p.error, top)), at[1], f"l{k % MOST_LINES}"
                )
            )
            made.append(svg.line(at[0], y(r.value - r.error), at[0], y(r.value + r.error), f"l{k % MOST_LINES}"))
            tip = f"{name}: power {percent(p.value)}, regret {short(r.value)}"
            shape = {"r": 6.5 if name == OWN else 4.5, "class_": f"{svg.colour(k)} dot", "data_tip": tip}
            made.append(el("circle", cx=at[0], cy=at[1], **shape))
            made.append(svg.text(at[0], at[1] - 10, str(k + 1), anchor="middle", look="strong"))
        return 304.0, made

    keys = [Key(f"{k + 1} {name}", f"k{k % MOST_LINES}") for k, (name, _, _) in enumerate(points)]
    rows = [[name, _pm(p), f"{short(r.value)} ± {r.error:.1g}"] for name, p, r in points]
    says = (
        "Designs in the same simulated worlds: those further right find a better arm more often, those further down "
        "cost users less."
    )
    table = Table("Designs", ["design", "power", what], rows)
    return svg.chart("designs-chart", "Regret against power, by design", says, draw, table, keys)


def allocation(record: Record, arms: Sequence[str], scenario: str) -> Chart:
    """The mean share of each arm in each season, with the middle half of the trials."""
    q = np.nanquantile(record.shares, [0.25, 0.5, 0.75], axis=0)  # (3, L, K), of the trials that go on
    mean = np.nanmean(record.shares, 0)
    L, shown = q.shape[1], range(min(len(arms), MOST_LINES))
    series = [
        Series(mean[:, k].tolist(), q[0, :, k].tolist(), q[2, :, k].tolist(), line=f"l{k}", band=f"b{k}") for k in shown
    ]
    tips = [
        "; ".join([f"season {t + 1}", *(f"{a}: {percent(mean[t, k])}" for k, a in enumerate(arms))]) for t in range(L)
    ]
    rows = [
        [
            str(t + 1),
            *(f"{percent(mean[t, k])} ({percent(q[0, t, k])} to {percent(q[2, t, k])})" for k in range(len(arms))),
        ]
        for t in range(L)
    ]
    final = "; ".join(f"{a} {percent(mean[-1, k])}" for k, a in enumerate(arms))
    says = (
        f"Mean share of each arm, with the middle half of the trials in its band ({scenario}). In the last season: "
        f"{final}."
    )
    keys = [Key(a, f"k{k}") for k, a in enumerate(arms[:MOST_LINES])]
    table = Table("Share of decisions by season: mean, and the middle half of trials", ["season", *arms], rows)
    panel = Panel(series, [str(t + 1) for t in range(L)], tips)
    draw = svg.lines([panel], (0.0, 1.0), "season", number=percent)
    return svg.chart("allocation-chart", "Allocation over time", says, draw, table, keys)


def harm(record: Record, users: Sequence[str], scenario: str, unit: str = "") -> Chart:
    """Expected losses of each user against the control."""
    q, tolerated = harm_by_user(record)
    worst = np.argsort(-q[2])[:MOST_USERS].tolist()
    rows = [
        RangeRow(
            users[u],
            short(q[1, u]),
            f"{users[u]}: {short(q[1, u])}, 90 % of trials {short(q[0, u])} to {short(q[2, u])}; tolerated "
            f"{short(tolerated[u])}",
            estimate=float(q[1, u]),
            thick=(float(q[0, u]), float(q[2, u])),
            limit=float(tolerated[u]),
        )
        for u in worst
    ]
    listed = [[users[u], *(short(v) for v in (q[1, u], q[0, u], q[2, u], tolerated[u]))] for u in worst]
    beyond = (record.loss > record.tolerated).mean(0)
    most = int(beyond.argmax())
    says = f"Mean expected loss of each user over the trial, against the control ({scenario}); left of zero is a gain. "
    says += (
        f"Beyond the tolerance most often: {users[most]}, in {percent(float(beyond[most]))} of trials."
        if beyond[most]
        else "No user goes beyond the tolerance in any trial."
    )
    keys = [Key("median, and 90 % of trials", "key-level"), Key("tolerated", "key-allowed")]
    table = Table(in_unit("Expected loss by user", unit), ["user", "median loss", "5 %", "95 %", "tolerated"], listed)
    ends = svg.spread([*q.ravel().tolist(), *tolerated.tolist(), 0.0])
    draw = svg.ranges(rows, ends, in_unit("expected loss of a decision", unit), zero=True)
    return svg.chart("harm-chart", "Harm by user", says, draw, table, keys)


def _claim(record: Record) -> str:
    return LIKELY if record.estimates else PROPENSITIES


def _pm(number: Number) -> str:
    return f"{percent(number.value)} ± {100 * number.error:.1f}"


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
        power(own),
        trade_off(designs, unit),
        allocation(own[results.main], arms, results.main),
        harm(own[harmful], people.users, harmful, unit),
    ]
    scenes = [
        {
            "name": name,
            "about": s.about,
            "seasons": results.seasons[name],
            "assumed": _assumed(results, name),
            "said": told(results.seasons[name], measured[name, OWN], unit),
        }
        for name, s in plan.scenarios.items()
    ]
    return environment("drimed.rehearsal").get_template("rehearsal.html").render(
        spec=plan.spec,
        style=style(),
        series=range(SERIES),
        trials=counted(plan.trials, "simulated trial"),
        verdict=verdict(measured, results.seasons, unit),
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
    return amount(number, share=share)


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
    rows = [[who, *(amount(found[s][who]) for s in names)] for who in found[names[0]]]
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
