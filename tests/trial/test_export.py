"""Exports are what `drimed evaluate` reads."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drimed.errors import InputError, StoreError
from drimed.evaluation.decision_log import read_log
from drimed.trial import export, queries
from drimed.trial.export import Export, meanings, write
from drimed.trial.state import recorded_decisions
from drimed.trial.store import MemoryStore, Store, open_store
from drimed.trial.trial import Trial
from tests.reports.worlds import PAPER as FOUND
from tests.reports.worlds import play
from tests.trial import many
from tests.trial.playing import records

SPEC = FOUND | {"model": {"kind": "paper"}}
FIELD = {"model": {"kind": "field"}, "noise": {}}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_export_is_read_back_as_a_log(tmp_path: Path, form: str) -> None:
    trial = play(SPEC, 5)
    assert write(trial, tmp_path / f"log.{form}", whole=True) == 30
    log = next(iter(read_log(tmp_path / f"log.{form}", arms=list(SPEC["arms"]))))
    rows = records(trial)
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


# What a long trial costs to read does not grow with it, where it need not


MOST_GROWTH = 1.3  # of the memory, from a trial to one four times as long


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(str(tmp_path / "t.db"))
    yield opened
    opened.close()


def peak(work: Callable[[], object]) -> int:
    """Bytes."""
    tracemalloc.start()
    work()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_the_memory_of_an_export_does_not_grow_with_the_trial(store: Store, tmp_path: Path) -> None:
    trial = many.made(store, 10, own=True)
    file = tmp_path / "all.csv"
    export.write(trial, file, force=True)  # what is loaded once
    short = peak(lambda: export.write(trial, file, force=True))
    many.grow(trial, 30)
    assert peak(lambda: export.write(trial, file, force=True)) < MOST_GROWTH * short


def test_the_first_piece_of_an_export_comes_before_any_decision_is_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Export.of(many.made(store, 8))
    read: list[int] = []

    def counted(ledger: Any, state: Any, numbers: Any) -> Any:
        read.extend(numbers)
        return recorded_decisions(ledger, state, numbers)

    monkeypatch.setattr(queries, "recorded_decisions", counted)
    pieces = made.pieces(".csv")
    header, rows = next(pieces)
    assert (read, rows) == ([], 0)
    assert header.startswith(b"decision,episode,user,")
    assert next(pieces)[1] == export.AT_ONCE
    assert len(read) == export.AT_ONCE < 8 * many.USERS
    assert sum(rows for _, rows in pieces) == 8 * many.USERS - export.AT_ONCE


def test_an_export_shows_one_moment_while_the_trial_goes_on(store: Store) -> None:
    trial = many.made(store, 6)
    before = records(trial)
    pieces = Export.of(trial).pieces(".csv")
    text = [next(pieces)[0], next(pieces)[0]]
    many.grow(trial, 1)
    trial.tell(10, {"yield": 5.0, "cost": 2.0})
    text += [piece for piece, _ in pieces]
    rows = list(csv.DictReader(io.StringIO(b"".join(text).decode())))
    assert [row["decision"] for row in rows] == [str(r["decision"]) for r in before]
    assert [row["state"] for row in rows] == [r["state"] for r in before]


def test_an_export_of_a_trial_that_was_set_back_says_so() -> None:
    trial = many.made(MemoryStore(), 6)
    pieces = Export.of(trial).pieces(".csv")
    next(pieces)
    trial.store = MemoryStore()
    many.made(trial.store, 1)
    with pytest.raises(StoreError, match="set back"):
        list(pieces)


def test_the_columns_are_the_same_before_and_after_anything_happened(tmp_path: Path) -> None:
    trial = Trial.create(many.spec(), MemoryStore())
    trial.ask_many()
    first = list(Export.of(trial).columns)
    trial.tell_many([])
    many.grow(trial, 1)
    assert list(Export.of(trial).columns) == first
    rows = records(trial)
    assert all(set(row) <= set(first) for row in rows)
    export.write(trial, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(encoding="utf-8") as file:
        assert next(csv.reader(file)) == first


def test_first_sight_of_what_is_pending_reads_no_decision(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial.create(many.spec(), store)
    given = trial.ask_many()
    trial.tell(given[0].id, {"yield": 5.0, "cost": 2.0})
    with trial.reading() as (ledger, _):
        monkeypatch.setattr(type(ledger), "events", lambda *_, **__: pytest.fail("events were read"))
        assert list(queries.pending(ledger)) == [d.id for d in given[1:]]
