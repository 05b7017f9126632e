"""Errors as problem+json (RFC 9457): type, title, status, detail, and which fields are at fault."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from drimed.errors import (
    BatchError,
    ConfigError,
    ConflictError,
    DrimedError,
    InputError,
    NumericalError,
    SpecError,
    StoreError,
    UnknownNameError,
)
from drimed.service.wire import written

MEDIA = "application/problem+json"
MOST_FAULTS = 200  # that one answer lists
_QUOTED = re.compile(r"'([^']+)'")

# kind: its title
TITLES = {
    "malformed": "The request cannot be read",
    "unauthenticated": "A valid token is needed",
    "forbidden": "This token may not do that",
    "unknown": "There is no such thing",
    "method": "This address does not take that method",
    "conflict": "It contradicts what is recorded",
    "too-large": "The request is too large",
    "media-type": "The content type is not one of those expected",
    "invalid": "The request cannot be used",
    "key-reused": "The idempotency key was used for another request",
    "too-many": "Too many requests",
    "internal": "Something went wrong here",
    "unavailable": "The service cannot do that now",
}


class Refusal(Exception):  # noqa: N818  # it is an answer, not a fault of ours
    """A request that is refused, and how."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        errors: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, detail
        self.errors, self.headers = list(errors), dict(headers or {})

    def response(self) -> Response:
        """As it is sent."""
        data: dict[str, Any] = {
            "type": f"urn:drimed:{self.kind}",
            "title": TITLES[self.kind],
            "status": self.status,
            "detail": self.detail,
        }
        if self.errors:
            data["errors"] = self.errors[:MOST_FAULTS]
        return Response(written(data), self.status, self.headers, MEDIA)


def of_error(error: DrimedError, body: object = None) -> Refusal:
    """One of drimed's errors as an answer; `body` is what was sent, to find the field at fault in it."""
    detail = str(error)
    if isinstance(error, SpecError):
        return Refusal(422, "invalid", detail, errors=[_fault(f.path, f.message, f.line) for f in error.faults])
    if isinstance(error, UnknownNameError) and error.kind in ("trial", "decision"):
        return Refusal(404, "unknown", f"unknown {error.kind} {error.name!r}")  # which others there are is not for all
    if isinstance(error, BatchError):
        errors = [_fault(("reports", i), message) for i, message in sorted(error.errors.items())]
        return Refusal(422, "invalid", detail, errors=errors)
    if isinstance(error, ConflictError):
        return Refusal(409, "conflict", detail, errors=_placed(_named(error), detail, body))
    if isinstance(error, InputError | ConfigError):
        return Refusal(422, "invalid", detail, errors=_placed(_named(error), detail, body))
    if isinstance(error, NumericalError):
        advice = "; look for outcomes of quite another size than the rest, and amend them"
        return Refusal(409, "conflict", detail + advice)
    if isinstance(error, StoreError):
        return Refusal(503, "unavailable", detail, headers={"Retry-After": "1"})
    return Refusal(500, "internal", detail)


def of_validation(found: Iterable[Mapping[str, Any]]) -> Refusal:
    """What pydantic found wrong with a request."""
    faults = []
    for one in found:
        loc = tuple(one["loc"])
        place = loc[1:] if loc[:1] == ("body",) else loc[1:] if loc[:1] in (("query",), ("path",), ("header",)) else loc
        fault = _fault(place, str(one["msg"]).removeprefix("Value error, "))
        faults.append(fault if loc[:1] == ("body",) or not loc else fault | {"in": str(loc[0])})
    detail = "\n".join(f"{f['field'] or 'the request'}: {f['detail']}" for f in faults[:MOST_FAULTS])
    return Refusal(422, "invalid", detail, errors=faults)


def _fault(path: Sequence[str | int], message: str, line: int | None = None) -> dict[str, Any]:
    fault: dict[str, Any] = {"field": ".".join(map(str, path)), "detail": message}
    return fault if line is None else fault | {"line": line}


def _named(error: DrimedError) -> list[str]:
    return [error.name] if isinstance(error, UnknownNameError) else _QUOTED.findall(str(error))


def _placed(names: list[str], detail: str, body: object) -> list[dict[str, Any]]:
    """The field of the body that the error speaks of, by the first name in it that stands in the body."""
    for name in names:
        path = _path_to(body, name)
        if path is not None:
            return [_fault(path, detail)]
    return []


def _path_to(data: object, name: str) -> tuple[str | int, ...] | None:
    """Where a name is a key or a value."""
    inside: Iterable[tuple[str | int, object]]
    if isinstance(data, dict):
        if name in data:
            return (name,)
        inside = data.items()
    elif isinstance(data, list):
        inside = enumerate(data)
    else:
        return () if data == name else None
    for step, value in inside:
        path = _path_to(value, name)
        if path is not None:
            return (step, *path)
    return None
