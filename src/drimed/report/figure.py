"""One style for all figures. Colours are Okabe and Ito's, told apart by every common form of colour vision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drimed.errors import MissingExtraError

try:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtraError("matplotlib", "sim") from error

__all__ = [
    "BLACK",
    "BLUE",
    "COLOURS",
    "GREEN",
    "MARKERS",
    "ORANGE",
    "PINK",
    "SKY",
    "YELLOW",
    "Figure",
    "save_all",
    "style",
]

BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
COLOURS = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK)
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
