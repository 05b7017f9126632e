"""Every error that drimed raises on purpose.

    DrimedError
    ├── ConfigError      a setting is out of range or settings do not fit together (also a ValueError)
    │   └── SpecError          a trial file has faults: all of them, each with its place
    ├── InputError       an array or value that came in is unusable (also a ValueError)
    │   ├── ShapeError         it has the wrong shape
    │   ├── UnknownNameError   a policy, drift, user or decision of that name does not exist
    │   ├── ConflictError      it contradicts what is recorded already, or the trial is not in a state for it
    │   └── BatchError         some of many things that came together are unusable: each with its place
    ├── NumericalError   a computation lost the precision that its result needs
    ├── StoreError       a store cannot be opened, read or written, or is not one of ours
    ├── ServiceError     a service did not answer, or not as one of ours (the client raises it)
    ├── AccessError      a token is not accepted there, or may not do this
    └── MissingExtraError      an optional dependency is not installed (also an ImportError)

A message names the field, what was expected, what came, and where it helps, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

MOST_NAMES = 60  # that a message lists: all policies, but not all users of a large trial


class DrimedError(Exception):
    """Base of everything below: catch this to catch all of drimed's own errors."""


class ConfigError(DrimedError, ValueError):
    """A setting is out of range, or two settings contradict each other."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong in a trial file."""

    path: tuple[str | int, ...]  # from the top of the file to the field
    message: str
    line: int | None = None  # where the file is text

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{'.'.join(map(str, self.path)) or 'the trial'}: {self.message}"


class SpecError(ConfigError):
    """A trial file cannot be used; `faults` lists everything that is wrong with it."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


class InputError(DrimedError, ValueError):
    """A value that was handed in cannot be used."""


class ShapeError(InputError):
    """An array has another shape than the one that was asked for."""


class UnknownNameError(InputError):
    """A name that is not in the list it should be in."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name = kind, name
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        shown = ", ".join(names[:MOST_NAMES]) or "none"
        super().__init__(f"unknown {kind} {name!r}{hint} Known: {shown}{more}")


class ConflictError(InputError):
    """What was asked for contradicts what is recorded, or cannot be done in the trial's present state."""


class BatchError(InputError):
    """Of many things that came together some cannot be used, so none was; `errors` says which, from 0, and why."""

    def __init__(self, errors: dict[int, str], what: str = "item") -> None:
        self.errors = errors
        told = [f"{what} {i + 1}: {message}" for i, message in sorted(errors.items())]
        super().__init__("\n".join(told))


class StoreError(DrimedError):
    """A store that cannot be reached or written, or that somebody else's program or a newer drimed has made."""


class ServiceError(DrimedError):
    """The service did not answer, or not as one of its kind."""


class AccessError(DrimedError):
    """The token is not accepted, or may not do this."""


class NumericalError(DrimedError):
    """A matrix is singular, or has lost its symmetry or sign, where the theory says that it cannot."""


class MissingExtraError(DrimedError, ImportError):
    """An optional dependency is needed here and is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is needed here; install it with: pip install 'drimed[{extra}]'")
