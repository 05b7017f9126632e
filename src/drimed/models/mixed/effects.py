"""In how many seasons arms were seen: one season alone cannot tell an arm from what that season did to it.

Where a season has effects on single arms (season x arm), all that one season says of an arm rests on how much such
effects are believed to vary. So an arm is called better or worse only where it and its control were seen in
`records.ENOUGH_SEASONS` seasons. What a season does to an arm is common to all sites: seasons count over the whole
trial, whoever is asked about. Shapes: leading `...` is any batch; H users, K arms, M metrics, "on" the reward and then
each metric: 1 + M.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr

from drimed.errors import ConfigError, InputError
from drimed.models.mixed import prediction
from drimed.models.mixed.cells import FACTORS, Cells
from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.mixed.observations import UNKNOWN, Scale
from drimed.models.mixed.prediction import for_each_offer, residual, standardised
from drimed.models.mixed.terms import Layout, Structure
from drimed.models.offer import Offer
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.records import ENOUGH_SEASONS

# Ranges for one contrast that hold at all times at once.


def anytime(
    mean: FloatArray,
    variance: FloatArray,
    prior_variance: FloatArray,
    alpha: float,
    prior_mean: FloatArray | float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """The ends of the range, of any shape; everything is possible where the data say nothing yet.

    >>> low, high = anytime(np.array(0.0), np.array(1.0), np.array(150.0), 0.05)
    >>> round(float(high / 1.96), 2)
    1.7
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha must be in (0, 1), got {alpha}")
    gained = 1 / variance - 1 / prior_variance
    told = gained > 0
    gained = np.where(told, gained, 1.0)
    # The quadratic in psi, about its vertex: the posterior mean of psi under a flat prior.
    centre = (mean / variance - prior_mean / prior_variance) / gained
    apart = (mean - prior_mean) ** 2 / (variance * prior_variance * gained)
    room = 2 * np.log(1 / alpha) + np.log(prior_variance / variance) + apart
    half = np.sqrt(np.maximum(room, 0.0) / gained)
    half = np.where(told, half, np.inf)
    return np.where(told, centre - half, -np.inf), np.where(told, centre + half, np.inf)


# Posteriors of linear combinations of a field model's effects: contrasts of arms, levels, averages over users.

LIKELY = 0.95
NORMAL = np.asarray(np.inf)  # degrees of freedom
NOTHING = np.asarray(0.0)
ALPHA = 0.05  # a range at all times fails with this probability
AT_ONCE = 256  # users whose rows are made at a time


class Found(NamedTuple):
    """Posteriors of numbers in the units of their metric, of any shape."""

    mean: FloatArray
    deviation: FloatArray
    prior: FloatArray  # deviation before any data
    freedom: FloatArray = NORMAL  # degrees of freedom of its tails
    # Deviation with one outcome of each arm alone, for comparisons among many; 0 where Dunnett's bound is enough.
    single: FloatArray = NOTHING

    @property
    def likely(self) -> tuple[FloatArray, FloatArray]:
        """The range that holds it with 95 %, at one look."""
        half = self.beyond(0.5 + LIKELY / 2)
        return self.mean - half, self.mean + half

    def beyond(self, level: FloatArray | float) -> FloatArray:
        """How far from its mean it reaches this level of its distribution."""
        return probability.quantile(level, self.freedom) * self.deviation

    def at_all_times(self, alpha: float = ALPHA) -> tuple[FloatArray, FloatArray]:
        """The range that holds it at all looks together but for alpha; UNKNOWN where nothing is known."""
        open_ = self.deviation > 0
        v, v0 = (np.where(open_, d, 1.0) ** 2 for d in (self.deviation, np.maximum(self.prior, self.deviation)))
        ends = anytime(self.mean, v, v0, alpha)
        low, high = (np.where(open_, np.clip(end, -UNKNOWN, UNKNOWN), self.mean) for end in ends)
        return low, high

    def at(self, index: Any) -> Found:
        """Some of them."""
        return Found(*(np.broadcast_to(column, self.mean.shape)[index] for column in self))

    @staticmethod
    def join(parts: Sequence[Found], *, new_axis: bool = False) -> Found:
        """Several one after the other, or along a new first axis."""
        columns = zip(*([np.broadcast_to(c, part.mean.shape) for c in part] for part in parts), strict=True)
        return Found(*((np.stack if new_axis else np.concatenate)(column) for column in columns))


