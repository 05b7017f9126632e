"""Pages: who may see them, forms that are safe to send, templates in which everything is escaped, and static files.

Every form carries a key that only pages of this browser know, and a random text: sent twice, it is done once. An error
is shown beside its input, or beside its row of a sheet.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import APIRouter
from jinja2 import Environment
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Message

from drimed.errors import DrimedError, InputError, UnconfirmedError
from drimed.formatting import number, short
from drimed.records import Decision, Fault
from drimed.reports import frame
from drimed.service import auth, refusals
from drimed.service.refusals import Refusal
from drimed.service.routing import AT_ONCE, ROLE, SMALL_BODY, TRIAL, address_of, admit, limit_body, service_of
from drimed.service.runtime import Author, Reply, Service
from drimed.trial import sheets, tables
from drimed.trial.changes import CHANGES
from drimed.trial.problem import outcome_text
from drimed.trial.seasons import when
from drimed.trial.spec import Metric, control_plot, decode
from drimed.trial.state import TrialState
from drimed.trial.store import Ledger
from drimed.trial.tables import Record, Table, read
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

PUBLIC = "public"  # permission of a page that everybody may see
FORM_COOKIE = "drimed_form"  # a random text that only this browser knows
KEY, ONCE = "form_key", "once"  # hidden fields of every form
MOST_FIELDS = 20_000
MOST_BYTES = 4 * 1024 * 1024  # of one field; the body as a whole has its own limit
SMALL_FORM = 16 * 1024  # bytes of a public form
MOST_SHOWN = 200  # rows of a sheet with errors
CACHED = "public, max-age=31536000, immutable"
MEDIA = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
# Messages after something was done; the address holds only the key.
DONE = {
    "created": "The trial was created.",
    "episode": "The season is open.",
    "recorded": "The outcome was recorded.",
    "amend": "The outcome was corrected. The old values stay in the log.",
    "given": "What was given was recorded, beside what was drawn.",
    "missing": "The outcome was marked as missing. If it comes after all, it can still be recorded.",
    "nothing": "That was recorded already; nothing has changed.",
} | {change.path: change.done for change in CHANGES.values()}
PREPARING = (
    "The numerical code is being compiled, which is done once on this machine and may take two minutes. This page "
    "opens by itself when that is done."
)
ROLES = {"read": auth.READ, "tell": auth.TELL, "ask": auth.ASK, "manage": auth.MANAGE}
NOBODY = auth.Caller("", "")  # may do nothing
_ONCE = re.compile(r"[A-Za-z0-9_-]{8,64}")
T = TypeVar("T")
Show = TypeVar("Show", bound=Callable[["Visit"], Awaitable[Response]])


@dataclass(frozen=True)
class Sent:
    """A sheet or a file that was uploaded or pasted."""

    name: str  # of the file; empty: pasted
    data: bytes


@dataclass
class Visit:
    """One request for a page."""

    request: Request
    service: Service
    caller: auth.Caller = NOBODY  # on a public page
    form: FormData = field(default_factory=FormData)  # texts
    file: Sent | None = None  # that came with the form
    sheet: Table | None = None  # in it, if it could be read

    @property
    def trial(self) -> str:
        return str(self.request.path_params["trial"])

    @property
    def blinded(self) -> bool:
        return self.caller.blinded

    def may(self, role: str, trial: str | None = None) -> bool:
        """Whether something that needs a permission is shown."""
        return self.caller.may(role, trial if trial is not None else self.caller.trial)

    def query(self, name: str) -> str:
        return self.request.query_params.get(name, "")[:200]

    def field(self, name: str) -> str:
        return str(self.form.get(name, "")).strip()

    def part(self, items: Sequence[T], size: int, name: str) -> tuple[Sequence[T], int, int]:
        """One page of a list, its number from 0 as the query names it, and how many there are."""
        pages = max(1, -(-len(items) // size))
        at = min(whole(self.query(name), 6) or 0, pages - 1)
        return items[at * size : (at + 1) * size], at, pages

    def done(self) -> str | None:
        """The message about what was just done."""
        return DONE.get(self.query("done"))

    def page(self, template: str, status: int = 200, **context: Any) -> Response:
        secret = self.request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(24)
        hidden = {"form_key": form_key(self.request, secret), "once": secrets.token_urlsafe(12)}
        text = environment().get_template(template).render(visit=self, roles=ROLES, **hidden, **context)
        response = HTMLResponse(text.encode(errors="replace"), status)  # what was sent may hold half characters
        if FORM_COOKIE not in self.request.cookies:
            set_cookie(self.request, response, FORM_COOKIE, secret)
        return response

    async def look(self, at: Callable[[Ledger, TrialState], T]) -> T:
        """Read the log and the state of the trial as they stand now."""

        def reading(trial: Trial) -> T:
            with trial.reading() as (ledger, state):
                return at(ledger, state)

        return await self.service.read(self.trial, reading)

    async def state(self) -> TrialState:
        return await self.look(lambda _, state: state)

    async def act(self, act: Callable[[Transaction], str], *, tells: bool = False) -> Response:
        """Change the trial, once however often the form is sent, and go to the address that `act` returns."""
        work = lambda tx: Reply(303, act(tx).encode(), tells=tells)  # noqa: E731
        large = len(await self.request.body()) > AT_ONCE
        reply = await self.service.write(self.trial, work, self.author(), large=large)
        return go(reply.text.decode())

    def author(self) -> Author:
        """The author of a form; the same page, sent again with the same content, has the same key."""
        content = [item for item in self.form.multi_items() if item[0] not in (KEY, ONCE)]
        author = Author.of(self.caller.actor, "form", repr((self.request.url.path, content, self.file)).encode())
        once = self.field(ONCE)
        return replace(author, key=f"form-{once}-{author.fingerprint[:32]}" if _ONCE.fullmatch(once) else None)

    def confirmed(self, act: Callable[[bool], T]) -> T:
        """Do it; unlikely values only if the form confirms exactly these."""
        try:
            return act(False)
        except UnconfirmedError as error:
            if self.field("confirm") != _mark(error):
                raise
            return act(True)

    @property
    def upload(self) -> Sent:
        """The file that came with the form, or else the pasted text."""
        return self.file or Sent("", _lines(str(self.form.get("text", ""))).encode(errors="replace"))

    async def table(self) -> Table:
        sent = self.upload
        if not sent.data.strip():
            raise InputError("choose a sheet or paste its text")
        file, most = (sent.data, sent.name), self.service.settings.largest_sheet
        if tables.is_workbook(sent.data):
            self.sheet = await self.service.parse_file(self.caller.actor, read, *file, most)
        else:
            self.sheet = await self.service.parse(lambda: read(*file, most))
        return self.sheet

    def download(self, name: str, state: TrialState, rows: Sequence[Record], empty: Sequence[str] = ()) -> Response:
        """A sheet to save, CSV or .xlsx by the address; `empty` are its columns if it has no rows."""
        suffix = PurePosixPath(self.request.url.path).suffix
        headers = {"Content-Disposition": f'attachment; filename="{name}{suffix}"'}
        data = tables.sheet(rows, suffix, empty, titles=sheets.titles(state))
        if suffix == tables.SUFFIX:
            return Response(data, headers=headers, media_type=tables.MEDIA)
        return Response(BOM_UTF8 + data, headers=headers, media_type="text/csv; charset=utf-8")


# Routes


class Pages(APIRouter):
    def page(self, path: str, role: str, *, method: str = "GET") -> Callable[[Show], Show]:
        """The page at an address, for visitors with a permission."""

        def added(show: Show) -> Show:
            async def endpoint(request: Request) -> Response:
                visit = Visit(request, service_of(request))
                try:
                    if method == "POST":
                        auth.refuse_other_sites(request)
                    if role != PUBLIC:
                        visit.caller = await admit(request, role)
                    if method == "POST":
                        await _read_form(visit, role)
                    elif "trial" in request.path_params and not visit.service.warm.is_set():
                        raise refusals.unavailable(PREPARING, 3)  # instead of a page that stays blank meanwhile
                    response = await show(visit)
                except (Refusal, HTTPException, DrimedError) as error:
                    response = refused_page(visit, refusals.refusal(error, named=request.path_params))
                visit.sheet = None  # templates keep the visit until cycles are looked for
                response.headers.update(HEADERS)
                return response

            options: dict[str, Any] = {"name": show.__name__, "openapi_extra": {ROLE: role}, "include_in_schema": False}
            self.add_api_route(path, endpoint, methods=[method], response_model=None, **options)
            return show

        return added


async def _read_form(visit: Visit, role: str) -> None:
    """Read and check a form; a large one is read in a thread, which has a loop of its own."""
    request = visit.request
    _, options = parse_options_header(request.headers.get("content-type"))
    if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):  # Python knows charsets that lose text
        raise Refusal(400, "malformed", "a form must be sent as UTF-8")
    takes_files = request.url.path == "/new" or request.url.path.endswith(("/ask", "/tell"))
    large = visit.service.settings.largest_body if takes_files else SMALL_BODY
    limit_body(request.scope, SMALL_FORM if role == PUBLIC else large)
    body = await request.body()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def parse() -> None:
        limits = {"max_files": 2, "max_fields": MOST_FIELDS, "max_part_size": MOST_BYTES}
        async with Request(request.scope, receive).form(**limits) as form:
            file = form.get("file")
            if isinstance(file, UploadFile) and file.filename:
                visit.file = Sent(file.filename, await file.read())
            visit.form = FormData([item for item in form.multi_items() if isinstance(item[1], str)])

    await (parse() if len(body) <= AT_ONCE else visit.service.parse(lambda: asyncio.run(parse())))
    secret, key = request.cookies.get(FORM_COOKIE, ""), visit.field(KEY)
    if not secret or not hmac.compare_digest(form_key(request, secret).encode(), key.encode()):
        detail = "this form is out of date or was not made by these pages; go back, reload the page, and send it again"
        raise Refusal(403, "forbidden", detail)


def form_key(request: Request, secret: str) -> str:
    """The key of a form: only pages that this browser got with this token know it."""
    token = request.cookies.get(auth.COOKIE, "")
    return hmac.new(secret.encode(), b"drimed form " + token.encode(), hashlib.sha256).hexdigest()


def set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Set a cookie that scripts cannot read and other sites cannot send."""
    response.set_cookie(name, value, path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https")


def refused_page(visit: Visit, refusal: Refusal) -> Response:
    """A page that says why; an unknown visitor is asked to sign in, one who may only tell is led there."""
    request = visit.request
    if refusal.status == 401:
        here = address_of(request)
        back = f"?next={quote(here, safe='')}" if request.method == "GET" and here != "/" else ""
        return go("/sign-in" + back, sign_out=True)
    caller, trial, tell = getattr(request.state, "caller", None), request.path_params.get("trial"), None
    if refusal.status == 403 and trial and TRIAL.fullmatch(trial) and caller and caller.may(auth.TELL, trial):
        visit.caller, tell = caller, f"/trials/{trial}/tell"
    again = refusal.headers.get("Retry-After")
    response = visit.page(
        "refused.html", refusal.status, title=refusal.title, detail=refusal.detail, tell=tell, again=again
    )
    response.headers.update(HEADERS | ({"Retry-After": again} if again else {}))
    return response


def go(address: str, *, sign_out: bool = False) -> Response:
    response = RedirectResponse(address, 303)
    if sign_out:
        response.delete_cookie(auth.COOKIE, path="/")
    return response


def whole(text: str, digits: int = 9) -> int | None:
    """A whole number of at most `digits` digits, from an address or a form; None: it is none.

    >>> whole("12"), whole("-1"), whole(""), whole("1234567", 6)
    (12, None, None, None)
    """
    return int(text) if text.isdecimal() and len(text) <= digits else None


# Errors of forms


@dataclass(frozen=True)
class FormErrors:
    form: str = ""  # which one of the page
    found: list[tuple[str, str]] = field(default_factory=list)  # (name of the input, or empty: the form; message)
    mark: str = ""  # sent back to confirm the values; empty: there is nothing to confirm
    text: str = ""  # the sheet as it came, to correct it in place
    columns: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)  # of the sheet: number, cells and errors
    left_out: int = 0  # rows that are not shown

    @property
    def status(self) -> int:
        return 422 if self.found else 200

    def at(self, form: str, name: str) -> str:
        """The message beside an input."""
        return "; ".join(message for at, message in self.found if at == name) if form == self.form else ""


