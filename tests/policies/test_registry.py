from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, DrimedError, UnknownNameError
from drimed.models.linear_regression import Learner
from drimed.policies.guards.penalty import Penalty
from drimed.policies.policy import Policy
from drimed.policies.published import PublishedDri
from drimed.policies.registry import REGISTRY, make
from drimed.policies.rules.med import MED
from drimed.policies.rules.simple import LinTS
from tests.worlds import SMALL


def policy(name: str, **settings: Any) -> Policy:
    made = make(name, **settings)
    assert isinstance(made, Policy)
    return made


@pytest.mark.parametrize("name", REGISTRY)
def test_every_entry_says_what_it_is_and_can_be_built(name: str) -> None:
    entry = REGISTRY[name]
    assert entry.name == name
    assert all((entry.about, entry.reference, entry.uses))
    made = make(name)
    assert made.draws_needed(SMALL) >= 1
    made.init(SMALL, (2,))


def test_settings_go_to_the_part_that_knows_them() -> None:
    made = policy("med", discount=0.9, temperature=3.0, guard="penalty", step=0.5, relative=0.2, absolute=0.3)
    assert made.learner.discount == 0.9
    assert isinstance(made.rule, MED)
    assert made.rule.temperature == 3.0
    assert isinstance(made.guard, Penalty)
    assert made.guard.step == 0.5
    assert (made.guard.tolerance.relative, made.guard.tolerance.absolute) == (0.2, 0.3)


def test_a_setting_that_two_parts_know_goes_to_both() -> None:
    made = policy("w_ts", delta=0.2, v="2013")
    assert isinstance(made.rule, LinTS)
    assert isinstance(made.learner, Learner)
    assert made.learner.delta == made.rule.delta == 0.2


def test_published_policies_take_their_own_settings() -> None:
    made = make("published_dri_imed", reading="printed", tolerance=0.2)
    assert isinstance(made, PublishedDri)
    assert (made.step, made.reading, made.tolerance) == ("imed", "printed", 0.2)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("ofull", "oful"), ("driMED", "dri_med"), ("lin-ts", "lin_ts"), ("published_drimed", "published_dri_med")],
)
def test_an_unknown_policy_suggests_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown policy '{wrong}'; did you mean '{right}'.* Known: .*{right}"):
        make(wrong)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("oful", {"discont": 0.9}, "unknown setting 'discont'; did you mean 'discount'"),
        ("med", {"temprature": 1.0}, "unknown setting 'temprature'; did you mean 'temperature'"),
        ("dri_med", {"relativ": 0.2}, "unknown setting 'relativ'; did you mean 'relative'"),
        ("med", {"guard": "expcted"}, "unknown guard 'expcted'; did you mean 'expected'"),
        ("published_dri_med", {"readin": "code"}, "unknown setting 'readin'; did you mean 'reading'"),
        ("published_dri_med", {"reading": "cod"}, "unknown reading 'cod'; did you mean 'code'"),
    ],
)
def test_an_unknown_setting_suggests_the_nearest(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        make(name, **settings)


def test_a_tolerance_is_no_setting_of_a_policy_without_a_guard() -> None:
    with pytest.raises(UnknownNameError, match="unknown setting 'relative'") as caught:
        make("oful", relative=0.1)
    assert "did you mean 'relative'" not in str(caught.value)


@pytest.mark.parametrize("constant", ["reference", "randomisation", "promise"])
def test_constants_of_a_class_are_no_settings(constant: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown setting '{constant}'"):
        make("med", **{constant: "x"})
    with pytest.raises(UnknownNameError) as caught:
        make("med", discont=0.9)
    assert constant not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("dri_med", {"relative": 2.0}, r"relative tolerance must be in \[0, 1\), got 2.0"),
        ("oful", {"discount": 2.0}, r"discount must be in \(0, 1\], got 2.0"),
        ("oful", {"delta": 0.0}, r"delta must be in \(0, 1\), got 0.0"),
        ("oful", {"weighting": "some"}, "weighting must be one of .*, got 'some'"),
        ("oful", {"discount": "a lot"}, "oful cannot be made with discount = 'a lot': .*str"),
        ("oful", {"discount": None}, "oful cannot be made with discount = None: .*NoneType"),
        ("med", {"empirical": np.nan}, "empirical and optimal"),
    ],
)
def test_a_setting_out_of_range_is_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make(name, **settings)
    assert isinstance(caught.value, DrimedError)


def test_anytime_confidence_and_forgetting_are_refused_together() -> None:
    with pytest.raises(ConfigError, match="confidence 'anytime' needs discount 1"):
        make("dri_med", guard="certain", confidence="anytime", discount=0.9)
