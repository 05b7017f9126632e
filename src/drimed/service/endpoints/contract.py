"""What endpoints take and answer: parameters, bodies field by field, errors, and how all of it is described.

The bodies of changes are with the changes, in `drimed.trial.changes`.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Annotated, Any

from fastapi import Header
from fastapi import Path as InPath
from pydantic import ConfigDict, Field, model_validator

from drimed.records import Path, Report
from drimed.service.problems import MEDIA as PROBLEM
from drimed.service.problems import Problem
from drimed.service.route import JSON, ROLE
from drimed.trial.changes import Body, Label, Reason
from drimed.trial.parts import Finite, User, Value

MOST = 10_000  # users or outcomes in one request
LARGEST = 2**31 - 1  # number of a decision or an event
EXAMPLES: dict[str, Any] = json.loads((resources.files(__package__) / "examples.json").read_text(encoding="utf-8"))
ERRORS = {
    400: "The body is not JSON, or a header cannot be read.",
    401: "The token is missing, unknown, expired or revoked.",
    403: "The token's role or its trial does not allow this.",
    404: "The trial or the decision does not exist.",
    409: "The request contradicts what is recorded, or the trial is paused or stopped.",
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
WRITING = (*READING, 400, 409, 413, 415)


# Descriptions


def reading(role: str, model: Any, *, example: Any = None) -> dict[str, Any]:
    """For an endpoint that reads."""
    return _described(role, model, example, 200, READING)


def writing(role: str, model: Any, *, example: Any = None, status: int = 200) -> dict[str, Any]:
    """For an endpoint that may be repeated with an Idempotency-Key."""
    made = _described(role, model, example, status, WRITING)
    made["responses"][status]["headers"] = dict(REPLAYED)
    return made


def problem(status: int) -> dict[str, Any]:
    """An error's description."""
    schema = {"$ref": f"#/components/schemas/{Problem.__name__}"}
    described: dict[str, Any] = {"description": ERRORS[status], "content": {PROBLEM: {"schema": schema}}}
    return described | ({"headers": RETRY_AFTER} if status in (429, 503) else {})


def _described(role: str, model: Any, example: Any, status: int, errors: tuple[int, ...]) -> dict[str, Any]:
    content: dict[str, Any] = {} if example is None else {JSON: {"example": example}}
    return {
        "status_code": status,
        "responses": {status: {"model": model, "content": content}} | {code: problem(code) for code in errors},
        "response_model": None,
        "openapi_extra": {ROLE: role},
    }


# Parameters

TrialName = Annotated[str, InPath(description="The trial's name.", examples=["maize-nitrogen"])]
DecisionNumber = Annotated[int, InPath(ge=1, le=LARGEST, description="The decision's number.", examples=[17])]
_KEY = Header(
    alias="Idempotency-Key",
    description="Your own name for this request, 1 to 200 printable characters. A repeated request with the same "
    "key gets the first answer again, and nothing is done twice.",
    examples=["5d2c7f1a-ask-4-north"],
)


async def idempotency_key(_: Annotated[str | None, _KEY] = None) -> None:
    """Described for every write; `retry_of` reads it."""


# Bodies

Context = Annotated[dict[str, Value], Field(description="field → number, or the level of a category")]
Attributes = Annotated[dict[str, Value], Field(description="attribute → number, or the level of a category")]
Plots = dict[Label, list[Label]] | list[Label]
Contexts = Annotated[dict[str, Context], Field(max_length=MOST)]
Values = dict[str, Finite | None]
Outcome = Annotated[Values, Field(description="metric → value")]
ControlPlot = Annotated[
    Values | None, Field(description="The outcome of the control plot, where feedback is `difference`.")
]
Number = Annotated[int, Field(ge=1, le=LARGEST)]
DryRun = Annotated[bool, Field(description="Show what would happen, and write nothing.")]
Confirm = Annotated[
    bool, Field(description="Record values outside the range of their metric too; without it they are refused.")
]

ConfirmKnown = Annotated[
    bool, Field(description="Take unlikely values and plots that are not declared too; without it they are refused.")
]


def _example(*others: dict[str, Any], **fields: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [fields, *others]})


SeasonName = Annotated[str, Field(min_length=1, max_length=100)]
SeasonDate = Annotated[str, Field(min_length=8, max_length=10, description="As 2026-03-15 or 15.03.2026.")]


class EpisodeBody(Body):
    """The next episode, with what is known of its users."""

    model_config = _example(number=4, contexts={"north": {"rain": 410}, "hill": {"rain": 520}})

    number: Number | None = Field(None, description="Its number. Opening the episode that is open does nothing.")
    name: SeasonName | None = Field(None, description='What it is called, as "spring 2026"; the same as a number.')
    date: SeasonDate | None = Field(None, description="When it begins.")
    contexts: Contexts = Field(default_factory=dict, description="user → field → value")
    unavailable: dict[str, list[Label]] = Field(
        default_factory=dict, description='user (or "" for all) → arms that they cannot get in this episode'
    )
    confirm: ConfirmKnown = False
    dry_run: DryRun = False


