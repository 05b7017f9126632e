"""A trial as numbers: covariates, users, groups, blocks and levels, the offers to users, and the policy.

Mixed models see one coefficient for each arm and metric, and where a decision is taken. For the paper's model metrics
are divided by their size (the plausible range) and preferences multiplied by it, so that rewards keep the user's unit
while every coefficient is of size one. Covariates are in the order of the file, attributes first; users, groups, blocks
and levels are numbered in the order of their appearance, so that the numbers are a function of the log.

Shapes: K arms there is room for, unavailable until they are added; M metrics, d coefficients, r attributes of arms, n
decisions at a time, D context fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isclose, nan, sqrt
from typing import Any, TypeVar, final, get_args

import numpy as np
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from drimed.errors import ConfigError, ConflictError, InputError, UnknownNameError
from drimed.models.linear_regression import Learner
from drimed.models.mixed.learner import Field
from drimed.models.mixed.terms import dose_columns
from drimed.models.offer import Offer, Shape, Unit, quadratic, whiten
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.guards.base import Guardrail
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy, Traits, to_arrays
from drimed.policies.registry import find, make
from drimed.policies.rules.base import Floors
from drimed.records import Fault, Path
from drimed.trial import spec as trial_file
from drimed.trial.spec import LARGEST, SMALLEST, Attribute, Cohort, Metric, TrialSpec, User, short

ROLES: tuple[trial_file.Role, ...] = ("level", "effects", "noise")
FEWEST_USERS = 16  # room for users is doubled when it is used up, so that joining costs little
DEPARTURE = 0.5  # arms differ from each other by less than levels do from zero: half as much, before any data
EVEN_SHARE = 0.5  # of the probability that all arms have alike where the goal is to find out about each
PRIOR_DEVIATION = 0.5  # of a coefficient of the paper's model, in units of its metric's size

Values = Mapping[str, float | str]
NewUser = tuple[str, str | None, Values]  # name, group, attributes
K = TypeVar("K")
V = TypeVar("V")


@final
class Layers(Mapping[K, V]):
    """An immutable mapping in the order of insertion; a changed copy shares almost everything with the original.

    It is a stack of dictionaries, each at most half as large as the one below: adding an entry costs O(log n) on
    average, and looking one up at most log2(n) steps.

    >>> one = Layers({"a": 1})
    >>> two = one.with_items([("b", 2), ("a", 3)])
    >>> dict(one), dict(two)
    ({'a': 1}, {'a': 3, 'b': 2})
    """

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        base = dict(items)
        self._layers: tuple[dict[K, V], ...] = (base,) if base else ()
        self._length = len(base)

    def with_items(self, items: Iterable[tuple[K, V]]) -> Layers[K, V]:
        """A copy with more entries, or others in their place."""
        top = dict(items)
        new: Layers[K, V] = Layers()
        new._length = self._length + sum(key not in self for key in top)
        layers = list(self._layers)
        while layers and 2 * len(top) > len(layers[-1]):
            top = layers.pop() | top
        new._layers = (*layers, top) if top else self._layers
        return new

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        as_dict = core_schema.plain_serializer_function_ser_schema(dict)
        entries = handler(dict.__class_getitem__(get_args(source)))
        return core_schema.no_info_after_validator_function(cls, entries, serialization=as_dict)

    def __getitem__(self, key: K) -> V:
        for layer in reversed(self._layers):
            if key in layer:
                return layer[key]
        raise KeyError(key)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[K]:
        merged: dict[K, V] = {}
        for layer in self._layers:
            merged |= layer
        return iter(merged)


# Attributes and context fields


@dataclass(frozen=True)
class Covariate:
    """A number, of which (value - typical) / spread counts; or a category, which has levels."""

    name: str
    roles: str  # what it affects, such as "level effects"; empty: nothing
    typical: float = 0.0
    spread: float = 1.0
    needed: bool = True  # whether a user must have it: there is no typical value to take instead
    levels: Sequence[str] | None = None  # as declared, empty where none are; None: a number

    def recorded(self, value: float) -> float | str:
        """A recorded number of a context, as it was given."""
        return value if self.levels is None else self.levels[int(value)]

    def record(self, value: object, at: Path) -> float:
        """A value of a context as it is recorded: a level by its number."""
        if self.levels is None:
            return number(f"context {self.name!r}", value, at)
        if not isinstance(value, str):
            raise InputError(f"context {self.name!r} must be one of {', '.join(self.levels)}, got {value!r}", at)
        if value not in self.levels:
            raise UnknownNameError(f"level of {self.name!r}", value, self.levels, at)
        return float(self.levels.index(value))


class Covariates:
    """The attributes and context fields of a trial."""

    def __init__(self, spec: TrialSpec) -> None:
        self.attributes = {c.name: c for c in _attributes(spec)}
        default: list[trial_file.Role] = ["noise"] if spec.kind == "paper" else ["level", "effects"]
        self.fields = {
            name: Covariate(name, _roles(f.affects, default), f.typical, f.spread, levels=f.levels)
            for name, f in spec.context.items()
        }
        used = [c for c in (*self.attributes.values(), *self.fields.values()) if c.roles]
        # The numbers and the categories that the learner uses, and those of them that are attributes.
        self.counted = [c for c in used if c.levels is None], [c for c in used if c.levels is not None]
        self.own = tuple([c for c in some if c.name in self.attributes] for some in self.counted)
        typical = [c.typical for c in self.fields.values()]
        self.typical = np.array(typical) if typical else None  # (D,), the typical context; of a category level 0

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
            elif known.levels and value not in known.levels:
                yield Fault((*at, name), str(UnknownNameError(f"level of {name!r}", str(value), known.levels)))
        for name, known in self.attributes.items():
            if known.roles and known.needed and name not in values:
                fix = " or, when the trial is created, declare a typical value, which is then taken"
                yield Fault((*at, name), f"attribute {name!r} is missing: give it{fix if known.levels is None else ''}")

    def context(self, values: Mapping[str, Any] | None, at: Path = ()) -> FloatArray | None:
        """A context as it is recorded, in the order of the file: (D,)."""
        names = ", ".join(self.fields)
        if not names and not values:
            return None
        if not isinstance(values, Mapping):
            raise InputError(f"a context must be a table of {names}, got {values!r}", at)
        for name in values:
            if name not in self.fields:
                raise UnknownNameError("context field", name, self.fields, (*at, name))
        if missing := [name for name in self.fields if name not in values]:
            raise InputError(f"context {missing[0]!r} is missing; expected {names}", at)
        return np.array([c.record(values[name], (*at, name)) for name, c in self.fields.items()])

    def standard(self, context: FloatArray) -> FloatArray:
        """(value - typical) / spread of every field: (..., D)."""
        typical, spread = np.array([(c.typical, c.spread) for c in self.fields.values()]).T
        return (context - typical) / spread

    def split(self, context: FloatArray) -> tuple[FloatArray, IntArray]:
        """The standardised numbers that the learner uses, and the levels: (..., c) and (..., n)."""
        numbers, levels = ([i for i, c in enumerate(self.fields.values()) if c in some] for some in self.counted)
        return self.standard(context)[..., numbers], context[..., levels].astype(np.intp)


def _roles(affects: Iterable[trial_file.Role] | None, default: Iterable[trial_file.Role]) -> str:
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
        roles, typical, spread = _roles(declared.affects, ("level", "effects")), declared.typical, declared.spread
        is_number = typical is not None or spread is not None
        if declared.levels is not None or (not is_number and any(isinstance(v, str) for v in values)):
            yield Covariate(name, roles, levels=declared.levels or ())
            continue
        numbers = np.array([v for v in values if not isinstance(v, str)])
        if typical is None:
            typical = float(numbers.mean()) if len(numbers) else 0.0
        if spread is None:
            spread = float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0
        yield Covariate(name, roles, typical, spread or 1.0, needed=declared.typical is None)


YES = (1, "1", "yes", "y", "true", "ja", "j", "oui", "si", "sí")  # True is 1
NO = (0, "0", "no", "n", "false", "nein", "non")
_SIZED = re.compile(r"(\d+(?:[.,]\d+)?)\s*(?:of|in|out of|/|von|sur|de)\s*(\d+(?:[.,]\d+)?)")


def number(what: str, value: object, at: Path = ()) -> float:
    """A value that came in, if it is a number that can be calculated with."""
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{what} must be a finite number, got {value!r}", at)
    if not -LARGEST <= value <= LARGEST:
        wrong = trial_file.TOO_LARGE if abs(value) < np.inf else "must be a finite number"
        raise InputError(f"{what} {wrong}, got {short(value)}", at)
    return float(value)


def size_key(metric: str) -> str:
    """The name of the size of an outcome beside that of its metric: 20 in "7 of 20"."""
    return f"{metric} of"


def below_key(metric: str) -> str:
    """The name under which a limit of detection is recorded in place of a value below it."""
    return f"{metric} below"


def keys_of(metrics: Iterable[str]) -> list[str]:
    """All names under which an outcome of these metrics may be recorded, in their order."""
    return [key for m in metrics for key in (m, size_key(m), below_key(m))]


def read_outcome(name: str, metric: Metric, value: object, at: Path = ()) -> dict[str, float | None]:
    """A value of a metric as people write it, as it is recorded: a share or a rate, and the size that it is of.

    >>> read_outcome("cure", Metric(kind="yes/no"), "Ja"), read_outcome("cure", Metric(kind="yes/no"), False)
    ({'cure': 1.0}, {'cure': 0.0})
    >>> read_outcome("seeds", Metric(kind="yes/no", of="seeds"), "7 of 20")
    {'seeds': 0.35, 'seeds of': 20.0}
    """
    text = str(value).strip().casefold() if isinstance(value, str | bool) else ""
    if metric.detection is not None and value is not None:
        if text and "".join(text.split()).replace(",", ".") == f"<{metric.detection:.12g}":
            return {name: None, below_key(name): metric.detection}
        if text or (isinstance(value, int | float) and value < metric.detection):
            limit = f"<{metric.detection:.12g}"
            raise InputError(f"{name} must be a number from its limit of detection, or {limit!r}, got {value!r}", at)
    if metric.kind == "number" or value is None:
        return {name: None if value is None else number(name, value, at)}
    if metric.of is not None:
        parts = _SIZED.fullmatch(text)
        total, size = (float(part.replace(",", ".")) for part in parts.groups()) if parts else (-1.0, 0.0)
        whole = total.is_integer() and (metric.kind == "count" or (size.is_integer() and total <= size))
        if not (whole and total >= 0 and 0 < size <= LARGEST):
            like = "7 of 20" if metric.kind == "yes/no" else "12 in 3.5"
            raise InputError(f"{name} needs its number of {metric.of}, such as {like!r}, got {value!r}", at)
        return {name: total / size, size_key(name): size}
    if metric.kind == "yes/no":
        if (text or value) in YES:
            return {name: 1.0}
        if (text or value) in NO:
            return {name: 0.0}
        raise InputError(f"{name} is yes or no: expected yes, no, 1 or 0, got {value!r}", at)
    told, got = nan, short(value)
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        with suppress(OverflowError):  # more digits than a number holds
            told, got = float(value), shown(float(value))
    low, high = metric.limits
    if metric.kind == "count" and not (low <= told <= LARGEST and told.is_integer()):
        raise InputError(f"{name} is a count: expected a whole number from 0, got {got}", at)
    if metric.kind == "score" and not low <= told <= high:
        raise InputError(f"{name} is a score from {low:g} to {high:g}, got {got}", at)
    return {name: told}


def outcome_text(name: str, metric: Metric, values: Mapping[str, float]) -> str:
    """A recorded value as people write it.

    >>> outcome_text("seeds", Metric(kind="yes/no", of="seeds"), {"seeds": 0.35, "seeds of": 20.0})
    '7 of 20'
    """
    if name not in values:
        return f"<{values[below_key(name)]:.12g}" if below_key(name) in values else ""
    value, size = values[name], values.get(size_key(name))
    if size is not None:
        return f"{round(value * size):d} {'in' if metric.kind == 'count' else 'of'} {size:.12g}"
    return ("yes" if value else "no") if metric.kind == "yes/no" else f"{value:.12g}"


def alike(one: float | str, other: float | str) -> bool:
    """True if two values are equal, as far as spreadsheets keep the digits of numbers.

    >>> alike(430.0, 430), alike(412.34567890123, 412.3456789), alike(430.0, 431.0), alike("sand", "loam")
    (True, True, False, False)
    """
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return isclose(one, other, rel_tol=1e-8)


def shown(value: float | str) -> str:
    """A value in a message."""
    return repr(value) if isinstance(value, str) else f"{value:.12g}"


# Numbers of users, groups, blocks and levels


@dataclass(frozen=True)
class IndexedUnit:
    """A user in numbers; -1 is unknown, or no group."""

    number: int
    group: int
    member: int  # its number within the group
    levels: tuple[int, ...]  # of the categories among its attributes
    covariates: tuple[float, ...]  # the other ones, standardised


@dataclass(frozen=True)
class UnitIndex:
    """The numbers of all groups, blocks and levels so far."""

    groups: Layers[str, int] = field(default_factory=Layers)
    members: Layers[int, int] = field(default_factory=Layers)  # group -> how many users it has
    blocks: Layers[str, int] = field(default_factory=Layers)  # "user/block" -> of the user's, from 1; 0 is no block
    blocks_of: Layers[str, int] = field(default_factory=Layers)  # user -> how many blocks it has
    levels: Layers[str, Layers[str, int]] = field(default_factory=Layers)  # category -> level -> its number
    alone: int = 0  # how many users are in no group
    past: Layers[str, IndexedUnit] = field(default_factory=Layers)  # of the history, if they were no users then

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
        """The index with new users, numbered on after `first` users and the units of the history.

        A user without a group is in none where users may be `alone`, and elsewhere a group of its own. One that the
        history knows, in the same group, is the same unit.
        """
        numbers, categories = covariates.own
        groups: dict[str, int] = {}
        members: dict[int, int] = {}
        levels = {category: (known, dict[str, int]()) for category, known in self.levels.items()}
        units = []
        for number, (name, group, values) in enumerate(users, first + len(self.past)):
            levels_of = tuple(
                [_next_number(*levels[c.name], str(values[c.name])) if c.name in values else -1 for c in categories]
            )
            key = f"user/{name}" if group is None else f"group/{group}"
            group_of = -1 if group is None and alone else _next_number(self.groups, groups, key)
            standard = tuple([(float(values.get(c.name, c.typical)) - c.typical) / c.spread for c in numbers])
            member = members.get(group_of, self.members.get(group_of, 0))
            members[group_of] = member + 1
            before = self.past.get(name)
            if before is not None and before.group == group_of:
                number, member = before.number, before.member
            units.append(IndexedUnit(number, group_of, member, levels_of, standard))
        more = ((category, known.with_items(new.items())) for category, (known, new) in levels.items() if new)
        index = replace(
            self,
            groups=self.groups.with_items(groups.items()),
            members=self.members.with_items(members.items()),
            levels=self.levels.with_items(more),
            alone=self.alone + sum(unit.group < 0 for unit in units),
        )
        return index, units

    def with_blocks(self, keys: Iterable[str]) -> UnitIndex:
        """The index with the blocks that decisions name."""
        new: dict[str, int] = {}
        counts: dict[str, int] = {}
        for key in dict.fromkeys(keys):
            if key not in self.blocks:
                user = key.partition("/")[0]
                new[key] = counts[user] = 1 + counts.get(user, self.blocks_of.get(user, 0))
        if not new:
            return self
        blocks, blocks_of = self.blocks.with_items(new.items()), self.blocks_of.with_items(counts.items())
        return replace(self, blocks=blocks, blocks_of=blocks_of)

    def block(self, user: str, block: str | None) -> int:
        return 0 if block is None else self.blocks.get(block_key(user, block), -1)


def _next_number(known: Mapping[str, int], new: dict[str, int], key: str) -> int:
    return known[key] if key in known else new.setdefault(key, len(known) + len(new))


def block_key(user: str, block: str) -> str:
    """A block's name in the whole trial: names have no slashes."""
    return f"{user}/{block}"


