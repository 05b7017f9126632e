"""Which decisions still lack values: counted along the log, so that a long one is read once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from drimed.trial import events as kinds
from drimed.trial.events import Event
from drimed.trial.trial import Trial


@dataclass
class Waiting:
    """Decisions that lack values, as the log says up to event `seq`."""

    seq: int = 0
    partial: dict[int, bool] = field(default_factory=dict)  # decision -> whether some of its values were told
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, event: Event, names: Sequence[str], *, plots: bool) -> None:
        """One more event about a decision."""
        number = int(event.decision or 0)
        self.partial.pop(number, None)
        if event.kind == kinds.DECISION:
            self.partial[number] = False
        elif event.kind in (kinds.OUTCOME, kinds.AMENDMENT):
            told = event.body["outcome"]
            if not set(names) <= set(told["metrics"]) or (plots and not set(names) <= set(told["control"] or {})):
                self.partial[number] = True

    @property
    def awaited(self) -> int:
        """Decisions of which nothing was told."""
        return len(self.partial) - self.begun

    @property
    def begun(self) -> int:
        """Decisions that were told in part."""
        return sum(self.partial.values())


def waiting(trial: Trial) -> Waiting:
    """Decisions that lack values now."""
    memory = trial.memory()
    known = _KNOWN.setdefault(trial, Waiting())
    about = (kinds.DECISION, kinds.OUTCOME, kinds.AMENDMENT, kinds.MISSING)
    with known.lock, trial.store.reading(trial.name) as ledger:
        for event in ledger.events(after=known.seq, kinds=about):
            known.take(event, memory.problem.metrics, plots=memory.spec.feedback == "difference")
            known.seq = event.seq
        return replace(known, partial=dict(known.partial))


_KNOWN: WeakKeyDictionary[Trial, Waiting] = WeakKeyDictionary()
