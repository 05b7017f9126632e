"""Who a rehearsed trial decides for, in each season: its users and their plots, or people who join.

Shapes: n decisions of a season, H users of the whole trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from drimed import streams
from drimed.linear.arrays import BoolArray, IntArray
from drimed.trial.events import CREATED, Draft, beginning, chain
from drimed.trial.numbers import block_key
from drimed.trial.parts import User
from drimed.trial.plots import Place, places
from drimed.trial.problem import Profile
from drimed.trial.spec import TrialSpec
from drimed.trial.state import TrialState


@dataclass(frozen=True)
class Crowd:
    """Everybody of a rehearsed trial, season by season."""

    state: TrialState  # with everybody in it
    seasons: tuple[tuple[Place, ...], ...]
    states: tuple[TrialState, ...]  # with those who have joined by each season

    @staticmethod
    def of(spec: TrialSpec, seasons: int, arriving: int) -> Crowd:
        """The users of the file in every season and, where people join, so many more in each."""
        state = started(spec)
        cohorts: list[str | None] = [*spec.cohorts] or [None]
        known = list(spec.users)
        found: list[tuple[Place, ...]] = []
        states: list[TrialState] = []
        rng = streams.generator(0, "people who join")  # the same in all simulated trials
        for season in range(seasons):
            new = [f"person {season * arriving + i + 1}" for i in range(arriving)]
            state = state.entered(
                [(n, User(cohort=cohorts[i % len(cohorts)], attributes=_drawn(spec, rng))) for i, n in enumerate(new)]
            )
            found.append(tuple(place for user in (*known, *new) for place in places(state, user)))
            states.append(state)
        named = (block_key(p.user, p.block) for season in found for p in season if p.block is not None)
        return Crowd(replace(state, numbers=state.numbers.with_blocks(named)), tuple(found), tuple(states))

    @property
    def users(self) -> list[str]:
        """H names, in the order of their slots."""
        return list(self.state.users)

    @cached_property
    def groups(self) -> list[str]:
        """The names of the groups by their numbers; a user without one is a group of its own."""
        return [name for _, name in self._places]

    def group_of(self, profile: Profile) -> int:
        """The number of somebody's group; -1: nobody in particular."""
        return -1 if profile.person.number < 0 else self._places[_place(profile)]

    def profiles(self, season: int) -> list[Profile]:
        """Of the decisions of a season: (n,)."""
        return [self.state.profile(p.user) for p in self.seasons[season]]

    def user(self, season: int) -> IntArray:
        """The number of the user of each decision: (n,)."""
        return np.array([self.state.users[p.user] for p in self.seasons[season]])

    def group(self, season: int) -> IntArray:
        """The number of the group of each decision: (n,)."""
        return np.array([self.group_of(p) for p in self.profiles(season)])

    @cached_property
    def _places(self) -> dict[tuple[bool, str], int]:
        """Numbers of groups, and of users who are in none, in the order of appearance."""
        found = dict.fromkeys(_place(p) for p in self.state.profiles.values())
        return {place: number for number, place in enumerate(found)}

    def block(self, season: int) -> IntArray:
        """The number of the block of each decision, 0 for none: (n,)."""
        return np.array([self.state.numbers.block(p.user, p.block) for p in self.seasons[season]])

    def available(self, season: int) -> list[BoolArray | None]:
        """The arms that can be given."""
        return [self.state.problem.available(p, ()) for p in self.profiles(season)]

    @cached_property
    def looked_at(self) -> list[Profile]:
        """Whose effects are looked at: the users of the file, or a typical person of each cohort."""
        state = self.state
        if state.spec.users:
            return [state.profile(u) for u in state.spec.users]
        cohorts: Sequence[str | None] = [*state.spec.cohorts] or [None]
        return [state.problem.profile(c or "a typical person", User(cohort=c), h) for h, c in enumerate(cohorts)]


def started(spec: TrialSpec, seed: int = 0) -> TrialState:
    """A trial before its first decision, that no store knows."""
    draft = Draft(CREATED, beginning(spec.plain(), seed))
    (created,) = chain([draft], seq=0, hash="", time="1970-01-01T00:00:00Z", actor="rehearsal")
    return TrialState.start(created)


def _place(profile: Profile) -> tuple[bool, str]:
    """Whether somebody is in a group, and its name or their own."""
    return profile.group is not None, profile.group or profile.user


def _drawn(spec: TrialSpec, rng: np.random.Generator) -> dict[str, float | str] | None:
    """Attributes of somebody who joins: numbers around the typical value, and any of the levels of a category."""
    found: dict[str, float | str] = {}
    for name, known in spec.attributes.items():
        if known.levels:
            found[name] = known.levels[int(rng.integers(len(known.levels)))]
        else:
            found[name] = (known.typical or 0.0) + (known.spread or 1.0) * float(rng.standard_normal())
    return found or None
