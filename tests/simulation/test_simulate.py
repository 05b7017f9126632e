from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from drimed import streams
from drimed.errors import InputError
from drimed.policies.guards.margin import Tolerance
from drimed.policies.registry import make
from drimed.simulation.instances import authors_instance, draw_instance, quantile_control
from drimed.simulation.runner import Judge, RunRecord, play, simulate
from drimed.simulation.worlds import Setting, World
from tests.worlds import policy_draws, steps, world

AUTHORS = authors_instance()
INSTANCES = [draw_instance(s) for s in range(8)]
POLICIES: list[tuple[str, dict[str, Any]]] = [
    ("oful", {}),
    ("lin_ts", {}),
    ("w_ts", {}),
    ("lin_med", {}),
    ("lin_imed", {}),
    ("med", {}),
    ("dri_med", {}),
    ("dri_imed", {}),
    ("dri_med", {"guard": "penalty"}),
    ("w_oful", {"discount": 0.95}),
    ("published_dri_med", {"reading": "code"}),
    ("published_dri_med", {"reading": "printed"}),
    ("published_dri_imed", {"reading": "code"}),
    ("published_dri_imed", {"reading": "printed"}),
]


def eight(seeds: Sequence[int], *, shared: bool, episodes: int = 25, **setting: Any) -> World:
    """The authors' instance for all seeds, or a random one for each."""
    held = [AUTHORS] if shared else [INSTANCES[s] for s in seeds]
    return World(
        instances=held,
        seeds=seeds,
        controls=[quantile_control(i) for i in held],
        setting=Setting(episodes=episodes, **setting),
    )


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
    whole = simulate(policy, eight(range(8), shared=shared))
    assert_same(whole, [simulate(policy, eight(part, shared=shared)) for part in (range(4), range(4, 8))])
    assert_same(whole, [simulate(policy, eight([s], shared=shared)) for s in range(8)])


@pytest.mark.parametrize("setting", [{"preferences": "per episode"}, {"drift_by": "mean", "drift": "periodic"}])
@pytest.mark.parametrize("at_once", [False, True])
def test_nor_in_other_worlds_or_with_outcomes_at_the_end_of_an_episode(setting: dict[str, Any], at_once: bool) -> None:
    policy = make("dri_med")
    whole = simulate(policy, eight(range(8), shared=False, **setting), at_once=at_once)
    parts = [simulate(policy, eight([s], shared=False, **setting), at_once=at_once) for s in range(8)]
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


def test_policy_draws_are_addressed_by_the_number_of_the_decision() -> None:
    it = world(seeds=[2, 9], episodes=6)
    draws = policy_draws(it, 2, 3, 2)
    assert draws.shape == (3, 3, 2, 2)
    for s, seed in enumerate((2, 9)):
        for n in range(3):
            for h in range(3):
                want = streams.uniforms(seed, "policy", (2 + n) * 3 + h, 1, 2)[0]
                assert np.array_equal(draws[n, h, s], want)


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
    assert record.microseconds_per_decision == pytest.approx(1e6 * record.seconds / 750)


def test_a_record_at_some_episodes_is_the_whole_one_read_there() -> None:
    whole, some = (simulate(make("oful"), eight(range(2), shared=True), points=points) for points in (None, 4))
    assert some.episodes.tolist() == [6, 12, 18, 25]
    for name, curve in some.curves.items():
        assert np.array_equal(curve, whole.curve(name)[:, some.episodes - 1], equal_nan=True), name


def test_records_split_and_joined_again_are_the_same() -> None:
    whole = simulate(make("oful"), eight(range(4), shared=True))
    parts = whole.split(2)
    assert_same(whole, parts)
    assert_same(whole, [RunRecord.concatenate(parts)])
    assert RunRecord.concatenate(parts).seconds == pytest.approx(whole.seconds)


def test_allocations_are_shares_of_each_users_decisions() -> None:
    record = simulate(make("lin_med"), eight(range(3), shared=True))
    assert record.allocation.shape == (3, 10, 5)
    np.testing.assert_allclose(record.allocation.sum(-1), 1.0)
    control = simulate(make("control"), eight(range(2), shared=True))
    assert np.array_equal(control.allocation, np.broadcast_to(quantile_control(AUTHORS), (2, 10, 5)))


def test_progress_is_told_episode_by_episode() -> None:
    told: list[int] = []
    simulate(make("uniform"), eight([0], shared=True, episodes=6), on_episode=told.append)
    assert told == [1, 2, 3, 4, 5, 6]


def test_a_tighter_tolerance_counts_more_violations() -> None:
    it = eight(range(4), shared=True)
    loose, tight = (
        simulate(make("uniform"), it, tolerance=Tolerance(relative=r)).total("violations.safe.realised")
        for r in (0.9, 0.0)
    )
    assert (tight > loose).all()


def test_learning_pays() -> None:
    """300 episodes without drift on eight random instances: weighted optimism has a tenth of uniform's regret."""
    it = eight(range(8), shared=False, episodes=300, drift="none")
    assert (
        simulate(make("w_oful"), it).total("regret").mean() < 0.1 * simulate(make("uniform"), it).total("regret").mean()
    )


def test_an_unknown_metric_is_refused_with_the_known_ones() -> None:
    record = simulate(make("uniform"), eight([0], shared=True, episodes=2))
    with pytest.raises(InputError, match=r"no metric 'regrets'; there are .*regret, "):
        record.total("regrets")
