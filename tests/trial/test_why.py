"""Why this arm: every sentence follows from the recorded decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drimed.guards.guard import CONTROL_ONLY, MIXED, REASONS, UNCHANGED
from drimed.records import Decision, Interval
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.why import in_words, why_this_arm
from tests.trial.floored import SPEC

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


def _said(decision: Decision, confidence: float | str = 0.99, unit: str = "") -> str:
    return " ".join(why_this_arm(decision, confidence=confidence, unit=unit))


def test_the_best_arm_is_said_to_be_best_with_its_range_in_the_unit_of_the_reward() -> None:
    said = _said(CHOSEN, unit="EUR/ha")
    assert "new is estimated to bring 126 EUR/ha more than the control (99 % range: 20 to 232), the most of all" in said
    assert "It had a chance of 90 %." in said
    assert "The guard changed nothing" in said


def test_an_arm_that_is_not_estimated_best_names_the_one_that_is() -> None:
    said = _said(replace(CHOSEN, arm="other", propensity=0.05))
    assert "other is estimated to bring 8 less than the control (99 % range: −30 to 14)" in said
    assert "new, 126 more, is estimated best. It had" in said
    assert "new was likelier, with 90 %" in said


def test_where_all_are_worse_the_control_is_estimated_best() -> None:
    effects = {"old": OLD, "new": Interval(-3.0, -9.0, 3.0), "other": Interval(-8.0, -30.0, 14.0)}
    assert "the control is estimated best. Its range reaches beyond that" in _said(replace(CHOSEN, effects=effects))


def test_a_control_that_only_was_certified_says_what_could_not_be() -> None:
    found = replace(CHOSEN, arm="old", propensity=1.0, reason=REASONS[CONTROL_ONLY], share=0.0)
    said = _said(found)
    assert said.startswith("old is the control. new is estimated to bring 126 more")
    assert "No other arm had a chance." in said
    assert "Only the control could be certified" in said


def test_an_arm_that_cannot_be_had_is_not_called_best() -> None:
    said = _said(replace(CHOSEN, arm="other", propensity=0.05, unavailable=["new"]))
    assert "new, 126 more" not in said


def test_a_mixture_says_how_much_of_the_proposal_is_left() -> None:
    assert "30 % of the policy's own proposal is left" in _said(replace(CHOSEN, reason=REASONS[MIXED], share=0.3))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"effects": None}, "does not estimate effects"),
        ({"effects": {"old": OLD, "new": UNKNOWN, "other": UNKNOWN}}, "Nothing was known yet about the effect of new."),
        (
            {"arm": "old", "effects": {"old": OLD, "new": UNKNOWN, "other": UNKNOWN}},
            "old is the control. Nothing was known yet about the other arms.",
        ),
        ({"propensity": None}, "no closed form"),
    ],
)
def test_what_is_not_known_is_said(changes: dict[str, object], words: str) -> None:
    assert words in _said(replace(CHOSEN, **changes))  # type: ignore[arg-type]


def test_ranges_at_all_times_are_called_so() -> None:
    assert "(range at all times: 20 to 232)" in _said(CHOSEN, "anytime")


def test_an_arm_that_the_user_can_never_get_is_not_spoken_of() -> None:
    spec = SPEC | {"users": {"u0": {"arms": ["old", "bad"]}, "u1": {}}, "policy": {"name": "control"}}
    trial = Trial.create(spec, MemoryStore())
    state = trial.state()
    effects = {"old": Interval(0.0, 0.0, 0.0), "new": Interval(4.0, 1.0, 7.0), "bad": Interval(-6.0, -9.0, -3.0)}
    one, other = (replace(trial.ask(user), effects=effects) for user in ("u0", "u1"))
    assert not any("new" in sentence for sentence in in_words(state, one))
    assert any(sentence.startswith("new is estimated to bring 4 more") for sentence in in_words(state, other))
