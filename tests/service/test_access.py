from __future__ import annotations

import logging
import socket
import time
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from drimed.errors import ConfigError, ConflictError, InputError, UnknownNameError
from drimed.service import app, auth
from drimed.service.settings import Settings
from drimed.trial.store import open_store
from drimed.trial.store import tokens as table
from tests.service.conftest import Bearer
from tests.service.serving import Running, served, wait_until
from tests.service.test_endpoints import T, ok, problem

READS = ["/v1/trials", T, *(f"{T}/{of}" for of in ("log", "effects", "users", "spec", "export", "verify", "head"))]
ASKS: list[tuple[str, dict[str, Any]]] = [(f"{T}/ask", {}), (f"{T}/episodes", {}), (f"{T}/tell", {"reports": []})]
CHANGES: list[tuple[str, dict[str, Any]]] = [
    (f"{T}/pause", {"reason": "r"}),
    (f"{T}/users", {"name": "x"}),
    (f"{T}/stop", {"reason": "r"}),
    ("/v1/trials", {}),
]


def test_without_tokens_this_machine_may_do_everything_but_no_one_else(http: httpx.Client) -> None:
    ok(http.get(T))
    for headers in (
        {"X-Forwarded-For": "203.0.113.7"},
        {"Forwarded": "for=203.0.113.7"},
        {"Host": "trials.example.org"},
        {"Host": "127.0.0.1.example.org:80"},
    ):
        assert "token" in problem(http.get(T, headers=headers), 403)["detail"]
    ok(http.get(T, headers={"Host": "localhost:1234"}))
    ok(http.get(T, headers={"Host": "[::1]:1234"}))


