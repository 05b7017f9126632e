"""Posteriors of effects: contrasts of arms for single users and for users together, their ranges, and when they count.

An effect is a linear combination of coefficients: a row on theta for each metric, whose posterior and prior are normal.
Users' effects are correlated through theta, so several users together are one row, the mean of theirs. Effects of a
season, and where users have effects of their own those as well, are averaged out of such a row.

**Multiple comparisons.** A likely range is right for one effect, not for all of them at once. So an arm is called
likely better (or worse) for a user only if, besides the user's own range, one of two things holds: it is better for all
users together, adjusted for the number of arms; or for this user, adjusted for the number of arms and of users.
Dunnett's bound is for estimates that share a control, one-sided at 5 %, at one look at a trial with fixed shares. Where
sites decide season after season, shares follow the outcomes: a lucky arm is given more, and the control, which looks
too low by then, less. So "no difference" must also have become less plausible, by a factor of as many as there
are comparisons: its density at 0, against that with one outcome of each arm (as in Schwarz's criterion). Where people
come, shares stay closer to even and it is not needed.

**Seasons with both arms.** Where a season has effects on single arms (season x arm), all that one season says of an arm
rests on the prior of such effects. So an arm is called better or worse only where it and its control were observed in
`records.ENOUGH_SEASONS` seasons, counted over the whole trial: a season's effect on an arm is common to all sites.

Shapes: leading `...` is any batch of trials; n users, K arms, M metrics, P columns of theta, O = 1 + M: on the reward
and then on each metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr

from drimed.errors import ConfigError, InputError
from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.mixed.observations import UNKNOWN, Cells, Scale
from drimed.models.mixed.prediction import degrees_of_freedom, residual
from drimed.models.mixed.terms import FACTORS, Layout, Structure
from drimed.models.offer import Offer
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.records import ENOUGH_SEASONS

LIKELY = 0.95
NORMAL = np.asarray(np.inf)  # degrees of freedom
ALPHA = 0.05  # a range at all times fails with this probability, and Dunnett's bound
AT_ONCE = 256  # users whose rows are made at a time
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(101)
LARGEST = 12.0  # deviations within which a bound is looked for
SEASON, ARM = FACTORS.index("season"), FACTORS.index("arm")
MANY = np.iinfo(np.intp).max  # seasons of arms and metrics that do not count


class EffectPosterior(NamedTuple):
    """Posteriors of numbers in the units of their metric, of any shape."""

    mean: FloatArray
    deviation: FloatArray
    prior: FloatArray  # deviation before any data
    freedom: FloatArray = NORMAL  # degrees of freedom of its tails
    single: FloatArray = np.asarray(0.0)  # deviation by one outcome of each arm; 0 where Dunnett's bound is enough

    @property
    def likely(self) -> tuple[FloatArray, FloatArray]:
        """The central 95 %, at one look."""
        half = self.quantile(0.5 + LIKELY / 2)
        return self.mean - half, self.mean + half

    def quantile(self, level: FloatArray | float) -> FloatArray:
        """The distance from the mean to this level of the distribution."""
        return probability.student_quantile(level, self.freedom) * self.deviation

    def at_all_times(self, alpha: float = ALPHA) -> tuple[FloatArray, FloatArray]:
        """The range that holds it at all looks together but for alpha; UNKNOWN where nothing is known."""
        uncertain = self.deviation > 0
        v, v0 = (np.where(uncertain, d, 1.0) ** 2 for d in (self.deviation, np.maximum(self.prior, self.deviation)))
        ends = anytime_range(self.mean, v, v0, alpha)
        low, high = (np.where(uncertain, np.clip(end, -UNKNOWN, UNKNOWN), self.mean) for end in ends)
        return low, high

    def at(self, index: Any) -> EffectPosterior:
        """Some of them."""
        return EffectPosterior(*(np.broadcast_to(column, self.mean.shape)[index] for column in self))

    @staticmethod
    def join(parts: Sequence[EffectPosterior], *, new_axis: bool = False) -> EffectPosterior:
        """Several one after the other, or along a new first axis."""
        columns = zip(*([np.broadcast_to(c, part.mean.shape) for c in part] for part in parts), strict=True)
        return EffectPosterior(*((np.stack if new_axis else np.concatenate)(column) for column in columns))


def anytime_range(
    mean: FloatArray, variance: FloatArray, prior_variance: FloatArray, alpha: float
) -> tuple[FloatArray, FloatArray]:
    """Ends of the range of a contrast psi that holds at all times at once, of any shape; infinite without any data.

    Under psi, the ratio of its prior to its posterior density is a martingale when the other coefficients follow their
    prior (the method of mixtures), so with probability 1 - alpha at no time does it exceed 1 / alpha:

        (psi - m)^2 / v <= 2 log(1 / alpha) + log(v0 / v) + psi^2 / v0

    It holds on average over the prior of the other coefficients and for known variances, not for the worst case.

    >>> low, high = anytime_range(np.array(0.0), np.array(1.0), np.array(150.0), 0.05)
    >>> round(float(high / 1.96), 2)
    1.7
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha must be in (0, 1), got {alpha}")
    gained = 1 / variance - 1 / prior_variance
    informed = gained > 0
    gained = np.where(informed, gained, 1.0)
    # The quadratic in psi, about its vertex: the posterior mean of psi under a flat prior.
    centre = mean / variance / gained
    apart = mean**2 / (variance * prior_variance * gained)
    room = 2 * np.log(1 / alpha) + np.log(prior_variance / variance) + apart
    half = np.where(informed, np.sqrt(np.maximum(room, 0.0) / gained), np.inf)
    return np.where(informed, centre - half, -np.inf), np.where(informed, centre + half, np.inf)


