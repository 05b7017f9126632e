"""Look back: decisions, the log, exports, proofs, effects."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from drimed.errors import UnknownNameError
from drimed.findings.effects import effects as arms_against_control
from drimed.findings.gather import infers
from drimed.records import Page
from drimed.service import exports
from drimed.service.analyses import Analyses
from drimed.service.answers import DecisionStory, Effects, Log, LogEvent, Verdict
from drimed.service.endpoints.documented import DecisionNumber, TrialName, reading
from drimed.service.problems import Refusal
from drimed.service.route import JSON, answer, caller_of, guarded_router, service_of
from drimed.service.tokens import MANAGE, READ
from drimed.trial import queries
from drimed.trial.events import KINDS
from drimed.trial.state import TrialState
from drimed.trial.trial import Trial
from drimed.trial.verify import verify as replay

routes = guarded_router(tags=["looking back"])

MOST_EVENTS = 1000
_PRINTABLE = r"^[^\x00-\x1f]*$"


@routes.get(
    "/trials/{trial}/decisions/{decision}",
    summary="The story of a decision",
    operation_id="decision",
    **reading(READ, DecisionStory),
)
async def decision(request: Request, trial: TrialName, decision: DecisionNumber) -> Response:
    """What was known, the probabilities, what the guard did, what came of it, and who recorded what when."""
    return answer(asdict(await service_of(request).read(trial, lambda t: DecisionStory.of(t, decision))))


@routes.get("/trials/{trial}/log", summary="The log", operation_id="log", **reading(READ, Log))
async def log(
    request: Request,
    trial: TrialName,
    limit: Annotated[int, Query(ge=1, le=MOST_EVENTS)] = 100,
    cursor: Annotated[
        int | None, Query(ge=1, le=2**31 - 1, description="The `next` of the page before: the event to go on from.")
    ] = None,
    order: Annotated[Literal["oldest", "newest"], Query(description="Which events come first.")] = "oldest",
    kind: Annotated[list[str] | None, Query(description=f"Only these kinds: {', '.join(KINDS)}.")] = None,
    user: Annotated[
        str | None, Query(max_length=100, pattern=_PRINTABLE, description="Only what is about this user.")
    ] = None,
) -> Response:
    """Events as they were recorded. Following `next` gives every event once, also while more are written.

    The seed, from which arms can be told before they are drawn, is shown to the role `manage` only.
    """
    for name in kind or ():
        if name not in KINDS:
            raise UnknownNameError("kind", name[:100], KINDS)
    service = service_of(request)
    newest, seed = order == "newest", caller_of(request).may(MANAGE, trial)

    def look() -> Log:
        with service.store.reading(trial) as ledger:
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
        more = str(found[limit].seq) if len(found) > limit else None
        return Log([LogEvent.of(e, seed=seed) for e in found[:limit]], more)

    return answer(asdict(await service.run(look)))


def _export_described() -> dict[str, Any]:
    made = reading(READ, list[dict[str, Any]])
    made["responses"][200]["description"] = "One record for each decision (data dictionary: docs/trial.md)."
    made["responses"][200]["content"] = {"text/csv": {"schema": {"type": "string"}}}
    return made


@routes.get("/trials/{trial}/export", summary="Export", operation_id="export", **_export_described())
async def export(
    request: Request, trial: TrialName, format: Annotated[Literal["csv", "json"], Query()] = "csv"
) -> Response:
    """Every decision with what came of it, one row each, as the trial stands now."""
    service = service_of(request)
    # Not the copy that others look at: this takes a while.
    file = await service.run_heavy(lambda: exports.export(Trial(trial, service.store), format))
    media = "text/csv; charset=utf-8" if format == "csv" else JSON
    headers = {"Content-Disposition": f'attachment; filename="{trial}.{format}"'}
    return StreamingResponse(iterate_in_threadpool(exports.pieces(file)), 200, headers, media)


@routes.get("/trials/{trial}/verify", summary="Prove the log", operation_id="verify", **reading(READ, Verdict))
async def verify(
    request: Request,
    trial: TrialName,
    expect: Annotated[
        str | None,
        Query(pattern="^[0-9a-f]{64}$", description="A hash that was shown before: it must still be in the log."),
    ] = None,
) -> Response:
    """Replay the whole trial from its log: the chain must hold, and every decision must come out again.

    This takes about as long as deciding everything again.
    """
    service = service_of(request)
    found = await service.run_heavy(lambda: replay(service.store, trial, expected_hash=expect))
    numbers = (found.events, found.decisions, found.exact, found.rounded)
    return answer(asdict(Verdict(found.ok, *numbers, found.faults, found.hash)))


@routes.get(
    "/trials/{trial}/effects", summary="Arms against the control", operation_id="effects", **reading(READ, Effects)
)
async def effects(
    request: Request,
    trial: TrialName,
    user: Annotated[str | None, Query(max_length=100, pattern=_PRINTABLE, description="Only this user.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[str | None, Query(max_length=100, description="The `next` of the page before.")] = None,
) -> Response:
    """Every arm's reward against the control's, for each user, with the ranges that the overview page shows."""
    service = service_of(request)

    def look(opened: Trial) -> tuple[TrialState, Page[str]]:
        state = opened.state()
        if user is not None and user not in state.users:
            raise UnknownNameError("user", user, state.users, ("user",))
        return state, Page([user], None) if user else queries.user_names(state, limit=limit, after=after)

    state, page = await service.read(trial, look)
    fit = None
    if not infers(state.policy):  # then the log must be read, which the analysis has done
        worked = await Analyses.of(request).get(trial, state.hash)
        if worked is None or worked.analysis is None:
            why = "is being computed" if worked is None else f"failed: {worked.failure}"
            raise Refusal(503, "unavailable", f"the analysis of this trial {why}", headers={"Retry-After": "5"})
        state, fit = worked.analysis.seen.state, worked.analysis.fit
    users = [name for name in page.items if name in state.users]
    found = await service.run(lambda: arms_against_control(state, users, fit))
    return answer(asdict(Effects(found, page.next, state.seq, 1 - state.spec.delta)))
