"""Averages of means that change, at all times at once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad

from drimed.errors import ConfigError, InputError
from drimed.evaluation.confidence_sequences import Lower, boundary, exact
from drimed.numerics.arrays import FloatArray

ALPHA = 0.1


def mixed(s: float, v: float, rho: float) -> float:
    """exp(b s - psi(b) v) averaged over b in (0, 1) with density proportional to exp(-rho psi(b)) / (1 - b)."""

    def psi(b: float) -> float:
        return -np.log1p(-b) - b

    def density(b: float) -> float:
        return float(np.exp(-rho * psi(b)) / (1 - b))

    weight = quad(density, 0, 1)[0]
    return float(quad(lambda b: np.exp(b * s - v * psi(b)) * density(b), 0, 1)[0] / weight)


def means(shape: str, n: int) -> FloatArray:
    at = np.arange(n)
    return {
        "two clinics": np.where(at < n // 2, 0.2, 0.7),
        "trend": np.linspace(0.3, 0.5, n),
        "waves": 0.5 + 0.4 * np.sin(at / 25),
        "rare": np.full(n, 0.02),
    }[shape]


@pytest.mark.parametrize("shape", ["two clinics", "trend", "waves", "rare"])
def test_the_average_of_changing_means_is_held_at_all_times(shape: str) -> None:
    """Looked at after every 25th observation."""
    runs, n = 200, 500
    mu = means(shape, n)
    x = (np.random.default_rng(0).random((runs, n)) < mu).astype(np.float64)
    held = np.ones(runs, bool)
    for end in range(25, n + 1, 25):
        band, truth = exact(x[:, :end], ALPHA), mu[:end].mean()
        held &= (band.low <= truth) & (truth <= band.high)
    assert held.mean() >= 1 - ALPHA
    assert np.median(band.high - band.low) < 0.2


def test_weights_of_any_size_cannot_break_it() -> None:
    """Inverse propensities: most observations are zero, some are fifty."""
    runs, n, e = 100, 2000, 0.02
    rng = np.random.default_rng(1)
    x = (rng.random((runs, n)) < e) / e * (rng.random((runs, n)) < 0.6)
    lower, held = Lower(alpha=ALPHA, sums=np.zeros((runs, 3))), np.ones(runs, bool)
    for at in range(0, n, 50):
        lower = lower.extend(x[:, at : at + 50])
        held &= lower.bound() <= 0.6
    assert held.mean() >= 1 - ALPHA
    assert np.median(lower.bound()) > 0  # and it says something


def test_the_boundary_is_where_the_mixture_reaches_one_over_alpha() -> None:
    for v, tuned_at in ((0.0, 20.0), (3.0, 20.0), (40.0, 20.0), (40.0, 200.0)):
        s = float(boundary(v, 0.05, tuned_at=tuned_at))
        rho = tuned_at / (2 * np.log(20) + np.log(1 + 2 * np.log(20)))
        assert mixed(s, v, rho) == pytest.approx(20.0, rel=1e-6)
    V = np.concatenate([[0.0], np.logspace(-3, 6, 60)])
    assert [float(boundary(v, 1e-12)) for v in V] == boundary(V, 1e-12).tolist()  # alone as beside others


def test_the_boundary_scales_with_its_unit() -> None:
    V = np.array([0.0, 5.0, 500.0])
    np.testing.assert_allclose(boundary(9 * V, 0.05, scale=3.0), 3 * boundary(V, 0.05))


def test_a_bound_goes_on_where_it_stopped() -> None:
    x = np.random.default_rng(2).random(100)
    start = Lower(alpha=0.05)
    whole, parts = start.extend(x), start.extend(x[:37]).extend(x[37:37]).extend(x[37:])
    assert whole.bound() == parts.bound()


def test_observations_that_are_not_used_change_nothing() -> None:
    x = np.random.default_rng(3).random(60)
    used = np.arange(60) % 3 > 0
    assert exact(x, 0.1, used=used) == exact(x[used], 0.1)


def test_misuse_is_refused() -> None:
    with pytest.raises(InputError, match="at least 0, got -1"):
        exact([0.5, -1.0], 0.1)
    with pytest.raises(ConfigError, match="below most"):
        Lower(alpha=0.1, least=1.0, most=1.0)
    with pytest.raises(ConfigError, match="must be positive"):
        boundary(1.0, 0.1, tuned_at=0.0)
