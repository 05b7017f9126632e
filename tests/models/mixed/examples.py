"""Small field models with data, and the same fits by brute force: the full covariance matrix of all outcomes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from drimed.models.mixed import variance_components
from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.mixed.likelihood import Design
from drimed.models.mixed.observations import Scale, make_design, measure
from drimed.models.mixed.prediction import Belief
from drimed.models.mixed.terms import FACTORS, Structure
from drimed.models.offer import Offer, Outcome, Shape, Unit
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray

SIZES = {"season": 6, "block": 3, "group": 4, "member": 2, "user": 5, "arm": 3}
LEVEL = 100.0  # flat enough, and small enough for brute force to keep its digits
METRICS = {
    "one metric": 1, "two metrics, one covariate, noise by arm": 2, "users": 2, "some in no group": 1,
    "everything": 1, "sites eliminated": 2,
}  # fmt: skip
MODELS: dict[str, Field] = {
    "one metric": Field(),
    "two metrics, one covariate, noise by arm": Field(covariates=1, noise="arm"),
    "users": Field(kind="people", covariates=2, reference=0),
    "some in no group": Field(kind="people", covariates=1),
    "everything": Field(covariates=("level noise",), categories=("level effects",), attributes=1, discount=0.8),
    "sites eliminated": Field(covariates=1, promise="alike"),
}


@dataclass(frozen=True)
class Data:
    """Outcomes as they are told."""

    keys: IntArray  # (n, 7), factors; noise is left to the learner
    levels: IntArray  # (n, 1)
    y: FloatArray
    z: FloatArray
    observed: BoolArray

    def part(self, index: Any) -> Data:
        return Data(self.keys[index], self.levels[index], self.y[index], self.z[index], self.observed[index])

    def of(self, name: str) -> IntArray:
        return self.keys[:, FACTORS.index(name)]


def data(name: str, n: int = 40, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    keys = np.stack([rng.integers(0, SIZES.get(f, 1), n) for f in FACTORS], -1)
    keys[:5, FACTORS.index("user")] = np.arange(5)
    keys[:4, FACTORS.index("group")] = np.arange(4)
    keys[:3, FACTORS.index("block")] = np.arange(3)
    keys[:6, FACTORS.index("season")] = np.arange(6)
    if name == "some in no group":  # one of them is in a group of several, and two are in none
        keys[:, FACTORS.index("group")] = np.array([0, -1, 1, 0, -1])[keys[:, FACTORS.index("user")]]
    M = METRICS[name]
    y = 5 * rng.normal(size=(n, M)) + 3 * keys[:, FACTORS.index("arm"), None] + 100
    observed = rng.random((n, M)) < 0.8
    observed[:, 0] |= ~observed.any(1)
    return Data(keys, rng.integers(0, 3, (n, 1)), y, rng.normal(size=(n, 2)), observed)


def offer_of(field: Field, unit: Unit) -> Offer:
    c = len(field.features.covariates)
    unit = replace(unit, covariates=None if unit.covariates is None else unit.covariates[..., :c])
    attributes = np.array([[-1.0], [0.2], [0.8]]) if field.attributes else None
    return Offer(features=np.eye(3), control=np.eye(3)[0], unit=unit, attributes=attributes)


def at_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits that integrate over nothing: the most plausible variances are the only node."""

    def one_node(metrics: int, each: int) -> FloatArray:
        return np.zeros((1, metrics * (each + 1)))

    monkeypatch.setattr(variance_components, "designed_nodes", one_node)


def started(name: str, field: Field | None = None) -> tuple[Field, FieldEvidence]:
    field = field or MODELS[name]
    shape = Shape(d=3, K=3, M=METRICS[name], H=5)
    return field, field.start(shape, episodes=SIZES["season"])


def told(field: Field, evidence: FieldEvidence, d: Data, *, forget: bool = False) -> FieldEvidence:
    for i in range(len(d.y)):
        one = d.part(slice(i, i + 1))
        places = {name: one.of(name) for name in ("user", "group", "member", "block")}
        unit = Unit(**places, levels=one.levels, covariates=one.z)
        change = field.remove if forget else field.add
        late = evidence.season - int(one.of("season")[0])
        outcome = Outcome(vector=one.y, observed=one.observed)
        evidence = change(evidence, offer_of(field, unit), one.of("arm"), outcome, late)
    return evidence


def asked(field: Field, evidence: FieldEvidence, groups: tuple[int, ...] = (0, 1, 2, 3)) -> Belief:
    """The belief about users 0, 1, ... of these groups."""
    n = len(groups)
    unit = Unit(
        user=np.arange(n), group=np.array(groups), levels=np.ones((n, 1), np.intp), covariates=np.full((n, 2), 0.3)
    )
    return field.beliefs(evidence, offer_of(field, unit))


def designed(field: Field, evidence: FieldEvidence) -> tuple[Structure, Scale, Design]:
    """The structure with a level that brute force can bear, and the design."""
    structure = field.structure(evidence, evidence.seen)
    families = tuple(replace(f, variance=LEVEL) if f.name == "level" else f for f in structure.families)
    structure = replace(structure, families=families)
    cells = evidence.cells.compact(structure.cluster_place)
    scale = measure(cells, structure)
    return structure, scale, make_design(structure, cells, scale, field.discount)


def by_brute_force(
    structure: Structure, evidence: FieldEvidence, scale: Scale, v: FloatArray, R: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Log likelihood, posterior mean and covariance of theta, from the covariance of all outcomes at once."""
    cells = evidence.cells.live()  # one for each outcome: nothing was merged yet
    c, M, n = structure.covariates, structure.metrics, cells.used
    z = (cells.mean[:, :c] - scale.centre[:c]) / scale.unit[:c]
    y = (cells.mean[:, c:] - scale.centre[c:]) / scale.unit[c:]
    X, own = structure.common.rows(cells.keys, z), structure.own.rows(cells.keys, z)
    cluster = cells.keys[:, structure.cluster_place]
    P = X.shape[1]
    C, rows, prior = np.zeros((n, M, n, M)), np.zeros((n, M, M, P)), np.zeros((M, P))
    for m in range(M):
        prior[m] = v[m, structure.common.family]
        C[:, m, :, m] += (X * prior[m]) @ X.T
        C[:, m, :, m] += ((own * v[m, structure.own.family]) @ own.T) * (cluster[:, None] == cluster)
        rows[:, m, m] = X
    group = structure.noise_group(cells.keys)
    for i in range(n):
        C[i, :, i] += R[group[i]]
    seen = ((cells.pattern[:, None] >> np.arange(M)) & 1).astype(bool).ravel()
    C_seen = C.reshape(n * M, n * M)[np.ix_(seen, seen)]
    A, b, L = rows.reshape(n * M, M * P)[seen], y.ravel()[seen], prior.ravel()
    inverse = np.linalg.inv(C_seen)
    value = -0.5 * (len(b) * np.log(2 * np.pi) + np.linalg.slogdet(C_seen)[1] + b @ inverse @ b)
    mean = (L[:, None] * A.T) @ inverse @ b
    covariance = np.diag(L) - (L[:, None] * A.T) @ inverse @ (A * L)
    return float(value), mean.reshape(M, P), covariance.reshape(M, P, M, P)
