"""Batches of worlds that run side by side: offers, noisy outcomes and mean rewards, block by block of episodes.

Every member of a batch has its own named streams: what it meets depends on its seed alone. Shapes: S seeds, H users, n
episodes in a block (or decisions of a stage), K arms, D context coordinates; arrays are (n, H, S, ...), so that the
slice of one decision is contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self, final

import numpy as np

from drimed import streams
from drimed.errors import ConfigError, ShapeError
from drimed.models.offer import Offer, Outcome, Shape, quadratic, whiten
from drimed.numerics import arrays
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.simulation.instances import Drift, Instance, levels

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

    first: int  # number of its first decision
    offered: Offer  # (S, n)
    means: FloatArray  # (1, n, S, K), the mean reward of each arm
    outcomes: Callable[[IntArray], Outcome]
    world: AnyWorld

    episodes: ClassVar[int] = 1

    @property
    def control(self) -> FloatArray:
        """(n, S, K)."""
        return np.swapaxes(self.offered.control, 0, 1)

    def offers(self, episode: int, users: slice = ALL) -> Offer:
        del episode, users
        return self.offered

    def respond(self, episode: int, action: IntArray, users: slice = ALL) -> Outcome:
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
    tails: float = np.inf  # degrees of freedom of Student noise with the same covariance; infinite: normal
    rotation: float = 0.0  # theta turns by this angle over the run: against the paper's assumption of a fixed mean

    def __post_init__(self) -> None:
        words, least = {"drift_by": ("scale", "mean")}, ("context_noise",)
        arrays.check_settings(self, words, positive=("reward_noise",), not_negative=least, count=("context_dim",))
        if not self.tails > 2:
            raise ConfigError(f"tails must be above 2 degrees of freedom, for a finite covariance, got {self.tails}")
        levels(self.drift, self.episodes, self.magnitude)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive episodes of all worlds of the batch."""

    start: int  # number of its first episode
    scale: FloatArray  # (n, H, S), of the noise
    sigma: FloatArray  # (n, H, S, K), standard deviation of each arm's reward
    contexts: FloatArray  # (n, H, S, D)
    noise: FloatArray  # (n, H, S, M), standardised
    theta: FloatArray  # (n, S, d)
    means: FloatArray  # (n, H, S, K), mean reward of each arm
    world: World

    @property
    def episodes(self) -> int:
        return len(self.scale)

    @property
    def first(self) -> int:
        """The number of its first decision."""
        return self.start * self.world.shape.H

    @property
    def control(self) -> FloatArray:
        """(H, S, K)."""
        return self.world.control

    def offers(self, episode: int, users: slice = ALL) -> Offer:
        """Offers to the users of an episode, or to some of them: batch (S, n)."""
        at, world = (episode, users), self.world
        by_seed = {
            "features": world.features[users], "control": world.control[users], "sigma": self.sigma[at],
            "preference": world.preferences[users], "context": self.contexts[at], "scale": self.scale[at],
        }  # fmt: skip
        swapped: dict[str, Any] = {name: array.swapaxes(0, 1) for name, array in by_seed.items()}
        return Offer(**swapped, maps=world.maps[:, None], whitening=world.whitening[:, None], user=world.users[users])

    def respond(self, episode: int, action: IntArray, users: slice = ALL) -> Outcome:
        """The outcomes of playing `action` (S, n): vectors and their rewards."""
        at, world, row = (episode, users), self.world, (action + self.world.first_rows).T  # (n, S)
        if world.setting.rotation == 0:
            mean = world.mean_rows.take(row, 0)
        else:
            mean = np.matvec(world.maps[np.arange(world.batch), action.T], self.theta[episode])
        noise = np.matvec(world.noise_roots.take(row, 0), self.noise[at])
        vector = mean + np.sqrt(self.scale[at])[..., None] * noise  # (n, S, M)
        return Outcome(np.vecdot(world.preferences[users], vector).T, vector.swapaxes(0, 1))


AnyBlock = Block | Stage  # consecutive episodes of all worlds of a batch


