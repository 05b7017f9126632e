"""Changes to a trial while it runs: episodes, users, arms, what users want, and whether it decides at all.

Each is checked against everything that is known before it is written: what could not be folded in is never recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from drimed.errors import ConflictError, Fault, InputError, SpecError, UnknownNameError
from drimed.trial import events as kinds
from drimed.trial import faults
from drimed.trial.build import build_policy
from drimed.trial.events import Draft
from drimed.trial.memory import Memory
from drimed.trial.problem import Problem, Profile
from drimed.trial.recorder import Transaction
from drimed.trial.spec import Arm, ArmNoise, User

Context = Mapping[str, float]
FROM = {kinds.PAUSED: ("running",), kinds.RESUMED: ("paused",), kinds.STOPPED: ("running", "paused")}


def open_episode(
    now: Transaction, contexts: Mapping[str, Context], number: int | None, unavailable: Mapping[str, Sequence[str]]
) -> int:
    """The next episode; opening again the one that is open does nothing."""
    memory = now.memory
    current = memory.episode.number
    if number is not None and number == current:
        return current
    if memory.status != "running":
        raise ConflictError(f"trial {memory.spec.name!r} is {memory.status}; no episode can be opened")
    if number is not None and number != current + 1:
        raise ConflictError(f"episode {number} cannot be opened: the next one is {current + 1}")
    now.append([Draft(kinds.EPISODE, episode(memory, contexts, unavailable))])
    return current + 1


def episode(
    memory: Memory, contexts: Mapping[str, Context], unavailable: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """The next episode, as it is written down."""
    body: dict[str, Any] = {"episode": memory.episode.number + 1, "contexts": {}, "unavailable": {}}
    for user, values in contexts.items():
        _known(memory, user)
        if (vector := memory.problem.context(values)) is not None:
            body["contexts"][user] = vector.tolist()
    for user, arms in unavailable.items():
        if user:
            _known(memory, user)
        for arm in arm_names(arms):
            memory.problem.arm(arm)
        for name in [user] if user else memory.users:
            memory.problem.available(memory.profile(name), [*memory.retired, *arms])
        body["unavailable"][user] = sorted(arms)
    memory.episode_offers(body["contexts"])  # refuses what the policy could not begin with
    return body


def add_user(now: Transaction, name: str, user: User | Mapping[str, Any]) -> None:
    """Somebody joins."""
    at, memory = ("users", name), now.memory
    definition: User = _valid(User, user, at)
    if name in memory.users:
        raise ConflictError(f"there is a user {name!r} already")
    _raise([*faults.name_faults(name, at), *faults.user_faults(memory.spec, definition, at)])
    controls = [u.control or memory.spec.control for _, u in memory.definitions[:1]]
    own = definition.control or memory.spec.control
    first = next(iter(controls), None)
    _raise(list(faults.plot_faults(memory.spec, memory.policy, own, first, (*at, "control"))))
    profile = memory.problem.profile(name, definition, len(memory.profiles))
    _not_retired(memory, profile)
    body = {"definition": definition.model_dump(mode="json", exclude_none=True)}
    now.append([Draft(kinds.USER, body, user=name)])


def change_preference(now: Transaction, user: str, preference: Mapping[str, float], reason: str) -> None:
    """A user weighs the metrics differently."""
    need_reason(reason)
    memory = now.memory
    _known(memory, user)
    given: Any = preference  # callers are not always typed
    weights = dict(given) if isinstance(given, Mapping) else given
    new: User = _valid(User, {"preference": weights}, ("users", user))
    _raise(list(faults.preference_faults(memory.spec, new.preference or {}, ("users", user, "preference"))))
    now.append([Draft(kinds.PREFERENCE, {"preference": new.preference, "reason": reason}, user=user)])


def change_control(now: Transaction, user: str, control: str | Mapping[str, float], reason: str) -> None:
    """A user is compared with another control."""
    need_reason(reason)
    memory, at = now.memory, ("users", user)
    _known(memory, user)
    wanted = dict(control) if isinstance(control, Mapping) else control
    new = memory.definition(user).model_copy(update={"control": _valid(User, {"control": wanted}, at).control})
    first = memory.definitions[0][1].control or memory.spec.control
    plots = faults.plot_faults(memory.spec, memory.policy, new.control, first, (*at, "control"))
    _raise([*faults.user_faults(memory.spec, new, at), *plots])
    _not_retired(memory, memory.problem.profile(user, new, 0))
    now.append([Draft(kinds.CONTROL, {"control": new.control, "reason": reason}, user=user)])


def add_arm(
    now: Transaction, name: str, arm: Arm | Mapping[str, Any], noise: ArmNoise | Mapping[str, Any] | None
) -> None:
    """One more arm, with its own noise where noise is known by arm."""
    memory = now.memory
    definition: Arm = _valid(Arm, arm, ("arms", name))
    own = None if noise is None else _valid(ArmNoise, noise, ("noise", "arms", name))
    if name in memory.spec.arms:
        raise ConflictError(f"there is an arm {name!r} already; a changed arm is a new arm with a new name")
    _raise([*faults.name_faults(name, ("arms", name)), *faults.arm_faults(memory.spec, name, definition)])
    body: dict[str, Any] = {"arm": name, "definition": definition.model_dump(mode="json", exclude_none=True)}
    if own is not None:
        body["noise"] = {name: own.model_dump(mode="json", exclude_none=True)}
    grown = memory.with_arm(body)
    _raise(faults.cross_faults(grown))
    build_policy(grown, Problem(grown).shape.d)
    now.append([Draft(kinds.ARM, body)])


def retire_arm(now: Transaction, name: str, reason: str) -> None:
    """An arm that nobody gets any more; nobody's control can be retired."""
    need_reason(reason)
    memory = now.memory
    memory.problem.arm(name)
    if name in memory.retired:
        return
    for user in memory.users:
        memory.problem.available(memory.profile(user), [*memory.retired, name])
    now.append([Draft(kinds.RETIRED, {"arm": name, "reason": reason})])


def turn(now: Transaction, kind: str, reason: str) -> None:
    """Pause, resume or stop."""
    if kind != kinds.RESUMED:
        need_reason(reason)
    if now.memory.status not in FROM[kind]:
        raise ConflictError(f"trial {now.memory.spec.name!r} is {now.memory.status}; it cannot be {kind}")
    now.append([Draft(kind, {"reason": reason})])


def arm_names(names: Sequence[str]) -> Sequence[str]:
    """Arms that are unavailable, as a list."""
    if isinstance(names, str):
        raise InputError(f"unavailable must be a list of arms, got the text {names!r}; write [{names!r}]")
    return names


def need_reason(reason: str) -> None:
    """Corrections and turns say why."""
    if not reason.strip():
        raise InputError("a reason is needed: it is kept in the log")


def _known(memory: Memory, user: str) -> None:
    if user not in memory.users:
        raise UnknownNameError("user", user, memory.users)


def _not_retired(memory: Memory, profile: Profile) -> None:
    for arm in memory.retired:
        if profile.control[memory.problem.arm(arm)] > 0:
            raise ConflictError(f"arm {arm!r} is retired and cannot be a control; choose another one")


def _raise(found: Sequence[Fault]) -> None:
    if found:
        raise SpecError(found)


def _valid(kind: Any, value: Any, at: tuple[str, ...]) -> Any:
    if isinstance(value, kind):
        return value
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise SpecError([Fault((*at, *f.path), f.message) for f in faults.readable(error, kind)]) from None
