"""What the description of every endpoint says: its answers with an example, its errors, and the role it needs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Path

from drimed.guards.guard import REASONS, UNCHANGED
from drimed.service.problems import MEDIA as PROBLEM
from drimed.service.problems import Problem
from drimed.service.route import JSON, MEDIA, ROLE

ERRORS = {
    400: "The body is not JSON, or a header cannot be read.",
    401: "The token is not there, unknown, expired or revoked.",
    403: "The token's role or its trial does not allow this.",
    404: "The trial or the decision does not exist.",
    409: "It contradicts what is recorded, or the trial is paused or stopped.",
    413: "The body is too large.",
    415: "The Content-Type is not supported.",
    422: "Something in the request is invalid, or must be confirmed (`urn:drimed:unconfirmed`); `errors` names the "
    "fields. Also an Idempotency-Key that was used for another request.",
    429: "Too many requests; `Retry-After` says when to try again.",
    500: "An error of the service itself.",
    503: "The store is not available now; try again later.",
}
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait before another try.", "schema": {"type": "integer"}}}
REPLAYED = {
    "Idempotency-Replayed": {
        "description": "`true`: the request was made before, and this is its first answer.",
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
        description="Your own name for this request, 1 to 200 printable characters. A repeated request with the same "
        "key gets the first answer again, and nothing is done twice.",
        examples=["5d2c7f1a-ask-4-north"],
    ),
]


DECISION: dict[str, Any] = {
    "id": 17,
    "episode": 4,
    "user": "north",
    "arm": "split",
    "probabilities": {"practice": 0.2, "split": 0.75, "reduced": 0.05},
    "propensity": 0.75,
    "reason": REASONS[UNCHANGED],
    "share": 1.0,
    "effects": {
        "practice": {"estimate": 0.0, "low": 0.0, "high": 0.0},
        "split": {"estimate": 41.5, "low": -12.3, "high": 95.3},
        "reduced": {"estimate": -20.1, "low": -80.0, "high": 39.8},
    },
    "context": {"rain": 410.0},
    "unavailable": [],
    "state_version": 61,
    "time": "2026-04-02T08:15:30.123456+00:00",
    "actor": "field office",
    "repeated": False,
    "state": "pending",
    "outcome": None,
    "control": None,
    "reward": None,
    "amendments": 0,
}
RECEIPT: dict[str, Any] = {
    "decision": 17,
    "result": "recorded",
    "state": "partial",
    "outcome": {"yield": 8.4},
    "control": None,
    "waits_for": ["leaching"],
}
SPEC: dict[str, Any] = {
    "name": "maize-nitrogen",
    "control": "practice",
    "preference": {"yield": 200, "leaching": -3},
    "metrics": {"yield": {"unit": "t/ha", "range": [0, 15]}, "leaching": {"range": [0, 80], "better": "lower"}},
    "arms": {"practice": {}, "split": {}, "reduced": {}},
    "users": {"north": {"group": "sand"}, "hill": {"group": "loam"}},
    "tolerance": {"relative": 0.1, "absolute": 60},
}
STATUS: dict[str, Any] = {
    "name": "maize-nitrogen",
    "about": "",
    "status": "running",
    "episode": 4,
    "users": 2,
    "arms": ["practice", "split", "reduced"],
    "retired": [],
    "decisions": 8,
    "pending": 1,
    "partial": 1,
    "complete": 5,
    "missing": 1,
    "amendments": 0,
    "policy": "dri_med",
    "created": "2026-04-02T08:15:30.123456+00:00",
    "events": 62,
    "hash": "0d5f" * 16,
    "notes": [],
}


def reading(role: str, model: Any, *, example: Any = None, status: int = 200) -> dict[str, Any]:
    """For an endpoint that reads."""
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
