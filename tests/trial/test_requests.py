"""Requests with an idempotency key are answered once, however often they come."""

from __future__ import annotations

from typing import Any

import pytest

from drimed.errors import ConflictError
from tests.trial.playing import new, nothing_written, refused


def test_a_repeated_request_is_answered_and_not_repeated() -> None:
    trial = new(decisions="any number")
    first = trial.ask("north", key="mail 17")
    trial.ask("north")
    with nothing_written(trial):
        again = trial.ask("north", key="mail 17")
    assert (again.id, again.repeated) == (first.id, True)
    many = trial.ask_many(["south", "west"], key="mail 18")
    with nothing_written(trial):
        assert [g.id for g in trial.ask_many(["west", "south"], key="mail 18")] == [many[1].id, many[0].id]
        assert [g.id for g in trial.ask_many(key="mail 18")] == [many[0].id, many[1].id]
    refused(trial, lambda: trial.ask("south", key="mail 17"), ConflictError, "was made before, for other users")
    refused(trial, lambda: trial.ask_many(["north", "south"], key="mail 17"), ConflictError, "for other users")


def test_a_repeated_request_for_everybody_holds_those_who_had_been_asked_before() -> None:
    trial = new()
    trial.ask("south")
    whole = trial.ask_many(key="k")
    with nothing_written(trial):
        again = trial.ask_many(key="k")
        assert [g.id for g in trial.ask_many(["north", "south", "west"], key="k")] == [g.id for g in whole]
    assert [g.id for g in again] == [g.id for g in whole]


def test_a_request_is_answered_as_it_was_also_in_a_later_episode() -> None:
    """Those who had a decision before the request got it again; they do so when the request is repeated."""
    trial = new()
    trial.open_episode()
    trial.ask("north")
    first = trial.ask_many(key="all")
    trial.add_user("lake", {})
    trial.ask("lake")
    assert [g.user for g in trial.ask_many(key="all")] == ["north", "south", "west"], "somebody joined"
    trial.open_episode()
    trial.pause(reason="frost")
    with nothing_written(trial):
        assert [g.id for g in trial.ask_many(key="all")] == [g.id for g in first]
        assert [g.id for g in trial.ask_many(["north", "south", "west"], key="all")] == [g.id for g in first]
    refused(trial, lambda: trial.ask_many(["south", "lake"], key="all"), ConflictError, "for other users")


@pytest.mark.parametrize(("decisions", "again"), [("any number", {"key": "k"}), ("one per episode", {})])
def test_a_decision_is_not_returned_for_another_context(decisions: str, again: Any) -> None:
    trial = new(context={"rain": {"typical": 500.0, "spread": 100.0}}, decisions=decisions)
    first = trial.ask("north", context={"rain": 999}, **again)
    with nothing_written(trial):
        assert trial.ask("north", context={"rain": 999.0}, **again).id == first.id
        assert trial.ask("north", **again).id == first.id
    another = {user: {"rain": 300.0} for user in ("north", "south")}
    words = "with rain 999, and 300 came now; a context cannot be changed after"
    refused(trial, lambda: trial.ask("north", context=another["north"], **again), ConflictError, words)
    if not again:
        refused(trial, lambda: trial.ask_many(["south", "north"], contexts=another), ConflictError, words)
