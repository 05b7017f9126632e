"""Every error that drimed raises on purpose.

    DrimedError
    ├── ConfigError      a setting is out of range or settings do not fit together (also a ValueError)
    │   ├── SpecError          a trial file has faults: all of them, each with its place
    │   └── MissingModuleError the module of a user's own policy cannot be loaded here
    ├── InputError       an array or value that came in is unusable (also a ValueError)
    │   ├── ShapeError         it has the wrong shape
    │   ├── UnknownNameError   a policy, drift or user of that name does not exist
    │   │   └── UnknownDecisionError   the trial has no decision of that number
    │   ├── ConflictError      it contradicts what is recorded already, or the trial is not in a state for it
    │   │   └── HaltedError        a stopping rule has just paused or stopped the trial: that is recorded
    │   └── BatchError         some of many things that came together are unusable: each with its place
    │       └── UnconfirmedError   values outside their declared range that are not confirmed
    ├── NumericalError   a computation lost the precision that its result needs
    ├── StoreError       a store cannot be opened, read or written, or is not one of ours
    ├── ServiceError     a service did not answer, or not as one of ours (the client raises it)
    ├── AccessError      a token is not accepted there, or may not do this
    └── MissingExtraError      an optional dependency is not installed (also an ImportError)

A message names the field, what was expected, what came, and where it helps, what to do.
"""

from __future__ import annotations

import copyreg
import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from drimed.records import Fault, Path

MOST_NAMES, LONGEST = 60, 100  # that a message lists: all policies, but not all users of a large trial; characters
MOST_COMPARED = 500  # names in search of one that was probably meant
MOST_HINTS = 5  # errors of one request that say which name was probably meant
_hints = ContextVar("hints", default=-1)  # of them that are left; below 0: any number


class DrimedError(Exception):
    """Base of everything below: catch this to catch all of drimed's own errors."""

    _faults: tuple[Fault, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """As it is, from another process: the arguments of an error are not those that made it."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults, field by field, where they are known."""
        return self._faults


class ConfigError(DrimedError, ValueError):
    """A setting is out of range, or two settings contradict each other."""


class SpecError(ConfigError):
    """A trial file cannot be used; `faults` lists everything that is wrong with it."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._faults = tuple(faults)
        super().__init__("\n".join(str(f) if f.path or f.line else f"the trial: {f}" for f in self._faults))


class MissingModuleError(ConfigError):
    """The module of a user's own policy, rule or guard cannot be loaded here."""


class InputError(DrimedError, ValueError):
    """A value that was handed in cannot be used; `field` is its path in the request, where that is known."""

    def __init__(self, message: str, field: Path = ()) -> None:
        super().__init__(message)
        self.field = field

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault(self.field, str(self)),) if self.field else self._faults


class ShapeError(InputError):
    """An array has another shape than the one that was asked for."""


@contextmanager
def few_hints() -> Iterator[None]:
    """Let the first errors only say which name was meant: of thousands that come together, that would take minutes."""
    before = _hints.set(MOST_HINTS)
    try:
        yield
    finally:
        _hints.reset(before)


class UnknownNameError(InputError):
    """A name that is not in the list it should be in."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], field: Path = (), message: str = "", meant: str = ""
    ) -> None:
        self.kind, self.name = kind, name
        super().__init__(message or f"unknown {kind} {name[:LONGEST]!r}{self._hint(name, known, meant)}", field)

    @staticmethod
    def _hint(name: str, known: Iterable[str], meant: str) -> str:
        """The name that was probably meant, and the first ones that are known."""
        if not (left := _hints.get()):
            return ""
        _hints.set(left - 1)
        names = sorted(known)
        # Similarity is slow: among many names, the one that was meant begins like this one.
        near = names if len(names) <= MOST_COMPARED else [n for n in names if n[:1] == name[:1]][:MOST_COMPARED]
        close = [meant] if meant else difflib.get_close_matches(name[:LONGEST], near, n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return f"{hint} Known: {', '.join(names[:MOST_NAMES]) or 'none'}{more}"


class UnknownDecisionError(UnknownNameError):
    """A decision that the trial does not have."""

    def __init__(self, trial: str, decision: int) -> None:
        self.kind, self.name = "decision", str(decision)
        InputError.__init__(self, f"trial {trial!r} has no decision {decision}", ("decision",))


class ConflictError(InputError):
    """The request contradicts the record, or the trial is not in a state for it."""


class HaltedError(ConflictError):
    """A look found that the trial must pause or stop. The look is recorded; the request is refused."""


class BatchError(InputError):
    """Some of many things that came together cannot be used, so none was; `faults` says which and why."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._faults = tuple(faults)
        super().__init__("\n".join(map(str, self._faults)))


class UnconfirmedError(BatchError):
    """Values that are possible but unlikely: nothing is recorded until they are confirmed, as `remedy` says."""

    def __init__(self, faults: Iterable[Fault], remedy: str = "repeat this with confirm=True") -> None:
        super().__init__(faults)
        self.args = (f"{self}\nnothing was recorded; if this is right, {remedy}",)


class StoreError(DrimedError):
    """A store that cannot be reached or written, or that another program or a newer drimed has made."""


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
