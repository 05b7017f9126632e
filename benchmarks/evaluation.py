"""Evaluating a log beside scanning it with Polars, and the memory that a log takes.

The yardstick reads the same columns of the same Parquet file and computes two weighted means. Memory is the largest
resident size of a process of its own, over that of one that only imports: it must not grow with the log.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.measure import Part, Row, Size, Spread, compared, processor_seconds
from drimed.evaluation.decision_log import Columns, polars, read_log
from drimed.evaluation.off_policy import ESTIMATORS, EvaluationPlan, TargetPolicy, evaluate

K = 5
ARMS = [str(k) for k in range(K)]
WEIGHING, WITH_MODEL = ("ips", "snips"), tuple(ESTIMATORS)
AT_MOST = 3.0  # scans that an evaluation may cost
MOST_MEGABYTES = 400.0


def run(size: Size) -> Part:
    """Estimators that weigh, and those with a model, each beside a scan that reads as much."""
    decisions, repeats = {"smallest": (1_000, 1), "quick": (300_000, 3), "full": (1_000_000, 9)}[size]
    part = Part("Evaluating a log", "ms", f"{decisions:,} decisions in a Parquet file. Ratio: to two means by Polars.")
    with TemporaryDirectory() as folder:
        path = _write(Path(folder) / "log.parquet", decisions)
        for name, estimators in (("ips and snips", WEIGHING), ("five, three of them with a model", WITH_MODEL)):
            scan = partial(_two_means, path, estimators == WITH_MODEL)
            evaluated = partial(evaluate_file, path, estimators)
            evaluated(), scan()  # imports and compiles
            rows = compared(
                {name: lambda work=evaluated: processor_seconds(work)},  # type: ignore[misc]
                lambda work=scan: processor_seconds(work),  # type: ignore[misc]
                repeats,
                scale=1000,
            )
            part.rows.append(rows[name].with_goal(at_most=AT_MOST))
        if size != "smallest":
            longer = _write(Path(folder) / "longer.parquet", 3 * decisions)
            idle = _peak(None)
            for name, log in ((f"{decisions:,}", path), (f"{3 * decisions:,}", longer)):
                peak = Spread.of([(_peak(log) - idle) / 1024])
                part.rows.append(Row(f"memory of {name} decisions (MB)", peak, at_most=MOST_MEGABYTES))
    return part


def evaluate_file(path: Path | str, estimators: tuple[str, ...] = WITH_MODEL) -> None:
    """Evaluate the uniform policy on a log."""
    columns = Columns(predictions="q_" if estimators == WITH_MODEL else "", user="", probabilities="", available="")
    stream = read_log(path, columns=columns, arms=ARMS)
    evaluate(stream, EvaluationPlan(targets=[TargetPolicy.uniform()], estimators=estimators))


def _write(path: Path, n: int) -> Path:
    rng = np.random.default_rng(0)
    p = 0.9 * rng.dirichlet(np.full(K, 2.0), n) + 0.1 / K
    action = np.minimum((p.cumsum(-1) < rng.random(n)[:, None]).sum(-1), K - 1)
    columns: dict[str, Any] = {
        "action": action,
        "reward": rng.standard_normal(n),
        "propensity": p[np.arange(n), action],
    }
    columns |= {f"q_{arm}": rng.standard_normal(n) for arm in ARMS}
    polars().DataFrame(columns).write_parquet(path, row_group_size=100_000)
    return path


def _two_means(path: Path, with_model: bool) -> None:
    pl = polars()
    w, r = 1 / (K * pl.col("propensity")), pl.col("reward")
    q = pl.sum_horizontal([pl.col(f"q_{arm}") for arm in ARMS]) / K if with_model else r
    snips, mean, last = (w * r).sum() / w.sum(), (w * q).sum() / w.sum(), pl.col("action").max()
    pl.scan_parquet(path).select(snips=snips, mean=mean, last=last).collect()


def _peak(path: Path | None) -> int:
    """The largest resident size, in KiB, of a process that evaluates a log, or only imports."""
    work = "" if path is None else f"evaluate_file({str(path)!r});"
    code = (
        f"from benchmarks.evaluation import evaluate_file; {work}"
        "print(next(x for x in open('/proc/self/status') if x.startswith('VmHWM')).split()[1])"
    )
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
