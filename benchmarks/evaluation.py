"""Evaluating a log against scanning it: `python -m benchmarks.evaluation`.

One million decisions in a Parquet file; five estimators with standard errors, checks and diagnostics, against the time
that Polars needs to scan the same file and compute two weighted means. The goal is a ratio of 2 at most. What an
estimator has to read decides most of it, so two sets are measured: five estimators that weigh (three columns), and
five of which three also need a model's predictions for every arm (three columns and one for each arm). For the second
set there is a second yardstick: Polars' two means with one of them over the predictions, so that both read the same.

Times are processor time. Memory is the largest resident size of a process of its own, over that of one that only
imports, for a log of one million decisions and one of ten million.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["POLARS_MAX_THREADS"] = "1"  # one core on both sides; Polars reads this once, when it is imported
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import polars as pl

from benchmarks.measure import Goal, Spread, in_turn
from drimed.evaluation.decision_log import Columns, read_log
from drimed.evaluation.off_policy import ESTIMATORS, EvaluationPlan, TargetPolicy, evaluate

K = 5
ARMS = [str(k) for k in range(K)]
DECISIONS = 1_000_000
AT_MOST = 2.0
WEIGHING = "ips,snips"
WITH_MODEL = "ips,snips,dm,dr,sndr"


def main() -> None:
    """Measure and print; with --memory, be the process whose memory is measured."""
    options = _options()
    if options.memory:
        _evaluate(options.memory, options.estimators)
    if options.memory or options.idle:
        print(_largest())
        return
    with TemporaryDirectory() as folder:
        path = write_log(Path(folder) / "log.parquet", DECISIONS)
        timed = _timed(path, options.repeats)
        memory = _memory(path, Path(folder))
    for goal in timed:
        print(f"{goal.name}: {goal.ratio.median:.2f} ({goal.ratio.range(2)}), {'met' if goal.met else 'missed'}")
    for name, mega in memory.items():
        print(f"memory, {name}: {mega:.0f} MiB above an idle process")
    if options.out:
        ratios = {g.name: {"median": g.ratio.median, "low": g.ratio.low, "high": g.ratio.high} for g in timed}
        Path(options.out).write_text(json.dumps({"ratios": ratios, "memory_mib": memory}, indent=2) + "\n")


def write_log(path: Path, n: int, *, seed: int = 0) -> Path:
    """A log whose policy leans on a context, in pieces so that writing it needs little memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    writer: Any = None
    for at in range(0, n, DECISIONS):
        m = min(DECISIONS, n - at)
        p = 0.9 * rng.dirichlet(np.full(K, 2.0), m) + 0.1 / K
        action = np.minimum((p.cumsum(-1) < rng.random(m)[:, None]).sum(-1), K - 1)
        columns = {"action": action, "reward": rng.standard_normal(m), "propensity": p[np.arange(m), action]}
        columns |= {f"q_{arm}": rng.standard_normal(m) for arm in ARMS}
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    writer.close()
    return path


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluation", description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="repeats (%(default)s)")
    parser.add_argument("--out", help="write the numbers as JSON to this file")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    parser.add_argument("--idle", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--estimators", default=WEIGHING, help=argparse.SUPPRESS)
    return parser.parse_args()


def _timed(path: Path, repeats: int) -> list[Goal]:
    sets = {"five that weigh": WEIGHING, "five, three with a model": WITH_MODEL}
    candidates = {name: _seconds(partial(_evaluate, path, chosen)) for name, chosen in sets.items()}
    goals = []
    for title, yardstick in (("two weighted means", _two_means), ("two means, one of predictions", _model_means)):
        pairs = in_turn(candidates, _seconds(partial(yardstick, path)), repeats, lambda: None)
        for name, found in pairs.items():
            ratio = Spread.of([pair.seconds / pair.plain for pair in found])
            goals.append(Goal(f"{name}, over Polars' {title}", ratio, AT_MOST, at_least=False))
    return goals


def _evaluate(path: Path | str, chosen: str) -> None:
    estimators = chosen.split(",")
    needs = frozenset({"predictions"} if any(ESTIMATORS[name].predicts for name in estimators) else ())
    stream = read_log(path, columns=Columns(use=needs), arms=ARMS)
    evaluate(stream, EvaluationPlan(targets=[TargetPolicy.uniform()], estimators=estimators))


def _two_means(path: Path) -> None:
    w = 1 / (K * pl.col("propensity"))
    r = pl.col("reward")
    pl.scan_parquet(path).select(
        ips=(w * r).mean(), snips=(w * r).sum() / w.sum(), used=pl.col("action").max()
    ).collect()


def _model_means(path: Path) -> None:
    w = 1 / (K * pl.col("propensity"))
    q = pl.sum_horizontal([pl.col(f"q_{arm}") for arm in ARMS]) / K
    pl.scan_parquet(path).select(
        snips=(w * pl.col("reward")).sum() / w.sum(), model=(w * q).sum() / w.sum(), used=pl.col("action").max()
    ).collect()


def _seconds(work: Callable[[], None]) -> Callable[[], float]:
    def run() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    work()  # imports and compiles
    return run


def _memory(path: Path, folder: Path) -> dict[str, float]:
    long = write_log(folder / "long.parquet", 10 * DECISIONS)
    idle = _peak("--idle")
    return {
        f"{name}, {chosen}": (_peak("--memory", str(file), "--estimators", chosen) - idle) / 1024
        for name, file in (("1 million", path), ("10 million", long))
        for chosen in (WEIGHING, WITH_MODEL)
    }


def _largest() -> int:
    """The largest resident size of this process so far, in KiB; unlike getrusage's, not that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def _peak(*arguments: str) -> int:
    command = [sys.executable, "-m", "benchmarks.evaluation", *arguments]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
