"""Every kind of trial has all pages: without users, with control plots, of published policies, with many users."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.pages.visiting import Visitor, readable
from tests.trial.trials import SMALL

PAPER, PEOPLE = {"model": {"kind": "paper"}}, {"model": {"kind": "people"}, "enrolment": "closed"}
KINDS: dict[str, dict[str, Any]] = {
    "nobody": {"users": {}},
    "plots": {"feedback": "difference", "tolerance": {"relative": 0.0, "absolute": 0.5}},
    "anytime": {"confidence": "anytime", "decisions": "any number"},
    "described": {"arms": {"old": {"attributes": {"dose": 1.0}}, "new": {"attributes": {"dose": 2.0}}}},
    "mapped": PAPER | {"arms": {"old": {"map": [[1.0, 0.0]]}, "new": {"map": [[0.0, 1.0]]}}},
    "published": PAPER | {"policy": {"name": "published_dri_med"}, "noise": {"kind": "known", "sd": {"yield": 1.0}}},
    "posterior": {"policy": {"name": "lin_ts"}},
    "crowd": PEOPLE | {"users": {f"user {i}": {"group": f"g{i % 2}"} for i in range(320)}, "context": {"rain": {}}},
    "arms": {"arms": {"old": {}, "new": {}} | {f"arm {i}": {} for i in range(12)}},
}
PAGES = ("", "?by=user", "/plan", "/ask", "/tell", "/log", "/manage", "/log?show=changes")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_trial_has_all_pages(visitor: Visitor, http: httpx.Client, kind: str) -> None:
    spec = SMALL | {"name": kind} | KINDS[kind]
    http.post("/v1/trials", json=spec).raise_for_status()
    address = f"/trials/{kind}"
    decided = bool(spec["users"])
    if decided:
        contexts = {user: {"rain": 1.0 + i % 3} for i, user in enumerate(spec["users"])} if "context" in spec else {}
        for _ in range(4):
            http.post(f"/v1{address}/episodes", json={"contexts": contexts}).raise_for_status()
            given = http.post(f"/v1{address}/ask", json={}).raise_for_status().json()["decisions"]
            control = {"control": {"yield": 4.0}} if "feedback" in spec else {}
            reports = [{"decision": g["id"], "outcome": {"yield": 5.0 + g["id"] % 3}} | control for g in given[:-1]]
            http.post(f"/v1{address}/tell", json={"reports": reports}).raise_for_status()
    for part in PAGES:
        page = visitor.look(address + part)
        assert "could not be worked out" not in page
        assert "nan" not in readable(page).lower().split()
    if decided:
        for number in (1, len(spec["users"])):
            assert f"Decision {number}:" in visitor.look(f"{address}/decisions/{number}")


def test_with_many_users_one_is_named(visitor: Visitor, http: httpx.Client) -> None:
    http.post("/v1/trials", json=SMALL | {"name": "crowd"} | KINDS["crowd"]).raise_for_status()
    data = {"how": "hand", "episode": "1", "one": "user 7", "c:one:rain": "3"}
    assert "1 decision in season 1" in readable(visitor.done(visitor.send("/trials/crowd/ask", data)))
    wrong = visitor.send("/trials/crowd/ask", data | {"one": "user 700"})
    assert "unknown user 'user 700'" in readable(wrong.text)


def test_control_plots_are_told_beside_the_others(visitor: Visitor, http: httpx.Client) -> None:
    http.post("/v1/trials", json=SMALL | {"name": "plots"} | KINDS["plots"]).raise_for_status()
    http.post("/v1/trials/plots/ask", json={}).raise_for_status()
    data = {"how": "hand", "y:1:yield": "5", "k:1:yield": "4"}
    assert "1 outcome recorded" in readable(visitor.done(visitor.send("/trials/plots/tell", data)))
    alone = visitor.send("/trials/plots/tell", {"how": "hand", "y:2:yield": "5"})
    assert "1 outcome recorded" in readable(visitor.done(alone))
    assert http.get("/v1/trials/plots/decisions/2").json()["state"] == "partial"
    beside = visitor.send("/trials/plots/tell", {"how": "hand", "k:2:yield": "4"})
    assert "1 outcome recorded" in readable(visitor.done(beside))
    assert http.get("/v1/trials/plots/decisions/2").json()["control"] == {"yield": 4.0}
