"""A trial's decisions and outcomes as arrays.

Shapes: n decisions in order, K arms, M metrics, D context fields, H users as they are now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from drimed.models.offer import Offer
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.records import Event
from drimed.trial.events import AMENDMENT, DECISION, GIVEN, OUTCOME
from drimed.trial.problem import Profile, below_key, size_key
from drimed.trial.state import TrialState
from drimed.trial.store import Ledger

AT_ONCE = 5000  # decisions of which tables by arm are worked on together
_KINDS = (DECISION, OUTCOME, AMENDMENT, GIVEN)


@dataclass(frozen=True)
class Dataset:
    state: TrialState
    number: IntArray  # (n,)
    episode: IntArray  # (n,), from 1
    slot: IntArray  # (n,), profile
    arm: IntArray  # (n,), that was drawn
    given: IntArray  # (n,), that was given; -1: none of them
    probabilities: FloatArray  # (n, K)
    propensity: FloatArray  # (n,), NaN: unknown
    held: BoolArray  # (n,), the guard changed the rule's proposal
    context: FloatArray | None  # (n, D)
    vector: FloatArray  # (n, M), in the metrics' units, against the control plot where there is one; 0: not observed
    observed: BoolArray  # (n, M)
    reward: FloatArray  # (n,), NaN: a metric that counts is not observed
    block: IntArray  # (n,), the number of its block; 0: none
    plot: FloatArray  # (n, M), of the control plot beside it, in the metrics' units; NaN: not observed
    sizes: FloatArray | None = None  # (n, M), of outcomes: 20 in "7 of 20"; None: no metric has any
    below: BoolArray | None = None  # (n, M), below the limit of detection; None: the trial has none
    floor: FloatArray | None = None  # (n, 2), of the control and of every arm; None: the trial has no floors

    @property
    def has_outcome(self) -> BoolArray:
        return np.asarray(self.observed.any(-1))

    @property
    def learned(self) -> IntArray:
        """The arm that an outcome is learned for, the one given or the one drawn; -1: for none: (n,)."""
        return self.given if self.state.spec.learns == "given" else self.arm

    @property
    def teaches(self) -> BoolArray:
        """Decisions with any outcome that is learned for an arm: (n,)."""
        return self.has_outcome & (self.learned >= 0)

    @cached_property
    def user(self) -> IntArray:
        """The user of each decision, by its place among the users: (n,)."""
        place = {name: h for h, name in enumerate(self.state.users)}
        return np.array([place[profile.user] for profile in self.state.profiles.values()], np.intp)[self.slot]

    @property
    def size(self) -> int:
        return sum(column.nbytes for column in vars(self).values() if isinstance(column, np.ndarray))

    def profiles(self, at: IntArray) -> list[Profile]:
        return [self.state.profiles[int(slot)] for slot in self.slot[at]]

    def offers(self, at: IntArray, blocks: list[int] | None = None) -> Offer:
        """The offers of some decisions, each in its own context."""
        contexts = [None] * len(at) if self.context is None else list(self.context[at])
        return self.state.problem.offer(self.profiles(at), contexts, [None] * len(at), blocks)


def load_dataset(ledger: Ledger, state: TrialState, before: Dataset | None = None) -> Dataset:
    """All of a trial, or what has changed in it since `before`."""
    last = None
    if before is not None:  # a store may have been set back to a backup
        last = next(ledger.events(after=before.state.seq - 1, until=before.state.seq), None)
    if before is None or last is None or last.hash != before.state.hash:
        return _dataset(state, ledger.events(until=state.seq, kinds=_KINDS), range(1, state.counts.decisions + 1))
    newer = ledger.events(after=before.state.seq, until=state.seq, kinds=_KINDS)
    numbers = sorted({int(e.decision or 0) for e in newer})
    chunks = (numbers[first : first + AT_ONCE] for first in range(0, len(numbers), AT_ONCE))
    histories = (event for some in chunks for events in ledger.of_decisions(some).values() for event in events)
    return merged(before, _dataset(state, histories, numbers))


def merged(before: Dataset, changed: Dataset) -> Dataset:
    """A dataset with the decisions that are new or have changed; decision i is in row i - 1."""
    is_old = changed.number <= len(before.number)
    columns: dict[str, Any] = {}
    for name in (f.name for f in fields(Dataset) if f.name != "state"):
        old, new = getattr(before, name), getattr(changed, name)
        if new is None:
            columns[name] = None
            continue
        if old is None:  # floors were set later
            old = np.zeros((len(before.number), *new.shape[1:]), new.dtype)
        if new.ndim == 2 and (wider := new.shape[1] - old.shape[1]):  # an arm was added
            old = np.pad(old, ((0, 0), (0, wider)))
        columns[name] = np.concatenate([old, new[~is_old]])
        columns[name][changed.number[is_old] - 1] = new[is_old]
    return Dataset(changed.state, **columns)


def _dataset(state: TrialState, events: Iterable[Event], numbers: Sequence[int]) -> Dataset:
    """These decisions, from the events about them, which are not kept."""
    problem, n, K, M = state.problem, len(numbers), len(state.problem.arms), len(state.problem.metrics)
    columns: dict[str, Any] = {
        **{name: np.zeros(n, np.intp) for name in ("episode", "slot", "arm", "given", "block")},
        "number": np.array(numbers, np.intp),
        "probabilities": np.zeros((n, K)),
        "propensity": np.full(n, np.nan),
        "held": np.zeros(n, bool),
        "context": np.zeros((n, len(problem.fields))) if problem.fields else None,
        "floor": None if state.spec.floors is None else np.zeros((n, 2)),
        "sizes": np.ones((n, M)) if any(m.of for m in state.spec.metrics.values()) else None,
        "below": np.zeros((n, M), bool) if any(m.detection for m in state.spec.metrics.values()) else None,
    }
    parts = {"metrics": np.full((n, M), np.nan), "control": np.full((n, M), np.nan)}
    place = {number: i for i, number in enumerate(numbers)}
    for event in events:
        i, body = place.get(event.decision or 0), event.body
        if i is None or event.seq > state.seq or event.kind not in _KINDS:
            continue
        if event.kind == GIVEN:
            columns["given"][i] = problem.arms.index(body["given"]) if body["given"] in problem.arms else -1
        elif event.kind != DECISION:
            if columns["below"] is not None:
                columns["below"][i] = [below_key(m) in (body["outcome"]["metrics"] or {}) for m in problem.metrics]
            if columns["sizes"] is not None:
                told = body["outcome"]["metrics"] or {}
                columns["sizes"][i] = [told.get(size_key(m)) or 1.0 for m in problem.metrics]
            for name, part in parts.items():
                values = body["outcome"][name] or {}
                part[i] = [values.get(m, np.nan) for m in problem.metrics]
        else:
            block, share = body.get("block"), body["share"]
            values = {
                "episode": body["episode"],
                "slot": body["profile"],
                "arm": problem.arm(body["arm"]),
                "given": problem.arm(body["arm"]),
                "block": state.numbers.block(str(event.user), block),
                "propensity": body["propensity"],
                "held": share is not None and share < 1,
                "context": body["context"],
                "floor": body.get("floor"),
            }
            for name, value in values.items():
                if value is not None and columns[name] is not None:
                    columns[name][i] = value
            columns["probabilities"][i, : len(body["probabilities"])] = body["probabilities"]  # arms may come later
    return Dataset(state, **columns, **outcome_columns(state, columns["slot"], **parts))


def outcome_columns(state: TrialState, slot: IntArray, metrics: FloatArray, control: FloatArray) -> dict[str, Any]:
    """The columns that follow from outcomes as they were told, (n, M) with NaN where nothing was."""
    sizes, observed = state.problem.sizes, ~np.isnan(metrics)
    y, plot = metrics / sizes, control / sizes
    if state.spec.feedback == "difference":
        y, observed = y - plot, observed & ~np.isnan(control)
    y = np.where(observed, y, 0.0)
    weights = np.array([p.preference for p in state.profiles.values()]).reshape(-1, len(sizes))[slot]
    whole = (observed | (weights == 0)).all(-1) & ~np.isnan(metrics).all(-1)
    reward = np.where(whole, np.vecdot(weights, y), np.nan)
    return {"vector": y * sizes, "observed": observed, "reward": reward, "plot": plot * sizes}
