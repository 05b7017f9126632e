"""The HTTP interface: trials, decisions, outcomes, changes, the log, exports, proofs, effects and health."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query
from fastapi import Path as InPath
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as PLAIN
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from drimed import records
from drimed.errors import InputError, SpecError, UnknownNameError
from drimed.records import Decision, Effect, Event, Fault, Head, Look, Page, Receipt, Report, Status
from drimed.reports.analysis import Analysis
from drimed.reports.effects import Inference, own_effects
from drimed.service import problems, routing
from drimed.service.auth import ANY, ASK_TELL, BLINDED, MANAGE, READ, TELL
from drimed.service.problems import Problem, Refusal, unavailable
from drimed.service.routing import JSON, answer, caller_of, media_of, replied, retry_of, service_of
from drimed.service.runtime import HEAVY, Reply, Service
from drimed.trial import ask as asking
from drimed.trial import queries, tables, template
from drimed.trial import tell as telling
from drimed.trial.blinding import blinded_decision, blinded_history, blinded_member, blinded_status
from drimed.trial.changes import CHANGES, Body, Change, Label, Reason
from drimed.trial.events import CREATED, KINDS, LOOK
from drimed.trial.export import Export, in_workbook
from drimed.trial.policy import notes
from drimed.trial.problem import Problem as TrialProblem
from drimed.trial.spec import Finite, TrialSpec, Value
from drimed.trial.state import TrialState
from drimed.trial.stopping import look_record
from drimed.trial.store import Search
from drimed.trial.tables import decode_utf
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

MOST = 10_000  # users or outcomes in one request
LARGEST = 2**31 - 1  # number of a decision or an event
LARGEST_TOML = 1024 * 1024  # bytes: faults are given their lines by reading the file again and again
READY_WITHIN = 2.0  # seconds that the store has to answer
TOML = "application/toml"
TRIALS, DECIDING, CHANGING, LOOKING = "trials", "asking and telling", "changing a trial", "looking back"
HEALTH = "health"
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
READING = (401, 403, 404, 422, 429, 500, 503)
WRITING = (*READING, 400, 409, 413, 415)

routes = APIRouter(route_class=routing.Guarded, prefix="/v1")
health = APIRouter(tags=[HEALTH])
Act = Callable[[Transaction], Any]  # returns the record to answer with


# Descriptions


def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{Problem.__name__}"}
    described: dict[str, Any] = {"description": ERRORS[status], "content": {problems.MEDIA: {"schema": schema}}}
    if status in (429, 503):
        header = {"description": "Seconds to wait before another try.", "schema": {"type": "integer"}}
        described["headers"] = {"Retry-After": header}
    return described


def _described(role: str, model: Any, example: Any, status: int, errors: tuple[int, ...]) -> dict[str, Any]:
    content: dict[str, Any] = {} if example is None else {JSON: {"example": example}}
    return {
        "status_code": status,
        "responses": {status: {"model": model, "content": content}} | {code: _problem(code) for code in errors},
        "response_model": None,
        "openapi_extra": {routing.ROLE: role},
    }


def _get(
    path: str, summary: str, name: str, model: Any, *, tag: str = LOOKING, role: str = READ, example: Any = None
) -> Callable[[Any], Any]:
    described = _described(role, model, example, 200, READING)
    return routes.get(path, summary=summary, operation_id=name, tags=[tag], **described)


def _writing(role: str, model: Any, example: Any, status: int = 200) -> dict[str, Any]:
    described = _described(role, model, example, status, WRITING)
    replayed = "`true`: the request was made before, and this is its first answer."
    header = {"description": replayed, "schema": {"type": "string", "enum": ["true"]}}
    described["responses"][status]["headers"] = {"Idempotency-Replayed": header}
    return described | {"dependencies": [Depends(_idempotency_key)]}


def _post(path: str, summary: str, name: str, model: Any, example: Any, *, role: str = TELL) -> Callable[[Any], Any]:
    described = _writing(role, model, example)
    described["openapi_extra"][routing.LARGE] = path in ("episodes", "ask", "tell")
    return routes.post(f"/trials/{{trial}}/{path}", summary=summary, operation_id=name, tags=[DECIDING], **described)


_KEY = Header(
    alias="Idempotency-Key",
    description="Your own name for this request, 1 to 200 printable characters. A repeated request with the same "
    "key gets the first answer again, and nothing is done twice.",
    examples=["5d2c7f1a-ask-4-north"],
)


async def _idempotency_key(_: Annotated[str | None, _KEY] = None) -> None:
    """Described for every write; `retry_of` reads it."""


# Parameters and bodies

_PRINTABLE = r"^[^\x00-\x1f]*$"
TrialName = Annotated[str, InPath(description="The trial's name.", examples=["maize-nitrogen"])]
DecisionNumber = Annotated[int, InPath(ge=1, le=LARGEST, description="The decision's number.", examples=[17])]
Limit = Annotated[int, Query(ge=1, le=1000)]
After = Annotated[str | None, Query(max_length=100, description="The `next` of the page before.")]
Before = Annotated[int | None, Query(ge=1, le=LARGEST, description="The `next` of the page before.")]


def _only(what: str) -> Any:
    return Query(max_length=100, pattern=_PRINTABLE, description=f"Only this {what}.")


Context = Annotated[dict[str, Value], Field(description="field → number, or the level of a category")]
Contexts = Annotated[dict[str, Context], Field(max_length=MOST, description="user → field → value")]
Values = dict[str, Finite | None]
Number = Annotated[int, Field(ge=1, le=LARGEST)]
SeasonName = Annotated[str, Field(min_length=1, max_length=100)]
SeasonDate = Annotated[str, Field(min_length=8, max_length=10, description="As 2026-03-15 or 15.03.2026.")]
DryRun = Annotated[bool, Field(description="Show what would happen, and write nothing.")]
Confirm = Annotated[bool, Field(description="Accept unlikely values, and plots that are not declared.")]


def _example(*others: dict[str, Any], **fields: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [fields, *others]})


class EpisodeBody(Body):
    """The next episode, with the contexts of its users."""

    model_config = _example(number=4, contexts={"north": {"rain": 410}, "hill": {"rain": 520}})

    number: Number | None = Field(None, description="Its number. Opening the episode that is open does nothing.")
    name: SeasonName | None = Field(None, description='Its name, as "spring 2026"; the same as a number.')
    date: SeasonDate | None = Field(None, description="When it begins.")
    contexts: Contexts = Field(default_factory=dict)
    unavailable: dict[str, list[Label]] = Field(
        default_factory=dict, description='user (or "" for all) → arms that they cannot get in this episode'
    )
    confirm: Confirm = False
    dry_run: DryRun = False


class AskBody(Body):
    """Users to decide for, and what is known about them.

    A user with plots gets a decision for each of them, or for those that are named. With open enrolment, an unknown
    user joins in the same step.
    """

    model_config = _example(
        {"users": ["patient 4711"], "enrol": {"patient 4711": {"attributes": {"age": 61}, "cohort": "outpatients"}}},
        {"users": ["north", "hill"], "plots": {"north": {"A": ["A1", "A2"]}, "hill": ["7", "8"]}},
        users=["north"],
        contexts={"north": {"rain": 410}},
    )

    users: Annotated[list[Label], Field(min_length=1, max_length=MOST)] | None = Field(
        None, description="Left out: all users."
    )
    contexts: Contexts = Field(default_factory=dict)
    enrol: Annotated[dict[Label, dict[str, Any]], Field(max_length=MOST)] = Field(
        default_factory=dict, description="new user → attributes, cohort, group, ..."
    )
    plots: Annotated[dict[Label, dict[Label, list[Label]] | list[Label]], Field(max_length=MOST)] = Field(
        default_factory=dict, description="user → plots, or user → block → plots; left out: all of them"
    )
    unavailable: list[Label] = Field(default_factory=list, description="Arms that cannot be given now.")
    episode: Number | None = Field(
        None, description="The episode this is for. The next one is opened, with these contexts, in the same step."
    )
    season: SeasonName | None = Field(None, description="The episode by its name; one with a new name is opened.")
    date: SeasonDate | None = Field(None, description="When a season that is opened begins.")
    confirm: Confirm = False
    dry_run: DryRun = False


class OutcomeBody(Body):
    """The outcome of one decision. Metrics that are still to come may be left out."""

    model_config = _example(outcome={"yield": 8.4, "leaching": 21})

    outcome: Values = Field(description="metric → value")
    control: Values | None = Field(None, description="The outcome of the control plot, where feedback is `difference`.")
    confirm: Confirm = False
    dry_run: DryRun = False


class AmendBody(OutcomeBody):
    """A correction; null takes a value back. The old values stay in the log."""

    model_config = _example(outcome={"yield": 4.8}, reason="two digits were swapped", saw={"yield": 8.4})

    reason: Reason
    saw: Values | None = Field(
        None, description="The values as you read them; if one of them has changed since, the correction is refused."
    )
    saw_control: Values | None = Field(None, description="The same of the control plot.")


class ReportBody(Body):
    """The outcome of a decision."""

    decision: Number
    outcome: Values
    control: Values | None = None


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


# Answers that are not records


@dataclass(frozen=True)
class Checked:
    """A trial that could be created, and advice to its author."""

    name: str
    notes: list[str]


@dataclass(frozen=True)
class Opened:
    """The episode that is open now."""

    episode: int


@dataclass(frozen=True)
class Decisions:
    """Decisions in the order of the request."""

    decisions: list[Decision]


@dataclass(frozen=True)
class Receipts:
    """Receipts in the order of the request."""

    receipts: list[Receipt]


@dataclass(frozen=True)
class LogEvent:
    """One line of a trial's log."""

    seq: int
    time: str
    actor: str
    kind: str
    decision: int | None
    user: str | None
    request: str | None
    hash: str
    body: dict[str, Any]


