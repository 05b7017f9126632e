from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from drimed.competitors.oplb import OPLB, mixture
from drimed.numerics.arrays import FloatArray
from drimed.policies.rules.base import Ask
from drimed.policies.rules.simple import OFUL
from tests.examples import E1, E3, fit_of, r1_fit, r1_offer, unbatched

NUMBERS = st.sampled_from([-1.0, 0.0, 0.5, 1.0]) | st.floats(-3.0, 3.0).map(lambda v: round(v, 6))
NARROW = OPLB(width_squared=0.04, absolute=0.0)  # radius .2, as in the worked certificates


def lists(K: int) -> st.SearchStrategy[FloatArray]:
    return st.lists(NUMBERS, min_size=K, max_size=K).map(np.array)


def test_the_worked_program() -> None:
    U, C = np.array([1.0, 0.6]), np.array([0.3, -0.2])
    p = mixture(U, C, 0.0, np.array([0.0, 1.0]))
    np.testing.assert_allclose(p, [0.4, 0.6], atol=1e-15)
    assert p @ U == pytest.approx(0.76)
    assert p @ C == pytest.approx(0.0, abs=1e-15)


def test_the_costs_of_the_running_example() -> None:
    np.testing.assert_allclose(NARROW.cost(r1_fit(), r1_offer()), [-0.043155, 0.315865, -0.024734], atol=5e-7)
    assert NARROW.propose(r1_fit(), r1_offer(), Ask()).tolist() == E1.tolist()


@given(data=st.data())
def test_it_solves_the_linear_program(data: st.DataObject) -> None:
    K = data.draw(st.integers(1, 6))
    U, C, limit = data.draw(lists(K)), data.draw(lists(K)), data.draw(NUMBERS)
    control = np.eye(K)[data.draw(st.integers(0, K - 1))]
    p = mixture(U, C, limit, control)
    assert (p >= 0).all()
    assert p.sum() == pytest.approx(1.0, abs=1e-15)
    if C.min() > limit:
        assert p.tolist() == control.tolist()
        return
    assert (p > 0).sum() <= 2
    assert p @ C <= limit + 1e-12
    want = linprog(-U, A_ub=C[None], b_ub=[limit], A_eq=np.ones((1, K)), b_eq=[1.0])
    assert p @ U == pytest.approx(-want.fun, abs=1e-7)


def test_where_nothing_is_safe_the_control_is_played() -> None:
    control = np.array([0.25, 0.0, 0.75])
    p = OPLB(absolute=0.0).propose(r1_fit(), r1_offer(control=control), Ask())
    assert p.tolist() == control.tolist()
    # On the arms that are there; and the cheapest where the control has none of them.
    p = OPLB(absolute=0.0).propose(r1_fit(), r1_offer(control=control), Ask(mask=np.array([True, True, False])))
    assert p.tolist() == E1.tolist()
    p = mixture(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]), 0.0, E1, np.array([False, True, True]))
    assert p.tolist() == E3.tolist()


def test_without_a_binding_constraint_it_is_oful() -> None:
    rng = np.random.default_rng(0)
    for optimism in (0.0, 1.0, 2.5):
        fit = fit_of(np.diag(rng.uniform(1, 9, 3)), rng.standard_normal(3), K=6, radius=2.0)
        offer = unbatched(features=rng.standard_normal((6, 3)), control=np.eye(6)[0])
        p = OPLB(absolute=1e6, optimism=optimism).propose(fit, offer, Ask())
        want = OFUL(width_squared=(optimism * 2.0) ** 2).propose(fit, offer, Ask())
        assert p.tolist() == want.tolist()


def test_the_optimism_of_the_theory_is_one_and_two_over_the_slack() -> None:
    """Relative .1 and a control of .3: 1 + 2 / .03 = 67.7."""
    known = OPLB(optimism="theory", slack=0.1 * 0.3)
    assert np.array_equal(
        known.propose(r1_fit(), r1_offer(), Ask()),
        OPLB(optimism=1 + 2 / 0.03).propose(r1_fit(), r1_offer(), Ask()),
    )
    # Not known: what is certain. The control of R1 has mean .38 and width .2 * .663325.
    certain = 0.1 * (0.38 - 0.2 * np.sqrt(0.44)) + 0.01
    unknown = OPLB(optimism="theory", width_squared=0.04, absolute=0.01)
    assert np.array_equal(
        unknown.propose(r1_fit(), r1_offer(), Ask()),
        replace(unknown, slack=certain).propose(r1_fit(), r1_offer(), Ask()),
    )


def test_a_safe_policy_is_played_until_it_is_known() -> None:
    """The control's width is .2 * .663325 = .132665."""
    rule = replace(NARROW, safe_policy=True)
    assert rule.propose(r1_fit(), r1_offer(), Ask()).tolist() == E3.tolist()
    for slack, free in ((0.26, False), (0.27, True)):
        p = replace(rule, slack=slack).propose(r1_fit(), r1_offer(), Ask())
        assert p.tolist() == (E1 if free else E3).tolist()
