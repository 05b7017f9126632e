"""What is known before a decision is asked about as outcomes are, and so are plots that nobody declared."""

from __future__ import annotations

from typing import Any

import pytest

from drimed.errors import BatchError, ConflictError, SpecError, UnconfirmedError
from drimed.records import AskRequest, Decision, Fault
from drimed.trial import sheets
from drimed.trial.tables import read
from drimed.trial.trial import Trial
from tests.trial.playing import new, nothing_written, rainy, refused, verified

BLOCKS = {"north": {"blocks": {"A": ["1", "2"], "B": ["3"]}}, "south": {"plots": ["1", "2"]}, "west": {}}


def doubted(trial: Trial, do: Any) -> tuple[Fault, ...]:
    """What is asked about; nothing was written."""
    with nothing_written(trial), pytest.raises(UnconfirmedError) as error:
        do()
    return error.value.faults


def contexts(**values: float) -> dict[str, dict[str, float]]:
    return {user: {"rain": values.get(user, 500.0)} for user in ("north", "south", "west")}


@pytest.mark.parametrize("rain", [-600.0, 1501.0, 1e29])
def test_a_context_far_from_what_is_typical_is_refused_until_it_is_confirmed(rain: float) -> None:
    """Typical is 500, with a spread of 100: from ten spreads on it is asked about."""
    trial = rainy()
    (fault,) = doubted(trial, lambda: trial.ask_many(contexts=contexts(south=rain), episode=1))
    assert fault.path == ("contexts", "south", "rain")
    far = "is far from 500, which is typical by the trial file, with a spread of 100"
    assert fault.message == f"user 'south': rain {rain:g} {far}"
    assert doubted(trial, lambda: trial.open_episode(contexts(south=rain))) == (fault,)
    assert doubted(trial, lambda: trial.ask_many(["south"], contexts={"south": {"rain": rain}})) == (fault,)
    given = trial.ask_many(contexts=contexts(south=rain), episode=1, confirm=True)
    assert [d.context for d in given] == [{"rain": 500.0}, {"rain": rain}, {"rain": 500.0}]
    verified(trial)


@pytest.mark.parametrize("rain", [-500.0, 0.0, 1500.0])
def test_a_context_within_ten_spreads_is_taken(rain: float) -> None:
    assert rainy().ask("north", context={"rain": rain}).context == {"rain": rain}


def test_a_field_without_a_typical_value_is_asked_about_codes_and_huge_values_only() -> None:
    trial = new(context={"rain": {}})
    for rain in (-999.0, -9999.0, 1e12):
        assert len(doubted(trial, lambda rain=rain: trial.ask("north", context={"rain": rain}))) == 1
    assert trial.ask("north", context={"rain": 1e6}).context == {"rain": 1e6}


def test_what_is_recorded_already_is_not_asked_about_again() -> None:
    trial = rainy()
    far = contexts(north=-9999.0)
    trial.open_episode(far, confirm=True)
    assert trial.ask("north").context == {"rain": -9999.0}
    with nothing_written(trial):
        assert trial.ask("north", context={"rain": -9999.0}).repeated
    trial.open_episode(far, confirm=True)
    assert trial.ask("north", context={"rain": -9999.0}).context == {"rain": -9999.0}
    assert len(doubted(trial, lambda: trial.ask("south", context={"rain": -9999.0}))) == 1
    verified(trial)


def joining() -> Trial:
    users = {"north": {"attributes": {"ph": 6.0, "depth": 1.0}}, "south": {"attributes": {"ph": 7.0, "depth": 3.0}}}
    return new(users=users, attributes={"ph": {"typical": 6.5, "spread": 0.5}}, enrolment="open")


