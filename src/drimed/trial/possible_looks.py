"""Whether a look, a change of the rules, or anything else can follow on what looks have found.

What a look says is not judged here: `verify` takes it again.
"""

from __future__ import annotations

from drimed.errors import ConflictError, InputError
from drimed.records import Event
from drimed.trial import allowed
from drimed.trial import events as kinds
from drimed.trial.events import written
from drimed.trial.looks import digest
from drimed.trial.parts import Stopping
from drimed.trial.state import TrialState
from drimed.trial.stopping import BY_HAND, DECISIONS, SEASON, due, fresh

FIELDS = {"after", "cause", "episode", "decisions", "outcomes", "rules", "limits", "ends", "demands", "hash"}
# What a look is taken for: that follows it in the same transaction.
_FOR = {SEASON: (kinds.EPISODE,), DECISIONS: (kinds.DECISION, kinds.EPISODE, kinds.LOOK)}


def follows(state: TrialState, event: Event) -> None:
    """What a look demands, or was taken for, comes right after it; and decisions wait for a look that is due."""
    looked = state.looked
    if looked.demands is not None and (event.kind, event.body.get("reason")) != looked.demands:
        raise ConflictError(f"the look before it demands that the trial is {looked.demands[0]}: {looked.demands[1]}")
    if looked.demands is None and looked.last == state.seq and event.kind not in _FOR.get(looked.cause, (event.kind,)):
        raise ConflictError(f"the look before it was taken for {' or '.join(_FOR[looked.cause])}")
    if event.kind not in (kinds.EPISODE, kinds.DECISION):
        return
    cause = due(state, opens=event.kind == kinds.EPISODE)
    together = event.kind == kinds.DECISION and event.time == looked.asked
    if cause is not None and not fresh(state, cause) and not together:
        raise ConflictError("a look at the stopping rules was due before it")


def look(state: TrialState, event: Event) -> None:
    """A look is of the state before it, and taken for a reason."""
    body = event.body
    if state.spec.stopping is None:
        raise ConflictError("there are no stopping rules to look at")
    if body["after"] != state.seq:
        raise ConflictError(f"it looks at event {body['after']!r}, expected {state.seq}")
    cause = body["cause"]
    if cause != BY_HAND and cause not in (due(state, opens=True), due(state, opens=False)):
        raise ConflictError(f"no look was due because of {cause!r}")
    if cause != BY_HAND and state.status != "running":
        raise ConflictError(f"a look before decisions, and the trial is {state.status}")
    if body["hash"] != digest(body):
        raise ConflictError("its hash is not that of what it says")


def rules(state: TrialState, event: Event) -> None:
    """Other rules, with those before them."""
    body = event.body
    was, new = state.spec.stopping, Stopping.model_validate(body["stopping"])
    if written(body["was"]) != written(None if was is None else was.plain()):
        raise ConflictError("it says otherwise than the log what the rules were before")
    if written(new.plain()) != written(body["stopping"]):
        raise InputError(f"rules are not recorded as {body['stopping']}")
    allowed.new_rules(state, new)
