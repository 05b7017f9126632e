"""`drimed trial look` and `rules`, as a person uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drimed.cli.console import console
from drimed.rehearsal import calibration
from drimed.reports import wording
from drimed.trial.events import Draft, Foreseen
from drimed.trial.store import open_store
from drimed.trial.trial import Trial
from tests.cli.commanding import CommandLine
from tests.trial.forging import NAME
from tests.trial.test_stopping import SUPERIOR, create, drifting, play

LONG = "the split dressing is better"


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    store = open_store(str(tmp_path / "t.db"))
    rules = {LONG: SUPERIOR, "harm": {"kind": "harm", "each": "group"}}
    play(create({"rules": rules, "seasons": 40, "looks": "by hand"}, store), 12)
    store.close()
    return CommandLine(tmp_path)


def test_a_look_is_shown_in_eighty_columns_and_recorded(line: CommandLine) -> None:
    console.width = 80
    shown = line.ok("look", NAME)
    assert all(len(row) <= 80 for row in shown.splitlines())
    assert "season 12, 72 decisions, 72 complete outcomes" in shown
    assert "seasons: 12 of at most 40" in shown
    console.width = 200
    rows = [row.split() for row in line.ok("look", NAME).splitlines() if "all users" in row]
    assert rows[0][-1] == "yes"
    assert "rules met: the split dressing is better" in line.ok("log", NAME, "--limit", "2")
    assert "2 looks taken again" in line.ok("verify", NAME)
    assert f"stopping rules that are met: {LONG}" in line.ok("status", NAME)


def test_a_look_says_how_much_longer_it_takes_and_which_arms_are_set_aside(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.width = 400
    assert f"No forecast yet: `drimed trial rehearse {NAME}` makes one." in line.ok("look", NAME)
    with Trial(NAME, open_store(str(line.folder / "t.db"))).writing("ann") as tx:
        tx.append([Draft(Foreseen(12, 200, "With 80 % chance an arm is shown to be better by season 19."))])
    monkeypatch.setattr(wording, "set_aside", lambda analysis: [f"bad is set aside in {analysis.status.name}"])
    shown = line.ok("look", NAME)
    assert "by season 19 (forecast from season 12 with 200 rehearsals)." in shown
    assert f"bad is set aside in {NAME}" in shown
    assert "set aside" not in line.ok("look", NAME, "--json")


def test_a_model_that_is_wrong_is_told_by_the_look_the_status_and_the_why(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "t.db"))
    drifting(10, store)
    store.close()
    line = CommandLine(tmp_path)
    console.width = 400
    shown = line.ok("look", NAME)
    assert "no rule is met yet by" in shown
    assert "the model is wrong and shows nothing (yield:" in shown
    withdrawn = "The ranges and the promise to stay near the control do not hold, because the model is wrong: yield:"
    assert withdrawn in line.ok("status", NAME)
    assert f"By what is known now the range above is no promise. {withdrawn}" in line.ok("why", NAME, "100")


def test_a_trial_whose_model_holds_says_nothing_of_it(line: CommandLine) -> None:
    assert "wrong" not in line.ok("status", NAME) + line.ok("why", NAME, "30") + line.ok("look", NAME)


def test_a_dry_run_writes_nothing(line: CommandLine) -> None:
    before = line.ok("log", NAME, "--json").splitlines()
    assert "Nothing was written" in line.ok("look", NAME, "--dry-run")
    found = json.loads(line.ok("look", NAME, "--dry-run", "--json"))
    assert found["event"] == 0
    assert {claim["rule"] for claim in found["claims"]} == {LONG, "harm"}
    assert line.ok("log", NAME, "--json").splitlines() == before


def test_rules_are_replaced_by_those_of_a_file(line: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[stopping]\nseasons = 12\n[stopping.rules.bad]\nkind = "harm"\narm = "bad"\n')
    assert "changed" in line.ok("rules", NAME, str(file), "--reason", "a shorter grant")
    last = line.ok("log", NAME, "--limit", "1")
    assert "stopping rules: bad" in last
    assert "a shorter grant" in last
    assert "the largest number of seasons, 12, is reached" in str(line.refused("ask", NAME, "--episode", "13"))
    assert "stopped" in line.ok("status", NAME)
    file.write_text("seasons = 3\n")
    assert "has no section [stopping]" in str(line.refused("rules", NAME, str(file), "--reason", "x"))
    file.write_text("[stopping]\nseason = 3\n")
    assert "season" in str(line.refused("rules", NAME, str(file), "--reason", "x"))


CALIBRATED = """
name = "c"
control = "old"
[metrics.yield]
spread = 3.0
[arms.old]
[arms.new]
[arms.other]
[preference]
yield = 1.0
[tolerance]
absolute = 2.0
[users.north]
plots = ["1", "2", "3"]
[users.south]
plots = ["1", "2", "3"]
[policy]
name = "uniform"
[stopping]
seasons = 3
[stopping.rules.better]
kind = "superiority"
evidence = "calibrated"
confidence = 0.8
then = "stop"
[scenarios.usual]
"""


def test_a_calibrated_rule_gets_its_bound_before_the_trial_begins_and_the_report_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "TRIALS", 40)
    monkeypatch.chdir(tmp_path)
    line = CommandLine(tmp_path)
    file = line.write("c.toml", CALIBRATED)
    said = "better: the bound is"
    shown = line.ok("rehearse", file, "--quick", "--trials", "2", "--jobs", "1")
    assert said in shown
    finished = set(Path("out/rehearsal/c/blocks").iterdir())
    tried = line.ok("init", file, "--dry-run")
    assert "bounds come from 40 rehearsals (40 of each calibrated rule in 1 scenario: usual; none has a trend)" in tried
    assert ", about 1 min on this machine" in tried
    assert "min on this machine" not in line.ok("init", file, "--dry-run", "--no-rehearse")
    created = line.ok("init", file)
    assert "in the worst, 'usual'" in created
    assert set(Path("out/rehearsal/c/blocks").iterdir()) == finished, "nothing is rehearsed again"
    bound = Trial("c", open_store(str(tmp_path / "t.db"))).state().thresholds["better"]
    assert f"{said} {bound:.3g} deviations" in created
    line.ok("ask", "c")
    assert "this look was not planned, and does not count" in line.ok("look", "c", "--json") + line.ok("look", "c")
    page = tmp_path / "report"
    line.ok("report", "c", "--out", str(page))
    text = next(page.rglob("*.html")).read_text(encoding="utf-8") if page.is_dir() else page.read_text(encoding="utf-8")
    assert said in text
    assert "For better 3 looks are planned, and no other counts:" in text
