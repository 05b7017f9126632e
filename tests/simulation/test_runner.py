"""Runs: metrics by their definitions, and results that do not depend on batches, blocks or neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError
from drimed.models.offer import Shape
from drimed.numerics.arrays import FloatArray
from drimed.policies.guards.margin import Tolerance
from drimed.policies.registry import make
from drimed.simulation.benchmark import PaperScenario
from drimed.simulation.instances import Instance, authors_instance, draw_instance, given_control, quantile_control
from drimed.simulation.runner import BlockLog, Judge, Run, RunRecord, play, simulate
from drimed.simulation.sweep import load, save
from drimed.simulation.worlds import Setting, World
from tests.worlds import policy_draws, steps, world

TINY = Shape(d=2, K=3, M=2, H=3)
EPISODES, SEEDS = 5, 2
TOLERANCE = Tolerance(relative=0.2, absolute=0.03)
MIXED = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])


def tiny(**setting: Any) -> World:
    instances = [draw_instance(s, TINY) for s in (3, 4)]
    controls, whole = [given_control(MIXED, instances[0]), quantile_control(instances[1])], Setting(episodes=EPISODES)
    return World(instances=instances, seeds=range(SEEDS), controls=controls, setting=replace(whole, **setting))


def random_log(exact: bool = True) -> BlockLog:
    rng = np.random.default_rng(0)
    return BlockLog(
        rng.integers(0, 3, (EPISODES, 3, SEEDS)),
        rng.dirichlet(np.ones(3), (EPISODES, 3, SEEDS)),
        rng.standard_normal((EPISODES, 3, SEEDS, 2)),
        exact,
    )


def reward(instance: Instance, p: FloatArray, arm: int, theta: FloatArray) -> float:
    return float(sum(p[m] * (instance.maps[arm, m] @ theta) for m in range(2)))


def slow(it: World, true_theta: FloatArray, log: BlockLog) -> dict[str, FloatArray]:
    """One number at a time, from the definitions; true_theta is (n, S, d)."""
    found: dict[str, FloatArray] = {}
    theta = log.theta
    assert theta is not None

    def add(name: str, s: int, n: int, value: float) -> None:
        found.setdefault(name, np.zeros((SEEDS, EPISODES)))[s, n] += value

    for s in range(SEEDS):
        instance, control = it.instances[s], it.controls[s]
        means_of_users = [[reward(instance, q, a, instance.theta) for a in range(3)] for q in instance.preference_means]
        published = 0.8 * sum(sum(control[h][a] * means_of_users[h][a] for a in range(3)) for h in range(3)) / 3
        for n in range(EPISODES):
            for h in range(3):
                p = instance.preferences[h]
                mean = [reward(instance, p, a, true_theta[n, s]) for a in range(3)]
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
                safe_hat = mu0_hat - 0.2 * abs(mu0_hat) - 0.03
                believed = {"safe": safe_hat, "equation": 0.8 * mu0_hat, "published": published}
                for name in true:
                    add(f"violations.{name}.realised", s, n, got < true[name])
                    add(f"violations.{name}.expected", s, n, expected < true[name])
                    add(f"violations.{name}.estimated", s, n, guess[arm] < believed[name])
            error = theta[n, 2, s] - true_theta[n, s]
            add("parameter_error", s, n, float(np.sqrt((error**2).sum())))
    return found


@pytest.mark.parametrize("rotation", [0.0, 1.0])
@pytest.mark.parametrize("episodes_per_block", [None, 2])
def test_metrics_are_what_a_slow_loop_finds(rotation: float, episodes_per_block: int | None) -> None:
    it = tiny(rotation=rotation)
    judge, log = Judge(world=it, tolerance=TOLERANCE), random_log()
    pieces, thetas = [], []
    for block in it.blocks(episodes_per_block):
        at = slice(block.start, block.start + block.episodes)
        theta = None if log.theta is None else log.theta[at]
        part = BlockLog(log.action[at], log.probabilities[at], theta, log.exact)
        pieces.append(judge.episode_sums(block, part))
        thetas.append(block.theta)
    want = slow(it, np.concatenate(thetas), log)
    for name, values in want.items():
        found = np.concatenate([p[name] for p in pieces], axis=-1)
        assert found.shape == (SEEDS, EPISODES)
        np.testing.assert_allclose(found, values, atol=1e-12, err_msg=name)
        assert values.any(), name  # a metric that is zero throughout would be compared with nothing


def test_what_needs_exact_probabilities_or_a_theta_on_the_offers_features_is_unknown_without() -> None:
    judge = Judge(world=tiny(), tolerance=TOLERANCE)
    block, log = next(tiny().blocks()), random_log()
    log.theta = None
    for name, values in judge.episode_sums(block, random_log(exact=False)).items():
        assert np.isnan(values).all() == name.endswith(".expected"), name
    for name, values in judge.episode_sums(block, log).items():
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
    controls = [quantile_control(i) for i in instances]
    it = World(instances=instances, seeds=range(20), controls=controls, setting=Setting(episodes=2))
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


AUTHORS = authors_instance()
INSTANCES = [draw_instance(s) for s in range(8)]
POLICIES: list[tuple[str, dict[str, Any]]] = [
    ("oful", {}),
    ("w_ts", {}),
    ("lin_imed", {}),
    ("dri_med", {}),
    ("dri_med", {"guard": "penalty"}),
    ("w_oful", {"discount": 0.95}),
    ("published_dri_med", {"reading": "code"}),
    ("published_dri_imed", {"reading": "printed"}),
]


def eight(seeds: Sequence[int], *, shared: bool, episodes: int = 25, **setting: Any) -> World:
    """The authors' instance for all seeds, or a random one for each."""
    held = [AUTHORS] if shared else [INSTANCES[s] for s in seeds]
    controls, whole = [quantile_control(i) for i in held], Setting(episodes=episodes, **setting)
    return World(instances=held, seeds=seeds, controls=controls, setting=whole)


