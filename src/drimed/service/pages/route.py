"""How a page is served: who asks for it, whether its form is ours, then the work; an error is a page too."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.routing import APIRoute
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Message

from drimed.errors import DrimedError
from drimed.service import access, observing, problems
from drimed.service.access import Caller
from drimed.service.answers import Reply, Retry
from drimed.service.pages.rendering import render
from drimed.service.problems import TITLES, Refusal
from drimed.service.route import AT_ONCE, ROLE, SMALL_BODY, TRIAL, admit, service_of
from drimed.service.service import Service
from drimed.service.tokens import ASK_TELL, MANAGE, READ, TELL
from drimed.trial.changes import CHANGES
from drimed.trial.transaction import Transaction

FORM_COOKIE = "drimed_form"  # a random text that only this browser knows
KEY, ONCE = "form_key", "once"  # hidden fields of every form
MOST_FIELDS = 20_000
MOST_BYTES = 4 * 1024 * 1024  # of one field; the body as a whole has its own limit
SMALL_FORM = 16 * 1024  # bytes: of a form that everybody may send
PUBLIC = "public"  # the role of a page that everybody may see
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
# What a page says after something was done; the address holds only the key.
DONE = {
    "created": "The trial was created.",
    "episode": "The season is open.",
    "recorded": "The outcome was recorded.",
    "amended": "The outcome was corrected. The old values stay in the log.",
    "missing": "The outcome was marked as missing. If it comes after all, it can still be recorded.",
    "nothing": "That was recorded already; nothing has changed.",
} | {change.path: change.done for change in CHANGES.values()}
_ONCE = re.compile(r"[A-Za-z0-9_-]{8,64}")


@dataclass
class Visit:
    """One request for a page."""

    request: Request
    service: Service
    caller: Caller | None  # None: a page that everybody may see
    form: FormData = field(default_factory=FormData)

    @property
    def trial(self) -> str:
        """The trial that the address names."""
        return str(self.request.path_params["trial"])

    @property
    def actor(self) -> str:
        """Who acts, as the log names them."""
        return self.caller.actor if self.caller is not None else ""

    @property
    def blinded(self) -> bool:
        """Whether the visitor must not learn which arms were given."""
        return self.caller is not None and self.caller.blinded

    def may(self, role: str, trial: str | None = None) -> bool:
        """Whether something that needs a role is shown."""
        if self.caller is None:
            return False
        return self.caller.may(role, trial if trial is not None else self.caller.trial)

    def query(self, name: str, default: str = "") -> str:
        """A part of the address after the question mark."""
        return self.request.query_params.get(name, default)[:200]

    def field(self, name: str) -> str:
        """A field of the form, as text."""
        value = self.form.get(name)
        return value.strip() if isinstance(value, str) else ""

    def said(self) -> str | None:
        """What was just done, in words."""
        return DONE.get(self.query("done"))

    def page(self, template: str, status: int = 200, **context: Any) -> Response:
        """A page, with what every page needs."""
        secret = self.request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(24)
        text = render(
            template,
            visit=self,
            form_key=form_key(self.request, secret),
            once=secrets.token_urlsafe(12),
            roles={"read": READ, "tell": TELL, "ask": ASK_TELL, "manage": MANAGE},
            **context,
        )
        response = HTMLResponse(text.encode(errors="replace"), status)  # what was sent may hold half characters
        if FORM_COOKIE not in self.request.cookies:
            keep(self.request, response, FORM_COOKIE, secret)
        return response

    async def act(self, act: Callable[[Transaction], str], *, decides: bool = False) -> Response:
        """Change the trial, once however often the form is sent, and go to the address that `act` returns."""
        work = lambda tx: Reply(303, act(tx).encode())  # noqa: E731
        reply = await self.service.write(self.trial, work, actor=self.actor, retry=self.retry(), decides=decides)
        return go(reply.text.decode())

    def retry(self) -> Retry | None:
        """The form as a request that may come twice: the same page, sent with the same content."""
        once = self.field(ONCE)
        if not _ONCE.fullmatch(once):
            return None
        digest = hashlib.sha256(self.request.url.path.encode())
        for name, value in self.form.multi_items():
            if isinstance(value, UploadFile):
                value.file.seek(0)
                content = value.file.read()
                value.file.seek(0)
            else:
                content = value.encode()
            if name not in (KEY, ONCE):
                digest.update(f"{len(name)}:{name}:{len(content)}:".encode() + content)
        return Retry(self.actor, f"form-{once}-{digest.hexdigest()[:32]}", digest.hexdigest())


class Paged(APIRoute):
    """A route whose endpoint takes a Visit."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        role = str((self.openapi_extra or {})[ROLE])
        visited: Callable[[Visit], Awaitable[Response]] = self.endpoint.visited  # type: ignore[attr-defined]

        async def handler(request: Request) -> Response:
            visit = Visit(request, service_of(request), None)
            try:
                response = await self._answer(visit, role, visited)
            except Refusal as refusal:
                response = refused(visit, refusal)
            except HTTPException as error:
                response = refused(visit, Refusal(error.status_code, "malformed", str(error.detail)))
            except DrimedError as error:
                response = refused(visit, problems.of_error(error))
            finally:
                await visit.form.close()
            response.headers.update(HEADERS)
            return response

        return handler

    @staticmethod
    async def _answer(visit: Visit, role: str, visited: Callable[[Visit], Awaitable[Response]]) -> Response:
        request = visit.request
        writes = request.method == "POST"
        if writes:
            access.refuse_other_sites(request)
        if role != PUBLIC:
            visit.caller = await admit(request, role)
        if writes:
            _refuse_other_charsets(request)
            observing.limit_body(request.scope, _largest(request, role))
            visit.form = await _form_of(visit)
            _check_form(visit)
        return await visited(visit)


