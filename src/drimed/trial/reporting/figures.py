"""The figures of a report: who got what, effects, reward against control, drift."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from drimed.experiments.page import BLACK, BLUE, COLOURS, GREEN, ORANGE, SKY, Figure
from drimed.trial.analysis.analyse import Analysis
from drimed.trial.analysis.effects import EVERYBODY, Line

LEAST_EVIDENCE = -10.0  # shown: there may be none at all
MOST_LINES = 40  # of a forest plot: more cannot be read


def all_figures(analysis: Analysis) -> dict[str, Figure]:
    """Every figure for which there are data."""
    made = {
        "allocation": allocation(analysis),
        "effects": forest(analysis, "reward"),
        "reward": reward(analysis),
        "drift": drift(analysis),
    }
    return {name: figure for name, figure in made.items() if figure is not None}


def allocation(analysis: Analysis) -> Figure | None:
    """Shares of the arms in each episode."""
    counts = analysis.course.allocation
    if not counts.sum():
        return None
    figure = Figure(figsize=(7.2, 3.2))
    axes = figure.add_subplot()
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    below = np.zeros(len(share))
    for k, arm in enumerate(analysis.seen.memory.problem.arms):
        axes.bar(analysis.course.episode, share[:, k], 0.9, below, color=_colour(k), label=arm, hatch=_hatch(k))
        below += share[:, k]
    axes.set(xlabel="episode", ylabel="share of decisions", ylim=(0, 1), title="Who got what")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return figure


def forest(analysis: Analysis, on: str) -> Figure | None:
    """Effects against control: everybody first, then groups, both kinds of interval."""
    controls = {a.control for a in analysis.advice}
    rows = [line for line in _grouped(analysis, on) if not (len(controls) == 1 and line.arm in controls)]
    if not rows:
        return None
    rows = rows[:MOST_LINES]
    figure = Figure(figsize=(7.2, 0.9 + 0.27 * len(rows)))
    axes = figure.add_subplot()
    for y, line in enumerate(rows):
        colour = GREEN if line.low > 0 else ORANGE if line.high < 0 else BLUE
        dot: dict[str, Any] = {"fmt": "o"} if line.kind == "regression" else {"fmt": "s", "mfc": "white"}
        ends = [[line.estimate - line.low], [line.high - line.estimate]]
        axes.errorbar(line.estimate, y, xerr=ends, color=colour, capsize=2, markersize=5, linewidth=1, **dot)
        if line.kind == "regression":
            axes.plot([line.likely_low, line.likely_high], [y, y], color=colour, linewidth=4, alpha=0.6)
    axes.axvline(0, color=BLACK, linewidth=1)
    labels = [f"{r.who}: {r.arm}" + ("" if r.kind == "regression" else " (no model)") for r in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    unit = "reward" if on == "reward" else f"{on} ({analysis.seen.memory.spec.metrics[on].unit or 'own unit'})"
    axes.set(xlabel=f"effect on {unit}: worse  <  0  <  better than control", title=f"Effects against control: {on}")
    return figure


def reward(analysis: Analysis) -> Figure | None:
    """Reward so far against what the control would have earned."""
    course = analysis.course
    if not np.isfinite(analysis.seen.reward).any():
        return None
    figure = Figure(figsize=(7.2, 3.2))
    axes = figure.add_subplot()
    axes.fill_between(course.episode, course.gain_low, course.gain_high, color=SKY, alpha=0.35, label="at all times")
    axes.plot(course.episode, course.gain, color=BLUE, marker="o", markersize=3, label="given minus control")
    axes.plot(course.episode, course.allowed, color=ORANGE, linestyle="--", label="the tolerance allows")
    axes.axhline(0, color=BLACK, linewidth=1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="episode", ylabel="expected reward so far", title="What was given against the control")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return figure


def drift(analysis: Analysis) -> Figure | None:
    """How far contexts moved, and the evidence that effects did."""
    context, mean = analysis.checks.context, analysis.checks.mean
    if context is None and mean is None:
        return None
    figure = Figure(figsize=(7.2, 2.8))
    left, right = figure.subplots(1, 2)
    if context is not None:
        episode = np.arange(1, len(context.shift) + 1)
        left.bar(episode, context.shift, color=BLUE)
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.set(xlabel="episode", ylabel="standard deviations", title="Contexts: move against the past")
    else:
        left.set_axis_off()
        left.set_title("Contexts: none recorded")
    if mean is not None:
        episode = np.arange(1, len(mean.evidence) + 1)
        right.plot(episode, np.maximum(mean.evidence, LEAST_EVIDENCE), color=BLUE)
        right.axhline(np.log(1 / mean.alpha), color=ORANGE, linestyle="--", label="alarm")
        right.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set(xlabel="episode", ylabel="log evidence", title="Did the effects move?")
        right.legend(frameon=False)
    else:
        right.set_axis_off()
        right.set_title("Effects: too few outcomes to say")
    figure.tight_layout()
    return figure


def _grouped(analysis: Analysis, on: str) -> list[Line]:
    """Lines of everybody and of groups, arm by arm, the two kinds of interval next to each other."""
    users = set(analysis.seen.memory.users)
    chosen = [x for x in analysis.lines if x.on == on and (x.who == EVERYBODY or x.who not in users)]
    arms = analysis.seen.memory.problem.arms
    who = list(dict.fromkeys(x.who for x in chosen))
    return sorted(chosen, key=lambda x: (who.index(x.who), arms.index(x.arm), x.kind != "regression"))


def _colour(k: int) -> str:
    return COLOURS[k % len(COLOURS)]


def _hatch(k: int) -> str:
    return ("", "//", "..", "xx")[k // len(COLOURS) % 4]
