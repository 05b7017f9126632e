"""Errors as problem+json (RFC 9457): type, title, status, detail, and which fields are at fault."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from drimed.errors import (
    BatchError,
    ConfigError,
    ConflictError,
    DrimedError,
    InputError,
    MissingExtraError,
    NumericalError,
    SpecError,
    StoreError,
    UnconfirmedError,
    UnknownNameError,
)
from drimed.records import Fault, Path
from drimed.service.logs import FIELDS
from drimed.trial.events import written

log = logging.getLogger(__name__)
request_id: ContextVar[str] = ContextVar("request_id", default="-")  # of the request that is being answered
MEDIA = "application/problem+json"
MOST_FAULTS = 200  # that one answer lists
CONFIRM = 'send it again with "confirm": true'  # unlikely values
DECISION: Path = ("decision",)  # of an error about the decision that the address names

# kind: its title
TITLES = {
    "malformed": "The request cannot be read",
    "unauthenticated": "A valid token is needed",
    "forbidden": "This token is not allowed to do that",
    "unknown": "Not found",
    "method": "This address does not support that method",
    "conflict": "Conflict with what is recorded",
    "too-large": "The request is too large",
    "media-type": "The content type is not supported",
    "invalid": "The request is invalid",
    "spec": "The definition is invalid",
    "batch": "Some of the items are invalid",
    "unconfirmed": "Unlikely values must be confirmed",
    "key-reused": "The idempotency key was used for another request",
    "too-many": "Too many requests",
    "internal": "Internal error",
    "unavailable": "The service is not available now",
}


@dataclass(frozen=True)
class FieldError:
    """One field that is wrong."""

    field: str  # its path in the body, with dots; empty: the whole body
    detail: str
    line: int | None = None  # of a trial file
    row: int | None = None  # of a sheet
    where: Annotated[str | None, Field(alias="in")] = None  # query, path or header, where it is not the body


@dataclass(frozen=True)
class Problem:
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldError] = field(default_factory=list)
    kind: str | None = None  # of an unknown name: trial, decision, user, arm, metric, ...
    name: str | None = None  # the name that is unknown


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
        unknown: UnknownNameError | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, detail
        self.errors, self.headers, self.unknown = list(errors), dict(headers or {}), unknown

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
        if self.unknown is not None:
            data |= {"kind": self.unknown.kind, "name": self.unknown.name}
        return Response(written(data).encode(), self.status, self.headers, MEDIA)


def of_error(
    error: DrimedError, place: Callable[[Path], Path] = lambda path: path, where: str | None = None
) -> Refusal:
    """One of drimed's errors as an answer.

    `place` leads from the path of a fault in the trial's parameters to the field of the request, `where` says in which
    part of the request that is, if not in the body.
    """
    faults = [Fault(place(f.path), f.message, f.line, f.row) for f in error.faults[:MOST_FAULTS]]
    errors = [_listed(f) | ({} if where is None else {"in": where}) for f in faults]
    unknown = error if isinstance(error, UnknownNameError) else None
    if unknown is not None and (unknown.kind == "trial" or [f.path for f in faults] == [DECISION]):
        # Which other names there are is not for everybody.
        return Refusal(404, "unknown", f"unknown {unknown.kind} {unknown.name!r}", unknown=unknown)
    if isinstance(error, SpecError | BatchError):
        kind = "spec" if isinstance(error, SpecError) else "batch"
        if isinstance(error, UnconfirmedError):
            return Refusal(422, "unconfirmed", str(UnconfirmedError(faults, CONFIRM)), errors=errors)
        return Refusal(422, kind, str(type(error)(faults)), errors=errors)
    if isinstance(error, ConflictError):
        return Refusal(409, "conflict", str(error), errors=errors)
    if isinstance(error, InputError | ConfigError):
        return Refusal(422, "invalid", str(error), errors=errors, unknown=unknown)
    if isinstance(error, NumericalError):
        advice = "; look for outcomes of quite another size than the rest, and amend them"
        return Refusal(409, "conflict", str(error) + advice)
    if isinstance(error, MissingExtraError):
        return Refusal(503, "unavailable", f"not on this server: {error}")
    if isinstance(error, StoreError):  # its words name the database, its host or its file
        log.error("%s", error, extra={FIELDS: {"request_id": request_id.get()}})
        detail = f"the store cannot be used now; the service's log has more under request id {request_id.get()}"
        return Refusal(503, "unavailable", detail, headers={"Retry-After": "1"})
    return Refusal(500, "internal", str(error))


def of_validation(found: Iterable[Mapping[str, Any]]) -> Refusal:
    """What pydantic found wrong with a request."""
    errors = []
    for one in islice(found, MOST_FAULTS):
        part, *path = one["loc"] or ("body",)
        fault = _listed(Fault(tuple(path), str(one["msg"]).removeprefix("Value error, ")))
        errors.append(fault if part == "body" else fault | {"in": str(part)})
    detail = "\n".join(f"{e['field'] or 'the request'}: {e['detail']}" for e in errors)
    return Refusal(422, "invalid", detail, errors=errors)


def _listed(fault: Fault) -> dict[str, Any]:
    places = {name: value for name, value in (("line", fault.line), ("row", fault.row)) if value is not None}
    return {"field": ".".join(map(str, fault.path)), "detail": fault.message} | places