NO_ERRORS = FormErrors()


def form_errors(form: str, error: DrimedError, place: Callable[[Fault], str] = lambda _: "") -> FormErrors:
    """An error for the form that caused it; `place` finds the input of a fault."""
    found = [(place(fault), fault.message) for fault in error.faults] or [("", str(error))]
    return FormErrors(form, found, _mark(error))


async def sheet_errors(visit: Visit, error: DrimedError) -> FormErrors:
    """An error for a sheet, with each message beside its row."""
    return await visit.service.parse(lambda: _sheet_errors(visit.upload, visit.sheet, error))


def _sheet_errors(sent: Sent, table: Table | None, error: DrimedError) -> FormErrors:
    messages: dict[int, list[str]] = {}
    for fault in error.faults:
        if fault.row is not None:
            messages.setdefault(fault.row, []).append(fault.message)
    text = ""
    if table is not None and tables.is_workbook(sent.data):
        text = tables.table_text(table)
    elif not tables.is_workbook(sent.data):
        with suppress(DrimedError):
            text = _lines(decode(sent.data, sent.name)[0])
    if not messages:
        return replace(form_errors("sheet", error), text=text)
    wrong = sorted(messages.items())
    columns, cells = [], dict[int, list[str]]()
    if table is not None:
        columns = list(table.names)
        cells = {
            r.number: [tables.text(r.cells.get(n, "")) for n in columns] for r in table.rows if r.number in messages
        }
        count = len(table.rows)
    else:  # of a sheet that cannot be read, its lines
        lines = text.split("\n")
        cells, count = {n: [lines[n - 1]] for n in messages if n <= len(lines)}, len(lines)
    rows = [{"number": n, "cells": cells.get(n, []), "errors": texts} for n, texts in wrong[:MOST_SHOWN]]
    found = [(f"row-{n}", f"Row {n}: {'; '.join(texts)}") for n, texts in wrong]
    return FormErrors("sheet", found, _mark(error), text, columns, rows, count - len(rows))


