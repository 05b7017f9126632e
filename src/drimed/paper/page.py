"""The page to open: one self-contained HTML file with every figure inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drimed.paper.experiments import DRIFTS, Plan
from drimed.report.page import inline, render


def write_page(results: dict[str, Any], plan: Plan, figures: dict[str, Path], path: Path) -> None:
    """Render the template beside this file."""
    labels = {c.key: c.label for c in [*plan.baselines, *plan.published, plan.own_weights, *plan.random_contenders]}
    pictures = {name: inline(picture) for name, picture in figures.items()}
    render(
        "drimed.paper", "page.html", path, results=results, plan=plan, pictures=pictures, labels=labels, drifts=DRIFTS
    )
