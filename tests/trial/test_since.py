"""Proofs since a kept hash: what is new is proven, and what came before is vouched for by the hash."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from drimed.records import Event, Head
from drimed.trial import opened as opened_trials
from drimed.trial.events import hash_after, written
from drimed.trial.stores import open_store
from drimed.trial.stores.store import Store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.forging import Clock
from tests.trial.seasons import KNOWN, RAIN, SPEC

NAME = "season"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Some seasons, with a snapshot every few events."""
    monkeypatch.setattr(opened_trials, "SNAPSHOT_EVERY", 10)
    made = tmp_path / "trials.db"
    store = open_store(f"sqlite:///{made}")
    trial = Trial.create(SPEC | KNOWN | RAIN, store, clock=Clock())
    for season in range(1, 9):
        contexts = {user: {"rain": 400.0 + 10 * season} for user in trial.state().users}
        for i, decision in enumerate(trial.ask_many(contexts=contexts, episode=season, key=f"season {season}")):
            trial.tell(decision.id, {"yield": 5.0 + 0.1 * i, "cost": 1.0})
    store.close()
    return made


def opened(file: Path) -> tuple[Store, list[Event]]:
    store = open_store(f"sqlite:///{file}")
    with store.reading(NAME) as ledger:
        return store, list(ledger.events())


def changed(file: Path, number: int, text: str, *, chained: bool) -> None:
    """Another text for one event; all hashes from there on are made anew, or left as they are."""
    store, events = opened(file)
    store.close()
    events[number - 1] = replace(events[number - 1], kept=text)
    hash = events[number - 2].hash
    with sqlite3.connect(file) as connection:
        for event in events[number - 1 :]:
            hash = hash_after(hash, event) if chained else event.hash
            connection.execute(
                "UPDATE drimed_events SET text = ?, base = NULL, packed = NULL, hash = ? WHERE seq = ?",
                (event.text, hash, event.seq),
            )
        connection.execute("UPDATE drimed_trials SET hash = ?", (hash,))


def test_what_came_since_a_hash_or_an_event_is_proven(file: Path) -> None:
    store, events = opened(file)
    with store.reading(NAME) as ledger:
        kept = ledger.snapshot_seqs()
    assert len(kept) >= 3
    for event in (events[kept[-1]], events[kept[1]], events[kept[1] - 1], events[-1], events[3]):
        before = max((seq for seq in kept if seq < event.seq), default=0)
        for since in (event.hash, event.seq):
            proof = verify(store, NAME, since=since)
            assert (proof.faults, proof.since, proof.events) == ([], before, len(events))
            assert proof.decisions == proof.exact == sum(e.kind == "decision" for e in events[before:])


def test_a_forgery_after_the_hash_is_found_and_one_before_it_is_not_its_business(file: Path) -> None:
    store, events = opened(file)
    store.close()
    with sqlite3.connect(file) as connection:
        kept = [seq for (seq,) in connection.execute("SELECT seq FROM drimed_snapshots ORDER BY seq")]
    since = events[kept[-1]]
    early = next(e for e in events if e.kind == "outcome" and e.seq < kept[0])
    late = next(e for e in events if e.kind == "outcome" and e.seq > since.seq)
    better = [
        written({**e.body, "outcome": {"metrics": {"yield": 9.0, "cost": 0.1}, "control": None}}) for e in (early, late)
    ]
    changed(file, early.seq, better[0], chained=False)
    store, _ = opened(file)
    assert verify(store, NAME, since=since.hash).ok
    assert not verify(store, NAME).ok
    store.close()
    changed(file, late.seq, better[1], chained=False)
    store, _ = opened(file)
    assert f"event {late.seq} (outcome) is not what was recorded, or not in its place" in "".join(
        verify(store, NAME, since=since.hash).faults
    )


def test_a_log_that_was_rewritten_does_not_have_the_hash(file: Path) -> None:
    store, events = opened(file)
    store.close()
    since = events[-5]
    outcome = next(e for e in events if e.kind == "outcome")
    other = {**outcome.body, "outcome": {"metrics": {"yield": 9.0, "cost": 0.1}, "control": None}}
    changed(file, outcome.seq, written(other), chained=True)
    store, _ = opened(file)
    anchor = Head(NAME, since.seq, since.hash, "2026-05-01T00:00:00+00:00")
    first, second = verify(store, NAME, anchors=[anchor], since=since.hash).faults
    assert f"something up to event {since.seq} was changed" in first
    assert second.startswith(f"no event has the hash {since.hash}")
    assert any("something up to event" in f for f in verify(store, NAME, anchors=[anchor], since=since.seq).faults)


def test_a_snapshot_that_was_changed_is_not_begun_with(file: Path) -> None:
    store, events = opened(file)
    with store.reading(NAME) as ledger:
        kept = ledger.snapshot_seqs()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE drimed_snapshots SET data = x'00' WHERE seq = ?", (kept[-1],))
    proof = verify(store, NAME, since=events[-1].hash)
    assert proof.since == kept[-2]
    assert proof.faults == [f"the snapshot after event {kept[-1]} is not the one that was taken"]


def test_a_poisoned_snapshot_before_the_hash_whose_event_was_forged_breaks_the_chain(file: Path) -> None:
    store, events = opened(file)
    with store.reading(NAME) as ledger:
        taken = ledger.snapshot()
    assert taken is not None
    store.close()
    changed(file, taken.seq + 1, written({"after": taken.seq, "hash": "0" * 64}), chained=False)
    store, _ = opened(file)
    assert any(f"event {taken.seq + 1} (snapshot) is not what was recorded" in f for f in verify(store, NAME).faults)
    assert not verify(store, NAME, since=events[-1].hash).ok


def test_a_request_that_is_answered_again_after_the_hash_is_found(file: Path) -> None:
    store, events = opened(file)
    store.close()
    again = [e for e in events if e.kind == "decision"][-4:]
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE drimed_events SET request = 'season 1' WHERE request = 'season 8'")
    store, _ = opened(file)
    faults = "".join(verify(store, NAME, since=events[again[0].seq - 3].hash).faults)
    assert "request 'season 1' was answered before" in faults


def test_what_is_not_there_is_said(file: Path) -> None:
    store, events = opened(file)
    (fault,) = verify(store, NAME, since=len(events) + 1).faults
    assert fault == f"there is no event {len(events) + 1}: the log ends with event {len(events)}"
    assert not verify(store, NAME, since="0" * 64).ok
