"""Seasons by their names: asked for over HTTP and on the pages, and shown wherever an episode is."""

from __future__ import annotations

import httpx

from tests.service.pages.visiting import Visitor, readable

BUSY = "/trials/busy"
SPRING = {"season": "Spring <2026>", "date": "2026-03-15"}


def _ask(visitor: Visitor, **fields: str) -> httpx.Response:
    return visitor.send(f"{BUSY}/ask", {"how": "hand", "user": "0:site 0", "episode": "1", **fields})


def test_a_season_is_begun_by_its_name_on_the_page_and_shown_by_it(visitor: Visitor) -> None:
    assert "Name of the season (optional)" in readable(visitor.look(f"{BUSY}/ask"))
    given = readable(visitor.done(_ask(visitor, **SPRING)))
    assert "1 decision in season Spring &lt;2026&gt;." in given or "1 decision in season Spring <2026>." in given
    for address in (f"{BUSY}/decisions/1", f"{BUSY}/log", f"{BUSY}/ask", "/", BUSY):
        page = visitor.look(address)
        assert "Spring &lt;2026&gt;" in page, address
        assert "Spring <2026>" not in page, address


def test_what_is_wrong_with_a_season_is_shown_at_its_input(visitor: Visitor) -> None:
    answer = _ask(visitor, season="x", date="15/3/2026")
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "a date is written as 2026-03-15" in readable(answer.text)
    assert 'name="date"' in answer.text
    assert 'aria-invalid="true"' in answer.text.partition('name="date"')[0].rpartition("<input")[2]


def test_a_season_is_opened_and_asked_for_over_http(http: httpx.Client) -> None:
    opened = http.post("/v1/trials/busy/episodes", json={"name": "1996", "date": "1996-05-01"}).raise_for_status()
    assert opened.json() == {"episode": 1}
    again = http.post("/v1/trials/busy/episodes", json={"name": "1996"}).raise_for_status()
    assert again.json() == {"episode": 1}
    body = {"users": ["site 0"], "season": "1997"}
    (given,) = http.post("/v1/trials/busy/ask", json=body).raise_for_status().json()["decisions"]
    assert (given["episode"], given["season"]) == (2, "1997")
    assert http.get("/v1/trials/busy").json()["season"] == "1997"
    late = http.post("/v1/trials/busy/ask", json=body | {"season": "1996"})
    assert late.status_code == httpx.codes.CONFLICT
    assert "season '1996' is over" in late.json()["detail"]
