"""What a decision should look like: a few dictionaries that the random lives of a trial are compared with."""

from __future__ import annotations

from typing import Any

from drimed.records import Decision

Values = dict[str, Any]

METRICS = ("yield", "cost")
RANGE = (0.0, 10.0)  # of yield; cost has none


def present(values: Values) -> dict[str, float]:
    return {m: v for m, v in values.items() if v is not None}


class Decided:
    """One decision, in the model."""

    def __init__(self, given: Decision, preference: dict[str, float], *, difference: bool) -> None:
        self.given, self.preference, self.difference = given, preference, difference
        self.values: dict[str, float] = {}
        self.plot: dict[str, float] = {}  # the control plot's
        self.given_up = False
        self.amendments = 0

    @property
    def told(self) -> bool:
        return bool(self.values or self.plot)

    @property
    def parts(self) -> list[dict[str, float]]:
        return [self.values, self.plot] if self.difference else [self.values]

    @property
    def state(self) -> str:
        if all(m in part for part in self.parts for m in METRICS):
            return "complete"
        return "missing" if self.given_up else "partial" if self.told else "pending"

    @property
    def reward(self) -> float | None:
        counted = {m: w for m, w in self.preference.items() if w}
        if not self.told or not all(m in part for part in self.parts for m in counted):
            return None
        return sum(w * (self.values[m] - (self.plot[m] if self.difference else 0.0)) for m, w in counted.items())

    def contradicts(self, values: Values, plot: Values) -> bool:
        both = ((self.values, values), (self.plot, plot))
        return any(m in old and old[m] != v for old, new in both for m, v in new.items())

    def unlikely(self, values: Values, plot: Values) -> list[tuple[str, str]]:
        """Values that must be confirmed: which part, which metric."""
        both = (("outcome", self.values, values), ("control", self.plot, plot))
        return [
            (part, m)
            for part, old, new in both
            for m, v in new.items()
            if m == "yield" and v is not None and not RANGE[0] <= v <= RANGE[1] and old.get(m) != v
        ]

    def take(self, values: Values, plot: Values) -> bool:
        """Whether that is news."""
        if self.values | values == self.values and self.plot | plot == self.plot:
            return False
        self.values, self.plot, self.given_up = self.values | values, self.plot | plot, False
        return True
