"""Runs are plain data: the same description gives the same key and the same result."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError
from drimed.policies.guards.margin import Tolerance
from drimed.policies.policy import Policy
from drimed.policies.registry import REGISTRY, make
from drimed.simulation.benchmark import PaperScenario
from drimed.simulation.runner import Run, RunRecord, policy_digest, simulate
from drimed.simulation.sweep import code_digest, load, save
from drimed.simulation.worlds import Setting

SHORT = PaperScenario(setting=Setting(episodes=12))
RUN = Run(policy="oful", scenario=SHORT, seeds=(0, 1, 2))


def record_of(run: Run) -> RunRecord:
    (record,) = run.run_with()
    return record


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
    record = record_of(RUN)
    save(record, tmp_path / "s.npz")
    loaded = load(RunRecord, tmp_path / "s.npz")
    assert loaded.curves.keys() == record.curves.keys()
    for name in record.curves:
        np.testing.assert_array_equal(loaded.curves[name], record.curves[name])
    np.testing.assert_array_equal(loaded.allocation, record.allocation)
    assert loaded.decisions == record.decisions == 120
    assert [p.name for p in tmp_path.iterdir()] == ["s.npz"]


def test_curves_end_at_the_total_and_windows_average_to_the_rate() -> None:
    world = RUN.scenario.world(RUN.seeds)
    s = simulate(make("oful"), world, points=4)
    assert s.episodes.tolist() == [3, 6, 9, 12]
    name = "violations.safe.realised"
    lengths = np.diff(s.episodes, prepend=0)
    assert s.rate(name) == pytest.approx(float((s.windows(name) * lengths).sum(-1).mean()) / 12)


def test_seeds_in_one_run_or_in_many_give_the_same_numbers() -> None:
    whole = record_of(RUN)
    for i, seed in enumerate(RUN.seeds):
        alone = record_of(replace(RUN, seeds=(seed,)))
        np.testing.assert_array_equal(alone.curves["regret"][0], whole.curves["regret"][i])


def test_a_broken_file_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.npz"
    path.write_bytes(b"not a zip file")
    with pytest.raises(InputError, match=r"broken\.npz is not a stored result"):
        load(RunRecord, path)


def test_a_drift_function_cannot_be_part_of_a_scenario() -> None:
    with pytest.raises(ConfigError, match="name its drift"):
        PaperScenario(setting=Setting(episodes=5, drift=lambda e, L, m: m * e / L))
    with pytest.raises(ConfigError, match="instances must be"):
        PaperScenario(instances="all")


def test_the_key_depends_on_the_code_of_a_rule_that_is_not_drimeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rule_of_a_user.py"
    path.write_text(
        "from drimed.policies.rules.simple import Greedy\nMine = type('Mine', (Greedy,), {'__module__': __name__})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rule = importlib.import_module("rule_of_a_user").Mine
    ours = make("greedy")
    assert isinstance(ours, Policy)
    theirs = replace(ours, rule=rule())
    monkeypatch.setitem(REGISTRY, "mine", replace(REGISTRY["greedy"], name="mine", build=lambda **_: theirs))
    run = replace(RUN, policy="mine")
    before = run.key()
    assert policy_digest("greedy") == code_digest() != policy_digest("mine")
    path.write_text(path.read_text() + "# edited\n")
    policy_digest.cache_clear()
    assert run.key() != before
