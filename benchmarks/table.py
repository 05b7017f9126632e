"""A benchmark's results as a Markdown table, for the documentation: `python -m benchmarks.table OUT [OUT ...]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

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


def main() -> None:
    """Print the tables of the folders named on the command line."""
    for folder in sys.argv[1:]:
        results = json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))
        print(
            f"\n{results['suite']}: {results['meta']['instances']} instances, {results['meta']['episodes']} episodes\n"
        )
        print(markdown(results))


if __name__ == "__main__":
    main()
