"""Which arm each user gets: a decision is taken once, and returned again when it is asked for again."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from drimed import streams
from drimed.errors import BatchError, ConflictError, InputError, SpecError, UnknownNameError
from drimed.models.offer import Floor
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.policies.guards.base import REASONS, Draw
from drimed.records import LONGEST_KEY, AskRequest, Context, Decision, Event, Fault, Path, Plots
from drimed.trial import allowed, checks, seasons, stopping
from drimed.trial import events as kinds
from drimed.trial.covariates import alike, block_key, plot_key, shown
from drimed.trial.events import Draft
from drimed.trial.names import first_twice, tidy
from drimed.trial.plots import Place, places
from drimed.trial.problem import Profile
from drimed.trial.queries import Story, context_of, record, stories
from drimed.trial.seasons import Season
from drimed.trial.spec import User
from drimed.trial.state import TrialState, as_vector
from drimed.trial.transaction import Transaction
from drimed.trial.validation import direction_faults, name_faults, pydantic_faults, tidy_user, user_name_faults

# Who joins a trial: users that are added, and those who are enrolled when somebody asks for them.

Definition = User | Mapping[str, Any]


def enrol_enrolling(tx: Transaction, users: Sequence[str], definitions: Mapping[str, Definition]) -> None:
    """Record those of the users who are new, all or none; with closed enrolment nobody is."""
    state = tx.state
    for name in definitions:
        if name not in users:
            raise InputError(f"user {name!r} is described, and nothing is asked for them", ("enrol", name))
    found: list[Fault] = []
    new: dict[str, User] = {}
    for name in users:
        at: Path = ("enrol", name)
        try:
            user = valid(User, tidy_user(definitions.get(name, {})), at)
        except SpecError as error:
            found += error.faults
            continue
        if name in state.users:
            _agrees(state, name, user, at)
        elif state.spec.enrols:
            new[name] = user
    found += [f for name, user in new.items() for f in _faults(state, name, user, ("enrol", name), new)]
    allowed.sound(found)
    tx.append([_draft(state, name, user) for name, user in new.items()])


def doubts_of(state: TrialState, definitions: Mapping[str, Definition]) -> Iterator[Fault]:
    """What to ask about those who are new, once they are found to be sound."""
    for name, definition in definitions.items():
        if name not in state.users:
            given = definition.attributes if isinstance(definition, User) else definition.get("attributes")
            yield from checks.of_attributes(state, name, given, ("enrol", name))


def lacking(state: TrialState, users: Collection[str]) -> dict[str, int]:
    """How many of these users came without a number that counts: a typical one is taken for them."""
    found: dict[str, int] = {}
    for name, known in state.problem.covariates.attributes.items():
        if known.roles and known.levels is None and not known.needed:
            found[name] = sum(name not in (state.profile(user).definition.attributes or {}) for user in users)
    return {name: count for name, count in found.items() if count}


def add_user(tx: Transaction, name: str, user: Definition, *, confirm: bool = False) -> None:
    """Add a user; unlikely attributes are refused with UnconfirmedError unless `confirm` is set."""
    state, name = tx.state, tidy(name)
    at = ("users", name)
    definition = valid(User, tidy_user(user), at)
    allowed.new_user(state, name)
    allowed.sound(_faults(state, name, definition, at, {}))
    checks.settle(checks.of_attributes(state, name, definition.attributes, at), confirm=confirm)
    tx.append([_draft(state, name, definition)])


def valid(kind: Any, value: Any, at: Path) -> Any:
    """A part of a trial; SpecError says which fields are wrong."""
    if isinstance(value, kind):
        return value
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise SpecError([Fault((*at, *f.path), f.message) for f in pydantic_faults(error, kind)]) from None


def _faults(state: TrialState, name: str, user: User, at: Path, others: Mapping[str, User]) -> Iterator[Fault]:
    yield from name_faults(name, ("name",) if at[0] == "users" else at)
    yield from user_name_faults(user, at)
    yield from direction_faults(state.spec, user.preference or {}, (*at, "preference"))
    yield from allowed.user_faults(state, user, at, others.values())


def _draft(state: TrialState, name: str, user: User) -> Draft:
    allowed.not_retired(state, state.problem.profile(name, user, len(state.profiles)))
    return Draft(kinds.USER, {"definition": user.model_dump(mode="json", exclude_none=True)}, user=name)


def _agrees(state: TrialState, name: str, user: User, at: Path) -> None:
    """Somebody who is known may be described again, but not differently."""
    known, spec = state.profile(name).definition, state.spec
    for attribute, value in (user.attributes or {}).items():
        if (before := (known.attributes or {}).get(attribute)) != value:
            raise ConflictError(
                f"user {name!r} joined with {attribute} = {before!r}, and {value!r} is another value; what changes "
                "from decision to decision belongs into the context",
                (*at, "attributes", attribute),
            )
    if user.cohort is not None and user.cohort != known.cohort:
        raise ConflictError(f"user {name!r} is of cohort {known.cohort!r}, not of {user.cohort!r}", (*at, "cohort"))
    holds = spec.resolved(known)
    now: dict[str, Any] = {
        "group": spec.group_of(known),
        "preference": holds.preference,
        "control": holds.control,
        "arms": holds.arms,
    }
    for field, was in now.items():
        given = getattr(user, field)
        if given is not None and given != (tidy(was) if isinstance(was, str) else was):
            fix = f"; change it with `drimed trial {_CHANGED[field]}`" if field in _CHANGED else ""
            raise ConflictError(f"user {name!r} has {field} {was!r}, not {given!r}{fix}", (*at, field))
    for field in ("plots", "blocks"):
        if getattr(user, field) is not None and user.block_of() != known.block_of():
            raise ConflictError(f"user {name!r} has other plots: {', '.join(known.block_of()) or 'none'}", (*at, field))


_CHANGED = {"preference": "prefer", "control": "control"}  # by which command


# Decisions that were taken before: a request that is repeated gets its first answer again.


def answered(
    tx: Transaction,
    key: str,
    users: Sequence[str] | None,
    plots: Mapping[str, Plots],
    contexts: Mapping[str, Any],
) -> list[Decision]:
    """What this request was answered with before: its own decisions, and those that stood in its episode."""
    found = {_key(e): e for e in tx.ledger.of_request(key) if e.kind == kinds.DECISION}
    if not found:
        return []
    state, stood = tx.state, dict[str, Event]()
    if state.spec.decisions == "one per episode":
        before = min(e.seq for e in found.values()) - 1
        for event in tx.ledger.events(until=before, kinds=(kinds.EPISODE, kinds.DECISION), newest_first=True):
            if event.kind == kinds.EPISODE:
                break
            stood[_key(event)] = event
    whole = stood | found
    names = [u for u in (state.users if users is None else users) if u in state.users]
    keys = [place.key for user in names for place in places(state, user, plots.get(user))]
    keys = [k for k in keys if k in whole] if users is None else keys
    if not set(found) <= set(keys) <= set(whole) or len(names) < len(users or ()):
        raise ConflictError(
            f"request {key!r} was made before, for other users; give each request its own key", ("key",)
        )
    known = {plot_key(d.user, d.plot): d for d in recorded(tx, [int(whole[k].decision or 0) for k in keys])}
    refuse_other_contexts(state, known.values(), contexts)
    return [known[k] for k in keys]


def refuse_other_contexts(state: TrialState, taken: Iterable[Decision], contexts: Mapping[str, Any]) -> None:
    """A context that comes again with its decision is the recorded one: it cannot be corrected afterwards."""
    faults: dict[tuple[str, str], Fault] = {}
    for decision in taken:
        given, recorded = contexts.get(decision.user), decision.context or {}
        if given is None:
            continue
        whole = {**recorded, **given} if isinstance(given, Mapping) else given
        vector = state.problem.covariates.context(whole, ("contexts", decision.user))
        for name, value in ({} if vector is None else context_of(state, vector.tolist())).items():
            if not alike(recorded[name], value):
                was, where = shown(recorded[name]), "" if decision.plot is None else f", plot {decision.plot!r}"
                message = (
                    f"decision {decision.id} for user {decision.user!r}{where} was taken with {name} {was}, "
                    f"and {shown(value)} came now; a context cannot be changed after the decision: "
                    f"give {was} again, or none"
                )
                faults.setdefault((decision.user, name), Fault(("contexts", decision.user, name), message))
    if len(faults) > 1:
        raise BatchError(faults.values())
    for fault in faults.values():
        raise ConflictError(fault.message, fault.path)


def _key(event: Event) -> str:
    return plot_key(str(event.user), event.body.get("plot"))


def recorded(tx: Transaction, numbers: Iterable[int]) -> list[Decision]:
    """Decisions that were taken before, as they stand."""
    return [record(tx.state, story, repeated=True) for story in stories(tx.ledger, tx.state, list(numbers))]


T = TypeVar("T")

NUMBERS_AT_ONCE = 4_000_000  # of tables of arms by arms, some twenty of which are held for each user: below a gigabyte


@dataclass(frozen=True)
class Question:
    """One user, and what is known before deciding for it."""

    profile: Profile
    context: FloatArray | None  # (D,), as it was given
    excluded: list[str]  # arms that are unavailable
    available: BoolArray | None  # (K,), the same as a mask
    plot: str | None = None
    block: str | None = None


def ask(tx: Transaction, request: AskRequest) -> list[Decision]:
    """Decide for some users or all; a user who has a decision in this episode keeps it.

    A user with plots gets a decision for each of them, or for those that `plots` names. With open enrolment a new user
    joins, as `enrol` describes it. The next episode is opened with these contexts if it is asked for.
    """
    users, key, confirm, unavailable = request.users, request.key, request.confirm, request.unavailable
    episode, season, date = request.episode, request.season, request.date
    contexts, plots = by_user(tx.state, request.contexts), by_user(tx.state, request.plots)
    enrol = by_user(tx.state, request.enrol)
    users = None if users is None else [known_name(tx.state, user) for user in users]
    if key is not None:
        kinds.storable("key", key, LONGEST_KEY)
        if before := answered(tx, key, users, plots, contexts):
            return before
    allowed.running(tx.state)
    start = tx.state
    enrol_enrolling(tx, list(enrol) if users is None else users, enrol)
    _known(tx.state, users or (), ("users",))
    _known(tx.state, contexts, ("contexts",))
    _known(tx.state, plots, ("plots",))
    _in_episode(tx, contexts, seasons.meant(tx.state, season, episode), season, date)
    state = tx.state
    names = list(state.users) if users is None else list(users)
    if not names:
        raise InputError("there is nobody to decide for: add users first", ("users",))
    if (twice := first_twice(names)) is not None:
        raise InputError(f"user {twice!r} is asked for twice in one call", ("users",))
    wanted = [place for user in names for place in places(state, user, plots.get(user))]
    standing = {p.key: state.episode.asked[p.key] for p in wanted if p.key in state.episode.asked}
    found = {plot_key(d.user, d.plot): d for d in recorded(tx, standing.values())}
    refuse_other_contexts(state, found.values(), contexts)
    known = {u: _context(state, u, contexts.get(u)) for u in {p.user for p in wanted if p.key not in standing}}
    questions = [_question(state, p, known[p.user], unavailable) for p in wanted if p.key not in standing]
    opened = state.episode.number != start.episode.number
    given = contexts if opened else {user: contexts[user] for user in known if user in contexts}
    asked_about = [
        *checks.of_contexts(start, given, new=opened),
        *doubts_of(start, enrol),
        *checks.of_plots(start, [p for p in wanted if p.key not in standing]),
    ]
    checks.settle(asked_about, confirm=confirm)
    return _answers(tx, wanted, found, _decided(tx, questions, key))


def known_name(state: TrialState, user: str) -> str:
    """The user that is meant by a name: one that is known to the letter, or else the one form of the name."""
    return user if user in state.users else tidy(user)


def by_user(state: TrialState, table: Mapping[str, T]) -> dict[str, T]:
    """A table by user, by the names that are meant."""
    found: dict[str, T] = {}
    for user, value in table.items():
        name = known_name(state, user)
        if name in found:
            raise InputError(f"user {name!r} comes twice, once as {user!r}", ("users",))
        found[name] = value
    return found


def preview(tx: Transaction) -> list[Decision]:
    """How likely each arm is now for every user and plot, in its context of this episode or a typical one.

    For a dry run: no arm is drawn.
    """
    state = tx.state
    allowed.running(state)
    wanted = [place for user in state.users for place in places(state, user)]
    there, typical = state.episode.contexts, state.problem.covariates.typical
    known = {u: as_vector(there[u]) if u in there else typical for u in state.users}
    questions = [_question(state, p, known[p.user], ()) for p in wanted]
    return _answers(tx, wanted, {}, _decided(tx, questions, None, previewed=True))


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
    """The next episode; opening the one that is open again, by its number or its name, does nothing."""
    state = tx.state
    current, number = state.episode.number, seasons.meant(state, name, number)
    if number is not None and number == current:
        return current
    following = allowed.opening(state, number)
    contexts = by_user(state, contexts or {})
    _open(tx, contexts, unavailable or {}, name, date)
    checks.settle(checks.of_contexts(state, contexts, new=True), confirm=confirm)
    return following


def decide(state: TrialState, questions: Sequence[Question], seed: int | None = None) -> list[dict[str, Any]]:
    """The decisions as they are recorded: all from the present state, numbered on from the last one.

    Another `seed` than the trial's own draws as if it were another trial.
    """
    first, problem, policy = state.counts.decisions, state.problem, state.policy
    draws = streams.uniforms(
        state.seed if seed is None else seed, "policy", first, len(questions), policy.draws_needed(problem.shape)
    )
    learned = state.settled()
    named = (block_key(q.profile.user, q.block) for q in questions if q.block is not None)
    numbers = state.numbers.with_blocks(named)
    asked = [(q.profile, q.context, q.available, numbers.block(q.profile.user, q.block)) for q in questions]
    found: list[dict[str, Any]] = []
    for some in _at_once(state, len(questions)):
        floor = state.floor([q.profile.user for q in questions[some]])
        offer = replace(problem.offer(*zip(*asked[some], strict=True)), floor=floor)
        drawn = policy.decide(learned, offer, draws[some])
        effects = policy.effects(learned, offer, state.spec.confidence, drawn)
        found += _bodies(state, questions[some], drawn, effects, first + some.start, floor)
    return found


def _at_once(state: TrialState, n: int) -> Iterator[slice]:
    """Of n questions, how many are decided together: where people or sites differ, each takes a table of all arms."""
    table = (state.problem.shape.K * state.problem.shape.M) ** 2
    most = n if state.spec.kind == "paper" else max(1, NUMBERS_AT_ONCE // table)
    return (slice(start, min(start + most, n)) for start in range(0, n, most))


def _bodies(
    state: TrialState,
    questions: Sequence[Question],
    drawn: Draw,
    effects: tuple[FloatArray, FloatArray] | None,
    first: int,
    floor: Floor | None,
) -> list[dict[str, Any]]:
    """What is recorded of n decisions from number `first` on."""
    n, arms = len(questions), state.problem.arms

    def numbers(values: Any) -> list[Any]:
        return [None] * n if values is None else np.reshape(values, n).tolist()

    def by_arm(values: Any) -> list[Any]:
        """Users who are alike share a list."""
        if values is None:
            return [None] * n
        rows, known = np.reshape(values, (n, -1))[:, : len(arms)], dict[bytes, list[float]]()
        return [known.get(key) or known.setdefault(key, row.tolist()) for row in rows for key in (row.tobytes(),)]

    action, reason = numbers(drawn.action), numbers(drawn.reason_code)
    probabilities = by_arm(drawn.probabilities)
    propensity = numbers(drawn.propensity if drawn.exact else None)
    share, certified = numbers(drawn.share), numbers(drawn.certified)
    estimate, half = map(by_arm, effects or (None, None))
    heights = None if floor is None else np.stack(np.broadcast_arrays(floor.control, floor.arms), -1)
    floored = [None] * n if heights is None else np.reshape(heights, (n, 2)).tolist()
    return [
        {
            "episode": state.episode.number,
            "profile": q.profile.slot,
            **({} if q.plot is None else {"plot": q.plot, "block": q.block}),
            "context": None if q.context is None else q.context.tolist(),
            "unavailable": q.excluded,
            "state": state.seq,
            "draw": first + i,
            "arm": arms[action[i]],
            "probabilities": probabilities[i],
            "propensity": propensity[i],
            "reason": REASONS[reason[i]],
            "share": share[i],
            "certified": certified[i],
            "estimate": estimate[i],
            "half": half[i],
            **({} if floor is None else {"floor": floored[i]}),  # of the control and of every arm
        }
        for i, q in enumerate(questions)
    ]


def _decided(
    tx: Transaction, questions: Sequence[Question], key: str | None, *, previewed: bool = False
) -> list[Event]:
    """Decide and record, all from one state; a guard that keeps accounts of users takes one plot of each at a time.

    A dry run draws with a seed that nobody knows: nothing that it shows depends on what will be drawn.
    """
    written: list[Event] = []
    seed = secrets.randbits(62) if tx.dry_run else None
    left = list(questions)
    if left and not previewed:
        stopping.look_before_deciding(tx, opens=False)
        allowed.room(tx.state, len(left))
    while left:
        users: set[str] = set()
        now: list[Question] = []
        later: list[Question] = []
        for q in left:
            again = tx.state.remembers_users and q.profile.user in users
            (later if again else now).append(q)
            users.add(q.profile.user)
        first = tx.state.counts.decisions + 1
        bodies = zip(now, decide(tx.state, now, seed), strict=True)
        written += tx.append(
            [Draft(kinds.DECISION, body, first + i, q.profile.user, key) for i, (q, body) in enumerate(bodies)]
        )
        left = later
    return written


def _answers(
    tx: Transaction, wanted: Sequence[Place], standing: dict[str, Decision], written: Sequence[Event]
) -> list[Decision]:
    """Decisions in the order of the places that were asked for."""
    new = [record(tx.state, _fresh(tx.state, event)) for event in written]
    if tx.dry_run:
        new = [_undrawn(decision) for decision in new]
    found = standing | {plot_key(d.user, d.plot): d for d in new}
    return [found[place.key] for place in wanted]


def _context(state: TrialState, user: str, given: Context | None) -> FloatArray | None:
    problem = state.problem
    if given is not None:
        return problem.covariates.context(given, ("contexts", user))
    if problem.fields and user not in state.episode.contexts:
        raise InputError(
            f"user {user!r} has no context in {_called(state)}; expected {', '.join(problem.fields)}: "
            "give it with the request, in a sheet, or when the season is opened",
            ("contexts", user),
        )
    return as_vector(state.episode.contexts.get(user))


def _question(state: TrialState, place: Place, context: FloatArray | None, unavailable: Sequence[str]) -> Question:
    profile, problem = state.profile(place.user), state.problem
    for arm in arm_names(unavailable):
        problem.arm(arm, ("unavailable",))
    excluded = state.excluded(place.user, unavailable)
    return Question(profile, context, excluded, problem.available(profile, excluded), place.plot, place.block)


def _in_episode(
    tx: Transaction, contexts: Mapping[str, Context], episode: int | None, name: str | None, date: str | None
) -> None:
    """Open the episode that is asked for, if it is the next one; the first one is opened by the first question."""
    current = tx.state.episode.number
    if episode is None and current > 0:
        return
    if episode is not None and (isinstance(episode, bool) or not isinstance(episode, int | np.integer)):
        raise InputError(f"an episode is known by its number, got {episode!r}; a season has a name", ("episode",))
    if episode is not None and not max(1, current) <= episode <= current + 1:
        known = f"episode {current} is open" if current else "no episode is open"
        known += f", and {current + 1} is the next"
        raise ConflictError(f"decisions for episode {episode} cannot be taken now: {known}", ("episode",))
    if episode == current:
        seasons.refuse_other_date(tx.state, current, date)
    else:
        _open(tx, contexts if episode is not None else {}, {}, name, date)


def _open(
    tx: Transaction,
    contexts: Mapping[str, Context],
    unavailable: Mapping[str, Sequence[str]],
    name: str | None,
    date: str | None,
) -> None:
    """The next episode, after the look that is due before it."""
    body = _episode(tx.state, contexts, unavailable, seasons.described(tx.state, name, date))
    stopping.look_before_deciding(tx, opens=True)
    tx.append([Draft(kinds.EPISODE, body)])


def _episode(
    state: TrialState, contexts: Mapping[str, Context], unavailable: Mapping[str, Sequence[str]], season: Season
) -> dict[str, Any]:
    """The next episode, as it is recorded."""
    body: dict[str, Any] = {"episode": state.episode.number + 1, "contexts": {}, "unavailable": {}, **season.body()}
    _known(state, contexts, ("contexts",))
    for user, values in contexts.items():
        if (vector := state.problem.covariates.context(values, ("contexts", user))) is not None:
            body["contexts"][user] = vector.tolist()
    _known(state, filter(None, unavailable), ("unavailable",))
    body["unavailable"] = {user: sorted(arm_names(arms)) for user, arms in unavailable.items()}
    allowed.unavailable(state, body["unavailable"])
    state.opening_offers(body["contexts"])  # refuses what the policy could not begin with
    return body


def _fresh(state: TrialState, event: Event) -> Story:
    """A decision that was taken just now."""
    return Story(event, None, False, 0, state.state_of(None, missing=False))


def _undrawn(decision: Decision) -> Decision:
    """A decision as a dry run shows it: with its probabilities, if they do not depend on the draw, and no arm."""
    exact = decision.propensity is not None
    probabilities = decision.probabilities if exact else {}
    return replace(decision, arm="", code=None, propensity=None, probabilities=probabilities)


def arm_names(names: Sequence[str]) -> Sequence[str]:
    """Arms that are unavailable, as a list."""
    if isinstance(names, str):
        raise InputError(
            f"unavailable must be a list of arms, got the text {names!r}; write [{names!r}]", ("unavailable",)
        )
    return names


def _known(state: TrialState, users: Any, field: Path) -> None:
    """`field` has a list of users, or a table by user."""
    for i, user in enumerate(users):
        if user not in state.users:
            raise UnknownNameError("user", user, state.users, (*field, i if isinstance(users, Sequence) else user))


def _called(state: TrialState) -> str:
    """The episode that is open: as a season by its name, where it has one."""
    return seasons.calendar(state).said(state.episode.number)
