"""A log with every kind of event, forgeries whose chain holds, and whether the program could have written a log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any
from unittest.mock import patch

from drimed.errors import DrimedError
from drimed.records import AskRequest, Decision, DecisionRow, Event
from drimed.trial import ask as asking
from drimed.trial import events as kinds
from drimed.trial import transaction as opened_trials
from drimed.trial.events import START, Draft, Foreseen, SnapshotTaken, hash_after, to_json
from drimed.trial.look_history import look_hash
from drimed.trial.state import RecordedDecision, TrialState, grouped
from drimed.trial.store import MemoryStore, Store
from drimed.trial.transaction import Write
from drimed.trial.trial import Trial
from tests.trial.seasons import KNOWN, RAIN, SPEC
from tests.trial.trials import outcome

NAME = "season"
RULES: dict[str, Any] = {"looks": "by hand", "rules": {"good": {"kind": "superiority", "arm": "new"}}}
WHOLE: dict[str, Any] = SPEC | KNOWN | RAIN | {"stopping": RULES}  # the quickest learner: many logs are proven
Log = list[Event]


class Clock:
    """A second later at every look."""

    def __init__(self) -> None:
        self.seconds = 0

    def __call__(self) -> str:
        self.seconds += 1
        return f"2026-05-01T10:{self.seconds // 60:02}:{self.seconds % 60:02}.000000+00:00"


def recorded(store: Store, spec: dict[str, Any] = WHOLE) -> Log:
    """Every kind of event at least once, some decisions taken together and some with keys."""
    trial = Trial.create(spec, store, actor="ann", clock=Clock())
    rain = {"rain": 450.0}
    trial.open_episode(dict.fromkeys(SPEC["users"], rain), unavailable={"north": ["newer"]})
    first = trial.ask_many(["north", "south"], unavailable=["new"])
    trial.tell(first[0].id, {"yield": 5.0})
    trial.tell(first[0].id, {"cost": 1.0}, actor="bob")
    trial.mark_missing(first[1].id, reason="hail")
    trial.tell(first[1].id, {"yield": 4.0})
    trial.mark_missing(first[1].id, reason="no scales")
    trial.amend(first[1].id, {"yield": 4.5}, reason="misread")
    other = next(arm for arm in ("old", "new") if arm != first[0].arm)
    trial.tell(first[0].id, {}, given=other, reason="the wrong bag")
    trial.amend(first[0].id, {}, given="other", reason="no bag at all")
    trial.add_user("west", {"preference": {"yield": 3.0}, "group": "hills"})
    trial.change_preference("north", {"yield": 3.0, "cost": -1.0}, reason="prices")
    trial.change_control("south", "new", reason="a new practice")
    trial.look()
    with trial.writing("ann") as tx:
        tx.append([Draft(Foreseen(1, 200, "An arm is shown already."))])
    trial.change_rules(RULES | {"seasons": 9}, reason="the money ends")
    trial.open_episode(dict.fromkeys(trial.state().users, rain))
    second = trial.ask("east", key="east-2")
    trial.add_arm("newest", {"about": "sown late"})
    trial.pause(reason="holidays")
    trial.tell(second.id, outcome(second.id, second.arm))
    trial.resume(reason="back")
    trial.ask_many(["west", "north"], key="two", actor="bob")
    trial.retire_arm("newer", reason="withdrawn")
    trial.ask("south", context={"rain": 300.0})
    trial.reveal(first[0].id, reason="the crop burned")
    trial.stop(reason="the end")
    trial.reveal(reason="the last outcome is in", actor="bob")
    trial.tell(4, {"yield": 5.5, "cost": 0.5})
    return list(trial.log())


def chained(events: Sequence[Event]) -> Log:
    """The events in this order, numbered and chained as if they had been recorded so."""
    found: Log = []
    hash = START
    for seq, event in enumerate(events, 1):
        event = replace(event, seq=seq, hash="")
        hash = hash_after(hash, event)
        found.append(replace(event, hash=hash))
    return found


def with_body(event: Event, body: dict[str, Any]) -> Event:
    """The event with another body."""
    return replace(event, text=to_json(body))


def shifted(events: Sequence[Event], place: int, by: int) -> Log:
    """Later decisions and snapshots name the state that they were taken from: by its new number."""
    found = []
    for event in events:
        body = event.body
        for kind, field in ((kinds.DECISION, "state"), (kinds.SNAPSHOT, "after"), (kinds.LOOK, "after")):
            if event.kind == kind and event.seq > place and body[field] >= place:
                moved = body | {field: body[field] + by}
                event = with_body(event, moved | ({"hash": look_hash(moved)} if kind == kinds.LOOK else {}))
        found.append(event)
    return found


def stored(events: Sequence[Event]) -> Store:
    """A store that has this log."""
    store = MemoryStore()
    with store.create(NAME) as ledger:
        ledger.append(events, rows_of(events))
    return store


def rows_of(events: Sequence[Event]) -> list[DecisionRow]:
    """The table of decisions that belongs to this log, as far as it makes sense."""
    rows: dict[int, DecisionRow] = {}
    about: dict[int, RecordedDecision] = {}
    try:
        state = TrialState.start(events[0])
        for event in events:
            if event.decision is not None:
                known = about.get(event.decision)
                about[event.decision] = RecordedDecision(event) if known is None else known.after(state, event)
                rows[event.decision] = about[event.decision].row
    except Exception:  # a forgery
        return list(rows.values())
    return list(rows.values())


def changes(event: Event) -> Iterator[tuple[str, Event]]:
    """The event with one field changed, in every way that is worth a try."""
    yield "actor", replace(event, actor="eve")
    yield "no actor", replace(event, actor="")
    yield "time", replace(event, time=event.time.replace("2026", "2025"))
    yield "no time", replace(event, time="yesterday")
    for kind in {*kinds.KINDS, "unheard of"} - {event.kind}:
        yield f"kind {kind}", replace(event, kind=kind)
    for number in {1, 2, 6, 99, None} - {event.decision}:
        yield f"decision {number}", replace(event, decision=number)
    for user in ("north", "nobody", "", None):
        if user != event.user:
            yield f"user {user}", replace(event, user=user)
    for request in ("east-2", "fresh", None):
        if request != event.request:
            yield f"request {request}", replace(event, request=request)
    for path, new in _leaves(event.body):
        yield path, replace(event, text=new)


def _leaves(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The body with one value changed, left out or added, in every place."""
    for path, new in _walk(body, "", lambda value: value):
        if new != body:
            yield path, json.dumps(new, separators=(",", ":"), ensure_ascii=False)


