"""Names and dates of seasons: an episode is a season, with a number and, if given, a name and a date."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date as Date  # noqa: N812
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from drimed.errors import ConflictError, InputError
from drimed.records import Decision, Status
from drimed.trial.events import storable
from drimed.trial.spec import folded, tidy

if TYPE_CHECKING:
    from drimed.trial.state import TrialState

LONGEST = 100  # characters of a name
COLUMNS = ("season", "date")  # of sheets and exports
_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})", re.ASCII)  # day, month, year; with slashes it is ambiguous


@dataclass(frozen=True)
class Season:
    name: str | None = None
    date: str | None = None  # ISO 8601, as 2026-03-15


UNNAMED = Season()


@dataclass(frozen=True)
class Calendar:
    """Labels of a trial's episodes in tables, charts and sentences."""

    word: ClassVar[str] = "season"

    seasons: Mapping[int, Season]  # episodes that have a name or a date

    @cached_property
    def names(self) -> dict[int, str]:
        return {n: season.name for n, season in self.seasons.items() if season.name is not None}

    @cached_property
    def dates(self) -> dict[int, str]:
        return {n: season.date for n, season in self.seasons.items() if season.date is not None}

    def label(self, episode: int) -> str:
        """The name of an episode, or else its number."""
        return self.names.get(episode, str(episode))

    def dated(self, episode: int) -> str:
        """The label with the date, if the episode has one."""
        return self.label(episode) + (f" ({self.dates[episode]})" if episode in self.dates else "")

    def said(self, episode: int) -> str:
        """The label in a sentence: season 2, season spring 2026."""
        return f"{self.word} {self.label(episode)}"


def calendar(state: TrialState) -> Calendar:
    return Calendar(state.seasons)


def when(record: Decision | Status) -> str:
    return f"season {record.episode if record.season is None else record.season}"


def new_season(state: TrialState, name: str | None, date: str | None) -> Season:
    """The name and date of an episode that is about to be opened, in the form that is kept."""
    season = Season(None if name is None else tidy(name), iso(date))
    check_season(state, season)
    latest, number = max(((date, n) for n, date in calendar(state).dates.items()), default=("", 0))
    if season.date is not None and season.date < latest:
        label = calendar(state).label(number)
        raise InputError(f"{season.date} is before season {label!r}, which began on {latest}", ("date",))
    return season


def check_same_date(state: TrialState, number: int, date: str | None) -> None:
    season, date = state.seasons.get(number, UNNAMED), iso(date)
    if date is not None and season.date != date:
        began = "was opened without a date" if season.date is None else f"began on {season.date}"
        message = f"season {calendar(state).label(number)!r} {began}, and {date} is another date; leave it out"
        raise ConflictError(message, ("date",))


def iso(date: str | None) -> str | None:
    """A date in the form that is kept; day, month and year with dots are accepted too.

    >>> iso("15.3.2026"), iso("2026-03-15"), iso("15/3/2026")
    ('2026-03-15', '2026-03-15', '15/3/2026')
    """
    dotted = None if date is None else _DOTTED.fullmatch(date)
    return date if dotted is None else f"{dotted[3]}-{dotted[2]:>02}-{dotted[1]:>02}"


def check_season(state: TrialState, season: Season) -> None:
    """Refuse an unreadable name, the name of another season, and an invalid date."""
    name, date = season.name, season.date
    if name is not None:
        storable("the name of a season", name, LONGEST)
        if not name or not name.isprintable() or tidy(name) != name:
            raise InputError(f"the name of a season must be text that can be seen, got {name!r}", ("season",))
        if (other := number_of(state, name)) is not None:
            raise ConflictError(f"episode {other} is called {calendar(state).label(other)!r} already", ("season",))
    if date is not None:
        with suppress(ValueError):
            if Date.fromisoformat(date).isoformat() == date:
                return
        raise InputError(f"a date is written as 2026-03-15 or 15.03.2026, got {date!r}", ("date",))


def number_of(state: TrialState, name: str) -> int | None:
    """The episode of this name; capital and small letters make no difference."""
    wanted = folded(name)
    return next((n for n, s in state.seasons.items() if s.name is not None and folded(s.name) == wanted), None)


def resolve_episode(state: TrialState, name: str | None, episode: int | None) -> int | None:
    """The episode of a request, by the name of its season or by its number; a new name is the next episode."""
    if name is None:
        return episode
    current, known = state.episode.number, number_of(state, tidy(name))
    number = current + 1 if known is None else known
    if episode is not None and episode != number:
        of = f"season {name!r} {'would be' if known is None else 'is'} episode {number}, not {episode}"
        raise ConflictError(f"{of}; leave one of them out", ("season",))
    if number < current:
        raise ConflictError(f"season {name!r} is over: season {calendar(state).label(current)!r} is open", ("season",))
    return number
