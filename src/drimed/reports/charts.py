"""Charts of a trial: effects, benefit, evidence of drift, allocation, looks, variance components and levels.

Shapes: L episodes, K arms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from drimed.formatting import ENDLESS, NOT_KNOWN, RETIRED, amount, counted, known, measured, percent, short, span
from drimed.numerics.arrays import IntArray
from drimed.records import Claim, Effect, Look
from drimed.reports import svg
from drimed.reports.analysis import AT_ALL_TIMES, AT_THIS_LOOK, GUARANTEED, Analysis, StoppingHistory, until
from drimed.reports.effects import MODEL, Component, Level
from drimed.reports.svg import Chart, Key, Panel, RangeRow, Series, Table
from drimed.reports.wording import Words
from drimed.trial.estimates import AS_GIVEN, EXACT, REWARD
from drimed.trial.seasons import Calendar, calendar
from drimed.trial.spec import StoppingRule

FOREST_REACH = 4.0  # lengths of the likely ranges that are shown on either side; longer ranges end in an arrow
REACH = 3.0  # lengths of a line beyond which a wide band is cut off
MOST_DESCRIBED = 8  # effects in the sentence below a chart
MOST_PANELS = 6  # arms over time; of more, those given most
MOST_POINTS = 150  # episodes or looks that are drawn and listed; of more, every so many
MOST_BARS = 60  # episodes beyond which neighbours are put together
MOST_LOOKS = 12  # charts of stopping rules
LIKELY = "likely range (95 %)"
QUESTIONS = {  # above the chart of a stopping rule
    "superiority": "Is {} better than the control?",
    "non_inferiority": "Is {} no worse than the control?",
    "equivalence": "Does {} differ little from the control?",
    "futility": "Is {} no better than the control?",
    "harm": "Does {} harm?",
}
UNTOLD = "cannot be told yet"
NOT_GIVEN = "never given"

Better = Literal["higher", "lower"]
Point = tuple[float, float, float]  # estimate, low, high


@dataclass(frozen=True)
class EffectRow:
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
        return self.effect.source != MODEL

    @property
    def two_ranges(self) -> bool:
        return not self.single and not self.model_free

    @property
    def direction(self) -> tuple[int, str]:
        """Above the control (1), below (-1) or open (0), and the confidence."""
        if self.judged and self.effect.certain:
            return self.effect.certain, ", certainly" if self.two_ranges else ""
        return (self.effect.likely, ", likely") if self.judged and self.two_ranges and self.effect.likely else (0, "")

    @property
    def verdict(self) -> str:
        way, confidence = self.direction
        if self.effect.source == AS_GIVEN:
            return "observational"
        if way:
            return _direction(way, self.better) + confidence
        if not self.judged or self.effect.seasons == 0:
            return "not judged"
        return "inconclusive" if self.effect.by_chance else "open" if self.effect.confirmed else "one season only"

    @property
    def full_verdict(self) -> str:
        """With the reason why it is open or not judged."""
        return (self.effect.why_open if self.judged else "") or self.verdict

    @property
    def look(self) -> str:
        """The class that gives its colour: green is good for the user, in either direction."""
        way = self.direction[0]
        return "open" if not way else "up" if (way > 0) == (self.better != "lower") else "down"

    @property
    def times(self) -> str:
        n = self.effect.decisions
        return "" if self.single else f"given {counted(n, 'time')}" if n else "never given"

    @property
    def source(self) -> str:
        """The note below the label."""
        exact = ", exact" if self.effect.source == EXACT else ""
        return self.note or (f"without the model{exact}" if self.model_free else self.times)

    def describe(self, unit: str) -> str:
        beside = ", ".join(filter(None, ["retired" * self.retired, self.source if self.model_free else self.times]))
        brackets = f" ({beside})" if beside else ""
        return f"{self.label}{brackets}: {amount(self.effect.estimate, unit)}, {self.verdict}"

    def drawn(self) -> RangeRow:
        e, suffix = self.effect, RETIRED if self.retired else ""
        likely = e.likely_ends if e.is_known and self.two_ranges else None
        return RangeRow(
            self.label, self.verdict, e.estimate, likely, e.ends, note=self.source, suffix=suffix, look=self.look,
            square=self.model_free, strong=self.strong,
        )  # fmt: skip


def forest(
    id: str, title: str, rows: Sequence[EffectRow], *, on: str, unit: str = "", promise: str = "guaranteed",
    largest: float = math.inf,
) -> Chart | None:  # fmt: skip
    """A forest plot of effects; `promise` names the long range, `largest` is the largest effect that is possible."""
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
    if any(r.two_ranges for r in rows):
        keys.insert(0, Key(LIKELY, "key-thick"))
    if any(r.model_free for r in rows):
        keys.append(Key("from the logged probabilities alone (95 %)", "key-square"))
    sides = _direction(-1, rows[0].better), _direction(1, rows[0].better)
    axis = f"{measured(on, unit)} against control"
    ends = svg.within(_reach(rows), (-largest, largest))
    draw = svg.ranges([r.drawn() for r in rows], ends, axis, sides=sides, zero=True)
    return Chart(id, title, text, draw, _forest_table(title, rows, promise), keys)


def _forest_table(title: str, rows: Sequence[EffectRow], promise: str) -> Table:
    model = "model" if promise == AT_ALL_TIMES else "regression"
    sources = {MODEL: model, EXACT: "probabilities and ranges of the metrics", AS_GIVEN: "arms as given"}
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


def over_time(a: Analysis, on: str, unit: str) -> Chart | None:
    """Effects on a measure after each season, for all users together; None before there are two seasons."""
    word, names = calendar(a.data.state).word, [calendar(a.data.state).label(e) for e in a.past]
    courses: dict[str, dict[int, Effect]] = {}
    for i, effects in enumerate(a.past.values()):
        for x in effects:
            if x.on == on:
                courses.setdefault(x.arm, {})[i] = x
    if not courses:
        return None
    most = sorted(courses, key=lambda arm: -a.times[arm])[:MOST_PANELS]
    drawn, texts = dict[str, list[Point | None]](), []
    for arm in (arm for arm in a.data.state.problem.arms if arm in most):
        course = courses[arm]
        drawn[a.label(arm)] = [
            (y.estimate, *y.likely_ends) if (y := course.get(i)) else None for i in range(len(names))
        ]
        ends = [f"{amount(course[i].estimate, unit)} after {names[i]}" for i in sorted({min(course), max(course)})]
        texts.append(f"{a.label(arm)}: {', '.join(ends)}")
    left_out = f" ({len(most)} of {counted(len(courses), 'arm')}, those given most)" if len(courses) > len(most) else ""
    what = measured(on, unit)
    title = f"Effects on {what} against control after each {word}: all users{left_out}"
    return _panels("over-time-chart", title, "; ".join(texts) + ".", drawn, names, what, word)


def _panels(
    id: str, title: str, text: str, arms: Mapping[str, Sequence[Point | None]], names: Sequence[str], on: str,
    along: str, at: Sequence[float] | None = None, *, every_label: bool = False,
) -> Chart:  # fmt: skip
    """A panel for each arm, with likely ranges."""
    panels, rows = [], []
    for label, points in arms.items():
        values, low, high = zip(*(x or (None,) * 3 for x in points), strict=True)
        panels.append(
            Panel([Series(values, low, high, dots=at is None)], names, at=at, title=label, every_label=every_label)
        )
        for name, x in zip(names, points, strict=True):
            rows.append([label, name, *(["", "no outcome yet"] if x is None else [short(x[0]), span(x[1], x[2])])])
    ends = svg.spread([0.0, *(v for points in arms.values() for x in points if x is not None for v in x)])
    looks = ("key-dot", "key-level") if at is None else ("key-gain", "key-band")
    keys = [Key("effect against control", looks[0]), Key(LIKELY, looks[1])]
    draw = svg.lines(panels, ends, f"{along}; effect on {on} against control", height=190.0)
    return Chart(id, title, text, draw, Table(title, ["arm", along, "effect", "likely"], rows), keys)


def covariates(a: Analysis, unit: str, words: Words) -> list[Chart]:
    """The effects on the reward: one chart for each covariate, with a panel for each arm and likely ranges."""
    effects = [] if a.variation is None else [x for x in a.variation.covariates if x.on == REWARD]
    what, charts = measured(REWARD, unit), list[Chart]()
    for i, name in enumerate(dict.fromkeys(x.covariate for x in effects)):
        some = [x for x in effects if x.covariate == name]
        first = some[0]
        names, at = (
            first.levels or [amount(v, first.unit) for v in first.values],
            None if first.levels else first.values,
        )
        drawn, texts = {a.label(x.arm): list(zip(x.estimate, x.low, x.high, strict=True)) for x in some}, []
        for x in some:
            shown = range(len(names)) if x.levels else (0, -1)
            ends = [f"{amount(x.estimate[j], unit)} at {names[j]}" for j in shown]
            texts.append(f"{a.label(x.arm)}: {', '.join(ends)}")
        along, id = measured(name, first.unit), f"covariate-chart-{i + 1}" if i else "covariate-chart"
        title = f"Effects on {what} against control by {name}{words.scope}"
        charts.append(_panels(id, title, "; ".join(texts) + ".", drawn, names, what, along, at, every_label=True))
    return charts


def doses(a: Analysis, unit: str, words: Words) -> list[Chart]:
    """The reward under each dose: one chart for each dose, with a panel for all users and each group."""
    responses, charts = [] if a.variation is None else a.variation.doses, list[Chart]()
    for i, name in enumerate(dict.fromkeys(x.dose for x in responses)):
        some = [x for x in responses if x.dose == name]
        panels, rows, texts = [], [], []
        for x in some:
            series = [Series(x.estimate, x.low, x.high), Series(x.recorded, dots=True)]
            panels.append(Panel(series, list(map(short, x.values)), at=x.values, title=x.who * (len(some) > 1)))
            for at, mean, low, high, recorded, chance in zip(
                x.values, x.estimate, x.low, x.high, x.recorded, x.p_best, strict=True
            ):
                own = NOT_GIVEN if recorded is None else short(recorded)
                rows.append([x.who, short(at), short(mean), span(low, high), own, percent(chance)])
            best, chance, low, high = x.best
            texts.append(f"{x.who}: {amount(best, x.unit)} (chance {percent(chance)}; likely {span(low, high)})")
        along, what = measured(name, some[0].unit), measured(REWARD, unit)
        title = f"Expected {what} by {name}{words.scope}"
        spec = a.data.state.spec
        adjusted = spec.kind == "field" and not spec.has_kinds
        dots = "mean of outcomes" + ", less what seasons and sites differ by" * adjusted
        text = f"Best {name} so far: {'; '.join(texts)}."
        text += "" if spec.has_kinds else " Ranges are of the response alone, as if its level were known."
        keys = [Key("expected", "key-gain"), Key(LIKELY, "key-band"), Key(dots, "key-dot")]
        table = Table(title, ["for", along, what, "likely", dots, "chance of being best"], rows)
        parts = [part for x in some for part in (x.estimate, x.low, x.high, x.recorded)]
        bounds = svg.spread([v for part in parts for v in part if v is not None])
        draw, id = svg.lines(panels, bounds, f"{along}; {what}"), f"dose-chart-{i + 1}" if i else "dose-chart"
        charts.append(Chart(id, title, text, draw, table, keys))
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
    panel = Panel([Series(gain, low, high), Series(gain, dots=True), Series(allowed, line="allowed")], labels)
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
    return Chart("reward-chart", title, text, svg.lines([panel], ends, called.word), table, keys)


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

    def tip(c: int, s: int) -> str:
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
    draw = svg.shares(stacked, [first for first, _ in ends], tip, called.word)
    return Chart("allocation-chart", f"Share of decisions by arm and {called.word}", text, draw, table, keys)


def _stacked(counts: IntArray, arms: Sequence[str]) -> tuple[IntArray, list[Key]]:
    """Series (C, S) of the arms given most, in the order of the file, and one of all others."""
    total = counts.sum(0)
    order = [int(k) for k in np.argsort(-total, kind="stable") if total[k]]
    own, others = sorted(order[: svg.MOST_LOOKS]), order[svg.MOST_LOOKS :]
    keys = [Key(arms[k], svg.swatch(i), i) for i, k in enumerate(own)]
    if not others:
        return counts[:, own], keys
    keys.append(Key(counted(len(others), "other arm"), svg.OTHER, len(own)))
    return np.column_stack([counts[:, own], counts[:, others].sum(-1)]), keys


def probabilities(chances: Mapping[str, float], chosen: str) -> Chart:
    """The probability of each arm in one decision, and the arm that was drawn."""
    rows = [
        RangeRow(arm, f"{100 * p:.1f} %{' · drawn' * (arm == chosen)}", thick=(0.0, p), strong=arm == chosen)
        for arm, p in chances.items()
    ]
    listed = [[arm, f"{100 * p:.2f} %", "yes" if arm == chosen else ""] for arm, p in chances.items()]
    text = ", ".join(f"{arm} {100 * p:.1f} %" for arm, p in chances.items()) + f"; {chosen} was drawn."
    table = Table("The probability of each arm", ["arm", "probability", "drawn"], listed)
    return Chart(
        "probability-chart", "Probability of each arm", text, svg.ranges(rows, (0.0, 1.0), "probability"), table
    )


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
            chart = _looks(id, one, view.better, unit, calendar(state), state.spec.rules[rule])
            charts += [] if chart is None else [chart]
    return charts


def _looks(
    id: str, points: Sequence[tuple[Look, Claim]], better: str, unit: str, called: Calendar, rule: StoppingRule
) -> Chart | None:
    """The range of one arm at each look; None while no range is known."""
    points = [points[i] for i in svg.thinned(len(points), MOST_POINTS)]
    claims = [claim for _, claim in points]
    shown = [(c.low, c.high) for c in claims if c.low is not None and c.high is not None]
    if not shown:
        return None
    last, lines = claims[-1], margins(claims[-1], better)
    low, high = [c.low for c in claims], [c.high for c in claims]
    middles = [None if c.low is None or c.high is None else (c.low + c.high) / 2 for c in claims]
    series = [
        Series(
            [m if c.met is met else None for m, c in zip(middles, claims, strict=True)], low, high, dots=True, bar=bar
        )
        for met, bar in ((False, "level-line"), (True, "met-line"))
    ]
    panel = Panel(series, [str(i + 1) for i in range(len(points))], levels=lines)
    bounds = svg.window([0.0, *lines, *shown[-1]], [v for e in shown for v in e], 1.0)
    rows = []
    for i, (look, c) in enumerate(points):
        ends = [NOT_KNOWN if v is None else short(v) for v in (c.low, c.high)]
        to_go = NOT_KNOWN if c.distance is None else short(max(c.distance, 0.0))
        met = "yes" if c.met else c.waits or "no"
        rows.append([str(i + 1), called.label(look.episode), str(look.decisions), *ends, short(c.margin), to_go, met])
    effect = f"effect on {measured(last.on, unit)}"
    table = Table(
        f"Looks at {last.rule}, {last.arm}, {last.who}: {effect}",
        ["look", called.word, "decisions", "from", "to", "margin", f"to go until {until(last.kind, rule.then)}", "met"],
        rows,
    )
    keys = [Key(effect, "key-level"), Key("margin", "key-allowed")]
    keys += [Key("the rule is met", "key-met")] if any(c.met for c in claims) else []
    when = f"in {called.said(points[-1][0].episode)} after {counted(points[-1][0].decisions, 'decision')}"
    text = f"At the last look, {when}: {describe_claim(last, unit, rule.then)}. The ranges are those of the rule"
    fails = f", of which at all looks together at most {percent(last.alpha)} fail"
    if rule.is_planned:  # by the end that the rule waits for, and no other
        of = "of any arm" if rule.evidence == "calibrated" else "of this arm"
        fails = f", which claims something false {of} in at most {percent(last.alpha)} of trials, over all planned "
        fails += "looks together; they promise nothing at other looks"
    text += f"{fails}. Later outcomes are not in them."
    draw = svg.lines([panel], bounds, "look", height=180.0)
    title = f"{QUESTIONS[last.kind].format(last.arm)} {'Shown' if last.met else 'Not shown'}"
    return Chart(id, f"{title} ({last.rule}, {last.who})", text, draw, table, keys)


def margins(claim: Claim, better: str) -> list[float]:
    """The lines that an end of the range must pass."""
    up = 1.0 if better == "higher" else -1.0
    signs = {"superiority": [1], "non_inferiority": [-1], "equivalence": [-1, 1], "futility": [1], "harm": [-1]}
    return [up * sign * claim.margin for sign in signs[claim.kind]]


def describe_claim(claim: Claim, unit: str, then: str = "advise") -> str:
    """A range and its distance from what the rule asks for; `then` is the rule's consequence."""
    if claim.low is None or claim.high is None:
        return claim.waits if claim.withdrawn else "nothing is known yet"
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
        value = f"{short(c.deviation)} ({span(c.low, c.high)})" if clear else f"at most {short(c.high)}"
        value = value if c.identifiable else UNTOLD
        rows.append(RangeRow(label, value, c.deviation if clear else None, (c.low, c.high) if c.identifiable else None))
        numbers = [short(c.deviation) if clear else "", short(c.low), short(c.high)]
        listed.append([label, *(numbers if c.identifiable else [""] * 3), "" if c.identifiable else UNTOLD])
    largest = 2.5 * max((c.deviation for c in mine if c.identifiable and c.low > 0), default=math.inf)
    axis_end = 1.05 * min(max(c.high for c in mine), largest)
    table = Table(f"How much {measured(metric, unit)} varies", ["what", "about", "from", "to", "known"], listed)
    sizes = "; ".join(f"{row.label.removesuffix(' by')}: {row.value}" for row in rows)
    text = f"{measured(metric, unit)}, as standard deviations: {sizes}."
    draw = svg.ranges(rows, (0.0, axis_end), measured(metric, unit))
    return Chart(id, f"What varies, and how much: {metric}", text, draw, table, [Key(LIKELY, "key-level")])


