from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.errors import InputError
from drimed.models.offer import Fit, Offer, Outcome, Shape, make_offer
from drimed.policies.guards.base import UNCHANGED, Draw
from drimed.policies.published import PublishedDri, PublishedState
from drimed.policies.registry import make
from drimed.policies.rules.base import Ask
from drimed.policies.rules.med import DriIMEDIndex
from tests.examples import E1, E2, fit_of, r1_fit, r1_offer, same, unbatched
from tests.worlds import SMALL, steps, world

PAPER = Shape(d=4, K=5, M=4, H=10)
LAMBDA = 1.92**2


def offers(shape: Shape = PAPER, *, sigma: float | None = None) -> Offer:
    """All users of an episode: (H, K, d), with a one-hot control each."""
    rng = np.random.default_rng(0)
    return make_offer(
        features=rng.standard_normal((shape.H, shape.K, shape.d)),
        control=np.eye(shape.K)[rng.integers(0, shape.K, shape.H)],
        sigma=np.full((shape.H, shape.K), sigma) if sigma else rng.uniform(0.5, 2.0, (shape.H, shape.K)),
    )


def user(all_users: Offer, h: int) -> Offer:
    return all_users.take([h])


def chose(arm: int, K: int) -> Draw:
    return Draw(np.array([arm]), np.eye(K)[[arm]], np.array([UNCHANGED]))


def after_data(policy: PublishedDri, n: int = 20) -> PublishedState:
    rng = np.random.default_rng(1)
    state = policy.begin_episode(policy.init(PAPER), offers())
    for h in range(n):
        offer = user(offers(), h % 10)
        state = policy.update(state, offer, chose(h % 5, 5), Outcome(rng.standard_normal(1)))
    return state


def duals(policy: PublishedDri, episodes: int) -> list[float]:
    """nu after each of `episodes` in which every decision is estimated to violate: no outcome ever comes."""
    state, seen = policy.init(PAPER), []
    for _ in range(episodes):
        state = policy.begin_episode(state, offers())
        for h in range(10):
            state = policy.commit(state, user(offers(), h), chose(0, 5))
        seen.append(float(state.nu))
    return seen


def test_as_coded_the_dual_rises_alike_in_every_episode() -> None:
    """(1 - 1/9) sum_{h <= 10} h^-1/2 = 4.463, again and again: the step restarts."""
    rise = (1 - 1 / 9) * float(sum(h**-0.5 for h in range(1, 11)))
    assert rise == pytest.approx(4.463, abs=5e-4)
    np.testing.assert_allclose(duals(PublishedDri(reading="code"), 3), [rise, 2 * rise, 3 * rise])


def test_as_printed_the_step_shrinks_with_the_episode() -> None:
    rise = (1 - 1 / 9) * float(sum(h**-0.5 for h in range(1, 11)))
    want = 1.0 + rise * np.cumsum(np.arange(1, 4) ** -0.5)  # nu_0 = 1 in Table 2
    np.testing.assert_allclose(duals(PublishedDri(reading="printed"), 3), want)


def test_the_dual_settles_where_a_share_of_decisions_is_estimated_to_violate() -> None:
    """It falls by rho = eps / (1 - eps) where nothing violates, and never below zero; at eps = 1/2 it cannot rise."""
    policy = PublishedDri(tolerance=0.2, initial_dual=1.0)
    state = replace(policy.begin_episode(policy.init(PAPER), offers()), tau=np.asarray(-1.0))
    state = policy.commit(state, user(offers(), 0), chose(0, 5))
    assert float(state.nu) == pytest.approx(1.0 - 0.25)
    state = policy.commit(replace(state, nu=np.asarray(0.01)), user(offers(), 1), chose(0, 5))
    assert float(state.nu) == 0.0
    assert duals(PublishedDri(tolerance=0.5), 2) == [0.0, 0.0]


def test_the_matrix_is_discounted_and_the_sum_is_not() -> None:
    policy = PublishedDri(discount=0.9)
    before = after_data(policy)
    state = before
    for n in range(1, 6):
        state = policy.begin_episode(state, offers())
        np.testing.assert_allclose(state.ridge.V, 0.9**n * before.ridge.V, rtol=1e-12)
        assert np.array_equal(state.ridge.b, before.ridge.b)
        np.testing.assert_allclose(state.ridge.theta, before.ridge.theta / 0.9**n, rtol=1e-12)
        np.testing.assert_allclose(state.ridge.V @ state.ridge.V_inv, np.eye(4), atol=1e-12)
        np.testing.assert_allclose(
            float(state.ridge.logdet), np.linalg.slogdet(state.ridge.V)[1] - 4 * np.log(LAMBDA), atol=1e-10
        )


