"""What a covariate does to the effects of arms: a line with its band for each arm, or a dot for each level."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from drimed.findings.charts import svg
from drimed.findings.charts.svg import Chart, Key, Scale, Table, el
from drimed.findings.varying import Line, Varying
from drimed.formatting import short

HEIGHT, GAP = 190.0, 34.0  # of a panel, and between two
LISTED = 5  # values of a covariate that the table has
TITLE = 20.0  # room for an arm's name above its panel


def covariates(found: Varying, on: str) -> list[Chart]:
    """One chart for each covariate, with a panel for each arm."""
    made = []
    for i, name in enumerate(dict.fromkeys(line.covariate for line in found.lines)):
        lines = [line for line in found.lines if line.covariate == name and line.on == on]
        if lines:
            made.append(_chart(found, lines, on, i))
    return made


def _chart(found: Varying, lines: Sequence[Line], on: str, place: int) -> Chart:
    first = lines[0]
    ends = svg.spread([0.0, *(v for line in lines for v in (*line.low, *line.high))])
    measured = first.covariate + (f" ({first.unit})" if first.unit else "")

    def draw(width: int) -> tuple[float, list[Markup]]:
        across = min(len(lines), 3 if width > 500 else 1)
        left, right = 56.0, width - 10.0
        room = (right - left - GAP * (across - 1)) / across
        made: list[Markup] = []
        down = HEIGHT + TITLE + 44.0
        for i, line in enumerate(lines):
            x0, y0 = left + (i % across) * (room + GAP), 6.0 + (i // across) * down
            made += _panel(line, ends, (x0, x0 + room), y0, numbered=i % across == 0)
        rows = -(-len(lines) // across)
        height = 6.0 + rows * down + 14.0
        said = f"{measured}; effect on {on} against control"
        return height, [*made, svg.text((left + right) / 2, height - 8, said, look="label", anchor="middle")]

    table = Table(
        f"Effects on {on} against control by {first.covariate}{found.words.scope}",
        ["arm", measured, "effect", "likely"],
        [row for line in lines for row in _rows(line)],
    )
    says = "; ".join(_said(line) for line in lines) + "."
    keys = [Key("effect against control", "key-gain"), Key("likely range (95 %)", "key-band")]
    title = f"Effects on {on} by {first.covariate}{found.words.scope}"
    return svg.drawn(f"covariate-chart{f'-{place + 1}' if place else ''}", title, says, draw, table, keys)


def _panel(
    line: Line, ends: tuple[float, float], across: tuple[float, float], top: float, *, numbered: bool
) -> list[Markup]:
    bottom = top + TITLE + HEIGHT
    y = Scale(*ends, bottom, top + TITLE)
    made = [svg.text(across[0], top + 12, line.arm, look="tick strong", most=int((across[1] - across[0]) / svg.TEXT))]
    for t in svg.ticks(*ends):
        made.append(svg.line(across[0], y(t), across[1], y(t), "grid"))
        if numbered:
            made.append(svg.text(across[0] - 8, y(t) + 4, short(t), anchor="end"))
    made.append(svg.line(across[0], y(0), across[1], y(0), "zero"))
    x = _places(line, across)
    if line.levels is not None:
        for i, level in enumerate(line.levels):
            made += [
                svg.line(x(line.values[i]), y(line.low[i]), x(line.values[i]), y(line.high[i]), "level-line"),
                el("circle", cx=x(line.values[i]), cy=y(line.estimate[i]), r=4.5, class_="gain-dot"),
                svg.text(
                    x(line.values[i]), bottom + 16, level, anchor="middle",
                    most=max(3, int((across[1] - across[0]) / len(line.levels) / svg.TEXT)),
                ),
            ]  # fmt: skip
    else:
        edge = [*zip(line.values, line.high, strict=True), *reversed(list(zip(line.values, line.low, strict=True)))]
        made.append(svg.path([(x(v), y(e)) for v, e in edge], "band", closed=True))
        made.append(svg.path([(x(v), y(e)) for v, e in zip(line.values, line.estimate, strict=True)], "gain"))
        for t in svg.ticks(min(line.values), max(line.values), 4):
            made.append(svg.text(x(t), bottom + 16, short(t), anchor="middle"))
    return made + _touches(line, x, across, top + TITLE)


def _places(line: Line, across: tuple[float, float]) -> Scale:
    if line.levels is None:
        return Scale(min(line.values), max(line.values), *across)
    return Scale(-0.5, len(line.levels) - 0.5, *across)


def _touches(line: Line, x: Scale, across: tuple[float, float], top: float) -> list[Markup]:
    """Something to point at above every value."""
    step = (across[1] - across[0]) / len(line.values)
    made = []
    for i, value in enumerate(line.values):
        start = min(max(x(value) - step / 2, across[0]), across[1] - step)
        tip = f"{line.arm}, {_value(line, i)}: {short(line.estimate[i])}"
        tip += f" ({short(line.low[i])} to {short(line.high[i])})"
        made.append(el("rect", x=start, y=top, width=step, height=HEIGHT, class_="touch", data_tip=tip))
    return made


def _rows(line: Line) -> list[list[str]]:
    n = len(line.values)
    at = range(n) if line.levels is not None else sorted({round(i * (n - 1) / (LISTED - 1)) for i in range(LISTED)})
    return [
        [line.arm, _value(line, i), short(line.estimate[i]), f"{short(line.low[i])} to {short(line.high[i])}"]
        for i in at
    ]


def _said(line: Line) -> str:
    if line.levels is not None:
        each = (f"{short(e)} at {t}" for e, t in zip(line.estimate, line.levels, strict=True))
        return f"{line.arm}: {', '.join(each)}"
    ends = f"{short(line.estimate[0])} at {_value(line, 0)} to {short(line.estimate[-1])} at {_value(line, -1)}"
    return f"{line.arm}: from {ends}"


def _value(line: Line, i: int) -> str:
    if line.levels is not None:
        return line.levels[i]
    return short(line.values[i]) + (f" {line.unit}" if line.unit else "")