def plot_key(user: str, plot: str | None) -> str:
    """A plot's name in the whole trial, or that of a user without plots."""
    return user if plot is None else f"{user}/{plot}"


# Arms, users and offers


_Wishes = tuple[FloatArray, FloatArray, BoolArray | None]  # preference, control and arms of a profile


@dataclass(frozen=True)
class Profile:
    """A user with one preference and one control; a change of either makes a new profile."""

    user: str
    slot: int  # its number, from 0: whose memory a guard consults
    definition: User  # as described last
    preference: FloatArray  # (M,), in the learner's units
    control: FloatArray  # (K,)
    allowed: BoolArray | None  # (K,)
    group: str | None
    unit: IndexedUnit  # the same for all profiles of the user
    measured: tuple[str, ...]  # metrics
    held_out: bool = False  # on the control for the whole trial


class Problem:
    """The arrays of a trial as it stands, with room for so many arms and `users` profiles."""

    def __init__(
        self, spec: TrialSpec, *, room: int | None = None, users: int = FEWEST_USERS, founders: int | None = None
    ) -> None:
        self.spec = spec
        self.arms = list(spec.arms)
        self._numbers = {name: i for i, name in enumerate(self.arms)}
        self.metrics = list(spec.metrics)
        self.room = len(self.arms) if room is None else room
        self.users = users
        self.sizes = np.array([spec.size(m) for m in spec.metrics])  # (M,)
        self.fields = list(spec.context)
        self._largest_effects = dict[bytes, float]()  # weights -> effect
        self.covariates = Covariates(spec)
        heights: dict[str, Any] = {} if spec.floors is None else spec.floors.heights()
        if spec.feedback == "difference":  # every plot has one of its control beside it
            heights["plot"] = "never"
        self.floors = Floors(**heights) if heights else None
        self._founders = founders or len(self.arms)  # arms at the start: later ones do not change attributes' units
        self._remembers_users: bool | None = None
        self._wishes_of_cohort: dict[str | None, _Wishes] = {}  # of users without values of their own

    @cached_property
    def shape(self) -> Shape:
        """d, K, M and the room for users."""
        first, M = next(iter(self.spec.arms.values())), len(self.metrics)
        d = M * self.room
        if self.spec.kind == "paper":
            d = M * (1 + (self.room if first.attributes is None else len(first.attributes)))
            d = d if first.map is None else len(first.map[0])
        return Shape(d=d, K=self.room, M=M, H=self.users)

    def remembers_users(self, policy: AnyPolicy) -> bool:
        """Whether the arrays of the trial's policy have an axis of users."""
        if self._remembers_users is None:
            shapes = self.shape, replace(self.shape, H=self.users + 1)
            one, other = ({k: a.shape for k, a in to_arrays(policy.init(s)).items()} for s in shapes)
            self._remembers_users = one != other
        return self._remembers_users

    def arm(self, name: str, field: Path = ()) -> int:
        if name not in self._numbers:
            raise UnknownNameError("arm", name, self.arms, field)
        return self._numbers[name]

    def profile(self, name: str, user: User, slot: int, unit: IndexedUnit | None = None) -> Profile:
        """A user in numbers; one that has not joined yet is a typical one."""
        resolved = self.spec.resolved(user)
        if (user.preference, user.control, user.arms) != (None, None, None):
            wishes = self._wishes(resolved)
        elif (cohort := user.cohort) in self._wishes_of_cohort:
            wishes = self._wishes_of_cohort[cohort]
        else:
            wishes = self._wishes_of_cohort[cohort] = self._wishes(resolved)
        if unit is None:
            numbers, categories = self.covariates.own
            unit = IndexedUnit(-1, -1, 0, (-1,) * len(categories), (0.0,) * len(numbers))
        return Profile(name, slot, user, *wishes, resolved.group, unit, tuple(resolved.metrics or self.metrics))

    def outcome(self, values: Mapping[str, float | None]) -> tuple[FloatArray, BoolArray]:
        """An outcome in the learner's units, and which metrics are observed: (M,) twice."""
        observed = np.array([values.get(m) is not None for m in self.metrics])
        y = np.array([values.get(m) or 0.0 for m in self.metrics]) / self.sizes
        return np.where(np.abs(y) < SMALLEST, 0.0, y), observed  # the square of a smaller one is lost

    def outcome_sizes(self, values: Mapping[str, float | None]) -> FloatArray | None:
        """The sizes of metrics that may have them, (1, s); None: no metric has any."""
        if not any(m.of for m in self.spec.metrics.values()):
            return None
        sized = [name for name, m in self.spec.metrics.items() if m.kind in ("yes/no", "count")]
        return np.array([[values.get(size_key(name)) or 1.0 for name in sized]])

    def largest_effect(self, weights: FloatArray) -> float:
        """The largest possible effect on the sum of the metrics with these weights (M,); infinite: no limit."""
        if (key := weights.tobytes()) not in self._largest_effects:
            low, high = np.array([metric.limits for metric in self.spec.metrics.values()])[weights != 0].T
            self._largest_effects[key] = float(np.abs(weights[weights != 0]) @ (high - low))
        return self._largest_effects[key]

    def available(self, profile: Profile, excluded: Sequence[str]) -> BoolArray | None:
        """The arms this user may get: (K,), or None for all of them."""
        if profile.allowed is None and not excluded and self.room == len(self.arms):
            return None
        mask = (np.arange(self.room) < len(self.arms)) & ~self._mask(excluded)
        if profile.allowed is not None:
            mask &= profile.allowed
        missing = (profile.control > 0) & ~mask
        if missing.any():
            arm = self.arms[int(np.argmax(missing))]
            raise ConflictError(f"arm {arm!r} is the control of user {profile.user!r}: give it another control first")
        return mask

    def offer(
        self,
        profiles: Sequence[Profile],
        contexts: Sequence[FloatArray | list[float] | None],
        available: Sequence[BoolArray | None],
        blocks: Sequence[int] | None = None,
    ) -> Offer:
        """The offers to users, or to one user on several plots, each on the block with its number: (n, ...).

        Contexts of many simulated trials (..., D) make offers with their leading axes: (..., n, ...).
        """
        p = np.stack([profile.preference for profile in profiles])  # (n, M)
        maps, noise = self._maps[None], self._whitened_noise  # (1, K, M, d)
        if self.spec.cancels:  # the mean of the site's own control plot is subtracted, and its noise added
            plots = [int(profile.control.argmax()) for profile in profiles]
            maps = maps - self._maps[plots][:, None]  # (n, K, M, d)
            noise = None if noise is None else whiten(noise[1] + noise[1][0, plots][:, None])
        context = np.stack([c for c in contexts if c is not None], axis=-2) if self.fields else None
        sigma = scale = whitening = None
        if noise is not None:
            whitening, covariance = noise
            sigma, scale = self._noise(covariance, p, context)
        masks = None
        if any(mask is not None for mask in available):
            masks = np.stack([np.ones(self.room, bool) if mask is None else mask for mask in available])
        return Offer(
            features=np.matvec(np.swapaxes(maps, -1, -2), p[:, None, :]),
            control=np.stack([profile.control for profile in profiles]),
            sigma=sigma,
            maps=maps,
            whitening=whitening,
            scale=scale,
            preference=p,
            context=None if context is None else self.covariates.standard(context),
            available=masks,
            user=np.array([profile.slot for profile in profiles]),
            unit=None if self.spec.kind == "paper" else self.units([p.unit for p in profiles], context, blocks),
            attributes=self.attributes,
        )

    @cached_property
    def attributes(self) -> FloatArray | None:
        """Attributes of the arms for mixed models, standardised over the first arms, columns of doses last: (K, r)."""
        if self.spec.kind == "paper" or (values := self._arm_attributes()) is None:
            return None
        is_dose = self._is_dose
        plain, first = values[:, ~is_dose], values[: self._founders]
        spread = first[:, ~is_dose].std(0)
        z = (plain - first[:, ~is_dose].mean(0)) / np.where(spread > 0, spread, 1.0)
        z = np.column_stack([z, *(dose_columns(values[:, i], first[:, i]) for i in np.flatnonzero(is_dose))])
        return np.concatenate([z, np.zeros((self.room - len(z), z.shape[1]))])  # an arm still to come is average

    @cached_property
    def _maps(self) -> FloatArray:
        """Phi(a) of every arm there is room for: (K, M, d)."""
        arms, M, room = list(self.spec.arms.values()), len(self.metrics), self.room
        if self.spec.kind != "paper":
            return np.eye(room * M).reshape(room, M, room * M)
        if arms[0].map is not None:
            maps = np.array([a.map for a in arms])
        elif (values := self._arm_attributes()) is not None:
            # Attributes are measured in units of the first arms' largest, and an intercept is added.
            largest = np.abs(values[: self._founders]).max(0)
            z = np.concatenate([np.ones((len(arms), 1)), values / np.where(largest > 0, largest, 1.0)], axis=1)
            maps = np.kron(np.eye(M)[None], z[:, None, :])  # (arms, M, M (1 + attributes))
        else:
            # A level that all arms share, and each arm's departure from it: an untried arm is expected to do as the
            # others do.
            z = np.concatenate([np.ones((len(arms), 1)), DEPARTURE * np.eye(len(arms), room)], axis=1)
            maps = np.einsum("ac,mn->amcn", z, np.eye(M)).reshape(len(arms), M, -1)  # (arms, M, (1 + room) M)
        return np.concatenate([maps, np.zeros((room - len(arms), *maps.shape[1:]))])

    @cached_property
    def _whitened_noise(self) -> tuple[FloatArray, FloatArray] | None:
        """Whitening and covariance of each arm's scaled outcome: (1, K, M, M); an arm still to come has unit noise."""
        noise, M = self.spec.noise, len(self.metrics)
        if noise.kind == "learned":
            return None

        def matrix(arm: str) -> FloatArray:
            own: trial_file.ArmNoise = noise.arms.get(arm, noise)
            sd = own.sd or {}
            return np.diag([sd[m] ** 2 for m in self.metrics]) if own.covariance is None else np.array(own.covariance)

        matrices = [matrix(arm) / np.outer(self.sizes, self.sizes) for arm in self.arms]
        return whiten(np.stack(matrices + [np.eye(M)] * (self.room - len(self.arms)))[None])

    @property
    def dose_columns(self) -> tuple[int, ...]:
        """The number of columns of each dose among the attributes."""
        if not self.spec.doses or (values := self._arm_attributes()) is None:
            return ()
        first = values[: self._founders, self._is_dose]
        return tuple(dose_columns(dose, dose).shape[1] for dose in first.T)

    @property
    def _is_dose(self) -> BoolArray:
        """Of the arms' attributes: (r,)."""
        names = next(iter(self.spec.arms.values())).attributes or ()
        return np.array([name in self.spec.doses for name in names], bool)

    def _arm_attributes(self) -> FloatArray | None:
        """The arms' attributes as they were given: (arms, r)."""
        arms = list(self.spec.arms.values())
        if arms[0].attributes is None:
            return None
        return np.array([[(a.attributes or {})[n] for n in arms[0].attributes] for a in arms])

    def _wishes(self, resolved: Cohort) -> _Wishes:
        preference, control = resolved.preference or {}, resolved.control or {}
        shares = {control: 1.0} if isinstance(control, str) else control
        return (
            np.array([preference.get(m, 0.0) for m in self.metrics]) * self.sizes,
            np.array([shares.get(a, 0.0) for a in self.arms] + [0.0] * (self.room - len(self.arms))),
            None if resolved.arms is None else self._mask(resolved.arms),
        )

    def units(
        self, units: Sequence[IndexedUnit], context: FloatArray | None, blocks: Sequence[int] | None = None
    ) -> Unit:
        """The places of decisions for these users, in contexts (..., n, D)."""
        levels, numbers = np.array([u.levels for u in units], np.intp), np.array([u.covariates for u in units])
        if context is not None:
            z, more = self.covariates.split(context)
            lead = context.shape[:-1]
            levels, numbers = (np.broadcast_to(own, (*lead, own.shape[-1])) for own in (levels, numbers))
            levels, numbers = np.concatenate([levels, more], axis=-1), np.concatenate([numbers, z], axis=-1)
        return Unit(
            user=np.array([u.number for u in units]),
            group=np.array([u.group for u in units]),
            member=np.array([u.member for u in units]),
            block=np.zeros(len(units), np.intp) if blocks is None else np.array(blocks),
            levels=levels if levels.size else None,
            covariates=numbers if numbers.size else None,
        )

    def _noise(
        self, covariance: FloatArray, p: FloatArray, context: FloatArray | None
    ) -> tuple[FloatArray, FloatArray]:
        """The reward's noise for each arm, and the factor of the covariance in this context."""
        noise = self.spec.noise
        scale = np.full(p.shape[:-1], noise.level)
        if noise.scale == "norm" and context is not None:
            scale = np.asarray(noise.level * (1 + np.linalg.norm(self.covariates.standard(context), axis=-1)))
        elif noise.scale != "constant" and context is not None:
            scale = noise.level * context[..., self.fields.index(noise.scale)]
            if not (scale > 0).all():
                raise InputError(f"context {noise.scale!r} scales the noise and must be positive")
        return np.sqrt(scale)[..., None] * np.sqrt(quadratic(covariance, p)), scale

    def _mask(self, arms: Sequence[str]) -> BoolArray:
        mask = np.zeros(self.room, bool)
        mask[[self.arm(arm) for arm in arms]] = True
        return mask


