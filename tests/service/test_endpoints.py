from __future__ import annotations

import csv
import io
import threading
from typing import Any

import httpx
import pytest

from drimed.client import Client
from drimed.service.runtime import Analyses
from drimed.trial import export, template
from drimed.trial.export import Export
from drimed.trial.tables import read
from tests.service.serving import Running
from tests.trial.trials import SMALL, outcome

T = "/v1/trials/small"


def ok(response: httpx.Response, status: int = 200) -> Any:
    assert response.status_code == status, response.text
    return response.json()


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = response.json()
    assert {"type", "title", "status", "detail"} <= set(found)
    assert found["status"] == status
    return found


def every_item(http: httpx.Client, path: str, cursor: str, **params: Any) -> list[dict[str, Any]]:
    """All pages, one after the other; the name of what leads from one to the next."""
    found: list[dict[str, Any]] = []
    while True:
        page = ok(http.get(path, params=params))
        found += page["items"]
        if page["next"] is None:
            return found
        params |= {cursor: page["next"]}


def test_a_trial_is_changed_while_it_runs(http: httpx.Client) -> None:
    ok(http.post(f"{T}/users", json={"name": "west", "preference": {"yield": 2}, "group": "sand"}))
    ok(http.post(f"{T}/arms", json={"name": "newest", "about": "a third"}))
    ok(http.post(f"{T}/retire", json={"arm": "new", "reason": "out of stock"}))
    ok(http.post(f"{T}/preference", json={"user": "north", "preference": {"yield": 3}, "reason": "prices"}))
    ok(http.post(f"{T}/control", json={"user": "south", "control": "newest", "reason": "its practice changed"}))
    problem(http.post(f"{T}/control", json={"user": "south", "control": "new", "reason": "as before"}), 409)
    ok(http.post(f"{T}/pause", json={"reason": "rain"}))
    assert "paused" in problem(http.post(f"{T}/ask", json={}), 409)["detail"]
    ok(http.post(f"{T}/resume", json={}))
    ok(http.post(f"{T}/ask", json={}))
    ok(http.post(f"{T}/stop", json={"reason": "enough"}))
    problem(http.post(f"{T}/resume", json={}), 409)
    status = ok(http.get(T))
    assert (status["status"], status["arms"], status["retired"]) == ("stopped", ["old", "new", "newest"], ["new"])
    users = ok(http.get(f"{T}/users", params={"limit": 2}))
    assert [u["name"] for u in users["items"]] == ["north", "south"]
    assert users["items"][0]["preference"] == {"yield": 3}
    assert users["items"][1]["control"] == "newest"
    rest = ok(http.get(f"{T}/users", params={"limit": 2, "after": users["next"]}))
    assert [u["name"] for u in rest["items"]] == ["west"]
    assert rest["next"] is None
    assert ok(http.get(f"{T}/spec"))["arms"].keys() == {"old", "new", "newest"}
    assert ok(http.get(f"{T}/verify"))["faults"] == []


def test_every_event_carries_who_did_it_and_the_key_of_the_request(http: httpx.Client) -> None:
    ok(http.post(f"{T}/ask", json={"users": ["north"]}, headers={"Idempotency-Key": "k1"}))
    items = ok(http.get(f"{T}/log"))["items"]
    assert {e["actor"] for e in items} == {"local"}
    assert [e["request"] for e in items if e["kind"] == "decision"] == ["local/k1"]


def test_the_log_is_read_page_by_page_in_both_directions(http: httpx.Client) -> None:
    for i in range(5):
        ok(http.post("/v1/trials/busy/ask", json={"users": [f"site {i % 4}"]}))
    whole = ok(http.get("/v1/trials/busy/log", params={"limit": 1000}))
    assert whole["next"] is None
    for order, step in (("oldest", 1), ("newest", -1)):
        assert every_item(http, "/v1/trials/busy/log", "cursor", limit=2, order=order) == whole["items"][::step]
    filtered = ok(http.get("/v1/trials/busy/log", params={"kind": ["decision"], "user": "site 0"}))["items"]
    assert {(e["kind"], e["user"]) for e in filtered} == {("decision", "site 0")}
    problem(http.get("/v1/trials/busy/log", params={"kind": "nonsense"}), 422)


def test_trials_are_listed_page_by_page(http: httpx.Client) -> None:
    assert [t["name"] for t in every_item(http, "/v1/trials", "after", limit=1)] == ["small", "busy"]
    problem(http.get("/v1/trials", params={"after": "nobody"}), 422)


