"""What varies and how much, and the levels of sites and seasons: a dot for each, with its range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from drimed.findings.charts import svg
from drimed.findings.charts.course import axes, columns, some
from drimed.findings.charts.svg import Chart, Key, Scale, Table, el
from drimed.findings.field_sentences import about, untold
from drimed.findings.varying import Level, Varies, Varying
from drimed.formatting import amount, counted, measured, short

REACH = 2.5  # times the largest estimate that is shown of what varies; longer ranges end in an arrow
UNTOLD = "cannot be told yet"
LIKELY = "likely range (95 %)"
MOST_SAID = 3  # things that vary which the words below a picture name
BASE = 250.0  # the height of a chart over time


@dataclass(frozen=True)
class _Row:
    label: str
    note: str
    estimate: float | None  # None: the range begins at nothing, and says it all
    low: float
    high: float
    told: bool = True

    @property
    def says(self) -> str:
        if not self.told:
            return UNTOLD
        if self.estimate is None:
            return f"at most {short(self.high)}"
        return f"{short(self.estimate)} ({short(self.low)} to {short(self.high)})"


def components(found: Varying, metric: str, unit: str, place: int) -> Chart | None:
    """How much sites, seasons and all else differ in a metric."""
    mine = [v for v in found.varies if v.metric == metric]
    if not mine:
        return None
    rows = [
        _Row(v.says, "", v.deviation if v.told and v.low > 0 else None, v.low, v.high, v.told)
        for v in sorted(mine, key=_order)
    ]
    most = REACH * max((r.estimate for r in rows if r.estimate is not None), default=np.inf)
    high = min(max(r.high for r in rows), most)
    table = Table(
        f"How much {measured(metric, unit)} varies",
        ["what", "about", "from", "to", "known"],
        [[r.label, *(_numbers(r) if r.told else ["", "", ""]), "" if r.told else UNTOLD] for r in rows],
    )
    says = f"{metric}: {_listed(mine, unit)}"
    title = f"What varies, and how much: {metric}"
    ends = 0.0, 1.05 * high
    return _drawn(f"varies-chart{_number(place)}", title, says, rows, ends, measured(metric, unit), table)


def sites(found: Varying, metric: str, unit: str, place: int) -> Chart | None:
    """The mean outcome at each site under the control."""
    mine = [v for v in found.sites if v.metric == metric]
    if not mine:
        return None
    noun, scope = found.words.group, f"{found.words.scope}{found.words.typical_context}"
    rows = [_Row(v.name, _outcomes(found, v), v.estimate, v.low, v.high) for v in mine]
    table = Table(
        f"{measured(metric, unit)} at each {noun} under its control{scope}",
        [noun, f"{found.words.outcome}s", metric, "from", "to"],
        [[v.name, f"{v.outcomes:,}", *_numbers(r)] for v, r in zip(mine, rows, strict=True)],
    )
    most, least = max(mine, key=lambda v: v.estimate), min(mine, key=lambda v: v.estimate)
    says = (
        f"Expected {metric} under the control{scope}: from {amount(least.estimate, unit)} at {least.name} "
        f"to {amount(most.estimate, unit)} at {most.name}."
    )
    ends = svg.spread([v for r in rows for v in (r.low, r.high)])
    title = f"Levels of {noun}s: {metric} under the control{found.words.scope}"
    return _drawn(f"sites-chart{_number(place)}", title, says, rows, ends, measured(metric, unit), table)


def seasons(found: Varying, metric: str, unit: str, place: int) -> Chart | None:
    """The mean outcome in each season under the control."""
    mine = [v for v in found.seasons if v.metric == metric]
    if len(mine) < 2:
        return None
    at = some(len(mine))
    shown = [mine[i] for i in at]
    ends = svg.spread([v for x in shown for v in (x.low, x.high)])
    noun, own = found.words.season, found.words.own_context

    def draw(width: int) -> tuple[float, list[Markup]]:
        made, x, y, edges = axes(width, ends, BASE, [v.name for v in shown], noun)
        for i, v in enumerate(shown):
            made.append(svg.line(x(i), y(v.low), x(i), y(v.high), "level-line"))
            made.append(el("circle", cx=x(i), cy=y(v.estimate), r=4, class_="gain-dot"))
        tips = [f"{noun} {v.name}: {amount(v.estimate, unit)} ({short(v.low)} to {short(v.high)})" for v in shown]
        made.append(svg.text(edges[0], BASE + 33, measured(metric, unit), look="label"))
        return 296.0, made + columns(x, tips, edges, BASE)

    table = Table(
        f"{measured(metric, unit)} in each {noun}{own} under the control, averaged over all {found.words.users_noun}",
        [noun, "outcomes", metric, "from", "to"],
        [[v.name, f"{v.outcomes:,}", *(short(e) for e in (v.estimate, v.low, v.high))] for v in shown],
    )
    most, least = max(mine, key=lambda v: v.estimate), min(mine, key=lambda v: v.estimate)
    says = (
        f"Expected {metric} in each {noun}{own} under the control, averaged over all {found.words.users_noun}: from "
        f"{amount(least.estimate, unit)} in {noun} {least.name} to {amount(most.estimate, unit)} in {noun} {most.name}."
    )
    title = f"Levels of {noun}s: {metric} under the control"
    return svg.drawn(f"seasons-chart{_number(place)}", title, says, draw, table, [Key(LIKELY, "key-level")])


def _order(v: Varies) -> tuple[bool, bool, float]:
    """The largest first, then what may be nothing, then what cannot be told."""
    return not v.told, v.low == 0, -v.deviation if v.low > 0 else -v.high


def _listed(mine: Sequence[Varies], unit: str) -> str:
    """The largest ones in words."""
    told = sorted((v for v in mine if v.told), key=_order)[:MOST_SAID]
    return "; ".join([*(about(v, unit) for v in told), *untold(mine)]) + "."


def _drawn(
    id: str, title: str, says: str, rows: Sequence[_Row], ends: tuple[float, float], unit: str, table: Table
) -> Chart:
    def draw(width: int) -> tuple[float, list[Markup]]:
        roomy = width > 500
        step = 52.0 if not roomy else 40.0 if any(r.note for r in rows) else 30.0
        longest = max(max(len(r.label), len(r.note)) for r in rows)
        left = min(365.0, max(120.0, 24 + svg.TEXT * longest)) if roomy else 14.0
        right = width - (24 + svg.TEXT * max(len(r.says) for r in rows)) if roomy else width - 14.0
        x = Scale(*ends, left, right)
        bottom = 12.0 + step * len(rows)
        made = []
        for t in svg.ticks(*ends, 5 if roomy else 4):
            made += [svg.line(x(t), 6, x(t), bottom, "grid"), svg.text(x(t), bottom + 16, short(t), anchor="middle")]
        for i, row in enumerate(rows):
            y = 12.0 + step * (i + (0.5 if roomy else 0.78))
            made += _labels(row, y, width, left, roomy)
            made.append(_mark(row, x, y))
        return bottom + 42, [*made, svg.text((left + right) / 2, bottom + 35, unit, look="label", anchor="middle")]

    return svg.drawn(id, title, says, draw, table, [Key(LIKELY, "key-level")])


def _labels(row: _Row, y: float, width: int, left: float, roomy: bool) -> list[Markup]:
    if roomy:
        most = int((left - 16) / svg.TEXT)
        up = -4 if not row.note else 3
        return [
            svg.text(left - 12, y - up, row.label, anchor="end", most=most),
            *([svg.text(left - 12, y + 12, row.note, look="label", anchor="end")] if row.note else []),
            svg.text(width - 8, y + 4, row.says, anchor="end"),
        ]
    return [
        svg.text(left, y - 26, row.label, most=int((width - 28) / svg.TEXT)),
        *([svg.text(left, y - 11, row.note, look="label")] if row.note else []),
        svg.text(width - 14, y - 11, row.says, anchor="end"),
    ]


def _mark(row: _Row, x: Scale, y: float) -> Markup:
    parts = [svg.line(x(row.low), y, x(row.high), y, "thick")] if row.told else []
    if row.told and row.high > x.high:
        parts.append(svg.path([(x.end - 7, y - 5), (x.end, y), (x.end - 7, y + 5)], "thin arrow"))
    if row.estimate is not None:
        parts.append(el("circle", cx=x(row.estimate), cy=y, r=5, class_="dot"))
    parts.append(el("rect", x=x.start, y=y - 12, width=x.end - x.start, height=24, class_="touch"))
    return el("g", *parts, class_="effect open", data_tip=f"{row.label}: {row.says}")


def _numbers(row: _Row) -> list[str]:
    return ["" if v is None else short(v) for v in (row.estimate, row.low, row.high)]


def _outcomes(found: Varying, level: Level) -> str:
    return counted(level.outcomes, found.words.outcome)


def _number(place: int) -> str:
    return f"-{place + 1}" if place else ""
