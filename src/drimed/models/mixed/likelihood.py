"""Marginal likelihood of the mixed model, its derivatives and the posterior of theta, from sums over cells.

    y_m = x . theta_m + z . v_{l,m} + e_m,   theta ~ N(0, diag),  v_l ~ N(0, diag),  Cov[e] = R_g

Rows come in clusters l (seasons, or users) whose own effects v_l are eliminated exactly, one cluster at a time: given
theta, clusters are independent. With A, B, S, b, c the sums of x x', z x', z z', x y and z y, weighted by the inverse
of R, a regression on theta alone is left:

    A - sum_l B_l' G_l B_l,   b - sum_l B_l' G_l c_l,   G_l = (S_l + Omega^-1)^-1

Everything is computed in units of the prior deviations, so a family of variance zero is no special case. The gradient
is Fisher's identity: d log L / d log v_k = 1/2 sum over the family of (E[u^2] / v_k - 1) given the data.

A cell is a set of observations with the same columns; its moments are sums of u u' over u = (1, covariates, y), so an
entry of x is a column and a slot of u. Shapes: N cells, U slots, E entries of x, r entries of z, L clusters, P columns
of theta and q of a cluster's effects for each metric, M metrics, F families, g noise groups, B nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from drimed.models.mixed import likelihood_kernels as kernels
from drimed.numerics.arrays import FloatArray, IntArray

MANY_COLUMNS = 400  # of theta: of more, those without outcomes follow their prior, and are left out
NO_CELLS, NO_COUNTS = np.zeros((0, 1), np.intp), np.zeros(0)
SHARED = {"slot", "zslot", "family", "zfamily", "touched"}  # parts of a design that all members of a batch share


class Design(NamedTuple):
    """Cells as the kernels take them, sorted by cluster; cells with count 0 are skipped."""

    T: FloatArray  # (..., N, U, U), moments
    pattern: IntArray  # (..., N), bit m is set where metric m was observed
    group: IntArray  # (..., N), noise group
    cols: IntArray  # (..., N, E), column of theta, or -1
    slot: IntArray  # (E,)
    zcols: IntArray  # (..., N, r), column of the cluster's effects, or -1
    zslot: IntArray  # (r,)
    start: IntArray  # (..., L + 1), first cell of each cluster
    family: IntArray  # (P,)
    zfamily: IntArray  # (q,)
    touched: IntArray  # (t,), a dummy whose length bounds the columns of theta that one cluster has

    def flatten(self, batch: tuple[int, ...]) -> Design:
        """The same with one batch axis."""
        members = int(np.prod(batch))
        return Design(*(
            part if name in SHARED else part.reshape(members, *part.shape[len(batch) :])
            for name, part in self._asdict().items()
        ))  # fmt: skip

    def take(self, members: IntArray) -> Design:
        """Some members of a batch with one axis."""
        return Design(*(part if name in SHARED else part[members] for name, part in self._asdict().items()))

    def thin(self, most: int) -> Design:
        """Evenly spaced clusters of a single trial that has more than `most`; any other design as it is."""
        clusters = self.start.shape[-1] - 1
        if clusters <= most or self.start[..., 0].size > 1:
            return self
        chosen = np.linspace(0, clusters - 1, most).round().astype(np.intp)
        start = self.start.reshape(-1)
        ends, lengths = start[chosen + 1], start[chosen + 1] - start[chosen]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        cells = np.arange(starts[-1]) + np.repeat(ends - starts[1:], lengths)
        kept = (slice(None),) * (self.pattern.ndim - 1) + (cells,)
        parts = {name: getattr(self, name)[kept] for name in ("T", "pattern", "group", "cols", "zcols")}
        return self._replace(start=starts.reshape((*self.start.shape[:-1], most + 1)), **parts)

    def on_columns_in_use(self) -> Design:
        """The design on `columns_in_use`, which are numbered anew."""
        columns = columns_in_use(len(self.family), self.cols, self.T[..., 0, 0])
        if len(columns) == len(self.family):
            return self
        number = np.full(len(self.family) + 1, -1)  # the last is of no column
        number[columns] = np.arange(len(columns))
        return self._replace(cols=number[self.cols], family=self.family[columns], touched=self.touched[: len(columns)])

    def with_own_columns(self) -> tuple[IntArray, Design]:
        """The design on those columns of a cluster's effects that it has cells of, and the columns: (..., t).

        For clusters that are members of a batch. All have as many as the one with most: others are added.
        """
        cols = np.where(self.T[..., :1, 0] > 0, self.zcols, -1)  # (..., N, r)
        flat = cols.reshape(*cols.shape[:-2], -1)
        place = np.full((*flat.shape[:-1], len(self.zfamily) + 1), -1)  # the last is of no column
        np.put_along_axis(place, flat, 0, -1)
        present = place[..., :-1] == 0
        columns = np.argsort(~present, -1, "stable")[..., : max(int(present.sum(-1).max(initial=0)), 1)]
        np.put_along_axis(place, columns, np.arange(columns.shape[-1]), -1)
        place[..., -1] = -1
        zcols = np.take_along_axis(place, flat, -1).reshape(cols.shape)
        return columns, self._replace(zcols=zcols, zfamily=self.zfamily[columns])


def columns_in_use(columns: int, cols: IntArray = NO_CELLS, n: FloatArray = NO_COUNTS) -> IntArray:
    """The columns of theta that are computed: all or, of very many, those (..., N, E) of cells with outcomes."""
    if columns <= MANY_COLUMNS:
        return np.arange(columns)
    return np.union1d(0, cols[(cols >= 0) & (n > 0)[..., None]])


class Posterior(NamedTuple):
    """The log marginal likelihood at some variances, and theta given them."""

    value: FloatArray  # (...)
    theta: FloatArray  # (..., M, P), posterior mean
    covariance: FloatArray  # (..., M, P, M, P)


class Derivatives(NamedTuple):
    """Derivatives of the log marginal likelihood."""

    value: FloatArray  # (...)
    grad_v: FloatArray  # (..., M, F), with respect to log variances
    grad_R: FloatArray  # (..., g, M, M), with respect to R
    squares: FloatArray  # (..., M, M), y' Cov[y]^-1 y, by pairs of metrics
    by_unit: FloatArray  # (..., M, M, F), of grad_v, with the log of the square of a metric's unit
    second: FloatArray  # (..., M, F, M, F), second derivatives with respect to log variances


class ClusterEffects(NamedTuple):
    """A cluster's own effects given theta and its data: shift - gain theta + N(0, noise)."""

    shift: FloatArray  # (..., M, q)
    gain: FloatArray  # (..., M, q, M, P)
    noise: FloatArray  # (..., M, q, M, q)


