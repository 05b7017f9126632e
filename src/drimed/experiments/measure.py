"""Measure a plan, then write what was found: results.json, the figures, and one page that shows both.

A page is one file with its pictures inside, and loads nothing from elsewhere.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from drimed.errors import MissingExtraError
from drimed.experiments import comparison, paper
from drimed.experiments.claims import judge_all
from drimed.experiments.figures import Figure, bench_figures, paper_figures, style
from drimed.experiments.paper import Reproduction
from drimed.experiments.run import Run
from drimed.experiments.simulate import RunRecord
from drimed.experiments.suites import Benchmark
from drimed.experiments.sweep import Cluster, OnDone, code_digest, sweep
from drimed.formatting import short

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
except ImportError as error:
    raise MissingExtraError("jinja2", "sim") from error

REFERENCES = ("dri_med", "field_med", "people_med")  # what others are compared with, the first that takes part


def bench(
    benchmark: Benchmark,
    out: Path,
    *,
    jobs: int = -1,
    cluster: Cluster | None = None,
    on_done: OnDone | None = None,
) -> dict[str, Any]:
    """Measure a benchmark, write it to `out` and return the results. What is stored there is not run again."""
    start = time.perf_counter()
    plan = benchmark.plan()
    records = sweep(plan, out / "runs", jobs=jobs, cluster=cluster, on_done=on_done)
    measured = comparison.Measured(benchmark, records)
    ours = [s for s in benchmark.specs if s.name in REFERENCES]
    reference = ours[0] if ours else benchmark.specs[0]
    results: dict[str, Any] = {
        "suite": benchmark.suite.id,
        "about": benchmark.suite.about,
        "rows": comparison.rows(measured),
        "differences": comparison.differences(measured, reference),
        "ratios": comparison.ratios(measured),
        "growth": comparison.growth(measured),
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
    cells = [cell.label for cell in benchmark.cells]
    staged = any("after" in row for row in results["rows"])
    shown = {"cells": cells, "grid": grid, "in_words": comparison.learner_in_words, "staged": staged}
    shown["ratio_to_the_best"] = comparison.RATIO_TO_THE_BEST
    _write(out, results, "bench.html", lambda: bench_figures(measured), **shown)
    return results


def reproduce(
    reproduction: Reproduction, out: Path, *, jobs: int = -1, on_done: OnDone | None = None
) -> dict[str, Any]:
    """Measure the paper's experiments, write them to `out` and return the results. What is stored is not run again."""
    start = time.perf_counter()
    plan = reproduction.plan()
    found = sweep(plan, out / "runs", jobs=jobs, on_done=on_done)
    records = paper.by_part(found)
    results = paper.results(records)
    results["claims"] = judge_all(records)
    results["meta"] = {
        "reading": reproduction.reading,
        "seeds": reproduction.seeds,
        "episodes": reproduction.episodes,
        "parts": ", ".join(reproduction.parts),
        "policies": ", ".join(f"{c.key} = {c.label}" for c in paper.MAIN),
        **_effort(plan, found, start),
    }
    _write(out, results, "paper.html", lambda: paper_figures(records), labels=paper.LABELS, drifts=paper.DRIFTS)
    return results


def _effort(plan: dict[Any, Run], records: dict[Any, RunRecord], start: float) -> dict[str, Any]:
    """What it took, and what a reader needs to measure the same again: the last table of every page."""
    different = {run.key(): records[name] for name, run in plan.items()}.values()
    return {
        "simulated decisions": sum(len(r.allocation) * r.decisions for r in different),
        "processor seconds": round(sum(r.seconds for r in different), 1),
        "drimed": version("drimed"),
        "code": code_digest(),
        "seconds of this run": round(time.perf_counter() - start, 1),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _write(
    out: Path, results: dict[str, Any], template: str, figures: Callable[[], dict[str, Figure]], **context: Any
) -> None:
    with style():
        pictures = {name: _saved(figure, out / name) for name, figure in figures().items()}
    (out / "results.json").write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    loader = PackageLoader("drimed.experiments", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["short"] = short
    page = environment.get_template(template).render(results=results, pictures=pictures, **context)
    (out / "index.html").write_text(page, encoding="utf-8")


def _saved(figure: Figure, path: Path) -> str:
    """Write PNG and PDF, without dates inside: the same numbers give the same files. Returns the PNG as a data URL."""
    for kind, meta in {"png": {"Software": None}, "pdf": {"CreationDate": None}}.items():
        figure.savefig(f"{path}.{kind}", dpi=130, bbox_inches="tight", metadata=meta)
    return "data:image/png;base64," + base64.b64encode(Path(f"{path}.png").read_bytes()).decode()
