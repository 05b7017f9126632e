from __future__ import annotations

import json
import threading
import zlib
from typing import Any

import httpx
import pytest

from drimed.service.runtime import Author, purge_answers
from drimed.trial.store import requests as kept
from drimed.trial.verify import verify
from tests.service.conftest import Bearer
from tests.service.pages.visiting import Visitor
from tests.service.serving import Running
from tests.service.test_endpoints import T, ok, problem
from tests.trial.trials import SMALL

ONCE: list[tuple[str, dict[str, Any]]] = [
    ("/v1/trials", SMALL | {"name": "another"}),
    ("/v1/trials/busy/episodes", {}),
    ("/v1/trials/busy/ask", {"users": ["site 0"]}),
    ("/v1/trials/busy/ask", {}),
    ("/v1/trials/busy/tell", {"reports": [{"decision": 1, "outcome": {"yield": 5}}]}),
    ("/v1/trials/busy/decisions/1/outcome", {"outcome": {"cost": 1}}),
    ("/v1/trials/busy/decisions/1/amend", {"outcome": {"yield": 4}, "reason": "r"}),
    ("/v1/trials/busy/decisions/2/missing", {"reason": "r"}),
    ("/v1/trials/busy/users", {"name": "new"}),
    ("/v1/trials/busy/arms", {"name": "fourth"}),
    ("/v1/trials/busy/retire", {"arm": "newer", "reason": "r"}),
    ("/v1/trials/busy/preference", {"user": "site 0", "preference": {"yield": 2}, "reason": "r"}),
    ("/v1/trials/busy/control", {"user": "site 0", "control": "new", "reason": "r"}),
    ("/v1/trials/busy/pause", {"reason": "r"}),
    ("/v1/trials/busy/resume", {}),
    ("/v1/trials/busy/stop", {"reason": "r"}),
]


def test_every_write_is_done_once_and_answered_with_the_same_bytes(http: httpx.Client) -> None:
    for i, (path, body) in enumerate(ONCE):
        headers = {"Idempotency-Key": f"key-{i}"}
        first = http.post(path, json=body, headers=headers)
        assert first.is_success, first.text
        events = ok(http.get("/v1/trials/busy"))["events"]
        second = http.post(path, json=body, headers=headers)
        assert (second.status_code, second.content) == (first.status_code, first.content), path
        assert second.headers["idempotency-replayed"] == "true"
        assert ok(http.get("/v1/trials/busy"))["events"] == events, path
    assert ok(http.get("/v1/trials/busy/verify"))["ok"]


