"""`drimed trial` as a person meets it: files in, files out, and errors that say what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from drimed.errors import ConflictError, DrimedError, InputError, SpecError, StoreError, UnknownNameError
from drimed.trial.tables import csv_text
from tests.cli.commanding import CommandLine, started
from tests.trial.fields import FIELD, PATIENTS, SEASON, WAITING

SHEET = "user,rain\nnorth,400\nhill,520\nriver,380\n"


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    made = CommandLine(tmp_path)
    made.ok("template", "--out", str(tmp_path / "t.toml"))
    made.ok("init", str(tmp_path / "t.toml"), "--no-rehearse")
    made.write("s.csv", SHEET)
    return made


def test_a_season_goes_through_sheets(line: CommandLine) -> None:
    sheet = str(line.folder / "s.csv")
    said = line.ok("ask", "maize-nitrogen", sheet, "--episode", "1", "--out", str(line.folder / "a.csv"))
    assert "3 decided; season 1\n" in said
    again = line.ok("ask", "maize-nitrogen", sheet, "--episode", "1", "--out", str(line.folder / "b.csv"))
    assert "3 decided before" in again
    rows = line.rows("a.csv")
    assert line.rows("b.csv") == rows
    assert [r["user"] for r in rows] == ["north", "hill", "river"]
    filled = "decision,user,arm,yield,leaching\n" + "".join(
        f"{r['decision']},{r['user']},{r['arm']},9,30\n" for r in rows
    )
    assert "3 recorded" in line.ok("tell", "maize-nitrogen", line.write("o.csv", filled))
    assert "3 already recorded" in line.ok("tell", "maize-nitrogen", line.write("o.csv", filled))
    status = line.status("maize-nitrogen")
    assert (status["complete"], status["pending"]) == (3, 0)


def test_a_dry_run_shows_and_writes_nothing(line: CommandLine) -> None:
    sheet = str(line.folder / "s.csv")
    line.ok("ask", "maize-nitrogen", sheet, "--user", "north", "--episode", "1")
    before = line.status("maize-nitrogen")["events"]
    assert "Nothing was recorded" in line.ok("ask", "maize-nitrogen", sheet, "--dry-run")
    outcome = line.write("o.csv", "decision,yield,leaching\n1,9.0,30.0\n")
    assert "Nothing was written" in line.ok("tell", "maize-nitrogen", outcome, "--dry-run")
    line.ok("missing", "maize-nitrogen", "--decision", "1", "--reason", "x", "--dry-run")
    assert "Nothing was written" in line.ok("init", str(line.folder / "t.toml"), "--dry-run")
    assert line.status("maize-nitrogen")["events"] == before


def test_changes_are_kept_in_the_log_with_their_reasons(line: CommandLine) -> None:
    line.ok("ask", "maize-nitrogen", str(line.folder / "s.csv"), "--episode", "1")
    line.ok("tell", "maize-nitrogen", "--decision", "1", "--value", "yield=8.7", "--value", "leaching=31")
    line.ok("amend", "maize-nitrogen", "yield=8.9", "--decision", "1", "--reason", "scale off", "--actor", "ann")
    line.ok("add-user", "maize-nitrogen", "lake", "--preference", "yield=1", "--group", "sand")
    line.ok("add-arm", "maize-nitrogen", "cover")
    line.ok("prefer", "maize-nitrogen", "north", "yield=1", "leaching=-1", "--reason", "levy")
    line.ok("retire-arm", "maize-nitrogen", "reduced", "--reason", "no stock")
    line.ok("pause", "maize-nitrogen", "--reason", "board")
    assert isinstance(line.refused("ask", "maize-nitrogen", str(line.folder / "s.csv")), ConflictError)
    line.ok("resume", "maize-nitrogen")
    line.ok("stop", "maize-nitrogen", "--reason", "done")
    said = line.ok("log", "maize-nitrogen")
    for word in ("(was yield = 8.7", "scale off", "ann", "levy", "no stock", "board", "cover"):
        assert word in said
    story = line.ok("log", "maize-nitrogen", "--decision", "1", "--json").splitlines()
    assert [json.loads(line)["kind"] for line in story] == ["decision", "outcome", "amendment"]
    assert "the log is intact" in line.ok("verify", "maize-nitrogen")


def test_a_broken_log_is_an_exit_code(line: CommandLine) -> None:
    import sqlite3

    kept = line.status("maize-nitrogen")["hash"]
    line.ok("ask", "maize-nitrogen", str(line.folder / "s.csv"), "--episode", "1")
    line.ok("verify", "maize-nitrogen", "--expect", kept)
    assert line.run("verify", "maize-nitrogen", "--expect", "0" * 64).exit_code == 1
    with sqlite3.connect(line.folder / "t.db") as db:
        db.execute("UPDATE drimed_events SET actor = 'eve' WHERE seq = 3")
    result = line.run("verify", "maize-nitrogen")
    assert result.exit_code == 1
    assert "event 3" in result.output


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (["status", "maise"], UnknownNameError, "unknown trial 'maise'; did you mean 'maize-nitrogen'"),
        (["ask", "maize-nitrogen", "--episode", "1"], InputError, "in a sheet"),
        (["ask", "maize-nitrogen", "nowhere.csv"], InputError, "cannot read nowhere.csv"),
        (["tell", "maize-nitrogen"], InputError, "give a sheet, or --decision with --value"),
        (["tell", "maize-nitrogen", "--decision", "1", "--value", "yield"], InputError, "expected NAME=VALUE"),
        (["tell", "maize-nitrogen", "--decision", "9", "--value", "yield=1"], InputError, "no decision 9"),
        (["amend", "maize-nitrogen", "yield=1", "--decision", "9", "--reason", "x"], InputError, "no decision 9"),
        (["log", "maize-nitrogen", "--kind", "decisoin"], UnknownNameError, "did you mean 'decision'"),
        (["prefer", "maize-nitrogen", "nort", "yield=1", "--reason", "x"], UnknownNameError, "did you mean 'north'"),
        (["status", "--store", "nowhere.db"], StoreError, "there is no store nowhere.db"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    line: CommandLine, words: list[str], kind: type[DrimedError], said: str
) -> None:
    error = line.refused(*words)
    assert isinstance(error, kind)
    assert said in str(error)


def test_the_file_s_faults_come_with_their_lines(line: CommandLine) -> None:
    text = (line.folder / "t.toml").read_text(encoding="utf-8").replace('metric = "yield"', 'metric = "yeild"')
    error = line.refused("init", line.write("w.toml", text))
    assert isinstance(error, SpecError)
    number = 1 + text[: text.index('"yeild"')].count("\n")
    assert str(error).startswith(f"line {number}: guardrails.0.metric")


@pytest.fixture
def field(tmp_path: Path) -> CommandLine:
    return started(tmp_path, FIELD, PATIENTS)


def test_plots_go_through_sheets_and_are_shown(field: CommandLine) -> None:
    out = str(field.folder / "a.csv")
    assert "4 decided" in field.ok("ask", "field", field.write("s.csv", SEASON), "--episode", "1", "--out", out)
    assert [(r["user"], r["plot"], r["block"]) for r in field.rows("a.csv")][2:] == [
        ("north", "B1", "B"),
        ("south", "", ""),
    ]
    filled = csv_text([row | {"yield": 5} for row in field.rows("a.csv")])
    assert "4 recorded" in field.ok("tell", "field", field.write("o.csv", filled))
    shown = field.ok("decisions", "field", "--block", "A")
    assert re.search(r"2 +1 +north +A2 +A +old +complete", shown)
    assert "B1" not in shown
    assert "plot B1 in block B" in field.ok("log", "field", "--decision", "3")


def test_somebody_new_joins_from_the_command_line_and_from_a_sheet(field: CommandLine) -> None:
    field.ok("ask", "patients", "--user", "p0", "--attribute", "age=61", "--attribute", "sex=f", "--cohort", "ward")
    field.ok("ask", "patients", field.write("w.csv", WAITING))
    said = field.ok("status", "patients")
    assert re.search(r"patients +running +people +1 +3", said)
    assert "enrolment is open" in said
    assert "sex = f" in field.ok("log", "patients", "--user", "p0")
    assert "the log is intact" in field.ok("verify", "patients")


def test_a_user_is_added_with_attributes_and_plots(field: CommandLine) -> None:
    words = ("add-user", "field", "west", "--attribute", "ph=5.5", "--attribute", "soil=3")
    field.ok(*words, "--plot", "W/1", "--plot", "W/2")
    west = json.loads(field.ok("log", "field", "--user", "west", "--json"))["body"]["definition"]
    assert west == {"attributes": {"ph": 5.5, "soil": "3"}, "blocks": {"W": ["1", "2"]}}


def test_anchors_are_kept_in_a_file_and_compared(line: CommandLine) -> None:
    file = str(line.folder / "anchors.txt")
    line.ok("ask", "maize-nitrogen", str(line.folder / "s.csv"))
    assert "added 2 lines" in line.ok("anchor", "--to", file)
    assert "added 0 lines" in line.ok("anchor", "maize-nitrogen", "--to", file)
    printed = line.ok("anchor").split()
    assert printed[1] == "maize-nitrogen"
    assert printed[3] in (line.folder / "anchors.txt").read_text()
    assert f"2 anchors hold: nothing up to event {printed[2]} was changed" in " ".join(
        line.ok("verify", "maize-nitrogen", "--anchors", file).split()
    )
    line.write("anchors.txt", " ".join([*printed[:3], "0" * 64]) + "\n")
    result = line.run("verify", "maize-nitrogen", "--anchors", file)
    assert result.exit_code == 1
    assert "was changed after that" in " ".join(result.output.split())
    none = line.write("none.txt", "")
    assert "has no anchor of trial" in str(line.refused("verify", "maize-nitrogen", "--anchors", none))


def test_the_hash_of_the_log_is_beside_what_is_handed_out(line: CommandLine) -> None:
    said = line.ok("ask", "maize-nitrogen", str(line.folder / "s.csv"), "--out", f"{line.folder}/arms.csv")
    hash = line.status("maize-nitrogen")["hash"]
    assert hash in said
    line.ok("export", "maize-nitrogen", "--out", f"{line.folder}/all.csv")
    assert hash in line.rows("all.dictionary.csv")[-1]["meaning"]
    line.ok("report", "maize-nitrogen", "--out", f"{line.folder}/report")
    assert hash in (line.folder / "report" / "index.html").read_text()


def test_why_an_arm_was_given_is_told_in_words(line: CommandLine) -> None:
    line.ok("ask", "maize-nitrogen", str(line.folder / "s.csv"), "--episode", "1")
    said = line.ok("why", "maize-nitrogen", "1")
    assert "decision 1, season 1:" in said
    assert "for north" in said
    assert isinstance(line.refused("why", "maize-nitrogen", "99"), UnknownNameError)


def test_a_history_is_named_in_the_file_or_on_the_command_line(tmp_path: Path) -> None:
    line = CommandLine(tmp_path)
    text = 'name = "t"\ncontrol = "old"\npreference = { yield = 1 }\n[metrics.yield]\n[arms.old]\n[arms.new]\n'
    text += "[users.north]\n[tolerance]\nabsolute = 1\n"
    file, past = line.write("t.toml", text + '[history]\nfile = "past.csv"\n'), tmp_path / "past.csv"
    assert "cannot read" in str(line.refused("init", file, "--no-rehearse"))
    past.write_text("season,site,arm,yield\n2024,north,old,5\n2024,north,old,much\n2024,,old,4\n")
    error = line.refused("init", file, "--no-rehearse", "--dry-run")
    assert [fault.row for fault in error.faults] == [3, 4]
    past.write_text("season,site,arm,yield\n2024,north,old,5\n2025,north,old,6\n2025,hill,old,4\n")
    said = line.ok("init", file, "--no-rehearse", "--dry-run")
    assert "Before the trial: 3 outcomes of 2 units in 2 seasons" in said
    assert "note: not rehearsed: how likely this trial is to find a better arm" in said
    line.ok("init", line.write("u.toml", text), "--no-rehearse", "--history", str(past))
    assert "Levels and variances rest on them, effects of arms do not" in line.ok("status", "t")
    line.ok("ask", "t")
    assert "1 decision" in line.ok("verify", "t")
