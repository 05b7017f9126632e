"""Certificates that hold for all arms of a decision at once: the quantile, and what is promised of the choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm, t

from drimed.numerics.arrays import BoolArray, FloatArray, pick
from drimed.policies.guards import certified
from drimed.policies.guards.base import Guardrail, constraints
from drimed.policies.guards.certified import Certain, Expected, freedom, lower_bounds, quantile
from drimed.policies.guards.margin import Tolerance
from drimed.policies.protocol import AnyPolicy
from drimed.policies.registry import make
from drimed.simulation.instances import Instance
from drimed.simulation.runner import policy_draws
from drimed.simulation.worlds import Setting, World
from tests.examples import fit_of, r1_fit, r1_offer, unbatched

KNOWN = np.array([np.inf])


def of(g: FloatArray, tail: float = 0.01, nu: FloatArray = KNOWN, *, last: FloatArray | None = None) -> float:
    everything = np.ones(len(g), bool)
    return float(quantile(g, g if last is None else last, everything, np.eye(g.shape[1]), tail, nu)[0])


@pytest.mark.parametrize("tail", [0.05, 0.01, 1e-3])
def test_one_direction_has_the_quantile_of_its_distribution(tail: float) -> None:
    g = np.array([[0.3, -2.0]])
    assert of(g, tail) == pytest.approx(norm.isf(tail), rel=1e-6)
    assert of(g, tail, np.array([5.0])) == pytest.approx(t.isf(tail, 5), rel=1e-6)


def test_twins_cost_nothing_and_directions_with_nothing_in_common_cost_what_sidak_says() -> None:
    assert of(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 0.0]])) == pytest.approx(norm.isf(0.01), rel=1e-6)
    sidak = norm.isf(1 - 0.99 ** (1 / 6))
    assert sidak < of(np.eye(6)) < 1.001 * sidak
    opposite = of(np.array([[1.0, 0.0], [-1.0, 0.0]]))
    assert opposite == pytest.approx(norm.isf(0.005), rel=1e-6)


@pytest.mark.parametrize("nu", [np.inf, 6.0])
def test_the_quantile_covers_the_largest_of_correlated_margins_and_is_near_it(nu: float) -> None:
    """200,000 draws for each of 8 sets of arms: the share beyond c is at most .01 + 4 standard errors (false alarms
    below 1 in 10,000 for a set), and at least .6 of .01: the bound wastes little."""
    rng = np.random.default_rng(1)
    z = rng.standard_normal((200_000, 4))
    if nu < np.inf:
        z = z / np.sqrt(rng.chisquare(nu, (len(z), 1)) / nu)
    for n in (2, 3, 4, 5, 6, 7, 8, 9):
        g = rng.standard_normal((n, 4)) + np.array([1.5, 0, 0, 0])
        beyond = ((z @ g.T) > of(g, nu=np.array([nu])) * np.linalg.norm(g, axis=1)).any(1).mean()
        assert 0.006 < beyond < 0.01 + 4 * np.sqrt(0.01 * 0.99 / len(z))


def test_an_arc_of_directions_is_covered_all_along() -> None:
    """A cone of 1.2 radians, its points drawn densely: P = P(z > c) + 1.2 / 2 pi exp(-c^2 / 2) exactly."""
    angles = np.linspace(0, 1.2, 400)
    z = np.random.default_rng(2).standard_normal((100_000, 2))
    cone = np.column_stack((np.cos(angles), np.sin(angles)))
    c = of(cone[:1], last=cone[-1:])
    assert norm.sf(c) + 1.2 / (2 * np.pi) * np.exp(-c * c / 2) == pytest.approx(0.01, rel=1e-6)
    assert ((z @ cone.T).max(1) > c).mean() == pytest.approx(0.01, abs=4 * np.sqrt(0.01 / len(z)))
    assert of(cone) == pytest.approx(c, rel=1e-3)  # as many single points


def test_masked_directions_do_not_count() -> None:
    used = np.array([True, False, False])
    c = quantile(np.eye(3), np.eye(3), used, np.eye(3), 0.01, KNOWN)
    assert float(c[0]) == pytest.approx(norm.isf(0.01), rel=1e-6)


def test_more_arms_never_make_the_bounds_higher() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        root = rng.standard_normal((3, 6))
        fit, x = fit_of(root @ root.T, rng.standard_normal(3), K=6), rng.standard_normal((6, 3))
        offer = unbatched(features=x, control=np.eye(6)[0])
        fewer = replace(offer, available=np.array([True, True, True, False, False, False]))
        required = constraints(offer, Tolerance(relative=0.1, absolute=0.05), ())
        (all_six,), (three,) = (lower_bounds(fit, o, required, 0.99, control=True) for o in (offer, fewer))
        assert (all_six <= three + 1e-9).all()


def asking(p: list[float]) -> Any:
    def ask(mask: BoolArray | None, penalty: FloatArray | None) -> FloatArray:
        del penalty
        allowed = np.ones(len(p), bool) if mask is None else mask
        q = np.array(p) * allowed
        return np.asarray(q / q.sum() if q.sum() > 0 else allowed / allowed.sum())

    return ask


@pytest.mark.parametrize("control", [[0.0, 0.0, 1.0], [0.3, 0.3, 0.4]])
def test_a_lottery_is_certified_by_the_mean_of_its_arms_bounds(control: list[float]) -> None:
    tolerance = Tolerance(relative=0.1, absolute=0.3)
    guard = Expected(tolerance=tolerance, confidence=0.8, simultaneous=True)
    fit, offer = r1_fit(), r1_offer(control=np.array(control))
    (F,) = lower_bounds(fit, offer, constraints(offer, tolerance, ()), 0.8, control=True)
    guarded = guard.apply(None, fit, offer, asking([0.2, 0.7, 0.1]))
    assert guarded.share is not None
    assert 0 < float(guarded.share) < 1
    safe = F[:-1] >= 0
    if safe.any():
        assert float(guarded.probabilities @ F[:-1]) == pytest.approx(0.0, abs=1e-12)
    else:
        wish = float(np.array([0.2, 0.7, 0.1]) @ F[:-1])
        assert float(guarded.share) * wish + (1 - float(guarded.share)) * F[-1] == pytest.approx(0.0, abs=1e-12)


def test_certain_keeps_fewer_arms_and_always_the_control() -> None:
    rng = np.random.default_rng(6)
    fewer = 0
    for _ in range(200):
        root = rng.standard_normal((3, 9))
        fit = fit_of(4 * root @ root.T, 0.3 * rng.standard_normal(3), K=5)
        offer = unbatched(features=rng.standard_normal((5, 3)), control=np.eye(5)[0])
        one, every = (Certain(simultaneous=s).apply(None, fit, offer, asking([0.2] * 5)) for s in (False, True))
        assert every.probabilities[0] > 0
        assert not (every.probabilities > 0)[one.probabilities == 0].any()
        fewer += int((every.probabilities > 0).sum() < (one.probabilities > 0).sum())
    assert fewer > 10


def test_anytime_with_known_noise_holds_for_every_direction_already() -> None:
    for kind in (Certain, Expected):
        one, every = (
            kind(confidence="anytime", simultaneous=s).apply(None, r1_fit(), r1_offer(), asking([0.2, 0.7, 0.1]))
            for s in (False, True)
        )
        np.testing.assert_allclose(one.probabilities, every.probabilities, atol=1e-12)


def test_a_batch_equals_its_members_and_guardrails_are_counted() -> None:
    rng = np.random.default_rng(8)
    maps, theta = rng.standard_normal((3, 4, 2, 3)), rng.standard_normal((3, 3))
    control, preference = np.eye(4)[0], np.array([0.5, 0.5])
    fit = replace(fit_of(9 * np.eye(3), theta[0], K=4), theta=theta, V_inv=np.broadcast_to(np.eye(3) / 9, (3, 3, 3)))
    fit = replace(fit, inflation=np.array([1.0, 1.2, 2.0]), pulls=np.ones((3, 4)), radius=np.ones(3))
    offer = unbatched(maps=maps, preference=np.broadcast_to(preference, (3, 2)), control=control)
    for rails in ((), (Guardrail(metric=0, absolute=0.2),)):
        for confidence in (0.9, "anytime"):
            guard = Expected(confidence=confidence, guardrails=rails, simultaneous=True)
            wish = np.array([0.1, 0.2, 0.3, 0.4])

            def ask(mask: BoolArray | None, penalty: FloatArray | None) -> FloatArray:
                del penalty
                q = np.broadcast_to(wish, (3, 4)) if mask is None else wish * mask  # noqa: B023
                return q / q.sum(-1, keepdims=True)

            together = guard.apply(None, fit, offer, ask).probabilities
            for s in range(3):
                one = replace(
                    fit_of(9 * np.eye(3), theta[s], K=4), inflation=np.asarray(fit.inflation)[s], pulls=np.ones(4)
                )
                alone = unbatched(maps=maps[s], preference=preference, control=control)
                mine = guard.apply(None, one, alone, asking(wish.tolist())).probabilities
                np.testing.assert_allclose(together[s], mine, atol=1e-12)


def test_degrees_of_freedom_follow_the_outcomes_that_a_margin_rests_on() -> None:
    """Two arms with nothing in common: 50 outcomes of the control, one of the other, whose variance is the margin's."""
    fit = replace(fit_of(np.diag([51.0, 2.0]), np.zeros(2), K=2), pulls=np.array([50.0, 1.0]))
    offer = unbatched(features=np.eye(2), control=[1.0, 0.0], sigma=[1.0, 1.0])
    (reward,) = constraints(offer, Tolerance(), ())
    assert np.isinf(freedom(fit, offer, reward)).all()
    nu = freedom(replace(fit, inflation=np.asarray(1.08)), offer, reward)
    share = np.array([50 / 51**2, 1 / 4]) / (1 / 51 + 1 / 2)
    assert nu[1] == pytest.approx(1 / (share[0] ** 2 / 53 + share[1] ** 2 / 4))
    assert nu[0] == pytest.approx(100)  # 8 / .08
    assert (freedom(replace(fit, inflation=np.asarray(3.0)), offer, reward) <= 4).all()


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


