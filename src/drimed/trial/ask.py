"""Decide which arm users get: a decision is taken once, and returned again when it is asked for again."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from drimed import streams
from drimed.errors import (
    BatchError,
    ConflictError,
    InputError,
    NumericalError,
    SpecError,
    UnknownNameError,
    few_hints,
)
from drimed.models.offer import Floor, Offer
from drimed.numerics.arrays import SUM_TOLERANCE, UNCOMPUTED, computing
from drimed.numerics.probability import sample
from drimed.policies.guards.base import FAILED, REASONS, UNCHANGED, Draw
from drimed.policies.protocol import Effects
from drimed.records import LONGEST_KEY, PENDING, AskRequest, Context, Decision, Event, Fault, Path, Plots
from drimed.trial import event_checks, queries, seasons
from drimed.trial import events as kinds
from drimed.trial.events import Decided, Draft, EpisodeOpened, UserAdded, body_of, chain, storable
from drimed.trial.problem import alike, block_key, plot_key, shown
from drimed.trial.spec import User, first_twice, tidy
from drimed.trial.spec_faults import name_faults, pydantic_faults
from drimed.trial.state import Question, RecordedDecision, TrialState, recorded_decisions
from drimed.trial.stopping import look_before_deciding
from drimed.trial.transaction import Transaction

NUMBERS_AT_ONCE = 4_000_000  # of tables of arms by arms, some twenty of which are held for each user: below a gigabyte
DIGITS = 7  # of estimates as they are recorded; probabilities are recorded in full
CHANGED_BY = {"preference": "prefer", "control": "control"}  # field of a user -> command that changes it

log = logging.getLogger(__name__)
Definition = User | Mapping[str, Any]
T = TypeVar("T")
Decide = Callable[[TrialState, Sequence[Question], int | None], list[Decided]]


@dataclass(frozen=True)
class Place:
    """A user or, where it has plots, one of them."""

    user: str
    plot: str | None = None
    block: str | None = None

    @property
    def key(self) -> str:
        """Its name in the whole trial."""
        return plot_key(self.user, self.plot)


@dataclass(frozen=True)
class Asked:
    """A request that was found right: what it still needs is a decision for each of its questions."""

    wanted: list[str]  # places
    decisions: dict[str, Decision]  # that stand already, by place
    questions: list[Question]
    actor: str
    key: str | None


def ask(tx: Transaction, request: AskRequest, *, one: bool = False, doubts: Sequence[Fault] = ()) -> list[Decision]:
    """Decide for some users or all; a user who has a decision in this episode keeps it."""
    return take(tx, [prepare(tx, request, one=one, doubts=doubts)])[0]


@few_hints()
def prepare(tx: Transaction, request: AskRequest, *, one: bool = False, doubts: Sequence[Fault] = ()) -> Asked:
    """Check a request, and do all of it but the decisions.

    A user with plots gets a decision for each of them, or for those that `plots` names. With open enrolment a new user
    joins, as `enrol` describes it. The next episode is opened with these contexts if it is asked for. `one`: the only
    user has no plots, or one of them is named. `doubts` about the request must be confirmed too.
    """
    start = tx.state
    contexts, plots = by_user(start, request.contexts), by_user(start, request.plots)
    enrol = by_user(start, request.enrol)
    users = None if request.users is None else [resolve_user(start, u) for u in request.users]
    if request.key is not None:
        storable("key", request.key, LONGEST_KEY)
        if before := _answered(tx, request.key, users, plots, contexts):
            return Asked(list(before), before, [], tx.actor, request.key)
    event_checks.check_running(start)
    if start.spec.stopping is not None and not start.users.keys() >= {*(enrol if users is None else users)}:
        look_before_deciding(tx, opens=False)  # if it ends the trial, nobody has joined in vain
    joined = _enrol(tx, list(enrol) if users is None else users, enrol) if enrol or start.spec.enrols else {}
    for table, at in ((users or (), "users"), (contexts, "contexts"), (plots, "plots")):
        event_checks.check_known_users(tx.state, table, (at,), by_name=at != "users")
    _enter_episode(tx, request, contexts)

    state = tx.state
    names = list(state.users) if users is None else users
    if not names:
        raise InputError("there are no users to decide for: add users first", ("users",))
    if len(set(names)) < len(names):
        raise InputError(f"user {first_twice(names)!r} is asked for twice in one call", ("users",))
    wanted = [place for user in names for place in places(state, user, plots.get(user))]
    if one and len(wanted) > 1:
        fix = f"ask_many({names}) decides for all, `plot` names one"
        raise InputError(f"user {names[0]!r} has {len(wanted)} plots: {fix}", ("plots",))
    decisions: dict[str, Decision] = {}
    if standing := [state.episode.asked[p.key] for p in wanted if p.key in state.episode.asked]:
        decisions = _repeated(tx, standing)
        _check_same_contexts(state, decisions.values(), contexts)

    new = [place for place in wanted if place.key not in decisions]
    if request.unavailable:
        check_arms(state, request.unavailable, ("unavailable",))
    questions = [_question(state, p, contexts.get(p.user), request.unavailable) for p in new]
    opened = state.episode.number != start.episode.number
    stated = contexts if opened else {p.user: contexts[p.user] for p in new if p.user in contexts}
    attributes = ((name, user.attributes, ("enrol", name)) for name, user in joined.items())
    doubts = [*doubts, *(doubt for one in attributes for doubt in event_checks.unlikely_attributes(start, *one))]
    doubts += event_checks.unlikely_contexts(start, stated, new=opened) if stated else ()
    doubts += _undeclared_plots(start, new) if plots else ()
    event_checks.require_confirmation(doubts, confirm=request.confirm)
    return Asked([place.key for place in wanted], decisions, questions, tx.actor, request.key)


def give_control(tx: Transaction, request: AskRequest, arm: str, reason: str) -> Decision:
    """Record that one user got a control without a draw, since the caller could not wait for the answer to a request.

    If the answer was there after all, it came too late: that decision is marked as missing. No estimate from
    propensities uses the decision that is recorded instead; the model learns from its outcome as from any other.
    """
    event_checks.need_reason(reason)
    earlier = [] if request.key is None else [e for e in tx.ledger.of_request(request.key) if e.kind == kinds.DECISION]
    for late in recorded_decisions(tx.ledger, tx.state, [int(e.decision or 0) for e in earlier]):
        if not late.body.drawn:
            return queries.record(tx.state, late, repeated=True)
        if late.state == PENDING:
            missing = kinds.OutcomeMissing(f"its answer came too late: {reason}", None)
            tx.append([Draft(missing, late.decision, late.event.user)], {late.decision: late})
    asked = prepare(tx, replace(request, key=None) if earlier else request, one=True)
    if not asked.questions:
        (standing,) = asked.decisions.values()
        fix = f"tell what was given with the outcome of decision {standing.id}"
        raise ConflictError(f"user {standing.user!r} has a decision in this season already: {fix}", ("user",))

    def given(state: TrialState, questions: Sequence[Question], _: int | None) -> list[Decided]:
        action = np.full(len(questions), state.problem.arm(arm, ("arm",)))
        p = (action[:, None] == np.arange(state.problem.shape.K)).astype(np.float64)
        draw = Draw(action, p, np.full(len(questions), UNCHANGED), exact=False)
        return [replace(one, reason=reason, drawn=False) for one in _bodies(state, questions, draw, None, None)]

    return take(tx, [asked], given)[0][0]


def preview(tx: Transaction) -> list[Decision]:
    """Probabilities of each arm now, for every user and plot, in its context of this episode or a typical one.

    For a dry run: no arm is drawn.
    """
    state = tx.state
    event_checks.check_running(state)
    contexts, typical = state.episode.contexts, state.problem.covariates.typical
    context_of = {u: contexts.get(u, None if typical is None else typical.tolist()) for u in state.users}
    everywhere = [place for user in state.users for place in places(state, user)]
    questions = [
        Question(state.users[p.user], context_of[p.user], state.excluded(p.user), p.plot, p.block) for p in everywhere
    ]
    drafts = _drafts(state, questions, secrets.randbits(62))
    events = chain(drafts, seq=state.seq, hash=state.hash, time=tx.time, actor=tx.actor)
    return [_undrawn(queries.record(state, RecordedDecision(event))) for event in events]


def open_episode(
    tx: Transaction,
    contexts: Mapping[str, Context] | None = None,
    number: int | None = None,
    unavailable: Mapping[str, Sequence[str]] | None = None,
    *,
    name: str | None = None,
    date: str | None = None,
    confirm: bool = False,
) -> int:
    """Open the next episode; opening the open one again, by its number or its name, does nothing."""
    state, contexts = tx.state, by_user(tx.state, contexts or {})
    current, number = state.episode.number, seasons.resolve_episode(state, name, number)
    if number is not None and number == current:
        return current
    if number not in (None, current + 1):
        raise ConflictError(f"episode {number} cannot be opened: the next one is {current + 1}", ("number",))
    _open(tx, contexts, unavailable or {}, name, date)
    event_checks.require_confirmation(event_checks.unlikely_contexts(state, contexts, new=True), confirm=confirm)
    return current + 1


# Names


def resolve_user(state: TrialState, user: str) -> str:
    """The user of this name: a known name to the letter, or else the tidy form of the name."""
    return user if user in state.users else tidy(user)


def by_user(state: TrialState, table: Mapping[str, T]) -> dict[str, T]:
    """A table by user, under the names that the trial knows."""
    resolved: dict[str, T] = {}
    for user, value in table.items():
        name = resolve_user(state, user)
        if name in resolved:
            raise InputError(f"user {name!r} comes twice, once as {user!r}", ("users",))
        resolved[name] = value
    return resolved


def places(state: TrialState, user: str, wanted: Plots | None = None) -> list[Place]:
    """Places of a user: the plots that are asked for, all of its own, or the user itself."""
    own = state.profile(user).definition.block_of()
    if wanted is None:
        return [Place(user, plot, block) for plot, block in own.items()] or [Place(user)]
    at: Path = ("plots", user)
    blocks = wanted.items() if isinstance(wanted, Mapping) else [(None, wanted)]
    chosen: list[Place] = []
    for block, plots in blocks:
        if isinstance(plots, str) or not all(isinstance(plot, str) for plot in plots):
            raise InputError(f"plots must be a list of names, or a table of blocks and their plots, got {plots!r}", at)
        for named in plots:
            plot = named if named in own else _valid_name(named, (*at, named))
            inside = own.get(plot) if block is None else _valid_name(block, at)
            event_checks.check_block(user, plot, inside, own)
            if own and plot not in own and (inside is None or inside in own.values()):
                unknown = UnknownNameError("plot", plot, own)
                raise ConflictError(f"user {user!r}: {unknown}; new plots need a new block", (*at, plot))
            chosen.append(Place(user, plot, inside))
    if not chosen:
        raise InputError(f"no plots of user {user!r} are named; leave the user out, or name some", at)
    if (twice := first_twice([str(place.plot) for place in chosen])) is not None:
        raise InputError(f"plot {twice!r} of user {user!r} is asked for twice in one call", (*at, twice))
    return chosen


def _valid_name(name: str, at: Path) -> str:
    name = tidy(name)
    for fault in name_faults(name, at):
        raise InputError(fault.message, at)
    return name


def _undeclared_plots(state: TrialState, places: Sequence[Place]) -> Iterator[Fault]:
    """Doubts about plots that a user does not have, in a block that it does not have either."""
    for place in places:
        own = state.profile(place.user).definition.block_of() if place.user in state.users else {}
        if own and place.plot not in own and block_key(place.user, str(place.block)) not in state.numbers.blocks:
            yield Fault(
                ("plots", place.user, str(place.plot)),
                f"user {place.user!r}: {UnknownNameError('plot', str(place.plot), own)}; it becomes a new plot of a "
                f"new block {place.block!r} if that is right",
                severity="unlikely",
            )


# Enrolment


def add_user(tx: Transaction, name: str, user: Definition, *, confirm: bool = False) -> None:
    """Add a user; unlikely attributes are refused with UnconfirmedError unless `confirm` is set."""
    state, name = tx.state, tidy(name)
    at = ("users", name)
    definition: User = valid(User, user, at)
    if name in state.users:
        raise ConflictError(f"there is a user {name!r} already", ("name",))
    event_checks.raise_if_any(_user_faults(state, name, definition, at))
    event_checks.require_confirmation(
        event_checks.unlikely_attributes(state, name, definition.attributes, at), confirm=confirm
    )
    _add(tx, {name: definition})


def valid(kind: Any, value: Any, at: Path) -> Any:
    """A part of a trial; SpecError says which fields are wrong."""
    if isinstance(value, kind):
        return value
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise SpecError([Fault((*at, *f.path), f.message) for f in pydantic_faults(error, kind)]) from None


def _enrol(tx: Transaction, users: Sequence[str], definitions: Mapping[str, Definition]) -> dict[str, User]:
    """Record new users, all or none, and return them; with closed enrolment there are none."""
    state = tx.state
    for name in definitions:
        if name not in users:
            raise InputError(f"user {name!r} is described but not asked for", ("enrol", name))
    faults: list[Fault] = []
    new: dict[str, User] = {}
    for name in users:
        if name in state.users and name not in definitions:
            continue
        at: Path = ("enrol", name)
        try:
            user = valid(User, definitions.get(name, {}), at)
        except SpecError as error:
            faults += error.faults
            continue
        if name in state.users:
            _check_same_user(state, name, user, at)
        elif state.spec.enrols:
            new[name] = user
    faults += [f for name, user in new.items() for f in _user_faults(state, name, user, ("enrol", name))]
    event_checks.raise_if_any(faults)
    _add(tx, new)
    return new


def _user_faults(state: TrialState, name: str, user: User, at: Path) -> Iterator[Fault]:
    yield from name_faults(name, ("name",) if at[0] == "users" else at)
    yield from event_checks.user_faults(state, user, at)


def _add(tx: Transaction, users: Mapping[str, User]) -> None:
    definitions = ((name, user.model_dump(mode="json", exclude_none=True)) for name, user in users.items())
    tx.append([Draft(UserAdded(definition), user=name) for name, definition in definitions])


def _check_same_user(state: TrialState, name: str, user: User, at: Path) -> None:
    """A known user may be described again, but not differently."""
    known, spec = state.profile(name).definition, state.spec
    for attribute, value in (user.attributes or {}).items():
        if (before := (known.attributes or {}).get(attribute)) != value:
            raise ConflictError(
                f"user {name!r} joined with {attribute} = {before!r}, and {value!r} is another value; what changes "
                "from decision to decision belongs into the context",
                (*at, "attributes", attribute),
            )
    resolved = spec.resolved(known)
    for field, was in {"cohort": known.cohort, **dict(resolved)}.items():
        new = getattr(user, field)
        if new is not None and new != (tidy(was) if isinstance(was, str) else was):
            fix = f"; change it with `drimed trial {CHANGED_BY[field]}`" if field in CHANGED_BY else ""
            raise ConflictError(f"user {name!r} has {field} {was!r}, not {new!r}{fix}", (*at, field))
    for field in ("plots", "blocks"):
        if getattr(user, field) is not None and user.block_of() != known.block_of():
            raise ConflictError(f"user {name!r} has other plots: {', '.join(known.block_of()) or 'none'}", (*at, field))


# Repeated requests


def _answered(
    tx: Transaction, key: str, users: Sequence[str] | None, plots: Mapping[str, Plots], contexts: Mapping[str, Any]
) -> dict[str, Decision]:
    """The first answer to this request, by place: its own decisions, and those that stood in its episode."""
    own = {_key(e): e for e in tx.ledger.of_request(key) if e.kind == kinds.DECISION}
    if not own:
        return {}
    state, standing = tx.state, dict[str, Event]()
    if state.spec.decisions == "one per episode":
        before = min(e.seq for e in own.values()) - 1
        for event in tx.ledger.events(until=before, kinds=(kinds.EPISODE, kinds.DECISION), newest_first=True):
            if event.kind == kinds.EPISODE:
                break
            standing[_key(event)] = event
    whole = standing | own
    names = [u for u in (state.users if users is None else users) if u in state.users]
    keys = [place.key for user in names for place in places(state, user, plots.get(user))]
    keys = [k for k in keys if k in whole] if users is None else keys
    if not set(own) <= set(keys) <= set(whole) or len(names) < len(users or ()):
        raise ConflictError(
            f"request {key!r} was made before, for other users; give each request its own key", ("key",)
        )
    decisions = _repeated(tx, [int(whole[k].decision or 0) for k in keys])
    _check_same_contexts(state, decisions.values(), contexts)
    return {k: decisions[k] for k in keys}


def _key(event: Event) -> str:
    return plot_key(str(event.user), body_of(event, Decided).plot)


def _repeated(tx: Transaction, numbers: Iterable[int]) -> dict[str, Decision]:
    """Earlier decisions by their place."""
    recorded = recorded_decisions(tx.ledger, tx.state, numbers)
    taken = (queries.record(tx.state, one, repeated=True) for one in recorded)
    return {plot_key(d.user, d.plot): d for d in taken}


def _check_same_contexts(state: TrialState, taken: Iterable[Decision], contexts: Mapping[str, Any]) -> None:
    """A context that comes again with its decision is the recorded one: it cannot be corrected afterwards."""
    faults: dict[Path, Fault] = {}  # of the first plot that differs
    for decision in taken:
        stated, recorded, at = contexts.get(decision.user), decision.context or {}, ("contexts", decision.user)
        if stated is None:
            continue
        vector = state.problem.covariates.context({**recorded, **stated} if isinstance(stated, Mapping) else stated, at)
        for name, value in ({} if vector is None else state.context_of(vector.tolist())).items():
            if not alike(recorded[name], value):
                was, where = shown(recorded[name]), "" if decision.plot is None else f", plot {decision.plot!r}"
                message = (
                    f"decision {decision.id} for user {decision.user!r}{where} was taken with {name} {was}, "
                    f"and {shown(value)} came now; a context cannot be changed after the decision: "
                    f"give {was} again, or none"
                )
                faults.setdefault((*at, name), Fault((*at, name), message))
    if len(faults) > 1:
        raise BatchError(faults.values())
    for fault in faults.values():
        raise ConflictError(fault.message, fault.path)


# Episodes


def _enter_episode(tx: Transaction, request: AskRequest, contexts: Mapping[str, Context]) -> None:
    """Open the episode that is asked for, if it is the next one; the first one is opened by the first question."""
    current, date = tx.state.episode.number, request.date
    episode = seasons.resolve_episode(tx.state, request.season, request.episode)
    if episode is None and current:
        return
    if episode is not None and (isinstance(episode, bool) or not isinstance(episode, int | np.integer)):
        raise InputError(f"an episode is known by its number, got {episode!r}; a season has a name", ("episode",))
    if episode is not None and not max(1, current) <= episode <= current + 1:
        known = f"episode {current} is open" if current else "no episode is open"
        raise ConflictError(
            f"decisions for episode {episode} cannot be taken now: {known}, and {current + 1} is the next", ("episode",)
        )
    if episode == current:
        seasons.check_same_date(tx.state, current, date)
    else:
        _open(tx, contexts if episode is not None else {}, {}, request.season, date)


def _open(
    tx: Transaction,
    contexts: Mapping[str, Context],
    unavailable: Mapping[str, Sequence[str]],
    name: str | None,
    date: str | None,
) -> None:
    """Record the next episode, after the look that is due before it."""
    state, season = tx.state, seasons.new_season(tx.state, name, date)
    event_checks.check_known_users(state, contexts, ("contexts",))
    vectors = {u: state.problem.covariates.context(values, ("contexts", u)) for u, values in contexts.items()}
    body = EpisodeOpened(
        state.episode.number + 1,
        {user: vector.tolist() for user, vector in vectors.items() if vector is not None},
        {user: check_arms(state, arms, ("unavailable", user)) for user, arms in unavailable.items()},
        season.name,
        season.date,
    )
    event_checks.check_episode(state, body)  # before the look, which would be in vain
    if state.spec.stopping is not None:
        look_before_deciding(tx, opens=True)
    tx.append([Draft(body)])


def check_arms(state: TrialState, arms: Sequence[str], at: Path) -> list[str]:
    """Unavailable arms, in order."""
    if isinstance(arms, str):
        raise InputError(f"unavailable must be a list of arms, got the text {arms!r}; write [{arms!r}]", at[:1])
    for arm in arms:
        state.problem.arm(arm, at)
    return sorted(arms)


def _question(state: TrialState, place: Place, stated: Context | None, unavailable: Sequence[str]) -> Question:
    user, problem = place.user, state.problem
    context = state.episode.contexts.get(user)
    if stated is not None:
        vector = problem.covariates.context(stated, ("contexts", user))
        context = None if vector is None else vector.tolist()
    elif problem.fields and context is None:
        season = seasons.calendar(state).said(state.episode.number)
        raise InputError(
            f"user {user!r} has no context in {season}; expected {', '.join(problem.fields)}: "
            "give it with the request, in a sheet, or when the season is opened",
            ("contexts", user),
        )
    return Question(state.users[user], context, state.excluded(user, unavailable), place.plot, place.block)


# Decisions


def take(tx: Transaction, asked: Sequence[Asked], by: Decide | None = None) -> list[list[Decision]]:
    """Decide and record what requests still need, all from one state; no place may be wanted twice.

    A guard that keeps accounts of users takes one plot of each at a time. A dry run draws with an unknown seed and
    shows no arm: nothing that it shows depends on what will be drawn.
    """
    taken = {place: decision for one in asked for place, decision in one.decisions.items()}
    seed = secrets.randbits(62) if tx.dry_run else None
    left = [(question, one) for one in asked for question in one.questions]
    if left and tx.state.spec.stopping is not None:
        look_before_deciding(tx, opens=False)
        event_checks.check_room(tx.state, len(left))
    while left:
        now = left
        if tx.state.problem.remembers_users(tx.state.policy):
            now = list({q.profile: (q, one) for q, one in reversed(left)}.values())[::-1]  # the first one of each user
        left = [pair for pair in left if pair not in now] if len(now) < len(left) else []
        for event in tx.append(_drafts(tx.state, [q for q, _ in now], seed, [one for _, one in now], by)):
            decision = queries.record(tx.state, RecordedDecision(event))
            taken[plot_key(decision.user, decision.plot)] = _undrawn(decision) if tx.dry_run else decision
    return [[taken[place] for place in one.wanted] for one in asked]


def _drafts(
    state: TrialState,
    questions: Sequence[Question],
    seed: int | None,
    asked: Sequence[Asked] = (),
    by: Decide | None = None,
) -> list[Draft]:
    """Decisions as they are recorded, each for the request that asked for it."""
    askers: list[Any] = [(one.key, one.actor) for one in asked] or [()] * len(questions)
    bodies = zip((by or decide)(state, questions, seed), askers, strict=True)
    numbered = enumerate(bodies, state.counts.decisions + 1)
    return [Draft(body, n, state.profiles[body.profile].user, *asker) for n, (body, asker) in numbered]


def _undrawn(decision: Decision) -> Decision:
    """A decision without its arm; probabilities are shown if they do not depend on the draw."""
    probabilities = {} if decision.propensity is None else decision.probabilities
    return replace(decision, arm="", code=None, propensity=None, probabilities=probabilities)


def decide(state: TrialState, questions: Sequence[Question | Decided], seed: int | None = None) -> list[Decided]:
    """The decisions as they are recorded: all from the present state, numbered on from the last one.

    Another `seed` than the trial's own draws as if it were another trial. Where the model cannot be computed, the
    control is given.
    """
    first, n = state.counts.decisions, len(questions)
    seed = state.seed if seed is None else seed
    bodies: list[Decided] = []
    try:
        with computing():
            policy, learned = state.policy, state.settled
            draws = streams.uniforms(seed, "policy", first, n, policy.draws_needed(state.problem.shape))
            for some, offer in _offers(state, questions):
                draw = policy.decide(learned, offer, draws[some])
                effects = policy.effects(learned, offer, state.spec.confidence, draw)
                sound = (draw.probabilities >= 0).all()  # neither is NaN
                sound &= (np.abs(draw.probabilities.sum(-1) - 1) <= SUM_TOLERANCE).all()
                if not sound or not all(np.isfinite(part).all() for part in effects or ()):
                    raise NumericalError(UNCOMPUTED)
                bodies += _bodies(state, questions[some], draw, effects, offer.floor)
            return bodies
    except NumericalError as error:
        log.error("trial %s: decisions from %d on are by the control: %s", state.spec.name, first + 1, error)
    draws, bodies = streams.uniforms(seed, "control", first, n, 1), []
    for some, offer in _offers(state, questions):
        shares = np.broadcast_to(offer.control, (some.stop - some.start, offer.control.shape[-1]))  # (n, K)
        draw = Draw(sample(shares, draws[some, 0]), shares, np.full(len(shares), FAILED))
        bodies += _bodies(state, questions[some], draw, None, None)
    return bodies


def _offers(state: TrialState, questions: Sequence[Question | Decided]) -> Iterator[tuple[slice, Offer]]:
    """Offers to all, as many at a time as fit into memory: where units differ, each takes a table of all arms."""
    shape, n, placed = state.problem.shape, len(questions), state.with_blocks(questions)
    most = n if state.spec.kind == "paper" else max(1, NUMBERS_AT_ONCE // (shape.K * shape.M) ** 2)
    for start in range(0, n, most):
        some = slice(start, min(start + most, n))
        users = [state.profiles[q.profile].user for q in questions[some]]
        yield some, replace(placed.offer_of(questions[some]), floor=state.floor(users))


def _bodies(
    state: TrialState,
    questions: Sequence[Question | Decided],
    draw: Draw,
    effects: Effects | None,
    floor: Floor | None,
) -> list[Decided]:
    n, arms = len(questions), state.problem.arms

    def column(values: Any, *shape: int) -> list[Any]:
        return [None] * n if values is None else np.reshape(values, (n, *shape)).tolist()

    estimate = half = below = None
    if effects is not None:
        values = np.stack(np.broadcast_arrays(*effects))
        with np.errstate(all="ignore"):
            scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(np.abs(values))))
            rounded = np.round(values * scale) / scale  # not finite: zero, or not finite before
        estimate, half, below = np.where(np.isfinite(rounded), rounded, values)
        below = None if effects.below is effects.above else below
    height = None if floor is None else np.broadcast_to(np.stack((floor.control, floor.arms), -1), (n, 2))
    columns = {
        "arm": [arms[k] for k in column(draw.action)],
        "reason": [REASONS[code] for code in column(draw.reason_code)],
        "share": column(draw.share),
        "certified": column(draw.certified),
        "propensity": column(draw.propensity if draw.exact else None),
        "floor": column(height, 2),
    }
    tables = {"probabilities": draw.probabilities, "estimate": estimate, "half": half, "below": below}
    for name, table in tables.items():
        columns[name] = column(None if table is None else table[..., : len(arms)], len(arms))
    return [
        Decided(
            episode=state.episode.number,
            profile=q.profile,
            context=q.context,
            unavailable=q.unavailable,
            state=state.seq,
            plot=q.plot,
            block=q.block,
            held_out=state.held_out(state.profiles[q.profile]),
            unmeasured=[m for m in state.problem.metrics if m not in state.profiles[q.profile].measured] or None,
            **{name: values[i] for name, values in columns.items()},
        )
        for i, q in enumerate(questions)
    ]
