"""Doses in a trial: the file and its faults, decisions that replay, and the report with its curve."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drimed.errors import SpecError
from drimed.records import Report
from drimed.reports.page import write_report
from drimed.trial.problem import Problem
from drimed.trial.spec import TrialSpec
from drimed.trial.store import MemoryStore, Store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify

FILE = """name = "nitrogen"
seed = 4
preference = { margin = 1 }
control = "nitrogen 80"
[tolerance]
absolute = 60
[metrics.margin]
spread = 10
[doses.nitrogen]
from = 0
to = 140
step = 20
unit = "kg/ha"
[users.hilltop]
plots = ["1", "2", "3", "4", "5", "6"]
[users.slope]
plots = ["1", "2", "3", "4", "5", "6"]
"""
PLACE = 'from = 0\nto = 140\nstep = 20\nunit = "kg/ha"\n'
ARMS = "".join(f"[arms.N{n}]\nattributes = {{ nitrogen = {n} }}\n" for n in (0, 60, 80))


def test_a_dose_makes_its_arms_and_a_stored_file_is_the_same() -> None:
    spec = TrialSpec.parse(FILE)
    assert [*spec.arms] == [f"nitrogen {n}" for n in range(0, 160, 20)]
    assert TrialSpec.read(spec.plain()) == spec
    problem = Problem(spec)
    assert problem.attributes is not None
    assert problem.attributes.shape == (8, sum(problem.dose_columns)) == (8, 7)


def test_arms_may_have_doses_and_other_attributes() -> None:
    doses = enumerate((0.0, 0.0, 60.0, 90.0))
    arms = {f"a{i}": {"attributes": {"nitrogen": dose, "depth": float(i % 2)}} for i, dose in doses}
    data: dict[str, Any] = TrialSpec.parse(FILE).plain()
    problem = Problem(TrialSpec.read(data | {"arms": arms, "control": "a0"}))
    assert problem.attributes is not None
    assert problem.dose_columns == (2,)
    np.testing.assert_allclose(problem.attributes[:, 0], [-1, 1, -1, 1])  # other attributes come first


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("step = 20", "step = 0", 12, "must be above 0, got 0"),
        ("step = 20\n", "", 9, "needs from, to and step together"),
        ("step = 20", "step = 50", 9, "in 2 to 49 whole steps; these numbers make 2.8"),
        ("step = 20", "step = 140", 9, "these numbers make 1"),
        ("step = 20", "steps = 20", 12, "unknown field 'steps'; did you mean 'step'? Known: from, step, to, unit"),
        ('control = "nitrogen 80"', 'control = "N80"', 4, "unknown arm 'N80'"),
        (PLACE, PLACE + ARMS, 12, "makes arms, and there are others"),
        ("[doses.nitrogen]\n" + PLACE, ARMS + "[doses.lime]\n", 15, "no arm has it"),
        ("[metrics", '[model]\nkind = "paper"\n[metrics', 11, "the paper's model has no place for it"),
    ],
)
def test_faults_of_doses_have_lines(old: str, new: str, line: int, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        TrialSpec.parse(FILE.replace(old, new))
    assert line in [f.line for f in caught.value.faults if text in f.message]
    assert not [f for f in caught.value.faults if f.path == ("arms",)]


def test_two_doses_are_a_straight_line() -> None:
    data = TrialSpec.parse(FILE).plain()
    arms = {f"a{n}": {"attributes": {"nitrogen": float(n)}} for n in (0, 60)}
    with pytest.raises(SpecError, match="needs 3 different doses, got 2: leave it out"):
        TrialSpec.read(data | {"arms": arms, "control": "a0"})


def grown(store: Store, more: dict[str, Any], seasons: int = 4) -> Trial:
    """A response with its best dose at 100 on the hilltop and at 40 on the slope; noise 6, or yes and no."""
    rng = np.random.default_rng(5)
    trial = Trial.create(TrialSpec.parse(FILE).plain() | more, store)
    (metric,) = more.get("metrics", {"margin": {}})
    for _ in range(seasons):
        trial.open_episode()
        level, reports = 50 * rng.standard_normal(), []
        for given in trial.ask_many():
            best = {"hilltop": 100, "slope": 40}[given.user]
            y = -40 * ((float(given.arm.split()[1]) - best) / 60) ** 2
            value: Any = 400 + y + level + 6 * rng.standard_normal()
            if "metrics" in more:
                value = bool(rng.random() < 0.9 + y / 250)
            reports.append(Report(given.id, {metric: value}))
        trial.tell_many(reports, confirm=True)
    return trial


@pytest.mark.parametrize(
    "more",
    [{}, {"metrics": {"cure": {"kind": "yes/no"}}, "preference": {"cure": 1.0}, "tolerance": {"absolute": 0.3}}],
)
def test_a_trial_of_doses_replays_exactly_and_its_report_has_the_curve(more: dict[str, Any], tmp_path: Path) -> None:
    store = MemoryStore()
    trial = grown(store, more)
    proof = verify(store, "nitrogen")
    assert proof.ok
    assert proof.exact == proof.decisions == 48
    page = write_report(trial, tmp_path).read_text(encoding="utf-8")
    assert 'id="dose-chart"' in page
    assert "Best nitrogen so far: all users: " in page
    with (tmp_path / "doses.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["who"] for row in rows} == {"all users", "hilltop", "slope"}
    for who in ("hilltop", "slope"):
        own = [row for row in rows if row["who"] == who]
        assert [float(row["value"]) for row in own] == [*range(0, 160, 20)]
        assert sum(float(row["p_best"]) for row in own) == pytest.approx(1.0)
        assert all(float(row["likely_low"]) <= float(row["estimate"]) <= float(row["likely_high"]) for row in own)
        assert not more or all(0 <= float(row[end]) <= 1 for row in own for end in ("likely_low", "likely_high"))
        best = max(own, key=lambda row: float(row["estimate"]))
        if not more:
            assert abs(float(best["value"]) - {"hilltop": 100, "slope": 40}[who]) <= 20
