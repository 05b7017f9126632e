"""Decisions that are taken together: each keeps its chances, and together they are spread evenly."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.errors import ShapeError
from drimed.models.offer import Unit
from drimed.policies.policy import Policy, evenly
from drimed.policies.registry import make
from drimed.simulation.trial_world import FieldSetting, FieldWorld

# Blocks of one, two and three plots, and a site that has two blocks.
SITE = np.array([0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 3])
BLOCK = np.array([0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1])
N = len(SITE)


def uniforms(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).random(shape)


def test_whatever_the_order_each_number_is_uniform() -> None:
    """As the first number goes around the circle, so does each of the others, and meets every part of it once."""
    parts = 8 * N
    order = np.broadcast_to(uniforms(20, 1, N, 1), (20, parts, N, 1))
    turn = np.broadcast_to((np.arange(parts) / parts + 1e-6)[:, None, None], order.shape)
    found = evenly(np.concatenate([turn, order], -1), SITE, BLOCK)
    met = np.sort(np.round(found * parts).astype(int) % parts, axis=1)
    assert (met == np.arange(parts)[:, None]).all()


def test_together_they_are_evenly_spaced() -> None:
    found = evenly(uniforms(50, N, 2), SITE, BLOCK)
    assert ((found >= 0) & (found < 1)).all()
    np.testing.assert_allclose(np.diff(np.sort(found, -1), axis=-1), 1 / N)


@pytest.mark.parametrize("plots", [2, 3, 4])
def test_plots_of_a_block_are_as_far_apart_as_they_can_be(plots: int) -> None:
    found = evenly(uniforms(50, 6 * plots, 2), np.repeat(np.arange(6), plots), 0).reshape(50, 6, plots)
    np.testing.assert_allclose(np.diff(np.sort(found, -1), axis=-1), 1 / plots)


def test_every_order_of_blocks_and_plots_comes_up() -> None:
    found = evenly(uniforms(4000, 4, 2), np.array([0, 0, 1, 1]), 0)
    order = np.argsort((found - found.min(-1, keepdims=True)) % 1, -1)
    assert len(np.unique(order, axis=0)) == 8  # of 24: two plots of a block are never neighbours


def test_an_arm_comes_as_often_as_its_chances_say_rounded_up_or_down() -> None:
    counts = (evenly(uniforms(200, 12, 2), np.repeat(np.arange(6), 2), 0) < 0.15).sum(-1)
    assert set(counts.tolist()) == {1, 2}
    assert counts.mean() == pytest.approx(1.8, abs=0.1)


def test_a_trial_does_not_depend_on_its_neighbours() -> None:
    draws = uniforms(5, N, 2)
    assert np.array_equal(evenly(draws, SITE, BLOCK)[3], evenly(draws[3], SITE, BLOCK))


def test_plots_of_other_sites_with_the_same_number_of_a_block_are_not_together() -> None:
    found = evenly(uniforms(200, 4, 2), np.array([0, 1, 0, 1]), 5)
    np.testing.assert_allclose(np.abs(found[:, 0] - found[:, 2]), 0.5)


def test_too_few_uniforms_are_refused() -> None:
    with pytest.raises(ShapeError, match="need 2 uniforms each"):
        evenly(uniforms(N, 1), SITE, BLOCK)


def decided(**settings: object) -> tuple[np.ndarray, np.ndarray]:
    """Actions and probabilities of the second season of some fields; the first is the control's."""
    policy = make("field_med", relative=0.0, absolute=6.0, ties="shared", **settings)
    assert isinstance(policy, Policy)
    world = FieldWorld(FieldSetting(seasons=2), range(64))
    state = policy.init(world.shape, (64,))
    rng = np.random.default_rng(8)
    for stage in world.blocks():
        state = policy.settle(policy.begin_episode(state, stage.offered))
        decision = policy.decide(state, stage.offered, rng.random((64, 12, policy.draws_needed(world.shape))))
        state = policy.commit(state, stage.offered, decision)
        state = policy.observe(state, stage.offered, decision.action, stage.outcomes(decision.action))
    return decision.action, decision.probabilities


def test_a_policy_of_the_field_spreads_its_arms_and_changes_no_probability() -> None:
    (even, p), (alone, q) = decided(), decided(balanced=False)
    np.testing.assert_allclose(p, q, rtol=1e-12)
    control, expected = (even == 0).sum(-1), p[..., 0].sum(-1)
    assert (np.abs(control - expected) < 1).all()  # of twelve plots
    assert (np.abs((alone == 0).sum(-1) - q[..., 0].sum(-1)) > 1).any()
    assert even.any()


def test_people_are_drawn_for_one_by_one_and_so_is_what_is_only_sampled() -> None:
    for name in ("people_med", "field_ts", "dri_med", "field_med"):
        policy = make(name)
        assert isinstance(policy, Policy)
        assert policy.balances == (name == "field_med")


def test_blocks_are_told_apart_by_the_unit_of_an_offer() -> None:
    policy = make("field_med", guard="off")
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
