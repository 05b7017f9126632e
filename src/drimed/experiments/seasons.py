"""Rows of results.json for worlds in which everybody decides at once: as they stand after some seasons."""

from __future__ import annotations

from typing import Any

import numpy as np

from drimed.experiments.looks import LOOKS
from drimed.experiments.simulate import RunRecord
from drimed.linear.arrays import FloatArray

AFTER = (3, 5, 10, 30)  # seasons at which a field trial is looked at
COUNTS = {"expected_violations_per_10k": "violations.safe.expected", "violations_per_10k": "violations.safe.realised"}


def staged(record: RunRecord) -> dict[str, Any]:
    """What a record of such a world has besides; nothing for the paper's worlds."""
    if "stage_regret" not in record.curves:
        return {}
    regret = record.total("stage_regret")
    seasons = [s for s in record.episodes.tolist() if s in AFTER] or [int(record.episodes[-1])]
    return {
        "stage_regret": float(regret.mean()),
        "stage_regret_error": _error(regret),
        "seconds_per_run": record.seconds / len(regret),
        "after": [_after(record, season) for season in seasons],
    }


def _after(record: RunRecord, season: int) -> dict[str, Any]:
    """Sums until then per decision, with the standard error over runs, and the look at its end."""
    at = record.episodes.tolist().index(season)
    decisions = record.decisions * season / int(record.episodes[-1])
    found: dict[str, Any] = {"seasons": season}
    for name, curve in {"regret_per_decision": "regret", "control_share": "control", **COUNTS}.items():
        per = (1e4 if name in COUNTS else 1.0) * record.curve(curve)[:, at] / decisions
        found |= _told(name, per)
    for name in record.curves:
        if name.startswith(LOOKS):
            found |= _told(name.removeprefix(LOOKS), record.curve(name)[:, at])
    return found


def _told(name: str, values: FloatArray) -> dict[str, float | None]:
    """Mean and standard error; None where nothing is known."""
    values = values[~np.isnan(values)]
    if not len(values):
        return {name: None, f"{name}.error": None}
    return {name: float(values.mean()), f"{name}.error": _error(values)}


def _error(values: FloatArray) -> float:
    return float(values.std() / np.sqrt(max(len(values) - 1, 1)))
