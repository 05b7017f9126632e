"""Results of benchmarks and of the reproduction: results.json, figures, and one page that shows both.

A page is one file with its pictures inside, and loads nothing from elsewhere. Colours are Okabe and Ito's, told apart
by every common form of colour vision; line styles and markers repeat what they tell.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from drimed.errors import MissingExtraError
from drimed.formatting import short
from drimed.simulation import reproduction as paper
from drimed.simulation.benchmark import RATIO_TO_THE_BEST, SMALLEST_REGRET, Benchmark, Measured, learner_text
from drimed.simulation.instances import authors_instance, quantile_control
from drimed.simulation.reproduction import DRI_IMED, DRI_MED, DRIFTS, PUBLISHED, Contender, Records, Reproduction
from drimed.simulation.runner import Run, RunRecord
from drimed.simulation.sweep import code_digest, sweep

try:
    import matplotlib as mpl
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtraError(str(error.name), "sim") from error

REFERENCES = ("dri_med", "dri_field", "dri_people")  # others are compared with the first of these that takes part
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK = COLOURS
MARKERS = "osv^DXP*<>dh8p"
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 9,
    "axes.titlesize": 10,
    "pdf.fonttype": 42,
}
# policy: (colour, line style, marker)
MARKS = {
    "oful": (BLUE, "-", "o"),
    "lin_ts": (PINK, "-", "v"),
    "lin_med": (YELLOW, "-", "s"),
    "lin_imed": (SKY, "-", "^"),
    "lin_med_own_weights": (YELLOW, ":", "s"),
    DRI_MED: (ORANGE, "--", "d"),
    DRI_IMED: (GREEN, "--", "X"),
}
SHOWN_CURVES = 8
SHOWN_CELLS = 12
LANDMARKS = ("published_dri_med", "oful", "dri_med")
FEWEST = 0.02  # violations per 10,000 that a logarithmic axis still shows: none at all is drawn there


def bench(benchmark: Benchmark, out: Path, **how: Any) -> dict[str, Any]:
    """Measure a benchmark, write it to `out` and return the results; `how` is that of `sweep`."""
    start, plan = time.perf_counter(), benchmark.plan()
    records = sweep(plan, out / "runs", **how)
    measured = Measured(benchmark, records)
    reference = next((s for s in benchmark.specs if s.name in REFERENCES), benchmark.specs[0])
    results: dict[str, Any] = {
        "suite": benchmark.suite.id,
        "about": benchmark.suite.about,
        "rows": [measured.row(cell, spec) for cell, spec in product(benchmark.cells, benchmark.specs)],
        "differences": measured.differences(reference),
        "ratios": measured.ratios(),
        "growth": measured.growth(),
        "meta": {
            "instances": benchmark.instances,
            "instance seed": benchmark.instance_seed,
            "episodes": benchmark.episodes,
            **benchmark.changes,
            "tolerance": f"{benchmark.tolerance.relative:g} |control| + {benchmark.tolerance.absolute:g}",
            **_effort(plan, records, start),
        },
    }
    grid: dict[str, dict[str, dict[str, Any]]] = {}  # learner -> policy -> cell -> row
    for row in sorted(results["rows"], key=lambda row: (row["learner"], row["rule"], row["guard"])):
        grid.setdefault(row["learner"], {}).setdefault(row["policy"], {})[row["cell"]] = row
    with mpl.rc_context(STYLE):
        figures = {"curves": _curves(measured), "trade_off": _trade_off(measured)}
        _write(
            out, results, "bench.html", figures, cells=[cell.label for cell in benchmark.cells], grid=grid,
            learner_text=learner_text, by_season=any("after" in row for row in results["rows"]),
            ratio_to_the_best=RATIO_TO_THE_BEST,
        )  # fmt: skip
    return results


def reproduce(reproduction: Reproduction, out: Path, **how: Any) -> dict[str, Any]:
    """Measure the paper's experiments, write them to `out` and return the results; `how` is that of `sweep`."""
    start, plan = time.perf_counter(), reproduction.plan()
    runs = sweep(plan, out / "runs", **how)
    records = paper.by_part(runs)
    results = paper.results(records)
    results["meta"] = {
        "reading": reproduction.reading,
        "seeds": reproduction.seeds,
        "episodes": reproduction.episodes,
        "parts": ", ".join(reproduction.parts),
        "policies": ", ".join(f"{c.key} = {c.label}" for c in paper.MAIN),
        **_effort(plan, runs, start),
    }
    with mpl.rc_context(STYLE):
        _write(out, results, "paper.html", _paper_figures(records), labels=paper.LABELS, drifts=DRIFTS)
    return results


