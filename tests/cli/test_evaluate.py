"""`drimed evaluate` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import typer
from typer.testing import CliRunner, Result

from drimed.cli.evaluate import evaluate
from drimed.errors import ConfigError, InputError
from tests.evaluation.logs import TARGET, drawn, table, value

APP = typer.Typer()
APP.command()(evaluate)
RUNNER = CliRunner()
LOG, MEANS = drawn(3000)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pl.DataFrame(table(LOG)).write_parquet(path)
    return path


def run(*arguments: object) -> Result:
    return RUNNER.invoke(APP, [str(a) for a in arguments], env={"COLUMNS": "200"})


def test_a_log_is_evaluated_and_written(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "result.json"
    policies = "uniform,control,arm=other,logged,columns=target_"
    more = ("--reward-range", "0", "1", "--level", "0.9", "--by-user")
    done = run(path, "--policy", policies, "--control", "old", *more, "--out", out)
    assert done.exit_code == 0, done.output
    assert "90% at all times" in done.output
    assert "3,000 decisions, 3 arms" in done.output
    assert "effective sample size" in done.output
    assert "user ada" in done.output
    told = json.loads(out.read_text())
    by_name = {(e["target"], e["estimator"]): e for e in told["estimates"]}
    assert len(by_name) == 5 * 5
    assert by_name["columns=target_", "dr"]["value"] == pytest.approx(value(MEANS, TARGET), abs=0.05)
    assert by_name["logged", "ips"]["value"] == pytest.approx(LOG.reward.mean())


def test_other_names_of_columns_and_a_metric_as_outcome(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    frame = pl.DataFrame(table(LOG)).rename({"action": "arm", "propensity": "p"})
    frame.drop([c for c in frame.columns if c.startswith("q_")]).write_csv(path)
    done = run(path, "--action", "arm", "--propensity", "p", "--reward", "metric_0")
    assert done.exit_code == 0, done.output
    assert "snips" in done.output
    assert " dr " not in done.output


def test_missing_support_is_a_refusal_with_its_reason_and_an_exit_code(path: Path) -> None:
    done = run(
        path, "--policy", "arm=never", "--arms", "old,new,other,never", "--predictions", "no", "--probabilities", "n"
    )
    assert done.exit_code == 2
    assert "refused" in done.output
    assert "support is missing" in done.output


def test_one_refused_policy_does_not_hide_the_others(path: Path) -> None:
    bare = ("--predictions", "no", "--probabilities", "no")
    done = run(path, "--policy", "arm=never,arm=old", "--arms", "old,new,other,never", "--estimators", "ips", *bare)
    assert done.exit_code == 0
    assert "refused: arm=never / ips: support is missing" in done.output
    assert "arm=old: effective sample size" in done.output


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--policy", ","], ConfigError),
        (["--policy", "control"], InputError),
        (["--policy", "nobody"], InputError),
        (["--estimators", "magic"], InputError),
        (["--level", "95"], ConfigError),
        (["--reward", "money"], InputError),
    ],
)
def test_what_cannot_be_done_is_an_error_of_drimeds_own(
    path: Path, arguments: list[str], error: type[Exception]
) -> None:
    assert isinstance(run(path, *arguments).exception, error)


def test_names_are_no_markup_and_no_other_file_is_written_over(tmp_path: Path) -> None:
    rows = {"action": ["N[low]", "[bold]"] * 50, "reward": [1.0, 2.0] * 50, "propensity": [0.5] * 100}
    pl.DataFrame(rows | {"user": ["field[a]"] * 100}).write_csv(tmp_path / "log.csv")
    words = (tmp_path / "log.csv", "--policy", "arm=N[low],arm=[bold]", "--by-user", "--out")
    for force in ([], ["--force"]):
        done = run(*words, tmp_path / "result.json", *force)
        assert done.exit_code == 0, done.output
        assert all(name in done.output for name in ("arm=N[low]", "arm=[bold]", "user field[a]"))
    kept = (tmp_path / "log.csv").read_bytes()
    refused = run(*words, tmp_path / "log.csv").exception
    assert isinstance(refused, InputError)
    assert "write over it with --force" in str(refused)
    assert (tmp_path / "log.csv").read_bytes() == kept