@dataclass(frozen=True)
class DecisionHistory(Decision):
    """A decision with its outcome as it stands, and all events about it."""

    history: list[LogEvent] = field(default_factory=list)


@dataclass(frozen=True)
class Effects(Page[Effect]):
    """Every arm against the control, user by user; give `next` as `after` to get what follows."""

    events: int  # of the log that this rests on


# Asking and telling


async def _write(request: Request, trial: str, act: Act, *, dry_run: bool = False, tells: bool = False) -> Response:
    """Do it once, in one transaction with its answer; a dry run writes nothing."""
    service, actor = service_of(request), caller_of(request).actor

    def try_it(opened: Trial) -> Any:
        with opened.writing(actor, dry_run=True) as tx:
            return act(tx)

    if dry_run:
        return answer(await service.read(trial, try_it))
    work = lambda tx: Reply(200, routing.encoded(act(tx)), tells=tells)  # noqa: E731
    return replied(await service.write(trial, work, actor=actor, retry=await retry_of(request)))


@_post("episodes", "Open an episode", "open_episode", Opened, {"episode": 4}, role=ASK_TELL)
async def open_episode(request: Request, trial: TrialName, body: EpisodeBody) -> Response:
    """Start the next episode, with the contexts of its users. (`ask` can do both in one step.)

    With `number` or `name` this is safe to repeat; without them, an Idempotency-Key keeps a repeated request from
    opening two.
    """

    def act(tx: Transaction) -> Opened:
        known = body.contexts, body.number, body.unavailable
        return Opened(asking.open_episode(tx, *known, name=body.name, date=body.date, confirm=body.confirm))

    return await _write(request, trial, act, dry_run=body.dry_run)


