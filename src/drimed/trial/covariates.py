"""What is known about users and before decisions, as the learner's numbers: covariates, and levels of categories.

Attributes of users come first, then context fields, each in the order of the file; those that nobody declared follow in
the order in which users have them. Numbers and categories are counted apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isclose
from typing import Any

import numpy as np

from drimed.errors import InputError, UnknownNameError
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.records import Fault, Path
from drimed.trial.layers import Layers
from drimed.trial.sentences import short
from drimed.trial.spec import LARGEST, TOO_LARGE, Attribute, ContextField, TrialSpec

Values = Mapping[str, float | str]


@dataclass(frozen=True)
class Covariate:
    """A number, of which (value - typical) / spread counts; or a category, which has levels."""

    name: str
    roles: str  # what it affects, such as "level effects"; empty: nothing
    typical: float = 0.0
    spread: float = 1.0
    needed: bool = True  # whether a user must have it: there is no typical value to take instead
    levels: tuple[str, ...] | None = None  # as declared; None: a number

    def recorded(self, value: float) -> float | str:
        """A recorded number of a context, as it was given."""
        return value if self.levels is None else self.levels[int(value)]


class Covariates:
    """All of a trial's.

    >>> spec = TrialSpec.read({"name": "t", "metrics": {"yield": {}}, "arms": {"old": {}, "new": {}}, "control": "old",
    ...     "preference": {"yield": 1.0}, "users": {"a": {"attributes": {"ph": 6.0, "soil": "sand"}},
    ...     "b": {"attributes": {"ph": 7.0, "soil": "loam"}}}, "tolerance": {"absolute": 0.1}})
    >>> [(c.name, c.typical, c.levels) for c in Covariates(spec).attributes.values()]
    [('ph', 6.5, None), ('soil', 0.0, ())]
    """

    def __init__(self, spec: TrialSpec) -> None:
        self.attributes = {c.name: c for c in _attributes(spec)}
        usual = ["noise"] if spec.kind == "paper" else ["level", "effects"]
        self.fields = {name: _field(name, f, usual) for name, f in spec.context.items()}

    @cached_property
    def counted(self) -> tuple[list[Covariate], list[Covariate]]:
        """Those that the learner looks at: numbers, and categories."""
        used = [c for c in (*self.attributes.values(), *self.fields.values()) if c.roles]
        return [c for c in used if c.levels is None], [c for c in used if c.levels is not None]

    def faults(self, values: Values, at: Path) -> Iterator[Fault]:
        """What is wrong with somebody's attributes."""
        for name, value in values.items():
            known = self.attributes.get(name)
            if known is None:
                hint = f"; declare it under [attributes.{name}] when the trial is created"
                yield Fault((*at, name), str(UnknownNameError("attribute", name, self.attributes)) + hint)
            elif isinstance(value, str) != (known.levels is not None):
                wanted = "a number" if known.levels is None else "a text, one of the levels of a category"
                yield Fault((*at, name), f"must be {wanted}, got {value!r}")
        for name, known in self.attributes.items():
            if known.roles and known.needed and name not in values:
                fix = " or, when the trial is created, declare a typical value, which is then taken"
                yield Fault((*at, name), f"attribute {name!r} is missing: give it{fix if known.levels is None else ''}")

    def numbers(self, values: Values) -> tuple[float, ...]:
        """Somebody's numerical attributes, standardised."""
        return tuple([(float(values.get(c.name, c.typical)) - c.typical) / c.spread for c in self._own[0]])

    def texts(self, values: Values) -> Iterator[tuple[str, str]]:
        """Somebody's categories and their levels."""
        return ((c.name, str(values[c.name])) for c in self._own[1])

    @cached_property
    def _own(self) -> tuple[list[Covariate], list[Covariate]]:
        """Those of `counted` that are attributes."""
        numbers, categories = self.counted
        return [c for c in numbers if c.name in self.attributes], [c for c in categories if c.name in self.attributes]

    # Context fields

    def context(self, values: Mapping[str, Any] | None, field: Path = ()) -> FloatArray | None:
        """A context as it is recorded, as the file declares it: (D,). A level is recorded by its number."""
        names = list(self.fields)
        if not names:
            if values:
                raise UnknownNameError("context field", next(iter(values)), (), field)
            return None
        if values is None:
            raise InputError(f"a context is needed: {', '.join(names)}", field)
        if not isinstance(values, Mapping):
            raise InputError(f"a context must be a table of {', '.join(names)}, got {values!r}", field)
        for name in values:
            if name not in self.fields:
                raise UnknownNameError("context field", name, names, (*field, name))
        missing = [f for f in names if f not in values]
        if missing:
            raise InputError(f"context {missing[0]!r} is missing; expected {', '.join(names)}", field)
        return np.array([_recorded(c, values[c.name], (*field, c.name)) for c in self.fields.values()])

    @cached_property
    def typical(self) -> FloatArray | None:
        """The typical context: (D,); of a category the first level."""
        return np.array([c.typical for c in self.fields.values()]) if self.fields else None

    def standard(self, context: FloatArray) -> FloatArray:
        """(value - typical) / spread of every field: (..., D)."""
        _, (typical, spread), _ = self._columns
        return (context - typical) / spread

    def split(self, context: FloatArray) -> tuple[FloatArray, IntArray]:
        """The standardised numbers that the learner looks at, and the levels: (..., c) and (..., n)."""
        numbers, _, levels = self._columns
        return self.standard(context)[..., numbers], context[..., levels].astype(np.intp)

    @cached_property
    def _columns(self) -> tuple[list[int], tuple[FloatArray, FloatArray], list[int]]:
        fields = list(self.fields.values())
        used = [i for i, c in enumerate(fields) if c.roles]
        scale = np.array([c.typical for c in fields]), np.array([c.spread for c in fields])
        numbers = [i for i in used if fields[i].levels is None]
        return numbers, scale, [i for i in used if fields[i].levels is not None]


