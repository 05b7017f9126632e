"""The page to open: one self-contained HTML file with every figure inside."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from drimed.errors import MissingExtraError
from drimed.paper.experiments import DRIFTS, Plan

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
except ImportError as error:
    raise MissingExtraError("jinja2", "sim") from error


def write_page(results: dict[str, Any], plan: Plan, figures: dict[str, Path], path: Path) -> None:
    """Render the template beside this file."""
    environment = Environment(
        loader=PackageLoader("drimed.paper", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["short"] = _short
    pictures = {
        name: "data:image/png;base64," + base64.b64encode(p.read_bytes()).decode() for name, p in figures.items()
    }
    labels = {c.key: c.label for c in [*plan.baselines, *plan.published, plan.own_weights, *plan.random_contenders]}
    page = environment.get_template("page.html").render(
        results=results, plan=plan, pictures=pictures, labels=labels, drifts=DRIFTS
    )
    path.write_text(page, encoding="utf-8")


def _inline(picture: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()


def _short(value: float) -> str:
    """Three figures, and no exponent: 0.497, 26.2, 1,778."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
