"""Charts of effects: a range for each arm, effects after each season, and effects by covariate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from drimed.formatting import RETIRED, amount, counted, measured, short, span
from drimed.records import Effect
from drimed.reports.analysis import AT_ALL_TIMES, Analysis
from drimed.reports.charts import svg
from drimed.reports.charts.svg import Chart, Key, Panel, RangeRow, Series, Table
from drimed.reports.effects import MODEL
from drimed.reports.wording import Words
from drimed.trial.estimates import EXACT
from drimed.trial.seasons import calendar

REACH = 4.0  # lengths of the likely ranges that are shown on either side; longer ranges end in an arrow
MOST_DESCRIBED = 8  # effects in the sentence below a chart
MOST_PANELS = 6  # arms over time; of more, those given most
LISTED = 5  # values of a covariate in the table
LIKELY = "likely range (95 %)"

Better = Literal["higher", "lower"]


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
        e = self.effect
        likely = e.likely_ends if e.is_known and not self.single and not self.model_free else None
        name = "without a model, 95 %:" if self.model_free else promise
        suffix = RETIRED if self.retired else ""
        parts = [f"{self.label}{suffix}: {amount(e.estimate, unit)}"]
        parts += [f"likely {span(*likely)}"] if likely is not None else []
        parts += [f"{name} {span(*e.ends)}", self.times, self.note, self.full_verdict if e.why_open else ""]
        return RangeRow(
            self.label,
            self.verdict,
            "; ".join(filter(None, parts)),
            estimate=e.estimate,
            thick=likely,
            thin=e.ends,
            note=self.source,
            suffix=suffix,
            look=self.look,
            square=self.model_free,
            strong=self.strong,
        )


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
    axis = f"{measured(on, unit)} against control"
    drawn = [r.drawn(promise, unit) for r in rows]
    draw = svg.ranges(drawn, _reach(rows), axis, sides=sides, zero=True)
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
    return svg.window(inner, outer, REACH)


class _Course(NamedTuple):
    """An arm's effects along an axis, as (estimate, low, high); None: no outcome yet."""

    label: str
    points: list[tuple[float, float, float] | None]


def _panels(
    id: str, title: str, courses: Sequence[_Course], names: Sequence[str], on: str, along: str, *, text: str,
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
    ends = svg.spread([0.0, *(v for c in courses for x in c.points if x is not None for v in x)])
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
    drawn, texts = [], []
    for arm in arms:
        course = courses[arm]
        points = [(y.estimate, *y.likely_ends) if (y := course.get(i)) else None for i in range(len(names))]
        drawn.append(_Course(a.label(arm), points))
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
        texts, drawn = [], []
        for x in some:
            values = [f"{amount(x.estimate[j], unit)} at {names[j]}" for j in (range(n) if x.levels else (0, -1))]
            texts.append(f"{a.label(x.arm)}: {', '.join(values) if x.levels else 'from ' + ' to '.join(values)}")
            points = [(e, low, high) for e, low, high in zip(x.estimate, x.low, x.high, strict=True)]
            drawn.append(_Course(a.label(x.arm), [*points]))
        what, along = measured(on, unit), measured(name, first.unit)
        title, text = f"Effects on {what} against control by {name}{words.scope}", "; ".join(texts) + "."
        listed = None if first.levels else sorted({round(j * (n - 1) / (LISTED - 1)) for j in range(LISTED)})
        at, id = None if first.levels else first.values, f"covariate-chart-{i + 1}" if i else "covariate-chart"
        charts.append(_panels(id, title, drawn, names, what, along, text=text, at=at, listed=listed, every_label=True))
    return charts
