"""The proof of a log: whatever is changed in it is found, and an honest one is reproduced to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from drimed.errors import UnknownNameError
from drimed.records import Decision, Event, Proof
from drimed.trial import trial as trials
from drimed.trial.events import START, chain, hash_after
from drimed.trial.fold import at_start, caught_up
from drimed.trial.problem import FEWEST_USERS
from drimed.trial.stores import open_store
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.stores.sql import SqlStore
from drimed.trial.stores.store import Store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.states import same
from tests.trial.trials import SMALL, outcome

NAME = "season"
SPEC: dict[str, Any] = {
    "name": NAME,
    "seed": 5,
    "metrics": {"yield": {"range": [0.0, 10.0]}, "cost": {"range": [0.0, 4.0]}},
    "arms": {"old": {}, "new": {}, "newer": {}},
    "control": "old",
    "preference": {"yield": 1.0, "cost": -0.5},
    "users": {"north": {}, "south": {"preference": {"yield": 2.0}}, "east": {"arms": ["old", "new"]}},
    "tolerance": {"absolute": 1.0},
}
KNOWN = {"noise": {"kind": "known", "sd": {"yield": 0.5, "cost": 0.3}}}
VARIANTS: dict[str, dict[str, Any]] = {
    "noise that is learned": {},
    "noise that is known": KNOWN,
    "difference": {"feedback": "difference"},
    "a context that scales the noise": {
        "context": {"rain": {"typical": 500.0, "spread": 100.0}},
        "noise": KNOWN["noise"] | {"scale": "norm"},
    },
    "attributes": {"arms": {arm: {"attributes": {"dose": float(i)}} for i, arm in enumerate(SPEC["arms"])}},
    "guard budget": {"policy": {"name": "dri_med", "guard": "budget"}},
    "guard certain": {"policy": {"name": "dri_med", "guard": "certain"}, "confidence": 0.9},
    "published_dri_med": KNOWN | {"policy": {"name": "published_dri_med"}},
    "w_solid": KNOWN | {"policy": {"name": "w_solid"}},
    "clucb": {"policy": {"name": "clucb"}},
    "v_ts": KNOWN | {"policy": {"name": "v_ts"}},
    "forgetting": KNOWN | {"policy": {"name": "dri_med", "discount": 0.9}},
}  # fmt: skip


def report(spec: dict[str, Any], given: Decision, *, metrics: tuple[str, ...] = ("yield", "cost")) -> dict[str, Any]:
    """The words of `tell` for what came of a decision."""
    values = {m: v for m, v in outcome(given.id, given.arm).items() if m in metrics}
    control = {m: v for m, v in outcome(given.id + 1, "old").items() if m in metrics}
    return {"outcome": values, "control": control} if spec.get("feedback") == "difference" else {"outcome": values}


def play(spec: dict[str, Any], store: Store, *, crowd: int = 0, arms: bool = True) -> Trial:
    """A few seasons with everything that can happen in them."""
    trial = Trial.create(spec, store, actor="ann")
    context = {"rain": 450.0} if "context" in spec else None
    published = spec.get("policy", {}).get("name", "").startswith("published")
    late = []

    def everybody() -> dict[str, Any]:
        return {u: {"rain": 400.0 + 10 * i} for i, u in enumerate(trial.state().users)} if context else {}

    for season in range(1, 5):
        trial.open_episode(everybody(), number=season, unavailable={"north": ["newer"]} if season == 2 else {})
        givens = trial.ask() if season % 2 else [trial.ask(u, key=f"{u}-{season}") for u in trial.state().users]
        for i, given in enumerate(givens):
            if i % 3 == 0:
                late.append(given)
            elif i % 3 == 1:
                trial.tell(given.id, **report(spec, given), actor="bob")
            else:
                trial.tell(given.id, **report(spec, given, metrics=("yield",)))
                trial.tell(given.id, **report(spec, given))
        if season == 2:
            given = givens[1]
            fixed = report(spec, given)
            fixed["outcome"] = {"yield": 7.5}
            fixed.pop("control", None)
            trial.amend(given.id, fixed["outcome"], reason="misread")
            trial.change_preference("north", {"yield": 3.0, "cost": -1.0}, reason="prices")
            trial.mark_missing(late[0].id, reason="hail")
            for given in late[:2]:
                trial.tell(given.id, **report(spec, given))  # after all
            late = late[2:]
            if not published:
                for i in range(crowd):
                    trial.add_user(f"late {i}", {})
        if season == 3 and arms:
            trial.add_arm("newest", {"attributes": {"dose": 3.0}} if "attributes" in spec["arms"]["old"] else {})
            trial.retire_arm("new", reason="withdrawn")
            trial.pause(reason="holidays")
            trial.resume()
    for given in reversed(late):
        trial.tell(given.id, **report(spec, given))
    return trial


def proven(trial: Trial) -> Proof:
    found = verify(trial.store, trial.name)
    assert found.faults == []
    assert found.ok
    status = trial.status()
    assert (found.events, found.hash) == (status.events, status.hash)
    assert found.decisions == found.exact == status.decisions > 0
    return found


# Honest logs


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_honest_log_is_reproduced_to_the_last_bit(variant: str) -> None:
    proven(play(SPEC | VARIANTS[variant], MemoryStore()))


def test_an_arm_or_many_users_that_join_later_change_nothing_about_the_past(store: Store) -> None:
    trial = play(SPEC, store, crowd=2 * FEWEST_USERS)
    assert trial.status().users > FEWEST_USERS
    proven(trial)


@pytest.mark.parametrize("variant", ["guard budget", "clucb", "noise that is known"])
def test_nor_where_the_guard_remembers_every_user(variant: str) -> None:
    proven(play(SPEC | VARIANTS[variant], MemoryStore(), crowd=2 * FEWEST_USERS))


@pytest.mark.parametrize("every", [1, 2, 7, 20])
@pytest.mark.parametrize("variant", ["noise that is learned", "guard budget", "published_dri_med", "w_solid"])
def test_a_snapshot_and_what_came_after_it_are_the_whole_log(
    every: int, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "SNAPSHOT_EVERY", every)
    trial = play(SPEC | VARIANTS[variant], MemoryStore(), crowd=FEWEST_USERS)
    with trial.store.reading(NAME) as ledger:
        snapshot = ledger.snapshot()
        whole = caught_up(at_start(ledger), ledger)
    assert snapshot is not None
    assert snapshot.seq > 1
    assert same(trial.state(), whole)
    assert same(Trial.open(NAME, trial.store).state(), whole)
    proven(trial)


def test_every_process_along_the_way_knows_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was there from the start, one that opened late, and one that reads the whole log."""
    monkeypatch.setattr(trials, "SNAPSHOT_EVERY", 10)
    Trial.create(SPEC | {"decisions": "any number"}, store)
    veteran = Trial.open(NAME, store)
    for i in range(30):
        fresh = Trial.open(NAME, store)
        trial = veteran if i % 2 else fresh
        given = trial.ask("north")
        trial.tell(given.id, outcome(given.id, given.arm))
        assert same(fresh.state(), veteran.state())
    proven(veteran)


