"""The report: the overview page in one file that stands alone, with nothing dangerous in it."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from drimed.errors import InputError
from drimed.formatting import short
from drimed.reports.analysis import analyse
from drimed.reports.page import report, write_report
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.reports.test_analyse import SPEC, play


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_page_stands_alone_and_shows_everything(tmp_path: Path) -> None:
    page = write_report(play(SPEC, 8), tmp_path / "r").read_text(encoding="utf-8")
    assert not re.search(r"(src|action)=|href=.(?!#)|<script|<link|@import|url\((?!#)", page)
    for heading in (
        "In short",
        "Effects against control",
        "The best arm for each user so far",
        "Was anybody worse off?",
        "Who got what",
        "Do the assumptions hold?",
        "Data",
        "What would be decided next",
    ):
        assert f">{heading}</h2>" in page
    charts = re.findall(r'<div class="plot" id="([^"]+)"', page)
    on = ["effects-chart", "effects-chart-2", "effects-chart-3"]  # the reward, yield, cost
    assert charts == [*on, "over-time-chart", "reward-chart", "allocation-chart", "evidence-chart"]
    for picture in re.findall(r"<svg class=\"chart.*?</svg>", page, re.S):
        assert ET.fromstring(picture).find("title") is not None
    assert {p.name for p in (tmp_path / "r").iterdir()} == {
        "index.html", "effects.csv", "recommendations.csv", "allocation.csv", "over_time.csv",
    }  # fmt: skip


def test_the_tables_hold_the_numbers_of_the_page(tmp_path: Path) -> None:
    trial = play(SPEC, 8)
    page = write_report(trial, tmp_path).read_text(encoding="utf-8")
    effects = read(tmp_path / "effects.csv")
    assert {row["who"] for row in effects} >= {"all users", "even", "u0"}
    for row in read(tmp_path / "recommendations.csv"):
        own = next(x for x in effects if (x["who"], x["arm"], x["on"]) == (row["user"], row["arm"], "reward"))
        assert [own[name] for name in ("estimate", "low", "high")] == [
            row[name] for name in ("effect", "effect_low", "effect_high")
        ]
        assert f"{short(float(row['effect_low']))} to {short(float(row['effect_high']))}" in page
    given = read(tmp_path / "allocation.csv")
    assert [int(row["episode"]) for row in given] == list(range(1, 9))
    assert sum(int(row[arm]) for row in given for arm in SPEC["arms"]) == 48


def test_an_empty_trial_has_a_page_too(tmp_path: Path) -> None:
    page = write_report(Trial.create(SPEC, MemoryStore()), tmp_path).read_text(encoding="utf-8")
    assert "No decisions yet." in page
    alone = Trial.create(SPEC | {"users": {"u0": {}}}, MemoryStore())
    assert "The trial has 1 user and 3 arms." in report(analyse(alone))


def test_names_cannot_smuggle_markup_into_the_page(tmp_path: Path) -> None:
    spec = SPEC | {"users": {"<b>x<b>": {}}, "about": "<script>alert(1)<script>"}
    page = write_report(play(spec, 2), tmp_path).read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "<b>x" not in page


def test_the_summary_needs_no_statistics() -> None:
    page = report(analyse(play(SPEC, 30)))
    assert "6 of 6 users" in page
    assert "more than giving everybody the control" in page


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot write to"):
        write_report(Trial.create(SPEC, MemoryStore()), tmp_path / "taken")


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
    page = report(analyse(trial))
    title = re.search(r"Effects on reward against control: all users[^<]*", page)
    assert title is not None
    assert f"({len(given)} of 29 arms, those given most)" in title[0]