def assert_same(whole: RunRecord, parts: list[RunRecord]) -> None:
    for name, curve in whole.curves.items():
        stacked = np.concatenate([p.curve(name) for p in parts])
        assert np.array_equal(curve, stacked, equal_nan=True), name
    assert np.array_equal(whole.allocation, np.concatenate([p.allocation for p in parts]))


@pytest.mark.parametrize("shared", [True, False], ids=["one instance", "eight instances"])
@pytest.mark.parametrize(
    ("name", "settings"), POLICIES, ids=[f"{n} {' '.join(map(str, s.values()))}" for n, s in POLICIES]
)
def test_results_do_not_depend_on_how_seeds_are_batched(name: str, settings: dict[str, Any], shared: bool) -> None:
    policy = make(name, **settings)
    whole = simulate(policy, eight(range(4), shared=shared))
    assert_same(whole, [simulate(policy, eight(part, shared=shared)) for part in ([0], range(1, 4))])


@pytest.mark.parametrize("setting", [{"rotation": 1.0}, {"drift_by": "mean", "drift": "periodic"}])
@pytest.mark.parametrize("at_once", [False, True])
def test_nor_in_other_worlds_or_with_outcomes_at_the_end_of_an_episode(setting: dict[str, Any], at_once: bool) -> None:
    policy = make("dri_med")
    whole = simulate(policy, eight(range(4), shared=False, **setting), at_once=at_once)
    parts = [simulate(policy, eight([s], shared=False, **setting), at_once=at_once) for s in range(4)]
    assert_same(whole, parts)


def test_nor_on_how_episodes_are_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, it = make("dri_med"), eight(range(3), shared=True)
    whole = simulate(policy, it)
    monkeypatch.setattr("drimed.simulation.worlds.BLOCK_NUMBERS", 1)  # a block for every episode
    assert_same(whole, [simulate(policy, it)])


def test_two_policies_with_one_seed_face_the_same_contexts_and_noise() -> None:
    it = world(seeds=range(3), episodes=5)
    alike = 0
    for one, other in zip(steps(make("uniform"), it), steps(make("w_oful"), it), strict=True):
        for name in ("features", "sigma", "context", "scale", "preference"):
            assert np.array_equal(getattr(one.offer, name), getattr(other.offer, name)), name
        same_arm = one.decision.action == other.decision.action
        assert one.outcome.vector is not None
        assert other.outcome.vector is not None
        assert np.array_equal(one.outcome.vector[same_arm], other.outcome.vector[same_arm])
        alike += int(same_arm.sum())
    assert 0 < alike < 45


