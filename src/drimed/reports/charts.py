"""Charts of a trial: effects, benefit, evidence of drift, allocation, looks, variance components and levels.

Shapes: L episodes, K arms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from drimed.formatting import ENDLESS, NOT_KNOWN, RETIRED, amount, counted, known, measured, short, span
from drimed.numerics.arrays import IntArray
from drimed.records import Claim, Effect, Look
from drimed.reports import svg
from drimed.reports.analysis import AT_ALL_TIMES, AT_THIS_LOOK, GUARANTEED, Analysis, StoppingHistory, then_of, until
from drimed.reports.effects import MODEL
from drimed.reports.svg import Chart, Key, Panel, RangeRow, Series, Table
from drimed.reports.variation import Component, Level
from drimed.reports.wording import Words, describe_component, unidentified
from drimed.trial.estimates import EXACT
from drimed.trial.seasons import Calendar, calendar

FOREST_REACH = 4.0  # lengths of the likely ranges that are shown on either side; longer ranges end in an arrow
REACH = 3.0  # lengths of a line beyond which a wide band is cut off
MOST_DESCRIBED = 8  # effects in the sentence below a chart
MOST_PANELS = 6  # arms over time; of more, those given most
MOST_POINTS = 150  # episodes or looks that are drawn and listed; of more, every so many
MOST_BARS = 60  # episodes beyond which neighbours are put together
MOST_COLUMNS = 40  # episodes of the chart of users: the last ones
MOST_LOOKS = 12  # charts of stopping rules
LISTED = 5  # values of a covariate in the table
LEAST_EVIDENCE = -10.0  # drawn; it may be minus infinity
LIKELY = "likely range (95 %)"
UNTOLD = "cannot be told yet"

Better = Literal["higher", "lower"]
Course = tuple[str, list[tuple[float, float, float] | None]]  # an arm and, along an axis, (estimate, low, high)


@dataclass(frozen=True)
class EffectRow:
    """An effect as it is drawn."""

    label: str
    effect: Effect
    better: Better | None = None  # the good direction of a metric; of the reward, more is good
    strong: bool = False
    single: bool = False  # one range only, and an unknown number of decisions
    judged: bool = True  # its model holds, and enough is known
    note: str = ""  # the outcomes that it rests on
    retired: bool = False

    @property
    def model_free(self) -> bool:
        """From the propensities alone."""
        return self.effect.source != MODEL

    @property
    def direction(self) -> tuple[int, str]:
        """Above the control (1), below (-1) or open (0), and the confidence."""
        if not self.judged and not self.model_free:
            return 0, ""
        if self.effect.certain:
            return self.effect.certain, "" if self.single or self.model_free else ", certainly"
        likely = 0 if self.single or self.model_free else self.effect.likely
        return likely, ", likely" if likely else ""

    @property
    def verdict(self) -> str:
        """Against the control, in a few words."""
        way, confidence = self.direction
        if way:
            return _direction(way, self.better) + confidence
        if not self.judged and not self.model_free:
            return "not judged"
        if self.effect.by_chance:
            return "inconclusive"
        return "open" if self.effect.confirmed else "one season only" if self.effect.seasons else "not judged"

    @property
    def full_verdict(self) -> str:
        """With the reason why it is open or not judged."""
        return (self.effect.why_open if self.judged else "") or self.verdict

    @property
    def look(self) -> str:
        """The class that gives its colour: green is good for the user, in either direction."""
        way = self.direction[0]
        if not way:
            return "open"
        return "up" if (way > 0) == (self.better != "lower") else "down"

    @property
    def times(self) -> str:
        """Number of decisions."""
        if self.single:
            return ""
        return f"given {counted(self.effect.decisions, 'time')}" if self.effect.decisions else "never given"

    @property
    def source(self) -> str:
        """The note below the label."""
        if self.model_free:
            return "without the model, exact" if self.effect.source == EXACT else "without the model"
        return self.note or self.times

    def describe(self, unit: str) -> str:
        """In one clause."""
        beside = ["retired"] * self.retired + list(filter(None, [self.source if self.model_free else self.times]))
        brackets = f" ({', '.join(beside)})" if beside else ""
        return f"{self.label}{brackets}: {amount(self.effect.estimate, unit)}, {self.verdict}"

    def drawn(self, promise: str, unit: str) -> RangeRow:
        """As a row of a range chart."""
        e, suffix = self.effect, RETIRED if self.retired else ""
        likely = e.likely_ends if e.is_known and not self.single and not self.model_free else None
        parts = [f"{self.label}{suffix}: {amount(e.estimate, unit)}"]
        parts += [] if likely is None else [f"likely {span(*likely)}"]
        parts.append(f"{'without a model, 95 %:' if self.model_free else promise} {span(*e.ends)}")
        parts += filter(None, [self.times, self.note, self.full_verdict if e.why_open else ""])
        row = RangeRow(self.label, self.verdict, "; ".join(parts), e.estimate, likely, e.ends, note=self.source)
        return replace(row, suffix=suffix, look=self.look, square=self.model_free, strong=self.strong)


def forest(
    id: str, title: str, rows: Sequence[EffectRow], *, on: str, unit: str = "", promise: str = "guaranteed"
) -> Chart | None:
    """A forest plot of effects; `promise` names the long range."""
    if not rows:
        return None
    text = "; ".join(r.describe(unit) for r in rows[:MOST_DESCRIBED])
    if len(rows) > MOST_DESCRIBED:
        text += f"; and {len(rows) - MOST_DESCRIBED} more in the table"
    reasons = dict.fromkeys(r.full_verdict for r in rows if r.effect.unconfirmed and r.judged)
    text += "".join(f". {why[:1].upper()}{why[1:]}" for why in reasons) + "."
    if any(r.effect.by_chance and r.judged for r in rows):
        text += " Inconclusive: the likely range leaves out 0, but not after adjusting for multiple comparisons."
    keys = [Key(f"range {promise} (95 %)" if promise == AT_ALL_TIMES else f"{promise} range", "key-thin")]
    if any(not r.single and not r.model_free for r in rows):
        keys.insert(0, Key(LIKELY, "key-thick"))
    if any(r.model_free for r in rows):
        keys.append(Key("from the logged probabilities alone (95 %)", "key-square"))
    sides = _direction(-1, rows[0].better), _direction(1, rows[0].better)
    drawn = [r.drawn(promise, unit) for r in rows]
    draw = svg.ranges(drawn, _reach(rows), f"{measured(on, unit)} against control", sides=sides, zero=True)
    return svg.chart(id, title, text, draw, _forest_table(title, rows, promise), keys)


def _forest_table(title: str, rows: Sequence[EffectRow], promise: str) -> Table:
    model = "model" if promise == AT_ALL_TIMES else "regression"
    sources = {MODEL: model, EXACT: "probabilities and ranges of the metrics"}
    columns = {
        "arm": [r.label + (RETIRED if r.retired else "") for r in rows],
        "given": [r.times.removeprefix("given ").removesuffix(" given") for r in rows],
        "effect": [short(r.effect.estimate) for r in rows],
        "likely": [span(*r.effect.likely_ends) for r in rows],
        promise: [span(*r.effect.ends) for r in rows],
        "from": [sources.get(r.effect.source, "probabilities alone") for r in rows],
        "against control": [r.full_verdict for r in rows],
    }
    if any(r.note for r in rows):
        columns["known from"] = [r.note for r in rows]
    if all(r.single for r in rows):
        columns = {name: column for name, column in columns.items() if name not in ("given", "likely", "from")}
    return Table(title, list(columns), [list(row) for row in zip(*columns.values(), strict=True)])


def _direction(way: int, better: Better | None) -> str:
    """More or less, and of a metric whether that is good.

    >>> _direction(1, None), _direction(1, "lower"), _direction(-1, "lower")
    ('more', 'more (worse)', 'less (better)')
    """
    text = "more" if way > 0 else "less"
    return text if better is None else f"{text} ({'better' if (way > 0) == (better == 'higher') else 'worse'})"


def _reach(rows: Sequence[EffectRow]) -> tuple[float, float]:
    """The ends of the axis: all likely ranges and zero, and as much of the long ranges as leaves these readable.

    Arms that were never given follow the prior, and exact ranges are wide: these are cut off, if there are others.
    """
    rows = [r for r in rows if (r.single or r.effect.decisions) and r.effect.source != EXACT] or rows
    inner = [0.0, *(v for r in rows for v in (r.effect.estimate, *r.effect.likely_ends) if math.isfinite(v))]
    outer = [v for r in rows for v in r.effect.ends]
    if min(inner) == max(inner) or all(r.single for r in rows):
        return svg.spread([*inner, *outer])
    return svg.window(inner, outer, FOREST_REACH)


def _panels(
    id: str, title: str, courses: Sequence[Course], names: Sequence[str], on: str, along: str, *, text: str,
    at: Sequence[float] | None = None, listed: Sequence[int] | None = None, every_label: bool = False,
) -> Chart:  # fmt: skip
    """A panel for each arm, with likely ranges; `listed` are the places in the table, None: all."""
    panels, rows = [], []
    for label, points in courses:
        low, high = ([0.0 if x is None else x[i] for x in points] for i in (1, 2))
        numbers = ["no outcome yet" if x is None else f"{short(x[0])} ({span(x[1], x[2])})" for x in points]
        tips = [f"{label}, {name}: {number}" for name, number in zip(names, numbers, strict=True)]
        series = Series([None if x is None else x[0] for x in points], low, high, dots=at is None)
        panels.append(Panel([series], names, tips, at=at, title=label, every_label=every_label))
        for i in range(len(points)) if listed is None else listed:
            x = points[i]
            rows += [] if x is None else [[label, names[i], short(x[0]), span(x[1], x[2])]]
    ends = svg.spread([0.0, *(v for _, points in courses for x in points if x is not None for v in x)])
    looks = ("key-dot", "key-level") if at is None else ("key-gain", "key-band")
    keys = [Key("effect against control", looks[0]), Key(LIKELY, looks[1])]
    draw = svg.lines(panels, ends, f"{along}; effect on {on} against control", height=190.0)
    return svg.chart(id, title, text, draw, Table(title, ["arm", along, "effect", "likely"], rows), keys)


def over_time(a: Analysis, on: str, unit: str) -> Chart | None:
    """Effects on a measure after each season, for all users together; None before there are two seasons."""
    called = calendar(a.data.state)
    courses: dict[str, dict[int, Effect]] = {}
    for i, past in enumerate(a.past):
        for x in past.effects:
            if x.on == on:
                courses.setdefault(x.arm, {})[i] = x
    if not courses:
        return None
    most = sorted(courses, key=lambda arm: -a.times[arm])[:MOST_PANELS]
    arms = [arm for arm in a.data.state.problem.arms if arm in most]
    names = [called.label(past.episode) for past in a.past]
    drawn, texts = list[Course](), []
    for arm in arms:
        course = courses[arm]
        points = [(y.estimate, *y.likely_ends) if (y := course.get(i)) else None for i in range(len(names))]
        drawn.append((a.label(arm), points))
        ends = [f"{amount(course[i].estimate, unit)} after {names[i]}" for i in sorted({min(course), max(course)})]
        texts.append(f"{a.label(arm)}: {', '.join(ends)}")
    left_out = f" ({len(arms)} of {counted(len(courses), 'arm')}, those given most)" if len(courses) > len(arms) else ""
    what = measured(on, unit)
    title = f"Effects on {what} against control after each {called.word}: all users{left_out}"
    return _panels("over-time-chart", title, drawn, names, what, called.word, text="; ".join(texts) + ".")


def covariates(a: Analysis, on: str, unit: str, words: Words) -> list[Chart]:
    """One chart for each covariate, with a panel for each arm."""
    effects = [] if a.variation is None else [x for x in a.variation.covariates if x.on == on]
    charts = []
    for i, name in enumerate(dict.fromkeys(x.covariate for x in effects)):
        some = [x for x in effects if x.covariate == name]
        first, n = some[0], len(some[0].values)
        names = first.levels or [amount(v, first.unit) for v in first.values]
        texts, drawn = [], list[Course]()
        for x in some:
            values = [f"{amount(x.estimate[j], unit)} at {names[j]}" for j in (range(n) if x.levels else (0, -1))]
            texts.append(f"{a.label(x.arm)}: {', '.join(values) if x.levels else 'from ' + ' to '.join(values)}")
            drawn.append((a.label(x.arm), [*zip(x.estimate, x.low, x.high, strict=True)]))
        what, along = measured(on, unit), measured(name, first.unit)
        title, text = f"Effects on {what} against control by {name}{words.scope}", "; ".join(texts) + "."
        listed = None if first.levels else sorted({round(j * (n - 1) / (LISTED - 1)) for j in range(LISTED)})
        at, id = None if first.levels else first.values, f"covariate-chart-{i + 1}" if i else "covariate-chart"
        charts.append(_panels(id, title, drawn, names, what, along, text=text, at=at, listed=listed, every_label=True))
    return charts


def reward(a: Analysis) -> Chart | None:
    """The reward of the arms given, minus the control's."""
    b, called = a.benefit, calendar(a.data.state)
    if not np.isfinite(a.data.reward).any():
        return None
    at = svg.thinned(len(b.episode), MOST_POINTS)
    labels = [called.label(i + 1) for i in at]
    gain, allowed, low, high = (part[at].tolist() for part in (b.gain, b.allowed, b.gain_low, b.gain_high))
    promise, unit = a.promise_of_sums, a.data.state.spec.reward.unit
    in_unit = f", in {unit}" if unit else ""
    ends = svg.window([0.0, *gain, *allowed], [v for v in (*low, *high) if abs(v) < ENDLESS], REACH)
    tips = [
        f"{called.word} {labels[i]}: {amount(gain[i], unit)} ({promise} {span(low[i], high[i])}); the tolerance allows "
        f"{short(allowed[i])}"
        for i in range(len(at))
    ]
    panel = Panel([Series(gain, low, high), Series(gain, dots=True), Series(allowed, line="allowed")], labels, tips)
    table = Table(
        f"Expected reward of the arms given against the control's, added up to the end of each {called.word}{in_unit}",
        [called.word, "reward minus control's", f"{promise} from", f"{promise} to", "tolerance allows"],
        [[labels[i], *(known(part[i]) for part in (gain, low, high, allowed))] for i in range(len(at))],
    )
    judged = "the guarantee does not hold, because the model is wrong" if a.checks.withdrawn else b.verdict
    text = (
        f"After {called.word} {labels[-1]}: {amount(gain[-1], unit)} against the control's reward, {promise} "
        f"{span(low[-1], high[-1])}. The tolerance allows {amount(allowed[-1], unit)}: {judged}."
    )
    if min(low) < ends[0] or max(high) > ends[1]:
        text += " This range extends beyond the chart; the table has it in full."
    bands = {GUARANTEED: "guaranteed at all times", AT_THIS_LOOK: "range at this look (95 %)"}
    keys = [Key("reward minus control's", "key-gain"), Key(bands.get(promise, f"{promise} range"), "key-band")]
    keys.append(Key("the tolerance allows", "key-allowed"))
    title = f"Reward so far, added up over all decisions, against what the control would have earned{in_unit}"
    return svg.chart("reward-chart", title, text, svg.lines([panel], ends, called.word), table, keys)


