"""Posteriors of effects: contrasts of arms for single users and for users together, their ranges, and when they count.

An effect is a weighted sum of arms' mean outcomes: a row on theta for each metric, and one on the own effects of each
unit. Users' effects are correlated through theta, so several users together are one sum. Effects of seasons are
averaged out.

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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from drimed.errors import ConfigError, InputError
from drimed.models.mixed.generalised import DRAWS
from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.mixed.observations import UNKNOWN, Cells, Scale
from drimed.models.mixed.prediction import (
    at_each_node,
    columns_of_fit,
    degrees_of_freedom,
    effects_of_clusters,
    parts_of,
    residual,
    split_columns,
)
from drimed.models.mixed.terms import FACTORS, Layout, Structure
from drimed.models.offer import Offer
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.records import ENOUGH_SEASONS

LIKELY = 0.95
STANDARD = float(ndtri(0.5 + LIKELY / 2))  # deviations of a normal distribution that are likely
NORMAL = np.asarray(np.inf)  # degrees of freedom
ALPHA = 0.05  # a range at all times fails with this probability, and Dunnett's bound
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
    below: FloatArray = np.asarray(1.0)  # how much longer than a symmetric one the likely range is below the mean
    above: FloatArray = np.asarray(1.0)
    least: FloatArray = np.asarray(-UNKNOWN)  # that is possible
    most: FloatArray = np.asarray(UNKNOWN)

    @property
    def likely(self) -> tuple[FloatArray, FloatArray]:
        """The central 95 %, at one look."""
        half = self.quantile(0.5 + LIKELY / 2)
        return self.mean - half * self.below, self.mean + half * self.above

    def from_draws(self, draws: FloatArray, ends: tuple[FloatArray, FloatArray]) -> EffectPosterior:
        """The same numbers as their posterior draws (..., S) say, and the ends of what is possible."""
        mean, deviation = draws.mean(-1), draws.std(-1)
        low, high = np.quantile(draws, [0.5 - LIKELY / 2, 0.5 + LIKELY / 2], axis=-1)
        half = np.where(deviation > 0, probability.student_quantile(0.5 + LIKELY / 2, NORMAL) * deviation, 1.0)
        below, above = (np.where(deviation > 0, part / half, 1.0) for part in (mean - low, high - mean))
        least, most = ends
        return EffectPosterior(
            mean, deviation, self.prior, np.full_like(mean, np.inf), self.single, below, above, least, most
        )

    def quantile(self, level: FloatArray | float) -> FloatArray:
        """The distance from the mean to this level of the distribution."""
        return probability.student_quantile(level, self.freedom) * self.deviation

    def at_all_times(self, alpha: float = ALPHA) -> tuple[FloatArray, FloatArray]:
        """The range that holds it at all looks together but for alpha; UNKNOWN where nothing is known."""
        uncertain = self.deviation > 0
        v, v0 = (np.where(uncertain, d, 1.0) ** 2 for d in (self.deviation, np.maximum(self.prior, self.deviation)))
        ends = anytime_range(self.mean, v, v0, alpha)
        low, high = (np.where(uncertain, np.clip(end, self.least, self.most), self.mean) for end in ends)
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


class _Sums(NamedTuple):
    """Weights of sums in standardised units, on theta and on the own effects of units; T sums, C clusters."""

    layout: Layout  # of theta, with columns for values that no outcome has
    rows: FloatArray  # (..., T, M, P)
    clusters: IntArray  # (C,)
    own: FloatArray  # (..., T, C, M, q)
    offset: FloatArray  # (..., T), of the metrics' centres


@dataclass(frozen=True)
class FittedModel:
    """A learner with its evidence, all outcomes in the fit."""

    learner: Field
    evidence: FieldEvidence

    @staticmethod
    def of(learner: Field, evidence: FieldEvidence) -> FittedModel:
        """With the outcomes that were still waiting."""
        return FittedModel(learner, learner.ready(evidence, complete=True))

    @property
    def structure(self) -> Structure:
        return self.learner.structure(self.evidence)

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

    def means(self, offers: Offer) -> FloatArray:
        """Mean outcomes in an average season, of users as the learner promises: (..., n, K, M)."""
        if self.learner.has_draws:
            return self.learner.means(self.evidence, offers).draws.mean(-3)
        return self.learner.beliefs(self.evidence, offers).mean

    def posterior(
        self, parts: Sequence[tuple[Offer, FloatArray]], units: str, season: int | None = None
    ) -> EffectPosterior:
        """Of sums of mean outcomes in an average season, or in a certain one: (..., T).

        Each part has offers and the weights of their arms' metrics (..., T, n, K, M). The outcomes are those of the
        units themselves ("each"), of units "alike", or of "average" units, whose own effects are averaged out.
        """
        structure, fitted = self.structure, self.evidence.fitted
        sums = self._sums(parts, season, own=units != "average" and structure.cluster != "season")
        layout = sums.layout
        at = structure.common.places_in(layout)[columns_of_fit(structure, self.evidence.cells)]
        squares = layout.by_family(sums.rows**2)  # (..., T, M, families)
        rows, new = sums.rows[..., None, :, at], np.isin(np.arange(len(layout.family)), at, invert=True)
        theta, covariance = fitted.theta[..., None, :, :], fitted.covariance[..., None, :, :, :, :]
        v = fitted.variance  # (..., B, M, families)
        shift = variance = np.zeros(1)
        if len(sums.clusters):
            squares = squares + structure.own.by_family((sums.own**2).sum(-3))
            theta, covariance = at_each_node(fitted)
            through, shift, variance = self._own_effects(sums)
            rows, variance = rows + through, variance if units == "each" else np.zeros(1)
        else:
            v = v.mean(-3, keepdims=True)
        unseen = sums.rows[..., new] ** 2  # (..., T, M, P'), of columns that follow their prior
        variance = variance + np.einsum("...tmp,...bmp->...tb", unseen, v[..., layout.family[new]])
        batch, (B, M, P) = theta.shape[:-3], theta.shape[-3:]
        flat = np.moveaxis(np.broadcast_to(rows, (*rows.shape[:-3], B, M, P)), -3, -4).reshape(*batch, B, -1, M * P)
        spread = np.vecdot(np.matmul(flat, covariance.reshape(*batch, B, M * P, M * P)), flat)  # (..., B, T)
        means = np.swapaxes(np.matvec(flat, theta.reshape(*batch, B, M * P)), -1, -2) + shift  # (..., T, B)
        variances = np.swapaxes(spread, -1, -2) + variance
        mean, variance = means.mean(-1), np.maximum(variances.mean(-1) + means.var(-1), 0.0)
        at_nodes = np.einsum("...tmf,...bmf->...tb", squares, fitted.variance)
        prior = np.sqrt(at_nodes.mean(-1))
        freedom = degrees_of_freedom(at_nodes[..., None, :], variance[..., None])
        known, blank = self.scale.known[..., None] > 0, np.where(prior > 0, UNKNOWN, 0.0)
        gaussian = EffectPosterior(
            sums.offset + mean,
            np.where(known, np.sqrt(variance), blank),
            np.where(known, prior, blank),
            np.where(known, freedom, np.inf),
            *(np.full_like(mean, value) for value in (0.0, 1.0, 1.0, -UNKNOWN, UNKNOWN)),
        )
        return gaussian.from_draws(*self.draws(parts, units, season)) if self.learner.has_draws else gaussian

    def draws(
        self, parts: Sequence[tuple[Offer, FloatArray]], units: str, season: int | None
    ) -> tuple[FloatArray, tuple[FloatArray, FloatArray]]:
        """Draws of sums of mean outcomes (..., T, S), and their ends (..., T), where beliefs are draws."""
        total: Any = 0.0
        least: Any = 0.0
        most: Any = 0.0
        for offers, weights in parts:
            for some in parts_of(weights.shape[-3], DRAWS * weights.shape[-1] * weights.shape[-2]):
                means = self.learner.means(self.evidence, offers.take(some), alike=units != "each", season=season)
                own = weights[..., some, :, :]
                total = total + np.einsum("...tnkm,...nskm->...ts", own, means.draws, optimize=True)
                ends = means.ends_of(own)
                least, most = least + ends[0].sum((-3, -2, -1)), most + ends[1].sum((-3, -2, -1))
        return np.asarray(total), (np.asarray(least), np.asarray(most))

    def _sums(self, parts: Sequence[tuple[Offer, FloatArray]], season: int | None, *, own: bool) -> _Sums:
        """The parts added up."""
        structure, place, average = self.structure, self.structure.cluster_place, season is None
        numbers = self.centre[..., 0].size * len(structure.common.family)  # in rows of an arm
        parts = [
            (offers.take(some), weights[..., some, :, :])
            for offers, weights in parts
            for some in parts_of(weights.shape[-3], numbers * weights.shape[-2])
        ]
        now = self.evidence.season if season is None else season
        made = [self.learner.features.prediction_rows(offers, now) for offers, _ in parts]
        most = np.max([keys.reshape(-1, keys.shape[-1]).max(0) for keys, _ in made], axis=0)
        layout = replace(structure.common, sizes=tuple(np.maximum(structure.common.sizes, 1 + most).tolist()))
        units = [keys[..., 0, place].reshape(-1, keys.shape[-3])[0] for keys, _ in made]  # (n,) of each part
        clusters = np.unique(np.concatenate(units)) if own else np.zeros(0, np.intp)
        total: list[Any] = [0.0, 0.0, np.zeros(1)]
        for (_, weights), (keys, covariates), number in zip(parts, made, units, strict=True):
            z, w = self.scale.expand().standardise(covariates), weights * self.unit[..., None, None, None, :]
            X = layout.rows(keys, z, average_season=average)
            total[0] = total[0] + np.einsum("...thkm,...hkp->...tmp", w, X, optimize=True)
            total[1] = total[1] + np.einsum("...thkm,...m->...t", weights, self.centre)
            if own:
                Z = structure.own.rows(structure.with_unseen(keys), z, average_season=average)
                by_unit = np.einsum("...thkm,...hkq->h...tmq", w, Z, optimize=True)
                total[2] = total[2] if total[2].ndim > 1 else np.zeros((len(clusters), *by_unit.shape[1:]))
                np.add.at(total[2], np.searchsorted(clusters, number), by_unit)
        return _Sums(layout, total[0], clusters, np.moveaxis(total[2], 0, -3) if own else total[2], total[1])

    def _own_effects(self, sums: _Sums) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Parts of own effects at each node: rows on theta (..., T, B, M, P), shift and variance (..., T, B)."""
        structure, cells, fitted = self.structure, self.evidence.cells, self.evidence.fitted
        v = fitted.variance[..., structure.own.family]  # (..., B, M, q)
        total: list[Any] = [0.0, 0.0, 0.0]
        T, M, q = sums.own.shape[-4], *sums.own.shape[-2:]
        for some in parts_of(len(sums.clusters), v[..., 0, 0].size * M * q * max(T, M * sums.rows.shape[-1])):
            clusters = np.broadcast_to(sums.clusters[some], (*cells.batch, len(sums.clusters[some])))
            columns, effects = effects_of_clusters(structure, fitted, cells, clusters)
            w, rest = split_columns(sums.own[..., some, :, :], columns[..., None, :, :])
            total[0] = total[0] - np.einsum("...tcmq,...cbmqnp->...tbnp", w, effects.gain, optimize=True)
            total[1] = total[1] + np.einsum("...tcmq,...cbmq->...tb", w, effects.shift, optimize=True)
            half = np.einsum("...tcmq,...cbmqnr->...tcbnr", w, effects.noise, optimize=True)
            total[2] = total[2] + np.einsum("...tcbnr,...tcnr->...tb", half, w, optimize=True)
            total[2] = total[2] + np.einsum("...tmq,...bmq->...tb", (rest**2).sum(-3), v, optimize=True)
        return total[0], total[1], total[2]

    def preferences(self, offers: Offer) -> FloatArray:
        """Of each user: (..., n, M)."""
        M = self.structure.metrics
        if offers.preference is None and M > 1:
            raise InputError(f"an offer with {M} metrics needs a preference")
        return np.ones((*offers.control.shape[:-1], 1)) if offers.preference is None else offers.preference

    def noise(self, offers: Offer) -> FloatArray:
        """The covariance of single outcomes under each arm, in the units of the metrics: (..., n, K, M, M)."""
        keys, _ = self.learner.features.prediction_rows(offers, self.evidence.season)
        unit = self.unit[..., None, None, :]  # (..., 1, 1, M)
        R = residual(self.structure, self.evidence.fitted, keys) * unit[..., None] * unit[..., None, :]
        return np.broadcast_to(R, (*np.broadcast_shapes(R.shape[:-2], keys.shape[:-1]), *R.shape[-2:]))