class Pages(APIRouter):
    """A router of pages."""

    def __init__(self) -> None:
        super().__init__(route_class=Paged, include_in_schema=False)

    def page(
        self, path: str, role: str, *, method: str = "GET"
    ) -> Callable[[Callable[[Visit], Any]], Callable[[Visit], Any]]:
        """The page at an address, for visitors with a role."""

        def added(visited: Callable[[Visit], Any]) -> Callable[[Visit], Any]:
            async def endpoint() -> None:
                """Answered by the route itself."""

            endpoint.visited = visited  # type: ignore[attr-defined]
            endpoint.__name__ = visited.__name__
            self.add_api_route(path, endpoint, methods=[method], openapi_extra={ROLE: role})
            return visited

        return added


def nothing_here(request: Request, refusal: Refusal) -> Response:
    """A page for an address that does not exist."""
    response = refused(Visit(request, service_of(request), None), refusal)
    response.headers.update(HEADERS)
    return response


def refused(visit: Visit, refusal: Refusal) -> Response:
    """A page that says why; an unknown visitor is asked to sign in."""
    if refusal.status == 401:
        request = visit.request
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        back = f"?next={quote(here, safe='')}" if request.method == "GET" and here != "/" else ""
        response = go("/sign-in" + back)
        if access.COOKIE in request.cookies:
            response.delete_cookie(access.COOKIE, path="/")
        return response
    where = _where_instead(visit) if refusal.status == 403 else None
    response = visit.page("refused.html", refusal.status, title=TITLES[refusal.kind], detail=refusal.detail, tell=where)
    if "Retry-After" in refusal.headers:
        response.headers["Retry-After"] = refusal.headers["Retry-After"]
    return response


def _where_instead(visit: Visit) -> str | None:
    """The page on which somebody who may not see a trial's findings can record its outcomes."""
    caller, trial = getattr(visit.request.state, "caller", None), visit.request.path_params.get("trial")
    if trial is None or not TRIAL.fullmatch(trial) or not isinstance(caller, Caller) or not caller.may(TELL, trial):
        return None
    visit.caller = visit.caller or caller  # the page says who is signed in, as all others do
    return f"/trials/{trial}/tell"


def whole(text: str, digits: int = 9) -> int | None:
    """A whole number of at most `digits` digits, from an address or a form; None: it is none.

    >>> whole("12"), whole("-1"), whole(""), whole("1234567", 6)
    (12, None, None, None)
    """
    return int(text) if text.isdecimal() and len(text) <= digits else None


def go(address: str) -> Response:
    """Go to another of these pages, with GET."""
    return RedirectResponse(address, 303)


def local_address(text: str) -> str:
    """An address in these pages; anything else becomes the first page.

    >>> [local_address(a) for a in ("/trials/t?who=a", "//elsewhere.org", "https://elsewhere.org", "/\\\\x")]
    ['/trials/t?who=a', '/', '/', '/']
    """
    plain = text.startswith("/") and not text.startswith("//") and "\\" not in text and text.isprintable()
    return text if plain else "/"


def keep(request: Request, response: Response, name: str, value: str) -> None:
    """A cookie that scripts cannot read and other sites cannot send."""
    response.set_cookie(name, value, path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https")


def form_key(request: Request, secret: str) -> str:
    """What a form must send: only pages that this browser got with this token know it."""
    token = request.cookies.get(access.COOKIE, "")
    return hmac.new(secret.encode(), b"drimed form " + token.encode(), hashlib.sha256).hexdigest()


def _refuse_other_charsets(request: Request) -> None:
    """Browsers send the forms of these pages as UTF-8; Python knows charsets that cannot be read, or only half."""
    _, options = parse_options_header(request.headers.get("content-type"))
    if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
        raise Refusal(400, "malformed", "a form must be sent as UTF-8")


def _largest(request: Request, role: str) -> int:
    """Bytes: sheets and trial files may be large."""
    if role == PUBLIC:
        return SMALL_FORM
    takes_files = request.url.path == "/new" or request.url.path.endswith(("/ask", "/tell"))
    return service_of(request).settings.largest_body if takes_files else SMALL_BODY


async def _form_of(visit: Visit) -> FormData:
    """What was sent; a large form is read in a thread, which has a loop of its own."""
    body = await visit.request.body()

    async def given() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def read() -> FormData:
        request = Request(visit.request.scope, given)
        return await request.form(max_files=2, max_fields=MOST_FIELDS, max_part_size=MOST_BYTES)

    if len(body) <= AT_ONCE:
        return await read()
    return await visit.service.parse(lambda: asyncio.run(read()))


def _check_form(visit: Visit) -> None:
    secret, came = visit.request.cookies.get(FORM_COOKIE, ""), visit.field(KEY)
    if not secret or not hmac.compare_digest(form_key(visit.request, secret).encode(), came.encode()):
        detail = "this form is out of date or was not made by these pages; go back, reload the page, and send it again"
        raise Refusal(403, "forbidden", detail)
