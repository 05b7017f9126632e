"""Values that are possible but unlikely: they are asked about before they are recorded.

A metric with a range in the trial file is compared with that; another one with what was recorded so far. What is known
before a decision is compared with its typical value and spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

from drimed.trial.spec import Attribute, ContextField, Metric

FEWEST = 8  # recorded values of a metric before they say what is usual
FAR = 10.0  # standard deviations from the mean: no outcome of a sound measurement
HUGE = 1e12  # in whatever unit
CODES = (-999.0, -9999.0, -99999.0)  # what instruments and databases write where there is no value
# The same where a value is in doubt anyway; alone they may well have been measured.
MAYBE_CODES = (*CODES, -9.0, -99.0, 99.0, 999.0, 9999.0, 99999.0)
LOST_SHARE = 1e-6  # of a sum of squares: what is left after taking a huge value out is round-off


@dataclass(frozen=True)
class Spread:
    """Count, mean and summed squared deviations of what was recorded of one metric."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def added(self, value: float) -> Spread:
        """With one more value.

        >>> Spread().added(1.0).added(3.0)
        Spread(n=2, mean=2.0, squares=2.0)
        """
        mean = self.mean + (value - self.mean) / (self.n + 1)
        return Spread(self.n + 1, mean, self.squares + (value - self.mean) * (value - mean))

    def removed(self, value: float) -> Spread:
        """Without one of its values; where that costs the digits of the others, counting begins again."""
        if self.n < 2:
            return Spread()
        mean = self.mean - (value - self.mean) / (self.n - 1)
        squares = self.squares - (value - self.mean) * (value - mean)
        return Spread(self.n - 1, mean, squares) if squares > LOST_SHARE * self.squares else Spread()

    @property
    def fractional(self) -> bool:
        """Whether some of the values were certainly no whole numbers: their sum or that of their squares is none."""
        sums = (self.n * self.mean, self.squares + self.n * self.mean**2)
        return any(abs(s - round(s)) > LOST_SHARE * max(1.0, abs(s)) for s in sums)

    def far(self, value: float) -> bool:
        """Whether a value is far from all that was recorded."""
        return self.n >= FEWEST and abs(value - self.mean) > FAR * sqrt(self.squares / (self.n - 1)) > 0


def recorded(
    before: tuple[Spread, ...], metrics: Iterable[str], was: Mapping[str, Any] | None, now: Mapping[str, Any] | None
) -> tuple[Spread, ...]:
    """What is usual of each metric, after an outcome was recorded in the place of what was known of it."""
    found = []
    for spread, metric in zip(before, metrics, strict=True):
        for part in ("metrics", "control"):
            old = ((was or {}).get(part) or {}).get(metric)
            new = ((now or {}).get(part) or {}).get(metric)
            if old != new:
                spread = spread if old is None else spread.removed(old)
                spread = spread if new is None else spread.added(new)
        found.append(spread)
    return tuple(found)


def why(metric: Metric, spread: Spread, value: float) -> str | None:
    """What makes a value unlikely; None: nothing does."""
    reason = None
    if metric.range is not None:
        low, high = metric.range
        reason = None if low <= value <= high else f"is outside {low:g} to {high:g}, the range in the trial file"
    elif (reason := _anywhere(value)) is None and spread.far(value):
        reason = f"is far from the {spread.n} values recorded so far, which are around {spread.mean:.4g}"
    if reason is not None and value in MAYBE_CODES:
        reason += f"; if {value:g} stands for an outcome that is missing, leave it empty"
    return reason


def why_known(declared: Attribute | ContextField, value: float) -> str | None:
    """The same of a number that is known before a decision: it is compared with what the trial file calls typical."""
    typical, spread = declared.typical, declared.spread
    if typical is None or spread is None or (typical, spread) == _UNSAID:
        reason = _anywhere(value)
        return f"{reason}; leave it empty if it is one" if value in CODES and _optional(declared) else reason
    if abs(value - typical) <= FAR * spread:
        return None
    reason = f"is far from {typical:g}, which is typical by the trial file, with a spread of {spread:g}"
    hint = f"; if {value:g} stands for a value that is missing, leave it empty"
    return reason + hint if value in MAYBE_CODES and _optional(declared) else reason


def _optional(declared: Attribute | ContextField) -> bool:
    """Whether it may be left empty: a context is needed, and so is an attribute without a typical value."""
    return isinstance(declared, Attribute) and declared.typical is not None


def _anywhere(value: float) -> str | None:
    """What is unlikely of whatever is measured."""
    if value in CODES:
        return "is a common code for a value that is missing"
    return "is very large" if abs(value) >= HUGE else None


_UNSAID = (0.0, 1.0)  # typical and spread of a context field where the file says nothing
