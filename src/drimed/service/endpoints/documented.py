"""What the description of every endpoint says: its answers, the errors it may give, and the role it needs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Path

from drimed.service.answers import Problem
from drimed.service.problems import MEDIA as PROBLEM
from drimed.service.route import JSON, MEDIA, ROLE

ERRORS = {
    400: "The body is not JSON, or a header cannot be read.",
    401: "No token came, or one that is unknown, expired or revoked.",
    403: "The token's role or its trial does not allow this.",
    404: "There is no such trial or decision.",
    409: "It contradicts what is recorded, or the trial is paused or stopped.",
    413: "The body is too large.",
    415: "The Content-Type is not one of those expected.",
    422: "Something in the request cannot be used; `errors` names the fields. Also an Idempotency-Key that came before "
    "with another request.",
    429: "Too many requests; `Retry-After` says when to come back.",
    500: "A fault of the service.",
    503: "The store cannot be reached now; come back.",
}
RETRY_AFTER = {"Retry-After": {"description": "Seconds until it is worth another try.", "schema": {"type": "integer"}}}
REPLAYED = {
    "Idempotency-Replayed": {
        "description": "`true`: this is the answer that the same request with the same Idempotency-Key got first.",
        "schema": {"type": "string", "enum": ["true"]},
    }
}
READING = (401, 403, 404, 422, 429, 500, 503)
WRITING = (400, 401, 403, 404, 409, 413, 415, 422, 429, 500, 503)

TrialName = Annotated[str, Path(description="The trial's name.", examples=["maize-nitrogen"])]
DecisionNumber = Annotated[int, Path(ge=1, le=2**31 - 1, description="The decision's number.", examples=[17])]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Your own name for this request, 1 to 200 printable characters. Repeated with the same request, it "
        "is answered with what was answered first, and nothing is done twice.",
        examples=["5d2c7f1a-ask-4-north"],
    ),
]


def reading(role: str, model: Any, *, example: Any = None, status: int = 200) -> dict[str, Any]:
    """For an endpoint that only looks."""
    return _described(role, model, example, status, READING)


def writing(role: str, model: Any, *, example: Any = None, status: int = 200, **more: Any) -> dict[str, Any]:
    """For an endpoint that may be repeated with an Idempotency-Key."""
    return _described(role, model, example, status, WRITING, headers=dict(REPLAYED), **more)


def problem(status: int) -> dict[str, Any]:
    """An error's description."""
    schema = {"$ref": f"#/components/schemas/{Problem.__name__}"}
    described: dict[str, Any] = {"description": ERRORS[status], "content": {PROBLEM: {"schema": schema}}}
    return described | ({"headers": RETRY_AFTER} if status in (429, 503) else {})


def _described(
    role: str,
    model: Any,
    example: Any,
    status: int,
    errors: tuple[int, ...],
    media: list[str] | None = None,
    headers: dict[str, Any] | None = None,
) -> dict[str, Any]:
    content: dict[str, Any] = {} if example is None else {JSON: {"example": example}}
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": model, "content": content} | ({} if headers is None else {"headers": headers})
    }
    responses |= {code: problem(code) for code in errors}
    return {
        "status_code": status,
        "responses": responses,
        "response_model": None,
        "openapi_extra": {ROLE: role} | ({} if media is None else {MEDIA: media}),
    }
