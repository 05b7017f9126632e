"""An arm is called better or worse only after more than one season: on the page, in sentences, charts and tables."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drimed.records import Effect, Report
from drimed.reports.analysis import Analysis, analyse
from drimed.reports.effects import EVERYBODY, own_effects
from drimed.reports.page import report, write_report
from drimed.reports.wording import summary, undecided, words_of
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.reports.field_trials import FIELD, PEOPLE, grown
from tests.reports.test_checks import JUDGED

# Sites with six plots, each arm by chance, and effects of 60 and -40 where the noise is 6.
CLEAR: dict[str, Any] = {k: v for k, v in FIELD.items() if k != "context"} | {
    "policy": {"name": "uniform"},
    "users": {f"s{i}": {"plots": [str(p) for p in range(6)], "group": "ab"[i % 2]} for i in range(4)},
}
TIMES = 5.0
WHY = "compared with the control in one season only: another must confirm it"


@pytest.fixture(scope="module")
def one() -> Analysis:
    return analyse(grown(CLEAR, 1, times=TIMES))


@pytest.fixture(scope="module")
def two() -> Analysis:
    return analyse(grown(CLEAR, 2, times=TIMES))


def of(a: Analysis, arm: str, on: str = "reward") -> list[Effect]:
    """For all users, groups and users, by the model."""
    return [x for x in a.effects if (x.arm, x.on, x.source) == (arm, on, "model")]


def test_after_one_season_ranges_are_clear_of_zero_and_nothing_is_said(one: Analysis) -> None:
    for arm, way in (("good", 1), ("bad", -1)):
        found = of(one, arm)
        assert len(found) == 1 + 2 + 4
        for x in found:
            assert min(way * x.ends[0], way * x.ends[1]) > 0, "the ranges stay as they are"
            assert (x.certain, x.likely, x.verdict, x.seasons) == (0, 0, "open", 1)
            assert x.unconfirmed == WHY
    said = summary(one)
    assert f"Not judged yet: good and bad ({WHY})." in said
    assert not re.search(r"better than the control|good earns|No arm is likely", " ".join(said))
    assert any("good is estimated to earn" in s and "which another season must confirm" in s for s in said)
    assert "4 of 4 users are undecided" in str(undecided(one, words_of(one)))


def test_the_page_says_why_beside_each_arm_and_has_no_verdict(one: Analysis, tmp_path: Path) -> None:
    page = report(one)
    assert not re.search(JUDGED, page)
    assert page.count(f"<td>{WHY}</td>") >= 4 + 2 * len(of(one, "good")), "best arms, and the tables of the charts"
    assert "one season only</text>" in page
    write_report(grown(CLEAR, 1, times=TIMES), tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out" / "effects.csv").read_text("utf-8-sig").splitlines()))
    assert {r["seasons"] for r in rows if r["source"] == "model"} == {"1"}


def test_after_two_seasons_it_is_said(two: Analysis) -> None:
    assert all((x.certain, x.likely, x.verdict, x.seasons) == (1, 1, "better", 2) for x in of(two, "good"))
    assert all((x.certain, x.verdict) == (-1, "worse") for x in of(two, "bad"))
    said = " ".join(summary(two))
    assert "For 4 of 4 users, good is certainly better than the control in an average season." in said
    assert "good earns" in said
    assert "Not judged yet" not in said
    page = report(two)
    assert re.search(JUDGED, page)
    assert WHY not in page


def test_the_summary_counts_the_seasons_of_the_arm_and_not_those_of_the_trial(two: Analysis) -> None:
    newer = [replace(x, seasons=1) if x.arm == "good" else x for x in two.effects]
    best = next(s for s in summary(replace(two, effects=newer)) if "good is estimated to earn" in s)
    assert "which another season must confirm" in best
    assert best.endswith("; compared in 1 season).")
    assert any(s.endswith("; compared in 2 seasons).") for s in summary(two) if "good earns" in s)


def test_seasons_of_the_whole_trial_count_for_a_user_who_was_there_in_one() -> None:
    """What a season does to an arm is common to all sites."""
    trial = grown(CLEAR, 2, times=TIMES)
    trial.add_user("late", {"plots": ["1"]})
    found = {x.arm: x for x in own_effects(trial.state(), ["late"])}
    assert (found["good"].decisions, found["good"].seasons, found["good"].likely) == (0, 2, 1)


def test_an_arm_that_came_later_waits_for_its_second_season_alone() -> None:
    trial = grown(CLEAR, 2, times=TIMES)
    trial.add_arm("new")
    trial.open_episode()
    reports = []
    for i, given in enumerate(trial.ask_many()):
        level = {"new": 160.0, "good": 120.0, "bad": 20.0}.get(given.arm, 60.0)
        reports.append(Report(given.id, {"yield": level + i % 3, "cost": 20.0 + i % 2}))
    trial.tell_many(reports, confirm=True)
    found = analyse(trial)
    (new,) = (x for x in of(found, "new") if x.who == EVERYBODY)
    assert new.ends[0] > 0
    assert (new.seasons, new.likely) == (1, 0)
    assert all(x.certain == 1 for x in of(found, "good"))
    assert f"Not judged yet: new ({WHY})." in summary(found)


def test_a_metric_that_one_season_alone_has_told_of_is_not_judged() -> None:
    trial = Trial.create(CLEAR, MemoryStore())
    for season in range(2):
        trial.open_episode()
        told = [
            Report(d.id, {"yield": {"good": 120.0, "bad": 20.0}.get(d.arm, 60.0) + i % 3})
            for i, d in enumerate(trial.ask_many())
        ]
        cost = [Report(r.decision, {"cost": 20.0 + i % 4}) for i, r in enumerate(told)]
        trial.tell_many(told, confirm=True)
        if season == 0:
            trial.tell_many(cost, confirm=True)
    found = analyse(trial)
    assert {x.seasons for x in of(found, "good", "yield")} == {2}
    assert {x.seasons for x in of(found, "good", "cost")} == {1}
    assert {x.seasons for x in of(found, "good")} == {1}, "the reward rests on both"


@pytest.mark.parametrize("spec", [PEOPLE | {"policy": {"name": "uniform"}}, CLEAR | {"model": {"seasons": False}}])
def test_models_in_which_no_season_acts_on_an_arm_alone_judge_after_one(spec: dict[str, Any]) -> None:
    found = analyse(grown(spec, 1, times=TIMES))
    assert {(x.seasons, x.likely) for x in of(found, "good")} == {(None, 1)}
    assert not any("Not judged yet" in s for s in summary(found))
