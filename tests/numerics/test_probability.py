from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.numerics import probability
from drimed.numerics.arrays import FloatArray

LOG_WEIGHTS = st.floats(-1e300, 0.0) | st.sampled_from([0.0, -1.0, -745.0, -1e4])


@st.composite
def distributions(draw: st.DrawFn) -> FloatArray:
    """(K,), with zeros and tiny masses; sums to 1 up to round-off."""
    parts = draw(
        st.lists(st.sampled_from([0.0, 1e-300, 1e-12, 0.1, 1.0]) | st.floats(0.0, 1.0), min_size=1, max_size=8)
    )
    parts[draw(st.integers(0, len(parts) - 1))] = 1.0
    p = np.array(parts)
    return p / p.sum()


def test_ties_go_to_the_lowest_allowed_index() -> None:
    values = np.array([3.0, 3.0, 1.0, 1.0])
    assert int(probability.best(values)) == 0
    mask = np.array([False, True, False, True])
    assert int(probability.best(values, mask)) == 1


@given(q=distributions(), data=st.data())
def test_weighted_is_a_distribution_on_the_support_of_q(q: FloatArray, data: st.DataObject) -> None:
    log_weight = np.array(data.draw(st.lists(LOG_WEIGHTS, min_size=len(q), max_size=len(q))))
    p = probability.weighted(q, log_weight)
    assert (p >= 0).all()
    assert p.sum() == pytest.approx(1.0, abs=1e-14)
    assert not p[q == 0].any()
    # Whoever has mass and the largest weight keeps mass.
    assert p[np.where(q > 0, log_weight, -np.inf).argmax()] > 0


@given(q=distributions(), shift=st.floats(-1e6, 1e6), data=st.data())
def test_a_common_shift_of_the_log_weights_changes_nothing(q: FloatArray, shift: float, data: st.DataObject) -> None:
    log_weight = np.array(data.draw(st.lists(st.floats(-30.0, 0.0), min_size=len(q), max_size=len(q))))
    # The shift itself rounds the weights to a few units of 1e6 eps.
    np.testing.assert_allclose(
        probability.weighted(q, log_weight + shift), probability.weighted(q, log_weight), rtol=1e-8, atol=1e-300
    )


@given(p=distributions(), u=st.floats(0.0, 1.0, exclude_max=True) | st.sampled_from([0.0, 1.0 - 2.0**-53]))
def test_sample_returns_the_arm_whose_interval_holds_the_draw(p: FloatArray, u: float) -> None:
    arm = int(probability.sample(p, np.asarray(u)))
    assert p[arm] > 0
    assert p[:arm].sum() <= u + 1e-14
    assert u < p[: arm + 1].sum() + 1e-14
