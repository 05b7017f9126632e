"""Regression effects hold at all times, for all users and arms at once, whatever the policy and the drift."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError
from drimed.evaluation.effects import best_probabilities, group_effects, recommend, reward_effects
from drimed.models.offer import Fit, Offer, Shape
from drimed.numerics.arrays import FloatArray
from drimed.policies.policy import Policy
from drimed.policies.registry import make
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
            found = reward_effects(fit, Offer(features=offers.features[:, h], control=offers.control[:, h]))
            failed |= ((truth[:, h] < found.low - 1e-9) | (truth[:, h] > found.high + 1e-9)).any(-1)
            half = Z / float(fit.radius.mean()) * (found.high - found.low) / 2
            naive |= (np.abs(truth[:, h] - found.estimate) > half + 1e-9).any(-1)
            width = float((found.high - found.low).mean())
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


def test_the_control_has_no_effect_on_itself() -> None:
    found = reward_effects(some_fit(np.array([0.3, 0.9])), OFFER)
    assert found.estimate[0] == found.low[0] == found.high[0] == 0
    assert found.estimate.tolist() == pytest.approx([0.0, 0.6, 0.3])
    assert found.high[1] - found.estimate[1] == pytest.approx(2.0 * np.sqrt(2 / 25))


def test_learned_noise_widens_the_interval() -> None:
    fit = some_fit(np.array([0.3, 0.9]))
    learned = Fit(fit.theta, fit.V_inv, fit.radius, None, fit.pulls, 1, 1.0, np.asarray(1.5))
    wider = reward_effects(learned, OFFER)
    assert (wider.high - wider.low)[1] == pytest.approx(np.sqrt(1.5) * 4.0 * np.sqrt(2 / 25))


def users(available: bool = False) -> Offer:
    rng = np.random.default_rng(1)
    mask = np.array([[True, True, False]] * 4) if available else None
    return Offer(
        features=rng.standard_normal((4, 3, 2)),
        control=np.tile([1.0, 0.0, 0.0], (4, 1)),
        available=mask,
        user=np.arange(4),
    )


def test_users_in_one_call_are_users_one_by_one() -> None:
    fit, offers = some_fit(np.array([0.3, 0.9])), users()
    together = reward_effects(fit, offers)
    chances = best_probabilities(fit, offers, seed=1, draws=500)
    advice = recommend(fit, offers, seed=1, draws=500)
    for h in range(4):
        one = Offer(features=offers.features[h], control=offers.control[h])
        np.testing.assert_allclose(reward_effects(fit, one).low, together.low[h])
        np.testing.assert_array_equal(best_probabilities(fit, one, seed=1, draws=500), chances[h])
        alone = recommend(fit, one, seed=1, draws=500)
        assert int(alone.arm) == advice.arm[h]
        assert float(alone.margin) == pytest.approx(advice.margin[h])


def test_a_group_is_the_mean_of_its_users_with_a_shorter_interval() -> None:
    fit, offers = some_fit(np.array([0.3, 0.9])), users()
    each = reward_effects(fit, offers)
    found = group_effects(fit, offers, range(4))
    np.testing.assert_allclose(found.estimate, each.estimate.mean(0))
    np.testing.assert_allclose(group_effects(fit, offers, [2]).low, each.low[2])
    assert ((found.high - found.low) <= (each.high - each.low).mean(0) + 1e-12).all()
    with pytest.raises(InputError, match="must be some of the users 0 to 3"):
        group_effects(fit, offers, [4])


def test_p_best_sums_to_one_and_knows_two_arms_exactly() -> None:
    fit = some_fit(np.array([0.3, 0.5]))
    two = Offer(features=np.eye(2), control=np.array([1.0, 0.0]))
    p = best_probabilities(fit, two, seed=0, draws=100_000)
    assert p.sum() == pytest.approx(1.0)
    expected = 0.7602  # Phi(0.2 / sqrt(2 / 25))
    assert p[1] == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 100_000))


def test_unavailable_arms_are_never_recommended() -> None:
    fit, offers = some_fit(np.array([0.3, 0.9])), users(available=True)
    assert (recommend(fit, offers, seed=0, draws=100).arm < 2).all()
    assert (best_probabilities(fit, offers, seed=0, draws=100)[:, 2] == 0).all()
    only = Offer(features=np.eye(2), control=np.array([1.0, 0.0]), available=np.array([True, False]))
    alone = recommend(fit, only, seed=0, draws=10)
    assert int(alone.runner_up) == int(alone.arm) == 0
    assert float(alone.margin) == np.inf


def test_draws_are_fixed_by_the_seed() -> None:
    fit = some_fit(np.array([0.3, 0.5]))
    first, again = (best_probabilities(fit, OFFER, seed=3, draws=100) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (best_probabilities(fit, OFFER, seed=4, draws=100) != first).any()
    with pytest.raises(ConfigError, match="draws"):
        best_probabilities(fit, OFFER, seed=0, draws=0)
