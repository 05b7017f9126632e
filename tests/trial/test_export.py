"""Exports are what `drimed evaluate` reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drimed.errors import InputError
from drimed.evaluation.readers import read
from drimed.trial.export import MEANING, records, write
from tests.findings.test_analyse import SPEC as FOUND
from tests.findings.test_analyse import play

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
    trial.ask()
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
        write(trial, tmp_path / "x.xlsx")
    with pytest.raises(InputError, match="cannot write"):
        write(trial, tmp_path / "nowhere" / "x.csv")
