"""What the plan page says of a trial, in words that fit its model."""

from __future__ import annotations

import pytest

from drimed.learning.field.learner import Field
from drimed.policies.policy import Policy
from drimed.service.pages import model, plan
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


@pytest.mark.parametrize("kind", ["field", "people", "paper"])
@pytest.mark.parametrize("affects", [["level"], ["effects"], ["level", "effects"], ["noise"]])
def test_only_slopes_of_a_persons_own_are_said_to_differ_from_person_to_person(kind: str, affects: list[str]) -> None:
    """Numbers of a context have them; of an attribute a person has one value, and of a category nobody has any."""
    number = {"typical": 5.0, "spread": 2.0, "affects": affects}
    context = {"rain": number, "wind": number, "sky": {"levels": ["clear", "dull"]}}
    known = {"context": context, "attributes": {"age": number, "soil": {"levels": ["sand"]}}}
    users = {"users": {"a": {"attributes": {"age": 4.0, "soil": "sand"}}}}
    if kind == "paper":
        known, users = {"context": {"rain": {"typical": 5.0, "spread": 2.0}}}, {}
    state = Trial.create(SPEC | {"model": {"kind": kind}} | known | users, MemoryStore()).state()
    said = [sentence for sentence in model.learned(state) if {"age", "rain"} & set(sentence.split())]
    if kind != "people" or "effects" not in affects:
        assert not said
        return
    assert said == [
        "How rain and wind change an arm's effect may differ from person to person.",
        "People whose age is unusual may respond to the arms less like everybody else.",
    ]
    assert isinstance(state.policy, Policy)
    assert isinstance(state.policy.learner, Field)
    families = state.policy.learner.structure(state.settled().evidence).families
    assert [f.slopes for f in families if "user" in f.by and f.slopes is not None] == [(0, 1, 2)], "age, rain, wind"
