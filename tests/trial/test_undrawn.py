"""A visit whose caller could not wait gets the control without a draw, and no estimate takes it for one."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.errors import ConflictError, DrimedError, InputError
from drimed.records import MISSING
from drimed.trial.dataset import load_dataset
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.trial.playing import verified
from tests.trial.trials import BUSY, outcome

LATE = "no answer within 50 ms"


def played(**changes: object) -> Trial:
    trial = Trial.create(BUSY | changes, MemoryStore())
    for i in range(6):
        given = trial.ask(f"site {i % 4}")
        trial.tell(given.id, outcome(given.id, given.arm))
    return trial


def test_the_control_is_recorded_as_not_drawn_and_its_outcome_is_learned() -> None:
    trial = played()
    before = trial.state()
    given = trial.give_control("site 1", "old", reason=LATE, key="k")
    assert (given.arm, given.drawn, given.propensity, given.reason) == ("old", False, None, LATE)
    assert trial.state().learned is before.learned  # no account of draws has it
    trial.tell(given.id, outcome(given.id, "old"))
    assert trial.state().learned is not before.learned
    assert trial.decision(given.id).outcome is not None
    with trial.reading() as (ledger, state):
        data = load_dataset(ledger, state)
    assert np.flatnonzero(np.isnan(data.propensity)).tolist() == [given.id - 1]
    verified(trial)


def test_a_request_that_comes_late_gets_the_decision_that_stands() -> None:
    trial = played()
    given = trial.give_control("site 1", "old", reason=LATE, key="k")
    late = trial.ask("site 1", key="k")
    again = trial.give_control("site 1", "old", reason=LATE, key="k")
    assert [(d.id, d.repeated) for d in (late, again)] == [(given.id, True)] * 2
    verified(trial)


def test_an_answer_that_came_too_late_is_marked_as_missing() -> None:
    trial = played()
    drawn = trial.ask("site 1", key="k")
    given = trial.give_control("site 1", "old", reason=LATE, key="k")
    assert given.id == drawn.id + 1
    assert trial.decision(drawn.id).state == MISSING
    verified(trial)


def test_only_the_control_is_given_without_a_draw() -> None:
    trial = played()
    with pytest.raises(InputError, match="'new' is not the control"):
        trial.give_control("site 1", "new", reason=LATE)
    with pytest.raises(InputError, match="reason"):
        trial.give_control("site 1", "old", reason=" ")
    seasons = played(decisions="one per episode", users={f"site {i}": {} for i in range(9)})
    with pytest.raises(ConflictError, match="tell what was given with the outcome of decision 2"):
        seasons.give_control("site 1", "old", reason=LATE)
    with pytest.raises(DrimedError):
        seasons.give_control("nobody", "old", reason=LATE)
    assert seasons.give_control("site 8", "old", reason=LATE).id == 5
    verified(seasons)
