"""Variances of a field model: most plausible values, and how far they may be from them.

The log variances, and the residual covariance, maximise marginal likelihood times a weak prior. The search starts at
the prior's centre whatever came before, and ends with Newton steps: the result is a function of the data alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from drimed.learning.field.likelihood import Design, Evaluation, evaluate
from drimed.learning.field.terms import Family
from drimed.linear.arrays import FloatArray, IntArray

RESIDUAL_SD = 1.5  # of the log of the residual variance relative to a first guess
CORRELATION_SD = 1.0  # of an off-diagonal entry of the residual's factor, relative to its diagonal
ARM_NOISE_SD = 0.5  # of the log of an arm's noise variance relative to the others
LIMIT = 12.0  # a log variance stays this near its prior's centre: 8 prior deviations
STEP = 1e-3  # of the differences of gradients that make up the Hessian
GENTLE, MOST_STEPS, LONGEST = 1e-3, 100, 3.0  # when the search is near enough for Newton; steps; length of a step
POLISH = 2  # Newton steps at the end


@final
@dataclass(frozen=True)
class Parameters:
    """Variances as a vector of unbounded numbers: log variances by metric and family, then the residual's factor."""

    families: tuple[Family, ...]
    metrics: int
    groups: int  # noise groups: one, or one for each arm

    @cached_property
    def learned(self) -> list[int]:
        """The numbers of the families whose variance is learned."""
        return [k for k, f in enumerate(self.families) if f.variance is None]

    @cached_property
    def centre(self) -> FloatArray:
        """Of the prior: (p,)."""
        logs = [np.log(self.families[k].centre) for k in self.learned] * self.metrics
        return np.concatenate([logs, np.zeros(self.size - len(logs))])

    @cached_property
    def precision(self) -> FloatArray:
        """Of the prior: (p, p). A log variance is judged against the residual's of the same metric."""
        M, k = self.metrics, len(self.learned)
        sds = [(M, RESIDUAL_SD), (M * (M - 1) // 2, CORRELATION_SD), (self._scales, ARM_NOISE_SD)]
        against = np.eye(self.size)
        against[np.arange(M * k), M * k + np.arange(M * k) // max(k, 1)] = -1.0
        ratios = [self.families[i].spread ** -2.0 for i in self.learned] * M
        weights = np.concatenate([ratios, *(np.full(n, sd**-2.0) for n, sd in sds)])
        return np.asarray(against.T @ (weights[:, None] * against))

    @property
    def size(self) -> int:
        """p."""
        M = self.metrics
        return M * len(self.learned) + M + M * (M - 1) // 2 + self._scales

    @property
    def uncertain(self) -> int:
        """How many of them, from the front, are averaged over: all variances, not the residual's shape."""
        return self.metrics * len(self.learned) + self.metrics

    @property
    def _scales(self) -> int:
        return self.groups * self.metrics if self.groups > 1 else 0

    def variances(self, x: FloatArray) -> FloatArray:
        """(..., p) -> (..., M, F)."""
        M, k = self.metrics, len(self.learned)
        v = np.empty((*x.shape[:-1], M, len(self.families)))
        for number, f in enumerate(self.families):
            v[..., number] = 0.0 if f.variance is None else f.variance
        v[..., self.learned] = np.exp(x[..., : M * k].reshape(*x.shape[:-1], M, k))
        return v

    def residual(self, x: FloatArray) -> FloatArray:
        """(..., p) -> (..., g, M, M)."""
        root = self._root(x)
        R = np.matmul(root, np.swapaxes(root, -1, -2))[..., None, :, :]
        s = self._arm_scales(x)
        return R * s[..., :, None] * s[..., None, :]

    def gradient(self, x: FloatArray, found: Evaluation) -> FloatArray:
        """Of the log likelihood, with respect to the vector: (..., p)."""
        M = self.metrics
        first = found.grad_v[..., self.learned].reshape(*x.shape[:-1], -1)
        root, s = self._root(x), self._arm_scales(x)
        R = np.matmul(root, np.swapaxes(root, -1, -2))
        by_R = (found.grad_R * s[..., :, None] * s[..., None, :]).sum(-3)
        by_root = 2 * np.matmul(by_R, root)  # (..., M, M)
        log_sd = (by_root * root).sum(-1)  # a row of the factor is proportional to its diagonal
        below = np.tril_indices(M, -1)
        off = by_root[..., *below] * np.diagonal(root, axis1=-2, axis2=-1)[..., below[0]]
        parts = [first, 0.5 * log_sd, off]
        if self._scales:
            scaled = R[..., None, :, :] * s[..., :, None] * s[..., None, :]
            parts.append((found.grad_R * scaled).sum(-1).reshape(*x.shape[:-1], -1))
        return np.concatenate(parts, -1)

    def _root(self, x: FloatArray) -> FloatArray:
        M, at = self.metrics, self.metrics * len(self.learned)
        sd = np.exp(0.5 * x[..., at : at + M])
        root = np.zeros((*x.shape[:-1], M, M))
        root[..., np.arange(M), np.arange(M)] = sd
        below = np.tril_indices(M, -1)
        root[..., *below] = x[..., at + M : at + M + len(below[0])] * sd[..., below[0]]
        return root

    def _arm_scales(self, x: FloatArray) -> FloatArray:
        if not self._scales:
            return np.ones((*x.shape[:-1], 1, self.metrics))
        return np.exp(0.5 * x[..., -self._scales :]).reshape(*x.shape[:-1], self.groups, self.metrics)


@dataclass(frozen=True, slots=True)
class Learned:
    """The most plausible parameters, and the curvature of the log posterior there."""

    x: FloatArray  # (..., p)
    hessian: FloatArray  # (..., p, p), of minus the log posterior
    value: FloatArray  # (...), minus the log posterior at x


def log_posterior(parameters: Parameters, design: Design, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Minus the log of likelihood times prior, and its gradient: (..., p) -> (...), (..., p)."""
    found = evaluate(design, parameters.variances(x), parameters.residual(x))
    off = x - parameters.centre
    pull = np.matvec(parameters.precision, off)
    return -found.value + 0.5 * np.vecdot(off, pull), pull - parameters.gradient(x, found)


def learn(parameters: Parameters, design: Design, batch: tuple[int, ...]) -> Learned:
    """The most plausible parameters of each member."""
    members = int(np.prod(batch))
    flat = _flatten(design, batch, members)

    def objective(x: FloatArray, which: IntArray) -> tuple[FloatArray, FloatArray]:
        chosen = flat if len(which) == members else _choose(flat, which)
        return log_posterior(parameters, chosen, x)

    x = np.repeat(parameters.centre[None], members, 0)
    lower, upper = parameters.centre - LIMIT, parameters.centre + LIMIT
    x = _descend(objective, x, lower, upper)
    everyone = np.arange(members)
    H = _hessian(objective, x, everyone)
    for _ in range(POLISH):
        value, g = objective(x, everyone)
        x = np.clip(x - np.clip(np.linalg.solve(H, g[..., None])[..., 0], -0.1, 0.1), lower, upper)
    value, _ = objective(x, everyone)
    p = parameters.size
    return Learned(x.reshape(*batch, p), H.reshape(*batch, p, p), value.reshape(batch))


Objective = Callable[[FloatArray, IntArray], tuple[FloatArray, FloatArray]]


def _descend(objective: Objective, x: FloatArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """BFGS with halved steps, all members side by side; those that are near enough drop out."""
    members, p = x.shape
    x = x.copy()
    active = np.arange(members)
    f, g = objective(x, active)
    H = np.repeat(np.eye(p)[None], members, 0)  # the inverse Hessian: curvatures are near those of a weak prior
    for _ in range(MOST_STEPS):
        if not len(active):
            break
        step = -np.matvec(H, g)
        step *= np.minimum(1.0, LONGEST / np.maximum(np.abs(step).max(-1, keepdims=True), 1e-300))
        x_new, f_new, g_new = _halve(objective, x[active], f, g, step, active, lower, upper)
        s, y = x_new - x[active], g_new - g
        H = _updated(H, s, y)
        moved = f - f_new > 1e-9 * (1 + np.abs(f))
        x[active] = x_new
        far = (np.abs(g_new).max(-1) > GENTLE) & moved
        active, f, g, H = active[far], f_new[far], g_new[far], H[far]
    return x


def _halve(
    objective: Objective, x: FloatArray, f: FloatArray, g: FloatArray, step: FloatArray, active: IntArray,
    lower: FloatArray, upper: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:  # fmt: skip
    """The first of the steps 1, 1/2, 1/4, ... that lowers the objective enough."""
    x_new = np.clip(x + step, lower, upper)
    f_new, g_new = objective(x_new, active)
    share = np.ones(len(x))
    for _ in range(20):
        worse = ~(f_new <= f + 1e-4 * np.vecdot(g, x_new - x))
        if not worse.any():
            break
        at = np.flatnonzero(worse)
        share[at] *= 0.5
        x_new[at] = np.clip(x[at] + share[at, None] * step[at], lower, upper)
        f_new[at], g_new[at] = objective(x_new[at], active[at])
    lost = ~(f_new <= f)
    x_new[lost], f_new[lost], g_new[lost] = x[lost], f[lost], g[lost]
    return x_new, f_new, g_new


def _updated(H: FloatArray, s: FloatArray, y: FloatArray) -> FloatArray:
    """The BFGS update of an inverse Hessian, where the step showed positive curvature."""
    sy = np.vecdot(s, y)
    good = sy > 1e-12
    rho = np.where(good, 1 / np.where(good, sy, 1.0), 0.0)
    Hy = np.matvec(H, y)
    yHy = np.vecdot(y, Hy)
    cross = s[..., :, None] * Hy[..., None, :]
    change = (rho + rho**2 * yHy)[:, None, None] * s[..., :, None] * s[..., None, :]
    return H + change - rho[:, None, None] * (cross + np.swapaxes(cross, -1, -2))


def _hessian(objective: Objective, x: FloatArray, everyone: IntArray) -> FloatArray:
    """Differences of gradients."""
    p = x.shape[-1]
    H = np.empty((*x.shape, p))
    for k in range(p):
        step = STEP * np.eye(p)[k]
        H[..., k, :] = (objective(x + step, everyone)[1] - objective(x - step, everyone)[1]) / (2 * STEP)
    return curved(H)


def curved(H: FloatArray) -> FloatArray:
    """A Hessian made symmetric, with no curvature below a tenth of a weak prior's."""
    values, vectors = np.linalg.eigh(0.5 * (H + np.swapaxes(H, -1, -2)))
    values = np.maximum(values, 0.1)
    return np.matmul(vectors * values[..., None, :], np.swapaxes(vectors, -1, -2))


def _flatten(design: Design, batch: tuple[int, ...], members: int) -> Design:
    """One batch axis instead of any; the parts that all members share have none."""
    shared = {"slot", "zslot", "family", "zfamily", "touched"}
    parts = {
        name: array if name in shared else array.reshape(members, *array.shape[len(batch) :])
        for name, array in design._asdict().items()
    }
    return Design(**parts)


def _choose(design: Design, which: IntArray) -> Design:
    shared = {"slot", "zslot", "family", "zfamily", "touched"}
    return Design(**{k: a if k in shared else a[which] for k, a in design._asdict().items()})
