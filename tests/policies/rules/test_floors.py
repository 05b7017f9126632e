"""Least probabilities: exact, kept where they are safe, and said where they are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError
from drimed.models.offer import Floor, Offer, Outcome, Shape, Unit
from drimed.policies.registry import make
from drimed.policies.rules.base import Floors, raised
from tests.examples import unbatched

K, H = 4, 3
GUARDS = ("off", "expected", "certain", "budget", "penalty")


def offers(floor: Floor | None) -> Offer:
    """Three users, of whom the second has another control."""
    control = np.eye(K)[[0, 1, 0]]
    unit = Unit(user=np.arange(H), group=np.arange(H))
    features = np.broadcast_to(np.eye(K), (H, K, K))
    return Offer(features=features, control=control, user=np.arange(H), unit=unit, floor=floor)


def learned(policy: Any, floor: Floor | None, seasons: int = 6) -> Any:
    """The state and the decisions of the next season."""
    state = policy.init(Shape(d=K, K=K, M=1, H=H))
    rng = np.random.default_rng(0)
    for _ in range(seasons):
        state = policy.settle(policy.begin_episode(state, offers(floor)))
        d = policy.decide(state, offers(floor), rng.random((H, policy.draws_needed(Shape(K, K, 1, H)))))
        state = policy.commit(state, offers(floor), d)
        reward = np.array([1.0, 1.2, 0.8, 3.0])[d.action] + 0.3 * rng.standard_normal(H)
        state = policy.observe(state, offers(floor), d.action, Outcome(reward=reward))
    state = policy.settle(policy.begin_episode(state, offers(floor)))
    return policy.decide(state, offers(floor), rng.random((H, policy.draws_needed(Shape(K, K, 1, H)))))


@pytest.mark.parametrize("learner", ["linear", "field"])
@pytest.mark.parametrize("guard", GUARDS)
def test_the_control_keeps_its_floor_under_every_guard(guard: str, learner: str) -> None:
    given = {"learner": "field"} if learner == "field" else {"feedback": "reward", "weighting": "none"}
    policy = make("dri_med", guard=guard, **given)
    p = learned(policy, Floors(control=0.2).after(0)).probabilities
    np.testing.assert_allclose(p.sum(-1), 1.0)
    assert (p[[0, 1, 2], [0, 1, 0]] >= 0.2 - 1e-12).all()


def test_arms_keep_their_floor_where_nothing_guards() -> None:
    p = learned(
        make("dri_med", guard="off", feedback="reward", weighting="none"), Floors(control=0.1, arms=0.05).after(0)
    ).probabilities
    assert (p >= 0.05 - 1e-12).all()
    assert p.max() > 0.5  # and the rest is the rule's


def test_a_floor_that_is_not_certified_is_cut_and_reported() -> None:
    """An arm that is certainly far worse than the control."""
    offer = unbatched(features=np.eye(2), control=[1.0, 0.0]).expand()
    offer = replace(offer, floor=Floors(arms=0.2).after(np.zeros(1)))
    policy = make("dri_med", guard="certain", relative=0.0, absolute=0.1, feedback="reward", weighting="none")
    state = policy.init(Shape(2, 2, 1, 1))
    for _ in range(60):
        for a, y in ((0, 1.0), (1, -4.0)):
            state = policy.observe(state, offer, np.array([a]), Outcome(reward=np.array([y])))
    d = policy.decide(policy.settle(state), offer, np.array([[0.5]]))
    assert d.probabilities.tolist() == [[1.0, 0.0]]


def test_floors_shrink_with_the_number_of_decisions() -> None:
    heights = Floors(control=0.5, arms=0.1, shrink=0.5).after(np.array([0, 3, 99]))
    np.testing.assert_allclose(heights.control, [0.5, 0.25, 0.05])
    np.testing.assert_allclose(heights.arms, [0.1, 0.05, 0.01])


def test_a_lottery_with_floors_is_the_mixture() -> None:
    offer = replace(
        unbatched(features=np.eye(3), control=[1.0, 0.0, 0.0]), floor=Floors(control=0.2, arms=0.1).after(0)
    )
    p = raised(np.array([0.0, 0.0, 1.0]), offer, None)
    np.testing.assert_allclose(p, [0.3, 0.1, 0.6])
    np.testing.assert_allclose(raised(np.array([0.0, 0.0, 1.0]), offer, np.array([True, False, True])), [0.3, 0.0, 0.7])


def test_misuse_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be below 0\.225"):
        Floors(control=0.1, arms=0.3).check(4)
    with pytest.raises(ConfigError, match="count must be"):
        Floors(count="season")  # type: ignore[arg-type]


# The control as a fallback


@pytest.mark.parametrize("guard", ["certain", "expected"])
def test_a_control_that_is_not_available_is_not_replaced_in_silence(guard: str) -> None:
    offer = unbatched(features=np.eye(3), control=[0.5, 0.5, 0.0], available=[True, False, True])
    policy = make("dri_med", guard=guard, feedback="reward", weighting="none")
    state = policy.settle(policy.init(Shape(3, 3, 1, 1)))
    with pytest.raises(InputError, match="the control plays an arm that is not available"):
        policy.decide(state, offer.expand(), np.array([[0.5]]))
