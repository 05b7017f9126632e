"""A trial's words as arrays: maps, preferences, controls and noise, and from them what a user is offered.

Learners of the field find out by themselves what is large; they see one coefficient for each arm and metric, and where
a decision is taken. For the paper's model metrics are divided by their size (the plausible range) and preferences
multiplied by it, so that rewards keep the user's unit while every coefficient is of size one.

Shapes: K arms, M metrics, d coefficients, n decisions at a time. Arms and coefficients may be fewer than the shape
allows: a trial whose past is read again after an arm was added has room for it from the start, and the arm is
unavailable until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from drimed.errors import ConflictError, InputError, UnknownNameError
from drimed.models.offer import Offer, Shape, Unit, quadratic, whiten
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.records import Path
from drimed.trial.covariates import Covariates, Person
from drimed.trial.spec import ArmNoise, Resolved, TrialSpec, User

# The arms of a trial as arrays: their maps Phi(a), their attributes and, where it is known, their noise.

DEPARTURE = 0.5  # arms differ from each other by less than levels do from zero: half as much, before any data


def attributes(spec: TrialSpec, room: int, founders: int) -> FloatArray | None:
    """Standardised over the first arms: (K, r); an arm that is still to come is an average one."""
    given = _described(spec)
    if given is None:
        return None
    first = given[:founders]
    spread = first.std(0)
    z = (given - first.mean(0)) / np.where(spread > 0, spread, 1.0)
    return np.concatenate([z, np.zeros((room - len(z), z.shape[1]))])


def maps(spec: TrialSpec, room: int, founders: int) -> FloatArray:
    """Phi(a): (K, M, d)."""
    arms, M = list(spec.arms.values()), len(spec.metrics)
    if spec.kind != "paper":
        return np.eye(room * M).reshape(room, M, room * M)
    if arms[0].map is not None:
        found = np.array([a.map for a in arms])
    elif (given := _described(spec)) is not None:
        # Attributes are measured in units of the first arms' largest, and an intercept is added.
        largest = np.abs(given[:founders]).max(0)
        z = np.concatenate([np.ones((len(arms), 1)), given / np.where(largest > 0, largest, 1.0)], axis=1)
        found = np.kron(np.eye(M)[None], z[:, None, :])  # (K, M, M (1 + attributes))
    else:
        # A level that all arms share, and each arm's departure from it: an arm nobody has tried is expected to do as
        # the others do.
        found = np.zeros((len(arms), M, (1 + room) * M))
        for a in range(len(arms)):
            found[a, :, :M] = np.eye(M)
            found[a, :, (1 + a) * M : (2 + a) * M] = DEPARTURE * np.eye(M)
    return np.concatenate([found, np.zeros((room - len(arms), *found.shape[1:]))])


def covariance(spec: TrialSpec, room: int, sizes: FloatArray) -> FloatArray | None:
    """Of each arm's scaled outcome, where it is known: (K, M, M); an arm that is still to come has unit noise."""
    noise = spec.noise
    if noise.kind == "learned":
        return None
    common = _matrix(spec, noise)
    found = []
    for arm in spec.arms:
        own = _matrix(spec, noise.arms[arm]) if arm in noise.arms else common
        if own is None:
            raise InputError(f"the noise of arm {arm!r} is not known: give noise.sd or noise.covariance for all arms")
        found.append(own / np.outer(sizes, sizes))
    return np.stack(found + [np.eye(len(spec.metrics))] * (room - len(spec.arms)))


def _described(spec: TrialSpec) -> FloatArray | None:
    """The arms' attributes as they were given: (arms, r)."""
    arms = list(spec.arms.values())
    if arms[0].attributes is None:
        return None
    return np.array([[(a.attributes or {})[n] for n in arms[0].attributes] for a in arms])


def _matrix(spec: TrialSpec, noise: ArmNoise) -> FloatArray | None:
    if noise.covariance is not None:
        return np.array(noise.covariance)
    if noise.sd is not None:
        return np.diag([noise.sd[m] ** 2 for m in spec.metrics])
    return None


MOST_NUMBERS = 4_000_000  # of what is remembered by preference: some dozens of megabytes
FEWEST_USERS = 16  # room for users is doubled when it is used up, so that joining costs little


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
    person: Person  # who that is, whatever the preference and the control are now


_Wishes = tuple[FloatArray, FloatArray, BoolArray | None]  # preference, control and arms of a profile


