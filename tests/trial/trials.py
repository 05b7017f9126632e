"""Trials that several tests play with."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 7,
    "metrics": {"yield": {"unit": "t/ha", "range": [0.0, 10.0]}},
    "arms": {"old": {}, "new": {}},
    "control": "old",
    "preference": {"yield": 1.0},
    "users": {"north": {}, "south": {}},
    "tolerance": {"absolute": 0.5},
}