def effects_of_users(model: FittedModel, offers: Offer) -> EffectPosterior:
    """Each arm against the user's own control, for the user or users alike as the learner promises: (..., n, K, O)."""
    K, M = offers.control.shape[-1], model.structure.metrics
    some = parts_of(offers.batch[-1], (K * M) ** 2 + model.learner.has_draws * DRAWS * K * (1 + M))
    if len(some) > 1 and not model.evidence.cells.batch:
        return EffectPosterior.join([effects_of_users(model, offers.take(at)) for at in some])
    belief = model.learner.beliefs(model.evidence, offers)
    weighs = on_measures(model.preferences(offers))  # (..., n, O, M)
    contrast = np.eye(K) - offers.control[..., None, :]  # (..., n, K, K)
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
    effects = EffectPosterior(mean, deviation(belief.covariance), deviation(belief.prior), freedom, single)
    if not model.learner.has_draws:
        return effects
    means = model.learner.means(model.evidence, offers, belief)
    draws = np.einsum("...hkj,...hom,...hsjm->...hkos", contrast, weighs, means.draws, optimize=True)
    least, most = means.ends_of(np.einsum("...hkj,...hom->...hkojm", contrast, weighs))
    return effects.from_draws(draws, (least.sum((-2, -1)), most.sum((-2, -1))))


