"""Lists that are mixtures of others take little room and come back to the byte; other lists are left as they are."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from drimed.records import Event
from drimed.trial.stores import mixtures, open_store, packing, twins
from drimed.trial.stores.mixtures import Mixture
from drimed.trial.stores.twins import Twin, Whole
from drimed.trial.verify import verify
from tests.trial import many

ARMS, USERS = 40, 60


def event(seq: int, body: dict[str, Any]) -> Event:
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return Event(seq, "t", "ann", "decision", seq, f"user {seq}", None, text, f"{seq:064d}")


def again(events: list[Event]) -> list[Event]:
    """Written and read."""
    kept = dict(zip([e.seq for e in events], packing.rows(events), strict=True))
    reader = packing.Reader(lambda numbers: {n: kept[n] for n in numbers})
    stored = [
        (e.seq, e.time, e.actor, e.kind, e.decision, e.user, e.request, row.text, e.hash, row.base, row.packed)
        for e, row in zip(events, kept.values(), strict=True)
    ]
    assert [reader.events([row])[0] for row in stored[::-1]] == events[::-1]  # one by one, those in full fetched
    return packing.Reader(lambda _: {}).events(stored)


def bodies(rank: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    few = rng.normal(size=(rank, ARMS)) * 10.0 ** rng.integers(-8, 8)
    few[:, 3] = 0.0
    mixed, ranges = rng.normal(size=(USERS, rank)) @ few, rng.random((USERS, rank)) @ np.abs(few)
    own = rng.random((USERS, ARMS))
    return [
        {"arm": 'a "half":[1,2] é', "probabilities": p.tolist(), "estimate": e.tolist(), "half": h.tolist()}
        for p, e, h in zip(own, mixed, ranges, strict=True)
    ]


@pytest.mark.parametrize("rank", [1, 2, 5, 8])
def test_a_mixture_comes_back_to_the_byte_and_takes_less_room(rank: int) -> None:
    rng = np.random.default_rng(rank)
    events = [event(i, body) for i, body in enumerate(bodies(rank, rng), 7)]
    kept = mixtures.pack(events)
    assert len(kept) == USERS - rank
    for seq, (_, packed) in kept.items():
        plain = events[seq - 7].text
        assert len(packed) < 0.8 * len(zlib.compress(plain.encode(), 9))
    for before, after in zip(events, again(events), strict=True):
        assert after.text == before.text
        assert after.body == before.body
        assert list(after.brief) == list(before.brief)
        del vars(after)["body"]
        assert after.brief == before.body | {"estimate": None, "half": None}


def test_lists_of_more_ways_than_are_kept_stay_as_they_are() -> None:
    rng = np.random.default_rng(1)
    events = [event(i, body) for i, body in enumerate(bodies(mixtures.MOST + 1, rng), 1)]
    assert mixtures.pack(events) == {}
    assert again(events) == events


def test_odd_numbers_among_mixtures_are_kept_as_they_were_written() -> None:
    """Whole numbers, nothing, minus zero, the smallest and the largest doubles, and lists of another length."""
    made = bodies(2, np.random.default_rng(2))
    made[5]["estimate"][0] = 0
    made[6]["estimate"][0] = None
    made[7]["estimate"][3] = -0.0
    made[8]["estimate"] = [5e-324] * ARMS
    made[9]["estimate"] = [1.7976931348623157e308] * ARMS
    made[10]["half"] = made[10]["half"][:-1]
    made[11]["estimate"][0] = float(np.nextafter(made[11]["estimate"][0], 1e9))
    events = [event(i, body) for i, body in enumerate(made, 1)]
    assert mixtures.pack(events)
    assert [e.text for e in again(events)] == [e.text for e in events]


def test_twins_of_mixtures_are_kept_by_what_they_differ_in() -> None:
    made = [body | {"arm": arm} for body in bodies(2, np.random.default_rng(3)) for arm in ("a", "b")]
    events = [event(i, body) for i, body in enumerate(made, 1)]
    rows = packing.rows(events)
    assert sum(row.base is None for row in rows) == 2
    assert all(len(row.packed or b"") < 200 for row in rows[1::2])
    assert [e.text for e in again(events)] == [e.text for e in events]


@pytest.mark.parametrize("arm", ["a", 'a "quoted" \\ one', "\0 \n \u2028 é", "\\u0000"])
def test_what_is_hashed_is_the_whole_text_however_it_is_kept(arm: str) -> None:
    own = bodies(2, np.random.default_rng(4))
    made = [body | {"arm": f"{arm} {i}"} for i, body in enumerate([*own, *own[:10]])]
    events = [event(i, body) for i, body in enumerate(made, 1)]
    kinds = set()
    for before, after in zip(events, again(events), strict=True):
        assert after.quoted == before.quoted == json.dumps(before.text, ensure_ascii=False)
        kinds.add(type(after.kept))
    assert kinds == {str, Mixture, Twin}


def test_lists_that_are_no_numbers_are_quoted_as_text() -> None:
    text = '{"arm":"%s","half":["a\\n",1]}' % ("x" * 1000)
    assert Twin(twins.pack(text, Whole(text)) or b"", Whole(text)).quoted() == json.dumps(text)


def test_users_with_preferences_of_their_own_take_half_of_the_room(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "t.db"))
    many.made(store, 4, own=True)
    with store.transaction(write=False) as connection:
        packed = connection.scalar(sa.text("SELECT sum(length(packed)) FROM drimed_events WHERE kind = 'decision'"))
    with store.reading("many") as ledger:
        compressed = sum(len(zlib.compress(e.text.encode())) for e in ledger.events(kinds=["decision"]))
    store.close()
    assert packed < compressed / 2


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE drimed_events SET packed = (SELECT packed FROM drimed_events WHERE seq = 7) WHERE seq = 8",
        "UPDATE drimed_events SET base = base + 1 WHERE seq = 8",
        "UPDATE drimed_events SET base = 8 WHERE seq = 8",
        "UPDATE drimed_events SET base = NULL WHERE seq = 8",
        "UPDATE drimed_events SET packed = substr(packed, 1, 40) WHERE seq = 8",
        "UPDATE drimed_events SET packed = substr(packed, 1, 1) WHERE seq = 8",
        "UPDATE drimed_events SET packed = NULL, text = '{}' WHERE base IS NULL AND kind = 'decision'",
    ],
)
def test_a_mixture_that_was_changed_is_found(address: str, change: str) -> None:
    store = open_store(address)
    many.made(store, 1, own=True)
    with store._engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT base FROM drimed_events WHERE seq = 8").scalar() is not None
        connection.exec_driver_sql(change)
    proof = verify(store, "many")
    assert not proof.ok
    assert "is not what was recorded" in proof.faults[0]
    store.close()
