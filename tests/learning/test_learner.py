from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.learning import noise
from drimed.learning.learner import Learner
from drimed.learning.offer import Outcome, Shape, make_offer
from drimed.linear.arrays import FloatArray
from drimed.linear.ridge import Ridge
from tests.examples import same

SHAPE = Shape(d=2, K=2, M=3, H=1)
RNG = np.random.default_rng(0)
MAPS = RNG.standard_normal((2, 3, 2))
ROOT = RNG.standard_normal((2, 3, 3))
COVARIANCE = ROOT @ np.swapaxes(ROOT, -1, -2) + 0.1 * np.eye(3)
OFFER = make_offer(maps=MAPS, preference=[0.2, 0.3, 0.5], covariance=COVARIANCE, control=[1.0, 0.0])
Y = np.array([0.3, -1.0, 2.0])
OUTCOME = Outcome(np.asarray(Y @ [0.2, 0.3, 0.5]), Y)
FIRST = np.asarray(0)


def learned(learner: Learner, times: int = 3) -> Ridge:
    state = learner.init(SHAPE)
    for i in range(times):
        state = learner.observe(state, OFFER, np.asarray(i % 2), OUTCOME)
    return state


def solved(V: FloatArray, b: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.solve(V, b))


def test_the_weighted_example_through_the_learner() -> None:
    """x = (1, 0), r = 2, sigma = 2 and x = (0, 1), r = 1, sigma = 1/2 with lambda = 1."""
    learner = Learner(weighting="known", feedback="reward")
    offer = make_offer(features=np.eye(2), sigma=[2.0, 0.5], control=[1.0, 0.0])
    state = learner.init(SHAPE)
    for arm, r in ((0, 2.0), (1, 1.0)):
        state = learner.observe(state, offer, np.asarray(arm), Outcome(np.asarray(r)))
    np.testing.assert_allclose(state.V, np.diag([1.25, 5.0]))
    np.testing.assert_allclose(state.theta, [0.4, 0.8])


def test_reward_feedback_adds_one_row_on_the_reward_scale() -> None:
    state = Learner(weighting="none", feedback="reward").observe(
        Learner(weighting="none").init(SHAPE), OFFER, FIRST, OUTCOME
    )
    x = OFFER.features[0]
    np.testing.assert_allclose(state.V, np.eye(2) + np.outer(x, x))
    np.testing.assert_allclose(state.b, x * float(Y @ [0.2, 0.3, 0.5]))


def test_vector_feedback_is_generalised_least_squares() -> None:
    state = learned(Learner(weighting="known", feedback="vector"))
    V, b = np.eye(2), np.zeros(2)
    for a in (0, 1, 0):
        inverse = np.linalg.inv(COVARIANCE[a])
        V = V + MAPS[a].T @ inverse @ MAPS[a]
        b = b + MAPS[a].T @ inverse @ Y
    np.testing.assert_allclose(state.V, V, rtol=1e-10)
    np.testing.assert_allclose(state.theta, solved(V, b), rtol=1e-9)


def test_vector_feedback_without_weights_is_least_squares_on_all_metrics() -> None:
    state = learned(Learner(weighting="none", feedback="vector"))
    V = np.eye(2) + sum((MAPS[a].T @ MAPS[a] for a in (0, 1, 0)), np.zeros((2, 2)))
    b = sum((MAPS[a].T @ Y for a in (0, 1, 0)), np.zeros(2))
    np.testing.assert_allclose(state.theta, solved(V, b), rtol=1e-10)


def test_a_scale_of_the_noise_divides_the_evidence() -> None:
    learner = Learner(weighting="known", feedback="vector")
    one = learner.observe(learner.init(SHAPE), OFFER, FIRST, OUTCOME)
    loud = learner.observe(learner.init(SHAPE), replace(OFFER, scale=np.asarray(4.0)), FIRST, OUTCOME)
    np.testing.assert_allclose(loud.V - np.eye(2), (one.V - np.eye(2)) / 4, rtol=1e-12)
    np.testing.assert_allclose(loud.b, one.b / 4, rtol=1e-12)


@pytest.mark.parametrize("c", [1e-6, 3.0, 1e6])
def test_one_observation_in_another_unit_is_the_same_evidence(c: float) -> None:
    learner = Learner(weighting="known", feedback="reward")
    base = make_offer(features=np.array([[0.3, 0.4], [1.0, 0.0]]), sigma=[0.7, 1.0], control=[1.0, 0.0])
    scaled = make_offer(features=c * base.features, sigma=c * np.array([0.7, 1.0]), control=[1.0, 0.0])
    one = learner.observe(learner.init(SHAPE), base, FIRST, Outcome(np.asarray(2.0)))
    other = learner.observe(learner.init(SHAPE), scaled, FIRST, Outcome(np.asarray(2.0 * c)))
    np.testing.assert_allclose(one.V, other.V, rtol=1e-12)
    np.testing.assert_allclose(one.b, other.b, rtol=1e-12)