# The policy


def build_policy(problem: Problem) -> AnyPolicy:
    """The policy of a trial; settings in [policy] come before what the rest of the file implies."""
    spec = problem.spec
    return _paper_policy(spec, problem.shape.d) if spec.kind == "paper" else _mixed_policy(problem)


def _mixed_policy(problem: Problem) -> AnyPolicy:
    """A policy with random effects of sites, seasons, blocks and people."""
    spec, described = problem.spec, problem.attributes
    name, settings, model = spec.policy.name, spec.policy.settings, spec.model
    own_model = ConfigError(f"{name!r} comes with a model of its own: {trial_file.PAPER}")
    if find(name).source is not None:  # from outside, perhaps with a learner that another must not replace
        made = make(name, **settings)
        if not (isinstance(made, Policy) and isinstance(made.learner, Learner | Field)):
            raise own_model
    numbers, categories = Covariates(spec).counted
    learner = {
        "learner": spec.kind,
        "promise": spec.promise,
        "covariates": tuple(c.roles for c in numbers),
        "categories": tuple(c.roles for c in categories),
        "attributes": 0 if described is None else described.shape[1],
        "doses": problem.dose_columns,
        "noise": model.noise,
        "discount": model.discount,
        "seasons": model.seasons,
        "ranges": _ranges(spec),
        "kinds": tuple(m.kind for m in spec.metrics.values()) if spec.has_kinds else (),
        "spreads": tuple(m.spread or 0.0 for m in spec.metrics.values()),
        "delta": spec.delta,
    }
    if model.balanced is not None or spec.has_exact_rule:  # exact ranges need decisions whose draws are independent
        learner["balanced"] = bool(model.balanced)
    try:
        plain = make(name, **(learner | settings)).traits
    except UnknownNameError as error:
        raise own_model if error.name in learner else error from None
    return make(name, **(learner | _implied_settings(spec, plain) | settings))


