"""What is wrong with something that came in."""

from __future__ import annotations

from dataclasses import dataclass

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with what came in, and where it is."""

    path: Path  # from the top of the file or request to the field; empty: all of it
    message: str
    line: int | None = None  # of a text file
    row: int | None = None  # of a sheet, as a spreadsheet counts them

    @property
    def field(self) -> str:
        """The path with dots."""
        return ".".join(map(str, self.path))

    def __str__(self) -> str:
        places = [f"row {self.row}" if self.row else "", f"line {self.line}" if self.line else "", self.field]
        return ": ".join([*filter(None, places), self.message])


@dataclass(frozen=True)
class Doubt(Fault):
    """A value that is possible but unlikely: what must be confirmed."""

    what: str = ""  # has the value: a metric, a context field, an attribute
    value: str = ""
    reason: str = ""  # to ask: "is outside 0 to 15, the range in the trial file"
