"""Every write: create a trial, open episodes, ask, tell, correct, and change a running trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from drimed.errors import DrimedError, InputError, SpecError
from drimed.records import AmendRequest, AskRequest, Decision, Fault, Path, Receipt, Report, Status, TellRequest
from drimed.service import observing, problems
from drimed.service.answers import Reply
from drimed.service.endpoints import contract
from drimed.service.endpoints.contract import EXAMPLES, DecisionNumber, TrialName, writing
from drimed.service.problems import Refusal
from drimed.service.route import (
    JSON,
    LARGE,
    MEDIA,
    answer,
    caller_of,
    guarded_router,
    media_of,
    replied,
    retry_of,
    service_of,
)
from drimed.service.tokens import ASK_TELL, MANAGE, TELL
from drimed.trial import asking, queries, telling, template
from drimed.trial.build import notes
from drimed.trial.changes import CHANGES, Change
from drimed.trial.events import written
from drimed.trial.problem import Problem
from drimed.trial.spec import TrialSpec
from drimed.trial.tables.decoding import decode_utf
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

TOML = "application/toml"
LARGEST_TOML = 1024 * 1024  # bytes: faults are given their lines by reading the file again and again

Act = Callable[[Transaction], Any]  # a record to answer with
Place = Callable[[Path], Path]

trials, decisions, changes = (
    guarded_router(tags=[tag], dependencies=[Depends(contract.idempotency_key)])
    for tag in ("trials", "asking and telling", "changing a trial")
)


@dataclass(frozen=True)
class Checked:
    """A trial that could be created, and what its author should know."""

    name: str
    notes: list[str]


@dataclass(frozen=True)
class Opened:
    """The episode that is open now."""

    episode: int


@dataclass(frozen=True)
class Decisions:
    """In the order of the request."""

    decisions: list[Decision]


@dataclass(frozen=True)
class Receipts:
    """In the order of the request."""

    receipts: list[Receipt]


async def write(
    request: Request,
    trial: str,
    act: Act,
    *,
    dry_run: bool = False,
    place: Place = lambda path: path,
    decides: bool = False,
) -> Response:
    """Do it once, in one transaction with its answer; a dry run writes nothing.

    `place` leads from a fault in the trial's parameters to the field of the body.
    """
    service, actor = service_of(request), caller_of(request).actor

    def try_it(opened: Trial) -> Any:
        with opened.writing(actor, dry_run=True) as tx:
            return asdict(act(tx))

    try:
        if dry_run:
            return answer(await service.read(trial, try_it))
        work = lambda tx: Reply(200, written(asdict(act(tx))).encode())  # noqa: E731
        reply = await service.write(trial, work, actor=actor, retry=await retry_of(request), decides=decides)
    except DrimedError as error:
        raise problems.of_error(error, place) from error
    if reply.repeated:
        observing.REPEATED.inc()
    return replied(reply)


# Asking and telling


def _post(
    path: str, summary: str, name: str, model: Any, example: Any, *, role: str = ASK_TELL
) -> Callable[[Any], Any]:
    described = writing(role, model, example=example)
    described["openapi_extra"][LARGE] = path in ("episodes", "ask", "tell")
    return decisions.post(f"/trials/{{trial}}/{path}", summary=summary, operation_id=name, **described)


@_post("episodes", "Open an episode", "open_episode", Opened, {"episode": 4})
async def open_episode(request: Request, trial: TrialName, body: contract.EpisodeBody) -> Response:
    """Start the next episode, with the contexts of its users. (`ask` can do both in one step.)

    With `number` or `name` this is safe to repeat; without them, an Idempotency-Key keeps a repeated request from
    opening two.
    """

    def act(tx: Transaction) -> Opened:
        known = body.contexts, body.number, body.unavailable
        return Opened(asking.open_episode(tx, *known, name=body.name, date=body.date, confirm=body.confirm))

    return await write(request, trial, act, dry_run=body.dry_run)


@_post("ask", "Ask which arm users get", "ask", Decisions, {"decisions": [EXAMPLES["decision"]]})
async def ask(request: Request, trial: TrialName, body: contract.AskBody) -> Response:
    """For one user, some, or all of them, in one transaction and from one state.

    Where a user gets one decision in an episode, asking again returns the same one, with `repeated`. The first episode
    is opened by the first question. A user with plots has one decision for each plot. With open enrolment somebody new
    joins in the same transaction. The Idempotency-Key is kept in the log beside the decision. A context or an attribute
    that is unlikely, or a plot that is not declared, is refused unless you `confirm` it.
    """
    retry = await retry_of(request)
    name = None if retry is None or body.dry_run else retry.name

    def act(tx: Transaction) -> Decisions:
        more: dict[str, Any] = {"unavailable": body.unavailable, "key": name, "confirm": body.confirm}
        when: dict[str, Any] = {"episode": body.episode, "season": body.season, "date": body.date}
        return Decisions(asking.ask(tx, AskRequest(users=body.wanted, **body.known, **more, **when)))

    return await write(request, trial, act, dry_run=body.dry_run, place=body.place, decides=True)


def _outcomes(tell: Act) -> Act:
    """Counted: every event that it adds is about an outcome."""

    def act(tx: Transaction) -> Any:
        before = tx.state.seq
        found = tell(tx)
        observing.OUTCOMES.inc(tx.state.seq - before)
        return found

    return act


@_post("tell", "Report outcomes", "tell", Receipts, {"receipts": [EXAMPLES["receipt"]]}, role=TELL)
async def tell(request: Request, trial: TrialName, body: contract.TellBody) -> Response:
    """All of the outcomes or, if one is refused, none; `errors` says which and why.

    The same value may be reported again. A different one is refused: amend it. So is a value outside the range of its
    metric, unless you `confirm` it.
    """
    reports = [Report(r.decision, r.outcome, r.control) for r in body.reports]
    act = _outcomes(lambda tx: Receipts(telling.tell(tx, TellRequest(reports=reports, confirm=body.confirm))))
    place: Place = lambda path: path if path[:1] == ("reports",) else ("reports", 0, *path)  # noqa: E731
    return await write(request, trial, act, dry_run=body.dry_run, place=place)


@_post("decisions/{decision}/outcome", "Report one outcome", "tell_one", Receipt, EXAMPLES["receipt"], role=TELL)
async def tell_one(
    request: Request, trial: TrialName, decision: DecisionNumber, body: contract.OutcomeBody
) -> Response:
    """As `tell`, for the decision in the address."""
    act = _outcomes(lambda tx: telling.tell(tx, TellRequest(reports=[body.report(decision)], confirm=body.confirm))[0])
    place: Place = lambda path: path[2:] if path[:1] == ("reports",) else path  # noqa: E731
    return await write(request, trial, act, dry_run=body.dry_run, place=place)


_AMENDED = EXAMPLES["receipt"] | {"result": "amended"}
_MISSING = EXAMPLES["receipt"] | {"result": "missing", "state": "missing"}


@_post("decisions/{decision}/amend", "Correct an outcome", "amend", Receipt, _AMENDED, role=TELL)
async def amend(request: Request, trial: TrialName, decision: DecisionNumber, body: contract.AmendBody) -> Response:
    """The old values stay in the log; null takes a value back.

    With `saw`, a correction of what somebody else has corrected meanwhile is refused (409), and says what is there now.
    """
    amended = AmendRequest(
        report=body.report(decision), reason=body.reason, saw=body.seen(decision), confirm=body.confirm
    )
    act = _outcomes(lambda tx: telling.amend(tx, amended))
    return await write(request, trial, act, dry_run=body.dry_run)


@_post("decisions/{decision}/missing", "Mark an outcome as missing", "mark_missing", Receipt, _MISSING, role=TELL)
async def missing(request: Request, trial: TrialName, decision: DecisionNumber, body: contract.MissingBody) -> Response:
    """The outcome, or the rest of it, will not come. Recorded values are kept; late values can still be reported."""
    act = _outcomes(lambda tx: telling.mark_missing(tx, decision, body.reason))
    return await write(request, trial, act, dry_run=body.dry_run)


# Changing a trial: one endpoint for each row of the table


def _endpoint(change: Change) -> None:
    async def endpoint(request: Request, trial: TrialName, body: Any) -> Response:
        def act(tx: Transaction) -> Any:
            found = change.apply(tx, body)
            return queries.status(tx.state) if found is None else found

        return await write(request, trial, act, place=_in_body)

    endpoint.__annotations__["body"] = change.body
    described = writing(MANAGE, change.answer, example=EXAMPLES[change.answer.__name__.lower()])
    described["openapi_extra"]["requestBody"] = {"content": {JSON: {"example": change.example}}}
    changes.post(
        f"/trials/{{trial}}/{change.path}",
        summary=change.title,
        operation_id=change.name,
        description=change.about,
        **described,
    )(endpoint)


def _in_body(path: Path) -> Path:
    """Faults of a user or an arm have the path that they would have in the trial file."""
    if path[:2] == ("noise", "arms"):
        return ("noise", *path[3:])
    return path[2:] if path[:1] in (("users",), ("arms",)) else path


for _change in CHANGES.values():
    _endpoint(_change)


# Creating a trial

_FILES = {
    JSON: {"schema": {"type": "object", "description": "A trial file as JSON."}, "example": EXAMPLES["spec"]},
    TOML: {"schema": {"type": "string", "description": "A trial file as TOML."}, "example": template()},
}
_CREATE = writing(MANAGE, Status, status=201, example=EXAMPLES["status"])
_CREATE["openapi_extra"] |= {MEDIA: list(_FILES), LARGE: True, "requestBody": {"required": True, "content": _FILES}}
_CREATE["responses"][200] = {"model": Checked, "description": "With `dry_run`: the file is valid, nothing was written."}
_CREATE["responses"][201]["headers"] |= {"Location": {"schema": {"type": "string"}, "description": "The trial."}}


@trials.post("/trials", summary="Create a trial", operation_id="create_trial", **_CREATE)
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
        return answer(asdict(Checked(spec.name, await service.run(lambda: notes(spec, Problem(spec).shape.d)))))
    created = lambda tx: Reply(201, written(queries.status(tx.state).plain()).encode())  # noqa: E731
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
