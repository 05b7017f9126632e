from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.competitors.conservative import CLUCB, SafeLUCB, StageWise, Sums
from drimed.errors import InputError
from drimed.models.offer import Fit, Offer, Shape
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.policies.guards.base import (
    CONTROL_FIRST,
    CONTROL_ONLY,
    EXPLORED,
    NOT_EARNED,
    REASONS,
    RESTRICTED,
    UNCHANGED,
    AskRule,
    Draw,
    Guarded,
)
from drimed.policies.guards.margin import Tolerance
from drimed.policies.registry import make
from drimed.policies.rules.base import Ask
from drimed.policies.rules.simple import OFUL
from tests.examples import E1, E3, fit_of, r1_fit, r1_offer, unbatched
from tests.strategies import fits, matrices
from tests.worlds import steps, world

TENTH = Tolerance(relative=0.1)
ONE = Shape(d=1, K=2, M=1, H=1)
PAIR = unbatched(features=[[1.0], [0.5]], control=[0.0, 1.0])  # the second arm is the control
SAFE, STAGED = SafeLUCB(tolerance=TENTH), StageWise(tolerance=TENTH)


def always(p: Any) -> AskRule:
    """A rule that wants this, whatever it is asked."""
    return lambda _mask: np.asarray(p, dtype=np.float64)


def worked_fit() -> Fit:
    return fit_of(np.array([[5.0]]), np.array([0.8]), radius=0.5, K=2)


def narrow(radius: float = 0.2, round: int = 4) -> Fit:
    """R1 at a smaller radius; 1 / lambda_min(V) is 1/2, the longest arm has norm 1."""
    return replace(r1_fit(round=round), radius=np.asarray(radius))


def guarded(guard: Any, fit: Fit, offer: Offer | None = None, asked: list[BoolArray | None] | None = None) -> Guarded:
    """What the guard makes of OFUL; `asked` gets the arms that it was asked on."""
    offer = r1_offer() if offer is None else offer

    def ask(mask: BoolArray | None) -> FloatArray:
        if asked is not None:
            asked.append(mask)
        return OFUL().propose(fit, offer, Ask(mask))

    return guard.apply(None, fit, offer, ask)


def given_out(p: FloatArray, reason: int) -> Draw:
    return Draw(np.asarray(p.argmax(-1)), p, np.full(p.shape[:-1], reason))


def test_the_worked_example_of_clucb_is_accepted() -> None:
    joint, apart = CLUCB(tolerance=TENTH), CLUCB(tolerance=TENTH, joint=False)
    x, x0, nothing = np.array([1.0]), np.array([0.5]), Sums(np.zeros(1), np.zeros(1), np.zeros(1), np.asarray(0.0))
    # w = 1 - .45 = .55: .44 - .5 * .55 / sqrt 5.
    assert float(joint.certificate(nothing, worked_fit(), x, x0)) == pytest.approx(0.317, abs=5e-4)
    # Apart: .8 - .5 / sqrt 5 = .5764 against .9 (.4 + .25 / sqrt 5) = .4606.
    assert float(apart.certificate(nothing, worked_fit(), x, x0)) == pytest.approx(0.5764 - 0.4606, abs=1e-4)
    for guard in (joint, apart):
        played = guard.apply(guard.init(ONE, ()), worked_fit(), PAIR, always([1.0, 0.0]))
        assert played.probabilities.tolist() == [1.0, 0.0]
        assert int(played.reason) == UNCHANGED
        assert played.share is not None
        assert float(played.share) == 1.0


def test_a_choice_that_clucb_has_not_earned_is_replaced_by_the_control() -> None:
    guard = CLUCB(tolerance=TENTH)
    fit = replace(worked_fit(), radius=np.asarray(5.0))
    played = guard.apply(guard.init(ONE, ()), fit, PAIR, always([1.0, 0.0]))
    assert played.probabilities.tolist() == [0.0, 1.0]
    assert int(played.reason) == NOT_EARNED


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


def test_what_is_played_goes_to_its_own_sum() -> None:
    guard = CLUCB(tolerance=TENTH)
    state = guard.init(Shape(d=2, K=3, M=1, H=2), ())
    offer = replace(r1_offer(), user=1)
    own = guard.commit(state, r1_fit(), offer, given_out(np.array([0.5, 0.5, 0.0]), UNCHANGED))
    np.testing.assert_allclose(own.z, [[0.0, 0.0], [0.5, 0.5]])
    np.testing.assert_allclose(own.u, [[0.0, 0.0], [0.6, 0.8]])
    assert not own.v.any()
    both = guard.commit(own, r1_fit(), offer, given_out(E3, NOT_EARNED))
    assert np.array_equal(both.z, own.z)
    assert np.array_equal(both.u, own.u)
    np.testing.assert_allclose(both.v, [[0.0, 0.0], [0.6, 0.8]])
    assert both.decisions.tolist() == [0.0, 2.0]


def test_a_mixed_control_is_a_lottery() -> None:
    guard, mixed = CLUCB(tolerance=TENTH), np.array([0.0, 0.25, 0.75])
    state = guard.init(Shape(d=2, K=3, M=1, H=1), ())
    played = guard.apply(state, r1_fit(), r1_offer(control=mixed), always(E1))
    assert played.probabilities.tolist() == mixed.tolist()
    for available in ([True, False, True], [True, False, False]):  # a part of the control is not the control
        with pytest.raises(InputError, match="the control plays an arm that is not available"):
            guard.apply(state, r1_fit(), r1_offer(control=mixed, available=available), always(E1))


