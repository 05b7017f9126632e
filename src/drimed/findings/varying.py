"""What else a model of the field has found: what varies and how much, levels of sites and seasons, what covariates do.

Shapes: H users, K arms, M metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.findings.effects import EVERYBODY, groups, may_get
from drimed.findings.field_words import Words, words_of
from drimed.learning.field import report
from drimed.learning.field.contrasts import Found, Known
from drimed.learning.offer import Offer
from drimed.linear.arrays import BoolArray
from drimed.trial.gather import Gathered
from drimed.trial.model_free import REWARD
from drimed.trial.model_ranges import offers_now
from drimed.trial.seasons import label
from drimed.trial.state import TrialState

GRID = 25  # values of a covariate that effects are computed at
MOST_COUNTED = 2000  # users whose own outcomes are counted
MOST_SITES = 200  # whose levels are listed


@dataclass(frozen=True)
class Rests:
    """Where what is known about an effect comes from."""

    outcomes: int  # of this arm, here
    says: str


@dataclass(frozen=True)
class Varies:
    """How much something varies, as a standard deviation in the metric's unit."""

    metric: str
    family: str
    says: str  # what it is, up to the number
    deviation: float
    low: float
    high: float
    told: bool  # whether the outcomes tell it from what else varies


@dataclass(frozen=True)
class Level:
    """The mean outcome somewhere, or in a season, under the control."""

    metric: str
    name: str
    outcomes: int
    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """An arm's effect at values of a covariate, or at the levels of a category."""

    covariate: str
    unit: str
    arm: str
    on: str
    values: list[float]  # numbers of the levels, for a category
    levels: list[str] | None  # None: a number
    estimate: list[float]
    low: list[float]
    high: list[float]

    def rows(self) -> list[dict[str, object]]:
        """One for each value."""
        values = self.values if self.levels is None else self.levels
        return [
            {
                "covariate": self.covariate,
                "value": v,
                "arm": self.arm,
                "on": self.on,
                "estimate": e,
                "likely_low": a,
                "likely_high": b,
            }
            for v, e, a, b in zip(values, self.estimate, self.low, self.high, strict=True)
        ]


@dataclass(frozen=True)
class Varying:
    """All of it."""

    words: Words
    varies: list[Varies]
    sites: list[Level]
    seasons: list[Level]
    lines: list[Line]
    rests: dict[tuple[str, str], Rests]  # (user or group, arm) -> of its effect on the reward


def varying(seen: Gathered, known: Known) -> Varying:
    """Worked out for all users as they are now."""
    state = seen.state
    offers = offers_now(state)
    words = words_of(state, known)
    told = bool(known.evidence.cells.count > 0) and bool(known.scale.known.all())
    if not told:
        return Varying(words, [], [], [], [], {})
    levels = not known.learner.centred  # centred arms tell effects, whatever the levels are
    return Varying(
        words=words,
        varies=_varies(state, known, words),
        sites=_sites(state, known, offers) if levels else [],
        seasons=_seasons(state, known, offers) if levels else [],
        lines=_lines(state, known, offers),
        rests=_rests(seen, words),
    )


def _varies(state: TrialState, known: Known, words: Words) -> list[Varies]:
    found = []
    for c in report.components(known):
        # Of an effect against the control, which has a part of its own as well.
        both = " x arm" in c.family and known.learner.reference is None
        scale = np.sqrt(2.0) if both else 1.0
        for m, metric in enumerate(state.problem.metrics):
            about, low, high = (float(scale * part[m]) for part in (c.deviation, c.low, c.high))
            found.append(Varies(metric, c.family, words.family(c.family), about, low, high, bool(c.told[m])))
    return found


def _sites(state: TrialState, known: Known, offers: Offer) -> list[Level]:
    """Of field trials all sites, of trials with people their groups."""
    members: dict[str, list[int]] = {}
    people = [state.profile(user).person for user in state.users]
    names = {number: key for key, number in state.numbers.groups.items()}
    for h, person in enumerate(people):
        kind, name = names.get(person.group, "user/").split("/", 1)
        if kind == "group" or state.spec.kind == "field":
            members.setdefault(name, []).append(h)
    if not 1 < len(members) <= MOST_SITES:
        return []
    counts = report.outcomes(known, "group").sum(-1)
    groups_of = [people[some[0]].group for some in members.values()]
    n = [int(counts[g]) if g < len(counts) else 0 for g in groups_of]
    return _levels(state, list(members), n, report.levels(known, offers, list(members.values())))