def alike(one: float | str, other: float | str) -> bool:
    """Whether two values are one, as far as spreadsheets keep the digits of numbers.

    >>> alike(430.0, 430), alike(412.34567890123, 412.3456789), alike(430.0, 431.0), alike("sand", "loam")
    (True, True, False, False)
    """
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return isclose(one, other, rel_tol=1e-8)


def shown(value: float | str) -> str:
    """A value in a message.

    >>> shown(430.0), shown("sand")
    ('430', "'sand'")
    """
    return repr(value) if isinstance(value, str) else f"{value:.12g}"


def number(what: str, value: object, field: Path = ()) -> float:
    """A value that was handed in, if it is a number that can be calculated with."""
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{what} must be a finite number, got {value!r}", field)
    if not -LARGEST <= value <= LARGEST:
        wrong = TOO_LARGE if abs(value) < np.inf else "must be a finite number"
        raise InputError(f"{what} {wrong}, got {short(value)}", field)
    return float(value)


def _recorded(field: Covariate, value: object, at: Path) -> float:
    if field.levels is None:
        return number(f"context {field.name!r}", value, at)
    if not isinstance(value, str):
        raise InputError(f"context {field.name!r} must be one of {', '.join(field.levels)}, got {value!r}", at)
    if value not in field.levels:
        raise UnknownNameError(f"level of {field.name!r}", value, field.levels, at)
    return float(field.levels.index(value))


def _field(name: str, field: ContextField, usual: list[str]) -> Covariate:
    roles = " ".join(_in_order(usual if field.affects is None else field.affects))
    if field.levels is not None:
        return Covariate(name, roles, levels=tuple(field.levels))
    return Covariate(name, roles, field.typical, field.spread)


def _attributes(spec: TrialSpec) -> Iterator[Covariate]:
    """As declared; what was left out follows from the users in the file."""
    given: dict[str, list[float | str]] = {name: [] for name in spec.attributes}
    for user in spec.users.values():
        for name, value in (user.attributes or {}).items():
            given.setdefault(name, []).append(value)
    for name, values in given.items():
        declared = spec.attributes.get(name, Attribute())
        roles = " ".join(_in_order(("level", "effects") if declared.affects is None else declared.affects))
        is_number = declared.typical is not None or declared.spread is not None
        if declared.levels is not None or (not is_number and any(isinstance(v, str) for v in values)):
            yield Covariate(name, roles, levels=tuple(declared.levels or ()))
            continue
        known = np.array([v for v in values if not isinstance(v, str)])
        typical = declared.typical if declared.typical is not None else float(known.mean()) if len(known) else 0.0
        spread = declared.spread
        if spread is None:
            spread = float(known.std(ddof=1)) if len(known) > 1 else 0.0
        yield Covariate(name, roles, typical, spread or 1.0, needed=declared.typical is None)


def _in_order(roles: Iterable[str]) -> list[str]:
    found = set(roles)
    return [role for role in ("level", "effects", "noise") if role in found]


# By which numbers the learner knows people, groups, blocks and the levels of categories.

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
