"""The paper's figures, re-measured. Line styles and markers repeat what colours tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drimed.environments.instance import authors_instance, quantile_control
from drimed.experiments.page import BLACK, BLUE, GREEN, ORANGE, PINK, SKY, YELLOW, Figure, legend_below
from drimed.experiments.paper import (
    BASELINES,
    DRI_IMED,
    DRI_MED,
    DRIFTS,
    LABELS,
    MAIN,
    ON_RANDOM,
    PUBLISHED,
    QUANTILES,
    TOLERANCES,
    Contender,
    Records,
)
from drimed.experiments.simulate import RunRecord

# key: (colour, line style, marker)
STYLE = {
    "oful": (BLUE, "-", "o"),
    "lin_ts": (PINK, "-", "v"),
    "lin_med": (YELLOW, "-", "s"),
    "lin_imed": (SKY, "-", "^"),
    "lin_med_own_weights": (YELLOW, ":", "s"),
    DRI_MED: (ORANGE, "--", "d"),
    DRI_IMED: (GREEN, "--", "X"),
}


def paper_figures(records: Records) -> dict[str, Figure]:
    """Every figure that these records can show, by name."""
    figures: dict[str, Figure] = {}
    if records["main"]:
        figures |= {f"results_{drift}": _results(records["main"], drift) for drift in DRIFTS}
        title = "Final true regret on the authors' instance: median and 5 to 95 % band"
        figures["final_regret"] = _final(records["main"], MAIN, title, height=3.4)
    if records["ablations"]:
        figures["ablation"] = _ablation(records["ablations"])
    if records["allocation"]:
        figures["arm_allocation"] = _allocation(records["allocation"])
    if records["random"]:
        n = len(records["random"][DRIFTS[0], "oful"].allocation)
        title = f"Final true regret on {n} random instances: mean (bar), median, 5 to 95 % band"
        figures["random_instances"] = _final(records["random"], ON_RANDOM, title, height=4.4)
    return figures


def _results(records: dict[Any, RunRecord], drift: str) -> Figure:
    """Regret and violation rates over the episodes, with 5 to 95 % bands: the paper's Figure for one drift."""
    fig = Figure(figsize=(11, 3.6), layout="constrained")
    axes = fig.subplots(1, 3)
    panels = [
        ("regret_as_published", "Cumulative regret (authors' metric)"),
        ("violations.published.estimated", "Estimated violation rate"),
        ("violations.published.realised", "True violation rate"),
    ]
    for c in (*BASELINES, *PUBLISHED):
        record = records[drift, c.key]
        colour, line, marker = STYLE[c.key]
        for ax, (metric, title) in zip(axes, panels, strict=True):
            values = record.curve(metric) if metric.startswith("regret") else record.windows(metric)
            low, middle, high = np.quantile(values, [0.05, 0.5, 0.95], axis=0)
            ax.plot(record.episodes, middle, line, color=colour, marker=marker, markevery=0.12, ms=4, label=c.label)
            ax.fill_between(record.episodes, low, high, color=colour, alpha=0.13, lw=0)
            ax.set(title=title, xlabel="Episode")
    axes[0].set_ylim(bottom=0)
    for ax in axes[1:]:
        ax.set_ylim(-0.02, 1.02)
    n = len(records[drift, "oful"].allocation)
    title = "No drift" if drift == "none" else f"{drift.capitalize()} drift"
    fig.suptitle(f"{title}: median and 5 to 95 % band over {n} seeds", fontweight="bold")
    legend_below(fig, columns=6)
    return fig


def _final(records: dict[Any, RunRecord], contenders: Sequence[Contender], title: str, height: float) -> Figure:
    """Final true regret of every policy for each drift."""
    fig = Figure(figsize=(11, height), layout="constrained")
    axes = fig.subplots(1, 4, sharey=True, sharex=True)
    for ax, drift in zip(axes, DRIFTS, strict=True):
        for i, c in enumerate(contenders):
            look = STYLE.get(c.key) or STYLE.get(c.policy.partition(":")[0]) or (BLACK, "-", "D")
            _dot(ax, i, records[drift, c.key].total("regret"), look)
        ax.set(title=drift, xscale="log", xlabel="True regret")
    axes[0].set_yticks(range(len(contenders)), [c.label for c in contenders])
    axes[0].invert_yaxis()
    fig.suptitle(title, fontweight="bold")
    return fig


