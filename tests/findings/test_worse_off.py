"""Was anybody worse off: for each user, and in words."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from drimed.findings import worse_off
from drimed.findings.course import ByUser
from drimed.records import Effect


def _analysis(gain: list[float], half: float, *, allowed: float = -10.0, unit: str = "", effect: float = 50.0) -> Any:
    H = len(gain)
    mine = ByUser(
        np.full(H, 4),
        np.array(gain),
        np.array(gain) - half,
        np.array(gain) + half,
        np.full(H, allowed),
        np.zeros(H, int),
    )
    total = sum(gain)
    state = SimpleNamespace(
        users={f"site {h}": h for h in range(H)}, spec=SimpleNamespace(reward=SimpleNamespace(unit=unit))
    )
    return SimpleNamespace(
        course=SimpleNamespace(
            by_user=mine, gain_low=np.array([total - half]), allowed=np.array([H * allowed]), verdict=""
        ),
        seen=SimpleNamespace(state=state, told=np.ones(1, bool)),
        checks=SimpleNamespace(withdrawn=None),
        varying=None,
        status=SimpleNamespace(decisions=4 * H),
        own_effects=[Effect("site 0", "new", "reward", effect, 0.0, 2 * effect, 0.0, 2 * effect)],
        given={"new"},
    )


def test_those_who_lost_are_named_and_how_sure_that_is() -> None:
    found = worse_off.said(_analysis([5.0, -3.0, -8.0], half=4.0, unit="EUR"))
    assert found[0] == (
        "2 of 3 users are estimated to have earned less than under the control, all their decisions together: "
        "site 2 −8 EUR, site 1 −3 EUR; 1 of them certainly."
    )


def test_where_nobody_lost_it_says_so() -> None:
    assert worse_off.said(_analysis([5.0, 3.0], half=4.0))[0] == (
        "None of 2 users is estimated to have earned less than under the control."
    )


@pytest.mark.parametrize(("half", "words"), [(20.0, "Even the worst case"), (60.0, "is below the agreed limit, −20.")])
def test_the_worst_case_is_compared_with_the_limit(half: float, words: str) -> None:
    assert any(words in s for s in worse_off.said(_analysis([5.0, 3.0], half=half)))


def test_a_limit_beyond_every_effect_is_called_weak() -> None:
    weak = worse_off.said(_analysis([5.0, 3.0], half=4.0, allowed=-1096.0, effect=135.0, unit="EUR/ha"))
    assert any(
        "allows 274 EUR/ha in each decision, and the largest estimated effect of an arm is 135" in s for s in weak
    )
    assert not any("promises little" in s for s in worse_off.said(_analysis([5.0], half=4.0)))


def test_many_are_counted_and_a_wrong_model_gives_no_guarantee() -> None:
    a = _analysis([-1.0] * 8, half=0.5)
    assert "and 3 more; 8 of them certainly" in worse_off.said(a)[0]
    wrong = SimpleNamespace(**{**vars(a), "checks": SimpleNamespace(withdrawn="the model is wrong")})
    assert "without a guarantee" in worse_off.said(wrong)[0]  # type: ignore[arg-type]


def test_verdicts_follow_from_the_range() -> None:
    one = worse_off.worse_off(_analysis([5.0], half=4.0))[0]
    assert one.verdict == "not worse off"
    assert replace(one, low=-1.0).verdict == "open"
    assert replace(one, low=-9.0, high=-1.0).verdict == "worse off"
    assert replace(one, low=None, high=None).verdict == "open"


def test_the_worst_case_of_a_single_user_is_told_beside_what_its_tolerance_allows() -> None:
    said = worse_off.said(_analysis([5.0, -3.0, 8.0], half=4.0, unit="EUR"))
    worst = next(s for s in said if s.startswith("The worst case of a single user, all decisions together,"))
    assert worst.endswith("is that of site 1: −7 EUR; its tolerance allows −10 EUR.")
    assert said[0].endswith("site 1 −3 EUR; but not certainly.")
    beyond = worse_off.said(_analysis([5.0, -9.0], half=4.0))
    assert any(s.endswith("site 1: −13; beyond what its tolerance allows, −10.") for s in beyond)
    assert not any("single user" in s for s in worse_off.said(_analysis([5.0, 6.0], half=4.0))), "nobody can have lost"


def test_the_worst_case_that_is_told_is_the_lowest_of_all_users_whatever_each_is_allowed() -> None:
    a = _analysis([-301.0, -201.0, 9.0], half=4.0, unit="EUR")
    a.course.by_user.allowed[:] = -16000.0, -15000.0, -16000.0
    assert min(worse_off.worse_off(a), key=lambda x: x.low or 0.0).user == "site 0"
    worst = [s for s in worse_off.said(a) if "orst case of a single user" in s or s.startswith("That of")]
    assert len(worst) == 1
    assert worst[0].endswith("is that of site 0: −305 EUR; its tolerance allows −16,000 EUR.")


def test_another_user_whose_worst_case_is_beyond_its_tolerance_is_told_too() -> None:
    a = _analysis([-301.0, -201.0, 9.0], half=4.0, unit="EUR")
    a.course.by_user.allowed[:] = -16000.0, -150.0, -150.0
    said = worse_off.said(a)
    at = next(i for i, s in enumerate(said) if "worst case of a single user" in s)
    assert "site 0: −305 EUR; its tolerance allows −16,000 EUR." in said[at]
    assert said[at + 1] == "That of site 1, −205 EUR, is beyond what its tolerance allows, −150 EUR."