@dataclass(frozen=True)
class FittedModel:
    """The posterior of theta in standardised units, with columns for all users that are asked about."""

    learner: Field
    evidence: FieldEvidence
    structure: Structure
    layout: Layout
    theta: FloatArray  # (..., M, P)
    covariance: FloatArray  # (..., M, P, M, P)
    prior: FloatArray  # (..., M, P), variances

    @property
    def scale(self) -> Scale:
        """Of metrics and covariates."""
        return self.evidence.fitted.scale

    @property
    def centre(self) -> FloatArray:
        """Of the metrics: (..., M)."""
        return self.scale.centre[..., self.structure.covariates :]

    @property
    def unit(self) -> FloatArray:
        """Of the metrics: (..., M)."""
        return self.scale.unit[..., self.structure.covariates :]

    def posterior(self, rows: FloatArray) -> EffectPosterior:
        """Of rows in standardised columns and the metrics' units: (..., *any, M, P) -> (..., *any)."""
        batch, size = self.theta.shape[:-2], rows.shape[-2] * rows.shape[-1]
        flat = rows.reshape(*batch, -1, size)  # (..., n, M P)
        mean = np.matvec(flat, self.theta.reshape(*batch, size))
        variance = np.vecdot(np.matmul(flat, self.covariance.reshape(*batch, size, size)), flat)
        prior = np.sqrt(np.matvec(flat**2, self.prior.reshape(*batch, size)))
        squares = self.layout.by_family(flat.reshape(*flat.shape[:-1], *rows.shape[-2:]) ** 2)
        at_nodes = self.evidence.fitted.variance.reshape(*batch, -1, squares.shape[-2] * squares.shape[-1])
        at_nodes = np.matmul(squares.reshape(*flat.shape[:-1], -1), np.swapaxes(at_nodes, -1, -2))  # (..., n, B)
        freedom = degrees_of_freedom(at_nodes[..., None, :], variance[..., None])
        known, blank = self.scale.known[..., None] > 0, np.where(prior > 0, UNKNOWN, 0.0)
        columns = (
            mean,
            np.where(known, np.sqrt(np.maximum(variance, 0.0)), blank),
            np.where(known, prior, blank),
            np.where(known, freedom, np.inf),
            np.zeros_like(mean),
        )
        return EffectPosterior(*(column.reshape(rows.shape[:-2]) for column in columns))

    def prediction_rows(self, offers: Offer) -> tuple[IntArray, FloatArray]:
        """The factors and covariates of all arms of each offer: (..., n, K, F) and (..., n, K, c)."""
        return self.learner.features.prediction_rows(offers, self.evidence.season)

    def rows(self, keys: IntArray, covariates: FloatArray, *, without: Sequence[str] = ()) -> FloatArray:
        """Decisions as rows on theta, but for families that vary with a factor of `without`: (..., n, K, P)."""
        rows = self.layout.rows(keys, self.scale.expand().standardise(covariates))
        out = [k for k in self.layout.members if set(self.structure.families[k].by) & set(without)]
        rows[..., np.isin(self.layout.family, out)] = 0.0
        return rows

    def effect_rows(self, offers: Offer) -> FloatArray:
        """Each arm against the user's own control as rows, for one unit of a metric: (..., n, K, P)."""
        X = self.rows(*self.prediction_rows(offers))
        return X - np.einsum("...hk,...hkp->...hp", offers.control, X)[..., None, :]

    def preferences(self, offers: Offer) -> FloatArray:
        """Of each user: (..., n, M)."""
        M = self.structure.metrics
        if offers.preference is None and M > 1:
            raise InputError(f"an offer with {M} metrics needs a preference")
        return np.ones((*offers.control.shape[:-1], 1)) if offers.preference is None else offers.preference

    def noise(self, offers: Offer) -> FloatArray:
        """The covariance of single outcomes under each arm, in the units of the metrics: (..., n, K, M, M)."""
        keys, _ = self.prediction_rows(offers)
        unit = self.unit[..., None, None, :]  # (..., 1, 1, M)
        R = residual(self.structure, self.evidence.fitted, keys) * unit[..., None] * unit[..., None, :]
        return np.broadcast_to(R, (*np.broadcast_shapes(R.shape[:-2], keys.shape[:-1]), *R.shape[-2:]))