def _dot(ax: Any, y: float, values: Any, style: tuple[str, str, str]) -> None:
    colour, _, marker = style
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    floor = 0.05  # a logarithmic axis has no room for a regret of zero
    ax.plot([max(low, floor), max(high, floor)], [y, y], color=colour, lw=3, alpha=0.35, solid_capstyle="round")
    ax.plot(max(middle, floor), y, marker=marker, color=colour, ms=7)
    ax.plot(max(values.mean(), floor), y, marker="|", color="black", ms=9)


def _ablation(records: dict[Any, RunRecord]) -> Figure:
    """Final regret against the control's quantile and the tolerance: the paper's ablation figure."""
    fig = Figure(figsize=(9.5, 3.4), layout="constrained")
    axes = fig.subplots(1, 2)
    panels = [("quantile", QUANTILES, "Quantile of the control"), ("tolerance", TOLERANCES, "Tolerance")]
    for ax, (kind, values, label) in zip(axes, panels, strict=True):
        for offset, c in zip((-0.17, 0.17), PUBLISHED, strict=True):
            data = [records[kind, v, c.key].total("regret_as_published") for v in values]
            colour = STYLE[c.key][0]
            ax.boxplot(
                data,
                positions=np.arange(len(values)) + offset,
                widths=0.28,
                patch_artist=True,
                boxprops={"facecolor": colour, "alpha": 0.6, "edgecolor": colour},
                medianprops={"color": "black"},
                whiskerprops={"color": colour},
                capprops={"color": colour},
                flierprops={"marker": ".", "markersize": 3, "markerfacecolor": colour, "markeredgecolor": colour},
            )
            ax.plot([], [], color=colour, lw=7, alpha=0.6, label=c.label)
        ax.set_xticks(range(len(values)), [f"{v:g}" for v in values])
        ax.set(xlabel=label, ylabel="Final regret (authors' metric)", ylim=(0, None))
    axes[0].legend(frameon=False)
    n = len(records["quantile", QUANTILES[0], DRI_MED].allocation)
    fig.suptitle(f"Ablations, abrupt drift, {n} seeds", fontweight="bold")
    return fig


def _allocation(records: dict[Any, RunRecord]) -> Figure:
    """Share of pulls per user and arm: the paper's allocation figure, arms ranked by actual preference."""
    instance = authors_instance()
    means = instance.means(instance.preferences)
    control = quantile_control(instance, judged_by="preference_means")
    bars = [(LABELS[key], record.allocation.mean(0), STYLE[key]) for key, record in records.items()]
    fig = Figure(figsize=(9, 10), layout="constrained")
    axes = fig.subplots(5, 2, sharey=True).ravel()
    K = means.shape[1]
    for h, ax in enumerate(axes[: len(means)]):
        for i, (label, share, (colour, line, _)) in enumerate(bars):
            hatch = "///" if line == ":" else None
            ax.bar(np.arange(K) + 0.2 * (i - 1.5), share[h], 0.19, color=colour, alpha=0.75, hatch=hatch, label=label)
        ax.bar(np.arange(K) + 0.3, control[h], 0.19, color="#555555", alpha=0.75, label="control")
        best = means[h].argmax()
        ticks = [f"{'★ ' if a == best else ''}arm {a + 1}\n{means[h, a]:.2f}" for a in range(K)]
        ax.set_xticks(range(K), ticks, fontsize=7)
        ax.set_title(f"User {h + 1}", fontsize=9)
        ax.set_ylim(0, 1.05)
    legend_below(fig, columns=4)
    fig.suptitle("Share of pulls per user, abrupt drift; ★ the user's best arm, mean reward below", fontweight="bold")
    return fig
