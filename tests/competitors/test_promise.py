"""Each algorithm that promises something about the control keeps it, and not by playing the control."""

from __future__ import annotations

import pytest

from drimed.policies.guards.margin import Tolerance
from drimed.policies.registry import PolicySpec
from drimed.simulation.instances import draw_instance
from drimed.simulation.runner import simulate
from drimed.simulation.worlds import World
from tests.worlds import SMALL, world


@pytest.fixture(scope="module")
def worlds() -> tuple[World, float]:
    """32 worlds, and what the control loses there."""
    instances = [draw_instance(s, SMALL) for s in range(32)]
    it = world(seeds=range(32), instances=instances, episodes=60, drift="none")
    return it, float(simulate(PolicySpec.parse("control").build(), it).total("regret").mean())


@pytest.mark.parametrize(
    ("text", "kind", "least", "most"),  # of its regret over the control's
    [
        ("w_safe_lucb", "realised", 0.0, 2.0),
        ("w_sclucb", "expected", 0.95, 1.05),
        ("w_sclucb:leave=certified", "expected", 0.0, 0.8),
        ("w_oplb", "expected", 0.0, 0.75),
        ("oplb", "expected", 0.0, 2.0),
        ("w_roful", "expected", 0.0, 0.75),
        ("roful", "expected", 0.0, 2.0),
    ],
)
def test_the_promise_is_kept(worlds: tuple[World, float], text: str, kind: str, least: float, most: float) -> None:
    """32 runs, each of which may fail with probability .01: more than two failures have probability .004."""
    it, control = worlds
    result = simulate(PolicySpec.parse(text).build(), it, tolerance=Tolerance(relative=0.1, absolute=0.05))
    assert (result.total(f"violations.safe.{kind}") > 0).sum() <= 2
    assert least * control <= result.total("regret").mean() <= most * control
