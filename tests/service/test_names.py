"""Over HTTP: names in one form, values that must be confirmed, and people who are described twice."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.test_endpoints import ok, problem
from tests.trial.fields import PATIENTS

P, F = "/v1/trials/patients", "/v1/trials/field"
ABOUT = {"attributes": {"age": 61.0, "sex": "f"}, "group": "clinic 1", "preference": {"score": 1.0}, "control": "usual"}


@pytest.fixture
def patients(http: httpx.Client) -> httpx.Client:
    ok(http.post("/v1/trials", json=PATIENTS), 201)
    ok(http.post(f"{P}/ask", json={"users": ["p1"], "enrol": {"p1": ABOUT}}))
    return http


def test_twins_are_one_user(patients: httpx.Client) -> None:
    for twin in ["p1 ", "ｐ1", "\u00a0p1"]:
        given = ok(patients.post(f"{P}/ask", json={"users": [twin]}))["decisions"]
        assert [d["user"] for d in given] == ["p1"]
        problem(patients.post(f"{P}/users", json={"name": twin}), 409)
        assert ok(patients.get(P))["users"] == 1


def test_a_name_that_cannot_be_seen_is_refused(patients: httpx.Client) -> None:
    for name in ["p\u200b1", "\u202ep1", "p\x1b1", "p1\n"]:
        body: dict[str, Any] = {"users": [name], "enrol": {name: {"attributes": {"sex": "f"}}}}
        problem(patients.post(f"{P}/ask", json=body), 422)
        problem(patients.post(f"{P}/users", json={"name": name, "attributes": {"sex": "f"}}), 422)
        problem(patients.post(f"{P}/arms", json={"name": name}), 422)
        assert ok(patients.get(P))["users"] == 1


def test_who_is_known_may_be_described_again_but_not_differently(patients: httpx.Client) -> None:
    def ask(**change: Any) -> httpx.Response:
        return patients.post(f"{P}/ask", json={"users": ["p1"], "enrol": {"p1": ABOUT | change}})

    ok(ask())
    changes: list[tuple[str, Any]] = [
        ("group", "clinic 2"), ("preference", {"score": 2.0}), ("control", "app"), ("arms", ["usual"]),
        ("plots", ["1"]), ("cohort", "ward"), ("attributes", {"age": 62.0}),
    ]  # fmt: skip
    for field, value in changes:
        refused = problem(ask(**{field: value}), 409)
        assert "'p1'" in refused["detail"], field
        assert refused["errors"][0]["path"][:3] == ["enrol", "p1", field]


def test_unlikely_contexts_attributes_and_plots_must_be_confirmed(http: httpx.Client) -> None:
    spec = {
        "name": "wet", "metrics": {"yield": {}}, "arms": {"old": {}, "new": {}}, "control": "old",
        "preference": {"yield": 1.0}, "tolerance": {"absolute": 1.0}, "enrolment": "open",
        "context": {"rain": {"typical": 500, "spread": 100}}, "attributes": {"ph": {"typical": 6.5, "spread": 0.5}},
        "users": {"north": {"blocks": {"A": ["1"]}}, "south": {}},
    }  # fmt: skip
    assert http.post("/v1/trials", json=spec).status_code == 201
    hill: dict[str, Any] = {"contexts": {"hill": {"rain": 500}}, "enrol": {"hill": {"attributes": {"ph": 65}}}}
    plot: dict[str, Any] = {"contexts": {"north": {"rain": 500}}, "plots": {"north": {"AA": ["11"]}}}
    far = {"north": {"rain": -9999}, "south": {"rain": 500}}
    calls: list[tuple[str, dict[str, Any], list[str]]] = [
        ("ask", {"users": ["south"], "contexts": {"south": {"rain": -9999}}}, ["contexts.south.rain"]),
        ("ask", {"contexts": far, "episode": 1}, ["contexts.north.rain"]),
        ("ask", {"users": ["hill"], **hill}, ["enrol.hill.attributes.ph"]),
        ("ask", {"users": ["north"], **plot}, ["plots.north.11"]),
        ("episodes", {"contexts": far}, ["contexts.north.rain"]),
        ("users", {"name": "dune", "attributes": {"ph": 65}}, ["users.dune.attributes.ph"]),
    ]
    for path, body, fields in calls:
        found = problem(http.post(f"/v1/trials/wet/{path}", json=body), 422)
        assert found["type"] == "urn:drimed:unconfirmed", path
        assert [".".join(map(str, error["path"])) for error in found["errors"]] == fields
    for path, body, _ in calls[2:]:
        ok(http.post(f"/v1/trials/wet/{path}", json=body | {"confirm": True}))
