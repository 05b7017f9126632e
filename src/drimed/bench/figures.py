"""Curves, the trade-off between regret and violations, and growth: what a reader looks at first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from drimed.bench.numbers import Measured
from drimed.linear.arrays import FloatArray
from drimed.report.figure import COLOURS, MARKERS, Figure, save_all, style

SHOWN_CURVES = 8
FEWEST = 0.02  # violations per 10,000 that a logarithmic axis still shows: none at all is drawn there

PANEL = np.array([360.0, 330.0])  # of the trade-off, in points of type,
FAR = 9.0  # and how far from its point a number is written


def draw_all(measured: Measured, out: Path) -> dict[str, Path]:
    """Every figure as PNG and PDF: name -> the PNG."""
    with style():
        figures = {"curves": _curves(measured), "trade_off": _trade_off(measured)}
        if any(cell.axis for cell in measured.cells):
            figures["growth"] = _growth(measured)
        return save_all(figures, out)


def _style(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}


def _leaders(measured: Measured) -> list[int]:
    """The policies worth a curve: the best by the sum of log regrets, and the landmarks oful, dri_med and published."""
    score = [
        sum(np.log(max(float(measured.regret(c, s).mean()), 0.01)) for c in measured.cells) for s in measured.specs
    ]
    order = list(np.argsort(score)[:SHOWN_CURVES])
    named = [i for i, s in enumerate(measured.specs) if s.name in ("published_dri_med", "oful", "dri_med")]
    return sorted({int(i) for i in [*order, *named]})


def _curves(measured: Measured) -> Figure:
    cells = measured.cells[:12]
    across = min(4, len(cells))
    down = -(-len(cells) // across)
    fig = Figure(figsize=(3.1 * across, 2.5 * down + 0.9), layout="constrained")
    axes = np.atleast_1d(fig.subplots(down, across, squeeze=False)).ravel()
    for ax, cell in zip(axes, cells, strict=False):
        for rank, i in enumerate(_leaders(measured)):
            s = measured.runs[cell.label, measured.specs[i].text]
            mean = s.curves["regret"].mean(0)
            ax.plot(
                s.episodes,
                np.maximum(mean, 0.01),
                lw=1.4,
                ms=4,
                markevery=0.2,
                label=measured.specs[i].text,
                **_style(rank),
            )
        ax.set(title=cell.label, yscale="log", xlabel="Episode")
    for ax in axes[len(cells) :]:
        ax.set_visible(False)
    axes[0].set_ylabel("Mean regret so far")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    fig.suptitle(f"{measured.suite.id}: mean regret of the leading policies, dri_med and landmarks", fontweight="bold")
    return fig


def _trade_off(measured: Measured) -> Figure:
    """Regret against violations, averaged over the cells; the lower left corner is where one wants to be."""
    fig = Figure(figsize=(9.5, 6.2), layout="constrained")
    ax = fig.subplots()
    learners = list(dict.fromkeys(spec.parts()["learner"] for spec in measured.specs))
    points, looks = [], []
    for i, spec in enumerate(measured.specs):
        regret = np.exp(np.mean([np.log(max(float(measured.regret(c, spec).mean()), 0.01)) for c in measured.cells]))
        rates = [1e4 * measured.runs[c.label, spec.text].rate("violations.safe.realised") for c in measured.cells]
        points.append((float(regret), max(float(np.mean(rates)), FEWEST)))
        # There are more policies than symbols that an eye can tell apart: what they know is a symbol, who they are a
        # number.
        look = _style(learners.index(spec.parts()["learner"]))
        ax.plot(*points[-1], ls="", ms=6, alpha=0.8, label=f"{i + 1}  {spec.text}", **look)
        looks.append(look["color"])
    for i, aside in enumerate(_beside(np.log(points))):
        ax.annotate(
            str(i + 1),
            points[i],
            aside,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=7,
            color=looks[i],
        )
    front = sorted(p for p in points if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points))
    ax.step([p[0] for p in front], [p[1] for p in front], where="post", color="grey", lw=1, ls="--", zorder=0)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="Mean regret, geometric mean over the cells",
        ylabel=f"Violations per 10,000 decisions ({FEWEST:g}: none)",
        title=f"{measured.suite.id}: regret against violations; dashed, what nothing else beats in both",
    )
    known = [ax.plot([], [], ls="", **_style(i))[0] for i in range(len(learners))]
    ax.legend(known, learners, loc="best", fontsize=8, title="What is known", title_fontsize=8)
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
    axes_names = list(dict.fromkeys(cell.axis for cell in measured.cells if cell.axis))
    fig = Figure(figsize=(3.3 * len(axes_names), 3.6), layout="constrained")
    axes = np.atleast_1d(fig.subplots(1, len(axes_names), squeeze=False)).ravel()
    for ax, name in zip(axes, axes_names, strict=True):
        cells = [cell for cell in measured.cells if cell.axis == name]
        for i, spec in enumerate(measured.specs):
            y = [max(float(measured.regret(cell, spec).mean()), 0.01) for cell in cells]
            ax.plot([cell.value for cell in cells], y, lw=1.3, ms=5, label=spec.text, **_style(i))
        ax.set(xscale="log", yscale="log", xlabel=name)
        ax.set_xticks([cell.value for cell in cells], [f"{cell.value:g}" for cell in cells])
        ax.set_xticks([], minor=True)
    axes[0].set_ylabel("Mean regret")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    fig.suptitle("Growth of regret, one size varied at a time", fontweight="bold")
    return fig
