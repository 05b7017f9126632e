"""Batches of worlds that run side by side: offers, noisy outcomes and mean rewards, block by block of episodes.

`World` is the paper's: contexts drift while an instance stays fixed. Every member of a batch has its own named streams,
so what it meets depends on its seed alone: not on the policy, its neighbours, or the size of the batch. Two policies
with one seed face the same contexts and noise. `Stage` is the episode of worlds in which all users decide at once.
Shapes: S seeds, H users, n episodes in a block (or decisions of a stage), K arms, D context coordinates; block arrays
are (n, H, S, ...), so that the slice of one decision is contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, Self, final

import numpy as np

from drimed import streams
from drimed.errors import ConfigError, ShapeError
from drimed.models.offer import Offer, Outcome, Shape, quadratic, whiten
from drimed.numerics import arrays as checks
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.simulation.instances import Drift, Instance, levels

CHOICES = {"drift_by": ("scale", "mean"), "preferences": ("fixed", "per episode")}
BLOCK_NUMBERS = 2_000_000  # numbers per block array, 16 MB: a few of them fit in any machine's memory
ALL = slice(None)  # users


class AnyWorld(Protocol):
    """A batch of worlds, one for each seed."""

    at_once: ClassVar[bool]  # outcomes come at the end of an episode, so that all of it is decided from one state

    @property
    def shape(self) -> Shape: ...

    @property
    def seeds(self) -> Sequence[int]: ...

    @property
    def episodes(self) -> int: ...

    def blocks(self) -> Iterator[AnyBlock]:
        """The whole run."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A family of worlds as plain data."""

    seeds_per_block: ClassVar[int] = 64  # computed and stored together

    @property
    def drift(self) -> str:
        """Its name."""
        return "none"

    def under(self, drift: str) -> Self:
        """The same with another drift, where there are any."""
        del drift
        return self

    def lasting(self, episodes: int) -> Self:
        """The same for so many episodes."""
        raise NotImplementedError

    def world(self, seeds: Sequence[int]) -> AnyWorld:
        """A world for each seed."""
        raise NotImplementedError


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """A block of one episode in which all users decide at once."""

    start: int  # number of its episode
    first: int  # number of its first decision
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


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Behaviour of contexts and noise; the paper's values are the defaults."""

    episodes: int = 1000  # L
    drift: str | Drift = "gradual"
    magnitude: float = 100.0  # kappa
    drift_by: str = "scale"  # contexts grow in scale (as coded), or move in their mean (as printed)
    context_dim: int = 2  # D
    context_noise: float = 1.0  # sigma_C
    reward_noise: float = 0.1  # sigma_r
    preferences: str = "fixed"  # or "per episode": drawn anew around the user's mean, shown before each decision
    preference_scale: float = 2.0
    tails: float = np.inf  # degrees of freedom of Student noise with the same covariance; infinite: normal
    rotation: float = 0.0  # theta turns by this angle over the run: against the paper's assumption of a fixed mean

    def __post_init__(self) -> None:
        for name, (one, other) in CHOICES.items():
            if getattr(self, name) not in (one, other):
                raise ConfigError(f"{name} must be {one!r} or {other!r}, got {getattr(self, name)!r}")
        if self.context_dim < 1:
            raise ConfigError(f"context_dim must be at least 1, got {self.context_dim}")
        for name in ("reward_noise", "preference_scale"):
            if not 0 < getattr(self, name) < np.inf:
                raise ConfigError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if not 0 <= self.context_noise < np.inf:
            raise ConfigError(f"context_noise must be at least 0 and finite, got {self.context_noise}")
        if not self.tails > 2:
            raise ConfigError(f"tails must be above 2 degrees of freedom, for a finite covariance, got {self.tails}")
        levels(self.drift, self.episodes, self.magnitude)

    @property
    def constant(self) -> bool:
        """Whether every episode has the same means."""
        return self.preferences == "fixed" and self.rotation == 0


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive episodes of all worlds of the batch."""

    start: int
    episodes: int
    features: FloatArray  # (n, H, S, K, d)
    sigma: FloatArray  # (n, H, S, K)
    scale: FloatArray  # (n, H, S)
    preferences: FloatArray  # (n, H, S, M)
    contexts: FloatArray  # (n, H, S, D)
    noise: FloatArray  # (n, H, S, M), standardised
    means: FloatArray  # (n, H, S, K), mean reward of each arm
    theta: FloatArray  # (n, S, d)
    world: World

    @property
    def users(self) -> int:
        """H."""
        return self.world.shape.H

    @property
    def first(self) -> int:
        """The number of its first decision."""
        return self.start * self.users

    def offers(self, episode: int, users: slice = ALL) -> Offer:
        """Offers to the users of an episode, or to some of them: batch (S, n)."""
        at, world = (episode, users), self.world
        return Offer(
            features=self.features[at].swapaxes(0, 1),
            control=world.control[users].swapaxes(0, 1),
            sigma=self.sigma[at].swapaxes(0, 1),
            maps=world.maps[:, None],
            whitening=world.whitening[:, None],
            scale=self.scale[at].T,
            preference=self.preferences[at].swapaxes(0, 1),
            context=self.contexts[at].swapaxes(0, 1),
            user=world.users[users],
        )

    def respond(self, episode: int, action: IntArray, users: slice = ALL) -> Outcome:
        """The outcomes of playing `action` (S, n): vectors and their rewards."""
        at, row = (episode, users), self.world.rows(action).T  # (n, S)
        noise = np.matvec(self.world.noise_roots.take(row, 0), self.noise[at])
        if self.world.setting.rotation == 0:
            mean = self.world.mean_rows.take(row, 0)
        else:
            mean = np.matvec(self.world.map_rows.take(row, 0), self.theta[episode])
        vector = mean + np.sqrt(self.scale[at])[..., None] * noise  # (n, S, M)
        return Outcome(np.vecdot(self.preferences[at], vector).T, vector.swapaxes(0, 1))


AnyBlock = Block | Stage  # consecutive episodes of all worlds of a batch


@dataclass(frozen=True, kw_only=True)
class World:
    """S worlds: member s lives in instances[s % len(instances)] when one instance is shared, else in instances[s]."""

    instances: Sequence[Instance]
    seeds: Sequence[int]
    controls: Sequence[FloatArray]  # (H, K) for each instance
    setting: Setting
    drifts: Sequence[str | Drift] = ()  # one per seed, where they differ; else the setting's

    at_once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not len(self.seeds):
            raise ConfigError("a world needs at least one seed")
        if len(self.instances) not in (1, len(self.seeds)):
            raise ConfigError(f"give one instance, or one per seed ({len(self.seeds)}), got {len(self.instances)}")
        if len(self.controls) != len(self.instances):
            raise ConfigError(f"give one control per instance ({len(self.instances)}), got {len(self.controls)}")
        if any(i.shape != self.shape for i in self.instances):
            raise ShapeError(f"all instances must have the shape {self.shape}")
        for control in self.controls:
            checks.probabilities("control", checks.shaped("control", control, (self.shape.H, self.shape.K)))

    @property
    def shape(self) -> Shape:
        """The sizes d, K, M, H."""
        return self.instances[0].shape

    @property
    def batch(self) -> int:
        """S."""
        return len(self.seeds)

    @property
    def episodes(self) -> int:
        """L."""
        return self.setting.episodes

    @cached_property
    def theta(self) -> FloatArray:
        """(S, d)."""
        return self._per_seed([i.theta for i in self.instances])

    @cached_property
    def maps(self) -> FloatArray:
        """(S, K, M, d)."""
        return self._per_seed([i.maps for i in self.instances])

    @cached_property
    def control(self) -> FloatArray:
        """(H, S, K)."""
        return np.ascontiguousarray(np.swapaxes(self._per_seed(list(self.controls)), 0, 1))

    @cached_property
    def whitening(self) -> FloatArray:
        """(S, K, M, M), at noise scale 1."""
        return self._per_seed([w for w, _ in self._noise])

    @cached_property
    def users(self) -> IntArray:
        """Their numbers: (H,)."""
        return np.arange(self.shape.H)

    def rows(self, action: IntArray) -> IntArray:
        """Rows of these arms in tables of the arms of all instances: (S, n) -> (S, n)."""
        shared = len(self.instances) == 1
        return action if shared else action + self._first_rows

    @cached_property
    def _first_rows(self) -> IntArray:
        return self.shape.K * np.arange(self.batch)[:, None]

    @cached_property
    def map_rows(self) -> FloatArray:
        """The maps of all instances, arm by arm: (rows, M, d)."""
        return np.concatenate([i.maps for i in self.instances])

    @cached_property
    def mean_rows(self) -> FloatArray:
        """Mean outcomes of all arms, unless theta turns: (rows, M)."""
        return np.concatenate([np.matvec(i.maps, i.theta) for i in self.instances])

    @cached_property
    def noise_roots(self) -> FloatArray:
        """A root of each covariance, for drawing noise: (rows, M, M)."""
        return np.asarray(np.linalg.inv(np.concatenate([w for w, _ in self._noise])), np.float64)

    @cached_property
    def _noise(self) -> list[tuple[FloatArray, FloatArray]]:
        return [whiten(i.covariances) for i in self.instances]

    def _per_seed(self, arrays: list[FloatArray]) -> FloatArray:
        if len(arrays) == 1:
            return np.broadcast_to(arrays[0], (self.batch, *arrays[0].shape))
        return np.stack(arrays)

    def blocks(self, episodes_per_block: int | None = None) -> Iterator[Block]:
        """The whole run, block by block; the cut into blocks changes nothing."""
        L, shape = self.setting.episodes, self.shape
        widest = shape.K * shape.d if self.setting.preferences == "per episode" else max(shape.K, shape.M)
        per_episode = self.batch * shape.H * widest
        n = episodes_per_block or max(1, min(L, BLOCK_NUMBERS // per_episode))
        draw = _Draws(self)
        for start in range(0, L, n):
            yield self._block(start, min(n, L - start), draw)

    def _block(self, start: int, n: int, draw: _Draws) -> Block:
        setting = self.setting
        z = draw.contexts(n)  # (n, H, S, D)
        f = self._levels[start : start + n]
        if setting.drift_by == "scale":
            contexts = setting.context_noise * (1 + f) * z
        else:
            contexts = setting.context_noise * z + f * draw.direction
        scale = setting.reward_noise * (1 + np.linalg.norm(contexts, axis=-1))
        if setting.preferences == "fixed":
            preferences, features, base = self._fixed
            preferences, features = (np.broadcast_to(a, (n, *a.shape)) for a in (preferences, features))
        else:
            preferences = draw.preferences(n)
            features, base = self._valued(preferences)
        theta = self._thetas(start, n, draw)  # (n, S, d)
        if setting.constant:
            means = np.broadcast_to(np.matvec(features[0], theta[0]), (*features.shape[:-1],))
        else:
            means = np.matvec(features, theta[:, None])
        sigma = np.sqrt(scale)[..., None] * base
        return Block(start, n, features, sigma, scale, preferences, contexts, draw.noise(n), means, theta, self)

    @cached_property
    def _levels(self) -> FloatArray:
        """The drift in each episode: (L, 1, S or 1, 1)."""
        drifts = self.drifts or [self.setting.drift]
        by_drift = {drift: levels(drift, self.setting.episodes, self.setting.magnitude) for drift in drifts}
        return np.stack([by_drift[drift] for drift in drifts], -1)[:, None, :, None]

    def _thetas(self, start: int, n: int, draw: _Draws) -> FloatArray:
        setting, episode = self.setting, np.arange(start, start + n)[:, None, None]
        if setting.rotation == 0:
            return np.broadcast_to(self.theta, (n, *self.theta.shape))
        angle = setting.rotation * episode / setting.episodes
        return np.cos(angle) * self.theta + np.sin(angle) * draw.across

    @cached_property
    def _fixed(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        own = self._per_seed([i.preferences for i in self.instances])  # (S, H, M)
        preferences = np.ascontiguousarray(np.swapaxes(own, 0, 1))
        return preferences, *self._valued(preferences)

    def _valued(self, preferences: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Features, and noise at scale 1, for users with these preferences: (..., S, M) -> (..., S, K, .)."""
        features = np.matvec(np.swapaxes(self.maps, -1, -2), preferences[..., None, :])
        covariance = self._per_seed([c for _, c in self._noise])
        return features, np.sqrt(quadratic(covariance, preferences))


