from __future__ import annotations

import csv
import io
from typing import Any

import httpx
import pytest

from drimed.trial.template import TEMPLATE
from tests.service.serving import Running
from tests.trial.trials import BUSY, SMALL, outcome

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


def test_a_season_from_the_first_question_to_the_proof(http: httpx.Client) -> None:
    given = ok(http.post(f"{T}/ask", json={}))["decisions"]
    assert [g["user"] for g in given] == ["north", "south"]
    assert sum(given[0]["probabilities"].values()) == pytest.approx(1)
    told = ok(http.post(f"{T}/tell", json={"reports": [{"decision": g["id"], "outcome": {"yield": 5}} for g in given]}))
    assert [t["state"] for t in told["told"]] == ["recorded", "recorded"]
    assert (
        ok(http.post(f"{T}/decisions/1/amend", json={"outcome": {"yield": 6}, "reason": "typo"}))["state"] == "amended"
    )
    assert ok(http.post(f"{T}/episodes", json={"number": 2})) == {"episode": 2}
    third = ok(http.post(f"{T}/ask", json={"user": "south"}))["decisions"][0]
    own = f"{T}/decisions/{third['id']}"
    assert ok(http.post(f"{own}/missing", json={"reason": "hail"}))["state"] == "missing"
    assert ok(http.post(f"{own}/outcome", json={"outcome": {"yield": 4.5}}))["state"] == "recorded"
    status = ok(http.get(T))
    numbers = (status["episode"], status["decisions"], status["answered"], status["awaited"], status["amended"])
    assert numbers == (2, 3, 3, 0, 1)
    verdict = ok(http.get(f"{T}/verify", params={"expect": status["hash"]}))
    assert verdict["ok"]
    assert verdict["exact"] == 3


def test_some_users_may_be_asked_for_and_a_dry_run_writes_nothing(http: httpx.Client) -> None:
    ok(http.post(f"{T}/episodes", json={}))
    before = ok(http.get(T))["events"]
    tried = ok(http.post(f"{T}/ask", json={"users": ["south"], "dry_run": True}))["decisions"]
    assert ok(http.get(T))["events"] == before
    assert [g["user"] for g in tried] == ["south"]
    really = ok(http.post(f"{T}/ask", json={"users": ["south"]}))["decisions"]
    assert really[0]["arm"] == tried[0]["arm"]
    again = ok(http.post(f"{T}/ask", json={"users": ["south", "north"]}))["decisions"]
    assert [g["repeated"] for g in again] == [True, False]
    told = ok(http.post(f"{T}/tell", json={"reports": [{"decision": 1, "outcome": {"yield": 5}}], "dry_run": True}))
    assert told["told"][0]["state"] == "recorded"
    assert ok(http.get(T))["answered"] == 0


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
    assert ok(http.get(f"{T}/verify"))["ok"]


def test_every_event_carries_who_did_it_and_the_key_of_the_request(http: httpx.Client) -> None:
    ok(http.post(f"{T}/ask", json={"user": "north"}, headers={"Idempotency-Key": "k1"}))
    items = ok(http.get(f"{T}/log"))["items"]
    assert {e["actor"] for e in items} == {"local"}
    assert [e["request"] for e in items if e["kind"] == "decision"] == ["local/k1"]


def test_the_log_is_read_page_by_page_in_both_directions(http: httpx.Client) -> None:
    for i in range(5):
        ok(http.post("/v1/trials/busy/ask", json={"user": f"site {i % 4}"}))
    whole = ok(http.get("/v1/trials/busy/log", params={"limit": 1000}))
    assert whole["next"] is None
    for order in ("oldest", "newest"):
        found, cursor = [], None
        while True:
            params = {"limit": 2, "order": order} | ({"cursor": cursor} if cursor else {})
            page = ok(http.get("/v1/trials/busy/log", params=params))
            found += [e["seq"] for e in page["items"]]
            if (cursor := page["next"]) is None:
                break
        expected = [e["seq"] for e in whole["items"]]
        assert found == (expected if order == "oldest" else expected[::-1])
    filtered = ok(http.get("/v1/trials/busy/log", params={"kind": ["decision"], "user": "site 0"}))["items"]
    assert {(e["kind"], e["user"]) for e in filtered} == {("decision", "site 0")}
    problem(http.get("/v1/trials/busy/log", params={"kind": "nonsense"}), 422)


