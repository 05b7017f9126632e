"""Why this arm: every sentence follows from the recorded decision."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from drimed.policies.guards.base import CONTROL_ONLY, REASONS, UNCHANGED
from drimed.records import Decision, Interval
from drimed.trial.explain import arms_without_outcomes, explain, explain_decision
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.trial.floored import SPEC
from tests.trial.playing import records

OLD = Interval(0.0, 0.0, 0.0)
CHOSEN = Decision(
    id=7,
    episode=2,
    user="north",
    arm="new",
    probabilities={"old": 0.05, "new": 0.9, "other": 0.05},
    propensity=0.9,
    reason=REASONS[UNCHANGED],
    share=1.0,
    effects={"old": OLD, "new": Interval(126.0, 20.0, 232.0), "other": Interval(-8.0, -30.0, 14.0)},
    context=None,
    unavailable=[],
    state_version=5,
    time="2026-04-02T08:15:30+00:00",
    actor="anna",
)
UNKNOWN = Interval(0.0, -1e40, 1e40)


def _said(decision: Decision, confidence: float | str = 0.99, unit: str = "", unknown: Collection[str] = ()) -> str:
    spec = SPEC | {"confidence": confidence, "reward": {"unit": unit}}
    with Trial.create(spec, MemoryStore()).reading() as (_, state):
        return " ".join(explain_decision(decision, state, unknown))


def test_the_best_arm_is_said_to_be_best_with_its_range_in_the_unit_of_the_reward() -> None:
    said = _said(CHOSEN, unit="EUR/ha")
    assert "new is estimated to bring 126 EUR/ha more than the control (98 % range: 20 to 232), the most of all" in said
    assert "new was drawn with a chance of 90 %." in said
    assert "the guard changed nothing" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"effects": None}, "does not estimate effects"),
        ({"effects": {"old": OLD, "new": UNKNOWN, "other": UNKNOWN}}, "No outcome of new was recorded yet."),
        (
            {"arm": "old", "effects": {"old": OLD, "new": UNKNOWN, "other": UNKNOWN}},
            "old is the control. Nothing was known yet about new and other.",
        ),
        ({"propensity": None}, "no closed form"),
    ],
)
def test_what_is_not_known_is_said(changes: dict[str, object], words: str) -> None:
    assert words in _said(replace(CHOSEN, **changes))  # type: ignore[arg-type]


def test_a_range_is_called_by_the_level_of_both_its_ends_together() -> None:
    """Each end is a bound at the trial's confidence, on one side: both together miss twice as often."""
    assert "(90 % range: 20 to 232)" in _said(CHOSEN, 0.95)
    assert "(99.8 % range: 20 to 232)" in _said(CHOSEN, 0.999)
    assert "(range for all decisions at once: 20 to 232)" in _said(CHOSEN, "anytime")


def test_an_arm_that_the_user_can_never_get_is_not_spoken_of() -> None:
    spec = SPEC | {"users": {"u0": {"arms": ["old", "bad"]}, "u1": {}}, "policy": {"name": "control"}}
    trial = Trial.create(spec, MemoryStore())
    effects = {"old": Interval(0.0, 0.0, 0.0), "new": Interval(4.0, 1.0, 7.0), "bad": Interval(-6.0, -9.0, -3.0)}
    one, other = (replace(trial.ask(user), effects=effects) for user in ("u0", "u1"))
    with trial.reading() as (ledger, state):
        assert not any("new" in sentence for sentence in explain(ledger, state, one))
        assert "Nothing was known yet about new and bad." in explain(ledger, state, other)


def test_an_arm_without_an_outcome_is_not_called_the_best_nor_compared_with() -> None:
    said = _said(CHOSEN, unknown={"new", "other"})
    assert "No outcome of new was recorded yet." in said
    assert "the most of" not in said
    other = _said(replace(CHOSEN, arm="other"), unknown={"new"})
    assert "126 more" not in other
    best = _said(CHOSEN, unknown={"other"})
    assert "the most of those that are known. Nothing was known yet about other." in best


def test_what_was_known_of_an_arm_is_what_was_recorded_before_the_decision() -> None:
    trial = Trial.create(SPEC | {"users": {f"u{i}": {} for i in range(3)}}, MemoryStore())
    first = trial.ask("u0")
    trial.open_episode()
    before = trial.ask("u1")
    trial.tell(first.id, {"yield": 1.0})
    after = trial.ask("u2")
    with trial.reading() as (ledger, state):
        assert arms_without_outcomes(ledger, state, before) == set(state.problem.arms)
        assert arms_without_outcomes(ledger, state, after) == set(state.problem.arms) - {first.arm}


def test_the_first_decisions_of_a_field_trial_have_no_effects_of_arms_that_nobody_knows() -> None:
    trial = Trial.create(SPEC | {"model": {"kind": "field"}}, MemoryStore())
    found = trial.ask("u0")
    assert found.effects is not None
    assert set(found.effects) == {"old"}, "the control against itself"
    (row,) = records(trial)
    assert row["effect_new"] is None


def test_a_first_decision_is_the_control_because_nothing_else_is_sure() -> None:
    trial = Trial.create(SPEC | {"model": {"kind": "field"}}, MemoryStore())
    found = trial.ask("u0")
    with trial.reading() as (ledger, state):
        (event,) = ledger.events(kinds=["decision"])
        words = explain(ledger, state, found)
    (row,) = records(trial)
    assert event.body["reason"] == found.reason == row["reason"] == REASONS[CONTROL_ONLY]
    assert found.propensity == 1
    assert "No other arm had a chance." in words
    assert words[-1].startswith("The guard gave the control; no other arm is sure yet to stay within the tolerance")
