"""Plots, attributes and people who are new, over HTTP: in requests, answers, searches and refusals."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from drimed.client import Client
from tests.service.serving import Running
from tests.service.test_endpoints import ok, problem
from tests.trial.fields import FIELD, PATIENTS

F, P = "/v1/trials/field", "/v1/trials/patients"
DRY: dict[str, float | str] = {"rain": 450, "slope": "flat"}
BOTH = {"north": DRY, "south": DRY}
FEMALE = {"attributes": {"sex": "f"}}


@pytest.fixture
def made(http: httpx.Client) -> httpx.Client:
    """With a trial of sites and one of patients."""
    for spec in (FIELD, PATIENTS):
        ok(http.post("/v1/trials", json=spec), 201)
    return http


def asked(http: httpx.Client, trial: str, **body: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(http.post(f"{trial}/ask", json=body))["decisions"]
    return found


def test_somebody_new_joins_with_the_question(made: httpx.Client) -> None:
    asked(made, P, users=["p1"], enrol={"p1": {"attributes": {"age": 61, "sex": "f"}, "cohort": "ward"}})
    asked(made, P, users=["p2", "p1"], enrol={"p2": {"attributes": {"sex": "m"}, "group": "clinic 2"}})
    members = ok(made.get(f"{P}/users"))["items"]
    known = [(m["name"], m["attributes"], m["cohort"], m["group"]) for m in members]
    assert known == [("p1", {"age": 61.0, "sex": "f"}, "ward", None), ("p2", {"sex": "m"}, None, "clinic 2")]
    status = ok(made.get(P))
    assert (status["users"], status["model"], status["enrolment"]) == (2, "people", "open")


@pytest.mark.parametrize(
    ("trial", "body", "status", "path", "said"),
    [
        (P, {"user": "a.b", "enrol": {"attributes": {"sex": "f", "aeg": 1}}}, 422,
         ["enrol", "a.b", "attributes", "aeg"], "did you mean 'age'"),
        (P, {"user": "12", "enrol": {"attributes": {"sex": 3}}}, 422, ["enrol", "12", "attributes", "sex"], "a text"),
        (P, {"user": "p1", "enrol": {"attributes": {"sex": "mm"}}}, 422, ["enrol", "p1", "attributes", "sex"],
         "did you mean 'm'"),
        (P, {"user": "p1"}, 422, ["enrol", "p1", "attributes", "sex"], "attribute 'sex' is missing"),
        (P, {"user": "p1", "enrol": FEMALE | {"cohort": "wrad"}}, 422, ["enrol", "p1", "cohort"], "mean 'ward'"),
        (P, {"user": "a/b", "enrol": FEMALE}, 422, ["enrol", "a/b"], "must be a name"),
        (F, {"user": "north", "plots": {"B": ["A1"]}, "contexts": DRY}, 409, ["plots", "north", "A1"], "in block 'A'"),
        (F, {"user": "north", "contexts": {"rain": 4, "slope": "falt"}}, 422,
         ["contexts", "north", "slope"], "did you mean 'flat'"),
        (F, {"user": "north", "contexts": DRY, "enrol": {"attributes": {"ph": 6.2}}}, 409,
         ["enrol", "north", "attributes", "ph"], "joined with ph = 6.1"),
    ],
)  # fmt: skip
def test_a_fault_has_its_path_as_a_list(
    made: httpx.Client, trial: str, body: dict[str, Any], status: int, path: list[str | int], said: str
) -> None:
    user = body.pop("user")
    tables = {name: {user: value} for name, value in body.items()}
    found = problem(made.post(f"{trial}/ask", json={"users": [user], **tables}), status)
    assert said in str(found)
    assert path in [e["path"] for e in found["errors"]]
    assert ok(made.get(trial))["decisions"] == 0


@pytest.mark.usefixtures("made")
def test_the_client_says_the_same(running: Running) -> None:
    with Client(running.address) as client:
        given = client.ask("field", "north", contexts={"north": DRY}, plots={"north": {"A": ["A2"]}})
        assert [(d.plot, d.block) for d in given] == [("A2", "A")]
        assert [d.plot for d in client.decisions("field", plot="A2", block="A").items] == ["A2"]
        client.ask("patients", ["p1"], enrol={"p1": {"attributes": {"sex": "f"}}})
        client.add_user("patients", "p2", attributes={"sex": "m"}, cohort="ward", plots=["left", "right"])
        members = client.users("patients").items
        assert [(m.attributes, m.cohort, m.plots) for m in members] == [
            ({"sex": "f"}, None, None), ({"sex": "m"}, "ward", ["left", "right"])
        ]  # fmt: skip


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
    for path, body, _ in calls[1:]:
        ok(http.post(f"/v1/trials/wet/{path}", json=body | {"confirm": True}))
