"""Policies as they are written on a command line."""

from __future__ import annotations

import pytest

from drimed.errors import ConfigError
from drimed.policies.registry import PolicySpec, parse_list


def test_settings_go_to_the_part_that_knows_them() -> None:
    spec = PolicySpec.parse("dri_med:guard=certain+confidence=anytime+feedback=reward+temperature=1+absolute=0.2")
    policy = spec.build()
    assert policy.guard.confidence == "anytime"  # type: ignore[attr-defined]
    assert policy.guard.tolerance.absolute == 0.2  # type: ignore[attr-defined]
    assert policy.learner.feedback == "reward"  # type: ignore[attr-defined]
    assert policy.rule.temperature == 1  # type: ignore[attr-defined]
    assert spec.parts() == {"learner": "reward, known noise", "rule": "MED", "guard": "certain at anytime"}


@pytest.mark.parametrize("text", ["dri_med:guard", "dri_med:=off", "dri_med:guard=", "dri_med:temperature=warm"])
def test_a_malformed_setting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        PolicySpec.parse(text)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one policy"):
        parse_list(" , ")


def test_a_tolerance_without_slack_is_said_so_before_anything_starts() -> None:
    note = PolicySpec.parse("dri_med:absolute=0").note()
    assert note is not None
    assert "may stay on it" in note
    assert PolicySpec.parse("dri_med").note() is None
    assert PolicySpec.parse("dri_med:guard=budget+absolute=0").note() is None
    assert PolicySpec.parse("published_dri_med").note() is None
