"""One analysis of a trial: complete, incremental, and without side effects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np

from drimed.records import Report
from drimed.reports.analysis import analyse
from drimed.trial.dataset import Dataset, load_dataset
from drimed.trial.trial import Trial
from tests.reports.worlds import PAPER, paper, play, summary


def gathered(trial: Trial, before: Dataset | None = None) -> Dataset:
    with trial.reading() as (ledger, state):
        return load_dataset(ledger, state, before)


def test_a_quiet_trial_has_all_checks_and_no_alarm() -> None:
    checks = paper().checks
    assert None not in (checks.mean, checks.calibration)
    assert checks.alarms == []


def test_missing_and_late_outcomes_are_counted() -> None:
    trial = play(PAPER | {"noise": {}}, 6)
    trial.open_episode({u: {"rain": 5.0} for u in PAPER["users"]})
    given = trial.ask_many()
    trial.mark_missing(given[0].id, reason="lost")
    trial.tell(given[1].id, {"yield": 5.0})
    found = analyse(trial)
    s = found.status
    assert (s.pending, s.partial, s.complete, s.missing, found.oldest_pending) == (4, 1, 36, 1, 7)
    text = "42 decisions for 6 users in 7 seasons; outcomes: 36 complete, 1 partial, 4 pending, 1 missing."
    assert {text, "Tell 4 pending outcomes (the oldest from season 7)."} <= {*summary(found)}


def test_a_preview_writes_nothing_and_a_stopped_trial_says_why_there_is_none() -> None:
    trial = play(PAPER, 3)
    before = trial.status().events
    assert len(analyse(trial).next) == 6
    assert trial.status().events == before
    trial.stop(reason="over")
    found = analyse(trial)
    assert found.next == []
    assert "stopped" in str(found.why_not_next)


def changes(trial: Trial) -> Iterator[None]:
    """Everything that can change a dataset, one after the other."""
    wet = {"rain": 5.0}
    trial.open_episode(dict.fromkeys(PAPER["users"], wet))
    yield
    given = trial.ask_many()
    yield
    trial.tell(given[0].id, {"yield": 5.0})
    trial.mark_missing(given[1].id, reason="hail")
    yield
    trial.tell(given[0].id, {"cost": 30.0})
    trial.tell(given[1].id, {"yield": 4.0, "cost": 20.0})
    trial.amend(1, {"yield": 4.5}, reason="typo")
    yield
    trial.add_arm("fourth")
    trial.add_user("u6", {"preference": {"yield": 1.0}})
    trial.change_preference("u0", {"yield": 1.0, "cost": -1.0}, reason="prices")
    yield
    trial.open_episode(dict.fromkeys((*PAPER["users"], "u6"), wet))
    trial.tell_many([Report(g.id, {"yield": 5.0, "cost": 25.0}) for g in trial.ask_many()])
    yield


def test_a_dataset_with_changes_is_the_whole_dataset_and_the_earlier_one_stays() -> None:
    trial = play(PAPER, 3)
    first = kept = gathered(trial)
    was = (first.state.seq, dict(first.state.users), first.state.problem.arms, len(first.number))
    for _ in changes(trial):
        kept, whole = gathered(trial, kept), gathered(trial)
        for name in (f.name for f in fields(whole) if f.name != "state"):
            np.testing.assert_array_equal(getattr(kept, name), getattr(whole, name), err_msg=name)
        assert (kept.user == whole.user).all()
        assert kept.state.seq == trial.state().seq
    assert (first.state.seq, dict(first.state.users), first.state.problem.arms, len(first.number)) == was


def test_a_log_that_was_set_back_is_read_again() -> None:
    before = gathered(play(PAPER, 4))
    other = play(PAPER, 3, seed=8)  # the same trial from an older backup
    found, whole = gathered(other, before), gathered(other)
    np.testing.assert_array_equal(found.number, np.arange(1, 19))
    np.testing.assert_array_equal(found.vector, whole.vector)
