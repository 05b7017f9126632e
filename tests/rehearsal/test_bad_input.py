"""Scenarios that contradict the trial, and a past that does not fit it, are named with their line or row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drimed.errors import DrimedError, InputError, SpecError
from drimed.rehearsal import scenarios
from drimed.rehearsal.designs import Plan, parse_goal
from drimed.rehearsal.page import assumed
from drimed.rehearsal.scenarios import Estimates
from drimed.trial.past import of_rows, read_rows
from drimed.trial.problem import Problem
from drimed.trial.spec import TrialSpec, User
from drimed.trial.tables import Table

FILE = """
name = "t"
control = "old"
[metrics.yield]
range = [0, 100]
[arms.old]
[arms.new]
[users.north]
preference = { yield = 1 }
[tolerance]
absolute = 5
"""
PAST = "season,site,arm,yield\n2020,a,old,50\n2020,a,new,60\n2021,a,old,40\n2021,a,new,55\n"


def written(tmp_path: Path, more: str) -> Path:
    path = tmp_path / "t.toml"
    path.write_text(FILE + more)
    return path


@pytest.mark.parametrize(
    ("more", "line", "says"),
    [
        ("[scenarios.a]\neffects = { newer = { yield = 1 } }\n", 13, "newer"),
        ("[scenarios.a]\nseasons = 4\nnoise = { yeild = 1 }\n", 14, "yeild"),
        ("[scenarios.a]\neffects.old = { yield = 3 }\n", 13, "is the control"),
        ("[scenarios.a]\nusers = 10\n", 13, "none join later"),
        ("[scenarios.a]\nseasons = 0\n", 13, "1"),
        ("[scenarios.a]\nsesons = 3\n", 13, "sesons"),
    ],
)
def test_a_scenario_that_contradicts_the_file_is_named_with_its_line(
    tmp_path: Path, more: str, line: int, says: str
) -> None:
    with pytest.raises(SpecError) as error:
        scenarios.load(written(tmp_path, more))
    (fault,) = error.value.faults
    assert fault.line == line
    assert says in str(error.value)


def test_a_trial_is_created_from_a_file_with_scenarios(tmp_path: Path) -> None:
    path = written(tmp_path, "[scenarios.a]\nseasons = 4\n")
    assert "scenarios" not in TrialSpec.load(path).plain()
    spec, found = scenarios.load(path)
    assert (spec.name, found["a"].seasons) == ("t", 4)
    own = tmp_path / "worlds.toml"
    own.write_text("[scenarios.b]\nseasons = 5\n")
    assert list(scenarios.load(path, own)[1]) == ["b"]
    with pytest.raises(InputError, match="and nothing else"):
        scenarios.load(path, path)


def test_without_a_range_the_size_of_outcomes_must_be_said() -> None:
    spec = TrialSpec.parse(FILE.replace("range = [0, 100]", ""))
    with pytest.raises(InputError, match="how much metric 'yield' scatters"):
        scenarios.usual(spec)


def plan_with(tmp_path: Path, text: str) -> Plan:
    path = tmp_path / "past.csv"
    path.write_text(text)
    return Plan.of_files(written(tmp_path, ""), path, every_design=False, trials=2, seasons=2, seed=0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (PAST + ",a,old,50\n", "row 6: column 'season' is empty"),
        (PAST + "2021,a,new,much\n", "row 6: yield must be a number"),
        ("season,arm,yield\n2020,old,50\n", "no column 'site'"),
        ("season,site,arm\n2020,a,old\n", "no column 'yield'"),
    ],
)
def test_a_past_that_does_not_fit_is_named_with_its_row(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DrimedError, match=says):
        plan_with(tmp_path, text)


def test_the_history_that_the_file_names_is_read_as_one_of_the_command_line_is(tmp_path: Path) -> None:
    given = plan_with(tmp_path, PAST)
    named = written(tmp_path, '[history]\nfile = "past.csv"\n')
    plan = Plan.of_files(named, None, every_design=False, trials=2, seasons=2, seed=0)
    assert plan.history == given.history is not None
    assert plan.main == "as estimated from the past"
    assert "begins with past.csv" in " ".join(assumed(plan, plan.main))


def test_components_of_variance_are_those_of_the_table() -> None:
    """Of 40 seasons, 30 sites, 2 arms: within 25 %; sampling error of a deviation is 11 % at most."""
    rng = np.random.default_rng(5)
    Y, G, sd = 40, 30, {"site": 6.0, "season": 8.0, "block": 5.0, "noise": 4.0}
    season, site = rng.normal(0, sd["season"], Y), rng.normal(0, sd["site"], G)
    block = rng.normal(0, sd["block"], (Y, G))
    rows: list[dict[str, Any]] = [
        {"season": str(y), "site": f"s{g}", "arm": arm, "yield": 50 + 7 * (arm == "new") + season[y] + site[g]
         + block[y, g] + rng.normal(0, sd["noise"])}
        for y in range(Y) for g in range(G) for arm in ("old", "new")
    ]  # fmt: skip
    spec = TrialSpec.parse(FILE)
    problem = Problem(spec)
    past = of_rows(problem, read_rows(problem, Table.of(rows)), "past.csv", "0" * 64)
    found = Estimates.of(spec, past)
    for name, true in sd.items():
        assert found.components[name][0] == pytest.approx(true, rel=0.25)
    assert found.components["season_arm"][0] < 1.5
    effect = scenarios.of_past(spec, past, 4)["as estimated from the past"].effects["new"]["yield"]
    assert effect == pytest.approx(7.0, abs=0.5)  # standard error 0.16


def test_a_goal_that_is_not_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"power 0\.8"):
        parse_goal("certainty")


def test_people_who_enrol_need_a_preference_to_be_rehearsed_unless_there_is_one_metric() -> None:
    two: dict[str, Any] = {"name": "t", "arms": {"a": {}, "b": {}}, "control": "a", "model": {"kind": "people"}}
    two |= {
        "metrics": {"pain": {"better": "lower", "range": [0, 10]}, "cost": {"spread": 9.0}},
        "tolerance": {"relative": 0.0, "absolute": 1.0},
    }
    with pytest.raises(InputError, match="give one for all, `preference`"):
        scenarios.difference(TrialSpec.read(two))
    one = TrialSpec.read(two | {"metrics": {"pain": {"better": "lower", "range": [0, 10]}}})
    assert one.resolved(User()).preference == {"pain": -1.0}
    assert scenarios.difference(one) == {"pain": pytest.approx(-1.0)}
