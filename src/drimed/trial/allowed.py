"""What may be recorded in which state: one statement of the rules.

Asking, telling and changing refuse with these functions what cannot be; `drimed.trial.checks` holds every event to
them, when it is recorded and when a log is proven. Names and values that a newer version asks about or refuses are no
rule of this kind: a log that was allowed when it was written stays so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from drimed.errors import ConflictError, InputError, SpecError, UnknownNameError
from drimed.records import MISSING, Fault, Path
from drimed.trial import events as kinds
from drimed.trial import validation
from drimed.trial.look_history import most_decisions
from drimed.trial.problem import Profile
from drimed.trial.queries import Story
from drimed.trial.spec import Arm, Stopping, User
from drimed.trial.state import TrialState
from drimed.trial.validation import stopping_faults

FROM = {kinds.PAUSED: ("running",), kinds.RESUMED: ("paused",), kinds.STOPPED: ("running", "paused")}


def need_reason(reason: str) -> None:
    """Corrections and changes say why."""
    if not reason.strip():
        raise InputError("a reason is needed: it is kept in the log", ("reason",))


def running(state: TrialState) -> None:
    """Nothing is decided while a trial is paused, or after it was stopped."""
    if state.status != "running":
        fix = "; resume it first" if state.status == "paused" else ""
        why = f": {state.looked.halted}" if state.looked.halted else ""
        raise ConflictError(f"trial {state.spec.name!r} is {state.status} and decides nothing{fix}{why}")


def room(state: TrialState, more: int) -> None:
    """A trial has at most so many decisions as its file says."""
    most, n = most_decisions(state), state.counts.decisions
    if most is not None and n + more > most:
        raise ConflictError(
            f"trial {state.spec.name!r} may have {most} decisions and has {n}: {most - n} are left, and {more} were "
            "asked for; ask for fewer users",
            ("users",),
        )


def opening(state: TrialState, wanted: int | None) -> int:
    """The number of the next episode, which must be the one that is wanted."""
    following = state.episode.number + 1
    if state.status != "running":
        why = f": {state.looked.halted}" if state.looked.halted else ""
        raise ConflictError(f"trial {state.spec.name!r} is {state.status}; no episode can be opened{why}")
    if wanted not in (None, following):
        raise ConflictError(f"episode {wanted} cannot be opened: the next one is {following}", ("number",))
    return following


def openable(state: TrialState, decision: object) -> None:
    """A code is opened for a decision that was taken, or (None) for all, once."""
    if decision is None:
        if state.opened:
            raise ConflictError("the code was opened for all before")
    elif type(decision) is not int or not 1 <= decision <= state.counts.decisions:
        raise InputError(f"a code is opened for a decision that was taken, got {decision!r}", ("decision",))


def unavailable(state: TrialState, table: Mapping[str, Sequence[str]]) -> None:
    """Arms that nobody, or (by name) somebody cannot get: nobody's control."""
    for user, arms in table.items():
        for arm in arms:
            state.problem.arm(arm, ("unavailable", user))
        for name in [user] if user else state.users:
            state.problem.available(state.profile(name), [*state.retired, *arms])


def own_block(user: str, plot: str, block: str | None, own: Mapping[str, str | None]) -> None:
    """A plot stays in its block."""
    if plot in own and own[plot] != block:
        raise ConflictError(
            f"plot {plot!r} of user {user!r} is in block {own[plot]!r}, not in {block!r}", ("plots", user, plot)
        )


def agrees(decision: int, old: Mapping[str, Any], new: Mapping[str, Any], part: str) -> None:
    """A second value of a metric is the first one again; another one is an amendment."""
    for name, value in new.items():
        if name in old and old[name] != value:
            raise ConflictError(
                f"decision {decision} already has {name} = {old[name]!r}, and {value!r} is another value; if the first "
                f"was wrong, amend it with `drimed trial amend ... --decision {decision}`",
                (part, name),
            )