def test_an_attribute_of_somebody_who_joins_is_asked_about() -> None:
    """Of `ph` the file says what is typical; of `depth` it says nothing."""
    trial = joining()
    (fault,) = doubted(trial, lambda: trial.ask("hill", attributes={"ph": 65.0, "depth": 900.0}))
    assert fault.path == ("enrol", "hill", "attributes", "ph")
    assert fault.message.startswith("user 'hill': ph 65 is far from 6.5")
    found = doubted(trial, lambda: trial.add_user("hill", {"attributes": {"ph": 65.0, "depth": -9999.0}}))
    assert [f.path for f in found] == [("users", "hill", "attributes", "ph"), ("users", "hill", "attributes", "depth")]
    trial.add_user("hill", {"attributes": {"ph": 65.0, "depth": 1.0}}, confirm=True)
    with nothing_written(trial):  # somebody who has joined is described again
        trial.ask("hill", attributes={"ph": 65.0}, dry_run=True)
    assert trial.ask("dune", attributes={"ph": -9999.0, "depth": 1.0}, confirm=True).user == "dune"
    verified(trial)


def test_a_sheet_names_the_rows() -> None:
    trial = rainy()
    rows = read("user,rain\nnorth,480\n\nsouth,-9999\nwest,5e3\n")

    def ask(**words: Any) -> list[Decision]:
        return trial.decide(lambda tx: sheets.ask_sheet(tx, rows, AskRequest(episode=1, **words)))

    found = doubted(trial, ask)
    assert [f.row for f in found] == [4, 5]
    assert str(found[0]).startswith("row 4: user 'south': rain -9999 is far from 500")
    assert len(ask(confirm=True)) == 3
    verified(trial)


@pytest.mark.parametrize("confirm", [False, True])
def test_a_sheet_that_is_wrong_is_not_a_question(confirm: bool) -> None:
    trial, request = rainy(), AskRequest(episode=1, confirm=confirm)
    with nothing_written(trial), pytest.raises(BatchError) as error:
        trial.decide(lambda tx: sheets.ask_sheet(tx, read("user,rain\nnorth,-9999\nsouth,\n"), request))
    assert not isinstance(error.value, UnconfirmedError)


@pytest.mark.parametrize(
    ("user", "plots", "said"),
    [
        ("north", {"C": ["11"]}, "unknown plot '11'"),
        ("north", {"A": ["1"], "AA": ["22"]}, "unknown plot '22'"),
        ("south", {"A": ["3"]}, "unknown plot '3'"),
    ],
)
def test_a_plot_that_was_not_declared_becomes_a_new_one_only_if_that_is_confirmed(
    user: str, plots: dict[str, list[str]], said: str
) -> None:
    trial = new(users=BLOCKS)
    (fault,) = doubted(trial, lambda: trial.ask_many([user], plots={user: plots}))
    assert fault.path == ("plots", user, said.split("'")[1])
    assert said in fault.message
    given = trial.ask_many([user], plots={user: plots}, confirm=True)
    assert [d.plot for d in given] == [plot for some in plots.values() for plot in some]
    again = trial.ask_many([user], plots={user: plots})
    assert all(d.repeated for d in again)
    verified(trial)


def test_a_mistyped_plot_in_a_block_that_is_known_is_refused_whoever_confirms_it() -> None:
    trial = new(users=BLOCKS)
    for plots in ({"north": {"A": ["11"]}}, {"north": ["11"]}, {"south": ["11"]}):
        ask = lambda plots=plots: trial.ask_many(list(plots), plots=plots, confirm=True)  # noqa: E731
        refused(trial, ask, ConflictError, "unknown plot '11'")


def test_a_mistyped_level_of_a_declared_category_is_refused_whoever_confirms_it() -> None:
    """It would otherwise be a category of its own for good."""
    trial = new(enrolment="open", users={}, attributes={"soil": {"levels": ["sand", "clay"]}})
    wrong: dict[str, Any] = {"attributes": {"soil": "snad"}}
    for do in (
        lambda: trial.ask("north", **wrong, confirm=True),
        lambda: trial.add_user("north", wrong, confirm=True),
    ):
        with nothing_written(trial), pytest.raises(SpecError, match="unknown level of 'soil' 'snad'") as error:
            do()
        assert "did you mean 'sand'? Known: clay, sand" in str(error.value)


def test_levels_that_the_file_does_not_list_at_all_come_as_they_come() -> None:
    trial = new(users={"north": {"attributes": {"soil": "sand"}}})
    trial.add_user("south", {"attributes": {"soil": "loam"}})
    verified(trial)
