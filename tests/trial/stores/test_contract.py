"""What every store promises, wherever it keeps its events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest

from drimed.errors import ConflictError, UnknownNameError
from drimed.records import Event
from drimed.trial import store as stores
from drimed.trial.events import START, Draft, EventBody, chain
from drimed.trial.store import Ledger, Snapshot, Store


class OopsError(Exception):
    """Something that goes wrong in the caller's block."""


def draft(kind: str, body: dict[str, Any], *more: Any, **named: Any) -> Draft:
    """An event of any kind, with any body."""
    made = type("Anything", (EventBody,), {"kind": kind, "to_json": lambda _: body})
    return Draft(made(), *more, **named)


def event_drafts(n: int, *, kind: str = "note", first: int = 0) -> list[Draft]:
    return [draft(kind, {"n": first + i}) for i in range(n)]


def add(ledger: Ledger, drafts: Sequence[Draft]) -> list[Event]:
    events = chain(drafts, seq=ledger.seq, hash=ledger.hash, time="2026-01-01T00:00:00.000000+00:00", actor="test")
    ledger.append(events)
    return events


def made(store: Store, drafts: Sequence[Draft], name: str = "t") -> list[Event]:
    with store.create(name) as ledger:
        return add(ledger, drafts)


def fail_in(block: AbstractContextManager[Ledger], error: type[BaseException]) -> None:
    with block as ledger:
        add(ledger, [draft("decision", {}, 7, "u", "r")])
        ledger.keep(Snapshot(ledger.seq, "h", b"new"))
        raise error


def seqs(events: Iterator[Event]) -> list[int]:
    return [e.seq for e in events]


def everything(store: Store, name: str = "t") -> list[Event]:
    with store.reading(name) as ledger:
        return list(ledger.events())


# Trials


def test_trials_are_listed_in_the_order_of_their_creation(store: Store) -> None:
    assert store.names() == []
    for name in ("zebra", "ant", "mole"):
        made(store, [], name)
    assert store.names() == ["zebra", "ant", "mole"]


def test_a_new_trial_is_empty_and_its_chain_starts_at_the_start(store: Store) -> None:
    with store.create("t") as ledger:
        assert (ledger.name, ledger.seq, ledger.hash) == ("t", 0, START)
        assert list(ledger.events()) == []
        assert ledger.snapshot() is None


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
    one = made(store, [draft("note", {"n": 1}, decision=1, user="u", request="r")], "one")
    two = made(store, [draft("note", {"n": 2}, decision=1, user="u", request="r")], "two")
    for name, events in (("one", one), ("two", two)):
        with store.reading(name) as ledger:
            assert list(ledger.events()) == events
            assert ledger.of_decisions([1]) == {1: events}
            assert ledger.of_request("r") == events


# Appending


def test_events_come_back_as_they_went_in(store: Store) -> None:
    drafts = [
        draft("decision", {"x": 0.1 + 0.2, "tiny": 5e-324, "text": "Ähre 🌾 \n\t\"'\\"}, 1, "Nord 北", "key 'quoted'"),
        draft("note", {}),
        draft("outcome", {"deep": [{"a": [None, True, -0.0]}]}, 1, "", ""),
    ]
    events = made(store, drafts)
    assert everything(store) == events
    assert everything(store)[0].body == drafts[0].body.to_json()


def test_the_head_follows_what_is_appended(store: Store) -> None:
    made(store, event_drafts(2))
    with store.writing("t") as ledger:
        first = add(ledger, event_drafts(1))
        second = add(ledger, event_drafts(2))
        assert (ledger.seq, ledger.hash) == (5, second[-1].hash)
    with store.reading("t") as ledger:
        assert (ledger.seq, ledger.hash) == (5, second[-1].hash)
        assert list(ledger.events(after=2)) == first + second


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


def test_a_reader_buffers_and_writes_nothing(store: Store) -> None:
    made(store, event_drafts(1))
    with store.reading("t") as ledger:
        add(ledger, event_drafts(1))
        ledger.keep(kept := Snapshot(1, ledger.hash, b"x"))
        assert (ledger.seq, len(list(ledger.events())), ledger.snapshot()) == (2, 2, kept)
    assert len(everything(store)) == 1
    with store.reading("t") as ledger:
        assert ledger.snapshot() is None


