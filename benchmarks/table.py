"""Results of benchmarks as Markdown tables, for the documentation.

python -m benchmarks.table OUT [OUT ...]                 one table for each folder that `drimed bench` wrote
python -m benchmarks.table --cells none,gradual OUT      only these cells
python -m benchmarks.table --seasons OUT [OUT ...]       fields and people: as they stand after some seasons
python -m benchmarks.table --kept OUT [OUT ...]          promises: the share of runs with any violation
python -m benchmarks.table --overall OUT [OUT ...]       rules over all of them: regret over the best rule's
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from drimed.formatting import short
from drimed.simulation.benchmark import overall


def markdown(results: dict[str, Any], wanted: list[str] | None = None) -> str:
    """Mean regret, in brackets realised and expected violations per 10,000 decisions, one column for each cell."""
    cells = list(dict.fromkeys(row["cell"] for row in results["rows"]))
    cells = [c for c in wanted if c in cells] if wanted else cells
    lines = [f"| policy | {' | '.join(cells)} |", "|---" * (len(cells) + 1) + "|"]
    for policy, found in _by_policy(results).items():
        lines.append(f"| `{policy}` | {' | '.join(_cell(found[c]) for c in cells)} |")
    return "\n".join(lines)


def kept_markdown(results: list[dict[str, Any]]) -> str:
    """For each suite, over all its cells: the share of runs in which the promise of a policy was ever broken.

    The promise is the policy's own: on the expected reward for the guard `expected`, on every arm played for `certain`
    (or the control, which is judged as a lottery where it is one); without an absolute part if it was asked for none.
    """
    lines = ["| suite | policy | runs | broken |", "|---|---|---|---|"]
    for each in results:
        for policy, found in _by_policy(each).items():
            if "confidence=anytime" not in policy:
                continue
            mean = "guard=" not in policy or each["suite"] == "mixed-control"
            strict = "absolute=0" in policy
            kind = ("a_strict_expected" if strict else "an_expected") if mean else ("a_strict" if strict else "a")
            runs = sum(row["instances"] for row in found.values())
            broken = sum(row["instances"] * row[f"runs_with_{kind}_violation"] for row in found.values())
            lines.append(f"| {each['suite']} | `{policy}` | {runs} | {broken:.0f} ({100 * broken / runs:.2f} %) |")
    return "\n".join(lines)


COLUMNS = {
    "regret_per_decision": "{:.2f}",
    "control_share": "{:.2f}",
    "expected_violations_per_10k": "{:.0f}",
    "holds.0.95": "{:.3f}",
    "holds.0.99": "{:.3f}",
    "width.0.95": "{:.1f}",
    "width.0.99": "{:.1f}",
    "likely.wrong": "{:.3f}",
    "likely.right": "{:.3f}",
    "likely_together.wrong": "{:.3f}",
    "likely_together.right": "{:.3f}",
    "held_at_all_times": "{:.4f}",
    "times_as_wide": "{:.2f}",
    "certainly.wrong": "{:.3f}",
}


def seasons_markdown(results: dict[str, Any], wanted: list[str] | None = None) -> str:
    """One row for each cell, policy and number of seasons; ± is a standard error over instances."""
    lines = [f"| cell | policy | seasons | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 3) + "|"]
    for row in results["rows"]:
        if wanted and row["cell"] not in wanted:
            continue
        for look in row["after"]:
            told = [_with_error(look, name, form) for name, form in COLUMNS.items()]
            lines.append(f"| {row['cell']} | `{row['policy']}` | {look['seasons']} | {' | '.join(told)} |")
    lines += ["", "| cell | policy | regret of the average user | seconds a run |", "|---|---|---|---|"]
    for row in results["rows"]:
        if not wanted or row["cell"] in wanted:
            regret = f"{row['stage_regret']:.1f} ± {row['stage_regret_error']:.1f}"
            lines.append(f"| {row['cell']} | `{row['policy']}` | {regret} | {row['seconds_per_run']:.2f} |")
    return "\n".join(lines)


def _with_error(look: dict[str, Any], name: str, form: str) -> str:
    if look.get(name) is None:
        return "–"
    return f"{form.format(look[name])} ± {form.format(look[f'{name}.error'])}"


def _by_policy(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    by_policy: dict[str, dict[str, Any]] = {}
    for row in results["rows"]:
        by_policy.setdefault(row["policy"], {})[row["cell"]] = row
    return by_policy


def _cell(row: dict[str, Any]) -> str:
    expected = row["expected_violations_per_10k"]
    told = "?" if expected is None else f"{expected:.2f}"
    low, high = row["regret_ci"]
    half = (high - low) / 2
    return f"{short(row['regret_mean'])} ± {short(half)} ({row['violations_per_10k']:.2f} / {told})"


def overall_markdown(results: list[dict[str, Any]], wanted: list[str] | None = None) -> str:
    """Geometric means of regret over the best rule's with the same information, over all cells and for each suite."""
    found = overall({"rows": [r for r in each["rows"] if not wanted or r["cell"] in wanted]} for each in results)
    suites = list(found[0]["by_suite"]) if found else []
    count = found[0]["cells"] if found else 0
    lines = [f"| rule | all {count} cells | worst | {' | '.join(suites)} |", "|---" * (len(suites) + 3) + "|"]
    for row in found:
        told = " | ".join(f"{row['by_suite'][s]:.2f}" for s in suites)
        lines.append(f"| {row['rule']} | {row['geometric_mean']:.2f} | {row['worst']:.2f} | {told} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables of the folders named on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--cells", type=lambda text: text.split(","))
    parser.add_argument("--seasons", action="store_true")
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--overall", action="store_true")
    asked = parser.parse_args()
    found = [json.loads((folder / "results.json").read_text(encoding="utf-8")) for folder in asked.folders]
    if asked.overall:
        print(overall_markdown(found, asked.cells))
    elif asked.kept:
        print(kept_markdown(found))
    else:
        for results in found:
            meta = results["meta"]
            print(f"\n{results['suite']}: {meta['instances']} instances, {meta['episodes']} episodes\n")
            print((seasons_markdown if asked.seasons else markdown)(results, asked.cells))


if __name__ == "__main__":
    main()
