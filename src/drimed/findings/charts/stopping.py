"""Stopping rules over time: the range of an effect at each look, and where it must be."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from drimed.findings.charts import svg
from drimed.findings.charts.course import axes, columns, some
from drimed.findings.charts.svg import Chart, Key, Table, el
from drimed.findings.stopping import Stopped, then_of, until
from drimed.formatting import NOT_KNOWN, amount, measured, short
from drimed.records import Claim, Look
from drimed.trial.seasons import Calendar, calendar

MOST = 12  # charts on a page; a rule for each of many users has more ranges than anybody reads
BOTTOM = 190.0
REACH = 4.0  # times the last range's length that is drawn around it: first ranges are wide

Point = tuple[Look, Claim]


def of_rules(found: Stopped) -> list[Chart]:
    """One for each arm of each rule, as long as there are not too many."""
    points: dict[tuple[str, str, str], list[Point]] = {}
    for look in found.looks:
        for claim in look.claims:
            points.setdefault((claim.rule, claim.who, claim.arm), []).append((look, claim))
    made: list[Chart] = []
    for (rule, _, _), one in points.items():
        view, metric = found.state.looked.views.get(rule), found.state.spec.metrics.get(one[-1][1].on)
        if view is not None and len(made) < MOST:
            unit = found.state.spec.reward.unit if metric is None else metric.unit
            id = f"stopping-chart-{len(made) + 1}"
            then = then_of(found.state.spec, rule)
            chart = over_looks(id, one, better=view.better, unit=unit, called=calendar(found.state), then=then)
            made += [] if chart is None else [chart]
    return made


def over_looks(
    id: str, points: Sequence[Point], *, better: str, unit: str, called: Calendar, then: str = "advise"
) -> Chart | None:
    """The range of one arm at each look; None while no range is known."""
    points = [points[i] for i in some(len(points))]
    known = [c for _, c in points if c.low is not None and c.high is not None]
    if not known:
        return None
    last, lines = known[-1], margins(known[-1], better)
    low, high = float(last.low or 0.0), float(last.high or 0.0)
    room = REACH * (high - low)
    ends = [v for c in known for v in (float(c.low or 0.0), float(c.high or 0.0)) if low - room <= v <= high + room]
    bounds = svg.spread([0.0, *lines, *ends])
    at = [str(i + 1) for i in range(len(points))]

    def draw(width: int) -> tuple[float, list[Markup]]:
        made, x, y, frame = axes(width, bounds, BOTTOM, at, "look")
        made.append(svg.line(frame[0], y(0), frame[1], y(0), "zero"))
        made += [svg.line(frame[0], y(v), frame[1], y(v), "allowed") for v in lines]
        for i, (_, c) in enumerate(points):
            if c.low is not None and c.high is not None:
                look = "met-line" if c.met else "level-line"
                made.append(svg.line(x(i), y(c.low), x(i), y(c.high), look))
                made.append(el("circle", cx=x(i), cy=y((c.low + c.high) / 2), r=3.2, class_="gain-dot"))
        tips = [
            f"look {i + 1}, {called.said(look.episode)}: {said(c, unit, then)}" for i, (look, c) in enumerate(points)
        ]
        return BOTTOM + 46, made + columns(x, tips, frame, BOTTOM)

    title = f"{last.rule}: {last.arm}, {last.who}"
    table = Table(
        f"What each look said of {last.rule}, {last.arm}, {last.who}: effect on {measured(last.on, unit)}",
        ["look", called.word, "decisions", "from", "to", "margin", f"to go until {until(last.kind, then)}", "met"],
        [_row(i, look, c, called) for i, (look, c) in enumerate(points)],
    )
    keys = [Key(f"effect on {measured(last.on, unit)}", "key-level"), Key("margin", "key-allowed")]
    keys += [Key("the rule is met", "key-met")] if any(c.met for c in known) else []
    return svg.drawn(id, title, f"At the last look: {said(points[-1][1], unit, then)}.", draw, table, keys)


def margins(claim: Claim, better: str) -> list[float]:
    """Where an end of the range must get past."""
    up = 1.0 if better == "higher" else -1.0
    found = {
        "superiority": [claim.margin],
        "non_inferiority": [-claim.margin],
        "equivalence": [-claim.margin, claim.margin],
        "futility": [claim.margin],
        "harm": [-claim.margin],
    }[claim.kind]
    return [up * v for v in found]


def said(claim: Claim, unit: str, then: str = "advise") -> str:
    """A range and how far it is from what the rule asks for, in a few words; `then` is what the rule does."""
    if claim.low is None or claim.high is None:
        return "nothing can be told yet"
    whole = " for all arms together" if claim.all_arms and claim.distance is not None else ""
    if claim.met:
        away = "the rule is met"
    elif claim.waits:
        away = claim.waits
    elif claim.distance is None or claim.distance < 0:
        away = "other arms are not known yet"
    else:
        away = f"{amount(claim.distance, unit)} to go until {until(claim.kind, then)}"
    return f"{short(claim.low)} to {amount(claim.high, unit)}, {away}{whole}"


def _row(i: int, look: Look, claim: Claim, called: Calendar) -> list[str]:
    low, high = (NOT_KNOWN if v is None else short(v) for v in (claim.low, claim.high))
    away = NOT_KNOWN if claim.distance is None else short(max(claim.distance, 0.0))
    return [str(i + 1), called.label(look.episode), str(look.decisions), low, high, short(claim.margin), away,
            "yes" if claim.met else claim.waits or "no"]  # fmt: skip
