"""Variation between sites, seasons and people, effects by covariate, and effects over time.

Shapes: H users, K arms, M metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from drimed.models.mixed import summaries
from drimed.models.mixed.effects import EffectPosterior, FittedModel, extend_to
from drimed.models.mixed.observations import Cells
from drimed.models.mixed.terms import FACTORS
from drimed.models.offer import Offer
from drimed.records import Effect
from drimed.reports.effects import EVERYBODY, MODEL, Inference, effects_at, fits_after, groups
from drimed.trial.dataset import Dataset
from drimed.trial.estimates import REWARD, may_get, offers_now, outcome_rows
from drimed.trial.seasons import calendar
from drimed.trial.state import TrialState

GRID = 25  # values of a covariate that effects are computed at
MOST_COUNTED = 2000  # users whose own outcomes are counted
MOST_SITES = 200  # whose levels are listed
MOST_POINTS = 12  # seasons that effects over time are computed for; of more, every so many
SEASON = FACTORS.index("season")


@dataclass(frozen=True)
class EvidenceSource:
    """Outcomes of an arm that an effect rests on."""

    here: int  # of the user or group
    elsewhere: int
    group: bool  # of a group, and not of a user


@dataclass(frozen=True)
class Component:
    """A variance component, as a standard deviation in the metric's unit."""

    metric: str
    family: str
    deviation: float
    low: float  # likely range; 0: the effects of the family may not vary
    high: float
    identifiable: bool  # from the other components


