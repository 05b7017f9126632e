"""Beliefs as posterior draws of mean outcomes, for trials with metrics that are not plain numbers.

Each such metric has a fit of its own (generalised.py); metrics are taken as independent given the arm and the place.
The Gaussian model is fitted to all metrics as before: numbers have draws from its posterior, so that metrics of all
kinds are combined draw by draw, on the scale of their means. Draws are fixed functions of the outcomes: a decision from
them is replayed exactly.

Shapes: leading `...` is any batch; n users, K arms, M metrics, D of them with draws of their own, S draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from scipy.special import chdtri

from drimed.models.mixed import generalised
from drimed.models.mixed.generalised import COUNT, DRAWS, NUMBER, SCORE, SCORE_PHI, Generalised, Table
from drimed.models.mixed.observations import GROWS, Cells, Scale
from drimed.models.mixed.prediction import Belief
from drimed.models.mixed.terms import FACTORS, Range, Structure
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, eigen

PROVEN = 5  # outcomes of an arm, before which the guard reckons with the worst possible mean
SHARE_OF_NEW = 1 / 8  # draws are made again when there are this share of outcomes more
LEAST_FREEDOM, NORMAL_FREEDOM = 2.0, 1e6
MOST_KEPT = 64
_KEPT = WeakKeyDictionary["Drawn", dict[tuple[Any, ...], FloatArray]]()  # own effects of clusters by their outcomes


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Drawn:
    """The fits of the metrics that are not numbers."""

    log_tau: FloatArray = field(metadata=GROWS)  # (..., D, B, f)
    mode: FloatArray = field(metadata=GROWS)  # (..., D, B, P)
    draws: FloatArray = field(metadata=GROWS)  # (..., D, S, P)
    node: IntArray = field(metadata=GROWS)  # (..., D, S)
    offset: FloatArray  # (..., D)
    phi: FloatArray  # (..., D)

    def of(self, member: tuple[int, ...], metric: int) -> Generalised:
        """One fit."""
        at = (*member, metric)
        arrays = self.log_tau[at], self.mode[at], self.draws[at], self.node[at]
        return Generalised(*arrays, float(self.offset[at]), float(self.phi[at]))

    @staticmethod
    def stack(fits: list[Generalised], batch: tuple[int, ...]) -> Drawn:
        """Of all members of a batch, and their metrics."""

        def joined(name: str) -> Any:
            values = np.stack([getattr(one, name) for one in fits])
            return values.reshape(*batch, -1, *values.shape[1:])

        return Drawn(*(joined(f.name) for f in fields(Drawn)))


def fit(
    structure: Structure,
    cells: Cells,
    scale: Scale,
    kinds: tuple[str, ...],
    sizes: dict[int, int],
    warm: Drawn | None,
) -> Drawn:
    """Fits to all outcomes; `sizes` has the column of each metric's sizes, `warm` are fits to start from."""
    metrics = [m for m, kind in enumerate(kinds) if kind != NUMBER]
    fits = []
    for member in np.ndindex(*cells.batch):
        own, own_scale = _of_member(cells, scale, member)
        for d, m in enumerate(metrics):
            table = generalised.make_table(structure, own, own_scale, m, kinds[m], sizes.get(m))
            fits.append(generalised.fit(structure, table, None if warm is None else warm.of(member, d)))
    return Drawn.stack(fits, cells.batch)


def _of_member(cells: Cells, scale: Scale, member: tuple[int, ...]) -> tuple[Cells, Scale]:
    keys, pattern, n, mean, scatter = (a[member] for a in cells.live().arrays)
    return Cells(keys, pattern, n, mean, scatter, cells.used), Scale(
        scale.centre[member], scale.unit[member], scale.known[member]
    )