def test_the_estimate_outgrows_a_truth_of_unit_length() -> None:
    """I-1: with noise-free rewards theta_hat should stay below |theta| = 1; here it does not."""
    policy = make("published_dri_med", discount=0.95)
    it = world(seeds=range(4), episodes=80, drift="none")
    *_, last = steps(policy, it)
    assert (np.linalg.norm(policy.theta(last.after), axis=-1) > 2.5).all()  # about l (1 - gamma) / (1 - gamma^l) = 4.1


def test_the_threshold_is_one_number_for_all_users() -> None:
    policy = PublishedDri(tolerance=0.1, discount=0.9)
    state = after_data(policy)
    begun = policy.begin_episode(state, offers())
    assert np.shape(begun.tau) == ()
    all_users = offers()
    assert all_users.sigma is not None
    base = np.einsum("ha,had->d", all_users.control / all_users.sigma, all_users.features) / 10
    V, theta = state.ridge.V, state.ridge.theta  # from before the discount
    inner = np.linalg.slogdet(V)[1] - 2 * 4 * np.log(LAMBDA) + 2 * np.log(100)
    radius = np.sqrt(max(inner, 0.0)) + 1.92
    want = 0.9 * (base @ theta + radius * np.sqrt(base @ np.linalg.solve(V, base)))
    assert float(begun.tau) == pytest.approx(want)


@pytest.mark.parametrize("step", ["med", "imed"])
def test_the_penalty_is_the_dual_times_the_distance_to_the_threshold(step: str) -> None:
    """With tau far above every bound and equal noise, penalties differ as lower bounds do: the largest bound wins."""
    policy = PublishedDri(step=step, empirical=0.3, optimal=0.3)
    state = replace(after_data(policy), nu=np.asarray(1e4), tau=np.asarray(100.0))
    offer = user(offers(sigma=1.0), 0)
    r = state.ridge
    fit = Fit(r.theta, r.V_inv, policy.radius(r, indexed=step == "imed"), None, state.pulls, 1, 1.0)
    lower = fit.mean(offer.features) - fit.width(offer.features)
    p = policy.decide(state, offer, np.array([[0.5]])).probabilities[0]
    saturated = fit.leverage(offer.features) > 1
    assert not saturated.any()
    assert int(p.argmax()) == int(lower.argmax())


def test_it_plays_the_best_ratio_of_signal_to_noise() -> None:
    """I-2: arm 0 has twice the reward of arm 1 and twenty times its noise."""
    policy = PublishedDri(empirical=0.99, optimal=0.005, noise_bound=1.0)
    state = policy.begin_episode(policy.init(Shape(d=2, K=2, M=1, H=1)), offers(Shape(d=2, K=2, M=1, H=1)))
    ridge = state.ridge
    theta = np.array([1.0, 0.5])
    known = replace(ridge, V=1e6 * np.eye(2), V_inv=1e-6 * np.eye(2), theta=theta, b=1e6 * theta)
    offer = make_offer(features=np.eye(2), sigma=[2.0, 0.1], control=[1.0, 0.0])
    p = policy.decide(replace(state, ridge=known, nu=np.asarray(0.0)), offer, np.array([[0.5]])).probabilities[0]
    assert p[1] > 0.99


@pytest.mark.parametrize("name", ["code", "printed"])
def test_without_discount_dual_and_noise_it_is_lin_med(name: str) -> None:
    """gamma = 1, nu = 0, sigma = 1, lambda = 1: Dri-MED's step is LinMED's, after LinMED's own first round."""
    published = PublishedDri(reading=name, discount=1.0, noise_bound=1.0, empirical=0.5, optimal=0.25)
    lin_med = make("lin_med", noise_bound=1.0, empirical=0.5, optimal=0.25, saturation="every arm")
    shape = Shape(d=2, K=7, M=1, H=10)
    rng = np.random.default_rng(2)
    one: Any = published.begin_episode(published.init(shape), offers(shape, sigma=1.0))
    two: Any = lin_med.init(shape)
    for t in range(40):
        offer = make_offer(features=rng.standard_normal((7, 2)), sigma=np.ones(7), control=np.eye(7)[0])
        draws = rng.random((1, 1))
        theirs = published.decide(replace(one, nu=np.asarray(0.0)), offer, draws)
        ours = lin_med.decide(two, offer, draws)
        if t > 0:
            assert np.array_equal(theirs.probabilities, ours.probabilities)
        outcome = Outcome(offer.features[0, ours.action] @ [0.6, 0.8] + rng.standard_normal(1))
        one = published.update(one, offer, ours, outcome)
        two = lin_med.update(two, offer, ours, outcome)


def radius_of(name: str, *, indexed: bool, regularisation: float, logdet: float = np.log(6.0)) -> float:
    policy = PublishedDri(reading=name, noise_bound=regularisation**0.5)
    start = policy.init(Shape(d=2, K=2, M=1, H=1)).ridge
    return float(policy.radius(replace(start, logdet=np.asarray(logdet)), indexed=indexed))


