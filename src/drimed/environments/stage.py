"""What every world is to a simulation, and the episode of worlds in which everybody decides at once.

A world yields blocks of consecutive episodes: offers, outcomes of what was done, and the mean reward of every arm.
Shapes: S seeds, n decisions of an episode, K arms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, final

from drimed.learning.offer import Offer, Outcome, Shape
from drimed.linear.arrays import FloatArray, IntArray

ALL = slice(None)  # users


class AnyBlock(Protocol):
    """Consecutive episodes of all worlds of a batch."""

    @property
    def world(self) -> AnyWorld: ...

    @property
    def start(self) -> int:
        """The number of its first episode."""

    @property
    def first(self) -> int:
        """The number of its first decision."""

    @property
    def episodes(self) -> int: ...

    @property
    def users(self) -> int:
        """Decisions in each of its episodes."""

    def offers(self, episode: int, users: slice = ALL) -> Offer:
        """Offers to the users of an episode, or to some of them: batch (S, n)."""

    def respond(self, episode: int, action: IntArray, users: slice = ALL) -> Outcome:
        """Their outcomes: (S, n)."""


class AnyWorld(Protocol):
    """A batch of worlds, one for each seed."""

    at_once: ClassVar[bool]  # outcomes come at the end of an episode, so that all of it is decided from one state

    @property
    def shape(self) -> Shape: ...

    @property
    def seeds(self) -> Sequence[int]: ...

    @property
    def episodes(self) -> int: ...

    def blocks(self) -> Iterator[Any]:
        """The whole run."""


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """A block of one episode."""

    start: int
    first: int
    offered: Offer  # (S, n)
    means: FloatArray  # (S, n, K), the mean reward of each arm
    outcomes: Callable[[IntArray], Outcome]
    world: AnyWorld

    episodes: ClassVar[int] = 1

    @property
    def users(self) -> int:
        """n."""
        return self.means.shape[1]

    def offers(self, episode: int, users: slice = ALL) -> Offer:
        """All decisions of its episode."""
        del episode, users
        return self.offered

    def respond(self, episode: int, action: IntArray, users: slice = ALL) -> Outcome:
        """The outcomes of its episode."""
        del episode, users
        return self.outcomes(action)