def test_trials_are_listed_page_by_page(http: httpx.Client) -> None:
    first = ok(http.get("/v1/trials", params={"limit": 1}))
    assert ([t["name"] for t in first["items"]], first["next"]) == (["small"], "small")
    second = ok(http.get("/v1/trials", params={"limit": 1, "after": "small"}))
    assert ([t["name"] for t in second["items"]], second["next"]) == (["busy"], None)
    problem(http.get("/v1/trials", params={"after": "nobody"}), 422)


def test_a_decision_has_its_whole_story(http: httpx.Client) -> None:
    given = ok(http.post(f"{T}/ask", json={"user": "north"}))["decisions"][0]
    ok(http.post(f"{T}/tell", json={"reports": [{"decision": 1, "outcome": {"yield": 5}}]}))
    story = ok(http.get(f"{T}/decisions/1"))
    assert story["decision"] == given
    assert (story["state"], story["outcome"], story["reward"]) == ("told", {"yield": 5.0}, 5.0)
    assert [e["kind"] for e in story["events"]] == ["decision", "outcome"]
    problem(http.get(f"{T}/decisions/99"), 404)
    problem(http.post(f"{T}/decisions/99/amend", json={"outcome": {"yield": 5}, "reason": "r"}), 404)
    problem(http.post(f"{T}/decisions/99/missing", json={"reason": "r"}), 404)
    problem(http.post(f"{T}/decisions/99/outcome", json={"outcome": {"yield": 5}}), 404)


def test_effects_are_estimated_as_the_next_decision_records_them(http: httpx.Client) -> None:
    for i in range(12):
        given = ok(http.post("/v1/trials/busy/ask", json={"user": f"site {i % 4}"}))["decisions"][0]
        body = {"outcome": outcome(given["id"], given["arm"])}
        ok(http.post(f"/v1/trials/busy/decisions/{given['id']}/outcome", json=body))
    now = ok(http.get("/v1/trials/busy/effects"))
    assert list(dict.fromkeys(e["who"] for e in now["items"])) == [f"site {i}" for i in range(4)]
    asked = ok(http.post("/v1/trials/busy/ask", json={"user": "site 2"}))["decisions"][0]
    assert asked["state_version"] == now["events"]
    own = [e for e in now["items"] if e["who"] == "site 2"]
    assert [e["arm"] for e in own] == list(asked["effects"])
    for effect, then in zip(own, asked["effects"].values(), strict=True):
        assert effect["estimate"] == pytest.approx(then["estimate"], abs=1e-9)
        assert effect["low"] <= effect["likely_low"] <= effect["estimate"] <= effect["likely_high"] <= effect["high"]
    one = ok(http.get("/v1/trials/busy/effects", params={"user": "site 2"}))["items"]
    assert sum(e["decisions"] for e in one) == 4
    problem(http.get("/v1/trials/busy/effects", params={"user": "nobody"}), 422)


def test_exports_hold_every_decision(http: httpx.Client) -> None:
    ok(http.post(f"{T}/ask", json={}))
    ok(http.post(f"{T}/arms", json={"name": "late"}))
    ok(http.post(f"{T}/episodes", json={}))
    ok(http.post(f"{T}/ask", json={}))
    answer = http.get(f"{T}/export")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    data = ok(http.get(f"{T}/export", params={"format": "json"}))
    assert [int(r["decision"]) for r in rows] == [r["decision"] for r in data] == [1, 2, 3, 4]
    assert [r["probability_late"] == "" for r in rows] == [True, True, False, False]
    problem(http.get("/v1/trials/nobody/export"), 404)