@dataclass(frozen=True, slots=True)
class Means:
    """Draws of the arms' mean outcomes."""

    draws: FloatArray  # (..., n, S, K, M)
    low: FloatArray  # (M,), the least possible mean, and the largest
    high: FloatArray  # (M,)

    def ends_of(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The least and the largest possible value of each mean times its weight (..., M)."""
        ends = [weights * np.where(weights == 0, 0.0, end) for end in (self.low, self.high)]
        return np.minimum(*ends), np.maximum(*ends)


def means(
    structure: Structure,
    drawn: Drawn,
    kinds: tuple[str, ...],
    sizes: dict[int, int],
    cells: Cells,
    scale: Scale,
    rows: tuple[IntArray, FloatArray],
    numbers: Belief | None,
    averaged: tuple[str, ...],
) -> Means:
    """For offers whose arms have these factors (..., n, K, F) and covariates (..., n, K, c).

    Effects that vary with one of the factors `averaged` are averaged over: seasons, and units where the promise is to
    units alike. `numbers` is the Gaussian belief about metrics that are numbers.
    """
    batch = cells.batch
    (n, K), M = rows[0].shape[-3:-1], len(kinds)
    keys = np.broadcast_to(structure.with_unseen(rows[0]), (*batch, *rows[0].shape[-3:]))
    covariates = np.broadcast_to(rows[1], (*batch, *rows[1].shape[-3:]))
    draws = np.empty((*batch, n, DRAWS, K, M))
    plain = [m for m, kind in enumerate(kinds) if kind == NUMBER]
    if numbers is not None and plain:
        draws[..., plain] = draws_of_numbers(numbers, plain)
    place, d = structure.cluster_place, 0
    own_needed = structure.cluster not in averaged and bool(structure.own.members)
    for m, kind in enumerate(kinds):
        if kind == NUMBER:
            continue
        low, high = possible_means(kind, structure.ranges[m])
        for member in np.ndindex(*batch):
            fitted, (own_cells, own_scale) = drawn.of(member, d), _of_member(cells, scale, member)
            own = None
            if own_needed:
                labels, which = np.unique(keys[member][:, 0, place], return_inverse=True)
                table = partial(table_of_clusters, structure, own_cells, own_scale, m, kind, sizes.get(m), labels)
                own = _own_effects(drawn, (*member, d), structure, own_cells, labels, fitted, table)
                own = own[which.reshape(-1)]  # (n, S, q)
            z = own_scale.standardise(covariates[member])
            mean = generalised.mean_draws(structure, fitted, kind, keys[member], z, own=own, averaged=averaged)
            mean = mean if kind != SCORE else low + (high - low) * mean
            draws[(*member, ..., m)] = np.swapaxes(mean, -1, -2)
        d += 1
    ends = np.array([possible_means(kind, ends) for kind, ends in zip(kinds, structure.ranges, strict=True)])
    return Means(draws, ends[:, 0], ends[:, 1])


def table_of_clusters(
    structure: Structure, cells: Cells, scale: Scale, metric: int, kind: str, size: int | None, labels: IntArray
) -> Table:
    """The outcomes of some clusters."""
    theirs = cells.at(np.flatnonzero(np.isin(cells.keys[:, structure.cluster_place], labels)))
    return generalised.make_table(structure, theirs, scale, metric, kind, size, labels)


def _own_effects(
    drawn: Drawn, at: tuple[int, ...], structure: Structure, cells: Cells, labels: IntArray, fitted: Generalised,
    table: Callable[[], Table],
) -> FloatArray:  # fmt: skip
    """Draws of the own effects of clusters; those of a single one are kept for the next decision about it."""
    if len(labels) > 1:
        return generalised.own_effects(structure, table(), fitted)
    kept = _KEPT.setdefault(drawn, {})
    theirs = cells.at(np.flatnonzero(cells.keys[:, structure.cluster_place] == labels[0]))
    given = at, int(labels[0]), *(a.tobytes() for a in theirs.arrays)
    if given not in kept:
        if len(kept) >= MOST_KEPT:
            kept.clear()
        kept[given] = generalised.own_effects(structure, table(), fitted)
    return kept[given]


def variances(kinds: tuple[str, ...], means: Means, expected: FloatArray) -> FloatArray:
    """Of single outcomes with these means (..., K, M), by the law of each kind; 0 for numbers."""
    out = np.zeros(expected.shape)
    for m, kind in enumerate(kinds):
        mean, low, high = expected[..., m], means.low[m], means.high[m]
        if kind != NUMBER:
            out[..., m] = mean if kind == COUNT else (mean - low) * (high - mean)
            out[..., m] *= SCORE_PHI if kind == SCORE else 1.0
    return out


def possible_means(kind: str, ends: Range) -> Range:
    """The least and the largest mean that is possible."""
    return {NUMBER: (-np.inf, np.inf), COUNT: (0.0, np.inf), SCORE: ends}.get(kind, (0.0, 1.0))


def draws_of_numbers(belief: Belief, metrics: list[int]) -> FloatArray:
    """From the Gaussian belief, with its tails: (..., n, S, K, m)."""
    mean = belief.mean[..., metrics]
    K, m = mean.shape[-2:]
    covariance = belief.covariance[..., metrics, :, :][..., metrics].reshape(*mean.shape[:-2], K * m, K * m)
    values, vectors = eigen(0.5 * (covariance + np.swapaxes(covariance, -1, -2)), "the arms' mean outcomes")
    root = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    draws = np.matmul(generalised.standard_draws(K * m, "numbers"), np.swapaxes(root, -1, -2))  # (..., S, K m)
    nu = np.minimum(belief.freedom, NORMAL_FREEDOM)[..., None]
    if (nu < NORMAL_FREEDOM).any():
        u = (np.arange(DRAWS) * 0.6180339887498949 + 0.5) % 1.0  # evenly spread, in no order
        draws *= np.sqrt((nu - LEAST_FREEDOM) / chdtri(nu, u))[..., None]
    return np.asarray(mean[..., None, :, :] + draws.reshape(*draws.shape[:-1], K, m))


def unproven(cells: Cells, arms: int, metrics: int, control: FloatArray) -> BoolArray:
    """Arms other than the control's (..., n, K) with fewer than PROVEN outcomes of each metric: (..., n, K, M)."""
    own = cells.live()
    seen = ((own.pattern[..., None] >> np.arange(metrics)) & 1) * own.n[..., None]  # (..., N, M)
    is_arm = own.keys[..., FACTORS.index("arm"), None] == np.arange(arms)  # (..., N, K)
    counts = np.matmul(np.swapaxes(is_arm.astype(np.float64), -1, -2), seen)  # (..., K, M)
    return (counts < PROVEN)[..., None, :, :] & (control == 0)[..., None]
