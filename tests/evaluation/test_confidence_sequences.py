"""Averages of means that change, and a constant theta: at all times at once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad

from drimed.errors import ConfigError, InputError
from drimed.evaluation.confidence_sequences import Lower, boundary, exact, mean_drift
from drimed.numerics.arrays import FloatArray

ALPHA = 0.1
RUNS, L, H, D, K = 300, 60, 8, 3, 4  # of trials whose theta turns
CHANGE = 30


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


def trials(
    runs: int = RUNS, *, angle: float = 0.0, gradual: bool = False, noise: str = "normal", seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Whitened rows of a greedy policy: Z (runs, L, H, d), w (runs, L, H). theta turns by `angle` at CHANGE."""
    rng = np.random.default_rng(seed)
    theta, across = np.linalg.qr(rng.standard_normal((runs, D, 2)))[0].transpose(2, 0, 1)
    x = rng.standard_normal((runs, K, D)) * 2
    Z, w = np.empty((runs, L, H, D)), np.empty((runs, L, H))
    V, b = np.broadcast_to(np.eye(D), (runs, D, D)).copy(), np.zeros((runs, D))
    for episode in range(L):
        turned = angle * (episode / L if gradual else float(episode >= CHANGE))
        now = np.cos(turned) * theta + np.sin(turned) * across
        best = np.matvec(x, np.linalg.solve(V, b[..., None])[..., 0]).argmax(-1)
        for h in range(H):
            arm = np.where(rng.random(runs) < 0.3, rng.integers(K, size=runs), best)
            z = x[np.arange(runs), arm]
            eps = rng.standard_normal(runs) if noise == "normal" else rng.choice([-1.0, 1.0], runs)
            Z[:, episode, h], w[:, episode, h] = z, np.vecdot(z, now) + eps
        V += np.matmul(np.swapaxes(Z[:, episode], -1, -2), Z[:, episode])
        b += np.vecmat(w[:, episode], Z[:, episode])
    return Z, w


def sums(Z: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray]:
    return np.matmul(np.swapaxes(Z, -1, -2), Z), np.vecmat(w, Z)


@pytest.mark.parametrize("noise", ["normal", "signs"])
def test_false_alarms_keep_their_rate_under_adaptive_allocation(noise: str) -> None:
    found = mean_drift(*sums(*trials(noise=noise)), alpha=ALPHA / 2)
    assert (found.alarm >= 0).mean() <= ALPHA / 2


@pytest.mark.parametrize(("angle", "share", "delay"), [(0.5, 0.5, 20), (1.0, 0.9, 6), (np.pi / 2, 0.97, 3)])
def test_a_sudden_turn_is_found_the_sooner_the_larger_it_is(angle: float, share: float, delay: float) -> None:
    found = mean_drift(*sums(*trials(100, angle=angle)), alpha=ALPHA / 2)
    late = found.alarm[found.alarm >= CHANGE]
    assert len(late) / 100 > share
    assert np.median(late - CHANGE) <= delay


def test_a_slow_turn_is_found_too() -> None:
    found = mean_drift(*sums(*trials(100, angle=np.pi / 2, gradual=True)), alpha=ALPHA / 2)
    assert (found.alarm >= 0).mean() > 0.7


def test_evidence_is_the_ratio_of_likelihoods_computed_row_by_row() -> None:
    """One candidate change-point, one jump: the closed form against sums of log predictive densities."""
    Z, w = (v[0, :4] for v in trials(1))
    found = mean_drift(*sums(Z, w), alpha=ALPHA / 2, every=2, jumps=(0.5,)).evidence[-1]
    rows, y = Z.reshape(-1, D), w.reshape(-1)
    cut = 2 * H

    def predictive(z: FloatArray, v: FloatArray, mean: FloatArray, precision: float) -> tuple[float, FloatArray]:
        A, b, total = precision * np.eye(D), precision * mean, 0.0
        for each, value in zip(z, v, strict=True):
            cov = np.linalg.inv(A)
            var = 1 + each @ cov @ each
            total += -0.5 * np.log(2 * np.pi * var) - 0.5 * (value - each @ cov @ b) ** 2 / var
            A, b = A + np.outer(each, each), b + each * value
        return total, np.linalg.inv(A) @ b

    before, centre = predictive(rows[:cut], y[:cut], np.zeros(D), float(D))
    after, _ = predictive(rows[cut:], y[cut:], centre, D / 0.25)
    best = np.linalg.solve(rows.T @ rows + 0.01 * np.eye(D), rows.T @ y)
    constant = -0.5 * len(y) * np.log(2 * np.pi) - 0.5 * ((y - rows @ best) ** 2).sum() - 0.005 * best @ best + 0.005
    assert found == pytest.approx(before + after - constant - np.log(2), abs=1e-8)


def test_evidence_never_looks_ahead() -> None:
    Z, w = trials(5)
    whole = mean_drift(*sums(Z, w), alpha=0.01).evidence
    part = mean_drift(*sums(Z[:, :37], w[:, :37]), alpha=0.01).evidence
    np.testing.assert_allclose(part, whole[:, :37], rtol=1e-9, atol=1e-9)
