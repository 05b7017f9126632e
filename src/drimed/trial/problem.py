"""A trial's words as arrays: maps, preferences, controls and noise, and from them what a user is offered.

Metrics are divided by their size (the plausible range) and preferences multiplied by it, so that rewards keep the
user's unit while every coefficient is of size one. Shapes: K arms, M metrics, d coefficients, n users at a time.
Arms and coefficients may be fewer than the shape allows: a trial whose past is read again after an arm was added has
room for it from the start, and the arm is unavailable until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from drimed.errors import ConflictError, InputError, UnknownNameError
from drimed.learning.offer import Offer, Shape, quadratic, whiten
from drimed.linear.arrays import BoolArray, FloatArray
from drimed.records import Path
from drimed.trial.spec import LARGEST, ArmNoise, TrialSpec, User

DEPARTURE = 0.5  # arms differ from each other by less than levels do from zero: half as much, before any data
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


@dataclass(frozen=True)
class _View:
    """Maps and noise as users with one control arm see them, or all users where outcomes are absolute."""

    maps: FloatArray  # (K, M, d)
    whitening: FloatArray | None  # (K, M, M)
    covariance: FloatArray | None  # (K, M, M)


class Problem:
    """The arrays of a trial as it stands, with room for `arms` arms and `users` profiles."""

    def __init__(
        self, spec: TrialSpec, *, arms: int | None = None, users: int = FEWEST_USERS, founders: int | None = None
    ) -> None:
        self.spec = spec
        self.arms = list(spec.arms)
        self._numbers = {name: i for i, name in enumerate(self.arms)}
        self.metrics = list(spec.metrics)
        self.room = len(self.arms) if arms is None else arms
        self.users = users
        self.sizes = np.array([m.size for m in spec.metrics.values()])  # (M,)
        self.fields = list(spec.context)
        self._founders = founders or len(self.arms)  # arms at the start: later ones do not change attributes' units
        self._views: dict[int | None, _View] = {}

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

    def profile(self, name: str, user: User, slot: int) -> Profile:
        """A user in numbers."""
        weights = user.preference if user.preference is not None else self.spec.preference
        control = user.control if user.control is not None else self.spec.control
        if weights is None or control is None:
            raise InputError(f"user {name!r} needs a preference and a control")
        shares = {control: 1.0} if isinstance(control, str) else control
        allowed = None if user.arms is None else self._mask(user.arms)
        return Profile(
            user=name,
            slot=slot,
            definition=user,
            preference=np.array([weights.get(m, 0.0) for m in self.metrics]) * self.sizes,
            control=np.array([shares.get(a, 0.0) for a in self.arms] + [0.0] * (self.room - len(self.arms))),
            allowed=allowed,
            group=user.group,
        )

    def context(self, values: Mapping[str, float] | None, field: Path = ()) -> FloatArray | None:
        """A context in numbers, as the file declares it: (D,)."""
        if not self.fields:
            if values:
                raise UnknownNameError("context field", next(iter(values)), (), field)
            return None
        if values is None:
            raise InputError(f"a context is needed: {', '.join(self.fields)}", field)
        if not isinstance(values, Mapping):
            raise InputError(f"a context must be a table of {', '.join(self.fields)}, got {values!r}", field)
        for name in values:
            if name not in self.spec.context:
                raise UnknownNameError("context field", name, self.fields, (*field, name))
        missing = [f for f in self.fields if f not in values]
        if missing:
            raise InputError(f"context {missing[0]!r} is missing; expected {', '.join(self.fields)}", field)
        return np.array([number(f"context {f!r}", values[f], (*field, f)) for f in self.fields])

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

    def offer(self, profile: Profile, context: FloatArray | None, available: BoolArray | None) -> Offer:
        """What one user is offered."""
        view = self._view(profile)
        p = profile.preference
        sigma, scale = self._noise(view.covariance, p, context)
        return Offer(
            features=np.matvec(np.swapaxes(view.maps, -1, -2), p[None, :]),
            control=profile.control,
            sigma=sigma,
            maps=view.maps,
            whitening=view.whitening,
            scale=scale,
            preference=p,
            context=self._standard(context),
            available=available,
            user=profile.slot,
        )

    def offers(
        self,
        profiles: Sequence[Profile],
        contexts: Sequence[FloatArray | None],
        available: Sequence[BoolArray | None],
    ) -> Offer:
        """What several users are offered at once: (n, ...)."""
        views = [self._view(profile) for profile in profiles]
        if all(view is views[0] for view in views):
            views = views[:1]
        maps = np.stack([v.maps for v in views])
        whitening, covariance = _stack([v.whitening for v in views]), _stack([v.covariance for v in views])
        p = np.stack([profile.preference for profile in profiles])
        context = None if not self.fields else np.stack([c for c in contexts if c is not None])
        sigma, scale = self._noise(covariance, p, context)
        everything = np.ones(self.room, bool)
        masks = None
        if any(a is not None for a in available):
            masks = np.stack([everything if a is None else a for a in available])
        return Offer(
            features=np.matvec(np.swapaxes(maps, -1, -2), p[:, None, :]),
            control=np.stack([profile.control for profile in profiles]),
            sigma=sigma,
            maps=maps,
            whitening=whitening,
            scale=scale,
            preference=p,
            context=self._standard(context),
            available=masks,
            user=np.array([profile.slot for profile in profiles]),
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
        return int(profile.control.argmax()) if self.spec.feedback == "difference" else None

    @cached_property
    def _maps(self) -> FloatArray:
        """Phi(a) of every arm there is room for: (K, M, d)."""
        arms, M = list(self.spec.arms.values()), len(self.metrics)
        if arms[0].map is not None:
            maps = np.array([a.map for a in arms])
        elif arms[0].attributes is not None:
            names = list(arms[0].attributes)
            first = np.array([[(a.attributes or {})[n] for n in names] for a in arms])
            # Attributes are measured in units of the first arms' largest, and an intercept is added.
            largest = np.abs(first[: self._founders]).max(0)
            z = np.concatenate([np.ones((len(arms), 1)), first / np.where(largest > 0, largest, 1.0)], axis=1)
            maps = np.kron(np.eye(M)[None], z[:, None, :])  # (K, M, M (1 + attributes))
        else:
            # A level that all arms share, and each arm's departure from it: an arm nobody has tried is expected to do
            # as the others do.
            maps = np.zeros((len(arms), M, (1 + self.room) * M))
            for a in range(len(arms)):
                maps[a, :, :M] = np.eye(M)
                maps[a, :, (1 + a) * M : (2 + a) * M] = DEPARTURE * np.eye(M)
        return np.concatenate([maps, np.zeros((self.room - len(arms), *maps.shape[1:]))])

    @cached_property
    def _covariance(self) -> FloatArray | None:
        """Of each arm's scaled outcome: (K, M, M); an arm that is still to come has unit noise."""
        noise = self.spec.noise
        if noise.kind == "learned":
            return None
        common = self._matrix(noise)
        found = []
        for arm in self.arms:
            own = self._matrix(noise.arms[arm]) if arm in noise.arms else common
            if own is None:
                raise InputError(
                    f"the noise of arm {arm!r} is not known: give noise.sd or noise.covariance for all arms"
                )
            found.append(own / np.outer(self.sizes, self.sizes))
        return np.stack(found + [np.eye(len(self.metrics))] * (self.room - len(self.arms)))

    def _matrix(self, noise: ArmNoise) -> FloatArray | None:
        if noise.covariance is not None:
            return np.array(noise.covariance)
        if noise.sd is not None:
            return np.diag([noise.sd[m] ** 2 for m in self.metrics])
        return None

    def _noise(
        self, covariance: FloatArray | None, p: FloatArray, context: FloatArray | None
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """The reward's noise for each arm, and by what the covariance is multiplied in this context."""
        if covariance is None:
            return None, None
        noise, standard = self.spec.noise, self._standard(context)
        if noise.scale == "constant" or standard is None or context is None:
            scale = np.full(p.shape[:-1], noise.level)
        elif noise.scale == "norm":
            scale = noise.level * (1 + np.linalg.norm(standard, axis=-1))
        else:
            own = context[..., self.fields.index(noise.scale)]
            if not (own > 0).all():
                raise InputError(f"context {noise.scale!r} scales the noise and must be positive, got {own.min():g}")
            scale = noise.level * own
        scale = np.asarray(scale)
        return np.sqrt(scale)[..., None] * np.sqrt(quadratic(covariance, p)), scale

    def _standard(self, context: FloatArray | None) -> FloatArray | None:
        if context is None:
            return None
        declared = self.spec.context.values()
        return (context - np.array([f.typical for f in declared])) / np.array([f.spread for f in declared])

    def _mask(self, arms: Sequence[str]) -> BoolArray:
        mask = np.zeros(self.room, bool)
        for arm in arms:
            mask[self.arm(arm)] = True
        return mask


def _stack(arrays: Sequence[FloatArray | None]) -> FloatArray | None:
    there = [a for a in arrays if a is not None]
    return np.stack(there) if there else None


def number(what: str, value: object, field: Path = ()) -> float:
    """A value that was handed in, if it is a number that can be calculated with."""
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{what} must be a finite number, got {value!r}", field)
    if not -LARGEST <= value <= LARGEST:
        wanted = f"a number of at most {LARGEST:g}" if abs(value) < np.inf else "a finite number"
        raise InputError(f"{what} must be {wanted}, got {value!r}", field)
    return float(value)
