"""The generalised mixed model: yes-or-no outcomes, counts and bounded scores, and draws of its posterior.

    g(mean) = offset + x . theta + z . v_l,   theta ~ N(0, diag tau^2),   v_l ~ N(0, diag tau^2)

with the families of the Gaussian model. Cells are binomial or Poisson sums, so that a fit costs the same whatever the
number of outcomes. The mode is found by Newton's method and the posterior is normal around the mode (Laplace), moved by

    delta = -1/2 C A' (leverage * dW / d eta),   C = (A' W A + D)^-1,   A = (x, z)

to the posterior mean, which is not the mode where outcomes are rare. Deviations log tau have normal priors; they are
fitted by Fisher scoring of the Laplace marginal likelihood and integrated over by quasi-random nodes around its mode.
Effects of a cluster l are eliminated: with S_l = z' W z + Omega^-1 and B_l = z' W x,

    C_theta = (x' W x + D - sum_l B_l' S_l^-1 B_l)^-1,   v_l = v_hat - S_l^-1 B_l (theta - theta_hat) + N(0, S_l^-1)

Counts may scatter more than Poisson's law says: the log likelihood is divided by Pearson's scale phi >= 1. A bounded
score is taken as a share of its range (quasi-binomial; Papke and Wooldridge 1996), with phi <= 1.

Shapes: N cells, E entries of x, r of z, L clusters, P columns of theta, q of a cluster's effects, F families, B nodes,
S draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import expit, ndtri

from drimed import streams
from drimed.errors import NumericalError
from drimed.models.mixed.observations import Cells, Scale
from drimed.models.mixed.terms import Family, Structure
from drimed.numerics.arrays import LOST, FloatArray, IntArray

YES_NO, COUNT, SCORE, NUMBER = "yes/no", "count", "score", "number"
KINDS = (NUMBER, YES_NO, COUNT, SCORE)
LEVEL_SD = 2.5  # prior deviation of the overall level
TAU_SPREAD = 0.7  # prior deviation of log tau
OF_ARMS = ("attribute", "bend")  # families that are effects of arms by what describes them
# Prior medians of tau on the logit or log scale: of arms' effects, of places and covariates, and of what changes the
# effects of arms. Without an entry a family has that of its last factor.
ARM_SD, PLACE_SD, SEASON_SD, INTERACTION_SD = 0.6, 0.4, 0.3, 0.2
LEAST_LOG_TAU, MOST_LOG_TAU = -5.0, 2.5
MOST_STEP, MOST_SCORING = 2.0, 0.7  # of a Newton step in eta, and of a scoring step in log tau
COLD, WARM, NEWTON = 6, 3, 1  # rounds of Newton steps and one scoring step
FEW = 1000  # outcomes: with more of them first guesses of the modes at the nodes are near enough for their curvature
IN_CACHE = 220_000  # numbers of an array: nodes are computed in parts that are no larger
PAIRS = 8  # antithetic pairs of nodes around the mode
LEAST_WEIGHT, MOST_WEIGHT = -6.0, 3.0  # of a node, as a logarithm
DRAWS = 1024
SHUFFLE = 317  # odd, and .62 of the pairs of draws
AVERAGED = 0.346  # expit(eta / sqrt(1 + .346 s^2)) is about the mean of expit(eta + N(0, s^2))
PHI_WEIGHT = 5.0  # outcomes that the prior of Pearson's scale counts as
SCORE_PHI = 0.3  # its centre for scores: a deviation of about a quarter of the range


def on_link_scale(families: tuple[Family, ...]) -> tuple[Family, ...]:
    """The families with priors for a logit or log scale; effects of arms on single users are left out."""
    return tuple(_with_prior(f) for f in families if not ("user" in f.by and ("arm" in f.by or f.slopes is not None)))


def _with_prior(family: Family) -> Family:
    if family.variance is not None:
        return replace(family, variance=LEVEL_SD**2)
    by_arm = "arm" in family.by or "past" in family.by
    if len(family.by) - ("member" in family.by) > 1 or (family.by and family.slopes is not None):
        sd = INTERACTION_SD
    elif by_arm:
        sd = ARM_SD * min(1.0, family.centre) ** 0.5  # less beside attributes
    elif family.name in OF_ARMS:
        sd = ARM_SD
    else:
        sd = SEASON_SD if family.by == ("season",) else PLACE_SD
    return replace(family, centre=sd**2, spread=2 * TAU_SPREAD)


@dataclass(frozen=True)
class Table:
    """The cells of one metric of one trial, with clusters numbered from 0."""

    metric: int
    kind: str
    size: FloatArray  # (N,), outcomes or their exposure
    total: FloatArray  # (N,), sum of outcomes
    squares: FloatArray  # (3, N), sums of products of sizes, and of sizes times outcomes, as shares or rates
    count: float  # outcomes
    cols: IntArray  # (N, E), columns of theta; 0 where there is none
    x: FloatArray  # (N, E), 0 where there is none
    zcols: IntArray  # (N, r)
    z: FloatArray  # (N, r)
    cluster: IntArray  # (N,)
    clusters: int
    columns: tuple[int, int]  # P and q

    @cached_property
    def own_place(self) -> IntArray:
        """Columns of all clusters together: (N, r)."""
        return self.cluster[:, None] * self.columns[1] + self.zcols

    @cached_property
    def products(self) -> tuple[Products, Products, Products]:
        """Of the entries of each cell: x x', z x' and z z'."""
        (P, q), L, own = self.columns, self.clusters, self.own_place

        def pairs(a: IntArray, va: FloatArray, b: IntArray, vb: FloatArray, width: int, size: int) -> Products:
            shape = len(a), a.shape[1] * b.shape[1]
            place, value = a[:, :, None] * width + b[:, None, :], va[:, :, None] * vb[:, None, :]
            return Products(place.reshape(shape), value.reshape(shape), size)

        return (
            pairs(self.cols, self.x, self.cols, self.x, P, P * P),
            pairs(own, self.z, self.cols, self.x, P, L * q * P),
            pairs(own, self.z, self.zcols, self.z, q, L * q * q),
        )

    @cached_property
    def parts(self) -> tuple[Assembly, ...]:
        """Of x' W x, z' W x and z' W z by cluster, and of x' r and z' r."""
        (P, q), L = self.columns, self.clusters
        single = Products(self.cols, self.x, P), Products(self.own_place, self.z, L * q)
        return tuple(Assembly.of(each) for each in (*self.products, *single))

    def eta(self, offset: float, theta: FloatArray, v: FloatArray) -> FloatArray:
        """Linear predictors: theta (B, P) and v (B, L, q) -> (B, N)."""
        return offset + self.common(theta) + self.own(v)

    def common(self, theta: FloatArray) -> FloatArray:
        return np.einsum("bne,ne->bn", theta[:, self.cols], self.x)

    def own(self, v: FloatArray) -> FloatArray:
        return np.einsum("bnr,nr->bn", v[:, self.cluster[:, None], self.zcols], self.z)