def test_without_tokens_what_a_proxy_passes_on_is_refused_however_it_shows(running: Running) -> None:
    names = ("X-Forwarded-Proto", "X-Forwarded-Server", "x-forwarded-anything", "Via", "X-Real-IP", "X-Client-IP")
    for name in names:
        problem(running.http.get(T, headers={name: "x"}), 403)
    # As nginx does it when it is told nothing but where to go: HTTP/1.0, and the host as it knows it.
    host = running.address.removeprefix("http://")
    statuses = []
    for version in ("1.0", "1.1"):
        with socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2]))) as connection:
            connection.sendall(f"GET {T} HTTP/{version}\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            statuses.append(connection.recv(100).split()[1])
    assert statuses == [b"403", b"200"]


def test_the_first_token_closes_the_door(http: httpx.Client, bearer: Bearer) -> None:
    ok(http.get(T))
    headers = bearer("read")
    answer = http.get(T)
    problem(answer, 401)
    assert answer.headers["www-authenticate"].startswith("Bearer")
    ok(http.get(T, headers=headers))
    ok(http.get("/healthz"))
    ok(http.get("/readyz"))
    problem(http.get("/metrics"), 401)
    assert http.get("/metrics", headers=headers).status_code == 200


def test_each_role_may_do_its_own_and_what_the_lower_ones_may(http: httpx.Client, bearer: Bearer) -> None:
    read, ask, manage = bearer("read"), bearer("ask-tell"), bearer("manage")
    for headers in (read, ask, manage):
        for path in READS:
            assert http.get(path, headers=headers).status_code == 200
    for path, body in ASKS:
        problem(http.post(path, json=body, headers=read), 403)
        for headers in (ask, manage):
            assert http.post(path, json=body, headers=headers).status_code in (200, 422)
    for path, body in CHANGES:
        for headers in (read, ask):
            problem(http.post(path, json=body, headers=headers), 403)
        assert http.post(path, json=body, headers=manage).status_code in (200, 409, 422)


def test_a_token_for_one_trial_sees_and_does_nothing_elsewhere(http: httpx.Client, bearer: Bearer) -> None:
    own = bearer("manage", "busy")
    assert [t["name"] for t in ok(http.get("/v1/trials", headers=own))["items"]] == ["busy"]
    ok(http.get("/v1/trials/busy", headers=own))
    for path in (T, "/v1/trials/nobody", f"{T}/log", f"{T}/decisions/1"):
        problem(http.get(path, headers=own), 403)
    problem(http.post(f"{T}/ask", json={}, headers=own), 403)
    problem(http.get("/metrics", headers=own), 403)
    spec = ok(http.get("/v1/trials/busy/spec", headers=own))
    problem(http.post("/v1/trials", json=spec | {"name": "mine"}, headers=own), 403)
    problem(http.post("/v1/trials", json=spec, headers=own), 409)


def test_expired_revoked_foreign_and_mangled_tokens_are_refused(running: Running, bearer: Bearer) -> None:
    http, store = running.http, running.service.store
    good = bearer("manage", label="good")
    text = good["Authorization"].removeprefix("Bearer ")
    soon = bearer("read", label="soon", days=1e-7)
    revoked = bearer("read", label="revoked")
    auth.revoke_token(store, "revoked")
    other = "drimed_" + text.split("_")[1] + "_" + "A" * 43
    before = ok(http.get(T, headers=good))["events"]
    time.sleep(0.02)  # longer than one of them was to last
    bad = [
        soon["Authorization"],
        revoked["Authorization"],
        f"Bearer {other}",
        f"Bearer {text}x",
        f"Bearer {text[:-1]}",
        "Bearer",
        "Bearer x",
        "Basic dXNlcjpwYXNz",
        text,
        "Bearer drimed_00000000_" + "A" * 43,
        f"Bearer {'x' * 5000}",
    ]
    for header in bad:
        answer = http.post(f"{T}/ask", json={}, headers={"Authorization": header})
        assert answer.status_code in (401, 429), header
        assert text not in answer.text
    assert ok(http.get(T, headers=good))["events"] == before


def test_a_revoked_token_stops_working_within_seconds(
    running: Running, bearer: Bearer, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = bearer("read", label="short")
    ok(running.http.get(T, headers=headers))
    auth.revoke_token(running.service.store, "short")
    moment = running.service.access._clock()
    monkeypatch.setattr(running.service.access, "_clock", lambda: moment + auth.TRUST + 0.1)
    problem(running.http.get(T, headers=headers), 401)


def test_guessing_tokens_is_slowed_down(running: Running, bearer: Bearer) -> None:
    good = bearer("read")
    ok(running.http.get(T, headers=good))
    statuses = {
        running.http.get(T, headers={"Authorization": f"Bearer drimed_00000000_{i}"}).status_code for i in range(40)
    }
    assert statuses == {401, 429}
    ok(running.http.get(T, headers=good))


def test_the_store_knows_no_token(running: Running, bearer: Bearer) -> None:
    text = bearer("manage")["Authorization"].removeprefix("Bearer ")
    with running.service.store.transaction(write=False) as connection:
        row = connection.execute(sa.select(table)).one()
    assert text.split("_", 2)[2] not in str(row)
    assert len(row.hash) == 64


def test_no_secret_is_logged(running: Running, bearer: Bearer, caplog: pytest.LogCaptureFixture) -> None:
    headers = bearer("manage", label="office")
    text = headers["Authorization"].removeprefix("Bearer ")

    def requests() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "drimed.service.requests"]

    with caplog.at_level(logging.DEBUG):
        ok(running.http.get(f"{T}/log?user=north", headers=headers))
        problem(running.http.get(T, headers={"Authorization": f"Bearer {text}x"}), 401)
        problem(running.http.get(f"{T}?token={text}", headers={"Cookie": f"{auth.COOKIE}={text}y"}), 401)
        wait_until(lambda: len(requests()) == 3)  # a line is written just after its answer was sent
    assert text.split("_", 2)[2] not in "".join(
        str(vars(record)) for record in caplog.records if not record.name.startswith("http")
    )
    assert vars(requests()[0])["drimed_fields"]["actor"] == "office"


def test_one_token_may_not_make_too_many_requests(tmp_path: object) -> None:
    with served(Settings(store=f"{tmp_path}/s.db", rate=1, burst=3)) as running:
        headers = []
        for label in ("one", "other"):
            _, text = auth.create_token(running.service.store, label=label, role="read")
            headers.append({"Authorization": f"Bearer {text}"})
        codes = [running.http.get("/v1/trials", headers=headers[0]).status_code for _ in range(6)]
        assert codes.count(429) >= 2
        refused = running.http.get("/v1/trials", headers=headers[0])
        problem(refused, 429)
        assert int(refused.headers["retry-after"]) >= 1
        ok(running.http.get("/v1/trials", headers=headers[1]))


def test_pages_of_other_sites_cannot_write(http: httpx.Client) -> None:
    problem(http.post(f"{T}/ask", json={}, headers={"Sec-Fetch-Site": "cross-site"}), 403)
    ok(http.post(f"{T}/ask", json={}, headers={"Sec-Fetch-Site": "same-origin"}))


def test_the_cookie_of_the_pages_is_as_good_as_the_header(http: httpx.Client, bearer: Bearer) -> None:
    text = bearer("read")["Authorization"].removeprefix("Bearer ")
    ok(http.get(T, headers={"Cookie": f"{auth.COOKIE}={text}"}))
    problem(http.post(f"{T}/ask", json={}, headers={"Cookie": f"{auth.COOKIE}={text}"}), 403)


def test_the_service_listens_beyond_this_machine_only_with_tokens(tmp_path: object) -> None:
    settings = Settings(store=f"{tmp_path}/s.db", host="0.0.0.0")
    with pytest.raises(ConfigError, match="drimed token create"):
        app.check_access(settings)
    store = open_store(settings.store)
    auth.create_token(store, label="x", role="read")
    assert app.check_access(settings)
    auth.revoke_token(store, "x")
    assert app.check_access(settings)  # a store whose tokens are all revoked is closed, not open
    store.close()
    for host in ("127.0.0.1", "::1", "localhost", "127.5.5.5"):
        assert auth.is_loopback(host)
    for host in ("0.0.0.0", "::", "192.168.1.4", "example.org", ""):
        assert not auth.is_loopback(host)


def test_bad_tokens_are_not_made(running: Running) -> None:
    store = running.service.store
    with pytest.raises(UnknownNameError, match="ask-tell"):
        auth.create_token(store, label="x", role="ask")
    for label in ("", "local", " x", 'x"', "x\n", "x" * 200):
        with pytest.raises(InputError, match="label"):
            auth.create_token(store, label=label, role="read")
    for days in (0, -1, float("nan"), 1e9):
        with pytest.raises(InputError, match="days"):
            auth.create_token(store, label="x", role="read", days=days)
    auth.create_token(store, label="x", role="read")
    with pytest.raises(ConflictError, match="'x'"):
        auth.create_token(store, label="x", role="read")
    with pytest.raises(UnknownNameError, match="Known: x"):
        auth.revoke_token(store, "y")
    assert [t.label for t in auth.list_tokens(store)] == ["x"]
