"""Every error that drimed raises on purpose.

    DrimedError
    ├── ConfigError      a setting is out of range or settings do not fit together (also a ValueError)
    ├── InputError       an array or value that came in is unusable (also a ValueError)
    │   ├── ShapeError         it has the wrong shape
    │   └── UnknownNameError   a policy, drift or experiment of that name does not exist
    ├── NumericalError   a computation lost the precision that its result needs
    └── MissingExtraError      an optional dependency is not installed (also an ImportError)

A message names the field, what was expected, what came, and where it helps, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DrimedError(Exception):
    """Base of everything below: catch this to catch all of drimed's own errors."""


class ConfigError(DrimedError, ValueError):
    """A setting is out of range, or two settings contradict each other."""


class InputError(DrimedError, ValueError):
    """A value that was handed in cannot be used."""


class ShapeError(InputError):
    """An array has another shape than the one that was asked for."""


class UnknownNameError(InputError):
    """A name that is not in the list it should be in."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        super().__init__(f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}")


class NumericalError(DrimedError):
    """A matrix is singular, or has lost its symmetry or sign, where the theory says that it cannot."""


class MissingExtraError(DrimedError, ImportError):
    """An optional dependency is needed here and is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is needed here; install it with: pip install 'drimed[{extra}]'")
