"""Refusals of the service as drimed's own errors, as if the trial were here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drimed.errors import (
    AccessError,
    BatchError,
    ConflictError,
    DrimedError,
    InputError,
    ServiceError,
    SpecError,
    StoreError,
    UnconfirmedError,
    UnknownNameError,
)
from drimed.records import Fault, Path

LISTS = {"spec": SpecError, "batch": BatchError, "unconfirmed": UnconfirmedError}  # types whose faults say it all


def error_of(status: int, data: object) -> DrimedError:
    """What to raise for an answer that is no success; `data` is its problem+json."""
    problem: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    detail = str(problem.get("detail") or f"the service answered with status {status}")
    kind = str(problem.get("type", "")).rpartition(":")[2]
    faults = [_fault(f) for f in problem.get("errors", ()) if isinstance(f, Mapping)]
    field: Path = faults[0].path if faults else ()
    if kind in LISTS and faults:
        return LISTS[kind](faults)
    if problem.get("kind") is not None:
        error = UnknownNameError(str(problem["kind"]), str(problem.get("name")), (), field)
        error.args = (detail,)
        return error
    if status in (401, 403):
        return AccessError(detail)
    if status == 409:
        return ConflictError(detail, field)
    if status in (400, 404, 413, 415, 422):
        return InputError(detail, field) if len(faults) < 2 else BatchError(faults)
    return StoreError(detail) if status == 503 else ServiceError(detail)


def _fault(data: Mapping[str, Any]) -> Fault:
    """From its path with dots; numbers in it are places in a list."""
    steps = str(data.get("field", "")).split(".")
    path = tuple(int(step) if step.isdecimal() else step for step in steps if step)
    return Fault(path, str(data.get("detail", "")), data.get("line"), data.get("row"))