def test_a_decision_has_its_outcome_and_its_history(http: httpx.Client) -> None:
    given = ok(http.post(f"{T}/ask", json={"users": ["north"]}))["decisions"][0]
    ok(http.post(f"{T}/tell", json={"reports": [{"decision": 1, "outcome": {"yield": 5}}]}))
    found = ok(http.get(f"{T}/decisions/1"))
    assert (given["state"], given["outcome"], given["reward"]) == ("pending", None, None)
    known = {"state": "complete", "outcome": {"yield": 5.0}, "reward": 5.0}
    history = found.pop("history")
    assert found == given | known
    assert [e["kind"] for e in history] == ["decision", "outcome"]
    assert history == [e for e in ok(http.get(f"{T}/log"))["items"] if e["decision"] == 1]
    problem(http.get(f"{T}/decisions/99"), 404)
    problem(http.post(f"{T}/decisions/99/amend", json={"outcome": {"yield": 5}, "reason": "r"}), 404)
    problem(http.post(f"{T}/decisions/99/missing", json={"reason": "r"}), 404)
    problem(http.post(f"{T}/decisions/99/outcome", json={"outcome": {"yield": 5}}), 404)


def test_effects_have_the_estimates_that_the_next_decision_records(http: httpx.Client) -> None:
    for i in range(12):
        given = ok(http.post("/v1/trials/busy/ask", json={"users": [f"site {i % 4}"]}))["decisions"][0]
        body = {"outcome": outcome(given["id"], given["arm"])}
        ok(http.post(f"/v1/trials/busy/decisions/{given['id']}/outcome", json=body))
    now = ok(http.get("/v1/trials/busy/effects"))
    assert list(dict.fromkeys(e["who"] for e in now["items"])) == [f"site {i}" for i in range(4)]
    asked = ok(http.post("/v1/trials/busy/ask", json={"users": ["site 2"]}))["decisions"][0]
    assert asked["state_version"] == now["events"]
    found = {e["arm"]: e for e in now["items"] if e["who"] == "site 2"}
    assert found.keys() == asked["effects"].keys()
    for arm, effect in asked["effects"].items():
        now_of_arm = found[arm]
        assert now_of_arm["estimate"] == pytest.approx(effect["estimate"], rel=1e-6)
        # What holds at all times at once is wider than what holds for one decision, and than what is likely now.
        ranges = [(now_of_arm["low"], now_of_arm["high"]), (effect["low"], effect["high"])]
        ranges.append((now_of_arm["likely_low"], now_of_arm["likely_high"]))
        assert [low for low, _ in ranges] == sorted(low for low, _ in ranges)
        assert [high for _, high in ranges] == sorted((high for _, high in ranges), reverse=True)
    one = ok(http.get("/v1/trials/busy/effects", params={"user": "site 2"}))["items"]
    assert sum(effect["decisions"] for effect in one) == 4
    path = "/v1/trials/busy/effects"
    assert every_item(http, path, "after", limit=3) == ok(http.get(path))["items"]
    problem(http.get("/v1/trials/busy/effects", params={"user": "nobody"}), 422)


def test_exports_hold_every_decision(http: httpx.Client) -> None:
    ok(http.post(f"{T}/ask", json={}))
    ok(http.post(f"{T}/arms", json={"name": "late"}))
    ok(http.post(f"{T}/episodes", json={}))
    ok(http.post(f"{T}/ask", json={}))
    answer = http.get(f"{T}/export")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [r["decision"] for r in rows] == ["1", "2", "3", "4"]
    assert [r["probability_late"] == "" for r in rows] == [True, True, False, False]
    book = http.get(f"{T}/export", params={"format": "xlsx"})
    assert book.headers["content-disposition"].endswith('.xlsx"')
    found = [row.cells for row in read(book.content, "log.xlsx").rows]
    assert [{n: str(v) for n, v in r.items()} for r in found] == [{n: v for n, v in r.items() if v} for r in rows]
    problem(http.get("/v1/trials/nobody/export"), 404)


