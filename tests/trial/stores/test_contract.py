"""What every store promises, wherever it keeps its events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from queue import Queue
from typing import Any

import pytest

from drimed.errors import ConflictError, InputError, UnknownNameError
from drimed.records import Event
from drimed.trial.events import START, Draft, chain, hash_after
from drimed.trial.stores import sql
from drimed.trial.stores.store import Ledger, Snapshot, Store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.trials import SMALL

WAIT = 20.0  # seconds: far more than any of this takes


class OopsError(Exception):
    """Something that goes wrong in the caller's block."""


def event_drafts(n: int, *, kind: str = "note", first: int = 0) -> list[Draft]:
    return [Draft(kind, {"n": first + i}) for i in range(n)]


def add(ledger: Ledger, drafts: Sequence[Draft]) -> list[Event]:
    events = chain(drafts, seq=ledger.seq, hash=ledger.hash, time="2026-01-01T00:00:00.000000+00:00", actor="test")
    ledger.append(events)
    return events


def made(store: Store, drafts: Sequence[Draft], name: str = "t") -> list[Event]:
    with store.create(name) as ledger:
        return add(ledger, drafts)


def fail_in(block: AbstractContextManager[Ledger], error: type[BaseException]) -> None:
    with block as ledger:
        add(ledger, [Draft("decision", {}, 7, "u", "r")])
        ledger.keep(Snapshot(ledger.seq, "h", b"new"))
        raise error


def seqs(events: Iterator[Event]) -> list[int]:
    return [e.seq for e in events]


def everything(store: Store, name: str = "t") -> list[Event]:
    with store.reading(name) as ledger:
        return list(ledger.events())


# Trials


def test_an_empty_store_has_no_trials(store: Store) -> None:
    assert store.names() == []


def test_trials_are_listed_in_the_order_of_their_creation(store: Store) -> None:
    for name in ("zebra", "ant", "mole"):
        made(store, [], name)
    assert store.names() == ["zebra", "ant", "mole"]


def test_a_new_trial_is_empty_and_its_chain_starts_at_the_start(store: Store) -> None:
    with store.create("t") as ledger:
        assert (ledger.name, ledger.seq, ledger.hash) == ("t", 0, START)
        assert list(ledger.events()) == []
        assert ledger.snapshot() is None
        assert ledger.snapshot_seq() == 0


def test_a_name_is_taken_once_and_the_first_trial_is_unharmed(store: Store) -> None:
    events = made(store, event_drafts(2))
    with pytest.raises(ConflictError, match="there is a trial 't' already"), store.create("t") as ledger:
        add(ledger, event_drafts(1))
    assert everything(store) == events
    assert store.names() == ["t"]


def test_a_creation_that_fails_leaves_no_trial(store: Store) -> None:
    with pytest.raises(OopsError):
        fail_in(store.create("t"), OopsError)
    assert store.names() == []
    made(store, event_drafts(1))
    assert len(everything(store)) == 1


def test_a_trial_that_is_not_there_is_named_with_those_that_are(store: Store) -> None:
    made(store, [], "wheat")
    for block in (store.reading, store.writing):
        with pytest.raises(UnknownNameError, match="did you mean 'wheat'"), block("wheet"):
            pass


def test_two_trials_do_not_see_each_other(store: Store) -> None:
    one = made(store, [Draft("note", {"n": 1}, decision=1, user="u", request="r")], "one")
    two = made(store, [Draft("note", {"n": 2}, decision=1, user="u", request="r")], "two")
    for name, events in (("one", one), ("two", two)):
        with store.reading(name) as ledger:
            assert list(ledger.events()) == events
            assert ledger.of_decisions([1]) == {1: events}
            assert ledger.of_request("r") == events


# Appending


def test_events_come_back_as_they_went_in(store: Store) -> None:
    drafts = [
        Draft("decision", {"x": 0.1 + 0.2, "tiny": 5e-324, "text": "Ähre 🌾 \n\t\"'\\"}, 1, "Nord 北", "key 'quoted'"),
        Draft("note", {}),
        Draft("outcome", {"deep": [{"a": [None, True, -0.0]}]}, 1, "", ""),
    ]
    events = made(store, drafts)
    assert everything(store) == events
    assert everything(store)[0].body == drafts[0].body


