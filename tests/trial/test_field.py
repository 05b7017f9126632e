"""The life of field and people trials: whatever happens to them, every decision is proven from the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConflictError
from drimed.records import Decision
from drimed.trial import sheets, snapshots
from drimed.trial import transaction as opened_trials
from drimed.trial.store import Store, open_store
from drimed.trial.tables import csv_text, read
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.playing import new, play, records, refused, spec_of, verified
from tests.trial.states import contents

KINDS = pytest.mark.parametrize("kind", ["field", "people"])
EFFECTS = {"old": 0.0, "new": 3.0, "third": -2.0, "fourth": 1.0}
SPEC = spec_of(
    enrolment="open",
    metrics={"yield": {}, "cost": {}},
    users={
        "north": {"blocks": {"A": ["1", "2"], "B": ["3"]}, "attributes": {"ph": 6.0, "soil": "sand"}, "group": "hills"},
        "south": {"plots": ["1", "2"], "attributes": {"ph": 7.0, "soil": "loam"}, "group": "hills"},
        "west": {"attributes": {"ph": 6.6, "soil": "sand"}},
    },
    context={"rain": {"typical": 400, "spread": 100}, "sky": {"levels": ["sun", "cloud"], "affects": ["level"]}},
    tolerance={"absolute": 2.0},
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """SQLite, with a snapshot after every few events."""
    monkeypatch.setattr(opened_trials, "SNAPSHOT_EVERY", 15)
    opened = open_store(str(tmp_path / "trials.db"))
    yield opened
    opened.close()


def season(trial: Trial, number: int, rng: np.random.Generator, *newcomers: str) -> list[Decision]:
    """Ask for everybody and the newcomers."""
    users = [*trial.state().users, *newcomers]
    weather: dict[str, dict[str, float | str]] = {
        u: {"rain": float(rng.normal(400, 100)), "sky": ["sun", "cloud"][int(rng.integers(2))]} for u in users
    }
    enrol = {u: {"attributes": {"ph": float(rng.normal(6.5, 0.5)), "soil": f"soil of {u}"}} for u in newcomers}
    return trial.ask_many(users, enrol=enrol, contexts=weather, episode=number)


def harvest(given: Decision, rng: np.random.Generator) -> dict[str, float]:
    level = 50 + 4 * given.episode + 3 * (given.user == "north") + EFFECTS[given.arm]
    return {"yield": float(level + rng.normal()), "cost": float(10 + rng.normal())}


@KINDS
def test_a_whole_life_is_proven_to_the_last_bit_with_snapshots(store: Store, kind: str) -> None:
    """Late, partial, amended and missing outcomes; an arm that joins, one that is retired; people who join."""
    trial = Trial.create(SPEC | {"model": {"kind": kind}}, store)
    rng = np.random.default_rng(0)
    late: list[Decision] = []
    for number in range(1, 5):
        given = season(trial, number, rng, f"newcomer {number}")
        for one in given:
            outcome = harvest(one, rng)
            if one.id % 4 == 0:
                late.append(one)
            elif one.id % 5 == 0:
                trial.tell(one.id, {"cost": outcome["cost"]})
            else:
                trial.tell(one.id, outcome)
        if number == 2:
            trial.mark_missing(5, reason="hail")
            trial.amend(1, {"yield": 51.0}, reason="typed wrongly")
            trial.add_arm("fourth")
        if number == 3:
            trial.retire_arm("third", reason="no seed left")
            trial.change_preference("north", {"yield": 2.0}, reason="prices")
            for one in late:
                trial.tell(one.id, harvest(one, rng))
    state = trial.state()
    assert {d.arm for d in trial.decisions()} >= {"old", "new"}
    assert (state.counts.missing, state.counts.amendments, len(state.users)) == (1, 1, 7)
    proof = verify(store, "t")
    assert (proof.faults, proof.exact) == ([], state.counts.decisions)
    with store.reading("t") as ledger:
        snapshot = ledger.snapshot()
        assert snapshot is not None
        restored = snapshots.restore(state.created, snapshot)
    assert restored is not None
    assert contents(Trial.open("t", store).state()) == contents(state)


def test_a_fit_that_comes_right_after_a_snapshot_is_in_the_next_one_soon(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_trials, "SNAPSHOT_EVERY", 1000)
    monkeypatch.setattr(opened_trials, "FEWEST_BETWEEN", 20)
    trial, rng = Trial.create(SPEC, store), np.random.default_rng(0)
    late = 0
    for number in range(1, 12):
        for one in season(trial, number, rng):
            trial.tell(one.id, harvest(one, rng))
            state = trial.state()
            with store.reading("t") as ledger:
                snapshot = ledger.snapshot()
            restored = None if snapshot is None else snapshots.restore(state.created, snapshot)
            if state.seq < (0 if snapshot is None else snapshot.seq) + 20:
                late += restored is not None and restored.fits != state.fits
            else:
                assert restored is not None
                assert restored.fits == state.fits
        if number % 2:
            trial = Trial.open("t", store)
    assert late, "no fit came right after a snapshot"


def test_no_range_and_no_unit_of_measurement_changes_a_decision() -> None:
    """The same outcomes with other ranges, and in units a thousand times as small: the same arms."""
    plain = [d.arm for d in play(new(), 5)]
    wide = [d.arm for d in play(new(metrics={"yield": {"range": [-1e6, 1e6]}, "cost": {}}), 5)]
    none = [d.arm for d in play(new(metrics={"yield": {}, "cost": {}}), 5)]
    assert plain == wide == none
    assert len(set(plain)) > 1


def test_an_arm_that_nothing_is_known_of_has_the_same_chance_wherever_it_stands_in_the_file() -> None:
    arms = ["old", "a", "b", "c"]
    first = new(arms={a: {} for a in arms}).ask("north")
    other = new(arms={a: {} for a in reversed(arms)}).ask("north")
    assert first.probabilities == pytest.approx(other.probabilities)
    assert len({round(first.probabilities[a], 9) for a in "abc"}) == 1


# Control plots


def paired(**changes: Any) -> Trial:
    return new(feedback="difference", **changes)


def test_both_plots_are_learned_from_as_they_are_and_the_reward_is_their_difference() -> None:
    trial = paired()
    given = trial.ask("north")
    told = trial.tell(given.id, {"yield": 5.0}, control={"yield": 4.0, "cost": 3.0})
    assert told.waits_for == []  # each metric is learned from as it comes
    state = trial.state()
    outcome = state.usable(state.profile("north"), {"metrics": {"yield": 5.0}, "control": {"yield": 4.0, "cost": 3.0}})
    assert outcome is not None
    assert outcome.vector is not None
    assert outcome.control is not None
    assert (outcome.vector.tolist(), outcome.control.tolist()) == ([[5.0, 0.0]], [[4.0, 3.0]])
    assert outcome.observed is not None
    assert (outcome.observed.tolist(), outcome.control_observed) == ([[True, False]], None)
    trial.tell(given.id, {"cost": 1.0})
    assert next(trial.decisions()).reward == pytest.approx(1.0 - 0.1 * -2.0)
    refused(trial, lambda: trial.tell(given.id, {}, control={"cost": 4.0}), ConflictError, "already has cost = 3.0")
    trial.amend(given.id, {}, control={"cost": 4.0}, reason="typed wrongly")
    assert next(trial.decisions()).reward == pytest.approx(1.0 + 0.3)
    verified(trial)


def test_sites_with_control_plots_may_have_different_controls() -> None:
    trial = paired(users={"north": {}, "south": {"control": "new"}}, tolerance={"relative": 0.5, "absolute": 1.0})
    rng = np.random.default_rng(0)
    for _ in range(4):
        trial.open_episode()
        for one in trial.ask_many():
            control = trial.state().spec.resolved(trial.state().profile(one.user).definition).control
            assert isinstance(control, str)
            plot, other = (5 + EFFECTS[a] / 3 + rng.normal(0, 0.2) for a in (one.arm, control))
            trial.tell(one.id, {"yield": plot, "cost": 1.0}, control={"yield": other, "cost": 1.0}, confirm=True)
    last = {d.user: d for d in trial.preview()}
    assert last["south"].effects is not None
    assert last["south"].effects["old"].estimate < 0  # its control is the better arm
    verified(trial)


def test_the_control_plots_columns_have_one_name_in_sheets_and_exports() -> None:
    trial = paired()
    given = trial.ask("north")
    (row,) = sheets.decision_rows(trial.state(), [given])
    wanted = ["control.yield", "control.cost"]
    assert [name for name in row if name.startswith("control")] == wanted
    filled = row | {"yield": 5.0, "cost": 1.0, "control.yield": 4.0, "control.cost": 3.0}
    with trial.writing() as tx:
        sheets.tell_sheet(tx, read(csv_text([filled]).encode(), "sheet.csv"))
    (told,) = records(trial)
    assert [told[name] for name in wanted] == [4.0, 3.0]
