"""Policies with the learner of the field: the contract that every policy keeps, in a field."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed import streams
from drimed.competitors.solid import SOLID
from drimed.errors import ConfigError, InputError
from drimed.models.mixed.learner import Field
from drimed.models.offer import Offer, Outcome, Shape
from drimed.numerics import probability
from drimed.policies.guards.base import Draw, Guard, Off
from drimed.policies.guards.certified import Expected
from drimed.policies.guards.margin import Tolerance
from drimed.policies.guards.penalty import Budget
from drimed.policies.policy import Policy, State
from drimed.policies.protocol import check_policy
from drimed.policies.rules.med import MED
from drimed.policies.rules.simple import LinTS
from drimed.simulation.trial_world import Deviations, FieldSetting, FieldWorld
from tests.examples import same

SETTING = FieldSetting(arms=3, sites=4, plots=1, seasons=6)
SHAPE = Shape(d=3, K=3, M=1, H=4)


def offers(batch: tuple[int, ...] = (2,)) -> Offer:
    control = np.broadcast_to(np.array([1.0, 0.0, 0.0]), (*batch, 4, 3))
    features = np.broadcast_to(np.eye(3), (*batch, 4, 3, 3))
    return Offer(features=features, control=control, user=np.arange(4))


def one(user: int) -> Offer:
    return Offer(features=np.eye(3)[None], control=np.array([[1.0, 0.0, 0.0]]), user=np.array([user]))


def play(
    policy: Policy, seasons: int, seeds: tuple[int, ...] = (1, 2), unit: float = 1.0, level: float = 0.0
) -> tuple[State, list[np.ndarray]]:
    world = FieldWorld(replace(SETTING, deviations=Deviations()), seeds)
    state, chosen = policy.init(SHAPE, (len(seeds),)), []
    for season in range(seasons):
        state = policy.settle(policy.begin_episode(state, offers()))
        draws = np.stack([streams.uniforms(s, "policy", 4 * season, 4, policy.draws_needed(SHAPE)) for s in seeds])
        decision = policy.decide(state, offers((len(seeds),)), draws)
        np.testing.assert_allclose(decision.probabilities.sum(-1), 1.0)
        reward = unit * world.respond(season, decision.action)[..., 0] + level
        state = policy.commit(state, offers(), decision)
        state = policy.observe(state, offers(), decision.action, Outcome(reward=reward))
        chosen.append(decision.action)
    return state, chosen


def test_the_first_season_is_the_control_s_under_a_guard() -> None:
    guard = Expected(tolerance=Tolerance(relative=0.0, absolute=6.0))
    _, chosen = play(Policy(learner=Field(), rule=MED(), guard=guard), 1)
    assert not chosen[0].any()


@pytest.mark.parametrize(("unit", "level"), [(1e-4, 0.0), (1e5, 0.0), (1.0, 1e6), (30.0, -1e3)])
def test_neither_unit_nor_level_changes_a_decision(unit: float, level: float) -> None:
    """The tolerance is told in the same unit; there is no range to declare."""
    as_is, other = (
        Policy(learner=Field(), rule=MED(), guard=Expected(tolerance=Tolerance(relative=0.0, absolute=15.0 * u)))
        for u in (1.0, unit)
    )
    _, before = play(as_is, 6)
    _, after = play(other, 6, unit=unit, level=level)
    assert any(a.any() for a in before)
    np.testing.assert_array_equal(before, after)


def test_without_a_guard_every_arm_is_tried() -> None:
    state, _ = play(Policy(learner=Field(), rule=MED(), guard=Off()), 6)
    assert (state.pulls > 0).all()
    assert state.pulls.sum() == 2 * 4 * 6
    assert state.round == 1 + 4 * 6


def test_a_batch_is_its_members_side_by_side() -> None:
    policy = Policy(learner=Field(), rule=MED(), guard=Off())
    _, together = play(policy, 4)
    for i, seed in enumerate((1, 2)):
        _, alone = play(policy, 4, (seed,))
        np.testing.assert_array_equal([a[i] for a in together], [a[0] for a in alone])


def test_thompson_sampling_works_on_the_table_of_means() -> None:
    state, _ = play(Policy(learner=Field(), rule=LinTS(), guard=Off()), 3)
    assert state.pulls.sum() == 2 * 4 * 3


def test_an_amended_outcome_of_an_earlier_season_is_as_if_it_had_come_so() -> None:
    policy = Policy(learner=Field(), rule=MED(), guard=Off())
    arms = np.array([0, 1, 2, 1])

    def told(first: float, amend: float | None) -> State:
        state = policy.init(SHAPE)
        for season in range(3):
            state = policy.begin_episode(state, one(0))
            for user in range(4):
                reward = first if (season, user) == (0, 2) else 50.0 + 3 * user + 5 * season + (user * season) % 3
                state = policy.observe(state, one(user), arms[user], Outcome(reward=np.array(reward)))
        state = policy.settle(state)
        if amend is not None:
            state = policy.forget(state, one(2), arms[2], Outcome(reward=np.array(first)), late=2)
            state = policy.observe(state, one(2), arms[2], Outcome(reward=np.array(amend)), late=2)
        return replace(state, evidence=Field().ready(state.evidence, variances=True))

    np.testing.assert_allclose(policy.theta(told(80.0, 55.0)), policy.theta(told(55.0, None)), atol=1e-7)


def test_one_decision_and_a_whole_episode_see_the_same_belief() -> None:
    policy = Policy(learner=Field(), rule=MED(), guard=Expected(tolerance=Tolerance(relative=0.1, absolute=6.0)))
    state, _ = play(policy, 4)
    state = policy.settle(state)
    draws = np.full((2, 4, 2), 0.4)
    whole = policy.decide(state, offers(), draws)
    for user in range(4):
        alone = policy.decide(state, one(user), draws[:, user : user + 1])
        np.testing.assert_allclose(alone.probabilities[:, 0], whole.probabilities[:, user], atol=1e-12)


def test_effects_are_the_belief_s_differences_from_the_control_with_their_deviations() -> None:
    policy = Policy(learner=Field(), rule=MED(), guard=Off())
    state = policy.settle(play(policy, 4)[0])
    for user in range(4):
        belief = Field().beliefs(state.evidence, one(user)).of(0)
        mean, cov = belief.mean[..., 0], belief.covariance[..., 0, :, 0]
        own = np.diagonal(cov, axis1=-2, axis2=-1)
        found = [part[:, 0] for part in policy.effects(state, one(user), 0.95)]
        np.testing.assert_allclose(found[0], mean - mean[:, :1], atol=1e-9)
        deviation = np.sqrt(own + own[:, :1] - 2 * cov[:, 0])
        tail = np.asarray(probability.quantile(0.95, belief.freedom))[:, None]
        np.testing.assert_allclose(found[1][:, 1:], tail * deviation[:, 1:], rtol=1e-6)


def test_it_keeps_the_contract_of_policies() -> None:
    check_policy(Policy(learner=Field(), rule=MED(), guard=Expected()))


@pytest.mark.parametrize("guard", [Budget(), Expected()])
def test_a_guard_remembers_an_episode_as_it_does_each_of_its_decisions(guard: Guard) -> None:
    policy = Policy(learner=Field(), rule=MED(), guard=guard)
    state = policy.settle(policy.begin_episode(policy.init(SHAPE, (2,)), offers()))
    decision = policy.decide(state, offers(), np.full((2, 4, 2), 0.4))
    alone = state
    for user in range(4):
        at = slice(user, user + 1)
        mine = Draw(decision.action[:, at], decision.probabilities[:, at], decision.reason_code[:, at])
        alone = policy.commit(alone, one(user), mine)
    assert same(policy.commit(state, offers(), decision), alone)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="keeps sums on features"):
        Policy(learner=Field(), rule=SOLID(), guard=Off())
    policy = Policy(learner=Field(covariates=1), rule=MED(), guard=Off())
    with pytest.raises(InputError, match="give the offer a unit"):
        policy.observe(policy.init(SHAPE), one(0), np.array(0), Outcome(reward=np.array(1.0)))
