"""Speed, as ratios measured in one run: `python -m benchmarks [PART ...] [--quick]`.

Times are processor time, so that other work on the machine is not counted; those of durable writes are by the clock,
because they wait for the disk. Prints a table of each part and writes results.json. A missed goal is a finding, not a
failure: the exit code is 0 either way.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

# One core, for the yardsticks too. NumPy and Polars read these once, when they are imported.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ[name] = "1"

from rich.console import Console  # noqa: E402

from benchmarks.measure import Part, Size  # noqa: E402

# Each is a module of benchmarks/ with `run(size) -> Part`.
PARTS = (
    "startup",
    "simulated",
    "live",
    "scaling",
    "field",
    "kinds",
    "trial",
    "evaluation",
    "rehearsal",
    "service",
    "staleness",
    "large",
)


def run(part: str, size: Size) -> Part:
    """Run one part."""
    measured: Part = import_module(f"benchmarks.{part}").run(size)
    return measured


def main() -> None:
    """Run the chosen parts, print their tables and write everything that was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed, as ratios measured in one run.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a first look: fewer repeats, wider ranges")
    parser.add_argument("--out", default="out/bench", help="folder of results.json (%(default)s)")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    console, start = Console(), time.perf_counter()
    report: dict[str, Any] = {"quick": options.quick, "environment": _environment(), "parts": {}}
    for part in options.parts or PARTS:
        begun = time.perf_counter()
        with console.status(part):
            measured = run(part, "quick" if options.quick else "full")
        console.print(measured.table(), f"{time.perf_counter() - begun:.0f} s\n")
        report["parts"][part] = asdict(measured) | {"goals": {r.name: r.goal for r in measured.rows if r.goal}}
    report["seconds"] = time.perf_counter() - start
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    console.print(f"wrote {folder / 'results.json'} after {report['seconds']:.0f} s")


def _environment() -> dict[str, Any]:
    packages = {name: version(name) for name in ("drimed", "numpy", "numba", "scipy")}
    load = list(os.getloadavg()) if hasattr(os, "getloadavg") else None
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    return machine | packages | {"load": load}


if __name__ == "__main__":
    main()