def extend_to(learner: Field, evidence: FieldEvidence, offers: Offer) -> FittedModel:
    """The fit, with columns for the users of these offers; effects without any outcomes follow the prior."""
    evidence = learner.ready(evidence)
    structure, fitted = learner.structure(evidence), evidence.fitted
    keys, _ = learner.features.prediction_rows(offers, evidence.season)
    most = 1 + keys.reshape(-1, keys.shape[-1]).max(0)
    layout = replace(structure.common, sizes=tuple(np.maximum(structure.common.sizes, most).tolist()))
    at, M, P = structure.common.places_in(layout), structure.metrics, len(layout.family)
    prior = fitted.variance.mean(-3)[..., layout.family]
    theta, covariance = np.zeros((*fitted.batch, M, P)), np.zeros((*fitted.batch, M, P, M, P))
    theta[..., at] = fitted.theta
    for m in range(M):
        covariance[..., m, :, m, :] = prior[..., m, :, None] * np.eye(P)
        for k in range(M):
            covariance[..., m, at[:, None], k, at] = fitted.covariance[..., m, :, k, :]
    return FittedModel(learner, evidence, structure, layout, theta, covariance, prior)


def effects_of_users(model: FittedModel, offers: Offer) -> EffectPosterior:
    """Each arm against the user's own control, with all that is a user's own: (..., n, K, O)."""
    if offers.control.ndim > 2:
        return _of_users(model, offers)
    return EffectPosterior.join([_of_users(model, part) for _, part in chunks(offers)])


def _of_users(model: FittedModel, offers: Offer) -> EffectPosterior:
    belief = model.learner.beliefs(model.evidence, offers)
    weighs = on_measures(model.preferences(offers))  # (..., n, O, M)
    contrast = np.eye(belief.mean.shape[-2]) - offers.control[..., None, :]  # (..., n, K, K)
    mean = np.einsum("...hom,...hkm->...hko", weighs, np.matmul(contrast, belief.mean))
    is_other = np.abs(contrast).max(-1)[..., None] > 0  # an arm that is the control has no effect

    def deviation(covariance: FloatArray) -> FloatArray:
        C = np.einsum("...hka,...hambn,...hkb->...hkmn", contrast, covariance, contrast, optimize=True)
        variance = np.einsum("...hom,...hkmn,...hon->...hko", weighs, C, weighs, optimize=True)
        return np.where(is_other, np.sqrt(np.maximum(variance, 0.0)), 0.0)

    single = np.zeros(1)
    if model.learner.kind == "field":
        noise = np.einsum("...hom,...hkmn,...hon->...hko", weighs, model.noise(offers), weighs, optimize=True)
        single = np.sqrt(np.einsum("...hkj,...hjo->...hko", contrast**2, noise))
    freedom, single = (np.broadcast_to(a, mean.shape) for a in (belief.freedom[..., None, None], single))
    return EffectPosterior(mean, deviation(belief.covariance), deviation(belief.prior), freedom, single)