def test_a_key_belongs_to_one_request(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": '"quoted"'}
    ok(http.post(f"{T}/ask", json={"users": ["north"]}, headers=headers))
    found = problem(http.post(f"{T}/ask", json={"users": ["south"]}, headers=headers), 422)
    assert found["type"] == "urn:drimed:key-reused"
    problem(http.post(f"{T}/ask", json={}, headers={"Idempotency-Key": "quoted"}), 422)
    problem(http.post("/v1/trials/busy/ask", json={"users": ["north"]}, headers=headers), 422)
    assert ok(http.get(T))["decisions"] == 1


def test_a_key_that_cannot_be_kept_is_refused(http: httpx.Client) -> None:
    for key in ["", "x" * 201, "a\tb"]:
        problem(http.post(f"{T}/ask", json={}, headers={"Idempotency-Key": key}), 400)


def test_a_refused_request_is_not_remembered(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": "k"}
    problem(http.post(f"{T}/ask", json={"users": ["nort"]}, headers=headers), 422)
    ok(http.post(f"{T}/ask", json={"users": ["north"]}, headers=headers))


def test_keys_of_different_tokens_never_meet(http: httpx.Client, bearer: Bearer) -> None:
    one, other = bearer("ask-tell", label="one"), bearer("ask-tell", label="other")
    path, body = "/v1/trials/busy/ask", {"users": ["site 0"]}
    first = ok(http.post(path, json=body, headers={"Idempotency-Key": "k"} | one))
    second = ok(http.post(path, json=body, headers={"Idempotency-Key": "k"} | other))
    assert [d["decisions"][0]["id"] for d in (first, second)] == [1, 2]


def test_a_request_that_comes_many_times_at_once_is_done_once(running: Running) -> None:
    answers: list[bytes] = []
    barrier = threading.Barrier(8)

    def send(n: int) -> None:
        with httpx.Client(base_url=running.address, timeout=30) as http:
            barrier.wait()
            for i in range(5):
                path, body = ("ask", {"users": ["site 0"]}) if n % 2 else ("users", {"name": f"x{i}"})
                headers = {"Idempotency-Key": f"{path} {i}"}
                answer = http.post(f"/v1/trials/busy/{path}", json=body, headers=headers)
                assert answer.status_code == 200, answer.text
                answers.append(answer.content)

    threads = [threading.Thread(target=send, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 40
    assert len(set(answers)) == 10
    status = ok(running.http.get("/v1/trials/busy"))
    assert (status["decisions"], status["users"]) == (5, 9)
    assert verify(running.service.store, "busy").ok


def test_what_fails_after_it_was_decided_was_never_decided(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer cannot be kept: the decision must not stay, neither in the store nor in this process's memory."""

    def broken(*_: object) -> None:
        raise RuntimeError("no room")

    headers = {"Idempotency-Key": "k"}
    ok(running.http.post(f"{T}/ask", json={"users": ["north"]}))
    with monkeypatch.context() as patch:
        patch.setattr(Author, "keep", broken)
        problem(running.http.post(f"{T}/ask", json={"users": ["south"]}, headers=headers), 500)
    assert ok(running.http.get(T))["decisions"] == 1
    given = ok(running.http.post(f"{T}/ask", json={"users": ["south"]}, headers=headers))["decisions"][0]
    assert (given["id"], given["repeated"]) == (2, False)
    assert verify(running.service.store, "small").exact == 2


def test_old_answers_are_deleted_and_decisions_are_not(running: Running) -> None:
    headers = {"Idempotency-Key": "k"}
    first = ok(running.http.post("/v1/trials/busy/ask", json={"users": ["site 0"]}, headers=headers))
    assert purge_answers(running.service.store, hours=1, newest=0) == 0
    assert purge_answers(running.service.store, hours=0, newest=0) == 1
    again = ok(running.http.post("/v1/trials/busy/ask", json={"users": ["site 0"]}, headers=headers))
    assert again["decisions"][0]["id"] == first["decisions"][0]["id"]
    assert again["decisions"][0]["repeated"]


def test_the_newest_answers_are_kept_however_old_they_seem(running: Running) -> None:
    for key in ("a", "b", "c"):
        ok(running.http.post("/v1/trials/busy/ask", json={"users": ["site 0"]}, headers={"Idempotency-Key": key}))
    assert purge_answers(running.service.store, hours=0, newest=2) == 1
    repeated = [
        running.http.post("/v1/trials/busy/ask", json={"users": ["site 0"]}, headers={"Idempotency-Key": key})
        for key in ("b", "c")
    ]
    assert [answer.headers.get("Idempotency-Replayed") for answer in repeated] == ["true", "true"]


@pytest.mark.parametrize(
    ("path", "body", "wrong"),
    [
        ("busy/ask", {"users": ["site 0"]}, {"arm": "another"}),
        ("busy/ask", {"users": ["site 0"]}, {"probabilities": {"old": 1.0}}),
        ("busy/ask", {"users": ["site 0"]}, {"reason": "another"}),
        ("busy/ask", {"users": ["site 0"]}, {"arm": ""}),
        ("busy/ask", {"users": ["site 0"]}, {"id": 99}),
        ("busy/ask", {"users": ["site 0"]}, {"id": "one"}),
        ("busy/ask", {"users": ["site 0"]}, None),
        ("small/ask", {"users": ["north"]}, {"user": "south"}),  # it is repeated
        ("small/tell", {"reports": [{"decision": 1, "outcome": {"yield": 5.0}}]}, {"outcome": {"yield": 6.0}}),
        ("small/tell", {"reports": [{"decision": 1, "outcome": {"yield": 5.0}}]}, {"outcome": None}),
        ("small/tell", {"reports": [{"decision": 1, "outcome": {"yield": 5.0}}]}, {"decision": 2}),
    ],
)
def test_a_kept_answer_that_is_not_what_the_log_has_is_not_given(
    running: Running, path: str, body: dict[str, Any], wrong: dict[str, Any] | None
) -> None:
    headers = {"Idempotency-Key": "k"}
    ok(running.http.post(f"{T}/ask", json={"users": ["north"]}))
    first = ok(running.http.post(f"/v1/trials/{path}", json=body, headers=headers))
    assert ok(running.http.post(f"/v1/trials/{path}", json=body, headers=headers)) == first
    (name,) = first
    changed = {name: [] if wrong is None else [first[name][0] | wrong]}
    with running.service.store.transaction(write=True) as connection:
        connection.execute(kept.update().values(answer=zlib.compress(json.dumps(changed).encode())))
    again = problem(running.http.post(f"/v1/trials/{path}", json=body, headers=headers), 409)
    assert "is not what the log has" in again["detail"]


@pytest.mark.parametrize(
    "wrong",
    [{"answer": b"{}"}, {"answer": zlib.compress(b"[oops")}, {"answer": zlib.compress(b"{oops")}, {"status": 500}],
)
def test_a_kept_answer_that_cannot_be_read_is_not_given(http: httpx.Client, running: Running, wrong: Any) -> None:
    headers = {"Idempotency-Key": "k"}
    ok(http.post(f"{T}/ask", json={"users": ["north"]}, headers=headers))
    with running.service.store.transaction(write=True) as connection:
        connection.execute(kept.update().values(**wrong))
    problem(http.post(f"{T}/ask", json={"users": ["north"]}, headers=headers), 409)


def test_a_kept_answer_to_a_form_leads_to_a_trial_alone(http: httpx.Client, running: Running) -> None:
    data = Visitor(http).hidden("/trials/small/ask") | {"how": "hand", "user": ["1:south"]}
    assert http.post("/trials/small/ask", data=data).headers["location"].startswith("/trials/small/")
    with running.service.store.transaction(write=True) as connection:
        connection.execute(kept.update().values(answer=zlib.compress(b"https://evil.example/")))
    again = http.post("/trials/small/ask", data=data)
    assert (again.is_client_error, again.headers.get("location")) == (True, None)