def test_a_trial_is_created_from_toml_with_faults_at_their_lines(http: httpx.Client) -> None:
    toml = {"Content-Type": "application/toml"}
    checked = ok(http.post("/v1/trials?dry_run=true", content=template(), headers=toml))
    assert checked["name"] == "maize-nitrogen"
    problem(http.get("/v1/trials/maize-nitrogen"), 404)
    made = http.post("/v1/trials", content=template(), headers=toml)
    assert ok(made, 201)["name"] == "maize-nitrogen"
    assert ok(http.get(made.headers["location"]))["users"] == 3
    wrong = template().replace('control = "practice"', 'control = "practise"').replace("relative = 0.1", "relative = 7")
    faults = problem(http.post("/v1/trials", content=wrong, headers=toml), 422)["errors"]
    lines = wrong.splitlines()
    assert all(lines[f["line"] - 1] for f in faults)
    assert any(".".join(map(str, f["path"])) == "tolerance.relative" and "7" in lines[f["line"] - 1] for f in faults)
    problem(http.post("/v1/trials", content="name = ", headers=toml), 422)
    problem(http.post("/v1/trials", json=SMALL), 409)


def test_the_field_at_fault_is_named(http: httpx.Client) -> None:
    ok(http.post(f"{T}/ask", json={}))
    cases = [
        ("ask", {"users": ["nort"]}, "users.0"),
        ("ask", {"users": ["north"], "contexts": {"north": {"rain": 1}}, "episode": 2}, "contexts.north.rain"),
        ("ask", {"contexts": {"nort": {}}}, "contexts.nort"),
        ("ask", {"unavailable": ["older"], "episode": 2}, "unavailable"),
        ("episodes", {"unavailable": {"north": ["older"]}}, "unavailable.north"),
        ("ask", {"users": ["north"], "color": 1}, "color"),
        ("tell", {"reports": [{"decision": 1, "outcome": {"yeld": 1}}]}, "reports.0.outcome.yeld"),
        ("tell", {"reports": [{"decision": 1, "outcome": {"yield": "5"}}]}, "reports.0.outcome.yield"),
        ("tell", {"reports": [{"decision": n, "outcome": {"yield": 5}} for n in (1, 7)]}, "reports.1.decision"),
        ("decisions/1/outcome", {"outcome": {"yield": 1}, "control": {"yield": 1}}, "reports.0.control"),
        ("decisions/1/missing", {"reason": " "}, "reason"),
        ("users", {"name": "west", "preference": {"yeld": 1}}, "users.west.preference.yeld"),
        ("arms", {"name": "late", "attributes": {"dose": 1}}, "arms.late"),
        ("preference", {"user": "nort", "preference": {"yield": 1}, "reason": "r"}, "user.nort"),
        ("preference", {"user": "north", "preference": {"yeld": 1}, "reason": "r"}, "users.north.preference.yeld"),
        ("control", {"user": "north", "control": "older", "reason": "r"}, "users.north.control"),
        ("retire", {"arm": "newer", "reason": "r"}, "arm"),
    ]
    for path, body, field in cases:
        faults = problem(http.post(f"{T}/{path}", json=body), 422)["errors"]
        assert [".".join(map(str, f["path"])) for f in faults] == [field], path
    problem(http.post(f"{T}/tell", json={"reports": [{"decision": 1, "outcome": {"yield": 5}}] * 2}), 422)


def test_an_unknown_name_is_told_apart_from_its_message(http: httpx.Client) -> None:
    found = problem(http.post(f"{T}/ask", json={"users": ["nort"]}), 422)
    assert (found["kind"], found["name"]) == ("user", "nort")
    found = problem(http.get("/v1/trials/nobody"), 404)
    assert (found["kind"], found["name"]) == ("trial", "nobody")
    found = problem(http.get(f"{T}/effects", params={"user": "nort"}), 422)
    assert found["errors"] == [{"path": ["user"], "detail": found["detail"], "in": "query"}]


def test_unlikely_values_must_be_confirmed(http: httpx.Client) -> None:
    ok(http.post(f"{T}/ask", json={}))
    wild, reason = {"yield": 99}, {"reason": "the scale was off"}
    reports = [{"decision": 2, "outcome": {"yield": 5}}, {"decision": 1, "outcome": wild}]
    ok(http.post(f"{T}/ask", json={"users": ["north"], "episode": 2}))
    sent: list[tuple[str, dict[str, Any], str]] = [
        ("tell", {"reports": reports}, "reports.1.outcome.yield"),
        ("decisions/3/outcome", {"outcome": wild}, "reports.0.outcome.yield"),
        ("decisions/2/amend", {"outcome": {"yield": -1}} | reason, "outcome.yield"),
    ]
    for path, body, field in sent:
        before = ok(http.get(T))["events"]
        found = problem(http.post(f"{T}/{path}", json=body), 422)
        assert found["type"] == "urn:drimed:unconfirmed"
        assert [".".join(map(str, f["path"])) for f in found["errors"]] == [field]
        assert "0 to 10" in found["errors"][0]["detail"]
        assert found["detail"].endswith('nothing was recorded; if this is right, send it again with "confirm": true')
        tried = ok(http.post(f"{T}/{path}", json=body | {"confirm": True, "dry_run": True}))
        assert ok(http.get(T))["events"] == before
        assert ok(http.post(f"{T}/{path}", json=body | {"confirm": True})) == tried
    assert ok(http.get(f"{T}/decisions/2"))["outcome"] == {"yield": -1.0}