@pytest.mark.parametrize("weighting", ["known", "learned"])
@pytest.mark.parametrize("guard", ["certain", "expected"])
def test_with_all_arms_just_below_the_tolerance_few_decisions_fall_short(weighting: str, guard: str) -> None:
    """Level .95, 300 runs of 25 rounds, arms played at random: each round at most .05 of the runs fall short. More than
    31 of 300 in one round would happen by chance with probability 1e-4 if the rate were exactly .05, in any of 25 with
    less than .003. For single margins it is up to twice as many: the test can tell."""
    policy = make("dri_med", weighting=weighting, guard=guard, confidence=0.95, simultaneous=True)
    # What the control has to spare must not make up for what MED leaves to it: .02 of the mass times .08.
    below = 1e-6 if guard == "certain" else 0.003
    short = shortfalls(policy, runs=300, rounds=25, below=below, K=5, M=4, d=4)
    assert short.sum(1).max() <= 31
    assert short.mean() <= 0.05
    single = make("dri_med", weighting=weighting, guard=guard, confidence=0.95)
    assert shortfalls(single, runs=300, rounds=25, below=below, K=5, M=4, d=4).mean() > 2 * short.mean()


def halved(halves: FloatArray, arcs: float, tail: float, nu: float, cosines: FloatArray) -> float:
    """The root by halving alone: what decisions of earlier versions rest on."""
    low, high, c = 0.0, np.inf, 1.0
    while c > 0.0:
        total = certified._bound(halves, arcs, c, nu, cosines, certified.WEIGHTS)[0]
        low, high = (c, high) if total > np.pi * tail else (low, c)
        if high - low <= certified.ENOUGH * c:
            return high
        c = 2.0 * low if high == np.inf else 0.5 * (low + high)
    return 0.0


def test_the_radius_is_that_of_halving_to_the_last_bit() -> None:
    """Also where no radius is needed, and where the noise is hardly known."""
    rng = np.random.default_rng(3)
    for _ in range(60):
        halves = rng.uniform(0, np.pi / 2, size=rng.integers(1, 6)) * rng.choice([1e-6, 1.0])
        arcs, tail = float(rng.choice([0.0, 1e-3, 2.0])), float(rng.choice([0.6, 0.1, 1e-3, 1e-9]))
        nu = float(rng.choice([0.5, 3.0, 40.0, np.inf]))
        cosines = np.cos(halves[:, None] * certified.NODES)
        for guess in (0.01, 2.5, 1e3):
            found = certified._root(halves, arcs, tail, nu, cosines, certified.WEIGHTS, guess)
            assert found == halved(halves, arcs, tail, nu, cosines)