def test_the_head_follows_what_is_appended(store: Store) -> None:
    made(store, event_drafts(2))
    with store.writing("t") as ledger:
        first = add(ledger, event_drafts(1))
        second = add(ledger, event_drafts(2))
        assert (ledger.seq, ledger.hash) == (5, second[-1].hash)
    with store.reading("t") as ledger:
        assert (ledger.seq, ledger.hash) == (5, second[-1].hash)
        assert list(ledger.events(after=2)) == first + second


def test_nothing_is_appended_by_an_empty_list(store: Store) -> None:
    made(store, event_drafts(1))
    with store.writing("t") as ledger:
        ledger.append([])
        assert ledger.seq == 1
    assert len(everything(store)) == 1


@pytest.mark.parametrize("order", [[1, 0], [1], [0, 0], [0, 2]])
def test_events_that_do_not_follow_are_refused_and_none_of_them_is_kept(store: Store, order: list[int]) -> None:
    made(store, event_drafts(2))
    with store.reading("t") as ledger:
        new = chain(event_drafts(3), seq=ledger.seq, hash=ledger.hash, time="now", actor="test")
    with pytest.raises(ConflictError, match="does not follow"), store.writing("t") as ledger:
        ledger.append([new[i] for i in order])
    with store.writing("t") as ledger, pytest.raises(ConflictError, match="does not follow"):
        ledger.append([new[i] for i in order])
    assert len(everything(store)) == 2


def test_who_reads_cannot_write(store: Store) -> None:
    made(store, event_drafts(1))
    with store.reading("t") as ledger:
        with pytest.raises(InputError, match="opened for reading"):
            add(ledger, event_drafts(1))
        with pytest.raises(InputError, match="opened for reading"):
            ledger.keep(Snapshot(1, ledger.hash, b"x"))
    assert len(everything(store)) == 1


def test_a_block_that_raises_leaves_nothing(store: Store) -> None:
    events = made(store, event_drafts(2))
    with store.writing("t") as ledger:
        ledger.keep(Snapshot(2, events[-1].hash, b"old"))
    with pytest.raises(OopsError):
        fail_in(store.writing("t"), OopsError)
    with store.reading("t") as ledger:
        assert (ledger.seq, ledger.hash) == (2, events[-1].hash)
        assert list(ledger.events()) == events
        assert ledger.of_decisions([7]) == {}
        assert ledger.of_request("r") == []
        assert ledger.snapshot() == Snapshot(2, events[-1].hash, b"old")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_nor_does_a_block_that_is_interrupted(store: Store, error: type[BaseException]) -> None:
    made(store, event_drafts(1))
    with pytest.raises(error):
        fail_in(store.writing("t"), error)
    assert len(everything(store)) == 1
    with store.writing("t") as ledger:  # and the next one does not wait for it
        add(ledger, event_drafts(1))


def test_a_writer_sees_its_own_additions(store: Store) -> None:
    made(store, [Draft("decision", {"n": 1}, 1, "u", "r")])
    with store.writing("t") as ledger:
        new = add(ledger, [Draft("outcome", {"n": 2}, 1, "u", "r"), Draft("decision", {"n": 3}, 2, "v")])
        ledger.keep(Snapshot(1, "h", b"mine"))
        assert seqs(ledger.events()) == [1, 2, 3]
        assert seqs(ledger.events(newest_first=True, limit=2)) == [3, 2]
        assert ledger.of_decisions([1, 2])[1][1] == new[0]
        assert ledger.of_decisions([2]) == {2: new[1:]}
        assert [e.seq for e in ledger.of_request("r")] == [1, 2]
        assert ledger.snapshot() == Snapshot(1, "h", b"mine")


# Reading


