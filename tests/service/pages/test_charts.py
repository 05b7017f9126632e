"""Charts on a screen that is touched, and on a narrow one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from drimed.reports.page import PAGES
from drimed.service.pages.read import _charts
from tests.reports.worlds import CLEAR, TIMES, WHY, grown
from tests.service.serving import Running
from tests.trial.trials import BUSY, outcome

CHROMIUM = shutil.which("chromium")


@pytest.fixture
def phone(running: Running) -> Iterator[Page]:
    """A narrow screen that is touched."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(
            base_url=running.address, viewport={"width": 360, "height": 740}, has_touch=True, reduced_motion="reduce"
        )
        yield context.new_page()
        browser.close()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.usefixtures("season")
def test_a_tap_shows_a_value_until_something_else_is_touched(phone: Page) -> None:
    phone.goto("/trials/busy/results/given")
    phone.locator("#allocation-chart svg.narrow rect.bar").first.tap()
    expect(phone.locator("#tip")).to_contain_text("season 1, ")
    phone.locator("#given").tap()
    expect(phone.locator("#tip")).to_be_hidden()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_long_names_stay_on_a_narrow_screen(phone: Page, http: httpx.Client) -> None:
    arms, users, name = {"a" * 94 + str(i): {"about": "b" * 95} for i in range(9)}, ["u" * 94 + "1"], "t" * 95
    metrics = {"m" * 95: {"range": [0.0, 10.0], "unit": "k" * 95}}
    spec = BUSY | {"name": name, "about": "c" * 95, "metrics": metrics, "arms": arms, "control": next(iter(arms))}
    spec |= {"preference": {"m" * 95: 1.0}, "users": {users[0]: {"group": "g" * 95}}, "tolerance": {"absolute": 9.0}}
    http.post("/v1/trials", json=spec).raise_for_status()
    for _ in range(4):
        given = http.post(f"/v1/trials/{name}/ask", json={"users": users}).raise_for_status().json()["decisions"]
        reports = [{"decision": g["id"], "outcome": {"m" * 95: outcome(g["id"], "new")["yield"]}} for g in given]
        http.post(f"/v1/trials/{name}/tell", json={"reports": reports}).raise_for_status()
    results = [*(f"/results/{page}" for page in PAGES), f"/results/effects?who={users[0]}"]
    parts = ("", *results, "/plan", "/ask", "/tell", "/log", "/log?show=changes", "/manage")
    for address in ("/", *(f"/trials/{name}{part}" for part in (*parts, "/decisions/2"))):
        phone.goto(address)
        phone.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        assert phone.evaluate("document.documentElement.scrollWidth") <= 360, address


def test_the_page_of_a_decision_judges_no_arm_by_one_season() -> None:
    """What was estimated is shown; words are there from the third season on."""
    trial = grown(CLEAR, 3, times=TIMES)
    state = trial.state()
    said: dict[int, set[str]] = {}
    for d in trial.decisions():
        chart = _charts(state, d, set())["effects"]
        if chart is not None:
            said.setdefault(d.episode, set()).update(row[-1] for row in chart.table.rows)
    assert said == {2: {WHY}, 3: {"more", "less"}}
