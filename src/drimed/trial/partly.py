"""What else is wrong with a trial file of which some fields cannot be read: without them, the rest is checked.

Only what holds whatever was meant by those fields is told: nothing about the sections that they are in, or that rest on
them.
"""

from __future__ import annotations

from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from drimed.records import Fault, Path
from drimed.trial.faults import cross_faults
from drimed.trial.name_faults import first_faults
from drimed.trial.sentences import fields_at, readable
from drimed.trial.spec import TrialSpec

# Sections on which no other one rests.
_ALONE = frozenset(
    {
        "name",
        "about",
        "seed",
        "tolerance",
        "confidence",
        "delta",
        "floors",
        "blinding",
        "stopping",
        "guardrails",
        "users",
    }
)
_NAMED = 3  # steps to a field of something with a name, as metrics.yield.range: the name is there without it
# What rests on the fields of something, and not on its name alone.
_RESTING = {
    "metrics": frozenset({"guardrails", "stopping", "floors", "model", "noise"}),
    "context": frozenset({"attributes", "users", "cohorts", "model"}),
    "attributes": frozenset({"context", "users", "cohorts", "model"}),
}


def rest_faults(data: Any, error: ValidationError) -> list[Fault]:
    """Of plain data about which pydantic found this."""
    left, silent = deepcopy(data), {"policy"}  # whether a policy fits is asked of a whole trial only
    for found, fault in zip(error.errors(include_url=False), readable(error), strict=True):
        meant: Path | None = fault.path
        if found["type"] == "extra_forbidden":
            close = get_close_matches(str(fault.path[-1]), list(fields_at(TrialSpec, fault.path[:-1])), n=1, cutoff=0.4)
            meant = (*fault.path[:-1], close[0]) if close else None
        if found["type"] == "missing" or not _removed(left, fault.path):
            return []
        if meant is not None:
            section = str(meant[0])
            if section not in _ALONE and not (section in _RESTING and len(meant) >= _NAMED):
                return []
            silent |= {section} | _RESTING.get(section, frozenset())
    try:
        spec = TrialSpec.model_validate(left)
    except ValidationError:
        return []
    return [f for f in (*first_faults(spec), *cross_faults(spec)) if f.path and f.path[0] not in silent]


def _removed(data: Any, path: Path) -> bool:
    """Take a field out of tables in tables; False: it is not in one."""
    for step in path[:-1]:
        if not isinstance(data, dict) or step not in data:
            return False
        data = data[step]
    if not path or not isinstance(data, dict) or path[-1] not in data:
        return False
    del data[path[-1]]
    return True
