"""Snapshots of a state as bytes, so that opening a long trial is fast. No code is stored, and nothing depends on them.

The event after a snapshot has the hash of its bytes: a snapshot that was changed is not used.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any, get_type_hints

import numpy as np
from pydantic import TypeAdapter

from drimed.policies.protocol import from_arrays, to_arrays
from drimed.records import Event
from drimed.trial import events as kinds
from drimed.trial.events import HistoryRead, SnapshotTaken, body_of, to_json
from drimed.trial.spec import TrialSpec, User
from drimed.trial.state import TrialState, creation_of, problem_of
from drimed.trial.store import Ledger, Snapshot

FIELDS = (
    "capacity", "episode", "seasons", "counts", "pulls", "usual", "retired", "status", "opened", "openings", "looked",
    "snapshot",
)  # fmt: skip
_DEFINITIONS = TypeAdapter(list[User])

log = logging.getLogger(__name__)


def take(state: TrialState) -> Snapshot:
    profiles = list(state.profiles.values())
    described = _DEFINITIONS.dump_python([p.definition for p in profiles], mode="json", exclude_none=True)
    meta = {name: adapter.dump_python(getattr(state, name), mode="json") for name, adapter in _adapters().items()}
    meta |= {"spec": state.spec.plain(), "profiles": [[p.user for p in profiles], described]}
    meta["blocks"] = list(state.numbers.blocks)
    if state.history is not None:
        meta["history"] = state.history.to_json()
    arrays: dict[str, Any] = {f"state.{name}": array for name, array in to_arrays(state.learned).items()}
    stream = io.BytesIO()
    np.savez_compressed(stream, meta=np.frombuffer(to_json(meta).encode(), np.uint8), **arrays)
    return Snapshot(state.seq, state.hash, stream.getvalue())


def restore(created: Event, snapshot: Snapshot) -> TrialState:
    with np.load(io.BytesIO(snapshot.data), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    meta = json.loads(arrays.pop("meta").tobytes())
    kept: dict[str, Any] = {name: adapter.validate_python(meta[name]) for name, adapter in _adapters().items()}
    start, spec = TrialState.start(created, kept["capacity"]), TrialSpec.model_validate(meta["spec"])
    if "history" in meta:
        start = start.with_history(HistoryRead(**meta["history"]))
    state = replace(
        start,
        spec=spec,
        problem=problem_of(created, spec, start.capacity),
        learned=from_arrays(start.learned, {name.removeprefix("state."): a for name, a in arrays.items()}),
        numbers=start.numbers.with_blocks(meta["blocks"]),
        seq=snapshot.seq,
        hash=snapshot.hash,
        **kept,
    )
    names, described = meta["profiles"]
    joined = zip(names, _DEFINITIONS.validate_python(described), strict=True)
    return state.with_users(islice(joined, len(start.profiles), None))


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(TrialState)
    return {name: TypeAdapter(hints[name]) for name in FIELDS}


def digest(snapshot: Snapshot) -> str:
    return hashlib.sha256(snapshot.data).hexdigest()


def checked(ledger: Ledger, snapshot: Snapshot) -> TrialState | None:
    """The state of a snapshot of this log; None: it cannot be used."""
    events = list(ledger.events(after=snapshot.seq - 1, until=snapshot.seq + 1))
    try:
        if not events or (events[0].seq, events[0].hash) != (snapshot.seq, snapshot.hash):
            raise ValueError("it belongs to another log")
        if events[-1].kind != kinds.SNAPSHOT or body_of(events[-1], SnapshotTaken).hash != digest(snapshot):
            raise ValueError("it is not the one that was taken; run `drimed trial verify`")
        return restore(creation_of(ledger), snapshot)
    except Exception as error:  # torn or changed in whatever way: the log has everything
        text = "trial %s: the snapshot after event %d is not used, and the log is read from its start: %s"
        log.warning(text, ledger.name, snapshot.seq, error)
        return None
