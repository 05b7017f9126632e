"""Values outside the range in the trial file, or far from all others: refused until somebody confirms them."""

from __future__ import annotations

from typing import Any

import pytest

from drimed.errors import UnconfirmedError
from drimed.records import Fault
from drimed.trial.trial import Trial
from tests.trial.playing import asked, new, nothing_written, verified

FAR = {"yield": 50.0, "cost": 9.0}  # the range of yield is 0 to 10


def unconfirmed(trial: Trial, do: Any) -> tuple[Fault, ...]:
    """The faults of a call that is refused and leaves no trace."""
    with nothing_written(trial), pytest.raises(UnconfirmedError) as error:
        do()
    remedy = "nothing was recorded; if this is right, repeat this with confirm=True"
    assert str(error.value) == "\n".join(map(str, (*error.value.faults, remedy)))
    return error.value.faults


def test_a_value_outside_its_range_is_refused_with_its_place_and_recorded_when_confirmed() -> None:
    trial = asked()
    (fault,) = unconfirmed(trial, lambda: trial.tell(1, FAR))
    assert fault.path == ("reports", 0, "outcome", "yield")
    assert fault.message == "decision 1: yield 50 is outside 0 to 10, the range in the trial file"
    told = trial.tell(1, FAR, confirm=True)
    assert (told.result, told.state, told.outcome) == ("recorded", "complete", FAR)
    verified(trial)


@pytest.mark.parametrize("value", [-1e-9, 10.000001, -3, 1e30, 0, -0.0, 10, 10.0, 5.5])
def test_any_value_beyond_an_end_is_unlikely_and_the_ends_are_not(value: float) -> None:
    trial = asked()
    if 0 <= value <= 10:
        assert trial.tell(1, {"yield": value}).result == "recorded"
    else:
        assert len(unconfirmed(trial, lambda: trial.tell(1, {"yield": value}))) == 1


@pytest.mark.parametrize("value", [1e29, -1e12, -9999.0, -999.0])
def test_a_huge_value_or_a_code_for_a_missing_one_is_asked_about_from_the_first_on(value: float) -> None:
    trial = asked(metrics={"yield": {"range": [0, 10]}, "cost": {}})
    assert len(unconfirmed(trial, lambda: trial.tell(1, {"cost": value}))) == 1
    assert trial.tell(1, {"cost": value}, confirm=True).result == "recorded"


def costs(*values: float) -> Trial:
    """A trial that has recorded these values of a metric without a range, and has a decision without an outcome."""
    trial = new(metrics={"yield": {"range": [0, 10]}, "cost": {}}, decisions="any number")
    for value in values:
        trial.tell(trial.ask("north").id, {"cost": value}, confirm=True)
    trial.ask("north")
    return trial


def test_a_value_far_from_all_that_was_recorded_is_asked_about_and_recorded_when_confirmed() -> None:
    trial = costs(*(10.0 + i % 3 for i in range(8)))  # mean 10.9, deviation 0.8
    (fault,) = unconfirmed(trial, lambda: trial.tell(9, {"cost": 110.0}))
    assert fault.path == ("reports", 0, "outcome", "cost")
    assert fault.message == ("decision 9: cost 110 is far from the 8 values recorded so far, which are around 10.88")
    assert len(unconfirmed(trial, lambda: trial.tell(9, {"cost": -110.0}))) == 1
    assert trial.tell(9, {"cost": 110.0}, confirm=True).result == "recorded"
    verified(trial)


def test_values_within_ten_deviations_are_usual_and_fewer_than_eight_say_nothing() -> None:
    assert costs(*(10.0 + i % 3 for i in range(8))).tell(9, {"cost": 18.0}).result == "recorded"
    assert costs(*(10.0 + i % 3 for i in range(7))).tell(8, {"cost": 110.0}).result == "recorded"
    assert costs(*[10.0] * 9).tell(10, {"cost": 11.0}).result == "recorded"  # what never varied says nothing either


@pytest.mark.parametrize(
    ("changes", "value"),
    [({"tolerance": {"absolute": 0.5}}, 1e11), ({"metrics": {"yield": {"spread": 2.0}, "cost": {}}}, -1e7)],
)
def test_a_first_value_is_compared_with_the_tolerance_and_the_spread_of_the_file(
    changes: dict[str, Any], value: float
) -> None:
    trial = asked(**{"metrics": {"yield": {}, "cost": {}}} | changes)
    (fault,) = unconfirmed(trial, lambda: trial.tell(1, {"yield": value}))
    assert "is more than a million times the" in fault.message
    assert trial.tell(1, {"yield": value}, confirm=True).state == "partial"
    (fault,) = unconfirmed(trial, lambda: trial.tell(2, {"yield": 5.0}))  # now one of the two is wrong
    assert "is of another size" in fault.message


def test_a_file_without_any_scale_lets_the_second_value_be_asked_about() -> None:
    trial = costs(1e11)
    assert len(unconfirmed(trial, lambda: trial.tell(2, {"cost": 12.0}))) == 1
    assert trial.tell(2, {"cost": 0.0}).result == "recorded"  # nothing is no size
    assert costs(12.0).tell(2, {"cost": 1e5}).result == "recorded"


def test_a_typing_error_that_was_amended_does_not_hide_the_next_one() -> None:
    trial = costs(*(10.0 + i % 3 for i in range(8)))
    trial.tell(9, {"cost": 1e12}, confirm=True)
    trial.amend(9, {"cost": 11.0}, reason="typed wrongly")
    for _ in range(8):
        trial.tell(trial.ask("north").id, {"cost": 10.0 + trial.status().decisions % 3})
    number = trial.ask("north").id
    assert len(unconfirmed(trial, lambda: trial.tell(number, {"cost": 1e12}))) == 1
    verified(trial)
