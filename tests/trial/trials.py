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

# Small and quick, with all that a crash could tear: noise that is learned, two metrics, any number of decisions.
BUSY: dict[str, Any] = {
    "name": "busy",
    "seed": 11,
    "decisions": "any number",
    "metrics": {"yield": {"range": [0.0, 10.0]}, "cost": {"range": [0.0, 4.0]}},
    "arms": {"old": {}, "new": {}, "newer": {}},
    "control": "old",
    "preference": {"yield": 1.0, "cost": -0.5},
    "users": {f"site {i}": {} for i in range(4)},
    "tolerance": {"absolute": 1.0},
}


def outcome(decision: int, arm: str) -> dict[str, float]:
    """What comes of a decision: always the same, so that telling it again is safe."""
    level = {"old": 4.0, "new": 5.0, "newer": 6.0}.get(arm, 4.5)
    return {"yield": level + (decision * 7919 % 97) / 97, "cost": 1.0 + (decision * 104729 % 89) / 89}
