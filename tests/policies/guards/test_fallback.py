"""What is played instead of an uncertified wish is named for what it is."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.policies.guards.base import CONTROL_ONLY, MIXED, RESTRICTED, UNCHANGED, explained
from tests.examples import unbatched

LOTTERY, SINGLE = [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("control", "certified", "played", "share", "reason"),
    [
        (LOTTERY, [True, False, False], [1.0, 0.0, 0.0], 0.0, RESTRICTED),  # one arm of it is not the control
        (LOTTERY, [False, False, False], LOTTERY, 0.0, CONTROL_ONLY),
        (LOTTERY, [True, True, True], LOTTERY, 0.0, RESTRICTED),  # all are certified: the rule chose so
        (SINGLE, [True, False, False], SINGLE, 0.0, CONTROL_ONLY),
        (SINGLE, [True, False, True], [0.2, 0.0, 0.8], 0.0, RESTRICTED),
        (SINGLE, [True, False, False], [0.8, 0.1, 0.1], 0.2, MIXED),
        (SINGLE, [True, True, True], [0.0, 1.0, 0.0], 1.0, UNCHANGED),
    ],
)
def test_only_the_control_itself_is_called_the_control(
    control: list[float], certified: list[bool], played: list[float], share: float, reason: int
) -> None:
    offer = unbatched(features=np.eye(3), sigma=np.ones(3), control=control)
    found = explained(np.array(played), np.array(share), np.array(certified), offer)
    assert found.reason == reason