def test_events_between_two_numbers(store: Store) -> None:
    made(store, event_drafts(10))
    with store.reading("t") as ledger:
        assert seqs(ledger.events()) == list(range(1, 11))
        assert seqs(ledger.events(after=3, until=6)) == [4, 5, 6]
        assert seqs(ledger.events(after=3, until=6, newest_first=True)) == [6, 5, 4]
        assert seqs(ledger.events(after=10)) == []
        assert seqs(ledger.events(after=6, until=3)) == []
        assert seqs(ledger.events(after=8, until=2**31 - 1)) == [9, 10]


def test_limits(store: Store) -> None:
    made(store, event_drafts(10))
    with store.reading("t") as ledger:
        assert seqs(ledger.events(limit=3)) == [1, 2, 3]
        assert seqs(ledger.events(limit=3, newest_first=True)) == [10, 9, 8]
        assert seqs(ledger.events(limit=0)) == []
        assert seqs(ledger.events(limit=99)) == list(range(1, 11))


def test_filters_by_kind_and_user(store: Store) -> None:
    kinds, users = ("decision", "outcome", "note"), ("a", "b")
    made(store, [Draft(kinds[i % 3], {}, None, users[i % 2]) for i in range(12)])
    with store.reading("t") as ledger:
        assert seqs(ledger.events(kinds=("decision",))) == [1, 4, 7, 10]
        assert seqs(ledger.events(kinds=("decision", "note"), limit=3)) == [1, 3, 4]
        assert seqs(ledger.events(user="b")) == [2, 4, 6, 8, 10, 12]
        assert seqs(ledger.events(user="b", kinds=["decision"], newest_first=True)) == [10, 4]
        assert seqs(ledger.events(user="b", kinds=["decision"], newest_first=True, limit=1)) == [10]
        assert seqs(ledger.events(user="nobody")) == []
        assert seqs(ledger.events(kinds=("unheard of",))) == []


@pytest.mark.parametrize("page", [1, 3, 7, 20])
def test_pages_are_not_seen_from_outside(store: Store, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "PAGE", page)
    made(store, [Draft("even" if i % 2 else "odd", {"n": i}, None, "u") for i in range(20)])
    with store.reading("t") as ledger:
        assert seqs(ledger.events()) == list(range(1, 21))
        assert seqs(ledger.events(newest_first=True)) == list(range(20, 0, -1))
        assert seqs(ledger.events(kinds=("even",), user="u")) == list(range(2, 21, 2))
        assert seqs(ledger.events(kinds=("even",), newest_first=True, limit=8)) == list(range(20, 4, -2))
        assert seqs(ledger.events(after=2, until=19, limit=15)) == list(range(3, 18))


def test_more_events_than_fit_on_a_page(store: Store) -> None:
    n = sql.PAGE + 3
    made(store, event_drafts(n))
    with store.reading("t") as ledger:
        assert [e.body["n"] for e in ledger.events()] == list(range(n))
        assert seqs(ledger.events(newest_first=True)) == list(range(n, 0, -1))


def test_the_story_of_decisions(store: Store) -> None:
    made(
        store,
        [
            Draft("decision", {}, 1, "a"),
            Draft("decision", {}, 2, "b"),
            Draft("outcome", {}, 2, "b"),
            Draft("note", {}),
            Draft("outcome", {}, 1, "a"),
            Draft("amendment", {}, 2, "b"),
        ],
    )
    with store.reading("t") as ledger:
        found = ledger.of_decisions([2, 1, 3])
        assert {n: [e.seq for e in events] for n, events in found.items()} == {1: [1, 5], 2: [2, 3, 6]}
        assert ledger.of_decisions([]) == {}
        assert {n: len(events) for n, events in ledger.of_decisions([1, 1, 1]).items()} == {1: 2}


@pytest.mark.parametrize("number", [0, -1, 2**31, 2**63, 10**30])
def test_a_number_that_no_decision_can_have_is_left_out(store: Store, number: int) -> None:
    made(store, [Draft("decision", {}, 1)])
    with store.reading("t") as ledger:
        assert ledger.of_decisions([number]) == {}
        assert list(ledger.of_decisions([number, 1])) == [1]


