"""Logistic bandits: a worked number, and the results of general optimisers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from drimed.competitors.generalised_linear import Logistic
from drimed.models.offer import Offer, Outcome, Shape, Unit
from drimed.numerics.arrays import FloatArray
from drimed.policies.guards.base import Off
from drimed.policies.policy import Policy, State
from drimed.policies.rules.simple import Greedy
from drimed.policies.rules.thompson import Thompson

ARMS, TRIALS = 3, np.array([20, 10, 6])
EVENTS = np.array([6, 5, 1])


def offer() -> Offer:
    return Offer(
        features=np.zeros((1, ARMS, ARMS)),
        control=np.eye(ARMS)[:1],
        maps=np.zeros((ARMS, 1, ARMS)),
        preference=np.ones((1, 1)),
        unit=Unit(user=np.zeros(1, np.intp), group=np.zeros(1, np.intp)),
    )


def played(learner: Logistic, policy: Policy) -> State:
    state = policy.begin_episode(policy.init(Shape(d=ARMS, K=ARMS, M=1, H=1)), offer())
    for arm in range(ARMS):
        for i in range(TRIALS[arm]):
            y = np.array([[float(i < EVENTS[arm])]])
            state = policy.observe(state, offer(), np.array([arm]), Outcome(y[:, 0], y))
    return replace(state, evidence=learner._learned(state.evidence.field, ARMS))


def design() -> FloatArray:
    return np.concatenate([np.ones((ARMS, 1)), np.eye(ARMS), np.ones((ARMS, 1))], -1) / np.sqrt(3)


def loss(theta: FloatArray) -> float:
    eta = design() @ theta
    return float((TRIALS * np.logaddexp(0, eta) - EVENTS * eta).sum() + 0.5 * 0.055 * theta @ theta)


def test_the_radius_is_the_worked_number() -> None:
    assert Logistic().radius_squared(np.array(1000.0), 11) == pytest.approx(116.27, abs=0.01)


def test_draws_lie_around_the_regression_of_a_general_optimiser() -> None:
    learner = Logistic()
    policy = Policy(learner=learner, rule=Thompson(), guard=Off())
    best = minimize(loss, np.zeros(5), tol=1e-10).x
    state = played(learner, policy)
    eta = -np.log(1 / state.evidence.means[:, 0] - 1)  # (S, K)
    assert np.allclose(eta.mean(0), design() @ best, atol=1e-4)  # draws are antithetic
    p = expit(design() @ best)
    H = (design().T * (TRIALS * p * (1 - p))) @ design() + 0.055 * np.eye(5)
    assert np.allclose(np.cov(eta.T, bias=True), design() @ np.linalg.inv(H) @ design().T, rtol=1e-3)


def test_optimistic_means_are_the_largest_within_the_confidence_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A radius small enough to bind, against SLSQP."""
    monkeypatch.setattr(Logistic, "radius_squared", lambda *_: np.asarray(1.5))
    learner = Logistic(optimistic=True)
    state = played(learner, Policy(learner=learner, rule=Greedy(), guard=Off()))
    best = minimize(loss, np.zeros(5), tol=1e-10)
    for arm in range(ARMS):
        x = design()[arm]
        inside = {"type": "ineq", "fun": lambda theta: best.fun + 1.5 - loss(theta)}
        most = minimize(lambda theta, x=x: -x @ theta, best.x, constraints=inside, method="SLSQP", tol=1e-10)
        assert state.evidence.means[0, 0, arm] == pytest.approx(expit(-most.fun), abs=1e-4)
