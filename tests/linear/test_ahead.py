from __future__ import annotations

import numpy as np

from drimed.linear import forms, ridge
from drimed.linear.ridge import BLOCK, one_step_ahead


def test_each_outcome_is_predicted_from_those_before_it() -> None:
    rng = np.random.default_rng(1)
    n, m, d, penalty = BLOCK + 50, 2, 5, 1e-4
    Z, w, X = rng.normal(size=(n, m, d)), rng.normal(size=(n, m)), rng.normal(size=(n, m, d))
    mean, leverage = one_step_ahead(penalty, Z, w, X)
    state = ridge.init(d, penalty)
    for t in range(n):
        np.testing.assert_allclose(mean[t], X[t] @ state.theta, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(leverage[t], forms.leverages(X[t], state.V_inv), rtol=1e-6)
        state = ridge.observe(state, Z[t], w[t], penalty)
