"""Faults of what came in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a file or a request, and its place."""

    path: Path  # from the top of the file or request to the field; empty: all of it
    message: str
    line: int | None = None  # of a text file
    row: int | None = None  # of a sheet, as a spreadsheet counts them
    severity: Literal["error", "unlikely"] = "error"  # unlikely: a possible value that must be confirmed

    def __str__(self) -> str:
        places = [f"row {self.row}" if self.row else "", f"line {self.line}" if self.line else ""]
        return ": ".join([*filter(None, [*places, ".".join(map(str, self.path))]), self.message])
