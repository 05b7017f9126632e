"""The proof of a log: whatever somebody changes in it is found."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from drimed.records import Event
from drimed.trial import snapshots
from drimed.trial import transaction as opened_trials
from drimed.trial.events import hash_after, to_json
from drimed.trial.state import catch_up, start_of
from drimed.trial.store import Snapshot, Store, open_store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.seasons import NAME, SPEC, play, proven
from tests.trial.states import same


class Forger:
    """Somebody with the rights of the database's owner."""

    def __init__(self, store: Store) -> None:
        self.store = store
        with store.reading(NAME) as ledger:
            self.events = list(ledger.events())
            self.snapshot = ledger.snapshot()

    def run(self, statement: str, **values: Any) -> None:
        with self.store._engine.begin() as connection:
            connection.execute(sa.text(statement), values)

    def insert(self, event: Event) -> None:
        with self.store._engine.begin() as connection:
            connection.execute(
                sa.text(
                    'INSERT INTO drimed_events (trial, seq, time, actor, kind, decision, "user", request, text, hash) '
                    "VALUES (1, :seq, :time, :actor, :kind, :decision, :user, :request, :text, :hash)"
                ),
                asdict(event) | {"text": event.text},
            )

    def make_room_at(self, seq: int) -> None:
        for event in reversed(self.events[seq - 1 :]):
            self.run("UPDATE drimed_events SET seq = seq + 1 WHERE seq = :seq", seq=event.seq)
        self.run("UPDATE drimed_trials SET seq = seq + 1")

    def rechain(self, first: Event, text: str) -> None:
        """Give an event another text, and all that follow it the hashes that belong to it."""
        hash = self.events[first.seq - 2].hash
        for event in self.events[first.seq - 1 :]:
            text = text if event is first else event.text
            hash = hash_after(hash, replace(event, text=text))
            self.run("UPDATE drimed_events SET text = :t, hash = :h WHERE seq = :s", t=text, h=hash, s=event.seq)
        self.run("UPDATE drimed_trials SET hash = :hash", hash=hash)

    def poison(self) -> Snapshot:
        """Put a snapshot of the right event in its place; what it says was learned is not what the log amounts to."""
        assert self.snapshot is not None
        with self.store.reading(NAME) as ledger:
            then = catch_up(start_of(ledger), ledger, self.snapshot.seq)
            early = catch_up(start_of(ledger), ledger, self.snapshot.seq // 2)
        poisoned = snapshots.take(replace(then, learned=then.policy.with_evidence(then.learned, early.learned)))
        assert (poisoned.seq, poisoned.hash) == (self.snapshot.seq, self.snapshot.hash)
        self.run("UPDATE drimed_snapshots SET data = :data", data=poisoned.data)
        return poisoned

    def faults(self) -> list[str]:
        found = verify(self.store, NAME)
        assert not found.ok
        return found.faults


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with a trial that has snapshots, to be copied."""
    file = tmp_path_factory.mktemp("played") / "trials.db"
    store = open_store(str(file))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(opened_trials, "SNAPSHOT_EVERY", 10)
        proven(play(SPEC, store))
    store.close()
    return file


@pytest.fixture
def forger(played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forger]:
    monkeypatch.setattr(opened_trials, "SNAPSHOT_EVERY", 10)
    store = open_store(str(shutil.copy(played, tmp_path / "trials.db")))
    made = Forger(store)
    assert made.snapshot is not None
    yield made
    store.close()


COLUMNS: dict[str, Callable[[Event], Any]] = {
    "time": lambda e: e.time.replace("T", "t"),
    "actor": lambda e: e.actor + "!",
    "kind": lambda e: "missing" if e.kind == "outcome" else "outcome",
    "decision": lambda e: (e.decision or 0) + 1,
    "user": lambda e: None if e.user else "north",
    "request": lambda e: "another" if e.request is None else None,
    "text": lambda e: e.text.replace("1", "2", 1) if "1" in e.text else e.text + " ",
    "hash": lambda e: e.hash[::-1],
}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_change_of_any_column_of_any_event_is_found_with_its_number(column: str, forger: Forger) -> None:
    for event in forger.events[:: 2 if column in ("text", "hash") else 6]:
        change = f'UPDATE drimed_events SET "{column}" = :value WHERE seq = :seq'
        forger.run(change, value=COLUMNS[column](event), seq=event.seq)
        assert any(f.startswith(f"event {event.seq} (") for f in forger.faults())
        forger.run(change, value=getattr(event, column), seq=event.seq)
    assert verify(forger.store, NAME).ok


@pytest.mark.parametrize("place", ["first", "second", "middle", "last"])
def test_an_event_that_was_taken_out_is_missed(place: str, forger: Forger) -> None:
    n = len(forger.events)
    seq = {"first": 1, "second": 2, "middle": n // 2, "last": n}[place]
    forger.run("DELETE FROM drimed_events WHERE seq = :seq", seq=seq)
    faults = forger.faults()
    if place == "last":
        assert f"the log ends with event {n - 1}, its head is event {n}: the end was cut off or added" in faults
    else:
        assert f"after event {seq - 1} comes event {seq + 1}: 1 missing" in faults


@pytest.mark.parametrize("honest_hash", [True, False])
def test_a_forged_event_in_the_middle_is_found(honest_hash: bool, forger: Forger) -> None:
    seq = len(forger.events) // 2
    old = forger.events[seq - 1]
    before = forger.events[seq - 2].hash
    forger.make_room_at(seq)
    fake = Event(seq, old.time, "eve", "paused", None, None, None, '{"reason":"mine"}', "0" * 64)
    if honest_hash:
        fake = replace(fake, hash=hash_after(before, fake))
    forger.insert(fake)
    wrong = seq + 1 if honest_hash else seq  # a hash that fits moves the break to the next event
    assert any(f.startswith(f"event {wrong} (") for f in forger.faults())


def test_a_forged_event_at_the_end_is_found(forger: Forger) -> None:
    last = forger.events[-1]
    fake = Event(last.seq + 1, last.time, "eve", "stopped", None, None, None, '{"reason":"mine"}', "")
    forger.insert(replace(fake, hash=hash_after(last.hash, fake)))
    ends = f"the log ends with event {last.seq + 1}, its head is event {last.seq}"
    assert forger.faults() == [f"{ends}: the end was cut off or added"]


def test_a_decision_that_was_forged_with_its_whole_chain_is_not_reproduced(forger: Forger) -> None:
    victim = next(e for e in forger.events if e.kind == "decision" and e.body["arm"] == "old")
    forger.rechain(victim, victim.text.replace('"arm":"old"', '"arm":"newer"', 1))
    expected = f"decision {victim.decision} (event {victim.seq}) is not reproduced: arm"
    assert any(f.startswith(expected) for f in forger.faults())


@pytest.mark.parametrize("change", ["hash = 'beef'", "seq = seq - 1", "seq = seq + 1"])
def test_a_changed_head_is_found(change: str, forger: Forger) -> None:
    forger.run(f"UPDATE drimed_trials SET {change}")
    assert any("the end was cut off or added" in f for f in forger.faults())


def test_a_log_under_another_name_is_found(forger: Forger) -> None:
    forger.run("UPDATE drimed_trials SET name = 'other'")
    assert verify(forger.store, "other").faults == ["the log is of trial 'season', and the store has it as 'other'"]


def test_a_changed_snapshot_is_found_and_named(forger: Forger) -> None:
    assert forger.snapshot is not None
    data, seq = bytearray(forger.snapshot.data), forger.snapshot.seq
    inside = data.find(b"state.evidence.ridge") + 400  # in the middle of some array
    data[inside] ^= 1
    for wrong in (bytes(data), b"", b"PK", forger.snapshot.data[:-30]):
        forger.run("UPDATE drimed_snapshots SET data = :data", data=wrong)
        assert forger.faults() == [f"the snapshot after event {seq} is not the one that was taken"]
    forger.run("UPDATE drimed_snapshots SET data = :data", data=forger.snapshot.data)
    assert verify(forger.store, NAME).ok
    for moved in (seq - 1, 10**6, 0):
        forger.run("UPDATE drimed_snapshots SET seq = :seq", seq=moved)
        assert any("snapshot" in f for f in forger.faults())


def test_a_changed_snapshot_is_not_believed(forger: Forger, caplog: pytest.LogCaptureFixture) -> None:
    with forger.store.reading(NAME) as ledger:
        whole = catch_up(start_of(ledger), ledger)
    for column, wrong in (("data", b"torn"), ("hash", "beef"), ("seq", 10**6)):
        forger.run(f"UPDATE drimed_snapshots SET {column} = :wrong", wrong=wrong)
        caplog.clear()
        assert same(Trial.open(NAME, forger.store).state(), whole)
        assert "is not used" in caplog.text


def test_a_poisoned_snapshot_does_not_steer(forger: Forger, caplog: pytest.LogCaptureFixture) -> None:
    with forger.store.reading(NAME) as ledger:
        whole = catch_up(start_of(ledger), ledger)
    poisoned = forger.poison()
    opened = Trial.open(NAME, forger.store)
    assert same(opened.state(), whole)
    assert f"the snapshot after event {poisoned.seq} is not used" in caplog.text
    assert forger.faults() == [f"the snapshot after event {poisoned.seq} is not the one that was taken"]
    opened.pause(reason="the next one who writes replaces it")
    assert verify(forger.store, NAME).ok


def test_a_poisoned_snapshot_whose_hash_was_chained_anew_is_found(forger: Forger) -> None:
    poisoned = forger.poison()
    digest = hashlib.sha256(poisoned.data).hexdigest()
    forger.rechain(forger.events[poisoned.seq], to_json({"after": poisoned.seq, "hash": digest}))
    assert forger.faults() == [f"the snapshot after event {poisoned.seq} is not what the log amounts to"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '{"x": NaN}', "{" * 10**4])
@pytest.mark.parametrize("which", ["created", "decision", "outcome"])
def test_no_nonsense_stops_the_proof(text: str, which: str, forger: Forger) -> None:
    event = next(e for e in forger.events if e.kind == which)
    forger.run("UPDATE drimed_events SET text = :text WHERE seq = :seq", text=text, seq=event.seq)
    assert any(f.startswith(f"event {event.seq} (") for f in forger.faults())


@pytest.mark.parametrize(
    ("column", "value"),
    [("kind", "unheard of"), ("text", b"\xff\x00"), ("decision", "many"), ("user", 7), ("decision", 10**15)],
)
def test_nor_does_a_value_of_another_kind(column: str, value: object, forger: Forger) -> None:
    for event in forger.events[1::6]:
        forger.run(f'UPDATE drimed_events SET "{column}" = :value WHERE seq = :seq', value=value, seq=event.seq)
        assert any(f.startswith(f"event {event.seq} (") for f in forger.faults())


def test_a_trial_without_its_creation_is_a_fault_and_no_crash(forger: Forger) -> None:
    forger.run("DELETE FROM drimed_events")
    faults = forger.faults()
    assert any("does not begin with its creation" in f for f in faults)
