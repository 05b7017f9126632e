"""Somebody who is blinded in a real browser: signs in, records a season, corrects a value, and sees no arm anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it has no types
from playwright.sync_api import Browser, Page, expect

from drimed.service import auth
from drimed.service.settings import Settings
from drimed.trial.trial import Trial
from tests.service.pages.test_browser import CHROMIUM, PHONE, browser  # noqa: F401  # a fixture
from tests.service.serving import Running, served

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
ARMS = ("usual dose", "half dose", "placebo")
SPEC = {
    "name": "ward",
    "metrics": {"pain": {"range": [0.0, 10.0], "better": "lower"}, "sleep": {"unit": "h", "range": [0.0, 14.0]}},
    "arms": {arm: {} for arm in ARMS},
    "control": "usual dose",
    "preference": {"pain": -1.0, "sleep": 0.5},
    "users": {f"patient {i}": {"group": f"ward {i % 2}", "attributes": {"age": 50.0 + i}} for i in range(4)},
    "tolerance": {"absolute": 2.0},
    "policy": {"name": "uniform"},
    "blinding": {"show_codes": False},
}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with served(Settings(store=str(tmp_path / "trials.db"))) as found:
        Trial.create(SPEC, found.service.store, actor="ann").ask_many(actor="pharmacy")
        yield found


def signed_in(page: Page, running: Running, role: str) -> None:
    _, text = auth.create_token(running.service.store, label=f"{role} office", role=role)
    running.service.access._open_until = 0.0
    page.goto(running.address)
    page.get_by_label("Token").fill(text)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Trials")


def sees_no_arm(page: Page) -> None:
    text = page.content()
    assert not [arm for arm in ARMS if arm in text]
    bad = [v for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    assert not bad, [(v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in bad]


@pytest.mark.parametrize("width", [1100, PHONE])
def test_a_season_is_recorded_by_somebody_who_sees_no_arm(
    browser: Browser,  # noqa: F811
    running: Running,
    width: int,
    tmp_path: Path,
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, accept_downloads=True)
    page = context.new_page()
    signed_in(page, running, "blinded")
    sees_no_arm(page)
    page.get_by_role("link", name="ward", exact=True).click()
    expect(page).to_have_url(f"{running.address}/trials/ward/tell")
    tabs = page.get_by_role("navigation", name="This trial")
    assert tabs.get_by_role("link").all_inner_texts() == ["Tell"]
    sees_no_arm(page)
    with page.expect_download() as sheet:
        page.get_by_role("link", name="CSV").click()
    sheet.value.save_as(tmp_path / "sheet.csv")
    lines = (tmp_path / "sheet.csv").read_text(encoding="utf-8-sig").splitlines()
    assert lines[0] == "decision,episode,user,pain,sleep,notes"
    for number in range(1, 5):
        page.get_by_label(f"pain of decision {number}").fill(str(2 + number))
        page.get_by_label(f"sleep of decision {number}").fill("7.5" if number == 1 else "6")
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("4 outcomes recorded.")
    sees_no_arm(page)
    page.get_by_label("Number of the decision").fill("3")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", level=2)).to_have_text("Decision 3 for patient 2")
    sees_no_arm(page)
    page.get_by_text("Correct the outcome").click()
    page.get_by_label("pain").last.fill("1")
    page.get_by_label("Reason").last.fill("read upside down")
    page.get_by_role("button", name="Correct", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("The outcome was corrected.")
    sees_no_arm(page)
    page.goto(f"{running.address}/trials/ward")
    expect(page.get_by_role("alert")).to_contain_text("has the role 'blinded'")
    sees_no_arm(page)
    width_now = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert width_now[0] <= width_now[1]
    context.close()


def test_a_manager_opens_the_code_of_one_decision(browser: Browser, running: Running) -> None:  # noqa: F811
    context = browser.new_context()
    page = context.new_page()
    signed_in(page, running, "manage")
    page.goto(f"{running.address}/trials/ward/manage#blinding")
    page.get_by_text("Open the code", exact=True).first.click()
    form = page.locator("form[action$='/manage/reveal']")
    form.get_by_label("Reason").fill("an emergency")
    form.get_by_role("button").click()
    expect(page.get_by_role("alert")).to_contain_text("name a decision, or tick the box")
    form.get_by_label("Number of the decision").fill("2")
    form.get_by_label("Reason").fill("an emergency")
    form.get_by_role("button").click()
    arm = Trial.open("ward", running.service.store).decision(2).arm
    expect(page.get_by_role("heading", level=2)).to_contain_text(arm)
    expect(page.get_by_text("by manage office: an emergency")).to_be_visible()
    assert not [v for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    context.close()