@dataclass(frozen=True)
class _View:
    """Maps and noise as users with one control arm see them, or all users where outcomes are absolute."""

    maps: FloatArray  # (K, M, d)
    whitening: FloatArray | None  # (K, M, M)
    covariance: FloatArray | None  # (K, M, M)


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
        self.covariates = Covariates(spec)
        self._founders = founders or len(self.arms)  # arms at the start: later ones do not change attributes' units
        self._views: dict[int | None, _View] = {}
        self._looks: dict[tuple[int | None, bytes], tuple[FloatArray, FloatArray | None]] = {}  # by preference
        self._shared: dict[str | None, _Wishes] = {}  # of users who say nothing of their own, by cohort

    @cached_property
    def shape(self) -> Shape:
        """d, K, M and the room for users."""
        maps = self._maps
        return Shape(d=maps.shape[-1], K=maps.shape[0], M=maps.shape[1], H=self.users)

    def arm(self, name: str, field: Path = ()) -> int:
        """The number of an arm."""
        if name not in self._numbers:
            raise UnknownNameError("arm", name, self.arms, field)
        return self._numbers[name]

    def profile(self, name: str, user: User, slot: int, person: Person | None = None) -> Profile:
        """A user in numbers; one that has not joined yet is nobody in particular."""
        if user.preference is None and user.control is None and user.arms is None:
            if user.cohort not in self._shared:
                self._shared[user.cohort] = self._wishes(name, self.spec.resolved(user))
            preference, control, allowed = self._shared[user.cohort]
        else:
            preference, control, allowed = self._wishes(name, self.spec.resolved(user))
        return Profile(
            user=name,
            slot=slot,
            definition=user,
            preference=preference,
            control=control,
            allowed=allowed,
            group=self.spec.group_of(user),
            person=person or Person.unknown(self.covariates),
        )

    def _wishes(self, name: str, known: Resolved) -> _Wishes:
        """Preference, control and arms in numbers."""
        if known.preference is None or known.control is None:
            raise InputError(f"user {name!r} needs a preference and a control")
        shares = {known.control: 1.0} if isinstance(known.control, str) else known.control
        return (
            np.array([known.preference.get(m, 0.0) for m in self.metrics]) * self.sizes,
            np.array([shares.get(a, 0.0) for a in self.arms] + [0.0] * (self.room - len(self.arms))),
            None if known.arms is None else self._mask(known.arms),
        )

    def outcome(self, values: Mapping[str, float | None]) -> tuple[FloatArray, BoolArray]:
        """An outcome in the learner's units, and which metrics are there: (M,) twice."""
        there = np.array([values.get(m) is not None for m in self.metrics])
        raw = np.array([values.get(m) or 0.0 for m in self.metrics])
        return raw / self.sizes, there

    def available(self, profile: Profile, excluded: Sequence[str]) -> BoolArray | None:
        """The arms this user may get: (K,), or None for all of them."""
        if profile.allowed is None and not excluded and self.room == len(self.arms):
            return None
        mask = np.arange(self.room) < len(self.arms)
        if profile.allowed is not None:
            mask &= profile.allowed
        if excluded:
            mask &= ~self._mask(excluded)
        missing = (profile.control > 0) & ~mask
        if missing.any():
            arm = self.arms[int(np.argmax(missing))]
            raise ConflictError(
                f"arm {arm!r} is the control of user {profile.user!r} and cannot be unavailable to it: give the user "
                "another control first"
            )
        return mask

    def offer(
        self,
        profiles: Sequence[Profile],
        contexts: Sequence[FloatArray | None],
        available: Sequence[BoolArray | None],
        blocks: Sequence[int] | None = None,
    ) -> Offer:
        """The offers to users, or to one user on several plots, each on the block with its number: (n, ...).

        Contexts of many simulated trials (..., D) make offers with their leading axes: (..., n, ...).
        """
        views = [self._view(profile) for profile in profiles]
        if all(view is views[0] for view in views):
            views = views[:1]
        maps = np.stack([v.maps for v in views])
        whitening = _stack([v.whitening for v in views])
        p = np.stack([profile.preference for profile in profiles])
        context = None if not self.fields else np.stack([c for c in contexts if c is not None], axis=-2)
        looks = [self._wished(self._key(profile), self._view(profile), profile.preference) for profile in profiles]
        sigma, scale = self._noise(_stack([noise for _, noise in looks]), p, context)
        everything = np.ones(self.room, bool)
        masks = None
        if any(a is not None for a in available):
            masks = np.stack([everything if a is None else a for a in available])
        return Offer(
            features=np.stack([features for features, _ in looks]),
            control=np.stack([profile.control for profile in profiles]),
            sigma=sigma,
            maps=maps,
            whitening=whitening,
            scale=scale,
            preference=p,
            context=self._standard(context),
            available=masks,
            user=np.array([profile.slot for profile in profiles]),
            unit=None if self.spec.kind == "paper" else self._units([p.person for p in profiles], context, blocks),
            attributes=self.attributes,
        )

    def _units(self, people: Sequence[Person], context: FloatArray | None, blocks: Sequence[int] | None) -> Unit:
        levels, numbers = np.array([p.levels for p in people], np.intp), np.array([p.covariates for p in people])
        if context is not None:
            z, more = self.covariates.split(context)
            lead = context.shape[:-1]
            levels, numbers = (np.broadcast_to(own, (*lead, own.shape[-1])) for own in (levels, numbers))
            levels, numbers = np.concatenate([levels, more], axis=-1), np.concatenate([numbers, z], axis=-1)
        return Unit(
            user=np.array([p.number for p in people]),
            group=np.array([p.group for p in people]),
            block=np.zeros(len(people), np.intp) if blocks is None else np.array(blocks),
            levels=levels if levels.size else None,
            covariates=numbers if numbers.size else None,
        )

    def _view(self, profile: Profile) -> _View:
        key = self._key(profile)
        if key not in self._views:
            maps, covariance = self._maps, self._covariance
            if key is not None:
                # Difference to the site's own control plot: its mean is subtracted, its noise added.
                maps = maps - maps[key]
                covariance = None if covariance is None else covariance + covariance[key]
            whitening = None
            if covariance is not None:
                whitening, covariance = whiten(covariance)
            self._views[key] = _View(maps, whitening, covariance)
        return self._views[key]

    def _key(self, profile: Profile) -> int | None:
        # Learners of the field are shown both plots.
        plots = self.spec.feedback == "difference" and self.spec.kind == "paper"
        return int(profile.control.argmax()) if plots else None

    @cached_property
    def attributes(self) -> FloatArray | None:
        """Of the arms, standardised, for learners of the field: (K, r)."""
        return None if self.spec.kind == "paper" else attributes(self.spec, self.room, self._founders)

    @cached_property
    def _maps(self) -> FloatArray:
        """Phi(a) of every arm there is room for: (K, M, d)."""
        return maps(self.spec, self.room, self._founders)

    @cached_property
    def _covariance(self) -> FloatArray | None:
        """Of each arm's scaled outcome: (K, M, M)."""
        return covariance(self.spec, self.room, self.sizes)

    def _wished(self, key: int | None, view: _View, p: FloatArray) -> tuple[FloatArray, FloatArray | None]:
        """The arms' features for a preference, and their noise before any context: (K, d), (K,)."""
        known = self._looks.get((key, p.tobytes()))
        if known is None:
            if len(self._looks) * view.maps.size > MOST_NUMBERS:
                self._looks.clear()
            features = np.matvec(np.swapaxes(view.maps, -1, -2), p[None, :])
            features.flags.writeable = False
            known = features, None if view.covariance is None else np.sqrt(quadratic(view.covariance, p))
            self._looks[key, p.tobytes()] = known
        return known

    def _noise(
        self, noise_of: FloatArray | None, p: FloatArray, context: FloatArray | None
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """The reward's noise for each arm, and by what the covariance is multiplied in this context."""
        if noise_of is None:
            return None, None
        noise = self.spec.noise
        if noise.scale == "constant" or context is None:
            scale = np.full(p.shape[:-1], noise.level)
        elif noise.scale == "norm":
            scale = noise.level * (1 + np.linalg.norm(self.covariates.standard(context), axis=-1))
        else:
            own = context[..., self.fields.index(noise.scale)]
            if not (own > 0).all():
                raise InputError(f"context {noise.scale!r} scales the noise and must be positive, got {own.min():g}")
            scale = noise.level * own
        scale = np.asarray(scale)
        return np.sqrt(scale)[..., None] * noise_of, scale

    def _standard(self, context: FloatArray | None) -> FloatArray | None:
        return None if context is None else self.covariates.standard(context)

    def _mask(self, arms: Sequence[str]) -> BoolArray:
        mask = np.zeros(self.room, bool)
        for arm in arms:
            mask[self.arm(arm)] = True
        return mask


def _stack(arrays: Sequence[FloatArray | None]) -> FloatArray | None:
    there = [a for a in arrays if a is not None]
    return np.stack(there) if there else None
