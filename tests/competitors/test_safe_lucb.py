from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.competitors.safe_lucb import SafeLUCB
from drimed.models.offer import Fit
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.policies.guards.base import CONTROL_FIRST, CONTROL_ONLY, REASONS, RESTRICTED, AskRule
from drimed.policies.guards.margin import Tolerance
from drimed.policies.registry import make
from drimed.policies.rules.base import Ask
from drimed.policies.rules.simple import OFUL
from drimed.simulation.instances import draw_instance
from drimed.simulation.runner import simulate
from tests.examples import E1, E3, r1_fit, r1_offer
from tests.worlds import SMALL, world

TENTH = Tolerance(relative=0.1)
GUARD = SafeLUCB(tolerance=TENTH)


def narrow(round: int = 4) -> Fit:
    """R1 at radius .2."""
    return replace(r1_fit(round=round), radius=np.asarray(0.2))


def oful(fit: Fit, offer: Any, asked: list[BoolArray | None] | None = None) -> AskRule:
    def ask(mask: BoolArray | None) -> FloatArray:
        if asked is not None:
            asked.append(mask)
        return OFUL().propose(fit, offer, Ask(mask))

    return ask


def test_the_certificates_of_the_running_example() -> None:
    np.testing.assert_allclose(GUARD.cost(narrow(), r1_offer()), [-0.043155, 0.315865, -0.024734], atol=5e-7)
    assert GUARD.safe(narrow(), r1_offer()).tolist() == [True, False, True]


def test_the_rule_is_asked_on_the_safe_arms() -> None:
    asked: list[BoolArray | None] = []
    guarded = GUARD.apply(None, narrow(), r1_offer(), oful(narrow(), r1_offer(), asked))
    assert len(asked) == 1
    assert asked[0] is not None
    assert asked[0].tolist() == [True, False, True]
    assert guarded.probabilities.tolist() == E1.tolist()
    assert int(guarded.reason) == RESTRICTED
    assert guarded.certified is not None
    assert int(guarded.certified) == 2


def test_the_control_is_allowed_although_it_is_not_certified() -> None:
    fit, offer = r1_fit(), r1_offer()  # radius 4.3
    assert (GUARD.cost(fit, offer) > 0).all()
    assert GUARD.safe(fit, offer).tolist() == [False, False, True]
    guarded = GUARD.apply(None, fit, offer, oful(fit, offer))
    assert guarded.probabilities.tolist() == E3.tolist()
    assert int(guarded.reason) == CONTROL_ONLY
    mixed = r1_offer(control=np.array([0.0, 0.5, 0.5]))
    assert not GUARD.safe(fit, mixed).any()
    guarded = GUARD.apply(None, fit, mixed, oful(fit, mixed))
    assert guarded.probabilities.tolist() == [0.0, 0.5, 0.5]


def test_the_first_rounds_are_the_control() -> None:
    guard = SafeLUCB(tolerance=TENTH, control_rounds=4)
    guarded = guard.apply(None, narrow(round=4), r1_offer(), oful(narrow(), r1_offer()))
    assert guarded.probabilities.tolist() == E3.tolist()
    assert int(guarded.reason) == CONTROL_FIRST
    assert "first rounds" in REASONS[CONTROL_FIRST]
    later = guard.apply(None, narrow(round=5), r1_offer(), oful(narrow(), r1_offer()))
    assert later.probabilities.tolist() == E1.tolist()


@pytest.mark.parametrize(
    ("guard", "rounds"),
    [
        (SafeLUCB(), 0),
        (SafeLUCB(horizon=1000), 100),
        (SafeLUCB(horizon=10_000), 464),
        (SafeLUCB(horizon=1000, control_rounds=7), 7),
        (SafeLUCB(horizon=1000, control_rounds=0), 0),
    ],
)
def test_a_horizon_sets_the_number_of_first_rounds(guard: SafeLUCB, rounds: int) -> None:
    for round, first in ((max(rounds, 1), rounds > 0), (rounds + 1, False)):
        played = guard.apply(None, narrow(round=round), r1_offer(), oful(narrow(), r1_offer()))
        assert (int(played.reason) == CONTROL_FIRST) is first


def test_every_arm_played_keeps_the_promise() -> None:
    """32 runs, each of which may fail with probability .01: more than two failures have probability .004."""
    instances = [draw_instance(s, SMALL) for s in range(32)]
    it = world(seeds=range(32), instances=instances, episodes=60, drift="none")
    result = simulate(make("w_safe_lucb"), it, tolerance=Tolerance(relative=0.1, absolute=0.05))
    assert (result.total("violations.safe.realised") > 0).sum() <= 2
