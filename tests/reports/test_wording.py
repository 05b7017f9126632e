"""Sentences: for whom and when they hold, and silence where evidence is missing."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drimed.records import Decision, Effect
from drimed.reports import wording
from drimed.reports.analysis import Analysis, analyse
from drimed.reports.charts import components
from drimed.reports.effects import EVERYBODY, Component, Recommendation
from drimed.reports.page import report
from drimed.reports.wording import (
    MOST_NAMED,
    Words,
    set_aside,
    standing,
    undecided,
    upcoming,
    words_of,
)
from drimed.trial.events import Draft, Foreseen
from tests.reports import worlds
from tests.reports.worlds import summary
from tests.trial.test_kinds import played


def effect(who: str, low: float, high: float, **more: Any) -> Effect:
    return Effect(who, "good", "reward", (low + high) / 2, low - 9, high + 9, low, high, **{"seasons": 4, **more})


def test_the_summary_says_for_whom_and_when() -> None:
    said = " ".join(summary(worlds.field()))
    assert re.search(r"For the average of these 6 sites in an average season, good earns [\d.]+ more than", said)
    assert f"; compared in {worlds.everybody(worlds.field(), 'good').seasons} seasons)" in said
    better = r"For \d of 6 sites, good is (likely|certainly) better than the control in an average season\."
    assert re.search(better, said)
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
    assert "No arm is shown to be better than the control yet." in said


def test_arms_that_a_user_cannot_get_or_that_were_never_given_are_left_out() -> None:
    users = worlds.PAPER["users"] | {"u0": {"arms": ["old", "bad"]}}
    said = " ".join(summary(analyse(worlds.play(worlds.PAPER | {"users": users}, 30))))
    assert re.search("For 5 of 6 users, good is (likely|certainly) better than the control.", said)
    trial = worlds.grown(worlds.FIELD, 3)
    trial.add_arm("new")
    assert not any("new" in s for s in summary(analyse(trial)))


def test_an_arm_that_is_certainly_worse_on_a_metric_and_still_given_is_something_to_decide() -> None:
    a = worlds.two_seasons()
    harm = "Decide whether bad may still be given: it is certainly worse than the control on yield."
    assert harm in wording.answers(a, words_of(a))["What to do now"]
    never = [replace(d, probabilities={"old": 1.0, "bad": 0.0, "good": 0.0}) for d in a.next]
    assert harm not in wording.answers(replace(a, next=never), words_of(a))["What to do now"]


def test_what_was_gained_by_a_yes_or_no_outcome_is_so_many_in_100() -> None:
    a = analyse(played(30, preference={"cure": 1.0, "pain": 0.0, "visits": 0.0, "weight": 0.0}))
    (said,) = (s for s in summary(a) if "than under the control (could be" in s)
    assert re.match(
        r"cure: about \d+ (more|fewer) in 100 than under the control \(could be \d+ (more|fewer) to \d+", said
    )


def test_one_season_is_not_enough_and_two_are() -> None:
    said = summary(worlds.one_season())
    assert f"Not judged yet: good and bad ({worlds.WHY})." in said
    assert not re.search(r"is (certainly|likely) better than|good earns|No arm is shown to be better", " ".join(said))
    assert any("good is estimated to earn" in s and "which another season must confirm" in s for s in said)
    assert "4 of 4 users are undecided" in str(undecided(worlds.one_season(), words_of(worlds.one_season())))
    two = " ".join(summary(worlds.two_seasons()))
    assert "For 4 of 4 users, good is certainly better than the control in an average season." in two
    assert "Not judged yet" not in two


def test_an_arm_without_an_answer_and_without_a_chance_is_set_aside() -> None:
    a = worlds.one_season()
    assert set_aside(a) == []  # every arm is drawn as often as the others
    seldom = replace(a, next=[replace(d, probabilities={"old": 0.5, "good": 0.499, "bad": 0.001}) for d in a.next])
    (said,) = set_aside(seldom)
    assert said.startswith("bad is set aside without an answer: of the next 24 decisions it is expected to get 0.024.")
    assert "would take outcomes of it and of the control in another season" in said
    assert said in report(seldom).replace("&#34;", '"')
    decided = replace(worlds.two_seasons(), next=seldom.next)
    assert set_aside(decided) == []
    bad = replace(worlds.everybody(decided, "bad"), estimate=-2.0, low=-9.0, high=5.0, likely_low=-6.0, likely_high=2.0)
    (said,) = set_aside(replace(decided, effects=[bad]))
    assert f"about {3 * bad.decisions} more outcomes of it" in said  # half the width needs four times the outcomes
    alone = replace(bad, likely_low=-3.0, likely_high=-1.0, significant=False)
    (said,) = set_aside(replace(decided, effects=[alone]))
    assert "would take some more outcomes of it" in said  # below 0, and open since there are several arms


def test_a_trial_that_stands_on_its_control_is_told_what_would_free_a_new_one() -> None:
    a = worlds.one_season()
    assert standing(a, words_of(a)) == []
    chances = {"old": 0.9, "good": 0.06, "bad": 0.04}
    held = [replace(d, probabilities=chances, share=0.1) for d in a.next]
    said, way = standing(stands := replace(a, next=held), words_of(a))
    assert said.startswith("The trial stands on its control, which gets 90 % of the next decisions: the guard is not")
    ways = "would be freed by a declared spread of yield and cost, a second season or more plots"
    assert ways in way
    assert said in summary(stands)
    assert f"{said} {way}" in report(stands)
    wanted = replace(a, next=[replace(d, share=1.0) for d in held])
    assert standing(wanted, words_of(a)) == [], "the policy itself wants the control"


def test_the_last_forecast_is_shown_and_how_to_make_one() -> None:
    trial = worlds.grown(worlds.CLEAR, 1)
    assert "`drimed trial rehearse t` makes one" in report(analyse(trial))
    with trial.writing("ann") as tx:
        tx.append([Draft(Foreseen(1, 200, "With 80 % chance an arm is shown to be better by season 9."))])
    shown = "With 80 % chance an arm is shown to be better by season 9 (forecast from season 1 with 200 rehearsals)."
    assert shown in report(analyse(trial))
    trial.stop(reason="enough")
    assert analyse(trial).forecast == ""
    assert worlds.paper().forecast == ""


def test_effects_that_may_be_chance_are_inconclusive() -> None:
    a = worlds.field()
    effects = [effect("s0", 0.2, 2.0, significant=False), effect("s1", -1.0, 2.0, significant=False)]
    said = summary(replace(a, effects=effects))
    assert "No arm is shown to be better than the control for a single site yet." in said
    chance = "By the likely range alone, good would be called better for 1 of 6 sites; inconclusive after adjusting"
    assert any(s.startswith(chance) for s in said)
    open_ = effect(EVERYBODY, 0.2, 2.0, significant=False)
    for x, words in ((open_, "is estimated to earn"), (replace(open_, low=0.1, high=2.1), "earns")):
        first = next(s for s in summary(replace(a, effects=[x])) if s.startswith("For the average of"))
        assert f"good {words} 1.1 more than the control" in first
        assert ("which may be chance among so many comparisons" in first) == (x.certain == 0)


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
        "yield (dt), as standard deviations: sites differ: 5.21 (3.04 to 11.9); an arm's effect differs between sites: "
        "at most 4.64; seasons differ: cannot be told yet; an arm's effect differs between seasons: cannot be told yet."
    )
    assert [row[1:] for row in chart.table.rows] == [
        ["5.21", "3.04", "11.9", ""],
        ["", "0", "4.64", ""],
        *[["", "", "", "cannot be told yet"]] * 2,
    ]
    soil = replace(words, categories=("soil",)).component("category 0 x arm")
    assert soil == "an arm's effect differs between levels of soil by"


def test_of_many_arms_the_table_lists_those_given_most(monkeypatch: pytest.MonkeyPatch) -> None:
    a = worlds.paper()
    monkeypatch.setattr(wording, "MOST_LISTED", 2)
    table = wording.recorded_by_arm(a)
    assert table is not None
    assert table.caption.endswith("(2 of 3 arms, those given most)")
    assert {row[0] for row in table.rows} == {"old", "good", "bad"} - {min(a.times, key=lambda arm: a.times[arm])}


def test_a_harm_on_any_metric_is_on_the_first_screen() -> None:
    a = worlds.field()
    cost = Effect(EVERYBODY, "bad", "cost", 3.0, 1.0, 5.0, 2.0, 4.0, seasons=4, decisions=9)
    less = Effect(EVERYBODY, "good", "cost", -3.0, -5.0, -1.0, -4.0, -2.0, seasons=4, decisions=9)
    assert "bad is certainly worse than the control on cost: 3 more (likely 2 to 4)." in summary(
        replace(a, effects=[cost, less])
    )
    loss = Effect(EVERYBODY, "bad", "yield", -3.0, -9.0, 1.0, -5.0, -2.0, seasons=4, decisions=9)
    said = "bad is likely worse than the control on yield: 3 dt less (likely 2 to 5)."
    assert said in summary(replace(a, effects=[loss]))
    free = replace(cost, source="propensities", significant=None, seasons=None, likely_low=1.0, likely_high=5.0)
    wrong = replace(a, effects=[cost, free], checks=replace(a.checks, withdrawn="wrong"))
    assert [s for s in summary(wrong) if "worse" in s] == [
        "bad is certainly worse than the control on cost: 3 more (likely 1 to 5)."
    ], "without the model, where the model is wrong"
    none = "No arm is shown to be worse than the control on any measure."
    assert none in summary(replace(a, effects=[less, replace(cost, low=-1.0, likely_low=-0.5)]))


def recommended(
    chances: list[float], *, withdrawn: str | None = None, seasons: int | None = None, runner_up: str = "old"
) -> str:
    best = Effect("", "new", "reward", 1.0, 0.5, 1.5, 0.7, 1.3, seasons=seasons)
    some = [Recommendation(f"u{i}", "old", best, 0.5, runner_up, p) for i, p in enumerate(chances)]
    own = dict.fromkeys([r.user for r in some], 2)
    a = SimpleNamespace(recommendations=some, checks=SimpleNamespace(withdrawn=withdrawn), own_rows=own)
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
    found = upcoming([*decisions, decision("south", None, odd)], ["a", "b"], "season", {})
    assert found.columns == ["user", "a", "b", "why"]
    assert found.rows == [
        ["north, 2 plots alike", "50 %", "50 %", "as proposed"],
        ["north, plot 3", "20 %", "80 %", "as proposed"],
        ["south", "20 %", "80 %", "as proposed"],
    ]
    assert upcoming([], ["a"], "season", {}).rows == []
    unknown = upcoming([decision("north", None, {})], ["a"], "season", {}).rows
    assert unknown == [["north", "not known before the draw", "as proposed"]]


def test_the_next_decisions_of_people_alike_are_a_range() -> None:
    chances, kinds = ((0.5, 0.5), (0.2, 0.8), (0.4, 0.6)), {"p0": "f", "p1": "f", "p2": "m"}
    decisions = [decision(p, None, dict(zip("ab", own, strict=True))) for p, own in zip(kinds, chances, strict=True)]
    assert upcoming(decisions, ["a", "b"], "season", kinds).rows == [
        ["2 people (f)", "20 % to 50 %", "50 % to 80 %", "as proposed"],
        ["1 person (m)", "40 %", "60 %", "as proposed"],
    ]
    unknown = upcoming([decision("p0", None, {})], ["a"], "season", kinds).rows
    assert unknown == [["1 person (f)", "not known before the draw", "as proposed"]]


def test_people_who_came_once_have_no_rows_of_their_own() -> None:
    users = {f"guest{i}": {"attributes": {"sex": "fm"[i % 2]}} for i in range(20)}
    a = analyse(worlds.grown(worlds.PEOPLE | {"users": users}, 1))
    assert "guest" not in report(a)
    table = wording.best_by_kind(a)
    assert table is not None
    found = [re.fullmatch(r"(\d+) (?:person|people) \(([fm])\)", row[0]) for row in table.rows]
    counts = {sex: sum(int(m[1]) for m in found if m and m[2] == sex) for sex in "fm"}
    assert counts == {"f": 10, "m": 10}
    again = analyse(worlds.grown(worlds.PEOPLE | {"users": users}, 2))
    assert wording.best_by_kind(again) is None, "all have returned"
    assert all(f">{user}</th>" in report(again) for user in users)


def test_of_many_arms_those_with_a_chance_have_a_column() -> None:
    arms = [f"a{k}" for k in range(50)]
    shares = dict.fromkeys(arms, 0.0) | {"a3": 0.004, "a30": 0.296, "a44": 0.7}
    found = upcoming([decision("north", None, shares)], arms, "season", {})
    assert found.columns == ["user", "a30", "a44", "why"]
    assert found.rows[0][1:-1] == ["30 %", "70 %"]
