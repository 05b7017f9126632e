"""SVG elements and three generic charts: ranges in rows, lines with bands, and stacked shares.

Charts need no script; colours come from the style sheet, by class. Shapes: C columns, S series.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

from drimed.formatting import short
from drimed.numerics.arrays import IntArray

WIDE, NARROW = 860, 340  # units of a picture; about the pixels that it has on a screen and on a phone
ROOMY = 500  # a picture wider than this has labels beside its marks, not above them
SERIES = 7  # colours; as many further series have stripes laid over them
MOST_LOOKS = 2 * SERIES
LETTER, BOLD, DIGIT = 6.6, 7.7, 7.2  # units that a letter, a bold letter and a digit take, roughly
MOST_LETTERS = 18  # of a name below a chart
FEWEST_LETTERS = 3  # that are left of such a name
MOST_DOTS = 60  # points of a line that have a dot each
GAP = 34.0  # between two panels
MARGIN = 0.06  # beside the ends of an axis, as a share of it
OTHER = "other"  # the look of series without a look of their own

Drawing = Callable[[int, Sequence[str]], tuple[float, list[Markup]]]  # width, tips of marks -> height, elements


@dataclass(frozen=True)
class Key:
    name: str
    look: str  # the class of its marks
    series: int | None = None  # marks that it can hide: class `m-<series>`


@dataclass(frozen=True)
class Table:
    """The numbers of a chart: a row for each mark, in their order."""

    caption: str
    columns: list[str]
    rows: list[list[str]]

    def tips(self) -> list[str]:
        """Each row in one line.

        >>> Table("", ["season", "effect", "likely"], [["3", "1.5", "1 to 2"]]).tips()
        ['season 3: effect 1.5; likely 1 to 2']
        """
        labelled = ([f"{c} {v}" for c, v in zip(self.columns, row, strict=True) if v] for row in self.rows)
        return [f"{first}: {'; '.join(others)}" for first, *others in labelled]


@dataclass(frozen=True)
class Chart:
    """A picture in two widths, a sentence and a table."""

    id: str
    title: str
    text: str
    draw: Drawing
    table: Table
    keys: Sequence[Key] = ()

    def picture(self, kind: Literal["wide", "narrow"]) -> Markup:
        width = WIDE if kind == "wide" else NARROW
        height, inside = self.draw(width, self.table.tips())
        about, box = (el("title", self.title), el("desc", self.text)), f"0 0 {width} {height:g}"
        return el("svg", *about, *inside, class_=f"chart {kind}", viewBox=box, role="img", aria_label=self.title)


@dataclass(frozen=True)
class RangeRow:
    label: str
    value: str  # beside the marks: a verdict or a number
    estimate: float | None = None
    thick: tuple[float, float] | None = None
    thin: tuple[float, float] | None = None  # an infinite end is drawn as an arrow, and so is one beyond the chart
    limit: float | None = None  # a mark across
    note: str = ""
    suffix: str = ""  # of the label; never cut off
    look: str = "open"  # or up, or down
    square: bool = False  # instead of a dot
    strong: bool = False


@dataclass(frozen=True)
class Series:
    """Numbers along an axis; None: there is none at this place."""

    values: Sequence[float | None]
    low: Sequence[float | None] | None = None  # known where the value is
    high: Sequence[float | None] | None = None
    dots: bool = False  # dots with their ranges instead of a line with its band
    line: str = "gain"
    band: str = "band"
    bar: str = "level-line"  # the range of a dot


@dataclass(frozen=True)
class Panel:
    """Series on one pair of axes."""

    series: Sequence[Series]
    labels: Sequence[str]  # of the places along the axis
    at: Sequence[float] | None = None  # numbers along the axis; None: places side by side
    title: str = ""
    levels: Sequence[float] = ()  # dashed lines across
    every_label: bool = False  # cut labels instead of leaving some out


def ranges(
    rows: Sequence[RangeRow], ends: tuple[float, float], axis: str, *, sides: tuple[str, str] | None = None,
    zero: bool = False, number: Callable[[float], str] = short,
) -> Drawing:  # fmt: skip
    """A range for each row, on one axis; `sides` are the meanings of left and right."""
    notes = any(r.note for r in rows)
    longest = max(max(len(r.label + r.suffix), len(r.note)) for r in rows)
    value_room = 20.0 + BOLD * max(len(r.value) for r in rows)

    def draw(width: int, tips: Sequence[str]) -> tuple[float, list[Markup]]:
        roomy = width > ROOMY
        step = (40.0 if notes else 32.0) if roomy else 62.0
        left = min(0.42 * width, max(120.0, 24 + LETTER * longest)) if roomy else 14.0
        right = width - max(40.0, value_room) if roomy else width - 14.0
        bottom, middle = 12.0 + step * len(rows), (left + right) / 2
        x = Scale(*ends, left, right)
        made = []
        for t in ticks(*ends, 6 if roomy else 4):
            made += [line(x(t), 6, x(t), bottom, "grid"), text(x(t), bottom + 16, number(t), anchor="middle")]
        made += [line(x(0), 6, x(0), bottom, "zero")] if zero else []
        for i, (row, tip) in enumerate(zip(rows, tips, strict=True)):
            y = 12.0 + step * (i + (0.5 if roomy else 0.78))
            made += _row_labels(row, y, width, (left, right), roomy)
            made.append(_row_marks(row, tip, x, y))
        below = 17.0 if sides is not None and not roomy else 0.0
        if sides is not None:
            made.append(text(left, bottom + 36, f"← {sides[0]}", look="label"))
            made.append(text(right, bottom + 36, f"{sides[1]} →", look="label", anchor="end"))
        made.append(text(middle, bottom + 36 + below, axis, look="label", anchor="middle", most=48))
        return bottom + 44 + below, made

    return draw


def _row_labels(row: RangeRow, y: float, width: int, ends: tuple[float, float], roomy: bool) -> list[Markup]:
    verdict = f"tick verdict {row.look}"
    if roomy:
        x, anchor, room = ends[0] - 12, "end", int((ends[0] - 16) / LETTER)
        name_y, note_y = (y - 3, y + 12) if row.note else (y + 4, y)
        value = text(ends[1] + 12, y + 4, row.value, look=verdict)
    else:
        x, anchor, name_y, note_y = ends[0], "start", y - 29, y - 14
        room = int((width - 28 - (12 + BOLD * len(row.value) if row.note else 0)) / LETTER)
        value = text(width - 14, name_y if row.note else note_y, row.value, look=verdict, anchor="end")
    look = "tick strong" if row.strong else "tick"
    label = text(x, name_y, row.label, look=look, anchor=anchor, most=room, suffix=row.suffix)
    note = [text(x, note_y, row.note, look="label", anchor=anchor, most=room if roomy else None)] if row.note else []
    return [label, *note, value]


def _row_marks(row: RangeRow, tip: str, x: Scale, y: float) -> Markup:
    parts = []
    for ends, look in ((row.thin, "thin"), (row.thick, "thick")):
        if ends is None:
            continue
        parts.append(line(x(ends[0]), y, x(ends[1]), y, look))
        for end, beyond, way in ((ends[0], ends[0] < x.low, 7), (ends[1], ends[1] > x.high, -7)):
            if beyond and (look == "thin" or row.thin is None):
                parts.append(path([(x(end) + way, y - 5), (x(end), y), (x(end) + way, y + 5)], "thin arrow"))
            elif look == "thin":
                parts.append(line(x(end), y - 4, x(end), y + 4, "thin"))
    if row.estimate is not None and x.low <= row.estimate <= x.high:  # a dot at the edge would be read as a value
        at = x(row.estimate)
        dot = el("circle", cx=at, cy=y, r=5, class_="dot")
        parts.append(el("rect", x=at - 5, y=y - 5, width=10, height=10, class_="square") if row.square else dot)
    parts += [] if row.limit is None else [line(x(row.limit), y - 8, x(row.limit), y + 8, "allowed")]
    parts.append(el("rect", x=x.start, y=y - 14, width=x.end - x.start, height=28, class_="touch"))
    return el("g", *parts, class_=f"effect {row.look}", data_tip=tip)


def lines(
    panels: Sequence[Panel], ends: tuple[float, float], axis: str, *, height: float = 220.0,
    number: Callable[[float], str] = short,
) -> Drawing:  # fmt: skip
    """Panels side by side on one scale; a single one takes the whole width."""

    def draw(width: int, tips: Sequence[str]) -> tuple[float, list[Markup]]:
        across = min(len(panels), 3 if width > ROOMY else 1)
        left = max(56.0, 14.0 + DIGIT * max(len(number(t)) for t in ticks(*ends)))
        room = (width - 10.0 - left - GAP * (across - 1)) / across
        title = 20.0 if any(p.title for p in panels) else 4.0
        down = title + height + 26.0
        made, left_tips = list[Markup](), iter(tips)
        for i, panel in enumerate(panels):
            start, top = left + (i % across) * (room + GAP), 6.0 + (i // across) * down + title
            y = Scale(*ends, top + height, top)
            if panel.title:
                made.append(text(start, top - 8, panel.title, look="tick strong", most=int(room / LETTER)))
            for t in ticks(*ends):
                made.append(line(start, y(t), start + room, y(t), "grid"))
                made += [text(start - 8, y(t) + 4, number(t), anchor="end")] if i % across == 0 else []
            made += _panel(panel, left_tips, (start, start + room), y)
        bottom = 6.0 + -(-len(panels) // across) * down
        return bottom + 20, [*made, text(width - 10.0, bottom + 10, axis, look="label", anchor="end")]

    return draw


def _panel(panel: Panel, tips: Iterator[str], edges: tuple[float, float], y: Scale) -> list[Markup]:
    left, right = edges
    n = len(panel.labels)
    at = range(n) if panel.at is None else panel.at
    x = Scale(-0.5, n - 0.5, left, right) if panel.at is None else Scale(min(at), max(at), left, right)
    made = [line(left, y(0), right, y(0), "zero")] if y.low < 0 < y.high else []
    made += [line(left, y(v), right, y(v), "allowed") for v in panel.levels]
    for series in panel.series:
        made += _series(series, [x(a) for a in at], y)
    if panel.at is not None:
        made += [text(x(t), y.start + 16, short(t), anchor="middle") for t in ticks(x.low, x.high, 4)]
    else:
        step = 1 if panel.every_label else _label_step(panel.labels, right - left)
        room = min(MOST_LETTERS, max(FEWEST_LETTERS, int((right - left) * step / n / LETTER)))
        shown = range(n - 1, -1, -step)
        made += [text(x(i), y.start + 16, panel.labels[i], anchor="middle", most=room) for i in shown]
    wide = (right - left) / max(n, 1 if panel.at is None else 2)
    for a, tip in zip(at, tips, strict=False):  # those of the next panels follow
        start = min(max(x(a) - wide / 2, left), right - wide)
        box = {"x": start, "y": y.end, "width": wide, "height": y.start - y.end}
        made.append(el("rect", **box, class_="touch", data_tip=tip))
    return made


def _label_step(labels: Sequence[str], room: float) -> int:
    """Every so many labels have room below a chart."""
    widest = LETTER * min(MOST_LETTERS, max(map(len, labels))) + 12
    return -(-len(labels) // max(1, int(room / max(38.0, widest))))


def _series(series: Series, x: Sequence[float], y: Scale) -> list[Markup]:
    def points(values: Sequence[float | None]) -> list[tuple[float, float]]:
        return [(x[i], y(values[i] or 0.0)) for i, v in enumerate(series.values) if v is not None]

    middle, made = points(series.values), list[Markup]()
    if series.low is not None and series.high is not None:
        low, high = points(series.low), points(series.high)
        if series.dots or len(middle) == 1:
            look = series.bar if series.dots else f"{series.band}-line"
            made += [line(*a, *b, look) for a, b in zip(low, high, strict=True)]
        else:
            made.append(path([*high, *reversed(low)], series.band, closed=True))
    if series.dots:
        return made + [el("circle", cx=a, cy=b, r=4, class_="gain-dot") for a, b in middle if len(middle) <= MOST_DOTS]
    if len(middle) == 1:
        middle = [(middle[0][0] + side, middle[0][1]) for side in (-24, 24)]
    return [*made, path(middle, series.line)]


def shares(counts: IntArray, columns: Sequence[str], tip: Callable[[int, int], str], axis: str) -> Drawing:
    """Stacked bars of counts (C, S); a series beyond the first MOST_LOOKS stands for all others."""

    def draw(width: int, _: Sequence[str]) -> tuple[float, list[Markup]]:
        left, bottom = 44.0, 230.0
        step = (width - 6.0 - left) / len(columns)
        bar, y = min(max(1.0, step * 0.86), 64.0), Scale(0, 1, bottom, 10.0)
        made = [line(left, y(s), width - 6.0, y(s), "grid") for s in (0, 0.25, 0.5, 0.75, 1)]
        made += [text(left - 6, y(s) + 4, f"{100 * s:.0f} %", anchor="end") for s in (0, 0.5, 1)]
        for c in range(len(columns)):
            total, edge = max(1, int(counts[c].sum())), bottom
            for s, n in enumerate(counts[c].tolist()):
                height = (bottom - 10.0) * n / total
                edge -= height
                box = {"x": left + (c + 0.5) * step - bar / 2, "y": edge, "width": bar, "height": height}
                colour, *stripes = swatch(s).split()
                made += [el("rect", **box, class_=f"{colour} bar m-{s}", data_tip=tip(c, s))] if n else []
                made += [el("rect", **box, class_=f"stripes m-{s}")] if n and stripes else []
        for c in range(0, len(columns), _label_step(columns, step * len(columns))):
            made.append(text(left + (c + 0.5) * step, bottom + 16, columns[c], anchor="middle", most=MOST_LETTERS))
        return bottom + 42, [*made, text(width - 6.0, bottom + 33, axis, look="label", anchor="end")]

    return draw


def swatch(k: int) -> str:
    """The classes of a series in a legend: its colour, and what is laid over it."""
    return OTHER if k >= MOST_LOOKS else f"s{k % SERIES}" + " with-stripes" * (k >= SERIES)


def el(name: str, *inside: object, **attributes: object) -> Markup:
    """An element; everything in it and on it is escaped.

    >>> el("text", "a < b", class_="tick", x=1.25)
    Markup('<text class="tick" x="1.2">a &lt; b</text>')
    """
    values = {k: f"{v:.1f}".removesuffix(".0") if isinstance(v, float) else v for k, v in attributes.items()}
    listed = (f' {k.rstrip("_").replace("_", "-")}="{escape(v)}"' for k, v in values.items() if v is not None)
    body = Markup("").join(escape(part) for part in inside)
    return Markup(f"<{name}{''.join(listed)}>{body}</{name}>")  # every part is escaped above


def text(
    x: float, y: float, label: str, *, look: str = "tick", anchor: str = "start", most: int | None = None,
    suffix: str = "",
) -> Markup:  # fmt: skip
    """A line of text; a long one is cut before its suffix, and whole in a tooltip."""
    room = len(label) if most is None else most - len(suffix)
    shown = label if len(label) <= room else label[: max(1, room - 1)] + "…"
    more = [el("title", label + suffix)] if shown != label else []
    return el("text", shown + suffix, *more, x=x, y=y, class_=look, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, look: str) -> Markup:
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=look)


def path(points: Sequence[tuple[float, float]], look: str, *, closed: bool = False) -> Markup:
    steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return el("path", d=f"M{steps}{'Z' if closed else ''}", class_=look)


@dataclass(frozen=True)
class Scale:
    """From numbers to places; numbers outside are put at the edge."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """From the smallest to the largest finite number, with some room; never nothing."""
    finite = [v for v in values if math.isfinite(v)] or [0.0]
    low, high = min(finite), max(finite)
    room = MARGIN * ((high - low) or max(abs(high), 1.0))
    return low - room, high + room


def window(inner: Sequence[float], outer: Sequence[float], reach: float) -> tuple[float, float]:
    """The ends of an axis: all of `inner`, and of `outer` at most so many times its length on either side."""
    low, high = min(inner), max(inner)
    room = reach * ((high - low) or 1.0)
    return spread([low, high, *(min(max(v, low - room), high + room) for v in outer)])


def within(ends: tuple[float, float], limits: tuple[float, float]) -> tuple[float, float]:
    """The ends of an axis that shows nothing impossible."""
    return max(ends[0], limits[0]), min(ends[1], limits[1])


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between two.

    >>> ticks(-13, 41, 5)
    [-10.0, 0.0, 10.0, 20.0, 30.0, 40.0]
    """
    size = 10.0 ** math.floor(math.log10((high - low) / (about + 1)))
    step = next(size * n for n in (1, 2, 5, 10, 20) if (high - low) / (size * n) <= about + 1)
    first = math.ceil(low / step)
    return [float(f"{n * step:.12g}") for n in range(first, math.floor(high / step) + 1)]


def thinned(n: int, most: int) -> list[int]:
    """Places of at most so many of n, evenly, the last among them.

    >>> thinned(10, 4)
    [0, 3, 6, 9]
    """
    step = -(-n // most)
    return list(range(n - 1, -1, -step))[::-1]
