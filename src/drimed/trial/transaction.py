"""One transaction on a trial: what is known in it, and what it adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drimed.records import Event
from drimed.trial import events as kinds
from drimed.trial.events import Draft, chain
from drimed.trial.fold import Group, OutgrownError, advanced, fold, grouped, regrown
from drimed.trial.gather import Gathered
from drimed.trial.possible import check
from drimed.trial.queries import Story
from drimed.trial.state import TrialState
from drimed.trial.stores.store import Ledger

_SHOWN = (kinds.EPISODE, kinds.USER, kinds.DECISION)  # what is shown next happens after these


@dataclass
class Memory:
    """What this process keeps from one transaction to the next, only so that it need not be read again."""

    gathered: Gathered | None = None  # by the last look


@dataclass
class Transaction:
    """The state moves on with every event that is appended; it is durable when the transaction is committed."""

    state: TrialState
    ledger: Ledger
    time: str
    actor: str
    dry_run: bool = False
    memory: Memory = field(default_factory=Memory)
    _shown: list[Group] = field(default_factory=list)  # by a dry run

    def append(self, drafts: Sequence[Draft], stories: Mapping[int, Story] | None = None) -> list[Event]:
        """Record and fold in, as every other process will; a dry run only shows what would be.

        `stories` has what is known of the decisions that outcomes belong to.
        """
        events = chain(drafts, seq=self.state.seq, hash=self.state.hash, time=self.time, actor=self.actor)
        if self.dry_run:
            if events and events[0].kind in _SHOWN:
                self._show(list(grouped((event, None) for event in events)))
            return events
        self.ledger.append(events)
        for group in grouped((e, (stories or {}).get(e.decision or 0)) for e in events):
            check(self.state, group)
            about = [(event, None if story is None else story.event) for event, story in group]
            self.state = advanced(self.state, about, self.ledger)
        return events

    def _show(self, groups: list[Group]) -> None:
        """Fold in what a dry run will not record; where the arrays are too small, on the past in larger ones."""
        for group in groups:
            try:
                self.state = fold(self.state, group)
            except OutgrownError:
                again = [*self._shown, group]
                self.state = regrown(self.state, self.ledger, [pair for shown in again for pair in shown])
                for shown in again:
                    self.state = fold(self.state, shown)
            self._shown.append(group)
