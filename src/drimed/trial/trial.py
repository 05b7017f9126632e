"""A live trial: ask which arm a user gets, tell what came of it.

Every call is one transaction on the store: whatever other processes wrote is folded in first, then the decision or the
outcome is appended and made durable, and only then given back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from drimed.errors import InputError
from drimed.trial import asking, running, telling
from drimed.trial import events as kinds
from drimed.trial.build import notes
from drimed.trial.events import Draft, Event, chain, now
from drimed.trial.memory import Memory
from drimed.trial.outcomes import Report, Story, Values
from drimed.trial.recorder import Recorder
from drimed.trial.records import Given, Row, Status, Told
from drimed.trial.running import Context
from drimed.trial.spec import Arm, ArmNoise, TrialSpec, User
from drimed.trial.stores.store import Store

STORIES = 1000  # decisions that are fetched at a time


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
        repeated one is answered with what was decided the first time. (One that only gave again what had been decided
        in its episode leaves no trace: repeated in a later episode, it decides.) A dry run writes nothing.
        """
        if (contexts if isinstance(users, str) else context) is not None:
            raise InputError("give `context` when asking for one user, and `contexts` when asking for several")
        one = isinstance(users, str)
        names = [users] if isinstance(users, str) else users
        own = {str(users): context} if context is not None else dict(contexts or {})
        with self._recorder.writing(actor, dry_run=dry_run) as now:
            given = asking.ask(now, names, own, running.arm_names(unavailable), key)
        return given[0] if one else given

    def preview(self) -> list[Given]:
        """What would be decided now for every user, in its context of this episode or a typical one; writes nothing."""
        with self._recorder.writing(None, dry_run=True) as now:
            return asking.preview(now)

    # Telling

    def tell(self, decision: int, outcome: Values, *, control: Values | None = None, actor: str | None = None) -> Told:
        """What came of a decision; metrics that are still to come may be left out and told later."""
        return self.tell_many([Report(decision, outcome, control)], actor=actor)[0]

    def tell_many(self, reports: Sequence[Report], *, actor: str | None = None, dry_run: bool = False) -> list[Told]:
        """Many outcomes in one transaction: all of them or, if one is refused, none."""
        with self._recorder.writing(actor, dry_run=dry_run) as now:
            return telling.tell(now, reports)

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
        with self._recorder.writing(actor, dry_run=dry_run) as now:
            return telling.amend(now, Report(decision, outcome, control), reason)

    def mark_missing(self, decision: int, *, reason: str, actor: str | None = None, dry_run: bool = False) -> Told:
        """An outcome that will not come. Should it come after all, it can still be told."""
        with self._recorder.writing(actor, dry_run=dry_run) as now:
            return telling.mark_missing(now, decision, reason)

    # Running

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
        with self._recorder.writing(actor) as now:
            return running.open_episode(now, contexts or {}, number, unavailable or {})

    def add_user(self, name: str, user: User | Mapping[str, Any], *, actor: str | None = None) -> None:
        """Let somebody join."""
        with self._recorder.writing(actor) as now:
            running.add_user(now, name, user)

    def change_preference(
        self, user: str, preference: Mapping[str, float], *, reason: str, actor: str | None = None
    ) -> None:
        """From now on this user weighs the metrics differently; what was learned about the arms is kept."""
        with self._recorder.writing(actor) as now:
            running.change_preference(now, user, preference, reason)

    def change_control(
        self, user: str, control: str | Mapping[str, float], *, reason: str, actor: str | None = None
    ) -> None:
        """From now on this user is compared with another control; past decisions keep theirs."""
        with self._recorder.writing(actor) as now:
            running.change_control(now, user, control, reason)

    def add_arm(
        self,
        name: str,
        arm: Arm | Mapping[str, Any] | None = None,
        *,
        noise: ArmNoise | Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> None:
        """Offer one more arm from now on. A changed arm is a new arm."""
        with self._recorder.writing(actor) as now:
            running.add_arm(now, name, arm or {}, noise)

    def retire_arm(self, name: str, *, reason: str, actor: str | None = None) -> None:
        """Never decide for this arm again; what was decided and learned stays."""
        with self._recorder.writing(actor) as now:
            running.retire_arm(now, name, reason)

    def pause(self, *, reason: str, actor: str | None = None) -> None:
        """Decide nothing until `resume`; outcomes are still taken."""
        with self._recorder.writing(actor) as now:
            running.turn(now, kinds.PAUSED, reason)

    def resume(self, *, reason: str = "", actor: str | None = None) -> None:
        """Decide again."""
        with self._recorder.writing(actor) as now:
            running.turn(now, kinds.RESUMED, reason)

    def stop(self, *, reason: str, actor: str | None = None) -> None:
        """Decide nothing any more, for good; outcomes are still taken."""
        with self._recorder.writing(actor) as now:
            running.turn(now, kinds.STOPPED, reason)

    # Looking

    def learn_from(self, other: Trial) -> None:
        """Take over what another copy of this trial has read already, instead of reading it again."""
        self._recorder.learn_from(other._recorder)

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

    def decision(self, number: int) -> tuple[Given, list[Event]]:
        """One decision, and everything recorded about it."""
        number, memory = telling.whole(number), self.memory()
        with self.store.reading(self.name) as ledger:
            story = ledger.of_decisions([number])
        if number not in story:
            raise telling.unknown_decision(self.name, number)
        return asking.given(memory, story[number][0]), story[number]

    def decisions(self, numbers: Sequence[int]) -> dict[int, Given]:
        """Several decisions; those that do not exist are left out."""
        memory = self.memory()
        with self.store.reading(self.name) as ledger:
            found = ledger.of_decisions(list(numbers))
        return {number: asking.given(memory, events[0]) for number, events in found.items()}

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

    def stories(self, memory: Memory, numbers: Sequence[int] | None = None) -> Iterator[Story]:
        """Decisions with their outcomes as this memory knows them, in order: some, or (None) all."""
        wanted = range(1, memory.counts.decisions + 1) if numbers is None else sorted(numbers)
        until = memory.seq
        with self.store.reading(self.name) as ledger:
            for first in range(0, len(wanted), STORIES):
                for events in ledger.of_decisions(wanted[first : first + STORIES]).values():
                    yield Story.of([e for e in events if e.seq <= until])

    def rows(self) -> Iterator[Row]:
        """The same, with everything by its name."""
        memory = self.memory()
        for story in self.stories(memory):
            outcome = story.outcome or {"metrics": {}, "control": None}
            profile = memory.profiles[story.event.body["profile"]]
            yield Row(
                given=asking.given(memory, story.event),
                state="told" if story.outcome else "missing" if story.missing else "awaited",
                outcome={m: outcome["metrics"].get(m) for m in memory.problem.metrics},
                control=outcome["control"],
                reward=None if story.outcome is None else memory.reward(profile, outcome),
                amendments=story.amendments,
            )
