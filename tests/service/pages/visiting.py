"""Somebody who looks at pages and sends their forms, without a browser."""

from __future__ import annotations

import html
import re
from typing import Any

import httpx

from drimed.service.auth import COOKIE

RELOADS = 20  # of a page, each of which waits some seconds for the analysis
_HIDDEN = re.compile(r'name="(form_key|once)" value="([^"]+)"')


class Visitor:
    """Keeps cookies as a browser does."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def look(self, address: str, status: int = 200) -> str:
        """A page, as text; one that reloads by itself until its analysis is there is loaded until then."""
        for _ in range(RELOADS):
            answer = self.http.get(address, follow_redirects=True)
            if "data-reload" not in answer.text:
                break
        assert answer.status_code == status, answer.text
        return answer.text

    def hidden(self, page: str) -> dict[str, str]:
        """What the forms of a page bring along."""
        return dict(_HIDDEN.findall(self.look(page)))

    def send(
        self, page: str, data: dict[str, Any], *, to: str | None = None, file: tuple[str, bytes] | None = None
    ) -> httpx.Response:
        """The form of a page, filled in."""
        files = {"file": file} if file is not None else None
        return self.http.post(to or page, data=self.hidden(page) | data, files=files)

    def done(self, answer: httpx.Response) -> str:
        """Where a form that worked leads to."""
        assert answer.status_code == httpx.codes.SEE_OTHER, readable(answer.text)
        return self.look(answer.headers["location"])

    def sign_in(self, token: str) -> httpx.Response:
        """With a token."""
        return self.send("/sign-in", {"token": token, "next": "/"})

    @property
    def token(self) -> str | None:
        """The token that the cookies hold."""
        return self.http.cookies.get(COOKIE)


def readable(page: str) -> str:
    """What a page says, without its tags."""
    body = page.partition("<main")[2] or page
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)))