def test_decisions_are_searched_page_by_page(http: httpx.Client) -> None:
    path = "/v1/trials/busy/decisions"
    for i in range(8):
        given = ok(http.post("/v1/trials/busy/ask", json={"users": [f"site {i % 2}"]}))["decisions"][0]
        if i < 4:
            ok(
                http.post(
                    f"{path}/{given['id']}/outcome", json={"outcome": {"yield": 5, "cost": 1} if i else {"cost": 1}}
                )
            )
    ok(http.post(f"{path}/5/missing", json={"reason": "r"}))
    ok(http.post(f"{path}/2/amend", json={"outcome": {"yield": 4}, "reason": "r"}))
    every = ok(http.get(path))
    assert ([d["id"] for d in every["items"]], every["next"]) == ([8, 7, 6, 5, 4, 3, 2, 1], None)
    states = {"partial": [1], "complete": [4, 3, 2], "missing": [5], "pending": [8, 7, 6], "amended": [2]}
    for state, expected in states.items():
        assert [d["id"] for d in ok(http.get(path, params={"state": state}))["items"]] == expected
    arms = {d["arm"] for d in every["items"]}
    for arm in arms:
        found = ok(http.get(path, params={"arm": arm}))["items"]
        assert found == [d for d in every["items"] if d["arm"] == arm]
    found = every_item(http, path, "before", user="site 1", limit=3)
    assert found == [d for d in every["items"] if d["user"] == "site 1"]
    for query in ("state=lost", "limit=0", "before=0", "user=%00"):
        problem(http.get(f"{path}?{query}"), 422)


def test_health_readiness_and_metrics(http: httpx.Client, running: Running) -> None:
    assert ok(http.get("/healthz")) == {"status": "alive"}
    assert ok(http.get("/readyz")) == {"status": "ready"}
    ok(http.post(f"{T}/ask", json={}))
    text = http.get("/metrics").text
    assert 'drimed_requests_total{method="POST",route="/v1/trials/{trial}/ask",status="200"}' in text
    assert "drimed_decisions_total" in text
    assert "drimed_failures_total" in text
    running.service.stopping = True
    problem(http.get("/readyz"), 503)


def test_a_fault_of_the_service_tells_nothing_but_its_id(
    http: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(running.service.store, "writing", broken)
    answer = http.post(f"{T}/ask", json={}, headers={"X-Request-ID": "my-id"})
    assert problem(answer, 500)["detail"].endswith("my-id")
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] == "my-id"


def test_the_checks_say_which_promise_does_not_hold(
    http: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(http.post(f"{T}/ask", json={}))
    events = ok(http.get(T))["events"]
    assert ok(http.get(f"{T}/checks")) == {"withdrawn": None, "alarms": [], "events": events}
    monkeypatch.setattr("drimed.trial.estimates.serious_fault", lambda _: "outcomes drift")
    monkeypatch.setattr(Analyses, "wait", lambda _: 0.0)
    ok(http.post(f"{T}/episodes", json={"number": 2}))  # a new state of the log is analysed again
    withdrawn = ok(http.get(f"{T}/checks"))["withdrawn"]
    assert withdrawn.endswith("because the model is wrong: outcomes drift.")
    with Client(running.address) as client:
        assert client.checks("small").withdrawn == withdrawn


def test_an_export_begins_at_once_and_is_sent_piece_by_piece(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header arrives while the first decisions are still being read."""
    monkeypatch.setattr(export, "AT_ONCE", 2)
    for _ in range(3):
        ok(running.http.post(f"{T}/ask", json={}))
        ok(running.http.post(f"{T}/episodes", json={}))
    gate, chunks = threading.Event(), Export.chunks

    def slow(made: Export) -> Any:
        for rows in chunks(made):
            assert gate.wait(30)
            yield rows

    monkeypatch.setattr(Export, "chunks", slow)
    with running.http.stream("GET", f"{T}/export") as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("decision,episode,user")
        gate.set()
        assert len(list(lines)) == 6
