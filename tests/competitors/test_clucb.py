from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.competitors.clucb import CLUCB, Sums
from drimed.errors import InputError
from drimed.models.offer import Fit, Shape
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.policies.guards.base import NOT_EARNED, REASONS, UNCHANGED, AskRule, Draw
from drimed.policies.guards.margin import Tolerance
from drimed.policies.policy import Policy
from drimed.policies.registry import make
from drimed.policies.rules.simple import OFUL
from tests.examples import E1, E3, fit_of, r1_fit, r1_offer, unbatched
from tests.strategies import fits, matrices
from tests.worlds import steps, world

TENTH = Tolerance(relative=0.1)
ONE = Shape(d=1, K=2, M=1, H=1)
PAIR = unbatched(features=[[1.0], [0.5]], control=[0.0, 1.0])  # the second arm is the control


def always(p: Any) -> AskRule:
    """A rule that wants this, whatever it is asked."""
    return lambda _mask: np.asarray(p, dtype=np.float64)


def worked_fit() -> Fit:
    return fit_of(np.array([[5.0]]), np.array([0.8]), radius=0.5, K=2)


def nothing(d: int = 1) -> Sums:
    return Sums(np.zeros(d), np.zeros(d), np.zeros(d), np.asarray(0.0))


def given_out(p: FloatArray, reason: int) -> Draw:
    return Draw(np.asarray(p.argmax(-1)), p, np.full(p.shape[:-1], reason))


def test_the_worked_example_is_accepted() -> None:
    joint, apart = CLUCB(tolerance=TENTH), CLUCB(tolerance=TENTH, joint=False)
    x, x0 = np.array([1.0]), np.array([0.5])
    # w = 1 - .45 = .55: .44 - .5 * .55 / sqrt 5.
    assert float(joint.certificate(nothing(), worked_fit(), x, x0)) == pytest.approx(0.317, abs=5e-4)
    # Apart: .8 - .5 / sqrt 5 = .5764 against .9 (.4 + .25 / sqrt 5) = .4606.
    assert float(apart.certificate(nothing(), worked_fit(), x, x0)) == pytest.approx(0.5764 - 0.4606, abs=1e-4)
    for guard in (joint, apart):
        guarded = guard.apply(guard.init(ONE, ()), worked_fit(), PAIR, always([1.0, 0.0]))
        assert guarded.probabilities.tolist() == [1.0, 0.0]
        assert int(guarded.reason) == UNCHANGED
        assert guarded.share is not None
        assert float(guarded.share) == 1.0


def test_an_uncovered_choice_is_replaced_by_the_control() -> None:
    guard = CLUCB(tolerance=TENTH)
    fit = replace(worked_fit(), radius=np.asarray(5.0))
    guarded = guard.apply(guard.init(ONE, ()), fit, PAIR, always([1.0, 0.0]))
    assert guarded.probabilities.tolist() == [0.0, 1.0]
    assert int(guarded.reason) == NOT_EARNED
    assert "the guard gave the control" in REASONS[NOT_EARNED]


@given(data=st.data())
def test_one_bound_for_all_is_never_below_three_apart(data: st.DataObject) -> None:
    """As long as the control's own rounds certainly earned something: the printed form takes that for granted."""
    d = data.draw(st.integers(1, 3))
    fit = data.draw(fits(d, 2, scale=2.0))
    z, u, v, x, x0 = data.draw(matrices(5, d))
    held = Sums(z, u, v, np.asarray(3.0))
    if float(v @ fit.theta - fit.radius * np.sqrt(max(float(v @ fit.V_inv @ v), 0.0))) < 0:
        held = replace(held, v=np.zeros(d))
    joint = float(CLUCB(tolerance=TENTH).certificate(held, fit, x, x0))
    apart = float(CLUCB(tolerance=TENTH, joint=False).certificate(held, fit, x, x0))
    assert joint >= apart - 1e-9 * (1 + abs(apart))


def test_the_printed_form_has_its_three_bounds() -> None:
    rng = np.random.default_rng(0)
    fit = fit_of(np.diag([3.0, 2.0]), np.array([0.5, 0.1]), radius=0.2)
    for _ in range(20):
        z, u, v, x, x0 = rng.standard_normal((5, 2))

        def low(w: FloatArray) -> float:
            return float(w @ fit.theta - 0.2 * np.sqrt(w @ fit.V_inv @ w))

        want = low(z + x) + 0.1 * max(low(v), 0.0) - 0.9 * -low(-(u + x0)) + 0.05 * 4
        guard = CLUCB(tolerance=Tolerance(relative=0.1, absolute=0.05), joint=False)
        assert float(guard.certificate(Sums(z, u, v, np.asarray(3.0)), fit, x, x0)) == pytest.approx(want)


def test_what_is_played_goes_to_its_own_sum() -> None:
    guard = CLUCB(tolerance=TENTH)
    state = guard.init(Shape(d=2, K=3, M=1, H=2), ())
    offer = replace(r1_offer(), user=1)
    p = np.array([0.5, 0.5, 0.0])
    own = guard.commit(state, r1_fit(), offer, given_out(p, UNCHANGED))
    np.testing.assert_allclose(own.z, [[0.0, 0.0], [0.5, 0.5]])
    np.testing.assert_allclose(own.u, [[0.0, 0.0], [0.6, 0.8]])
    assert not own.v.any()
    both = guard.commit(own, r1_fit(), offer, given_out(E3, NOT_EARNED))
    assert np.array_equal(both.z, own.z)
    assert np.array_equal(both.u, own.u)
    np.testing.assert_allclose(both.v, [[0.0, 0.0], [0.6, 0.8]])
    assert both.decisions.tolist() == [0.0, 2.0]
    assert not state.z.any()  # the old state is left alone


def test_a_mixed_control_is_a_lottery() -> None:
    guard = CLUCB(tolerance=TENTH)
    mixed = np.array([0.0, 0.25, 0.75])
    state = guard.init(Shape(d=2, K=3, M=1, H=1), ())
    guarded = guard.apply(state, r1_fit(), r1_offer(control=mixed), always(E1))
    assert guarded.probabilities.tolist() == mixed.tolist()
    for available in ([True, False, True], [True, False, False]):  # a part of the control is not the control
        with pytest.raises(InputError, match="the control plays an arm that is not available"):
            guard.apply(state, r1_fit(), r1_offer(control=mixed, available=available), always(E1))


def test_the_named_policy_is_oful_under_it() -> None:
    policy = make("clucb", joint=False, confidence=0.95, relative=0.2)
    assert isinstance(policy, Policy)
    assert isinstance(policy.rule, OFUL)
    assert isinstance(policy.guard, CLUCB)
    assert not policy.guard.joint
    assert policy.guard.tolerance.relative == 0.2
    assert policy.guard.confidence == 0.95
    seen: set[int] = set()
    own: list[BoolArray] = []
    for step in steps(make("w_clucb"), world(seeds=range(3), episodes=60)):
        seen |= set(step.decision.reason_code.ravel().tolist())
        own.append(step.decision.reason_code == UNCHANGED)
    assert seen == {UNCHANGED, NOT_EARNED}
    assert np.mean(own[-30:]) > np.mean(own[:30])
