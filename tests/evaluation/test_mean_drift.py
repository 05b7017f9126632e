"""Propensities and a constant theta: false alarms at most at the stated rate, and true ones in time."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.evaluation.mean_drift import mean_drift
from drimed.evaluation.propensity_effects import calibration_p_value
from drimed.numerics.arrays import FloatArray
from tests.evaluation.logs import drawn


def test_wrong_propensities_are_found() -> None:
    """The same choices, with probabilities written down as if a fifth of each went to the first arm."""
    log, _ = drawn(2000)
    assert log.probabilities is not None
    wrong = 0.8 * log.probabilities
    wrong[:, 0] += 0.2
    assert calibration_p_value(log.action, wrong) < 1e-6
    assert calibration_p_value(log.action, log.probabilities) > 1e-3
    assert calibration_p_value(np.array([0, 1]), np.eye(2)) == 1.0, "a deterministic log has nothing to test"


def test_betting_is_not_fooled_by_rare_arms_and_many_looks_but_finds_what_is_wrong() -> None:
    """At 1 %: one draw of a rare arm is no evidence, at whatever decision one looks; 60 of 100 heads is, in time."""
    rng = np.random.default_rng(5)

    def alarms(said: list[float], true: list[float], n: int, runs: int) -> float:
        p = np.tile(said, (n, 1))
        drawn = (rng.choice(len(true), n, p=true) for _ in range(runs))
        return float(np.mean([calibration_p_value(a, p) < 0.01 for a in drawn]))  # the largest stake ever: any look

    for n in (4, 20, 144):
        assert alarms([0.97, 0.015, 0.015], [0.97, 0.015, 0.015], n, 200) <= 0.03
    assert alarms([0.5, 0.5], [0.5, 0.5], 600, 100) <= 0.04
    assert alarms([0.5, 0.5], [0.6, 0.4], 1000, 30) > 0.85


RUNS, L, H, D, K = 300, 60, 8, 3, 4
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


def sums(Z: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray]:
    return np.matmul(np.swapaxes(Z, -1, -2), Z), np.vecmat(w, Z)


@pytest.mark.parametrize("noise", ["normal", "signs"])
def test_false_alarms_keep_their_rate_under_adaptive_allocation(noise: str) -> None:
    found = mean_drift(*sums(*trials(noise=noise)), alpha=ALPHA)
    assert (found.alarm >= 0).mean() <= ALPHA


@pytest.mark.parametrize(("angle", "share", "delay"), [(0.5, 0.5, 20), (1.0, 0.9, 6), (np.pi / 2, 0.97, 3)])
def test_a_sudden_turn_is_found_the_sooner_the_larger_it_is(angle: float, share: float, delay: float) -> None:
    found = mean_drift(*sums(*trials(100, angle=angle)), alpha=ALPHA)
    late = found.alarm[found.alarm >= CHANGE]
    assert len(late) / 100 > share
    assert np.median(late - CHANGE) <= delay


def test_a_slow_turn_is_found_too() -> None:
    found = mean_drift(*sums(*trials(100, angle=np.pi / 2, gradual=True)), alpha=ALPHA)
    assert (found.alarm >= 0).mean() > 0.7


def test_evidence_is_the_ratio_of_likelihoods_computed_row_by_row() -> None:
    """One candidate change-point, one jump: the closed form against sums of log predictive densities."""
    Z, w = (v[0, :4] for v in trials(1))
    found = mean_drift(*sums(Z, w), alpha=ALPHA, every=2, jumps=(0.5,)).evidence[-1]
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
