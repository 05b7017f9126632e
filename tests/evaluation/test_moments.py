from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.errors import ShapeError
from drimed.evaluation.intervals import Moments
from drimed.linear.arrays import FloatArray

ROWS = st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1.0, 1.0)), min_size=1, max_size=30)


def columns(rows: list[tuple[float, float]]) -> list[FloatArray]:
    return list(np.array(rows).T)


@given(rows=ROWS, cut=st.integers(0, 30), far=st.sampled_from([0.0, 1e6]))
def test_pieces_merge_to_the_whole_also_far_from_zero(rows: list[tuple[float, float]], cut: int, far: float) -> None:
    whole = [c + far for c in columns(rows)]
    merged = Moments.of([c[:cut] for c in whole]).merge(Moments.of([c[cut:] for c in whole]))
    expected = Moments.of(whole)
    assert merged.count == expected.count
    np.testing.assert_allclose(merged.mean, expected.mean, rtol=1e-13, atol=1e-10)
    np.testing.assert_allclose(merged.scatter, expected.scatter, rtol=1e-9, atol=1e-9 * max(far, 1.0))


@given(rows=ROWS)
def test_covariance_is_that_of_numpy(rows: list[tuple[float, float]]) -> None:
    found = Moments.of(columns(rows)).covariance
    if len(rows) > 1:
        np.testing.assert_allclose(found, np.cov(np.array(rows).T), rtol=1e-9, atol=1e-9)
    else:
        assert (found == 0).all()


def test_other_columns_do_not_merge() -> None:
    with pytest.raises(ShapeError, match="1 and 2 columns"):
        Moments.of([np.ones(3)]).merge(Moments.of([np.ones(3)] * 2))