@_post("ask", "Ask which arm users get", "ask", Decisions, {"decisions": [EXAMPLES["decision"]]}, role=ASK_TELL)
async def ask(request: Request, trial: TrialName, body: AskBody) -> Response:
    """For some users or all of them, in one transaction and from one state.

    Where a user gets one decision in an episode, asking again returns the same one, with `repeated`. The first episode
    is opened by the first question. A user with plots has one decision for each plot. With open enrolment a new user
    joins in the same transaction. The Idempotency-Key is kept in the log beside the decision. A context or an attribute
    that is unlikely, or a plot that is not declared, is refused unless you `confirm` it.
    """
    retry = await retry_of(request)
    fields = {name: getattr(body, name) for name in AskBody.model_fields if name != "dry_run"}
    wanted = records.AskRequest(**fields, key=None if retry is None or body.dry_run else retry.name)
    return await _write(request, trial, lambda tx: Decisions(asking.ask(tx, wanted)), dry_run=body.dry_run)


@_post("tell", "Report outcomes", "tell", Receipts, {"receipts": [EXAMPLES["receipt"]]})
async def tell(request: Request, trial: TrialName, body: TellBody) -> Response:
    """All of the outcomes or, if one is refused, none; `errors` says which and why.

    The same value may be reported again. A different one is refused: amend it. So is a value outside the range of its
    metric, unless you `confirm` it.
    """
    told = records.TellRequest(
        reports=[Report(r.decision, r.outcome, r.control) for r in body.reports], confirm=body.confirm
    )
    act = lambda tx: Receipts(telling.tell(tx, told))  # noqa: E731
    return await _write(request, trial, act, dry_run=body.dry_run, tells=True)


