"""Each setting of a rule, a guard or the published algorithms is refused outside its range, by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.competitors.losan import OnlineRegression
from drimed.competitors.rebandit import SmoothAllocation
from drimed.competitors.roful import ROFUL
from drimed.competitors.safe_lucb import SafeLUCB
from drimed.competitors.stage_wise import StageWise
from drimed.errors import ConfigError
from drimed.policies.guards.base import Guardrail
from drimed.policies.guards.budget import Budget
from drimed.policies.guards.certified import Certain, Expected
from drimed.policies.guards.margin import Tolerance
from drimed.policies.published import PublishedDri
from drimed.policies.rules.base import Floors
from drimed.policies.rules.imed import IMED, DriIMEDIndex, LinIMED
from drimed.policies.rules.med import MED
from drimed.policies.rules.simple import OFUL, Greedy, LinTS

OUT_OF_RANGE: list[tuple[type, dict[str, Any]]] = [
    (OnlineRegression, {"noise_bound": 0.0, "norm_bound": np.inf, "delta": 1.0}),
    (ROFUL, {"relative": 1.0, "absolute": -0.1, "norm_bound": 0.0, "width_squared": -2.0}),
    (SmoothAllocation, {"lowest": 0.9, "highest": 0.1, "offset": 0.0, "steepness": -1.0, "points": 3}),
    (StageWise, {"confidence": 0.3, "norm_bound": 0.0, "leave": "soon"}),
    (SafeLUCB, {"confidence": 0.3}),
    (Guardrail, {"metric": -1, "better": "more", "relative": 1.0, "absolute": -1.0}),
    (Certain, {"confidence": 1.0}),
    (Expected, {"confidence": "always"}),
    (Tolerance, {"relative": 1.0, "absolute": -1.0}),
    (Budget, {"confidence": 0.5, "endowment": -1.0}),
    (PublishedDri, {"step": "oful", "reading": "cod", "tolerance": 1.0, "discount": 0.0, "noise_bound": 0.0}),
    (PublishedDri, {"norm_bound": -1.0, "delta": 1.0, "initial_dual": -1.0, "empirical": 0.5, "optimal": -1.0}),
    (Floors, {"control": 1.0, "arms": -0.1, "shrink": 1.0, "count": "site"}),
    (IMED, {"w": 0.0, "ties": "last"}),
    (LinIMED, {"cap": 0.5}),
    (DriIMEDIndex, {"variance": "median"}),
    (MED, {"temperature": "warm", "empirical": 1.5, "optimal": np.nan, "saturation": "two arms"}),
    (MED, {"ties": "last", "temperature": 0.0}),
    (OFUL, {"width_squared": np.nan}),
    (Greedy, {"ties": "last"}),
    (LinTS, {"v": "wide"}),
]


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [(part, name, value) for part, settings in OUT_OF_RANGE for name, value in settings.items()],
)
def test_a_setting_out_of_range_is_refused_by_its_name(part: type, name: str, value: Any) -> None:
    required = {"metric": 0} if part is Guardrail else {}
    with pytest.raises(ConfigError, match=f"{name}.* {value!r}"):
        part(**required | {name: value})


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, "wide", None])
def test_a_number_that_may_be_a_word_is_in_range_or_that_word(value: Any) -> None:
    LinTS(v=2.0)
    LinTS(v="radius")
    with pytest.raises(ConfigError, match=f"v must be positive and finite, or 'radius', got {value!r}"):
        LinTS(v=value)


@pytest.mark.parametrize(
    ("part", "settings", "message"),
    [
        (MED, {"empirical": 0.6, "optimal": 0.6}, "sum to at most 1, got 0.6 and 0.6"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(part: type, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        part(**settings)