def test_the_environment_and_the_policy_do_not_share_their_randomness() -> None:
    """The published scripts seed both with one integer, so that a policy's draws replay the environment's."""
    it = world(seeds=[5], episodes=200)
    draws = policy_draws(it, 0, 200, 4)[:, :, 0].ravel()
    block = next(it.blocks())
    for values in (block.noise[..., 0].ravel(), block.contexts[..., 0].ravel()):
        n = min(len(values), len(draws))
        assert abs(np.corrcoef(draws[:n], values[:n])[0, 1]) < 5 / np.sqrt(n)


def test_a_record_sums_its_episodes() -> None:
    it = eight(range(3), shared=True)
    record = simulate(make("uniform"), it)
    (block,) = it.blocks()
    _, log = play(make("uniform"), make("uniform").init(it.shape, (3,)), block)
    regret = Judge(world=it, tolerance=Tolerance()).episode_sums(block, log)["regret"]
    assert regret.shape == (3, 25)
    assert np.array_equal(record.curve("regret"), regret.cumsum(-1))
    assert np.array_equal(record.total("regret"), regret.cumsum(-1)[:, -1])
    assert record.episodes.tolist() == list(range(1, 26))
    assert record.decisions == 250
    assert record.microseconds_per_decision == pytest.approx(1e6 * record.seconds.sum() / 750)


def test_a_record_at_some_episodes_is_the_whole_one_read_there() -> None:
    whole, some = (simulate(make("oful"), eight(range(2), shared=True), points=points) for points in (None, 4))
    assert some.episodes.tolist() == [6, 12, 18, 25]
    for name, curve in some.curves.items():
        assert np.array_equal(curve, whole.curve(name)[:, some.episodes - 1], equal_nan=True), name
    with pytest.raises(InputError, match=r"no metric 'regrets'; there are .*regret, "):
        some.total("regrets")


SHORT = PaperScenario(setting=Setting(episodes=12))
RUN = Run(policy="oful", scenario=SHORT, seeds=(0, 1, 2))


def test_the_key_depends_on_every_field() -> None:
    others = [
        replace(RUN, policy="greedy"),
        replace(RUN, policy="oful:delta=0.05"),
        replace(RUN, seeds=(0, 1)),
        replace(RUN, tolerance=Tolerance(relative=0.2)),
        replace(RUN, scenario=replace(SHORT, quantile=0.25)),
        replace(RUN, scenario=RUN.scenario.under("none")),
        replace(RUN, scenario=replace(SHORT, instances="random")),
    ]
    assert len({run.key() for run in [RUN, *others]}) == 8
    assert replace(RUN).key() == RUN.key()


def test_a_record_survives_the_disk_bit_for_bit(tmp_path: Path) -> None:
    record = RUN.run()
    save(record, tmp_path / "s.npz")
    loaded = load(RunRecord, tmp_path / "s.npz")
    assert loaded.curves.keys() == record.curves.keys()
    for name in record.curves:
        np.testing.assert_array_equal(loaded.curves[name], record.curves[name])
    np.testing.assert_array_equal(loaded.allocation, record.allocation)
    assert loaded.decisions == record.decisions == 120
    assert [p.name for p in tmp_path.iterdir()] == ["s.npz"]


def test_a_stored_record_belongs_to_its_name_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    first, other = tmp_path / "first.npz", tmp_path / "other.npz"
    save(RUN.run(), first)
    other.write_bytes(first.read_bytes())
    with pytest.raises(InputError, match=r"other\.npz is not a stored result \(it is another one"):
        load(RunRecord, other)
    data = first.read_bytes()
    for wrong in (b"", data[: len(data) // 2], data[:-8], data.replace(b"PK", b"KP"), data[:600] + data[700:]):
        other.write_bytes(wrong)
        with pytest.raises(InputError, match="is not a stored result"):
            load(RunRecord, other)


def test_curves_end_at_the_total_and_windows_average_to_the_rate() -> None:
    world = RUN.scenario.world(RUN.seeds)
    s = simulate(make("oful"), world, points=4)
    assert s.episodes.tolist() == [3, 6, 9, 12]
    name = "violations.safe.realised"
    lengths = np.diff(s.episodes, prepend=0)
    assert s.rate(name) == pytest.approx(float((s.windows(name) * lengths).sum(-1).mean()) / 12)


def test_what_is_no_plain_data_or_no_family_is_refused() -> None:
    with pytest.raises(ConfigError, match="name its drift"):
        PaperScenario(setting=Setting(episodes=5, drift=lambda e, L, m: m * e / L))
    with pytest.raises(ConfigError, match="instances must be"):
        PaperScenario(instances="all")
