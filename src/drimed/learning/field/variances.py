"""Variances of a field model: most plausible values, and how far they may be from them.

The log variances, and the residual covariance, maximise marginal likelihood times a weak prior. The search starts at
the prior's centre whatever came before, and ends with Newton steps: the result is a function of the data alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from drimed.learning.field.likelihood import Design, Slopes, slopes
from drimed.learning.field.search import Found, Objective, curved, descend
from drimed.learning.field.terms import Family
from drimed.linear.arrays import FloatArray, IntArray

RESIDUAL_SD = 1.5  # of the log of the residual variance relative to a first guess
CORRELATION_SD = 1.0  # of an off-diagonal entry of the residual's factor, relative to its diagonal
ARM_NOISE_SD = 0.5  # of the log of an arm's noise variance relative to the others
LIMIT = 12.0  # a log variance stays this near its prior's centre: 8 prior deviations
STEP = 1e-3  # of the differences of gradients that make up a Hessian
GENTLE, POLISH = 1e-3, 2  # a gradient from which so many steps of Newton, with the same curvature, lead to the mode
NUDGE = 1e-5  # of the differences that tell how the residual's shape bends


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

    @cached_property
    def _below(self) -> tuple[IntArray, IntArray]:
        row, column = np.tril_indices(self.metrics, -1)
        return row, column

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

    def gradient(self, x: FloatArray, found: Slopes) -> FloatArray:
        """Of the log likelihood, with respect to the vector: (..., p)."""
        first = found.grad_v[..., self.learned].reshape(*x.shape[:-1], -1)
        root, s = self._root(x), self._arm_scales(x)
        R = np.matmul(root, np.swapaxes(root, -1, -2))
        by_R = (found.grad_R * s[..., :, None] * s[..., None, :]).sum(-3)
        by_root = 2 * np.matmul(by_R, root)  # (..., M, M)
        log_sd = (by_root * root).sum(-1)  # a row of the factor is proportional to its diagonal
        below = self._below
        off = by_root[..., *below] * np.diagonal(root, axis1=-2, axis2=-1)[..., below[0]]
        parts = [first, 0.5 * log_sd, off]
        if self._scales:
            scaled = R[..., None, :, :] * s[..., :, None] * s[..., None, :]
            parts.append((found.grad_R * scaled).sum(-1).reshape(*x.shape[:-1], -1))
        return np.concatenate(parts, -1)

    def gradient_by_unit(self, found: Slopes, count: FloatArray) -> FloatArray:
        """The same of the variances alone, by way of each metric's unit, of `count` (M,) outcomes: (..., k)."""
        residual = 0.5 * (found.squares.sum(-1) - count) - found.grad_v.sum(-1)
        first = found.grad_v[..., self.learned]
        return np.concatenate([first.reshape(*first.shape[:-2], -1), residual], -1)

    def curvature(self, found: Slopes) -> FloatArray:
        """Second derivatives of the log likelihood, given the residual's shape: (..., k, k).

        To measure a metric in a larger unit is to scale all its variances. So the residual's derivative is that of the
        unit less those of the families.
        """
        M, S = self.metrics, found.second
        lead, learned = S.shape[:-4], self.metrics * len(self.learned)
        first = S[..., self.learned, :, :][..., self.learned].reshape(*lead, learned, learned)
        side = (np.moveaxis(found.by_unit, -3, -1) - S.sum(-1))[..., self.learned, :].reshape(*lead, learned, M)
        units, squares = found.by_unit.sum(-1), found.squares
        residual = S.sum((-3, -1)) - units - np.swapaxes(units, -1, -2)
        residual -= 0.25 * (squares + np.eye(M) * squares.sum(-1)[..., None])
        return np.block([[first, side], [np.swapaxes(side, -1, -2), residual]])

    def _root(self, x: FloatArray) -> FloatArray:
        M, at = self.metrics, self.metrics * len(self.learned)
        sd = np.exp(0.5 * x[..., at : at + M])
        root = np.zeros((*x.shape[:-1], M, M))
        root[..., np.arange(M), np.arange(M)] = sd
        below = self._below
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


