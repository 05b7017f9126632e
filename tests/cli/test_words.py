"""What commands say about seasons, people, proofs, demos and policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from drimed.cli.main import app
from drimed.errors import SpecError
from drimed.service import demo
from drimed.trial.spec import TrialSpec
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.cli.commanding import CommandLine, started
from tests.cli.test_hard_sheets import FARMS
from tests.trial.trials import SMALL

STOPS: dict[str, Any] = {"stopping": {"rules": {"best": {"kind": "superiority"}}}}


def test_a_field_trial_has_seasons_wherever_it_is_shown(tmp_path: Path) -> None:
    field = {name: part for name, part in (FARMS | STOPS).items() if name not in ("model", "noise")}
    line = started(tmp_path, field | {"model": {"kind": "field"}})
    words = [["ask", "farms"], ["look", "farms", "--dry-run"], ["status", "farms"], ["decisions", "farms"],
             ["why", "farms", "1"]]  # fmt: skip
    for said in (line.ok(*w) for w in words):
        assert "episode" not in said
        assert "season" in said
    line.ok("ask", "farms", "--season", "spring 2026")
    for said in (line.ok(*w) for w in [*words[:4], ["why", "farms", "4"]]):
        assert "episode" not in said
        assert "spring 2026" in said


def test_all_that_can_be_told_about_a_trial_file_is_told_at_once(tmp_path: Path) -> None:
    text = (
        'name = "t"\ncontrol = "odl"\n[metrics.yield]\nrnage = [0, 10]\n[arms.old]\n[arms.new]\n'
        "[preference]\nyeild = 1.0\n[tolerance]\nabsolute = -1\n[users.north]\n"
        '[stopping.rules.best]\nkind = "superiority"\narm = "nwe"\n[scenarios.dull]\ndropuot = 0.1\n'
    )
    line = CommandLine(tmp_path)
    error = line.refused("init", line.write("t.toml", text))
    assert isinstance(error, SpecError)
    assert {".".join(map(str, f.path)): f.line for f in error.faults} == {
        "metrics.yield.rnage": 4,
        "tolerance.absolute": 10,
        "control": 2,
        "preference.yeild": 8,
        "scenarios.dull.dropuot": 16,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"perference": {"yield": 1.0}, "preference": None},
        {"metrics": {"yield": {}, "cost": 3}},
        {"arms": {"old": {"attributes": {"n": "x"}}, "new": {"attributes": {"n": 1.0}}}},
        {"model": {"kind": "feild"}},
    ],
)
def test_nothing_is_told_that_follows_from_a_field_that_cannot_be_read(change: dict[str, Any]) -> None:
    data = {name: part for name, part in (SMALL | change).items() if part is not None}
    with pytest.raises(SpecError) as error:
        TrialSpec.read(data)
    assert len({f.path[0] for f in error.value.faults}) == 1


def test_a_demo_in_a_store_with_trials_says_what_it_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("drimed.service.app.run", lambda _: None)
    started(tmp_path, FARMS)
    done = CliRunner().invoke(app, ["serve", "--demo", "--store", str(tmp_path / "t.db")])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "a demo needs an empty store" in said
    assert "drimed serve --demo --store demo.db" in said


def test_a_demo_that_is_there_is_said_to_be() -> None:
    store = MemoryStore()
    Trial.create(TrialSpec.read(SMALL | {"name": "maize-demo"}), store)
    assert demo.show(store, "here.db") == "the demo is there already: trial maize-demo"
