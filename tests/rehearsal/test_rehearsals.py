"""Rehearsals: the same numbers however they are computed, what they say, and what a stopping rule does in them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drimed.errors import InputError
from drimed.rehearsal import designs, scenarios
from drimed.rehearsal.designs import OWN, Plan, find, quick
from drimed.rehearsal.page import Results, write
from drimed.rehearsal.results import ALL_TIMES, AT_THE_END, LIKELY, Number, Record, describe, measures
from drimed.rehearsal.scenarios import Scenario
from drimed.simulation.sweep import Progress
from drimed.trial.spec import TrialSpec
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.rehearsal.test_live import KNOWN, PAPER, PLAIN

SPEC = TrialSpec.read(PLAIN | PAPER)  # quick to learn
BETTER = {"better": Scenario(effects={"new": {"yield": 25.0}}, seasons=3)}


def plan(**more: Any) -> Plan:
    given: dict[str, Any] = {"spec": SPEC, "scenarios": BETTER, "designs": (designs.own(SPEC),), "trials": 60} | more
    return Plan(**given)


def everything(spec: TrialSpec, seasons: int, trials: int) -> Plan:
    beside = (*designs.without_learning(spec), *designs.variants(spec))
    return Plan(spec, scenarios.usual(spec, seasons), (designs.own(spec), *beside), trials=trials)


def same(one: Record, other: Record) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("allocation", "mean", "loss"))


def test_neither_processes_nor_an_interruption_change_any_number(tmp_path: Path) -> None:
    whole = plan().run(None, jobs=1)["better", OWN]
    assert same(whole, plan().run(None, jobs=2)["better", OWN])

    class CutError(Exception):
        pass

    def stop(_: Progress[Record]) -> None:
        raise CutError

    with pytest.raises(CutError):
        plan().run(tmp_path, jobs=1, on_done=stop)
    (kept,) = tmp_path.glob("*.npz")  # the first block of two
    told: list[tuple[int, int]] = []
    again = plan().run(tmp_path, jobs=1, on_done=lambda done: told.append((done.finished, done.seeds)))
    assert told == [(50, 60), (60, 60)]
    assert kept.exists()
    assert same(whole, again["better", OWN])


def test_a_rehearsal_is_kept_under_the_keys_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that start after somebody has changed the code see another fingerprint of it."""
    keys = [block.key() for task in plan().tasks().values() for block in task.blocks()]

    def then_changed(_: Progress[Record]) -> None:
        monkeypatch.setattr("drimed.simulation.sweep.code_digest", lambda: "changed")

    plan().run(tmp_path, jobs=1, on_done=then_changed)
    assert sorted(path.stem for path in tmp_path.glob("*.npz")) == sorted(keys)


def test_all_designs_meet_the_same_worlds() -> None:
    found = plan(designs=(designs.own(SPEC), *designs.without_learning(SPEC)), trials=4).run(None, jobs=1)
    truths = [record.truth for record in found.values()]
    assert all(np.array_equal(truths[0], t) for t in truths[1:])
    fixed = found["better", "fixed randomised design"].allocation
    assert fixed.min() == pytest.approx(1 / 3)  # three places and three arms: each once in a season


def test_forecasts_point_the_right_way() -> None:
    """A large effect is found far more often than one is claimed that is not there: 60 trials, seed 0."""
    effects = {"none": 0.0, "large": 40.0}
    worlds = {
        n: Scenario(effects={"new": {"yield": e}, "other": {"yield": 0.0}}, seasons=4) for n, e in effects.items()
    }
    found = {n: measures(r) for (n, _), r in plan(scenarios=worlds).run(None, jobs=1).items()}
    power, false = found["large"][f"power, {LIKELY}"], found["none"][f"false claims, {LIKELY}"]
    assert found["none"][f"power, {LIKELY}"] is None
    assert power is not None
    assert false is not None
    assert power.value > false.value + 3 * (power.error + false.error)


