"""What a field model says of linear combinations of its effects: contrasts of arms, levels, averages over users.

A combination is a row on theta for each metric, and its posterior and prior are normal. Users' effects are correlated
through theta, so several users together are one row, the mean of theirs. Effects of a season, and where users have
effects of their own those as well, are averaged out of such a row.
Shapes: H users, K arms, M metrics, P columns of theta, "on" the reward and then each metric: 1 + M.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from drimed.errors import InputError
from drimed.learning.field import ranges, tails
from drimed.learning.field.design import UNKNOWN, Scale
from drimed.learning.field.learner import Field, FieldEvidence
from drimed.learning.field.model import standardised
from drimed.learning.field.structure import Structure
from drimed.learning.field.terms import Layout
from drimed.learning.offer import Offer
from drimed.linear import student
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

LIKELY = 0.95
NORMAL = np.asarray(np.inf)  # degrees of freedom
ALPHA = 0.05  # a range at all times fails with this probability
AT_ONCE = 256  # users whose rows are made at a time


class Found(NamedTuple):
    """Beliefs about numbers in the units of their metric, of any shape."""

    mean: FloatArray
    deviation: FloatArray
    prior: FloatArray  # deviation before any data
    freedom: FloatArray  # degrees of freedom of its tails

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


@dataclass(frozen=True)
class Known:
    """The posterior of theta in standardised units, with columns for all who are asked about."""

    learner: Field
    evidence: FieldEvidence
    structure: Structure
    layout: Layout
    theta: FloatArray  # (M, P)
    covariance: FloatArray  # (M, P, M, P)
    prior: FloatArray  # (M, P), variances

    @property
    def scale(self) -> Scale:
        """Of metrics and covariates."""
        return self.evidence.learned.scale

    @property
    def centre(self) -> FloatArray:
        """Of the metrics: (M,)."""
        return self.scale.centre[self.structure.covariates :]

    @property
    def unit(self) -> FloatArray:
        """Of the metrics: (M,)."""
        return self.scale.unit[self.structure.covariates :]

    def of(self, rows: FloatArray) -> Found:
        """Of rows (..., M, P) in standardised columns and the metrics' units."""
        size = rows.shape[-2] * rows.shape[-1]
        flat = rows.reshape(*rows.shape[:-2], size)
        mean = flat @ self.theta.ravel()
        variance = np.einsum("...i,ij,...j->...", flat, self.covariance.reshape(size, size), flat)
        prior = np.sqrt((flat**2) @ self.prior.ravel())
        if not self.scale.known.all():
            prior = np.where(prior > 0, UNKNOWN, 0.0)
            return Found(mean, prior, prior, np.full(mean.shape, np.inf))
        return Found(mean, np.sqrt(np.maximum(variance, 0.0)), prior, self._freedom(rows, variance))

    def _freedom(self, rows: FloatArray, variance: FloatArray) -> FloatArray:
        if not self.learner.tails:
            return np.full(variance.shape, np.inf)
        nodes = self.evidence.learned.variance
        return tails.of_sums(tails.by_family(self.layout, rows**2), nodes, variance)

    def asked(self, offers: Offer) -> tuple[IntArray, FloatArray]:
        """The factors and covariates of all arms of each offer: (H, K, F) and (H, K, c)."""
        return _asked(self.learner, self.evidence, offers)

    def rows(self, keys: IntArray, covariates: FloatArray, *, without: Sequence[str] = ()) -> FloatArray:
        """Decisions as rows on theta, but for families that vary with a factor of `without`: (..., P)."""
        rows = self.layout.rows(keys, standardised(self.structure, self.scale, covariates))
        families = self.structure.families
        out = [k for k in self.layout.members if set(families[k].by) & set(without)]
        rows[..., np.isin(self.layout.family, out)] = 0.0
        return rows


def know(learner: Field, evidence: FieldEvidence, offers: Offer) -> Known:
    """What was learned, with columns for the users of these offers; effects that nobody has seen follow the prior."""
    if evidence.cells.batch:
        raise InputError(f"a report is of one trial, got a batch of {evidence.cells.batch}")
    evidence = learner.ready(evidence)
    structure, learned = learner.structure(evidence), evidence.learned
    keys, _ = _asked(learner, evidence, offers)
    most = 1 + keys.reshape(-1, keys.shape[-1]).max(0)
    old = structure.common
    layout = replace(old, sizes=tuple(np.maximum(old.sizes, most).tolist()))
    at, M, P = places(old, layout), structure.metrics, len(layout.family)
    prior = learned.variance.mean(-3)[:, layout.family]
    theta, covariance = np.zeros((M, P)), np.zeros((M, P, M, P))
    for m in range(M):
        covariance[m, :, m, :] = np.diag(prior[m])
    theta[:, at] = learned.theta
    metrics = np.arange(M)
    covariance[np.ix_(metrics, at, metrics, at)] = learned.covariance
    return Known(learner, evidence, structure, layout, theta, covariance, prior)


