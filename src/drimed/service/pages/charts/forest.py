"""Effects against control: a line for each arm, thin for the guaranteed range, thick for the likely one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from drimed.report.page import short
from drimed.service.pages.charts import svg
from drimed.service.pages.charts.svg import Chart, Key, Scale, Table, el

REACH = 4.0  # widths of the likely ranges that are shown on either side; longer guaranteed ranges end in an arrow


@dataclass(frozen=True)
class Row:
    """One effect."""

    label: str
    estimate: float
    low: float
    high: float
    likely: tuple[float, float] | None = None
    model_free: bool = False  # from the propensities alone
    strong: bool = False  # to be seen first
    note: str = ""

    @property
    def verdict(self) -> str:
        """Against the control, in words."""
        if self.low > 0:
            return "more" if self.likely is None else "more, certainly"
        if self.high < 0:
            return "less" if self.likely is None else "less, certainly"
        if self.likely is not None and not self.model_free and self.likely[0] > 0:
            return "more, likely"
        if self.likely is not None and not self.model_free and self.likely[1] < 0:
            return "less, likely"
        return "open"

    @property
    def look(self) -> str:
        """The class that gives its colour."""
        return "up" if self.verdict.startswith("more") else "down" if self.verdict.startswith("less") else "open"


def forest(
    id: str, title: str, rows: Sequence[Row], *, unit: str, caption: str, promise: str = "guaranteed"
) -> Chart | None:
    """The effects as a picture; `promise` says what the long range is."""
    if not rows:
        return None
    low, high = _reach(rows)

    def draw(width: int) -> tuple[float, list[Markup]]:
        roomy = width > 500
        step = 34.0 if roomy else 50.0
        left, right = (190.0, width - 130.0) if roomy else (14.0, width - 14.0)
        x = Scale(low, high, left, right)
        bottom = 12.0 + step * len(rows)
        made = []
        for t in svg.ticks(low, high, 6 if roomy else 4):
            made += [
                svg.line(x(t), 6, x(t), bottom, "grid"),
                svg.text(x(t), bottom + 16, svg.tick_text(t), anchor="middle"),
            ]
        made.append(svg.line(x(0), 6, x(0), bottom, "zero"))
        for i, row in enumerate(rows):
            y = 12.0 + step * (i + (0.5 if roomy else 0.72))
            made += _labels(row, y, width, left, right, roomy)
            made.append(_marks(row, x, y, promise))
        made.append(
            svg.text(
                (left + right) / 2,
                bottom + 35,
                f"less  ←  {unit} against control  →  more",
                look="label",
                anchor="middle",
            )
        )
        return bottom + 42, made

    cells = [
        [
            r.label,
            short(r.estimate),
            f"{short(r.likely[0])} to {short(r.likely[1])}" if r.likely is not None else "",
            f"{short(r.low)} to {short(r.high)}",
            "probabilities alone" if r.model_free else "regression",
            r.verdict,
        ]
        for r in rows
    ]
    columns = ["arm", "effect", "likely", promise, "from", "against control"]
    if all(r.likely is None for r in rows):
        columns, cells = [c for c in columns if c not in ("likely", "from")], [[*c[:2], c[3], c[5]] for c in cells]
    says = "; ".join(f"{r.label}: {short(r.estimate)}, {r.verdict}" for r in rows[:8])
    keys = [Key(f"{promise} range", "key-thin")]
    if any(r.likely is not None and not r.model_free for r in rows):
        keys.insert(0, Key("likely range (95 %)", "key-thick"))
    if any(r.model_free for r in rows):
        keys.append(Key("from the logged probabilities alone (95 %)", "key-square"))
    return svg.drawn(id, title, says, draw, Table(caption, columns, cells), keys)


def _labels(row: Row, y: float, width: int, left: float, right: float, roomy: bool) -> list[Markup]:
    look = "tick strong" if row.strong else "tick"
    if roomy:
        room = int((left - 20) / svg.TEXT)
        return [
            svg.text(left - 14, y + 4, row.label, look=look, anchor="end", most=room),
            svg.text(right + 12, y + 4, row.verdict, look=f"tick verdict {row.look}"),
        ]
    return [
        svg.text(left, y - 14, row.label, look=look, most=26),
        svg.text(width - 14, y - 14, row.verdict, look=f"tick verdict {row.look}", anchor="end"),
    ]


def _marks(row: Row, x: Scale, y: float, promise: str) -> Markup:
    parts = [svg.line(x(row.low), y, x(row.high), y, "thin")]
    for end, beyond, way in ((row.low, row.low < x.low, 1), (row.high, row.high > x.high, -1)):
        if beyond:
            parts.append(svg.path([(x(end) + 7 * way, y - 5), (x(end), y), (x(end) + 7 * way, y + 5)], "thin arrow"))
        else:
            parts.append(svg.line(x(end), y - 4, x(end), y + 4, "thin"))
    if row.model_free:
        parts.append(el("rect", x=x(row.estimate) - 5, y=y - 5, width=10, height=10, class_="square"))
    else:
        if row.likely is not None:
            parts.append(svg.line(x(row.likely[0]), y, x(row.likely[1]), y, "thick"))
        parts.append(el("circle", cx=x(row.estimate), cy=y, r=5, class_="dot"))
    parts.append(el("rect", x=x.start, y=y - 14, width=x.end - x.start, height=28, class_="touch"))
    likely = f"; likely {short(row.likely[0])} to {short(row.likely[1])}" if row.likely and not row.model_free else ""
    kind = "95 %" if row.model_free else promise
    tip = f"{row.label}: {short(row.estimate)}{likely}; {kind} {short(row.low)} to {short(row.high)}{row.note}"
    return el("g", *parts, class_=f"effect {row.look}", data_tip=tip)


def _reach(rows: Sequence[Row]) -> tuple[float, float]:
    """What is shown: all likely ranges and zero, and of the guaranteed ones as much as leaves these readable."""
    inner = [0.0, *(v for r in rows for v in (r.estimate, *(r.likely or ())))]
    outer = [v for r in rows for v in (r.low, r.high)]
    low, high = min(inner), max(inner)
    size = high - low
    if size <= 0 or all(r.likely is None for r in rows):
        return svg.spread([*inner, *outer])
    return svg.spread([max(min(*outer, low), low - REACH * size), min(max(*outer, high), high + REACH * size)])
