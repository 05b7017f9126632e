"""Refusals as problem+json (RFC 9457): type, title, status, detail, and the fields at fault with their paths."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Any

from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from drimed import errors
from drimed.errors import DrimedError, UnknownNameError
from drimed.records import Fault
from drimed.service.settings import FIELDS
from drimed.trial.events import to_json

log = logging.getLogger(__name__)
request_id: ContextVar[str] = ContextVar("request_id", default="-")  # of the request that is being answered
MEDIA = "application/problem+json"
MOST_FAULTS = 200  # that one answer lists
CONFIRM = 'send it again with "confirm": true'  # remedy for unlikely values


@dataclass(frozen=True)
class FieldError:
    """A field that is wrong."""

    path: list[str | int]  # from the top of the body to the field; empty: the whole body
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


class Refusal(Exception):  # noqa: N818  # an answer, not a fault of the service
    """A refused request."""

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

    @property
    def title(self) -> str:
        return HTTPStatus(self.status).phrase

    def response(self) -> Response:
        data: dict[str, Any] = {"type": f"urn:drimed:{self.kind}", "title": self.title}
        data |= {"status": self.status, "detail": self.detail}
        if self.errors:
            data["errors"] = self.errors[:MOST_FAULTS]
        if self.unknown is not None:
            data |= {"kind": self.unknown.kind, "name": self.unknown.name}
        return Response(to_json(data).encode(), self.status, self.headers, MEDIA)


def unavailable(detail: str, seconds: int = 1) -> Refusal:
    """A refusal that is worth another try."""
    return Refusal(503, "unavailable", detail, headers={"Retry-After": str(seconds)})


def refusal(
    error: Refusal | HTTPException | DrimedError, where: str | None = None, named: Collection[str] = ()
) -> Refusal:
    """The answer to an error.

    `where` is the part of the request with the faults, if not the body; `named` are the things that the address names.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, HTTPException):
        kind = {404: "unknown", 405: "method"}.get(error.status_code, "malformed")
        return Refusal(error.status_code, kind, error.detail, headers=error.headers)
    faults = error.faults[:MOST_FAULTS]
    listed = [_listed(fault, where) for fault in faults]
    unknown = error if isinstance(error, UnknownNameError) else None
    if unknown is not None and unknown.kind in ("trial", *named):  # names of other trials are not for everybody
        return Refusal(404, "unknown", f"unknown {unknown.kind} {unknown.name!r}", unknown=unknown)
    match error:
        case errors.UnconfirmedError():
            return Refusal(422, "unconfirmed", str(errors.UnconfirmedError(faults, CONFIRM)), errors=listed)
        case errors.SpecError() | errors.BatchError():
            kind = "spec" if isinstance(error, errors.SpecError) else "batch"
            return Refusal(422, kind, str(type(error)(faults)), errors=listed)
        case errors.ConflictError():
            return Refusal(409, "conflict", str(error), errors=listed)
        case errors.InputError() | errors.ConfigError():
            return Refusal(422, "invalid", str(error), errors=listed, unknown=unknown)
        case errors.NumericalError():
            advice = "; look for outcomes of quite another size than the rest, and amend them"
            return Refusal(409, "conflict", str(error) + advice)
        case errors.MissingExtraError():
            return Refusal(503, "unavailable", f"not on this server: {error}")
        case errors.StoreError():  # its text names the database, its host or its file
            own_id = request_id.get()
            log.error("%s", error, extra={FIELDS: {"request_id": own_id}})
            return unavailable(f"the store cannot be used now; the service's log has more under request id {own_id}")
    return Refusal(500, "internal", str(error))


def invalid(errors: Iterable[Mapping[str, Any]]) -> Refusal:
    """The answer to pydantic's errors."""
    listed = []
    for error in islice(errors, MOST_FAULTS):
        part, *path = error["loc"] or ("body",)
        message = str(error["msg"]).removeprefix("Value error, ")
        listed.append(_listed(Fault(tuple(path), message), None if part == "body" else str(part)))
    detail = "\n".join(f"{'.'.join(map(str, e['path'])) or 'the request'}: {e['detail']}" for e in listed)
    return Refusal(422, "invalid", detail, errors=listed)


def _listed(fault: Fault, where: str | None) -> dict[str, Any]:
    optional = {"line": fault.line, "row": fault.row, "in": where}
    return {"path": list(fault.path), "detail": fault.message} | {k: v for k, v in optional.items() if v is not None}
