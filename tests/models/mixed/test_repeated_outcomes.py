"""Outcomes that repeat exactly leave covariances that are nearly singular: they stay usable, or the error says why."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.errors import NumericalError
from drimed.models.mixed.learner import Field
from drimed.models.offer import Offer, Outcome, Shape, Unit
from drimed.numerics.arrays import inverse_root, log_determinant

K, M = 3, 2


@pytest.mark.parametrize("kind", ["field", "people"])
@pytest.mark.parametrize("n", [40, 2000])
def test_a_belief_from_outcomes_that_repeat_has_a_root(kind: str, n: int) -> None:
    rng = np.random.default_rng(0)
    values, arm = rng.normal(size=(K, M)), rng.choice(K, n, p=[0.98, 0.01, 0.01])
    learner, shape = Field(kind=kind), Shape(d=K, K=K, M=M, H=1)
    of_all = Unit(user=np.zeros(n, np.intp), group=np.zeros(n, np.intp))
    offer = Offer(features=np.eye(K), control=np.eye(K)[0], preference=np.full(M, 1 / M), unit=of_all)
    evidence = learner.add(learner.age(learner.start(shape)), offer, arm, Outcome(vector=values[arm]))
    one = Offer(
        features=np.eye(K),
        control=np.eye(K)[0],
        preference=np.full(M, 1 / M),
        unit=Unit(user=np.zeros(1, np.intp), group=np.zeros(1, np.intp)),
    )
    fit = learner.see(evidence, one, np.ones(K), 1).fit
    root = np.linalg.cholesky(fit.V_inv)[0]
    np.testing.assert_allclose(root @ root.T, fit.V_inv[0], atol=1e-12 * np.abs(fit.V_inv).max())
    assert np.isfinite(fit.radius).all()


def test_what_cannot_be_factored_is_an_error_with_words() -> None:
    negative, lost = np.diag([1.0, -1e-3]), np.full((2, 2), np.nan)
    for root in (log_determinant, inverse_root):
        for matrix in (negative, lost):
            with pytest.raises(NumericalError, match="the covariance is not positive definite any more"):
                root(matrix, "the covariance")
