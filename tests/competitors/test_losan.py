from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.competitors.losan import OnlineRegression
from drimed.errors import ConfigError
from drimed.models.offer import Outcome, Shape, make_offer
from drimed.policies.registry import make

FIRST = np.zeros(1, np.intp)


def after(learner: OnlineRegression, *outcomes: tuple[list[float], float]) -> Any:
    evidence = learner.start(Shape(d=len(outcomes[0][0]), K=1, M=1, H=1))
    for x, y in outcomes:
        offer = make_offer(features=[x], control=[1.0])
        evidence = learner.add(evidence, offer, FIRST, Outcome(reward=np.array([y])))
    return evidence


def test_the_worked_outcomes() -> None:
    learner = OnlineRegression()
    one, two = after(learner, ([1.0], 2.0)), after(learner, ([1.0], 2.0), ([1.0], 1.0))
    assert one.ridge.theta.tolist() == [1.0]
    assert two.ridge.theta == pytest.approx([1.0])
    assert one.losses == pytest.approx(1.0)
    assert two.losses == pytest.approx(1.0)
    assert learner.radius(two) == pytest.approx(np.sqrt(1 + 2 * np.log(5) + 2))


def test_an_outcome_from_far_out_weighs_less() -> None:
    """x = 4 from V = 1 has weight 1/4: a row of x = 1 and y = .5."""
    far = after(OnlineRegression(), ([4.0], 2.0))
    assert far.ridge.V.tolist() == [[2.0]]
    assert far.ridge.theta.tolist() == [0.25]
    assert far.losses == pytest.approx(0.5 * 0.25 / 2)


def test_it_is_the_regret_equality() -> None:
    """sum_s (w_s residual_s)^2 (1 - D_s^2) is the minimum of the regularised loss, as in the paper's proof."""
    rng = np.random.default_rng(0)
    learner, data = (
        OnlineRegression(noise_bound=0.5),
        [(rng.standard_normal(3).tolist(), rng.standard_normal()) for _ in range(20)],
    )
    V, b, losses, left, weighted = learner.ridge_penalty * np.eye(3), np.zeros(3), 0.0, 0.0, []
    for x, y in data:
        root = np.sqrt(np.asarray(x) @ np.linalg.solve(V, x))
        w = min(1.0, 1 / root)
        residual = w * (y - np.asarray(x) @ np.linalg.solve(V, b))
        V, b = V + w**2 * np.outer(x, x), b + w**2 * np.asarray(x) * y
        D2 = w**2 * np.asarray(x) @ np.linalg.solve(V, x)
        losses, left = losses + D2 * residual**2 / 2, left + (1 - D2) * residual**2
        weighted.append((w * np.asarray(x), w * y))
    evidence = after(learner, *data)
    assert evidence.losses == pytest.approx(losses)
    theta = evidence.ridge.theta
    least = sum((y - x @ theta) ** 2 for x, y in weighted) + learner.ridge_penalty * theta @ theta
    assert left == pytest.approx(least)


def test_the_set_holds_and_is_narrower_than_that_of_the_bound_where_noise_is_small() -> None:
    """256 runs, each of which may fail with probability .2: more than 67 failures have probability .01."""
    rng = np.random.default_rng(2)
    learner, runs, d = OnlineRegression(noise_bound=2.0), 256, 6
    theta = rng.standard_normal((runs, d))
    theta /= np.linalg.norm(theta, axis=-1, keepdims=True)
    evidence, failed = learner.start(Shape(d=d, K=1, M=1, H=1), (runs,)), np.zeros(runs, bool)
    for _ in range(200):
        x = rng.standard_normal((runs, 1, 1, d)) / np.sqrt(d)
        y = np.vecdot(x[:, 0, 0], theta) + 0.1 * rng.standard_normal(runs)
        offer = make_offer(features=x, control=[1.0])
        evidence = learner.add(evidence, offer, np.zeros((runs, 1), np.intp), Outcome(reward=y[:, None]))
        error = theta - evidence.ridge.theta
        failed |= np.vecdot(error, np.matvec(evidence.ridge.V, error)) > learner.radius(evidence) ** 2
    assert failed.sum() <= 67
    bound: Any = make("oful", noise_bound=2.0, delta=0.2)
    wide = 2.0 * np.sqrt(evidence.ridge.logdet + 2 * np.log(5)) + np.sqrt(bound.learner.ridge_penalty)
    assert (learner.radius(evidence) < 0.7 * wide).all()


def test_nothing_is_taken_back() -> None:
    learner = OnlineRegression()
    with pytest.raises(ConfigError, match="simulations only"):
        learner.remove(after(learner, ([1.0], 2.0)), make_offer(features=[[1.0]], control=[1.0]), FIRST, Outcome())
