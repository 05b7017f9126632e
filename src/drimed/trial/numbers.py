"""By which numbers the learner knows people, groups, blocks and the levels of categories.

They are counted in the order of appearance, so that they are a function of the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from drimed.linear.arrays import FloatArray, IntArray
from drimed.trial.covariates import Covariates
from drimed.trial.layers import Layers
from drimed.trial.parts import User


@dataclass(frozen=True)
class Person:
    """Somebody, or some place, in numbers; -1 is unknown."""

    number: int
    group: int
    levels: IntArray  # (n,), of the categories among its attributes
    covariates: FloatArray  # (c,), the other ones, standardised

    @staticmethod
    def unknown(covariates: Covariates) -> Person:
        """Nobody in particular: a typical user."""
        used = [c for c in covariates.attributes.values() if c.roles]
        categories = sum(c.levels is not None for c in used)
        return Person(-1, -1, np.full(categories, -1, np.intp), np.zeros(len(used) - categories))


@dataclass(frozen=True)
class Numbers:
    """What has appeared so far."""

    groups: Layers[str, int] = field(default_factory=Layers)
    blocks: Layers[str, int] = field(default_factory=Layers)  # "user/block" -> from 1; 0 is no block
    levels: Layers[str, Layers[str, int]] = field(default_factory=Layers)  # category -> level -> its number

    @staticmethod
    def start(covariates: Covariates) -> Numbers:
        """The levels that the file declares."""
        declared = ((c.name, c.levels) for c in covariates.attributes.values() if c.levels is not None)
        return Numbers(levels=Layers({name: Layers({t: i for i, t in enumerate(texts)}) for name, texts in declared}))

    def joined(self, covariates: Covariates, name: str, user: User, number: int) -> tuple[Numbers, Person]:
        """With somebody new, whose definition is resolved: a user without a group is a group of its own."""
        key = f"user/{name}" if user.group is None else f"group/{user.group}"
        group = self.groups.get(key, len(self.groups))
        groups = self.groups if key in self.groups else self.groups.with_items([(key, group)])
        levels, mine, values = self.levels, [], user.attributes or {}
        for category, text in covariates.texts(values):
            known = levels[category]
            if text not in known:
                known = known.with_items([(text, len(known))])
                levels = levels.with_items([(category, known)])
            mine.append(known[text])
        person = Person(number, group, np.array(mine, np.intp), covariates.numbers(values))
        return replace(self, groups=groups, levels=levels), person

    def with_blocks(self, keys: Iterable[str]) -> Numbers:
        """With the blocks that decisions name."""
        new = [key for key in dict.fromkeys(keys) if key not in self.blocks]
        if not new:
            return self
        return replace(self, blocks=self.blocks.with_items((k, len(self.blocks) + i) for i, k in enumerate(new, 1)))

    def block(self, user: str, block: str | None) -> int:
        """The number of a user's block."""
        return 0 if block is None else self.blocks.get(block_key(user, block), -1)


def block_key(user: str, block: str) -> str:
    """A block's name in the whole trial: names have no slashes."""
    return f"{user}/{block}"


def plot_key(user: str, plot: str | None) -> str:
    """A plot's name in the whole trial, or that of a user without plots."""
    return user if plot is None else f"{user}/{plot}"