@dataclass(frozen=True)
class Known:
    """The posterior of theta in standardised units, with columns for all who are asked about."""

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
        return self.evidence.learned.scale

    @property
    def centre(self) -> FloatArray:
        """Of the metrics: (..., M)."""
        return self.scale.centre[..., self.structure.covariates :]

    @property
    def unit(self) -> FloatArray:
        """Of the metrics: (..., M)."""
        return self.scale.unit[..., self.structure.covariates :]

    def of(self, rows: FloatArray) -> Found:
        """Of rows (..., n, M, P), or (..., M, P), in standardised columns and the metrics' units.

        Axes after those of the batch are any number of combinations.
        """
        batch, size = self.theta.shape[:-2], rows.shape[-2] * rows.shape[-1]
        shape = rows.shape[len(batch) : -2]
        flat = rows.reshape(*batch, -1, size)  # (..., n, M P)
        mean = np.matvec(flat, self.theta.reshape(*batch, size))
        variance = np.vecdot(np.matmul(flat, self.covariance.reshape(*batch, size, size)), flat)
        prior = np.sqrt(np.matvec(flat**2, self.prior.reshape(*batch, size)))
        known = self.scale.known[..., None] > 0
        blank = np.where(prior > 0, UNKNOWN, 0.0)
        by_family = prediction.by_family(self.layout, flat.reshape(*flat.shape[:-1], *rows.shape[-2:]) ** 2)
        freedom = prediction.of_sums(by_family, self.evidence.learned.variance, variance)
        columns = (
            mean,
            np.where(known, np.sqrt(np.maximum(variance, 0.0)), blank),
            np.where(known, prior, blank),
            np.where(known, freedom, np.inf),
            np.zeros_like(mean),
        )
        return Found(*(column.reshape(*batch, *shape) for column in columns))

    def asked(self, offers: Offer) -> tuple[IntArray, FloatArray]:
        """The factors and covariates of all arms of each offer: (..., H, K, F) and (..., H, K, c)."""
        return _asked(self.learner, self.evidence, offers)

    def rows(self, keys: IntArray, covariates: FloatArray, *, without: Sequence[str] = ()) -> FloatArray:
        """Decisions as rows on theta, but for families that vary with a factor of `without`: (..., H, K, P)."""
        rows = self.layout.rows(keys, standardised(self.structure, for_each_offer(self.scale), covariates))
        families = self.structure.families
        out = [k for k in self.layout.members if set(families[k].by) & set(without)]
        rows[..., np.isin(self.layout.family, out)] = 0.0
        return rows


def know(learner: Field, evidence: FieldEvidence, offers: Offer) -> Known:
    """What was learned, with columns for the users of these offers; effects that nobody has seen follow the prior."""
    evidence = learner.ready(evidence)
    structure, learned = learner.structure(evidence), evidence.learned
    keys, _ = _asked(learner, evidence, offers)
    most = 1 + keys.reshape(-1, keys.shape[-1]).max(0)
    old = structure.common
    layout = replace(old, sizes=tuple(np.maximum(old.sizes, most).tolist()))
    at, M, P = places(old, layout), structure.metrics, len(layout.family)
    prior = learned.variance.mean(-3)[..., layout.family]
    theta, covariance = np.zeros((*learned.batch, M, P)), np.zeros((*learned.batch, M, P, M, P))
    for m in range(M):
        covariance[..., m, :, m, :] = prior[..., m, :, None] * np.eye(P)
    theta[..., at] = learned.theta
    for m in range(M):
        for k in range(M):
            covariance[..., m, at[:, None], k, at] = learned.covariance[..., m, :, k, :]
    return Known(learner, evidence, structure, layout, theta, covariance, prior)


