"""Telling: late, in parts, twice, corrected, given up, or wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from drimed.errors import BatchError, ConflictError, DrimedError, InputError, UnknownNameError
from drimed.records import Report
from drimed.trial.trial import Trial
from tests.trial.playing import KNOWN, asked, nothing_written, refused, theta, verified

WHOLE = {"yield": 5.0, "cost": 9.0}


def test_an_outcome_is_recorded_once_and_telling_it_again_is_safe() -> None:
    trial = asked()
    told = trial.tell(1, WHOLE)
    assert (told.decision, told.result, told.state, told.outcome, told.waits_for) == (
        1, "recorded", "complete", WHOLE, [],
    )  # fmt: skip
    before = theta(trial)
    with nothing_written(trial):
        again = trial.tell(1, WHOLE)
        part = trial.tell(1, {"cost": 9.0})
        whole_number = trial.tell(1, {"cost": 9})
    assert [t.result for t in (again, part, whole_number)] == ["already recorded"] * 3
    assert part.outcome == WHOLE
    refused(trial, lambda: trial.tell(1, {"yield": 5.1}), ConflictError, "is another value; .* amend it with `drimed")
    assert theta(trial) == before
    assert trial.status().complete == 1


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({"model": {"kind": "paper"}}, ["yield"]),  # learned noise waits for the whole outcome
        ({"noise": KNOWN}, []),  # known noise learns from what is there
        ({"noise": KNOWN, "policy": {"name": "w_oful"}}, ["yield"]),  # a reward needs all that it is made of
        ({"model": {"kind": "paper"}, "policy": {"name": "v_oful", "weighting": "none"}}, []),
    ],
)
def test_an_outcome_may_come_in_parts(changes: dict[str, Any], waits: list[str]) -> None:
    trial, whole = asked(**changes), asked(**changes)
    start = theta(trial)
    first = trial.tell(1, {"cost": 9.0, "yield": None})
    assert (first.result, first.outcome, first.waits_for) == ("recorded", {"cost": 9.0}, waits)
    assert first.state == "partial"
    assert (theta(trial) == start) == bool(waits)
    assert next(trial.decisions()).reward is None
    second = trial.tell(1, {"yield": 5.0})
    assert (second.result, second.outcome, second.waits_for) == ("completed", WHOLE, [])
    assert second.state == "complete"
    whole.tell(1, WHOLE)
    assert theta(trial) == pytest.approx(theta(whole), rel=1e-9, abs=1e-12)
    assert trial.status().complete == 1
    assert next(trial.decisions()).reward == pytest.approx(5.0 - 0.9)
    verified(trial)


def test_a_metric_that_counts_nothing_for_the_user_is_not_waited_for_by_a_reward() -> None:
    trial = asked(users={"north": {"preference": {"yield": 1.0}}}, policy={"name": "oful"})
    assert trial.tell(1, {"yield": 5.0}).waits_for == []
    assert next(trial.decisions()).reward == 5.0


def test_an_amendment_corrects_and_keeps_what_was() -> None:
    trial, right = asked(noise=KNOWN), asked(noise=KNOWN)
    trial.tell(1, {"yield": 50.0, "cost": 9.0}, confirm=True)
    told = trial.amend(1, {"yield": 5.0}, reason="a point was lost", actor="Ann")
    assert (told.result, told.state, told.outcome) == ("amended", "complete", WHOLE)
    right.tell(1, WHOLE)
    assert theta(trial) == pytest.approx(theta(right), rel=1e-9)
    event = list(trial.log())[-1]
    assert (event.kind, event.actor, event.body["reason"]) == ("amendment", "Ann", "a point was lost")
    assert event.body["was"]["metrics"] == {"yield": 50.0, "cost": 9.0}
    assert next(trial.decisions()).amendments == 1
    assert (trial.status().amendments, trial.status().complete) == (1, 1)
    with nothing_written(trial):
        assert trial.amend(1, {"yield": 5.0}, reason="again").result == "already recorded"
    verified(trial)


@pytest.mark.parametrize(
    "changes",
    [{}, {"model": {"kind": "people"}}, {"noise": KNOWN}, {"model": {"kind": "paper"}}, {"policy": {"name": "oful"}}],
)
def test_a_whole_outcome_can_be_taken_back_and_is_forgotten(changes: dict[str, Any]) -> None:
    trial, never = asked(**changes), asked(**changes)
    for one in (trial, never):
        one.tell(2, {"yield": 4.0, "cost": 8.0})
    trial.tell(1, WHOLE)
    back = trial.amend(1, {"yield": None, "cost": None}, reason="it was another decision's")
    assert (back.result, back.state, back.outcome, back.waits_for) == ("amended", "pending", None, [])
    assert theta(trial) == pytest.approx(theta(never), rel=1e-9, abs=1e-12)
    assert (trial.status().pending, trial.status().complete) == (2, 1)
    assert (trial.decision(1).outcome, trial.decision(1).amendments) == (None, 1)
    refused(trial, lambda: trial.amend(1, {"yield": 5.0}, reason="r"), ConflictError, "has no outcome to amend")
    assert trial.tell(1, WHOLE).result == "recorded"
    trial.amend(1, {"yield": None, "cost": None}, reason="again")
    assert trial.mark_missing(1, reason="hail").state == trial.decision(1).state == "missing"
    verified(trial)


Do = Callable[[Trial, Any], object]
TELL: Do = lambda t, v: t.tell(1, v)  # noqa: E731
AMEND: Do = lambda t, v: t.amend(2, v, reason="r")  # noqa: E731
MANY: Do = lambda t, v: t.tell_many([Report(1, v)])  # noqa: E731


@pytest.mark.parametrize("do", [TELL, AMEND, MANY], ids=["tell", "amend", "tell_many"])
@pytest.mark.parametrize(
    ("values", "error", "match"),
    [
        ({"yield": float("nan")}, InputError, "metric 'yield' must be a finite number, got nan"),
        ({"yield": True}, InputError, "must be a finite number, got True"),
        ({"yield": "5,1"}, InputError, "must be a finite number, got '5,1'"),
        ({"yield": 1e40}, InputError, r"must be a number of at most 1e\+30"),
        ({"yield": 10**400}, InputError, r"must be a number of at most 1e\+30"),
        ({"yeild": 5.0}, UnknownNameError, "unknown metric 'yeild'; did you mean 'yield'"),
        (5.0, InputError, "an outcome must be a table of metrics and values, got 5.0"),
    ],
)
def test_an_outcome_that_cannot_be_used_is_refused(do: Do, values: Any, error: type[DrimedError], match: str) -> None:
    trial = asked()
    trial.tell(2, WHOLE)
    refused(trial, lambda: do(trial, values), error, match)


@pytest.mark.parametrize(
    ("decision", "match"),
    [
        (4, "trial 't' has no decision 4"),
        (-1, "has no decision -1"),
        ("1", "a decision is known by its number, got '1'"),
        (True, "a decision is known by its number, got True"),
    ],
)
def test_a_decision_nobody_made_has_no_outcome(decision: Any, match: str) -> None:
    trial = asked()
    for do in (
        lambda: trial.tell(decision, WHOLE),
        lambda: trial.amend(decision, WHOLE, reason="r"),
        lambda: trial.mark_missing(decision, reason="r"),
    ):
        refused(trial, do, InputError, match)


def test_a_whole_decision_in_place_of_its_number_says_how() -> None:
    trial = asked()
    whole: Any = trial.decision(1)
    refused(trial, lambda: trial.tell(whole, WHOLE), InputError, r"got a whole decision; give decision.id \(1\)")


def test_numbers_of_any_library_are_taken() -> None:
    trial = asked()
    number: Any = np.int64(1)
    values: Any = {"yield": np.float32(5.0), "cost": np.int64(9)}
    assert trial.tell(number, values).outcome == WHOLE
    assert trial.amend(number, {"yield": 6}, reason="r").decision == 1
    verified(trial)


def test_many_outcomes_are_told_together_or_not_at_all() -> None:
    trial, one_by_one = asked(), asked()
    reports = [Report(i, {"yield": 4.0 + i, "cost": 9.0}) for i in (3, 1, 2)]
    with nothing_written(trial), pytest.raises(BatchError) as error:
        trial.tell_many([reports[0], Report(9, WHOLE), Report(1, {"yield": float("nan")})])
    assert [f.path[:2] for f in error.value.faults] == [("reports", 1), ("reports", 2)]
    assert [f.path[2:] for f in error.value.faults] == [("decision",), ("outcome", "yield")]
    refused(trial, lambda: trial.tell_many([reports[0], reports[0]]), InputError, "decision 3 is reported twice")
    with nothing_written(trial):
        shown = trial.tell_many(reports, dry_run=True)
    assert trial.tell_many(reports) == shown
    for report in reports:
        one_by_one.tell(report.decision, report.outcome)
    assert theta(trial) == theta(one_by_one)
    assert trial.tell_many([]) == []
    verified(trial)


def test_a_dry_run_of_any_report_shows_the_answer_and_writes_nothing() -> None:
    trial = asked()
    trial.tell(1, WHOLE)
    with nothing_written(trial):
        amended = trial.amend(1, {"yield": 6.0}, reason="r", dry_run=True)
        missing = trial.mark_missing(2, reason="r", dry_run=True)
    assert trial.amend(1, {"yield": 6.0}, reason="r") == amended
    assert trial.mark_missing(2, reason="r") == missing


def test_an_outcome_that_cannot_be_learned_from_is_kept_and_counted() -> None:
    """Noise of 1e-12 makes V singular to a double: the outcome is recorded, and the trial goes on without it."""
    trial = asked(noise={"kind": "known", "sd": {"yield": 1e-12, "cost": 1e-12}})
    trial.tell(1, WHOLE)
    trial.tell_many([Report(2, WHOLE)])
    assert (trial.status().complete, trial.status().failures) == (2, 2)
    trial.open_episode()
    assert trial.ask("north").id == 4
    verified(trial)
