"""Two who correct the same outcome at once: the second is told what is there now."""

from __future__ import annotations

import re

import httpx

from drimed.client import Client
from drimed.records import Report
from tests.service.serving import Running
from tests.service.test_endpoints import T, ok, problem


def told(running: Running, value: float = 4.0) -> int:
    """A decision with an outcome."""
    given = ok(running.http.post(f"{T}/ask", json={"users": ["north"]}))["decisions"][0]["id"]
    ok(running.http.post(f"{T}/decisions/{given}/outcome", json={"outcome": {"yield": value}}))
    return int(given)


def test_over_http(running: Running) -> None:
    given = told(running)
    first, second = ({"outcome": {"yield": v}, "reason": "scale", "saw": {"yield": 4.0}} for v in (5.0, 6.0))
    ok(running.http.post(f"{T}/decisions/{given}/amend", json=first))
    found = problem(running.http.post(f"{T}/decisions/{given}/amend", json=second), 409)
    assert "yield is 5.0 now, and you saw 4.0" in found["detail"]
    assert found["errors"][0]["path"] == ["saw", "yield"]
    assert ok(running.http.get(f"{T}/decisions/{given}"))["outcome"] == {"yield": 5.0}


def test_what_was_given_is_told_over_http_and_amended_by_the_client(running: Running) -> None:
    number = told(running)
    arm = ok(running.http.get(f"{T}/decisions/{number}"))["arm"]
    other = {"old": "new", "new": "old"}[arm]
    refused = problem(running.http.post(f"{T}/decisions/{number}/outcome", json={"given": other}), 422)
    assert refused["errors"][0]["path"] == ["reports", 0, "reason"]
    report = {"decision": number, "given": other, "reason": "the wrong bag"}
    assert ok(running.http.post(f"{T}/tell", json={"reports": [report]}))["receipts"][0]["result"] == "recorded"
    with Client(running.address) as client:
        assert (client.decision("small", number).arm, client.decision("small", number).given) == (arm, other)
        assert client.tell("small", number, {}, given=other, reason="again").result == "already recorded"
        assert client.tell_many("small", [Report(number, {}, given=other, reason="x")])[0].result == "already recorded"
        assert client.amend("small", number, {"yield": 5.0}, given="other", reason="no bag").outcome == {"yield": 5.0}
        assert [e.body.get("given") for e in client.history("small", number)][-2:] == ["other", None]
        assert client.verify("small").ok


def test_on_the_page_of_the_decision(running: Running) -> None:
    given = told(running)
    page = f"/trials/small/decisions/{given}"
    forms = [running.http.get(page).text for _ in range(2)]  # two people look at it, and then both correct it

    def send(text: str, value: str) -> httpx.Response:
        form = text[text.index(f"{page}/amend") :]
        names = ("form_key", "once", "saw")
        hidden = {n: re.search(rf'name="{n}" value="([^"]*)"', form) for n in names}
        fields = {n: found[1].replace("&#34;", '"') for n, found in hidden.items() if found is not None}
        assert set(fields) == set(names)
        return running.http.post(f"{page}/amend", data=fields | {f"y:{given}:yield": value, "reason": "scale"})

    assert send(forms[0], "5").status_code == httpx.codes.SEE_OTHER
    answer = send(forms[1], "6")
    assert answer.status_code == httpx.codes.CONFLICT
    assert "yield is 5.0 now, and you saw 4.0" in answer.text
    assert send(answer.text, "6").status_code == httpx.codes.SEE_OTHER  # who has seen it may correct it
