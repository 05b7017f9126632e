"""Sheets, names and files on a bad day: read right or refused, and nothing is ever lost or recorded by mistake."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from drimed.trial import sheets
from drimed.trial.store import MemoryStore
from drimed.trial.tables import read
from drimed.trial.trial import Trial
from tests.cli.commanding import CommandLine, started
from tests.trial.fields import FIELD
from tests.trial.trials import SMALL

# Three farms and two metrics; the first season is asked for.
FARMS: dict[str, Any] = SMALL | {
    "name": "farms",
    "metrics": {"yield": {"range": [0.0, 15.0]}, "leaching": {"range": [0.0, 80.0], "better": "lower"}},
    "preference": {"yield": 1.0, "leaching": -0.1},
    "users": {"north": {}, "hill": {}, "river": {}},
}


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    made = started(tmp_path, FARMS)
    made.ok("ask", "farms", "--episode", "1")
    return made


def outcomes(line: CommandLine) -> list[tuple[float | None, float | None]]:
    """What is recorded of each decision."""
    line.ok("decisions", "farms", "--out", str(line.folder / "outcomes.json"), "--force")
    found = json.loads((line.folder / "outcomes.json").read_text(encoding="utf-8"))
    told = [d["outcome"] or {} for d in sorted(found, key=lambda d: d["id"])]
    return [(o.get("yield"), o.get("leaching")) for o in told]


SAME = [
    b"decision;user;yield;leaching\r\n1;north;8,7;31\r\n2;hill;9,25;\r\n",
    b"sep=;\r\ndecision;user;yield;leaching\r\n1;north;8,7;31\r\n2;hill;9,25;\r\n",
    b"decision\tuser\tyield\tleaching\n1\tnorth\t8,7\t31\n2\thill\t9,25\t\n",
    b"decision,user,yield,leaching,,\n1,north,8.7,31,,\n2,hill,9.25,,,\n",
    b"\n\ndecision,user,yield,leaching\n\n1,north,8.7,31\n,,,\n2,hill,9.25,\n\n\n",
    b"decision,user,yield,leaching\n1,north,8.7,31\n2,hill,9.25,NA\n3,river,N/A,-\n",
    b"Decision,USER, Yield ,Leaching\n1,north,8.7,31\n2,hill,9.25,n/a\n",
    b"decision,user,yield,leaching,Comment\n1,north,8.7,31,hail\n2,hill,9.25,,\n",
    "decision,user,yield,leaching\n1,north,8.7,31\n2,ｈill,9.25,\n".encode(),
    "\ufeffdecision,user,yield,leaching\n1,north,8.7,31\n2,hill,9.25,\n".encode(),
    "decision,user,yield,leaching\n1,north,8.7,31\n2,hill,9.25,\n".encode("utf-16"),
    "decision,user,yield,leaching,notes\n1,north,8.7,31,Käfer\n2,hill,9.25,,\n".encode("cp1252"),
    b'decision,user,yield,leaching\n"1","north","8.7","31"\n"2","hill","9.25",""\n',
    b"decision,metric.yield,metric.leaching\n1,8.7,31\n2,9.25,\n",
]


@pytest.mark.parametrize("data", SAME)
def test_sheets_as_people_and_programs_write_them_say_the_same(data: bytes) -> None:
    trial = Trial.create(FARMS, MemoryStore())
    trial.ask_many(episode=1)
    with trial.writing() as tx:
        sheets.tell_sheet(tx, read(data, "o.csv"))
    assert [trial.decision(n).outcome for n in (1, 2, 3)] == [{"yield": 8.7, "leaching": 31.0}, {"yield": 9.25}, None]


WRONG = [
    ("decision,user,yield,leaching\n1,north,8,7,\n", "if 8,7 is one number, write 8.7"),
    ("decision,yield,notes\n1,8,7\n", "row 2: is 8,7 under yield and notes one number"),
    ("decision;yield\n1;8,7\n2;1.234\n", "row 3: yield 1.234 can be read as"),
    ("decision,yield,moisture\n1,8,9\n", "unknown column 'moisture'"),
    ("decision,episode,yield\n1,2,8.7\n", "row 2: decision 1 is for episode 1, the sheet says '2'"),
    ("decision,user\n1,north\n", "the sheet has no outcomes"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_a_sheet_with_a_doubt_is_refused_with_its_row_and_nothing_is_recorded(
    line: CommandLine, text: str, said: str
) -> None:
    before = line.status("farms")["events"]
    result = line.run("tell", "farms", line.write("o.csv", text), "--yes")
    assert result.exit_code != 0
    assert said in str(result.exception)
    assert line.status("farms")["events"] == before


def test_whole_numbers_side_by_side_where_decimals_are_usual_are_asked_about(line: CommandLine) -> None:
    line.ok("tell", "farms", line.write("a.csv", "decision,yield\n2,9.25\n"))
    path = line.write("o.csv", "decision,user,yield,leaching\n1,north,8,7\n")
    said = "row 2: decision 1: is 8,7 under yield and leaching one number, a decimal comma?"
    assert said in line.run("tell", "farms", path).output
    assert outcomes(line)[0] == (None, None)
    line.ok("tell", "farms", path, "--yes")
    assert outcomes(line)[0] == (8.0, 7.0)
    assert "already recorded" in line.ok("tell", "farms", path)


@pytest.mark.parametrize("value", ["-9999", "15.001"])
def test_values_outside_of_their_range_are_asked_about_everywhere(line: CommandLine, value: str) -> None:
    path = line.write("o.csv", f"decision,yield\n1,{value}\n")
    for words in (["tell", "farms", path], ["tell", "farms", "--decision", "1", "--value", f"yield={value}"]):
        result = line.run(*words)
        assert "is outside 0 to 15" in result.output
        assert "--yes" in str(result.exception)
    line.ok("tell", "farms", "--decision", "1", "--value", "yield=8")
    amend = ["amend", "farms", f"yield={value}", "--decision", "1", "--reason", "typo"]
    assert "is outside 0 to 15" in line.run(*amend).output
    assert outcomes(line)[0] == (8.0, None)
    line.ok(*amend, "--yes")
    assert outcomes(line)[0] == (float(value), None)


# Weights


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"preference": {"yield": 1.0, "leaching": 0.1}}, "preference.leaching"),
        ({"users": {"north": {"preference": {"leaching": 2.0}}}}, "users.north.preference.leaching"),
        ({"cohorts": {"c": {"preference": {"leaching": 2.0}}}}, "cohorts.c.preference.leaching"),
        (
            {"metrics": {"yield": {"better": "higher"}, "leaching": {}}, "preference": {"yield": -1.0}},
            "preference.yield",
        ),
    ],
)
def test_a_weight_that_seeks_harm_is_refused(line: CommandLine, change: dict[str, Any], at: str) -> None:
    error = line.refused("init", line.write("w.json", json.dumps(FARMS | change)), "--dry-run", "--no-rehearse")
    assert at in str(error)
    assert "seeks the opposite" in str(error)


# Files


def test_an_output_is_written_over_a_file_only_by_force(line: CommandLine) -> None:
    page = line.folder / "report" / "index.html"
    page.parent.mkdir()
    for path in (line.folder / "thesis.csv", page):
        path.write_text("years of work", encoding="utf-8")
        outs = [("report", "farms")] if path == page else [("ask", "farms", "--episode", "2"), ("export", "farms")]
        for words in outs:
            out, before = str(path.parent if path == page else path), line.status("farms")["events"]
            refused = str(line.refused(*words, "--out", out))
            assert "exists: choose another name, or write over it with --force" in refused
            assert path.read_text(encoding="utf-8") == "years of work"
            assert line.status("farms")["events"] == before  # nothing was decided either
            line.ok(*words, "--out", out, "--force")
            path.write_text("years of work", encoding="utf-8")
    assert not [p for p in line.folder.iterdir() if p.name.startswith(".")]


# Places and people


def test_a_misspelled_column_is_not_passed_over(tmp_path: Path) -> None:
    line = started(tmp_path, FIELD)
    text = "user,plott,rain,slope\nnorth,A1,450,flat\n"
    assert "unknown column 'plott'; did you mean 'plot'" in str(line.refused("ask", "field", line.write("s.csv", text)))
    line.ok("ask", "field", line.write("s.csv", "user,rain,slope,owner's phone\nsouth,450,flat,+49 123\n"))


# On the screen

TRICKY = FARMS | {
    "name": "tricky",
    "arms": {"N[low]": {}, "N[high]": {}, "x[bold]": {}},
    "control": "N[low]",
    "users": {"field[a]": {"group": "[bold]g[/]"}, "field[b]": {}, "x[bold]": {}},
}


def test_nothing_that_somebody_typed_is_markup(tmp_path: Path) -> None:
    line = started(tmp_path, TRICKY)
    said = line.ok("ask", "tricky", "--episode", "1")
    assert all(name in said for name in ("field[a]", "field[b]", "x[bold]", "N[low]"))
    assert "'[/y]'" in str(line.refused("ask", "tricky", "--user", "[/y]"))
    line.ok("pause", "tricky", "--reason", "[/x] [bold", "--actor", "[red]eve")
    said = line.ok("log", "tricky")
    assert "[/x] [bold" in said
    assert "[red]eve" in said
    assert "x[bold]" in line.ok("decisions", "tricky")


def test_no_escape_sequence_reaches_the_terminal(line: CommandLine) -> None:
    text = "\x1b[31mred\x1b]0;title\x07\x9b2J a\u202eb\rd"
    line.ok("pause", "farms", "--reason", text, "--actor", f"eve{text}")
    acting = [c for c in text if unicodedata.category(c) in ("Cc", "Cf")]
    shown = line.ok("log", "farms") + line.ok("log", "farms", "--json") + line.ok("status", "farms", "--json")
    failed = line.process("prefer", "farms", f"nobody{text}", "yield=1", "--reason", text)
    assert failed.returncode != 0
    said = failed.stderr.decode().replace("\x1b[1;31m", "").replace("\x1b[0m", "") + failed.stdout.decode()
    assert "nobody" in said
    for c in acting:
        assert c not in shown
        assert c not in said
    events = [json.loads(one) for one in line.ok("log", "farms", "--json").splitlines()]
    assert events[-1]["body"]["reason"] == text


def test_no_cell_of_a_report_or_an_export_is_a_formula(tmp_path: Path) -> None:
    line = CommandLine(tmp_path)
    evil = '=HYPERLINK("http://x",1)'
    users = {"north": {"group": evil}, "south": {"group": "+1"}, "west": {"group": "@SUM(1)"}}
    spec = SMALL | {"name": "evil", "users": users, "attributes": {"soil": {"levels": ["-2+3", "sand", "=1"]}}}
    for user, soil in zip(users.values(), ("-2+3", "sand", "=1"), strict=True):
        user["attributes"] = {"soil": soil}  # type: ignore[assignment]
    line.ok("init", line.write("e.json", json.dumps(spec)), "--no-rehearse")
    line.ok("ask", "evil", "--episode", "1")
    line.ok("tell", "evil", line.write("o.csv", "decision,yield\n1,5\n2,6\n3,7\n"))
    line.ok("report", "evil", "--out", str(tmp_path / "report"))
    line.ok("export", "evil", "--out", str(tmp_path / "log.csv"))
    files = [*(tmp_path / "report").glob("*.csv"), tmp_path / "log.csv", tmp_path / "log.dictionary.csv"]
    cells = [c for f in files for row in line.raw(f) for c in row]
    assert f"'{evil}" in cells
    for cell in cells:
        try:
            float(cell)
        except ValueError:
            assert cell[:1] not in ("=", "+", "-", "@", "\t", "\r"), cell