def test_more_decisions_than_fit_into_one_question(store: Store) -> None:
    n = 2 * sql.MOST_NAMES + 1
    made(store, [Draft("decision", {}, i + 1) for i in range(n)] + [Draft("outcome", {}, i + 1) for i in range(n)])
    with store.reading("t") as ledger:
        found = ledger.of_decisions([*range(1, n + 1), 1, n])
    assert len(found) == n
    assert all([e.seq for e in events] == [i, i + n] for i, events in found.items())


def test_what_was_recorded_for_a_request(store: Store) -> None:
    made(store, [Draft("a", {}, None, None, "r1"), Draft("b", {}, None, None, "r2"), Draft("c", {}, None, None, "r1")])
    with store.reading("t") as ledger:
        assert [e.kind for e in ledger.of_request("r1")] == ["a", "c"]
        assert ledger.of_request("r3") == []
        assert ledger.of_request("") == []


# Snapshots


def test_a_snapshot_replaces_the_one_before(store: Store) -> None:
    made(store, event_drafts(3))
    data = bytes(range(256)) * 4000  # a megabyte of everything
    for snapshot in (Snapshot(1, "a" * 64, b""), Snapshot(2, "b" * 64, data), Snapshot(3, "c" * 64, b"last")):
        with store.writing("t") as ledger:
            ledger.keep(snapshot)
        with store.reading("t") as ledger:
            assert ledger.snapshot() == snapshot
            assert ledger.snapshot_seq() == snapshot.seq


def test_older_snapshots_stay_where_a_proof_may_begin(store: Store) -> None:
    made(store, event_drafts(12))
    for seq in range(1, 12):
        with store.writing("t") as ledger:
            ledger.keep(Snapshot(seq, "a" * 64, bytes([seq])))
    with store.reading("t") as ledger:
        assert ledger.snapshot_seqs() == [1, 5, 9, 10, 11]
        found = [ledger.snapshot(until) for until in (0, 4, 5)]
        assert found == [None, Snapshot(1, "a" * 64, b"\1"), Snapshot(5, "a" * 64, b"\5")]
    with store.writing("t") as ledger:
        ledger.keep(Snapshot(9, "b" * 64, b"set back"))  # those after it are of another log
        assert ledger.snapshot_seqs() == [1, 5, 9]
        ledger.keep(Snapshot(10, "b" * 64, b"alone"), alone=True)
    with store.reading("t") as ledger:
        assert ledger.snapshot_seqs() == [10]


def test_an_event_is_found_by_its_hash(store: Store) -> None:
    made(store, event_drafts(3))
    with store.reading("t") as ledger:
        for event in ledger.events():
            assert ledger.seq_of(event.hash) == event.seq
        assert ledger.seq_of("0" * 64) is None


def test_snapshots_belong_to_their_trial(store: Store) -> None:
    made(store, event_drafts(1), "one")
    made(store, event_drafts(1), "two")
    with store.writing("one") as ledger:
        ledger.keep(Snapshot(1, "h", b"one"))
    with store.reading("two") as ledger:
        assert ledger.snapshot() is None


# Several at once


def elsewhere(task: Callable[[], object]) -> Queue[object]:
    """Run in another thread; what it returns or raises comes out of the queue."""
    results: Queue[object] = Queue()

    def run() -> None:
        try:
            results.put(task())
        except BaseException as error:
            results.put(error)

    threading.Thread(target=run, daemon=True).start()
    return results


def test_a_reader_does_not_wait_for_a_writer_and_sees_what_was_before(store: Store) -> None:
    before = made(store, event_drafts(2))
    with store.writing("t") as ledger:
        add(ledger, event_drafts(2))
        assert elsewhere(lambda: (everything(store), store.names())).get(timeout=WAIT) == (before, ["t"])
    assert len(everything(store)) == 4