def of_users(known: Known, offers: Offer) -> Found:
    """Each arm against the user's own control, with all that is a user's own: (H, K, 1 + M)."""
    parts = [_of_users(known, part) for _, part in chunks(offers)]
    return Found(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def effect_rows(known: Known, offers: Offer) -> FloatArray:
    """Each arm against the user's own control as rows, for one unit of a metric: (H, K, P)."""
    X = known.rows(*known.asked(offers))
    return X - np.einsum("hk,hkp->hp", offers.control, X)[:, None, :]


def worth(known: Known, rows: FloatArray, preference: FloatArray) -> FloatArray:
    """Rows (..., P) on the reward and on each metric, in their units: (..., 1 + M, M, P)."""
    return (on(preference) * known.unit)[..., None] * rows[..., None, None, :]


def on(preference: FloatArray) -> FloatArray:
    """How each user's reward, and each metric, weighs the metrics: (..., M) -> (..., 1 + M, M)."""
    M = preference.shape[-1]
    return np.concatenate([preference[..., None, :], np.broadcast_to(np.eye(M), (*preference.shape, M))], -2)


def together(known: Known, offers: Offer, possible: BoolArray) -> Found:
    """Each arm against the control for these users together: (K, 1 + M).

    The mean over those who can get the arm, `possible` (H, K), or over all of them where nobody can. For people it is
    the average person: what is a user's own is averaged out.
    """
    weight = weights(possible)
    total: FloatArray | float = 0.0
    p = preferences(known, offers)
    for at, part in chunks(offers):
        rows = worth(known, effect_rows(known, part), p[at, None, :])
        total = total + np.einsum("hk,hkomp->komp", weight[at], rows)
    return known.of(np.asarray(total))


def weights(possible: BoolArray) -> FloatArray:
    """Of each user in the mean effect of an arm: (H, K), over those who can get it, or over all where nobody can."""
    weight = np.where(possible.any(0), possible, True).astype(np.float64)
    return np.asarray(weight / weight.sum(0))


def chunks(offers: Offer) -> Iterator[tuple[slice, Offer]]:
    """A few users at a time."""
    H = len(offers.control)
    for first in range(0, H, AT_ONCE):
        at = slice(first, min(first + AT_ONCE, H))
        yield at, offers if H <= AT_ONCE else offers.take(at)


def _of_users(known: Known, offers: Offer) -> Found:
    belief = known.learner.beliefs(known.evidence, offers)
    p = preferences(known, offers)
    K = belief.mean.shape[-2]
    D = np.eye(K) - offers.control[:, None, :]  # (H, K, K)
    mean = np.matmul(D, belief.mean)  # (H, K, M)
    found = [np.concatenate([np.einsum("hkm,hm->hk", mean, p)[..., None], mean], -1)]
    for covariance in (belief.covariance, belief.prior):
        C = np.einsum("hka,hambn,hkb->hkmn", D, covariance, D, optimize=True)
        on_reward = np.einsum("hm,hkmn,hn->hk", p, C, p)[..., None]
        variance = np.concatenate([on_reward, np.diagonal(C, axis1=-2, axis2=-1)], -1)
        # An arm that is the control has no effect; what round-off leaves of one is no doubt.
        own = np.abs(D).max(-1)[..., None] > 0
        found.append(np.where(own, np.sqrt(np.maximum(variance, 0.0)), 0.0))
    mean, deviation, prior = found
    return Found(mean, deviation, prior, np.broadcast_to(belief.freedom[:, None, None], mean.shape))


def _asked(learner: Field, evidence: FieldEvidence, offers: Offer) -> tuple[IntArray, FloatArray]:
    arms = learner.structure(evidence).arms
    return learner._reading.asked(offers, max(evidence.season, 0), arms)


def preferences(known: Known, offers: Offer) -> FloatArray:
    """Of each user: (H, M)."""
    M, H = known.structure.metrics, len(offers.control)
    if offers.preference is None and M > 1:
        raise InputError(f"an offer with {M} metrics needs a preference")
    return np.ones((H, 1)) if offers.preference is None else offers.preference


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
