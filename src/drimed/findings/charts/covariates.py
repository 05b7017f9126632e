"""What a covariate does to the effects of arms: a line with its band for each arm, or a dot for each level."""

from __future__ import annotations

from collections.abc import Sequence

from drimed.findings.charts import panels, svg
from drimed.findings.charts.panels import Curve, Ground
from drimed.findings.charts.svg import Chart, Key, Table
from drimed.findings.varying import Line, Varying
from drimed.formatting import amount, measured, short, span

LISTED = 5  # values of a covariate that the table has


def covariates(found: Varying, on: str, unit: str) -> list[Chart]:
    """One chart for each covariate, with a panel for each arm; `unit` is that of the effects."""
    made = []
    for i, name in enumerate(dict.fromkeys(line.covariate for line in found.lines)):
        lines = [line for line in found.lines if line.covariate == name and line.on == on]
        if lines:
            made.append(_chart(found, lines, measured(on, unit), unit, i))
    return made


def _chart(found: Varying, lines: Sequence[Line], on: str, unit: str, place: int) -> Chart:
    first = lines[0]
    along = measured(first.covariate, first.unit)
    curves = [
        Curve(x.arm, x.values, [_value(x, i) for i in range(len(x.values))], x.estimate, x.low, x.high) for x in lines
    ]
    below = f"{along}; effect on {on} against control"
    if first.levels is not None:
        ground = Ground((-0.5, len(first.levels) - 0.5), panels.levels(first.levels), below, dots=True)
    else:
        ends = min(first.values), max(first.values)
        ticks = [(t, short(t)) for t in svg.ticks(*ends, 4)]
        ground = Ground(ends, lambda _: ticks, below, dots=False)
    table = Table(
        f"Effects on {on} against control by {first.covariate}{found.words.scope}",
        ["arm", along, "effect", "likely"],
        [row for line in lines for row in _rows(line)],
    )
    says = "; ".join(_said(line, unit) for line in lines) + "."
    looks = ("key-gain", "key-band") if first.levels is None else ("key-dot", "key-level")
    keys = [Key("effect against control", looks[0]), Key("likely range (95 %)", looks[1])]
    title = f"Effects on {on} by {first.covariate}{found.words.scope}"
    id = f"covariate-chart{f'-{place + 1}' if place else ''}"
    return svg.drawn(id, title, says, panels.drawing(curves, ground), table, keys)


def _rows(line: Line) -> list[list[str]]:
    n = len(line.values)
    at = range(n) if line.levels is not None else sorted({round(i * (n - 1) / (LISTED - 1)) for i in range(LISTED)})
    return [[line.arm, _value(line, i), short(line.estimate[i]), span(line.low[i], line.high[i])] for i in at]


def _said(line: Line, unit: str) -> str:
    if line.levels is not None:
        each = (f"{amount(e, unit)} at {t}" for e, t in zip(line.estimate, line.levels, strict=True))
        return f"{line.arm}: {', '.join(each)}"
    ends = (f"{amount(line.estimate[i], unit)} at {_value(line, i)}" for i in (0, -1))
    return f"{line.arm}: from {' to '.join(ends)}"


def _value(line: Line, i: int) -> str:
    return line.levels[i] if line.levels is not None else amount(line.values[i], line.unit)
