"""By which numbers the learner knows people, groups, blocks and the levels of categories.

They are counted in the order of appearance, so that they are a function of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from drimed.trial.covariates import Covariates, Values
from drimed.trial.layers import Layers

Newcomer = tuple[str, str | None, Values]  # name, group, attributes


@dataclass(frozen=True)
class Person:
    """Somebody, or some place, in numbers; -1 is unknown, or no group."""

    number: int
    group: int
    levels: tuple[int, ...]  # of the categories among its attributes
    covariates: tuple[float, ...]  # the other ones, standardised

    @staticmethod
    def unknown(covariates: Covariates) -> Person:
        """Nobody in particular: a typical user."""
        used = [c for c in covariates.attributes.values() if c.roles]
        categories = sum(c.levels is not None for c in used)
        return Person(-1, -1, (-1,) * categories, (0.0,) * (len(used) - categories))


@dataclass(frozen=True)
class Numbers:
    """What has appeared so far."""

    groups: Layers[str, int] = field(default_factory=Layers)
    blocks: Layers[str, int] = field(default_factory=Layers)  # "user/block" -> from 1; 0 is no block
    levels: Layers[str, Layers[str, int]] = field(default_factory=Layers)  # category -> level -> its number
    alone: int = 0  # how many are in no group

    @staticmethod
    def start(covariates: Covariates) -> Numbers:
        """The levels that the file declares."""
        declared = ((c.name, c.levels) for c in covariates.attributes.values() if c.levels is not None)
        return Numbers(levels=Layers({name: Layers({t: i for i, t in enumerate(texts)}) for name, texts in declared}))

    @property
    def places(self) -> int:
        """How many groups there are if whoever is in none counts as one."""
        return len(self.groups) + self.alone

    def joined(
        self, covariates: Covariates, newcomers: Iterable[Newcomer], first: int, *, alone: bool
    ) -> tuple[Numbers, list[Person]]:
        """With those who are new, numbered on from `first`.

        A user without a group is in none where somebody may be `alone`, and elsewhere a group of its own.
        """
        groups: dict[str, int] = {}
        levels = {category: (known, dict[str, int]()) for category, known in self.levels.items()}
        people = []
        for number, (name, group, values) in enumerate(newcomers, first):
            levels_of = tuple([_number(*levels[category], text) for category, text in covariates.texts(values)])
            key = f"user/{name}" if group is None else f"group/{group}"
            group_of = -1 if group is None and alone else _number(self.groups, groups, key)
            people.append(Person(number, group_of, levels_of, covariates.numbers(values)))
        more = ((category, known.with_items(new.items())) for category, (known, new) in levels.items() if new)
        grown = replace(
            self,
            groups=self.groups.with_items(groups.items()),
            levels=self.levels.with_items(more),
            alone=self.alone + sum(person.group < 0 for person in people),
        )
        return grown, people

    def with_blocks(self, keys: Iterable[str]) -> Numbers:
        """With the blocks that decisions name."""
        new = [key for key in dict.fromkeys(keys) if key not in self.blocks]
        if not new:
            return self
        return replace(self, blocks=self.blocks.with_items((k, len(self.blocks) + i) for i, k in enumerate(new, 1)))

    def block(self, user: str, block: str | None) -> int:
        """The number of a user's block."""
        return 0 if block is None else self.blocks.get(block_key(user, block), -1)


def _number(known: Mapping[str, int], new: dict[str, int], key: str) -> int:
    """The number of something, the next one if it is new."""
    return known[key] if key in known else new.setdefault(key, len(known) + len(new))


def block_key(user: str, block: str) -> str:
    """A block's name in the whole trial: names have no slashes."""
    return f"{user}/{block}"


def plot_key(user: str, plot: str | None) -> str:
    """A plot's name in the whole trial, or that of a user without plots."""
    return user if plot is None else f"{user}/{plot}"
