"""All trials at a glance, and new ones from a file."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from starlette.responses import Response

from drimed.errors import ConflictError, DrimedError, Fault, InputError, SpecError
from drimed.service.analyses import Analyses
from drimed.service.endpoints.trials import LARGEST_TOML
from drimed.service.pages import uploads
from drimed.service.pages.route import Pages, Visit, go, whole
from drimed.service.retries import Reply
from drimed.service.tokens import MANAGE, READ
from drimed.trial.records import Status
from drimed.trial.spec import TrialSpec
from drimed.trial.template import TEMPLATE
from drimed.trial.trial import Trial

PAGE = 30  # trials
AROUND = 3  # lines shown on either side of a fault
PATIENCE = 1.5  # seconds that the page waits for alarms

routes = Pages()


@dataclass(frozen=True)
class Glance:
    """A trial in the list."""

    status: Status
    alarms: list[str] | None  # None: not worked out yet


@dataclass(frozen=True)
class Numbered:
    """A line of a file that has faults."""

    number: int
    text: str
    faults: list[Fault]
    skipped: int = 0  # lines before it that are not shown


@routes.page("/", READ)
async def trials(visit: Visit) -> Response:
    """Every trial that the caller may see."""
    service = visit.service
    only = visit.caller.trial if visit.caller is not None else None
    names = [n for n in await service.run(service.store.names) if only in (None, n)]
    page = min(whole(visit.query("page"), 6) or 0, max(0, (len(names) - 1) // PAGE))
    shown = names[::-1][page * PAGE : (page + 1) * PAGE]  # the newest first
    found = await asyncio.gather(*(service.read(name, lambda t: t.status()) for name in shown))
    analyses, until = Analyses.of(visit.request), time.monotonic() + PATIENCE
    glances = []
    for s in found:  # one after the other, as far as the budget and the reader's patience go
        left = until - time.monotonic()
        w = await analyses.get(s.name, s.hash, left, needed=False) if left > 0 else analyses.known(s.name)
        glances.append(
            Glance(s, None if w is None or w.analysis is None else [a.what for a in w.analysis.checks.alarms])
        )
    return visit.page("home.html", glances=glances, page=page, pages=-(-len(names) // PAGE), total=len(names))


@routes.page("/new", MANAGE)
async def new(visit: Visit) -> Response:
    """A form for a trial file."""
    return _form(visit, TEMPLATE if visit.query("example") else "")


@routes.page("/new", MANAGE, method="POST")
async def create(visit: Visit) -> Response:
    """A trial from a file, or what is wrong with it, at the line."""
    text = ""
    try:
        came = await uploads.sent(visit, "a trial file")
        text = came.text
        if len(text.encode()) > LARGEST_TOML:
            raise InputError(f"a trial file may have {LARGEST_TOML} bytes")
        json = came.name.lower().endswith(".json") or text.lstrip().startswith("{")  # no TOML begins so
        spec = await visit.service.run(lambda: TrialSpec.parse(text, "json" if json else "toml"))
    except SpecError as error:
        return _form(visit, text, faults=list(error.faults), status=422)
    except RecursionError:
        return _form(visit, text, faults=[Fault((), "nested too deeply")], status=422)
    except InputError as error:
        return _form(visit, text, faults=[Fault((), str(error))], status=422)
    if visit.caller is not None:
        visit.caller.must(MANAGE, spec.name)
    try:
        reply = await visit.service.create(spec, _made, actor=visit.actor, retry=visit.retry())
    except ConflictError as error:
        return _form(visit, text, faults=[Fault(("name",), str(error), _line(text, "name"))], status=409)
    except DrimedError as error:
        return _form(visit, text, faults=[Fault((), str(error))], status=422)
    return go(reply.text.decode())


def _made(trial: Trial) -> Reply:
    return Reply(303, f"/trials/{trial.name}?done=created".encode())


def _form(visit: Visit, text: str, *, faults: list[Fault] | None = None, status: int = 200) -> Response:
    at: dict[int, list[Fault]] = {}
    for fault in faults or []:
        if fault.line is not None:
            at.setdefault(fault.line, []).append(fault)
    listed = sorted(faults or [], key=lambda f: f.line or 0)
    return visit.page("new.html", status, text=text, faults=listed, lines=_near(text, at))


def _near(text: str, at: dict[int, list[Fault]]) -> list[Numbered]:
    """Lines with faults, and those around them."""
    wanted = {n + d for n in at for d in range(-AROUND, AROUND + 1)}
    found: list[Numbered] = []
    for i, line in enumerate(text.split("\n"), 1):
        if i in wanted:
            found.append(Numbered(i, line, at.get(i, []), i - 1 - (found[-1].number if found else 0)))
    return found


def _line(text: str, key: str) -> int | None:
    return next((i for i, line in enumerate(text.split("\n"), 1) if line.split("=")[0].strip() == key), None)
