"""Self-contained HTML pages: one frame, pictures inside, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from drimed.errors import MissingExtraError

try:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
except ImportError as error:
    raise MissingExtraError("jinja2", "sim") from error


def render(package: str, template: str, path: Path, **context: Any) -> None:
    """Write a template of `package`, which extends this package's frame.html."""
    loader = ChoiceLoader([PackageLoader(package, "."), PackageLoader("drimed.report", ".")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["short"] = short
    path.write_text(environment.get_template(template).render(**context), encoding="utf-8")


def inline(picture: Path) -> str:
    """A PNG as a data URL."""
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()


def short(value: float) -> str:
    """Three figures, no exponent, and a minus sign instead of a hyphen.

    >>> [short(v) for v in (0.49732, -26.21, 1777.8)]
    ['0.497', '−26.2', '1,778']
    """
    return (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}").replace("-", "−")
