"""Pages that are not about one trial: all trials, a new one from a file, signing in and out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from drimed.errors import ConflictError, DrimedError, InputError, SpecError
from drimed.records import Fault
from drimed.service import access
from drimed.service.analyses import Analyses
from drimed.service.answers import Reply
from drimed.service.endpoints.writing import LARGEST_TOML
from drimed.service.pages import forms
from drimed.service.pages.route import PUBLIC, Pages, Visit, go, keep, local_address, whole
from drimed.service.problems import Refusal
from drimed.service.tokens import ANY, MANAGE
from drimed.trial import template
from drimed.trial.blinding import blinded_status
from drimed.trial.spec import TrialSpec
from drimed.trial.tables.decoding import decode_utf

PAGE = 30  # trials
AROUND = 3  # lines shown on either side of one with an error
PATIENCE = 1.5  # seconds that the page waits for alarms

routes = Pages()


@dataclass(frozen=True)
class Line:
    """A line of a trial file, with its errors."""

    number: int
    text: str
    faults: list[Fault]
    skipped: int = 0  # lines before it that are not shown


@routes.page("/", ANY)
async def trials(visit: Visit) -> Response:
    """Every trial that the caller may see."""
    service = visit.service
    only = visit.caller.trial if visit.caller is not None else None
    names = [n for n in await service.run(service.store.names) if only in (None, n)]
    page = min(whole(visit.query("page"), 6) or 0, max(0, (len(names) - 1) // PAGE))
    shown = names[::-1][page * PAGE : (page + 1) * PAGE]  # the newest first
    found = await asyncio.gather(*(service.read(name, lambda t: t.status()) for name in shown))
    if visit.blinded:
        found = [blinded_status(s) for s in found]
    analyses, until = Analyses.of(visit.request), time.monotonic() + PATIENCE
    alarms: dict[str, list[str]] = {}  # of trials whose analysis is there
    for s in (
        () if visit.blinded else found
    ):  # one after the other, as far as the computing budget and the reader's patience go
        left = until - time.monotonic()
        w = await analyses.get(s.name, s.hash, left, needed=False) if left > 0 else analyses.known(s.name)
        if w is not None and w.analysis is not None:
            alarms[s.name] = [alarm.what for alarm in w.analysis.checks.alarms]
    pages = -(-len(names) // PAGE)
    return visit.page("home.html", trials=found, alarms=alarms, page=page, pages=pages, total=len(names))


@routes.page("/new", MANAGE)
async def new(visit: Visit) -> Response:
    """A form for a trial file."""
    return _form(visit, template() if visit.query("example") else "")


@routes.page("/new", MANAGE, method="POST")
async def create(visit: Visit) -> Response:
    """Create a trial from a file, or show its errors at their lines."""
    text = ""
    try:
        sent = await forms.sent(visit, "a trial file")
        text = sent.data if isinstance(sent.data, str) else decode_utf(sent.data, sent.name)
        if len(text.encode()) > LARGEST_TOML:
            raise InputError(f"a trial file may have at most {LARGEST_TOML} bytes")
        json = sent.name.lower().endswith(".json") or text.lstrip().startswith("{")  # no TOML begins so
        spec = await visit.service.parse(lambda: TrialSpec.parse(text, "json" if json else "toml"))
    except (SpecError, InputError) as error:
        return _form(visit, text, list(error.faults) or [Fault((), str(error))], 422)
    except RecursionError:
        return _form(visit, text, [Fault((), "nested too deeply")], 422)
    if visit.caller is not None:
        visit.caller.must(MANAGE, spec.name)
    try:
        created = lambda _: Reply(303, f"/trials/{spec.name}?done=created".encode())  # noqa: E731
        reply = await visit.service.create(spec, created, actor=visit.actor, retry=visit.retry())
    except ConflictError as error:
        keys = [line.split("=")[0].strip() for line in text.split("\n")]
        line = keys.index("name") + 1 if "name" in keys else None
        return _form(visit, text, [Fault(("name",), str(error), line)], 409)
    except DrimedError as error:
        return _form(visit, text, [Fault((), str(error))], 422)
    return go(reply.text.decode())


def _form(visit: Visit, text: str, faults: Sequence[Fault] = (), status: int = 200) -> Response:
    listed = sorted(faults, key=lambda f: f.line or 0)
    return visit.page("new.html", status, text=text, faults=listed, lines=_near(text, faults))


def _near(text: str, faults: Sequence[Fault]) -> list[Line]:
    """Lines with errors, and those around them."""
    wanted = {f.line + d for f in faults if f.line is not None for d in range(-AROUND, AROUND + 1)}
    found: list[Line] = []
    for i, line in enumerate(text.split("\n"), 1):
        if i in wanted:
            here = [fault for fault in faults if fault.line == i]
            found.append(Line(i, line, here, i - 1 - (found[-1].number if found else 0)))
    return found


@routes.page("/sign-in", PUBLIC)
async def ask_for_token(visit: Visit) -> Response:
    """The sign-in form; a service without tokens needs none."""
    service = visit.service
    if await service.run(service.access.look_whether_open):
        response = go("/")
        response.delete_cookie(access.COOKIE, path="/")
        return response
    return _sign_in(visit, visit.query("next"))


@routes.page("/sign-in", PUBLIC, method="POST")
async def sign_in(visit: Visit) -> Response:
    """Keep the token in a cookie, if it is one."""
    text, after = visit.field("token"), visit.field("next")
    if not text.isascii() or not text.isprintable() or ";" in text:
        return _sign_in(visit, after, error="This is not a token: tokens begin with “drimed_”.", status=422)
    try:
        await visit.service.identify(_with_token(visit.request, text))
    except Refusal as refusal:
        said = "This token is not known, or it has expired or was revoked." if refusal.status == 401 else refusal.detail
        return _sign_in(visit, after, error=said, status=422 if refusal.status == 401 else refusal.status)
    response = go(local_address(after))
    keep(visit.request, response, access.COOKIE, text)
    return response


@routes.page("/sign-out", PUBLIC, method="POST")
async def sign_out(visit: Visit) -> Response:
    """Forget the token."""
    response = go("/sign-in")
    if access.COOKIE in visit.request.cookies:
        response.delete_cookie(access.COOKIE, path="/")
    return response


def _sign_in(visit: Visit, after: str, *, error: str | None = None, status: int = 200) -> Response:
    return visit.page("sign_in.html", status, after=local_address(after), error=error)


def _with_token(request: Request, text: str) -> Request:
    """The same request, as if it had brought the token in its header."""
    headers = [(k, v) for k, v in request.scope["headers"] if k not in (b"authorization", b"cookie")]
    headers.append((b"authorization", b"Bearer " + (text or "none").encode()))
    return Request({**request.scope, "headers": headers})