def _effort(plan: dict[Any, Run], records: dict[Any, RunRecord], start: float) -> dict[str, Any]:
    """Time, versions and machine: the last table of every page."""
    different = {run.key(): records[name] for name, run in plan.items()}.values()
    return {
        "simulated decisions": sum(len(r.allocation) * r.decisions for r in different),
        "processor seconds": round(float(sum(r.seconds.sum() for r in different)), 1),
        "drimed": version("drimed"),
        "code": code_digest(),
        "seconds of this run": round(time.perf_counter() - start, 1),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _write(out: Path, results: dict[str, Any], template: str, figures: dict[str, Figure], **context: Any) -> None:
    """Numbers, figures as PNG and PDF without dates inside (the same numbers give the same files), and the page."""
    (out / "results.json").write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    pictures = {}
    for name, figure in figures.items():
        for kind, meta in {"png": {"Software": None}, "pdf": {"CreationDate": None}}.items():
            figure.savefig(f"{out / name}.{kind}", dpi=130, bbox_inches="tight", metadata=meta)
        data = Path(f"{out / name}.png").read_bytes()
        pictures[name] = "data:image/png;base64," + base64.b64encode(data).decode()
    loader = PackageLoader("drimed.simulation", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["short"] = short
    page = environment.get_template(template).render(results=results, pictures=pictures, **context)
    (out / "index.html").write_text(page, encoding="utf-8")


def _panels(title: str, down: int, across: int, size: tuple[float, float], **shared: Any) -> tuple[Figure, list[Any]]:
    """A figure and its panels."""
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontweight="bold")
    return figure, figure.subplots(down, across, squeeze=False, **shared).ravel().tolist()


def _legend_below(figure: Figure, columns: int, size: int = 9) -> None:
    """One legend for all panels, from what is drawn in the first."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=size)


def _style(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "ms": 4}


def _curves(measured: Measured) -> Figure:
    """Regret over time, of the policies of least regret over all cells and of landmarks."""
    cells, specs = measured.bench.cells[:SHOWN_CELLS], measured.bench.specs
    order = np.argsort([measured.over_cells(spec) for spec in specs])[:SHOWN_CURVES]
    leaders = sorted({*order.tolist(), *(i for i, spec in enumerate(specs) if spec.name in LANDMARKS)})
    across = min(4, len(cells))
    down = -(-len(cells) // across)
    title = f"{measured.bench.suite.id}: mean regret of the leading policies and of landmarks"
    fig, axes = _panels(title, down, across, (3.1 * across, 2.5 * down + 0.9))
    for ax, cell in zip(axes, cells, strict=False):
        for i, spec in enumerate(specs[at] for at in leaders):
            record = measured.record(cell, spec)
            mean = np.maximum(record.curve("regret").mean(0), SMALLEST_REGRET)
            ax.plot(record.episodes, mean, lw=1.4, markevery=0.2, label=spec.text, **_style(i))
        ax.set(title=cell.label, yscale="log", xlabel="Episode")
    for ax in axes[len(cells) :]:
        ax.set_visible(False)
    axes[0].set_ylabel("Mean regret so far")
    _legend_below(fig, columns=3, size=8)
    return fig


def _trade_off(measured: Measured) -> Figure:
    """Regret against violations, averaged over the cells; the lower left corner is where one wants to be."""
    title = f"{measured.bench.suite.id}: regret against violations; dashed: the Pareto front"
    fig, (ax,) = _panels(title, 1, 1, (9.5, 6.2))
    specs, cells = measured.bench.specs, measured.bench.cells
    # More policies than distinct symbols: the symbol is the learner, the number the policy.
    information = [learner_text(spec.parts()["learner"]) for spec in specs]
    learners = list(dict.fromkeys(information))
    points = []
    for i, spec in enumerate(specs):
        look = _style(learners.index(information[i]))
        rates = [1e4 * measured.record(cell, spec).rate("violations.safe.realised") for cell in cells]
        points.append((measured.over_cells(spec), max(float(np.mean(rates)), FEWEST)))
        ax.plot(*points[i], ls="", alpha=0.8, label=f"{i + 1}  {spec.text}", **look)
        ax.annotate(str(i + 1), points[i], (4, 4), textcoords="offset points", color=look["color"], fontsize=7)
    front = sorted(p for p in points if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points))
    ax.step(*np.transpose(front), where="post", color="grey", lw=1, ls="--", zorder=0)
    ax.set(xscale="log", yscale="log", xlabel="Mean regret, geometric mean over the cells")
    ax.set_ylabel(f"Violations per 10,000 decisions ({FEWEST:g}: none)")
    symbols = [ax.plot([], [], ls="", **_style(i))[0] for i in range(len(learners))]
    ax.legend(symbols, learners, loc="best", fontsize=8, title="Feedback and noise", title_fontsize=8)
    fig.legend(*ax.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=7)
    return fig


def _paper_figures(records: Records) -> dict[str, Figure]:
    """Every figure that these records can show, by name."""
    figures: dict[str, Figure] = {}
    if records["main"]:
        figures |= {f"results_{drift}": _results(records["main"], drift) for drift in DRIFTS}
        title = "Final true regret on the authors' instance: median and 5 to 95 % band"
        figures["final_regret"] = _final(records["main"], paper.MAIN, title, height=3.4)
    if records["ablations"]:
        figures["ablation"] = _ablation(records["ablations"])
    if records["allocation"]:
        figures["arm_allocation"] = _allocation(records["allocation"])
    if records["random"]:
        n = len(records["random"][DRIFTS[0], "oful"].allocation)
        title = f"Final true regret on {n} random instances: mean (bar), median, 5 to 95 % band"
        figures["random_instances"] = _final(records["random"], paper.ON_RANDOM, title, height=4.4)
    return figures


def _results(records: dict[Any, RunRecord], drift: str) -> Figure:
    """Regret and violation rates over the episodes, with 5 to 95 % bands: the paper's Figure for one drift."""
    title = "No drift" if drift == "none" else f"{drift.capitalize()} drift"
    n = len(records[drift, "oful"].allocation)
    fig, axes = _panels(f"{title}: median and 5 to 95 % band over {n} seeds", 1, 3, (11, 3.6))
    panels = {
        "regret_as_published": "Cumulative regret (authors' metric)",
        "violations.published.estimated": "Estimated violation rate",
        "violations.published.realised": "True violation rate",
    }
    for ax, (metric, title) in zip(axes, panels.items(), strict=True):
        for c in (*paper.BASELINES, *PUBLISHED):
            record, (colour, line, marker) = records[drift, c.key], MARKS[c.key]
            values = record.curve(metric) if metric.startswith("regret") else record.windows(metric)
            low, middle, high = np.quantile(values, [0.05, 0.5, 0.95], axis=0)
            ax.plot(record.episodes, middle, line, color=colour, marker=marker, markevery=0.12, ms=4, label=c.label)
            ax.fill_between(record.episodes, low, high, color=colour, alpha=0.13, lw=0)
        ax.set(title=title, xlabel="Episode", ylim=(0, None) if metric.startswith("regret") else (-0.02, 1.02))
    _legend_below(fig, columns=6)
    return fig


def _final(records: dict[Any, RunRecord], contenders: Sequence[Contender], title: str, height: float) -> Figure:
    """Final true regret of every policy for each drift."""
    fig, axes = _panels(title, 1, 4, (11, height), sharey=True, sharex=True)
    for ax, drift in zip(axes, DRIFTS, strict=True):
        for y, c in enumerate(contenders):
            colour, _, marker = MARKS.get(c.key) or MARKS.get(c.policy.partition(":")[0]) or (BLACK, "-", "D")
            values = records[drift, c.key].total("regret")
            # A logarithmic axis has no room for a regret of zero.
            low, middle, high, mean = np.maximum([*np.quantile(values, [0.05, 0.5, 0.95]), values.mean()], 0.05)
            ax.plot([low, high], [y, y], color=colour, lw=3, alpha=0.35, solid_capstyle="round")
            ax.plot(middle, y, marker=marker, color=colour, ms=7)
            ax.plot(mean, y, marker="|", color="black", ms=9)
        ax.set(title=drift, xscale="log", xlabel="True regret")
    axes[0].set_yticks(range(len(contenders)), [c.label for c in contenders])
    axes[0].invert_yaxis()
    return fig


def _ablation(records: dict[Any, RunRecord]) -> Figure:
    """Final regret against the control's quantile and the tolerance: the paper's ablation figure."""
    n = len(records["quantile", paper.ABLATIONS["quantile"][0], DRI_MED].allocation)
    fig, axes = _panels(f"Ablations, abrupt drift, {n} seeds", 1, 2, (9.5, 3.4))
    labels = ("Quantile of the control", "Tolerance")
    for ax, (kind, values), label in zip(axes, paper.ABLATIONS.items(), labels, strict=True):
        for offset, c in zip((-0.17, 0.17), PUBLISHED, strict=True):
            data, colour = [records[kind, v, c.key].total("regret_as_published") for v in values], MARKS[c.key][0]
            ax.boxplot(
                data, positions=np.arange(len(values)) + offset, widths=0.28, patch_artist=True,
                boxprops={"facecolor": colour, "alpha": 0.6, "edgecolor": colour}, medianprops={"color": "black"},
                whiskerprops={"color": colour}, capprops={"color": colour},
                flierprops={"marker": ".", "markersize": 3, "markerfacecolor": colour, "markeredgecolor": colour},
            )  # fmt: skip
            ax.plot([], [], color=colour, lw=7, alpha=0.6, label=c.label)
        ax.set_xticks(range(len(values)), [f"{v:g}" for v in values])
        ax.set(xlabel=label, ylabel="Final regret (authors' metric)", ylim=(0, None))
    axes[0].legend(frameon=False)
    return fig


def _allocation(records: dict[Any, RunRecord]) -> Figure:
    """Share of pulls per user and arm: the paper's allocation figure, arms ranked by actual preference."""
    instance = authors_instance()
    means = instance.means(instance.preferences)
    control = quantile_control(instance, judged_by="preference_means")
    bars = [(paper.LABELS[key], record.allocation.mean(0), MARKS[key]) for key, record in records.items()]
    title = "Share of pulls per user, abrupt drift; ★ the user's best arm, mean reward below"
    fig, axes = _panels(title, 5, 2, (9, 10), sharey=True)
    at = np.arange(means.shape[1])
    for h, ax in enumerate(axes[: len(means)]):
        for i, (label, share, (colour, line, _)) in enumerate(bars):
            hatch = "///" if line == ":" else None
            ax.bar(at + 0.2 * (i - 1.5), share[h], 0.19, color=colour, alpha=0.75, hatch=hatch, label=label)
        ax.bar(at + 0.3, control[h], 0.19, color="#555555", alpha=0.75, label="control")
        stars = np.where(at == means[h].argmax(), "★ ", "")
        ax.set_xticks(at, [f"{stars[a]}arm {a + 1}\n{means[h, a]:.2f}" for a in at], fontsize=7)
        ax.set_title(f"User {h + 1}", fontsize=9)
        ax.set_ylim(0, 1.05)
    _legend_below(fig, columns=4)
    return fig
