"""Policies as they are written on a command line."""

from __future__ import annotations

import pytest

from drimed.errors import ConfigError, UnknownNameError
from drimed.policies.registry import REGISTRY, PolicySpec, parse_list


def test_settings_go_to_the_part_that_knows_them() -> None:
    spec = PolicySpec.parse("dri_med:guard=certain+confidence=anytime+feedback=reward+temperature=1+absolute=0.2")
    policy = spec.build()
    assert policy.guard.confidence == "anytime"  # type: ignore[attr-defined]
    assert policy.guard.tolerance.absolute == 0.2  # type: ignore[attr-defined]
    assert policy.learner.feedback == "reward"  # type: ignore[attr-defined]
    assert policy.rule.temperature == 1  # type: ignore[attr-defined]
    assert spec.parts() == {"learner": "reward, known noise", "rule": "MED", "guard": "certain at anytime"}


def test_a_list_is_separated_by_commas() -> None:
    assert [s.name for s in parse_list("oful, dri_med:guard=off,lin_ts")] == ["oful", "dri_med", "lin_ts"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dri_mde", "unknown policy 'dri_mde'; did you mean 'dri_med'"),
        ("dri_med:gaurd=off", "unknown setting 'gaurd'; did you mean 'guard'"),
        ("dri_med:guard=certian", "unknown guard 'certian'; did you mean 'certain'"),
        ("published_dri_med:reding=code", "unknown setting 'reding'; did you mean 'reading'"),
        ("published_dri_med:reading=codes", "unknown reading 'codes'; did you mean 'code'"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest_right_one(text: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        PolicySpec.parse(text)


@pytest.mark.parametrize("text", ["dri_med:guard", "dri_med:=off", "dri_med:guard=", "dri_med:temperature=warm"])
def test_a_malformed_setting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        PolicySpec.parse(text)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one policy"):
        parse_list(" , ")


@pytest.mark.parametrize("name", list(REGISTRY))
def test_every_policy_can_say_what_it_consists_of(name: str) -> None:
    assert all(PolicySpec.parse(name).parts().values())


def test_a_tolerance_without_slack_is_said_so_before_anything_starts() -> None:
    note = PolicySpec.parse("dri_med:absolute=0").note()
    assert note is not None
    assert "may stay on it" in note
    assert PolicySpec.parse("dri_med").note() is None
    assert PolicySpec.parse("dri_med:guard=budget+absolute=0").note() is None
    assert PolicySpec.parse("published_dri_med").note() is None
