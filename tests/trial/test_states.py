"""A decision is pending, partial, complete or missing, and whoever looks at it sees the same."""

from __future__ import annotations

from typing import Any

import pytest

from drimed.errors import ConflictError
from drimed.records import STATES
from drimed.trial import queries
from drimed.trial.export import records
from drimed.trial.store import AMENDED, Search
from drimed.trial.trial import Trial
from tests.trial.playing import KNOWN, new, verified

PENDING, PARTIAL, COMPLETE, MISSING = STATES


def asked(**changes: Any) -> Trial:
    trial = new(**changes)
    trial.ask("north")
    assert state(trial) == PENDING
    return trial


def state(trial: Trial) -> str:
    """The state of the trial's only decision, after a look from every side."""
    for one in (trial, Trial.open("t", trial.store)):
        with one.reading() as (ledger, known):
            found = queries.decision(ledger, known, 1).state
            assert {s: getattr(known.counts, s) for s in STATES} == {s: int(s == found) for s in STATES}
            for wanted in STATES:
                there = queries.search(ledger, known, Search(state=wanted)).decisions
                assert [d.state for d in there] == [found] * (wanted == found)
            assert queries.pending(ledger) == ({1: found} if found in (PENDING, PARTIAL) else {})
        status = one.status()
        assert {s: getattr(status, s) for s in STATES} == {s: int(s == found) for s in STATES}
        assert one.decision(1).state == found
        assert [d.state for d in one.decisions()] == [found]
        assert [row["state"] for row in records(one)] == [found]
        (again,) = one.ask_many(["north"])
        assert (again.repeated, again.state) == (True, found)
    return found


def test_an_outcome_that_comes_in_parts_is_partial_and_then_complete() -> None:
    trial = asked()
    assert trial.tell(1, {"yield": 5.0}).state == state(trial) == PARTIAL
    assert trial.tell(1, {"yield": 5.0}).state == state(trial) == PARTIAL
    assert trial.tell(1, {"cost": 9.0}).state == state(trial) == COMPLETE
    verified(trial)


def test_an_outcome_that_is_taken_back_is_pending_for_everybody_and_may_come_again() -> None:
    trial = asked()
    trial.tell(1, {"yield": 5.0, "cost": 9.0})
    assert trial.amend(1, {"yield": None, "cost": None}, reason="not its own").state == state(trial) == PENDING
    assert [row["metric_yield"] for row in records(trial)] == [None]
    assert trial.tell(1, {"yield": 5.0, "cost": 9.0}).state == state(trial) == COMPLETE
    verified(trial)


def test_an_outcome_may_come_whole() -> None:
    trial = asked()
    assert trial.tell(1, {"yield": 5.0, "cost": 9.0}).state == state(trial) == COMPLETE
    with pytest.raises(ConflictError, match="has its whole outcome; nothing of it is missing"):
        trial.mark_missing(1, reason="hail")
    assert state(trial) == COMPLETE


@pytest.mark.parametrize("noise", [{"kind": "learned"}, KNOWN])
def test_the_rest_of_a_partial_outcome_may_be_missing_and_what_is_there_is_kept(noise: dict[str, Any]) -> None:
    trial, whole = asked(noise=noise), asked(noise=noise)
    trial.tell(1, {"yield": 5.0})
    before = trial.state()
    receipt = trial.mark_missing(1, reason="the scale broke")
    assert (receipt.result, receipt.outcome, receipt.waits_for) == ("missing", {"yield": 5.0}, [])
    assert receipt.state == state(trial) == MISSING
    assert trial.decision(1).outcome == {"yield": 5.0}
    theta = trial.state().policy.theta
    assert theta(trial.state().settled()).tolist() == theta(before.settled()).tolist()
    assert trial.tell(1, {"yield": 5.0}).state == state(trial) == MISSING  # no news
    assert trial.mark_missing(1, reason="again").result == "already recorded"
    late = trial.tell(1, {"cost": 9.0})
    assert (late.result, late.state) == ("completed", COMPLETE)
    assert state(trial) == COMPLETE
    whole.tell(1, {"yield": 5.0, "cost": 9.0})
    right = theta(whole.state().settled()).tolist()
    assert theta(trial.state().settled()).tolist() == pytest.approx(right, rel=1e-9)
    verified(trial)


@pytest.mark.parametrize(
    ("values", "after"), [({"cost": 9.0}, PARTIAL), ({"yield": 5.0, "cost": 9.0}, COMPLETE)], ids=["part", "whole"]
)
def test_an_outcome_that_was_missing_may_come_after_all(values: dict[str, float], after: str) -> None:
    trial = asked()
    assert trial.mark_missing(1, reason="hail").state == state(trial) == MISSING
    assert trial.decision(1).outcome is None
    receipt = trial.tell(1, values)
    assert (receipt.result, receipt.state) == ("recorded", after)
    assert state(trial) == after
    verified(trial)


def test_what_came_after_all_may_be_missing_again() -> None:
    trial = asked()
    trial.mark_missing(1, reason="hail")
    trial.tell(1, {"yield": 5.0})
    assert trial.mark_missing(1, reason="lost").result == "missing"
    assert state(trial) == MISSING
    verified(trial)


def test_an_amendment_that_takes_a_value_back_leaves_the_outcome_partial() -> None:
    trial = asked()
    trial.tell(1, {"yield": 5.0, "cost": 9.0})
    assert trial.amend(1, {"cost": None}, reason="another plot's").state == state(trial) == PARTIAL
    assert trial.mark_missing(1, reason="it will not come").state == state(trial) == MISSING
    assert trial.amend(1, {"cost": 8.0}, reason="found").state == state(trial) == COMPLETE
    assert trial.decision(1).amendments == trial.status().amendments == 2
    with trial.reading() as (ledger, known):
        assert [d.id for d in queries.search(ledger, known, Search(state=AMENDED)).decisions] == [1]
    verified(trial)


def test_half_of_a_control_plot_is_a_partial_outcome() -> None:
    trial = asked(feedback="difference")
    both = {"yield": 5.0, "cost": 9.0}
    assert trial.tell(1, {}, control={"cost": 8.0}).state == state(trial) == PARTIAL
    assert trial.tell(1, both).state == state(trial) == PARTIAL  # the control plot has no yield yet
    assert trial.mark_missing(1, reason="mown").state == state(trial) == MISSING
    assert trial.decision(1).control == {"cost": 8.0}
    assert trial.tell(1, {}, control={"yield": 4.0}).state == state(trial) == COMPLETE
    assert trial.amend(1, {}, control={"yield": None}, reason="a typo").state == state(trial) == PARTIAL
    verified(trial)


def test_a_control_plots_value_can_be_amended_before_the_plot_itself_was_reported() -> None:
    trial = asked(feedback="difference")
    trial.tell(1, {}, control={"yield": 4.0})
    receipt = trial.amend(1, {}, control={"yield": 4.5}, reason="misread")
    assert (receipt.result, receipt.state, receipt.outcome, receipt.control) == ("amended", PARTIAL, {}, {"yield": 4.5})
    assert state(trial) == PARTIAL
    verified(trial)