def test_the_model_claims_nothing_after_one_season() -> None:
    """However large an effect is: 20 trials of ten plots, seed 0."""
    spec = TrialSpec.read(
        PLAIN
        | {"users": {u: {"plots": [str(i) for i in range(10)]} for u in SPEC.users}, "policy": {"name": "uniform"}}
    )
    worlds = {"huge": Scenario(effects={"new": {"yield": 300.0}, "other": {"yield": -300.0}}, seasons=3)}
    some = plan(spec=spec, scenarios=worlds, designs=(designs.own(spec),), trials=20)
    record = some.run(None, jobs=1)["huge", OWN]
    assert (record.low[:, 0] > 0).any(-1).mean() > 0.5, "ranges show it after the first"
    for claim in (LIKELY, ALL_TIMES):
        assert not record.found(claim)[:, 0].any()
        assert not record.found(claim, -1)[:, 0].any()
        assert record.found(claim)[:, -1].mean() > 0.5
        assert record.found(claim, -1)[:, -1].any()


def test_a_share_of_nothing_is_not_certain() -> None:
    assert Number.of(np.zeros(99, bool)) == Number(0.0, 0.01)


def test_seasons_are_found_from_one_long_rehearsal() -> None:
    answer = find((0.8, ""), plan(), "better", None, jobs=1)
    record = plan(seasons=8).run(None, jobs=1)["better", OWN]
    powers = [n.value for n in record.power_by_look(LIKELY)]
    low, value, high = (answer.first(errors) for errors in (2.0, 0.0, -2.0))
    assert value == next(t for t, p in enumerate(powers, 1) if p >= 0.8)
    assert low is not None
    assert high is not None
    assert low <= value <= high


@pytest.mark.parametrize("what", ["tolerance", "floor"])
def test_the_smallest_tolerance_or_floor_is_found(what: str) -> None:
    wanted = plan(trials=10)
    answer = find((0.3, "at all times"), wanted, "better", None, what, jobs=1)
    for value, power in answer.tried:
        changed = (designs.tolerating if what == "tolerance" else designs.with_floor)(SPEC, value)
        record = replace(wanted, designs=(designs.own(changed),)).run(None, jobs=1)["better", OWN]
        assert record.power_by_look(ALL_TIMES)[-1] == power
    assert answer.first() in (None, answer.tried[-1][0])
    with pytest.raises(InputError, match="seasons, tolerance, floor"):
        find((0.3, ""), wanted, "better", None, "users")


def test_the_page_and_the_numbers_beside_it(tmp_path: Path) -> None:
    spec = TrialSpec.read(PLAIN | PAPER | {"about": "<script>alert(1)</script>"})
    wanted = everything(spec, 2, trials=4)
    results = Results(wanted, wanted.run(None, jobs=1))
    page = write(results, tmp_path / "out").read_text(encoding="utf-8")
    assert "<script>" not in page
    for title in ("Power against seasons", "Lost and found, by design", "Allocation over time", "Harm by user"):
        assert title in page
    numbers = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert numbers["rehearsal"] == wanted.hash()
    assert set(numbers["scenarios"]) == set(scenarios.usual(spec))
    write(results, tmp_path / "out", force=True)


def test_what_is_an_amount_of_the_reward_has_its_unit(tmp_path: Path) -> None:
    spec = TrialSpec.read(PLAIN | PAPER | {"reward": {"unit": "EUR/ha"}})
    two = (designs.own(spec), designs.without_learning(spec)[0])
    made = plan(spec=spec, designs=two, trials=8)
    page = write(Results(made, made.run(None, jobs=1)), tmp_path).read_text(encoding="utf-8")
    assert page.count("regret against the best arm (EUR/ha)") == 2, "by scenario and by design"
    assert "expected loss of a decision (EUR/ha)" in page
    assert re.search(r"A decision brings [^<]*EUR/ha (more|less) than the control would, and [^<]*EUR/ha less", page)
    assert "share of control (" not in page


