"""Whether an event can follow on a state: that is asked of every event when it is recorded, and again by `verify`.

The rules themselves are in `drimed.trial.allowed`; here they are read off what is recorded. Whether a decision is the
one that follows from its state is not asked here: `verify` takes it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from drimed.errors import ConflictError, InputError, UnconfirmedError, UnknownNameError
from drimed.records import MISSING, Event, Fault, Path
from drimed.trial import allowed, seasons, unlikely
from drimed.trial import events as kinds
from drimed.trial.covariates import block_key, number, plot_key
from drimed.trial.events import written
from drimed.trial.look_history import BY_HAND, DECISIONS, SEASON, due, is_fresh, look_hash
from drimed.trial.plots import Place
from drimed.trial.queries import Story, context_of
from drimed.trial.seasons import Season
from drimed.trial.spec import Arm, ArmNoise, Attribute, ContextField, Stopping, User
from drimed.trial.state import TrialState, with_arm

# What is asked about before somebody is decided for: values that are unlikely, and plots that nobody declared.


def settle(faults: Iterable[Fault], *, confirm: bool) -> None:
    """Go on if there is nothing to ask about, or somebody says that it is right."""
    found = [] if confirm else list(faults)
    if found:
        raise UnconfirmedError(found)


def of_contexts(state: TrialState, contexts: Mapping[str, Mapping[str, Any]], *, new: bool) -> Iterator[Fault]:
    """Of contexts that are sound; `new`: of an episode that begins, so that what the open one has does not count."""
    fields = list(state.problem.fields)
    for user, values in contexts.items():
        known = None if new else state.episode.contexts.get(user)
        for name, value in values.items():
            if known is None or known[fields.index(name)] != value:
                yield from _of_value(user, name, value, state.spec.context[name], ("contexts", user, name))


def of_attributes(state: TrialState, user: str, values: Mapping[str, Any] | None, at: Path) -> Iterator[Fault]:
    """Of the attributes of somebody who joins."""
    for name, value in (values or {}).items():
        declared, path = state.spec.attributes.get(name, Attribute()), (*at, "attributes", name)
        yield from _of_value(user, name, value, declared, path)
        levels = state.numbers.levels.get(name, declared.levels or ())
        if declared.levels and isinstance(value, str) and value not in levels:
            message = str(UnknownNameError("level", value, levels))
            yield Fault(path, f"user {user!r}: {name}: {message}; it becomes a new level if that is right")


def of_plots(state: TrialState, places: Sequence[Place]) -> Iterator[Fault]:
    """Of plots that a user does not have, in a block that it does not have either."""
    for place in places:
        own = state.profile(place.user).definition.block_of() if place.user in state.users else {}
        if not own or place.plot in own or block_key(place.user, str(place.block)) in state.numbers.blocks:
            continue
        message = str(UnknownNameError("plot", str(place.plot), own))
        yield Fault(
            ("plots", place.user, str(place.plot)),
            f"user {place.user!r}: {message}; it becomes a new plot of a new block {place.block!r} if that is right",
        )


def _of_value(user: str, name: str, value: Any, declared: Attribute | ContextField, path: Path) -> Iterator[Fault]:
    if isinstance(value, int | float) and (reason := unlikely.why_known(declared, float(value))):
        yield Fault(path, f"user {user!r}: {name} {value:g} {reason}", severity="unlikely")


# Whether a look, a change of the rules, or anything else can follow on what looks have found.

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
    if cause is not None and not is_fresh(state, cause) and not together:
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
    if body["hash"] != look_hash(body):
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


Pairs = Sequence[tuple[Event, Story | None]]  # events, each with what was known of the decision that it is about

_REASON = {"reason"}
_FIELDS: dict[str, tuple[set[str], set[str]]] = {  # of the body: those that are there, and those that may be
    kinds.CREATED: ({"spec", "seed", "numpy"}, {"rehearsal"}),
    kinds.EPISODE: ({"episode", "contexts", "unavailable"}, {"name", "date"}),
    kinds.OUTCOME: ({"outcome", "was", "late"}, set()),
    kinds.AMENDMENT: ({"outcome", "was", "reason"}, {"late", "missing"}),
    kinds.MISSING: (_REASON, {"was"}),
    kinds.USER: ({"definition"}, set()),
    kinds.PREFERENCE: ({"preference", "reason"}, set()),
    kinds.CONTROL: ({"control", "reason"}, set()),
    kinds.ARM: ({"arm", "definition"}, {"noise"}),
    kinds.RETIRED: ({"arm", "reason"}, set()),
    kinds.PAUSED: (_REASON, set()),
    kinds.RESUMED: (_REASON, set()),
    kinds.STOPPED: (_REASON, set()),
    kinds.REVEALED: (_REASON, {"decision"}),
    kinds.LOOK: (FIELDS, set()),
    kinds.RULES: ({"stopping", "was", "reason"}, set()),
    kinds.SNAPSHOT: ({"after", "hash"}, set()),
}


def check(state: TrialState, pairs: Pairs) -> None:
    """Refuse an event, or decisions that were taken together, that nothing could have recorded after this state."""
    event, story = pairs[0]
    for one, _ in pairs:
        _columns(one)
    follows(state, event)
    if event.kind == kinds.DECISION:
        _decisions(state, [one for one, _ in pairs])
        return
    if event.kind == kinds.CREATED:
        raise ConflictError("a trial is created once")
    body = _body(event)
    if "reason" in body and (event.kind, body["reason"]) != (kinds.RESUMED, ""):
        _texts(body["reason"])
        if event.kind != kinds.RESUMED:
            allowed.need_reason(body["reason"])
    if event.kind in _TOLD:
        _about(state, event, story)
    else:
        _CHANGED[event.kind](state, event)


def check_start(created: Event) -> None:
    """Refuse a first event that creates no trial; what the trial file says is taken as it was read at that time."""
    _columns(created)
    body = _body(created)
    seed, given = body["seed"], body["spec"].get("seed")
    _texts(body["numpy"])
    if "rehearsal" in body and not _is_rehearsal(body["rehearsal"]):
        raise InputError("what it says of a rehearsal is not what a rehearsal shows")
    if created.kind != kinds.CREATED or type(seed) is not int or given not in (None, seed):
        raise InputError("its seed is no whole number, or not the trial file's")  # whoever knows it can predict arms


def _body(event: Event) -> dict[str, Any]:
    """With the fields that events of this kind have."""
    if event.kind not in _FIELDS:
        raise ConflictError(f"there are no events of kind {event.kind!r}")
    body, (required, optional) = event.body, _FIELDS[event.kind]
    if not required <= set(body) <= required | optional:
        raise InputError(f"its fields are {', '.join(body)}, expected {', '.join(sorted(required))}")
    return body


def _is_rehearsal(said: Any) -> bool:
    """Hash and scenario in words, whole numbers of seasons and trials, shares of control and of claims."""
    if not isinstance(said, dict) or set(said) != {"hash", "scenario", "seasons", "trials", "control", "power"}:
        return False
    whole = all(type(said[name]) is int and said[name] > 0 for name in ("seasons", "trials"))
    shares = [said["control"], *([] if said["power"] is None else [said["power"]])]
    told = all(_is_text(said[name]) for name in ("hash", "scenario"))
    return told and whole and all(isinstance(x, int | float) and 0 <= x <= 1 for x in shares)


def _columns(event: Event) -> None:
    """What is recorded beside the body."""
    if not _is_text(event.actor):
        raise InputError(f"somebody acts: an actor is a name, got {event.actor!r}")
    if not _is_time(event.time):
        raise InputError(f"a time has its zone, as in 2026-05-01T10:00:00+00:00, got {event.time!r}")
    about, somebody = event.kind in _WITH_DECISION, event.kind in _WITH_USER
    if (event.decision is not None) != about or (event.user is not None) != somebody:
        raise InputError(f"it is of decision {event.decision} and user {event.user!r}, which its kind has not")
    if event.request is not None and event.kind != kinds.DECISION:
        raise InputError("only decisions have the key of a request")


# Decisions


def _decisions(state: TrialState, events: Sequence[Event]) -> None:
    first = events[0]
    allowed.running(state)
    allowed.room(state, len(events))
    if state.episode.number < 1:
        raise ConflictError("no episode is open")
    extra: set[str] = set()  # arms that were made unavailable by whoever asked, for all that was asked for together
    for i, event in enumerate(events):
        if (event.time, event.actor, event.request) != (first.time, first.actor, first.request):
            raise ConflictError("decisions that were taken together have one time, actor and request")
        if event.decision != state.counts.decisions + 1 + i:
            raise ConflictError(f"it is decision {event.decision}, expected {state.counts.decisions + 1 + i}")
        extra |= set(event.body["unavailable"]) - set(state.excluded(str(event.user)))
    taken: set[str] = set()
    for event in events:
        user, body = str(event.user), event.body
        allowed.known_user(state, user)
        profile = state.profile(user)
        if body["profile"] != profile.slot:
            raise ConflictError(f"it is for profile {body['profile']}, and user {user!r} has profile {profile.slot}")
        _place(state, user, body)
        keys = {plot_key(user, body.get("plot"))} | ({user} if state.remembers_users else set())
        if keys & taken:
            raise ConflictError(f"user {user!r} is decided for twice at once")
        taken |= keys
        if body["unavailable"] != state.excluded(user, extra):
            raise ConflictError(f"{body['unavailable']} are unavailable, expected {state.excluded(user, extra)}")
        mask, arm = state.problem.available(profile, body["unavailable"]), state.problem.arm(body["arm"])
        if mask is not None and not mask[arm]:
            raise ConflictError(f"arm {body['arm']!r} is not available to user {user!r}")
        _context(state, body["context"])


def _place(state: TrialState, user: str, body: Mapping[str, Any]) -> None:
    """Where it was decided: a place that has no decision in this episode."""
    plot, own = body.get("plot"), state.profile(user).definition.block_of()
    if plot is None and (own or "block" in body or "plot" in body):
        raise ConflictError(f"user {user!r} has plots, and none is named" if own else "its plot has no name")
    if plot is not None:
        _texts(plot, *(() if body["block"] is None else (body["block"],)))
        allowed.own_block(user, plot, body["block"], own)
    key = plot_key(user, plot)
    if key in state.episode.asked:
        raise ConflictError(f"{key!r} has decision {state.episode.asked[key]} in this episode already")


def _context(state: TrialState, values: Any) -> None:
    problem = state.problem
    if values is None and not problem.fields:
        return
    if not isinstance(values, list) or len(values) != len(problem.fields):
        raise InputError(f"its context is {values!r}, expected {', '.join(problem.fields) or 'none'}")
    again = problem.covariates.context(context_of(state, values))
    if again is None or again.tolist() != values:
        raise InputError(f"its context is {values!r}, which nobody could have given")


# Outcomes


def _about(state: TrialState, event: Event, story: Story | None) -> None:
    body = event.body
    if story is None or story.decision != event.decision or story.event.user != event.user:
        raise ConflictError(f"user {event.user!r} has no decision {event.decision} before it")
    if body.get("was", story.outcome) != story.outcome:
        raise ConflictError(f"it says that {body['was']} was recorded before, and {story.outcome} was")
    if body.get("late", story.given_up) is not story.given_up:
        raise ConflictError("it says otherwise than the log whether the outcome had been marked as missing")
    if event.kind == kinds.MISSING:
        allowed.incomplete(state, story)
        if story.given_up:
            raise ConflictError(f"decision {story.decision} was marked as missing already")
        return
    new = body["outcome"]
    _values(state, new)
    if new == story.outcome:
        raise ConflictError("it adds nothing to what was recorded before")
    if event.kind == kinds.AMENDMENT:
        stays = story.given_up and state.state_of(new, missing=True) == MISSING
        if body.get("missing", True) is not True or ("missing" in body and not stays):
            raise ConflictError("it says that the rest is missing, and nobody had said so")
        allowed.amendable(story)
    else:
        _completed(story, new)


def _completed(story: Story, new: Mapping[str, Any]) -> None:
    old = story.outcome or {"metrics": {}, "control": None}
    for part, field in (("metrics", "outcome"), ("control", "control")):
        before = old[part] or {}
        allowed.agrees(story.decision, before, new[part] or {}, field)
        if not set(before) <= set(new[part] or {}):
            raise ConflictError(f"values of decision {story.decision} were taken back: that is an amendment")
    allowed.some_value(story.decision, new["metrics"], new["control"])


def _values(state: TrialState, outcome: Any) -> None:
    """An outcome as it is recorded: finite numbers of known metrics, in their order."""
    if set(outcome) != {"metrics", "control"} or (outcome["control"] is None) == (state.spec.feedback == "difference"):
        raise InputError(f"{outcome} is no outcome of this trial")
    for part in filter(None, outcome.values()):
        if list(part) != [m for m in state.problem.metrics if m in part]:
            raise InputError(f"its metrics are {', '.join(part)}, expected {', '.join(state.problem.metrics)}")
        for name, value in part.items():
            if not isinstance(value, float):
                raise InputError(f"{name} is {value!r}, expected a number with a point")
            number(name, value)


# Changes


def _episode(state: TrialState, event: Event) -> None:
    body = event.body
    if body["episode"] != allowed.opening(state, body["episode"]):
        raise ConflictError("an episode has a number")
    _texts(*(body[part] for part in ("name", "date") if part in body))
    seasons.check(state, Season(body.get("name"), body.get("date")))
    for user, values in body["contexts"].items():
        allowed.known_user(state, user)
        _context(state, values)
    for user, arms in body["unavailable"].items():
        if user:
            allowed.known_user(state, user)
        if arms != sorted(arms):
            raise InputError(f"arms that are unavailable are sorted, got {arms}")
    allowed.unavailable(state, body["unavailable"])
    state.opening_offers(body["contexts"])


def _user(state: TrialState, event: Event) -> None:
    name, definition = str(event.user), event.body["definition"]
    allowed.new_user(state, name)
    _texts(name)
    if written(_defined(state, name, definition)) != written(definition):
        raise InputError(f"a user is not recorded as {definition}")


def _preference(state: TrialState, event: Event) -> None:
    _redefined(state, event, "preference")


def _control(state: TrialState, event: Event) -> None:
    _redefined(state, event, "control")


def _redefined(state: TrialState, event: Event, field: str) -> None:
    user, value = str(event.user), event.body[field]
    allowed.known_user(state, user)
    known = state.profile(user).definition.model_dump(mode="json", exclude_none=True)
    if value is None or written(_defined(state, user, known | {field: value})[field]) != written(value):
        raise InputError(f"a {field} is not recorded as {value!r}")


def _defined(state: TrialState, name: str, definition: Any) -> dict[str, Any]:
    """A user's definition, as it would be recorded now."""
    user = User.model_validate(definition)
    allowed.sound(allowed.user_faults(state, user, ("users", name)))
    allowed.not_retired(state, state.problem.profile(name, user, 0))
    return user.model_dump(mode="json", exclude_none=True)


