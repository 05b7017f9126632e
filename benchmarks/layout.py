"""One look for every table, narrow enough for a terminal of eighty columns."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table


def table(title: str, caption: str, name: str, *numbers: str) -> Table:
    """An empty table: a column of names, which may fold, and columns of numbers, which may not."""
    view = Table(title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    view.caption_justify = "left"
    view.add_column(name, overflow="fold")
    for heading in numbers:
        view.add_column(heading, justify="right", no_wrap=True)
    return view
