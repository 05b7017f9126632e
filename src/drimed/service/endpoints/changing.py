"""Change a running trial: pause, resume, stop; users, arms, preferences and controls."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from drimed.service.answers import Done
from drimed.service.bodies import (
    ArmBody,
    ControlBody,
    MaybeReasonBody,
    PreferenceBody,
    ReasonBody,
    RetireBody,
    UserBody,
)
from drimed.service.endpoints.acting import done, write
from drimed.service.endpoints.documented import Key, TrialName, writing
from drimed.service.route import guarded_router
from drimed.service.tokens import MANAGE
from drimed.trial.trial import Trial

routes = guarded_router(tags=["changing a trial"])

_DONE = {"trial": "maize-nitrogen", "events": 62}


@routes.post("/trials/{trial}/pause", summary="Pause", operation_id="pause", **writing(MANAGE, Done, example=_DONE))
async def pause(request: Request, trial: TrialName, body: ReasonBody, key: Key = None) -> Response:
    """Decide nothing for a while; outcomes are still taken."""
    del key

    def act(opened: Trial, actor: str) -> Done:
        opened.pause(reason=body.reason, actor=actor)
        return done(opened)

    return await write(request, trial, act)


@routes.post("/trials/{trial}/resume", summary="Resume", operation_id="resume", **writing(MANAGE, Done, example=_DONE))
async def resume(request: Request, trial: TrialName, body: MaybeReasonBody, key: Key = None) -> Response:
    """Go on after a pause."""
    del key

    def act(opened: Trial, actor: str) -> Done:
        opened.resume(reason=body.reason, actor=actor)
        return done(opened)

    return await write(request, trial, act)


@routes.post("/trials/{trial}/stop", summary="Stop", operation_id="stop", **writing(MANAGE, Done, example=_DONE))
async def stop(request: Request, trial: TrialName, body: ReasonBody, key: Key = None) -> Response:
    """Decide nothing any more, for good; outcomes are still taken."""
    del key

    def act(opened: Trial, actor: str) -> Done:
        opened.stop(reason=body.reason, actor=actor)
        return done(opened)

    return await write(request, trial, act)


@routes.post(
    "/trials/{trial}/users", summary="Add a user", operation_id="add_user", **writing(MANAGE, Done, example=_DONE)
)
async def add_user(request: Request, trial: TrialName, body: UserBody, key: Key = None) -> Response:
    """Let somebody join."""
    del key

    def act(opened: Trial, actor: str) -> Done:
        opened.add_user(body.name, body.definition(), actor=actor)
        return done(opened)

    return await write(request, trial, act)


@routes.post(
    "/trials/{trial}/arms", summary="Add an arm", operation_id="add_arm", **writing(MANAGE, Done, example=_DONE)
)
async def add_arm(request: Request, trial: TrialName, body: ArmBody, key: Key = None) -> Response:
    """Offer one more arm from now on. A changed arm is a new arm."""
    del key

    def act(opened: Trial, actor: str) -> Done:
        opened.add_arm(body.name, body.definition(), noise=body.noise, actor=actor)
        return done(opened)

    return await write(request, trial, act)


@routes.post(
    "/trials/{trial}/retire", summary="Retire an arm", operation_id="retire_arm", **writing(MANAGE, Done, example=_DONE)
)
async def retire(request: Request, trial: TrialName, body: RetireBody, key: Key = None) -> Response:
    """Never decide for it again; what was decided and learned stays. Retiring it twice does nothing."""
    del key

    def act(opened: Trial, actor: str) -> Done:
        opened.retire_arm(body.arm, reason=body.reason, actor=actor)
        return done(opened)

    return await write(request, trial, act)


@routes.post(
    "/trials/{trial}/preference",
    summary="Change a preference",
    operation_id="change_preference",
    **writing(MANAGE, Done, example=_DONE),
)
async def preference(request: Request, trial: TrialName, body: PreferenceBody, key: Key = None) -> Response:
    """From now on this user weighs the metrics differently; what was learned about the arms is kept."""
    del key

    def act(opened: Trial, actor: str) -> Done:
        opened.change_preference(body.user, body.preference, reason=body.reason, actor=actor)
        return done(opened)

    return await write(request, trial, act)


@routes.post(
    "/trials/{trial}/control",
    summary="Change a control",
    operation_id="change_control",
    **writing(MANAGE, Done, example=_DONE),
)
async def control(request: Request, trial: TrialName, body: ControlBody, key: Key = None) -> Response:
    """From now on this user is compared with another control; past decisions keep theirs."""
    del key

    def act(opened: Trial, actor: str) -> Done:
        opened.change_control(body.user, body.control, reason=body.reason, actor=actor)
        return done(opened)

    return await write(request, trial, act)
