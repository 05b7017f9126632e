"""False alarms at most at the stated rate, over adaptive stationary trials; theta that turns is found, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, ShapeError
from drimed.evaluation.drift import EpisodeSums, Monitor
from drimed.linear.arrays import FloatArray

RUNS, L, H, D, K = 1000, 60, 8, 3, 4
CHANGE = 30
ALPHA = 0.05


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


@pytest.mark.parametrize("noise", ["normal", "signs"])
@pytest.mark.parametrize("guarantee", ["every", "average"])
def test_false_alarms_keep_their_rate_under_adaptive_allocation(noise: str, guarantee: str) -> None:
    found = Monitor(alpha=ALPHA, guarantee=guarantee).watch(EpisodeSums.of(*trials(noise=noise)))
    assert (found.alarm >= 0).mean() <= ALPHA


def test_a_guarantee_on_average_finds_a_turn_sooner() -> None:
    sums = EpisodeSums.of(*trials(200, angle=0.5))
    every, average = (Monitor(alpha=ALPHA, guarantee=g).watch(sums) for g in ("every", "average"))
    assert (average.evidence > every.evidence)[:, 10:].all()
    assert (average.alarm >= 0).mean() > (every.alarm >= 0).mean()


@pytest.mark.parametrize(("angle", "share", "delay"), [(0.5, 0.5, 20), (1.0, 0.9, 6), (np.pi / 2, 0.97, 3)])
def test_a_sudden_turn_is_found_the_sooner_the_larger_it_is(angle: float, share: float, delay: float) -> None:
    found = Monitor(alpha=ALPHA).watch(EpisodeSums.of(*trials(200, angle=angle)))
    late = found.alarm[found.alarm >= CHANGE]
    assert len(late) / 200 > share
    assert np.median(late - CHANGE) <= delay
    assert abs(np.median(found.likeliest[:, -1]) - CHANGE) <= 5


def test_a_slow_turn_is_found_too() -> None:
    found = Monitor(alpha=ALPHA).watch(EpisodeSums.of(*trials(200, angle=np.pi / 2, gradual=True)))
    assert (found.alarm >= 0).mean() > 0.7


def test_noise_louder_than_said_raises_alarms() -> None:
    """Which is why the residuals are looked at first."""
    Z, w = trials(100)
    louder = w + 2 * np.random.default_rng(9).standard_normal(w.shape)
    assert (Monitor(alpha=ALPHA).watch(EpisodeSums.of(Z, louder)).alarm >= 0).mean() > 0.2


def test_evidence_is_the_ratio_of_likelihoods_computed_row_by_row() -> None:
    """One candidate change-point, one jump: the closed form against sums of log predictive densities."""
    Z, w = (v[0, :4] for v in trials(1))
    found = Monitor(alpha=ALPHA, every=2, jumps=(0.5,)).watch(EpisodeSums.of(Z, w)).evidence[-1]
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
    whole = Monitor().watch(EpisodeSums.of(Z, w)).evidence
    part = Monitor().watch(EpisodeSums.of(Z[:, :37], w[:, :37])).evidence
    np.testing.assert_allclose(part, whole[:, :37], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "wrong", [{"alpha": 0.0}, {"every": 0}, {"jumps": ()}, {"norm_bound": 0.0}, {"guarantee": "none"}]
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Monitor(**wrong)


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="w must have shape"):
        EpisodeSums.of(np.ones((2, 3, 4)), np.ones((2, 4)))
