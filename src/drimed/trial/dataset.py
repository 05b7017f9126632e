"""A trial's decisions and outcomes as arrays.

Shapes: n decisions in order, K arms, M metrics, D context fields, H users as they are now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from drimed.errors import InputError
from drimed.evaluation.decision_log import Log, make_log
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.records import COMPLETE, PARTIAL, PENDING, STATES, Event
from drimed.records import MISSING as WILL_NOT_COME
from drimed.trial.events import AMENDMENT, DECISION, MISSING, OUTCOME
from drimed.trial.state import TrialState
from drimed.trial.store import Ledger

AT_ONCE = 5000  # decisions of which tables by arm are worked on together
MOST_LISTS = 64  # that are remembered
_ABOUT = (DECISION, OUTCOME, AMENDMENT, MISSING)


@dataclass(frozen=True)
class Gathered:
    """Every decision with its outcome."""

    state: TrialState
    number: IntArray  # (n,)
    episode: IntArray  # (n,), from 1
    slot: IntArray  # (n,), profile
    arm: IntArray  # (n,)
    probabilities: FloatArray  # (n, K)
    propensity: FloatArray  # (n,), NaN: unknown
    held: BoolArray  # (n,), the guard changed the rule's proposal
    context: FloatArray | None  # (n, D)
    vector: FloatArray  # (n, M), in the metrics' units, against the control plot where there is one; 0 if not there
    observed: BoolArray  # (n, M)
    reward: FloatArray  # (n,), NaN: a metric that counts is not there
    standing: IntArray  # (n,), the decision's state, by its place in records.STATES
    block: IntArray  # (n,), the number of its block; 0: none
    plot: FloatArray  # (n, M), of the control plot beside it, in the metrics' units; NaN: not there
    floor: FloatArray | None = None  # (n, 2), of the control and of every arm; None: the trial has no floors

    @property
    def told(self) -> BoolArray:
        """Decisions with any outcome: (n,)."""
        return np.asarray(self.observed.any(-1))

    @cached_property
    def user(self) -> IntArray:
        """Whom each decision was for, by the place among the users: (n,)."""
        place = {name: h for h, name in enumerate(self.state.users)}
        slots = range(len(self.state.profiles))
        return np.array([place[self.state.profiles[s].user] for s in slots], np.intp)[self.slot]

    @property
    def size(self) -> int:
        """Bytes of memory."""
        columns = (getattr(self, f.name) for f in fields(self))
        return sum(column.nbytes for column in columns if isinstance(column, np.ndarray))

    @cached_property
    def total(self) -> FloatArray:
        """Of each decision's probabilities: one, but for decimals that were written and read again."""
        return np.asarray(self.probabilities.sum(-1))

    def logs(self) -> Iterator[Log]:
        """Decisions with a whole reward, for off-policy evaluation, some at a time."""
        done = np.flatnonzero(~np.isnan(self.reward))
        if not len(done):
            raise InputError("no decision has a whole outcome yet: there is nothing to evaluate")
        known = not np.isnan(self.propensity[done]).any()
        for start in range(0, len(done), AT_ONCE):
            at = done[start : start + AT_ONCE]
            yield make_log(
                arms=self.state.problem.arms,
                action=self.arm[at],
                reward=self.reward[at],
                propensity=self.propensity[at],
                probabilities=self.probabilities[at] if known else None,
                user=self.user[at],
                start=start,
            )


def gather(ledger: Ledger, state: TrialState, before: Gathered | None = None) -> Gathered:
    """Read all of a trial, or what has changed in it since it was gathered before."""
    if before is None or not _continues(ledger, before.state):
        return _gathered(state, ledger.events(until=state.seq, kinds=_ABOUT), range(1, state.counts.decisions + 1))
    changed = {int(e.decision or 0) for e in ledger.events(after=before.state.seq, until=state.seq, kinds=_ABOUT)}
    numbers = sorted(changed)
    return _joined(before, _gathered(state, _histories(ledger, numbers), numbers))


def _histories(ledger: Ledger, numbers: Sequence[int]) -> Iterator[Event]:
    """Everything about some decisions, each before what came of it."""
    for first in range(0, len(numbers), AT_ONCE):
        for events in ledger.of_decisions(numbers[first : first + AT_ONCE]).values():
            yield from events


def _continues(ledger: Ledger, state: TrialState) -> bool:
    """Whether the ledger has the log that the state knows: a store may have been set back to a backup."""
    last = next(ledger.events(after=state.seq - 1, until=state.seq), None)
    return last is not None and last.hash == state.hash