class AskBody(Body):
    """Who gets an arm: `user` for one, `users` for some, neither for all.

    A user with plots gets a decision for each of them, or for those that are named. With open enrolment, somebody
    unknown joins in the same step.
    """

    model_config = _example(
        {"user": "patient 4711", "attributes": {"age": 61, "sex": "f"}, "cohort": "outpatients"},
        {"users": ["north", "hill"], "plots": {"north": {"A": ["A1", "A2"]}, "hill": ["7", "8"]}},
        user="north",
        context={"rain": 410},
    )

    user: Label | None = None
    users: Annotated[list[Label], Field(min_length=1, max_length=MOST)] | None = None
    context: Context | None = Field(None, description="Of `user`, unless it was given when the episode was opened.")
    contexts: Contexts = Field(default_factory=dict, description="Of several: user → field → value")
    attributes: Attributes | None = Field(
        None, description="Of `user`, who joins with them or has joined with the same."
    )
    cohort: Label | None = Field(None, description="Of `user`: whose defaults somebody new takes.")
    enrol: Annotated[dict[Label, User], Field(max_length=MOST)] = Field(
        default_factory=dict, description="Of several: user → how somebody new joins (attributes, cohort, group, ...)"
    )
    plot: Label | None = Field(None, description="Of `user`: only this plot.")
    block: Label | None = Field(None, description="Of `plot`.")
    plots: Annotated[dict[Label, Plots], Field(max_length=MOST)] = Field(
        default_factory=dict, description="Of several: user → plots, or user → block → plots; left out: all of them"
    )
    unavailable: list[Label] = Field(default_factory=list, description="Arms that cannot be given now.")
    episode: Number | None = Field(
        None, description="The episode this is for. The next one is opened, with these contexts, in the same step."
    )
    season: SeasonName | None = Field(None, description="The same by name; one with a new name is opened.")
    date: SeasonDate | None = Field(None, description="When a season that is opened begins.")
    confirm: ConfirmKnown = False
    dry_run: DryRun = False

    @model_validator(mode="after")
    def _one_way(self) -> AskBody:
        if self.user is not None and (self.users is not None or self.contexts or self.enrol or self.plots):
            raise ValueError("give `user` and what is known about it, or `users` with tables by user, not both")
        for field, table in _OF_ONE.items():
            if self.user is None and getattr(self, field) is not None:
                raise ValueError(f"`{field}` belongs to `user`; for several give `{table}`")
        if self.block is not None and self.plot is None:
            raise ValueError("`block` belongs to `plot`")
        return self

    @property
    def wanted(self) -> list[str] | None:
        """The users; None: all."""
        return [self.user] if self.user is not None else self.users

    @property
    def known(self) -> dict[str, Any]:
        """What is known about them, as the trial takes it."""
        if self.user is None:
            return {"contexts": self.contexts, "enrol": self.enrol, "plots": self.plots}
        about: dict[str, Any] = {}
        if self.context is not None:
            about["contexts"] = {self.user: self.context}
        if self.attributes is not None or self.cohort is not None:
            about["enrol"] = {self.user: {"attributes": self.attributes, "cohort": self.cohort}}
        if self.plot is not None:
            about["plots"] = {self.user: [self.plot] if self.block is None else {self.block: [self.plot]}}
        return about

    def place(self, path: Path) -> Path:
        """Where a fault of the trial's parameters is in this body."""
        if self.user is None:
            return path
        places: dict[Any, Path] = {
            "users": ("user",), "contexts": ("context", *path[2:]), "enrol": path[2:] or ("user",), "plots": ("plot",)
        }  # fmt: skip
        return places.get(path[0], path) if path else path


# What is about one user, and the tables for several.
_OF_ONE = {"context": "contexts", "attributes": "enrol", "cohort": "enrol", "plot": "plots", "block": "plots"}


class OutcomeBody(Body):
    """The outcome of one decision. Metrics that are still to come may be left out."""

    model_config = _example(outcome={"yield": 8.4, "leaching": 21})

    outcome: Outcome
    control: ControlPlot = None
    confirm: Confirm = False
    dry_run: DryRun = False

    def report(self, decision: int) -> Report:
        """As the trial takes it."""
        return Report(decision, self.outcome, self.control)


class AmendBody(OutcomeBody):
    """A correction; null takes a value back. The old values stay in the log."""

    model_config = _example(outcome={"yield": 4.8}, reason="two digits were swapped", saw={"yield": 8.4})

    reason: Reason
    saw: Values | None = Field(
        None, description="The values as you read them; if one of them has changed since, the correction is refused."
    )
    saw_control: Values | None = Field(None, description="The same of the control plot.")

    def seen(self, decision: int) -> Report | None:
        """As the trial takes it."""
        if self.saw is None and self.saw_control is None:
            return None
        return Report(decision, self.saw or {}, self.saw_control)


class ReportBody(Body):
    """The outcome of a decision."""

    model_config = _example(decision=17, outcome={"yield": 8.4, "leaching": 21})

    decision: Number
    outcome: Outcome
    control: ControlPlot = None


class TellBody(Body):
    """Outcomes: all of them are recorded, or none."""

    model_config = _example(reports=[{"decision": 17, "outcome": {"yield": 8.4, "leaching": 21}}])

    reports: Annotated[list[ReportBody], Field(min_length=1, max_length=MOST)]
    confirm: Confirm = False
    dry_run: DryRun = False


class MissingBody(Body):
    """An outcome, or the rest of it, that will not come."""

    model_config = _example(reason="hail")

    reason: Reason
    dry_run: DryRun = False
