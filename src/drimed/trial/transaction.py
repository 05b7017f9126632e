"""One transaction on a trial: what is known in it, and what it adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drimed.records import Event
from drimed.trial import events as kinds
from drimed.trial.events import Draft, chain
from drimed.trial.fold import advanced, fold, grouped
from drimed.trial.state import TrialState
from drimed.trial.stores.store import Ledger


@dataclass
class Transaction:
    """The state moves on with every event that is appended; it is durable when the transaction is committed."""

    state: TrialState
    ledger: Ledger
    time: str
    actor: str
    dry_run: bool = False

    def append(self, drafts: Sequence[Draft], about: Mapping[int, Event] | None = None) -> list[Event]:
        """Record and fold in, as every other process will; a dry run only shows what would be.

        `about` has the decisions that outcomes belong to.
        """
        events = chain(drafts, seq=self.state.seq, hash=self.state.hash, time=self.time, actor=self.actor)
        if self.dry_run:
            if events and events[0].kind == kinds.EPISODE:  # what is shown next happens in it
                self.state = fold(self.state, [(events[0], None)])
            return events
        self.ledger.append(events)
        for group in grouped((e, (about or {}).get(e.decision or 0)) for e in events):
            self.state = advanced(self.state, group, self.ledger)
        return events
