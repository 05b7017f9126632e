"""The guards that promise something about every arm played, and about the sum over a trial."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.models.offer import Shape
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.policies.guards.base import CONTROL_ONLY
from drimed.policies.guards.certified import Certain
from drimed.policies.guards.margin import Tolerance
from drimed.policies.guards.penalty import Budget
from drimed.policies.registry import make
from drimed.simulation.instances import draw_instance, mixed_control, quantile_control
from drimed.simulation.runner import simulate
from drimed.simulation.worlds import Setting, World
from tests.examples import fit_of, r1_fit, r1_offer, unbatched


def uniform(mask: BoolArray | None, penalty: FloatArray | None) -> FloatArray:
    del penalty
    p = np.ones(3) if mask is None else mask.astype(np.float64)
    return p / p.sum()


def test_certain_asks_only_about_certified_arms() -> None:
    """At radius .2 and ten percent, arms 1 and 3 are certified and arm 2 is not."""
    guard = Certain(tolerance=Tolerance(relative=0.1), confidence=0.5792597094391030)
    guarded = guard.apply(None, r1_fit(), r1_offer(), uniform)
    assert guarded.probabilities.tolist() == [0.5, 0.0, 0.5]
    assert guarded.certified is not None
    assert int(guarded.certified) == 2


def test_certain_plays_the_lottery_where_nothing_is_certified() -> None:
    pi0 = np.array([0.2, 0.3, 0.5])
    guard = Certain(tolerance=Tolerance(relative=0.0, absolute=0.0), confidence="anytime")
    guarded = guard.apply(None, r1_fit(), r1_offer(control=pi0), uniform)
    np.testing.assert_allclose(guarded.probabilities, pi0)
    assert int(guarded.reason) == CONTROL_ONLY


@pytest.mark.parametrize("family", ["paper", "one metric", "mixed control", "reward feedback"])
def test_with_anytime_confidence_no_decision_at_all_falls_short(family: str) -> None:
    """delta = .05, 200 runs: the share of runs with any violation is at most delta. More than 17 of 200 would happen
    by chance with probability below .005 if the rate were exactly .05."""
    shape = Shape(d=4, K=5, M=1 if family == "one metric" else 4, H=5)
    instances = [draw_instance(500 + s, shape) for s in range(200)]
    mixed = family == "mixed control"
    controls = [mixed_control(i, s) if mixed else quantile_control(i) for s, i in enumerate(instances)]
    world = World(instances=instances, seeds=range(200), controls=controls, setting=Setting(episodes=150, drift="none"))
    name = "dri_med_reward" if family == "reward feedback" else "dri_med"
    policy = make(name, guard="certain", confidence="anytime", delta=0.05)
    result = simulate(policy, world, tolerance=Tolerance(relative=0.1, absolute=0.05))
    # A lottery's own draw is the control, not a choice: there the promise is about the distribution that is played.
    count = "expected" if mixed else "realised"
    assert (result.total(f"violations.safe.{count}") > 0).sum() <= 17
    if family == "paper":  # it is not safe by standing still
        assert result.total("regret").mean() < 0.2 * simulate(make("control"), world).total("regret").mean()


def test_budget_lets_a_user_spend_the_endowment_and_no_more() -> None:
    """One user, theta known: a rule that always wants an arm .1 below the control gets it 5 times with .5 to spend."""
    fit = fit_of(1e12 * np.eye(1), np.array([1.0]), K=2, radius=1e-6)
    from drimed.policies.guards.base import Draw

    offer = unbatched(features=[[1.0], [0.9]], control=[1.0, 0.0])
    guard = Budget(tolerance=Tolerance(relative=0.0, absolute=0.0), endowment=0.5, confidence="anytime")
    state = guard.init(Shape(d=1, K=2, M=1, H=1), ())

    def greedy_for_the_worse(mask: BoolArray | None, penalty: FloatArray | None) -> FloatArray:
        del penalty
        return np.array([0.0, 1.0]) if mask is None or mask[1] else np.array([1.0, 0.0])

    spent = []
    for _ in range(10):
        guarded = guard.apply(state, fit, offer, greedy_for_the_worse)
        spent.append(0.1 * guarded.probabilities[1])
        decision = Draw(np.asarray(1), guarded.probabilities, guarded.reason)
        state = guard.commit(state, fit, offer, decision)
    assert sum(spent) == pytest.approx(0.5, abs=1e-3)
    assert spent[0] == pytest.approx(0.1)
    assert spent[-1] == pytest.approx(0.0, abs=1e-3)


def test_the_summed_expected_shortfall_stays_within_the_endowment_in_simulation() -> None:
    """Confidence anytime: per user and run, sum of (control - expected) <= .1 sum |control| + endowment, always."""
    instances = [draw_instance(700 + s) for s in range(60)]
    world = World(
        instances=instances,
        seeds=range(60),
        controls=[quantile_control(i) for i in instances],
        setting=Setting(episodes=100, drift="none"),
    )
    policy = make("dri_med", guard="budget", confidence="anytime", endowment=0.5, relative=0.1, absolute=0.0)
    block = next(iter(world.blocks()))
    from tests.worlds import policy_draws

    draws = policy_draws(world, 0, 100, 1)
    state = policy.init(world.shape, (60,))
    account = np.zeros((60, world.shape.H))
    failed = np.zeros(60, bool)
    for episode in range(100):
        state = policy.begin_episode(state, block.offers(episode))
        for user in range(world.shape.H):
            one = slice(user, user + 1)
            offer = block.offers(episode, one)
            decision = policy.decide(state, offer, draws[episode, user][:, None])
            means = block.means[episode, user]
            mu0 = (means * offer.control[:, 0]).sum(-1)
            account[:, user] += (means * decision.probabilities[:, 0]).sum(-1) - mu0 + 0.1 * np.abs(mu0)
            failed |= account[:, user] < -0.5 - 1e-9
            outcome = block.respond(episode, decision.action, one)
            state = policy.update(state, offer, decision, outcome)
    assert failed.sum() <= 4  # delta = .01: more than 4 of 60 has probability below .0005
