"""Policies: users with the same offer, decisions spread evenly over sites, states as arrays, learners of the field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed import streams
from drimed.competitors.solid import SOLID
from drimed.errors import ConfigError, InputError, ShapeError
from drimed.models.linear_regression import Learner
from drimed.models.mixed.learner import Field
from drimed.models.offer import Floor, Offer, Outcome, Shape, Unit, make_offer
from drimed.numerics import probability
from drimed.policies.guards.base import Off
from drimed.policies.guards.certified import Expected
from drimed.policies.guards.margin import Tolerance
from drimed.policies.policy import Policy, State, evenly
from drimed.policies.protocol import from_arrays, to_arrays
from drimed.policies.registry import make
from drimed.policies.rules.base import Floors, one_of_the_plots, raised
from drimed.policies.rules.med import MED
from drimed.simulation.trial_world import Deviations, FieldSetting, FieldWorld, maps_by_name
from tests.worlds import SMALL

# Users with the same offer

KINDS, USERS, ARMS = 3, 12, 7


def kinds_of_users(rng: np.random.Generator) -> Offer:
    """Three kinds of users, in turns; contexts and names are their own."""
    kind = np.arange(USERS) % KINDS
    maps, preference = rng.normal(size=(ARMS, 2, 3)), rng.normal(size=(KINDS, 2))[kind]
    covariance = np.broadcast_to(np.diag([0.5, 0.2]), (ARMS, 2, 2))
    control = np.eye(ARMS)[[0, 1, 0]][kind]
    made = make_offer(maps=maps, preference=preference, covariance=covariance, control=control)
    mask = np.ones((KINDS, ARMS), bool)
    mask[2, 3] = False
    return replace(made, available=mask[kind], user=np.arange(USERS), context=rng.normal(size=(USERS, 1)))


@pytest.mark.parametrize("rule", [MED(ties="shared"), MED(temperature="radius", opening=True)])
@pytest.mark.parametrize("floors", [False, True])
def test_users_who_are_alike_get_what_each_would_get_alone(rule: MED, floors: bool) -> None:
    rng = np.random.default_rng(5)
    policy, many = Policy(learner=Learner(), rule=rule, guard=Expected()), kinds_of_users(rng)
    if floors:
        many = replace(many, floor=Floor(control=np.full(USERS, 0.1), arms=np.full(USERS, 0.01)))
    state = policy.settle(policy.init(Shape(d=3, K=ARMS, M=2, H=USERS)))
    draws = rng.random((USERS, policy.draws_needed(Shape(d=3, K=ARMS, M=2, H=USERS))))
    together = policy.decide(state, many, draws)
    separate = [policy.decide(state, many.take([h]), draws[h : h + 1]) for h in range(USERS)]
    for field in ("action", "probabilities", "reason_code", "share", "certified"):
        np.testing.assert_array_equal(getattr(together, field), np.concatenate([getattr(s, field) for s in separate]))
    assert len(set(together.action.tolist())) > 1  # everybody has a draw of their own


# Decisions spread evenly over sites and blocks

# Blocks of one, two and three plots, and a site that has two blocks.
SITE = np.array([0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 3])
USER = np.array([0, 0, 0, 1, 2, 3, 4, 4, 4, 4, 4])
BLOCK = np.array([0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1])
N = len(SITE)


def uniforms(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).random(shape)


@pytest.mark.parametrize("alone", [np.zeros(N, bool), np.isin(USER, [0, 4])])
def test_whatever_the_order_each_number_is_uniform(alone: np.ndarray) -> None:
    """As the first number goes around the circle, so does each of the others, and meets every part of it once."""
    parts = 8 * N
    order = np.broadcast_to(uniforms(20, 1, N, 1), (20, parts, N, 1))
    turn = np.broadcast_to((np.arange(parts) / parts + 1e-6)[:, None, None], order.shape)
    found = evenly(np.concatenate([turn, order], -1), SITE, USER, BLOCK, alone)
    met = np.sort(np.round(found * parts).astype(int) % parts, axis=1)
    assert (met == np.arange(parts)[:, None]).all()


def test_together_they_are_evenly_spaced() -> None:
    found = evenly(uniforms(50, N, 2), SITE, USER, BLOCK)
    assert ((found >= 0) & (found < 1)).all()
    np.testing.assert_allclose(np.diff(np.sort(found, -1), axis=-1), 1 / N)


@pytest.mark.parametrize("plots", [2, 3, 4])
def test_plots_of_a_block_are_as_far_apart_as_they_can_be(plots: int) -> None:
    site = np.repeat(np.arange(6), plots)
    found = evenly(uniforms(50, 6 * plots, 2), site, site, 0).reshape(50, 6, plots)
    np.testing.assert_allclose(np.diff(np.sort(found, -1), axis=-1), 1 / plots)


def test_plots_of_a_user_are_exactly_as_far_apart_beside_any_others() -> None:
    own = USER == 4  # five plots in two blocks, of eleven plots in all
    found = np.sort(evenly(uniforms(50, N, 2), SITE, USER, BLOCK, own)[:, own], -1)
    np.testing.assert_allclose(np.diff(found, axis=-1, append=found[:, :1] + 1), 1 / 5)


def with_plots(arms: int, floor: Floor | None = None, control: int = 1) -> tuple[Policy, State, Offer]:
    """A field of users with 7, 5 and 3 plots in blocks, that knows nothing yet but the scale of effects."""
    user = np.repeat([0, 1, 2], [7, 5, 3])
    maps = maps_by_name(arms, 1)
    offer = make_offer(maps=maps, preference=np.ones((15, 1)), control=np.eye(arms)[control], user=user)
    offer = replace(offer, unit=Unit(user=user, group=user, block=np.arange(15) // 2), floor=floor)
    policy = make("dri_field", guard="off")
    assert isinstance(policy, Policy)
    state = policy.init(Shape(d=1 + arms, K=arms, M=1, H=3), (500,))
    return policy, policy.settle(policy.begin_episode(state, offer)), offer.broadcast((500, 15))


def test_a_user_with_as_many_plots_as_arms_has_its_control_on_one_and_every_arm_its_chance() -> None:
    policy, state, offer = with_plots(arms=5)
    draw = policy.decide(state, offer, uniforms(500, 15, 2))
    control = (draw.action == 1).astype(float)
    per_user = np.add.reduceat(control, [0, 7, 12], -1)
    assert (per_user[:, :2] >= 1).all()
    assert (per_user[:, 2] == 0).any(), "three plots have no room for five arms"
    given = (draw.action[..., None] == np.arange(5)).mean(0)  # (15, 5)
    p = draw.probabilities[0]
    assert np.abs(given - p).max() < 4.5 * np.sqrt(p * (1 - p) / 500).max()  # 75 shares: a false alarm in 2,000


def test_a_rule_that_never_gives_the_control_is_raised_to_one_plot_of_each_user() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), (6, 5))
    p[..., 2], control = p[..., 2] * rng.choice([0.0, 1.0], (6, 5)), np.eye(4)[2]
    p /= p.sum(-1, keepdims=True)
    offer = make_offer(features=np.broadcast_to(np.eye(4), (5, 4, 4)), control=control, user=np.zeros(5, int))
    least = one_of_the_plots(offer, offer.user)
    assert least.tolist() == [0.2] * 5
    given_up = p[..., 2] < 0.05
    assert (raised(p, offer, None, least)[given_up] == p[given_up]).all(), "the control may hardly be the best"
    found = raised(p, replace(offer, floor=Floors(plot="always").after(np.zeros(5))), None, least)
    assert (raised(p, offer, None, least)[~given_up] == found[~given_up]).all()
    np.testing.assert_allclose(found.sum(-1), 1.0)
    np.testing.assert_allclose(found[..., 2], np.maximum(p[..., 2], 0.2))
    others = np.delete(found, 2, -1) * np.delete(p, 2, -1).sum(-1, keepdims=True)
    np.testing.assert_allclose(others, np.delete(p, 2, -1) * np.delete(found, 2, -1).sum(-1, keepdims=True))
    none = Floors(plot="never").after(np.zeros(5))
    assert not one_of_the_plots(replace(offer, floor=none), offer.user).any()
    lottery = replace(offer, control=np.full((5, 4), 0.25))
    assert not one_of_the_plots(lottery, offer.user).any()


def test_blocks_are_told_apart_by_the_unit_of_an_offer() -> None:
    policy = make("dri_field", guard="off")
    assert isinstance(policy, Policy)
    world = FieldWorld(FieldSetting(seasons=1, arms=2), range(2))
    stage = next(world.blocks())
    unit = Unit(user=stage.offered.user, group=np.zeros(12, int), block=np.repeat(np.arange(6), 2))
    offers = type(stage.offered)(
        **{name: getattr(stage.offered, name) for name in ("features", "control", "maps", "preference", "user")},
        unit=unit,
    )
    state = policy.settle(policy.begin_episode(policy.init(world.shape, (2,)), offers))
    action = policy.decide(state, offers, uniforms(2, 12, 2)).action.reshape(2, 6, 2)
    assert (action[..., 0] != action[..., 1]).all()  # two arms of one half each


# States as arrays


def test_a_missing_array_and_one_too_many_are_named() -> None:
    plain, discounted = make("w_oful"), make("w_oful", discount=0.9)
    with pytest.raises(InputError, match=r"has no 'evidence\.ridge\.V2'; it holds"):
        from_arrays(discounted.init(SMALL), to_arrays(plain.init(SMALL)))
    with pytest.raises(InputError, match=r"ridge\.V2.*this policy does not use"):
        from_arrays(plain.init(SMALL), to_arrays(discounted.init(SMALL)))


def test_a_state_of_another_problem_is_refused() -> None:
    arrays = to_arrays(make("oful").init(SMALL))
    other = make("oful").init(SMALL, (2,))
    with pytest.raises(InputError, match=r"stored 'evidence\.ridge\.V' has shape \(3, 3\), .* needs \(2, 3, 3\)"):
        from_arrays(other, arrays)


@pytest.mark.parametrize(
    ("draws", "error", "message"),
    [
        ([[2.0]], InputError, "draws must be uniforms between 0 and 1, got"),
        ([[np.nan]], InputError, "draws must be uniforms between 0 and 1, got"),
        ([0.4], ShapeError, "draws must have shape .* and one axis more"),
    ],
)
def test_draws_that_are_no_uniforms_are_refused(draws: Any, error: type[InputError], message: str) -> None:
    policy, offer = make("med"), make_offer(features=np.eye(2), control=[1.0, 0.0])
    state = policy.init(Shape(d=2, K=2, M=1, H=1))
    with pytest.raises(error, match=message):
        policy.decide(state, offer, draws)
    with pytest.raises(ShapeError, match="users' axis"):
        policy.decide(state, replace(offer, features=np.eye(2)), np.array([[0.4]]))


# Learners of the field

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


@pytest.mark.parametrize(("unit", "level"), [(1e-4, 0.0), (30.0, -1e3), (30.0, -1e6)])
def test_neither_unit_nor_level_changes_a_decision(unit: float, level: float) -> None:
    """The tolerance is told in the same unit; there is no range to declare. Ties are shared, as in trials."""
    guards = [Expected(tolerance=Tolerance(relative=0.0, absolute=15.0 * u)) for u in (1.0, unit)]
    as_is, other = (Policy(learner=Field(), rule=MED(ties="shared"), guard=guard) for guard in guards)
    _, before = play(as_is, 6)
    _, after = play(other, 6, unit=unit, level=level)
    assert any(a.any() for a in before)
    np.testing.assert_array_equal(before, after)


def test_effects_are_the_belief_s_differences_from_the_control_with_their_deviations() -> None:
    policy = Policy(learner=Field(), rule=MED(), guard=Off())
    state = policy.settle(play(policy, 4)[0])
    for user in range(4):
        belief = Field().beliefs(state.evidence, one(user))
        mean, cov = belief.mean[:, 0, :, 0], belief.covariance[:, 0, :, 0, :, 0]
        own = np.diagonal(cov, axis1=-2, axis2=-1)
        found = [part[:, 0] for part in policy.effects(state, one(user), 0.95)]
        np.testing.assert_allclose(found[0], mean - mean[:, :1], atol=1e-9)
        deviation = np.sqrt(own + own[:, :1] - 2 * cov[:, 0])
        tail = np.asarray(probability.student_quantile(0.95, belief.freedom[:, 0]))[:, None]
        np.testing.assert_allclose(found[1][:, 1:], tail * deviation[:, 1:], rtol=1e-6)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="keeps sums on features"):
        Policy(learner=Field(), rule=SOLID(), guard=Off())
    policy = Policy(learner=Field(covariates=1), rule=MED(), guard=Off())
    with pytest.raises(InputError, match="give the offer a unit"):
        policy.observe(policy.init(SHAPE), one(0), np.array([0]), Outcome(reward=np.array([1.0])))
