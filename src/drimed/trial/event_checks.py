"""Conditions under which an event may follow a state, and values that must be confirmed before they are recorded.

`check_event` is applied to every event when it is recorded, and again when a log is verified; whether a decision is the
one that follows from its state `verify` checks by itself. Unlikely values are questioned only before they are recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from drimed.errors import ConflictError, InputError, SpecError, UnconfirmedError, UnknownNameError
from drimed.records import MISSING, OTHER, Event, Fault, Path
from drimed.trial import events as kinds
from drimed.trial import spec_faults
from drimed.trial.events import BODIES, Decided, EventBody, Told, Values, body_of, to_json
from drimed.trial.look_history import BY_HAND, DECISIONS, SEASON, due, is_fresh, look_hash, planned_look
from drimed.trial.problem import Profile, below_key, keys_of, number, plot_key
from drimed.trial.seasons import Season, check_season
from drimed.trial.spec import LARGEST, Arm, ArmNoise, Attribute, ContextField, Metric, Part, Stopping, User
from drimed.trial.spec_faults import stopping_faults
from drimed.trial.state import FEWEST, RecordedDecision, Spread, TrialState, with_arm

FAR = 10.0  # standard deviations from the mean: no outcome of a sound measurement
HUGE = 1e12  # in whatever unit
ABSURD = 1e6  # ratio of two sizes of one metric
CODES = (-999.0, -9999.0, -99999.0)  # for a missing value, of instruments and databases
# The same where a value is in doubt anyway; alone they may well have been measured.
MAYBE_CODES = (*CODES, -9.0, -99.0, 99.0, 999.0, 9999.0, 99999.0)
FROM = {kinds.PAUSED: ("running",), kinds.RESUMED: ("paused",), kinds.STOPPED: ("running", "paused")}
LOOK_FOR = {SEASON: (kinds.EPISODE,), DECISIONS: (kinds.DECISION, kinds.EPISODE, kinds.LOOK)}  # cause -> next event

P = TypeVar("P", bound=Part)
Pairs = Sequence[tuple[Event, RecordedDecision | None]]  # events, each with the decision that it is about


def check_event(state: TrialState, pairs: Pairs) -> None:
    """Refuse an event, or decisions that were taken together, that cannot follow this state."""
    event, recorded = pairs[0]
    for one, _ in pairs:
        _check_columns(one)
    if state.spec.stopping is not None:
        _check_looks(state, event)
    if event.kind == kinds.DECISION:
        _check_decisions(state, [one for one, _ in pairs])
        return
    body = body_of(event, EventBody)
    if event.kind != kinds.RESUMED and hasattr(body, "reason"):
        need_reason(body.reason)
    match body:
        case Told() | kinds.OutcomeMissing() | kinds.ArmGiven():
            if recorded is None or (recorded.decision, recorded.event.user) != (event.decision, event.user):
                raise ConflictError(f"user {event.user!r} has no decision {event.decision} before it")
            if isinstance(body, kinds.ArmGiven):
                check_given(state, recorded, body)
            else:
                check_outcome(state, recorded, body)
        case kinds.HistoryRead():
            _check_history(state, body)
        case kinds.EpisodeOpened():
            check_episode(state, body)
        case kinds.UserAdded():
            if event.user in state.users:
                raise ConflictError(f"there is a user {event.user!r} already", ("name",))
            _check_definition(state, str(event.user), body.definition)
        case kinds.PreferenceChanged() | kinds.ControlChanged():
            check_known_users(state, [str(event.user)], ("user",))
            definition = state.profile(str(event.user)).definition.model_dump(mode="json", exclude_none=True)
            changed = {event.kind: getattr(body, event.kind)}
            _check_definition(state, str(event.user), definition | changed)
        case kinds.ArmAdded():
            _check_arm(state, body)
        case kinds.ArmRetired(arm=arm):
            state.problem.arm(arm, ("arm",))
            if arm in state.retired:
                raise ConflictError(f"arm {arm!r} is retired already")
            for user in state.users:  # a control cannot be retired
                state.problem.available(state.profile(user), [*state.retired, arm])
        case kinds.StatusChanged():
            if state.status not in FROM[event.kind]:
                raise ConflictError(f"trial {state.spec.name!r} is {state.status}; it cannot be {event.kind}")
        case kinds.Revealed(decision=number):
            if number is None and state.opened:
                raise ConflictError("all decisions are unblinded already")
            if number is not None and not 1 <= number <= state.counts.decisions:
                raise InputError(f"expected a decision from 1 to {state.counts.decisions}, got {number}", ("decision",))
        case kinds.LookTaken():
            _check_look(state, body)
        case kinds.Foreseen(episode=episode):
            if not 0 <= episode <= state.episode.number:
                raise ConflictError(f"it is from season {episode}, expected at most {state.episode.number}")
        case kinds.RulesChanged():
            _check_rules(state, body)
        case kinds.SnapshotTaken(after=after):
            if after != state.seq:
                raise ConflictError(f"the snapshot is of event {after}, expected {state.seq}")


def check_start(created: Event) -> None:
    """Refuse a first event that creates no trial; the trial file is taken as it was read at that time."""
    _check_columns(created)
    body = body_of(created, kinds.Created)
    if body.spec.get("seed") not in (None, body.seed):
        raise InputError(f"the seed is {body.seed}, and the trial file has {body.spec['seed']}")
    kinds.parsed(created)  # also the results of a rehearsal, which came from a caller
    rules = (body.spec.get("stopping") or {}).get("rules", {})
    calibrated = {name for name, rule in rules.items() if rule.get("evidence") == "calibrated"}
    if calibrated != set(body.calibration["thresholds"] if body.calibration else ()):
        raise InputError(
            f"every calibrated rule needs a bound from rehearsals of the trial ({', '.join(calibrated) or 'none is'}): "
            "`drimed trial init FILE` finds it, and drimed.rehearsal.calibration.calibrate in Python",
            ("stopping", "rules"),
        )


def need_reason(reason: str) -> None:
    if not reason.strip():
        raise InputError("a reason is needed: it is kept in the log", ("reason",))


def raise_if_any(faults: Iterable[Fault]) -> None:
    if listed := list(faults):
        raise SpecError(listed)


def _check_columns(event: Event) -> None:
    kind = BODIES.get(event.kind)
    if kind is None or (kind is kinds.Created and event.seq != 1):
        raise ConflictError(f"no event of kind {event.kind!r} can follow here")
    if not event.actor:
        raise InputError(f"actor must be a name, got {event.actor!r}")
    if datetime.fromisoformat(event.time).tzinfo is None:
        raise InputError(f"time needs a UTC offset, as in 2026-05-01T10:00:00+00:00, got {event.time!r}")
    has = event.decision is not None, event.user is not None
    if has != (kind.has_decision, kind.has_user):
        need = " and ".join(n for n, h in (("a decision", kind.has_decision), ("a user", kind.has_user)) if h)
        got = f"decision {event.decision} and user {event.user!r}"
        raise InputError(f"{event.kind!r} events have {need or 'no decision or user'}, got {got}")
    if event.request is not None and event.kind != kinds.DECISION:
        raise InputError("only decisions have an idempotency key")


def _check_looks(state: TrialState, event: Event) -> None:
    """Refuse anything but what a look demands right after it, and decisions before a look that is due."""
    looked = state.looked
    if looked.demands:
        if {"kind": event.kind} | dict(event.body) != looked.demands[0]:
            kind, reason = looked.demands[0]["kind"], looked.demands[0]["reason"]
            raise ConflictError(f"the look before it demands an event of kind {kind!r}: {reason}")
    elif looked.last == state.seq and event.kind not in LOOK_FOR.get(looked.cause, kinds.KINDS):
        raise ConflictError(f"the look before it was taken for {' or '.join(LOOK_FOR[looked.cause])}")
    if event.kind in (kinds.EPISODE, kinds.DECISION):
        cause = due(state, opens=event.kind == kinds.EPISODE)
        together = event.kind == kinds.DECISION and event.time == looked.asked
        if cause is not None and not is_fresh(state, cause) and not together:
            raise ConflictError("a look at the stopping rules was due before it")


def _check_look(state: TrialState, body: kinds.LookTaken) -> None:
    if state.spec.stopping is None:
        raise ConflictError("there are no stopping rules to look at")
    if body.after != state.seq:
        raise ConflictError(f"it looks at event {body.after}, expected {state.seq}")
    if body.cause != BY_HAND:
        if body.cause not in (due(state, opens=True), due(state, opens=False)):
            raise ConflictError(f"no look was due because of {body.cause!r}")
        if state.status != "running":
            raise ConflictError(f"a look before decisions, and the trial is {state.status}")
    if body.planned != planned_look(state, body.cause):
        raise ConflictError(f"it is not the planned look {body.planned}")
    if body.hash != look_hash(body.to_json()):
        raise ConflictError("its hash is not that of its contents")


def _check_rules(state: TrialState, body: kinds.RulesChanged) -> None:
    was, new = state.spec.stopping, _recorded_part(Stopping, body.stopping)
    if to_json(body.was) != to_json(None if was is None else was.plain()):
        raise ConflictError("it has other earlier rules than the log")
    if new == (was or Stopping()):
        raise ConflictError("these are the stopping rules that the trial has", ("stopping",))
    exact = next((name for name, rule in new.rules.items() if rule.evidence == "exact"), None)
    if exact is not None and state.balances:
        text = "exact ranges need decisions that are drawn one by one, and this trial spreads those of a season evenly"
        raise InputError(f'{text}: use evidence = "propensities"', ("stopping", "rules", exact, "evidence"))
    _check_calibrated(was or Stopping(), new)
    spec = state.spec.model_copy(update={"stopping": new})
    raise_if_any(stopping_faults(spec, {name: state.profile(name).definition for name in state.users}))


def _check_calibrated(was: Stopping, new: Stopping) -> None:
    """A rule that was calibrated by rehearsals of the trial is kept as it was, with its looks, or left out."""
    kept = {name: rule for name, rule in new.rules.items() if rule.evidence == "calibrated"}
    for name, rule in kept.items():
        if was.rules.get(name) != rule or was.planned() != new.planned():
            text = "a calibrated rule and its looks are fixed before the first decision"
            fix = 'leave both as they were, or use evidence = "model"'
            raise InputError(f"{text}; {fix}", ("stopping", "rules", name, "evidence"))


def _check_history(state: TrialState, body: kinds.HistoryRead) -> None:
    if state.seq != 1:
        raise ConflictError("a history is read when the trial is created, and not once it has begun")
    covariates, columns = state.problem.covariates, [*body.metrics.values(), *body.contexts.values()]
    lengths = {len(body.unit), len(body.arm), *map(len, columns)}
    if not body.metrics or not body.season or lengths != {len(body.season)}:
        raise InputError("a history has rows, and all of its columns are as long as each other")
    for names, numbers in ((body.seasons, body.season), (body.units, body.unit), (body.arms, body.arm)):
        if set(numbers) != set(range(len(names))):
            raise InputError("seasons, units and arms of a history are those of its rows")
    if not (body.metrics.keys() <= state.spec.metrics.keys() and body.contexts.keys() <= covariates.fields.keys()):
        raise InputError("metrics and contexts of a history are those of the trial")
    for value in (value for column in columns for value in column if value is not None):
        number("history", value)
    for i, unit in enumerate(body.units):
        at: Path = ("units", i, "attributes")
        raise_if_any(f for f in covariates.faults(unit["attributes"], at) if f.path[-1] in unit["attributes"])


def check_running(state: TrialState, action: str = "decides nothing") -> None:
    """Nothing is decided while a trial is paused, or after it was stopped."""
    if state.status != "running":
        fix = "; resume it first" if state.status == "paused" else ""
        why = f": {state.looked.halted}" if state.looked.halted else ""
        raise ConflictError(f"trial {state.spec.name!r} is {state.status} and {action}{fix}{why}")


def check_room(state: TrialState, more: int) -> None:
    """A trial has at most as many decisions as its file allows."""
    most, n = (state.spec.stopping or Stopping()).decisions, state.counts.decisions
    if most is not None and n + more > most:
        text = f"trial {state.spec.name!r} may have {most} decisions and has {n}: {most - n} are left"
        raise ConflictError(f"{text}, and {more} were asked for; ask for fewer users", ("users",))


def check_block(user: str, plot: str, block: str | None, own: Mapping[str, str | None]) -> None:
    if plot in own and own[plot] != block:
        text = f"plot {plot!r} of user {user!r} is in block {own[plot]!r}, not in {block!r}"
        raise ConflictError(text, ("plots", user, plot))


def check_known_users(state: TrialState, users: Iterable[str], at: Path, *, by_name: bool = True) -> None:
    """Refuse unknown users; their place is below `at`, by name or by position."""
    for i, user in enumerate(users):
        if user not in state.users:
            raise UnknownNameError("user", user, state.users, (*at, user if by_name else i))


def _check_decisions(state: TrialState, events: Sequence[Event]) -> None:
    bodies = [body_of(event, Decided) for event in events]
    check_running(state)
    if state.spec.stopping is not None:
        check_room(state, len(events))
    if state.episode.number < 1:
        raise ConflictError("no episode is open")
    # Arms that were unavailable for all users of the request; with such arms it was alone.
    pairs = list(zip(events, bodies, strict=True))
    extra = {arm for e, b in pairs for arm in b.unavailable if arm not in state.excluded(str(e.user))}
    if extra and len({(event.actor, event.request) for event in events}) > 1:
        raise ConflictError("decisions without some of the arms were taken together with those of another request")
    taken: set[str] = set()
    for n, (event, body) in enumerate(pairs, state.counts.decisions + 1):
        user = str(event.user)
        if event.time != events[0].time:
            raise ConflictError("decisions that were taken together have one time")
        if event.decision != n:
            raise ConflictError(f"it is decision {event.decision}, expected {n}")
        check_known_users(state, [user], ("user",))
        profile = state.profile(user)
        if body.profile != profile.slot:
            raise ConflictError(f"it is for profile {body.profile}, and user {user!r} has profile {profile.slot}")
        own = profile.definition.block_of()
        if body.plot is None and (own or body.block is not None):
            raise ConflictError(f"user {user!r} has plots, and none is named" if own else "a block without a plot")
        if body.plot is not None:
            check_block(user, body.plot, body.block, own)
        key = plot_key(user, body.plot)
        if key in state.episode.asked:
            raise ConflictError(f"{key!r} has decision {state.episode.asked[key]} in this episode already")
        keys = {key, user} if state.problem.remembers_users(state.policy) else {key}
        if keys & taken:
            raise ConflictError(f"user {user!r} is decided for twice at once")
        taken |= keys
        if body.unavailable != (expected := state.excluded(user, extra)):
            raise ConflictError(f"{body.unavailable} are unavailable, expected {expected}")
        mask, arm = state.possible(profile, body.unavailable), state.problem.arm(body.arm)
        if mask is not None and not mask[arm]:
            raise ConflictError(f"arm {body.arm!r} is not available to user {user!r}")
        _check_context(state, body.context)
        if body.held_out != state.held_out(profile):
            raise ConflictError(f"user {user!r} is held out by {state.held_out(profile)}, and it says {body.held_out}")
        if not body.drawn:
            _check_undrawn(state, profile, body)


def _check_undrawn(state: TrialState, profile: Profile, body: Decided) -> None:
    """Without a draw only a control is given, and nothing says that it had a chance."""
    arms = state.problem.arms
    if not profile.control[state.problem.arm(body.arm, ("arm",))] > 0:
        control = " or ".join(arm for arm, share in zip(arms, profile.control, strict=False) if share)
        text = f"{body.arm!r} is not the control of user {profile.user!r}, and only that may be given without a draw"
        raise InputError(f"{text}: {control}", ("arm",))
    nothing: dict[str, Any] = dict.fromkeys(("propensity", "share", "certified", "estimate", "half", "floor"))
    if body != replace(body, probabilities=[float(one == body.arm) for one in arms], **nothing):
        raise ConflictError("a decision without a draw has a chance or an estimate")


def _check_context(state: TrialState, values: list[float] | None) -> None:
    fields = state.problem.covariates.fields
    if (values is None) != (not fields) or len(values or ()) != len(fields):
        raise InputError(f"its context is {values!r}, expected {', '.join(fields) or 'none'}")
    for field, value in zip(fields.values(), values or (), strict=True):
        if not (abs(value) <= LARGEST if field.levels is None else value in range(len(field.levels))):
            raise InputError(f"its context is {values!r}, which no request could have had")


def check_episode(state: TrialState, body: kinds.EpisodeOpened) -> None:
    """The next episode, with contexts of known users and arms that can be unavailable."""
    following = state.episode.number + 1
    check_running(state, "no episode can be opened")
    if body.episode != following:
        raise ConflictError(f"episode {body.episode} cannot be opened: the next one is {following}", ("number",))
    check_season(state, Season(body.name, body.date))
    check_known_users(state, body.contexts, ("contexts",))
    for values in body.contexts.values():
        _check_context(state, values)
    check_known_users(state, filter(None, body.unavailable), ("unavailable",))
    for user, arms in body.unavailable.items():
        if arms != sorted(arms):
            raise InputError(f"unavailable arms are sorted, got {arms}")
        for arm in arms:
            state.problem.arm(arm, ("unavailable", user))
        for name in [user] if user else state.users:
            state.problem.available(state.profile(name), [*state.retired, *arms])
    state.opening_offers(body.contexts)


def check_outcome(state: TrialState, recorded: RecordedDecision, body: Told | kinds.OutcomeMissing) -> None:
    """An outcome, an amendment or a missing outcome fits what is recorded of its decision."""
    number = recorded.decision
    if body.was != recorded.outcome:
        raise ConflictError(f"it has {body.was} as the earlier outcome, and {recorded.outcome} was recorded")
    if isinstance(body, kinds.OutcomeMissing):
        if state.state_of(recorded, recorded.outcome, missing=True) != MISSING:
            text = f"decision {number} has its whole outcome; nothing of it is missing"
            raise ConflictError(f"{text}; if that is not its own, amend it with empty values first")
        if recorded.marked_missing:
            raise ConflictError(f"decision {number} was marked as missing already")
        return
    _check_values(state, body.outcome)
    if body.outcome == recorded.outcome:
        raise ConflictError("it adds nothing to what was recorded before")
    if isinstance(body, kinds.OutcomeAmended):
        if recorded.outcome is None:
            raise ConflictError(f"decision {number} has no outcome to amend; tell it first")
        if body.missing and not (
            recorded.marked_missing and state.state_of(recorded, body.outcome, missing=True) == MISSING
        ):
            raise ConflictError("the rest of the outcome had not been marked as missing")
        return
    if not any(body.outcome.values()):
        raise InputError(f"decision {number}: an outcome needs at least one value; or mark it missing", ("outcome",))
    for part, field in (("metrics", "outcome"), ("control", "control")):
        old, new = (recorded.outcome or {}).get(part) or {}, body.outcome[part] or {}
        for name, value in old.items():
            if name not in new:
                raise ConflictError(f"values of decision {number} were taken back: that is an amendment")
            if new[name] != value:
                text = f"decision {number} already has {name} = {value!r}, and {new[name]!r} is another value"
                remedy = f"if the first was wrong, amend it with `drimed trial amend ... --decision {number}`"
                raise ConflictError(f"{text}; {remedy}", (field, name))


def check_given(state: TrialState, recorded: RecordedDecision, body: kinds.ArmGiven) -> None:
    """The given arm is one of the trial or OTHER, and is not what is recorded."""
    if body.was != recorded.given:
        raise ConflictError(f"it has {body.was} as the arm given before, and {recorded.given} was recorded")
    if body.given != OTHER:
        state.problem.arm(body.given, ("given",))
    if is_known_given(recorded, body.given, body.package):
        raise ConflictError(f"that {body.given} was given is known already")


def is_known_given(recorded: RecordedDecision, given: str, package: str | None) -> bool:
    """Whether just that is recorded; as long as nothing is, the arm that was drawn counts as given."""
    drawn = recorded.body.arm if package is None else None
    return (given, package) == (recorded.given or drawn, recorded.package)


def _check_values(state: TrialState, outcome: Values) -> None:
    """An outcome as it is recorded: finite numbers of known metrics, in their order."""
    plots = state.spec.feedback == "difference"
    if set(outcome) != {"metrics", "control"} or (outcome["control"] is None) == plots:
        raise InputError(f"{outcome} is no outcome of this trial")
    for part in filter(None, outcome.values()):
        known = keys_of(state.problem.metrics)
        if list(part) != [n for n in known if n in part]:
            raise InputError(f"its metrics are {', '.join(part)}, expected {', '.join(state.problem.metrics)}")
        for name, value in part.items():
            number(name, value)
            if below_key(name) in part:
                text = f"{name} has the value {value:.12g} and lies below {part[below_key(name)]:.12g} at once"
                raise ConflictError(f"{text}; if the first was wrong, amend it")


def user_faults(state: TrialState, user: User, at: Path) -> Iterator[Fault]:
    yield from spec_faults.user_faults(state.spec, user, at)
    yield from spec_faults.control_plot_faults(state.spec, state.policy, user, at)
    yield from state.problem.covariates.faults(user.attributes or {}, (*at, "attributes"))


def _check_definition(state: TrialState, name: str, definition: dict[str, Any]) -> None:
    if not name:
        raise InputError("a user needs a name")
    user = _recorded_part(User, definition)
    raise_if_any(user_faults(state, user, ("users", name)))
    profile = state.problem.profile(name, user, 0)
    for arm in state.retired:
        if profile.control[state.problem.arm(arm)] > 0:
            raise ConflictError(f"arm {arm!r} is retired and cannot be a control; choose another one", ("control",))


def _recorded_part(kind: type[P], data: dict[str, Any]) -> P:
    """A part of the trial from the log, if it is what would have been recorded of it."""
    part = kind.model_validate(data)
    again = part.model_dump(mode="json", exclude_none=True, exclude_defaults=kind is Stopping)
    if {key: to_json(value) for key, value in again.items()} != {key: to_json(value) for key, value in data.items()}:
        raise InputError(f"{kind.__name__} is not recorded as {data}")
    return part


def _check_arm(state: TrialState, body: kinds.ArmAdded) -> None:
    if body.arm in state.spec.arms:
        raise ConflictError(f"there is an arm {body.arm!r} already; a changed arm needs a new name", ("name",))
    if body.arm == OTHER:
        raise ConflictError(f"{OTHER!r} stands for what is no arm of the trial; choose another name", ("name",))
    arm = _recorded_part(Arm, body.definition)
    if body.noise is not None:
        if list(body.noise) != [body.arm]:
            raise InputError(f"expected the noise of arm {body.arm!r}, got {body.noise}")
        _recorded_part(ArmNoise, body.noise[body.arm])
    raise_if_any(spec_faults.arm_faults(state.spec, body.arm, arm))
    raise_if_any(spec_faults.floor_faults(state.spec, len(state.problem.arms) + 1))
    raise_if_any(spec_faults.cross_faults(with_arm(state.spec, body)))


def require_confirmation(doubts: Iterable[Fault], *, confirm: bool) -> None:
    """Raise UnconfirmedError with all doubts, unless the caller confirms them."""
    if not confirm and (listed := list(doubts)):
        raise UnconfirmedError(listed)


def unlikely_contexts(state: TrialState, contexts: Mapping[str, Mapping[str, Any]], *, new: bool) -> Iterator[Fault]:
    """Doubts about valid contexts; `new`: of an episode that begins, so that the open one's do not count."""
    fields = list(state.problem.fields)
    for user, values in contexts.items():
        known = None if new else state.episode.contexts.get(user)
        for name, value in values.items():
            if known is None or known[fields.index(name)] != value:
                yield from _unlikely_value(user, name, value, state.spec.context[name], ("contexts", user, name))


