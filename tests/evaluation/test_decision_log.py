"""One log through every door gives the same pieces."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from drimed.errors import InputError, MissingExtraError, ShapeError
from drimed.evaluation.decision_log import Columns, Log, make_log, read_log, write_log
from tests.evaluation.logs import TARGET, drawn, table

pd: Any = import_module("pandas")  # without types of their own
pa: Any = import_module("pyarrow")

LOG, _ = drawn(500)
COLUMNS: dict[str, Any] = table(LOG)
WITH_TARGET = Columns(targets=("target_",))


def as_parquet(folder: Path) -> Any:
    pl.DataFrame(COLUMNS).write_parquet(folder / "log.parquet", row_group_size=120)
    return folder / "log.parquet"


def as_csv(folder: Path) -> Any:
    pl.DataFrame(COLUMNS).write_csv(folder / "log.csv")
    return str(folder / "log.csv")


DOORS: dict[str, Callable[[Path], Any]] = {
    "parquet": as_parquet,
    "csv": as_csv,
    "dict": lambda _: COLUMNS,
    "pandas": lambda _: pd.DataFrame(COLUMNS),
    "polars": lambda _: pl.DataFrame(COLUMNS),
    "polars lazy": lambda _: pl.DataFrame(COLUMNS).lazy(),
    "arrow": lambda _: pa.table(COLUMNS),
}


def assert_same(found: Log, expected: Log) -> None:
    assert found.arms == expected.arms
    for name in ("action", "reward", "propensity", "probabilities", "predictions"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-15)
    assert found.user is not None
    assert expected.user is not None
    assert found.user.astype(str).tolist() == expected.user.astype(str).tolist()


@pytest.mark.parametrize("door", DOORS)
def test_every_door_gives_the_same_log(door: str, tmp_path: Path) -> None:
    stream = read_log(DOORS[door](tmp_path), columns=WITH_TARGET, rows=64)
    assert stream.predicts
    pieces = list(stream)
    assert sum(len(p) for p in stream) == 500, "a stream can be gone through twice"
    assert max(len(p) for p in pieces) <= 64
    assert [p.start for p in pieces] == np.cumsum([0, *(len(p) for p in pieces[:-1])]).tolist()
    whole = stream.whole()
    assert_same(whole, LOG)
    np.testing.assert_allclose(whole.targets["target_"], np.broadcast_to(TARGET, (500, 3)))


def bare(**columns: Any) -> dict[str, Any]:
    return {"action": [0, 1, 1], "reward": [1.0, 2.0, 3.0], "propensity": [0.5] * 3} | columns


def test_without_columns_for_arms_they_are_those_that_occur_numbers_first_and_in_order() -> None:
    assert read_log(bare(action=[10, 9, 10])).arms == ("9", "10")
    assert read_log(bare(action=["b", "a", "b"])).arms == ("a", "b")
    assert read_log(bare(action=[10, 9, 10])).whole().action.tolist() == [1, 0, 1]


def test_arms_given_by_the_caller_may_include_some_that_never_occur() -> None:
    assert read_log(bare(action=["b", "a", "b"]), arms=["c", "a", "b"]).whole().action.tolist() == [2, 1, 2]
    with pytest.raises(InputError, match="arm 'b' in row 1 is not one of a, c"):
        read_log(bare(action=["b", "a", "b"]), arms=["a", "c"]).whole()
    with pytest.raises(InputError, match="arm '1' in row 2"):
        read_log(bare(), arms=["0", "2"]).whole()


def test_without_a_propensity_column_it_is_unknown_unless_all_probabilities_are_there() -> None:
    columns = bare()
    del columns["propensity"]
    assert np.isnan(read_log(columns).whole().propensity).all()
    full = columns | {"probability_0": [0.3, 0.3, 0.3], "probability_1": [0.7, 0.7, 0.7]}
    assert read_log(full).whole().propensity.tolist() == [0.3, 0.7, 0.7]


def test_an_empty_cell_is_an_unknown_propensity_but_no_reward(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("action,reward,propensity\na,1,0.5\nb,2,\n")
    assert np.isnan(read_log(path).whole().propensity).tolist() == [False, True]
    path.write_text("action,reward,propensity\na,1,0.5\nb,,0.5\n")
    with pytest.raises(InputError, match="reward must be finite, got nan in row 3"):
        read_log(path).whole()
    path.write_text("action,reward,propensity\na,1,0.5\n,1,0.5\n")
    with pytest.raises(InputError, match="action is missing in row 3"):
        read_log(path, arms=["a"]).whole()


@pytest.mark.parametrize(
    "wrap", [lambda c: c, pd.DataFrame, pl.DataFrame, pa.table], ids=["dict", "pandas", "polars", "arrow"]
)
def test_numbers_of_arms_may_have_become_floats(wrap: Callable[[Any], Any]) -> None:
    columns = {"action": np.array([2.0, 0.0, 2.0]), "reward": np.ones(3), "propensity": np.full(3, 0.5)}
    stream = read_log(wrap(columns))
    assert stream.arms == ("0", "2")
    assert stream.whole().action.tolist() == [1, 0, 1]
    gap = columns | {"action": np.array([2.0, np.nan, 2.0])}
    with pytest.raises(InputError, match="action is missing in row 2"):
        read_log(wrap(gap)).whole()


def test_users_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("action,reward,propensity,user\na,1,0.5,ada\na,2,0.5,\n")
    user = read_log(path).whole().user
    assert user is not None
    assert user.tolist() == ["ada", "(missing)"]


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    log = read_log(as_parquet(tmp_path), columns=Columns(predictions="")).whole()
    assert log.predictions is None
    assert log.user is not None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"action": [0, 1]}, "the log cannot be read: .*height of column"),
        ({"q_0": [1.0] * 3}, "arm '1' in row 2 is not one of 0"),
        ({"q_0": [1.0] * 3, "q_1": [1.0] * 3, "probability_0": [0.5] * 3}, "predictions of the log have a column for"),
        ({"reward": ["x", "y", "z"]}, "reward must be numbers, got 'x' in row 1"),
        ({"columns": Columns(targets=("pi_",))}, "no column begins with 'pi_'"),
        ({"columns": Columns(reward="gain")}, "no column 'gain'; it has action, reward"),
    ],
)
def test_tables_that_do_not_fit_are_refused(columns: dict[str, Any], message: str) -> None:
    told = {name: value for name, value in columns.items() if name != "columns"}
    with pytest.raises(InputError, match=message):
        read_log(bare(**told), columns=columns.get("columns")).whole()


def test_sources_that_are_no_logs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no log at"):
        read_log(tmp_path / "nothing.csv")
    (tmp_path / "log.txt").write_text("")
    with pytest.raises(InputError, match=r"a \.parquet or \.csv file, got log\.txt"):
        read_log(tmp_path / "log.txt")
    (tmp_path / "log.parquet").write_text("not really")
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path / "log.parquet").whole()
    with pytest.raises(InputError, match="a log is a path"):
        read_log(3)
    with pytest.raises(InputError, match=r"log\.txt"):
        write_log(LOG, tmp_path / "log.txt")
    with pytest.raises(InputError, match="empty"):
        read_log({"action": [], "reward": [], "propensity": []}).whole()


def test_without_polars_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(MissingExtraError, match=r"drimed\[evaluation\]"):
        read_log({"action": [0], "reward": [1.0]})


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_what_is_written_is_read_again(suffix: str, tmp_path: Path) -> None:
    log = replace(LOG, available=np.ones((500, 3), bool))
    path, beside = write_log(log, tmp_path / f"log.{suffix}")
    again = read_log(path).whole()
    for name in ("action", "reward", "propensity", "probabilities", "predictions", "available"):
        np.testing.assert_array_equal(getattr(again, name), getattr(log, name))
    with beside.open() as file:
        told = dict(csv.reader(file))
    del told["column"]
    assert list(told) == pl.read_parquet(path).columns if suffix == "parquet" else pl.read_csv(path).columns
    assert "arm new" in told["q_new"]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_unknown_propensities_stay_unknown(suffix: str, tmp_path: Path) -> None:
    propensity = LOG.propensity.copy()
    propensity[3] = np.nan
    log = replace(LOG, propensity=propensity, probabilities=None)
    path, _ = write_log(log, tmp_path / f"log.{suffix}")
    np.testing.assert_array_equal(read_log(path).whole().propensity, propensity)


GOOD: dict[str, Any] = {"action": [0, 1, 0], "reward": [1.0, 2.0, 3.0], "propensity": [0.5, 0.25, 1.0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": [1.0, np.nan, 3.0]}, "reward must be finite, got nan in row 102"),
        ({"reward": ["a", "b", "c"]}, "reward must be numbers"),
        ({"propensity": [0.5, 0.0, 1.0]}, "above 0 and at most 1, got 0.0 in row 102"),
        ({"propensity": [0.5, 0.2, 1.5]}, "above 0 and at most 1, got 1.5 in row 103"),
        ({"propensity": None}, "a log needs the propensity of the arm played"),
        ({"action": [0, 2, 0], "arms": ["a", "b"]}, "an arm from 0 to 1 .*, got 2 in row 102"),
        ({"action": [0.5, 1.0, 0.0]}, "action must be the index of an arm"),
        ({"arms": ["a", "a"]}, "arms must be different names"),
        ({"probabilities": [[0.5, 0.5], [0.7, 0.3], [1.0, 0.0]]}, r"must agree, got \[0.25 0.3 \] in row 102"),
        ({"probabilities": [[0.5, 0.5], [0.7, 0.25], [1.0, 0.0]]}, "must sum to 1 over the arms, got 0.95"),
        ({"probabilities": [[0.5, 0.5], [1.2, -0.2], [1.0, 0.0]]}, "must not be negative"),
        ({"available": [[True, True], [True, False], [True, True]]}, "played must be available, got 1 in row 102"),
        ({"targets": {"t": [[1.0, 0.0], [0.4, 0.4], [1.0, 0.0]]}}, "target t must sum to 1"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_log(**(GOOD | change), start=100)


@pytest.mark.parametrize("change", [{"action": [0, 1]}, {"propensity": [0.5]}, {"user": ["a"]}])
def test_columns_of_other_lengths_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        make_log(**(GOOD | change))