@dataclass(kw_only=True, eq=False)
class World:
    """S worlds: one instance for each seed, or one for all of them."""

    instances: Sequence[Instance]
    seeds: Sequence[int]
    controls: Sequence[FloatArray]  # (H, K) for each instance
    setting: Setting
    drifts: Sequence[str | Drift] = ()  # one per seed, where they differ; else the setting's

    theta: FloatArray = field(init=False)  # (S, d)
    maps: FloatArray = field(init=False)  # (S, K, M, d)
    whitening: FloatArray = field(init=False)  # (S, K, M, M), at noise scale 1
    control: FloatArray = field(init=False)  # (H, S, K)
    preferences: FloatArray = field(init=False)  # (H, S, M)
    features: FloatArray = field(init=False)  # (H, S, K, d)
    sigma: FloatArray = field(init=False)  # (H, S, K), of the reward at noise scale 1
    users: IntArray = field(init=False)  # (H,), their numbers
    first_rows: IntArray = field(init=False)  # (S, 1), of each member's first arm in the following tables of all arms
    mean_rows: FloatArray = field(init=False)  # (rows, M), mean outcomes, unless theta turns
    noise_roots: FloatArray = field(init=False)  # (rows, M, M), a root of each covariance, for drawing noise

    at_once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.seeds, int) or not len(self.seeds):
            raise ConfigError(f"seeds must be a list of at least one number, such as range(20), got {self.seeds!r}")
        if len(self.instances) not in (1, len(self.seeds)):
            raise ConfigError(f"give one instance, or one per seed ({len(self.seeds)}), got {len(self.instances)}")
        if len(self.controls) != len(self.instances):
            raise ConfigError(f"give one control per instance ({len(self.instances)}), got {len(self.controls)}")
        if any(i.shape != self.shape for i in self.instances):
            raise ShapeError(f"all instances must have the shape {self.shape}")
        for control in self.controls:
            arrays.probabilities("control", arrays.shaped("control", control, (self.shape.H, self.shape.K)))
        whitening, covariances = zip(*(whiten(i.covariances) for i in self.instances), strict=True)
        self.theta = self._per_seed([i.theta for i in self.instances])
        self.maps = self._per_seed([i.maps for i in self.instances])
        self.whitening = self._per_seed(whitening)
        self.control = np.ascontiguousarray(self._per_seed(self.controls).swapaxes(0, 1))
        preferences = self._per_seed([i.preferences for i in self.instances])
        self.preferences = np.ascontiguousarray(preferences.swapaxes(0, 1))
        self.features = np.matvec(self.maps.swapaxes(-1, -2), self.preferences[..., None, :])
        self.sigma = np.sqrt(quadratic(self._per_seed(covariances), self.preferences))
        self.users = np.arange(self.shape.H)
        self.first_rows = self.shape.K * (np.arange(self.batch)[:, None] % len(self.instances))
        self.mean_rows = np.concatenate([np.matvec(i.maps, i.theta) for i in self.instances])
        self.noise_roots = np.asarray(np.linalg.inv(np.concatenate(whitening)), np.float64)

    @property
    def shape(self) -> Shape:
        return self.instances[0].shape

    @property
    def batch(self) -> int:
        """S."""
        return len(self.seeds)

    @property
    def episodes(self) -> int:
        return self.setting.episodes

    def _per_seed(self, arrays: Sequence[FloatArray]) -> FloatArray:
        return np.broadcast_to(arrays[0], (self.batch, *arrays[0].shape)) if len(arrays) == 1 else np.stack(arrays)

    def blocks(self, episodes_per_block: int | None = None) -> Iterator[Block]:
        """The whole run, block by block; the cut into blocks changes nothing."""
        setting, shape, draw = self.setting, self.shape, _Draws(self)
        widest = self.batch * shape.H * max(shape.K, shape.M)
        size = episodes_per_block or max(1, BLOCK_NUMBERS // widest)
        drifts = self.drifts or [setting.drift]
        by_drift = {drift: levels(drift, self.episodes, setting.magnitude) for drift in drifts}
        f = np.stack([by_drift[drift] for drift in drifts], -1)[:, None, :, None]  # (L, 1, S or 1, 1)
        for start in range(0, self.episodes, size):
            episode = np.arange(start, min(start + size, self.episodes))
            contexts, by = setting.context_noise * draw.contexts(len(episode)), f[episode]  # (n, H, S, D)
            contexts = contexts * (1 + by) if setting.drift_by == "scale" else contexts + by * draw.direction
            scale = setting.reward_noise * (1 + np.linalg.norm(contexts, axis=-1))
            theta = self.theta[None]
            if setting.rotation:
                angle = (setting.rotation * episode / self.episodes)[:, None, None]
                theta = np.cos(angle) * theta + np.sin(angle) * draw.across
            means = np.matvec(self.features, theta[:, None])  # (n or 1, H, S, K)
            theta, means = (np.broadcast_to(each, (len(episode), *each.shape[1:])) for each in (theta, means))
            sigma = np.sqrt(scale)[..., None] * self.sigma
            yield Block(start, scale, sigma, contexts, draw.noise(len(episode)), theta, means, self)


class _Draws:
    """Draws from the streams of every member, read from front to back; members of one seed share theirs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._seeds = list(dict.fromkeys(map(int, world.seeds)))
        self._members = [self._seeds.index(seed) for seed in map(int, world.seeds)]
        self._streams: dict[str, list[np.random.Generator]] = {}

    def contexts(self, n: int) -> FloatArray:
        size = (n, self.world.shape.H, self.world.setting.context_dim)
        return self._each([g.standard_normal(size) for g in self._stream("contexts")])

    def noise(self, n: int) -> FloatArray:
        """Standardised: normal, or Student scaled to unit variance, one radius per outcome."""
        H, M, nu = self.world.shape.H, self.world.shape.M, self.world.setting.tails
        z = self._each([g.standard_normal((n, H, M)) for g in self._stream("noise")])
        if np.isinf(nu):
            return z
        chi = self._each([g.chisquare(nu, (n, H)) for g in self._stream("tails")])
        return z * np.sqrt((nu - 2) / chi)[..., None]

    @cached_property
    def direction(self) -> FloatArray:
        """Of the drift of contexts, of length one: (S, D)."""
        v = self._directions("direction", self.world.setting.context_dim)
        return v / np.linalg.norm(v, axis=-1, keepdims=True)

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

    def _stream(self, name: str) -> list[np.random.Generator]:
        """The generators of the seeds, begun when they are first read."""
        if name not in self._streams:
            self._streams[name] = [streams.generator(seed, name) for seed in self._seeds]
        return self._streams[name]

    def _directions(self, name: str, width: int) -> FloatArray:
        return np.stack([g.standard_normal(width) for g in self._stream(name)])[self._members]

    def _each(self, drawn: list[FloatArray]) -> FloatArray:
        """Draws (n, H, ...) of each seed as those of each member: (n, H, S, ...)."""
        array = np.stack(drawn, axis=2)
        return array if len(drawn) == len(self._members) else array.take(self._members, 2)
