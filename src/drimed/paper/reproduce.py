"""`drimed reproduce`: measure, draw, judge, write."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drimed.paper.claims import judge_all
from drimed.paper.experiments import Plan
from drimed.paper.figures import draw_all
from drimed.paper.numbers import Measured, results
from drimed.paper.page import write_page
from drimed.report.provenance import provenance
from drimed.simulation.sweep import sweep
from drimed.simulation.task import Task, code_digest


def reproduce(
    plan: Plan, out: Path, *, jobs: int = -1, on_done: Callable[[Task, bool], None] | None = None
) -> dict[str, Any]:
    """Run what is not stored in `out` yet, write figures, results.json and index.html there, return the results."""
    start = time.perf_counter()
    tasks = plan.tasks()
    everything = [task for part in tasks.values() for task in part.values()]
    found = sweep(everything, out / "runs", jobs=jobs, on_done=on_done)
    measured = Measured(
        plan, {part: {key: found[task.key()] for key, task in named.items()} for part, named in tasks.items()}
    )
    figures = draw_all(measured, out)
    told = results(measured)
    told["claims"] = judge_all(measured)
    told["meta"] = {
        "reading": plan.reading,
        "seeds": plan.seeds,
        "episodes": plan.episodes,
        "parts": ", ".join(plan.parts),
        "policies": ", ".join(f"{c.key} = {c.label}" for c in [*plan.baselines, *plan.published, plan.own_weights]),
        "simulated decisions": sum(len(s.allocation) * s.decisions for s in found.values()),
        "processor seconds": round(sum(s.seconds for s in found.values()), 1),
        **provenance(code_digest(), time.perf_counter() - start),
    }
    (out / "results.json").write_text(json.dumps(told, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    write_page(told, plan, figures, out / "index.html")
    return told


def count_tasks(plan: Plan) -> int:
    """How many different runs a plan consists of."""
    return len({task.key() for part in plan.tasks().values() for task in part.values()})