def test_the_rule_plays_more_often_as_it_earns_its_share() -> None:
    seen: set[int] = set()
    own: list[BoolArray] = []
    for step in steps(make("w_clucb"), world(seeds=range(3), episodes=60)):
        seen |= set(step.decision.reason_code.ravel().tolist())
        own.append(step.decision.reason_code == UNCHANGED)
    assert seen == {UNCHANGED, NOT_EARNED}
    assert np.mean(own[-30:]) > np.mean(own[:30])


def test_the_rule_is_asked_on_the_safe_arms() -> None:
    np.testing.assert_allclose(SAFE.cost(narrow(), r1_offer()), [-0.043155, 0.315865, -0.024734], atol=5e-7)
    asked: list[BoolArray | None] = []
    played = guarded(SAFE, narrow(), asked=asked)
    assert [None if mask is None else mask.tolist() for mask in asked] == [[True, False, True]]
    assert played.probabilities.tolist() == E1.tolist()
    assert int(played.reason) == RESTRICTED
    assert played.certified is not None
    assert int(played.certified) == 2


def test_the_control_is_allowed_although_it_is_not_certified() -> None:
    fit, mixed = r1_fit(), r1_offer(control=np.array([0.0, 0.5, 0.5]))  # radius 4.3
    assert SAFE.safe(fit, r1_offer()).tolist() == [False, False, True]
    played = guarded(SAFE, fit)
    assert played.probabilities.tolist() == E3.tolist()
    assert int(played.reason) == CONTROL_ONLY
    assert not SAFE.safe(fit, mixed).any()
    assert guarded(SAFE, fit, mixed).probabilities.tolist() == [0.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("guard", "rounds"),
    [
        (SafeLUCB(), 0),
        (SafeLUCB(control_rounds=4), 4),
        (SafeLUCB(horizon=1000), 100),
        (SafeLUCB(horizon=10_000), 464),
        (SafeLUCB(horizon=1000, control_rounds=7), 7),
        (SafeLUCB(horizon=1000, control_rounds=0), 0),
    ],
)
def test_the_first_rounds_are_the_control(guard: SafeLUCB, rounds: int) -> None:
    for round, first in ((max(rounds, 1), rounds > 0), (rounds + 1, False)):
        played = guarded(guard, narrow(round=round))
        assert (int(played.reason) == CONTROL_FIRST) is first
        assert (played.probabilities.tolist() == E3.tolist()) is first


def test_conservative_play_mixes_every_arm_into_the_control() -> None:
    """The control's mean is .38 within .2 * .663325."""
    rho = 0.1 * (0.38 - 0.132665) / (1 + 0.38 + 0.132665)
    assert STAGED.share(narrow(), r1_offer()) == pytest.approx(rho, abs=5e-7)
    played = guarded(STAGED, narrow())
    np.testing.assert_allclose(played.probabilities, (1 - rho) * E3 + rho / 3, atol=5e-7)
    assert int(played.reason) == EXPLORED
    assert "small chance of every arm" in REASONS[EXPLORED]


def test_no_coefficients_within_the_bound_break_the_conservative_promise() -> None:
    """The expected loss of the mixture against the control, at its worst over |theta| <= S in the confidence set."""
    rng = np.random.default_rng(1)
    guard = StageWise(tolerance=Tolerance(relative=0.1, absolute=0.02), norm_bound=2.0)
    for _ in range(200):
        x = rng.standard_normal((4, 3))
        offer = unbatched(features=x, control=np.eye(4)[0])
        theta = rng.standard_normal(3)
        theta *= 2.0 * rng.random() / np.linalg.norm(theta)
        fit = replace(r1_fit(), theta=theta + 0.1 * rng.standard_normal(3), V_inv=np.eye(3), radius=np.asarray(0.6))
        if np.linalg.norm(fit.theta - theta) > 0.6:
            continue
        rho, mean = guard.share(fit, offer), x @ theta
        assert rho * (mean[0] - mean.mean()) <= 0.1 * abs(mean[0]) + 0.02 + 1e-12


def test_the_control_is_left_when_v_is_large_in_every_direction_or_another_arm_is_certified() -> None:
    """2 L radius sqrt(1/2) <= gap + .1 (.38 - radius .663325), and no sooner: at gap 0 a radius of .025672."""
    for radius, left in ((0.0256, True), (0.0258, False)):
        played = guarded(STAGED, narrow(radius))
        assert (int(played.reason) != EXPLORED) is left
        assert (played.probabilities.tolist() == E1.tolist()) is left
    assert int(guarded(replace(STAGED, gap=0.26), narrow()).reason) != EXPLORED
    assert int(guarded(replace(STAGED, gap=0.25), narrow()).reason) == EXPLORED
    sooner = replace(STAGED, leave="certified")
    assert guarded(sooner, narrow()).probabilities.tolist() == E1.tolist()
    assert int(guarded(sooner, r1_fit()).reason) == EXPLORED  # radius 4.3
