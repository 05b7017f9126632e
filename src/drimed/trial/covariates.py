"""Attributes of users and context fields as the learner's numbers, and the numbers of users, groups, blocks and levels.

Attributes come first, then context fields, each in the order of the file; attributes that the file does not declare
follow in the order in which users have them. Numbers and categories are counted apart. Users, groups, blocks and levels
are numbered in the order of their appearance, so that the numbers are a function of the log.
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
from drimed.trial.names import short
from drimed.trial.spec import LARGEST, TOO_LARGE, Attribute, Role, TrialSpec
from drimed.trial.store import Layers

ROLES: tuple[Role, ...] = ("level", "effects", "noise")

Values = Mapping[str, float | str]
NewUser = tuple[str, str | None, Values]  # name, group, attributes


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
    """The attributes and context fields of a trial.

    >>> spec = TrialSpec.read({"name": "t", "metrics": {"yield": {}}, "arms": {"old": {}, "new": {}}, "control": "old",
    ...     "preference": {"yield": 1.0}, "users": {"a": {"attributes": {"ph": 6.0, "soil": "sand"}},
    ...     "b": {"attributes": {"ph": 7.0, "soil": "loam"}}}, "tolerance": {"absolute": 0.1}})
    >>> [(c.name, c.typical, c.levels) for c in Covariates(spec).attributes.values()]
    [('ph', 6.5, None), ('soil', 0.0, ())]
    """

    def __init__(self, spec: TrialSpec) -> None:
        self.attributes = {c.name: c for c in _attributes(spec)}
        default: list[Role] = ["noise"] if spec.kind == "paper" else ["level", "effects"]
        self.fields = {
            name: Covariate(name, roles, levels=tuple(f.levels))
            if f.levels is not None
            else Covariate(name, roles, f.typical, f.spread)
            for name, f in spec.context.items()
            for roles in [_roles(f.affects, default)]
        }

    @cached_property
    def counted(self) -> tuple[list[Covariate], list[Covariate]]:
        """The numbers and the categories that the learner uses."""
        used = [c for c in (*self.attributes.values(), *self.fields.values()) if c.roles]
        return [c for c in used if c.levels is None], [c for c in used if c.levels is not None]

    @cached_property
    def _own(self) -> tuple[list[Covariate], list[Covariate]]:
        """Those of `counted` that are attributes."""
        numbers, categories = self.counted
        return [c for c in numbers if c.name in self.attributes], [c for c in categories if c.name in self.attributes]

    def faults(self, values: Values, at: Path) -> Iterator[Fault]:
        """Faults of a user's attributes."""
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
        """A user's numerical attributes, standardised."""
        return tuple([(float(values.get(c.name, c.typical)) - c.typical) / c.spread for c in self._own[0]])

    def texts(self, values: Values) -> Iterator[tuple[str, str]]:
        """A user's categories and their levels."""
        return ((c.name, str(values[c.name])) for c in self._own[1])

    def context(self, values: Mapping[str, Any] | None, at: Path = ()) -> FloatArray | None:
        """A context as it is recorded, in the order of the file: (D,). A level is recorded by its number."""
        names = list(self.fields)
        if not names:
            if values:
                raise UnknownNameError("context field", next(iter(values)), (), at)
            return None
        if values is None:
            raise InputError(f"a context is needed: {', '.join(names)}", at)
        if not isinstance(values, Mapping):
            raise InputError(f"a context must be a table of {', '.join(names)}, got {values!r}", at)
        for name in values:
            if name not in self.fields:
                raise UnknownNameError("context field", name, names, (*at, name))
        if missing := [f for f in names if f not in values]:
            raise InputError(f"context {missing[0]!r} is missing; expected {', '.join(names)}", at)
        return np.array([_recorded(c, values[c.name], (*at, c.name)) for c in self.fields.values()])

    @cached_property
    def typical(self) -> FloatArray | None:
        """The typical context: (D,); of a category the first level."""
        return np.array([c.typical for c in self.fields.values()]) if self.fields else None

    def standard(self, context: FloatArray) -> FloatArray:
        """(value - typical) / spread of every field: (..., D)."""
        fields = self.fields.values()
        return (context - np.array([c.typical for c in fields])) / np.array([c.spread for c in fields])

    def split(self, context: FloatArray) -> tuple[FloatArray, IntArray]:
        """The standardised numbers that the learner uses, and the levels: (..., c) and (..., n)."""
        used = [(i, c) for i, c in enumerate(self.fields.values()) if c.roles]
        numbers = [i for i, c in used if c.levels is None]
        levels = [i for i, c in used if c.levels is not None]
        return self.standard(context)[..., numbers], context[..., levels].astype(np.intp)


def _roles(affects: Iterable[Role] | None, default: Iterable[Role]) -> str:
    declared = set(default if affects is None else affects)
    return " ".join(role for role in ROLES if role in declared)


