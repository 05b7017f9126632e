"""Long texts take little room, and come back as they were; whatever somebody changes in them is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from drimed.records import read_body
from drimed.trial.stores import open_store
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.stores.sql import SqlStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial import many


@pytest.fixture(params=[False, True], ids=["alike", "own"])
def trial(request: pytest.FixtureRequest, address: str) -> Any:
    """On a store of each kind; users are alike, or have a preference of their own."""
    store = open_store(address)
    yield many.made(store, 4, own=request.param)
    store.close()


def test_events_come_back_as_they_were_written(trial: Trial) -> None:
    """In order, newest first, by decision, by user and in pages: the chain of hashes is over the texts."""
    store = trial.store
    assert isinstance(store, SqlStore)
    proof = verify(store, "many")
    assert (proof.ok, proof.exact) == (True, 4 * many.USERS)
    with store.reading("many") as ledger:
        forward = list(ledger.events())
        assert list(ledger.events(newest_first=True)) == forward[::-1]
        taken = [e for e in forward if e.kind == "decision"]
        assert [ledger.of_decisions([n])[n][0] for n in range(1, 5)] == taken[:4]
        found = ledger.of_decisions(range(1, 4 * many.USERS + 1))
        assert [found[n][0] for n in found] == taken
        assert list(ledger.events(user="user 07", kinds=["decision"])) == [e for e in taken if e.user == "user 07"]
        with store.transaction(write=False) as connection:
            rows = connection.execute(sa.text("SELECT text, packed FROM drimed_events WHERE kind = 'decision'")).all()
        assert all(text == "" and packed for text, packed in rows)


def test_users_who_are_alike_take_a_tenth_of_the_room(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "t.db"))
    many.made(store, 4)
    with store.transaction(write=False) as connection:
        packed = connection.scalar(sa.text("SELECT sum(length(packed)) FROM drimed_events WHERE kind = 'decision'"))
    with store.reading("many") as ledger:
        plain = sum(len(e.text) for e in ledger.events(kinds=["decision"]))
    store.close()
    assert packed < plain / 10


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE drimed_events SET packed = (SELECT packed FROM drimed_events WHERE seq = 4) WHERE seq = 5",
        "UPDATE drimed_events SET base = 4 WHERE seq = 6",
        "UPDATE drimed_events SET base = NULL WHERE seq = 6",
        "UPDATE drimed_events SET packed = NULL WHERE seq = 3",
        "UPDATE drimed_events SET text = '{}' WHERE seq = 6",
    ],
)
def test_a_packed_text_that_was_changed_is_found(address: str, change: str) -> None:
    store = open_store(address)
    many.made(store, 1)
    with store.reading("many") as ledger:
        assert [e.kind for e in ledger.events(after=2, until=6)] == ["decision"] * 4
    with store._engine.begin() as connection:
        connection.exec_driver_sql(change)
    proof = verify(store, "many")
    assert not proof.ok
    assert "is not what was recorded" in proof.faults[0]
    store.close()


def test_a_store_without_packed_texts_is_read_as_before(tmp_path: Path) -> None:
    """As an older version wrote it: every text in full. What is added to it is packed."""
    store = open_store(str(tmp_path / "t.db"))
    trial = many.made(store, 2)
    with store.reading("many") as ledger:
        events = list(ledger.events())
    with store._engine.begin() as connection:
        for e in events:
            connection.execute(
                sa.text("UPDATE drimed_events SET text = :text, base = NULL, packed = NULL WHERE seq = :seq"),
                {"text": e.text, "seq": e.seq},
            )
    many.grow(Trial.open("many", store), 1)
    with store.reading("many") as ledger:
        assert list(ledger.events(until=len(events))) == events
    assert verify(store, "many").ok
    assert trial.status().decisions == 3 * many.USERS
    store.close()


def test_bodies_are_read_as_json_reads_them() -> None:
    trial = many.made(MemoryStore(), 1)
    with trial.reading() as (ledger, _):
        for event in ledger.events():
            whole = json.loads(event.text)
            assert read_body(event.text) == whole
            assert list(read_body(event.text)) == list(whole)
            brief = read_body(event.text, ("estimate", "half"))
            assert brief == {k: None if k in ("estimate", "half") else v for k, v in whole.items()}
    typed = {
        "arm": '"probabilities":[1,2]',
        "probabilities": [1.0] * 300,
        "reason": '\\"half\\":[',
        "half": [2.0] * 300,
    }
    assert read_body(json.dumps(typed, separators=(",", ":"))) == typed


def test_a_body_that_somebody_changes_changes_no_other() -> None:
    text = json.dumps({"probabilities": [0.25] * 400}, separators=(",", ":"))
    read_body(text)["probabilities"][0] = 9.0
    assert read_body(text)["probabilities"][0] == 0.25
