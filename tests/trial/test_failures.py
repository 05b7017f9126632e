"""A model that cannot be computed does not stop a trial: the control is given, and an alarm says so."""

from __future__ import annotations

from typing import Any

import pytest

from drimed.errors import NumericalError
from drimed.policies.guards.base import FAILED, REASONS
from drimed.policies.policy import Policy
from drimed.trial import queries
from drimed.trial.verify import verify
from tests.trial import extremes
from tests.trial.playing import new


def broken(*_: Any, **__: Any) -> Any:
    raise NumericalError("a matrix is singular")


def test_a_decision_whose_model_fails_is_the_controls_with_an_exact_propensity(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = new()
    first = trial.ask("north")
    trial.tell(first.id, {"yield": 5.0, "cost": 1.0})
    trial.open_episode()
    with monkeypatch.context() as patched:
        patched.setattr(Policy, "decide", broken)
        failed = trial.ask("north")
        assert verify(trial.store, trial.name).ok is False  # the first decision fails here, too
    assert (failed.arm, failed.propensity, failed.reason) == ("old", 1.0, REASONS[FAILED])
    assert failed.effects is None
    assert trial.status().failures == 1
    (alarm,) = queries.alarms(trial.state())
    assert "could not be computed" in alarm.what
    trial.open_episode()
    assert trial.ask("north").reason != REASONS[FAILED]


def test_a_failure_is_replayed_where_the_model_fails_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Policy, "settle", broken)
    trial = new()
    for user in ("north", "south"):
        assert trial.ask(user).reason == REASONS[FAILED]
    proof = verify(trial.store, trial.name)
    assert (proof.ok, proof.exact) == (True, 2)


@pytest.mark.parametrize("n", range(extremes.WORLDS))
def test_whatever_the_outcomes_a_trial_decides_records_and_can_be_verified(n: int) -> None:
    extremes.check(n)