def _attributes(spec: TrialSpec) -> Iterator[Covariate]:
    """Attributes as declared; what is left out follows from the users in the file."""
    values_of: dict[str, list[float | str]] = {name: [] for name in spec.attributes}
    for user in spec.users.values():
        for name, value in (user.attributes or {}).items():
            values_of.setdefault(name, []).append(value)
    for name, values in values_of.items():
        declared = spec.attributes.get(name, Attribute())
        roles = _roles(declared.affects, ("level", "effects"))
        is_number = declared.typical is not None or declared.spread is not None
        if declared.levels is not None or (not is_number and any(isinstance(v, str) for v in values)):
            yield Covariate(name, roles, levels=tuple(declared.levels or ()))
            continue
        numbers = np.array([v for v in values if not isinstance(v, str)])
        typical, spread = declared.typical, declared.spread
        if typical is None:
            typical = float(numbers.mean()) if len(numbers) else 0.0
        if spread is None:
            spread = float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0
        yield Covariate(name, roles, typical, spread or 1.0, needed=declared.typical is None)


def _recorded(field: Covariate, value: object, at: Path) -> float:
    if field.levels is None:
        return number(f"context {field.name!r}", value, at)
    if not isinstance(value, str):
        raise InputError(f"context {field.name!r} must be one of {', '.join(field.levels)}, got {value!r}", at)
    if value not in field.levels:
        raise UnknownNameError(f"level of {field.name!r}", value, field.levels, at)
    return float(field.levels.index(value))


def number(what: str, value: object, at: Path = ()) -> float:
    """A value that came in, if it is a number that can be calculated with."""
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{what} must be a finite number, got {value!r}", at)
    if not -LARGEST <= value <= LARGEST:
        wrong = TOO_LARGE if abs(value) < np.inf else "must be a finite number"
        raise InputError(f"{what} {wrong}, got {short(value)}", at)
    return float(value)


def alike(one: float | str, other: float | str) -> bool:
    """True if two values are equal, as far as spreadsheets keep the digits of numbers.

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


# Numbers of users, groups, blocks and levels


@dataclass(frozen=True)
class IndexedUnit:
    """A user in numbers; -1 is unknown, or no group."""

    number: int
    group: int
    levels: tuple[int, ...]  # of the categories among its attributes
    covariates: tuple[float, ...]  # the other ones, standardised

    @staticmethod
    def unknown(covariates: Covariates) -> IndexedUnit:
        """A typical user that has not joined."""
        numbers, categories = covariates._own
        return IndexedUnit(-1, -1, (-1,) * len(categories), (0.0,) * len(numbers))


@dataclass(frozen=True)
class UnitIndex:
    """The numbers of all groups, blocks and levels so far."""

    groups: Layers[str, int] = field(default_factory=Layers)
    blocks: Layers[str, int] = field(default_factory=Layers)  # "user/block" -> from 1; 0 is no block
    levels: Layers[str, Layers[str, int]] = field(default_factory=Layers)  # category -> level -> its number
    alone: int = 0  # how many users are in no group

    @staticmethod
    def start(covariates: Covariates) -> UnitIndex:
        """The levels that the file declares."""
        declared = ((c.name, c.levels) for c in covariates.attributes.values() if c.levels is not None)
        return UnitIndex(levels=Layers({name: Layers({t: i for i, t in enumerate(texts)}) for name, texts in declared}))

    @property
    def places(self) -> int:
        """The number of groups, where a user in none counts as one."""
        return len(self.groups) + self.alone

    def joined(
        self, covariates: Covariates, users: Iterable[NewUser], first: int, *, alone: bool
    ) -> tuple[UnitIndex, list[IndexedUnit]]:
        """The index with new users, numbered on from `first`.

        A user without a group is in none where users may be `alone`, and elsewhere a group of its own.
        """
        groups: dict[str, int] = {}
        levels = {category: (known, dict[str, int]()) for category, known in self.levels.items()}
        units = []
        for number, (name, group, values) in enumerate(users, first):
            levels_of = tuple([_next_number(*levels[category], text) for category, text in covariates.texts(values)])
            key = f"user/{name}" if group is None else f"group/{group}"
            group_of = -1 if group is None and alone else _next_number(self.groups, groups, key)
            units.append(IndexedUnit(number, group_of, levels_of, covariates.numbers(values)))
        more = ((category, known.with_items(new.items())) for category, (known, new) in levels.items() if new)
        index = replace(
            self,
            groups=self.groups.with_items(groups.items()),
            levels=self.levels.with_items(more),
            alone=self.alone + sum(unit.group < 0 for unit in units),
        )
        return index, units

    def with_blocks(self, keys: Iterable[str]) -> UnitIndex:
        """The index with the blocks that decisions name."""
        new = [key for key in dict.fromkeys(keys) if key not in self.blocks]
        if not new:
            return self
        return replace(self, blocks=self.blocks.with_items((k, len(self.blocks) + i) for i, k in enumerate(new, 1)))

    def block(self, user: str, block: str | None) -> int:
        """The number of a user's block."""
        return 0 if block is None else self.blocks.get(block_key(user, block), -1)


def _next_number(known: Mapping[str, int], new: dict[str, int], key: str) -> int:
    """The number of a key; the next one if it is new."""
    return known[key] if key in known else new.setdefault(key, len(known) + len(new))


def block_key(user: str, block: str) -> str:
    """A block's name in the whole trial: names have no slashes."""
    return f"{user}/{block}"


def plot_key(user: str, plot: str | None) -> str:
    """A plot's name in the whole trial, or that of a user without plots."""
    return user if plot is None else f"{user}/{plot}"
