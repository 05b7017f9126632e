"""Create trials and see which there are."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from drimed.errors import Fault, InputError, SpecError
from drimed.service import wire
from drimed.service.access import Caller
from drimed.service.answers import Checked, Trials, UserNow, Users, unseeded
from drimed.service.endpoints.documented import Key, TrialName, reading, writing
from drimed.service.problems import Refusal
from drimed.service.retries import Reply
from drimed.service.route import JSON, answer, caller_of, guarded_router, media_of, replied, retry_of, service_of
from drimed.service.tokens import MANAGE, READ
from drimed.trial.build import notes
from drimed.trial.problem import Problem
from drimed.trial.records import Status
from drimed.trial.spec import TrialSpec
from drimed.trial.template import TEMPLATE
from drimed.trial.trial import Trial

TOML = "application/toml"
LARGEST_TOML = 1024 * 1024  # bytes: faults are given their lines by reading the file again and again

routes = guarded_router(tags=["trials"])

_EXAMPLE: dict[str, Any] = {
    "name": "maize-nitrogen",
    "control": "practice",
    "preference": {"yield": 200, "leaching": -3},
    "metrics": {"yield": {"unit": "t/ha", "range": [0, 15]}, "leaching": {"range": [0, 80], "better": "lower"}},
    "arms": {"practice": {}, "split": {}, "reduced": {}},
    "users": {"north": {"group": "sand"}, "hill": {"group": "loam"}},
    "tolerance": {"relative": 0.1, "absolute": 60},
}
_BODY = {
    "required": True,
    "content": {
        JSON: {"schema": {"type": "object", "description": "A trial file as JSON."}, "example": _EXAMPLE},
        TOML: {"schema": {"type": "string", "description": "A trial file as TOML."}, "example": TEMPLATE},
    },
}


def _create_described() -> dict[str, Any]:
    made = writing(MANAGE, Status, status=201, media=[JSON, TOML])
    made["openapi_extra"]["requestBody"] = _BODY
    made["responses"][200] = {
        "model": Checked,
        "description": "With `dry_run`: the file is sound, nothing was written.",
    }
    made["responses"][201]["headers"] |= {"Location": {"schema": {"type": "string"}, "description": "The trial."}}
    return made


@routes.post("/trials", summary="Create a trial", operation_id="create_trial", **_create_described())
async def create(
    request: Request,
    dry_run: Annotated[bool, Query(description="Only check the file.")] = False,
    key: Key = None,
) -> Response:
    """From a trial file, as JSON or as TOML (`drimed trial template` writes an example).

    Everything that is wrong with it is told at once, in `errors`, with the line where it is TOML. A token for one trial
    may create the trial of that name only.
    """
    del key
    service, caller = service_of(request), caller_of(request)
    body, media = await request.body(), media_of(request)
    data = None if media == TOML else await request.json()
    spec = await service.run(lambda: _toml(body) if media == TOML else TrialSpec.read(data))
    caller.must(MANAGE, spec.name)
    if dry_run:
        said = await service.run(lambda: notes(spec, Problem(spec).shape.d))
        return answer(asdict(Checked(spec.name, said)))

    def made(trial: Trial) -> Reply:
        return Reply(201, wire.written(asdict(trial.status())))

    reply = await service.create(spec, made, actor=caller.actor, retry=await retry_of(request))
    return replied(reply, {"Location": f"/v1/trials/{spec.name}"})


@routes.get("/trials", summary="List trials", operation_id="list_trials", **reading(READ, Trials))
async def listed(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    after: Annotated[str | None, Query(description="The `next` of the page before.", max_length=100)] = None,
) -> Response:
    """Each at a glance, in the order of their creation; a token for one trial sees that one."""
    service, caller = service_of(request), caller_of(request)
    names = _own(caller, await service.run(service.store.names))
    start = _place(names, after)
    page = names[start : start + limit]
    found = [await service.read(name, lambda trial: trial.status()) for name in page]
    return answer(asdict(Trials(found, page[-1] if len(names) > start + limit else None)))


@routes.get("/trials/{trial}", summary="A trial at a glance", operation_id="trial_status", **reading(READ, Status))
async def status(request: Request, trial: TrialName) -> Response:
    """Whether it runs, its episode, and how many decisions, outcomes and outcomes still awaited there are."""
    return answer(asdict(await service_of(request).read(trial, lambda t: t.status())))


@routes.get(
    "/trials/{trial}/spec",
    summary="The trial file",
    operation_id="trial_spec",
    **reading(READ, dict[str, Any], example=_EXAMPLE),
)
async def spec(request: Request, trial: TrialName) -> Response:
    """As it stands, with arms that were added since and without the seed. Users are listed under /users."""
    return answer(unseeded(await service_of(request).read(trial, lambda t: t.memory().spec.plain())))


@routes.get("/trials/{trial}/users", summary="List users", operation_id="list_users", **reading(READ, Users))
async def users(
    request: Request,
    trial: TrialName,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[str | None, Query(description="The `next` of the page before.", max_length=100)] = None,
) -> Response:
    """In the order in which they joined, as they were described last."""

    def look(opened: Trial) -> Users:
        memory = opened.memory()
        names = list(memory.users)
        start = _place(names, after)
        page = names[start : start + limit]
        items = [UserNow(name=n, **memory.definition(n).model_dump(mode="json")) for n in page]
        return Users(items, page[-1] if len(names) > start + limit else None)

    return answer(asdict(await service_of(request).read(trial, look)))


def _toml(body: bytes) -> TrialSpec:
    if len(body) > LARGEST_TOML:
        raise Refusal(413, "too-large", f"a trial file may have {LARGEST_TOML} bytes")
    try:
        return TrialSpec.parse(body.decode())
    except UnicodeDecodeError as error:
        raise SpecError([Fault((), f"not UTF-8: byte {error.start} cannot be read")]) from None
    except RecursionError:
        raise SpecError([Fault((), "nested too deeply")]) from None


def _own(caller: Caller, names: list[str]) -> list[str]:
    return names if caller.trial is None else [name for name in names if name == caller.trial]


def _place(names: list[str], after: str | None) -> int:
    if after is None:
        return 0
    if after not in names:
        raise InputError(f"there is nothing to go on after {after!r}; begin again without `after`")
    return names.index(after) + 1