def _mark(error: DrimedError) -> str:
    """The text that confirms the values of an error, and no others."""
    if not isinstance(error, UnconfirmedError):
        return ""
    return hashlib.sha256("\n".join(map(str, error.faults)).encode()).hexdigest()[:16]


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


# Templates and static files


@cache
def environment() -> Environment:
    made = frame.environment("drimed.service.pages")
    made.filters |= {"number": number, "shown": shown}
    made.filters["seg"] = lambda name: quote(str(name), safe="", errors="replace")
    made.globals |= {"asset": asset, "control_plot": control_plot, "worded": worded, "place": place, "season": when}
    return made


def worded(metric: Metric, values: Mapping[str, float] | None, name: str) -> str:
    """A recorded value for people; nothing where there is none."""
    return outcome_text(name, metric, values or {})


def shown(value: float | str) -> str:
    """A recorded value: the level of a category as it is, a number in short."""
    return value if isinstance(value, str) else short(value)


def place(decision: Decision) -> str:
    """The user and the plot of a decision.

    >>> from types import SimpleNamespace as D
    >>> place(D(user="north", plot="A1", block="A")), place(D(user="north", plot=None, block=None))
    ('north, plot A1 in block A', 'north')
    """
    plot = "" if decision.plot is None else f", plot {decision.plot}"
    return decision.user + plot + ("" if decision.block is None else f" in block {decision.block}")


static = APIRouter(include_in_schema=False)


@cache
def static_files() -> dict[str, bytes]:
    """The files that pages load, by name."""
    folders = [resources.files(package) / "static" for package in ("drimed.service.pages", "drimed.reports")]
    return {f.name: f.read_bytes() for at in folders for f in at.iterdir() if f.name.rpartition(".")[2] in MEDIA}


@cache
def asset(name: str) -> str:
    """The address of a file, which changes when the file does."""
    return f"/static/{name}?v={hashlib.sha256(static_files()[name]).hexdigest()[:12]}"


@static.get("/static/{name}")
async def static_file(name: str) -> Response:
    if name not in static_files():
        raise HTTPException(404)
    return Response(static_files()[name], media_type=MEDIA[name.rpartition(".")[2]], headers={"Cache-Control": CACHED})
