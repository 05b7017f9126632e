from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.competitors.stage_wise import StageWise
from drimed.models.offer import Fit
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.policies.guards.base import EXPLORED, REASONS, Guarded
from drimed.policies.guards.margin import Tolerance
from drimed.policies.registry import make
from drimed.policies.rules.base import Ask
from drimed.policies.rules.simple import OFUL
from drimed.simulation.instances import draw_instance
from drimed.simulation.runner import simulate
from tests.examples import E1, E3, r1_fit, r1_offer, unbatched
from tests.worlds import SMALL, world

GUARD = StageWise(tolerance=Tolerance(relative=0.1))


def narrow(radius: float = 0.2) -> Fit:
    """R1 at a smaller radius; 1 / lambda_min(V) is 1/2, the longest arm has norm 1."""
    return replace(r1_fit(), radius=np.asarray(radius))


def guarded(guard: StageWise, fit: Fit, offer: Any = None) -> Guarded:
    offer = r1_offer() if offer is None else offer

    def ask(mask: BoolArray | None) -> FloatArray:
        return OFUL().propose(fit, offer, Ask(mask))

    return guard.apply(None, fit, offer, ask)


def test_conservative_play_mixes_every_arm_into_the_control() -> None:
    """The control's mean is .38 within .2 * .663325."""
    rho = 0.1 * (0.38 - 0.132665) / (1 + 0.38 + 0.132665)
    assert GUARD.share(narrow(), r1_offer()) == pytest.approx(rho, abs=5e-7)
    played = guarded(GUARD, narrow())
    np.testing.assert_allclose(played.probabilities, (1 - rho) * E3 + rho / 3, atol=5e-7)
    assert int(played.reason) == EXPLORED
    assert "small chance of every arm" in REASONS[EXPLORED]
    absent = guarded(GUARD, narrow(), r1_offer(available=[True, False, True]))
    assert absent.probabilities[1] == 0


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


def test_the_control_is_left_when_v_is_large_in_every_direction() -> None:
    """2 L radius sqrt(1/2) <= gap + .1 (.38 - radius .663325), and no sooner: at gap 0 a radius of .025672."""
    for radius, left in ((0.0256, True), (0.0258, False)):
        played = guarded(GUARD, narrow(radius))
        assert (int(played.reason) != EXPLORED) is left
        assert (played.probabilities.tolist() == E1.tolist()) is left
    assert int(guarded(replace(GUARD, gap=0.26), narrow()).reason) != EXPLORED
    assert int(guarded(replace(GUARD, gap=0.25), narrow()).reason) == EXPLORED


def test_or_as_soon_as_another_arm_is_certified() -> None:
    sooner = replace(GUARD, leave="certified")
    assert guarded(sooner, narrow()).probabilities.tolist() == E1.tolist()
    assert int(guarded(sooner, r1_fit()).reason) == EXPLORED  # radius 4.3


@pytest.mark.parametrize("leave", ["spread", "certified"])
def test_the_expected_promise_is_kept(leave: str) -> None:
    """32 runs, each of which may fail with probability .01: more than two failures have probability .004."""
    instances = [draw_instance(s, SMALL) for s in range(32)]
    it = world(seeds=range(32), instances=instances, episodes=60, drift="none")
    result = simulate(make("w_sclucb", leave=leave), it, tolerance=Tolerance(relative=0.1, absolute=0.05))
    assert (result.total("violations.safe.expected") > 0).sum() <= 2
    control = simulate(make("control"), it).total("regret").mean()
    if leave == "certified":  # and it is not the control that keeps it
        assert result.total("regret").mean() < 0.8 * control
    else:
        assert result.total("regret").mean() == pytest.approx(control, rel=0.05)
