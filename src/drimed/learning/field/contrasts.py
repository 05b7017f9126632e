"""Posteriors of linear combinations of a field model's effects: contrasts of arms, levels, averages over users.

A combination is a row on theta for each metric, and its posterior and prior are normal. Users' effects are correlated
through theta, so several users together are one row, the mean of theirs. Effects of a season, and where users have
effects of their own those as well, are averaged out of such a row.
Shapes: leading `...` is any batch of trials; H users, K arms, M metrics, P columns of theta, "on" the reward and then
each metric: 1 + M.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from drimed.errors import InputError
from drimed.learning.field import ranges, tails
from drimed.learning.field.design import UNKNOWN, Scale
from drimed.learning.field.learner import Field, FieldEvidence
from drimed.learning.field.model import for_each_offer, residual, standardised
from drimed.learning.field.structure import Structure
from drimed.learning.field.terms import Layout
from drimed.learning.offer import Offer
from drimed.linear import student
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

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
        return student.quantile(level, self.freedom) * self.deviation

    def at_all_times(self, alpha: float = ALPHA) -> tuple[FloatArray, FloatArray]:
        """The range that holds it at all looks together but for alpha; UNKNOWN where nothing is known."""
        open_ = self.deviation > 0
        v, v0 = (np.where(open_, d, 1.0) ** 2 for d in (self.deviation, np.maximum(self.prior, self.deviation)))
        ends = ranges.anytime(self.mean, v, v0, alpha)
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
        by_family = tails.by_family(self.layout, flat.reshape(*flat.shape[:-1], *rows.shape[-2:]) ** 2)
        freedom = tails.of_sums(by_family, self.evidence.learned.variance, variance)
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
