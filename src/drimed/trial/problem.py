"""A trial as arrays: maps, preferences, controls and noise, and from them the offers to users.

Mixed models see one coefficient for each arm and metric, and where a decision is taken. For the paper's model metrics
are divided by their size (the plausible range) and preferences multiplied by it, so that rewards keep the user's unit
while every coefficient is of size one.

Shapes: K arms there is room for, of which some may be still to come, and which are unavailable until then; M metrics,
d coefficients, r attributes of arms, n decisions at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from drimed.errors import ConflictError, InputError, UnknownNameError
from drimed.models.offer import Offer, Shape, Unit, quadratic, whiten
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.policies.rules.base import Floors
from drimed.records import Path
from drimed.trial.covariates import Covariates, IndexedUnit
from drimed.trial.spec import ArmNoise, Resolved, TrialSpec, User

MOST_NUMBERS = 4_000_000  # in the cache of features by preference: some dozens of megabytes
FEWEST_USERS = 16  # room for users is doubled when it is used up, so that joining costs little
DEPARTURE = 0.5  # arms differ from each other by less than levels do from zero: half as much, before any data


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


_Wishes = tuple[FloatArray, FloatArray, BoolArray | None]  # preference, control and arms of a profile


@dataclass(frozen=True)
class _ArmView:
    """Maps and noise for users with one control arm, or for all users where outcomes are absolute."""

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
        self.floors = None if spec.floors is None else Floors(**spec.floors.heights())
        self._subtracts = spec.feedback == "difference" and spec.kind == "paper"  # mixed models see both plots
        self._founders = founders or len(self.arms)  # arms at the start: later ones do not change attributes' units
        self._views: dict[int | None, _ArmView] = {}
        self._features: dict[tuple[int | None, bytes], tuple[FloatArray, FloatArray | None]] = {}  # by preference
        self._wishes_of_cohort: dict[str | None, _Wishes] = {}  # of users without values of their own

    @cached_property
    def shape(self) -> Shape:
        """d, K, M and the room for users."""
        K, M, d = self._maps.shape
        return Shape(d=d, K=K, M=M, H=self.users)

    def arm(self, name: str, field: Path = ()) -> int:
        """The number of an arm."""
        if name not in self._numbers:
            raise UnknownNameError("arm", name, self.arms, field)
        return self._numbers[name]

    def profile(self, name: str, user: User, slot: int, unit: IndexedUnit | None = None) -> Profile:
        """A user in numbers; one that has not joined yet is a typical one."""
        if user.preference is None and user.control is None and user.arms is None:
            if user.cohort not in self._wishes_of_cohort:
                self._wishes_of_cohort[user.cohort] = self._wishes(name, self.spec.resolved(user))
            preference, control, allowed = self._wishes_of_cohort[user.cohort]
        else:
            preference, control, allowed = self._wishes(name, self.spec.resolved(user))
        return Profile(
            user=name,
            slot=slot,
            definition=user,
            preference=preference,
            control=control,
            allowed=allowed,
            group=self.spec.resolved(user).group,
            unit=unit or IndexedUnit.unknown(self.covariates),
        )

    def outcome(self, values: Mapping[str, float | None]) -> tuple[FloatArray, BoolArray]:
        """An outcome in the learner's units, and which metrics are observed: (M,) twice."""
        observed = np.array([values.get(m) is not None for m in self.metrics])
        return np.array([values.get(m) or 0.0 for m in self.metrics]) / self.sizes, observed

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
        contexts: Sequence[FloatArray | list[float] | None],
        available: Sequence[BoolArray | None],
        blocks: Sequence[int] | None = None,
    ) -> Offer:
        """The offers to users, or to one user on several plots, each on the block with its number: (n, ...).

        Contexts of many simulated trials (..., D) make offers with their leading axes: (..., n, ...).
        """
        keys = [int(profile.control.argmax()) if self._subtracts else None for profile in profiles]
        views = [self._view(key) for key in keys]
        features, noise = zip(*map(self._features_of, profiles, keys, views), strict=True)
        if all(view is views[0] for view in views):
            views = views[:1]
        p = np.stack([profile.preference for profile in profiles])  # (n, M)
        context = np.stack([c for c in contexts if c is not None], axis=-2) if self.fields else None
        sigma, scale = (None, None) if noise[0] is None else self._noise(np.stack(noise), p, context)
        whitening = [view.whitening for view in views if view.whitening is not None]
        everything = np.ones(self.room, bool)
        masks = None
        if any(a is not None for a in available):
            masks = np.stack([everything if a is None else a for a in available])
        return Offer(
            features=np.stack(features),
            control=np.stack([profile.control for profile in profiles]),
            sigma=sigma,
            maps=np.stack([view.maps for view in views]),
            whitening=np.stack(whitening) if whitening else None,
            scale=scale,
            preference=p,
            context=None if context is None else self.covariates.standard(context),
            available=masks,
            user=np.array([profile.slot for profile in profiles]),
            unit=None if self.spec.kind == "paper" else self._units(profiles, context, blocks),
            attributes=self.attributes,
        )

    @cached_property
    def attributes(self) -> FloatArray | None:
        """Attributes of the arms for mixed models, standardised over the first arms: (K, r)."""
        if self.spec.kind == "paper" or (values := self._arm_attributes()) is None:
            return None
        first = values[: self._founders]
        spread = first.std(0)
        z = (values - first.mean(0)) / np.where(spread > 0, spread, 1.0)
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
            maps = np.zeros((len(arms), M, (1 + room) * M))
            for a in range(len(arms)):
                maps[a, :, :M] = np.eye(M)
                maps[a, :, (1 + a) * M : (2 + a) * M] = DEPARTURE * np.eye(M)
        return np.concatenate([maps, np.zeros((room - len(arms), *maps.shape[1:]))])

    @cached_property
    def _covariance(self) -> FloatArray | None:
        """Of each arm's scaled outcome, where it is known: (K, M, M); an arm still to come has unit noise."""
        noise, M = self.spec.noise, len(self.metrics)
        if noise.kind == "learned":
            return None

        def matrix(own: ArmNoise) -> FloatArray | None:
            if own.covariance is not None:
                return np.array(own.covariance)
            return None if own.sd is None else np.diag([own.sd[m] ** 2 for m in self.metrics])

        matrices = []
        for arm in self.arms:
            own = matrix(noise.arms.get(arm, noise))
            if own is None:
                missing = "give noise.sd or noise.covariance for all arms"
                raise InputError(f"the noise of arm {arm!r} is not known: {missing}")
            matrices.append(own / np.outer(self.sizes, self.sizes))
        return np.stack(matrices + [np.eye(M)] * (self.room - len(self.arms)))

    def _arm_attributes(self) -> FloatArray | None:
        """The arms' attributes as they were given: (arms, r)."""
        arms = list(self.spec.arms.values())
        if arms[0].attributes is None:
            return None
        return np.array([[(a.attributes or {})[n] for n in arms[0].attributes] for a in arms])

    def _wishes(self, name: str, resolved: Resolved) -> _Wishes:
        if resolved.preference is None or resolved.control is None:
            raise InputError(f"user {name!r} needs a preference and a control")
        shares = {resolved.control: 1.0} if isinstance(resolved.control, str) else resolved.control
        return (
            np.array([resolved.preference.get(m, 0.0) for m in self.metrics]) * self.sizes,
            np.array([shares.get(a, 0.0) for a in self.arms] + [0.0] * (self.room - len(self.arms))),
            None if resolved.arms is None else self._mask(resolved.arms),
        )

    def _units(self, profiles: Sequence[Profile], context: FloatArray | None, blocks: Sequence[int] | None) -> Unit:
        units = [profile.unit for profile in profiles]
        levels, numbers = np.array([u.levels for u in units], np.intp), np.array([u.covariates for u in units])
        if context is not None:
            z, more = self.covariates.split(context)
            lead = context.shape[:-1]
            levels, numbers = (np.broadcast_to(own, (*lead, own.shape[-1])) for own in (levels, numbers))
            levels, numbers = np.concatenate([levels, more], axis=-1), np.concatenate([numbers, z], axis=-1)
        return Unit(
            user=np.array([u.number for u in units]),
            group=np.array([u.group for u in units]),
            block=np.zeros(len(units), np.intp) if blocks is None else np.array(blocks),
            levels=levels if levels.size else None,
            covariates=numbers if numbers.size else None,
        )

    def _view(self, key: int | None) -> _ArmView:
        """Of users whose plot with this control arm is subtracted; None: of all users, whose outcomes are absolute."""
        if key not in self._views:
            maps, covariance, whitening = self._maps, self._covariance, None
            if key is not None:
                # Difference to the site's own control plot: its mean is subtracted, its noise added.
                maps = maps - maps[key]
                covariance = None if covariance is None else covariance + covariance[key]
            if covariance is not None:
                whitening, covariance = whiten(covariance)
            self._views[key] = _ArmView(maps, whitening, covariance)
        return self._views[key]

    def _features_of(
        self, profile: Profile, control: int | None, view: _ArmView
    ) -> tuple[FloatArray, FloatArray | None]:
        """The arms' features for a preference, and their noise before any context: (K, d), (K,)."""
        p = profile.preference
        key = control, p.tobytes()
        if key not in self._features:
            if len(self._features) * view.maps.size > MOST_NUMBERS:
                self._features.clear()
            features = np.matvec(np.swapaxes(view.maps, -1, -2), p[None, :])
            features.flags.writeable = False
            noise = None if view.covariance is None else np.sqrt(quadratic(view.covariance, p))
            self._features[key] = features, noise
        return self._features[key]

    def _noise(self, noise_of: FloatArray, p: FloatArray, context: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """The reward's noise for each arm, and the factor of the covariance in this context."""
        noise = self.spec.noise
        if noise.scale == "constant" or context is None:
            scale = np.full(p.shape[:-1], noise.level)
        elif noise.scale == "norm":
            scale = np.asarray(noise.level * (1 + np.linalg.norm(self.covariates.standard(context), axis=-1)))
        else:
            own = context[..., self.fields.index(noise.scale)]
            if not (own > 0).all():
                raise InputError(f"context {noise.scale!r} scales the noise and must be positive, got {own.min():g}")
            scale = noise.level * own
        return np.sqrt(scale)[..., None] * noise_of, scale

    def _mask(self, arms: Sequence[str]) -> BoolArray:
        mask = np.zeros(self.room, bool)
        mask[[self.arm(arm) for arm in arms]] = True
        return mask
