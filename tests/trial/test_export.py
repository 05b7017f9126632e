"""Exports are what `drimed evaluate` reads."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from drimed.errors import InputError
from drimed.evaluation.readers import read
from drimed.records import Report
from drimed.trial import lme4, roster
from drimed.trial.export import MEANING, records, write
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.tables import table
from drimed.trial.trial import Trial
from tests.findings.test_analyse import SPEC as FOUND
from tests.findings.test_analyse import play
from tests.trial.fields import FIELD, PATIENTS, SEASON

SPEC = FOUND | {"model": {"kind": "paper"}}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_export_is_read_back_as_a_log(tmp_path: Path, form: str) -> None:
    trial = play(SPEC, 5)
    assert write(trial, tmp_path / f"log.{form}", whole=True) == 30
    log = next(iter(read(tmp_path / f"log.{form}", arms=list(SPEC["arms"]))))
    rows = list(records(trial))
    np.testing.assert_array_equal(log.reward, [r["reward"] for r in rows])
    np.testing.assert_array_equal(log.propensity, [r["propensity"] for r in rows])
    assert log.probabilities is not None
    np.testing.assert_array_equal(log.probabilities[:, 1], [r["probability_good"] for r in rows])


def test_the_open_bandit_arrays_hold_whole_decisions_only(tmp_path: Path) -> None:
    trial = play(SPEC, 5)
    trial.open_episode({u: {"rain": 5.0} for u in SPEC["users"]})
    trial.ask_many()
    assert write(trial, tmp_path / "f.npz") == 30
    with np.load(tmp_path / "f.npz") as stored:
        assert int(stored["n_rounds"]) == 30
        assert stored["context"].shape == (30, 1)
        assert (stored["pscore"] > 0).all()


def test_json_has_every_decision_and_every_column_is_explained(tmp_path: Path) -> None:
    trial = play(SPEC, 2)
    trial.open_episode({u: {"rain": 5.0} for u in SPEC["users"]})
    trial.ask("u0")
    assert write(trial, tmp_path / "d.json") == 13
    rows = json.loads((tmp_path / "d.json").read_text(encoding="utf-8"))
    assert rows[-1]["state"] == "pending"
    told = (tmp_path / "d.dictionary.csv").read_text(encoding="utf-8")
    for name in rows[0]:
        assert name in MEANING or any(name.startswith(m[:-1]) for m in MEANING if m.endswith("*")), name
        assert "metric_*" in told


def test_an_unknown_form_or_an_unwritable_place_is_refused(tmp_path: Path) -> None:
    trial = play(SPEC, 1)
    with pytest.raises(InputError, match=r"\.parquet"):
        write(trial, tmp_path / "x.ods")
    with pytest.raises(InputError, match="cannot write"):
        write(trial, tmp_path / "nowhere" / "x.csv")


def test_an_export_of_a_field_has_what_its_model_needs(tmp_path: Path) -> None:
    trial = Trial.create(FIELD, MemoryStore())
    with trial.writing() as tx:
        roster.ask(tx, table.read(SEASON), episode=1)
    assert write(trial, tmp_path / "f.csv") == 4
    with (tmp_path / "f.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = ("episode", "user", "group", "plot", "block", "attribute_ph", "attribute_soil", "context_slope")
    assert [rows[1][name] for name in names] == ["1", "north", "coast", "A2", "A", "6.1", "sand", "flat"]
    assert [rows[3][name] for name in names] == ["1", "south", "hills", "", "", "7.0", "loam", "steep"]
    with (tmp_path / "f.dictionary.csv").open(encoding="utf-8") as file:
        told = {row["column"]: row["meaning"] for row in csv.DictReader(file)}
    for name in rows[0]:
        assert name in told or any(name.startswith(m[:-1]) for m in told if m.endswith("*")), name
    line = told["the model of yield in R"]
    used = set(re.findall(r"[a-z]+_[a-z]+|\b(?:group|user|block|episode|action)\b", line.partition(", data")[0]))
    assert used == {
        "metric_yield", "action", "attribute_ph", "attribute_soil", "context_rain", "context_slope", "group", "user",
        "block", "episode",
    } <= set(rows[0])  # fmt: skip


def test_the_open_bandit_arrays_hold_a_category_by_its_level(tmp_path: Path) -> None:
    trial = Trial.create(FIELD, MemoryStore())
    with trial.writing() as tx:
        roster.ask(tx, table.read(SEASON), episode=1)
    for d in trial.decisions([1, 4]):
        trial.tell(d.id, {"yield": 5.0})
    assert write(trial, tmp_path / "f.npz") == 2
    with np.load(tmp_path / "f.npz") as stored:
        assert stored["context"].tolist() == [[450.0, 0.0], [600.0, 1.0]]


def test_the_line_of_r_follows_the_model() -> None:
    patients = Trial.create(PATIENTS, MemoryStore())
    patients.ask_many(["p1", "p2"], enrol={p: {"attributes": {"sex": "f"}, "group": "clinic"} for p in ("p1", "p2")})
    line = lme4.line(patients.state(), "score") or ""
    assert "(1 | user) + (1 | user:action)" in line
    assert "(0 + attribute_age | user:action)" in line
    assert "group" not in line  # there is only one
    for change in ({"feedback": "difference"}, {"model": {"kind": "paper"}, "context": {}, "users": {"north": {}}}):
        assert lme4.line(Trial.create(FIELD | change, MemoryStore()).state(), "yield") is None
    users = {"a b": {"attributes": {"soil type": "sand"}}}
    spaced = Trial.create(FIELD | {"users": users, "model": {"seasons": False}}, MemoryStore()).state()
    assert "`attribute_soil type`" in (line := lme4.line(spaced, "yield") or "")
    assert "episode" not in line
    assert line.endswith(', action = relevel(factor(action), "old")))')
    mixed = Trial.create(FIELD | {"control": {"old": 0.5, "new": 0.5}}, MemoryStore()).state()
    assert (lme4.line(mixed, "yield") or "").endswith("data = read.csv(FILE, check.names = FALSE))")


def has_lme4() -> bool:
    """Whether R is here, with lme4."""
    rscript = shutil.which("Rscript")
    return (
        rscript is not None and subprocess.run([rscript, "-e", 'library("lme4")'], capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not has_lme4(), reason="needs R with lme4")
def test_r_fits_the_line_to_the_export_as_it_is(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    users = {f"farm {i}": {"blocks": {"A": ["A1", "A2"], "B": ["B1", "B2"]}} for i in range(5)}
    field = FIELD | {"users": users, "context": {}, "policy": {"name": "uniform"}}
    trial = Trial.create(field, MemoryStore())
    for season in range(1, 7):
        year = rng.normal(0, 0.5)
        given = trial.ask_many(episode=season)
        trial.tell_many([Report(d.id, {"yield": 5 + year + (d.arm == "new") + rng.normal(0, 0.3)}) for d in given])
    write(trial, tmp_path / "log.csv")
    line = lme4.line(trial.state(), "yield")
    script = f'FILE <- "log.csv"\nfit <- {line}\ncat(names(lme4::fixef(fit)), lme4::fixef(fit))'
    done = subprocess.run(["Rscript", "-e", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    first, second, level, effect = done.stdout.split()
    assert (first, second) == ("(Intercept)", "actionnew")  # against the control, though "new" comes first
    assert float(level) == pytest.approx(5, abs=1)
    assert float(effect) == pytest.approx(1, abs=0.25)  # four standard errors of 120 plots


def test_the_dictionary_gives_the_units_of_the_columns(tmp_path: Path) -> None:
    metrics = {name: metric | {"unit": "t/ha"} for name, metric in SPEC["metrics"].items()}
    spec = SPEC | {"metrics": metrics, "reward": {"unit": "EUR/ha"}, "feedback": "difference"}
    trial = Trial.create(spec, MemoryStore())
    trial.open_episode({u: {"rain": 5.0} for u in SPEC["users"]})
    trial.ask("u0")
    write(trial, tmp_path / "u.csv")
    with (tmp_path / "u.dictionary.csv").open(encoding="utf-8") as file:
        told = {row["column"]: row["meaning"] for row in csv.DictReader(file)}
    for metric in metrics:
        assert told[f"metric_{metric}"] == f"{metric}, in t/ha"
        assert told[f"control.{metric}"] == f"{metric}, in t/ha"
    assert told["reward"].endswith("; in EUR/ha")
    assert told["effect_*"].endswith("; in EUR/ha")
