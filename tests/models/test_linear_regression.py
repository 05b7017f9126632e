from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.models.linear_regression import Learner
from drimed.models.offer import Offer, Outcome, Shape, make_offer
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.numerics.ridge import Ridge
from drimed.policies.policy import State
from drimed.policies.protocol import to_arrays
from drimed.policies.registry import make
from tests.examples import learning

SHAPE = Shape(d=2, K=2, M=3, H=1)
ONE = Shape(d=1, K=1, M=1, H=1)
RNG = np.random.default_rng(0)
MAPS = RNG.standard_normal((2, 3, 2))
ROOT = RNG.standard_normal((2, 3, 3))
COVARIANCE = ROOT @ np.swapaxes(ROOT, -1, -2) + 0.1 * np.eye(3)
OFFER = make_offer(maps=MAPS, preference=[0.2, 0.3, 0.5], covariance=COVARIANCE, control=[1.0, 0.0])
AXES = make_offer(features=np.eye(2), control=[1.0, 0.0])
SINGLE = make_offer(features=[[1.0]], control=[1.0])
Y = np.array([0.3, -1.0, 2.0])
OUTCOME = Outcome(np.array([Y @ [0.2, 0.3, 0.5]]), Y[None])


def rewarded(r: float) -> Outcome:
    return Outcome(np.array([r]))


def after(
    learner: Learner, *seen: tuple[Offer, int, Outcome], shape: Shape = SHAPE, each_in_an_episode: bool = False
) -> State:
    """The state after these pulls."""
    policy = learning(learner)
    state = policy.init(shape)
    for offer, arm, outcome in seen:
        if each_in_an_episode:
            state = policy.begin_episode(state, offer)
        state = policy.observe(state, offer, np.array([arm]), outcome)
    return state


def regression(learner: Learner, *seen: tuple[Offer, int, Outcome]) -> Ridge:
    return after(learner, *seen).evidence.ridge


def test_the_weighted_example_through_the_learner() -> None:
    """x = (1, 0), r = 2, sigma = 2 and x = (0, 1), r = 1, sigma = 1/2 with lambda = 1."""
    offer = make_offer(features=np.eye(2), sigma=[2.0, 0.5], control=[1.0, 0.0])
    found = regression(Learner(feedback="reward"), (offer, 0, rewarded(2.0)), (offer, 1, rewarded(1.0)))
    np.testing.assert_allclose(found.V, np.diag([1.25, 5.0]))
    np.testing.assert_allclose(found.theta, [0.4, 0.8])


def test_vector_feedback_is_generalised_least_squares() -> None:
    found = regression(Learner(), (OFFER, 0, OUTCOME), (OFFER, 1, OUTCOME), (OFFER, 0, OUTCOME))
    V, b = np.eye(2), np.zeros(2)
    for a in (0, 1, 0):
        inverse = np.linalg.inv(COVARIANCE[a])
        V = V + MAPS[a].T @ inverse @ MAPS[a]
        b = b + MAPS[a].T @ inverse @ Y
    np.testing.assert_allclose(found.V, V, rtol=1e-10)
    np.testing.assert_allclose(found.theta, np.linalg.solve(V, b), rtol=1e-9)


@pytest.mark.parametrize("c", [1e-6, 3.0, 1e6])
def test_one_observation_in_another_unit_is_the_same_evidence(c: float) -> None:
    x, sigma = np.array([[0.3, 0.4], [1.0, 0.0]]), np.array([0.7, 1.0])
    found = [
        regression(
            Learner(feedback="reward"),
            (make_offer(features=k * x, sigma=k * sigma, control=[1.0, 0.0]), 0, rewarded(2.0 * k)),
        )
        for k in (1.0, c)
    ]
    np.testing.assert_allclose(found[0].V, found[1].V, rtol=1e-12)
    np.testing.assert_allclose(found[0].b, found[1].b, rtol=1e-12)


@pytest.mark.parametrize(
    ("noise_bound", "norm_bound", "want"), [(1.0, 1.0, 1.0), (1.92, 1.0, 1.92**2), (2.0, 4.0, 0.25)]
)
def test_the_ridge_penalty_balances_noise_and_norm(noise_bound: float, norm_bound: float, want: float) -> None:
    assert Learner(noise_bound=noise_bound, norm_bound=norm_bound).ridge_penalty == pytest.approx(want)
    assert Learner(noise_bound=noise_bound, norm_bound=norm_bound, regularisation=7.0).ridge_penalty == 7.0


