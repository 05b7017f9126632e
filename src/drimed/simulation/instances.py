"""Instances of the paper's problem, the controls of their users, and the ways in which contexts drift.

Source: Das et al., Algorithm "Environment Generation" and Appendix "Drifting"; drifts beyond its four come from its
authors' code. `abrupt` stays at the magnitude from L/3 on, as coded; `abrupt_growing` climbs to three times it, as
printed (docs/paper.md, I-25).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from drimed.errors import ConfigError, UnknownNameError
from drimed.models.offer import Shape
from drimed.numerics import arrays, probability
from drimed.numerics.arrays import FloatArray

# f(episode) >= 0 by which contexts drift: (episodes from 0, their number L, magnitude kappa) -> one value per episode.
Drift = Callable[[FloatArray, int, float], FloatArray]


def _burst(episode: FloatArray, L: int, magnitude: float) -> FloatArray:
    """Three bells, at a fifth, a half and four fifths."""
    at = episode[:, None] / L - np.array([0.2, 0.5, 0.8])
    return magnitude * np.exp(-0.5 * (at / 0.05) ** 2).sum(-1)


def _regime_shift(episode: FloatArray, L: int, magnitude: float) -> FloatArray:
    """Five stretches, each at a level of its own, up or down; the levels are part of the definition."""
    levels = np.random.default_rng(0).uniform(0, 1, size=5)
    stretch = np.searchsorted(np.linspace(0, L, 6).astype(int)[1:-1], episode, side="right")
    return magnitude * levels[stretch]


DRIFTS: dict[str, Drift] = {
    "none": lambda e, *_: np.zeros_like(e),
    "gradual": lambda e, L, kappa: kappa * e / L,
    # Fifty waves; their length is a whole number of episodes, as coded.
    "periodic": lambda e, L, kappa: kappa * 0.5 * (1 + np.sin(2 * np.pi * e / max(L // 50, 1))),
    "abrupt": lambda e, L, kappa: kappa * (e >= L // 3).astype(np.float64),
    # Jumps of once and twice the magnitude.
    "abrupt_growing": lambda e, L, kappa: kappa * ((e >= L // 3) + 2.0 * (e >= 2 * L // 3)),
    "decaying": lambda e, L, kappa: kappa * np.exp(-5 * e / L),  # loudest at the start, when nothing is known yet
    "burst": _burst,
    "regime_shift": _regime_shift,
    "sawtooth": lambda e, L, kappa: kappa * ((5 * e / L) % 1.0),  # five ramps with a sharp fall after each
}


def levels(drift: str | Drift, L: int, magnitude: float) -> FloatArray:
    """f for each of L episodes: (L,)."""
    if isinstance(drift, str):
        if drift not in DRIFTS:
            raise UnknownNameError("drift", drift, DRIFTS)
        drift = DRIFTS[drift]
    if L < 1:
        raise ConfigError(f"the number of episodes must be at least 1, got {L}")
    if not 0 <= magnitude < np.inf:
        raise ConfigError(f"magnitude must be at least 0 and finite, got {magnitude}")
    f = arrays.shaped("drift", arrays.finite("drift", drift(np.arange(L, dtype=np.float64), L, magnitude)), (L,))
    if (f < 0).any():
        raise ConfigError(f"a drift must not be negative, got {float(f.min())} at episode {int(f.argmin())}")
    return f


AUTHORS_SEED = 42
PAPER_SHAPE = Shape(d=4, K=5, M=4, H=10)


@dataclass(frozen=True)
class Instance:
    """One world: Y = Phi(a) theta + noise of covariance proportional to Sigma_a; user h values p_h . Y."""

    theta: FloatArray  # (d,)
    maps: FloatArray  # (K, M, d), Phi
    covariances: FloatArray  # (K, M, M), Sigma
    preferences: FloatArray  # (H, M), what the users really have
    preference_means: FloatArray  # (H, M), the Dirichlet means they were drawn around

    def __post_init__(self) -> None:
        for name, any_shape in (("theta", (-1,)), ("maps", (-1, -1, -1)), ("preferences", (-1, -1))):
            arrays.shaped(name, getattr(self, name), any_shape)
        d, (K, M), H = len(self.theta), self.maps.shape[:2], len(self.preferences)
        cores = {"maps": (K, M, d), "covariances": (K, M, M), "preferences": (H, M), "preference_means": (H, M)}
        for name, core in {"theta": (d,), **cores}.items():
            arrays.shaped(name, arrays.finite(name, getattr(self, name)), core)
        arrays.covariance("covariances", self.covariances)

    @property
    def shape(self) -> Shape:
        K, M, d = self.maps.shape
        return Shape(d=d, K=K, M=M, H=len(self.preferences))

    def means(self, preferences: FloatArray) -> FloatArray:
        """Mean reward of each arm for users with these preferences: (H, M) -> (H, K)."""
        return preferences @ (self.maps @ self.theta).T


def draw_instance(
    seed: int, shape: Shape = PAPER_SHAPE, *, theta_norm: float = 1.0, preference_scale: float = 2.0
) -> Instance:
    """An instance of the paper's generator, in the order in which its authors draw.

    `preference_scale` is the concentration of drawn preferences around their means.
    """
    if not (theta_norm > 0 and preference_scale > 0):
        raise ConfigError(f"theta_norm and preference_scale must be positive, got {theta_norm}, {preference_scale}")
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(shape.d)
    theta = theta / np.linalg.norm(theta) * theta_norm
    maps = rng.standard_normal((shape.K, shape.M, shape.d))
    maps = maps / np.linalg.norm(maps, axis=-1, keepdims=True)
    root = rng.standard_normal((shape.K, shape.M, shape.M))
    means = rng.dirichlet(np.ones(shape.M), size=shape.H)
    preferences = np.array([rng.dirichlet(preference_scale * mean) for mean in means])
    return Instance(theta, maps, root @ np.swapaxes(root, -1, -2) / shape.M, preferences, means)


def end_of_optimism(seed: int) -> Instance:
    """One user, one metric, arms e1, e2 and (1 - x, 2x): the near-twin of the best arm teaches nothing about it.

    Source: Lattimore and Szepesvari (2017), "The End of Optimism". x is between .02 and .2, the plane turned.
    """
    rng = np.random.default_rng(seed)
    x = np.exp(rng.uniform(np.log(0.02), np.log(0.2)))
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    arms = np.array([[1.0, 0.0], [0.0, 1.0], [1 - x, 2 * x]]) @ turn.T
    one = np.ones((1, 1))
    return Instance(turn @ [1.0, 0.0], arms[:, None, :], np.ones((3, 1, 1)), one, one)


def authors_instance() -> Instance:
    """The one instance behind every figure of the paper."""
    return draw_instance(AUTHORS_SEED)


def quantile_control(instance: Instance, quantile: float = 0.5, *, judged_by: str = "preferences") -> FloatArray:
    """One arm per user: the one whose mean reward is nearest the quantile of that user's arms. (H, K), one-hot.

    `judged_by="preferences"` ranks arms by what the user really values; "preference_means" by what the authors' code
    uses instead (docs/paper.md, I-4).
    """
    if not 0 <= quantile <= 1:
        raise ConfigError(f"quantile must be in [0, 1], got {quantile}")
    if judged_by not in ("preferences", "preference_means"):
        raise ConfigError(f"judged_by must be 'preferences' or 'preference_means', got {judged_by!r}")
    means = instance.means(getattr(instance, judged_by))
    arm = np.abs(means - np.quantile(means, quantile, axis=-1, keepdims=True)).argmin(-1)
    return probability.one_hot(arm, means.shape[-1])


def mixed_control(instance: Instance, seed: int) -> FloatArray:
    """A lottery per user: a random distribution over all arms. (H, K)"""
    K = instance.shape.K
    return np.random.default_rng([seed, K]).dirichlet(np.ones(K), size=instance.shape.H)


def given_control(control: Any, instance: Instance) -> FloatArray:
    """Any pi_0, mixed ones too: one distribution for all users (K,), or one each (H, K)."""
    H, K = instance.shape.H, instance.shape.K
    array = arrays.finite("control", control)
    arrays.shaped("control", array, (K,) if array.ndim == 1 else (H, K))
    return np.broadcast_to(arrays.probabilities("control", array), (H, K)).copy()
