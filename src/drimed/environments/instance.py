"""What stays fixed while contexts drift: theta, the arms' maps and covariances, the users' preferences.

Source: Das et al., Algorithm "Environment Generation". All seeds of the paper share one instance, the authors'.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.errors import ConfigError
from drimed.learning.offer import Shape
from drimed.linear import checks
from drimed.linear.arrays import FloatArray

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
        checks.shaped("theta", checks.finite("theta", self.theta), (-1,))
        checks.shaped("maps", self.maps, (-1, -1, -1))
        checks.shaped("preferences", self.preferences, (-1, -1))
        d, (K, M), H = len(self.theta), self.maps.shape[:2], len(self.preferences)
        checks.shaped("maps", checks.finite("maps", self.maps), (K, M, d))
        checks.covariance(
            "covariances", checks.shaped("covariances", checks.finite("covariances", self.covariances), (K, M, M))
        )
        checks.noisy("covariances", self.covariances)
        checks.shaped("preferences", checks.finite("preferences", self.preferences), (H, M))
        checks.shaped("preference_means", checks.finite("preference_means", self.preference_means), (H, M))

    @property
    def shape(self) -> Shape:
        """The sizes d, K, M, H."""
        K, M, d = self.maps.shape
        return Shape(d=d, K=K, M=M, H=len(self.preferences))

    def means(self, preferences: FloatArray) -> FloatArray:
        """Mean reward of each arm for users with these preferences: (H, M) -> (H, K)."""
        return preferences @ (self.maps @ self.theta).T


def draw_instance(
    seed: int,
    shape: Shape = PAPER_SHAPE,
    *,
    theta_norm: float = 1.0,
    preference_scale: float = 2.0,
) -> Instance:
    """An instance of the paper's generator, in the order in which its authors draw.

    >>> draw_instance(0).shape
    Shape(d=4, K=5, M=4, H=10)
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

    >>> end_of_optimism(0).shape
    Shape(d=2, K=3, M=1, H=1)
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
