"""Certificates that hold for all arms of a decision at once: the quantile, and the promise about the choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm, t

from drimed.models.offer import Fit
from drimed.numerics.arrays import BoolArray, FloatArray, pick
from drimed.policies.guards.base import Guardrail, constraints
from drimed.policies.guards.certified import Certain, Expected, _freedom, arc_quantile, lower_bounds
from drimed.policies.guards.margin import Tolerance
from drimed.policies.protocol import AnyPolicy
from drimed.policies.registry import make
from drimed.simulation.instances import Instance
from drimed.simulation.worlds import Setting, World
from tests.examples import fit_of, r1_fit, r1_offer, unbatched
from tests.worlds import policy_draws


def of(angle: float, tail: float = 0.01, nu: float = np.inf) -> float:
    return float(arc_quantile(np.array([angle]), np.array([tail]), np.array([nu]))[0])


@pytest.mark.parametrize("tail", [0.05, 0.01, 1e-3, 1e-5])
def test_one_direction_has_the_quantile_of_its_distribution(tail: float) -> None:
    assert of(0.0, tail) == pytest.approx(norm.isf(tail), rel=1e-9)
    assert of(0.0, tail, 5.0) == pytest.approx(t.isf(tail, 5), rel=1e-9)
    assert of(np.pi, tail) == pytest.approx(norm.isf(tail / 2), rel=1e-9)  # two opposite points


@pytest.mark.parametrize("nu", [np.inf, 6.0, 2.5])
@pytest.mark.parametrize("angle", [1e-3, 0.3, 1.2, 3.0])
def test_an_arc_of_directions_has_its_tail_and_no_more(angle: float, nu: float) -> None:
    for tail in (0.05, 0.01, 1e-5):
        c = of(angle, tail, nu)
        height = np.exp(-c * c / 2) if nu == np.inf else (1 + c * c / nu) ** (-nu / 2)
        beyond = norm.sf(c) if nu == np.inf else t.sf(c, nu)
        assert beyond + angle / (2 * np.pi) * height == pytest.approx(tail, rel=1e-6)
        assert beyond + angle / (2 * np.pi) * height <= tail * (1 + 1e-12)


def test_an_arc_of_directions_is_covered_all_along() -> None:
    """A cone of 1.2 radians, its points drawn densely; 4 standard errors of 100,000 draws are allowed."""
    angles = np.linspace(0, 1.2, 400)
    z = np.random.default_rng(2).standard_normal((100_000, 2))
    cone = np.column_stack((np.cos(angles), np.sin(angles)))
    assert ((z @ cone.T).max(1) > of(1.2)).mean() == pytest.approx(0.01, abs=4 * np.sqrt(0.01 / len(z)))


@pytest.mark.parametrize("relative", [0.0, 0.1])
def test_all_margins_of_a_decision_are_bounded_together(relative: float) -> None:
    """20,000 errors for each of 6 sets of arms, theta known: some bound is above its margin in at most .05 of the draws
    and 4 standard errors (false alarms below 1 in 10,000 for a set), and in .01 at least: little is wasted."""
    rng = np.random.default_rng(1)
    for K in (2, 3, 5, 8, 12, 20):
        x, theta = rng.standard_normal((K, 4)), rng.standard_normal(4)
        V_inv = np.diag(rng.uniform(0.05, 0.5, 4))
        hats = theta + rng.standard_normal((20_000, 4)) * np.sqrt(np.diagonal(V_inv))
        n = len(hats)
        fit = Fit(hats, np.broadcast_to(V_inv, (n, 4, 4)), np.ones(n), None, np.zeros((n, K)), 2, 1.0)
        offer = unbatched(features=x, control=np.eye(K)[0])
        required = constraints(offer, Tolerance(relative=relative, absolute=0.1))
        (F,) = lower_bounds(fit, offer, required, 0.95, control=False)
        truth = (x - x[0]) @ theta + relative * abs(x[0] @ theta) + 0.1
        beyond = (F[:, 1:-1] > truth[1:]).any(1).mean()
        assert 0.01 < beyond < 0.05 + 4 * np.sqrt(0.05 * 0.95 / n)


def test_more_arms_never_make_the_bounds_higher() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        root = rng.standard_normal((3, 6))
        fit, x = fit_of(root @ root.T, rng.standard_normal(3), K=6), rng.standard_normal((6, 3))
        offer = unbatched(features=x, control=np.eye(6)[0])
        fewer = replace(offer, available=np.array([True, True, True, False, False, False]))
        required = constraints(offer, Tolerance(relative=0.1, absolute=0.05))
        (all_six,), (three,) = (lower_bounds(fit, o, required, 0.99, control=True) for o in (offer, fewer))
        assert (all_six <= three + 1e-9).all()


def asking(p: list[float]) -> Any:
    def ask(mask: BoolArray | None) -> FloatArray:
        allowed = np.ones(len(p), bool) if mask is None else mask
        q = np.array(p) * allowed
        return np.asarray(q / q.sum() if q.sum() > 0 else allowed / allowed.sum())

    return ask


@pytest.mark.parametrize("control", [[0.0, 0.0, 1.0], [0.3, 0.3, 0.4]])
def test_a_lottery_is_certified_by_the_mean_of_its_arms_bounds(control: list[float]) -> None:
    tolerance = Tolerance(relative=0.1, absolute=0.3)
    guard = Expected(tolerance=tolerance, confidence=0.8, simultaneous=True)
    fit, offer = r1_fit(), r1_offer(control=np.array(control))
    (F,) = lower_bounds(fit, offer, constraints(offer, tolerance), 0.8, control=True)
    guarded = guard.apply(None, fit, offer, asking([0.2, 0.7, 0.1]))
    assert guarded.share is not None
    share = float(guarded.share)
    assert 0 < share < 1
    if (F[:-1] >= 0).any():
        assert float(guarded.probabilities @ F[:-1]) == pytest.approx(0.0, abs=1e-12)
    else:
        wish = float(np.array([0.2, 0.7, 0.1]) @ F[:-1])
        assert share * wish + (1 - share) * F[-1] == pytest.approx(0.0, abs=1e-12)


def test_a_control_whose_margin_is_certain_takes_no_share_of_the_error_probability() -> None:
    fit, offer = r1_fit(), r1_offer()
    for relative, same in ((0.0, True), (0.1, False)):
        required = constraints(offer, Tolerance(relative=relative, absolute=0.3))
        (with_control,), (alone,) = (lower_bounds(fit, offer, required, 0.8, control=c) for c in (True, False))
        assert np.array_equal(with_control, alone) == same


def test_certain_keeps_fewer_arms_and_always_the_control() -> None:
    rng = np.random.default_rng(6)
    fewer = 0
    for _ in range(100):
        root = rng.standard_normal((3, 9))
        fit = fit_of(4 * root @ root.T, 0.3 * rng.standard_normal(3), K=5)
        offer = unbatched(features=rng.standard_normal((5, 3)), control=np.eye(5)[0])
        one, every = (Certain(simultaneous=s).apply(None, fit, offer, asking([0.2] * 5)) for s in (False, True))
        assert every.probabilities[0] > 0
        assert not (every.probabilities > 0)[one.probabilities == 0].any()
        fewer += int((every.probabilities > 0).sum() < (one.probabilities > 0).sum())
    assert fewer > 5


def test_anytime_with_known_noise_holds_for_every_direction_already() -> None:
    for kind in (Certain, Expected):
        one, every = (
            kind(confidence="anytime", simultaneous=s).apply(None, r1_fit(), r1_offer(), asking([0.2, 0.7, 0.1]))
            for s in (False, True)
        )
        np.testing.assert_allclose(one.probabilities, every.probabilities, atol=1e-12)


def test_a_guardrail_takes_its_share_of_the_error() -> None:
    rng = np.random.default_rng(8)
    fit = fit_of(9 * np.eye(3), rng.standard_normal(3), K=4)
    offer = unbatched(maps=rng.standard_normal((4, 2, 3)), preference=[0.5, 0.5], control=np.eye(4)[0])
    alone, both = (constraints(offer, Tolerance(), rails) for rails in ((), (Guardrail(metric=0),)))
    one, two = (lower_bounds(fit, offer, required, 0.9, control=True)[0] for required in (alone, both))
    assert (two[1:] < one[1:]).all()


def test_degrees_of_freedom_follow_the_outcomes_that_a_margin_rests_on() -> None:
    """Two arms with nothing in common: 50 outcomes of the control, one of the other, whose variance is the margin's."""
    fit = replace(fit_of(np.diag([51.0, 2.0]), np.zeros(2), K=2), pulls=np.array([50.0, 1.0]))
    offer = unbatched(features=np.eye(2), control=[1.0, 0.0], sigma=[1.0, 1.0])
    (reward,) = constraints(offer, Tolerance())
    assert np.isinf(_freedom(fit, offer, reward)).all()
    nu = _freedom(replace(fit, inflation=np.asarray(1.08)), offer, reward)
    share = np.array([50 / 51**2, 1 / 4]) / (1 / 51 + 1 / 2)
    assert nu[1] == pytest.approx(1 / (share[0] ** 2 / 53 + share[1] ** 2 / 4))
    assert nu[0] == pytest.approx(100)  # 8 / .08
    assert (_freedom(replace(fit, inflation=np.asarray(3.0)), offer, reward) <= 4).all()