@dataclass(frozen=True)
class Level:
    """The mean outcome at a site or in a season, under the control."""

    metric: str
    name: str
    outcomes: int
    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class CovariateEffect:
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
        names = ("value", "estimate", "likely_low", "likely_high")
        columns = (self.values if self.levels is None else self.levels, self.estimate, self.low, self.high)
        about = {"covariate": self.covariate, "arm": self.arm, "on": self.on}
        return [about | dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


@dataclass(frozen=True)
class Variation:
    """The findings of a mixed model besides effects."""

    components: list[Component]
    sites: list[Level]
    seasons: list[Level]
    covariates: list[CovariateEffect]
    sources: dict[tuple[str, str], EvidenceSource]  # (user or group, arm) -> of its effect on the reward


@dataclass(frozen=True)
class PastEffects:
    """The effects of all arms on all measures, for all users together, by the outcomes up to an episode."""

    episode: int
    effects: list[Effect]


def variation(data: Dataset, fit: FittedModel) -> Variation:
    """All users as they are now."""
    if not fit.evidence.cells.count or not fit.scale.known.all():
        return Variation([], [], [], [], {})
    offers = offers_now(data.state)
    return Variation(
        components=_components(data.state, fit),
        sites=_sites(data.state, fit, offers),
        seasons=_seasons(data.state, fit, offers),
        covariates=_covariates(data.state, fit, offers),
        sources=_sources(data),
    )


def _components(state: TrialState, fit: FittedModel) -> list[Component]:
    components = []
    for c in summaries.components(fit):
        # An effect against the control has the part of the control as well.
        both = " x arm" in c.family and fit.learner.reference is None
        scale = np.sqrt(2.0) if both else 1.0
        for m, metric in enumerate(state.problem.metrics):
            deviation, low, high = (float(scale * part[m]) for part in (c.deviation, c.low, c.high))
            components.append(Component(metric, c.family, deviation, low, high, bool(c.told[m])))
    return components


def _sites(state: TrialState, fit: FittedModel, offers: Offer) -> list[Level]:
    """All sites of field trials; the groups of trials with people."""
    members: dict[str, list[int]] = {}
    people = [state.profile(user).unit for user in state.users]
    names = {number: key for key, number in state.numbers.groups.items()}
    for h, person in enumerate(people):
        kind, name = names.get(person.group, "user/").split("/", 1)
        if kind == "group" or state.spec.kind == "field":
            members.setdefault(name, []).append(h)
    if not 1 < len(members) <= MOST_SITES:
        return []
    counts = summaries.outcomes(fit, "group").sum(-1)
    numbers = [people[some[0]].group for some in members.values()]
    n = [int(counts[g]) if g < len(counts) else 0 for g in numbers]
    return _levels(state, list(members), n, summaries.group_levels(fit, offers, list(members.values())))


def _seasons(state: TrialState, fit: FittedModel, offers: Offer) -> list[Level]:
    """Each season in its own context: the effect of its rain is part of its level."""
    if not fit.learner.seasons:
        return []
    contexts = (
        [i for i, c in enumerate(some) if c.name in state.spec.context] for some in state.problem.covariates.counted
    )
    seasons, levels = summaries.season_levels(fit, offers, *contexts)
    counts = summaries.outcomes(fit, "season").sum(-1)
    return _levels(
        state, [calendar(state).label(int(s) + 1) for s in seasons], [int(counts[s]) for s in seasons], levels
    )


def _levels(state: TrialState, names: list[str], outcomes: list[int], levels: EffectPosterior) -> list[Level]:
    parts = (levels.mean, *levels.likely)
    return [
        Level(metric, name, outcomes[i], *(float(part[i, m]) for part in parts))
        for m, metric in enumerate(state.problem.metrics)
        for i, name in enumerate(names)
    ]


def _covariates(state: TrialState, fit: FittedModel, offers: Offer) -> list[CovariateEffect]:
    """Every covariate that may change effects, and every arm with outcomes."""
    numbers, categories = state.problem.covariates.counted
    may = may_get(state, list(state.users))
    possible = np.zeros((len(may), fit.structure.arms), bool)  # with room for arms that are still to come
    possible[:, : may.shape[-1]] = may
    lines: list[tuple[str, list[float], list[str] | None, EffectPosterior]] = []
    for i, c in enumerate(numbers):
        low, high = summaries.span(fit, i)
        if "effects" in c.roles.split() and low < high:
            z = np.linspace(low, high, GRID)
            lines.append(
                (c.name, list(c.typical + c.spread * z), None, summaries.effects_along(fit, offers, i, z, possible))
            )
    for i, c in enumerate(categories):
        texts = list(c.levels or ()) if c.name in state.spec.context else list(state.numbers.levels[c.name])
        if "effects" in c.roles.split() and len(texts) > 1:
            by_level = summaries.effects_by_level(fit, offers, i, len(texts), possible)
            lines.append((c.name, [float(v) for v in range(len(texts))], texts, by_level))
    outcomes = summaries.outcomes(fit, "arm").sum(0)
    declared = state.spec.attributes | state.spec.context
    return [
        CovariateEffect(
            name,
            declared[name].unit if name in declared else "",
            arm,
            on,
            values,
            texts,
            *(part[:, k, m].tolist() for part in (effects.mean, *effects.likely)),
        )
        for name, values, texts, effects in lines
        for m, on in enumerate((REWARD, *state.problem.metrics))
        for k, arm in enumerate(state.problem.arms)
        if outcomes[k] > 0 and (effects.deviation[:, k] > 0).any()
    ]


def _sources(data: Dataset) -> dict[tuple[str, str], EvidenceSource]:
    """Outcomes of each arm but the control, by user and by group."""
    state, arms, names = data.state, data.state.problem.arms, list(data.state.users)
    if not 1 < len(names) <= MOST_COUNTED:
        return {}
    counts = np.zeros((len(names), len(arms)), np.intp)  # (H, K)
    np.add.at(counts, (data.user[data.has_outcome], data.arm[data.has_outcome]), 1)
    control = np.array([state.profile(name).control[: len(arms)] == 1 for name in names])  # (H, K)
    members = {name: [h] for h, name in enumerate(names)}
    sites = {who: some for who, some in groups(state).items() if who != EVERYBODY and who not in members}
    members |= sites if len(sites) > 1 else {}
    sources = {}
    for who, some in members.items():
        for k, arm in enumerate(arms):
            if not control[some, k].all():
                here = int(counts[some, k].sum())
                sources[who, arm] = EvidenceSource(here, int(counts[:, k].sum()) - here, who in sites)
    return sources


def past_effects(data: Dataset, fit: Inference, now: Sequence[Effect]) -> list[PastEffects]:
    """Effects by the outcomes up to each season, of the arms with outcomes by then; empty before there are two.

    Outcomes count as they are recorded now, late and corrected ones in their own season, and variances are the present
    ones: only the evidence about the arms changes. The last point is the present effect; `now` are all present effects.
    """
    if not data.has_outcome.any():
        return []
    seasons = np.unique(data.episode[data.has_outcome])
    episodes = seasons[::-1][:: -(-len(seasons) // MOST_POINTS)][::-1].tolist()
    last = [x for x in now if x.who == EVERYBODY and x.source == MODEL]
    if len(episodes) < 2 or not last:
        return []
    earlier: Sequence[Inference] | None
    if isinstance(fit, FittedModel):
        earlier = [_fit_until(data, fit, episode) for episode in episodes[:-1]]
    else:
        earlier = fits_after(data, episodes[:-1])
    if earlier is None:
        return []
    points = [effects_at(data, one) for one in earlier]
    past = []
    for episode, effects in zip(episodes, [*points, last], strict=True):
        by_then = data.arm[data.has_outcome & (data.episode <= episode)]
        arms = {data.state.problem.arms[k] for k in np.unique(by_then)}
        past.append(PastEffects(episode, [x for x in effects if x.arm in arms and x.is_known and not x.is_control]))
    return past


def _fit_until(data: Dataset, fit: FittedModel, episode: int) -> FittedModel:
    """The fit of the outcomes up to an episode, with the present variances."""
    learner = fit.learner
    if learner.seasons or learner.discount < 1:
        cells = fit.evidence.cells.live()
        cells = cells.at(np.flatnonzero(cells.keys[:, SEASON] < episode))  # seasons count from 0 there
    else:
        cells = _recounted(data, fit, episode)
    evidence = replace(fit.evidence, cells=cells, included=-1, season=episode - 1)
    return extend_to(learner, learner.ready(evidence, variances=False), offers_now(data.state))


def _recounted(data: Dataset, fit: FittedModel, episode: int) -> Cells:
    """Cells of the outcomes up to an episode, counted again: without seasons, cells do not know when they came."""
    own = fit.evidence.cells
    cells = Cells.empty(own.mean.shape[-1], factors=own.keys.shape[-1])
    for part in outcome_rows(data, fit, np.flatnonzero(data.has_outcome & (data.episode <= episode))):
        if part is not None:
            part.keys[:, SEASON] = 0
            cells = cells.add(part)
    return cells