@_post("decisions/{decision}/outcome", "Report one outcome", "tell_one", Receipt, EXAMPLES["receipt"])
async def tell_one(request: Request, trial: TrialName, decision: DecisionNumber, body: OutcomeBody) -> Response:
    """As `tell`, for the decision in the address; paths of errors are those of `tell`."""
    told = records.TellRequest(reports=[Report(decision, body.outcome, body.control)], confirm=body.confirm)
    return await _write(request, trial, lambda tx: telling.tell(tx, told)[0], dry_run=body.dry_run, tells=True)


_AMENDED = EXAMPLES["receipt"] | {"result": "amended"}
_MISSING = EXAMPLES["receipt"] | {"result": "missing", "state": "missing"}


@_post("decisions/{decision}/amend", "Correct an outcome", "amend", Receipt, _AMENDED)
async def amend(request: Request, trial: TrialName, decision: DecisionNumber, body: AmendBody) -> Response:
    """The old values stay in the log; null takes a value back.

    With `saw`, a correction of what was corrected meanwhile is refused (409), and says what is there now.
    """
    saw = None if body.saw is None and body.saw_control is None else Report(decision, body.saw or {}, body.saw_control)
    report = Report(decision, body.outcome, body.control)
    amended = records.AmendRequest(report=report, reason=body.reason, saw=saw, confirm=body.confirm)
    return await _write(request, trial, lambda tx: telling.amend(tx, amended), dry_run=body.dry_run, tells=True)


@_post("decisions/{decision}/missing", "Mark an outcome as missing", "mark_missing", Receipt, _MISSING)
async def missing(request: Request, trial: TrialName, decision: DecisionNumber, body: MissingBody) -> Response:
    """The outcome, or the rest of it, will not come. Recorded values are kept; late values can still be reported."""
    act = lambda tx: telling.mark_missing(tx, decision, body.reason)  # noqa: E731
    return await _write(request, trial, act, dry_run=body.dry_run, tells=True)


def _change_endpoint(change: Change) -> None:
    async def endpoint(request: Request, trial: TrialName, body: Any) -> Response:
        def act(tx: Transaction) -> Any:
            result = change.apply(tx, body)
            return queries.status(tx.state) if result is None else result

        return await _write(request, trial, act)

    endpoint.__annotations__["body"] = change.body
    described = _writing(MANAGE, change.answer, EXAMPLES[change.answer.__name__.lower()])
    described["openapi_extra"]["requestBody"] = {"content": {JSON: {"example": change.example}}}
    named: dict[str, Any] = {"summary": change.title, "operation_id": change.name, "description": change.about}
    routes.post(f"/trials/{{trial}}/{change.path}", tags=[CHANGING], **named, **described)(endpoint)


for _change in CHANGES.values():
    _change_endpoint(_change)


# Trials

