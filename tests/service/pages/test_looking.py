"""Pages that only show something."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

from drimed.reports.assumption_checks import no_promise, withdrawn
from drimed.service.runtime import Analyses
from drimed.trial.events import Calibration
from drimed.trial.spec import TrialSpec
from drimed.trial.trial import Trial
from tests.cli.test_looks import CALIBRATED
from tests.service.pages.visiting import Visitor, readable
from tests.service.serving import Running
from tests.trial.forging import NAME
from tests.trial.test_stopping import drifting
from tests.trial.trials import SMALL

BUSY = "/trials/busy"
RESULTS = [f"{BUSY}/results/{page}" for page in ("effects", "best", "variation", "worse", "given", "next", "checks")]
PAGES = (
    "/",
    "/new",
    BUSY,
    *RESULTS,
    f"{BUSY}/plan",
    f"{BUSY}/ask",
    f"{BUSY}/tell",
    f"{BUSY}/log",
    f"{BUSY}/manage",
)


def test_the_first_page_shows_every_trial_at_a_glance(visitor: Visitor, season: list[int]) -> None:
    page = readable(visitor.look("/"))
    for _ in range(20):  # alarms are there when the analyses are
        page = readable(visitor.look("/")) if "alarms …" in page else page
    # Every site's cost falls from season to season by the same step, about which there may be an alarm.
    assert re.search(r"busy running .*season 6 users 4 decisions 24 pending 4 alarms \d", page), page
    assert re.search(r"small running .*season 0 users 2 decisions 0 pending 0 alarms 0", page), page
    assert season[-1] == 24


def test_the_page_of_a_decision_says_that_the_promise_is_withdrawn(
    visitor: Visitor, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, one = withdrawn(drifting(10, running.service.store)), f"/trials/{NAME}/decisions/100"
    begun: list[str] = []
    assert wrong is not None
    with monkeypatch.context() as spent:
        spent.setattr(Analyses, "wait", lambda _: 60.0)
        spent.setattr(Analyses, "_analyse", lambda _, name: begun.append(name))
        assert "no promise" not in visitor.look(one)
    assert begun == [], "nothing costly for the page of a decision alone, when the budget is spent"
    visitor.look(f"/trials/{NAME}")
    assert no_promise(wrong) in readable(visitor.look(one))


@pytest.mark.usefixtures("season")
def test_a_trial_shows_what_it_taught(visitor: Visitor) -> None:
    first = visitor.look(BUSY)
    said = readable(first)
    assert "Tell 4 pending outcomes (the oldest from season 6)." in said
    assert "20 complete, 4 pending." in said
    order = ("What to do now", "How sure is that?", "Was anybody harmed?", "How far is it?", "Outcomes by arm")
    assert sorted(map(said.index, order)) == [said.index(question) for question in order]
    pages = dict(re.findall(r'<a href="(/trials/busy/results/[\w-]+)">([^<]+)</a>', first))
    charts = {"effects": "effects", "variation": "varies", "worse": "reward", "given": "allocation"}
    for name, chart in charts.items():
        page = visitor.look(f"{BUSY}/results/{name}")
        assert f'id="{chart}-chart"' in page
        assert f"<title>busy: {pages[f'{BUSY}/results/{name}'].lower()} · drimed</title>" in page
    words = readable(visitor.look(f"{BUSY}/results/effects"))
    assert re.search(r"newer \(given \d+ times?\): [−\d.]+, (more|less|open)", words), "the chart in words"
    assert readable(visitor.look(f"{BUSY}/results/stopping")) == said, "it has none"
    visitor.look(f"{BUSY}/results/nothing", 404)


@pytest.mark.usefixtures("season")
def test_every_chart_is_sound_and_has_a_table(visitor: Visitor) -> None:
    seen = 0
    for address in (*RESULTS, f"{BUSY}/results/effects?who=site+1", f"{BUSY}/decisions/9"):
        page = visitor.look(address)
        pictures = re.findall(r"<svg class=\"chart.*?</svg>", page, re.S)
        seen += len(pictures)
        for picture in pictures:
            assert ET.fromstring(picture).find("title") is not None
            assert "nan" not in picture.lower()
        for figure in re.findall(r"<figure.*?</figure>", page, re.S):
            assert "<table>" in figure
    assert seen >= 16


@pytest.mark.usefixtures("season")
def test_effects_are_shown_for_whom_and_on_what_one_chooses(visitor: Visitor) -> None:
    effects = f"{BUSY}/results/effects"
    assert "Effects on cost against control: all users" in visitor.look(f"{effects}?on=cost")
    assert "Effects on reward against control: site 2" in visitor.look(f"{effects}?who=site+2&on=cost")
    assert "Effects on reward against control: all users" in visitor.look(f"{effects}?who=nobody&on=nothing")


def test_a_plan_says_what_a_trial_is(visitor: Visitor, http: httpx.Client) -> None:
    spec = {
        "name": "whole",
        "about": "Which plan for which farm",
        "seed": 987654321,
        "metrics": {"yield": {"unit": "t/ha", "range": [0, 15]}, "leaching": {"unit": "kg", "better": "lower"}},
        "arms": {"old": {"about": "120 kg at sowing"}, "new": {}, "split": {}},
        "control": {"old": 0.75, "new": 0.25},
        "preference": {"yield": 200, "leaching": -3.5},
        "users": {
            "north": {"group": "sand", "preference": {"yield": 150, "leaching": -6}, "control": "old"},
            "south": {"arms": ["old", "new"]},
        },
        "tolerance": {"relative": 0.1, "absolute": 60},
        "guardrails": [{"metric": "leaching", "relative": 0.05, "absolute": 2}],
        "context": {"rain": {"unit": "mm", "typical": 450, "spread": 120}},
        "model": {"kind": "paper"},
        "noise": {"kind": "known", "sd": {"yield": 0.8, "leaching": 6}, "scale": "norm"},
        "policy": {"name": "dri_med", "temperature": 3, "guard": "certain"},
    }
    http.post("/v1/trials", json=spec).raise_for_status()
    http.post("/v1/trials/whole/arms", json={"name": "late", "about": "for dry years"}).raise_for_status()
    http.post("/v1/trials/whole/retire", json={"arm": "split", "reason": "too dear"}).raise_for_status()
    page = visitor.look("/trials/whole/plan")
    said = readable(page)
    for words in (
        "reward = 200 × yield − 3.5 × leaching",
        "The control is 75 % old, 25 % new",
        "below that of the control by at most 10 % of the control's reward plus 60.",
        "above that of the control by at most 5 % of the control's leaching plus 2 kg.",
        "north sand 150 × yield − 6 × leaching old all",
        "south default default old, new",
        '"about": "for dry years"',
    ):
        assert words in said, (words, said)
    assert 'href="/v1/trials/whole/spec" download' in page
    assert "987654321" not in page + http.get("/v1/trials/whole/spec").text


def test_a_plan_shows_what_holds_now_and_changes_say_from_what_to_what(visitor: Visitor) -> None:
    manage = f"{BUSY}/manage"
    for weight in ("2", "3"):
        data = {"user": "site 1", "preference:yield": weight, "preference:cost": "-1", "reason": "prices"}
        visitor.done(visitor.send(manage, data, to=f"{manage}/preference"))
        data = {"user": "site 1", "control": "new" if weight == "2" else "newer", "reason": "practice"}
        visitor.done(visitor.send(manage, data, to=f"{manage}/control"))
    assert re.search(r"site 1 3 × yield − cost newer", readable(visitor.look(f"{BUSY}/plan")))
    said = readable(visitor.look(f"{BUSY}/log?show=changes"))
    for words in ("preference of site 1 changed to 2 × yield − cost", "control of site 1 changed to newer"):
        assert words in said, (words, said)


def test_links_on_a_page_keep_what_was_chosen(visitor: Visitor, http: httpx.Client) -> None:
    users: dict[str, dict[str, str]] = {f"u{i}": {"group": "a & b"} for i in range(50)}
    http.post("/v1/trials", json=SMALL | {"name": "many", "users": users}).raise_for_status()
    http.post("/v1/trials/many/ask", json={}).raise_for_status()
    kept = "?who=a+%26+b&on=yield&users=1&done=created"
    page = visitor.look(f"/trials/many/results/next{kept}")
    chosen = {"who": "a & b", "on": "yield", "users": "1"}
    links = {
        name: dict(parse_qsl(urlsplit(html.unescape(address)).query))
        for address, name in re.findall(r'<a href="([^"]+)"[^>]*>(Before|Next)</a>', page)
    }
    assert links == {"Before": chosen | {"users": "0"}, "Next": chosen | {"users": "2"}}
    assert '<input type="hidden" name="users" value="1"' in visitor.look(f"/trials/many/results/effects{kept}")


@pytest.mark.usefixtures("season")
def test_pages_write_negative_numbers_with_a_minus_sign(visitor: Visitor) -> None:
    for address in (f"{BUSY}/results/effects", f"{BUSY}/results/effects?on=cost", f"{BUSY}/decisions/9"):
        page = visitor.look(address)
        said = readable(page) + " ".join(re.findall(r'data-tip="([^"]*)"', page))
        assert "−" in said
        assert not re.search(r'(?<![\w"-])-\d', said), address


@pytest.mark.usefixtures("season")
def test_the_log_is_searched_and_turned(visitor: Visitor) -> None:
    def numbers(address: str) -> list[int]:
        return [int(n) for n in re.findall(r"<td><a href=\"/trials/busy/decisions/(\d+)\">", visitor.look(address))]

    assert numbers(f"{BUSY}/log") == list(range(24, 0, -1))
    assert numbers(f"{BUSY}/log?state=pending") == [24, 23, 22, 21]
    assert numbers(f"{BUSY}/log?user=site+1") == [22, 18, 14, 10, 6, 2]
    assert numbers(f"{BUSY}/log?user=site+1&before=14") == [10, 6, 2]
    assert numbers(f"{BUSY}/log?user=nobody") == []
    by_arm = [numbers(f"{BUSY}/log?arm={arm}&state=complete") for arm in ("old", "new", "newer")]
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
    assert f"Decision 9: {told['arm']} for site 0" in said
    assert "Why this arm?" in said
    assert re.search(r"was drawn with a chance of|No other arm had a chance", said), said
    assert "guard" in said
    assert "98 % range" in said, "each end holds at 99 %"
    assert "99 % at each end" not in said
    assert re.search(r"corrected: yield [\d.]+ → 5.25 scale off local", said), said
    assert re.search(r"recorded as event \d+ hash [0-9a-f]{64}", said)
    assert re.search(r"the state after event \d+", said)


def test_what_is_not_there_is_said_on_a_page(visitor: Visitor) -> None:
    for address, status in [
        ("/trials/nothing", 404),
        (f"{BUSY}/decisions/999", 404),
        (f"{BUSY}/decisions/x", 404),
        (f"{BUSY}/given?decisions=a-b", 422),
        (f"{BUSY}/given?decisions=1-999999999", 422),
        ("/trials/%2e%2e", 404),
        ("/static/..%2froutes.py", 404),
    ]:
        answer = visitor.http.get(address)
        assert answer.status_code == status
        assert "Traceback" not in answer.text


def test_an_address_that_nobody_serves_is_a_page_for_people_and_a_problem_for_programs(visitor: Visitor) -> None:
    for address in ["/nothing", "/trials/busy/nothing", "/trials/"]:
        page = visitor.http.get(address, headers={"Accept": "text/html"})
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "there is no such page" in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        plain = visitor.http.get(address, headers={"Accept": "application/json"})
        assert (plain.status_code, plain.headers["content-type"]) == (404, "application/problem+json")


def test_pages_run_no_script_but_ours_and_stay_in_no_frame(visitor: Visitor) -> None:
    for address in PAGES:
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


def test_a_page_has_every_address_of_the_description(visitor: Visitor, http: httpx.Client) -> None:
    page = readable(visitor.look("/http"))
    for path, methods in http.get("/v1/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            assert f"{method.upper()} {path} {operation['summary']}" in page


def test_pages_are_not_part_of_the_description_of_v1(http: httpx.Client) -> None:
    paths = http.get("/v1/openapi.json").json()["paths"]
    assert not [p for p in paths if not p.startswith("/v1/") and p not in ("/healthz", "/readyz", "/metrics")]


def test_every_page_of_a_trial_shows_the_hash_of_its_log(visitor: Visitor, season: list[int]) -> None:
    """Whoever prints or keeps a page has an anchor."""
    hash = visitor.http.get(f"/v1{BUSY}").json()["hash"]
    for page in PAGES[2:]:
        assert hash in re.sub(r"</?strong>", "", visitor.look(page)), page
    for sheet in ("pending.csv", f"given.csv?decisions={season[-1]}"):
        assert hash[:12] in visitor.http.get(f"{BUSY}/{sheet}").headers["content-disposition"]


def test_the_plan_tells_the_bounds_of_calibrated_rules(visitor: Visitor, running: Running) -> None:
    bound = Calibration(hash="0" * 64, trials=1000, thresholds={"better": 2.5}, worst={"better": "usual"})
    Trial.create(TrialSpec.parse(CALIBRATED), running.service.store, calibration=bound)
    assert "better: the bound is 2.5 deviations at the last look." in readable(visitor.look("/trials/c/plan"))
