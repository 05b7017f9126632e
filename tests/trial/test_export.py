"""Exports are what `drimed evaluate` reads."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from drimed.errors import InputError
from drimed.evaluation.decision_log import read_log
from drimed.trial.export import meanings, records, write
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.reports.worlds import PAPER as FOUND
from tests.reports.worlds import play

SPEC = FOUND | {"model": {"kind": "paper"}}
FIELD = {"model": {"kind": "field"}, "noise": {}}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_export_is_read_back_as_a_log(tmp_path: Path, form: str) -> None:
    trial = play(SPEC, 5)
    assert write(trial, tmp_path / f"log.{form}", whole=True) == 30
    log = next(iter(read_log(tmp_path / f"log.{form}", arms=list(SPEC["arms"]))))
    rows = list(records(trial))
    np.testing.assert_array_equal(log.reward, [r["reward"] for r in rows])
    np.testing.assert_array_equal(log.propensity, [r["propensity"] for r in rows])
    assert log.probabilities is not None
    np.testing.assert_array_equal(log.probabilities[:, 1], [r["probability_good"] for r in rows])


def test_an_export_has_every_decision_and_every_column_is_explained(tmp_path: Path) -> None:
    trial = play(SPEC, 2)
    trial.open_episode({u: {"rain": 5.0} for u in SPEC["users"]})
    trial.ask("u0")
    assert write(trial, tmp_path / "d.csv") == 13
    rows = list(csv.DictReader((tmp_path / "d.csv").read_text(encoding="utf-8").splitlines()))
    assert rows[-1]["state"] == "pending"
    told = (tmp_path / "d.dictionary.csv").read_text(encoding="utf-8")
    assert write(trial, tmp_path / "d.json", force=True) == 13
    assert [list(row) for row in json.loads((tmp_path / "d.json").read_text(encoding="utf-8"))] == [list(rows[0])] * 13
    for name in rows[0]:
        assert name in meanings() or any(name.startswith(m[:-1]) for m in meanings() if m.endswith("*")), name
        assert "metric_*" in told


def test_an_unknown_form_or_an_unwritable_place_is_refused(tmp_path: Path) -> None:
    trial = play(SPEC, 1)
    with pytest.raises(InputError, match=r"\.parquet"):
        write(trial, tmp_path / "x.ods")
    with pytest.raises(InputError, match="cannot write"):
        write(trial, tmp_path / "nowhere" / "x.csv")


def test_the_dictionary_gives_the_units_of_the_columns(tmp_path: Path) -> None:
    metrics = {name: metric | {"unit": "t/ha"} for name, metric in SPEC["metrics"].items()}
    spec = SPEC | {"metrics": metrics, "reward": {"unit": "EUR/ha"}, "feedback": "difference"} | FIELD
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