_FILES = {
    JSON: {"schema": {"type": "object", "description": "A trial file as JSON."}, "example": EXAMPLES["spec"]},
    TOML: {"schema": {"type": "string", "description": "A trial file as TOML."}, "example": template()},
}
_CREATE = _writing(MANAGE, Status, EXAMPLES["status"], 201)
_CREATE["openapi_extra"] |= {routing.MEDIA: list(_FILES), routing.LARGE: True}
_CREATE["openapi_extra"]["requestBody"] = {"required": True, "content": _FILES}
_CREATE["responses"][200] = {"model": Checked, "description": "With `dry_run`: the file is valid, nothing was written."}
_CREATE["responses"][201]["headers"] |= {"Location": {"schema": {"type": "string"}, "description": "The trial."}}


@routes.post("/trials", summary="Create a trial", operation_id="create_trial", tags=[TRIALS], **_CREATE)
async def create(
    request: Request, dry_run: Annotated[bool, Query(description="Only check the file.")] = False
) -> Response:
    """From a trial file, as JSON or as TOML (`drimed trial template` writes an example).

    Everything that is wrong with it is listed at once, in `errors`, with the line if it is TOML. A token for one trial
    may create the trial of that name only.
    """
    service, caller = service_of(request), caller_of(request)
    body, media = await request.body(), media_of(request)
    data = None if media == TOML else await request.json()
    spec = await service.parse(lambda: _toml(body) if media == TOML else TrialSpec.read(data))
    caller.must(MANAGE, spec.name)
    if dry_run:
        advice = await service.run(lambda: notes(spec, TrialProblem(spec).shape.d))
        return answer(Checked(spec.name, advice))
    created = lambda tx: Reply(201, routing.encoded(queries.status(tx.state)))  # noqa: E731
    reply = await service.create(spec, created, actor=caller.actor, retry=await retry_of(request))
    return replied(reply, {"Location": f"/v1/trials/{spec.name}"})


def _toml(body: bytes) -> TrialSpec:
    if len(body) > LARGEST_TOML:
        raise Refusal(413, "too-large", f"a trial file may have at most {LARGEST_TOML} bytes")
    try:
        return TrialSpec.parse(decode_utf(body, "the trial file"))
    except InputError as error:
        raise SpecError([Fault((), str(error))]) from None
    except RecursionError:
        raise SpecError([Fault((), "nested too deeply")]) from None


@_get("/trials", "List trials", "list_trials", Page[Status], tag=TRIALS, role=ANY)
async def trials(request: Request, limit: Annotated[int, Query(ge=1, le=100)] = 50, after: After = None) -> Response:
    """Each at a glance, in the order of creation; a token for one trial sees only that one."""
    service, caller = service_of(request), caller_of(request)
    names = [n for n in await service.run(service.store.names) if caller.trial in (None, n)]
    page = queries.page_of(names, limit, after)
    statuses = [await service.read(name, lambda trial: trial.status()) for name in page.items]
    statuses = [blinded_status(s) for s in statuses] if caller.blinded else statuses
    return answer(Page(statuses, page.next))


@_get("/trials/{trial}", "A trial at a glance", "trial_status", Status, tag=TRIALS, role=ANY)
async def status(request: Request, trial: TrialName) -> Response:
    """Whether it runs, its episode, and how many decisions there are in each state."""
    found = await service_of(request).read(trial, lambda t: t.status())
    return answer(blinded_status(found) if caller_of(request).blinded else found)


@_get("/trials/{trial}/spec", "The trial file", "trial_spec", dict[str, Any], tag=TRIALS, example=EXAMPLES["spec"])
async def spec(request: Request, trial: TrialName) -> Response:
    """As it stands, with arms that were added since and without the seed. Users are listed under /users."""
    return answer(unseeded(await service_of(request).read(trial, lambda t: t.state().spec.plain())))


@_get("/trials/{trial}/users", "List users", "list_users", Page[records.Member], tag=TRIALS, role=ANY)
async def users(request: Request, trial: TrialName, limit: Limit = 100, after: After = None) -> Response:
    """In the order in which they joined, as they were described last."""
    page = await service_of(request).read(trial, lambda t: queries.users(t.state(), limit=limit, after=after))
    if caller_of(request).blinded:
        page = Page([blinded_member(m) for m in page.items], page.next)
    return answer(page)