def log_posterior(
    parameters: Parameters, design: Design, x: FloatArray, pair: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Minus the log of likelihood times prior, and its gradient: (..., p) -> (...), (..., p).

    `pair` (..., M) has for each metric the sum of squares of two outcomes that its residual counts besides, or 0.
    """
    return _posterior(parameters, slopes(design, parameters.variances(x), parameters.residual(x)), x, pair)


def log_posterior_curved(
    parameters: Parameters, design: Design, x: FloatArray, pair: FloatArray | None = None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The same, and its second derivatives: (..., p, p). Where the residual's shape is concerned, by differences."""
    found = slopes(design, parameters.variances(x), parameters.residual(x), curvature=True)
    value, g = _posterior(parameters, found, x, pair)
    k, p = parameters.uncertain, parameters.size
    H = np.empty((*x.shape, p))
    H[..., :k, :k] = parameters.precision[:k, :k] - parameters.curvature(found)
    if pair is not None:
        at = np.arange(k - parameters.metrics, k)
        H[..., at, at] += 0.5 * pair * np.exp(-x[..., at])
    if k < p:
        axes = NUDGE * np.eye(p)[k:].reshape(p - k, *(1,) * (x.ndim - 1), p)
        rows = np.moveaxis((log_posterior(parameters, design, x + axes, pair)[1] - g) / NUDGE, 0, -2)
        H[..., k:, :], H[..., :k, k:] = rows, np.swapaxes(rows[..., :k], -1, -2)
    return value, g, H


def _posterior(
    parameters: Parameters, found: Slopes, x: FloatArray, pair: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    off = x - parameters.centre
    pull = np.matvec(parameters.precision, off)
    value, g = -found.value + 0.5 * np.vecdot(off, pull), pull - parameters.gradient(x, found)
    if pair is not None:  # one degree of freedom
        at = slice(parameters.uncertain - parameters.metrics, parameters.uncertain)
        residual, counts = x[..., at], pair > 0
        squares = pair * np.exp(-residual)
        value = value + 0.5 * (counts * residual + squares).sum(-1)
        g[..., at] += 0.5 * (counts - squares)
    return value, g


def learn(
    parameters: Parameters, design: Design, batch: tuple[int, ...], curvature: str = "exact",
    pair: FloatArray | None = None,
) -> Learned:  # fmt: skip
    """The most plausible parameters of each member."""
    members = int(np.prod(batch))
    flat = _flatten(design, batch, members)
    besides = None if pair is None else pair.reshape(members, parameters.metrics)
    tell = log_posterior_curved if curvature == "exact" else log_posterior

    def objective(x: FloatArray, which: IntArray) -> Found:
        if len(which) == members:
            return tell(parameters, flat, x, besides)
        return tell(parameters, _choose(flat, which), x, None if besides is None else besides[which])

    p, everyone = parameters.size, np.arange(members)
    x = np.repeat(parameters.centre[None], members, 0)
    bounds = parameters.centre - LIMIT, parameters.centre + LIMIT
    inverse = None if curvature == "exact" else np.repeat(np.eye(p)[None], members, 0)
    x, (_, g, *known) = descend(objective, x, bounds, GENTLE, inverse)
    H = curved(known[0] if known else _differences(objective, x, everyone))
    for left in range(POLISH, 0, -1):
        x = np.clip(x - np.clip(np.linalg.solve(H, g[..., None])[..., 0], -0.1, 0.1), *bounds)
        g = log_posterior(parameters, flat, x, besides)[1] if left > 1 else g
    return Learned(x.reshape(*batch, p), H.reshape(*batch, p, p))


def _differences(objective: Objective, x: FloatArray, everyone: IntArray) -> FloatArray:
    """Of gradients: what trials of earlier forms take for the curvature."""
    H = np.empty((*x.shape, x.shape[-1]))
    for k, step in enumerate(STEP * np.eye(x.shape[-1])):
        H[..., k, :] = (objective(x + step, everyone)[1] - objective(x - step, everyone)[1]) / (2 * STEP)
    return H


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