def test_the_fit_of_the_running_example_has_its_radius() -> None:
    learner = Learner(weighting="none", feedback="reward")
    state = after(learner, (AXES, 0, rewarded(1.0)), (AXES, 0, rewarded(0.5)), (AXES, 1, rewarded(0.2)))
    fit = learning(learner).fit(state)
    assert float(fit.radius) == pytest.approx(4.316941, abs=5e-7)
    assert fit.spread is None
    assert fit.metric is fit.V_inv


def test_while_discounting_the_radius_and_the_width_come_from_the_squared_weights() -> None:
    """R3: V = 2.75 and V2 = 2.3125 after three episodes."""
    learner = Learner(weighting="none", feedback="reward", discount=0.5)
    state = after(learner, *[(SINGLE, 0, rewarded(1.0))] * 3, shape=ONE, each_in_an_episode=True)
    fit = learning(learner).fit(state)
    assert float(fit.radius) == pytest.approx(np.sqrt(np.log(2.3125) + 2 * np.log(100)) + 1)
    assert fit.spread is not None
    assert float(fit.spread[0, 0]) == pytest.approx(2.3125 / 2.75**2)
    assert float(fit.width(SINGLE.features[0])[0]) == pytest.approx(float(fit.radius) * np.sqrt(2.3125) / 2.75)


def test_without_weighting_an_offer_is_seen_without_its_noise() -> None:
    """MED gives half the mass to an arm whose noise is below its leverage: here only if it is told the noise."""
    quiet = replace(AXES, sigma=np.array([2.0, 0.1]))
    loud = replace(AXES, sigma=np.array([2.0, 2.0]))
    for weighting, differs in (("none", False), ("known", True)):
        policy = make("med", weighting=weighting)
        p = [policy.decide(policy.init(SHAPE), o, np.array([[0.5]])).probabilities for o in (quiet, loud)]
        assert (not np.array_equal(p[0], p[1])) == differs


