"""The reproduction in small: files, fields, and agreement with the authors' numbers."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from drimed.cli.main import app
from drimed.cli.simulate import reproduce as command
from drimed.errors import ConfigError
from drimed.reports.results_page import reproduce
from drimed.simulation.reproduction import DRIFTS, JUDGES, MAIN, PARTS, Reproduction


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("reproduce")
    reproduce(Reproduction(seeds=4, episodes=20), out, jobs=1)
    return out, json.loads((out / "results.json").read_text())


def test_every_part_has_its_numbers(small: tuple[Path, dict[str, Any]]) -> None:
    _, told = small
    assert set(told["main"]) == set(DRIFTS)
    for rows in told["main"].values():
        assert set(rows) == {c.key for c in MAIN}
        for numbers in rows.values():
            for metric in ("regret", "regret_as_published"):
                assert numbers[metric]["q05"] <= numbers[metric]["median"] <= numbers[metric]["q95"]
            assert 0 <= numbers["violation_rate"] <= 1
            assert 0 <= numbers["estimated_violation_rate"] <= 1
            assert 0 <= numbers["estimated_violation_rate_as_published"] <= 1
        # Thompson sampling has no propensities.
        assert [rows[p]["expected_violation_rate"] is None for p in ("lin_ts", "lin_med")] == [True, False]
    assert set(told["ablations"]["quantile"]) == {"0.25", "0.5", "0.75"}
    assert set(told["ablations"]["tolerance"]) == {"0.05", "0.1", "0.2", "0.3", "0.5"}
    for shares in told["allocation"]["share"].values():
        assert all(sum(user) == pytest.approx(1) for user in shares)
    assert {"published_dri_med_printed", "published_dri_med_code", "oful", "dri_med"} <= set(told["random"]["gradual"])


def test_each_claim_has_id_text_verdict_and_evidence(small: tuple[Path, dict[str, Any]]) -> None:
    _, told = small
    assert [c["id"] for c in told["claims"]] == list(JUDGES)
    for claim in told["claims"]:
        assert {"id", "text", "holds", "evidence"} <= set(claim)
        assert claim["holds"] in (True, False)
        assert claim["evidence"]


def test_figures_stand_inside_the_page(small: tuple[Path, dict[str, Any]]) -> None:
    page = (small[0] / "index.html").read_text()
    assert page.count('<figure class="card"') == 3 + 2 * len(DRIFTS)
    assert not re.search(r'(src|href)="(?!#)', page), "the page must not load anything from elsewhere"


def test_a_part_alone_leaves_other_claims_unjudged(tmp_path: Path) -> None:
    told = reproduce(Reproduction(seeds=4, episodes=10, parts=("allocation",), reading="printed"), tmp_path, jobs=1)
    assert told["main"] == {}
    verdicts = {c["id"]: c["holds"] for c in told["claims"]}
    assert verdicts["below-all-baselines"] is None
    assert verdicts["lin-med-spreads"] is not None
    assert (tmp_path / "index.html").exists()


def test_plans_refuse_what_they_cannot_run() -> None:
    with pytest.raises(ConfigError, match="seeds must be a number from 1"):
        Reproduction(seeds=0)
    with pytest.raises(ConfigError, match="reading must be 'printed' or 'code', got 'print'"):
        Reproduction(reading="print")


def test_the_help_of_the_command_names_every_part_and_its_default_is_the_papers_number_of_seeds() -> None:
    text = CliRunner().invoke(app, ["reproduce", "--help"], env={"COLUMNS": "300"}).stdout
    assert ", ".join(PARTS) in text
    assert Reproduction().seeds == inspect.signature(command).parameters["seeds"].default
    assert Reproduction().episodes == inspect.signature(command).parameters["episodes"].default


CONTENDERS = {c.key: c for c in MAIN}


def final_regret(key: str, drift: str = "gradual") -> np.ndarray:
    run = Reproduction().on_authors(CONTENDERS[key], drift, seeds=16)
    return run.run().total("regret_as_published")


@pytest.mark.parametrize(("key", "median"), [("oful", 331), ("lin_ts", 1294), ("lin_med", 1816), ("lin_imed", 1068)])
def test_the_baselines_agree_with_the_authors_code(key: str, median: float) -> None:
    assert np.median(final_regret(key)) == pytest.approx(median, rel=0.1)


def test_dri_med_agrees_with_the_authors_code_although_its_design_is_mended() -> None:
    low, high = np.quantile(final_regret("published_dri_med"), [0.05, 0.95])
    assert low <= 102 <= high
    assert low > 70
    assert high < 170


def test_dri_imed_agrees_with_the_authors_code() -> None:
    low, high = np.quantile(final_regret("published_dri_imed"), [0.05, 0.95])
    assert low <= 21 <= high
    assert high < 110


def test_lin_med_with_its_own_weights_is_below_100_where_the_swapped_ones_give_1800() -> None:
    assert np.median(final_regret("lin_med_own_weights")) < 100
