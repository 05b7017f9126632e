"""How the effects of arms developed: for all users together, by the outcomes up to each season.

Outcomes count as they are known now, late and corrected ones in their own season, and how much users, seasons and
outcomes vary is taken as it is known now: what is followed is the evidence about the arms alone. The last point is the
effect as it stands. Shapes: T points, K arms, M metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from drimed.findings import effects, inference
from drimed.findings.inference import Inference
from drimed.learning.field import cells as field_cells
from drimed.learning.field import contrasts
from drimed.learning.field.cells import FACTORS, Cells
from drimed.learning.field.contrasts import Known
from drimed.linear.arrays import FloatArray, IntArray
from drimed.records import Effect
from drimed.trial.field_residuals import outcome_rows
from drimed.trial.gather import Gathered
from drimed.trial.model_free import REWARD
from drimed.trial.model_ranges import offers_now
from drimed.trial.seasons import Calendar

MOST_POINTS = 12  # seasons that effects are worked out for; of more, every so many
SEASON = FACTORS.index("season")


@dataclass(frozen=True)
class Past:
    """The effects of all arms on all measures, for all users together, after an episode."""

    episode: int
    effects: list[Effect]


def over_time(seen: Gathered, fit: Inference, now: Sequence[Effect]) -> list[Past]:
    """Each point has the arms with outcomes by then; nothing before there are two. `now` are all present effects."""
    told = seen.told
    if not told.any():
        return []
    episodes = _points(np.unique(seen.episode[told]))
    last = [x for x in now if x.who == effects.EVERYBODY and x.source == effects.MODEL]
    if len(episodes) < 2 or not last:
        return []
    fits = _field(seen, fit, episodes) if isinstance(fit, Known) else inference.fits_after(seen, episodes[:-1])
    if fits is None:
        return []
    found = [_at(seen, earlier, episode) for earlier, episode in zip(fits, episodes[:-1], strict=True)]
    return [*(_known(seen, past) for past in found), _known(seen, Past(int(episodes[-1]), last))]


def rows(found: Sequence[Past], called: Calendar) -> list[dict[str, object]]:
    """One for each point, arm and measure."""
    return [
        {
            "episode": past.episode,
            "arm": x.arm,
            "on": x.on,
            "estimate": x.estimate,
            "likely_low": x.likely_low,
            "likely_high": x.likely_high,
            "season": called.names.get(past.episode, ""),
            "date": called.dates.get(past.episode, ""),
        }
        for past in found
        for x in past.effects
    ]


def _points(episodes: IntArray) -> IntArray:
    """At most so many of these, the last among them."""
    step = -(-len(episodes) // MOST_POINTS)
    return episodes[::-1][::step][::-1]


def _at(seen: Gathered, fit: Inference, episode: int) -> Past:
    """By the fit that was made of the outcomes up to an episode."""
    state = seen.state
    names, measures = list(state.users), [REWARD, *state.problem.metrics]
    given = effects.given(state, names).sum(0)
    could = effects.may_get(state, names)
    ranges = effects.group_ranges(state, fit, offers_now(state), list(range(len(names))), could)  # (5, K, 1 + M)
    anybody, who = np.asarray(effects.available(state, names).any(0)), effects.EVERYBODY
    found = [effects.named(state, who, on, ranges[..., i], given, anybody) for i, on in enumerate(measures)]
    return Past(episode, [x for part in found for x in part])


def _known(seen: Gathered, past: Past) -> Past:
    """Without arms of which nothing was known by then, and without the control against itself."""
    by_then = seen.told & (seen.episode <= past.episode)
    there = {seen.state.problem.arms[k] for k in np.unique(seen.arm[by_then])}
    kept = [x for x in past.effects if x.arm in there and x.is_known and not x.is_control]
    return Past(past.episode, kept)


def _field(seen: Gathered, fit: Known, episodes: IntArray) -> list[Inference]:
    """With the variances as they are now."""
    learner, offers = fit.learner, offers_now(seen.state)
    apart = learner.seasons or learner.discount < 1  # else cells do not tell when an outcome came
    found: list[Inference] = []
    for episode in episodes[:-1]:
        cells = _until(fit.evidence.cells, int(episode)) if apart else _again(seen, fit, int(episode))
        evidence = replace(fit.evidence, cells=cells, stepped=-1, season=int(episode) - 1)
        found.append(contrasts.know(learner, learner.ready(evidence, variances=False), offers))
    return found


def _until(cells: Cells, episode: int) -> Cells:
    """Of the seasons up to this one, which count from 0 there."""
    own = cells.live()
    return own.at(np.flatnonzero(own.keys[:, SEASON] < episode))


def _again(seen: Gathered, fit: Known, episode: int) -> Cells:
    """The outcomes up to an episode, counted in anew, where all seasons share their cells."""
    values: FloatArray = fit.evidence.cells.mean
    cells = field_cells.init(values.shape[-1], factors=fit.evidence.cells.keys.shape[-1])
    for part in outcome_rows(seen, fit, np.flatnonzero(seen.told & (seen.episode <= episode))):
        if part is not None:
            part.keys[:, SEASON] = 0
            cells = field_cells.add(cells, part)
    return cells
