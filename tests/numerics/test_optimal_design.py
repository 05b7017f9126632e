from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.numerics import optimal_design as designs
from drimed.numerics.arrays import FloatArray
from tests.examples import ARMS
from tests.strategies import arms, design_leverages, masks

CORNERS = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])


def worst(W: FloatArray, q: FloatArray) -> float:
    """g(q)."""
    return float(design_leverages(W, q).max())


def rank_of(W: FloatArray) -> int:
    return int(np.linalg.matrix_rank(W))


def pulls_behind(q: FloatArray) -> int:
    """The least number of pulls of which q can be the shares."""
    return next(n for n in range(1, 1000) if np.allclose(q * n, (q * n).round(), atol=1e-9))


def well_separated(W: FloatArray) -> bool:
    """Whether the rank of W is beyond doubt, and its directions are of comparable size."""
    s = np.linalg.svd(W, compute_uv=False)
    return bool(((s > 1e-3 * s[0]) | (s < 1e-14 * s[0])).all())


def test_uniform_on_the_running_example_has_its_worked_leverages() -> None:
    q = designs.approx(ARMS)  # K = 3 <= 2 r: uniform
    np.testing.assert_allclose(q, [1 / 3] * 3)
    np.testing.assert_allclose(design_leverages(ARMS, q), [2.46, 2.04, 1.5], atol=5e-13)
    # The same numbers for the sum of the arms instead of their mean.
    np.testing.assert_allclose(design_leverages(ARMS, np.ones(3)), [0.82, 0.68, 0.5], atol=5e-13)


def test_the_arm_that_is_added_is_the_arm_that_is_counted() -> None:
    """The published routine counts the next arm instead: [3, 5, 6, 9, 9] on this example."""
    q = designs.approx(np.random.default_rng(7).standard_normal((12, 2)))
    np.testing.assert_allclose(q[[3, 5, 6, 9, 10]], 0.2)
    assert np.count_nonzero(q) == 5


@pytest.mark.parametrize("d", [1, 2, 3, 5, 8])
def test_as_many_independent_arms_as_features_are_played_equally(d: int) -> None:
    W = np.random.default_rng(d).standard_normal((d, d))
    q = designs.approx(W)
    np.testing.assert_allclose(q, 1 / d, rtol=1e-12)
    np.testing.assert_allclose(design_leverages(W, q), d, rtol=1e-8)


@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e-6, 1.0, 1e6, 1e100])
def test_a_common_scale_does_not_matter(scale: float) -> None:
    W = np.random.default_rng(0).standard_normal((9, 3))
    np.testing.assert_allclose(designs.approx(scale * W), designs.approx(W), atol=1e-12)


@given(W=arms(), data=st.data())
def test_every_design_is_a_distribution_over_the_allowed_arms(W: FloatArray, data: st.DataObject) -> None:
    mask = data.draw(masks(len(W)))
    scaled = W * 10.0 ** data.draw(st.floats(-100.0, 100.0))
    q = designs.approx(scaled, mask)
    assert q.shape == W.shape[:1]
    assert (q >= 0).all()
    assert q.sum() == pytest.approx(1.0, abs=1e-12)
    if mask is not None:
        assert not q[~mask].any()


@given(W=arms(), data=st.data())
def test_designs_keep_their_promise(W: FloatArray, data: st.DataObject) -> None:
    """The mean leverage is the rank; the cover has g at most its number of pulls."""
    mask = data.draw(masks(len(W)))
    allowed = np.ones(len(W), bool) if mask is None else mask
    kept = W[allowed]
    if not well_separated(kept) or not kept.any():
        return
    r = rank_of(kept)
    q = designs.approx(W, mask)[allowed]
    assert q @ design_leverages(kept, q) == pytest.approx(r, rel=1e-6)
    assert worst(kept, q) <= pulls_behind(q) * (1 + 1e-6)


def test_an_arm_that_alone_covers_a_direction_is_pulled_once() -> None:
    """Its leverage is exactly 1 in any basis; round-off above 1 must not add pulls."""
    W = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -0.5], [0.0, 0.3], [0.0, 0.2]])
    for angle in np.linspace(0, 6, 60):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        q = designs.approx(W @ turn)
        assert q[0] == pytest.approx(1 / pulls_behind(q))


def test_zero_arms_are_played_equally() -> None:
    assert designs.approx(np.zeros((4, 2))).tolist() == [0.25] * 4


def test_a_masked_arm_leaves_the_design_of_the_others() -> None:
    W = np.random.default_rng(5).standard_normal((8, 3))
    mask = np.array([True, True, False, True, True, False, True, True])
    q = designs.approx(W, mask)
    assert not q[~mask].any()
    np.testing.assert_allclose(q[mask], designs.approx(W[mask]), atol=1e-12)


LENGTHS = [30, 1e-5, 1e-5, 2e-7, 3e-8, 2e-8, 1e-8, 1e-8, 5e-11, 4e-13, 1e-15, 4e-16, 4e-16, 2e-17, 2e-18, 1e-18, 1e-21]


def test_arms_of_all_lengths_get_a_cover() -> None:
    """As the published algorithm weighs a thousand arms. Without a basis of arms, one seed in fifteen was singular."""
    for seed in range(300):
        W = np.random.default_rng(seed).standard_normal((17, 8))
        W *= np.array(LENGTHS)[:, None] / np.linalg.norm(W, axis=1, keepdims=True)
        q = designs.approx(W)
        assert np.isfinite(q).all()
        assert q.sum() == pytest.approx(1)