@pytest.mark.parametrize(("noise_bound", "norm_bound", "want"), [(1.0, 1.0, 1.0), (1.92, 1.0, 1.92**2), (2.0, 4.0, 0.25)])
def test_the_ridge_penalty_balances_noise_and_norm(noise_bound: float, norm_bound: float, want: float) -> None:
    assert Learner(noise_bound=noise_bound, norm_bound=norm_bound).ridge_penalty == pytest.approx(want)
    assert Learner(noise_bound=noise_bound, norm_bound=norm_bound, regularisation=7.0).ridge_penalty == 7.0


def test_the_fit_of_the_running_example_has_its_radius() -> None:
    learner = Learner(weighting="none", feedback="reward")
    offer = make_offer(features=np.eye(2), control=[1.0, 0.0])
    state = learner.init(SHAPE)
    for arm, r in ((0, 1.0), (0, 0.5), (1, 0.2)):
        state = learner.observe(state, offer, np.asarray(arm), Outcome(np.asarray(r)))
    fit = learner.fit(state, np.array([2.0, 1.0]), 4)
    assert float(fit.radius) == pytest.approx(4.316941, abs=5e-7)
    assert fit.spread is None
    assert fit.metric is fit.V_inv
    assert fit.round == 4


def test_while_discounting_the_radius_and_the_width_come_from_the_squared_weights() -> None:
    learner = Learner(weighting="none", feedback="reward", discount=0.5)
    offer = make_offer(features=[[1.0]], control=[1.0])
    state = learner.init(Shape(d=1, K=1, M=1, H=1))
    for _ in range(3):
        state = learner.observe(learner.begin_episode(state), offer, FIRST, Outcome(np.asarray(1.0)))
    fit = learner.fit(state, np.array([3.0]), 4)
    assert float(fit.radius) == pytest.approx(np.sqrt(np.log(2.3125) + 2 * np.log(100)) + 1)
    assert fit.spread is not None
    assert float(fit.spread[0, 0]) == pytest.approx(2.3125 / 2.75**2)
    assert float(fit.width(offer.features)[0]) == pytest.approx(float(fit.radius) * np.sqrt(2.3125) / 2.75)


def test_the_width_of_russacs_first_round_is_not_widened_by_the_updated_matrix() -> None:
    """R3 at t = 1: sqrt(V2) / V = sqrt(2) / 2. Using the new V in V2's recursion would give sqrt(2.25) / 2."""
    learner = Learner(weighting="none", feedback="reward", discount=0.5)
    state = learner.begin_episode(learner.init(Shape(d=1, K=1, M=1, H=1)))
    state = learner.observe(state, make_offer(features=[[1.0]], control=[1.0]), FIRST, Outcome(np.asarray(1.0)))
    fit = learner.fit(state, np.array([1.0]), 2)
    assert fit.spread is not None
    assert float(np.sqrt(fit.spread[0, 0])) == pytest.approx(np.sqrt(2.0) / 2)


def test_a_discount_near_one_is_nearly_none() -> None:
    states = []
    for discount in (1.0, 0.999999):
        learner = Learner(discount=discount)
        state = learner.init(SHAPE)
        for i in range(20):
            state = learner.observe(learner.begin_episode(state), OFFER, np.asarray(i % 2), OUTCOME)
        states.append(learner.fit(state, np.zeros(2), 21))
    np.testing.assert_allclose(states[0].theta, states[1].theta, rtol=1e-4)
    assert float(states[0].radius) == pytest.approx(float(states[1].radius), rel=1e-4)
    np.testing.assert_allclose(states[0].metric, states[1].metric, rtol=1e-4)


def test_without_weighting_an_offer_is_seen_without_its_noise() -> None:
    seen = Learner(weighting="none").view(OFFER)
    assert seen.sigma is None
    assert seen.whitening is None
    assert same(replace(OFFER, sigma=None, whitening=None), seen)
    assert Learner(weighting="known").view(OFFER) is OFFER


def test_an_estimate_does_not_depend_on_the_order_of_outcomes() -> None:
    learner = Learner()
    outcomes = [Outcome(np.asarray(0.0), Y * k) for k in (1.0, -2.0, 0.5)]
    forward, backward = learner.init(SHAPE), learner.init(SHAPE)
    for k in range(3):
        forward = learner.observe(forward, OFFER, np.asarray(k % 2), outcomes[k])
        backward = learner.observe(backward, OFFER, np.asarray((2 - k) % 2), outcomes[2 - k])
    np.testing.assert_allclose(forward.theta, backward.theta, rtol=1e-10)


