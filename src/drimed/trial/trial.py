"""A live trial: ask which arm a user gets, tell its outcome.

Every call is one transaction on the store: whatever other processes recorded is folded in first, then the decision or
the outcome is appended and made durable, and only then returned.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, Unpack

from sqlalchemy.exc import SQLAlchemyError

from drimed import records
from drimed.errors import ConflictError, HaltedError, InputError, StoreError
from drimed.records import AskRequest, Context, Decision, Receipt, Report, Values
from drimed.trial import ask as asking
from drimed.trial import blinding, changes, queries, stopping
from drimed.trial import tell as telling
from drimed.trial.ask import Definition
from drimed.trial.event_checks import check_start
from drimed.trial.events import Calibration, Created, Draft, HistoryRead, Rehearsed, chain, now
from drimed.trial.past import of_trial as past_of_trial
from drimed.trial.spec import Arm, ArmNoise, TrialSpec
from drimed.trial.state import start_of
from drimed.trial.store import Store, checked
from drimed.trial.transaction import Transaction, TrialSession, Write

T = TypeVar("T")


class Trial(TrialSession):
    """One trial in one store; threads may share it.

    >>> from drimed.trial.store import MemoryStore
    >>> trial = Trial.create({"name": "t", "metrics": {"yield": {}}, "arms": {"old": {}, "new": {}}, "control": "old",
    ...     "preference": {"yield": 1.0}, "users": {"north": {}}, "tolerance": {"absolute": 0.5}}, MemoryStore())
    >>> decision = trial.ask("north")
    >>> trial.tell(decision.id, {"yield": 5.0}).result
    'recorded'
    """

    @staticmethod
    def create(
        spec: TrialSpec | Mapping[str, Any],
        store: Store,
        *,
        actor: str = "python",
        clock: Callable[[], str] = now,
        rehearsal: Rehearsed | None = None,
        history: HistoryRead | Path | str | None = None,
        calibration: Calibration | None = None,
        also: Callable[[Transaction], object] = lambda _: None,
    ) -> Trial:
        """A new trial, with what was seen of it in a rehearsal; `also` is called in the same transaction.

        Its `notes` are what `drimed trial init` says of it: what a person should know before the first decision.
        `calibration` has the bounds of calibrated stopping rules, from `drimed.rehearsal.calibration.calibrate`.
        `history` is a file of outcomes from before the trial, where they are not in the spec (docs/trial_file.md).
        """
        checked(store)
        trial = TrialSpec.read(spec.plain() if isinstance(spec, TrialSpec) else spec)
        past = history if isinstance(history, HistoryRead) else past_of_trial(trial, None, history)
        if trial.history is not None:
            if past is None:
                fix = "give it as `history`, or its text as `sheet` under [history]"
                raise InputError(f"the trial has a history, whose sheet must come with it: {fix}", ("history",))
            trial = trial.model_copy(update={"history": trial.history.model_copy(update={"sheet": None})})
        seed = trial.seed if trial.seed is not None else secrets.randbits(62)
        versions = version("numpy"), version("drimed")
        draft, time = Draft(Created(trial.plain(), seed, *versions, rehearsal, calibration)), clock()
        with store.create(trial.name) as ledger:
            (created,) = chain([draft], seq=ledger.seq, hash=ledger.hash, time=time, actor=actor)
            check_start(created)
            ledger.append([created])
            tx = Transaction(start_of(ledger), ledger, time, actor)
            if past is not None:
                tx.append([Draft(past)])
            also(tx)
        return Trial(trial.name, store, actor=actor, clock=clock)

    @staticmethod
    def open(
        name: str,
        store: Store,
        *,
        actor: str = "python",
        clock: Callable[[], str] = now,
        anchors: Path | None = None,
    ) -> Trial:
        """A trial that exists; `anchors` is a file that gets its hash with every episode (docs/verify.md)."""
        trial = Trial(name, store, actor=actor, clock=clock, anchors=anchors)
        trial.state()
        return trial

    @property
    def notes(self) -> list[str]:
        """What a person should know about the file before the first decision."""
        return self.status().notes

    # Asking

    def ask(
        self,
        user: str,
        *,
        context: Context | None = None,
        attributes: Mapping[str, float | str] | None = None,
        cohort: str | None = None,
        plot: str | None = None,
        block: str | None = None,
        actor: str | None = None,
        dry_run: bool = False,
        **options: Unpack[records.AskOptions],
    ) -> Decision:
        """Decide which arm one user gets; where it has plots, on this one.

        With open enrolment a new user joins with these `attributes` and the defaults of this `cohort`. The other
        parameters are those of `ask_many`.
        """
        if not isinstance(user, str):
            raise InputError(f"expected the name of one user, got {user!r}; ask_many takes several", ("user",))
        request = AskRequest.of_user(
            user, context=context, attributes=attributes, cohort=cohort, plot=plot, block=block, **options
        )
        return self.decide(lambda tx: asking.ask(tx, request, one=True), actor=actor, dry_run=dry_run)[0]

    def ask_many(
        self,
        users: Sequence[str] | None = None,
        *,
        contexts: Mapping[str, Context] | None = None,
        enrol: Mapping[str, Mapping[str, Any]] | None = None,
        plots: Mapping[str, records.Plots] | None = None,
        actor: str | None = None,
        dry_run: bool = False,
        **options: Unpack[records.AskOptions],
    ) -> list[Decision]:
        """Decide for some users, or (None) for all of them, in one transaction and from one state.

        With open enrolment new users join as `enrol` describes them: {user: {"attributes": {...}, "cohort": ...}}. A
        user with plots gets a decision for each of them, or for those that `plots` names: {user: [plot, ...]} or
        {user: {block: [plot, ...]}}.

        `unavailable` arms are not given to these users. `episode` is the episode that this is for; the next one is
        opened with these contexts. `season` does the same by name ("spring 2026"), and `date` is when a new one begins
        ("2026-03-15"). Contexts are those of `open_episode` unless given here. `key` is an idempotency key: a repeated
        request is answered with the first decisions. Unlikely contexts and attributes, and undeclared plots, are
        refused with UnconfirmedError unless `confirm` is set. A dry run shows the probabilities and no arm: the one
        that will be drawn is concealed.
        """
        request = AskRequest(users=users, contexts=contexts or {}, enrol=enrol or {}, plots=plots or {}, **options)
        return self.decide(lambda tx: asking.ask(tx, request), actor=actor, dry_run=dry_run)

    def give_control(
        self,
        user: str,
        arm: str,
        *,
        reason: str,
        context: Context | None = None,
        attributes: Mapping[str, float | str] | None = None,
        key: str | None = None,
        actor: str | None = None,
    ) -> Decision:
        """Record that a user got its control without a draw, because nobody could wait for `ask` with this key."""
        request = AskRequest.of_user(user, context=context or None, attributes=attributes or None, key=key)
        return self.decide(lambda tx: asking.give_control(tx, request, arm, reason), actor=actor)

    def commit_all(self, writes: Sequence[Write[T]]) -> list[T | Exception]:
        """The answer or the error of each of several writes that came at the same time; all is durable together.

        Questions come last, and those about different users are decided from one state. If the store fails, nothing of
        it is there, and each is written by itself; and so it is while decisions are slow.
        """
        if len(writes) > 1 and self.slow is False and not any(write.large for write in writes):
            with suppress(SQLAlchemyError, StoreError, ConflictError):
                answers = dict[int, Any]()
                with self.writing() as tx:
                    answers |= {i: self._beside_others(tx, w) for i, w in enumerate(writes) if w.question is None}
                    while left := {i: w for i, w in enumerate(writes) if i not in answers}:
                        answers |= self._decide_together(tx, left)
                return [answers[i] for i in range(len(writes))]
        return [_outcome(partial(self.commit, write)) for write in writes]

    def _beside_others(self, tx: Transaction, write: Write[Any]) -> Any:
        """The answer to a write, or its error, in the transaction of several."""
        own = replace(tx, actor=write.actor or self._actor)
        try:
            with tx.ledger.all_or_nothing():
                try:
                    answer = self._answer(own, write)
                except HaltedError as error:  # the look that led to it is recorded
                    answer = error
        except Exception as error:
            if isinstance(error, StoreError) or isinstance(error.__cause__ or error, SQLAlchemyError):
                raise  # the database has ended the transaction
            return error
        tx.state = own.state
        return answer

    def _decide_together(self, tx: Transaction, writes: Mapping[int, Write[Any]]) -> dict[int, Any]:
        """Answers to the first question, and to others about other users."""
        joint, asked, alone, users = replace(tx), dict[int, asking.Asked](), list[int](), set[object]()
        answers = dict[int, Any]()
        try:
            with tx.ledger.all_or_nothing():
                for i, write in writes.items():
                    request, _ = write.question or (AskRequest(), None)
                    if request.users is None or request.unavailable:
                        alone.append(i)
                    elif not users.isdisjoint(request.users):
                        continue
                    elif (one := self._prepared(joint, write, request)) is None:
                        alone.append(i)
                    elif users.isdisjoint(slots := {q.profile for q in one.questions}):
                        asked[i] = one
                        users |= {*request.users, *slots}
                start = time.thread_time()
                given = dict(zip(asked, asking.take(joint, list(asked.values())), strict=True))
                self._judge(tx.state, joint.state, time.thread_time() - start)
        except (InputError, ConflictError):  # as if each had come by itself
            given, alone = {}, sorted([*alone, *asked])
        else:
            tx.state = joint.state
        for i, decisions in given.items():
            if (question := writes[i].question) is not None:
                answers[i] = answer = question[1](decisions)
                writes[i].keep(tx.ledger, answer)
        answers.update((i, self._beside_others(tx, writes[i])) for i in alone)
        return answers

    def _prepared(self, tx: Transaction, write: Write[T], request: AskRequest) -> asking.Asked | None:
        """A question that only lacks its decisions; None: it is answered by itself, perhaps by a refusal."""
        own = replace(tx, actor=write.actor or self._actor)
        with suppress(Exception), tx.ledger.all_or_nothing():
            if write.find(tx.ledger) is not None or not (one := asking.prepare(own, request)).questions:
                raise ConflictError("nothing is left to decide")
            tx.state = own.state
            return one
        return None

    def preview(self) -> list[Decision]:
        """Probabilities of the arms, now, for every user and plot, in its context of this episode or a typical one."""
        with self.writing(dry_run=True) as tx:
            return asking.preview(tx)

    def open_episode(
        self,
        contexts: Mapping[str, Context] | None = None,
        *,
        number: int | None = None,
        unavailable: Mapping[str, Sequence[str]] | None = None,
        name: str | None = None,
        date: str | None = None,
        confirm: bool = False,
        actor: str | None = None,
    ) -> int:
        """Start the next episode, with the contexts of its users; returns its number.

        It may have a name ("spring 2026") and a date ("2026-03-15"). `unavailable` names arms for each user that cannot
        get them, or under "" for all. With `number` or `name`, opening an episode that is open already does nothing:
        safe to repeat. Unlikely contexts are refused with UnconfirmedError unless `confirm` is set.
        """
        with self.writing(actor) as tx:
            return asking.open_episode(tx, contexts, number, unavailable, name=name, date=date, confirm=confirm)

    # Telling

    def tell(
        self,
        decision: int,
        outcome: Values,
        *,
        control: Values | None = None,
        given: str | None = None,
        reason: str | None = None,
        confirm: bool = False,
        actor: str | None = None,
    ) -> Receipt:
        """The outcome of a decision; metrics that are still to come may be left out and told later.

        `given` says, with a `reason`, that another arm was given than was drawn, or "other": none of the trial's.

        A value outside its declared range, or far from all that was recorded, is refused with UnconfirmedError unless
        `confirm` is set.
        """
        return self.tell_many([Report(decision, outcome, control, given, reason)], confirm=confirm, actor=actor)[0]

    def tell_many(
        self, reports: Sequence[Report], *, confirm: bool = False, actor: str | None = None, dry_run: bool = False
    ) -> list[Receipt]:
        """Many outcomes in one transaction: all of them or, if one is refused, none."""
        with self.writing(actor, dry_run=dry_run) as tx:
            return telling.tell(tx, reports, confirm=confirm)

    def amend(
        self,
        decision: int,
        outcome: Values,
        *,
        reason: str,
        control: Values | None = None,
        given: str | None = None,
        saw: Report | Decision | Values | None = None,
        confirm: bool = False,
        actor: str | None = None,
        dry_run: bool = False,
    ) -> Receipt:
        """Correct an outcome, or what was `given`; the old value stays in the log. None takes a metric back.

        With `saw`, the values as you read them or the decision itself, it is refused if one of them has changed since.
        """
        if isinstance(saw, Decision):
            saw = Report(saw.id, saw.outcome or {}, saw.control)
        elif saw is not None and not isinstance(saw, Report):
            saw = Report(decision, saw)
        with self.writing(actor, dry_run=dry_run) as tx:
            report = Report(decision, outcome, control, given)
            return telling.amend(tx, report, reason=reason, saw=saw, confirm=confirm)

    def mark_missing(self, decision: int, *, reason: str, actor: str | None = None, dry_run: bool = False) -> Receipt:
        """Mark the rest of an outcome as missing. If it comes after all, it can still be told."""
        with self.writing(actor, dry_run=dry_run) as tx:
            return telling.mark_missing(tx, decision, reason)

    # Changing

    def add_user(self, name: str, user: Definition, *, confirm: bool = False, actor: str | None = None) -> None:
        """Enrol a user; unlikely attributes are refused with UnconfirmedError unless `confirm` is set."""
        with self.writing(actor) as tx:
            asking.add_user(tx, name, user, confirm=confirm)

    def change_preference(
        self, user: str, preference: Mapping[str, float], *, reason: str, actor: str | None = None
    ) -> None:
        """From now on this user weighs the metrics differently; what was learned about the arms is kept."""
        self._change("change_preference", actor, user=user, preference=preference, reason=reason)

    def change_control(
        self, user: str, control: str | Mapping[str, float], *, reason: str, actor: str | None = None
    ) -> None:
        """From now on this user is compared with another control; past decisions keep theirs."""
        self._change("change_control", actor, user=user, control=control, reason=reason)

    def add_arm(
        self,
        name: str,
        arm: Arm | Mapping[str, Any] | None = None,
        *,
        noise: ArmNoise | Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> None:
        """Offer one more arm from now on. A changed arm is a new arm."""
        with self.writing(actor) as tx:
            changes.add_arm(tx, name, arm, noise)

    def retire_arm(self, name: str, *, reason: str, actor: str | None = None) -> None:
        """Never give this arm again; what was decided and learned stays."""
        self._change("retire_arm", actor, arm=name, reason=reason)

    def pause(self, *, reason: str, actor: str | None = None) -> None:
        """Decide nothing until `resume`; outcomes are still taken."""
        self._change("pause", actor, reason=reason)

    def resume(self, *, reason: str = "", actor: str | None = None) -> None:
        """Decide again."""
        self._change("resume", actor, reason=reason)

    def stop(self, *, reason: str, actor: str | None = None) -> None:
        """Decide nothing more, for good; outcomes are still taken."""
        self._change("stop", actor, reason=reason)

    def reveal(self, decision: int | None = None, *, reason: str, actor: str | None = None) -> records.Opening:
        """Open the code for one decision, in an emergency, or (None) for all; who did it and why stays in the log."""
        with self.writing(actor) as tx:
            return blinding.reveal(tx, decision, reason)

    def look(self, *, actor: str | None = None, dry_run: bool = False) -> records.Look:
        """Evaluate the stopping rules now; the look is recorded, and so is a pause or a stop that they demand."""
        with self.writing(actor, dry_run=dry_run) as tx:
            return stopping.record_look(tx)

    def change_rules(self, stopping: Mapping[str, Any], *, reason: str, actor: str | None = None) -> None:
        """Replace the stopping rules, as they stand under [stopping] in a trial file."""
        self._change("change_rules", actor, stopping=stopping, reason=reason)

    def _change(self, name: str, actor: str | None, **fields: Any) -> None:
        change = changes.CHANGES[name]
        with self.writing(actor) as tx:
            change.apply(tx, changes.checked(change.body, fields))

    # Reading: more in drimed.trial.queries

    def head(self) -> records.Head:
        """The last event and its hash: keep them elsewhere, and `verify` can tell later if anything was changed."""
        with self.store.reading(self.name) as ledger:
            return records.Head(self.name, ledger.seq, ledger.hash, self.clock())

    def status(self) -> records.Status:
        """The trial at a glance."""
        return queries.status(self.state())

    def decision(self, number: int) -> Decision:
        """One decision with its outcome."""
        with self.reading() as (ledger, state):
            return queries.decision(ledger, state, number)

    def decisions(self, numbers: Sequence[int] | None = None) -> Iterator[Decision]:
        """Decisions with their outcomes, in order: some, or (None) all; those that do not exist are left out."""
        with self.reading() as (ledger, state):
            yield from queries.decisions(ledger, state, numbers)

    def log(
        self,
        *,
        after: int = 0,
        kinds: Sequence[str] = (),
        user: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[records.Event]:
        """The events, as they were recorded."""
        with self.store.reading(self.name) as ledger:
            yield from ledger.events(after=after, kinds=kinds, user=user, limit=limit, newest_first=newest_first)


def _outcome(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except Exception as error:
        return error