class _Draws:
    """Draws from the streams of every member, read from front to back; members of one seed share theirs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._seeds = list(dict.fromkeys(map(int, world.seeds)))
        self._members = [self._seeds.index(seed) for seed in map(int, world.seeds)]
        self._contexts, self._noise, self._tails = (self._generators(name) for name in ("contexts", "noise", "tails"))
        self._preferences = [streams.generator(int(seed), "preferences") for seed in world.seeds]
        v = self._directions("direction", world.setting.context_dim)
        self.direction = v / np.linalg.norm(v, axis=-1, keepdims=True)  # (S, D)

    def contexts(self, n: int) -> FloatArray:
        return self._each(
            [g.standard_normal((n, self.world.shape.H, self.world.setting.context_dim)) for g in self._contexts]
        )

    def noise(self, n: int) -> FloatArray:
        """Standardised: normal, or Student scaled to unit variance, one radius per outcome."""
        H, nu = self.world.shape.H, self.world.setting.tails
        z = self._each([g.standard_normal((n, H, self.world.shape.M)) for g in self._noise])
        if np.isinf(nu):
            return z
        chi = self._each([g.chisquare(nu, (n, H)) for g in self._tails])
        return z * np.sqrt((nu - 2) / chi)[..., None]

    @cached_property
    def across(self) -> FloatArray:
        """The direction into which theta turns: orthogonal to it, of its length. (S, d)"""
        theta = self.world.theta
        if theta.shape[-1] < 2:
            raise ConfigError("theta cannot turn in one dimension: a rotation needs d >= 2")
        v = self._directions("rotation", theta.shape[-1])
        length = np.linalg.norm(theta, axis=-1, keepdims=True)
        unit = theta / length
        v = v - (v * unit).sum(-1, keepdims=True) * unit
        return v / np.linalg.norm(v, axis=-1, keepdims=True) * length

    def preferences(self, n: int) -> FloatArray:
        """Dirichlet around each user's mean, as normalised gammas: (n, H, S, M)."""
        means = self.world._per_seed([i.preference_means for i in self.world.instances])  # (S, H, M)
        scale = self.world.setting.preference_scale
        shapes = zip(self._preferences, scale * means, strict=True)
        gammas = np.stack([g.standard_gamma(m, (n, *m.shape)) for g, m in shapes], axis=2)
        total = gammas.sum(-1, keepdims=True)
        return np.where(total > 0, gammas / np.where(total > 0, total, 1.0), np.swapaxes(means, 0, 1))

    def _generators(self, name: str) -> list[np.random.Generator]:
        return [streams.generator(seed, name) for seed in self._seeds]

    def _directions(self, name: str, width: int) -> FloatArray:
        return np.stack([g.standard_normal(width) for g in self._generators(name)])[self._members]

    def _each(self, drawn: list[FloatArray]) -> FloatArray:
        """Draws (n, H, ...) of each seed as those of each member: (n, H, S, ...)."""
        array = np.stack(drawn, axis=2)
        return array if len(drawn) == len(self._members) else array.take(self._members, 2)
