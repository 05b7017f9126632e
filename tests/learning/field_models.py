"""Small field models with data, and the same fits by brute force: the full covariance matrix of all outcomes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drimed.learning.field import cells as field_cells
from drimed.learning.field import design as field_design
from drimed.learning.field.cells import FACTORS, Cells
from drimed.learning.field.design import Scale
from drimed.learning.field.likelihood import Design
from drimed.learning.field.model import Field, FieldState
from drimed.learning.field.terms import Family, Sizes, field_families, people_families
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

SIZES = Sizes(season=6, block=4, group=4, user=5, arm=3)
LEVEL = 100.0  # flat enough, and small enough for brute force to keep its digits


@dataclass(frozen=True)
class Data:
    """Outcomes as they are told."""

    keys: IntArray
    y: FloatArray
    z: FloatArray
    observed: BoolArray

    def part(self, index: IntArray) -> Data:
        return Data(self.keys[index], self.y[index], self.z[index], self.observed[index])


MODELS: dict[str, dict[str, Any]] = {
    "one metric": {"metrics": 1, "covariates": 0},
    "two metrics, one covariate, noise by arm": {"metrics": 2, "covariates": 1, "noise": "arm"},
    "users": {"metrics": 2, "covariates": 2, "cluster": "user", "reference": 0},
}


def model(name: str) -> Field:
    settings = MODELS[name]
    c = range(settings["covariates"])
    families = people_families(c, c) if settings.get("cluster") == "user" else field_families(c, c)
    return Field(sizes=SIZES, families=_levelled(families), **settings)


def data(field: Field, n: int = 40, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    keys = np.stack([rng.integers(0, getattr(SIZES, name), n) for name in FACTORS], -1)
    y = 5 * rng.normal(size=(n, field.metrics)) + 3 * keys[:, -1:] + 100
    observed = rng.random((n, field.metrics)) < 0.8
    observed[:, 0] |= ~observed.any(1)
    return Data(keys, y, rng.normal(size=(n, field.covariates)), observed)


def told(field: Field, d: Data) -> FieldState:
    return field.observe(field.init(), field.rows(d.keys, d.y, d.z, d.observed))


def designed(field: Field, state: FieldState) -> tuple[Cells, Scale, Design]:
    cells = field_cells.compact(state.cells, FACTORS.index(field.cluster))
    scale = field_design.measure(cells, field.covariates)
    c, by_arm = field.covariates, field.noise == "arm"
    return cells, scale, field_design.build(cells, scale, field.common, field.own, covariates=c, by_arm=by_arm)


def by_brute_force(
    field: Field, d: Data, scale: Scale, v: FloatArray, R: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Log likelihood, posterior mean and covariance of theta, from the covariance of all outcomes at once."""
    c, M, n = field.covariates, field.metrics, len(d.y)
    z = (d.z - scale.centre[:c]) / scale.unit[:c]
    y = (d.y - scale.centre[c:]) / scale.unit[c:]
    X, own = field.common.rows(d.keys, z), field.own.rows(d.keys, z)
    cluster = d.keys[:, FACTORS.index(field.cluster)]
    P = X.shape[1]
    C, rows, prior = np.zeros((n, M, n, M)), np.zeros((n, M, M, P)), np.zeros((M, P))
    for m in range(M):
        prior[m] = v[m, field.common.family]
        C[:, m, :, m] += (X * prior[m]) @ X.T
        C[:, m, :, m] += ((own * v[m, field.own.family]) @ own.T) * (cluster[:, None] == cluster)
        rows[:, m, m] = X
    group = d.keys[:, FACTORS.index("arm")] if field.noise == "arm" else np.zeros(n, np.intp)
    for i in range(n):
        C[i, :, i] += R[group[i]]
    seen = d.observed.ravel()
    C_seen = C.reshape(n * M, n * M)[np.ix_(seen, seen)]
    A, b, L = rows.reshape(n * M, M * P)[seen], y.ravel()[seen], prior.ravel()
    inverse = np.linalg.inv(C_seen)
    value = -0.5 * (len(b) * np.log(2 * np.pi) + np.linalg.slogdet(C_seen)[1] + b @ inverse @ b)
    mean = (L[:, None] * A.T) @ inverse @ b
    covariance = np.diag(L) - (L[:, None] * A.T) @ inverse @ (A * L)
    return float(value), mean.reshape(M, P), covariance.reshape(M, P, M, P)


def _levelled(families: tuple[Family, ...]) -> tuple[Family, ...]:
    return tuple(replace(f, variance=LEVEL) if f.name == "level" else f for f in families)
