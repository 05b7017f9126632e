from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.competitors.spanner_igw import SpannerIGW, inverse_gap, spanner
from drimed.numerics.arrays import FloatArray
from drimed.policies.rules.base import Ask
from tests.examples import ARMS, r1_fit, r1_offer
from tests.strategies import arms, masks

TEN = SpannerIGW(eta=10.0)
AUTHORS = SpannerIGW(eta=10.0, variant="authors")
FIRST_TWO = np.array([True, True, False])


def coefficients(x: FloatArray, q: FloatArray) -> FloatArray:
    """Every arm in terms of the spanner: (K, r)."""
    return np.asarray(np.linalg.lstsq(x[q > 0].T, x.T, rcond=None)[0].T, np.float64)


def test_without_the_third_arm_the_running_example_has_the_worked_probabilities() -> None:
    np.testing.assert_allclose(
        TEN.propose(r1_fit(), r1_offer(), Ask(mask=FIRST_TWO)), [0.947822, 0.052178, 0.0], atol=5e-7
    )
    np.testing.assert_allclose(
        AUTHORS.propose(r1_fit(), r1_offer(), Ask(mask=FIRST_TWO)), [6 / 7, 1 / 7, 0.0], atol=1e-15
    )


def test_the_spanner_is_of_the_shortened_arms() -> None:
    """e2 / sqrt 5 reaches .447 from e1, (.6, .8) / sqrt 2.2 reaches .539: the third arm is in the spanner."""
    np.testing.assert_allclose(spanner(ARMS)[0], [0.5, 0.5, 0.0])
    # .75 / l + .25 / (l + 1.2) = 1, that is l^2 + .2 l - .9 = 0.
    root = (-0.2 + np.sqrt(3.64)) / 2
    p = TEN.propose(r1_fit(), r1_offer(), Ask())
    np.testing.assert_allclose(p, [0.75 / root, 0.0, 0.25 / (root + 1.2)], atol=1e-14)
    np.testing.assert_allclose(p, [0.878283, 0.0, 0.121717], atol=5e-7)
    # 1 / (1 + 2 + 1.2) for the third, the rest for the leader.
    np.testing.assert_allclose(AUTHORS.propose(r1_fit(), r1_offer(), Ask()), [3.2 / 4.2, 0.0, 1 / 4.2], atol=1e-15)


def test_the_schedule_is_the_one_of_the_comparison() -> None:
    # sqrt(4 * 2 * 100 / (2 log 100 + 32 log 200)) / (4 * 2)
    assert SpannerIGW().sharpness(100, 2) == pytest.approx(0.264438, abs=5e-7)
    assert SpannerIGW().sharpness(1, 2) == pytest.approx(np.sqrt(8 / (32 * np.log(200))) / 8)
    grows = [SpannerIGW().sharpness(n, 4) for n in (1, 10, 100, 1000)]
    assert grows == sorted(grows)
    early, late = (SpannerIGW().propose(r1_fit(round=n), r1_offer(), Ask()) for n in (1, 10_000))
    assert late[0] > early[0]


def growing_coefficients(n: int, c: float) -> FloatArray:
    """Kahan's columns, and one arm that a greedy choice leaves out although its coefficients exceed 2."""
    s = np.sqrt(1 - c * c)
    upper = np.diag(s ** np.arange(n)) @ (np.eye(n) - c * np.triu(np.ones((n, n)), 1))
    upper *= (1 - 1e-6 * np.arange(n))[None, :]  # the greedy order is the one of the columns
    left = upper[:, -1].copy()
    left[-1] *= 0.5
    return np.vstack([upper.T, left])


def test_swaps_bring_every_coefficient_down_to_two() -> None:
    x = growing_coefficients(7, 0.65)
    assert np.abs(np.linalg.solve(x[:7].T, x[7])).max() > 2
    q, rank = spanner(x)
    assert int(rank) == 7
    assert np.abs(coefficients(x, q)).max() <= 2 + 1e-9
    assert q[7] > 0


def test_fewer_arms_than_features_span_what_they_span() -> None:
    q, rank = spanner(np.array([[1.0, 0.0, 0.0], [0.5, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    assert int(rank) == 2
    assert q.tolist() == [0.5, 0.0, 0.5]


@given(data=st.data())
def test_every_arm_is_a_short_combination_of_the_spanner(data: st.DataObject) -> None:
    x = data.draw(arms())
    mask = data.draw(masks(len(x)))
    q, rank = spanner(x * 10.0 ** data.draw(st.floats(-8.0, 8.0)), mask)
    held = x if mask is None else x[mask]
    if mask is not None:
        assert not q[~mask].any()
    assert q.sum() == pytest.approx(1.0)
    assert int(rank) <= np.linalg.matrix_rank(held, tol=1e-12)
    if int(rank) > 0:
        assert (q > 0).sum() == int(rank)
        c = np.linalg.lstsq(x[q > 0].T, held.T, rcond=None)[0].T
        assert np.abs(c).max() <= 2 + 1e-5
        np.testing.assert_allclose(c @ x[q > 0], held, atol=1e-5)


@given(
    shares=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6),
    gaps=st.lists(st.floats(0.0, 1e12), min_size=6, max_size=6),
)
def test_the_root_is_in_its_bracket_and_solves_the_equation(shares: list[float], gaps: list[float]) -> None:
    q = 0.5 * (np.array(shares) / sum(shares) if sum(shares) > 1e-6 else np.eye(len(shares))[0])
    q[0] += 0.5
    gap = np.array([0.0, *gaps])[: len(q)]
    p, root = inverse_gap(q, gap)
    assert 0.5 <= root <= 1
    assert (q / (root + gap)).sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(p, q / (root + gap), atol=1e-12)