def posterior(design: Design, v: FloatArray, R: FloatArray) -> Posterior:
    """Theta at variances v (..., M, F) and residual covariances R (..., g, M, M)."""
    return Posterior(*kernels.evaluate(*design, v, R, kernels.POSTERIOR)[:3])


def posterior_at_nodes(design: Design, v: FloatArray, R: FloatArray) -> Posterior:
    """The same at each of B nodes: v (..., B, M, F) and R (..., B, g, M, M)."""
    axis = v.ndim - 3
    at_nodes = posterior(design, np.moveaxis(v, axis, 0), np.moveaxis(R, axis, 0))
    return Posterior(*(np.moveaxis(a, 0, axis) for a in at_nodes))


def derivatives(design: Design, v: FloatArray, R: FloatArray, *, curvature: bool = False) -> Derivatives:
    """The likelihood and its gradient; second derivatives if they are wanted, else zeros."""
    want = kernels.CURVATURE if curvature else kernels.GRADIENT
    value, _, _, *rest = kernels.evaluate(*design, v, R, want)
    return Derivatives(value, *rest)


def cluster_effects(design: Design, v: FloatArray, R: FloatArray) -> ClusterEffects:
    """The effects of clusters that are members of the batch, each with its own cells; v and R have an axis of nodes.

    One cluster's cells are enough: a decision for a user costs the same whatever the number of users.
    """
    entries = (design.cols, design.slot, design.zcols, design.zslot, design.family, design.zfamily)
    return ClusterEffects(*kernels.cluster_effects(design.T, design.pattern, design.group, *entries, v, R))
