"""Seasons have names and dates where people give them, from the sheet to the export."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from drimed.errors import ConflictError, DrimedError, InputError
from drimed.records import AskRequest, Report
from drimed.reports.page import write_report
from drimed.trial import ask as asking
from drimed.trial import seasons
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.cli.commanding import CommandLine
from tests.trial.playing import records
from tests.trial.trials import SMALL

SPEC = SMALL | {"name": "t", "metrics": {"yield": {}}}


@pytest.fixture
def trial() -> Trial:
    return Trial.create(SPEC, MemoryStore())


def _open(trial: Trial, name: str | None, date: str | None = None, number: int | None = None) -> int:
    with trial.writing() as tx:
        return asking.open_episode(tx, {}, number, name=name, date=date)


def test_a_season_is_opened_by_its_name_and_decisions_carry_it(trial: Trial) -> None:
    with trial.writing() as tx:
        (first,) = asking.ask(tx, AskRequest(users=["north"], season="spring 2026", date="2026-03-15"))
        (same,) = asking.ask(tx, AskRequest(users=["south"], season="Spring 2026"))
        (second,) = asking.ask(tx, AskRequest(users=["north"], season="autumn 2026"))
    assert [(d.episode, d.season) for d in (first, same, second)] == [
        (1, "spring 2026"), (1, "spring 2026"), (2, "autumn 2026"),
    ]  # fmt: skip
    assert trial.status().season == "autumn 2026"
    assert seasons.calendar(trial.state()).label(1) == "spring 2026"
    rows = records(trial)
    assert [(r["season"], r["date"]) for r in rows] == [
        ("spring 2026", "2026-03-15"), ("spring 2026", "2026-03-15"), ("autumn 2026", None),
    ]  # fmt: skip


def test_opening_a_season_again_does_nothing_and_an_earlier_one_is_over(trial: Trial) -> None:
    assert [_open(trial, "1996"), _open(trial, "1996"), _open(trial, "1997"), _open(trial, None)] == [1, 1, 2, 3]
    with pytest.raises(ConflictError, match="season '1996' is over: season '3' is open"):
        _open(trial, "1996")
    with pytest.raises(ConflictError, match="season '1998' would be episode 4, not 3"):
        _open(trial, "1998", number=3)


@pytest.mark.parametrize("name", ["", " ", "a\x1b[31m", "x" * 101, "a\ud800"])
def test_a_name_that_is_none_is_refused(trial: Trial, name: str) -> None:
    with pytest.raises(DrimedError):
        _open(trial, name)
    assert trial.state().episode.number == 0


@pytest.mark.parametrize(
    "date", ["15/3/2026", "15/03/2026", "15.3.26", "30.2.2026", "2026-3-15", "2026-02-30", "20260315", "soon", ""]
)
def test_a_date_that_is_none_is_refused(trial: Trial, date: str) -> None:
    with pytest.raises(InputError, match=r"a date is written as 2026-03-15 or 15\.03\.2026"):
        _open(trial, "spring", date)


def test_names_survive_snapshots_and_are_proven(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drimed.trial.transaction.SNAPSHOT_EVERY", 1)
    _open(trial, "1996", "1996-05-01")
    trial.ask("north")
    again = Trial.open("t", trial.store)
    assert dict(again.state().seasons) == {1: seasons.Season("1996", "1996-05-01")}
    assert verify(trial.store, "t").ok


def test_a_trial_that_uses_the_word_season_for_a_context_keeps_its_sheets(tmp_path: Path) -> None:
    line = CommandLine(tmp_path)
    spec = SPEC | {"context": {"season": {"levels": ["dry", "wet"]}}, "name": "w"}
    line.ok("init", line.write("w.json", json.dumps(spec)), "--no-rehearse")
    sheet = line.write("s.csv", "user,season\nnorth,dry\nsouth,wet\n")
    line.ok("ask", "w", sheet, "--season", "1996", "--out", str(tmp_path / "a.csv"))
    assert [row["season"] for row in line.rows("a.csv")] == ["dry", "wet"]


def test_a_sheet_names_its_season_and_gets_it_back(tmp_path: Path) -> None:
    line = CommandLine(tmp_path)
    line.ok("init", line.write("t.json", json.dumps(SPEC)), "--no-rehearse")
    sheet = line.write("s.csv", "user,season,date\nnorth,1996,1996-05-01\nsouth,1996,01.05.1996\n")
    assert "2 decided; season 1996\n" in line.ok("ask", "t", sheet, "--out", str(tmp_path / "a.csv"))
    rows = line.rows("a.csv")
    assert [row["season"] for row in rows] == ["1996", "1996"]
    filled = "decision,season,yield\n" + "".join(f"{r['decision']},1996,5.5\n" for r in rows)
    assert "2 recorded" in line.ok("tell", "t", line.write("o.csv", filled))
    error = line.refused("tell", "t", line.write("p.csv", filled.replace("1996", "1997")))
    assert "is for season '1996', the sheet says '1997'" in str(error)
    error = line.refused("ask", "t", line.write("q.csv", "user,season\nnorth,1997\nsouth,1998\n"))
    assert "season is '1998' here and '1997' above" in str(error)
    slashes = line.write("q.csv", "user,season,date\nnorth,1997,01/05/1997\nsouth,1997,\n")
    assert "got '01/05/1997'" in str(line.refused("ask", "t", slashes))
    assert "season 1996, 1996-05-01" in line.ok("log", "t")


@pytest.mark.parametrize("date", ["15.03.2026", "15.3.2026"])
def test_a_date_with_dots_is_kept_as_any_other(trial: Trial, date: str) -> None:
    assert _open(trial, "spring", date) == 1
    assert trial.state().seasons[1].date == "2026-03-15"
    with trial.writing() as tx:
        for same in ("2026-03-15", date):
            asking.ask(tx, AskRequest(users=["north"], season="spring", date=same))
        with pytest.raises(InputError, match="2026-03-14 is before season 'spring', which began on 2026-03-15"):
            asking.ask(tx, AskRequest(users=["north"], season="summer", date="14.03.2026"))
    assert verify(trial.store, trial.name).ok


def test_a_date_cannot_be_changed_by_asking_again(trial: Trial) -> None:
    _open(trial, "1998", "1998-03-20")
    request = AskRequest(users=["north"], season="1998", date="1999-03-20")
    with (
        pytest.raises(ConflictError, match="season '1998' began on 1998-03-20, and 1999-03-20 is another date"),
        trial.writing() as tx,
    ):
        asking.ask(tx, request)


def test_the_report_calls_seasons_by_their_names_and_says_when_they_began(trial: Trial, tmp_path: Path) -> None:
    for name, date in (("spring 2026", "2026-03-15"), (None, None), ("spring 2028", "2028-03-20")):
        _open(trial, name, date)
        trial.tell_many([Report(d.id, {"yield": 5.0 + d.id % 3}) for d in trial.ask_many()])
    page = write_report(trial, tmp_path / "r").read_text(encoding="utf-8")
    said = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL)))
    assert "in 3 seasons, from spring 2026 (2026-03-15) to spring 2028 (2028-03-20)" in said
    assert "season began on" in said
    assert "spring 2028 2028-03-20 1" in said
    assert "episode" not in said