def unlikely_attributes(state: TrialState, user: str, values: Mapping[str, Any] | None, at: Path) -> Iterator[Fault]:
    for name, value in (values or {}).items():
        declared = state.spec.attributes.get(name, Attribute())
        yield from _unlikely_value(user, name, value, declared, (*at, "attributes", name))


def _unlikely_value(user: str, name: str, value: Any, declared: Attribute | ContextField, at: Path) -> Iterator[Fault]:
    if isinstance(value, int | float) and (reason := why_unlikely_covariate(declared, value)) is not None:
        yield Fault(at, f"user {user!r}: {name} {value:g} {reason}", severity="unlikely")


def why_unlikely_covariate(declared: Attribute | ContextField, value: float) -> str | None:
    """Why a number is unlikely, by its typical value and spread in the file."""
    reason, typical, spread = _unlikely_anywhere(value), declared.typical, declared.spread
    if typical is not None and spread is not None and declared.model_fields_set & {"typical", "spread"}:
        far = f"is far from {typical:g}, which is typical by the trial file, with a spread of {spread:g}"
        reason = far if abs(value - typical) > FAR * spread else None
    return None if reason is None else reason + _hint(value)


def why_unlikely_outcome(metric: Metric, spread: Spread, value: float, scale: float = 0.0) -> str | None:
    """Why a value of a metric is unlikely: by the range in the file, the values recorded so far, or its `scale`."""
    so_far = abs(spread.mean) + spread.deviation
    reason = _unlikely_anywhere(value)
    if metric.range is not None:
        low, high = metric.range
        reason = None if low <= value <= high else f"is outside {low:g} to {high:g}, the range in the trial file"
    elif reason is None and spread.is_far(value, FAR):
        reason = f"is far from the {spread.n} values recorded so far, which are around {spread.mean:.4g}"
    elif reason is None and not spread.n and 0 < ABSURD * scale < abs(value):
        reason = f"is more than a million times the {scale:.4g} that matter by the trial file, its tolerance or spread"
    elif reason is None and spread.n < FEWEST and value and so_far and not 1 / ABSURD < abs(value) / so_far < ABSURD:
        reason = f"is of another size, a million times, than what was recorded so far, around {spread.mean:.4g}"
    return None if reason is None else reason + _hint(value)


def _unlikely_anywhere(value: float) -> str | None:
    if value in CODES:
        return "is a common code for a missing value"
    return "is very large" if abs(value) >= HUGE else None


def _hint(value: float) -> str:
    return "; leave it empty if it stands for a missing value" if value in MAYBE_CODES else ""
