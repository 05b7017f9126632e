"""A live trial: ask which arm a user gets, tell what came of it.

Every call is one transaction on the store: whatever other processes wrote is folded in first, then the decision or the
outcome is appended and made durable, and only then given back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
from pydantic import ValidationError

from drimed.errors import BatchError, ConflictError, Fault, InputError, SpecError, UnknownNameError
from drimed.trial import events as kinds
from drimed.trial import faults, outcomes
from drimed.trial.build import build_policy, notes
from drimed.trial.deciding import Asked, decide
from drimed.trial.events import Draft, Event, chain, now
from drimed.trial.memory import Memory
from drimed.trial.outcomes import Report, Story, Values
from drimed.trial.problem import Problem
from drimed.trial.recorder import Recorder
from drimed.trial.records import Given, Row, Status, Told
from drimed.trial.spec import Arm, ArmNoise, TrialSpec, User
from drimed.trial.stores.store import Ledger, Store

STORIES = 1000  # decisions that are fetched at a time

Context = Mapping[str, float]


class Trial:
    """One trial in one store; threads may share it.

    >>> from drimed.trial.stores.memory import MemoryStore
    >>> trial = Trial.create({"name": "t", "metrics": {"yield": {}}, "arms": {"old": {}, "new": {}}, "control": "old",
    ...     "preference": {"yield": 1.0}, "users": {"north": {}}, "tolerance": {"absolute": 0.5}}, MemoryStore())
    >>> given = trial.ask("north")
    >>> trial.tell(given.id, {"yield": 5.0}).state
    'recorded'
    """

    def __init__(self, name: str, store: Store, *, actor: str = "python", clock: Callable[[], str] = now) -> None:
        self.name, self.store = name, store
        self._recorder = Recorder(name, store, actor, clock)

    @staticmethod
    def create(
        spec: TrialSpec | Mapping[str, Any], store: Store, *, actor: str = "python", clock: Callable[[], str] = now
    ) -> Trial:
        """A new trial."""
        checked = TrialSpec.read(spec.plain() if isinstance(spec, TrialSpec) else spec)
        seed = checked.seed if checked.seed is not None else secrets.randbits(62)
        draft = Draft(kinds.CREATED, {"spec": checked.plain(), "seed": seed, "numpy": np.__version__})
        with store.create(checked.name) as ledger:
            ledger.append(chain([draft], seq=ledger.seq, hash=ledger.hash, time=clock(), actor=actor))
        return Trial.open(checked.name, store, actor=actor, clock=clock)

    @staticmethod
    def open(name: str, store: Store, *, actor: str = "python", clock: Callable[[], str] = now) -> Trial:
        """A trial that exists."""
        trial = Trial(name, store, actor=actor, clock=clock)
        trial.memory()
        return trial

    # Asking

    @overload
    def ask(  # type: ignore[overload-overlap]  # a text is a sequence of texts, but means one user
        self,
        users: str,
        *,
        context: Context | None = ...,
        unavailable: Sequence[str] = ...,
        key: str | None = ...,
        actor: str | None = ...,
        dry_run: bool = ...,
    ) -> Given: ...

    @overload
    def ask(
        self,
        users: Sequence[str] | None = ...,
        *,
        contexts: Mapping[str, Context] | None = ...,
        unavailable: Sequence[str] = ...,
        key: str | None = ...,
        actor: str | None = ...,
        dry_run: bool = ...,
    ) -> list[Given]: ...

    def ask(
        self,
        users: str | Sequence[str] | None = None,
        *,
        context: Context | None = None,
        contexts: Mapping[str, Context] | None = None,
        unavailable: Sequence[str] = (),
        key: str | None = None,
        actor: str | None = None,
        dry_run: bool = False,
    ) -> Given | list[Given]:
        """Which arm one user gets, or some, or (None) all of them, in one transaction and from one state.

        Contexts are those of `open_episode` unless given here. `key` is the caller's own name for this request: a
        repeated one is answered with what was decided the first time. A dry run writes nothing.
        """
        if (contexts if isinstance(users, str) else context) is not None:
            raise InputError("give `context` when asking for one user, and `contexts` when asking for several")
        _names("unavailable", unavailable)
        if isinstance(users, str):
            given = self._ask(
                [users], {users: context} if context is not None else {}, unavailable, key, actor, dry_run
            )
            return given[0]
        return self._ask(users, dict(contexts or {}), unavailable, key, actor, dry_run)

    def _ask(
        self,
        users: Sequence[str] | None,
        contexts: dict[str, Context],
        unavailable: Sequence[str],
        key: str | None,
        actor: str | None,
        dry_run: bool,
    ) -> list[Given]:
        if key is not None:
            kinds.storable("key", key, kinds.LONGEST_KEY)
        with self._recorder.writing(dry_run=dry_run) as now:
            if key is not None and (before := self._answered(now.memory, now.ledger, key, users)):
                return before
            self._can_decide(now.memory)
            if now.memory.episode.number == 0:  # the first one need not be opened
                now.append([Draft(kinds.EPISODE, self._episode(now.memory, {}, {}))], actor)
            memory, ledger = now.memory, now.ledger
            names = list(memory.users) if users is None else list(users)
            if not names:
                raise InputError("there is nobody to decide for: add users first")
            if len(set(names)) < len(names):
                twice = next(u for u in names if names.count(u) > 1)
                raise InputError(f"user {twice!r} is asked for twice in one call")
            for name in [*names, *contexts]:
                if name not in memory.users:
                    raise UnknownNameError("user", name, memory.users)
            standing = {u: memory.episode.asked[u] for u in names if u in memory.episode.asked}
            new = [u for u in names if u not in standing]
            asked = [self._asked(memory, u, contexts.get(u), unavailable) for u in new]
            bodies = decide(memory, asked) if asked else []
            first = memory.counts.decisions + 1
            drafts = [
                Draft(kinds.DECISION, body, first + i, user, key)
                for i, (user, body) in enumerate(zip(new, bodies, strict=True))
            ]
            written = now.append(drafts, actor)
            old = self._standing(memory, ledger, standing)
        fresh = {str(e.user): self._given(memory, e) for e in written}
        return [fresh[u] if u in fresh else old[u] for u in names]

    def _asked(self, memory: Memory, user: str, context: Context | None, unavailable: Sequence[str]) -> Asked:
        profile = memory.profile(user)
        if context is not None:
            values = memory.problem.context(context)
        elif memory.problem.fields and user not in memory.episode.contexts:
            raise InputError(
                f"user {user!r} has no context in episode {memory.episode.number}; expected "
                f"{', '.join(memory.problem.fields)}: give it here or to open_episode"
            )
        else:
            known = memory.episode.contexts.get(user)
            values = None if known is None else np.array(known, dtype=np.float64)
        excluded = memory.excluded(user, unavailable)
        return Asked(profile, values, excluded, memory.problem.available(profile, excluded))

    def _answered(self, memory: Memory, ledger: Ledger, key: str, users: Sequence[str] | None) -> list[Given]:
        """What this request was answered with before: what it decided, and what had been decided in its episode."""
        found = {str(e.user): e for e in ledger.of_request(key) if e.kind == kinds.DECISION}
        if not found:
            return []
        same = next(iter(found.values())).body["episode"] == memory.episode.number
        asked = memory.episode.asked if same else {}
        names = [u for u in memory.users if u in found or u in asked] if users is None else list(users)
        if not set(found) <= set(names) or any(u not in found and u not in asked for u in names):
            raise ConflictError(f"request {key!r} was made before, for other users; give each request its own key")
        old = self._standing(memory, ledger, {u: asked[u] for u in names if u not in found})
        return [old[u] if u in old else self._given(memory, found[u], repeated=True) for u in names]

    def _standing(self, memory: Memory, ledger: Ledger, decisions: dict[str, int]) -> dict[str, Given]:
        found = ledger.of_decisions(list(decisions.values()))
        return {u: self._given(memory, found[n][0], repeated=True) for u, n in decisions.items()}

    def _given(self, memory: Memory, event: Event, *, repeated: bool = False) -> Given:
        return Given.of(event, memory.problem.arms, memory.problem.fields, repeated=repeated)

    def _can_decide(self, memory: Memory) -> None:
        if memory.status != "running":
            fix = "; resume it first" if memory.status == "paused" else ""
            raise ConflictError(f"trial {self.name!r} is {memory.status} and decides nothing{fix}")

    # Telling

    def tell(self, decision: int, outcome: Values, *, control: Values | None = None, actor: str | None = None) -> Told:
        """What came of a decision; metrics that are still to come may be left out and told later."""
        return self.tell_many([Report(decision, outcome, control)], actor=actor)[0]

    def tell_many(self, reports: Sequence[Report], *, actor: str | None = None, dry_run: bool = False) -> list[Told]:
        """Many outcomes in one transaction: all of them or, if one is refused, none."""
        reports = [replace(r, decision=_whole(r.decision)) for r in reports]
        with self._recorder.writing(dry_run=dry_run) as now:
            if len({r.decision for r in reports}) < len(reports):
                raise InputError("one decision is reported twice in one call; report each once")
            found = now.ledger.of_decisions([r.decision for r in reports])
            stories = {number: Story.of(events) for number, events in found.items()}
            drafts, answers = [], []
            for report, outcome in zip(reports, self._merged(now.memory, stories, reports), strict=True):
                story = stories[report.decision]
                if outcome == story.outcome:
                    answers.append(outcomes.told(now.memory, story, "already recorded", outcome))
                    continue
                body = {
                    "outcome": outcome,
                    "was": story.outcome,
                    "late": story.missing and story.outcome is None,  # it had been given up
                }
                drafts.append(Draft(kinds.OUTCOME, body, report.decision, story.event.user))
                state = "recorded" if story.outcome is None else "completed"
                answers.append(outcomes.told(now.memory, story, state, outcome))
            now.append(drafts, actor, {n: s.event for n, s in stories.items()})
        return answers

    def _merged(self, memory: Memory, stories: dict[int, Story], reports: Sequence[Report]) -> list[dict[str, Any]]:
        merged, errors = [], {}
        for i, report in enumerate(reports):
            try:
                if report.decision not in stories:
                    raise InputError(f"trial {self.name!r} has no decision {report.decision!r}")
                merged.append(outcomes.merged(memory, stories[report.decision], report))
            except InputError as error:
                if len(reports) == 1:
                    raise
                errors[i] = str(error)
        if errors:
            raise BatchError(errors, "report")
        return merged

    def amend(
        self,
        decision: int,
        outcome: Values,
        *,
        reason: str,
        control: Values | None = None,
        actor: str | None = None,
        dry_run: bool = False,
    ) -> Told:
        """Correct an outcome; the old value stays in the log. None takes a metric back."""
        _said(reason)
        decision = _whole(decision)
        with self._recorder.writing(dry_run=dry_run) as now:
            story = self._stories(now.ledger, [decision])[decision]
            new = outcomes.amended(now.memory, story, Report(decision, outcome, control))
            if new == story.outcome:
                return outcomes.told(now.memory, story, "already recorded", new)
            body = {"outcome": new, "was": story.outcome, "reason": reason}
            now.append([Draft(kinds.AMENDMENT, body, decision, story.event.user)], actor, {decision: story.event})
            return outcomes.told(now.memory, story, "amended", new)

    def mark_missing(self, decision: int, *, reason: str, actor: str | None = None, dry_run: bool = False) -> Told:
        """An outcome that will not come. Should it come after all, it can still be told."""
        _said(reason)
        decision = _whole(decision)
        with self._recorder.writing(dry_run=dry_run) as now:
            memory, ledger = now.memory, now.ledger
            story = self._stories(ledger, [decision])[decision]
            if story.outcome is not None:
                raise ConflictError(f"decision {decision} has an outcome; it is not missing")
            if not story.missing:
                draft = Draft(kinds.MISSING, {"reason": reason}, decision, story.event.user)
                now.append([draft], actor, {decision: story.event})
            return outcomes.told(memory, story, "already recorded" if story.missing else "missing", None)

    def _stories(self, ledger: Ledger, decisions: Sequence[int]) -> dict[int, Story]:
        found = ledger.of_decisions(list(decisions))
        for number in decisions:
            if number not in found:
                raise InputError(f"trial {self.name!r} has no decision {number!r}")
        return {number: Story.of(events) for number, events in found.items()}

    # Running the trial

    def open_episode(
        self,
        contexts: Mapping[str, Context] | None = None,
        *,
        number: int | None = None,
        unavailable: Mapping[str, Sequence[str]] | None = None,
        actor: str | None = None,
    ) -> int:
        """Start the next episode, with the contexts of its users; returns its number.

        `unavailable` names arms for each user that cannot get them, or under "" for all. With `number`, opening an
        episode that is open already does nothing: safe to repeat.
        """
        with self._recorder.writing() as now:
            memory = now.memory
            current = memory.episode.number
            if number is not None and number == current:
                return current
            if memory.status != "running":
                raise ConflictError(f"trial {self.name!r} is {memory.status}; no episode can be opened")
            if number is not None and number != current + 1:
                raise ConflictError(f"episode {number} cannot be opened: the next one is {current + 1}")
            body = self._episode(memory, contexts or {}, unavailable or {})
            now.append([Draft(kinds.EPISODE, body)], actor)
            return current + 1

    def _episode(
        self, memory: Memory, contexts: Mapping[str, Context], unavailable: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        """The next episode, as it is written down."""
        body: dict[str, Any] = {"episode": memory.episode.number + 1, "contexts": {}, "unavailable": {}}
        for user, values in contexts.items():
            if user not in memory.users:
                raise UnknownNameError("user", user, memory.users)
            if (vector := memory.problem.context(values)) is not None:
                body["contexts"][user] = vector.tolist()
        for user, arms in unavailable.items():
            if user and user not in memory.users:
                raise UnknownNameError("user", user, memory.users)
            for arm in _names("unavailable", arms):
                memory.problem.arm(arm)
            for name in [user] if user else memory.users:
                memory.problem.available(memory.profile(name), [*memory.retired, *arms])
            body["unavailable"][user] = sorted(arms)
        memory.episode_offers(body["contexts"])  # refuses what the policy could not begin with
        return body

    def add_user(self, name: str, user: User | Mapping[str, Any], *, actor: str | None = None) -> None:
        """Let somebody join."""
        definition = _valid(User, user, ("users", name))
        with self._recorder.writing() as now:
            memory = now.memory
            if name in memory.users:
                raise ConflictError(f"there is a user {name!r} already")
            _raise(
                [
                    *faults.name_faults(name, ("users", name)),
                    *faults.user_faults(memory.spec, definition, ("users", name)),
                ]
            )
            at = ("users", name, "control")
            controls = [u.control or memory.spec.control for _, u in memory.definitions[:1]]
            own = definition.control or memory.spec.control
            _raise(list(faults.plot_faults(memory.spec, memory.policy, own, next(iter(controls), None), at)))
            profile = memory.problem.profile(name, definition, len(memory.profiles))
            memory.problem.available(profile, memory.retired)  # refuses a control that is retired
            body = {"definition": definition.model_dump(mode="json", exclude_none=True)}
            now.append([Draft(kinds.USER, body, user=name)], actor)

    def change_preference(
        self, user: str, preference: Mapping[str, float], *, reason: str, actor: str | None = None
    ) -> None:
        """From now on this user weighs the metrics differently; what was learned about the arms is kept."""
        _said(reason)
        with self._recorder.writing() as now:
            memory = now.memory
            if user not in memory.users:
                raise UnknownNameError("user", user, memory.users)
            given: Any = preference  # callers are not always typed
            weights = dict(given) if isinstance(given, Mapping) else given
            new = _valid(User, {"preference": weights}, ("users", user))
            _raise(list(faults.preference_faults(memory.spec, new.preference or {}, ("users", user, "preference"))))
            body = {"preference": new.preference, "reason": reason}
            now.append([Draft(kinds.PREFERENCE, body, user=user)], actor)

    def change_control(
        self, user: str, control: str | Mapping[str, float], *, reason: str, actor: str | None = None
    ) -> None:
        """From now on this user is compared with another control; past decisions keep theirs."""
        _said(reason)
        with self._recorder.writing() as now:
            memory = now.memory
            if user not in memory.users:
                raise UnknownNameError("user", user, memory.users)
            at = ("users", user)
            wanted = dict(control) if isinstance(control, Mapping) else control
            new = memory.definition(user).model_copy(update={"control": _valid(User, {"control": wanted}, at).control})
            _raise(list(faults.user_faults(memory.spec, new, at)))
            memory.problem.available(memory.problem.profile(user, new, 0), memory.retired)
            body = {"control": new.control, "reason": reason}
            now.append([Draft(kinds.CONTROL, body, user=user)], actor)

    def add_arm(
        self,
        name: str,
        arm: Arm | Mapping[str, Any] | None = None,
        *,
        noise: ArmNoise | Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> None:
        """Offer one more arm from now on. A changed arm is a new arm."""
        definition = _valid(Arm, arm or {}, ("arms", name))
        own = None if noise is None else _valid(ArmNoise, noise, ("noise", "arms", name))
        with self._recorder.writing() as now:
            memory = now.memory
            if name in memory.spec.arms:
                raise ConflictError(f"there is an arm {name!r} already; a changed arm is a new arm with a new name")
            _raise([*faults.name_faults(name, ("arms", name)), *faults.arm_faults(memory.spec, name, definition)])
            body: dict[str, Any] = {"arm": name, "definition": definition.model_dump(mode="json", exclude_none=True)}
            if own is not None:
                body["noise"] = {name: own.model_dump(mode="json", exclude_none=True)}
            grown = memory.with_arm(body)
            _raise(faults.cross_faults(grown))
            build_policy(grown, Problem(grown).shape.d)
            now.append([Draft(kinds.ARM, body)], actor)

    def retire_arm(self, name: str, *, reason: str, actor: str | None = None) -> None:
        """Never decide for this arm again; what was decided and learned stays."""
        _said(reason)
        with self._recorder.writing() as now:
            memory = now.memory
            memory.problem.arm(name)
            if name in memory.retired:
                return
            for user in memory.users:
                memory.problem.available(memory.profile(user), [*memory.retired, name])
            now.append([Draft(kinds.RETIRED, {"arm": name, "reason": reason})], actor)

    def pause(self, *, reason: str, actor: str | None = None) -> None:
        """Decide nothing until `resume`; outcomes are still taken."""
        self._turn(kinds.PAUSED, ("running",), reason, actor)

    def resume(self, *, reason: str = "", actor: str | None = None) -> None:
        """Decide again."""
        self._turn(kinds.RESUMED, ("paused",), reason, actor)

    def stop(self, *, reason: str, actor: str | None = None) -> None:
        """Decide nothing any more, for good; outcomes are still taken."""
        self._turn(kinds.STOPPED, ("running", "paused"), reason, actor)

    def _turn(self, kind: str, allowed: tuple[str, ...], reason: str, actor: str | None) -> None:
        if kind != kinds.RESUMED:
            _said(reason)
        with self._recorder.writing() as now:
            memory = now.memory
            if memory.status not in allowed:
                raise ConflictError(f"trial {self.name!r} is {memory.status}; it cannot be {kind}")
            now.append([Draft(kind, {"reason": reason})], actor)

    # Looking

    def memory(self) -> Memory:
        """Everything that is known now."""
        return self._recorder.memory()

    def status(self) -> Status:
        """The trial at a glance."""
        memory = self.memory()
        spec, counts = memory.spec, memory.counts
        return Status(
            name=self.name,
            about=spec.about,
            status=memory.status,
            episode=memory.episode.number,
            users=len(memory.users),
            arms=memory.problem.arms,
            retired=memory.retired,
            decisions=counts.decisions,
            answered=counts.answered,
            awaited=counts.awaited,
            missing=counts.missing,
            amended=counts.amended,
            policy=spec.policy.name,
            created=memory.created.time,
            events=memory.seq,
            hash=memory.hash,
            notes=notes(spec, memory.problem.shape.d),
        )

    def preview(self) -> list[Given]:
        """What would be decided now for every user, in its context of this episode or a typical one; writes nothing."""
        with self._recorder.writing(dry_run=True) as now:
            memory = now.memory
            self._can_decide(memory)
            typical = {name: f.typical for name, f in memory.spec.context.items()}
            known = {u: None if u in memory.episode.contexts or not typical else typical for u in memory.users}
            asked = [self._asked(memory, user, context, ()) for user, context in known.items()]
            bodies = decide(memory, asked) if asked else []
            first = memory.counts.decisions + 1
            drafts = [
                Draft(kinds.DECISION, body, first + i, user)
                for i, (user, body) in enumerate(zip(known, bodies, strict=True))
            ]
            return [self._given(memory, event) for event in now.append(drafts, None)]

    def decision(self, number: int) -> tuple[Given, list[Event]]:
        """One decision, and everything recorded about it."""
        number, memory = _whole(number), self.memory()
        with self.store.reading(self.name) as ledger:
            story = ledger.of_decisions([number])
        if number not in story:
            raise InputError(f"trial {self.name!r} has no decision {number!r}")
        return self._given(memory, story[number][0]), story[number]

    def decisions(self, numbers: Sequence[int]) -> dict[int, Given]:
        """Several decisions; those that do not exist are left out."""
        memory = self.memory()
        with self.store.reading(self.name) as ledger:
            found = ledger.of_decisions(list(numbers))
        return {number: self._given(memory, events[0]) for number, events in found.items()}

    def log(
        self,
        *,
        after: int = 0,
        kinds: Sequence[str] = (),
        user: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[Event]:
        """The events, as they were recorded."""
        with self.store.reading(self.name) as ledger:
            yield from ledger.events(after=after, kinds=kinds, user=user, limit=limit, newest_first=newest_first)

    def stories(self) -> Iterator[Story]:
        """Every decision with its outcome as it stands, in order."""
        last = self.memory().counts.decisions
        with self.store.reading(self.name) as ledger:
            for first in range(1, last + 1, STORIES):
                for events in ledger.of_decisions(range(first, min(first + STORIES, last + 1))).values():
                    yield Story.of(events)

    def rows(self) -> Iterator[Row]:
        """The same, with everything by its name."""
        memory = self.memory()
        for story in self.stories():
            outcome = story.outcome or {"metrics": {}, "control": None}
            profile = memory.profiles[story.event.body["profile"]]
            yield Row(
                given=self._given(memory, story.event),
                state="told" if story.outcome else "missing" if story.missing else "awaited",
                outcome={m: outcome["metrics"].get(m) for m in memory.problem.metrics},
                control=outcome["control"],
                reward=None if story.outcome is None else memory.reward(profile, outcome),
                amendments=story.amendments,
            )


def _whole(decision: object) -> int:
    if isinstance(decision, bool) or not isinstance(decision, int | np.integer):
        raise InputError(f"a decision is known by its number, got {decision!r}")
    return int(decision)


def _names(what: str, names: Sequence[str]) -> Sequence[str]:
    if isinstance(names, str):
        raise InputError(f"{what} must be a list of arms, got the text {names!r}; write [{names!r}]")
    return names


def _said(reason: str) -> None:
    if not reason.strip():
        raise InputError("a reason is needed: it is kept in the log")


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
