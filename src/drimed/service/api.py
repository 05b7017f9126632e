"""The HTTP interface: trials, decisions, outcomes, changes, the log, exports, proofs, effects and health."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from fastapi import APIRouter, Query
from fastapi import Path as InPath
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as PLAIN
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from drimed import records
from drimed.errors import InputError, SpecError, UnknownNameError
from drimed.records import SEARCHES, Decision, Effect, Event, Fault, Head, Look, Page, Receipt, Report, Search, Status
from drimed.reports.analysis import Analysis
from drimed.reports.effects import Inference, own_effects
from drimed.service import routing
from drimed.service.auth import ANY, ASK, ASK_TELL, MANAGE, READ, TELL, Caller
from drimed.service.refusals import Problem, Refusal, unavailable
from drimed.service.routing import AT_ONCE, JSON, answer, author_of, caller_of, media_of, replied, service_of
from drimed.service.runtime import HEAVY, Author, Reply, Service
from drimed.trial import ask as asking
from drimed.trial import past, queries, tables
from drimed.trial import tell as telling
from drimed.trial.blinding import asking_as, blinded_decision, blinded_history, blinded_member, blinded_status
from drimed.trial.changes import CHANGES, Body, Change, Label, Reason
from drimed.trial.events import CREATED, KINDS, LOOK
from drimed.trial.export import Export, in_workbook
from drimed.trial.spec import Finite, TrialSpec, Value, decode
from drimed.trial.state import TrialState
from drimed.trial.stopping import look_record
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

MOST = 10_000  # users or outcomes in one request
LARGEST = 2**31 - 1  # number of a decision or an event
LARGEST_TOML = 1024 * 1024  # bytes: faults are given their lines by reading the file again and again
READY_WITHIN = 2.0  # seconds that the store has to answer
TOML = "application/toml"
TRIALS, DECIDING, CHANGING, LOOKING = "trials", "asking and telling", "changing a trial", "looking back"
F = TypeVar("F", bound=Callable[..., Any])


# Publishing


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem} for status in statuses}


routes = APIRouter(route_class=routing.Guarded, prefix="/v1", responses=_errors(401, 403, 404, 422, 429, 500, 503))
health = APIRouter(tags=["health"])


def _endpoint(
    path: str,
    summary: str,
    tag: str = LOOKING,
    *,
    role: str = READ,
    tells: bool = False,
    asks: Callable[..., records.AskRequest] | None = None,
    **more: Any,
) -> Callable[[F], F]:
    """Publish a function at an address under /trials.

    A function of `tx` writes, in one transaction with its answer; with `dry_run` in its body it writes nothing. A
    function of an opened `trial` reads. Both return the record to answer with. Any other function answers itself.
    """

    def publish(function: F) -> F:
        hints, parameters = get_type_hints(function, include_extras=True), inspect.signature(function).parameters
        writes, supplied = "tx" in hints, {"tx", "trial", "caller", "key"} & set(hints)

        async def endpoint(request: Request, trial: TrialName, **values: Any) -> Response:
            service, caller = service_of(request), caller_of(request)
            tries = bool(getattr(values.get("body"), "dry_run", False))
            author = await author_of(request) if writes and not tries else Author(caller.actor)
            given = {"caller": caller, "key": author.request}
            values |= {name: value for name, value in given.items() if name in supplied}

            def look(opened: Trial) -> Any:
                if not writes:
                    return function(opened, **values)
                with opened.writing(author.actor, dry_run=True) as tx:
                    return function(tx, **values)

            if tries or not writes:
                return answer(await service.read(trial, look))
            work = lambda tx: Reply(200, routing.encoded(function(tx, **values)), tells=tells)  # noqa: E731
            large = len(await request.body()) > AT_ONCE
            asked = None if asks is None else asks(values["body"], values["key"])
            question = None
            if asked is not None and not caller.blinded:  # who is answered otherwise than others who ask just then
                question = asked, lambda made: Reply(200, routing.encoded(Decisions(made)))
            users = None if asked is None else asked.users
            reply = service.write(
                trial, work, author, large=large, question=question, users=users, blinded=caller.blinded
            )
            return replied(await reply)

        handler: Callable[..., Any] = function
        if writes or hints.get("trial") is Trial:
            handler, common = endpoint, list(inspect.signature(endpoint).parameters.values())[:2]
            own = [
                p.replace(kind=p.KEYWORD_ONLY, annotation=hints[n]) for n, p in parameters.items() if n not in supplied
            ]
            endpoint.__signature__ = inspect.Signature([*common, *own])  # type: ignore[attr-defined]
        described: dict[str, Any] = {
            "methods": ["POST" if writes else "GET"],
            "summary": summary,
            "description": inspect.getdoc(function),
            "operation_id": function.__name__,
            "tags": [tag],
            "response_model": hints["return"],
            "responses": _errors(400, 409, 413, 415) if writes else {},
            "openapi_extra": {},
        } | more
        described["openapi_extra"] |= {routing.ROLE: role}
        routes.add_api_route(f"/trials{path}", handler, **described)
        return function

    return publish


def _deciding(
    path: str, summary: str, *, role: str = TELL, large: bool = False, asks: Callable[..., Any] | None = None
) -> Callable[[F], F]:
    more: dict[str, Any] = {"tells": role == TELL, "asks": asks, "openapi_extra": {routing.LARGE: large}}
    return _endpoint(f"/{{trial}}/{path}", summary, DECIDING, role=role, **more)


# Parameters and bodies

_PRINTABLE = r"^[^\x00-\x1f]*$"
TrialName = Annotated[str, InPath(description="The trial's name.", examples=["maize-nitrogen"])]
DecisionNumber = Annotated[int, InPath(ge=1, le=LARGEST, description="The decision's number.", examples=[17])]
Limit = Annotated[int, Query(ge=1, le=1000)]
After = Annotated[str | None, Query(max_length=100, description="The `next` of the page before.")]
Before = Annotated[int | None, Query(ge=1, le=LARGEST, description="The `next` of the page before.")]
Only = Annotated[str | None, Query(max_length=100, pattern=_PRINTABLE, description="Only this one.")]
Context = Annotated[dict[str, Value], Field(description="field → number, or the level of a category")]
Contexts = Annotated[dict[str, Context], Field(max_length=MOST, description="user → field → value")]
Values = dict[str, Finite | bool | Annotated[str, Field(max_length=100)] | None]
Kind = Literal[KINDS]  # type: ignore[valid-type]
State = Literal[SEARCHES]  # type: ignore[valid-type]
Number = Annotated[int, Field(ge=1, le=LARGEST)]
SeasonName = Annotated[str, Field(min_length=1, max_length=100)]
SeasonDate = Annotated[str, Field(min_length=8, max_length=10, description="As 2026-03-15 or 15.03.2026.")]


class DryRunBody(Body):
    """A body of a write that can be tried."""

    dry_run: bool = Field(False, description="Show what would happen, and write nothing.")


class ConfirmBody(DryRunBody):
    """A body whose values may be unlikely."""

    confirm: bool = Field(False, description="Accept unlikely values, and plots that are not declared.")


class EpisodeBody(ConfirmBody):
    """The next episode, with the contexts of its users."""

    number: Number | None = Field(None, description="Its number. Opening the episode that is open does nothing.")
    name: SeasonName | None = Field(None, description='Its name, as "spring 2026"; the same as a number.')
    date: SeasonDate | None = Field(None, description="When it begins.")
    contexts: Contexts = Field(default_factory=dict)
    unavailable: dict[str, list[Label]] = Field(
        default_factory=dict, description='user (or "" for all) → arms that they cannot get in this episode'
    )


class AskBody(ConfirmBody):
    """Users to decide for, and what is known about them.

    A user with plots gets a decision for each of them, or for those that are named. With open enrolment, an unknown
    user joins in the same step.
    """

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


class UndrawnBody(DryRunBody):
    """A user who got the control, because its caller could not wait."""

    user: Label
    arm: Label = Field(description="The control that was given.")
    reason: Reason
    context: Context | None = None
    attributes: dict[Label, Value] | None = Field(None, description="Of a new user.")
    ask_key: Annotated[str, Field(min_length=1, max_length=records.LONGEST_KEY)] | None = Field(
        None, description="The Idempotency-Key of the request to `ask` that had no answer in time."
    )


_GIVEN = "The arm that was given, if another than was drawn; `other`: none of the trial's; or the code of its package."
Given = Annotated[Label | None, Field(description=_GIVEN)]


class ValuesBody(ConfirmBody):
    """Values of one decision, and what was given."""

    outcome: Values = Field(default_factory=dict, description="metric → value")
    control: Values | None = Field(None, description="The outcome of the control plot, where feedback is `difference`.")
    given: Given = None


class OutcomeBody(ValuesBody):
    """The outcome of one decision. Metrics that are still to come may be left out."""

    reason: Reason | None = None


class AmendBody(ValuesBody):
    """A correction; null takes a value back. The old values stay in the log."""

    reason: Reason
    saw: Values | None = Field(
        None, description="The values as you read them; if one of them has changed since, the correction is refused."
    )
    saw_control: Values | None = Field(None, description="The same of the control plot.")


class ReportBody(Body):
    """The outcome of a decision."""

    decision: Number
    outcome: Values = Field(default_factory=dict)
    control: Values | None = None
    given: Given = None
    reason: Reason | None = None


class TellBody(ConfirmBody):
    """Outcomes: all of them are recorded, or none."""

    reports: Annotated[list[ReportBody], Field(min_length=1, max_length=MOST)]


class MissingBody(DryRunBody):
    """An outcome, or the rest of it, that will not come."""

    reason: Reason


# Answers that are not records; lists are in the order of the request


@dataclass(frozen=True)
class Checked:
    name: str
    notes: list[str]


@dataclass(frozen=True)
class Opened:
    episode: int


@dataclass(frozen=True)
class Decisions:
    decisions: list[Decision]


@dataclass(frozen=True)
class Receipts:
    receipts: list[Receipt]


@dataclass(frozen=True)
class LogEvent:
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


@_deciding("episodes", "Open an episode", role=ASK, large=True)
def open_episode(tx: Transaction, body: EpisodeBody, caller: Caller) -> Opened:
    """Start the next episode, with the contexts of its users. (`ask` can do both in one step.)

    With `number` or `name` this is safe to repeat; without them, an Idempotency-Key keeps a repeated request from
    opening two.
    """
    known = body.contexts, body.number, body.unavailable
    with asking_as(tx.state, records.AskRequest(unavailable=list(body.unavailable)), blinded=caller.blinded):
        return Opened(asking.open_episode(tx, *known, name=body.name, date=body.date, confirm=body.confirm))


def _question(body: AskBody, key: str | None) -> records.AskRequest:
    return records.AskRequest(
        **{name: getattr(body, name) for name in AskBody.model_fields if name != "dry_run"}, key=key
    )


@_deciding("ask", "Ask which arm users get", role=ASK, large=True, asks=_question)
def ask(tx: Transaction, body: AskBody, key: str | None, caller: Caller) -> Decisions:
    """For some users or all of them, in one transaction and from one state.

    Where a user gets one decision in an episode, asking again returns the same one, with `repeated`. The first episode
    is opened by the first question. A user with plots has one decision for each plot. With open enrolment a new user
    joins in the same transaction. The Idempotency-Key is kept in the log beside the decision. A context or an attribute
    that is unlikely, or a plot that is not declared, is refused unless you `confirm` it. The role `ask-blinded` gets no
    arms, but the code of each decision's package if the trial has such codes.
    """
    request = _question(body, key)
    with asking_as(tx.state, request, blinded=caller.blinded):
        made = asking.ask(tx, request)
    return Decisions([blinded_decision(tx.state, d) for d in made] if caller.blinded else made)


@_deciding("undrawn", "Record that nobody could wait", role=ASK_TELL)
def give_control(tx: Transaction, caller: Caller, body: UndrawnBody) -> Decision:
    """The user got its control without a draw, because no answer to `ask` came in time.

    With the key of that request, `ask_key`, one answer stands: a decision that was taken but came too late is marked as
    missing, and a request that comes late gets this decision. Estimates from propensities leave it out.
    """
    key = None if body.ask_key is None else Author(caller.actor, body.ask_key).request
    attributes = body.attributes or None
    request = records.AskRequest.of_user(body.user, context=body.context, attributes=attributes, key=key)
    return asking.give_control(tx, request, body.arm, body.reason)


@_deciding("tell", "Report outcomes", large=True)
def tell(tx: Transaction, body: TellBody, caller: Caller) -> Receipts:
    """All of the outcomes or, if one is refused, none; `errors` says which and why.

    The same value may be reported again. A different one is refused: amend it. So is a value outside the range of its
    metric, unless you `confirm` it.
    """
    reports = [Report(**vars(report)) for report in body.reports]
    return Receipts(telling.tell(tx, reports, confirm=body.confirm, blinded=caller.blinded))


@_deciding("decisions/{decision}/outcome", "Report one outcome")
def tell_one(tx: Transaction, decision: DecisionNumber, body: OutcomeBody, caller: Caller) -> Receipt:
    """As `tell`, for the decision in the address; paths of errors are those of `tell`."""
    report = Report(decision, body.outcome, body.control, body.given, body.reason)
    return telling.tell(tx, [report], confirm=body.confirm, blinded=caller.blinded)[0]


@_deciding("decisions/{decision}/amend", "Correct an outcome")
def amend(tx: Transaction, decision: DecisionNumber, body: AmendBody, caller: Caller) -> Receipt:
    """The old values stay in the log; null takes a value back.

    With `saw`, a correction of what was corrected meanwhile is refused (409), and says what is there now.
    """
    saw = None if body.saw is None and body.saw_control is None else Report(decision, body.saw or {}, body.saw_control)
    report = Report(decision, body.outcome, body.control, body.given)
    return telling.amend(tx, report, reason=body.reason, saw=saw, confirm=body.confirm, blinded=caller.blinded)


@_deciding("decisions/{decision}/missing", "Mark an outcome as missing")
def mark_missing(tx: Transaction, decision: DecisionNumber, body: MissingBody) -> Receipt:
    """The outcome, or the rest of it, will not come. Recorded values are kept; late values can still be reported."""
    return telling.mark_missing(tx, decision, body.reason)


def _publish_change(change: Change) -> None:
    def apply(tx: Transaction, body: Any) -> Any:
        result = change.apply(tx, body)
        return queries.status(tx.state) if result is None else result

    apply.__name__, apply.__doc__ = change.name, change.about
    apply.__annotations__ |= {"body": change.body, "return": change.answer}
    extra = {"requestBody": {"content": {JSON: {"example": change.example}}}}
    _endpoint(f"/{{trial}}/{change.path}", change.title, CHANGING, role=MANAGE, openapi_extra=extra)(apply)


for _change in CHANGES.values():
    _publish_change(_change)


# Trials


_VALID = {"model": Checked, "description": "With `dry_run`: the file is valid, nothing was written."}
_CREATING: dict[str, Any] = {
    "methods": ["POST"],
    "openapi_extra": {routing.MEDIA: [JSON, TOML], routing.LARGE: True},
    "response_model": Status,
    "status_code": 201,
    "responses": _errors(400, 409, 413, 415) | {200: _VALID},
}


@_endpoint("", "Create a trial", TRIALS, role=MANAGE, **_CREATING)
async def create_trial(
    request: Request, dry_run: Annotated[bool, Query(description="Only check the file.")] = False
) -> Response:
    """From a trial file, as JSON or as TOML (`drimed trial template` writes an example).

    Everything that is wrong with it is listed at once, in `errors`, with the line if it is TOML. A token for one trial
    may create the trial of that name only. Outcomes from before the trial come as the text of a sheet, `sheet` under
    `history`.
    """
    service, caller = service_of(request), caller_of(request)
    body = await request.body()
    parse = service.parse if len(body) <= AT_ONCE else partial(service.parse_file, caller.actor)
    if media_of(request) == TOML:
        spec = await parse(TrialSpec.parse, trial_text(body))
    else:
        spec = await parse(TrialSpec.read, await request.json())
    caller.must(MANAGE, spec.name)
    if dry_run:
        known = await service.parse(lambda: past.of_trial(spec))
        advice = await service.run(lambda: queries.notes(spec))
        advice += [queries.not_rehearsed(), *([] if known is None else [queries.past_text(spec, known)])]
        return answer(Checked(spec.name, advice))
    created = lambda tx: Reply(201, routing.encoded(queries.status(tx.state)))  # noqa: E731
    reply = await service.create(spec, created, await author_of(request))
    return replied(reply, Location=f"/v1/trials/{spec.name}")


def trial_text(data: bytes, name: str = "the trial file") -> str:
    """The text of a trial file."""
    if len(data) > LARGEST_TOML:
        raise Refusal(413, "too-large", f"a trial file may have at most {LARGEST_TOML} bytes")
    try:
        return decode(data, name, assume=False)[0]
    except InputError as error:
        raise SpecError([Fault((), str(error))]) from None


@_endpoint("", "List trials", TRIALS, role=ANY, response_model=Page[Status])
async def list_trials(
    request: Request, limit: Annotated[int, Query(ge=1, le=100)] = 50, after: After = None
) -> Response:
    """Each at a glance, in the order of creation; a token for one trial sees only that one."""
    service, caller = service_of(request), caller_of(request)
    names = [n for n in await service.run(service.store.names) if caller.trial in (None, n)]
    page = queries.page_of(names, limit, after)
    statuses = [await service.read(name, lambda trial: trial.status()) for name in page.items]
    statuses = [blinded_status(s) for s in statuses] if caller.blinded else statuses
    return answer(Page(statuses, page.next))


@_endpoint("/{trial}", "A trial at a glance", TRIALS, role=ANY)
def trial_status(trial: Trial, caller: Caller) -> Status:
    """Whether it runs, its episode, and how many decisions there are in each state."""
    return blinded_status(trial.status()) if caller.blinded else trial.status()


@_endpoint("/{trial}/spec", "The trial file", TRIALS)
def trial_spec(trial: Trial) -> dict[str, Any]:
    """As it stands, with arms that were added since and without the seed. Users are listed under /users."""
    return unseeded(trial.state().spec.plain())


@_endpoint("/{trial}/users", "List users", TRIALS, role=ANY)
def list_users(trial: Trial, caller: Caller, limit: Limit = 100, after: After = None) -> Page[records.Member]:
    """In the order in which they joined, as they were described last."""
    page = queries.users(trial.state(), limit=limit, after=after)
    return Page([blinded_member(m) for m in page.items], page.next) if caller.blinded else page


# Decisions and the log


@_endpoint("/{trial}/decisions", "Search decisions", role=ANY)
def decisions(
    trial: Trial,
    caller: Caller,
    user: Only = None,
    arm: Only = None,
    plot: Only = None,
    block: Only = None,
    state: Annotated[State | None, Query(description="Only with an outcome in this state, or amended.")] = None,
    limit: Limit = queries.PAGE,
    before: Before = None,
) -> Page[Decision]:
    """Newest first, each with its outcome. A page may be short, even empty, while `next` says where to go on.

    The role `blinded` gets decisions without arms, and cannot search by arm.
    """
    if caller.blinded and arm is not None:
        raise Refusal(403, "forbidden", f"the role {caller.role!r} sees no arms, and cannot search by them")
    with trial.reading() as (ledger, known):
        wanted = Search(user or "", arm or "", state or "", plot or "", block or "")
        found = queries.search(ledger, known, wanted, before=before, limit=limit)
    return Page([blinded_decision(known, d) for d in found.items], found.next) if caller.blinded else found


@_endpoint("/{trial}/decisions/{decision}", "A decision", role=ANY)
def decision(trial: Trial, caller: Caller, decision: DecisionNumber) -> DecisionHistory:
    """The knowledge at that moment, the probabilities, what the guard did, the outcome, and who recorded what when.

    The role `blinded` gets what is known without the arm, and the outcome.
    """
    with trial.reading() as (ledger, state):
        history = queries.history(ledger, state, decision)
        found = queries.decision(ledger, state, decision)
    if caller.blinded:
        found, history = blinded_decision(state, found), blinded_history(history, caller.actor)
    return DecisionHistory(**vars(found), history=[LogEvent(**e.plain()) for e in history])


@_endpoint("/{trial}/log", "The log")
def log(
    trial: Trial,
    caller: Caller,
    limit: Limit = 100,
    cursor: Before = None,
    order: Annotated[Literal["oldest", "newest"], Query(description="Which events come first.")] = "oldest",
    kind: Annotated[list[Kind] | None, Query(description="Only these kinds.")] = None,
    user: Only = None,
) -> Page[LogEvent]:
    """Events as they were recorded. Following `next` gives every event once, also while more are written.

    The seed, with which arms can be predicted, is shown to the role `manage` only.
    """
    newest, seed = order == "newest", caller.may(MANAGE, trial.name)
    start = {"until": cursor} if newest else {"after": 0 if cursor is None else cursor - 1}
    with trial.store.reading(trial.name) as ledger:
        events = list(ledger.events(**start, kinds=kind or (), user=user, limit=limit + 1, newest_first=newest))
    following = str(events[limit].seq) if len(events) > limit else None
    return Page([_log_event(e, seed=seed) for e in events[:limit]], following)


def _log_event(event: Event, *, seed: bool) -> LogEvent:
    body = event.body
    if event.kind == CREATED and not seed:
        body = unseeded(body) | {"spec": unseeded(body["spec"])}
    return LogEvent(**event.plain() | {"body": body})


def unseeded(data: dict[str, Any]) -> dict[str, Any]:
    """A trial file without its seed, which would predict arms before they are drawn."""
    return {name: value for name, value in data.items() if name != "seed"}


@_endpoint("/{trial}/looks", "Looks at the stopping rules")
def looks(trial: Trial, limit: Limit = 100, before: Before = None) -> Page[Look]:
    """Each rule at each look, newest first: the range, its margin, and how far it was from being met."""
    with trial.store.reading(trial.name) as ledger:
        until = None if before is None else before - 1
        events = list(ledger.events(kinds=[LOOK], until=until, limit=limit + 1, newest_first=True))
    following = str(events[limit - 1].seq) if len(events) > limit else None
    return Page([look_record(event.body, event) for event in events[:limit]], following)


# Exports, proofs, effects


_EXPORTED = {
    "description": "One record for each decision (its data dictionary is in every export of the command line).",
    "content": {
        "text/csv": {"schema": {"type": "string"}},
        JSON: {"schema": {"type": "array", "items": {"type": "object"}}},
        tables.MEDIA: {"schema": {"type": "string", "format": "binary"}},
    },
}


@_endpoint("/{trial}/export", "Export", response_model=None, response_class=Response, responses={200: _EXPORTED})
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


@_endpoint("/{trial}/head", "Where the log stands")
def head(trial: Trial) -> Head:
    """The number and the hash of the last event. Kept elsewhere, they prove later that nothing before was changed."""
    return trial.head()


_HASH = Query(pattern="^[0-9a-f]{64}$", description="A hash that was shown before: it must still be in the log.")


@_endpoint("/{trial}/verify", "Prove the log", response_model=records.Proof)
async def verify(request: Request, trial: TrialName, expect: Annotated[str | None, _HASH] = None) -> Response:
    """Replay the whole trial from its log: the chain must hold, every event must be one that could have been recorded
    there, and every decision must be reproduced.

    This takes about as long as taking all decisions again.
    """
    service = service_of(request)
    await service.read(trial, lambda opened: opened.name)  # whether there is such a trial
    return answer(await service.prove(trial, expect, request.is_disconnected))


@_endpoint("/{trial}/effects", "Arms against the control", response_model=Effects)
async def effects(
    request: Request, trial: TrialName, user: Only = None, limit: Limit = 100, after: After = None
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
        analysis = await _analysis(service, trial, state.hash)
        state, fit = analysis.data.state, analysis.fit
    names = [name for name in page.items if name in state.users]
    found = await service.run(lambda: own_effects(state, names, fit))
    return answer(Effects([effect for effect in found if effect.is_known], page.next, state.seq))


@_endpoint("/{trial}/checks", "What the checks found", response_model=records.Checks)
async def checks(request: Request, trial: TrialName) -> Response:
    """Whether the ranges of effects and the promise to users still hold, and what a person should look at.

    `withdrawn` says which promise does not hold, and why; null: there is no sign against any.
    """
    service = service_of(request)
    state = await service.read(trial, lambda opened: opened.state())
    analysis = await _analysis(service, trial, state.hash)
    return answer(records.Checks(analysis.checks.withdrawn, analysis.checks.alarms, analysis.status.events))


async def _analysis(service: Service, trial: str, hash: str) -> Analysis:
    analysed = await service.analyses.get(trial, hash)
    if analysed is None or analysed.analysis is None:
        why = "is being computed" if analysed is None else f"failed: {analysed.failure}"
        raise unavailable(f"the analysis of this trial {why}", 5)
    return analysed.analysis


# Health


@health.get("/healthz", summary="Alive", operation_id="healthz", response_model=dict[str, str])
async def healthz() -> Response:
    """The process answers."""
    return answer({"status": "alive"})


@health.get("/readyz", summary="Ready", operation_id="readyz", response_model=dict[str, str], responses=_errors(503))
async def readyz(request: Request) -> Response:
    """The store answers too, numerical code and trials are prepared, and the service is not stopping."""
    service = service_of(request)
    if service.stopping:
        raise Refusal(503, "unavailable", "the service is stopping")
    if not service.warm.is_set():
        raise unavailable("the numerical code is being prepared; the first answers would take long")
    try:
        await asyncio.wait_for(service.run(service.store.names), READY_WITHIN)
    except TimeoutError:
        raise Refusal(503, "unavailable", "the store does not answer") from None
    return answer({"status": "ready"})


_METRICS = _errors(401, 403, 429) | {
    200: {"content": {PLAIN: {"schema": {"type": "string"}}}, "description": "In Prometheus' text format."}
}


@health.get("/metrics", summary="Prometheus", operation_id="metrics", responses=_METRICS, response_class=Response)
async def metrics(request: Request) -> Response:
    """Requests, their seconds, decisions and outcomes. Needs a token for all trials, where there are tokens."""
    service = service_of(request)
    (await service.identify(request)).must(READ)
    return Response(await service.run(routing.prometheus_text), media_type=PLAIN)
