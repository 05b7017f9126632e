"""How the contexts drift: f(episode) >= 0, by name or by any function of the user's own.

Source: Das et al., Appendix "Drifting"; the shapes beyond its four come from its authors' code. Episodes
count from 0. `abrupt` stays at the magnitude from L/3 on, as coded; `abrupt_growing` climbs to three times it, as
printed (docs/paper.md, I-25).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from drimed.errors import ConfigError, UnknownNameError
from drimed.linear import checks
from drimed.linear.arrays import FloatArray

# (episodes from 0, their number L, magnitude kappa) -> f, one value per episode.
Drift = Callable[[FloatArray, int, float], FloatArray]


def none(episode: FloatArray, L: int, magnitude: float) -> FloatArray:
    """f = 0."""
    del L, magnitude
    return np.zeros_like(episode)


def gradual(episode: FloatArray, L: int, magnitude: float) -> FloatArray:
    """A straight climb."""
    return magnitude * episode / L


def periodic(episode: FloatArray, L: int, magnitude: float) -> FloatArray:
    """Fifty waves; their length is a whole number of episodes, as coded."""
    return magnitude * 0.5 * (1 + np.sin(2 * np.pi * episode / max(L // 50, 1)))


def abrupt(episode: FloatArray, L: int, magnitude: float) -> FloatArray:
    """One jump at L/3."""
    return magnitude * (episode >= L // 3).astype(np.float64)


def abrupt_growing(episode: FloatArray, L: int, magnitude: float) -> FloatArray:
    """Jumps of once and twice the magnitude at L/3 and 2L/3."""
    return magnitude * ((episode >= L // 3) + 2.0 * (episode >= 2 * L // 3))


def decaying(episode: FloatArray, L: int, magnitude: float) -> FloatArray:
    """Loudest at the start, when nothing is known yet."""
    return magnitude * np.exp(-5 * episode / L)


def burst(episode: FloatArray, L: int, magnitude: float) -> FloatArray:
    """Three bells, at a fifth, a half and four fifths."""
    at = episode[:, None] / L - np.array([0.2, 0.5, 0.8])
    return magnitude * np.exp(-0.5 * (at / 0.05) ** 2).sum(-1)


def regime_shift(episode: FloatArray, L: int, magnitude: float) -> FloatArray:
    """Five stretches, each at a level of its own, up or down; the levels are part of the definition."""
    levels = np.random.default_rng(0).uniform(0, 1, size=5)
    stretch = np.searchsorted(np.linspace(0, L, 6).astype(int)[1:-1], episode, side="right")
    return magnitude * levels[stretch]


def sawtooth(episode: FloatArray, L: int, magnitude: float) -> FloatArray:
    """Five ramps with a sharp fall after each."""
    return magnitude * ((5 * episode / L) % 1.0)


DRIFTS: dict[str, Drift] = {
    f.__name__: f for f in (none, gradual, periodic, abrupt, abrupt_growing, decaying, burst, regime_shift, sawtooth)
}


def levels(drift: str | Drift, L: int, magnitude: float) -> FloatArray:
    """f for each of L episodes: (L,).

    >>> levels("gradual", 4, 100.0).tolist()
    [0.0, 25.0, 50.0, 75.0]
    """
    if isinstance(drift, str):
        if drift not in DRIFTS:
            raise UnknownNameError("drift", drift, DRIFTS)
        drift = DRIFTS[drift]
    if L < 1:
        raise ConfigError(f"the number of episodes must be at least 1, got {L}")
    if not 0 <= magnitude < np.inf:
        raise ConfigError(f"magnitude must be at least 0 and finite, got {magnitude}")
    f = checks.shaped("drift", checks.finite("drift", drift(np.arange(L, dtype=np.float64), L, magnitude)), (L,))
    if (f < 0).any():
        raise ConfigError(f"a drift must not be negative, got {float(f.min())} at episode {int(f.argmin())}")
    return f
