"""A row of small charts, one for each arm, on one scale: lines with their bands, or dots with their ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from drimed.findings.charts import svg
from drimed.findings.charts.svg import Scale, el
from drimed.formatting import short

HEIGHT, GAP = 190.0, 34.0  # of a panel, and between two
TITLE = 20.0  # room for an arm's name above its panel
LABEL = 16  # letters of a place below a panel, at most
FEWEST = 3  # letters that are left of it, at least

Marks = Sequence[tuple[float, str]]  # places below a panel, and what is written there


@dataclass(frozen=True)
class Curve:
    """An arm's numbers along something."""

    name: str
    at: Sequence[float]
    places: Sequence[str]  # what each of them is called
    estimate: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Ground:
    """What all panels share."""

    across: tuple[float, float]  # the smallest and the largest place
    marks: Callable[[float], Marks]  # for a panel of this width
    below: str  # what is drawn along which
    dots: bool  # a dot with its range at each place; False: a line with its band


def drawing(curves: Sequence[Curve], ground: Ground) -> Callable[[int], tuple[float, list[Markup]]]:
    """What draws them in a given width."""
    ends = svg.spread([0.0, *(v for c in curves for v in (*c.low, *c.high))])

    def draw(width: int) -> tuple[float, list[Markup]]:
        across = min(len(curves), 3 if width > 500 else 1)
        left, right = 56.0, width - 10.0
        room = (right - left - GAP * (across - 1)) / across
        made: list[Markup] = []
        down = HEIGHT + TITLE + 44.0
        for i, curve in enumerate(curves):
            x0, y0 = left + (i % across) * (room + GAP), 6.0 + (i // across) * down
            made += _panel(curve, ground, ends, (x0, x0 + room), y0, numbered=i % across == 0)
        height = 6.0 + -(-len(curves) // across) * down + 14.0
        return height, [*made, svg.text((left + right) / 2, height - 8, ground.below, look="label", anchor="middle")]

    return draw


def levels(names: Sequence[str]) -> Callable[[float], Marks]:
    """Every one of some names, cut where there is no room."""
    return lambda width: [(float(i), _cut(name, width / len(names))) for i, name in enumerate(names)]


def ordered(names: Sequence[str]) -> Callable[[float], Marks]:
    """As many of some names as there is room for: what is left out lies between two others."""

    def marks(width: int | float) -> Marks:
        longest = min(LABEL, max(map(len, names)))
        step = max(1, -(-len(names) // max(1, int(width / (svg.TEXT * longest + 10)))))
        return [(float(i), _cut(names[i], width * step / len(names))) for i in range(len(names) - 1, -1, -step)]

    return marks


def _cut(name: str, width: float) -> str:
    most = min(LABEL, max(FEWEST, int(width / svg.TEXT)))
    return name if len(name) <= most else name[: most - 1] + "…"


def _panel(
    curve: Curve, ground: Ground, ends: tuple[float, float], across: tuple[float, float], top: float, *, numbered: bool
) -> list[Markup]:
    bottom = top + TITLE + HEIGHT
    x, y = Scale(*ground.across, *across), Scale(*ends, bottom, top + TITLE)
    made = [svg.text(across[0], top + 12, curve.name, look="tick strong", most=int((across[1] - across[0]) / svg.TEXT))]
    for t in svg.ticks(*ends):
        made.append(svg.line(across[0], y(t), across[1], y(t), "grid"))
        if numbered:
            made.append(svg.text(across[0] - 8, y(t) + 4, short(t), anchor="end"))
    made.append(svg.line(across[0], y(0), across[1], y(0), "zero"))
    ranged = list(zip(curve.at, curve.estimate, curve.low, curve.high, strict=True))
    if ground.dots:
        for v, e, low, high in ranged:
            made.append(svg.line(x(v), y(low), x(v), y(high), "level-line"))
            made.append(el("circle", cx=x(v), cy=y(e), r=4.5, class_="gain-dot"))
    else:
        edge = [*((v, high) for v, _, _, high in ranged), *((v, low) for v, _, low, _ in reversed(ranged))]
        made.append(svg.path([(x(v), y(e)) for v, e in edge], "band", closed=True))
        made.append(svg.path([(x(v), y(e)) for v, e, _, _ in ranged], "gain"))
    made += [svg.text(x(v), bottom + 16, said, anchor="middle") for v, said in ground.marks(across[1] - across[0])]
    return made + _touches(curve, x, across, top + TITLE)


def _touches(curve: Curve, x: Scale, across: tuple[float, float], top: float) -> list[Markup]:
    """Something to point at above every place."""
    step = (across[1] - across[0]) / max(2, len(curve.at))
    made = []
    for i, v in enumerate(curve.at):
        start = min(max(x(v) - step / 2, across[0]), across[1] - step)
        tip = f"{curve.name}, {curve.places[i]}: {short(curve.estimate[i])}"
        tip += f" ({short(curve.low[i])} to {short(curve.high[i])})"
        made.append(el("rect", x=start, y=top, width=step, height=HEIGHT, class_="touch", data_tip=tip))
    return made