def _ranges(spec: TrialSpec) -> tuple[tuple[float, float], ...]:
    """The ends of each metric's range in the learner's units."""
    ranges = [(-inf, inf) if m.ends is None else m.ends for m in spec.metrics.values()]
    return tuple((low / spec.size(m), high / spec.size(m)) for m, (low, high) in zip(spec.metrics, ranges, strict=True))


def _implied_settings(spec: TrialSpec, plain: Traits) -> dict[str, Any]:
    """Settings of the rule and the guard that follow from the rest of the file."""
    implied: dict[str, Any] = {"relative": spec.tolerance.relative, "absolute": spec.tolerance.absolute}
    # Arms with equal evidence share their probability. A promise holds for the arm that was chosen: the paper's model
    # needs a bound on all arms at once for that; a mixed model's estimates are shrunk towards each other, so that
    # choosing among them needs none (docs/safety.md).
    implied |= {
        "even": EVEN_SHARE if spec.goal == "find" else 0.0,
        "confidence": spec.confidence,
        "ties": "shared",
        "simultaneous": spec.kind == "paper",
    }
    if spec.goal == "find" and "even" not in plain.settings:
        raise ConfigError('goal = "find" is for kind = "field" or "people" with the policy dri_med; leave it out')
    if "guardrails" in plain.settings:
        implied["guardrails"] = tuple(
            Guardrail(
                metric=list(spec.metrics).index(rail.metric),
                relative=rail.relative,
                absolute=rail.absolute / spec.size(rail.metric),
                better=spec.metrics[rail.metric].better,
            )
            for rail in spec.guardrails
        )
    elif spec.guardrails:
        raise ConfigError(f'the guard of {spec.policy.name!r} has no guardrails; use guard = "expected" or "certain"')
    return {name: value for name, value in implied.items() if name in plain.settings}


