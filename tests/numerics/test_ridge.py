from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.errors import NumericalError
from drimed.numerics import ridge
from drimed.numerics.arrays import FloatArray
from drimed.numerics.ridge import Ridge
from tests.examples import exact_solution, r1_ridge
from tests.strategies import matrices

LAM = 0.7
EPS = float(np.finfo(np.float64).eps)


def discounted_run(gamma: float, episodes: int, *, batch: tuple[int, ...] = (), noise: float = 0.0) -> Ridge:
    """Three rows per episode of a fixed theta."""
    rng = np.random.default_rng(5)
    state = ridge.init(3, LAM, batch, discounted=gamma < 1)
    for _ in range(episodes):
        Z = rng.standard_normal((*batch, 3, 3))
        w = np.matvec(Z, THETA) + noise * rng.standard_normal((*batch, 3))
        state = ridge.observe(ridge.roll(state, gamma, LAM), Z, w, LAM)
    return state


THETA = np.array([0.5, -1.0, 2.0])


def smallest_eigenvalue(A: FloatArray) -> float:
    return float(np.linalg.eigvalsh(A).min())


def test_the_running_example_has_its_worked_numbers() -> None:
    state = r1_ridge()
    np.testing.assert_allclose(state.V, np.diag([3.0, 2.0]), atol=1e-15)
    np.testing.assert_allclose(state.b, [1.5, 0.2], atol=1e-15)
    np.testing.assert_allclose(state.theta, [0.5, 0.1], atol=1e-15)
    assert float(state.logdet) == pytest.approx(1.791759, abs=5e-7)


