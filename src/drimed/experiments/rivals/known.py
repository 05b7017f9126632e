"""The field model told every variance: what learning them costs is measured against it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import numpy as np

from drimed.environments.field import RANGE, Deviations
from drimed.learning.field import average, cells, design
from drimed.learning.field.learner import Field, FieldEvidence
from drimed.learning.field.model import Belief
from drimed.learning.field.structure import Parameters
from drimed.learning.offer import Offer, Outcome, Seen, Shape
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

LEAST_VARIANCE = 1e-12  # relative to the residual's: a family of variance 0 on a log scale

# What the deviations of a field are called there, by the family of the model that has them.
DEVIATIONS = {
    "arm": "arm",
    "group": "site",
    "group x arm": "site_arm",
    "season": "season",
    "season x group": "block",
    "season x arm": "season_arm",
}


@final
@dataclass(frozen=True)
class Known:
    """The field model with variances that nobody has to learn."""

    deviations: Deviations
    correlation: float  # of the noise of two metrics
    from_start: bool = True  # or only after the first outcomes, before which no learner can know their scale
    inner: Field = field(default_factory=Field)

    feedback: ClassVar[str] = Field.feedback
    weighting: ClassVar[str] = Field.weighting
    noise_bound: ClassVar[float] = Field.noise_bound
    keeps_features: ClassVar[bool] = False
    balances: ClassVar[bool] = True
    discount: ClassVar[float] = 1.0
    about: ClassVar[str] = "field model, known variances"

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> FieldEvidence:
        """No outcomes."""
        return self._fitted(self.inner.start(shape, batch, episodes))

    def age(self, evidence: FieldEvidence) -> FieldEvidence:
        """A new season."""
        return self.inner.age(evidence)

    def add(
        self, evidence: FieldEvidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> FieldEvidence:
        """Learn."""
        return self.inner.add(evidence, offer, action, outcome, late)

    def remove(
        self, evidence: FieldEvidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> FieldEvidence:
        """Take back."""
        return self.inner.remove(evidence, offer, action, outcome, late)

    def ready(self, evidence: FieldEvidence) -> FieldEvidence:
        """All outcomes so far."""
        return evidence if evidence.stepped == evidence.cells.used else self._fitted(evidence)

    def see(self, evidence: FieldEvidence, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        """What rule and guard see."""
        return self.inner.see(self.ready(evidence), offer, pulls, round)

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """Whether such outcomes can be used."""
        return self.inner.usable(observed, preference)

    def lost_digits(self, before: FieldEvidence, after: FieldEvidence) -> bool:
        """Whether `remove` left round-off."""
        return self.inner.lost_digits(before, after)

    def theta(self, evidence: FieldEvidence) -> FloatArray:
        """What is common to all."""
        return self.inner.theta(self.ready(evidence))

    def coefficients(self, shape: Shape) -> int:
        """The length of a fit's theta."""
        return self.inner.coefficients(shape)

    def beliefs(self, evidence: FieldEvidence, offer: Offer) -> Belief:
        """Mean outcomes for the users of an offer."""
        return self.inner.beliefs(self.ready(evidence), offer)

    def _fitted(self, evidence: FieldEvidence) -> FieldEvidence:
        structure = self.inner.structure(replace(evidence, sizes=evidence.seen))
        held = cells.compact(evidence.cells, structure.cluster_place)
        scale = design.measure(held, structure.covariates, structure.ranges)
        unit = np.full(scale.unit.shape, self.deviations.residual / RANGE)
        told_now = np.ones(scale.known.shape) if self.from_start or held.used else scale.known
        scale = replace(scale, unit=unit, known=told_now)
        rows = design.build(held, scale, structure.common, structure.own, noise=structure.noise)
        known = structure.parameters
        x = np.broadcast_to(self.parameters(known), (*held.batch, known.size))
        told = average.before_any_data(known, structure.common.family, scale, held.batch, integrated=False, each=False)
        told = replace(told, mode=x, deviation=np.zeros(x.shape), nodes=x[..., None, :])
        learned = average.again(known, rows, told)
        return replace(evidence, cells=held, learned=learned, sizes=evidence.seen, fitted=held.used, stepped=held.used)

    def parameters(self, parameters: Parameters) -> FloatArray:
        """The true variances as the model's parameters: (p,)."""
        d, M = self.deviations, parameters.metrics
        known = {family: getattr(d, name) for family, name in DEVIATIONS.items()}
        shares = [(known[parameters.families[k].name] / d.residual) ** 2 for k in parameters.learned]
        root = np.linalg.cholesky(np.eye(M) * (1 - self.correlation) + self.correlation)
        sds, below = np.diagonal(root), np.tril_indices(M, -1)
        logs = np.log(np.maximum(shares, LEAST_VARIANCE))
        return np.concatenate([*[logs] * M, 2 * np.log(sds), root[below] / sds[below[0]]])
