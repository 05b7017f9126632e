"""Sign in with a token, and out again."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from drimed.service import access
from drimed.service.pages.route import PUBLIC, Pages, Visit, go, keep, local_address
from drimed.service.problems import Refusal

routes = Pages()


@routes.page("/sign-in", PUBLIC)
async def ask_for_token(visit: Visit) -> Response:
    """The form; where there are no tokens nobody needs one."""
    service = visit.service
    if await service.run(service.access.look_whether_open):
        response = go("/")
        response.delete_cookie(access.COOKIE, path="/")
        return response
    return _form(visit, visit.query("next"))


@routes.page("/sign-in", PUBLIC, method="POST")
async def sign_in(visit: Visit) -> Response:
    """Keep the token in a cookie, if it is one."""
    text, after = visit.field("token"), visit.field("next")
    if not text.isascii() or not text.isprintable() or ";" in text:
        return _form(visit, after, error="That is not a token: tokens begin with “drimed_”.", status=422)
    try:
        await visit.service.identify(_with_token(visit.request, text))
    except Refusal as refusal:
        said = "This token is not known, or it has expired or was revoked." if refusal.status == 401 else refusal.detail
        return _form(visit, after, error=said, status=422 if refusal.status == 401 else refusal.status)
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


def _form(visit: Visit, after: str, *, error: str | None = None, status: int = 200) -> Response:
    return visit.page("sign_in.html", status, after=local_address(after), error=error)


def _with_token(request: Request, text: str) -> Request:
    """The same request, as if it had brought the token in its header."""
    headers = [(k, v) for k, v in request.scope["headers"] if k not in (b"authorization", b"cookie")]
    headers.append((b"authorization", b"Bearer " + (text or "none").encode()))
    return Request({**request.scope, "headers": headers})