def just_below(seed: int, *, K: int, M: int, d: int, below: float) -> Instance:
    """Every arm but the first is `below` beyond .1 |mu_0| + .05 under it, mu_0 = .3; one user."""
    rng = np.random.default_rng([seed, K, M, d])
    theta = rng.standard_normal(d)
    theta = theta / np.linalg.norm(theta)
    maps = rng.standard_normal((K, M, d))
    maps = maps / np.linalg.norm(maps, axis=-1, keepdims=True)
    root, preference = rng.standard_normal((K, M, M)), rng.dirichlet(2 * np.ones(M))[None]
    want = np.where(np.arange(K) == 0, 0.3, 0.3 - 0.03 - 0.05 - below)
    maps = maps + (want - preference[0] @ (maps @ theta).T)[:, None, None] * theta
    return Instance(theta, maps, root @ np.swapaxes(root, -1, -2) / M, preference, preference)


def shortfalls(policy: AnyPolicy, *, runs: int, rounds: int, below: float, **shape: int) -> BoolArray:
    """Where a decision breaks its guard's promise, while arms are played at random: (rounds, runs)."""
    instances = [just_below(s, below=below, **shape) for s in range(runs)]
    K = shape["K"]
    world = World(
        instances=instances,
        seeds=range(runs),
        controls=[np.eye(K)[:1]] * runs,
        setting=Setting(episodes=rounds, drift="none"),
    )
    state: Any = policy.init(world.shape, (runs,))
    rng, found = np.random.default_rng(77), []
    for block in world.blocks():
        draws = policy_draws(world, block.start, block.episodes, policy.draws_needed(world.shape))
        for episode in range(block.episodes):
            state = policy.settle(policy.begin_episode(state, block.offers(episode)))
            offer = block.offers(episode)
            decision = policy.decide(state, offer, draws[episode, 0][:, None])
            by_arm = policy.traits.protects == "every arm"
            means = block.means[episode, 0]
            p, action = decision.probabilities[:, 0], decision.action[:, 0]
            chosen = pick(means, action) if by_arm else np.vecdot(means, p)
            found.append(chosen < 0.9 * means[:, 0] - 0.05 - 1e-9)
            decision = replace(decision, action=rng.integers(K, size=(runs, 1)))
            state = policy.update(state, offer, decision, block.respond(episode, decision.action))
    return np.array(found)


@pytest.mark.parametrize(("weighting", "guard"), [("known", "expected"), ("learned", "certain")])
def test_with_all_arms_just_below_the_tolerance_few_decisions_fall_short(weighting: str, guard: str) -> None:
    """Level .95, 200 runs of 10 rounds, arms played at random: each round at most .05 of the runs fall short. More than
    23 of 200 in one round would happen by chance with probability 1e-4 if the rate were exactly .05, in any of 10 with
    less than .001. For single margins it is at least twice as many: the test can tell."""
    policy = make("dri_med", weighting=weighting, guard=guard, confidence=0.95, simultaneous=True)
    # What the control has to spare must not make up for what MED leaves to it: .02 of the mass times .08.
    below = 1e-6 if guard == "certain" else 0.003
    short = shortfalls(policy, runs=200, rounds=10, below=below, K=5, M=4, d=4)
    assert short.sum(1).max() <= 23
    assert short.mean() <= 0.05
    if weighting == "learned":
        single = make("dri_med", weighting=weighting, guard=guard, confidence=0.95)
        assert shortfalls(single, runs=200, rounds=10, below=below, K=5, M=4, d=4).mean() > 2 * short.mean()
