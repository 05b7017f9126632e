"""Users with the same offer are decided for once: to the last bit what each would get alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.models.linear_regression import Learner
from drimed.models.offer import Floor, Offer, Shape, make_offer
from drimed.policies import policy as alike
from drimed.policies.guards.certified import Expected
from drimed.policies.policy import Policy
from drimed.policies.rules.med import MED, LinMED

KINDS, USERS, ARMS = 3, 12, 7


def offers(rng: np.random.Generator) -> Offer:
    """Three kinds of users, in turns; contexts and names are their own."""
    kind = np.arange(USERS) % KINDS
    maps, preference = rng.normal(size=(ARMS, 2, 3)), rng.normal(size=(KINDS, 2))[kind]
    covariance = np.broadcast_to(np.diag([0.5, 0.2]), (ARMS, 2, 2))
    control = np.eye(ARMS)[[0, 1, 0]][kind]
    made = make_offer(maps=maps, preference=preference, covariance=covariance, control=control)
    mask = np.ones((KINDS, ARMS), bool)
    mask[2, 3] = False
    return replace(made, available=mask[kind], user=np.arange(USERS), context=rng.normal(size=(USERS, 1)))


@pytest.mark.parametrize("rule", [MED(ties="shared"), LinMED()])
@pytest.mark.parametrize("floors", [False, True])
def test_users_who_are_alike_get_what_each_would_get_alone(rule: MED | LinMED, floors: bool) -> None:
    rng = np.random.default_rng(5)
    policy, many = Policy(learner=Learner(), rule=rule, guard=Expected()), offers(rng)
    if floors:
        many = replace(many, floor=Floor(control=np.full(USERS, 0.1), arms=np.full(USERS, 0.01)))
    state = policy.settle(policy.init(Shape(d=3, K=ARMS, M=2, H=USERS)))
    draws = rng.random((USERS, policy.draws_needed(Shape(d=3, K=ARMS, M=2, H=USERS))))
    found = alike.distinct(policy.see(state, many).offer)
    assert found is not None
    assert found[1].tolist() == [h % KINDS for h in range(USERS)]
    together = policy.decide(state, many, draws)
    separate = policy._decide(state, policy.see(state, many), draws, draws[..., 0])
    for field in ("action", "probabilities", "reason_code", "share", "certified"):
        np.testing.assert_array_equal(getattr(together, field), getattr(separate, field))
    assert len(set(together.action.tolist())) > 1  # everybody has a draw of their own


def test_offers_that_differ_are_left_alone() -> None:
    many = offers(np.random.default_rng(6))
    assert alike.distinct(replace(many, sigma=np.random.default_rng(7).random((USERS, ARMS)))) is None
    assert alike.distinct(replace(many, floor=Floor(control=np.arange(USERS) / 100, arms=np.zeros(USERS)))) is None
