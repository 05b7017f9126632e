"""Blinding on the command line: sheets without arms, dry runs without a draw, opening the code, tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drimed.errors import InputError
from tests.cli.commanding import CommandLine, started
from tests.trial.trials import SMALL

SPEC = SMALL | {"name": "small", "blinding": {"codes": {"old": "AX7", "new": "BK2"}}, "policy": {"name": "uniform"}}


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    return started(tmp_path, SPEC)


def test_a_sheet_for_blinded_people_has_no_arms_and_comes_back(line: CommandLine) -> None:
    line.ok("ask", "small", "--out", str(line.folder / "arms.csv"))
    assert {row["code"] for row in line.rows("arms.csv")} <= {"AX7", "BK2"}
    for form in ("csv", "json"):
        line.ok("decisions", "small", "--state", "pending", "--blinded", "--out", str(line.folder / f"sheet.{form}"))
        text = (line.folder / f"sheet.{form}").read_text(encoding="utf-8")
        assert not [word for word in ("old", "new", "AX7", "BK2", "the guard") if word in text]
    assert list(line.rows("sheet.csv")[0]) == ["decision", "episode", "user", "yield", "notes"]
    line.ok("decisions", "small", "--blinded", "--out", str(line.folder / "sheet.csv"), "--force")
    shown = line.ok("decisions", "small", "--blinded")
    assert "pending" in shown
    assert not [word for word in ("arm", "reward", "old", "new", "AX7", "BK2") if word in shown]
    assert isinstance(line.refused("decisions", "small", "--blinded", "--arm", "old"), InputError)
    filled = line.write("filled.csv", "decision,episode,user,yield\n1,1,north,5\n2,1,south,6\n")
    assert "2 recorded" in line.ok("tell", "small", filled)


def test_a_dry_run_shows_chances_and_no_arm(line: CommandLine) -> None:
    said = line.ok("ask", "small", "--dry-run")
    assert "chance of old" in said
    assert "2 would be decided; " in said
    assert "Nothing was recorded, and no arm was drawn." in said
    line.ok("ask", "small", "--dry-run", "--out", str(line.folder / "tried.json"))
    tried = json.loads((line.folder / "tried.json").read_text(encoding="utf-8"))
    assert [(d["arm"], d["code"], d["propensity"]) for d in tried] == [("", None, None)] * 2
    assert line.status("small")["decisions"] == 0


def test_the_code_is_opened_for_one_decision_or_for_all_and_the_log_says_so(line: CommandLine) -> None:
    line.ok("ask", "small", "--out", str(line.folder / "arms.csv"))
    row = line.rows("arms.csv")[1]
    said = line.ok("reveal", "small", "2", "--reason", "an emergency", "--actor", "safety desk")
    assert f"decision 2: {row['arm']} (code {row['code']})" in said
    assert "number of a decision, or --all" in str(line.refused("reveal", "small", "--reason", "r"))
    assert "number of a decision, or --all" in str(line.refused("reveal", "small", "2", "--all", "--reason", "r"))
    said = line.ok("reveal", "small", "--all", "--reason", "the end")
    assert "AX7: old" in said
    log = line.ok("log", "small", "--kind", "revealed")
    assert "decision 2, reason: an emergency" in log
    assert "all decisions, reason: the end" in log
    assert "safety desk" in log
    assert "the log is intact" in line.ok("verify", "small")
    assert row["arm"] in line.ok("decisions", "small", "--blinded")