def levels(
    all_levels: Sequence[Level], words: Words, metric: str, unit: str, id: str, *, seasons: bool,
    limits: tuple[float, float],
) -> Chart | None:  # fmt: skip
    """The mean outcome at each site, or in each season, under the control; `limits` of what is possible."""
    mine = [v for v in all_levels if v.metric == metric]
    if len(mine) < 2:
        return None
    noun = "season" if seasons else words.group
    where = f"at each {noun} under its control{words.scope}{words.typical_context}"
    if seasons:
        where = f"in each season{words.own_context} under the control, averaged over all {words.users}"
        mine = [mine[i] for i in svg.thinned(len(mine), MOST_POINTS)]
    marks, rows = [], []
    for v in mine:
        value, outcomes = f"{short(v.estimate)} ({span(v.low, v.high)})", counted(v.outcomes, "outcome")
        marks.append(RangeRow(v.name, value, v.estimate, (v.low, v.high), note=outcomes))
        rows.append([v.name, f"{v.outcomes:,}", *map(short, (v.estimate, v.low, v.high))])
    what, ends = measured(metric, unit), svg.spread([end for v in mine for end in (v.low, v.high)])
    ends = svg.within(ends, limits)
    least, most = (pick(mine, key=lambda v: v.estimate) for pick in (min, max))
    extremes = " to ".join(f"{amount(v.estimate, unit)} ({v.name})" for v in (least, most))
    table = Table(f"{what} {where}", [noun, "outcomes", metric, "from", "to"], rows)
    title, text = f"Levels of {noun}s: {metric} under the control", f"Expected {metric} {where}: from {extremes}."
    return Chart(id, title, text, svg.ranges(marks, ends, what), table, [Key(LIKELY, "key-level")])