class Products(NamedTuple):
    """Values of the entries of each cell, and their places in a sum over cells."""

    place: IntArray  # (N, entries)
    value: FloatArray
    size: int


class Assembly(NamedTuple):
    """Sums over cells into places: out[place] = sum of weight[cell] value."""

    place: IntArray  # sorted, each once
    start: IntArray
    cell: IntArray
    value: FloatArray
    size: int

    @staticmethod
    def of(products: Products) -> Assembly:
        """Entries of value 0 are left out."""
        place, value = products.place.reshape(-1), products.value.reshape(-1)
        used = np.flatnonzero(value != 0)
        used = used[np.argsort(place[used], kind="stable")]
        place = place[used]
        start = np.flatnonzero(np.diff(place, prepend=-1))
        return Assembly(place[start], start, used // max(products.place.shape[1], 1), value[used], products.size)

    def __call__(self, weight: FloatArray) -> FloatArray:
        """(B, N) -> (B, size)."""
        out = np.zeros((len(weight), self.size))
        if len(self.place):
            each = np.ascontiguousarray(weight.T).take(self.cell, 0)
            each *= self.value[:, None]
            out[:, self.place] = np.add.reduceat(each, self.start, axis=0).T
        return out


def make_table(
    structure: Structure,
    cells: Cells,
    scale: Scale,
    metric: int,
    kind: str,
    size: int | None = None,
    labels: IntArray | None = None,
) -> Table:
    """The outcomes of one metric, as shares or rates, in cells of one trial.

    `size` is the column of their sizes, `labels` are the sorted clusters where not all have outcomes.
    """
    c = structure.covariates
    low, high = structure.ranges[metric] if kind == SCORE else (0.0, 1.0)
    own = cells.at(np.flatnonzero((((cells.pattern >> metric) & 1) > 0) & (cells.n > 0)))
    n, rate = own.n, (own.mean[:, c + metric] - low) / (high - low)
    sizes, total = n, n * rate
    squares = np.stack([n, total, own.scatter[:, c + metric, c + metric] / (high - low) ** 2 + n * rate**2])
    if size is not None:
        (one, other), scatter = own.mean[:, size : size + 2].T, own.scatter[:, size : size + 2, size : size + 2]
        sizes, total = n * one, n * other
        squares = n * np.stack([one * one, one * other, other * other]) + scatter[:, [0, 0, 1], [0, 1, 1]].T
    common, own_layout = structure.common, structure.own
    slots = np.concatenate([np.ones((len(n), 1)), scale.standardise(own.mean[:, :c])], -1)
    cols, zcols = common.columns(own.keys), own_layout.columns(own.keys)
    theirs = own.keys[:, structure.cluster_place]
    labels = np.unique(theirs) if labels is None else labels
    return Table(
        metric=metric,
        kind=kind,
        size=sizes,
        total=total,
        squares=squares,
        count=float(n.sum()),
        cols=np.maximum(cols, 0),
        x=slots[:, common.slot] * (cols >= 0),
        zcols=np.maximum(zcols, 0),
        z=slots[:, own_layout.slot] * (zcols >= 0),
        cluster=np.searchsorted(labels, theirs),
        clusters=max(len(labels), 1),
        columns=(len(common.family), len(own_layout.family)),
    )


class Moments(NamedTuple):
    """Means of cells per unit of size and the first two derivatives of their variances' numerator: (B, N) each."""

    mean: FloatArray
    weight: FloatArray  # d mean / d eta
    bend: FloatArray  # d weight / d eta
    potential: FloatArray  # whose derivative is the mean


def moments(kind: str, eta: FloatArray) -> Moments:
    """Of the logistic law, or of Poisson's.

    >>> [float(part[0]) for part in moments(YES_NO, np.zeros(1))[:3]]
    [0.5, 0.25, 0.0]
    """
    if kind == COUNT:
        mean = np.exp(np.minimum(eta, 300.0))
        return Moments(mean, mean, mean, mean)
    p = expit(eta)
    weight = p * (1 - p)
    return Moments(p, weight, weight * (1 - 2 * p), np.logaddexp(0.0, eta))


class Solved(NamedTuple):
    """The inverse of the curvature in blocks."""

    cov: FloatArray  # (B, P, P), of theta
    own: FloatArray  # (B, L, q, q), S_l^-1
    gain: FloatArray  # (B, L, q, P), S_l^-1 B_l
    log_det: FloatArray  # (B,), of the whole curvature

    def times(self, g: FloatArray, h: FloatArray) -> tuple[FloatArray, FloatArray]:
        """C (g, h): (B, P), (B, L, q) -> the same."""
        t = np.matvec(self.cov, g - _flat(self.gain, h))
        return t, np.matvec(self.own, h) - np.matvec(self.gain, t[:, None])


def _flat(gain: FloatArray, h: FloatArray) -> FloatArray:
    """sum_l gain_l' h_l: (B, L, q, P), (B, L, q) -> (B, P)."""
    B, L, q, P = gain.shape
    return np.vecmat(h.reshape(B, L * q), gain.reshape(B, L * q, P))


def _own_block(table: Table, weight: FloatArray, Dv: FloatArray) -> FloatArray:
    """S_l of weights (B, N) and prior precisions (B, q): (B, L, q, q)."""
    q = table.columns[1]
    zz = table.parts[2](weight).reshape(len(weight), table.clusters, q, q)
    return zz + (Dv[:, :, None] * np.eye(q))[:, None]


def _gains(table: Table, weight: FloatArray, Dv: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """S_l^-1 (B, L, q, q), then B_l and S_l^-1 B_l, (B, L, q, P) each."""
    own = np.asarray(np.linalg.inv(_own_block(table, weight, Dv)), np.float64)
    cross = table.parts[1](weight).reshape(*own.shape[:-1], table.columns[0])
    return own, cross, np.matmul(own, cross)


def _blocks(
    table: Table, weight: FloatArray, D: FloatArray, Dv: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """C_theta^-1 (B, P, P), S_l^-1 and S_l^-1 B_l of weights (B, N) and prior precisions (B, P), (B, q)."""
    (P, q), L, B = table.columns, table.clusters, len(weight)
    own, cross, gain = _gains(table, weight, Dv)
    through = np.matmul(np.swapaxes(cross.reshape(B, L * q, P), -1, -2), gain.reshape(B, L * q, P))
    return table.parts[0](weight).reshape(B, P, P) + D[:, :, None] * np.eye(P) - through, own, gain


def _solve(table: Table, weight: FloatArray, D: FloatArray, Dv: FloatArray) -> Solved:
    """The inverse of the curvature."""
    left, own, gain = _blocks(table, weight, D, Dv)
    signs, logs = zip(np.linalg.slogdet(left), np.linalg.slogdet(own), strict=True)
    if not ((signs[0] > 0).all() and (signs[1] > 0).all()):
        raise NumericalError(LOST.format("the information about yes-or-no or count outcomes"))
    return Solved(np.asarray(np.linalg.inv(left), np.float64), own, gain, logs[0] - logs[1].sum(-1))


@dataclass(frozen=True)
class Laplace:
    """A fit of one metric at fixed deviations; theta and v are modes."""

    theta: FloatArray  # (B, P)
    v: FloatArray  # (B, L, q)
    delta: tuple[FloatArray, FloatArray]  # from the mode to the mean
    solved: Solved
    log_marginal: FloatArray  # (B,), without the prior of the deviations
    edf: FloatArray  # (B,), effective number of parameters
    pearson: FloatArray  # (B,), sum of squared residuals times the outcomes' sizes, relative to the mean size


def variances(structure: Structure, log_tau: FloatArray) -> FloatArray:
    """Of all families: (B, learned) -> (B, F)."""
    v = np.array([0.0 if f.variance is None else f.variance for f in structure.families])
    v = np.repeat(v[None], len(log_tau), 0)
    v[:, structure.parameters.learned] = np.exp(2 * log_tau)
    return np.maximum(v, np.exp(2 * LEAST_LOG_TAU))


class Problem:
    """A table with the families of its columns, its offset and Pearson's scale."""

    def __init__(self, structure: Structure, table: Table, phi: float = 1.0) -> None:
        self.structure, self.table, self.phi = structure, table, phi
        self.family, self.zfamily = structure.common.family, structure.own.family
        self.learned = structure.parameters.learned
        families = [structure.families[k] for k in self.learned]
        self.centre, self.spread = (
            0.5 * np.array(a) for a in ([np.log(f.centre) for f in families], [f.spread for f in families])
        )
        total, size = table.total.sum(), table.size.sum()
        self.offset = float(np.log((total + 1) / (size + 1))) if table.kind == COUNT else 0.0

    def newton(
        self, log_tau: FloatArray, theta: FloatArray, v: FloatArray, steps: int
    ) -> tuple[FloatArray, FloatArray]:
        """Steps towards the mode."""
        table, D, Dv = self.table, *self.precisions(log_tau)
        for _ in range(steps):
            m = moments(table.kind, table.eta(self.offset, theta, v))
            left, own, gain = _blocks(table, table.size * m.weight / self.phi, D, Dv)
            g, h = self._gradient(m, D, Dv, theta, v)
            dt = np.asarray(np.linalg.solve(left, (g - _flat(gain, h))[..., None])[..., 0], np.float64)
            dv = np.matvec(own, h) - np.matvec(gain, dt[:, None])
            theta, v = self._stepped(theta, v, dt, dv)
        return theta, v

    def _gradient(
        self, m: Moments, D: FloatArray, Dv: FloatArray, theta: FloatArray, v: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Of the log posterior by theta and v."""
        residual = (self.table.total - self.table.size * m.mean) / self.phi
        g, h = self.table.parts[3](residual), self.table.parts[4](residual).reshape(v.shape)
        return g - D * theta, h - Dv[:, None, :] * v

    def _stepped(
        self, theta: FloatArray, v: FloatArray, dt: FloatArray, dv: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """A step, shortened where some linear predictor would change by much."""
        far = np.abs(self.table.eta(0.0, dt, dv)).max(-1, initial=0.0)
        step = np.minimum(1.0, MOST_STEP / np.maximum(far, MOST_STEP))
        return theta + step[:, None] * dt, v + step[:, None, None] * dv

    def laplace(self, log_tau: FloatArray, theta: FloatArray, v: FloatArray) -> Laplace:
        """The normal approximation around a mode, after a last step towards it with the curvature before the step."""
        table, phi, D, Dv = self.table, self.phi, *self.precisions(log_tau)
        m = moments(table.kind, table.eta(self.offset, theta, v))
        weight = table.size * m.weight / phi
        solved = _solve(table, weight, D, Dv)
        lev = self._leverage(solved)
        theta, v = self._stepped(theta, v, *solved.times(*self._gradient(m, D, Dv, theta, v)))
        eta = table.eta(self.offset, theta, v)
        m = moments(table.kind, eta)
        push = -0.5 * lev * table.size * m.bend / phi
        delta = solved.times(table.parts[3](push), table.parts[4](push).reshape(v.shape))
        fit = ((table.total * eta - table.size * m.potential) / phi).sum(-1)
        prior = 0.5 * (np.log(D).sum(-1) + table.clusters * np.log(Dv).sum(-1))
        prior -= 0.5 * ((D * theta**2).sum(-1) + (Dv[:, None, :] * v**2).sum((-2, -1)))
        log_det = solved.log_det + (lev * (table.size * m.weight / phi - weight)).sum(-1)
        first, cross, last = table.squares
        squares = (last - 2 * cross * m.mean + first * m.mean**2) * (table.count / (table.size.sum() or 1.0))
        pearson = (squares / np.maximum(m.weight, 1e-9)).sum(-1)
        return Laplace(theta, v, delta, solved, fit + prior - 0.5 * log_det, (weight * lev).sum(-1), pearson)

    def score(self, log_tau: FloatArray, fit: Laplace) -> tuple[FloatArray, FloatArray]:
        """Gradient and information of the log marginal likelihood times prior, at one node: (F,), (F, F)."""
        D, Dv = self.precisions(log_tau)
        D, Dv, solved = D[0], Dv[0], Solved(*(part[:1] for part in fit.solved))
        cov, own, gain = solved.cov[0], solved.own[0], solved.gain[0]
        through = np.matmul(gain, cov)  # (L, q, P)
        within = own + np.matmul(through, np.swapaxes(gain, -1, -2))  # (L, q, q)
        L, q, P = gain.shape
        (theta, v), (dt, dv) = (fit.theta[0], fit.v[0]), (fit.delta[0][0], fit.delta[1][0])
        squares = D * (theta**2 + 2 * dt * theta + np.diagonal(cov))
        own_squares = (Dv * (v**2 + 2 * dv * v + np.diagonal(within, axis1=-2, axis2=-1))).sum(0)
        F, G = (np.equal.outer(family, self.learned).astype(float) for family in (self.family, self.zfamily))
        gradient = (squares - 1) @ F + (own_squares - L) @ G - (log_tau[0] - self.centre) / self.spread**2
        root, zroot = np.sqrt(D), np.sqrt(Dv)
        M = np.eye(P) - root[:, None] * cov * root
        information = F.T @ M**2 @ F
        side = (root[:, None] * through.reshape(L * q, P).T * np.tile(zroot, L)) ** 2  # (P, L q)
        side = F.T @ side.reshape(P, L, q).sum(1) @ G
        information += side + side.T
        scaled = zroot[:, None] * gain  # (L, q, P)
        some = np.flatnonzero(G.any(0))
        parts = [scaled[:, G[:, i] > 0].reshape(-1, P) for i in some]
        T = [part.T @ part @ cov for part in parts]
        information[np.ix_(some, some)] += [[(a * b.T).sum() for a in T] for b in T]
        both = zroot[:, None] * zroot
        inner = (np.eye(q) - both * within) ** 2 - (both * (within - own)) ** 2
        information += G.T @ inner.sum(0) @ G
        return gradient, 2 * information + np.diag(1 / self.spread**2)

    def log_prior(self, log_tau: FloatArray) -> FloatArray:
        """Of the deviations: (B,)."""
        return np.asarray(-0.5 * (((log_tau - self.centre) / self.spread) ** 2).sum(-1))

    def precisions(self, log_tau: FloatArray) -> tuple[FloatArray, FloatArray]:
        v = variances(self.structure, log_tau)
        return 1 / v[:, self.family], 1 / v[:, self.zfamily]

    def _leverage(self, solved: Solved) -> FloatArray:
        """a' C a of each cell's row a = (x, z): (B, N)."""
        t, (P, q) = self.table, self.table.columns
        B, L = len(solved.cov), t.clusters
        cov, own, gain = (part.astype(np.float32) for part in solved[:3])  # a few digits of a leverage are enough
        through = np.matmul(gain.reshape(B, L * q, P), cov)  # (B, L q, P)
        within = own + np.matmul(through.reshape(B, L, q, P), np.swapaxes(gain, -1, -2))
        parts = (1, cov), (-2, through), (1, within)
        return np.asarray(
            sum(
                times * np.vecdot(part.reshape(B, -1).take(each.place, 1), each.value)
                for (times, part), each in zip(parts, t.products, strict=True)
            )
        )


@dataclass(frozen=True, slots=True)
class Generalised:
    """The fit of one metric at all nodes, and draws of theta."""

    log_tau: FloatArray  # (B, learned)
    mode: FloatArray  # (B, P), of theta
    draws: FloatArray  # (S, P), of theta
    node: IntArray  # (S,), of each draw
    offset: float
    phi: float


def fit(structure: Structure, table: Table, warm: Generalised | None = None) -> Generalised:
    """Deviations, nodes and draws; `warm` is a fit to fewer outcomes of the same structure."""
    phi = SCORE_PHI if table.kind == SCORE else 1.0
    problem = Problem(structure, table, phi if warm is None else warm.phi)
    (P, q), L = table.columns, table.clusters
    log_tau, theta, v = problem.centre[None], np.zeros((1, P)), np.zeros((1, L, q))
    if warm is not None and warm.log_tau.shape[-1] == len(problem.learned):
        log_tau = warm.log_tau[:1]
        theta = warm.mode[:1] if warm.mode.shape[-1] == P else theta
    else:
        warm = None
    for _ in range(COLD if warm is None else WARM):
        theta, v = problem.newton(log_tau, theta, v, NEWTON)
        laplace = problem.laplace(log_tau, theta, v)
        problem.phi = _phi(table, laplace)
        gradient, information = problem.score(log_tau, laplace)
        step = np.clip(np.linalg.solve(information, gradient), -MOST_SCORING, MOST_SCORING)
        log_tau = np.clip(log_tau + step, LEAST_LOG_TAU, MOST_LOG_TAU)
    theta, v = problem.newton(log_tau, theta, v, 1)
    laplace = problem.laplace(log_tau, theta, v)
    _, information = problem.score(log_tau, laplace)
    z = standard_nodes(len(problem.learned))
    nodes = np.clip(log_tau + z @ np.linalg.cholesky(np.linalg.inv(information)).T, LEAST_LOG_TAU, MOST_LOG_TAU)
    starts = _moved(problem, laplace, log_tau, nodes)
    log_weight = problem.log_prior(nodes) + 0.5 * (z**2).sum(-1)
    modes, means = np.empty((2, len(nodes), P))
    roots = np.empty((len(nodes), P, P))
    size = max(1, IN_CACHE // (P * (P + L * q)))
    for some in (slice(first, first + size) for first in range(0, len(nodes), size)):
        theta, v = (start[some] for start in starts)
        if table.count < FEW:
            theta, v = problem.newton(nodes[some], theta, v, 1)
        at = problem.laplace(nodes[some], theta, v)
        log_weight[some] += at.log_marginal
        modes[some], means[some] = at.theta, at.theta + at.delta[0]
        roots[some] = np.linalg.cholesky(at.solved.cov)
    weight = np.exp(np.clip(log_weight - log_weight[0], LEAST_WEIGHT, MOST_WEIGHT))
    node = _allocate(weight, table.metric)
    normal = standard_draws(P, "theta", table.metric)
    draws = np.empty((DRAWS, P))
    for b, (mean, root) in enumerate(zip(means, roots, strict=True)):
        draws[node == b] = mean + normal[node == b] @ root.T
    return Generalised(nodes, modes, draws, node, problem.offset, problem.phi)


def _phi(table: Table, fit: Laplace) -> float:
    """Pearson's scale, with a prior that counts as a few outcomes.

    Residuals count by the outcome's size, as in the fit: where rates scatter, large ones tell less than their size.
    """
    left = max(table.count - float(fit.edf[0]), 0.0)
    if table.kind == SCORE:
        return float(np.clip((fit.pearson[0] + PHI_WEIGHT * SCORE_PHI) / (left + PHI_WEIGHT), 1e-3, 1.0))
    if table.kind == COUNT or table.size.sum() > 1.5 * table.count:
        return max(1.0, float((fit.pearson[0] + PHI_WEIGHT) / (left + PHI_WEIGHT)))
    return 1.0


def _moved(problem: Problem, fit: Laplace, centre: FloatArray, nodes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """First guesses of the modes at the nodes: d mode / d log tau_f = 2 C D_f mode."""
    D, Dv = problem.precisions(centre)
    theta, v = (np.repeat(a, len(nodes), 0) for a in (fit.theta, fit.v))
    for i, k in enumerate(problem.learned):
        g = 2 * D * fit.theta * (problem.family == k)
        h = 2 * Dv[:, None, :] * fit.v * (problem.zfamily == k)
        dt, dv = fit.solved.times(g, h)
        move = (nodes - centre)[:, i]
        theta, v = theta + move[:, None] * dt, v + move[:, None, None] * dv
    return theta, v


def _allocate(weight: FloatArray, metric: int) -> IntArray:
    """The node of each draw, in proportion to the weights: (B,) -> (S,); pairs of draws share one.

    Each metric has them in another order, so that metrics are independent.
    """
    pairs = DRAWS // 2
    at = (np.arange(pairs) * pow(SHUFFLE, metric, pairs) % pairs + 0.5) / pairs
    node = np.searchsorted(np.cumsum(weight) / weight.sum(), at)
    return np.concatenate([node, node])


@cache
def standard_nodes(dimensions: int) -> FloatArray:
    """The mode and antithetic pairs of points around it, with unit second moments: (1 + 2 PAIRS, dimensions)."""
    if not dimensions:
        return np.zeros((1, 0))
    ratio = 1.5
    for _ in range(64):
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    half = ndtri((0.5 + np.outer(np.arange(1, PAIRS + 1), ratio ** -np.arange(1.0, dimensions + 1))) % 1.0)
    half /= np.sqrt((half**2).mean(0))
    return np.concatenate([np.zeros((1, dimensions)), half, -half])


@cache
def standard_draws(dimensions: int, name: str, metric: int = 0) -> FloatArray:
    """Antithetic pairs of standard normal draws, the same for every fit of a metric: (S, dimensions).

    Their covariance is exactly the identity, where there are enough of them: a quantile of them rests on few.
    """
    half = streams.generator(metric, f"posterior draws of {name}").standard_normal((DRAWS // 2, dimensions))
    if len(half) > 2 * dimensions:
        half = half @ np.linalg.inv(np.linalg.cholesky(half.T @ half / len(half))).T
    return np.concatenate([half, -half])


# Predictions


def own_effects(structure: Structure, table: Table, fitted: Generalised) -> FloatArray:
    """Draws of the own effects of the table's clusters, given the draws of theta: (L, S, q)."""
    problem = Problem(structure, table, fitted.phi)
    problem.offset = fitted.offset
    B, q, L = len(fitted.log_tau), table.columns[1], table.clusters
    _, Dv = problem.precisions(fitted.log_tau)
    v, known = np.zeros((1, L, q)), fitted.offset + table.common(fitted.mode)  # theta has all outcomes in it already
    for step in range(COLD + NEWTON + 2):  # to the mode at the first node, and from there at all of them
        some = slice(1 if step < COLD else B)
        v = np.repeat(v, B, 0) if step == COLD else v
        m = moments(table.kind, known[some] + table.own(v))
        residual, weight = (table.total - table.size * m.mean) / problem.phi, table.size * m.weight / problem.phi
        if step < COLD + NEWTON + 1:
            h = table.parts[4](residual).reshape(v.shape) - Dv[some, None, :] * v
            towards = np.linalg.solve(_own_block(table, weight, Dv[some]), h[..., None])[..., 0]
            v = v + np.clip(towards, -MOST_STEP, MOST_STEP)
    own, _, gain = _gains(table, weight, Dv)
    root, normal = np.linalg.cholesky(own), standard_draws(q, "own effects", table.metric)
    draws = np.empty((L, DRAWS, q))
    for b in range(B):
        at = fitted.node == b
        away = fitted.draws[at] - fitted.mode[b]
        draws[:, at] = v[b][:, None] - np.matmul(away, np.swapaxes(gain[b], -1, -2))
        draws[:, at] += np.matmul(normal[at], np.swapaxes(root[b], -1, -2))
    # From their mode to their mean, as for theta; the leverage is the variance of the cells' predictors.
    leverage = (table.common(fitted.draws) + table.own(np.swapaxes(draws, 0, 1))).var(0)
    push = table.parts[4](-0.5 * leverage * table.size * m.bend / problem.phi).reshape(v.shape)
    return draws + np.swapaxes(np.matvec(own, push)[fitted.node], 0, 1)


def mean_draws(
    structure: Structure, fitted: Generalised, kind: str, keys: IntArray, covariates: FloatArray, *,
    own: FloatArray | None, averaged: tuple[str, ...],
) -> FloatArray:  # fmt: skip
    """Draws of mean outcomes for arms with these factors (n, K, F) and standardised covariates (n, K, c): (n, K, S).

    Families that vary with one of the factors `averaged` are averaged over: seasons, and own effects of units where
    the promise is to units alike. `own` has draws of the other own effects: (n, S, q).
    """
    layouts = structure.common, structure.own
    rows = [layout.rows(keys, covariates) for layout in layouts]
    away = np.array([any(name in f.by for name in averaged) for f in structure.families])
    squares = sum(layout.by_family(r**2) for layout, r in zip(layouts, rows, strict=True))  # (..., F)
    variance = np.zeros((len(fitted.log_tau), len(away)))
    variance[:, structure.parameters.learned] = np.exp(2 * fitted.log_tau)
    s2 = np.matmul(np.asarray(squares), (variance * away).T)  # (..., B)
    eta = np.matmul(np.where(away[structure.common.family], 0.0, rows[0]), fitted.draws.T)
    eta += fitted.offset
    if own is not None:
        Z = np.where(away[structure.own.family], 0.0, rows[1])
        eta += np.matmul(Z, np.swapaxes(own, -1, -2))
    if kind == COUNT:
        return np.exp(np.minimum(eta + (0.5 * s2)[..., fitted.node], 300.0))
    if s2.any():
        eta /= np.sqrt(1 + AVERAGED * s2)[..., fitted.node]
    return np.asarray(expit(eta))