# Decisions and the log


_LOOKS = {"items": [EXAMPLES["look"]], "next": None}
_FOUND = {"items": [EXAMPLES["decision"]], "next": "17"}


@_get("/trials/{trial}/decisions", "Search decisions", "decisions", Page[Decision], example=_FOUND, role=ANY)
async def decisions(
    request: Request,
    trial: TrialName,
    user: Annotated[str | None, _only("user")] = None,
    arm: Annotated[str | None, _only("arm")] = None,
    plot: Annotated[str | None, _only("plot")] = None,
    block: Annotated[str | None, _only("block")] = None,
    state: Annotated[
        Literal["pending", "partial", "complete", "missing", "amended"] | None,
        Query(description="Only decisions whose outcome is in this state, or was amended."),
    ] = None,
    limit: Limit = queries.PAGE,
    before: Before = None,
) -> Response:
    """Newest first, each with its outcome. A page may be short, even empty, while `next` says where to go on.

    The role `blinded` gets decisions without arms, and cannot search by arm.
    """
    blind = caller_of(request).blinded
    if blind and arm is not None:
        raise Refusal(403, "forbidden", f"the role {BLINDED!r} sees no arms, and cannot search by them")

    def look(opened: Trial) -> Page[Decision]:
        with opened.reading() as (ledger, known):
            wanted = Search(user or "", arm or "", state or "", plot or "", block or "")
            found = queries.search(ledger, known, wanted, before=before, limit=limit)
        items = [blinded_decision(known, d) for d in found.decisions] if blind else found.decisions
        return Page(items, None if found.before is None else str(found.before))

    return answer(await service_of(request).read(trial, look))


@_get("/trials/{trial}/decisions/{decision}", "A decision", "decision", DecisionHistory, role=ANY)
async def decision(request: Request, trial: TrialName, decision: DecisionNumber) -> Response:
    """The knowledge at that moment, the probabilities, what the guard did, the outcome, and who recorded what when.

    The role `blinded` gets what is known without the arm, and the outcome.
    """
    caller = caller_of(request)

    def look(opened: Trial) -> dict[str, Any]:
        with opened.reading() as (ledger, state):
            history = queries.history(ledger, state, decision)
            found = queries.decision(ledger, state, decision)
        if caller.blinded:
            found, history = blinded_decision(state, found), blinded_history(history, caller.actor)
        return found.plain() | {"history": [e.plain() for e in history]}

    return answer(await service_of(request).read(trial, look))


@_get("/trials/{trial}/log", "The log", "log", Page[LogEvent])
async def log(
    request: Request,
    trial: TrialName,
    limit: Limit = 100,
    cursor: Before = None,
    order: Annotated[Literal["oldest", "newest"], Query(description="Which events come first.")] = "oldest",
    kind: Annotated[list[str] | None, Query(description=f"Only these kinds: {', '.join(KINDS)}.")] = None,
    user: Annotated[str | None, _only("user")] = None,
) -> Response:
    """Events as they were recorded. Following `next` gives every event once, also while more are written.

    The seed, with which arms can be predicted, is shown to the role `manage` only.
    """
    for name in kind or ():
        if name not in KINDS:
            raise UnknownNameError("kind", name[:100], KINDS, ("kind",))
    newest, seed = order == "newest", caller_of(request).may(MANAGE, trial)

    def look(opened: Trial) -> Page[LogEvent]:
        start = {"until": cursor} if newest else {"after": 0 if cursor is None else cursor - 1}
        with opened.store.reading(trial) as ledger:
            events = list(ledger.events(**start, kinds=kind or (), user=user, limit=limit + 1, newest_first=newest))
        following = str(events[limit].seq) if len(events) > limit else None
        return Page([_log_event(e, seed=seed) for e in events[:limit]], following)

    return answer(await service_of(request).read(trial, look))


