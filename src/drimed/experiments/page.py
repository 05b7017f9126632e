"""One style for all figures and pages; a page is one file with its pictures inside, and loads nothing from elsewhere.

Colours are Okabe and Ito's, told apart by every common form of colour vision.
"""

from __future__ import annotations

import base64
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from drimed.errors import MissingExtraError
from drimed.formatting import short

try:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Figure
except ImportError as error:
    raise MissingExtraError("matplotlib", "sim") from error
try:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
except ImportError as error:
    raise MissingExtraError("jinja2", "sim") from error

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK = COLOURS
MARKERS = "osv^DXP*<>dh8p"
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 9,
    "axes.titlesize": 10,
    "pdf.fonttype": 42,
}


def style() -> Any:
    """The context in which figures are built and saved."""
    return mpl.rc_context(STYLE)


def legend_below(figure: Figure, columns: int, size: int = 9) -> None:
    """One legend for all panels, from what is drawn in the first."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=size)


def save_all(figures: dict[str, Figure], out: Path) -> dict[str, Path]:
    """Each figure as PNG and PDF, without dates inside: the same numbers give the same files. Name -> the PNG."""
    paths = {}
    for name, figure in figures.items():
        FigureCanvasAgg(figure)
        for kind in ("png", "pdf"):
            meta = {"CreationDate": None} if kind == "pdf" else {"Software": None}
            figure.savefig(out / f"{name}.{kind}", dpi=130, bbox_inches="tight", metadata=meta)
        paths[name] = out / f"{name}.png"
    return paths


def render(package: str, template: str, path: Path, **context: Any) -> None:
    """Write a template of `package`, which extends this package's frame.html."""
    loader = ChoiceLoader([PackageLoader(package, "."), PackageLoader("drimed.experiments", ".")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["short"] = short
    path.write_text(environment.get_template(template).render(**context), encoding="utf-8")


def inline(picture: Path) -> str:
    """A PNG as a data URL."""
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()


def provenance(code: str, seconds: float) -> dict[str, Any]:
    """What a reader needs to measure the same again: the last table of every page."""
    return {
        "drimed": version("drimed"),
        "code": code,
        "seconds of this run": round(seconds, 1),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
