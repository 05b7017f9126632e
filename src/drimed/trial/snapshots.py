"""A memory as bytes and back, so that opening a long trial is fast. No code is stored, and nothing rests on it."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import numpy as np

from drimed.policies.state import from_arrays, to_arrays
from drimed.trial.events import Event, written
from drimed.trial.memory import Counts, Episode, Memory, Room
from drimed.trial.spec import TrialSpec, User
from drimed.trial.stores.store import Ledger, Snapshot

log = logging.getLogger(__name__)


def take(memory: Memory) -> Snapshot:
    """Everything that is known."""
    meta = {
        "spec": memory.spec.plain(),
        "room": [memory.room.arms, memory.room.users],
        "definitions": [[name, user.model_dump(mode="json", exclude_none=True)] for name, user in memory.definitions],
        "episode": vars(memory.episode),
        "counts": vars(memory.counts),
        "pulls": memory.pulls,
        "retired": memory.retired,
        "status": memory.status,
    }
    arrays: dict[str, Any] = {f"state.{name}": array for name, array in to_arrays(memory.state).items()}
    stream = io.BytesIO()
    np.savez(stream, meta=np.array(written(meta)), **arrays)
    return Snapshot(memory.seq, memory.hash, stream.getvalue())


def restore(created: Event, snapshot: Snapshot) -> Memory:
    """The memory that a snapshot holds."""
    with np.load(io.BytesIO(snapshot.data), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    meta = json.loads(str(arrays.pop("meta")))
    memory = Memory(created, Room(*meta["room"]))
    memory.redefine(TrialSpec.model_validate(meta["spec"]))
    memory.profiles, memory.definitions = [], []
    for name, user in meta["definitions"]:
        memory.enter(name, User.model_validate(user))
    memory.episode, memory.counts = Episode(**meta["episode"]), Counts(**meta["counts"])
    memory.pulls, memory.retired, memory.status = meta["pulls"], meta["retired"], meta["status"]
    memory.state = from_arrays(memory.state, {name.removeprefix("state."): a for name, a in arrays.items()})
    memory.seq, memory.hash = snapshot.seq, snapshot.hash
    return memory


def recall(ledger: Ledger) -> Memory:
    """What the ledger's events amount to, from its newest snapshot if that is one of this log and readable."""
    start = Memory.at_start(ledger)
    snapshot = ledger.snapshot()
    if snapshot is not None:
        at = next(ledger.events(after=snapshot.seq - 1, until=snapshot.seq), None)
        try:
            if at is None or at.hash != snapshot.hash:
                raise ValueError("it belongs to another log")
            start = restore(start.created, snapshot)
        except Exception as error:  # torn or changed in whatever way: the log has everything
            log.warning("trial %s: the snapshot after event %d is unusable: %s", ledger.name, snapshot.seq, error)
    return start.caught_up(ledger)