def _log_event(event: Event, *, seed: bool) -> LogEvent:
    body = event.body
    if event.kind == CREATED and not seed:
        body = unseeded(body) | {"spec": unseeded(body["spec"])}
    return LogEvent(**event.plain() | {"body": body})


def unseeded(data: dict[str, Any]) -> dict[str, Any]:
    """A trial file without its seed, which would predict arms before they are drawn."""
    return {name: value for name, value in data.items() if name != "seed"}


@_get("/trials/{trial}/looks", "Looks at the stopping rules", "looks", Page[Look], example=_LOOKS)
async def looks(request: Request, trial: TrialName, limit: Limit = 100, before: Before = None) -> Response:
    """Each rule at each look, newest first: the range, its margin, and how far it was from being met."""

    def look(opened: Trial) -> Page[Look]:
        with opened.store.reading(trial) as ledger:
            until = None if before is None else before - 1
            events = list(ledger.events(kinds=[LOOK], until=until, limit=limit + 1, newest_first=True))
        following = str(events[limit - 1].seq) if len(events) > limit else None
        return Page([look_record(event.body, event) for event in events[:limit]], following)

    return answer(await service_of(request).read(trial, look))


# Exports, proofs, effects


_EXPORT = _described(READ, list[dict[str, Any]], None, 200, READING)
_EXPORT["responses"][200] |= {
    "description": "One record for each decision (its data dictionary is in every export of the command line).",
    "content": {
        "text/csv": {"schema": {"type": "string"}},
        tables.MEDIA: {"schema": {"type": "string", "format": "binary"}},
    },
}


@routes.get("/trials/{trial}/export", summary="Export", operation_id="export", tags=[LOOKING], **_EXPORT)
async def export(
    request: Request, trial: TrialName, format: Annotated[Literal["csv", "json", "xlsx"], Query()] = "csv"
) -> Response:
    """Every decision with its outcome, one row each, as the trial stands now.

    The headers Drimed-Event and Drimed-Hash name the last event that is in it for certain.
    """
    service = service_of(request)
    stands = await service.read(trial, lambda t: t.head())
    headers = {
        "Content-Disposition": f'attachment; filename="{trial}-{stands.hash[:12]}.{format}"',
        "Drimed-Event": str(stands.event),
        "Drimed-Hash": stands.hash,
    }
    if format == "xlsx":
        opened = await service.read(trial, lambda t: t)
        return Response(await service.run(lambda: in_workbook(opened), HEAVY), 200, headers, tables.MEDIA)
    pieces = await service.read(trial, lambda t: Export.of(t).pieces(f".{format}"))
    media = "text/csv; charset=utf-8" if format == "csv" else JSON
    return StreamingResponse(_pieces(service, pieces), 200, headers, media)


async def _pieces(service: Service, pieces: Iterator[tuple[bytes, int]]) -> AsyncIterator[bytes]:
    """Some decisions at a time; nothing is held for a slow reader."""
    yield next(pieces)[0]
    while (piece := await service.run(lambda: next(pieces, None), HEAVY)) is not None:
        yield piece[0]


@_get("/trials/{trial}/head", "Where the log stands", "head", Head)
async def head(request: Request, trial: TrialName) -> Response:
    """The number and the hash of the last event. Kept elsewhere, they prove later that nothing before was changed."""
    return answer(await service_of(request).read(trial, lambda t: t.head()))


_HASH = Query(pattern="^[0-9a-f]{64}$", description="A hash that was shown before: it must still be in the log.")


@_get("/trials/{trial}/verify", "Prove the log", "verify", records.Proof)
async def verify(request: Request, trial: TrialName, expect: Annotated[str | None, _HASH] = None) -> Response:
    """Replay the whole trial from its log: the chain must hold, every event must be one that could have been recorded
    there, and every decision must be reproduced.

    This takes about as long as taking all decisions again.
    """
    service = service_of(request)
    await service.read(trial, lambda opened: opened.name)  # whether there is such a trial
    return answer(await service.proofs.get(trial, expect, request.is_disconnected))


