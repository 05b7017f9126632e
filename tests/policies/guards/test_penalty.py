from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.policies.guards.base import PENALISED, UNCHANGED, AskRule, Draw
from drimed.policies.guards.margin import Tolerance
from drimed.policies.guards.penalty import Duals, Penalty
from tests.examples import r1_fit, r1_offer

AT_RADIUS = replace(r1_fit(), radius=np.asarray(0.2))


def recorded(asked: list[FloatArray | None]) -> AskRule:
    """A rule that plays every arm alike and writes down the penalty it was asked with."""

    def ask(mask: BoolArray | None, penalty: FloatArray | None) -> FloatArray:
        asked.append(penalty)
        weight = np.zeros(3) if penalty is None else -penalty
        return probability.weighted(probability.uniform((3,), mask), weight)

    return ask


def given(arm: int) -> Draw:
    return Draw(np.asarray(arm), np.eye(3)[arm], np.asarray(UNCHANGED))


def test_the_running_example_has_its_penalty_factors() -> None:
    """nu = 1, control (.6, .8), radius .2: only the second arm may fall short, by .315865."""
    guard = Penalty(tolerance=Tolerance(relative=0.1))
    np.testing.assert_allclose(guard.shortfall(AT_RADIUS, r1_offer()), [0.0, 0.315865, 0.0], atol=5e-7)
    np.testing.assert_allclose(np.exp(-guard.shortfall(AT_RADIUS, r1_offer())), [1.0, 0.729158, 1.0], atol=5e-7)
    asked: list[FloatArray | None] = []
    guarded = guard.apply(Duals(np.ones(4)), AT_RADIUS, r1_offer(), recorded(asked))
    assert asked[0] is not None
    np.testing.assert_allclose(asked[0], [0.0, 0.315865, 0.0], atol=5e-7)
    np.testing.assert_allclose(guarded.probabilities, np.array([1.0, 0.729158, 1.0]) / 2.729158, atol=5e-7)
    assert int(guarded.reason) == PENALISED


def test_the_margin_update_moves_against_the_estimated_margin_of_the_arm() -> None:
    """Margins at theta_hat: (.5, .1, .38) - .9 * .38 = (.158, -.242, .038); the step is 1 / sqrt(4)."""
    guard, fit = Penalty(), r1_fit(round=4)
    start = Duals(np.array([0.5, 0.5, 0.5, 0.5]))
    for arm, want in enumerate([0.5 - 0.079, 0.5 + 0.121, 0.5 - 0.019]):
        moved = guard.commit(start, fit, replace(r1_offer(), user=2), given(arm))
        np.testing.assert_allclose(moved.nu, [0.5, 0.5, want, 0.5], atol=1e-12)
    assert start.nu.tolist() == [0.5] * 4


def test_the_indicator_update_counts_estimated_violations() -> None:
    guard, fit = Penalty(update="indicator", rate=0.25, step=2.0), r1_fit(round=4)
    start = Duals(np.full(4, 0.5))
    for arm, want in enumerate([0.5 - 0.25, 0.5 + 0.75, 0.5 - 0.25]):
        moved = guard.commit(start, fit, r1_offer(), given(arm))
        assert float(moved.nu[0]) == pytest.approx(want)


def test_the_dual_variable_never_falls_below_zero() -> None:
    moved = Penalty(step=100.0).commit(Duals(np.zeros(4)), r1_fit(), r1_offer(), given(0))
    assert moved.nu.tolist() == [0.0] * 4


def test_scaling_rewards_and_dual_together_changes_nothing() -> None:
    """Scaling (theta_hat, radius) by c and nu by 1 / c leaves the penalties as they are."""
    guard = Penalty()
    base = guard.shortfall(AT_RADIUS, r1_offer())
    for c in (0.01, 7.0):
        scaled = replace(AT_RADIUS, theta=c * AT_RADIUS.theta, radius=c * AT_RADIUS.radius)
        np.testing.assert_allclose(guard.shortfall(scaled, r1_offer()) / c, base, rtol=1e-9, atol=1e-15)