def test_progress_goes_to_the_end() -> None:
    trial = play(SPEC, MemoryStore())
    seen: list[tuple[int, int]] = []
    found = verify(trial.store, NAME, progress=lambda done, of: seen.append((done, of)))
    assert seen == sorted(seen)
    assert seen[-1] == (found.events, found.events)


def test_a_hash_that_was_kept_elsewhere_proves_that_the_past_was_not_rewritten() -> None:
    store = MemoryStore()
    trial = play(SPEC, store)
    kept = trial.status().hash
    trial.pause(reason="later")
    assert verify(store, NAME, expected_hash=kept).ok
    assert verify(store, NAME, expected_hash=trial.status().hash).ok
    other = play(SPEC | {"seed": 6}, MemoryStore())
    found = verify(other.store, NAME, expected_hash=kept)
    assert any("the log was rewritten or cut off" in fault for fault in found.faults)


# Tampering


class Forger:
    """Somebody with the rights of the database's owner."""

    def __init__(self, store: SqlStore) -> None:
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
                asdict(event),
            )

    def make_room_at(self, seq: int) -> None:
        for event in reversed(self.events[seq - 1 :]):
            self.run("UPDATE drimed_events SET seq = seq + 1 WHERE seq = :seq", seq=event.seq)
        self.run("UPDATE drimed_trials SET seq = seq + 1")

    def faults(self) -> list[str]:
        found = verify(self.store, NAME)
        assert not found.ok
        return found.faults