def test_a_trial_is_created_from_toml_with_faults_at_their_lines(http: httpx.Client) -> None:
    toml = {"Content-Type": "application/toml"}
    checked = ok(http.post("/v1/trials?dry_run=true", content=TEMPLATE, headers=toml))
    assert checked["name"] == "maize-nitrogen"
    problem(http.get("/v1/trials/maize-nitrogen"), 404)
    made = http.post("/v1/trials", content=TEMPLATE, headers=toml)
    assert ok(made, 201)["name"] == "maize-nitrogen"
    assert ok(http.get(made.headers["location"]))["users"] == 3
    wrong = TEMPLATE.replace('control = "practice"', 'control = "practise"').replace("relative = 0.1", "relative = 7")
    faults = problem(http.post("/v1/trials", content=wrong, headers=toml), 422)["errors"]
    lines = wrong.splitlines()
    assert all(lines[f["line"] - 1] for f in faults)
    assert any(f["field"] == "tolerance.relative" and "7" in lines[f["line"] - 1] for f in faults)
    problem(http.post("/v1/trials", content="name = ", headers=toml), 422)
    problem(http.post("/v1/trials", json=SMALL), 409)


def test_the_field_at_fault_is_named(http: httpx.Client) -> None:
    ok(http.post(f"{T}/ask", json={}))
    cases = [
        ("ask", {"user": "nort"}, "user"),
        ("ask", {"users": ["north", "nobody"]}, "users.1"),
        ("ask", {"user": "north", "color": 1}, "color"),
        ("tell", {"reports": [{"decision": 1, "outcome": {"yeld": 1}}]}, "reports.0.outcome.yeld"),
        ("tell", {"reports": [{"decision": 1, "outcome": {"yield": "5"}}]}, "reports.0.outcome.yield"),
        ("tell", {"reports": [{"decision": n, "outcome": {"yield": 5}} for n in (1, 7)]}, "reports.1"),
        ("users", {"name": "west", "preference": {"yeld": 1}}, "users.west.preference.yeld"),
        ("retire", {"arm": "newer", "reason": "r"}, "arm"),
    ]
    for path, body, field in cases:
        faults = problem(http.post(f"{T}/{path}", json=body), 422)["errors"]
        assert [f["field"] for f in faults] == [field], path
    problem(http.post(f"{T}/tell", json={"reports": [{"decision": 1, "outcome": {"yield": 5}}] * 2}), 422)


def test_another_value_for_an_outcome_is_a_conflict(http: httpx.Client) -> None:
    ok(http.post(f"{T}/ask", json={}))
    body = {"reports": [{"decision": 1, "outcome": {"yield": 5}}]}
    ok(http.post(f"{T}/tell", json=body))
    assert ok(http.post(f"{T}/tell", json=body))["told"][0]["state"] == "already recorded"
    problem(http.post(f"{T}/decisions/1/outcome", json={"outcome": {"yield": 6}}), 409)


def test_equal_answers_are_equal_bytes(http: httpx.Client) -> None:
    ok(http.post(f"{T}/ask", json={}))
    for path in (T, f"{T}/effects", f"{T}/log", f"{T}/decisions/1", "/v1/trials", "/v1/openapi.json"):
        assert http.get(path).content == http.get(path).content


def test_health_readiness_and_metrics(http: httpx.Client, running: Running) -> None:
    assert ok(http.get("/healthz")) == {"status": "alive"}
    assert ok(http.get("/readyz")) == {"status": "ready"}
    ok(http.post(f"{T}/ask", json={}))
    text = http.get("/metrics").text
    assert 'drimed_requests_total{method="POST",route="/v1/trials/{trial}/ask",status="200"}' in text
    assert "drimed_decisions_total" in text
    running.service.stopping = True
    problem(http.get("/readyz"), 503)


def test_a_store_that_fails_is_a_503(http: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from drimed.errors import StoreError

    def broken(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(running.service.store, "writing", broken)
    answer = http.post(f"{T}/ask", json={})
    assert problem(answer, 503)["detail"] == "the disk is full"
    assert answer.headers["retry-after"] == "1"


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


def test_the_busy_trial_takes_several_decisions_of_one_user(http: httpx.Client) -> None:
    ids = [ok(http.post("/v1/trials/busy/ask", json={"user": "site 1"}))["decisions"][0]["id"] for _ in range(3)]
    assert ids == [1, 2, 3]
    assert BUSY["decisions"] == "any number"
