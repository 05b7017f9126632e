"""SVG elements, scales and axes. Colours come from the style sheet, by class, so that dark pages have their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

WIDE, NARROW = 860, 340  # units of a picture; about the pixels that it has on a screen and on a phone
SERIES = 7  # colours; further series have stripes, a shade, or both laid over them
MOST_LETTERS = 18  # of the name of a season below a chart
TEXT = 6.6  # units that a letter takes, roughly


@dataclass(frozen=True)
class Key:
    """A line of a legend."""

    name: str
    look: str  # the class of its marks
    series: int | None = None  # marks that it can hide: class `m-<series>`


@dataclass(frozen=True)
class Table:
    """The numbers of a chart."""

    caption: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Chart:
    """A picture in two widths, what it says in words, and its numbers."""

    id: str
    title: str
    says: str
    wide: Markup
    narrow: Markup
    table: Table
    keys: list[Key] = field(default_factory=list)


def drawn(
    id: str, title: str, says: str, draw: Callable[[int], tuple[float, Sequence[Markup]]], table: Table,
    keys: Sequence[Key] = (),
) -> Chart:  # fmt: skip
    """A chart from what draws it in a given width: its height, and its elements."""
    pictures = []
    for width, kind in ((WIDE, "wide"), (NARROW, "narrow")):
        height, inside = draw(width)
        label = el("title", title), el("desc", says)
        box = f"0 0 {width} {height:g}"
        pictures.append(el("svg", *label, *inside, class_=f"chart {kind}", viewBox=box, role="img", aria_label=title))
    return Chart(id, title, says, pictures[0], pictures[1], table, list(keys))


def el(name: str, *inside: object, **attributes: object) -> Markup:
    """An element; everything in it and on it is escaped.

    >>> el("text", "a < b", class_="tick", x=1.25)
    Markup('<text class="tick" x="1.2">a &lt; b</text>')
    """
    said = "".join(f' {_name(k)}="{escape(_value(v))}"' for k, v in attributes.items() if v is not None)
    body = Markup("").join(escape(part) for part in inside)
    return Markup(f"<{name}{said}>{body}</{name}>")  # every part is escaped above


def text(
    x: float, y: float, said: str, *, look: str = "tick", anchor: str = "start", most: int | None = None
) -> Markup:
    """A line of text; what is too long is cut, and whole in a tooltip."""
    shown = said if most is None or len(said) <= most else said[: max(1, most - 1)] + "…"
    more = [el("title", said)] if shown != said else []
    return el("text", shown, *more, x=x, y=y, class_=look, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, look: str) -> Markup:
    """A straight line."""
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=look)


def path(points: Sequence[tuple[float, float]], look: str, *, closed: bool = False) -> Markup:
    """A line through points, or the area inside them."""
    steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return el("path", d=f"M{steps}{'Z' if closed else ''}", class_=look)


def colour(k: int) -> str:
    """The class of a series."""
    return f"s{k % SERIES}"


def textures(k: int) -> list[str]:
    """The classes of what is laid over a colour that was used before.

    >>> [textures(k) for k in (6, 7, 14, 21)]
    [[], ['stripes'], ['shade'], ['stripes', 'shade']]
    """
    again = k // SERIES
    return ["stripes"] * (again & 1) + ["shade"] * (again >> 1 & 1)


def swatch(k: int) -> str:
    """The classes of a series in a legend: its colour, and what is laid over it."""
    return " ".join([colour(k), *(f"with-{name}" for name in textures(k))])


@dataclass(frozen=True)
class Scale:
    """From numbers to places."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where a number is; what is outside is put at the edge."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def spread(values: Sequence[float], *, margin: float = 0.06) -> tuple[float, float]:
    """From the smallest to the largest, with some room; never nothing."""
    finite = [v for v in values if math.isfinite(v)] or [0.0]
    low, high = min(finite), max(finite)
    room = (high - low) * margin or max(abs(high), 1.0) * margin
    return low - room, high + room


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between two.

    >>> ticks(-13, 41, 5)
    [-10.0, 0.0, 10.0, 20.0, 30.0, 40.0]
    """
    size = 10.0 ** math.floor(math.log10((high - low) / (about + 1)))
    step = next(size * n for n in (1, 2, 5, 10, 20) if (high - low) / (size * n) <= about + 1)
    first = math.ceil(low / step)
    return [float(f"{n * step:.12g}") for n in range(first, math.floor(high / step) + 1)]


def episodes_axis(
    x: Callable[[float], float], shown: Sequence[str], y: float, width: float, end: float, word: str
) -> list[Markup]:
    """Numbers or names of episodes below a chart, as many as there is room for, and the word."""
    longest = min(MOST_LETTERS, max(map(len, shown), default=0))
    most = max(1, int(width / max(38.0, TEXT * longest + 12)))
    step = max(1, math.ceil(len(shown) / most))
    marks = [text(x(i), y + 16, shown[i], anchor="middle", most=MOST_LETTERS) for i in range(0, len(shown), step)]
    return [*marks, text(end, y + 33, word, look="label", anchor="end")]


def _name(keyword: str) -> str:
    keyword = keyword.rstrip("_")
    return keyword if keyword in ("viewBox",) else keyword.replace("_", "-")


def _value(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
