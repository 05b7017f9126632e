"""Every read: trials, their users, decisions, the log, exports, proofs, effects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from drimed.errors import UnknownNameError
from drimed.findings.analysis import Analysis
from drimed.findings.effects import own_effects
from drimed.findings.regression import Inference
from drimed.records import Checks, Decision, Effect, Event, Head, Look, Member, Page, Proof, Status
from drimed.service.analyses import Analyses
from drimed.service.endpoints.contract import EXAMPLES, LARGEST, DecisionNumber, TrialName, reading
from drimed.service.problems import Refusal
from drimed.service.route import JSON, answer, caller_of, guarded_router, service_of
from drimed.service.service import Service
from drimed.service.tokens import ANY, BLINDED, MANAGE, READ
from drimed.trial import looked, queries
from drimed.trial.blinding import blinded, blinded_history, blinded_member, blinded_status
from drimed.trial.events import CREATED, KINDS, LOOK
from drimed.trial.export import in_workbook, stream
from drimed.trial.queries import Search
from drimed.trial.state import TrialState
from drimed.trial.tables import workbook
from drimed.trial.trial import Trial

trials = guarded_router(tags=["trials"])
log = guarded_router(tags=["looking back"])

_PRINTABLE = r"^[^\x00-\x1f]*$"

Limit = Annotated[int, Query(ge=1, le=1000)]
After = Annotated[str | None, Query(max_length=100, description="The `next` of the page before.")]
UserFilter = Annotated[str | None, Query(max_length=100, pattern=_PRINTABLE, description="Only this user.")]


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
class Effects:
    """Every arm against the control, user by user."""

    items: list[Effect]
    next: str | None  # give it as `after` to get what follows; null: that was all
    events: int  # of the log that this rests on


def _get(
    router: APIRouter, path: str, summary: str, name: str, model: Any, *, example: Any = None, role: str = READ
) -> Callable[[Any], Any]:
    described = reading(role, model, example=example)
    return router.get(f"/trials/{{trial}}{path}", summary=summary, operation_id=name, **described)


# Trials


@trials.get("/trials", summary="List trials", operation_id="list_trials", **reading(ANY, Page[Status]))
async def listed(request: Request, limit: Annotated[int, Query(ge=1, le=100)] = 50, after: After = None) -> Response:
    """Each at a glance, in the order of creation; a token for one trial sees only that one."""
    service, caller = service_of(request), caller_of(request)
    names = [n for n in await service.run(service.store.names) if caller.trial in (None, n)]
    page = queries.page_of(names, limit, after)
    found = [await service.read(name, lambda trial: trial.status()) for name in page.items]
    found = [blinded_status(s) for s in found] if caller.blinded else found
    return answer(asdict(Page(found, page.next)))


@_get(trials, "", "A trial at a glance", "trial_status", Status, role=ANY)
async def status(request: Request, trial: TrialName) -> Response:
    """Whether it runs, its episode, and how many decisions there are in each state."""
    found = await service_of(request).read(trial, lambda t: t.status())
    return answer(asdict(blinded_status(found) if caller_of(request).blinded else found))


@_get(trials, "/spec", "The trial file", "trial_spec", dict[str, Any], example=EXAMPLES["spec"])
async def spec(request: Request, trial: TrialName) -> Response:
    """As it stands, with arms that were added since and without the seed. Users are listed under /users."""
    return answer(_unseeded(await service_of(request).read(trial, lambda t: t.state().spec.plain())))


@_get(trials, "/users", "List users", "list_users", Page[Member], role=ANY)
async def users(request: Request, trial: TrialName, limit: Limit = 100, after: After = None) -> Response:
    """In the order in which they joined, as they were described last."""
    look = lambda t: queries.users(t.state(), limit=limit, after=after)  # noqa: E731
    found = await service_of(request).read(trial, look)
    if caller_of(request).blinded:
        found = Page([blinded_member(m) for m in found.items], found.next)
    return answer(asdict(found))


# Decisions and the log


_LOOKS = {"items": [EXAMPLES["look"]], "next": None}
_FOUND = {"items": [EXAMPLES["decision"]], "next": "17"}


@_get(log, "/decisions", "Search decisions", "decisions", Page[Decision], example=_FOUND, role=ANY)
async def decisions(
    request: Request,
    trial: TrialName,
    user: UserFilter = None,
    arm: Annotated[str | None, Query(max_length=100, pattern=_PRINTABLE, description="Only this arm.")] = None,
    plot: Annotated[str | None, Query(max_length=100, pattern=_PRINTABLE, description="Only on this plot.")] = None,
    block: Annotated[str | None, Query(max_length=100, pattern=_PRINTABLE, description="Only in this block.")] = None,
    state: Annotated[
        Literal["pending", "partial", "complete", "missing", "amended"] | None,
        Query(description="Only decisions whose outcome is in this state, or was amended."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = queries.PAGE,
    before: Annotated[
        int | None, Query(ge=1, le=LARGEST, description="The `next` of the page before: only older decisions.")
    ] = None,
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
        items = [blinded(known, d) for d in found.decisions] if blind else found.decisions
        return Page(items, None if found.before is None else str(found.before))

    return answer(asdict(await service_of(request).read(trial, look)))


@_get(log, "/decisions/{decision}", "A decision", "decision", DecisionHistory, role=ANY)
async def decision(request: Request, trial: TrialName, decision: DecisionNumber) -> Response:
    """What was known, the probabilities, what the guard did, the outcome, and who recorded what when.

    The role `blinded` gets what is known without the arm, and the outcome.
    """
    caller = caller_of(request)

    def look(opened: Trial) -> dict[str, Any]:
        with opened.reading() as (ledger, state):
            history = queries.history(ledger, state, decision)
            found = queries.decision(ledger, state, decision)
        if caller.blinded:
            found, history = blinded(state, found), blinded_history(history, caller.actor)
        return found.plain() | {"history": [e.plain() for e in history]}

    return answer(await service_of(request).read(trial, look))


@_get(log, "/log", "The log", "log", Page[LogEvent])
async def events(
    request: Request,
    trial: TrialName,
    limit: Limit = 100,
    cursor: Annotated[
        int | None, Query(ge=1, le=LARGEST, description="The `next` of the page before: the event to go on from.")
    ] = None,
    order: Annotated[Literal["oldest", "newest"], Query(description="Which events come first.")] = "oldest",
    kind: Annotated[list[str] | None, Query(description=f"Only these kinds: {', '.join(KINDS)}.")] = None,
    user: UserFilter = None,
) -> Response:
    """Events as they were recorded. Following `next` gives every event once, also while more are written.

    The seed, with which arms can be predicted, is shown to the role `manage` only.
    """
    for name in kind or ():
        if name not in KINDS:
            raise UnknownNameError("kind", name[:100], KINDS, ("kind",))
    newest, seed = order == "newest", caller_of(request).may(MANAGE, trial)

    def look(opened: Trial) -> Page[LogEvent]:
        with opened.store.reading(trial) as ledger:
            found = list(
                ledger.events(
                    after=0 if newest or cursor is None else cursor - 1,
                    until=cursor if newest else None,
                    kinds=kind or (),
                    user=user,
                    limit=limit + 1,
                    newest_first=newest,
                )
            )
        following = str(found[limit].seq) if len(found) > limit else None
        return Page([_shown(e, seed=seed) for e in found[:limit]], following)

    return answer(asdict(await service_of(request).read(trial, look)))


@_get(log, "/looks", "Looks at the stopping rules", "looks", Page[Look], example=_LOOKS)
async def looks(
    request: Request,
    trial: TrialName,
    limit: Limit = 100,
    before: Annotated[int | None, Query(ge=1, le=LARGEST, description="The `next` of the page before.")] = None,
) -> Response:
    """What each rule said at each look, newest first: the range, its margin, and how far it was from being met."""

    def found(opened: Trial) -> Page[Look]:
        with opened.store.reading(trial) as ledger:
            until = None if before is None else before - 1
            page = list(ledger.events(kinds=[LOOK], until=until, limit=limit + 1, newest_first=True))
        following = str(page[limit - 1].seq) if len(page) > limit else None
        return Page([looked.record(event.body, event) for event in page[:limit]], following)

    return answer(asdict(await service_of(request).read(trial, found)))


# Exports, proofs, effects


_EXPORT = reading(READ, list[dict[str, Any]])
_EXPORT["responses"][200] |= {
    "description": "One record for each decision (data dictionary: docs/trial.md).",
    "content": {
        "text/csv": {"schema": {"type": "string"}},
        workbook.MEDIA: {"schema": {"type": "string", "format": "binary"}},
    },
}


@log.get("/trials/{trial}/export", summary="Export", operation_id="export", **_EXPORT)
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
        return Response(await service.run_heavy(lambda: in_workbook(opened)), 200, headers, workbook.MEDIA)
    pieces = await service.read(trial, lambda t: stream(t, format))
    media = "text/csv; charset=utf-8" if format == "csv" else JSON
    return StreamingResponse(_pieces(service, pieces), 200, headers, media)


@_get(log, "/head", "Where the log stands", "head", Head)
async def head(request: Request, trial: TrialName) -> Response:
    """The number and the hash of the last event. Kept elsewhere, they prove later that nothing before was changed."""
    return answer(asdict(await service_of(request).read(trial, lambda t: t.head())))


@_get(log, "/verify", "Prove the log", "verify", Proof)
async def verify(
    request: Request,
    trial: TrialName,
    expect: Annotated[
        str | None,
        Query(pattern="^[0-9a-f]{64}$", description="A hash that was shown before: it must still be in the log."),
    ] = None,
) -> Response:
    """Replay the whole trial from its log: the chain must hold, every event must be one that could have been recorded
    there, and every decision must be reproduced.

    This takes about as long as taking all decisions again. Callers who ask the same at the same time
    share one proof.
    """
    service = service_of(request)
    await service.read(trial, lambda opened: opened.name)  # whether there is such a trial
    return answer(asdict(await service.proofs.get((trial, expect), request.is_disconnected)))


@_get(log, "/effects", "Arms against the control", "effects", Effects)
async def effects(
    request: Request, trial: TrialName, user: UserFilter = None, limit: Limit = 100, after: After = None
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
        own = state.policy.inference(state.settled())
        return state, page, None if own is None else own[0]

    state, page, fit = await service.read(trial, look)
    if fit is None and state.spec.kind == "paper":  # then the log must be read, which the analysis has done
        worked = await _analysis(request, trial, state.hash)
        state, fit = worked.data.state, worked.fit
    users = [name for name in page.items if name in state.users]
    found = await service.run(lambda: own_effects(state, users, fit))
    known = [effect for effect in found if effect.is_known]
    return answer(asdict(Effects(known, page.next, state.seq)))


@_get(log, "/checks", "What the checks found", "checks", Checks)
async def checks(request: Request, trial: TrialName) -> Response:
    """Whether the ranges of effects and the promise to users still hold, and what a person should look at.

    `withdrawn` says which promise does not hold, and why; null: there is no sign against any.
    """
    state = await service_of(request).read(trial, lambda opened: opened.state())
    worked = await _analysis(request, trial, state.hash)
    found = worked.checks
    return answer(asdict(Checks(found.withdrawn, found.alarms, worked.status.events)))


async def _analysis(request: Request, trial: str, hash: str) -> Analysis:
    worked = await Analyses.of(request).get(trial, hash)
    if worked is None or worked.analysis is None:
        why = "is being computed" if worked is None else f"failed: {worked.failure}"
        raise Refusal(503, "unavailable", f"the analysis of this trial {why}", headers={"Retry-After": "5"})
    return worked.analysis


async def _pieces(service: Service, pieces: Iterator[tuple[bytes, int]]) -> AsyncIterator[bytes]:
    """What is sent: the first piece, which reads nothing, at once. Nothing is held for whoever reads slowly."""
    yield next(pieces)[0]
    while (piece := await service.run_heavy(lambda: next(pieces, None))) is not None:
        yield piece[0]


def _shown(event: Event, *, seed: bool) -> LogEvent:
    body = event.body
    if event.kind == CREATED and not seed:
        body = _unseeded(body) | {"spec": _unseeded(body["spec"])}
    return LogEvent(**event.plain() | {"body": body})


def _unseeded(data: dict[str, Any]) -> dict[str, Any]:
    """Without the seed: whoever knows it can predict arms before they are drawn."""
    return {name: value for name, value in data.items() if name != "seed"}