def test_a_published_policy_is_rehearsed_with_claims_from_propensities_alone(tmp_path: Path) -> None:
    """It estimates reward over noise: no effects, and no likely range."""
    spec = TrialSpec.read(PLAIN | KNOWN | {"policy": {"name": "published_dri_med"}})
    wanted = everything(spec, 3, trials=6)
    results = Results(wanted, wanted.run(None, jobs=1))
    for m in results.measured.values():
        assert "power, likely" not in m
        assert m["false claims, from propensities"] is not None
        assert m["best arm found for a user"] is None
    page = write(results, tmp_path).read_text(encoding="utf-8")
    assert "by a range from the propensities" in page
    assert "nan" not in page
    assert "(from propensities)" in find((0.8, ""), plan(spec=spec, trials=4), "better", None, jobs=1).text()


def test_a_quick_rehearsal_is_kept_in_the_first_event_and_verified() -> None:
    spec = TrialSpec.read(PLAIN | {"tolerance": {"relative": 0.0, "absolute": 0.01}})
    seen, said = quick(spec)
    assert seen is not None
    assert seen["control"] > 0.8
    assert any("control" in text for text in said)
    store = MemoryStore()
    Trial.create(spec, store, rehearsal=seen)
    assert Trial.open("t", store).state().created.body["rehearsal"] == seen
    assert verify(store, "t").faults == []
    assert not any("not rehearsed" in note for note in Trial.open("t", store).notes)


def test_a_trial_that_is_not_rehearsed_says_so_until_its_first_decision() -> None:
    large = TrialSpec.read(PLAIN | {"users": {f"u{i}": {} for i in range(60)}})
    seen, (said,) = quick(large)
    assert seen is None
    assert said.startswith("not rehearsed, since that takes longer than a moment")
    trial = Trial.create(large, MemoryStore())
    assert sum("not rehearsed" in note for note in trial.notes) == 1
    trial.ask_many(["u0"])
    assert not any("not rehearsed" in note for note in trial.notes)


PEOPLE: dict[str, Any] = {
    "name": "t", "model": {"kind": "people"}, "metrics": {"yield": {"spread": 10.0}}, "control": "old",
    "arms": {"old": {}, "new": {}}, "preference": {"yield": 1.0}, "tolerance": {"absolute": 0.3},
}  # fmt: skip


@pytest.mark.parametrize("planned", [60, 150])
def test_as_many_people_as_are_planned_show_that_a_trial_stands_on_its_control(planned: int) -> None:
    seen, (first, *_) = quick(TrialSpec.read(PEOPLE | {"stopping": {"decisions": planned}}))
    assert seen is not None
    assert seen["control"] > 0.8
    assert f"quick rehearsal of {planned} decisions" in first
    assert "stays on the control: in the last season" in first
    assert "It would be freed by a wider tolerance, a lower confidence or more people." in first
    _, wide = quick(TrialSpec.read(PEOPLE | {"tolerance": {"absolute": 20.0}}))
    assert "stays on the control" not in " ".join(wide)


def test_a_trial_that_leaves_its_control_late_is_not_said_to_stay_on_it() -> None:
    found = plan(trials=4)
    (record,) = found.run(None, jobs=1).values()
    for last, stays in ((0.1, False), (0.9, True)):
        control = np.ones(record.control.shape)
        control[:, -1] = last
        m = measures(replace(record, control=control))
        assert m[AT_THE_END] == Number(last, 0.0)
        said = describe(record, m, (), 4, found.spec)
        assert any("stays on the control" in one.text for one in said) == stays


KEPT: Any = {"hash": "x", "scenario": "likely", "seasons": 3, "trials": 20, "control": 1, "power": None}


def test_what_is_no_rehearsal_is_not_kept() -> None:
    wrong: list[Any] = [{**KEPT, "hash": ""}, {**KEPT, "control": 1.2}, {**KEPT, "trials": 0}, {**KEPT, "other": 1}]
    for said in wrong:
        with pytest.raises(InputError, match=r"rehearsal\.\w+: "):
            Trial.create(SPEC, store := MemoryStore(), rehearsal=said)
        assert list(store.names()) == []
    Trial.create(SPEC, MemoryStore(), rehearsal=KEPT)
