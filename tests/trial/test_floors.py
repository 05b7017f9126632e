"""Floors in a trial file: kept in every decision, replayed, and checked."""

from __future__ import annotations

from typing import Any

import pytest

from drimed.errors import SpecError
from drimed.policies.guards.base import REASONS, RESTRICTED
from drimed.trial.spec import TrialSpec
from drimed.trial.verify import verify
from tests.trial import floored
from tests.trial.floored import played

SPEC: dict[str, Any] = floored.SPEC | {"decisions": "any number", "metrics": {"yield": {}}}


@pytest.mark.parametrize("kind", ["field", "people", "paper"])
def test_the_control_keeps_its_floor_and_the_log_verifies(kind: str) -> None:
    spec = SPEC | {"model": {"kind": kind}, "floors": {"control": 0.1}}
    trial = played(spec)
    chances = [d.probabilities["old"] for d in trial.decisions()]
    assert min(chances) >= 0.1 - 1e-12
    assert min(chances) < 0.5
    assert verify(trial.store, "t").ok


def test_a_floor_that_shrinks_counts_the_decisions_of_the_trial_or_of_the_user() -> None:
    for count, after in (("all", 32), ("user", 8)):
        floors = {"control": 0.5, "shrink": 0.5, "count": count}
        trial = played(SPEC | {"policy": {"guard": "off"}, "floors": floors})
        last = trial.ask("u0")
        assert last.probabilities["old"] >= 0.5 * (after + 1) ** -0.5 - 1e-12
        assert last.probabilities["old"] < 0.5 * (after + 1) ** -0.5 + 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"floors": {"control": 1.0}}, "must be below 1"),
        ({"floors": {"arms": 0.4}}, r"must be below 0\.333"),
        ({"floors": {"contrl": 0.1}}, "contrl"),
        (
            {"floors": {"control": 0.1}, "model": {"kind": "paper"}, "policy": {"name": "published_dri_med"}},
            "knows no floors",
        ),
    ],
)
def test_floors_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TrialSpec.read(SPEC | change)


def test_an_arm_that_leaves_no_room_for_the_floors_is_refused() -> None:
    trial = played(SPEC | {"floors": {"arms": 0.3}}, seasons=1)
    with pytest.raises(SpecError, match="leaves nothing to choose"):
        trial.add_arm("more", {})


def test_a_control_that_is_a_lottery_of_which_some_arms_were_certified_is_told_as_restricted_and_verifies() -> None:
    spec = SPEC | {"control": {"old": 0.7, "new": 0.3}, "policy": {"guard": "certain"}, "tolerance": {"absolute": 0.3}}
    trial = played(spec)
    assert REASONS[RESTRICTED] in [d.reason for d in trial.decisions()]
    assert verify(trial.store, "t").ok
