"""Every request that can be made, as data: both clients have these functions as methods and send what they return."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from drimed.errors import InputError
from drimed.records import (
    Checks,
    Decision,
    Effect,
    Event,
    Head,
    Look,
    Member,
    Opening,
    Page,
    Proof,
    Receipt,
    Report,
    Status,
    read,
)

T = TypeVar("T")
Context = Mapping[str, float | str]
Plots = Mapping[str, Sequence[str]] | Sequence[str]  # block -> plots, or plots
Values = Mapping[str, float | None]

LONGEST_KEY = 200
TOML = {"Content-Type": "application/toml"}


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[Any], T]
    params: dict[str, Any] = field(default_factory=dict)
    json: Any = None
    content: str | None = None  # instead of json
    headers: dict[str, str] = field(default_factory=dict)
    patient: bool = False  # it may take longer than any timeout


# Trials


def create(spec: Mapping[str, Any] | str, *, key: str | None = None) -> Call[Status]:
    """Create a trial from its file: as data, or as the text of a TOML file."""
    if isinstance(spec, str):
        return Call("POST", "/v1/trials", _status, content=spec, headers=TOML | _key(key))
    return _write("/v1/trials", spec, key, _status)


def trials(*, limit: int = 50, after: str | None = None) -> Call[Page[Status]]:
    """Some trials, in the order of their creation."""
    return Call("GET", "/v1/trials", _page(_status), _given(limit=limit, after=after))


def status(trial: str) -> Call[Status]:
    """A trial at a glance."""
    return Call("GET", _of(trial), _status)


def spec(trial: str) -> Call[dict[str, Any]]:
    """The trial file, as it stands."""
    return Call("GET", _of(trial, "spec"), dict)


def users(trial: str, *, limit: int = 100, after: str | None = None) -> Call[Page[Member]]:
    """Some users, in the order in which they joined."""
    return Call("GET", _of(trial, "users"), _page(partial(read, Member)), _given(limit=limit, after=after))


# Asking and telling


def open_episode(
    trial: str,
    contexts: Mapping[str, Context] | None = None,
    *,
    number: int | None = None,
    unavailable: Mapping[str, Sequence[str]] | None = None,
    name: str | None = None,
    date: str | None = None,
    confirm: bool = False,
    dry_run: bool = False,
    key: str | None = None,
) -> Call[int]:
    """Start the next episode; its number. It may have a name ("spring 2026") and a date (2026-03-15)."""
    body = _given(contexts=contexts or None, number=number, unavailable=unavailable or None, dry_run=dry_run or None)
    body |= _given(name=name, date=date, confirm=confirm or None)
    return _write(_of(trial, "episodes"), body, key, lambda d: int(d["episode"]))


def ask(
    trial: str,
    users: str | Sequence[str] | None = None,
    *,
    contexts: Mapping[str, Context] | None = None,
    enrol: Mapping[str, Mapping[str, Any]] | None = None,
    plots: Mapping[str, Plots] | None = None,
    unavailable: Sequence[str] = (),
    episode: int | None = None,
    season: str | None = None,
    date: str | None = None,
    confirm: bool = False,
    dry_run: bool = False,
    key: str | None = None,
) -> Call[list[Decision]]:
    """Which arm one user gets, or some, or (None) all; `episode` is opened with these contexts if it is the next.

    `season` is the same by name, and `date` is when a new one begins.

    With open enrolment somebody unknown joins, as `enrol` describes them: {user: {"attributes": {...}, "cohort": ...}}.
    A user with plots gets a decision for each, or for those that `plots` names: {user: [plot, ...]} or
    {user: {block: [plot, ...]}}. Unlikely contexts and attributes, and plots that are not declared, are refused until
    `confirm` is set.
    """
    body = _given(
        users=[users] if isinstance(users, str) else None if users is None else list(users),
        contexts=contexts or None,
        enrol=enrol or None,
        plots=plots or None,
        unavailable=list(unavailable) or None,
        episode=episode,
        season=season,
        date=date,
        confirm=confirm or None,
        dry_run=dry_run or None,
    )
    return _write(_of(trial, "ask"), body, key, lambda d: [Decision.read(one) for one in d["decisions"]])


def tell(
    trial: str,
    decision: int,
    outcome: Values,
    *,
    control: Values | None = None,
    confirm: bool = False,
    dry_run: bool = False,
    key: str | None = None,
) -> Call[Receipt]:
    """Report the outcome of a decision; a value outside its range is refused until `confirm` is set."""
    body = _given(outcome=outcome, control=control, confirm=confirm or None, dry_run=dry_run or None)
    return _write(_of(trial, "decisions", decision, "outcome"), body, key, _receipt)


def tell_many(
    trial: str,
    reports: Sequence[Report | Mapping[str, Any]],
    *,
    confirm: bool = False,
    dry_run: bool = False,
    key: str | None = None,
) -> Call[list[Receipt]]:
    """Many outcomes, all or none: Report(17, {"yield": 5.2}) or {"decision": 17, "outcome": {"yield": 5.2}} each."""
    rows = [_given(**vars(r)) if isinstance(r, Report) else dict(r) for r in reports]
    body = _given(reports=rows, confirm=confirm or None, dry_run=dry_run or None)
    return _write(_of(trial, "tell"), body, key, lambda d: [_receipt(one) for one in d["receipts"]])


def amend(
    trial: str,
    decision: int | Decision,
    outcome: Values,
    *,
    reason: str,
    control: Values | None = None,
    saw: Values | None = None,
    confirm: bool = False,
    dry_run: bool = False,
    key: str | None = None,
) -> Call[Receipt]:
    """Correct an outcome; None takes a value back.

    Given the decision itself and not its number, it is refused if its outcome has changed since you got it. `saw` says
    so for some values.
    """
    seen: dict[str, Any] = {"saw": saw}
    if isinstance(decision, Decision):
        if saw is None:
            seen = {"saw": _every(outcome, decision.outcome), "saw_control": decision.control}
        decision = decision.id
    flags = {"confirm": confirm or None, "dry_run": dry_run or None}
    body = _given(outcome=outcome, reason=reason, control=control, **seen, **flags)
    return _write(_of(trial, "decisions", decision, "amend"), body, key, _receipt)


def _every(new: Values, old: Values | None) -> dict[str, Any]:
    """What was there of each value, also of those that were not there."""
    return dict.fromkeys(new) | dict(old or {})


def mark_missing(
    trial: str, decision: int, *, reason: str, dry_run: bool = False, key: str | None = None
) -> Call[Receipt]:
    """An outcome, or the rest of it, that will not come."""
    body = _given(reason=reason, dry_run=dry_run or None)
    return _write(_of(trial, "decisions", decision, "missing"), body, key, _receipt)


# Changing a trial: each returns its status afterwards


def pause(trial: str, *, reason: str, key: str | None = None) -> Call[Status]:
    """Decide nothing until it is resumed."""
    return _change(trial, "pause", key, reason=reason)


def resume(trial: str, *, reason: str = "", key: str | None = None) -> Call[Status]:
    """Decide again."""
    return _change(trial, "resume", key, reason=reason)


def stop(trial: str, *, reason: str, key: str | None = None) -> Call[Status]:
    """Decide nothing more, for good."""
    return _change(trial, "stop", key, reason=reason)


def add_user(trial: str, name: str, *, key: str | None = None, **definition: Any) -> Call[Status]:
    """Add a user: preference, control, arms, group, cohort, attributes, blocks or plots."""
    return _change(trial, "users", key, name=name, **definition)


def add_arm(trial: str, name: str, *, key: str | None = None, **definition: Any) -> Call[Status]:
    """Offer one more arm: about, attributes or map, noise."""
    return _change(trial, "arms", key, name=name, **definition)


def retire_arm(trial: str, arm: str, *, reason: str, key: str | None = None) -> Call[Status]:
    """Never give an arm again."""
    return _change(trial, "retire", key, arm=arm, reason=reason)


def change_preference(
    trial: str, user: str, preference: Mapping[str, float], *, reason: str, key: str | None = None
) -> Call[Status]:
    """How a user weighs the metrics from now on."""
    return _change(trial, "preference", key, user=user, preference=preference, reason=reason)


def change_control(
    trial: str, user: str, control: str | Mapping[str, float], *, reason: str, key: str | None = None
) -> Call[Status]:
    """From now on this user is compared with another control: an arm, or arms with shares."""
    return _change(trial, "control", key, user=user, control=control, reason=reason)


def look(trial: str, *, dry_run: bool = False, key: str | None = None) -> Call[Look]:
    """What the stopping rules say now; it is recorded, and so is a pause or a stop that they demand."""
    return _write(_of(trial, "looks"), {"dry_run": dry_run}, key, Look.read)


def change_rules(trial: str, stopping: Mapping[str, Any], *, reason: str, key: str | None = None) -> Call[Status]:
    """Replace the stopping rules, as they stand under [stopping] in a trial file."""
    return _change(trial, "rules", key, stopping=stopping, reason=reason)


def reveal(trial: str, decision: int | None = None, *, reason: str, key: str | None = None) -> Call[Opening]:
    """Open the code for one decision, or (None) for all: the answer has the arm, or the codes."""
    body = _given(decision=decision, reason=reason)
    return _write(_of(trial, "reveal"), body, key, partial(read, Opening))


# Looking back


def looks(trial: str, *, limit: int = 100, before: str | None = None) -> Call[Page[Look]]:
    """Looks at the stopping rules, newest first; `before` is the `next` of the page before."""
    return Call("GET", _of(trial, "looks"), _page(Look.read), _given(limit=limit, before=before))


def decision(trial: str, number: int) -> Call[Decision]:
    """A decision with its outcome."""
    return Call("GET", _of(trial, "decisions", number), Decision.read)


def history(trial: str, number: int) -> Call[list[Event]]:
    """All events about a decision, its own first."""
    return Call("GET", _of(trial, "decisions", number), lambda d: [Event.read(e) for e in d["history"]])


def decisions(
    trial: str,
    *,
    user: str | None = None,
    arm: str | None = None,
    state: str | None = None,
    plot: str | None = None,
    block: str | None = None,
    limit: int = 25,
    before: str | None = None,
) -> Call[Page[Decision]]:
    """Decisions, newest first: of a user, a plot or a block, for an arm, or in a state.

    States are pending, partial, complete, missing and amended.
    """
    params = _given(user=user, arm=arm, state=state, plot=plot, block=block, limit=limit, before=before)
    return Call("GET", _of(trial, "decisions"), _page(Decision.read), params)


def log_page(
    trial: str,
    *,
    kinds: Sequence[str] = (),
    user: str | None = None,
    newest_first: bool = False,
    limit: int = 500,
    cursor: str | None = None,
) -> Call[Page[Event]]:
    """Some events; `log` iterates over all of them."""
    order = "newest" if newest_first else "oldest"
    params = _given(user=user, limit=limit, cursor=cursor, order=order, kind=list(kinds) or None)
    return Call("GET", _of(trial, "log"), _page(Event.read), params)


def effects(trial: str, *, user: str | None = None, limit: int = 100, after: str | None = None) -> Call[Page[Effect]]:
    """Each arm against the control, for one user or for so many."""
    params = _given(user=user, limit=limit, after=after)
    return Call("GET", _of(trial, "effects"), _page(Effect.read), params)


def checks(trial: str) -> Call[Checks]:
    """What the checks of a trial found, and which promise they withdraw."""
    return Call("GET", _of(trial, "checks"), Checks.read)


def head(trial: str) -> Call[Head]:
    """Where the log stands: the number and the hash of its last event, to be kept elsewhere."""
    return Call("GET", _of(trial, "head"), partial(read, Head))


def verify(trial: str, *, expect: str | None = None) -> Call[Proof]:
    """Prove the log; a long trial takes longer than the usual timeout."""
    given = _given(expect=expect)
    return Call("GET", _of(trial, "verify"), partial(read, Proof), given, patient=True)


def export(trial: str, form: str) -> Call[None]:
    """Every decision, as a file."""
    return Call("GET", _of(trial, "export"), lambda _: None, {"format": form}, patient=True)


_status, _receipt = partial(read, Status), partial(read, Receipt)


def _page(item: Callable[[Any], T]) -> Callable[[Any], Page[T]]:
    return lambda d: Page([item(one) for one in d["items"]], d["next"])


def _change(trial: str, path: str, key: str | None, **body: Any) -> Call[Status]:
    return _write(_of(trial, path), _given(**body), key, _status)


def _write(path: str, body: Mapping[str, Any], key: str | None, answer: Callable[[Any], T]) -> Call[T]:
    return Call("POST", path, answer, json=_plain(body), headers=_key(key))


def _of(trial: str, *steps: str | int) -> str:
    return "/".join(["/v1/trials", *(quote(str(step), safe="") for step in (trial, *steps))])


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _key(given: str | None) -> dict[str, str]:
    key = uuid.uuid4().hex if given is None else given
    if not 0 < len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
        expected = f"an Idempotency-Key of 1 to {LONGEST_KEY} printable ASCII characters, or None to have one made"
        raise InputError(f"key must be {expected}, got {key[:LONGEST_KEY]!r}", ("key",))
    return {"Idempotency-Key": key}


def _plain(value: Any, at: tuple[str | int, ...] = ()) -> Any:
    """A body as JSON has it; numbers and arrays of NumPy turn themselves into Python's."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(inner, (*at, str(name))) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, (*at, i)) for i, inner in enumerate(value)]
    name = ".".join(map(str, at))
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value}; leave it out if it is not known", at)
    if value is not None and not isinstance(value, str | int | float):
        raise InputError(f"{name} must be a number, a text, a list or a mapping, got {type(value).__name__}", at)
    return value