@pytest.fixture
def forger(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forger]:
    monkeypatch.setattr(trials, "SNAPSHOT_EVERY", 10)
    store = open_store(address)
    assert isinstance(store, SqlStore)
    proven(play(SPEC, store))
    yield Forger(store)
    store.close()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with a played trial, to be copied."""
    file = tmp_path_factory.mktemp("log") / "trials.db"
    store = open_store(str(file))
    play(SPEC, store)
    store.close()
    return file


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
def test_a_change_of_any_column_of_any_event_is_found_with_its_number(column: str, log: Path, tmp_path: Path) -> None:
    (tmp_path / "trials.db").write_bytes(log.read_bytes())
    store = open_store(str(tmp_path / "trials.db"))
    assert isinstance(store, SqlStore)
    forger = Forger(store)
    for event in forger.events[:: 2 if column in ("text", "hash") else 6]:
        change = f'UPDATE drimed_events SET "{column}" = :value WHERE seq = :seq'
        forger.run(change, value=COLUMNS[column](event), seq=event.seq)
        assert any(f.startswith(f"event {event.seq} (") for f in forger.faults())
        forger.run(change, value=getattr(event, column), seq=event.seq)
    assert verify(store, NAME).ok
    store.close()


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


def test_an_end_that_was_cut_off_and_covered_up_still_contradicts_a_kept_hash(forger: Forger) -> None:
    last, before = forger.events[-1], forger.events[-2]
    forger.run("DELETE FROM drimed_events WHERE seq = :seq", seq=last.seq)
    forger.run("UPDATE drimed_trials SET seq = :seq, hash = :hash", seq=before.seq, hash=before.hash)
    found = verify(forger.store, NAME, expected_hash=last.hash)
    assert found.faults == [f"no event has the hash {last.hash}: the log was rewritten or cut off"]


def test_numbers_that_close_the_gap_do_not_hide_it(forger: Forger) -> None:
    gap = len(forger.events) // 2
    forger.run("DELETE FROM drimed_events WHERE seq = :seq", seq=gap)
    for event in forger.events[gap:]:
        forger.run("UPDATE drimed_events SET seq = seq - 1 WHERE seq = :seq", seq=event.seq)
    forger.run("UPDATE drimed_trials SET seq = seq - 1")
    assert any(f.startswith(f"event {gap} (") for f in forger.faults())


@pytest.mark.parametrize("distance", [1, 5])
def test_two_events_that_changed_places_are_found(distance: int, forger: Forger) -> None:
    one = len(forger.events) // 2
    other = one + distance
    for before, after in ((one, 10**6), (other, one), (10**6, other)):
        forger.run("UPDATE drimed_events SET seq = :after WHERE seq = :before", before=before, after=after)
    faults = forger.faults()
    for seq in (one, other):
        assert any(f.startswith(f"event {seq} (") for f in faults)


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
    assert forger.faults() == [
        f"the log ends with event {last.seq + 1}, its head is event {last.seq}: the end was cut off or added"
    ]


def test_a_decision_that_was_forged_with_its_whole_chain_is_not_reproduced(forger: Forger) -> None:
    victim = next(e for e in forger.events if e.kind == "decision" and e.body["arm"] == "old")
    hash = forger.events[victim.seq - 2].hash
    for event in forger.events[victim.seq - 1 :]:
        text = event.text.replace('"arm":"old"', '"arm":"newer"', 1) if event is victim else event.text
        hash = hash_after(hash, replace(event, text=text))
        forger.run("UPDATE drimed_events SET text = :t, hash = :h WHERE seq = :s", t=text, h=hash, s=event.seq)
    forger.run("UPDATE drimed_trials SET hash = :hash", hash=hash)
    assert any(
        f.startswith(f"decision {victim.decision} (event {victim.seq}) is not reproduced: arm") for f in forger.faults()
    )


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE drimed_trials SET hash = 'beef'",
        "UPDATE drimed_trials SET seq = seq - 1",
        "UPDATE drimed_trials SET seq = seq + 1",
    ],
)
def test_a_changed_head_is_found(change: str, forger: Forger) -> None:
    forger.run(change)
    assert any("the end was cut off or added" in f for f in forger.faults())


def test_a_log_under_another_name_is_found(forger: Forger) -> None:
    forger.run("UPDATE drimed_trials SET name = 'other'")
    assert verify(forger.store, "other").faults == ["the log is of trial 'season', and the store has it as 'other'"]


def test_a_changed_snapshot_is_found_and_named(forger: Forger) -> None:
    assert forger.snapshot is not None
    data, seq = bytearray(forger.snapshot.data), forger.snapshot.seq
    inside = data.find(b"state.ridge") + 400  # in the middle of some array
    data[inside] ^= 1
    for wrong in (bytes(data), b"", b"PK", forger.snapshot.data[:-30]):
        forger.run("UPDATE drimed_snapshots SET data = :data", data=wrong)
        assert forger.faults() == [f"the snapshot after event {seq} is not what the log amounts to"]
    forger.run("UPDATE drimed_snapshots SET data = :data", data=forger.snapshot.data)
    assert verify(forger.store, NAME).ok


def test_a_snapshot_that_was_moved_is_found(forger: Forger) -> None:
    assert forger.snapshot is not None
    for seq in (forger.snapshot.seq - 1, 10**6, 0):
        forger.run("UPDATE drimed_snapshots SET seq = :seq", seq=seq)
        assert any("snapshot" in f for f in forger.faults())


def test_a_changed_snapshot_is_not_believed(forger: Forger, caplog: pytest.LogCaptureFixture) -> None:
    with forger.store.reading(NAME) as ledger:
        whole = caught_up(at_start(ledger), ledger)
    for column, wrong in (("data", b"torn"), ("hash", "beef"), ("seq", 10**6)):
        forger.run(f"UPDATE drimed_snapshots SET {column} = :wrong", wrong=wrong)
        caplog.clear()
        assert same(Trial.open(NAME, forger.store).state(), whole)
        assert "is unusable" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '{"x": NaN}', "{" * 10**4])
@pytest.mark.parametrize("which", ["created", "episode", "decision", "outcome", "preference", "arm", "user"])
def test_no_nonsense_stops_the_proof(text: str, which: str, log: Path, tmp_path: Path) -> None:
    (tmp_path / "trials.db").write_bytes(log.read_bytes())
    store = open_store(str(tmp_path / "trials.db"))
    assert isinstance(store, SqlStore)
    forger = Forger(store)
    event = next((e for e in forger.events if e.kind == which), forger.events[-1])
    forger.run("UPDATE drimed_events SET text = :text WHERE seq = :seq", text=text, seq=event.seq)
    assert any(f.startswith(f"event {event.seq} (") for f in forger.faults())
    store.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("kind", "unheard of"),
        ("kind", "asked"),
        ("text", b"\xff\x00"),
        ("decision", "many"),
        ("user", 7),
        ("decision", 10**15),
    ],
)
def test_nor_does_a_value_of_another_kind(column: str, value: object, log: Path, tmp_path: Path) -> None:
    (tmp_path / "trials.db").write_bytes(log.read_bytes())
    store = open_store(str(tmp_path / "trials.db"))
    assert isinstance(store, SqlStore)
    forger = Forger(store)
    for event in forger.events[1::6]:
        forger.run(f'UPDATE drimed_events SET "{column}" = :value WHERE seq = :seq', value=value, seq=event.seq)
        assert any(f.startswith(f"event {event.seq} (") for f in forger.faults())
    store.close()


def test_a_trial_without_its_creation_is_a_fault_and_no_crash(forger: Forger) -> None:
    forger.run("DELETE FROM drimed_events")
    faults = forger.faults()
    assert any("does not begin with its creation" in f for f in faults)


def test_an_empty_chain_starts_at_the_start() -> None:
    assert chain([], seq=0, hash=START, time="now", actor="x") == []
    store = MemoryStore()
    Trial.create(SMALL, store)
    found = verify(store, "small")
    assert (found.ok, found.events, found.decisions) == (True, 1, 0)


def test_a_snapshot_that_was_rolled_back_with_its_transaction_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "SNAPSHOT_EVERY", 2)
    store = MemoryStore()
    trial = Trial.create(SMALL, store)
    trial.open_episode()
    with pytest.raises(UnknownNameError):
        trial.ask("nobody")  # the transaction in which a snapshot was due
    trial.ask("north")
    with store.reading("small") as ledger:
        assert ledger.snapshot_seq() == 2
