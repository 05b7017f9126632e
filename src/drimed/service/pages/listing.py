"""Decisions that fit a search, newest first, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass

from drimed.trial import events as kinds
from drimed.trial.events import Event
from drimed.trial.memory import Memory
from drimed.trial.outcomes import Story
from drimed.trial.records import Given
from drimed.trial.stores.store import Ledger
from drimed.trial.trial import Trial

PAGE = 25
CHUNK = 500  # decisions that are read at a time
MOST_READ = 5_000  # for one page; a search that finds little goes on from there

STATES = ("awaited", "told", "partial", "missing", "amended")


@dataclass(frozen=True)
class Wanted:
    """What is searched for; empty: anything."""

    user: str = ""
    arm: str = ""
    state: str = ""

    @property
    def anything(self) -> bool:
        """Whether nothing is searched for."""
        return not (self.user or self.arm or self.state)


@dataclass(frozen=True)
class Entry:
    """One decision with what came of it."""

    given: Given
    state: str
    outcome: dict[str, float]
    control: dict[str, float]
    reward: float | None
    amendments: int


@dataclass(frozen=True)
class Listed:
    """A page of decisions."""

    entries: list[Entry]
    before: int | None  # what follows are decisions before this one; None: that was all
    cut: bool  # whether the search was cut short


def search(trial: Trial, wanted: Wanted, *, before: int | None = None, most: int = PAGE) -> Listed:
    """Decisions before `before`, newest first."""
    memory = trial.memory()
    found: list[Entry] = []
    read = 0
    with trial.store.reading(trial.name) as ledger:
        until = _seq(ledger, before)
        while True:
            size = CHUNK if wanted.arm or wanted.state else most + 1
            chunk = list(
                ledger.events(
                    kinds=[kinds.DECISION], user=wanted.user or None, until=until, limit=size, newest_first=True
                )
            )
            stories = ledger.of_decisions([int(e.decision or 0) for e in chunk])
            for event in chunk:
                number = int(event.decision or 0)
                entry = entry_of(memory, stories[number])
                if (not wanted.arm or entry.given.arm == wanted.arm) and _fits(entry, wanted.state):
                    if len(found) == most:
                        return Listed(found, found[-1].given.id, cut=False)
                    found.append(entry)
            read += len(chunk)
            if len(chunk) < size:
                return Listed(found, None, cut=False)
            until = chunk[-1].seq - 1
            if read >= MOST_READ:
                return Listed(found, int(chunk[-1].decision or 0), cut=True)


def entry_of(memory: Memory, events: list[Event]) -> Entry:
    """A decision from everything that is recorded about it."""
    story = Story.of(events)
    outcome = story.outcome or {"metrics": {}, "control": None}
    profile = memory.profiles[story.event.body["profile"]]
    told = story.outcome is not None
    whole = set(outcome["metrics"]) >= set(memory.problem.metrics)
    state = ("told" if whole else "partial") if told else "missing" if story.missing else "awaited"
    return Entry(
        Given.of(story.event, memory.problem.arms, memory.problem.fields),
        state,
        outcome["metrics"],
        outcome["control"] or {},
        memory.reward(profile, outcome) if told else None,
        story.amendments,
    )


def _fits(entry: Entry, state: str) -> bool:
    return not state or entry.state == state or (state == "amended" and entry.amendments > 0)


def _seq(ledger: Ledger, before: int | None) -> int | None:
    """The event before a decision."""
    if before is None:
        return None
    found = ledger.of_decisions([before])
    return found[before][0].seq - 1 if before in found else None