def some_value(decision: int, metrics: Mapping[str, Any], control: Mapping[str, Any] | None) -> None:
    """An outcome has a value."""
    if not metrics and not control:
        raise InputError(f"decision {decision}: an outcome needs at least one value; or mark it missing", ("outcome",))


def amendable(story: Story) -> dict[str, Any]:
    """The outcome that can be amended."""
    if story.outcome is None:
        raise ConflictError(f"decision {story.decision} has no outcome to amend; tell it first")
    return story.outcome


def incomplete(state: TrialState, story: Story) -> None:
    """Only what is not there can be missing."""
    if state.state_of(story.outcome, missing=True) != MISSING:
        raise ConflictError(
            f"decision {story.decision} has its whole outcome; nothing of it is missing; if that is not its own, "
            "take it back first: amend it with empty values"
        )


def known_user(state: TrialState, user: str) -> None:
    """Somebody who joined."""
    if user not in state.users:
        raise UnknownNameError("user", user, state.users, ("user",))


def new_user(state: TrialState, user: str) -> None:
    """Everybody joins once."""
    if user in state.users:
        raise ConflictError(f"there is a user {user!r} already", ("name",))


def user_faults(state: TrialState, user: User, at: Path, others: Iterable[User] = ()) -> Iterator[Fault]:
    """What does not fit the trial as it stands; `others` join together with this user."""
    spec = state.spec
    yield from validation.user_faults(spec, user, at)
    yield from state.problem.covariates.faults(user.attributes or {}, (*at, "attributes"))
    # Where noise is learned from control plots, all of them have the control of the first user.
    before = [profile.definition for profile in islice(state.profiles.values(), 1)]
    first = next((spec.resolved(u).control for u in (*before, *others)), None)
    yield from validation.control_plot_faults(spec, state.policy, spec.resolved(user).control, first, (*at, "control"))


def not_retired(state: TrialState, profile: Profile) -> None:
    """Refuse a control that is not given any more."""
    for arm in state.retired:
        if profile.control[state.problem.arm(arm)] > 0:
            raise ConflictError(f"arm {arm!r} is retired and cannot be a control; choose another one", ("control",))


def new_arm(state: TrialState, name: str, arm: Arm) -> None:
    """A new name, and described as the others are."""
    if name in state.spec.arms:
        raise ConflictError(f"there is an arm {name!r} already; a changed arm is a new arm with a new name", ("name",))
    sound(validation.arm_faults(state.spec, name, arm))
    sound(validation.floor_faults(state.spec, len(state.problem.arms) + 1))


def retirable(state: TrialState, arm: str) -> None:
    """Nobody's control can be retired."""
    state.problem.arm(arm, ("arm",))
    for user in state.users:
        state.problem.available(state.profile(user), [*state.retired, arm])


def turning(state: TrialState, kind: str) -> None:
    """From running to paused and back, and once to stopped."""
    if state.status not in FROM[kind]:
        raise ConflictError(f"trial {state.spec.name!r} is {state.status}; it cannot be {kind}")


def new_rules(state: TrialState, new: Stopping) -> None:
    """Stopping rules that fit the trial, and are not those that it has."""
    if new == (state.spec.stopping or Stopping()):
        raise ConflictError("these are the stopping rules that the trial has", ("stopping",))
    exact = next((name for name, rule in new.rules.items() if rule.evidence == "exact"), None)
    if exact is not None and state.balances:
        raise InputError(
            "exact ranges need decisions that are drawn one by one, and this trial spreads those of a season evenly: "
            'use evidence = "propensities", or name an exact rule in the file of a new trial',
            ("stopping", "rules", exact, "evidence"),
        )
    spec = state.spec.model_copy(update={"stopping": new})
    sound(stopping_faults(spec, {name: state.profile(name).definition for name in state.users}))


def sound(found: Iterable[Fault]) -> None:
    """Refuse what has faults."""
    if listed := list(found):
        raise SpecError(listed)
