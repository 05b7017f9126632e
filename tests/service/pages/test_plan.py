"""What the plan page says of a trial, in words that fit its model."""

from __future__ import annotations

from drimed.service.pages import plan
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.trial import Trial
from tests.trial.floored import SPEC


def test_the_plan_speaks_of_the_ranges_that_the_model_has() -> None:
    field, paper = (
        plan._safety(Trial.create(SPEC | {"model": {"kind": kind}}, MemoryStore()).state())[-1]
        for kind in ("field", "paper")
    )
    assert field.startswith("Ranges at all times on these pages hold at all looks together in 95 % of trials")
    assert paper.startswith("Guaranteed ranges on these pages hold at all times at once")


def test_a_tolerance_has_the_unit_of_the_reward() -> None:
    said = plan._safety(Trial.create(SPEC | {"reward": {"unit": "EUR/ha"}}, MemoryStore()).state())
    assert any("plus 1 EUR/ha" in sentence for sentence in said)


def test_a_rehearsal_is_told_in_whole_per_cent() -> None:
    seen = {"hash": 64 * "a", "scenario": "no difference", "seasons": 6, "trials": 20, "control": 0.7027, "power": 0.05}
    said = plan._rehearsed(Trial.create(SPEC, MemoryStore(), rehearsal=seen).state())
    assert "70 % of decisions were for the control. A better arm was found in 5 % of them." in said
