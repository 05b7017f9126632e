"""Snapshots of a state as bytes, so that opening a long trial is fast. No code is stored, and nothing depends on them.

The event after a snapshot has the hash of its bytes: a snapshot that was changed is not used.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from drimed.models.mixed.learner import FieldEvidence
from drimed.policies.protocol import from_arrays, to_arrays
from drimed.records import Event
from drimed.trial import events as kinds
from drimed.trial.events import SnapshotTaken, body_of, to_json
from drimed.trial.look_history import LookHistory
from drimed.trial.problem import UnitIndex
from drimed.trial.seasons import Season
from drimed.trial.spec import TrialSpec, User
from drimed.trial.state import Capacity, Counts, Episode, Spread, TrialState, problem_of, start_of
from drimed.trial.store import Layers, Ledger, Snapshot

_DEFINITIONS = TypeAdapter(list[User])

log = logging.getLogger(__name__)


def take(state: TrialState) -> Snapshot:
    """A snapshot of this state."""
    profiles = list(state.profiles.values())
    described = _DEFINITIONS.dump_python([p.definition for p in profiles], mode="json", exclude_none=True)
    meta = {
        "spec": state.spec.plain(),
        "capacity": asdict(state.capacity),
        "profiles": [[p.user for p in profiles], described],
        "episode": vars(state.episode) | {"asked": dict(state.episode.asked)},
        "seasons": [[number, asdict(season)] for number, season in state.seasons.items()],
        "counts": asdict(state.counts),
        "pulls": dict(state.pulls),
        "blocks": list(state.numbers.blocks),
        "usual": [vars(spread) for spread in state.usual],
        "retired": state.retired,
        "status": state.status,
        "opened": state.opened,
        "openings": state.openings,
        "looked": asdict(state.looked),
    }
    arrays: dict[str, Any] = {f"state.{name}": array for name, array in to_arrays(state.learned).items()}
    stream = io.BytesIO()
    np.savez_compressed(stream, meta=np.frombuffer(to_json(meta).encode(), np.uint8), **arrays)
    return Snapshot(state.seq, state.hash, stream.getvalue())


def restore(created: Event, snapshot: Snapshot) -> TrialState:
    """The state that a snapshot holds."""
    with np.load(io.BytesIO(snapshot.data), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    meta = json.loads(arrays.pop("meta").tobytes())
    capacity = Capacity(**meta["capacity"])
    start = TrialState.start(created, capacity)
    spec = TrialSpec.model_validate(meta["spec"])
    empty = UnitIndex.start(start.problem.covariates)
    state = replace(
        start,
        spec=spec,
        problem=problem_of(created, spec, capacity),
        learned=from_arrays(start.learned, {name.removeprefix("state."): a for name, a in arrays.items()}),
        profiles=Layers(),
        users=Layers(),
        numbers=empty.with_blocks(meta["blocks"]),
        usual=tuple(Spread(**spread) for spread in meta["usual"]),
        episode=Episode(**meta["episode"] | {"asked": Layers(meta["episode"]["asked"])}),
        seasons=Layers((number, Season(**season)) for number, season in meta["seasons"]),
        counts=Counts(**meta["counts"]),
        pulls=Layers((user, tuple(n)) for user, n in meta["pulls"].items()),
        retired=tuple(meta["retired"]),
        status=meta["status"],
        opened=meta["opened"],
        openings=tuple(meta["openings"]),
        looked=LookHistory.read(meta["looked"]),
        seq=snapshot.seq,
        hash=snapshot.hash,
    )
    names, described = meta["profiles"]
    return state.with_users(zip(names, _DEFINITIONS.validate_python(described), strict=True))


def digest(snapshot: Snapshot) -> str:
    """The hash of a snapshot's bytes."""
    return hashlib.sha256(snapshot.data).hexdigest()


def fits(state: TrialState) -> int:
    """The number of outcomes at the last fit of variances: to fit again takes longer than all else at opening."""
    evidence = getattr(state.learned, "evidence", None)
    return evidence.fitted_count if isinstance(evidence, FieldEvidence) else 0


def nearest(ledger: Ledger) -> tuple[TrialState, bool]:
    """The state of the snapshot, or else the start of the trial; and whether the snapshot was unusable."""
    start, snapshot = start_of(ledger), ledger.snapshot()
    if snapshot is None:
        return start, False
    events = list(ledger.events(after=snapshot.seq - 1, until=snapshot.seq + 1))
    try:
        if not events or (events[0].seq, events[0].hash) != (snapshot.seq, snapshot.hash):
            raise ValueError("it belongs to another log")
        if events[-1].kind != kinds.SNAPSHOT or body_of(events[-1], SnapshotTaken).hash != digest(snapshot):
            raise ValueError("it is not the one that was taken; run `drimed trial verify`")
        return restore(start.created, snapshot), False
    except Exception as error:  # torn or changed in whatever way: the log has everything
        text = "trial %s: the snapshot after event %d is not used, and the log is read from its start: %s"
        log.warning(text, ledger.name, snapshot.seq, error)
        return start, True