def effects_together(model: FittedModel, offers: Offer, possible: BoolArray) -> EffectPosterior:
    """Each arm against the control for these users together: (..., K, O).

    The mean over the users who can get the arm, `possible` (..., n, K), or over all of them where none can; of an
    average unit where the promise is to units alike.
    """
    weight, M = mean_weights(possible), model.structure.metrics
    some = parts_of(weight.shape[-1], weight.size * M * (1 + M))
    parts = [_effects_of_arms(model, offers, weight, at) for at in some]
    return EffectPosterior(*(np.concatenate(column, -2) for column in zip(*parts, strict=True)))


def _effects_of_arms(model: FittedModel, offers: Offer, weight: FloatArray, arms: slice) -> EffectPosterior:
    """Of some of the arms, for users with these weights (..., n, K)."""
    weighs = on_measures(model.preferences(offers))
    contrast = np.eye(weight.shape[-1])[arms] - offers.control[..., None, :]  # (..., n, K, J)
    sums = np.einsum("...hk,...hom,...hkj->...kohjm", weight[..., arms], weighs, contrast, optimize=True)
    K, measures = sums.shape[-5:-3]
    sums = sums.reshape(*sums.shape[:-5], K * measures, *sums.shape[-3:])
    posterior = model.posterior([(offers, sums)], "average" if model.learner.promise == "alike" else "each")
    posterior = EffectPosterior(*(column.reshape(*column.shape[:-1], K, measures) for column in posterior))
    if model.learner.kind == "people":
        return posterior
    total = sums.sum(-3)  # (..., K O, J, M)
    single = np.einsum("...tjm,...jmn,...tjn->...t", total, model.noise(offers).mean(-4), total, optimize=True)
    single = np.broadcast_to(np.sqrt(single).reshape(*single.shape[:-1], K, measures), posterior.mean.shape)
    return posterior._replace(single=single)


