"""Each setting of a rule, a guard or the published algorithms is refused outside its range, by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.competitors.conservative import CLUCB, SafeLUCB, StageWise
from drimed.competitors.ids import IDS
from drimed.competitors.losan import OnlineRegression
from drimed.competitors.oplb import OPLB
from drimed.competitors.rebandit import SmoothAllocation
from drimed.competitors.roful import ROFUL
from drimed.competitors.solid import SOLID
from drimed.competitors.spanner_igw import SpannerIGW
from drimed.errors import ConfigError
from drimed.policies.guards.base import Guardrail
from drimed.policies.guards.certified import Certain, Expected
from drimed.policies.guards.margin import Tolerance
from drimed.policies.guards.penalty import Budget, Penalty
from drimed.policies.published import PublishedDri
from drimed.policies.rules.base import Floors
from drimed.policies.rules.med import IMED, MED, DriIMEDIndex, LinIMED
from drimed.policies.rules.simple import OFUL, Greedy, LinTS

OUT_OF_RANGE: list[tuple[type, dict[str, Any]]] = [
    (OnlineRegression, {"noise_bound": 0.0, "norm_bound": np.inf, "delta": 1.0}),
    (ROFUL, {"relative": 1.0, "absolute": -0.1, "norm_bound": 0.0, "width_squared": -2.0}),
    (SmoothAllocation, {"lowest": 0.9, "highest": 0.1, "offset": 0.0, "steepness": -1.0, "points": 3}),
    (StageWise, {"confidence": 0.3, "norm_bound": 0.0, "gap": -1.0, "leave": "soon"}),
    (SafeLUCB, {"control_rounds": -1, "horizon": 0, "confidence": 0.3}),
    (CLUCB, {"confidence": 0.3}),
    (IDS, {"variant": "ts", "width_squared": -1.0}),
    (OPLB, {"relative": 1.0, "absolute": -0.1, "optimism": "practice", "slack": 0.0, "width_squared": -2.0}),
    (SOLID, {"omega_step": 0.0, "multiplier_step": np.nan, "accuracy": np.inf, "first_multiplier": 11.0}),
    (SOLID, {"largest_multiplier": -1.0, "optimism": -0.1, "norm_bound": 0.0, "radius": "oful"}),
    (SpannerIGW, {"eta": "fast", "variant": "code", "delta": 0.0}),
    (Guardrail, {"metric": -1, "better": "more", "relative": 1.0, "absolute": -1.0}),
    (Certain, {"confidence": 1.0}),
    (Expected, {"confidence": "always"}),
    (Tolerance, {"relative": 1.0, "absolute": -1.0}),
    (Budget, {"confidence": 0.5, "endowment": -1.0}),
    (Penalty, {"update": "margins", "step": 0.0, "rate": 1.0, "initial": -1.0}),
    (PublishedDri, {"step": "oful", "reading": "cod", "tolerance": 1.0, "discount": 0.0, "noise_bound": 0.0}),
    (PublishedDri, {"norm_bound": -1.0, "delta": 1.0, "initial_dual": -1.0, "empirical": 0.5, "optimal": -1.0}),
    (Floors, {"control": 1.0, "arms": -0.1, "shrink": 1.0, "count": "site"}),
    (IMED, {"w": 0.0, "ties": "last"}),
    (LinIMED, {"version": 4, "horizon": 0, "cap": 0.5, "radius": "theory"}),
    (DriIMEDIndex, {"variance": "median"}),
    (MED, {"temperature": "warm", "empirical": 1.5, "optimal": np.nan, "saturation": "two arms"}),
    (MED, {"ties": "last", "temperature": 0.0}),
    (OFUL, {"width_squared": np.nan}),
    (Greedy, {"ties": "last"}),
    (LinTS, {"v": "wide", "delta": 0.0}),
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
    with pytest.raises(ConfigError, match=f"v must be positive and finite, or 'radius' or '2013', got {value!r}"):
        LinTS(v=value)


@pytest.mark.parametrize(
    ("part", "settings", "message"),
    [
        (LinIMED, {"version": 2}, "version 2 needs a horizon"),
        (MED, {"empirical": 0.6, "optimal": 0.6}, "sum to at most 1, got 0.6 and 0.6"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(part: type, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        part(**settings)
