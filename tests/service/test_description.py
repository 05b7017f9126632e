"""The OpenAPI description against the service itself: what it does not say, the service does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from drimed.service import api
from drimed.service.app import create_app
from drimed.service.settings import Settings
from drimed.trial.changes import CHANGES
from tests.service.serving import Running, modules_as_before, served
from tests.trial.trials import BUSY, SMALL

EXAMPLES = 4  # of each operation
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service whose trials have a past, so that generated requests find something."""
    with served(Settings(store=str(tmp_path_factory.mktemp("described") / "trials.db"), rate=0)) as running:
        for spec in (SMALL, BUSY):
            running.http.post("/v1/trials", json=spec)
        running.http.post("/v1/trials/small/ask", json={})
        running.http.post("/v1/trials/small/tell", json={"reports": [{"decision": 1, "outcome": {"yield": 5}}]})
        yield running


@pytest.fixture(scope="module")
def description(service: Running) -> dict[str, Any]:
    found: dict[str, Any] = service.http.get("/v1/openapi.json").json()
    return found


def _operations() -> list[Any]:
    with modules_as_before():
        described: Any = schemathesis.openapi.from_dict(create_app(Settings()).openapi())
    return [found.ok() for found in described.get_all_operations()]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["sound", "unsound"])
@pytest.mark.parametrize("operation", _operations(), ids=lambda operation: operation.label)
def test_whatever_is_sent_the_answer_is_one_of_those_described(
    operation: Any, mode: GenerationMode, service: Running
) -> None:
    try:
        cases = operation.as_strategy(generation_mode=mode)
    except Unsatisfiable:  # there is no wrong way to ask
        return

    @given(case=cases, there=st.booleans())
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    def check(case: Any, there: bool) -> None:
        if there and isinstance(case.path_parameters, dict) and "trial" in case.path_parameters:
            case.path_parameters["trial"] = "busy" if operation.label.endswith(("stop", "pause")) else "small"
        if there:
            case.headers.pop("Authorization", None)  # else most would be refused for their token
        case.call_and_validate(base_url=service.address, checks=CHECKS)

    with suppress(Unsatisfiable):
        check()


def test_every_operation_reads_well(description: dict[str, Any]) -> None:
    names = set()
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"]
            assert operation["description"], path
            assert operation["tags"], path
            names.add(operation["operationId"])
            for status, answer in operation["responses"].items():
                assert answer["description"], (path, status)
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"]
            if path.startswith("/v1/"):
                assert operation["x-role"] in ("any", "tell", "ask", "read", "ask-tell", "manage")
                assert {"401", "403", "429", "503"} <= set(operation["responses"])
            if method == "post":
                assert {"400", "409", "413", "415", "422"} <= set(operation["responses"])
                assert "Idempotency-Key" in {p["name"] for p in operation["parameters"]}
                assert "example" in str(operation["requestBody"]) or "$ref" in str(operation["requestBody"])
    assert len(names) == sum(len(methods) for methods in description["paths"].values())


def test_no_two_models_have_one_title(description: dict[str, Any]) -> None:
    titles = [model["title"] for model in description["components"]["schemas"].values()]
    assert len(set(titles)) == len(titles)


def test_every_body_has_an_example_that_can_be_sent(description: dict[str, Any]) -> None:
    schemas, seen = description["components"]["schemas"], 0
    changes = {change.name: change for change in CHANGES.values()}
    for path, methods in description["paths"].items():
        if "post" not in methods:
            continue
        for kind, content in methods["post"]["requestBody"]["content"].items():
            body = schemas.get(content["schema"].get("$ref", "").rpartition("/")[2], {})
            operation = methods["post"]["operationId"]
            for example in [content["example"]] if "example" in content else body["examples"]:
                assert example, (path, kind)
                if operation in changes:
                    changes[operation].body.model_validate(example)
                elif "$ref" in content["schema"]:
                    getattr(api, body["title"]).model_validate(example)
            seen += 1
    assert seen == 1 + 7 + 1 + len(changes)


def test_the_description_needs_nothing_from_elsewhere(description: dict[str, Any]) -> None:
    assert "http://" not in str(description)
    assert "cdn" not in str(description)
