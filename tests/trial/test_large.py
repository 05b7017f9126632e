"""What a long trial costs to read does not grow with it, where it need not."""

from __future__ import annotations

import csv
import io
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drimed.errors import StoreError
from drimed.trial import export, queries
from drimed.trial.export import Export
from drimed.trial.state import recorded_decisions
from drimed.trial.store import MemoryStore, Store, open_store
from drimed.trial.trial import Trial
from tests.trial import many

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


def consumed(made: Iterator[Any]) -> int:
    return sum(1 for _ in made)


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
    before = list(export.records(trial))
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
        consumed(pieces)


def test_the_columns_are_the_same_before_and_after_anything_happened(tmp_path: Path) -> None:
    trial = Trial.create(many.spec(), MemoryStore())
    trial.ask_many()
    first = list(Export.of(trial).columns)
    trial.tell_many([])
    many.grow(trial, 1)
    assert list(Export.of(trial).columns) == first
    rows = list(export.records(trial))
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