@pytest.mark.parametrize("error", [OopsError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_block_that_raises_or_is_interrupted_leaves_nothing(store: Store, error: type[BaseException]) -> None:
    events = made(store, event_drafts(2))
    with store.writing("t") as ledger:
        ledger.keep(Snapshot(2, events[-1].hash, b"old"))
    with pytest.raises(error):
        fail_in(store.writing("t"), error)
    with store.writing("t") as ledger:  # which does not wait for the one before
        assert (ledger.seq, ledger.hash) == (2, events[-1].hash)
        assert list(ledger.events()) == events
        assert ledger.of_decisions([7]) == {}
        assert ledger.of_request("r") == []
        assert ledger.snapshot() == Snapshot(2, events[-1].hash, b"old")


def test_a_writer_sees_its_own_additions(store: Store) -> None:
    made(store, [draft("decision", {"n": 1}, 1, "u", "r")])
    with store.writing("t") as ledger:
        new = add(ledger, [draft("outcome", {"n": 2}, 1, "u", "r"), draft("decision", {"n": 3}, 2, "v")])
        ledger.keep(Snapshot(1, "h", b"mine"))
        assert seqs(ledger.events()) == [1, 2, 3]
        assert seqs(ledger.events(newest_first=True, limit=2)) == [3, 2]
        assert ledger.of_decisions([1, 2])[1][1] == new[0]
        assert ledger.of_decisions([2]) == {2: new[1:]}
        assert [e.seq for e in ledger.of_request("r")] == [1, 2]
        assert ledger.snapshot() == Snapshot(1, "h", b"mine")


# Reading


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, list(range(1, 13))),
        ({"after": 3, "until": 6, "newest_first": True}, [6, 5, 4]),
        ({"after": 6, "until": 3}, []),
        ({"after": 10, "until": 2**31 - 1}, [11, 12]),
        ({"limit": 3, "newest_first": True}, [12, 11, 10]),
        ({"limit": 0}, []),
        ({"kinds": ("decision",)}, [1, 4, 7, 10]),
        ({"kinds": ("decision", "note"), "limit": 3}, [1, 3, 4]),
        ({"user": "b"}, [2, 4, 6, 8, 10, 12]),
        ({"user": "b", "kinds": ["decision"], "newest_first": True, "limit": 1}, [10]),
        ({"user": "nobody"}, []),
    ],
)
def test_events_by_number_kind_and_user(store: Store, wanted: dict[str, Any], expected: list[int]) -> None:
    kinds, users = ("decision", "outcome", "note"), ("a", "b")
    made(store, [draft(kinds[i % 3], {}, None, users[i % 2]) for i in range(12)])
    with store.reading("t") as ledger:
        assert seqs(ledger.events(**wanted)) == expected


@pytest.mark.parametrize("page", [1, 3, 7, 20])
def test_pages_are_not_seen_from_outside(store: Store, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PAGE", page)
    made(store, [draft("even" if i % 2 else "odd", {"n": i}, None, "u") for i in range(20)])
    with store.reading("t") as ledger:
        assert seqs(ledger.events()) == list(range(1, 21))
        assert seqs(ledger.events(newest_first=True)) == list(range(20, 0, -1))
        assert seqs(ledger.events(kinds=("even",), user="u")) == list(range(2, 21, 2))
        assert seqs(ledger.events(kinds=("even",), newest_first=True, limit=8)) == list(range(20, 4, -2))
        assert seqs(ledger.events(after=2, until=19, limit=15)) == list(range(3, 18))


def test_the_story_of_decisions(store: Store) -> None:
    about = [("decision", 1), ("decision", 2), ("outcome", 2), ("note", None), ("outcome", 1), ("amendment", 2)]
    made(store, [draft(kind, {}, number) for kind, number in about])
    with store.reading("t") as ledger:
        found = ledger.of_decisions([2, 1, 3])
        assert {n: [e.seq for e in events] for n, events in found.items()} == {1: [1, 5], 2: [2, 3, 6]}
        assert ledger.of_decisions([]) == {}
        assert {n: len(events) for n, events in ledger.of_decisions([1, 1, 1]).items()} == {1: 2}


@pytest.mark.parametrize("number", [0, -1, 2**31, 2**63, 10**30])
def test_a_number_that_no_decision_can_have_is_left_out(store: Store, number: int) -> None:
    made(store, [draft("decision", {}, 1)])
    with store.reading("t") as ledger:
        assert ledger.of_decisions([number]) == {}
        assert list(ledger.of_decisions([number, 1])) == [1]


def test_more_decisions_than_fit_into_one_question(store: Store) -> None:
    n = 2 * stores.MOST_NAMES + 1
    made(store, [draft("decision", {}, i + 1) for i in range(n)] + [draft("outcome", {}, i + 1) for i in range(n)])
    with store.reading("t") as ledger:
        found = ledger.of_decisions([*range(1, n + 1), 1, n])
    assert len(found) == n
    assert all([e.seq for e in events] == [i, i + n] for i, events in found.items())


def test_what_was_recorded_for_a_request(store: Store) -> None:
    made(store, [draft("a", {}, None, None, "r1"), draft("b", {}, None, None, "r2"), draft("c", {}, None, None, "r1")])
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