def _walk(value: Any, at: str, put: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
    others: list[Any] = [None]
    if isinstance(value, dict):
        yield f"{at} + more", put({**value, "more": 1})
        for name, inner in value.items():
            yield f"{at} - {name}", put({n: v for n, v in value.items() if n != name})
            yield from _walk(inner, f"{at}.{name}", partial(_put_field, put, value, name))
    elif isinstance(value, list):
        others.append([*value, "old"])
        for i in range(min(2, len(value))):
            yield f"{at} - {i}", put(value[:i] + value[i + 1 :])
            yield from _walk(value[i], f"{at}.{i}", partial(_put_item, put, value, i))
    elif isinstance(value, bool):
        others.append(not value)
    elif isinstance(value, str):
        others += ["", value + "x", "newer", 5]
    elif isinstance(value, int | float):
        others += [value + 1, -value - 1, str(value)]
    else:
        others = ["something", 0.5, {"metrics": {"yield": 5.0}, "control": None}]
    for other in others:
        yield f"{at} = {other!r}", put(other)


def _put_field(put: Callable[[Any], Any], table: dict[str, Any], name: str, value: Any) -> Any:
    return put({**table, name: value})


def _put_item(put: Callable[[Any], Any], items: list[Any], i: int, value: Any) -> Any:
    return put([*items[:i], value, *items[i + 1 :]])


def could_be_written(log: Sequence[Event]) -> bool:
    """Whether calls of the public interface write exactly this log, event by event, into an empty store.

    A snapshot may be taken at any time.
    """
    moments = [log[0].time]
    try:
        with patch.object(opened_trials, "_snapshot_due", lambda *_: False):
            trial = Trial.create(log[0].body["spec"], MemoryStore(), actor=log[0].actor, clock=lambda: moments[0])
            for group in grouped((event, None) for event in log[1:]):
                moments[0] = group[0][0].time
                _call(trial, [event for event, _ in group])
            return list(trial.log()) == list(log)
    except (DrimedError, KeyError, TypeError, ValueError, AttributeError, IndexError):
        return False


def _ask(request: AskRequest, tx: opened_trials.Transaction) -> list[Decision]:
    return asking.ask(tx, request)


def _call(trial: Trial, events: Log) -> None:
    event = events[0]
    body, actor, user = event.body, event.actor or "?", str(event.user)
    number = event.decision or 0
    match event.kind:
        case kinds.DECISION:
            fields = trial.state().problem.fields
            contexts = {str(e.user): dict(zip(fields, e.body["context"], strict=True)) for e in events}
            standing = trial.state().excluded
            extra = sorted({a for e in events for a in e.body["unavailable"]} - set(standing(user)))
            writes = []  # one, or requests that waited together
            for (who, key), some in groupby(events, lambda e: (e.actor or "?", e.request)):
                users = [str(e.user) for e in some]
                own = {u: contexts[u] for u in users}
                request = AskRequest(users=users, contexts=own, unavailable=extra, key=key)
                writes.append(Write(partial(_ask, request), who, question=(request, lambda answer: answer)))
            trial.slow = False
            for answer in trial.commit_all(writes):
                if isinstance(answer, Exception):
                    raise answer
        case kinds.EPISODE:
            fields = trial.state().problem.fields
            contexts = {u: dict(zip(fields, v, strict=True)) for u, v in body["contexts"].items()}
            trial.open_episode(contexts, number=body["episode"], unavailable=body["unavailable"], actor=actor)
        case kinds.LOOK:
            trial.look(actor=actor)
        case kinds.RULES:
            trial.change_rules(body["stopping"], reason=body["reason"], actor=actor)
        case kinds.OUTCOME:
            trial.tell(number, body["outcome"]["metrics"], confirm=True, actor=actor)
        case kinds.AMENDMENT:
            old = trial.decision(number).outcome or {}
            new = dict.fromkeys(old) | body["outcome"]["metrics"]
            trial.amend(number, new, reason=body["reason"], confirm=True, actor=actor)
        case kinds.MISSING:
            trial.mark_missing(number, reason=body["reason"], actor=actor)
        case kinds.GIVEN:
            trial.amend(number, {}, given=body["given"], reason=body["reason"], actor=actor)
        case kinds.USER:
            trial.add_user(user, body["definition"], actor=actor)
        case kinds.PREFERENCE:
            trial.change_preference(user, body["preference"], reason=body["reason"], actor=actor)
        case kinds.CONTROL:
            trial.change_control(user, body["control"], reason=body["reason"], actor=actor)
        case kinds.ARM:
            trial.add_arm(body["arm"], body["definition"], noise=body.get("noise", {}).get(body["arm"]), actor=actor)
        case kinds.RETIRED:
            trial.retire_arm(body["arm"], reason=body["reason"], actor=actor)
        case kinds.PAUSED:
            trial.pause(reason=body["reason"], actor=actor)
        case kinds.RESUMED:
            trial.resume(reason=body["reason"], actor=actor)
        case kinds.STOPPED:
            trial.stop(reason=body["reason"], actor=actor)
        case kinds.REVEALED:
            trial.reveal(body.get("decision"), reason=body["reason"], actor=actor)
        case kinds.FORECAST:
            with trial.writing(actor) as tx:
                tx.append([Draft(Foreseen(**body))])
        case kinds.SNAPSHOT:
            with trial.writing(actor) as tx:
                tx.append([Draft(SnapshotTaken(tx.state.seq, body["hash"]))])