@_get("/trials/{trial}/effects", "Arms against the control", "effects", Effects)
async def effects(
    request: Request,
    trial: TrialName,
    user: Annotated[str | None, _only("user")] = None,
    limit: Limit = 100,
    after: After = None,
) -> Response:
    """The expected reward of each arm minus the control's, for each user, with its guaranteed and its likely range.

    `limit` counts users. Arms of which nothing is known yet are left out; an end of a range that is not known yet is
    null. `seasons` have outcomes of the arm, or of the control if these are fewer: with fewer than 2 nothing should be
    called better or worse; null: it does not matter. `significant` says whether the likely range excludes 0 after
    adjusting for all arms and users that are compared. With more than 1,000 users the adjustment is for the user's own
    effect alone; the report looks at all users together.
    """
    service = service_of(request)

    def look(opened: Trial) -> tuple[TrialState, Page[str], Inference | None]:
        state = opened.state()
        if user is not None and user not in state.users:
            raise UnknownNameError("user", user, state.users, ("user",))
        page = queries.page_of(list(state.users) if user is None else [user], limit, after)
        own = state.policy.inference(state.settled)
        return state, page, None if own is None else own[0]

    state, page, fit = await service.read(trial, look)
    if fit is None and state.spec.kind == "paper":  # then the log must be read, which the analysis has done
        analysis = await _analysis(request, trial, state.hash)
        state, fit = analysis.data.state, analysis.fit
    names = [name for name in page.items if name in state.users]
    found = await service.run(lambda: own_effects(state, names, fit))
    return answer(Effects([effect for effect in found if effect.is_known], page.next, state.seq))


@_get("/trials/{trial}/checks", "What the checks found", "checks", records.Checks)
async def checks(request: Request, trial: TrialName) -> Response:
    """Whether the ranges of effects and the promise to users still hold, and what a person should look at.

    `withdrawn` says which promise does not hold, and why; null: there is no sign against any.
    """
    state = await service_of(request).read(trial, lambda opened: opened.state())
    analysis = await _analysis(request, trial, state.hash)
    return answer(records.Checks(analysis.checks.withdrawn, analysis.checks.alarms, analysis.status.events))


async def _analysis(request: Request, trial: str, hash: str) -> Analysis:
    analysed = await service_of(request).analyses.get(trial, hash)
    if analysed is None or analysed.analysis is None:
        why = "is being computed" if analysed is None else f"failed: {analysed.failure}"
        raise unavailable(f"the analysis of this trial {why}", 5)
    return analysed.analysis


# Health

_HEALTH: dict[int | str, dict[str, Any]] = {200: {"model": dict[str, str]}}
_METRICS: dict[int | str, dict[str, Any]] = {
    200: {"content": {PLAIN: {"schema": {"type": "string"}}}, "description": "In Prometheus' text format."},
    **{code: _problem(code) for code in (401, 403, 429)},
}


@health.get("/healthz", summary="Alive", operation_id="healthz", responses=_HEALTH, response_model=None)
async def healthz() -> Response:
    """The process answers."""
    return answer({"status": "alive"})


_READY = _HEALTH | {503: _problem(503)}


@health.get("/readyz", summary="Ready", operation_id="readyz", responses=_READY, response_model=None)
async def readyz(request: Request) -> Response:
    """The store answers too, and the service is not stopping."""
    service = service_of(request)
    if service.stopping:
        raise Refusal(503, "unavailable", "the service is stopping")
    try:
        await asyncio.wait_for(service.run(service.store.names), READY_WITHIN)
    except TimeoutError:
        raise Refusal(503, "unavailable", "the store does not answer") from None
    return answer({"status": "ready"})


@health.get("/metrics", summary="Prometheus", operation_id="metrics", responses=_METRICS, response_class=Response)
async def metrics(request: Request) -> Response:
    """Requests, their seconds, decisions and outcomes. Needs a token for all trials, where there are tokens."""
    service = service_of(request)
    (await service.identify(request)).must(READ)
    return Response(await service.run(routing.prometheus_text), media_type=PLAIN)