def effect_moments(
    learner: Field, evidence: FieldEvidence, offers: Offer, possible: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """The estimates of `effects_together` and their deviations, by which a normal range would be as wide: (..., K, O).

    From draws alone where no metric is a number: the Gaussian model is not fitted. Offers have no batch.
    """
    if not learner.has_draws:
        model = FittedModel.of(learner, evidence)
        every = offers.broadcast((*model.evidence.cells.batch, offers.batch[-1]))
        together = effects_together(model, every, possible)
        return together.mean, together.quantile(0.5 + LIKELY / 2) / STANDARD
    weight = mean_weights(possible)  # (n, K)
    n, K = weight.shape
    M = len(learner.kinds)
    preference = np.ones((n, M)) if offers.preference is None else np.broadcast_to(offers.preference, (n, M))
    if learner.promise == "alike":  # users who differ in nothing that is not averaged out are one
        keys, covariates = learner.features.prediction_rows(offers, evidence.season)
        structure = learner.structure(evidence)
        away = {structure.cluster, "season"}
        kept = {name for family in structure.families if not away & set(family.by) for name in family.by}
        keys = keys[..., [name in kept for name in structure.factors]]
        traits = [np.broadcast_to(a, (n, *a.shape[1:])).reshape(n, -1) for a in (keys, covariates, offers.control)]
        _, first, which = np.unique(np.hstack([*traits, preference]), axis=0, return_index=True, return_inverse=True)
        offers, preference = offers.take(first), preference[first]
        weight = np.stack([np.bincount(which.reshape(-1), column) for column in weight.T], -1)
    contrast = np.eye(K) - np.broadcast_to(offers.control, (len(weight), K))[:, None, :]  # (n, K, K)
    drawn = learner.means(evidence, offers).draws  # (..., n, S, K, M)
    each = np.einsum("hk,hom,hkj->hkojm", weight, on_measures(preference), contrast)
    total = np.einsum("hkojm,...hsjm->...kos", each, drawn, optimize=True)
    return total.mean(-1), total.std(-1)


def mean_weights(possible: BoolArray) -> FloatArray:
    """Of each user in the mean effect of an arm, over the users who can get it, or else over all: (..., n, K)."""
    weight = np.where(possible.any(-2, keepdims=True), possible, True).astype(np.float64)
    return np.asarray(weight / weight.sum(-2, keepdims=True))


def on_measures(preference: FloatArray) -> FloatArray:
    """Weights of the metrics in each user's reward, and in each metric: (..., M) -> (..., O, M)."""
    M = preference.shape[-1]
    return np.concatenate([preference[..., None, :], np.broadcast_to(np.eye(M), (*preference.shape, M))], -2)


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
    towards_zero = np.where(effects.mean > 0, effects.below, effects.above)
    return np.sign(effects.mean) * (np.abs(effects.mean) > towards_zero * effects.quantile(ndtr(deviations)))


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
    seasons `before` this one of the trial, from 0, and those of its history count, or (None) all.
    """
    structure = learner.structure(evidence)
    if not any({"season", "arm"} <= set(f.by) for f in structure.families):
        return None
    K = offers.control.shape[-1]
    before = None if before is None else learner.past[0] + before
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
    *member, cell, metric = np.nonzero(((own.n > 0) & (arm >= 0))[..., None] & (observed > 0))
    occurs = np.zeros((*cells.batch, 1 + int(season.max(initial=0)), arms, metrics), bool)
    at = (*member, cell)
    occurs[(*member, season[at], arm[at], metric)] = True
    return np.asarray(occurs[..., :before, :, :].sum(-3), np.intp)