def test_the_discounted_example_has_its_worked_numbers() -> None:
    state, seen = ridge.init(1, 1.0, discounted=True), []
    for _ in range(3):
        state = ridge.observe(ridge.roll(state, 0.5, 1.0), np.ones((1, 1)), np.ones(1), 1.0)
        assert state.V2 is not None
        seen.append([state.V[0, 0], state.V2[0, 0], state.b[0], state.theta[0]])
    np.testing.assert_allclose(
        seen, [[2.0, 2.0, 1.0, 0.5], [2.5, 2.25, 1.5, 0.6], [2.75, 2.3125, 1.75, 0.636364]], atol=5e-7
    )


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.3])
def test_after_n_updates_it_equals_the_closed_form(gamma: float) -> None:
    rng = np.random.default_rng(1)
    n, m, batch = 300, 2, (3,)  # more rows than one factorisation serves
    Z, w = rng.standard_normal((n, *batch, m, 4)), rng.standard_normal((n, *batch, m))
    state = ridge.init(4, LAM, batch, discounted=gamma < 1)
    for t in range(n):
        if t % 10 == 0:
            state = ridge.roll(state, gamma, LAM)
        state = ridge.observe(state, Z[t], w[t], LAM)
    g = gamma ** ((n - 1) // 10 - np.arange(n) // 10)
    V = LAM * np.eye(4) + np.einsum("t,tbmi,tbmj->bij", g, Z, Z)
    b = np.einsum("t,tbmi,tbm->bi", g, Z, w)
    np.testing.assert_allclose(state.V, V, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(state.b, b, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(state.theta, np.linalg.solve(V, b[..., None])[..., 0], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(state.logdet, np.linalg.slogdet(V)[1] - 4 * np.log(LAM), atol=1e-8)
    if state.V2 is not None:
        V2 = LAM * np.eye(4) + np.einsum("t,tbmi,tbmj->bij", g**2, Z, Z)
        np.testing.assert_allclose(state.V2, V2, rtol=1e-10, atol=1e-10)


@given(rows=st.integers(1, 8).flatmap(lambda n: matrices(n, 3)), scale=st.floats(-8.0, 6.0))
def test_evidence_only_adds_up(rows: FloatArray, scale: float) -> None:
    """Rows up to 1e6: beyond that, the regulariser is below the round-off of a first row."""
    Z = rows * 10.0**scale
    state, V, cond = ridge.init(3, LAM), LAM * np.eye(3), 1.0
    for z in Z:
        state = ridge.observe(state, z[None], np.ones(1), LAM)
        V = V + np.outer(z, z)
        cond = max(cond, float(np.linalg.cond(V)))
    size = float(np.abs(V).max())
    np.testing.assert_allclose(state.V, V, rtol=1e-12, atol=1e-15 * size)
    assert smallest_eigenvalue(state.V - LAM * np.eye(3)) >= -1e-14 * size
    # A rank-one step may shrink V^-1 by STEEP before it is factorised anew, and lose as much as that.
    loss = 100 * EPS * (cond + ridge.STEEP)
    assert float(state.logdet) >= -loss
    assert float(state.logdet) == pytest.approx(np.linalg.slogdet(V)[1] - 3 * np.log(LAM), abs=1e-8 + loss)
    want = exact_solution(state.V, state.b)
    assert np.linalg.norm(state.theta - want) <= loss * np.linalg.norm(want)


def test_the_inverse_does_not_drift_over_a_hundred_thousand_updates() -> None:
    # Single rows, of sizes from 1e-3 to 1e3, in a batch of two: every factorisation is followed by rank-one steps.
    rng = np.random.default_rng(3)
    state, worst = ridge.init(3, 1.0, (2,)), 0.0
    for _ in range(500):
        sizes = 10.0 ** rng.uniform(-3, 3, size=(100, 2, 1))
        Z = sizes * rng.standard_normal((100, 2, 3))
        for z in Z:
            state = ridge.observe(state, z[:, None, :], np.ones((2, 1)), 1.0)
        worst = max(worst, float(np.abs(np.matmul(state.V, state.V_inv) - np.eye(3)).max()))
    assert worst < 1e-8


def test_an_error_in_the_inverse_does_not_outlive_the_next_factorisation() -> None:
    rng = np.random.default_rng(9)
    state = ridge.observe(ridge.init(3, 1.0), rng.standard_normal((5, 3)), np.ones(5), 1.0)
    state = replace(state, V_inv=state.V_inv * (1 + 1e-3), logdet=state.logdet + 1e-3)
    for _ in range(200):  # more rows than one factorisation serves
        state = ridge.observe(state, 0.01 * rng.standard_normal((1, 3)), np.ones(1), 1.0)
    np.testing.assert_allclose(state.V @ state.V_inv, np.eye(3), atol=1e-12)
    assert float(state.logdet) == pytest.approx(float(np.linalg.slogdet(state.V)[1]), abs=1e-12)
    np.testing.assert_allclose(state.theta, np.linalg.solve(state.V, state.b), rtol=1e-10)


@pytest.mark.parametrize("weight", [1e6, 1e9, 1e12])
def test_steep_updates_stay_accurate(weight: float) -> None:
    """A row of weight 1 / sigma^2 makes V's condition number as large; no more than that, or STEEP, may be lost."""
    rng = np.random.default_rng(6)
    state = ridge.init(3, 1.0)
    for step in range(6):  # the first row is steep, so it is factorised; later ones are not always
        scale = np.sqrt(weight) if step % 2 == 0 else 1.0
        z = scale * rng.standard_normal((1, 3))
        state = ridge.observe(state, z, z @ THETA, 1.0)
        want = exact_solution(state.V, state.b)
        loss = 100 * EPS * (float(np.linalg.cond(state.V)) + ridge.STEEP)
        assert np.linalg.norm(state.theta - want) <= loss * np.linalg.norm(want)
        assert np.linalg.norm(state.theta - np.linalg.solve(state.V, state.b)) <= 2 * loss * np.linalg.norm(want)
        assert float(state.logdet) == pytest.approx(float(np.linalg.slogdet(state.V)[1]), abs=loss)


def test_a_steep_row_of_one_member_leaves_the_others_bit_for_bit() -> None:
    rng = np.random.default_rng(7)
    Z, w = rng.standard_normal((5, 4, 1, 3)), rng.standard_normal((5, 4, 1))
    Z[2, 1] *= 1e5
    together = ridge.init(3, LAM, (4,))
    alone = [ridge.init(3, LAM) for _ in range(4)]
    for t in range(5):
        together = ridge.observe(together, Z[t], w[t], LAM)
        alone = [ridge.observe(alone[s], Z[t, s], w[t, s], LAM) for s in range(4)]
    for s in range(4):
        assert np.array_equal(together.V_inv[s], alone[s].V_inv)
        assert np.array_equal(together.theta[s], alone[s].theta)
        assert np.array_equal(together.logdet[s], alone[s].logdet)


def test_a_matrix_that_a_double_cannot_hold_is_refused() -> None:
    with pytest.raises(NumericalError, match=r"not positive definite.*rescale the features or raise the regular"):
        ridge.observe(ridge.init(2, 1.0), np.array([[1e10, 1e10]]), np.ones(1), 1.0)


@given(st.data())
def test_taking_rows_out_undoes_adding_them(data: st.DataObject) -> None:
    gamma = data.draw(st.sampled_from([1.0, 0.9]))
    before = discounted_run(gamma, data.draw(st.integers(0, 6)), noise=0.1)
    Z, w = data.draw(matrices(2, 3)), data.draw(matrices(1, 2))[0]
    weight = data.draw(st.sampled_from([1.0, gamma, gamma**3]))
    after = ridge.remove(ridge.observe(before, Z, w, LAM, weight), Z, w, LAM, weight)
    assert_equal_evidence(after, before, rtol=1e-9)


def assert_equal_evidence(one: Ridge, other: Ridge, *, rtol: float) -> None:
    for name in ("V", "b", "V_inv", "theta", "logdet", "V2"):
        mine, its = getattr(one, name), getattr(other, name)
        assert (mine is None) == (its is None), name
        if mine is not None:
            np.testing.assert_allclose(mine, its, rtol=rtol, atol=rtol * max(1.0, np.abs(its).max()), err_msg=name)


@given(st.data())
def test_late_rows_count_as_if_they_had_come_in_time_in_any_order(data: st.DataObject) -> None:
    """A row of an episode is told in that one or in any later one, at the weight that it has by then."""
    episodes, gamma = 4, data.draw(st.sampled_from([1.0, 0.95, 0.5]))
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    rows = [(e, rng.standard_normal((2, 3)), rng.standard_normal(2)) for e in range(episodes) for _ in range(3)]
    told = [data.draw(st.integers(e, episodes - 1)) for e, _, _ in rows]
    order = data.draw(st.permutations(range(len(rows))))
    in_time = late = ridge.init(3, LAM, discounted=gamma < 1)
    for episode in range(episodes):
        in_time, late = ridge.roll(in_time, gamma, LAM), ridge.roll(late, gamma, LAM)
        for e, Z, w in rows:
            if e == episode:
                in_time = ridge.observe(in_time, Z, w, LAM)
        for i in order:
            e, Z, w = rows[i]
            if told[i] == episode:
                late = ridge.observe(late, Z, w, LAM, gamma ** (episode - e))
    assert_equal_evidence(late, in_time, rtol=1e-10)


def test_the_radii_have_their_formulas_and_worked_numbers() -> None:
    beta = ridge.oful_radius(np.log(6.0), noise=1.0, norm=1.0, regularisation=1.0, delta=0.01)
    assert float(beta) == pytest.approx(4.316941, abs=5e-7)
    beta = ridge.oful_radius(0.0, noise=2.0, norm=3.0, regularisation=4.0, delta=0.01)
    assert float(beta) == pytest.approx(2.0 * np.sqrt(2 * np.log(100.0)) + 2.0 * 3.0)
