from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.models.offer import Shape
from drimed.numerics.arrays import FloatArray
from drimed.policies.guards.margin import Tolerance
from drimed.policies.registry import make
from drimed.simulation.instances import Instance, draw_instance, given_control, quantile_control
from drimed.simulation.runner import BlockLog, Judge, simulate
from drimed.simulation.worlds import Setting, World

TINY = Shape(d=2, K=3, M=2, H=3)
EPISODES, SEEDS = 5, 2
TOLERANCE = Tolerance(relative=0.2, absolute=0.03)
MIXED = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])


def tiny(**setting: Any) -> World:
    instances = [draw_instance(s, TINY) for s in (3, 4)]
    return World(
        instances=instances,
        seeds=range(SEEDS),
        controls=[given_control(MIXED, instances[0]), quantile_control(instances[1])],
        setting=Setting(episodes=EPISODES, **setting),
    )


def random_log(exact: bool = True) -> BlockLog:
    rng = np.random.default_rng(0)
    return BlockLog(
        rng.integers(0, 3, (EPISODES, 3, SEEDS)),
        rng.dirichlet(np.ones(3), (EPISODES, 3, SEEDS)),
        rng.standard_normal((EPISODES, 3, SEEDS, 2)),
        exact,
    )


def reward(instance: Instance, p: FloatArray, arm: int) -> float:
    return float(sum(p[m] * (instance.maps[arm, m] @ instance.theta) for m in range(2)))


def slow(it: World, preferences: FloatArray, log: BlockLog) -> dict[str, FloatArray]:
    """One number at a time, from the definitions; preferences are (n, H, S, M)."""
    found: dict[str, FloatArray] = {}
    theta = log.theta
    assert theta is not None

    def add(name: str, s: int, n: int, value: float) -> None:
        found.setdefault(name, np.zeros((SEEDS, EPISODES)))[s, n] += value

    for s in range(SEEDS):
        instance, control = it.instances[s], it.controls[s]
        means_of_users = [[reward(instance, q, a) for a in range(3)] for q in instance.preference_means]
        published = 0.8 * sum(sum(control[h][a] * means_of_users[h][a] for a in range(3)) for h in range(3)) / 3
        for n in range(EPISODES):
            for h in range(3):
                p = preferences[n, h, s]
                mean = [reward(instance, p, a) for a in range(3)]
                arm, theta_hat = int(log.action[n, h, s]), theta[n, h, s]
                guess = [float(instance.maps[a].T @ p @ theta_hat) for a in range(3)]
                mu0 = sum(control[h][a] * mean[a] for a in range(3))
                mu0_hat = sum(control[h][a] * guess[a] for a in range(3))
                got = mean[arm]
                expected = sum(log.probabilities[n, h, s, a] * mean[a] for a in range(3))
                add("regret", s, n, max(mean) - got)
                best = int(np.argmax(means_of_users[h]))
                add("regret_as_published", s, n, max(mean[best] - got, 0.0))
                add("shortfall", s, n, max(mu0 - 0.2 * abs(mu0) - 0.03 - got, 0.0))
                true = {"safe": mu0 - 0.2 * abs(mu0) - 0.03, "equation": 0.8 * mu0, "published": published}
                believed = {
                    "safe": mu0_hat - 0.2 * abs(mu0_hat) - 0.03,
                    "equation": 0.8 * mu0_hat,
                    "published": published,
                }
                for name in true:
                    add(f"violations.{name}.realised", s, n, got < true[name])
                    add(f"violations.{name}.expected", s, n, expected < true[name])
                    add(f"violations.{name}.estimated", s, n, guess[arm] < believed[name])
            error = theta[n, 2, s] - instance.theta
            add("parameter_error", s, n, float(np.sqrt((error**2).sum())))
    return found


