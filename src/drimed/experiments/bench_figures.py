"""Figures of a benchmark: curves, the trade-off between regret and violations, and growth."""

from __future__ import annotations

from typing import Any

import numpy as np

from drimed.experiments.comparison import SMALLEST_REGRET, Measured, by_axis, learner_in_words
from drimed.experiments.page import COLOURS, MARKERS, Figure, legend_below
from drimed.linear.arrays import FloatArray

SHOWN_CURVES = 8
SHOWN_CELLS = 12
LANDMARKS = ("published_dri_med", "oful", "dri_med")
FEWEST = 0.02  # violations per 10,000 that a logarithmic axis still shows: none at all is drawn there

PANEL = np.array([360.0, 330.0])  # of the trade-off, in points of type,
FAR = 9.0  # and how far from its point a number is written


def bench_figures(measured: Measured) -> dict[str, Figure]:
    """Every figure, by name."""
    figures = {"curves": _curves(measured), "trade_off": _trade_off(measured)}
    if by_axis(measured.bench.cells):
        figures["growth"] = _growth(measured)
    return figures


def _style(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}


def _leaders(measured: Measured) -> list[int]:
    """The policies worth a curve: those of least regret over all cells, and the landmarks."""
    specs = measured.bench.specs
    order = np.argsort([measured.over_cells(spec) for spec in specs])[:SHOWN_CURVES]
    return sorted({*order.tolist(), *(i for i, spec in enumerate(specs) if spec.name in LANDMARKS)})


def _curves(measured: Measured) -> Figure:
    cells = measured.bench.cells[:SHOWN_CELLS]
    across = min(4, len(cells))
    down = -(-len(cells) // across)
    fig = Figure(figsize=(3.1 * across, 2.5 * down + 0.9), layout="constrained")
    axes = fig.subplots(down, across, squeeze=False).ravel()
    leaders = [measured.bench.specs[i] for i in _leaders(measured)]
    for ax, cell in zip(axes, cells, strict=False):
        for i, spec in enumerate(leaders):
            record = measured.record(cell, spec)
            mean = np.maximum(record.curve("regret").mean(0), SMALLEST_REGRET)
            ax.plot(record.episodes, mean, lw=1.4, ms=4, markevery=0.2, label=spec.text, **_style(i))
        ax.set(title=cell.label, yscale="log", xlabel="Episode")
    for ax in axes[len(cells) :]:
        ax.set_visible(False)
    axes[0].set_ylabel("Mean regret so far")
    legend_below(fig, columns=3, size=8)
    title = f"{measured.bench.suite.id}: mean regret of the leading policies and of landmarks"
    fig.suptitle(title, fontweight="bold")
    return fig


def _trade_off(measured: Measured) -> Figure:
    """Regret against violations, averaged over the cells; the lower left corner is where one wants to be."""
    fig = Figure(figsize=(9.5, 6.2), layout="constrained")
    ax = fig.subplots()
    specs, cells = measured.bench.specs, measured.bench.cells
    # There are more policies than symbols that an eye can tell apart: the symbol is what they know, the number who.
    known = [learner_in_words(spec.parts()["learner"]) for spec in specs]
    learners = list(dict.fromkeys(known))
    looks = [_style(learners.index(learner)) for learner in known]
    points = []
    for i, spec in enumerate(specs):
        rates = [1e4 * measured.record(cell, spec).rate("violations.safe.realised") for cell in cells]
        points.append((measured.over_cells(spec), max(float(np.mean(rates)), FEWEST)))
        ax.plot(*points[i], ls="", ms=6, alpha=0.8, label=f"{i + 1}  {spec.text}", **looks[i])
    centred: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center", "fontsize": 7}
    for i, aside in enumerate(_beside(np.log(points))):
        ax.annotate(str(i + 1), points[i], aside, color=looks[i]["color"], **centred)
    front = sorted(p for p in points if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points))
    ax.step(*np.transpose(front), where="post", color="grey", lw=1, ls="--", zorder=0)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="Mean regret, geometric mean over the cells",
        ylabel=f"Violations per 10,000 decisions ({FEWEST:g}: none)",
        title=f"{measured.bench.suite.id}: regret against violations; dashed: the Pareto front",
    )
    symbols = [ax.plot([], [], ls="", **_style(i))[0] for i in range(len(learners))]
    ax.legend(symbols, learners, loc="best", fontsize=8, title="Feedback and noise", title_fontsize=8)
    fig.legend(*ax.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=7)
    return fig


def _beside(points: FloatArray) -> list[tuple[float, float]]:
    """Where to write beside each point, in points of type: the place farthest from all points and what is written."""
    span = np.ptp(points, axis=0)
    span[span == 0] = 1.0
    at = (points - points.min(axis=0)) / span * PANEL
    taken = list(at)
    out = []
    for own in at:
        places = [own + FAR * np.array([np.cos(angle), np.sin(angle)]) for angle in np.arange(1, 13) * np.pi / 6]
        room = [min(float(np.hypot(*(place - other))) for other in taken) for place in places]
        # Enough room is enough: then the first place will do, which is to the upper right.
        best = places[int(np.argmax(np.minimum(room, 0.99 * FAR)))]
        taken.append(best)
        out.append((float(best[0] - own[0]), float(best[1] - own[1])))
    return out


def _growth(measured: Measured) -> Figure:
    varied = by_axis(measured.bench.cells)
    fig = Figure(figsize=(3.3 * len(varied), 3.6), layout="constrained")
    axes = fig.subplots(1, len(varied), squeeze=False).ravel()
    for ax, (name, cells) in zip(axes, varied.items(), strict=True):
        values = [cell.value for cell in cells]
        for i, spec in enumerate(measured.bench.specs):
            y = [measured.mean_regret(cell, spec) for cell in cells]
            ax.plot(values, y, lw=1.3, ms=5, label=spec.text, **_style(i))
        ax.set(xscale="log", yscale="log", xlabel=name)
        ax.set_xticks(values, [f"{value:g}" for value in values])
        ax.set_xticks([], minor=True)
    axes[0].set_ylabel("Mean regret")
    legend_below(fig, columns=5, size=8)
    fig.suptitle("Growth of regret, one size varied at a time", fontweight="bold")
    return fig