def of_users(known: Known, offers: Offer) -> Found:
    """Each arm against the user's own control, with all that is a user's own: (..., H, K, 1 + M)."""
    if offers.control.ndim > 2:
        return _of_users(known, offers)
    return Found.join([_of_users(known, part) for _, part in chunks(offers)])


def effect_rows(known: Known, offers: Offer) -> FloatArray:
    """Each arm against the user's own control as rows, for one unit of a metric: (..., H, K, P)."""
    X = known.rows(*known.asked(offers))
    return X - np.einsum("...hk,...hkp->...hp", offers.control, X)[..., None, :]


def on(preference: FloatArray) -> FloatArray:
    """How each user's reward, and each metric, weighs the metrics: (..., M) -> (..., 1 + M, M)."""
    M = preference.shape[-1]
    return np.concatenate([preference[..., None, :], np.broadcast_to(np.eye(M), (*preference.shape, M))], -2)


def together(known: Known, offers: Offer, possible: BoolArray) -> Found:
    """Each arm against the control for these users together: (..., K, 1 + M).

    The mean over those who can get the arm, `possible` (..., H, K), or over all of them where nobody can. For people it
    is the average person: what is a user's own is averaged out.
    """
    weight, weighs = weights(possible), on(preferences(known, offers))
    total: FloatArray | float = 0.0
    for at, part in chunks(offers):
        X = effect_rows(known, part)
        total = total + np.einsum(
            "...hk,...hom,...hkp->...komp", weight[..., at, :], weighs[..., at, :, :], X, optimize=True
        )
    found = known.of(np.asarray(total) * known.unit[..., None, None, :, None])
    if known.learner.kind == "people":
        return found
    contrast = np.eye(weight.shape[-1]) - offers.control[..., None, :]  # (..., H, K, J)
    contrast = np.einsum("...hk,...hom,...hkj->...komj", weight, weighs, contrast, optimize=True)
    noise = _noise(known, offers).mean(-4)  # (..., J, M, M)
    single = np.einsum("...komj,...jmn,...konj->...ko", contrast, noise, contrast, optimize=True)
    return found._replace(single=np.broadcast_to(np.sqrt(single), found.mean.shape))


def weights(possible: BoolArray) -> FloatArray:
    """Of each user in the mean effect of an arm, over those who can get it, or else over all: (..., H, K)."""
    weight = np.where(possible.any(-2, keepdims=True), possible, True).astype(np.float64)
    return np.asarray(weight / weight.sum(-2, keepdims=True))


def chunks(offers: Offer) -> Iterator[tuple[slice, Offer]]:
    """A few users at a time; those of a batch all at once."""
    H = offers.control.shape[-2]
    if H <= AT_ONCE or offers.control.ndim > 2:
        yield slice(0, H), offers
        return
    for first in range(0, H, AT_ONCE):
        at = slice(first, min(first + AT_ONCE, H))
        yield at, offers.take(at)


def _of_users(known: Known, offers: Offer) -> Found:
    belief = known.learner.beliefs(known.evidence, offers)
    weighs = on(preferences(known, offers))  # (..., H, O, M)
    contrast = np.eye(belief.mean.shape[-2]) - offers.control[..., None, :]  # (..., H, K, K)
    mean = np.einsum("...hom,...hkm->...hko", weighs, np.matmul(contrast, belief.mean))
    # An arm that is the control has no effect; what round-off leaves of one is no doubt.
    own = np.abs(contrast).max(-1)[..., None] > 0

    def deviation(covariance: FloatArray) -> FloatArray:
        C = np.einsum("...hka,...hambn,...hkb->...hkmn", contrast, covariance, contrast, optimize=True)
        variance = np.einsum("...hom,...hkmn,...hon->...hko", weighs, C, weighs, optimize=True)
        return np.where(own, np.sqrt(np.maximum(variance, 0.0)), 0.0)

    single = NOTHING
    if known.learner.kind == "field":
        noise = np.einsum("...hom,...hkmn,...hon->...hko", weighs, _noise(known, offers), weighs, optimize=True)
        single = np.sqrt(np.einsum("...hkj,...hjo->...hko", contrast**2, noise))
    freedom = np.broadcast_to(belief.freedom[..., None, None], mean.shape)
    single = np.broadcast_to(single, mean.shape)
    return Found(mean, deviation(belief.covariance), deviation(belief.prior), freedom, single)