@pytest.mark.parametrize("preferences", ["fixed", "per episode"])
@pytest.mark.parametrize("episodes_per_block", [None, 2])
def test_metrics_are_what_a_slow_loop_finds(preferences: str, episodes_per_block: int | None) -> None:
    it = tiny(preferences=preferences)
    judge, log = Judge(world=it, tolerance=TOLERANCE), random_log()
    pieces, drawn = [], []
    for block in it.blocks(episodes_per_block):
        at = slice(block.start, block.start + block.episodes)
        theta = None if log.theta is None else log.theta[at]
        part = BlockLog(log.action[at], log.probabilities[at], theta, log.exact)
        pieces.append(judge.episode_sums(block, part))
        drawn.append(block.preferences)
    want = slow(it, np.concatenate(drawn), log)
    for name, values in want.items():
        found = np.concatenate([p[name] for p in pieces], axis=-1)
        assert found.shape == (SEEDS, EPISODES)
        np.testing.assert_allclose(found, values, atol=1e-12, err_msg=name)
        assert values.any(), name  # a metric that is zero throughout would be compared with nothing


def test_without_exact_probabilities_expectations_are_unknown() -> None:
    it = tiny()
    sums = Judge(world=it, tolerance=TOLERANCE).episode_sums(next(it.blocks()), random_log(exact=False))
    for name, values in sums.items():
        assert np.isnan(values).all() == name.endswith(".expected"), name


def test_what_needs_a_theta_on_the_offers_features_is_unknown_without_one() -> None:
    it, log = tiny(), random_log()
    log.theta = None
    sums = Judge(world=it, tolerance=TOLERANCE).episode_sums(next(it.blocks()), log)
    for name, values in sums.items():
        assert np.isnan(values).all() == (name.endswith(".estimated") or name == "parameter_error"), name


def test_pulls_count_every_decision_once() -> None:
    it, log = tiny(), random_log()
    pulls = Judge(world=it, tolerance=TOLERANCE).pulls(next(it.blocks()), log)
    assert pulls.shape == (SEEDS, 3, 3)
    for s in range(SEEDS):
        for h in range(3):
            assert pulls[s, h].tolist() == [int((log.action[:, h, s] == a).sum()) for a in range(3)]


def test_the_control_keeps_its_own_promise_and_not_the_papers_equation() -> None:
    """(1 - eps) mu_0 is above mu_0 for users whose control has a negative mean: the control itself violates it."""
    instances = [draw_instance(s) for s in range(20)]
    it = World(
        instances=instances,
        seeds=range(20),
        controls=[quantile_control(i) for i in instances],
        setting=Setting(episodes=2),
    )
    result = simulate(make("control"), it, tolerance=Tolerance(relative=0.1))
    assert not result.total("violations.safe.realised").any()
    assert not result.total("violations.safe.expected").any()
    assert not result.total("shortfall").any()
    negative = [(quantile_control(i) * i.means(i.preferences)).sum(-1) < 0 for i in instances]
    assert result.total("violations.equation.realised").tolist() == [2.0 * n.sum() for n in negative]
    assert any(n.any() for n in negative)


def test_a_mixed_control_without_any_tolerance_keeps_its_own_promise_in_expectation() -> None:
    instances = [draw_instance(s) for s in range(10)]
    lotteries = [np.random.default_rng(s).dirichlet(np.ones(5), 10) for s in range(10)]
    it = World(instances=instances, seeds=range(10), controls=lotteries, setting=Setting(episodes=3))
    result = simulate(make("control"), it, tolerance=Tolerance(relative=0.0))
    assert not result.total("violations.safe.expected").any()
    assert result.total("violations.safe.realised").any()


def test_the_best_arm_has_no_regret_and_none_is_negative() -> None:
    it = tiny()
    block = next(it.blocks())
    judge, log = Judge(world=it, tolerance=TOLERANCE), random_log()
    assert (judge.episode_sums(block, log)["regret"] >= 0).all()
    best = BlockLog(block.means.argmax(-1), log.probabilities, log.theta, True)
    assert not judge.episode_sums(block, best)["regret"].any()
    worst = BlockLog(block.means.argmin(-1), log.probabilities, log.theta, True)
    assert (judge.episode_sums(block, worst)["regret"] > 0).all()