def _joined(before: Gathered, changed: Gathered) -> Gathered:
    """What was gathered before, with the decisions that are new or have changed. Decision i is in row i - 1."""
    known = changed.number <= len(before.number)
    columns: dict[str, Any] = {}
    for name in (f.name for f in fields(Gathered) if f.name != "state"):
        old, new = getattr(before, name), getattr(changed, name)
        if new is None:
            columns[name] = None
            continue
        if old is None:  # floors were set later
            old = np.zeros((len(before.number), *new.shape[1:]), new.dtype)
        if new.ndim == 2 and (wider := new.shape[1] - old.shape[1]):  # an arm was added
            old = np.pad(old, ((0, 0), (0, wider)))
        columns[name] = np.concatenate([old, new[~known]])
        columns[name][changed.number[known] - 1] = new[known]
    return Gathered(changed.state, **columns)


def _gathered(state: TrialState, events: Iterable[Event], numbers: Sequence[int]) -> Gathered:
    """These decisions, from the events about them; arrays are filled as they are read, and no event is kept."""
    problem, n, K, M = state.problem, len(numbers), len(state.problem.arms), len(state.problem.metrics)
    columns: dict[str, Any] = {
        **{name: np.zeros(n, np.intp) for name in ("episode", "slot", "arm", "block")},
        "number": np.array(numbers, np.intp),
        "probabilities": np.zeros((n, K)),
        "propensity": np.full(n, np.nan),
        "held": np.zeros(n, bool),
        "context": np.zeros((n, len(problem.fields))),
    }
    if state.spec.floors is not None:
        columns["floor"] = np.zeros((n, 2))
    parts = {"metrics": np.full((n, M), np.nan), "control": np.full((n, M), np.nan)}
    given_up = np.zeros(n, bool)  # marked as missing, and nothing more came after that
    place = {number: i for i, number in enumerate(numbers)}
    lists: dict[int, tuple[list[float], FloatArray]] = {}  # of probabilities: decisions often share one
    for event in events:
        i = place.get(event.decision or 0)
        if i is None or event.seq > state.seq:
            continue
        if event.kind == DECISION:
            _decided(state, event, columns, i, lists)
        elif event.kind == MISSING:
            given_up[i] = True
        else:
            body = event.body
            given_up[i] = body.get("missing", False)
            for name, part in parts.items():
                told = body["outcome"][name] or {}
                part[i] = [np.nan if (v := told.get(m)) is None else v for m in problem.metrics]
    columns["standing"] = _standing(state, **parts, given_up=given_up)
    if not problem.fields:
        columns["context"] = None
    return Gathered(state, **columns, **outcomes(state, columns["slot"], **parts))


def _decided(
    state: TrialState, event: Event, columns: dict[str, Any], i: int, lists: dict[int, tuple[list[float], FloatArray]]
) -> None:
    """A decision by column; what is not there is left out."""
    body = event.body
    given = body["probabilities"]
    if id(given) not in lists:
        if len(lists) >= MOST_LISTS:
            lists.clear()
        lists[id(given)] = given, np.array(given)  # the list is kept, so that its id stays its own
    columns["episode"][i] = body["episode"]
    columns["slot"][i] = body["profile"]
    columns["arm"][i] = state.problem.arm(body["arm"])
    columns["probabilities"][i, : len(given)] = lists[id(given)][1]  # arms may have come later
    columns["held"][i] = body["share"] is not None and body["share"] < 1
    if state.spec.floors is not None:
        columns["floor"][i] = body.get("floor", (0.0, 0.0))
    if body["propensity"] is not None:
        columns["propensity"][i] = body["propensity"]
    if body["context"]:
        columns["context"][i] = body["context"]
    if body.get("block") is not None:
        columns["block"][i] = state.numbers.block(str(event.user), body["block"])


def _standing(state: TrialState, metrics: FloatArray, control: FloatArray, given_up: BoolArray) -> IntArray:
    """The state of each decision, as `TrialState.state_of` has it, by its place in records.STATES: (n,)."""
    there = ~np.isnan(metrics)
    if state.spec.feedback == "difference":
        there = np.concatenate([there, ~np.isnan(control)], 1)
    pending, partial, complete, missing = map(STATES.index, (PENDING, PARTIAL, COMPLETE, WILL_NOT_COME))
    known = np.where(given_up, missing, np.where(there.any(1), partial, pending))
    return np.where(there.all(1), complete, known)


def outcomes(state: TrialState, slot: IntArray, metrics: FloatArray, control: FloatArray) -> dict[str, Any]:
    """The columns that follow from outcomes as they were told, (n, M) with NaN where nothing was."""
    sizes, there = state.problem.sizes, ~np.isnan(metrics)
    y, plot = metrics / sizes, control / sizes
    if state.spec.feedback == "difference":
        y, there = y - plot, there & ~np.isnan(control)
    y = np.where(there, y, 0.0)
    wish = np.array([p.preference for p in state.profiles.values()]).reshape(-1, len(sizes))[slot]
    whole = (there | (wish == 0)).all(-1) & ~np.isnan(metrics).all(-1)
    return {
        "vector": y * sizes,
        "observed": there,
        "reward": np.where(whole, np.vecdot(wish, y), np.nan),
        "plot": plot * sizes,
    }
