"""Effects against the control: a line for each arm, thin for the guaranteed range, thick for the likely one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from drimed.findings.analyse import AT_ALL_TIMES
from drimed.findings.charts import svg
from drimed.findings.charts.svg import Chart, Key, Scale, Table, el
from drimed.findings.effects import MODEL
from drimed.formatting import RETIRED, amount, counted, measured, short, span
from drimed.records import Effect
from drimed.trial.model_free import EXACT

REACH = 4.0  # widths of the likely ranges that are shown on either side; longer guaranteed ranges end in an arrow
BOLD = 7.7  # units that a bold letter takes, roughly
MOST_SAID = 8  # effects that the words below a picture name

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Row:
    """An effect as it is drawn."""

    label: str
    effect: Effect
    better: Better | None = None  # of a metric, which way is good; of the reward, more is
    strong: bool = False  # to be seen first
    single: bool = False  # there is one range only, and the number of decisions is not known
    judged: bool = True  # whether the model stands that its ranges rest on, and enough is known
    note: str = ""  # where what is known about it comes from
    retired: bool = False  # whether the arm is not given any more

    @property
    def model_free(self) -> bool:
        """Whether it comes from the propensities alone."""
        return self.effect.source != MODEL

    @property
    def verdict(self) -> str:
        """Against the control, in words."""
        if not self.judged and not self.model_free:
            return "not judged"
        way, sure = self._way
        if way:
            return _words(way, self.better) + (", " + sure if sure else "")
        if self.effect.by_chance:
            return "open, may be chance"
        return "open" if self.effect.confirmed else "one season only" if self.effect.seasons else "not judged"

    @property
    def at_length(self) -> str:
        """The same, and why it is not judged, if it is not."""
        return (self.effect.why_open if self.judged else "") or self.verdict

    @property
    def look(self) -> str:
        """The class that gives its colour: green is good for the user, whichever way that is."""
        way, _ = self._way
        if not way:
            return "open"
        return "up" if (way > 0) == (self.better != "lower") else "down"

    @property
    def times(self) -> str:
        """How often the arm was given, in words."""
        if self.single:
            return ""
        return f"given {counted(self.effect.decisions, 'time')}" if self.effect.decisions else "never given"

    @property
    def name(self) -> str:
        """Its label, and whether the arm is retired."""
        return f"{self.label}{RETIRED}" if self.retired else self.label

    @property
    def under(self) -> str:
        """What stands below its name."""
        if self.model_free:
            return "without the model, exact" if self.effect.source == EXACT else "without the model"
        return self.note or self.times

    @property
    def beside(self) -> str:
        """What stands in brackets behind its label, in words."""
        said = self.under if self.model_free else self.times
        return ", ".join(filter(None, ["retired" if self.retired else "", said]))

    @property
    def likely(self) -> tuple[float, float] | None:
        """The likely range, where it is another than the long one."""
        e = self.effect
        if self.single or self.model_free or e.likely_low is None or e.likely_high is None:
            return None
        return e.likely_low, e.likely_high

    @property
    def _way(self) -> tuple[int, str]:
        """Above the control (1), below (-1) or open (0), and how sure that is."""
        if not self.judged and not self.model_free:
            return 0, ""
        if self.effect.certain:
            return self.effect.certain, "" if self.single or self.model_free else "certainly"
        if self.likely is not None and self.effect.likely:
            return self.effect.likely, "likely"
        return 0, ""


def forest(
    id: str, title: str, rows: Sequence[Row], *, on: str, unit: str = "", promise: str = "guaranteed"
) -> Chart | None:
    """The effects on something in its unit, as a picture; `promise` says what the long range is."""
    if not rows:
        return None
    low, high = _reach(rows)
    better = rows[0].better
    single = all(r.single for r in rows)

    def draw(width: int) -> tuple[float, list[Markup]]:
        roomy = width > 500
        step = 38.0 if roomy else 50.0 if single else 64.0
        room = 16.0 + BOLD * max(len(r.verdict) for r in rows)
        names = 310.0 if any(r.note for r in rows) else 190.0
        left, right = (names, width - max(130.0, room)) if roomy else (14.0, width - 14.0)
        x = Scale(low, high, left, right)
        bottom = 12.0 + step * len(rows)
        made = []
        for t in svg.ticks(low, high, 6 if roomy else 4):
            made += [svg.line(x(t), 6, x(t), bottom, "grid"), svg.text(x(t), bottom + 16, short(t), anchor="middle")]
        made.append(svg.line(x(0), 6, x(0), bottom, "zero"))
        for i, row in enumerate(rows):
            y = 12.0 + step * (i + (0.5 if roomy else 0.76))
            made += _labels(row, y, width, left, right, roomy)
            made.append(_marks(row, x, y, promise, unit))
        return bottom + (44 if roomy else 60), made + _ways(measured(on, unit), better, bottom + 36, left, right, roomy)

    says = "; ".join(
        f"{r.label}{f' ({r.beside})' if r.beside else ''}: {amount(r.effect.estimate, unit)}, {r.verdict}"
        for r in rows[:MOST_SAID]
    )
    if len(rows) > MOST_SAID:
        says += f"; and {len(rows) - MOST_SAID} more in the table"
    why = dict.fromkeys(r.at_length for r in rows if r.effect.unconfirmed and r.judged)
    says += "".join(f". {words[:1].upper()}{words[1:]}" for words in why) + "."
    if any(r.effect.by_chance and r.judged for r in rows):
        says += " Where a likely range leaves out 0 and the arm is open, that may be chance among so many comparisons."
    keys = [Key(f"range {promise} (95 %)" if promise == AT_ALL_TIMES else f"{promise} range", "key-thin")]
    if any(r.likely is not None for r in rows):
        keys.insert(0, Key("likely range (95 %)", "key-thick"))
    if any(r.model_free for r in rows):
        keys.append(Key("from the logged probabilities alone (95 %)", "key-square"))
    return svg.drawn(id, title, says, draw, _table(title, rows, promise), keys)


def _table(title: str, rows: Sequence[Row], promise: str) -> Table:
    found = [r.effect for r in rows]
    columns = {
        "arm": [r.name for r in rows],
        "given": [r.times.removeprefix("given ").removesuffix(" given") for r in rows],
        "effect": [short(e.estimate) for e in found],
        "likely": [span(e.likely_low, e.likely_high) for e in found],
        promise: [span(e.low, e.high) for e in found],
        "from": [_source(r, promise) for r in rows],
        "against control": [r.at_length for r in rows],
    }
    if any(r.note for r in rows):
        columns["known"] = [r.note for r in rows]
    if all(r.single for r in rows):
        for name in ("given", "likely", "from"):
            del columns[name]
    return Table(title, list(columns), [list(row) for row in zip(*columns.values(), strict=True)])


def _source(row: Row, promise: str) -> str:
    if row.model_free:
        return "probabilities and ranges of the metrics" if row.effect.source == EXACT else "probabilities alone"
    return "model" if promise == AT_ALL_TIMES else "regression"


def _ways(measure: str, better: Better | None, y: float, left: float, right: float, roomy: bool) -> list[Markup]:
    """What left and right mean."""
    middle = f"{measure} against control"
    return [
        svg.text(left, y, f"← {_words(-1, better)}", look="label"),
        svg.text((left + right) / 2, y if roomy else y + 17, middle, look="label", anchor="middle", most=48),
        svg.text(right, y, f"{_words(1, better)} →", look="label", anchor="end"),
    ]


def _words(way: int, better: Better | None) -> str:
    """More or less, and of a metric whether that is good.

    >>> _words(1, None), _words(1, "lower"), _words(-1, "lower")
    ('more', 'more (worse)', 'less (better)')
    """
    said = "more" if way > 0 else "less"
    return said if better is None else f"{said} ({'better' if (way > 0) == (better == 'higher') else 'worse'})"


def _labels(row: Row, y: float, width: int, left: float, right: float, roomy: bool) -> list[Markup]:
    look = "tick strong" if row.strong else "tick"
    if roomy:
        room = int((left - 20) / svg.TEXT)
        up = 4 if row.under else -4
        return [
            svg.text(left - 14, y - up, _fitting(row, room), look=look, anchor="end", most=room),
            *([svg.text(left - 14, y + 12, row.under, look="label", anchor="end", most=room)] if row.under else []),
            svg.text(right + 12, y + 4, row.verdict, look=f"tick verdict {row.look}"),
        ]
    room = int((width - 40 - BOLD * len(row.verdict)) / svg.TEXT)
    return [
        svg.text(left, y - (30 if row.times else 14), _fitting(row, room), look=look, most=room),
        *([svg.text(left, y - 14, row.under, look="label")] if row.under else []),
        svg.text(width - 14, y - (30 if row.times else 14), row.verdict, look=f"tick verdict {row.look}", anchor="end"),
    ]


def _fitting(row: Row, room: int) -> str:
    """Its name in so many letters, as far as the mark of a retired arm is concerned: that is never cut off."""
    if not row.retired or len(row.name) <= room:
        return row.name
    return f"{row.label[: max(1, room - len(RETIRED) - 1)]}…{RETIRED}"


def _marks(row: Row, x: Scale, y: float, promise: str, unit: str) -> Markup:
    e, likely = row.effect, row.likely
    low, high = e.ends
    parts = [svg.line(x(low), y, x(high), y, "thin")]
    for end, beyond, way in ((low, low < x.low, 1), (high, high > x.high, -1)):
        if beyond:
            parts.append(svg.path([(x(end) + 7 * way, y - 5), (x(end), y), (x(end) + 7 * way, y + 5)], "thin arrow"))
        else:
            parts.append(svg.line(x(end), y - 4, x(end), y + 4, "thin"))
    inside = x.low <= e.estimate <= x.high  # a dot at the edge would be read as a value
    if row.model_free and inside:
        parts.append(el("rect", x=x(e.estimate) - 5, y=y - 5, width=10, height=10, class_="square"))
    if likely is not None:
        parts.append(svg.line(x(likely[0]), y, x(likely[1]), y, "thick"))
    if not row.model_free and inside:
        parts.append(el("circle", cx=x(e.estimate), cy=y, r=5, class_="dot"))
    parts.append(el("rect", x=x.start, y=y - 14, width=x.end - x.start, height=28, class_="touch"))
    tip = f"{row.name}: {amount(e.estimate, unit)}"
    tip += f"; likely {span(*likely)}" if likely is not None else ""
    tip += f"; {'without a model, 95 %:' if row.model_free else promise} {span(e.low, e.high)}"
    tip += f"; {row.times}" if row.times else ""
    tip += f"; known {row.note}" if row.note else ""
    tip += f"; {row.at_length}" if e.why_open else ""
    return el("g", *parts, class_=f"effect {row.look}", data_tip=tip)


def _reach(rows: Sequence[Row]) -> tuple[float, float]:
    """What is shown: all likely ranges and zero, and of the guaranteed ones as much as leaves these readable.

    Arms that were never given are known from the prior alone, and exact ranges are wide: these are cut off, if there
    are others.
    """
    rows = [r for r in rows if (r.single or r.effect.decisions) and r.effect.source != EXACT] or rows
    found = [r.effect for r in rows]
    inner = [0.0, *(v for e in found for v in (e.estimate, e.likely_low, e.likely_high) if v is not None)]
    outer = [v for e in found for v in (e.low, e.high) if v is not None] or inner
    low, high = min(inner), max(inner)
    size = high - low
    if size <= 0 or all(r.single for r in rows):
        return svg.spread([*inner, *outer])
    return svg.spread([max(min(*outer, low), low - REACH * size), min(max(*outer, high), high + REACH * size)])