@pytest.mark.parametrize(
    ("weighting", "feedback", "offer", "outcome", "message"),
    [
        ("known", "reward", OFFER, Outcome(None, Y[None]), r"reward feedback needs outcome\.reward"),
        ("known", "vector", OFFER, rewarded(1.0), r"vector feedback needs outcome\.vector \(all metrics\)"),
        ("known", "reward", AXES, OUTCOME, "needs the noise: give the offer sigma"),
        ("none", "vector", AXES, OUTCOME, r"needs the offer's maps Phi\(a\)"),
        ("known", "vector", replace(OFFER, whitening=None), OUTCOME, "needs the noise: give the offer a covariance"),
    ],
)
def test_evidence_that_is_missing_is_asked_for(
    weighting: str, feedback: str, offer: Offer, outcome: Outcome, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        after(Learner(weighting=weighting, feedback=feedback), (offer, 0, outcome))


@pytest.mark.parametrize(
    ("outcome", "error", "message"),
    [
        (Outcome(np.asarray(np.nan)), InputError, r"outcome\.reward must be finite, got nan"),
        (Outcome(np.array([0.0, np.inf])), InputError, r"outcome\.reward must be finite, got inf at index \(1,\)"),
        (Outcome(None, np.array([0.0, np.nan])), InputError, r"outcome\.vector must be finite, got nan at index \(1,"),
        (Outcome(None, np.zeros(2)), ShapeError, r"outcome\.vector must have shape \(\.\.\., 3\), got \(2,\)"),
    ],
)
def test_an_outcome_that_would_poison_the_sums_is_refused(
    outcome: Outcome, error: type[InputError], message: str
) -> None:
    with pytest.raises(error, match=message):
        outcome.check(OFFER)
    OUTCOME.check(OFFER)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighting": "knwon"}, r"weighting must be .*'known'.*, got 'knwon'"),
        ({"feedback": "vec"}, r"feedback must be .*'vector'.*, got 'vec'"),
        ({"discount": 1.01}, r"discount must be in \(0, 1\], got 1.01"),
        ({"delta": np.nan}, r"delta must be in \(0, 1\), got nan"),
        ({"noise_bound": np.inf}, "noise_bound must be positive and finite, got inf"),
        ({"norm_bound": -1.0}, "norm_bound must be positive and finite, got -1.0"),
        ({"regularisation": 0.0}, "ridge_penalty must be positive and finite, got 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Learner(**settings)


def partly(y: FloatArray, seen: BoolArray, p: FloatArray) -> Outcome:
    return Outcome(np.array([p @ y]), np.where(seen, y, 77.0)[None], seen[None])  # the unseen number must not matter


@pytest.mark.parametrize("seen", [[1, 0, 1], [0, 1, 0], [1, 1, 0], [1, 1, 1]])
def test_a_metric_that_is_not_there_is_as_if_it_had_never_been_measured(seen: list[int]) -> None:
    """Known noise: the regression of the sub-problem without that metric."""
    mask = np.array(seen, bool)
    p = np.array([0.2, 0.3, 0.5])
    covariance = COVARIANCE[:, mask][:, :, mask]
    sub = make_offer(maps=MAPS[:, mask], preference=p[mask], covariance=covariance, control=[1.0, 0.0])
    for arm in (0, 1):
        found = regression(Learner(), (OFFER, arm, partly(Y, mask, p)), (OFFER, arm, OUTCOME))
        want = regression(Learner(), (sub, arm, Outcome(None, Y[None, mask])), (OFFER, arm, OUTCOME))
        np.testing.assert_allclose(found.V, want.V, rtol=1e-9)
        np.testing.assert_allclose(found.theta, want.theta, rtol=1e-9)


@pytest.mark.parametrize("weighting", ["none", "known"])
def test_what_was_learned_from_a_part_of_an_outcome_can_be_taken_back(weighting: str) -> None:
    """Whole ones are a contract of every policy."""
    policy = learning(Learner(weighting=weighting))
    rng = np.random.default_rng(4)
    state = policy.init(SHAPE)
    for i in range(12):
        y = Y + rng.standard_normal(3)
        state = policy.observe(state, OFFER, np.array([i % 2]), Outcome(np.array([y @ [0.2, 0.3, 0.5]]), y[None]))
    outcome = partly(rng.standard_normal(3), np.array([True, False, True]), np.array([0.2, 0.3, 0.5]))
    more = policy.observe(state, OFFER, np.array([1]), outcome)
    assert not np.allclose(policy.theta(more), policy.theta(state), rtol=1e-3)
    back = policy.forget(more, OFFER, np.array([1]), outcome)
    mine, its = to_arrays(back), to_arrays(state)
    assert mine.keys() == its.keys()
    for name in mine.keys() - {"evidence.ridge.age"}:  # only says when to factorise next
        scale = max(1.0, float(np.abs(its[name]).max(initial=0.0)))
        np.testing.assert_allclose(mine[name], its[name], rtol=1e-9, atol=1e-9 * scale, err_msg=name)


@pytest.mark.parametrize("feedback", ["reward", "vector"])
def test_with_learned_noise_the_settled_state_is_free_of_order(feedback: str) -> None:
    policy = learning(Learner(weighting="learned", feedback=feedback))
    rng = np.random.default_rng(6)
    seen = []
    for i in range(40):
        y = MAPS[i % 2] @ [0.5, -1.0] + 0.3 * rng.standard_normal(3) * (1 + i % 2)
        seen.append((np.array([i % 2]), Outcome(np.array([y @ [0.2, 0.3, 0.5]]), y[None])))

    def settled(order: list[int], *, often: bool) -> State:
        state = policy.init(SHAPE)
        for n, i in enumerate(order):
            state = policy.observe(state, OFFER, *seen[i])
            if often and n % 3 == 0:
                state = policy.settle(state)
        return policy.settle(state)

    first = settled(list(range(40)), often=False)
    assert policy.settle(first) is first
    for order, often in ((list(range(39, -1, -1)), False), (list(rng.permutation(40)), True)):
        other = settled(order, often=often)
        np.testing.assert_allclose(policy.theta(other), policy.theta(first), rtol=1e-6)
        np.testing.assert_allclose(other.evidence.ridge.V, first.evidence.ridge.V, rtol=1e-6)
        its, mine = other.evidence.noise, first.evidence.noise
        assert its is not None
        assert mine is not None
        for name in ("whitening", "slope", "inflation"):
            np.testing.assert_allclose(getattr(its, name), getattr(mine, name), rtol=1e-6, atol=1e-9)
