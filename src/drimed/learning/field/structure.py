"""The columns and parameters of a field model for the groups, users, blocks and levels that were seen so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np

from drimed.errors import ConfigError
from drimed.learning.field.cells import FACTORS
from drimed.learning.field.likelihood import Slopes
from drimed.learning.field.terms import Family, Layout, NoiseGroups
from drimed.linear.arrays import FloatArray, IntArray

CLUSTERS = ("season", "user")
RESIDUAL_SD = 1.5  # of the log of the residual variance relative to a first guess
CORRELATION_SD = 1.0  # of an off-diagonal entry of the residual's factor, relative to its diagonal
ARM_NOISE_SD = 0.5  # of the log of an arm's noise variance relative to the others


@final
@dataclass(frozen=True)
class Structure:
    """How outcomes become columns; everything a fit needs besides the data."""

    families: tuple[Family, ...]
    factors: tuple[str, ...]
    sizes: tuple[int, ...]  # of the factors
    cluster: str  # what is many and is eliminated: seasons or users
    covariates: int
    noise: NoiseGroups
    ranges: tuple[tuple[float, float], ...]  # of the metrics, infinite where one has none
    reference: int | None = None  # an arm that the effects of the others are measured against; None: all alike
    alone: bool = False  # some users are in a group, and others in none

    def __post_init__(self) -> None:
        if self.cluster not in CLUSTERS:
            raise ConfigError(f"cluster must be one of {CLUSTERS}, got {self.cluster!r}")
        most = max((c for f in self.families for c in f.slopes or ()), default=-1)
        if most >= self.covariates:
            raise ConfigError(f"a family uses covariate {most}; there are {self.covariates}, numbered from 0")
        if len(self.ranges) != self.metrics:
            raise ConfigError(
                f"ranges must have two ends for each of {self.metrics} metrics, got {len(self.ranges)} pairs"
            )
        both = [f.name for f in self.families if {"season", "user"} <= set(f.by)]
        if both:
            raise ConfigError(f"family {both[0]!r} crosses seasons with users; only one of them can be eliminated")

    @property
    def metrics(self) -> int:
        """M."""
        return self.noise.metrics

    @property
    def arms(self) -> int:
        """K."""
        return self.sizes[FACTORS.index("arm")]

    @property
    def cluster_place(self) -> int:
        """The number of the cluster's factor."""
        return self.factors.index(self.cluster)

    @cached_property
    def common(self) -> Layout:
        """The columns of theta."""
        return self._layout(own=False)

    @cached_property
    def own(self) -> Layout:
        """The columns of a cluster's own effects."""
        return self._layout(own=True)

    @cached_property
    def parameters(self) -> Parameters:
        """What is learned besides theta."""
        used = set(self.common.members) | set(self.own.members)
        families = tuple(
            f if k in used or f.variance is not None else replace(f, variance=0.0) for k, f in enumerate(self.families)
        )
        return Parameters(families, self.metrics, self.noise.count)

    def _layout(self, *, own: bool) -> Layout:
        return Layout(self.families, self.factors, self.cluster, self.sizes, self.reference, own, self.alone)


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
