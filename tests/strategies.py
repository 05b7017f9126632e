"""Awkward inputs for property tests: collinear, repeated, missing and badly scaled arms; states far from the origin."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from drimed.models.offer import Fit
from drimed.numerics import ridge
from drimed.numerics.arrays import BoolArray, FloatArray

# Zero, equal and opposite entries are what makes arms collinear; the others are in general position.
ENTRIES: SearchStrategy[float] = st.sampled_from([0.0, 1.0, -1.0, 0.5]) | st.floats(-1.0, 1.0).map(
    lambda v: round(v, 6)
)


@st.composite
def matrices(draw: DrawFn, rows: int, columns: int) -> FloatArray:
    """A matrix with entries in [-1, 1], many of them equal."""
    flat = draw(st.lists(ENTRIES, min_size=rows * columns, max_size=rows * columns))
    return np.array(flat).reshape(rows, columns)


@st.composite
def arms(draw: DrawFn, *, most_arms: int = 6, most_features: int = 4, d: int | None = None) -> FloatArray:
    """(K, d), entries of order 1: some arms may be copies or multiples of others, or zero; K may be 1 or below d."""
    K = draw(st.integers(1, most_arms))
    x = draw(matrices(K, d or draw(st.integers(1, most_features))))
    for k in range(1, K):
        kind = draw(st.sampled_from(["own", "own", "copy", "multiple"]))
        if kind != "own":
            x[k] = x[draw(st.integers(0, k - 1))] * (1.0 if kind == "copy" else draw(st.sampled_from([-1.0, 0.5, 2.0])))
    return x


@st.composite
def masks(draw: DrawFn, K: int) -> BoolArray | None:
    """None, or a mask that leaves at least one of K arms."""
    if draw(st.booleans()):
        return None
    mask = np.array(draw(st.lists(st.booleans(), min_size=K, max_size=K)))
    mask[draw(st.integers(0, K - 1))] = True
    return mask


@st.composite
def fits(draw: DrawFn, d: int, K: int, *, scale: float = 8.0) -> Fit:
    """A regression after a few rows of size 10^-scale to 10^scale / 2, with rewards of order 1 in their own unit."""
    state = ridge.init(d, 1.0)
    for _ in range(draw(st.integers(0, 4))):
        size = 10.0 ** draw(st.floats(-scale, scale / 2))
        z = size * draw(matrices(1, d))
        state = ridge.observe(state, z, np.array([draw(st.floats(-2.0, 2.0))]) * max(1.0, size), 1.0)
    radius = np.asarray(draw(st.sampled_from([0.1, 1.0, 5.0]) | st.floats(0.01, 100.0)))
    return Fit(state.theta, state.V_inv, radius, None, np.zeros(K), draw(st.integers(1, 1000)), 1.0)


def design_leverages(W: FloatArray, q: FloatArray) -> FloatArray:
    """w_a^T V(q)^+ w_a for each arm: (..., K, d), (..., K) -> (..., K). Their q-mean is the rank."""
    V = np.matmul(np.swapaxes(W * q[..., None], -1, -2), W)
    return np.vecdot(np.matmul(W, np.linalg.pinv(V, hermitian=True)), W)
