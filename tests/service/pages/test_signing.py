"""Who sees what, who may send what, and forms of other people's pages."""

from __future__ import annotations

import httpx
from starlette.requests import Request

from drimed.service.pages.base import FORM_COOKIE, Visit
from tests.service.pages.conftest import Token
from tests.service.pages.visiting import Visitor, readable
from tests.service.serving import Running


def test_without_tokens_nobody_signs_in(visitor: Visitor) -> None:
    assert "open to this machine only" in visitor.look("/")
    assert visitor.http.get("/sign-in").headers["location"] == "/"


def test_with_tokens_pages_ask_for_one_and_lead_on(visitor: Visitor, token: Token) -> None:
    text = token("read")
    answer = visitor.http.get("/trials/busy?by=user")
    assert answer.headers["location"] == "/sign-in?next=%2Ftrials%2Fbusy%3Fby%3Duser"
    wrong = visitor.sign_in(text[:-1] + "_")
    assert wrong.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "not known" in wrong.text
    assert visitor.token is None
    right = visitor.send("/sign-in", {"token": text, "next": "/trials/busy"})
    assert right.headers["location"] == "/trials/busy"
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "read all" in visitor.look("/trials/busy")
    assert text not in visitor.look("/trials/busy")
    out = visitor.send("/", {}, to="/sign-out")
    assert out.headers["location"] == "/sign-in"
    assert visitor.token is None
    assert visitor.http.get("/").headers["location"] == "/sign-in"


def test_what_is_no_token_is_refused(visitor: Visitor, token: Token) -> None:
    token("read")
    for bad in ["", "x;y", "é", "drimed_12345678_", "a\nb"]:
        assert visitor.sign_in(bad).status_code == httpx.codes.UNPROCESSABLE_ENTITY


def test_signing_in_leads_nowhere_else(visitor: Visitor, token: Token) -> None:
    text = token("read")
    for address in ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x"]:
        answer = visitor.send("/sign-in", {"token": text, "next": address})
        assert answer.headers["location"] == "/"


def test_roles_hide_what_they_may_not_do_and_refuse_it(visitor: Visitor, token: Token, http: httpx.Client) -> None:
    visitor.done(visitor.sign_in(token("read")))
    page = visitor.look("/trials/busy")
    assert "/ask" not in page
    assert "/manage" not in page
    assert "/new" not in visitor.look("/")
    for address in ("/trials/busy/ask", "/trials/busy/tell", "/trials/busy/manage", "/new"):
        assert "has the role" in readable(visitor.look(address, 403))
    answer = visitor.send("/trials/busy", {"reason": "x"}, to="/trials/busy/manage/pause")
    assert answer.status_code == httpx.codes.FORBIDDEN
    assert http.get("/v1/trials/busy").json()["status"] == "running"

    visitor.done(visitor.sign_in(token("ask-tell")))
    page = visitor.look("/trials/busy")
    assert "/trials/busy/ask" in page
    assert "/manage" not in page
    assert visitor.send("/trials/busy", {"reason": "x"}, to="/trials/busy/manage/pause").status_code == 403
    visitor.done(visitor.send("/trials/busy/ask", {"how": "hand", "episode": "1", "user": "0:site 0"}))
    assert "asked by ask-tell all" in readable(visitor.look("/trials/busy/decisions/1"))


def test_a_token_for_one_trial_sees_that_one_only(visitor: Visitor, token: Token) -> None:
    visitor.done(visitor.sign_in(token("manage", "small")))
    page = visitor.look("/")
    assert "/trials/small" in page
    assert "busy" not in page
    assert "for another trial" in readable(visitor.look("/trials/busy", 403))
    assert "/trials/small/manage" in visitor.look("/trials/small")


def test_a_revoked_token_leads_back_to_the_sign_in(visitor: Visitor, token: Token, running: Running) -> None:
    from drimed.service import auth as service_auth

    visitor.done(visitor.sign_in(token("read")))
    service_auth.revoke_token(running.service.store, "read all")
    running.service.access._known.clear()  # as two seconds later
    assert visitor.http.get("/trials/busy").headers["location"].startswith("/sign-in")
    assert visitor.token is None


def test_a_form_that_is_not_ours_is_refused(visitor: Visitor, http: httpx.Client) -> None:
    for spoil in [
        {"form_key": ""},
        {"form_key": "0" * 64},
        {"form_key": "é"},
    ]:
        answer = visitor.send("/trials/small/manage", {"reason": "x"} | spoil, to="/trials/small/manage/pause")
        assert answer.status_code == httpx.codes.FORBIDDEN
        assert "out of date" in readable(answer.text)
        assert http.get("/v1/trials/small").json()["status"] == "running"


def test_the_key_of_a_form_is_worth_nothing_in_another_browser_or_with_another_token(
    visitor: Visitor, running: Running, token: Token
) -> None:
    form = visitor.hidden("/trials/small/manage") | {"reason": "x"}
    with httpx.Client(base_url=running.address) as other:
        other.get("/trials/small/manage")
        assert other.post("/trials/small/manage/pause", data=form).status_code == httpx.codes.FORBIDDEN
        other.cookies.clear()
        assert other.post("/trials/small/manage/pause", data=form).status_code == httpx.codes.FORBIDDEN
    assert visitor.http.cookies.get(FORM_COOKIE)
    visitor.done(visitor.sign_in(token("manage")))
    assert visitor.http.post("/trials/small/manage/pause", data=form).status_code == httpx.codes.FORBIDDEN


def test_pages_of_other_sites_send_nothing(visitor: Visitor) -> None:
    form = visitor.hidden("/trials/small/manage") | {"reason": "x"}
    for site in ("cross-site", "same-site"):
        answer = visitor.http.post("/trials/small/manage/pause", data=form, headers={"Sec-Fetch-Site": site})
        assert answer.status_code == httpx.codes.FORBIDDEN


def test_a_huge_or_broken_form_is_refused_on_a_page(visitor: Visitor, running: Running) -> None:
    largest = running.service.settings.largest_body
    answer = visitor.send("/new", {}, file=("big.toml", b"#" * (largest + 1)))
    assert answer.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = visitor.http.post("/new", content=b"not a form", headers=headers)
    assert answer.status_code in (400, 403)


def test_a_form_in_another_charset_is_refused(visitor: Visitor) -> None:
    for charset in ["undefined", "punycode", "unicode_escape", "idna", "hex", "nobody-knows"]:
        for address in ["/sign-in", "/new"]:
            body = b'--x\r\nContent-Disposition: form-data; name="form_key"\r\n\r\n\\ud800\r\n--x--\r\n'
            kinds = ("multipart/form-data; boundary=x", "application/x-www-form-urlencoded")
            for kind in kinds:
                answer = visitor.http.post(
                    address, content=body, headers={"Content-Type": f"{kind}; charset={charset}"}
                )
                assert answer.status_code == httpx.codes.BAD_REQUEST
                assert "UTF-8" in readable(answer.text)
            for same in ("utf-8", "UTF8"):
                headers = {"Content-Type": f"{kinds[0]}; charset={same}"}
                assert visitor.http.post(address, content=body, headers=headers).status_code == httpx.codes.FORBIDDEN


def test_half_a_character_does_not_break_the_page_that_shows_it(running: Running) -> None:
    request = Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []})
    page = Visit(request, running.service).page("refused.html", 404, title="half", detail="of \ud800")
    assert "of ?" in bytes(page.body).decode()