def effects_together(model: FittedModel, offers: Offer, possible: BoolArray) -> EffectPosterior:
    """Each arm against the control for these users together: (..., K, O).

    The mean over the users who can get the arm, `possible` (..., n, K), or over all of them where none can. For people
    it is the average person: a user's own effects are averaged out.
    """
    weight, weighs = mean_weights(possible), on_measures(model.preferences(offers))
    total: FloatArray | float = 0.0
    for at, part in chunks(offers):
        parts = weight[..., at, :], weighs[..., at, :, :], model.effect_rows(part)
        total = total + np.einsum("...hk,...hom,...hkp->...komp", *parts, optimize=True)
    posterior = model.posterior(np.asarray(total) * model.unit[..., None, None, :, None])
    if model.learner.kind == "people":
        return posterior
    contrast = np.eye(weight.shape[-1]) - offers.control[..., None, :]  # (..., n, K, J)
    contrast = np.einsum("...hk,...hom,...hkj->...komj", weight, weighs, contrast, optimize=True)
    noise = model.noise(offers).mean(-4)  # (..., J, M, M)
    single = np.einsum("...komj,...jmn,...konj->...ko", contrast, noise, contrast, optimize=True)
    return posterior._replace(single=np.broadcast_to(np.sqrt(single), posterior.mean.shape))


def mean_weights(possible: BoolArray) -> FloatArray:
    """Of each user in the mean effect of an arm, over the users who can get it, or else over all: (..., n, K)."""
    weight = np.where(possible.any(-2, keepdims=True), possible, True).astype(np.float64)
    return np.asarray(weight / weight.sum(-2, keepdims=True))


def on_measures(preference: FloatArray) -> FloatArray:
    """Weights of the metrics in each user's reward, and in each metric: (..., M) -> (..., O, M)."""
    M = preference.shape[-1]
    return np.concatenate([preference[..., None, :], np.broadcast_to(np.eye(M), (*preference.shape, M))], -2)


def chunks(offers: Offer) -> Iterator[tuple[slice, Offer]]:
    """A few users at a time; those of a batch all at once."""
    n = offers.control.shape[-2]
    if n <= AT_ONCE or offers.control.ndim > 2:
        yield slice(0, n), offers
        return
    for first in range(0, n, AT_ONCE):
        at = slice(first, min(first + AT_ONCE, n))
        yield at, offers.take(at)


# Multiple comparisons


def compared_arms(control: FloatArray, possible: BoolArray | None = None) -> int:
    """The number of arms that are compared with a control, of users with these controls (..., K) and `possible` arms.

    An arm that is the only control of all users is compared with nothing. Where controls differ it is, for the others;
    and where they are drawn among several arms, each of these has an effect against the draw, and a verdict.

    >>> one, other, drawn = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]
    >>> [compared_arms(np.array(controls)) for controls in ([one, one], [one, other], [drawn])]
    [2, 3, 3]
    """
    others = control < 1 if possible is None else (control < 1) & possible
    return max(1, int(others.reshape(-1, others.shape[-1]).any(0).sum()))


@cache
def dunnett_bound(arms: int, users: int = 1) -> float:
    """Deviations from 0 that one of so many estimates must be, all against one control.

    >>> [round(dunnett_bound(arms), 2) for arms in (1, 2, 4, 9)]
    [1.64, 1.92, 2.16, 2.42]
    """
    from scipy.optimize import brentq  # here, because it takes a quarter of a second that most commands do not need

    def excess(bound: float) -> float:
        chance = -np.expm1(arms * log_ndtr(np.sqrt(2) * bound + NODES))  # that any is beyond it, given the control
        return float(WEIGHTS @ chance / WEIGHTS.sum()) - ALPHA / users

    return float(brentq(excess, 0.0, LARGEST))