@pytest.mark.parametrize("feedback", ["reward", "vector"])
@pytest.mark.parametrize("batch", [2, 3])
def test_an_offer_shared_by_a_batch_teaches_each_member_the_arm_it_played(feedback: str, batch: int) -> None:
    """With two arms and a batch of two, the arms of the offer must not be taken for the members of the batch."""
    learner = Learner(feedback=feedback)
    action = np.arange(batch) % 2
    outcome = Outcome(np.arange(batch) + 1.0, Y * np.arange(1.0, batch + 1)[:, None])
    together = learner.observe(learner.init(SHAPE, (batch,)), OFFER, action, outcome)
    assert outcome.reward is not None
    assert outcome.vector is not None
    for s in range(batch):
        alone = learner.observe(
            learner.init(SHAPE), OFFER, action[s], Outcome(outcome.reward[s], outcome.vector[s])
        )
        np.testing.assert_allclose(together.theta[s], alone.theta, rtol=1e-12)


@pytest.mark.parametrize(
    ("weighting", "feedback", "offer", "outcome", "message"),
    [
        ("known", "reward", OFFER, Outcome(None, Y), "reward feedback needs outcome.reward"),
        ("known", "vector", OFFER, Outcome(np.asarray(1.0)), r"vector feedback needs outcome.vector \(all metrics\)"),
        ("known", "reward", make_offer(features=np.eye(2), control=[1, 0]), OUTCOME, "needs the noise: give the offer sigma"),
        ("none", "vector", make_offer(features=np.eye(2), control=[1, 0]), OUTCOME, r"needs the offer's maps Phi\(a\)"),
        (
            "known",
            "vector",
            make_offer(maps=MAPS, preference=[0.2, 0.3, 0.5], control=[1, 0]),
            OUTCOME,
            "needs the noise: give the offer a covariance",
        ),
    ],
)
def test_evidence_that_is_missing_is_asked_for(
    weighting: str, feedback: str, offer: Any, outcome: Outcome, message: str
) -> None:
    learner = Learner(weighting=weighting, feedback=feedback)
    with pytest.raises(InputError, match=message):
        learner.observe(learner.init(SHAPE), offer, FIRST, outcome)


@pytest.mark.parametrize(
    ("outcome", "error", "message"),
    [
        (Outcome(np.asarray(np.nan)), InputError, "outcome.reward must be finite, got nan"),
        (Outcome(np.array([0.0, np.inf])), InputError, r"outcome.reward must be finite, got inf at index \(1,\)"),
        (Outcome(None, np.array([0.0, np.nan, 0.0])), InputError, r"outcome.vector must be finite, got nan at index \(1,\)"),
        (Outcome(None, np.zeros(2)), ShapeError, r"outcome.vector must have shape \(\.\.\., 3\), got \(2,\)"),
    ],
)
def test_an_outcome_that_would_poison_the_sums_is_refused(
    outcome: Outcome, error: type[InputError], message: str
) -> None:
    with pytest.raises(error, match=message):
        noise.checked(outcome, M=3)
    assert noise.checked(OUTCOME, M=3) is OUTCOME


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighting": "knwon"}, r"weighting must be one of .*'known'.*, got 'knwon'"),
        ({"feedback": "vec"}, r"feedback must be one of .*'vector'.*, got 'vec'"),
        ({"discount": 0.0}, r"discount must be in \(0, 1\], got 0.0"),
        ({"discount": 1.01}, r"discount must be in \(0, 1\], got 1.01"),
        ({"discount": np.nan}, r"discount must be in \(0, 1\], got nan"),
        ({"delta": 0.0}, r"delta must be in \(0, 1\), got 0.0"),
        ({"delta": 1.0}, r"delta must be in \(0, 1\), got 1.0"),
        ({"delta": np.nan}, r"delta must be in \(0, 1\), got nan"),
        ({"noise_bound": 0.0}, "noise_bound must be positive and finite, got 0.0"),
        ({"noise_bound": np.inf}, "noise_bound must be positive and finite, got inf"),
        ({"norm_bound": -1.0}, "norm_bound must be positive and finite, got -1.0"),
        ({"norm_bound": np.nan}, "norm_bound must be positive and finite, got nan"),
        ({"regularisation": 0.0}, "ridge_penalty must be positive and finite, got 0.0"),
        ({"regularisation": np.inf}, "ridge_penalty must be positive and finite, got inf"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Learner(**settings)
