"""How the effects of the arms that matter developed, season by season: a dot with its likely range."""

from __future__ import annotations

from drimed.findings.analyse import Analysis
from drimed.findings.charts import panels, svg
from drimed.findings.charts.panels import Curve, Ground
from drimed.findings.charts.svg import Chart, Key, Table
from drimed.formatting import amount, counted, measured, short, span
from drimed.records import Effect
from drimed.trial.seasons import calendar

MOST_ARMS = 6  # with more, those that were given most


def over_time(analysis: Analysis, on: str, unit: str) -> Chart | None:
    """The effects on something, for all users together; None where there is no time to speak of."""
    state, called = analysis.seen.state, calendar(analysis.seen.state)
    given = dict(zip(state.problem.arms, analysis.course.allocation.sum(0).tolist(), strict=True))
    courses: dict[str, list[tuple[int, Effect]]] = {}
    for i, past in enumerate(analysis.past):
        for x in past.effects:
            if x.on == on:
                courses.setdefault(x.arm, []).append((i, x))
    if not courses:
        return None
    most = set(sorted(courses, key=lambda arm: -given[arm])[:MOST_ARMS])
    arms = [arm for arm in state.problem.arms if arm in most]
    names = [called.label(past.episode) for past in analysis.past]
    word, what = called.word, measured(on, unit)
    curves = [
        Curve(
            name=analysis.named(arm),
            at=[float(i) for i, _ in courses[arm]],
            places=[f"after {word} {names[i]}" for i, _ in courses[arm]],
            estimate=[x.estimate for _, x in courses[arm]],
            low=[x.likely_low or 0.0 for _, x in courses[arm]],
            high=[x.likely_high or 0.0 for _, x in courses[arm]],
        )
        for arm in arms
    ]
    below = f"{word}; effect on {what} against control"
    ground = Ground((-0.5, len(names) - 0.5), panels.ordered(names), below, dots=True)
    left_out = f" ({len(arms)} of {counted(len(courses), 'arm')}, those given most)" if len(courses) > len(arms) else ""
    title = f"Effects on {what} against control after each {word}: all users{left_out}"
    table = Table(
        title,
        ["arm", f"after {word}", "effect", "likely"],
        [
            [analysis.named(arm), names[i], short(x.estimate), span(x.likely_low, x.likely_high)]
            for arm in arms
            for i, x in courses[arm]
        ],
    )
    says = "; ".join(_said(analysis.named(arm), courses[arm], names, unit) for arm in arms) + "."
    keys = [Key("effect against control", "key-dot"), Key("likely range (95 %)", "key-level")]
    return svg.drawn("over-time-chart", title, says, panels.drawing(curves, ground), table, keys)


def _said(arm: str, course: list[tuple[int, Effect]], names: list[str], unit: str) -> str:
    (i, first), (j, last) = course[0], course[-1]
    if i == j:
        return f"{arm}: {amount(last.estimate, unit)} after {names[j]}"
    return f"{arm}: {amount(first.estimate, unit)} after {names[i]}, {amount(last.estimate, unit)} after {names[j]}"