def _noise(known: Known, offers: Offer) -> FloatArray:
    """The covariance of single outcomes under each arm, in the units of the metrics: (..., H, K, M, M)."""
    keys, _ = known.asked(offers)
    unit = known.unit[..., None, None, :]  # (..., 1, 1, M)
    found = residual(known.structure, known.evidence.learned, keys) * unit[..., None] * unit[..., None, :]
    return np.broadcast_to(found, (*np.broadcast_shapes(found.shape[:-2], keys.shape[:-1]), *found.shape[-2:]))


def _asked(learner: Field, evidence: FieldEvidence, offers: Offer) -> tuple[IntArray, FloatArray]:
    arms = learner.structure(evidence).arms
    return learner._reading.asked(offers, max(evidence.season, 0), arms)


def preferences(known: Known, offers: Offer) -> FloatArray:
    """Of each user: (..., H, M)."""
    M = known.structure.metrics
    if offers.preference is None and M > 1:
        raise InputError(f"an offer with {M} metrics needs a preference")
    return np.ones((*offers.control.shape[:-1], 1)) if offers.preference is None else offers.preference


def places(old: Layout, new: Layout) -> IntArray:
    """Where the columns of a layout are in one that has more: (P,)."""
    found, base = [np.zeros(0, np.intp)], 0
    for k, width in zip(new.members, new.widths, strict=True):
        at = [new.factors.index(name) for name in new.families[k].by if name != new.cluster]
        sizes = [new.sizes[i] for i in at]
        slots = width // int(np.prod(sizes, dtype=np.intp))
        grid = np.indices([old.sizes[i] for i in at])
        index = np.ravel_multi_index(tuple(grid), tuple(sizes)).ravel() if at else np.zeros(1, np.intp)
        found.append((base + slots * np.asarray(index)[:, None] + np.arange(slots)).ravel())
        base += width
    return np.concatenate(found)


# Many comparisons: several arms are compared with the control, at many users, and some look better by chance.

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(101)
LARGEST = 12.0  # deviations within which a bound is looked for


def compared(control: FloatArray, possible: BoolArray | None = None) -> int:
    """How many arms are compared with a control, of users with these controls (..., K), who may get `possible` ones.

    An arm that is the only control of everybody is compared with nothing. Where controls differ it is, for the others;
    and where they are drawn among several arms, each of these has an effect against the draw, and a verdict.

    >>> one, other, drawn = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]
    >>> [compared(np.array(controls)) for controls in ([one, one], [one, other], [drawn])]
    [2, 3, 3]
    """
    others = control < 1 if possible is None else (control < 1) & possible
    return max(1, int(others.reshape(-1, others.shape[-1]).any(0).sum()))


@cache
def dunnett(arms: int, users: int = 1) -> float:
    """How many deviations from 0 one of so many estimates must be, all against one control.

    >>> [round(dunnett(arms), 2) for arms in (1, 2, 4, 9)]
    [1.64, 1.92, 2.16, 2.42]
    """
    from scipy.optimize import brentq  # here, because it takes a quarter of a second that most commands do not need

    def excess(bound: float) -> float:
        chance = -np.expm1(arms * log_ndtr(np.sqrt(2) * bound + NODES))  # that any is beyond it, given the control
        return float(WEIGHTS @ chance / WEIGHTS.sum()) - ALPHA / users

    return float(brentq(excess, 0.0, LARGEST))


