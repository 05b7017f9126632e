"""Regression effects hold at all times, for all users and arms at once, whatever the policy and the drift."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.models.offer import Fit, Offer, Shape
from drimed.numerics.arrays import FloatArray
from drimed.policies.policy import Policy
from drimed.policies.registry import make
from drimed.trial.estimates import of_regression
from tests.examples import fit_of
from tests.worlds import steps, world

SHAPE = Shape(d=3, K=3, M=2, H=2)
RUNS, DELTA = 200, 0.1
Z = 1.645  # the two-sided 90% normal quantile, as in an analysis that ignores looking all the time


def played(drift: str, runs: int = RUNS, episodes: int = 30, **policy: object) -> tuple[float, float, float]:
    """Share of runs in which any effect ever leaves its interval: ours, and a naive one; mean width at the end."""
    it = world(episodes=episodes, seeds=range(runs), shape=SHAPE, drift=drift, magnitude=10.0)
    rule = make("v_med", delta=DELTA, **policy)
    assert isinstance(rule, Policy)
    failed, naive = np.zeros(runs, bool), np.zeros(runs, bool)
    width = 0.0
    offers = None
    for step in steps(rule, it):
        offers = step.offers or offers
        if step.number % SHAPE.H or offers is None:
            continue  # once an episode
        fit = rule.fit(step.before)
        theta = it.theta[:, None]  # (S, 1, d)
        w = offers.features - offers.control_features[..., None, :]
        truth = np.matvec(w, theta)
        for h in range(SHAPE.H):
            estimate, low, high, *_ = of_regression(fit, w[:, h])
            failed |= ((truth[:, h] < low - 1e-9) | (truth[:, h] > high + 1e-9)).any(-1)
            half = Z / float(fit.radius.mean()) * (high - low) / 2
            naive |= (np.abs(truth[:, h] - estimate) > half + 1e-9).any(-1)
            width = float((high - low).mean())
    return float(failed.mean()), float(naive.mean()), width


@pytest.mark.parametrize("drift", ["none", "gradual", "regime_shift"])
def test_the_truth_is_inside_at_all_times_under_every_drift_and_naive_intervals_lose_it(drift: str) -> None:
    failed, naive, width = played(drift)
    assert failed <= DELTA
    assert naive > 2 * DELTA
    assert width < 10


def some_fit(theta: FloatArray, *, precision: float = 25.0) -> Fit:
    return fit_of(precision * np.eye(len(theta)), theta, radius=2.0)


OFFER = Offer(features=np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]), control=np.array([1.0, 0.0, 0.0]))


def against_control(offer: Offer) -> FloatArray:
    return offer.features - offer.control_features[..., None, :]


def test_the_control_has_no_effect_on_itself() -> None:
    estimate, low, high, *likely = of_regression(some_fit(np.array([0.3, 0.9])), against_control(OFFER))
    assert estimate[0] == low[0] == high[0] == likely[0][0] == 0
    assert estimate.tolist() == pytest.approx([0.0, 0.6, 0.3])
    assert high[1] - estimate[1] == pytest.approx(2.0 * np.sqrt(2 / 25))
    assert likely[1][1] - estimate[1] == pytest.approx(1.959964 * np.sqrt(2 / 25))


def test_learned_noise_widens_the_interval() -> None:
    fit = some_fit(np.array([0.3, 0.9]))
    learned = Fit(fit.theta, fit.V_inv, fit.radius, None, fit.pulls, 1, 1.0, np.asarray(1.5))
    _, low, high, *_ = of_regression(learned, against_control(OFFER))
    assert (high - low)[1] == pytest.approx(np.sqrt(1.5) * 4.0 * np.sqrt(2 / 25))


def test_a_group_is_the_mean_of_its_users_with_a_shorter_interval() -> None:
    features = np.random.default_rng(1).standard_normal((4, 3, 2))
    w = against_control(Offer(features=features, control=np.tile([1.0, 0.0, 0.0], (4, 1)), user=np.arange(4)))
    fit = some_fit(np.array([0.3, 0.9]))
    each, group = of_regression(fit, w), of_regression(fit, w.mean(0))
    np.testing.assert_allclose(group[0], each[0].mean(0))
    assert ((group[2] - group[1]) <= (each[2] - each[1]).mean(0) + 1e-12).all()
    for h in range(4):
        np.testing.assert_allclose(of_regression(fit, w[h]), each[:, h])
