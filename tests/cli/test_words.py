"""What commands say about seasons, people, proofs, demos and policies."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from drimed.cli.main import app
from drimed.errors import InputError, ShapeError, SpecError
from drimed.models.offer import Offer, Shape, make_offer
from drimed.policies.published import PublishedDri
from drimed.policies.registry import make
from drimed.service import demo
from drimed.trial.spec import TrialSpec
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.cli.commanding import CommandLine
from tests.cli.test_hard_sheets import FARMS
from tests.trial.fields import PATIENTS
from tests.trial.trials import SMALL

STOPS: dict[str, Any] = {"stopping": {"rules": {"best": {"kind": "superiority"}}}}


def started(folder: Path, spec: dict[str, Any]) -> CommandLine:
    line = CommandLine(folder)
    line.ok("init", line.write("t.json", json.dumps(spec)), "--no-rehearse")
    return line


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


def test_a_trial_of_people_has_seasons_too(tmp_path: Path) -> None:
    line = started(tmp_path, PATIENTS)
    assert "1 decided; season 1" in line.ok("ask", "patients", "--user", "p1", "--attribute", "sex=f")


def test_people_who_come_without_an_attribute_are_said_to_count_as_typical(tmp_path: Path) -> None:
    line = started(tmp_path, PATIENTS)
    sheet = line.write("p.csv", "user,age,sex\np1,61,f\np2,,m\np3,,f\n")
    for dry in (["--dry-run"], []):
        said = line.ok("ask", "patients", sheet, *dry)
        assert "note: 2 people came without age: they count as typical\n" in said
    assert "typical" not in line.ok("ask", "patients", sheet)  # nobody joins
    assert "note: 1 person came without age: it counts as typical" in line.ok(
        "ask", "patients", "--user", "p4", "--attribute", "sex=m"
    )
    assert "1 person came without age" in line.ok("add-user", "patients", "p5", "--attribute", "sex=m")


def test_a_dry_run_of_ask_says_what_would_be_decided(tmp_path: Path) -> None:
    line = started(tmp_path, FARMS)
    assert "3 would be decided; " in line.ok("ask", "farms", "--dry-run")


def test_all_that_can_be_told_about_a_trial_file_is_told_at_once(tmp_path: Path) -> None:
    text = (
        'name = "t"\ncontrol = "odl"\n[metrics.yield]\nrnage = [0, 10]\n[arms.old]\n[arms.new]\n'
        "[preference]\nyeild = 1.0\n[tolerance]\nabsolute = -1\n[users.north]\n"
        '[stopping.rules.best]\nkind = "superiority"\narm = "nwe"\n[scenarios.dull]\ndropuot = 0.1\n'
    )
    line = CommandLine(tmp_path)
    error = line.refused("init", line.write("t.toml", text))
    assert isinstance(error, SpecError)
    found = {".".join(map(str, f.path)): f.line for f in error.faults}
    assert found == {
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
        {"control": ["old"]},
        {"model": {"kind": "feild"}},
    ],
)
def test_nothing_is_told_that_follows_from_a_field_that_cannot_be_read(change: dict[str, Any]) -> None:
    data = {name: part for name, part in (SMALL | change).items() if part is not None}
    with pytest.raises(SpecError) as error:
        TrialSpec.read(data)
    assert len({f.path[0] for f in error.value.faults}) == 1


def test_faults_of_stopping_rules_and_floors_come_with_the_others() -> None:
    rules = {"stopping": {"rules": {"best": {"kind": "superiority", "arm": "nwe"}}}, "floors": {"until": "bset"}}
    with pytest.raises(SpecError) as error:
        TrialSpec.read(SMALL | rules | {"control": "odl"})
    assert {f.path[0] for f in error.value.faults} >= {"control", "stopping", "floors"}


def test_a_rule_of_ones_own_that_is_not_here_is_no_fault_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_policies.py").write_text("from drimed.policies.rules.med import MED as Mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    line = started(tmp_path, SMALL | {"name": "own", "policy": {"name": "own_policies:Mine"}})
    line.ok("ask", "own")
    line.ok("verify", "own")
    (tmp_path / "own_policies.py").unlink()
    monkeypatch.delitem(sys.modules, "own_policies")
    result = line.run("verify", "own")
    assert "fault" not in result.output
    assert "decisions cannot be checked here: own_policies:Mine: there is no module 'own_policies'" in result.output
    assert "the log is intact" not in result.output
    assert result.exit_code == 2


def offered(arms: int, d: int) -> Offer:
    maps = np.arange(1.0, 1.0 + arms * d).reshape(arms, 1, d)
    return make_offer(maps=maps, preference=np.ones(1), covariance=np.ones((arms, 1, 1)), control=np.eye(arms)[0])


@pytest.mark.parametrize("policy", ["dri_med", "oful", "lin_ts", "published_dri_med"])
@pytest.mark.parametrize("sizes", [(3, 2), (2, 3)])
def test_deciding_on_a_state_of_another_problem_is_refused(policy: str, sizes: tuple[int, int]) -> None:
    made, shape = make(policy), Shape(d=2, K=2, M=1, H=1)
    state = made.init(shape)
    if isinstance(made, PublishedDri):
        state = replace(state, episode=1)
    draws = np.full(made.draws_needed(shape), 0.5)
    assert made.decide(state, offered(2, 2), draws).action in (0, 1)
    with pytest.raises(ShapeError, match="the state is of another problem than the offer"):
        made.decide(state, offered(*sizes), draws)


def test_a_demo_in_a_store_with_trials_says_what_it_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("drimed.service.app.run", lambda _: None)
    started(tmp_path, FARMS)
    done = CliRunner().invoke(app, ["serve", "--demo", "--store", str(tmp_path / "t.db")])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "there is no demo" in said
    assert "has trials already (farms), and a demo is made in an empty store only" in said
    assert "drimed serve --demo --store demo.db" in said


def test_a_demo_that_is_there_is_said_to_be() -> None:
    store = MemoryStore()
    Trial.create(TrialSpec.read(SMALL | {"name": "maize-demo"}), store)
    assert demo.show(store, "here.db") == "the demo is there already: trial maize-demo"


LOG = "action,reward,propensity\nold,1,0.5\nnew,2,0.5\nnew,3,{}\nold,1,0.5\n"


@pytest.mark.parametrize(("cell", "said"), [("7", "got 7.0 in row 4 "), ("0", "got 0.0 in row 4 ")])
def test_a_log_s_errors_name_the_row_of_the_file(tmp_path: Path, cell: str, said: str) -> None:
    (tmp_path / "log.csv").write_text(LOG.format(cell))
    error = CliRunner().invoke(app, ["evaluate", str(tmp_path / "log.csv")]).exception
    assert isinstance(error, InputError)
    assert said in str(error)


def test_policies_are_compared_with_the_control_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG.format("0.5") * 1)
    words = ["evaluate", str(tmp_path / "log.csv"), "--policy", "arm=new", "--control", "old"]
    for against in ("control", "old", "arm=old"):
        done = CliRunner().invoke(app, [*words, "--against", against])
        assert done.exit_code == 0, done.output
        assert "Differences to control, on the same decisions:" in done.output
    error = CliRunner().invoke(app, [*words[:4], "--against", "control"]).exception
    assert "say so with --control NAME" in str(error)
