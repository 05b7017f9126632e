"""Pages and results.json of benchmarks and of the reproduction. Regret is drawn on logarithmic axes."""

from __future__ import annotations

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

from drimed.formatting import short
from drimed.numerics.arrays import FloatArray
from drimed.reports import svg
from drimed.reports.frame import PAGE, environment, style
from drimed.reports.svg import Chart, Key, Panel, RangeRow, Series, Table
from drimed.simulation import reproduction as paper
from drimed.simulation.benchmark import RATIO_TO_THE_BEST, Benchmark, Measured, learner_text
from drimed.simulation.reproduction import DRIFTS, PUBLISHED, Contender, Reproduction
from drimed.simulation.runner import Run, RunRecord
from drimed.simulation.sweep import code_digest, sweep

REFERENCES = ("dri_med", "dri_field", "dri_people")  # others are compared with the first of these that takes part
SHOWN_CELLS = 12
POINTS = 25  # of a curve
LEAST_SHOWN = 0.05  # a logarithmic axis has no room for a regret of zero
BAND = (0.05, 0.5, 0.95)  # quantiles


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
    _write(
        out, results, "bench.html", title=f"{benchmark.suite.id}: benchmark", curves=_curves(measured),
        trade_off=_trade_off(measured), learner_text=learner_text, ratio_to_the_best=RATIO_TO_THE_BEST,
        by_season=any("after" in row for row in results["rows"]),
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
    contenders = {"main": paper.MAIN, "random": paper.ON_RANDOM}
    _write(
        out, results, "paper.html", title="Dri-MED, re-measured", labels=paper.LABELS, published=PUBLISHED,
        curves=_paper_curves(records["main"]) if records["main"] else [],
        final={part: _final(records[part], some, part) if records[part] else [] for part, some in contenders.items()},
    )  # fmt: skip
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


def _write(out: Path, results: dict[str, Any], template: str, **context: Any) -> None:
    (out / "results.json").write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    page = environment().get_template(template).render(results=results, style=style(), **context)
    (out / PAGE).write_text(page, encoding="utf-8")


def _log(regret: FloatArray | float) -> FloatArray:
    return np.log10(np.maximum(regret, LEAST_SHOWN))


def _power(exponent: float) -> str:
    return short(10**exponent)


def _curves(measured: Measured) -> Chart:
    """Regret over time, of the policies of least regret over all cells."""
    specs, cells = measured.bench.specs, list(measured.bench.cells)[:SHOWN_CELLS]
    order = sorted(np.argsort([measured.over_cells(spec) for spec in specs])[: svg.SERIES].tolist())
    leaders, panels, rows = [specs[i] for i in order], list[Panel](), list[list[str]]()
    for cell in cells:
        episodes = measured.record(cell, leaders[0]).episodes
        at = svg.thinned(len(episodes), POINTS)
        regret = [measured.record(cell, spec).curve("regret").mean(0)[at] for spec in leaders]
        labels = [str(e) for e in episodes[at]]
        lines = [Series(_log(r).tolist(), line=f"l{k}") for k, r in enumerate(regret)]
        panels.append(Panel(lines, labels, at=episodes[at].tolist(), title=cell))
        rows += [[cell, label, *map(short, column)] for label, column in zip(labels, np.transpose(regret), strict=True)]
    names = [spec.text for spec in leaders]
    text = f"Mean regret so far of {'the policies of least regret' if len(specs) > len(leaders) else 'all policies'}."
    ends = svg.spread([v for panel in panels for one in panel.series for v in one.values if v is not None])
    draw = svg.lines(panels, ends, "episode", number=_power)
    table = Table("Mean regret so far", ["cell", "episode", *names], rows)
    return Chart("curves", "Regret over time", text, draw, table, [Key(n, f"k{k}") for k, n in enumerate(names)])


def _trade_off(measured: Measured) -> Chart:
    """Regret of each policy, averaged over the cells, with its violations; the front is not beaten in both."""
    points = []
    for spec in measured.bench.specs:
        rates = [1e4 * measured.record(cell, spec).rate("violations.safe.realised") for cell in measured.bench.cells]
        points.append((measured.over_cells(spec), float(np.mean(rates)), spec))
    rows, marks = [], []
    for regret, rate, spec in sorted(points, key=lambda p: p[:2]):
        front = not any(r <= regret and v <= rate and (r, v) != (regret, rate) for r, v, _ in points)
        look, learner = "up" if front else "open", learner_text(spec.parts()["learner"])
        marks.append(RangeRow(spec.text, f"{short(rate)} violations", float(_log(regret)), look=look))
        rows.append([spec.text, short(regret), short(rate), "yes" if front else "", learner])
    draw = svg.ranges(marks, svg.spread([m.estimate or 0.0 for m in marks]), "mean regret", number=_power)
    columns = ["policy", "regret", "violations per 10,000", "on the front", "learner"]
    table = Table("Mean regret (geometric mean over the cells) and violations", columns, rows)
    text = "Violations are per 10,000 decisions. Green: no other policy has both less regret and fewer violations."
    return Chart("trade-off", "Regret against violations", text, draw, table)


def _paper_curves(records: dict[Any, RunRecord]) -> list[Chart]:
    """The paper's figures: regret and violation rates over the episodes, with bands."""
    shown = {
        "regret_as_published": "Cumulative regret (authors' metric)",
        "violations.published.estimated": "Estimated violation rate",
        "violations.published.realised": "True violation rate",
    }
    contenders, charts = (*paper.BASELINES, *PUBLISHED), []
    keys, seeds = [Key(c.label, f"k{k}") for k, c in enumerate(contenders)], len(records[DRIFTS[0], "oful"].allocation)
    for metric, title in shown.items():
        panels, rows, most = list[Panel](), list[list[str]](), 1.0
        for drift in DRIFTS:
            some = [records[drift, c.key] for c in contenders]
            at = svg.thinned(len(some[0].episodes), POINTS)
            values = [r.curve(metric) if metric.startswith("regret") else r.windows(metric) for r in some]
            bands = [np.quantile(v, BAND, axis=0)[:, at] for v in values]  # (3, points) each
            most = max(most, *(float(band.max()) for band in bands))
            lines = [
                Series(b[1].tolist(), b[0].tolist(), b[2].tolist(), line=f"l{k}", band=f"b{k}")
                for k, b in enumerate(bands)
            ]
            episodes = some[0].episodes[at]
            panels.append(Panel(lines, [str(e) for e in episodes], at=episodes.tolist(), title=f"drift: {drift}"))
            rows += [[drift, str(e), *(short(b[1, i]) for b in bands)] for i, e in enumerate(episodes)]
        table = Table(f"{title}: medians", ["drift", "episode", *(c.label for c in contenders)], rows)
        text = f"Median and 5 to 95 % band over {seeds} seeds."
        charts.append(Chart(metric, title, text, svg.lines(panels, (0.0, most), "episode"), table, keys))
    return charts


def _final(records: dict[Any, RunRecord], contenders: Sequence[Contender], part: str) -> list[Chart]:
    """Final true regret of every policy, for each drift."""
    charts = []
    for drift in DRIFTS:
        rows, marks = [], []
        for c in contenders:
            values = records[drift, c.key].total("regret")
            (low, middle, high), mean = np.quantile(values, BAND).tolist(), float(values.mean())
            at = _log(np.array([low, middle, high, mean])).tolist()
            marks.append(RangeRow(c.label, short(middle), at[1], (at[0], at[2]), limit=at[3]))
            rows.append([c.label, *map(short, (middle, low, high, mean))])
        ends = svg.spread([v for m in marks for v in (*(m.thick or ()), m.limit or 0.0)])
        draw = svg.ranges(marks, ends, "true regret", number=_power)
        table = Table(f"True regret, drift {drift}", ["policy", "median", "5 %", "95 %", "mean"], rows)
        text = f"Final true regret over {len(values)} seeds: median, 5 to 95 % band, and the mean as a mark across."
        charts.append(Chart(f"final-{part}-{drift}", f"Final true regret, drift: {drift}", text, draw, table))
    return charts