def evidence(a: Analysis) -> Chart | None:
    """The evidence that effects have moved, with the level of an alarm."""
    drift, called = a.checks.mean, calendar(a.data.state)
    if drift is None:
        return None
    at = svg.thinned(len(drift.evidence), MOST_POINTS)
    labels = [called.label(i + 1) for i in at]
    values = [float(v) for v in drift.evidence[at]]
    texts = [short(v) if math.isfinite(v) else "none" for v in values]
    drawn, alarm = np.maximum(values, LEAST_EVIDENCE).tolist(), math.log(1 / drift.alpha)
    rows = [[name, v, short(alarm)] for name, v in zip(labels, texts, strict=True)]
    tips = [f"{called.word} {name}: log evidence {v}; alarm at {at}" for name, v, at in rows]
    panel = Panel([Series(drawn)], labels, tips, levels=[alarm])
    table = Table("Evidence that the effects moved", [called.word, "log evidence", "alarm at"], rows)
    text = f"Log evidence that effects have moved: {texts[-1]} after {called.word} {labels[-1]}; "
    text += f"an alarm is raised at {short(alarm)}."
    if min(values) < LEAST_EVIDENCE:
        text += f" Values below {short(LEAST_EVIDENCE)} are drawn at {short(LEAST_EVIDENCE)}."
    draw = svg.lines([panel], svg.spread([*drawn, alarm, 0.0]), called.word, height=140.0)
    keys = [Key("evidence", "key-gain"), Key("alarm", "key-allowed")]
    return svg.chart("evidence-chart", "Evidence that the effects themselves moved", text, draw, table, keys)