def _paper_policy(spec: TrialSpec, d: int) -> AnyPolicy:
    """A policy of the paper's model: one mean for each arm."""
    name, settings = spec.policy.name, spec.policy.settings
    made = make(name, **settings)
    if isinstance(made, Policy) and isinstance(made.learner, Field):
        raise ConfigError(f'{name!r} learns with the field model: write [model] kind = "{made.learner.kind}"')
    plain = made.traits
    implied: dict[str, Any] = {}
    weighting = plain.weighting
    if weighting == "known" and spec.noise.kind == "learned":
        if "weighting" not in plain.settings:
            raise ConfigError(f"{name!r} needs noise that is known; dri_med learns it")
        if "weighting" in settings:
            raise ConfigError("weighting 'known' needs the noise: give [noise] kind = \"known\" with sd or covariance")
        implied["weighting"] = weighting = "learned"
    implied |= _implied_settings(spec, plain)
    if weighting == "learned":
        implied["ranges"] = () if spec.cancels else _ranges(spec)
    if "regularisation" not in plain.settings:  # a published algorithm: its constants are its own
        return make(name, **({"tolerance": spec.tolerance.relative} | settings))
    if coefficients_are_scaled(spec):
        # Every coefficient is a mean on the scale of its metric's range: of size one at most, two deviations of the
        # prior. Confidence "anytime" needs a bound on all of them together.
        implied |= {"norm_bound": sqrt(d), "regularisation": (plain.noise_bound / PRIOR_DEVIATION) ** 2}
    implied["delta"] = spec.delta
    return make(name, **({k: v for k, v in implied.items() if k in plain.settings} | settings))


def coefficients_are_scaled(spec: TrialSpec) -> bool:
    """True if this trial makes its own maps, so that the size of the coefficients is known."""
    return spec.kind == "paper" and next(iter(spec.arms.values())).map is None
