"""What every benchmark shares: taking turns, medians with their range, and goals that are met or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

MICRO = 1e6  # microseconds in a second

Tick = Callable[[], None]  # called after each piece of work, for the progress bar


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of repeated measurements and how far they went; on a busy machine the range is half the message."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(median(values), min(values), max(values))

    def range(self, digits: int) -> str:
        """From the lowest to the highest value."""
        return f"{self.low:.{digits}f} .. {self.high:.{digits}f}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A candidate's seconds, and the yardstick's around them."""

    seconds: float
    plain: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One candidate beside the yardstick; a ratio is taken within each repeat, and then the median of the ratios."""

    name: str
    microseconds: Spread
    plain_microseconds: Spread
    ratio: Spread

    @classmethod
    def of(cls, name: str, pairs: Sequence[Pair], ratio: Callable[[Pair], float]) -> Comparison:
        """From one pair per repeat."""
        return cls(
            name,
            Spread.of([MICRO * pair.seconds for pair in pairs]),
            Spread.of([MICRO * pair.plain for pair in pairs]),
            Spread.of([ratio(pair) for pair in pairs]),
        )


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a ratio to the yardstick; the median decides, the range says how safely."""

    name: str
    ratio: Spread
    bound: float
    at_least: bool  # else: at most

    @property
    def met(self) -> bool:
        """Whether the median keeps the bound."""
        return self._keeps(self.ratio.median)

    @property
    def met_throughout(self) -> bool:
        """Whether every repeat keeps the bound."""
        return self._keeps(self.ratio.low if self.at_least else self.ratio.high)

    def _keeps(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


def in_turn(
    timed: Mapping[str, Callable[[], float]], yardstick: Callable[[], float], repeats: int, tick: Tick
) -> dict[str, list[Pair]]:
    """Seconds of each candidate, several times over; the yardstick runs just before and just after each of them.

    A candidate is paired with the mean of the two. Times are processor time, which leaves out the work of others; what
    they do to caches and clock speed slows both sides of a ratio alike.
    """
    pairs: dict[str, list[Pair]] = {name: [] for name in timed}
    before = yardstick()
    for _ in range(repeats):
        for name, candidate in timed.items():
            seconds = candidate()
            after = yardstick()
            pairs[name].append(Pair(seconds, (before + after) / 2))
            before = after
            tick()
    return pairs
