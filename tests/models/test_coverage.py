"""Does the confidence set hold the truth? 2000 simulated runs per case, all with one fixed seed.

The bounds are conservative: their true failure rate is far below delta. A rate of delta / 2 would be flagged once in
10^9 choices of the seed.
"""

from __future__ import annotations

import numpy as np
import pytest

from drimed.models.linear_regression import Learner
from drimed.models.offer import Fit, Offer, Outcome, Shape
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy
from drimed.policies.published import PublishedDri, PublishedState
from drimed.policies.registry import make
from tests.examples import learning

USERS, K, D = 5, 4, 3
DELTA = 0.05
SHAPE = Shape(d=D, K=K, M=1, H=USERS)
EQUAL, UNEQUAL = np.full(K, 0.8), np.array([0.2, 0.5, 1.0, 2.0])


def is_outside(fit: Fit, theta: FloatArray) -> BoolArray:
    """The width of x is radius |x|_S, so the set is {|theta_hat - theta|_{S^-1} <= radius}."""
    error = fit.theta - theta
    length = np.sqrt(np.vecdot(error, np.matvec(np.linalg.inv(fit.metric), error)))
    return np.asarray(length > fit.radius)


def fit_of_policy(policy: AnyPolicy, state: object) -> Fit:
    if isinstance(policy, Policy):
        return policy.fit(state)  # type: ignore[arg-type]  # this policy's own state
    assert isinstance(policy, PublishedDri)
    assert isinstance(state, PublishedState)
    r = state.ridge
    return Fit(r.theta, r.V_inv, policy.radius(r, indexed=policy.step == "imed"), None, state.pulls, state.user, 1.0)


def outside(
    policy: AnyPolicy, noise: FloatArray, told: FloatArray | None, *, runs: int = 2000, episodes: int = 30
) -> BoolArray:
    """(decisions, runs): where theta is outside of the set; `noise` is the true sigma of each arm."""
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((runs, D))
    theta /= np.linalg.norm(theta, axis=-1, keepdims=True)  # as long as the norm bound allows
    control = np.eye(K)[0]
    state = policy.init(SHAPE, (runs,))
    seen = []
    for _ in range(episodes):
        x = rng.standard_normal((runs, USERS, K, D))
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
        sigma = None if told is None else np.broadcast_to(told, (runs, USERS, K))
        state = policy.begin_episode(state, Offer(features=x, control=control, sigma=sigma))
        for h in range(USERS):
            one = slice(h, h + 1)
            levels = None if sigma is None else sigma[:, one]
            offer = Offer(features=x[:, one], control=control, sigma=levels, user=np.array([h]))
            decision = policy.decide(state, offer, rng.random((runs, 1, 1)))
            mean = np.matvec(x[:, h], theta)[np.arange(runs), decision.action[:, 0]]
            reward = mean + noise[decision.action[:, 0]] * rng.standard_normal(runs)
            state = policy.update(state, offer, decision, Outcome(reward[:, None]))
            seen.append(is_outside(fit_of_policy(policy, state), theta))
    return np.array(seen)


@pytest.mark.parametrize(
    ("policy", "noise", "told"),
    [
        (make("oful", noise_bound=0.8, delta=DELTA), EQUAL, None),
        (make("oful", noise_bound=2.0, delta=DELTA), UNEQUAL, None),
        (make("w_oful", delta=DELTA), UNEQUAL, UNEQUAL),
        (make("med", delta=DELTA), UNEQUAL, UNEQUAL),
        (make("w_oful", delta=DELTA, discount=0.9), UNEQUAL, UNEQUAL),
        (make("oful", noise_bound=0.8, delta=DELTA, discount=0.5), EQUAL, None),
    ],
    ids=["equal", "bounded", "weighted", "weighted med", "weighted discounted", "discounted"],
)
def test_the_truth_is_in_the_confidence_set_at_all_times(
    policy: AnyPolicy, noise: FloatArray, told: FloatArray | None
) -> None:
    assert outside(policy, noise, told).any(0).mean() <= DELTA


def test_while_discounting_the_set_holds_the_truth_in_each_episode() -> None:
    """A case without slack: ten directions, each seen once per episode, and a norm bound that allows no bias.

    The promise is per episode. Over all episodes at once the set fails more often than delta: new noise keeps coming in
    while the old evidence fades.
    """
    runs, d = 2000, 10
    policy = learning(Learner(weighting="none", norm_bound=1e-3, regularisation=1.0, delta=DELTA, discount=0.5))
    maps = np.broadcast_to(np.eye(d), (runs, 1, 1, d, d))  # of one user and one arm
    offer = Offer(features=maps[..., 0], control=np.ones(1), maps=maps)
    rng = np.random.default_rng(1)
    state = policy.init(Shape(d=d, K=1, M=d, H=1), (runs,))
    for _ in range(40):
        outcome = Outcome(None, rng.standard_normal((runs, 1, d)))
        state = policy.observe(policy.begin_episode(state, offer), offer, np.zeros((runs, 1), np.intp), outcome)
        assert is_outside(policy.fit(state), np.zeros(d)).mean() <= DELTA


@pytest.mark.parametrize(("discount", "episodes"), [(0.8, 30), (0.99, 150)])
def test_discounting_the_matrix_without_the_sum_loses_the_truth(discount: float, episodes: int) -> None:
    """As published and coded: the estimate outgrows every radius, in nearly every run."""
    policy = PublishedDri(step="med", reading="code", delta=DELTA, discount=discount)
    assert outside(policy, UNEQUAL, UNEQUAL, runs=300, episodes=episodes).any(0).mean() > 0.9


def test_the_sets_are_not_trivially_wide() -> None:
    """A set that holds everything would pass: after such a run the widths are below half the largest reward."""
    policy = learning(Learner(weighting="known", feedback="reward", delta=DELTA))
    rng = np.random.default_rng(2)
    state = policy.init(SHAPE)
    for _ in range(30 * USERS):
        x = rng.standard_normal((1, K, D))
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
        offer = Offer(features=x, control=np.eye(K)[0], sigma=UNEQUAL[None])
        state = policy.observe(state, offer, rng.integers(K, size=1), Outcome(np.zeros(1)))
    assert (policy.fit(state).width(np.eye(D)) < 0.5).all()
