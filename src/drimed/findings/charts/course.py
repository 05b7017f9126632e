"""The course of a trial: reward against the control's, and whether effects moved.

Shapes: L episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from drimed.findings.analyse import AT_THIS_LOOK, GUARANTEED, Analysis
from drimed.findings.charts import svg
from drimed.findings.charts.svg import Chart, Key, Scale, Table, el
from drimed.formatting import amount, known, short, span
from drimed.trial.seasons import calendar

MOST_POINTS = 150  # episodes that are drawn and listed; of more, every so many
REACH = 3.0  # spans of the line itself beyond which a wide band is cut off
LEAST_EVIDENCE = -10.0  # drawn; it may be minus infinity
MARGIN, DIGIT = 62.0, 7.2  # pixels to the left of the plot, and of one digit beside its axis


def reward(analysis: Analysis) -> Chart | None:
    """What the arms that were given are worth, minus what the control would have been."""
    c = analysis.course
    if not np.isfinite(analysis.seen.reward).any():
        return None
    at = some(len(c.episode))
    when = When.of(analysis, at)
    gain, allowed, low, high = (v[at].tolist() for v in (c.gain, c.allowed, c.gain_low, c.gain_high))
    promise, unit = analysis.promise_of_sums, analysis.seen.state.spec.reward.unit
    bottom, top = _window([0.0, *gain, *allowed], [*low, *high])

    def draw(width: int) -> tuple[float, list[Markup]]:
        made, x, y, frame = axes(width, (bottom, top), 250.0, *when)
        edge = [(x(i), y(v)) for i, v in enumerate(high)] + [(x(i), y(v)) for i, v in reversed(list(enumerate(low)))]
        if len(at) > 1:
            made += [svg.path(edge, "band", closed=True), svg.path(through(x, y, allowed), "allowed")]
        else:
            made += [
                svg.line(x(0), y(low[0]), x(0), y(high[0]), "band-line"),
                svg.line(x(0) - 24, y(allowed[0]), x(0) + 24, y(allowed[0]), "allowed"),
            ]
        made += [svg.line(frame[0], y(0), frame[1], y(0), "zero"), svg.path(through(x, y, gain), "gain")]
        if len(at) <= 60:
            made += [el("circle", cx=x(i), cy=y(v), r=3.2, class_="gain-dot") for i, v in enumerate(gain)]
        tips = [
            f"{when.said(i)}: {amount(gain[i], unit)} ({promise} {span(low[i], high[i])}); "
            f"the tolerance allows {short(allowed[i])}"
            for i in range(len(at))
        ]
        return 296.0, made + columns(x, tips, frame, 250.0)

    rows = [[when.labels[i], *(known(v[i]) for v in (gain, low, high, allowed))] for i in range(len(at))]
    in_unit = f", in {unit}" if unit else ""
    table = Table(
        f"Expected reward of what was given against the control's, added up to the end of each {when.word}{in_unit}",
        [when.word, "reward minus control's", f"{promise} from", f"{promise} to", "tolerance allows"],
        rows,
    )
    judged = "the guarantee does not hold, because the model is wrong" if analysis.checks.withdrawn else c.verdict
    says = (
        f"After {when.said(-1)}: {amount(gain[-1], unit)} against the control's reward, {promise} "
        f"{span(low[-1], high[-1])}. The tolerance allows {amount(allowed[-1], unit)}: {judged}."
    )
    if min(low) < bottom or max(high) > top:
        says += " This range extends beyond the chart; the table has it in full."
    names = {GUARANTEED: "guaranteed at all times", AT_THIS_LOOK: "range at this look (95 %)"}
    band = names.get(promise, f"{promise} range")
    looks = {"reward minus control's": "gain", band: "band", "the tolerance allows": "allowed"}
    keys = [Key(name, f"key-{look}") for name, look in looks.items()]
    title = f"Reward so far, added up over all decisions, against what the control would have earned{in_unit}"
    return svg.drawn("reward-chart", title, says, draw, table, keys)


def evidence(analysis: Analysis) -> Chart | None:
    """The evidence that effects have moved, with the line at which an alarm is raised."""
    found = analysis.checks.mean
    if found is None:
        return None
    at = some(len(found.evidence))
    when = When.of(analysis, at)
    values = [float(v) for v in found.evidence[at]]
    drawn = np.maximum(values, LEAST_EVIDENCE).tolist()
    alarm = math.log(1 / found.alpha)

    def draw(width: int) -> tuple[float, list[Markup]]:
        made, x, y, frame = axes(width, svg.spread([*drawn, alarm, 0.0]), 150.0, *when)
        made += [svg.line(frame[0], y(alarm), frame[1], y(alarm), "allowed"), svg.path(through(x, y, drawn), "gain")]
        tips = [f"{when.said(i)}: log evidence {_log(v)}; alarm at {short(alarm)}" for i, v in enumerate(values)]
        return 196.0, made + columns(x, tips, frame, 150.0)

    table = Table(
        "Evidence that the effects moved",
        [when.word, "log evidence", "alarm at"],
        [[when.labels[i], _log(v), short(alarm)] for i, v in enumerate(values)],
    )
    says = f"Log evidence that effects have moved: {_log(values[-1])} after {when.said(-1)}; "
    says += f"an alarm is raised at {short(alarm)}."
    if min(values) < LEAST_EVIDENCE:
        says += f" Values below {short(LEAST_EVIDENCE)} are drawn at {short(LEAST_EVIDENCE)}."
    keys = [Key("evidence", "key-gain"), Key("alarm", "key-allowed")]
    return svg.drawn("evidence-chart", "Evidence that the effects themselves moved", says, draw, table, keys)


def _log(value: float) -> str:
    return short(value) if math.isfinite(value) else "none"


Placed = tuple[list[Markup], Callable[[float], float], Scale, tuple[float, float]]


class When(NamedTuple):
    """The episodes that a chart shows."""

    labels: list[str]
    word: str

    @staticmethod
    def of(analysis: Analysis, at: Sequence[int]) -> When:
        """By their names or numbers; `at` counts from 0."""
        called = calendar(analysis.seen.state)
        return When([called.label(i + 1) for i in at], called.word)

    def said(self, i: int) -> str:
        """One of them in a sentence."""
        return f"{self.word} {self.labels[i]}"


def axes(width: int, values: tuple[float, float], bottom: float, names: Sequence[str], word: str) -> Placed:
    """Axes: their elements, the places of points and values, and the left and right edge."""
    beside = [short(t) for t in svg.ticks(*values)]
    left, right = max(MARGIN, 14.0 + DIGIT * max(map(len, beside), default=0)), width - 10.0
    y = Scale(*values, bottom, 10.0)
    step = (right - left) / len(names)

    def x(i: float) -> float:
        return left + (i + 0.5) * step

    made = []
    for t in svg.ticks(*values):
        made += [svg.line(left, y(t), right, y(t), "grid"), svg.text(left - 8, y(t) + 4, short(t), anchor="end")]
    marks = svg.episodes_axis(x, names, bottom, right - left, right, word)
    return made + marks, x, y, (left, right)


def columns(
    x: Callable[[float], float], tips: Sequence[str], frame: tuple[float, float], bottom: float
) -> list[Markup]:
    """Something to point at above every episode."""
    step = (frame[1] - frame[0]) / len(tips)
    return [
        el("rect", x=x(i) - step / 2, y=8, width=step, height=bottom - 8, class_="touch", data_tip=tip)
        for i, tip in enumerate(tips)
    ]


def through(x: Callable[[float], float], y: Scale, values: Sequence[float]) -> list[tuple[float, float]]:
    return [(x(i), y(v)) for i, v in enumerate(values)]


def _window(inner: Sequence[float], outer: Sequence[float]) -> tuple[float, float]:
    """What is shown: the lines whole, and of a wide band as much as leaves them readable."""
    low, high = min(inner), max(inner)
    size = (high - low) or 1.0
    return svg.spread([max(min(*outer, low), low - REACH * size), min(max(*outer, high), high + REACH * size)])


def some(n: int) -> list[int]:
    """Places of at most so many of n episodes, the last among them."""
    step = -(-n // MOST_POINTS)
    return list(range(n - 1, -1, -step))[::-1]