def _arm(state: TrialState, event: Event) -> None:
    body = event.body
    _texts(body["arm"])
    arm = Arm.model_validate(body["definition"])
    allowed.new_arm(state, body["arm"], arm)
    again: dict[str, Any] = {"arm": body["arm"], "definition": arm.model_dump(mode="json", exclude_none=True)}
    if "noise" in body:
        own = ArmNoise.model_validate(body["noise"][body["arm"]])
        again["noise"] = {body["arm"]: own.model_dump(mode="json", exclude_none=True)}
    if written(again) != written(body):
        raise InputError(f"an arm is not recorded as {body}")
    with_arm(state.spec, body)


def _retired(state: TrialState, event: Event) -> None:
    arm = event.body["arm"]
    allowed.retirable(state, arm)
    if arm in state.retired:
        raise ConflictError(f"arm {arm!r} is retired already")


def _turned(state: TrialState, event: Event) -> None:
    allowed.turning(state, event.kind)


def _revealed(state: TrialState, event: Event) -> None:
    allowed.openable(state, event.body.get("decision"))


def _snapshot(state: TrialState, event: Event) -> None:
    body = event.body
    if body["after"] != state.seq or not re.fullmatch("[0-9a-f]{64}", body["hash"]):
        raise ConflictError(f"it is of event {body['after']!r}, expected {state.seq}, or its hash is none")


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _texts(*values: object) -> None:
    for value in values:
        if not _is_text(value):
            raise InputError(f"{value!r} is no text, or an empty one")


_TOLD = (kinds.OUTCOME, kinds.AMENDMENT, kinds.MISSING)
_CHANGED: dict[str, Callable[[TrialState, Event], None]] = {
    kinds.EPISODE: _episode,
    kinds.USER: _user,
    kinds.PREFERENCE: _preference,
    kinds.CONTROL: _control,
    kinds.ARM: _arm,
    kinds.RETIRED: _retired,
    kinds.PAUSED: _turned,
    kinds.RESUMED: _turned,
    kinds.STOPPED: _turned,
    kinds.REVEALED: _revealed,
    kinds.LOOK: look,
    kinds.RULES: rules,
    kinds.SNAPSHOT: _snapshot,
}
_WITH_DECISION = (kinds.DECISION, *_TOLD)
_WITH_USER = (*_WITH_DECISION, kinds.USER, kinds.PREFERENCE, kinds.CONTROL)
