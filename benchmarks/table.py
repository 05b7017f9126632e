"""Results of benchmarks as Markdown tables, for the documentation.

python -m benchmarks.table OUT [OUT ...]            one table for each folder that `drimed bench` wrote
python -m benchmarks.table --overall OUT [OUT ...]  rules over all of them: regret over the best rule's
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from drimed.bench.overall import overall
from drimed.report.page import short


def markdown(results: dict[str, Any]) -> str:
    """Mean regret, in brackets realised and expected violations per 10,000 decisions, one column for each cell."""
    cells = list(dict.fromkeys(row["cell"] for row in results["rows"]))
    by_policy: dict[str, dict[str, Any]] = {}
    for row in results["rows"]:
        by_policy.setdefault(row["policy"], {})[row["cell"]] = row
    lines = [f"| policy | {' | '.join(cells)} |", "|---" * (len(cells) + 1) + "|"]
    for policy, found in by_policy.items():
        lines.append(f"| `{policy}` | {' | '.join(_cell(found[c]) for c in cells)} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    expected = row["expected_violations_per_10k"]
    told = "?" if expected is None else f"{expected:.2f}"
    low, high = row["regret_ci"]
    half = (high - low) / 2
    return f"{short(row['regret_mean'])} ± {short(half)} ({row['violations_per_10k']:.2f} / {told})"


def overall_markdown(results: list[dict[str, Any]]) -> str:
    """Geometric means of regret over the best rule's with the same information, over all cells and for each suite."""
    found = overall(results)
    suites = list(found[0]["by_suite"]) if found else []
    lines = [f"| rule | all | worst | {' | '.join(suites)} |", "|---" * (len(suites) + 3) + "|"]
    for row in found:
        told = " | ".join(f"{row['by_suite'][s]:.2f}" for s in suites)
        lines.append(f"| {row['rule']} | {row['geometric_mean']:.2f} | {row['worst']:.2f} | {told} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables of the folders named on the command line."""
    folders = [a for a in sys.argv[1:] if a != "--overall"]
    found = [json.loads((Path(f) / "results.json").read_text(encoding="utf-8")) for f in folders]
    if "--overall" in sys.argv:
        print(overall_markdown(found))
        return
    for results in found:
        meta = results["meta"]
        print(f"\n{results['suite']}: {meta['instances']} instances, {meta['episodes']} episodes\n")
        print(markdown(results))


if __name__ == "__main__":
    main()
