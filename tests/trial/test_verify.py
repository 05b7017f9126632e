"""The proof of a log: an honest one is reproduced to the last bit, whoever wrote it and wherever it is read from."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from drimed.errors import StoreError
from drimed.trial import transaction as opened_trials
from drimed.trial.events import to_json
from drimed.trial.look_history import look_hash
from drimed.trial.problem import FEWEST_USERS
from drimed.trial.store import Ledger, MemoryStore, Store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial import forging
from tests.trial.seasons import NAME, SPEC, VARIANTS, play, proven
from tests.trial.states import same
from tests.trial.trials import SMALL, outcome


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


def test_every_process_along_the_way_knows_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was there from the start, one that opened late, and one that reads the whole log."""
    monkeypatch.setattr(opened_trials, "SNAPSHOT_EVERY", 10)
    Trial.create(SPEC | {"decisions": "any number"}, store)
    veteran = Trial.open(NAME, store)
    for i in range(12):
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


def test_a_snapshot_that_was_rolled_back_with_its_transaction_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_trials, "SNAPSHOT_EVERY", 2)
    store = MemoryStore()
    trial = Trial.create(SMALL, store)

    def fail(_: Ledger) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "flush", fail)
        with pytest.raises(StoreError):
            trial.open_episode()  # the transaction in which a snapshot was due
    with store.reading("small") as ledger:
        assert (ledger.seq, ledger.snapshot()) == (1, None)
    trial.open_episode()
    assert (trial.state().seq, trial.state().snapshot) == (3, (2, 0))
    assert same(Trial.open("small", store).state(), trial.state())


@pytest.mark.parametrize("numpy", [None, "0.0.1"])
def test_a_decision_that_is_reproduced_to_round_off_only_is_named_and_not_proved(numpy: str | None) -> None:
    """Also where the log says that another version made it: a forger may write that too."""
    log = forging.recorded(MemoryStore())
    (at, event) = next((i, e) for i, e in enumerate(log) if e.kind == "decision")
    half = [h * (1 + 1e-7) for h in event.body["half"]]
    log[at] = forging.with_body(event, event.body | {"half": half})
    log[0] = forging.with_body(log[0], log[0].body | {"numpy": numpy or log[0].body["numpy"]})
    found = verify(forging.stored(forging.chained(log)), forging.NAME)
    assert (found.ok, found.faults, found.rounded) == (False, [], 1)
    assert found.unchecked is not None
    assert f"1 of {found.decisions} decisions ({event.decision}) are reproduced to round-off only" in found.unchecked
    assert f"the log says {found.made_with}, here is drimed " in found.unchecked


def test_a_look_that_is_reproduced_to_round_off_only_is_named_and_not_proved() -> None:
    trial = Trial.create(SMALL | {"name": forging.NAME, "stopping": forging.RULES}, MemoryStore())
    for season in range(4):
        for d in trial.ask_many(episode=season + 1):
            trial.tell(d.id, {"yield": 5.0 + np.sin(17.0 * d.id)})
    trial.look()
    log = list(trial.log())
    assert verify(forging.stored(log), forging.NAME).ok
    at = max(i for i, event in enumerate(log) if event.kind == "look")
    text = re.sub(r"\d\.\d{5,}(?!\d|e)", lambda m: repr(float(m[0]) * (1 + 5e-8)), to_json(log[at].body))
    changed = json.loads(text)
    assert changed != log[at].body
    log[at] = forging.with_body(log[at], changed | {"hash": look_hash(changed)})
    found = verify(forging.stored(forging.chained(log)), forging.NAME)
    assert (found.ok, found.faults) == (False, [])
    assert f"1 of {found.looks} looks, of events ({log[at].seq}) are reproduced to round-off" in str(found.unchecked)
    assert found.left_out.startswith("tokens, ")


@pytest.mark.parametrize("kind", ["field", "people", "paper"])
def test_another_tolerance_in_a_log_that_was_chained_again_proves_nothing(kind: str) -> None:
    better = {"old": 0.0, "new": 3.0}
    changes: dict[str, Any] = {"metrics": {"yield": {}}, "tolerance": {"absolute": 2.0}}
    changes |= {"preference": {"yield": 3.0}, "model": {"kind": kind}}
    users = {f"u{i}": dict[str, str]() for i in range(6)}
    trial = Trial.create(SMALL | changes | {"name": forging.NAME, "users": users}, MemoryStore())
    for season in range(12):
        for d in trial.ask_many(episode=season + 1):
            trial.tell(d.id, {"yield": 7.0 + better[d.arm] + 4.0 * np.sin(17.0 * d.id)})
    log = list(trial.log())
    assert verify(forging.stored(log), forging.NAME).ok
    spec = log[0].body["spec"] | {"tolerance": log[0].body["spec"]["tolerance"] | {"absolute": 3.0}}
    log[0] = forging.with_body(log[0], log[0].body | {"spec": spec})
    found = verify(forging.stored(forging.chained(log)), forging.NAME)
    assert found.exact < found.decisions
    assert not found.ok