def by_arm(a: Analysis) -> Chart | None:
    """Shares of the arms, season by season."""
    counts, arms, called = a.benefit.allocation, a.data.state.problem.arms, calendar(a.data.state)
    if not counts.sum():
        return None
    together = -(-len(counts) // MOST_BARS)
    firsts = list(range(0, len(counts), together))
    sums = np.add.reduceat(counts, firsts, axis=0)
    ends = [(called.label(f + 1), called.label(min(f + together, len(counts)))) for f in firsts]
    names = [first if first == last else f"{first} to {last}" for first, last in ends]
    stacked, keys = _stacked(sums, arms)

    def tip(_: int, c: int, s: int) -> str:
        n, total = int(stacked[c, s]), int(sums[c].sum())
        return f"{called.word} {names[c]}, {keys[s].name}: {100 * n / total:.0f} % ({n} of {total})"

    given = np.flatnonzero(counts.sum(0))
    began = [[called.dates.get(f + 1, "")] if called.dates else [] for f in firsts]
    rows = [[names[i], *began[i], *(str(int(n)) for n in row[given])] for i, row in enumerate(sums)]
    never = len(arms) - len(given)
    rest = f"; {counted(never, 'arm')} {'was' if never == 1 else 'were'} never given" if never else ""
    columns = [called.word, *(["began on"] if called.dates else []), *(arms[k] for k in given)]
    table = Table(f"Decisions by {called.word} and arm{rest}", columns, rows)
    best = int(sums[-1].argmax())
    most = f"{100 * sums[-1, best] / max(1, int(sums[-1].sum())):.0f} % {arms[best]}"
    text = f"Share of decisions by arm in each {called.word}. In {called.word} {names[-1]}: {most}."
    draw = svg.shares(stacked[None], [""], [first for first, _ in ends], tip, called.word)
    return svg.chart("allocation-chart", f"Share of decisions by arm and {called.word}", text, draw, table, keys)


def by_user(a: Analysis, users: Sequence[str]) -> Chart | None:
    """The arms of each of these users in each season."""
    data, L, called = a.data, a.data.state.episode.number, calendar(a.data.state)
    if not len(data.arm) or not users:
        return None
    arms = data.state.problem.arms
    first = max(0, L - MOST_COLUMNS)  # earlier episodes are not shown
    all_users = list(data.state.users)
    place = np.full(len(all_users), -1)
    place[[all_users.index(name) for name in users]] = np.arange(len(users))
    counts = np.zeros((len(users), L - first, len(arms)), np.intp)
    at = (place[data.user] >= 0) & (data.episode > first)
    np.add.at(counts, (place[data.user[at]], data.episode[at] - 1 - first, data.arm[at]), 1)
    names = [called.label(e) for e in range(first + 1, L + 1)]
    stacked, keys = _stacked(counts.reshape(-1, len(arms)), arms)

    def arms_of(n: IntArray) -> str:
        return ", ".join(f"{arms[k]} × {n[k]}" if n[k] > 1 else arms[k] for k in np.flatnonzero(n))

    rows = [[user, *map(arms_of, counts[h])] for h, user in enumerate(users)]
    table = Table(f"Arms of each user, by {called.word}", ["user", *names], rows)
    cut = f" Only the last {MOST_COLUMNS} of {L} {called.word}s are shown." if first else ""
    text = f"Arms of {counted(len(users), 'user')} in each {called.word}; each colour is an arm.{cut}"

    def tip(r: int, c: int, _: int) -> str:
        return f"{users[r]}, {called.word} {names[c]}: {arms_of(counts[r, c])}"

    draw = svg.shares(stacked.reshape(len(users), L - first, -1), users, names, tip, called.word)
    return svg.chart("allocation-chart", f"Arms of each user in each {called.word}", text, draw, table, keys)


def _stacked(counts: IntArray, arms: Sequence[str]) -> tuple[IntArray, list[Key]]:
    """Series (..., S) of the arms given most, in the order of the file, and one of all others."""
    total = counts.sum(0)
    order = [int(k) for k in np.argsort(-total, kind="stable") if total[k]]
    own, others = sorted(order[: svg.MOST_LOOKS]), order[svg.MOST_LOOKS :]
    keys = [Key(arms[k], svg.swatch(i), i) for i, k in enumerate(own)]
    if not others:
        return counts[:, own], keys
    keys.append(Key(counted(len(others), "other arm"), svg.OTHER, len(own)))
    return np.concatenate([counts[:, own], counts[:, others].sum(-1, keepdims=True)], -1), keys


def probabilities(chances: Mapping[str, float], chosen: str) -> Chart:
    """The probability of each arm in one decision, and the arm that was drawn."""
    rows = [
        RangeRow(arm, f"{100 * p:.1f} %{' · given' if arm == chosen else ''}", f"{arm}: {100 * p:.2f} %",
                 thick=(0.0, p), strong=arm == chosen)
        for arm, p in chances.items()
    ]  # fmt: skip
    listed = [[arm, f"{100 * p:.2f} %", "yes" if arm == chosen else ""] for arm, p in chances.items()]
    text = ", ".join(f"{arm} {100 * p:.1f} %" for arm, p in chances.items()) + f"; {chosen} was given."
    table = Table("The probability of each arm", ["arm", "probability", "given"], listed)
    draw = svg.ranges(rows, (0.0, 1.0), "probability")
    return svg.chart("probability-chart", "Probability of each arm", text, draw, table)


def rule_charts(history: StoppingHistory) -> list[Chart]:
    """One for each arm of each rule, as long as there are not too many."""
    points: dict[tuple[str, str, str], list[tuple[Look, Claim]]] = {}
    for look in history.looks:
        for claim in look.claims:
            points.setdefault((claim.rule, claim.who, claim.arm), []).append((look, claim))
    state, charts = history.state, list[Chart]()
    for (rule, _, _), one in points.items():
        view, metric = state.looked.scopes.get(rule), state.spec.metrics.get(one[-1][1].on)
        if view is not None and len(charts) < MOST_LOOKS:
            unit, id = (metric or state.spec.reward).unit, f"stopping-chart-{len(charts) + 1}"
            chart = _looks(id, one, view.better, unit, calendar(state), then_of(state.spec, rule))
            charts += [] if chart is None else [chart]
    return charts


def _looks(
    id: str, points: Sequence[tuple[Look, Claim]], better: str, unit: str, called: Calendar, then: str
) -> Chart | None:
    """The range of one arm at each look; None while no range is known."""
    points = [points[i] for i in svg.thinned(len(points), MOST_POINTS)]
    ends = [(c.low, c.high) if c.low is not None and c.high is not None else None for _, c in points]
    shown = [e for e in ends if e is not None]
    if not shown:
        return None
    last, lines = points[-1][1], margins(points[-1][1], better)
    low, high = ([0.0 if e is None else e[i] for e in ends] for i in (0, 1))
    middles = [None if e is None else (e[0] + e[1]) / 2 for e in ends]
    met = [m if c.met else None for m, (_, c) in zip(middles, points, strict=True)]
    open_ = [None if c.met else m for m, (_, c) in zip(middles, points, strict=True)]
    series = [Series(open_, low, high, dots=True), Series(met, low, high, dots=True, bar="met-line")]
    tips = [
        f"look {i + 1}, {called.said(look.episode)}: {describe_claim(c, unit, then)}"
        for i, (look, c) in enumerate(points)
    ]
    panel = Panel(series, [str(i + 1) for i in range(len(points))], tips, levels=lines)
    bounds = svg.window([0.0, *lines, *shown[-1]], [v for e in shown for v in e], 1.0)
    rows = []
    for i, (look, c) in enumerate(points):
        ends_and_margin = [*(NOT_KNOWN if v is None else short(v) for v in (c.low, c.high)), short(c.margin)]
        to_go = NOT_KNOWN if c.distance is None else short(max(c.distance, 0.0))
        met_or_why = "yes" if c.met else c.waits or "no"
        rows.append([str(i + 1), called.label(look.episode), str(look.decisions), *ends_and_margin, to_go, met_or_why])
    table = Table(
        f"Looks at {last.rule}, {last.arm}, {last.who}: effect on {measured(last.on, unit)}",
        ["look", called.word, "decisions", "from", "to", "margin", f"to go until {until(last.kind, then)}", "met"],
        rows,
    )
    keys = [Key(f"effect on {measured(last.on, unit)}", "key-level"), Key("margin", "key-allowed")]
    keys += [Key("the rule is met", "key-met")] if any(m is not None for m in met) else []
    text = f"At the last look: {describe_claim(last, unit, then)}."
    draw = svg.lines([panel], bounds, "look", height=180.0)
    return svg.chart(id, f"{last.rule}: {last.arm}, {last.who}", text, draw, table, keys)


def margins(claim: Claim, better: str) -> list[float]:
    """The lines that an end of the range must pass."""
    up = 1.0 if better == "higher" else -1.0
    signs = {"superiority": [1], "non_inferiority": [-1], "equivalence": [-1, 1], "futility": [1], "harm": [-1]}
    return [up * sign * claim.margin for sign in signs[claim.kind]]


def describe_claim(claim: Claim, unit: str, then: str = "advise") -> str:
    """A range and its distance from what the rule asks for; `then` is the rule's consequence."""
    if claim.low is None or claim.high is None:
        return "nothing is known yet"
    if claim.met:
        away = "the rule is met"
    elif claim.waits:
        away = claim.waits
    elif claim.distance is None or claim.distance < 0:
        away = "other arms are not known yet"
    else:
        away = f"{amount(claim.distance, unit)} to go until {until(claim.kind, then)}"
    whole = " for all arms together" if claim.all_arms and claim.distance is not None else ""
    return f"{short(claim.low)} to {amount(claim.high, unit)}, {away}{whole}"


def components(all_components: Sequence[Component], words: Words, metric: str, unit: str, id: str) -> Chart | None:
    """Variance components of a metric, the largest first."""

    def order(c: Component) -> tuple[bool, bool, float]:
        return not c.identifiable, c.low == 0, -c.deviation if c.low > 0 else -c.high

    mine = sorted((c for c in all_components if c.metric == metric), key=order)
    if not mine:
        return None
    rows, listed = [], []
    for c in mine:
        label, clear = words.component(c.family), c.identifiable and c.low > 0
        value = UNTOLD if not c.identifiable else f"at most {short(c.high)}"
        value = f"{short(c.deviation)} ({span(c.low, c.high)})" if clear else value
        ends = (c.low, c.high) if c.identifiable else None
        rows.append(RangeRow(label, value, f"{label}: {value}", c.deviation if clear else None, thick=ends))
        numbers = [short(c.deviation) if clear else "", short(c.low), short(c.high)]
        listed.append([label, *(numbers if c.identifiable else [""] * 3), "" if c.identifiable else UNTOLD])
    largest = 2.5 * max((c.deviation for c in mine if c.identifiable and c.low > 0), default=math.inf)
    axis_end = 1.05 * min(max(c.high for c in mine), largest)
    table = Table(f"How much {measured(metric, unit)} varies", ["what", "about", "from", "to", "known"], listed)
    parts = [describe_component(c, words, unit) for c in mine if c.identifiable][:3]
    text = f"{metric}: {'; '.join(filter(None, [*parts, unidentified(mine, words)]))}."
    draw = svg.ranges(rows, (0.0, axis_end), measured(metric, unit))
    title = f"What varies, and how much: {metric}"
    return svg.chart(id, title, text, draw, table, [Key(LIKELY, "key-level")])


def site_levels(levels: Sequence[Level], words: Words, metric: str, unit: str, id: str) -> Chart | None:
    """The mean outcome at each site under the control."""
    mine = [v for v in levels if v.metric == metric]
    if not mine:
        return None
    scope = f"{words.scope}{words.typical_context}"
    rows = []
    for v in mine:
        value = f"{short(v.estimate)} ({span(v.low, v.high)})"
        note = counted(v.outcomes, "outcome")
        rows.append(RangeRow(v.name, value, f"{v.name}: {value}", v.estimate, thick=(v.low, v.high), note=note))
    title = f"Levels of {words.group}s: {metric} under the control{words.scope}"
    caption = f"{measured(metric, unit)} at each {words.group} under its control{scope}"
    text = f"Expected {metric} under the control{scope}: {_extremes(mine, unit, lambda v: f'at {v.name}')}."
    draw = svg.ranges(rows, svg.spread([end for v in mine for end in (v.low, v.high)]), measured(metric, unit))
    table = _level_table(caption, words.group, metric, mine)
    return svg.chart(id, title, text, draw, table, [Key(LIKELY, "key-level")])


def season_levels(levels: Sequence[Level], words: Words, metric: str, unit: str, id: str) -> Chart | None:
    """The mean outcome in each season under the control."""
    mine = [v for v in levels if v.metric == metric]
    if len(mine) < 2:
        return None
    shown = [mine[i] for i in svg.thinned(len(mine), MOST_POINTS)]
    tips = [f"season {v.name}: {amount(v.estimate, unit)} ({span(v.low, v.high)})" for v in shown]
    series = Series([v.estimate for v in shown], [v.low for v in shown], [v.high for v in shown], dots=True)
    panel = Panel([series], [v.name for v in shown], tips)
    where = f"in each season{words.own_context} under the control, averaged over all {words.users}"
    text = f"Expected {metric} {where}: {_extremes(mine, unit, lambda v: f'in season {v.name}')}."
    ends = svg.spread([end for v in shown for end in (v.low, v.high)])
    table = _level_table(f"{measured(metric, unit)} {where}", "season", metric, shown)
    draw = svg.lines([panel], ends, f"season; {measured(metric, unit)}")
    title = f"Levels of seasons: {metric} under the control"
    return svg.chart(id, title, text, draw, table, [Key(LIKELY, "key-level")])


def _level_table(caption: str, noun: str, metric: str, levels: Sequence[Level]) -> Table:
    rows = [[v.name, f"{v.outcomes:,}", *(short(e) for e in (v.estimate, v.low, v.high))] for v in levels]
    return Table(caption, [noun, "outcomes", metric, "from", "to"], rows)


def _extremes(levels: Sequence[Level], unit: str, where: Callable[[Level], str]) -> str:
    least, most = (pick(levels, key=lambda v: v.estimate) for pick in (min, max))
    return f"from {amount(least.estimate, unit)} {where(least)} to {amount(most.estimate, unit)} {where(most)}"