def test_the_radii_of_the_readings_have_their_worked_numbers() -> None:
    # On the running example, where lambda = 1, the coded radius is OFUL's.
    for name, indexed in (("printed", False), ("code", False), ("code", True)):
        assert radius_of(name, indexed=indexed, regularisation=1.0) == pytest.approx(4.316941, abs=5e-7)
    # As printed for Dri-IMED, 2 log(1/alpha) stands outside the root.
    assert radius_of("printed", indexed=True, regularisation=1.0) == pytest.approx(11.55, abs=5e-3)


def test_as_coded_d_log_lambda_is_taken_off_twice() -> None:
    confidence = 2 * np.log(100)
    printed, code = (radius_of(n, indexed=False, regularisation=LAMBDA) for n in ("printed", "code"))
    assert printed == pytest.approx(np.sqrt(np.log(6) + confidence) + 1.92)
    assert code == pytest.approx(np.sqrt(np.log(6) - 2 * np.log(LAMBDA) + confidence) + 1.92)
    # Four dimensions: 5.22 less under the root.
    assert 4 * np.log(LAMBDA) == pytest.approx(5.22, abs=5e-3)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("name", ["code", "printed"])
def test_a_negative_root_is_clipped_as_coded(name: str, indexed: bool) -> None:
    value = radius_of(name, indexed=indexed, regularisation=LAMBDA, logdet=-1e6)
    assert value == pytest.approx(1.92 + (2 * np.log(100) if name == "printed" and indexed else 0.0))


def test_where_none_of_the_differences_matters_the_readings_agree() -> None:
    """Dri-MED with lambda = 1 and the same nu_0: only the step differs, and that from the second episode on."""
    one, two = (PublishedDri(reading=name, noise_bound=1.0, initial_dual=0.5) for name in ("code", "printed"))
    it = world(seeds=range(5), episodes=2)
    for a, b in zip(steps(one, it), steps(two, it), strict=True):
        if a.number < SMALL.H:
            assert same(a.decision, b.decision)
            assert same(a.after, b.after)
        else:
            assert a.number > SMALL.H or same(a.decision, b.decision)
    assert not np.array_equal(a.after.nu, b.after.nu)


def test_an_episode_noise_and_reward_are_needed() -> None:
    policy = PublishedDri()
    with pytest.raises(InputError, match="call begin_episode first"):
        policy.decide(policy.init(PAPER), user(offers(), 0), np.array([[0.5]]))
    silent = make_offer(features=np.eye(5, 4), control=np.eye(5)[0])
    with pytest.raises(InputError, match="published algorithms need sigma"):
        policy.begin_episode(policy.init(PAPER), make_offer(features=np.ones((10, 5, 4)), control=np.eye(5)[0]))
    state = policy.begin_episode(policy.init(PAPER), offers())
    with pytest.raises(InputError, match="published algorithms need sigma"):
        policy.decide(state, silent, np.array([[0.5]]))
    with pytest.raises(InputError, match=r"learn from outcome\.reward, got none"):
        policy.observe(state, user(offers(), 0), np.array([0]), Outcome(None, np.zeros((1, 4))))


# The index of Dri-IMED


def test_an_arm_that_was_never_pulled_ties_with_the_leader() -> None:
    """Indices 0 (leader), 1 * (3.152538 - .5)^2 / 2 and 0 * ...: ties are shared equally."""
    p = DriIMEDIndex().propose(r1_fit(), r1_offer(), Ask())
    assert p.tolist() == [0.5, 0.0, 0.5]


def test_a_penalty_moves_the_choice_by_the_index() -> None:
    """(UCB_a - mean_best)^2 / 2 = 3.518 for the second arm and 3.764 for the third."""
    fit = replace(r1_fit(), pulls=np.ones(3))
    for penalty, want in ((0.0, E1), (3.51, E1), (3.53, E2)):
        p = DriIMEDIndex().propose(fit, r1_offer(), Ask(penalty=np.array([penalty, 0.0, 0.0])))
        assert p.tolist() == want.tolist()


def test_an_arm_whose_bound_is_below_the_best_mean_is_never_played() -> None:
    fit = fit_of(1e6 * np.eye(2), np.array([1.0, 0.0]), K=2)
    offer = unbatched(features=np.eye(2), control=[1.0, 0.0])
    assert DriIMEDIndex().propose(fit, offer, Ask(penalty=np.array([1e9, 0.0]))).tolist() == [1.0, 0.0]


def test_the_printed_index_divides_by_the_smallest_variance() -> None:
    """sigma^2 = 4 at least: the second arm's index falls from 3.518 to .8796."""
    fit, offer = replace(r1_fit(), pulls=np.ones(3)), r1_offer(sigma=[2.0, 3.0, 4.0])
    ask = Ask(penalty=np.array([1.0, 0.0, 0.0]))
    assert DriIMEDIndex(variance="unit").propose(fit, offer, ask).tolist() == E1.tolist()
    assert DriIMEDIndex(variance="smallest").propose(fit, offer, ask).tolist() == E2.tolist()
