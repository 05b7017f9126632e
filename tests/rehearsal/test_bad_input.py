"""Scenarios that contradict the trial, and a past that does not fit it, are named with their line or row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drimed.errors import DrimedError, InputError, SpecError
from drimed.rehearsal import history, scenarios
from drimed.rehearsal.designs import Goal
from drimed.trial.spec import TrialSpec
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
        ("[scenarios.a]\ndrift = 1\n", 13, "no context"),
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


def test_without_a_range_the_size_of_outcomes_must_be_said() -> None:
    spec = TrialSpec.parse(FILE.replace("range = [0, 100]", ""))
    with pytest.raises(InputError, match="how much metric 'yield' scatters"):
        scenarios.usual(spec)


def past(tmp_path: Path, text: str) -> history.History:
    path = tmp_path / "past.csv"
    path.write_text(text)
    return history.load(scenarios.load(written(tmp_path, ""))[0], path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("season,site,arm,yield\n2020,a,old,50\n", "no row for arm 'new'"),
        (PAST + ",a,old,50\n", "row 6: column 'season' is empty"),
        (PAST + "2022,a,old,\n2022,a,new,NA\n", "row 6: season '2022' is empty"),
        (PAST + "2021,a,new,much\n", "row 6: yield must be a number"),
        ("season,arm,yield\n2020,old,50\n", "no column 'site'"),
        ("season,site,arm\n2020,a,old\n", "no column 'yield'"),
    ],
)
def test_a_past_that_does_not_fit_is_named_with_its_row(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DrimedError, match=says):
        past(tmp_path, text)


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
    found = history.of_table(spec, Table.of(rows))
    for name, true in sd.items():
        assert found.components[name][0] == pytest.approx(true, rel=0.25)
    assert found.components["season_arm"][0] < 1.5
    effect = found.scenarios(spec, 4)["as estimated from the past"].effects["new"]["yield"]
    assert effect == pytest.approx(7.0, abs=0.5)  # standard error 0.16


def test_a_goal_that_is_not_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"power 0\.8"):
        Goal.parse("certainty")
