"""`drimed bench`: measure a suite, compare, write."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drimed.bench.abreast import Abreast, abreast
from drimed.bench.figures import draw_all
from drimed.bench.numbers import Measured, differences, growth, ratios, rows
from drimed.bench.page import write_page
from drimed.bench.suites import Cell, Suite
from drimed.environments.drift import DRIFTS
from drimed.errors import ConfigError, UnknownNameError
from drimed.guards.margin import Tolerance
from drimed.policies.spec import PolicySpec
from drimed.report.provenance import provenance
from drimed.simulation.cluster import Cluster
from drimed.simulation.sweep import sweep
from drimed.simulation.task import Summary, Task, code_digest

FEWEST_PER_PROCESS = 4  # tasks: fewer and larger ones would leave some processes waiting for the last
CLUSTER_PROCESSES = 32  # assumed: a cluster's size is not known before it is asked, and may change


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What one `drimed bench` measures."""

    suite: Suite
    specs: list[PolicySpec]
    drifts: tuple[str, ...]
    instances: int
    instance_seed: int
    episodes: int
    tolerance: Tolerance

    def __post_init__(self) -> None:
        for name in ("instances", "episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.instance_seed < 0:
            raise ConfigError(f"instance-seed must be at least 0, got {self.instance_seed}")
        for drift in self.drifts:
            if drift not in DRIFTS:
                raise UnknownNameError("drift", drift, DRIFTS)
        if not self.cells:
            raise ConfigError(f"suite {self.suite.id} has no cell under {', '.join(self.drifts)}")
        texts = [spec.text for spec in self.specs]
        for text in texts:
            if texts.count(text) > 1:
                raise ConfigError(f"policy {text!r} is listed twice")

    @property
    def cells(self) -> list[Cell]:
        """The worlds."""
        return self.suite.cells(self.drifts)

    def tasks(self) -> dict[tuple[str, str], Task]:
        """(cell label, policy): the run."""
        return {
            (cell.label, spec.text): self.suite.make_task(
                spec,
                cell,
                instances=self.instances,
                instance_seed=self.instance_seed,
                episodes=self.episodes,
                tolerance=self.tolerance,
            )
            for cell in self.cells
            for spec in self.specs
        }


def run(
    bench: Bench,
    out: Path,
    *,
    jobs: int = -1,
    cluster: Cluster | None = None,
    on_done: Callable[[Task, bool], None] | None = None,
) -> dict[str, Any]:
    """Run what is not stored in `out` yet; write figures, results.json and index.html there; return the results."""
    start = time.perf_counter()
    tasks = bench.tasks()
    found = _measure(list(tasks.values()), out / "runs", jobs=jobs, cluster=cluster, on_done=on_done)
    measured = Measured(bench.suite, bench.cells, bench.specs, {k: found[t.key()] for k, t in tasks.items()})
    reference = next((s for s in bench.specs if s.name == "dri_med"), bench.specs[0])
    told: dict[str, Any] = {
        "suite": bench.suite.id,
        "about": bench.suite.about,
        "rows": rows(measured),
        "differences": differences(measured, reference),
        "ratios": ratios(measured),
        "growth": growth(measured),
        "meta": {
            "instances": bench.instances,
            "instance seed": bench.instance_seed,
            "episodes": bench.episodes,
            "tolerance": f"{bench.tolerance.relative:g} |control| + {bench.tolerance.absolute:g}",
            "simulated decisions": sum(
                len(found[t.key()].allocation) * found[t.key()].decisions for t in tasks.values()
            ),
            "processor seconds": round(sum(found[t.key()].seconds for t in tasks.values()), 1),
            **provenance(code_digest(), time.perf_counter() - start),
        },
    }
    figures = draw_all(measured, out)
    (out / "results.json").write_text(json.dumps(told, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    write_page(told, figures, out / "index.html")
    return told


def _measure(
    tasks: list[Task],
    store: Path,
    *,
    jobs: int,
    cluster: Cluster | None,
    on_done: Callable[[Task, bool], None] | None,
) -> dict[str, Summary]:
    """Each task's summary by its key; stored one by one, so that any part of a benchmark can be used by another."""
    by_key = {task.key(): task for task in tasks}
    stored = [task for key, task in by_key.items() if _path(store, key).exists()]
    missing = [task for key, task in by_key.items() if not _path(store, key).exists()]
    processes = CLUSTER_PROCESSES if cluster else os.cpu_count() or 1 if jobs < 1 else jobs
    found: dict[str, Summary] = {}

    def done(task: Task, was_stored: bool) -> None:
        summaries: dict[str, Summary] = {}
        if isinstance(task, Abreast):
            whole = _path(store, task.key())
            summaries = task.cut(Summary.load(whole))
            for key, summary in summaries.items():
                summary.save(_path(store, key))
            whole.unlink()
        found.update(summaries)
        for key in summaries or [task.key()]:
            if on_done is not None:
                on_done(by_key[key], was_stored)

    work = [*stored, *abreast(missing, FEWEST_PER_PROCESS * processes)]
    return sweep(work, store, jobs=jobs, cluster=cluster, on_done=done) | found


def _path(store: Path, key: str) -> Path:
    return store / f"{key}.npz"
