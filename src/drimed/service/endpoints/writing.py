"""Every write: create a trial, open episodes, ask, tell, correct, and change a running trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from drimed.errors import DrimedError, SpecError
from drimed.records import Decision, Fault, Path, Receipt, Report, Status
from drimed.service import metrics, problems
from drimed.service.bodies import AmendBody, AskBody, EpisodeBody, MissingBody, OutcomeBody, TellBody
from drimed.service.endpoints import documented
from drimed.service.endpoints.documented import DecisionNumber, Key, TrialName, writing
from drimed.service.problems import Refusal
from drimed.service.retries import Reply
from drimed.service.route import JSON, answer, caller_of, guarded_router, media_of, replied, retry_of, service_of
from drimed.service.tokens import ASK_TELL, MANAGE
from drimed.trial import asking, queries, telling
from drimed.trial.build import notes
from drimed.trial.changes import CHANGES, Change
from drimed.trial.events import written
from drimed.trial.problem import Problem
from drimed.trial.spec import TrialSpec
from drimed.trial.template import TEMPLATE
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

TOML = "application/toml"
LARGEST_TOML = 1024 * 1024  # bytes: faults are given their lines by reading the file again and again

Act = Callable[[Transaction], Any]  # a record to answer with
Place = Callable[[Path], Path]

trials = guarded_router(tags=["trials"])
decisions = guarded_router(tags=["asking and telling"])
changes = guarded_router(tags=["changing a trial"])


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
    request: Request, trial: str, act: Act, *, dry_run: bool = False, place: Place = lambda path: path
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
        reply = await service.write(trial, work, actor=actor, retry=await retry_of(request))
    except DrimedError as error:
        raise problems.of_error(error, place) from error
    if reply.repeated:
        metrics.REPEATED.inc()
    return replied(reply)


# Asking and telling


@decisions.post(
    "/trials/{trial}/episodes",
    summary="Open an episode",
    operation_id="open_episode",
    **writing(ASK_TELL, Opened, example={"episode": 4}),
)
async def open_episode(request: Request, trial: TrialName, body: EpisodeBody, key: Key = None) -> Response:
    """Start the next episode, with the contexts of its users. (`ask` can do both in one step.)

    With `number` this is safe to repeat; without it, an Idempotency-Key keeps a repeated request from opening two.
    """
    del key
    act = lambda tx: Opened(asking.open_episode(tx, body.contexts, body.number, body.unavailable))  # noqa: E731
    return await write(request, trial, act, dry_run=body.dry_run)


@decisions.post(
    "/trials/{trial}/ask",
    summary="Ask which arm users get",
    operation_id="ask",
    **writing(ASK_TELL, Decisions, example={"decisions": [documented.DECISION]}),
)
async def ask(request: Request, trial: TrialName, body: AskBody, key: Key = None) -> Response:
    """For one user, some, or all of them, in one transaction and from one state.

    Where a user gets one decision in an episode, asking again returns the same one, with `repeated`. The first episode
    is opened by the first question. The Idempotency-Key is kept in the log beside the decision.
    """
    del key
    retry = await retry_of(request)
    name = None if retry is None or body.dry_run else retry.name

    def act(tx: Transaction) -> Decisions:
        before = tx.state.counts.decisions
        asked = {"contexts": body.known, "unavailable": body.unavailable, "episode": body.episode, "key": name}
        found = Decisions(asking.ask(tx, body.wanted, **asked))  # type: ignore[arg-type]
        metrics.DECISIONS.inc(tx.state.counts.decisions - before)
        return found

    return await write(request, trial, act, dry_run=body.dry_run, place=body.place)


def _outcomes(tell: Act) -> Act:
    """Counted: every event that it adds is about an outcome."""

    def act(tx: Transaction) -> Any:
        before = tx.state.seq
        found = tell(tx)
        metrics.OUTCOMES.inc(tx.state.seq - before)
        return found

    return act


@decisions.post(
    "/trials/{trial}/tell",
    summary="Report outcomes",
    operation_id="tell",
    **writing(ASK_TELL, Receipts, example={"receipts": [documented.RECEIPT]}),
)
async def tell(request: Request, trial: TrialName, body: TellBody, key: Key = None) -> Response:
    """All of the outcomes or, if one is refused, none; `errors` says which and why.

    The same value may be reported again. A different one is refused: amend it. So is a value outside the range of its
    metric, unless you `confirm` it.
    """
    del key
    reports = [Report(r.decision, r.outcome, r.control) for r in body.reports]
    act = _outcomes(lambda tx: Receipts(telling.tell(tx, reports, confirm=body.confirm)))
    place: Place = lambda path: path if path[:1] == ("reports",) else ("reports", 0, *path)  # noqa: E731
    return await write(request, trial, act, dry_run=body.dry_run, place=place)


@decisions.post(
    "/trials/{trial}/decisions/{decision}/outcome",
    summary="Report one outcome",
    operation_id="tell_one",
    **writing(ASK_TELL, Receipt, example=documented.RECEIPT),
)
async def tell_one(
    request: Request, trial: TrialName, decision: DecisionNumber, body: OutcomeBody, key: Key = None
) -> Response:
    """As `tell`, for the decision in the address."""
    del key
    act = _outcomes(lambda tx: telling.tell(tx, [body.report(decision)], confirm=body.confirm)[0])
    place: Place = lambda path: path[2:] if path[:1] == ("reports",) else path  # noqa: E731
    return await write(request, trial, act, dry_run=body.dry_run, place=place)


@decisions.post(
    "/trials/{trial}/decisions/{decision}/amend",
    summary="Correct an outcome",
    operation_id="amend",
    **writing(ASK_TELL, Receipt, example=documented.RECEIPT | {"result": "amended"}),
)
async def amend(
    request: Request, trial: TrialName, decision: DecisionNumber, body: AmendBody, key: Key = None
) -> Response:
    """The old values stay in the log; null takes a value back."""
    del key
    act = _outcomes(lambda tx: telling.amend(tx, body.report(decision), body.reason, confirm=body.confirm))
    return await write(request, trial, act, dry_run=body.dry_run)


@decisions.post(
    "/trials/{trial}/decisions/{decision}/missing",
    summary="Mark an outcome as missing",
    operation_id="mark_missing",
    **writing(ASK_TELL, Receipt, example=documented.RECEIPT | {"result": "missing", "state": "missing"}),
)
async def missing(
    request: Request, trial: TrialName, decision: DecisionNumber, body: MissingBody, key: Key = None
) -> Response:
    """It, or the rest of it, will not come; values that are there stay. What comes later can still be reported."""
    del key
    act = _outcomes(lambda tx: telling.mark_missing(tx, decision, body.reason))
    return await write(request, trial, act, dry_run=body.dry_run)


# Changing a trial: one endpoint for each row of the table


def _endpoint(change: Change) -> None:
    async def endpoint(request: Request, trial: TrialName, body: Any, key: Key = None) -> Response:
        del key

        def act(tx: Transaction) -> Status:
            change.apply(tx, body)
            return queries.status(tx.state)

        return await write(request, trial, act, place=_in_body)

    endpoint.__annotations__["body"] = change.body
    described = writing(MANAGE, Status, example=documented.STATUS)
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

_SPEC_BODY = {
    "required": True,
    "content": {
        JSON: {"schema": {"type": "object", "description": "A trial file as JSON."}, "example": documented.SPEC},
        TOML: {"schema": {"type": "string", "description": "A trial file as TOML."}, "example": TEMPLATE},
    },
}


def _create_described() -> dict[str, Any]:
    made = writing(MANAGE, Status, status=201, example=documented.STATUS, media=[JSON, TOML])
    made["openapi_extra"]["requestBody"] = _SPEC_BODY
    made["responses"][200] = {
        "model": Checked,
        "description": "With `dry_run`: the file is valid, nothing was written.",
    }
    made["responses"][201]["headers"] |= {"Location": {"schema": {"type": "string"}, "description": "The trial."}}
    return made


@trials.post("/trials", summary="Create a trial", operation_id="create_trial", **_create_described())
async def create(
    request: Request,
    dry_run: Annotated[bool, Query(description="Only check the file.")] = False,
    key: Key = None,
) -> Response:
    """From a trial file, as JSON or as TOML (`drimed trial template` writes an example).

    Everything that is wrong with it is listed at once, in `errors`, with the line if it is TOML. A token for one trial
    may create the trial of that name only.
    """
    del key
    service, caller = service_of(request), caller_of(request)
    body, media = await request.body(), media_of(request)
    data = None if media == TOML else await request.json()
    spec = await service.run(lambda: _toml(body) if media == TOML else TrialSpec.read(data))
    caller.must(MANAGE, spec.name)
    if dry_run:
        return answer(asdict(Checked(spec.name, await service.run(lambda: notes(spec, Problem(spec).shape.d)))))
    created: Callable[[Transaction], Reply] = lambda tx: Reply(  # noqa: E731
        201, written(queries.status(tx.state).plain()).encode()
    )
    reply = await service.create(spec, created, actor=caller.actor, retry=await retry_of(request))
    return replied(reply, {"Location": f"/v1/trials/{spec.name}"})


def _toml(body: bytes) -> TrialSpec:
    if len(body) > LARGEST_TOML:
        raise Refusal(413, "too-large", f"a trial file may have {LARGEST_TOML} bytes")
    try:
        return TrialSpec.parse(body.decode())
    except UnicodeDecodeError as error:
        raise SpecError([Fault((), f"not UTF-8: byte {error.start} cannot be read")]) from None
    except RecursionError:
        raise SpecError([Fault((), "nested too deeply")]) from None