def test_a_reader_keeps_its_view_while_others_write(store: Store) -> None:
    before = made(store, [Draft("decision", {}, 1, "u", "r")])

    def write() -> None:
        with store.writing("t") as ledger:
            add(ledger, [Draft("outcome", {}, 1, "u", "r")])
            ledger.keep(Snapshot(2, ledger.hash, b"x"))

    with store.reading("t") as ledger:
        assert elsewhere(write).get(timeout=WAIT) is None
        assert (ledger.seq, ledger.hash) == (1, before[-1].hash)
        assert list(ledger.events()) == before
        assert ledger.of_decisions([1]) == {1: before}
        assert ledger.of_request("r") == before
        assert ledger.snapshot() is None


def test_writers_wait_for_each_other(store: Store) -> None:
    made(store, event_drafts(1))

    def write() -> int:
        with store.writing("t") as ledger:
            return add(ledger, event_drafts(1))[0].seq

    with store.writing("t") as ledger:
        results = elsewhere(write)
        time.sleep(0.2)
        assert results.empty()
        add(ledger, event_drafts(1))
        assert ledger.seq == 2
    assert results.get(timeout=WAIT) == 3


def test_many_threads_append_one_chain(store: Store) -> None:
    made(store, event_drafts(1))
    threads, each = 6, 8
    errors: Queue[BaseException] = Queue()

    def write(thread: int) -> None:
        try:
            for i in range(each):
                with store.writing("t") as ledger:
                    add(ledger, [Draft("note", {"thread": thread, "i": i}), Draft("note", {"thread": thread, "i": i})])
                with store.reading("t") as ledger:
                    assert ledger.seq % 2 == 1  # never half of a transaction
        except BaseException as error:
            errors.put(error)

    started = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(60)
    assert errors.empty(), errors.get()
    events = everything(store)
    assert [e.seq for e in events] == list(range(1, 2 * threads * each + 2))
    hash = START
    for event in events:
        hash = hash_after(hash, event)
        assert event.hash == hash
    for n in range(threads):
        assert [e.body["i"] for e in events if e.body.get("thread") == n] == [i for i in range(each) for _ in "ab"]


def test_two_creations_of_one_name_at_once(store: Store) -> None:
    results: Queue[str] = Queue()

    def create() -> None:
        try:
            with store.create("t") as ledger:
                time.sleep(0.05)
                add(ledger, event_drafts(1))
            results.put("made")
        except ConflictError:
            results.put("refused")

    started = [threading.Thread(target=create) for _ in range(3)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(WAIT)
    assert sorted(results.get(timeout=WAIT) for _ in started) == ["made", "refused", "refused"]
    assert len(everything(store)) == 1


def test_a_closed_store_can_be_left_behind(store: Store) -> None:
    made(store, event_drafts(1))
    store.close()
    store.close()


# Texts that not every database keeps: refused by all, so that a trial can be moved


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"key": "\ud800"}, "key has a character that is not Unicode"),
        ({"key": "a\0b"}, "key has a zero byte"),
        ({"key": "k" * 501}, "key has 501 characters; 500 are allowed"),
        ({"actor": "\ud800"}, "actor has a character that is not Unicode"),
        ({"actor": "a\0b"}, "actor has a zero byte"),
    ],
)
def test_a_text_that_cannot_be_kept_is_refused_everywhere(store: Store, words: dict[str, Any], message: str) -> None:
    trial = Trial.create(SMALL, store)
    with pytest.raises(InputError, match=message):
        trial.ask("north", **words)
    assert trial.status().events == 1


def test_texts_as_long_and_strange_as_they_may_be(store: Store) -> None:
    trial = Trial.create(SMALL, store)
    key, actor = "🌾" * 500, "\t\n\x01 Ünïcødé 北"
    given = trial.ask("north", key=key, actor=actor)
    again = trial.ask("north", key=key)
    assert (again.id, again.repeated, again.actor) == (given.id, True, actor)
    trial.pause(reason="zero \0 and all")
    assert verify(store, "small").ok


def test_a_name_that_cannot_be_kept_is_not_there(store: Store) -> None:
    made(store, [])
    with pytest.raises(InputError), store.reading("\ud800"):
        pass