def _seasons(state: TrialState, known: Known, offers: Offer) -> list[Level]:
    """Each in its own context: what a season's rain has done is part of its level."""
    if not known.learner.seasons:
        return []
    contexts = (
        [i for i, c in enumerate(some) if c.name in state.spec.context] for some in state.problem.covariates.counted
    )
    seasons, found = report.season_levels(known, offers, *contexts)
    counts = report.outcomes(known, "season").sum(-1)
    return _levels(state, [label(state, int(s) + 1) for s in seasons], [int(counts[s]) for s in seasons], found)


def _levels(state: TrialState, names: list[str], outcomes: list[int], found: Found) -> list[Level]:
    low, high = found.likely
    return [
        Level(metric, name, outcomes[i], float(found.mean[i, m]), float(low[i, m]), float(high[i, m]))
        for m, metric in enumerate(state.problem.metrics)
        for i, name in enumerate(names)
    ]


def _lines(state: TrialState, known: Known, offers: Offer) -> list[Line]:
    """Of every covariate that may change the effects of arms, and of arms with outcomes."""
    numbers, categories = state.problem.covariates.counted
    possible = _room(known, may_get(state, list(state.users)))
    seen = report.outcomes(known, "arm").sum(0)
    made: list[tuple[str, list[float], list[str] | None, Found]] = []
    for i, c in enumerate(numbers):
        low, high = report.span(known, i)
        if "effects" in c.roles.split() and low < high:
            z = np.linspace(low, high, GRID)
            made.append((c.name, list(c.typical + c.spread * z), None, report.along(known, offers, i, z, possible)))
    for i, c in enumerate(categories):
        texts = list(c.levels or ()) if c.name in state.spec.context else list(state.numbers.levels[c.name])
        if "effects" in c.roles.split() and len(texts) > 1:
            found = report.by_level(known, offers, i, len(texts), possible)
            made.append((c.name, [float(v) for v in range(len(texts))], texts, found))
    return [
        Line(name, _unit(state, name), arm, on, values, texts, *(part[:, k, m].tolist() for part in parts))
        for name, values, texts, found in made
        for parts in [(found.mean, *found.likely)]
        for m, on in enumerate((REWARD, *state.problem.metrics))
        for k, arm in enumerate(state.problem.arms)
        if seen[k] > 0 and (found.deviation[:, k] > 0).any()
    ]


def _unit(state: TrialState, covariate: str) -> str:
    declared = state.spec.context.get(covariate) or state.spec.attributes.get(covariate)
    return "" if declared is None else declared.unit


def _rests(seen: Gathered, words: Words) -> dict[tuple[str, str], Rests]:
    """Outcomes of each arm, by user and by group."""
    state, arms = seen.state, seen.state.problem.arms
    names = list(state.users)
    if not 1 < len(names) <= MOST_COUNTED:
        return {}
    counts = np.zeros((len(names), len(arms)), np.intp)  # (H, K)
    np.add.at(counts, (seen.user[seen.told], seen.arm[seen.told]), 1)
    control = np.array([state.profile(name).control[: len(arms)] == 1 for name in names])  # (H, K)
    members = {name: ([h], words.other_users) for h, name in enumerate(names)}
    sites = {who: some for who, some in groups(state).items() if who != EVERYBODY and who not in members}
    members |= {who: (some, words.other_groups) for who, some in sites.items() if len(sites) > 1}
    rests = {}
    for who, (some, others) in members.items():
        for k, arm in enumerate(arms):
            if not control[some, k].all():
                n = int(counts[some, k].sum())
                rests[who, arm] = Rests(n, words.rests(n, int(counts[:, k].sum()), others))
    return rests


def _room(known: Known, possible: BoolArray) -> BoolArray:
    """With places for arms that are still to come."""
    wide = np.zeros((len(possible), known.structure.arms), bool)
    wide[:, : possible.shape[-1]] = possible
    return wide
