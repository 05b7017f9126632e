"""A state as bytes and back, so that opening a long trial is fast. No code is stored, and nothing depends on it.

The event after a snapshot has the hash of its bytes: one that is not the one that was taken is not used.
"""

from __future__ import annotations

import gc
import hashlib
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from drimed.models.mixed.learner import FieldEvidence
from drimed.policies.protocol import from_arrays, to_arrays
from drimed.records import Event
from drimed.trial import events as kinds
from drimed.trial.covariates import UnitIndex
from drimed.trial.events import Draft, written
from drimed.trial.layers import Layers
from drimed.trial.look_history import LookHistory
from drimed.trial.seasons import Season
from drimed.trial.spec import TrialSpec, User
from drimed.trial.state import Capacity, Counts, Episode, TrialState, at_start, caught_up, fold, problem_of
from drimed.trial.store import Ledger, Snapshot
from drimed.trial.unlikely import Spread

if TYPE_CHECKING:
    from drimed.trial.transaction import Transaction

_CHANGES = tuple(
    kind
    for kind in kinds.KINDS
    if kind not in (kinds.DECISION, kinds.OUTCOME, kinds.AMENDMENT, kinds.MISSING, kinds.SNAPSHOT)
)
_DEFINITIONS = TypeAdapter(list[User])

log = logging.getLogger(__name__)


def take(state: TrialState) -> Snapshot:
    """Everything that is known."""
    profiles = list(state.profiles.values())
    described = _DEFINITIONS.dump_python([p.definition for p in profiles], mode="json", exclude_none=True)
    meta = {
        "spec": state.spec.plain(),
        "capacity": asdict(state.capacity),
        "profiles": [[p.user for p in profiles], described],
        "episode": vars(state.episode) | {"asked": dict(state.episode.asked)},
        "seasons": [[number, season.body()] for number, season in state.seasons.items()],
        "counts": asdict(state.counts),
        "pulls": dict(state.pulls),
        "blocks": dict(state.numbers.blocks),
        "usual": [vars(spread) for spread in state.usual],
        "retired": state.retired,
        "status": state.status,
        **({"opened": state.opened, "openings": state.openings} if state.openings else {}),
        **({} if state.spec.stopping is None else {"looked": asdict(state.looked)}),
    }
    arrays: dict[str, Any] = {f"state.{name}": array for name, array in to_arrays(state.learned).items()}
    stream = io.BytesIO()
    np.savez_compressed(stream, meta=np.frombuffer(written(meta).encode(), np.uint8), **arrays)
    return Snapshot(state.seq, state.hash, stream.getvalue())


def restore(created: Event, snapshot: Snapshot) -> TrialState:
    """The state that a snapshot holds."""
    with np.load(io.BytesIO(snapshot.data), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    meta = json.loads(arrays.pop("meta").tobytes())
    capacity = Capacity(**meta["capacity"])
    start = TrialState.start(created, capacity)
    spec = TrialSpec.model_validate(meta["spec"] | {"model": start.spec.model})
    empty = UnitIndex.start(start.problem.covariates)
    state = replace(
        start,
        spec=spec,
        problem=problem_of(created, spec, capacity),
        learned=from_arrays(start.learned, {name.removeprefix("state."): a for name, a in arrays.items()}),
        profiles=Layers(),
        users=Layers(),
        numbers=replace(empty, blocks=Layers(meta["blocks"])),
        usual=tuple(Spread(**spread) for spread in meta["usual"]),
        episode=Episode(**meta["episode"] | {"asked": Layers(meta["episode"]["asked"])}),
        seasons=Layers((number, Season(**known)) for number, known in meta.get("seasons", ())),
        counts=Counts(**meta["counts"]),
        pulls=Layers((user, tuple(n)) for user, n in meta["pulls"].items()),
        retired=tuple(meta["retired"]),
        status=meta["status"],
        opened=meta.get("opened", False),
        openings=tuple(meta.get("openings", ())),
        looked=LookHistory.read(meta["looked"]) if "looked" in meta else LookHistory(),
        seq=snapshot.seq,
        hash=snapshot.hash,
    )
    names, described = meta["profiles"]
    with _uncollected():
        return state.entered(zip(names, _DEFINITIONS.validate_python(described), strict=True))


@contextmanager
def _uncollected() -> Iterator[None]:
    """While users by the hundred thousand are made, who all stay: looking for garbage among them doubles the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def keep(tx: Transaction) -> int:
    """Replace the snapshot and write its hash into the log; the event after which it was taken."""
    snapshot = take(tx.state)
    tx.ledger.keep(snapshot)
    tx.append([Draft(kinds.SNAPSHOT, {"after": snapshot.seq, "hash": digest(snapshot)})])
    return snapshot.seq


def digest(snapshot: Snapshot) -> str:
    """The hash of what is stored."""
    return hashlib.sha256(snapshot.data).hexdigest()


def fits(state: TrialState) -> int:
    """With how many outcomes variances were fitted last: to do it again takes longer than all else at opening."""
    evidence = getattr(state.learned, "evidence", None)
    return evidence.fitted if isinstance(evidence, FieldEvidence) else 0


def recall(ledger: Ledger) -> tuple[TrialState, bool, int]:
    """The state after the ledger's last event, whether a snapshot there was unusable and should be replaced, and its
    fits.
    """
    state, unusable = nearest(ledger)
    return caught_up(state, ledger), unusable, fits(state)


def outline(ledger: Ledger) -> TrialState:
    """Users, arms, episodes and status as they are now, without what newer decisions and outcomes have taught."""
    state, _ = nearest(ledger)
    for event in ledger.events(after=state.seq, kinds=_CHANGES):
        state = fold(state, [(event, None)])
    return state


def nearest(ledger: Ledger) -> tuple[TrialState, bool]:
    """What is known without reading much of the log: the newest snapshot, or the start; and whether it was unusable."""
    start, snapshot = at_start(ledger), ledger.snapshot()
    restored = None
    if snapshot is not None:
        found = list(ledger.events(after=snapshot.seq - 1, until=snapshot.seq + 1))
        try:
            if not found or (found[0].seq, found[0].hash) != (snapshot.seq, snapshot.hash):
                raise ValueError("it belongs to another log")
            if found[-1].kind == kinds.SNAPSHOT:
                if found[-1].body["hash"] != digest(snapshot):
                    raise ValueError("it is not the one that was taken: somebody changed it; run `drimed trial verify`")
                restored = restore(start.created, snapshot)
        except Exception as error:  # torn or changed in whatever way: the log has everything
            log.warning(
                "trial %s: the snapshot after event %d is not used, and the log is read from its start: %s",
                ledger.name, snapshot.seq, error,
            )  # fmt: skip
    return restored or start, snapshot is not None and restored is None
