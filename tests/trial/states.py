"""Everything that a trial's state holds, to compare to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel

from drimed.trial.problem import Problem
from drimed.trial.state import TrialState


def contents(state: TrialState) -> dict[str, Any]:
    """All of it, as plain values of their own: what is changed in place later does not change them."""
    return {f.name: _plain(getattr(state, f.name)) for f in fields(state)}


def same(one: TrialState, other: TrialState) -> bool:
    """Whether two states hold the same, to the last bit."""
    return contents(one) == contents(other)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return (value.shape, value.dtype.str, value.tobytes())
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    if isinstance(value, Problem):  # a function of the specification
        return (value.arms, value.metrics, value.fields, _plain(value.shape))
    if is_dataclass(value):
        value = value.live() if hasattr(value, "live") else value  # room for more is no part of a value
        return (type(value).__name__, [(f.name, _plain(getattr(value, f.name))) for f in fields(value)])
    if isinstance(value, Mapping):
        return [(key, _plain(item)) for key, item in value.items()]
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
