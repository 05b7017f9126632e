"""The page of a benchmark: one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drimed.report.page import inline, render


def write_page(results: dict[str, Any], figures: dict[str, Path], path: Path) -> None:
    """Render the template beside this file."""
    cells = list(dict.fromkeys(row["cell"] for row in results["rows"]))
    grid: dict[str, dict[str, dict[str, Any]]] = {}  # learner -> policy -> cell -> row
    for row in sorted(results["rows"], key=lambda row: (row["learner"], row["rule"], row["guard"])):
        grid.setdefault(row["learner"], {}).setdefault(row["policy"], {})[row["cell"]] = row
    render(
        "drimed.bench",
        "page.html",
        path,
        results=results,
        cells=cells,
        grid=grid,
        pictures={name: inline(picture) for name, picture in figures.items()},
    )
