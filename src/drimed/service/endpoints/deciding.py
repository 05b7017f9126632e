"""Open episodes, ask, tell, correct."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from drimed.guards.decision import REASONS, UNCHANGED
from drimed.service import metrics
from drimed.service.answers import Asked, Opened, ToldMany
from drimed.service.bodies import AmendBody, AskBody, EpisodeBody, MissingBody, OutcomeBody, TellBody
from drimed.service.endpoints.acting import must_exist, write
from drimed.service.endpoints.documented import DecisionNumber, Key, TrialName, writing
from drimed.service.route import answer, guarded_router, retry_of, service_of
from drimed.service.tokens import ASK_TELL
from drimed.trial.outcomes import Report
from drimed.trial.records import Told
from drimed.trial.trial import Trial

routes = guarded_router(tags=["asking and telling"])

_GIVEN = {
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
}
_TOLD = {"decision": 17, "state": "recorded", "outcome": {"yield": 8.4}, "control": None, "waits_for": ["leaching"]}


@routes.post(
    "/trials/{trial}/episodes",
    summary="Open an episode",
    operation_id="open_episode",
    **writing(ASK_TELL, Opened, example={"episode": 4}),
)
async def open_episode(request: Request, trial: TrialName, body: EpisodeBody, key: Key = None) -> Response:
    """Start the next season, with the contexts of its users.

    With `number` this is safe to repeat; without it, an Idempotency-Key keeps a repeated request from opening two.
    """
    del key

    def act(opened: Trial, actor: str) -> Opened:
        unavailable = body.unavailable or None
        return Opened(
            opened.open_episode(body.contexts or None, number=body.number, unavailable=unavailable, actor=actor)
        )

    return await write(request, trial, act)


@routes.post(
    "/trials/{trial}/ask",
    summary="Ask which arm users get",
    operation_id="ask",
    **writing(ASK_TELL, Asked, example={"decisions": [_GIVEN]}),
)
async def ask(request: Request, trial: TrialName, body: AskBody, key: Key = None) -> Response:
    """For one user, some, or all of them, in one transaction and from one state.

    Where a user gets one decision in an episode, asking again gives the same one, with `repeated`. The first episode
    is opened by the first question. The Idempotency-Key is kept in the log beside the decision.
    """
    del key
    if body.dry_run:
        given = await service_of(request).read(
            trial, lambda t: t.ask(body.wanted, contexts=body.known, unavailable=body.unavailable, dry_run=True)
        )
        return answer(asdict(Asked(given)))
    retry = await retry_of(request)

    def act(opened: Trial, actor: str) -> Asked:
        given = opened.ask(
            body.wanted,
            contexts=body.known,
            unavailable=body.unavailable,
            key=None if retry is None else retry.name,
            actor=actor,
        )
        metrics.DECISIONS.inc(sum(not g.repeated for g in given))
        return Asked(given)

    return await write(request, trial, act)


@routes.post(
    "/trials/{trial}/tell",
    summary="Tell what came of decisions",
    operation_id="tell",
    **writing(ASK_TELL, ToldMany, example={"told": [_TOLD]}),
)
async def tell(request: Request, trial: TrialName, body: TellBody, key: Key = None) -> Response:
    """All of the outcomes or, if one is refused, none; `errors` says which and why.

    The same value may be told again. Another value is refused: amend it.
    """
    del key
    reports = [Report(r.decision, r.outcome, r.control) for r in body.reports]
    if body.dry_run:
        told = await service_of(request).read(trial, lambda t: t.tell_many(reports, dry_run=True))
        return answer(asdict(ToldMany(told)))

    def act(opened: Trial, actor: str) -> ToldMany:
        told = opened.tell_many(reports, actor=actor)
        _count(told)
        return ToldMany(told)

    return await write(request, trial, act)


@routes.post(
    "/trials/{trial}/decisions/{decision}/outcome",
    summary="Tell what came of one decision",
    operation_id="tell_one",
    **writing(ASK_TELL, Told, example=_TOLD),
)
async def tell_one(
    request: Request, trial: TrialName, decision: DecisionNumber, body: OutcomeBody, key: Key = None
) -> Response:
    """As `tell`, for the decision that the address names."""
    del key

    def act(opened: Trial, actor: str) -> Told:
        must_exist(opened, decision)
        told = opened.tell(decision, body.outcome, control=body.control, actor=actor)
        _count([told])
        return told

    return await write(request, trial, act)


@routes.post(
    "/trials/{trial}/decisions/{decision}/amend",
    summary="Correct an outcome",
    operation_id="amend",
    **writing(ASK_TELL, Told, example=_TOLD | {"state": "amended"}),
)
async def amend(
    request: Request, trial: TrialName, decision: DecisionNumber, body: AmendBody, key: Key = None
) -> Response:
    """The old values stay in the log; null takes a value back."""
    del key

    def act(opened: Trial, actor: str | None, dry_run: bool = False) -> Told:
        must_exist(opened, decision)
        told = opened.amend(
            decision, body.outcome, reason=body.reason, control=body.control, actor=actor, dry_run=dry_run
        )
        _count([] if dry_run else [told])
        return told

    if body.dry_run:
        return answer(asdict(await service_of(request).read(trial, lambda t: act(t, None, dry_run=True))))
    return await write(request, trial, act)


@routes.post(
    "/trials/{trial}/decisions/{decision}/missing",
    summary="Give an outcome up",
    operation_id="mark_missing",
    **writing(ASK_TELL, Told, example=_TOLD | {"state": "missing", "outcome": None, "waits_for": []}),
)
async def missing(
    request: Request, trial: TrialName, decision: DecisionNumber, body: MissingBody, key: Key = None
) -> Response:
    """It will not come. Should it come after all, it can still be told."""
    del key

    def act(opened: Trial, actor: str | None, dry_run: bool = False) -> Told:
        must_exist(opened, decision)
        told = opened.mark_missing(decision, reason=body.reason, actor=actor, dry_run=dry_run)
        _count([] if dry_run else [told])
        return told

    if body.dry_run:
        return answer(asdict(await service_of(request).read(trial, lambda t: act(t, None, dry_run=True))))
    return await write(request, trial, act)


def _count(told: list[Told]) -> None:
    metrics.OUTCOMES.inc(sum(t.state != "already recorded" for t in told))
