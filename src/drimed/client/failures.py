"""Refusals of the service as drimed's own errors, as if the trial were here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from drimed.errors import (
    AccessError,
    BatchError,
    ConflictError,
    DrimedError,
    Fault,
    InputError,
    ServiceError,
    SpecError,
    StoreError,
    UnknownNameError,
)

_REPORT = re.compile(r"reports\.(\d+)")
_UNKNOWN = re.compile(r"unknown (\w+) '([^']*)'")


def error_of(status: int, data: object) -> DrimedError:
    """What to raise for an answer that is no success; `data` is its problem+json."""
    problem = data if isinstance(data, Mapping) else {}
    detail = str(problem.get("detail") or f"the service answered with status {status}")
    kind = str(problem.get("type", "")).rpartition(":")[2]
    faults: list[Mapping[str, Any]] = [f for f in problem.get("errors", []) if isinstance(f, Mapping)]
    if status in (401, 403):
        return AccessError(detail)
    if status == 404 and (found := _UNKNOWN.match(detail)):
        error = UnknownNameError(found[1], found[2], ())
        error.args = (detail,)
        return error
    if status == 409:
        return ConflictError(detail)
    if status == 422 and kind == "invalid":
        return _invalid(detail, faults)
    if status in (400, 404, 413, 415, 422):
        return InputError(detail)
    if status == 503:
        return StoreError(detail)
    return ServiceError(detail)


def _invalid(detail: str, faults: list[Mapping[str, Any]]) -> DrimedError:
    places = [_REPORT.fullmatch(str(f.get("field", ""))) for f in faults]
    if faults and all(places):
        return BatchError({int(p[1]): str(f["detail"]) for p, f in zip(places, faults, strict=True) if p}, "report")
    if any("line" in f for f in faults) or len(faults) > 1:
        return SpecError(
            Fault(tuple(str(f.get("field", "")).split(".")), str(f.get("detail", "")), f.get("line")) for f in faults
        )
    if found := _UNKNOWN.match(detail):
        error = UnknownNameError(found[1], found[2], ())
        error.args = (detail,)
        return error
    return InputError(detail)
