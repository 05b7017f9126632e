"""Several decisions for one user in one season: one for each plot."""

from __future__ import annotations

from typing import Any

import pytest

from drimed.errors import ConflictError, DrimedError, InputError, UnknownNameError
from drimed.records import Decision, Search
from drimed.trial.queries import search
from drimed.trial.trial import Trial
from tests.trial.playing import new, refused, verified

BLOCKS = {"A": ["1", "2"], "B": ["3", "4"]}
USERS: dict[str, Any] = {"north": {"blocks": BLOCKS}, "south": {"plots": ["1", "2"]}, "west": {}}


def planted(**changes: Any) -> Trial:
    return new(users=USERS, **changes)


def places(decisions: list[Decision]) -> list[tuple[str, str | None, str | None]]:
    return [(d.user, d.plot, d.block) for d in decisions]


EVERYWHERE = [
    ("north", "1", "A"), ("north", "2", "A"), ("north", "3", "B"), ("north", "4", "B"), ("south", "1", None),
    ("south", "2", None), ("west", None, None),
]  # fmt: skip


def test_every_plot_gets_a_decision_of_its_own_and_keeps_it_in_the_season() -> None:
    trial = planted()
    given = trial.ask_many()
    assert places(given) == EVERYWHERE
    assert [d.id for d in given] == list(range(1, 8))
    assert dict(trial.state().episode.asked)["north/3"] == 3
    assert [(d.id, d.repeated) for d in trial.ask_many(["north"])] == [(i, True) for i in (1, 2, 3, 4)]
    trial.open_episode()
    assert [d.id for d in trial.ask_many(["south"])] == [8, 9]
    verified(trial)


def test_some_plots_may_be_asked_for_and_the_others_later() -> None:
    trial = planted()
    assert places(trial.ask_many(["north"], plots={"north": ["3", "1"]})) == [("north", "3", "B"), ("north", "1", "A")]
    one = trial.ask("north", plot="4")
    assert (one.id, one.plot, one.block) == (3, "4", "B")
    rest = trial.ask_many(["north"])
    assert [(d.id, d.repeated) for d in rest] == [(2, True), (4, False), (1, True), (3, True)]
    verified(trial)


def test_plots_that_nobody_declared_may_come_with_the_request() -> None:
    trial = planted()
    given = trial.ask_many(["west"], plots={"west": {"A": ["7"], "B": ["8", "9"]}})
    assert places(given) == [("west", "7", "A"), ("west", "8", "B"), ("west", "9", "B")]
    assert places(trial.ask_many(["west"])) == [("west", None, None)]  # the whole of it is another place
    verified(trial)


def test_blocks_are_numbered_in_the_order_in_which_decisions_name_them() -> None:
    trial = planted()
    trial.ask_many(["west"], plots={"west": {"Z": ["1"]}})
    trial.ask_many()
    assert dict(trial.state().numbers.blocks) == {"west/Z": 1, "north/A": 1, "north/B": 2}
    assert dict(Trial.open("t", trial.store).state().numbers.blocks) == dict(trial.state().numbers.blocks)


@pytest.mark.parametrize(
    ("plots", "error", "match"),
    [
        ({"north": {"B": ["1"]}}, ConflictError, "plot '1' of user 'north' is in block 'A', not in 'B'"),
        ({"north": ["1", "1"]}, InputError, "plot '1' of user 'north' is asked for twice"),
        ({"north": []}, InputError, "no plots of user 'north'"),
        ({"north": "1"}, InputError, "must be a list of names"),
        ({"north": ["a/b"]}, InputError, "must be a name"),
        ({"nort": ["1"]}, UnknownNameError, "did you mean 'north'"),
    ],
)
def test_plots_that_cannot_be_meant_are_refused(plots: Any, error: type[DrimedError], match: str) -> None:
    trial = planted()
    refused(trial, lambda: trial.ask_many(["north"], plots=plots), error, match)


def test_asking_for_one_user_with_several_plots_says_how_to_ask() -> None:
    trial = planted()
    said = r"'north' has 4 plots: ask_many\(\['north'\]\) decides for all"
    refused(trial, lambda: trial.ask("north"), InputError, said)


def test_a_repeated_request_gets_its_plots_again() -> None:
    trial = planted()
    first = trial.ask_many(["north", "west"], key="k")
    assert [d.id for d in trial.ask_many(["north", "west"], key="k")] == [d.id for d in first]
    refused(trial, lambda: trial.ask_many(["north"], plots={"north": ["1"]}, key="k"), ConflictError, "for other users")


def test_a_preview_shows_every_plot_and_writes_nothing() -> None:
    trial = planted()
    shown = trial.preview()
    assert places(shown) == EVERYWHERE
    given = trial.ask_many()
    assert [d.probabilities for d in shown] == [d.probabilities for d in given]
    assert {d.arm for d in shown} == {""}


def test_a_search_finds_plots_and_blocks() -> None:
    trial = planted()
    trial.ask_many()
    with trial.reading() as (ledger, state):
        found = search(ledger, state, Search(user="north", block="B")).items
        assert [d.plot for d in found] == ["4", "3"]
        assert [d.user for d in search(ledger, state, Search(plot="2")).items] == ["south", "north"]


def test_a_guard_that_keeps_an_account_of_each_user_charges_it_for_every_plot() -> None:
    trial = planted(policy={"name": "dri_med", "guard": "budget"}, model={"kind": "paper"})
    given = trial.ask_many()
    assert places(given) == EVERYWHERE
    accounts = trial.state().learned.guard.decisions
    assert accounts[:3].tolist() == [4, 2, 1]
    assert len({d.state_version for d in given if d.user == "north"}) == 4
    verified(trial)