def density_bound(information: FloatArray, comparisons: int) -> FloatArray:
    """Deviations from 0 that make "no difference" less plausible by a factor of so many comparisons.

    The information about an effect is the ratio of its variance by one outcome of each arm alone to its variance.

    >>> np.round(density_bound(np.array([0.0, 10.0, 100.0]), 4), 2).tolist()
    [1.67, 2.27, 2.72]
    """
    return np.sqrt(2 * np.log(comparisons) + np.log1p(information))


def adjusted_sign(effects: EffectPosterior, arms: int, users: int = 1) -> FloatArray:
    """1 where an effect is above 0 after adjusting for so many arms and users, -1 where it is below, else 0."""
    uncertain = effects.deviation > 0
    information = np.where(uncertain, effects.single, 0.0) ** 2 / np.where(uncertain, effects.deviation, 1.0) ** 2
    deviations = np.maximum(dunnett_bound(arms, users), density_bound(information, arms * users))
    return np.sign(effects.mean) * (np.abs(effects.mean) > effects.quantile(ndtr(deviations)))


def is_significant(own: EffectPosterior, together: EffectPosterior | None, arms: int, users: int) -> BoolArray:
    """After adjusting for multiple comparisons: by itself, or by the effect `together` on the same side of 0."""
    alone = adjusted_sign(own, arms, users) != 0
    if together is None:
        return alone
    of_all = adjusted_sign(together, arms)
    return np.asarray(alone | ((of_all != 0) & (of_all == np.sign(own.mean))))


# Seasons


def seasons_with_both_arms(
    learner: Field, evidence: FieldEvidence, offers: Offer, before: int | None = None
) -> IntArray | None:
    """Seasons with outcomes of each arm, or of the user's control if these are fewer: (..., n, K, O).

    None where no season has effects on single arms. For the reward, the metric that was observed in fewest counts. Only
    seasons `before` this one, from 0, count, or (None) all.
    """
    structure = learner.structure(evidence)
    if not any({"season", "arm"} <= set(f.by) for f in structure.families):
        return None
    K = offers.control.shape[-1]
    of_arm = seasons_of_arms(evidence.cells, K, structure.metrics, before)[..., None, :, :]  # (..., 1, K, M)
    of_control = np.where(offers.control[..., None] > 0, of_arm, MANY).min(-2, keepdims=True)  # (..., n, 1, M)
    both = np.minimum(of_arm, of_control)
    p = np.ones(1) if offers.preference is None else offers.preference[..., None, :]
    return np.concatenate([np.where(p != 0, both, MANY).min(-1, keepdims=True), both], -1)


def has_enough_seasons(learner: object, evidence: Any, offers: Offer) -> BoolArray:
    """Whether each arm may be judged on the reward of each user: (..., n, K), or () where seasons do not matter."""
    seasons = seasons_with_both_arms(learner, evidence, offers) if isinstance(learner, Field) else None
    return np.asarray(True if seasons is None else seasons[..., 0] >= ENOUGH_SEASONS)


def seasons_of_arms(cells: Cells, arms: int, metrics: int, before: int | None = None) -> IntArray:
    """The number of seasons in which each metric of each arm was observed: (..., K, M)."""
    own = cells.live()
    season, arm = own.keys[..., SEASON], own.keys[..., ARM]  # (..., N)
    observed = (own.pattern[..., None] >> np.arange(metrics)) & 1  # (..., N, M)
    *member, cell, metric = np.nonzero((own.n[..., None] > 0) & (observed > 0))
    occurs = np.zeros((*cells.batch, 1 + int(season.max(initial=0)), arms, metrics), bool)
    at = (*member, cell)
    occurs[(*member, season[at], arm[at], metric)] = True
    return np.asarray(occurs[..., :before, :, :].sum(-3), np.intp)
