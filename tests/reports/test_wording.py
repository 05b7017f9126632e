"""Sentences: for whom and when they hold, and silence where evidence is missing."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from drimed.records import Decision, Effect
from drimed.reports.analysis import Analysis, analyse
from drimed.reports.charts import components
from drimed.reports.effects import EVERYBODY, Component, Recommendation
from drimed.reports.wording import (
    MOST_ARMS,
    MOST_NAMED,
    Words,
    _shares,
    describe_components,
    summary,
    undecided,
    upcoming,
    words_of,
)
from tests.reports import worlds


def effect(who: str, low: float, high: float, **more: Any) -> Effect:
    return Effect(who, "good", "reward", (low + high) / 2, low - 9, high + 9, low, high, **{"seasons": 4, **more})


def test_the_summary_says_for_whom_and_when() -> None:
    said = " ".join(summary(worlds.field()))
    assert re.search(r"For the average of these 6 sites in an average season, good earns [\d.]+ more than", said)
    assert f"; compared in {worlds.everybody(worlds.field(), 'good').seasons} seasons)" in said
    better = r"For \d of 6 sites, good is (likely|certainly) better than the control in an average season\."
    assert re.search(better, said)
    assert "(range at this look: " in said
    assert "guaranteed" not in said
    said = " ".join(summary(worlds.people()))
    assert "For the average of these 20 people in an average season" in said


def test_every_arm_counts_not_only_the_one_with_the_largest_estimate() -> None:
    a = worlds.paper()
    users = list(a.data.state.users)
    effects = [
        Effect(users[0], "good", "reward", 1.0, -0.5, 2.5, 0.2, 1.8),
        Effect(users[0], "bad", "reward", 3.0, -9.0, 15.0, -4.0, 10.0),
    ]
    assert "For 1 of 6 users, good is likely better than the control." in summary(replace(a, effects=effects))
    both = [*effects, Effect(users[1], "bad", "reward", 1.0, -0.5, 2.5, 0.2, 1.8)]
    said = summary(replace(a, effects=both))
    assert "For 2 of 6 users, at least one arm (bad, good) is likely better than the control." in said
    said = summary(replace(a, effects=effects[1:]))
    assert "No arm is likely to be better than the control for any user so far." in said


def test_arms_that_a_user_cannot_get_or_that_were_never_given_are_left_out() -> None:
    users = worlds.PAPER["users"] | {"u0": {"arms": ["old", "bad"]}}
    said = " ".join(summary(analyse(worlds.play(worlds.PAPER | {"users": users}, 30))))
    assert re.search("For 5 of 6 users, good is (likely|certainly) better than the control.", said)
    trial = worlds.grown(worlds.FIELD, 3)
    trial.add_arm("new")
    assert not any("new" in s for s in summary(analyse(trial)))


def test_one_season_is_not_enough_and_two_are() -> None:
    said = summary(worlds.one_season())
    assert f"Not judged yet: good and bad ({worlds.WHY})." in said
    assert not re.search(r"better than the control|good earns|No arm is likely", " ".join(said))
    assert any("good is estimated to earn" in s and "which another season must confirm" in s for s in said)
    assert "4 of 4 users are undecided" in str(undecided(worlds.one_season(), words_of(worlds.one_season())))
    two = " ".join(summary(worlds.two_seasons()))
    assert "For 4 of 4 users, good is certainly better than the control in an average season." in two
    assert "Not judged yet" not in two


def test_effects_that_may_be_chance_are_inconclusive() -> None:
    a = worlds.field()
    effects = [effect("s0", 0.2, 2.0, significant=False), effect("s1", -1.0, 2.0, significant=False)]
    said = summary(replace(a, effects=effects))
    assert "No arm is likely to be better than the control for any site so far." in said
    chance = "By the likely range alone, good would be called better for 1 of 6 sites; inconclusive after adjusting"
    assert any(s.startswith(chance) for s in said)
    open_ = effect(EVERYBODY, 0.2, 2.0, significant=False)
    for x, words in ((open_, "is estimated to earn"), (replace(open_, low=0.1, high=2.1), "earns")):
        first = next(s for s in summary(replace(a, effects=[x])) if s.startswith("For the average of"))
        assert f"good {words} 1.1 more than the control" in first
        assert ("still open" in first) == (x.certain == 0)


def test_components_that_may_be_nothing_or_cannot_be_told_are_said_so() -> None:
    words = Words(group="site")
    some = [
        Component("yield", "group", 5.21, 3.04, 11.9, identifiable=True),
        Component("yield", "group x arm", 0.3, 0.0, 4.64, identifiable=True),
        Component("yield", "season", 2.0, 0.0, 8.0, identifiable=False),
        Component("yield", "season x arm", 2.0, 0.0, 8.0, identifiable=False),
    ]
    chart = components(some, words, "yield", "dt", "c")
    assert chart is not None
    assert chart.text == (
        "yield, as standard deviations: sites differ by about 5.2 dt (3 to 12); an arm's effect differs between sites "
        "by at most 4.6 dt; it cannot be told yet how much seasons differ and how much an arm's effect differs between "
        "seasons."
    )
    assert [row[1:] for row in chart.table.rows] == [
        ["5.21", "3.04", "11.9", ""],
        ["", "0", "4.64", ""],
        *[["", "", "", "cannot be told yet"]] * 2,
    ]
    soil = Component("yield", "category 0 x arm", 0.37, 0.19, 0.86, identifiable=True)
    explaining = replace(words, categories=("soil",), explained="what rain and soil explain")
    assert describe_components([soil, some[0]], explaining, "dt") == (
        ", as standard deviations: an arm's effect differs between levels of soil by about 0.37 dt (0.19 to 0.86); "
        "beyond what rain and soil explain, sites differ by about 5.2 dt (3 to 12)"
    )


def test_of_many_arms_the_summary_names_those_given_most() -> None:
    times = {"old": 80, **{f"a{i}": 1 for i in range(18)}, "a18": 2}
    said = _shares(cast(Analysis, SimpleNamespace(times=times, given=set(times))))
    assert said.startswith("old 80 %, ")
    assert "a18 2 %" in said
    assert said.endswith(f"{20 - MOST_NAMED} other arms 12 %")


def recommended(
    chances: list[float], *, withdrawn: str | None = None, seasons: int | None = None, runner_up: str = "old"
) -> str:
    best = Effect("", "new", "reward", 1.0, 0.5, 1.5, 0.7, 1.3, seasons=seasons)
    some = [Recommendation(f"u{i}", "old", best, 0.5, runner_up, p) for i, p in enumerate(chances)]
    a = SimpleNamespace(recommendations=some, checks=SimpleNamespace(withdrawn=withdrawn))
    return str(undecided(cast(Analysis, a), Words()))


def test_undecided_users_are_named_with_the_two_arms_in_question() -> None:
    chance = "a chance of 95 % or more of being the best"
    assert recommended([0.99, 0.6]) == f"1 of 2 users is undecided: no arm has {chance} (u1: new or old)."
    assert recommended([0.99, 0.95]).startswith("No user is undecided")
    assert recommended([0.5] * (MOST_NAMED + 2)).endswith("; and 2 more).")
    assert recommended([0.5, 0.5], withdrawn="wrong") == "None"
    assert recommended([0.99], seasons=1).startswith(f"This user is undecided: no arm has {chance} and is known from")
    assert recommended([0.99], seasons=2).startswith("No user is undecided")
    assert recommended([0.2], runner_up="new").endswith("(u0: new or an arm without outcomes).")


def decision(user: str, plot: str | None, probabilities: dict[str, float]) -> Decision:
    return cast(Decision, SimpleNamespace(user=user, plot=plot, probabilities=probabilities, reason="as proposed"))


def test_identical_next_decisions_are_one_row() -> None:
    even, odd = {"a": 0.5, "b": 0.5}, {"a": 0.2, "b": 0.8}
    decisions = [decision("north", p, even) for p in ("1", "2")] + [decision("north", "3", odd)]
    found = upcoming([*decisions, decision("south", None, odd)], ["a", "b"], "season")
    assert found.columns == ["user", "a", "b", "why"]
    assert found.rows == [
        ["north, 2 plots alike", "50 %", "50 %", "as proposed"],
        ["north, plot 3", "20 %", "80 %", "as proposed"],
        ["south", "20 %", "80 %", "as proposed"],
    ]
    assert upcoming([], ["a"], "season").rows == []
    unknown = upcoming([decision("north", None, {})], ["a"], "season").rows
    assert unknown == [["north", "not known before the draw", "as proposed"]]


def test_of_many_arms_the_likely_ones_have_a_column_and_the_rest_is_added_up() -> None:
    arms = [f"a{k}" for k in range(50)]
    shares = dict.fromkeys(arms, 0.0) | {"a3": 0.004, "a30": 0.296, "a44": 0.7}
    found = upcoming([decision("north", None, shares)], arms, "season")
    assert found.columns == ["user", "a30", "a44", "48 other arms", "why"]
    assert found.rows[0][1:-1] == ["30 %", "70 %", "< 1 %"]
    many = upcoming([decision("north", None, dict.fromkeys(arms, 0.02))], arms, "season")
    assert many.columns[-2] == f"{50 - MOST_ARMS} other arms"
    assert many.rows[0][-2] == f"{2 * (50 - MOST_ARMS)} %"
