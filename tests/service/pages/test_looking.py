"""Pages that only show something."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import httpx
import pytest

from tests.service.pages.visiting import Visitor, readable

BUSY = "/trials/busy"
PAGES = ("/", "/new", BUSY, f"{BUSY}?by=user", f"{BUSY}/ask", f"{BUSY}/tell", f"{BUSY}/log", f"{BUSY}/manage")


def test_the_first_page_shows_every_trial_at_a_glance(visitor: Visitor, season: list[int]) -> None:
    page = readable(visitor.look("/"))
    assert re.search(r"busy running .*episode 6 users 4 decisions 24 awaited 4 alarms 0", page), page
    assert re.search(r"small running .*episode 0 users 2 decisions 0 awaited 0 alarms 0", page), page
    assert season[-1] == 24


def test_a_trial_that_has_just_begun_has_a_page(visitor: Visitor) -> None:
    page = readable(visitor.look("/trials/small"))
    assert "Nothing was decided yet." in page
    assert "What would be decided next" in page


@pytest.mark.usefixtures("season")
def test_a_trial_shows_what_it_taught(visitor: Visitor) -> None:
    page = visitor.look(BUSY)
    for chart in ("effects-chart", "reward-chart", "allocation-chart", "evidence-chart"):
        assert f'id="{chart}"' in page
    said = readable(page)
    assert "episode 6 decisions 24 told 20 awaited 4" in said
    assert "awaited 4 (oldest of episode 6)" in said
    assert re.search(r"newer: [-\d.]+, (more|less|open)", said), "the chart in words"


@pytest.mark.usefixtures("season")
def test_every_chart_is_sound_and_has_a_table(visitor: Visitor) -> None:
    for address in (BUSY, f"{BUSY}?by=user&who=site+1", f"{BUSY}/decisions/9"):
        page = visitor.look(address)
        pictures = re.findall(r"<svg class=\"chart.*?</svg>", page, re.S)
        assert len(pictures) >= 4
        for picture in pictures:
            assert ET.fromstring(picture).find("title") is not None
            assert "nan" not in picture.lower()
        for figure in re.findall(r"<figure.*?</figure>", page, re.S):
            assert "<table>" in figure


@pytest.mark.usefixtures("season")
def test_effects_are_shown_for_whom_and_on_what_one_chooses(visitor: Visitor) -> None:
    assert "Effects on cost against control: all users" in visitor.look(f"{BUSY}?on=cost")
    assert "Effects on reward against control: site 2" in visitor.look(f"{BUSY}?who=site+2&on=cost")
    assert "Effects on reward against control: all users" in visitor.look(f"{BUSY}?who=nobody&on=nothing")


@pytest.mark.usefixtures("season")
def test_the_log_is_searched_and_turned(visitor: Visitor) -> None:
    def numbers(address: str) -> list[int]:
        return [int(n) for n in re.findall(r"<td><a href=\"/trials/busy/decisions/(\d+)\">", visitor.look(address))]

    assert numbers(f"{BUSY}/log") == list(range(24, 0, -1))
    assert numbers(f"{BUSY}/log?state=awaited") == [24, 23, 22, 21]
    assert numbers(f"{BUSY}/log?user=site+1") == [22, 18, 14, 10, 6, 2]
    assert numbers(f"{BUSY}/log?user=site+1&before=14") == [10, 6, 2]
    assert numbers(f"{BUSY}/log?user=nobody") == []
    by_arm = [numbers(f"{BUSY}/log?arm={arm}&state=told") for arm in ("old", "new", "newer")]
    assert sorted(n for found in by_arm for n in found) == list(range(1, 21))
    answer = visitor.http.get(f"{BUSY}/log?decision=7")
    assert answer.headers["location"] == f"{BUSY}/decisions/7"


def test_a_long_log_has_pages(visitor: Visitor, http: httpx.Client) -> None:
    for _ in range(7):
        http.post("/v1/trials/busy/ask", json={}).raise_for_status()
    first = visitor.look(f"{BUSY}/log")
    older = re.search(r'href="([^"]+)" rel="next"', first)
    assert older is not None
    assert "/decisions/4&" not in first
    second = visitor.look(older[1].replace("&amp;", "&"))
    assert re.findall(r"<td><a href=\"/trials/busy/decisions/(\d+)\">", second) == ["3", "2", "1"]


@pytest.mark.usefixtures("season")
def test_the_story_of_a_decision_is_whole(visitor: Visitor, http: httpx.Client) -> None:
    told = http.get("/v1/trials/busy/decisions/9").json()
    http.post(
        "/v1/trials/busy/decisions/9/amend", json={"outcome": {"yield": 5.25}, "reason": "scale off"}
    ).raise_for_status()
    said = readable(visitor.look(f"{BUSY}/decisions/9"))
    assert f"Decision 9: {told['decision']['arm']} for site 0" in said
    assert "What the guard did" in said
    assert re.search(r"corrected: yield [\d.]+ → 5.25 scale off local", said), said
    assert re.search(r"recorded as event \d+ hash [0-9a-f]{64}", said)
    assert re.search(r"the state after event \d+", said)


@pytest.mark.usefixtures("season")
def test_changes_are_listed_with_who_and_why(visitor: Visitor, http: httpx.Client) -> None:
    http.post("/v1/trials/busy/pause", json={"reason": "ethics board"}).raise_for_status()
    said = readable(visitor.look(f"{BUSY}/log?show=changes"))
    assert re.search(r"paused local ethics board", said), said
    assert "episode 6 opened" in said


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/trials/nothing", 404),
        (f"{BUSY}/decisions/999", 404),
        (f"{BUSY}/decisions/x", 404),
        (f"{BUSY}/given?decisions=a-b", 422),
        (f"{BUSY}/given?decisions=1-999999999", 422),
        ("/trials/%2e%2e", 404),
        ("/static/..%2froutes.py", 404),
    ],
)
def test_what_is_not_there_is_said_on_a_page(visitor: Visitor, address: str, status: int) -> None:
    answer = visitor.http.get(address)
    assert answer.status_code == status
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("address", ["/nothing", "/trials/busy/nothing", "/trials/"])
def test_an_address_that_nobody_serves_is_a_page_for_people_and_a_problem_for_programs(
    visitor: Visitor, address: str
) -> None:
    page = visitor.http.get(address, headers={"Accept": "text/html"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "there is no such page" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    plain = visitor.http.get(address, headers={"Accept": "application/json"})
    assert (plain.status_code, plain.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize("address", PAGES)
def test_pages_run_no_script_but_ours_and_stay_in_no_frame(visitor: Visitor, address: str) -> None:
    answer = visitor.http.get(address)
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert not re.search(r"<script(?! src=\"/static/)|style=|\son[a-z]+=|https?://", answer.text)


def test_assets_are_local_and_kept_until_they_change(visitor: Visitor) -> None:
    for address in re.findall(r'(?:href|src)="(/static/[^"]+)"', visitor.look("/")):
        answer = visitor.http.get(address)
        assert answer.status_code == httpx.codes.OK
        assert "immutable" in answer.headers["cache-control"]
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text)


def test_pages_are_not_part_of_the_description_of_v1(http: httpx.Client) -> None:
    paths = http.get("/v1/openapi.json").json()["paths"]
    assert not [p for p in paths if not p.startswith("/v1/") and p not in ("/healthz", "/readyz", "/metrics")]