def bound(known: FloatArray, comparisons: int) -> FloatArray:
    """How many deviations from 0 make "no difference" less plausible by a factor of so many comparisons.

    What is known of an effect is how many times as large its variance is by one outcome of each arm alone.

    >>> np.round(bound(np.array([0.0, 10.0, 100.0]), 4), 2).tolist()
    [1.67, 2.27, 2.72]
    """
    return np.sqrt(2 * np.log(comparisons) + np.log1p(known))


def side(found: Found, arms: int, users: int = 1) -> FloatArray:
    """1 where it is above 0 allowing for so many arms and users, -1 where it is below, else 0."""
    there = found.deviation > 0
    known = np.where(there, found.single, 0.0) ** 2 / np.where(there, found.deviation, 1.0) ** 2
    deviations = np.maximum(dunnett(arms, users), bound(known, arms * users))
    return np.sign(found.mean) * (np.abs(found.mean) > found.beyond(ndtr(deviations)))


def stands(own: Found, everybody: Found | None, arms: int, users: int) -> BoolArray:
    """Whether what an effect's own range says stands among all comparisons; everybody's effects broadcast to own."""
    alone = side(own, arms, users) != 0
    return alone if everybody is None else alone | agrees(own.mean, everybody, arms)


def agrees(mean: FloatArray, everybody: Found, arms: int) -> BoolArray:
    """Whether an estimate is on the side of 0 on which all users together are, allowing for so many arms."""
    of_all = side(everybody, arms)
    return np.asarray((of_all != 0) & (of_all == np.sign(mean)))


SEASON, ARM = FACTORS.index("season"), FACTORS.index("arm")
MANY = np.iinfo(np.intp).max  # seasons of what does not count


def seasons_of_both(
    learner: Field, evidence: FieldEvidence, offers: Offer, before: int | None = None
) -> IntArray | None:
    """Seasons with outcomes of each arm, or of the user's control if these are fewer: (..., H, K, 1 + M).

    None where no season has effects on single arms. For the reward, the metric that was seen in fewest counts. Only
    seasons `before` this one, from 0, count, or (None) all.
    """
    structure = learner.structure(evidence)
    if not any({"season", "arm"} <= set(f.by) for f in structure.families):
        return None
    K = offers.control.shape[-1]
    seen = seasons(evidence.cells, K, structure.metrics, before)[..., None, :, :]  # (..., 1, K, M)
    control = np.where(offers.control[..., None] > 0, seen, MANY).min(-2, keepdims=True)  # (..., H, 1, M)
    both = np.minimum(seen, control)
    p = np.ones(1) if offers.preference is None else offers.preference[..., None, :]
    return np.concatenate([np.where(p != 0, both, MANY).min(-1, keepdims=True), both], -1)


def is_confirmed(learner: object, evidence: Any, offers: Offer) -> BoolArray:
    """Whether something may be said of each arm on the reward of each user: (..., H, K), or () where of all."""
    found = seasons_of_both(learner, evidence, offers) if isinstance(learner, Field) else None
    return np.asarray(True if found is None else found[..., 0] >= ENOUGH_SEASONS)


def seasons(cells: Cells, arms: int, metrics: int, before: int | None = None) -> IntArray:
    """In how many seasons each metric of each arm was observed: (..., K, M)."""
    own = cells.live()
    season, arm = own.keys[..., SEASON], own.keys[..., ARM]  # (..., N)
    observed = (own.pattern[..., None] >> np.arange(metrics)) & 1  # (..., N, M)
    *member, cell, metric = np.nonzero((own.n[..., None] > 0) & (observed > 0))
    there = np.zeros((*cells.batch, 1 + int(season.max(initial=0)), arms, metrics), bool)
    at = (*member, cell)
    there[(*member, season[at], arm[at], metric)] = True
    return np.asarray(there[..., :before, :, :].sum(-3), np.intp)
