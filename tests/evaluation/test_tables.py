from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drimed.errors import InputError
from drimed.evaluation import tables
from drimed.evaluation.readers import read
from tests.evaluation.logs import drawn

LOG, _ = drawn(40)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_what_is_written_is_read_again(suffix: str, tmp_path: Path) -> None:
    log = replace(LOG, available=np.ones((40, 3), bool))
    path, beside = tables.write(log, tmp_path / f"log.{suffix}", metrics=["yield", "cost"])
    again = read(path).whole()
    for name in ("action", "reward", "propensity", "probabilities", "predictions", "available", "episode", "metrics"):
        np.testing.assert_array_equal(getattr(again, name), getattr(log, name))
    with beside.open() as file:
        told = dict(csv.reader(file))
    del told["column"]
    assert list(told) == list(tables.columns(log, metrics=["yield", "cost"]))
    assert told["metric_cost"] == "outcome of metric cost"
    assert "arm new" in told["q_new"]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_unknown_propensities_stay_unknown(suffix: str, tmp_path: Path) -> None:
    propensity = LOG.propensity.copy()
    propensity[3] = np.nan
    log = replace(LOG, propensity=propensity, probabilities=None)
    path, _ = tables.write(log, tmp_path / f"log.{suffix}")
    np.testing.assert_array_equal(read(path).whole().propensity, propensity)


def test_the_open_bandit_format_has_its_keys_and_shapes() -> None:
    told = tables.open_bandit(LOG)
    assert told["n_rounds"] == 40
    assert told["n_actions"] == 3
    assert told["pi_b"].shape == (40, 3, 1)
    np.testing.assert_array_equal(told["pscore"], LOG.propensity)
    with pytest.raises(InputError, match="some of this log are unknown"):
        tables.open_bandit(replace(LOG, propensity=np.full(40, np.nan)))


def test_misuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"log\.txt"):
        tables.write(LOG, tmp_path / "log.txt")
    with pytest.raises(InputError, match="a name for each of 2 metrics"):
        tables.columns(LOG, metrics=["one"])
