"""Who is undecided, in words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from drimed.records import Effect
from drimed.reports.effects import Recommendation
from drimed.reports.wording import MOST_NAMED, Words, undecided


def _analysis(
    chances: list[float], withdrawn: str | None = None, seasons: int | None = None, runner_up: str = "old"
) -> Any:
    best = Effect("", "new", "reward", 1.0, 0.5, 1.5, 0.7, 1.3, seasons=seasons)
    found = [Recommendation(f"u{i}", "old", best, 0.5, runner_up, p) for i, p in enumerate(chances)]
    return SimpleNamespace(recommendations=found, checks=SimpleNamespace(withdrawn=withdrawn), varying=None)


def _told(a: Any) -> str | None:
    return undecided(a, Words(count=2))


def test_those_without_a_clearly_best_arm_are_named_with_the_two_in_question() -> None:
    assert _told(_analysis([0.99, 0.6])) == (
        "1 of 2 users is undecided: no arm has a chance of 95 % or more of being the best (u1: new or old)."
    )


def test_where_all_are_decided_it_says_so() -> None:
    assert str(_told(_analysis([0.99, 0.95]))).startswith("No user is undecided")


def test_many_are_counted_and_a_wrong_model_says_nothing() -> None:
    assert str(_told(_analysis([0.5] * (MOST_NAMED + 2)))).endswith("; and 2 more).")
    assert _told(_analysis([0.5, 0.5], "wrong")) is None


def test_what_one_season_alone_has_told_decides_nothing() -> None:
    assert _told(_analysis([0.99], seasons=1)) == (
        "This user is undecided: no arm has a chance of 95 % or more of being the best and is known from more than one "
        "season (u0: new or old)."
    )
    assert str(_told(_analysis([0.99], seasons=2))).startswith("No user is undecided")


def test_who_has_nothing_to_compare_with_waits_for_outcomes_of_another_arm() -> None:
    assert str(_told(_analysis([0.2], runner_up="new"))).endswith("(u0: new or an arm without outcomes).")
