"""The report: the overview page in one file that stands alone, its tables, and nothing dangerous in it."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from drimed.errors import InputError
from drimed.formatting import short
from drimed.reports.analysis import analyse
from drimed.reports.page import meanings, report, report_tables, table_columns, write_report
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.reports import worlds

CHARTS = r'<div class="plot" id="([^"]+)"'


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def verdicts(page: str) -> dict[str, str]:
    """By the model, of the first chart of all users and of the chart of each one."""
    found: dict[str, str] = {}
    for name, rest in re.findall(r"<tr><th scope=\"row\">([^<]*)</th>(.*?)</tr>", page, re.S):
        row = re.findall(r"<td[^>]*>([^<]*)</td>", rest)
        if "model" in row:
            found.setdefault(name, row[row.index("model") + 1])
    return found


def test_the_page_stands_alone_and_shows_everything(tmp_path: Path) -> None:
    page = write_report(worlds.play(worlds.PAPER, 8), tmp_path / "r").read_text(encoding="utf-8")
    assert not re.search(r"(src|action)=|href=.(?!#)|<script|<link|@import|url\((?!#)", page)
    headings = (
        "Effects against control", "The best arm for each user so far", "Was anybody worse off?",
        "Who got what", "Do the assumptions hold?", "Data", "What would be decided next",
    )  # fmt: skip
    for heading in headings:
        assert f">{heading}</h2>" in page
    on = ["effects-chart", "effects-chart-2", "effects-chart-3"]  # the reward, yield, cost
    assert re.findall(CHARTS, page) == [*on, "over-time-chart", "reward-chart", "allocation-chart"]
    assert {p.name for p in (tmp_path / "r").iterdir()} == {
        "index.html", "effects.csv", "recommendations.csv", "allocation.csv", "over_time.csv",
    }  # fmt: skip


def test_the_page_of_a_field_trial_has_a_table_and_a_sentence_for_each_chart() -> None:
    page = report(worlds.field())
    charts = re.findall(CHARTS, page)
    assert {"site-effects-chart", "varies-chart", "sites-chart", "seasons-chart", "covariate-chart-2"} <= set(charts)
    assert page.count("The same in numbers") == len(charts)
    for picture in re.findall(r"<svg class=\"chart.*?</svg>", page, re.S):
        tree = ET.fromstring(picture)
        assert tree.find("title") is not None
        assert tree.find("desc") is not None
    for word in ("posterior", "prior", "covariance", "variance", "mixed model", "random effect", "regression"):
        assert not re.search(rf"\b{word}\b", page), word


def test_the_tables_hold_the_numbers_of_the_page(tmp_path: Path) -> None:
    page = write_report(worlds.grown(worlds.FIELD, 3), tmp_path).read_text(encoding="utf-8")
    effects = read(tmp_path / "effects.csv")
    assert {row["who"] for row in effects} >= {"all users", "s0"}
    for row in read(tmp_path / "recommendations.csv"):
        own = next(x for x in effects if (x["who"], x["arm"], x["on"]) == (row["user"], row["arm"], "reward"))
        ends = [row[name] for name in ("effect_low", "effect_high")]
        assert [own["low"], own["high"]] == ends
        assert row["effect"] == "0.0" or f"{short(float(ends[0]))} to {short(float(ends[1]))}" in page
    given = read(tmp_path / "allocation.csv")
    assert [(row["episode"], row["arm"]) for row in given] == [(e, arm) for e in "123" for arm in worlds.FIELD["arms"]]
    assert sum(int(row["decisions"]) for row in given) == 36
    assert {row["of"] for row in read(tmp_path / "levels.csv")} == {"site", "season"}
    assert {row["metric"] for row in read(tmp_path / "varies.csv")} == {"yield", "cost"}
    assert {row["covariate"] for row in read(tmp_path / "covariates.csv")} == {"rain", "soil"}


def test_every_column_of_a_table_is_explained() -> None:
    for name, rows in report_tables(worlds.field()).items():
        assert set(table_columns()[name]) == set(rows[0]), name
        assert all(meanings(name, rows[0]).values())


def test_a_trial_without_outcomes_has_a_page_that_claims_nothing(tmp_path: Path) -> None:
    empty = Trial.create(worlds.PAPER, MemoryStore())
    assert (analyse(empty).checks.alarms, len(analyse(empty).recommendations)) == ([], 6)
    page = write_report(empty, tmp_path).read_text(encoding="utf-8")
    assert "No decisions yet." in page
    assert "The trial has 6 users and 3 arms." in page
    one = Trial.create(worlds.FIELD, MemoryStore())
    one.open_episode({user: {"rain": 300.0} for user in worlds.FIELD["users"]})
    one.tell(one.ask_many(["s0"])[0].id, {"yield": 50.0, "cost": 20.0})
    page = report(analyse(one))
    assert "There is nothing to compare yet." in page
    assert not re.search(worlds.JUDGED, page)


def test_names_cannot_smuggle_markup_into_the_page(tmp_path: Path) -> None:
    spec = worlds.PAPER | {"users": {"<b>x<b>": {}}, "about": "<script>alert(1)<script>"}
    page = write_report(worlds.play(spec, 2), tmp_path).read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "<b>x" not in page


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot write to"):
        write_report(Trial.create(worlds.PAPER, MemoryStore()), tmp_path / "taken")


def test_after_one_season_the_page_says_why_and_has_no_verdict() -> None:
    page = report(worlds.one_season())
    assert not re.search(worlds.JUDGED, page)
    assert page.count(f"<td>{worlds.WHY}</td>") >= 4, "best arms, and the tables of the charts"
    assert "one season only</text>" in page
    page = report(worlds.two_seasons())
    assert re.search(worlds.JUDGED, page)
    assert worlds.WHY not in page


def test_a_retired_arm_is_marked_and_keeps_its_verdict() -> None:
    trial = worlds.grown(worlds.CLEAR, 2, times=worlds.TIMES)
    before = verdicts(report(analyse(trial)))
    trial.retire_arm("good", reason="too dear")
    page = report(analyse(trial))
    after = verdicts(page)
    assert {name.replace(" (retired)", ""): verdict for name, verdict in after.items()} == before
    assert after["s1: good (retired)"] == "more, certainly"
    assert "good (retired, given" in page
    assert "good (retired) earns" in page
    assert "bad is estimated to earn" in page or "bad earns" in page, "the best of the others"


def test_where_only_the_control_has_outcomes_nothing_is_recommended(tmp_path: Path) -> None:
    trial = worlds.grown(worlds.FIELD, 1)
    page = write_report(trial, tmp_path).read_text(encoding="utf-8")
    assert analyse(trial).given == {"old"}
    assert "There is nothing to recommend yet: of the arms that can be given, only the control has outcomes." in page
    assert "best so far" not in page
    rows = read(tmp_path / "recommendations.csv")
    assert {(row["arm"], row["effect"], row["lead"], row["runner_up"]) for row in rows} == {("old", "0.0", "", "")}


def test_a_range_that_is_not_known_yet_is_said_so() -> None:
    a = worlds.field()
    open_ = [replace(r, effect=replace(r.effect, low=None, high=None)) for r in a.recommendations]
    page = report(replace(a, recommendations=open_))
    assert "∞" not in page
    assert page.count("not known yet") == len(open_)


def test_a_withdrawn_promise_is_said_first_and_nothing_is_judged() -> None:
    a = worlds.paper()
    assert re.search(worlds.JUDGED, report(a))
    sentence = "The ranges and the promise to stay near the control do not hold, because the model is wrong: x."
    page = report(replace(a, checks=replace(a.checks, withdrawn=sentence)))
    assert page.index("do not hold") < page.index("240 decisions")
    assert a.benefit.verdict not in page
    assert not re.search(worlds.JUDGED, page)
    assert "not judged" in page


def test_of_many_arms_the_effects_of_those_given_most_are_drawn() -> None:
    arms: dict[str, dict[str, str]] = {f"a{k}": {} for k in range(30)}
    spec = {
        "name": "many", "metrics": {"yield": {}}, "arms": arms, "control": "a0", "preference": {"yield": 1.0},
        "users": {"u": {}}, "tolerance": {"absolute": 9.0}, "seed": 1, "decisions": "any number",
        "policy": {"name": "uniform"},
    }  # fmt: skip
    trial = Trial.create(spec, MemoryStore())
    given: set[str] = set()
    for i in range(12):
        decision = trial.ask("u")
        trial.tell(decision.id, {"yield": 5.0 + i % 3}, confirm=True)
        given |= {decision.arm} - {"a0"}
    title = re.search(r"Effects on reward against control: all users[^<]*", report(analyse(trial)))
    assert title is not None
    assert f"({len(given)} of 29 arms, those given most)" in title[0]
