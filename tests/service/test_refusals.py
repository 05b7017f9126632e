from __future__ import annotations

import json
import socket
from typing import Any

import httpx

from drimed.policies.guards.base import REASONS
from tests.service.serving import Running
from tests.service.test_endpoints import T, ok, problem

JSON = {"Content-Type": "application/json"}


def test_a_bad_body_is_refused_and_nothing_is_written(http: httpx.Client) -> None:
    for body, status in [
        (b"", 400),
        (b"{", 400),
        (b'{"user": NaN}', 400),
        (b'{"users": ["north"], "contexts": {"north": {"rain": Infinity}}}', 400),
        (b'{"users": ["north"], "users": ["south"]}', 400),
        (b'{"user": "north"}', 422),
        (b'{"users": ["\\ud800"]}', 400),
        (b'{"users": ["\xff"]}', 400),
        (b'{"number": ' + b"9" * 5000 + b"}", 400),
        (b"[" * 100_000, 400),
        (b"null", 422),
        (b'{"users": [""]}', 422),
        (b'{"users": []}', 422),
        (b'{"users": ["north"], "contexts": {"north": {"rain": 1e999}}}', 422),
        (b'{"users": ["north"], "contexts": {"north": {"rain": 1}}}', 422),
        (b'{"users": ["north"], "dry_run": 1}', 422),
        (b'{"users": ["north"], "unavailable": ["old"]}', 409),
        (b'{"users": ["north"], "unavailable": ["older"]}', 422),
        (b'{"users": ["north", "north"]}', 422),
        (b'{"users": ["north\\u0000"]}', 422),
    ]:
        before = http.get(T).content
        problem(http.post(f"{T}/ask", content=body, headers=JSON), status)
        assert http.get(T).content == before


def test_other_content_types_are_refused(http: httpx.Client) -> None:
    for media in ["text/plain", "application/x-www-form-urlencoded", "application/toml", "json", ""]:
        headers = {"Content-Type": media} if media else {}
        found = problem(http.post(f"{T}/ask", content=b'{"users": ["north"]}', headers=headers), 415)
        assert "application/json" in found["detail"]
        assert ok(http.get(T))["decisions"] == 0


def test_a_body_that_is_too_large_is_refused_unread(running: Running) -> None:
    largest = running.service.settings.largest_body
    body = json.dumps({"user": "n" * largest}).encode()
    problem(running.http.post(f"{T}/ask", content=body, headers=JSON), 413)
    # Its length is told, its bytes never come: the answer must not wait for them.
    host, port = running.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as raw:
        head = f"POST {T}/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        raw.sendall(f"{head}Content-Length: {10 * largest}\r\n\r\n".encode())
        assert b"413" in raw.recv(4096).splitlines()[0]


def test_path_tricks_lead_nowhere(http: httpx.Client) -> None:
    for path in [
        "/v1/trials/nobody",
        "/v1/trials/%00",
        "/v1/trials/..%2f..%2fetc%2fpasswd",
        "/v1/trials/%2e%2e",
        "/v1/trials/small/",
        "/v1//trials",
        "/v1/trials/" + "a" * 5000,
        "/v1/trials/small'--",
        "/v1/trials/sm%C3%A4ll",
        "/v2/trials",
        "/v1/trials/small/decisions/0x1/extra",
    ]:
        problem(http.get(path), 404)


def test_methods_that_an_address_does_not_take_are_refused(http: httpx.Client) -> None:
    for method in ("PUT", "DELETE", "PATCH"):
        answer = http.request(method, T)
        problem(answer, 405)
        assert answer.headers["allow"] == "GET"


def test_text_in_every_script_is_kept(http: httpx.Client) -> None:
    ok(http.post(f"{T}/users", json={"name": "Łąka nad rzeką 🌾"}))
    given = ok(http.post(f"{T}/ask", json={"users": ["Łąka nad rzeką 🌾"]}))["decisions"][0]
    assert given["user"] == "Łąka nad rzeką 🌾"
    ok(http.post(f"{T}/pause", json={"reason": "a\u0000b\n"}))
    assert ok(http.get(f"{T}/log", params={"kind": "paused"}))["items"][0]["body"] == {"reason": "a\u0000b\n"}


def test_a_specification_that_is_no_object_is_refused(http: httpx.Client) -> None:
    bodies: list[Any] = [[], "x", 1, {}, {"name": "../x"}, {"name": "x", "metrics": 7}]
    for body in bodies:
        problem(http.post("/v1/trials", json=body), 422)
    deep = b"a = " + b"[" * 5000 + b"]" * 5000
    problem(http.post("/v1/trials", content=deep, headers={"Content-Type": "application/toml"}), 422)
    problem(http.post("/v1/trials", content=b"\xff", headers={"Content-Type": "application/toml"}), 422)
    long = b"# " + b"x" * 2_000_000
    problem(http.post("/v1/trials", content=long, headers={"Content-Type": "application/toml"}), 413)
    assert len(ok(http.get("/v1/trials"))["items"]) == 2


def test_the_description_knows_everything_that_a_refusal_and_a_repeated_answer_have(http: httpx.Client) -> None:
    description = http.get("/v1/openapi.json").json()
    found = problem(http.get(f"{T}/log", params={"limit": 0}), 422)
    (fault,) = found["errors"]
    assert fault["in"] == "query"
    assert set(fault) <= set(description["components"]["schemas"]["FieldError"]["properties"])
    for methods in description["paths"].values():
        for method, operation in methods.items():
            answers = operation["responses"]
            for status in {"429", "503"} & set(answers):
                assert "Retry-After" in answers[status]["headers"]
            if method == "post":
                assert "Idempotency-Replayed" in answers["201" if "201" in answers else "200"]["headers"]
    assert description["components"]["schemas"]["Decision"]["examples"][0]["reason"] in REASONS
