"""What the seasons of a trial are called: an episode has a number and, if somebody gives them, a name and a date."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date as Date  # noqa: N812
from typing import TYPE_CHECKING, ClassVar

from drimed.errors import ConflictError, InputError
from drimed.records import Decision, Status
from drimed.trial.events import storable
from drimed.trial.names import folded, tidy

if TYPE_CHECKING:
    from drimed.trial.state import TrialState

LONGEST = 100  # characters of a name
COLUMNS = ("season", "date")  # of sheets and exports
_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})", re.ASCII)  # day, month, year; with slashes it might be otherwise


@dataclass(frozen=True)
class Season:
    """Of one episode."""

    name: str | None = None
    date: str | None = None  # ISO 8601, as 2026-03-15

    def body(self) -> dict[str, str]:
        """As it is recorded when the episode is opened; what is not given is left out."""
        return {key: value for key, value in vars(self).items() if value is not None}


UNNAMED = Season()


def label(state: TrialState, episode: int) -> str:
    """What people call an episode: its name, or else its number."""
    return state.seasons.get(episode, UNNAMED).name or str(episode)


@dataclass(frozen=True)
class Calendar:
    """What the episodes of a trial are called in tables, charts and sentences."""

    word: ClassVar[str] = "season"

    names: dict[int, str]  # of those that have a name
    dates: dict[int, str] = field(default_factory=dict)  # when those began that have a date

    def label(self, episode: int) -> str:
        """Its name, or else its number."""
        return self.names.get(episode, str(episode))

    def dated(self, episode: int) -> str:
        """The same with the day on which it began, if that is known.

        >>> Calendar({2: "spring 2026"}, {2: "2026-03-15"}).dated(2)
        'spring 2026 (2026-03-15)'
        """
        return self.label(episode) + (f" ({self.dates[episode]})" if episode in self.dates else "")

    def said(self, episode: int) -> str:
        """In a sentence.

        >>> Calendar({2: "spring 2026"}).said(2), Calendar({}).said(2)
        ('season spring 2026', 'season 2')
        """
        return f"{self.word} {self.label(episode)}"


NUMBERED = Calendar({})


def calendar(state: TrialState) -> Calendar:
    """Of all of them."""
    return Calendar(
        {n: season.name for n, season in state.seasons.items() if season.name is not None},
        {n: season.date for n, season in state.seasons.items() if season.date is not None},
    )


def when(found: Decision | Status) -> str:
    """When a decision was taken, or what is open: a season by its name, or else by its number.

    >>> from types import SimpleNamespace as D
    >>> when(D(episode=3, season=None)), when(D(episode=3, season="spring 2026"))
    ('season 3', 'season spring 2026')
    """
    return f"season {found.episode if found.season is None else found.season}"


def described(state: TrialState, name: str | None, date: str | None) -> Season:
    """The name and date of an episode that is about to be opened, in the form that is kept."""
    date = iso(date)
    season = Season(None if name is None else tidy(name), date)
    check(state, season)
    dated = [(s.date, n) for n, s in state.seasons.items() if s.date is not None]
    if date is not None and dated and date < max(dated)[0]:
        latest, number = max(dated)
        raise InputError(f"{date} is before season {label(state, number)!r}, which began on {latest}", ("date",))
    return season


def refuse_other_date(state: TrialState, number: int, date: str | None) -> None:
    """A date given for a season that is open says when it began, and cannot change that."""
    season, date = state.seasons.get(number), iso(date)
    if date is not None and (season is None or season.date != date):
        began = "was opened without a date" if season is None or season.date is None else f"began on {season.date}"
        called = label(state, number)
        raise ConflictError(f"season {called!r} {began}, and {date} is another date; leave it out", ("date",))


def iso(date: str | None) -> str | None:
    """A date in the form that is kept: day, month and year with dots are as plain as ISO 8601.

    >>> iso("15.3.2026"), iso("2026-03-15"), iso("15/3/2026")
    ('2026-03-15', '2026-03-15', '15/3/2026')
    """
    found = None if date is None else _DOTTED.fullmatch(date)
    return date if found is None else f"{found[3]}-{found[2]:>02}-{found[1]:>02}"


def check(state: TrialState, season: Season) -> None:
    """Refuse a name that is no name or that another season has, and a date that is none."""
    name, date = season.name, season.date
    if name is not None:
        storable("the name of a season", name, LONGEST)
        if not name or not name.isprintable() or tidy(name) != name:
            raise InputError(f"the name of a season must be text that can be seen, got {name!r}", ("season",))
        if (other := number_of(state, name)) is not None:
            raise ConflictError(f"episode {other} is called {label(state, other)!r} already", ("season",))
    if date is not None:
        try:
            same = Date.fromisoformat(date).isoformat() == date
        except ValueError:
            same = False
        if not same:
            raise InputError(f"a date is written as 2026-03-15 or 15.03.2026, got {date!r}", ("date",))


def number_of(state: TrialState, name: str) -> int | None:
    """The episode that is called so; capital and small letters make no difference."""
    wanted = folded(name)
    found = (n for n, season in state.seasons.items() if season.name is not None and folded(season.name) == wanted)
    return next(found, None)


def meant(state: TrialState, name: str | None, episode: int | None) -> int | None:
    """The episode that a request is for, which names its season or gives its number; a new name is the next one."""
    if name is None:
        return episode
    current = state.episode.number
    known = number_of(state, tidy(name))
    number = current + 1 if known is None else known
    if episode is not None and episode != number:
        called = (
            f"season {name!r} would be episode {number}" if known is None else f"season {name!r} is episode {number}"
        )
        raise ConflictError(f"{called}, not {episode}; leave one of them out", ("season",))
    if number < current:
        raise ConflictError(f"season {name!r} is over: season {label(state, current)!r} is open", ("season",))
    return number
