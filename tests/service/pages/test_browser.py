"""The pages in a real browser: a season from file to stop, by people with and without a mouse, in light and dark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it has no types
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

from drimed.records import Report
from drimed.reports import page as findings
from drimed.service import auth, demo
from drimed.service.settings import Settings
from drimed.trial import template
from drimed.trial.spec import TrialSpec
from drimed.trial.trial import Trial
from tests.service.pages.visiting import Visitor
from tests.service.serving import Running, served
from tests.trial.test_doses import FILE
from tests.trial.test_kinds import clinic, outcome

CHROMIUM = shutil.which("chromium")
PHONE = 360
PHONE_WIDTH, PHONE_HEIGHT, MOST_SCREENS = 390, 844, 3
DEMO = "/trials/maize-demo"
RESULTS = tuple(page for page in findings.PAGES if page != "overview")
PAGES = (
    "/", "/new", "/new?example=people", DEMO,
    *(f"{DEMO}/results/{page}" for page in RESULTS), f"{DEMO}/ask", f"{DEMO}/tell",
    f"{DEMO}/results/effects?who=all+users+and+groups&on=leaching",
    f"{DEMO}/log", f"{DEMO}/log?show=changes", f"{DEMO}/decisions/100", f"{DEMO}/decisions/137", f"{DEMO}/manage",
    f"{DEMO}/given?decisions=133-144", f"{DEMO}/plan", f"{DEMO}/ask?episode=next",
    "/trials/nothing", "/nothing", "/http",
)  # fmt: skip

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@dataclass
class Tab:
    """A page of the browser, and what its console said."""

    page: Page
    address: str
    console: list[str] = field(default_factory=list)

    def go(self, path: str) -> None:
        """Open an address."""
        self.page.goto(self.address + path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's chromium."""
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with a simulated season."""
    with served(Settings(store=str(tmp_path_factory.mktemp("pages") / "trials.db"))) as running:
        demo.fill(running.service.store)
        yield running


@pytest.fixture
def context(browser: Browser, request: pytest.FixtureRequest) -> Iterator[BrowserContext]:
    """As a new reader comes; whether dark, and how wide."""
    dark, width = getattr(request, "param", (False, 1100))
    scheme: Literal["dark", "light"] = "dark" if dark else "light"
    opened = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}, accept_downloads=True)
    opened.set_default_timeout(20_000)
    yield opened
    opened.close()


@pytest.fixture
def tab(context: BrowserContext, service: Running) -> Iterator[Tab]:
    """A page that must not complain."""
    made = Tab(context.new_page(), service.address)

    def note(message: ConsoleMessage) -> None:
        expected = re.search(r"status of (403|404|409|422)", message.text)  # an answer that the test asks for
        if message.type in ("error", "warning") and not expected:
            made.console.append(message.text)

    made.page.on("console", note)
    made.page.on("pageerror", lambda error: made.console.append(str(error)))

    def failed(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left before its icon came
            made.console.append(f"{request.url}: {request.failure}")

    made.page.on("requestfailed", failed)
    yield made
    assert made.console == []


def test_a_season_from_file_to_stop(tab: Tab, tmp_path: Path) -> None:
    page = tab.page
    wrong, right = tmp_path / "wrong.toml", tmp_path / "right.toml"
    right.write_text(template())
    faulty = template().replace("preference = { yield = 200, leaching = -1 }", "preference = { yeild = 200 }")
    line = f"#line-{1 + faulty[: faulty.index('yeild')].count(chr(10))}"
    wrong.write_text(faulty)

    # Create, with a fault at a line first.
    tab.go("/")
    page.get_by_role("link", name="New trial").click()
    page.get_by_label("A trial file").set_input_files(wrong)
    page.get_by_role("button", name="Create the trial").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown metric 'yeild'; did you mean 'yield'?")
    expect(page.locator(line)).to_have_class("line wrong")
    expect(page.locator(line)).to_contain_text("yeild = 200")
    page.get_by_label("A trial file").set_input_files(right)
    page.get_by_role("button", name="Create the trial").click()
    expect(page.get_by_role("status").first).to_contain_text("The trial was created.")
    expect(page.get_by_role("heading", level=1)).to_have_text("maize-nitrogen")

    # Ask by hand for everybody; the answer can be downloaded.
    page.get_by_role("link", name="Ask").first.click()
    for user, rain in (("north", "400"), ("hill", "520"), ("river", "380")):
        page.get_by_label(f"rain of {user}").fill(rain)
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("3 decisions in season 1")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").click()
    sheet = Path(download.value.path()).read_text(encoding="utf-8-sig").splitlines()
    assert [line.split(",")[:4] for line in sheet[1:]] == [
        ["1", "1", "north", "400.0"],
        ["2", "1", "hill", "520.0"],
        ["3", "1", "river", "380.0"],
    ]

    # Tell with the same sheet, with an error at a row first.
    values = ["8.7,31", "9.1,x", "9.4,24"]
    assert sheet[0].endswith(",yield,leaching,notes")
    filled = [sheet[0]] + [line.removesuffix(",,") + f"{value}," for line, value in zip(sheet[1:], values, strict=True)]
    harvest = tmp_path / "harvest.csv"
    harvest.write_text("\n".join(filled))
    page.get_by_role("link", name="Tell outcomes").click()
    page.get_by_label("A sheet (CSV, .xlsx or JSON)").set_input_files(harvest)
    page.get_by_role("button", name="Record the sheet").click()
    expect(page.get_by_role("alert")).to_contain_text("Row 3: leaching must be a number, got 'x'")
    expect(page.locator("#row-3")).to_have_class("wrong")
    page.get_by_label("Text of the sheet").fill("\n".join(filled).replace("9.1,x", "9.1,28"))
    page.get_by_role("button", name="Record the sheet").click()
    expect(page.get_by_role("status").first).to_contain_text("3 outcomes recorded.")

    # The charts know it.
    page.get_by_role("link", name="Overview").first.click()
    page.get_by_role("link", name="Was anybody worse off?").click()
    reward = page.locator("#reward-chart svg.wide")
    expect(reward).to_be_visible()
    assert reward.locator("circle").count() == 1
    page.get_by_role("link", name="Who got what").click()
    before = page.locator("#allocation-chart svg.wide rect.bar").count()
    page.get_by_role("link", name="Ask", exact=True).first.click()
    page.get_by_role("link", name="Begin season 2").click()
    for user, rain in (("north", "410"), ("hill", "500"), ("river", "390")):
        page.get_by_label(f"rain of {user}").fill(rain)
    page.get_by_role("button", name="Ask", exact=True).click()
    page.get_by_role("link", name="Tell outcomes").click()
    for decision, (crop, nitrate) in zip((4, 5, 6), (("8.9", "30"), ("9.0", "27"), ("9.5", "25")), strict=True):
        page.get_by_label(f"yield of decision {decision}").fill(crop)
        page.get_by_label(f"leaching of decision {decision}").fill(nitrate)
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("3 outcomes recorded.")
    page.get_by_role("link", name="Overview").first.click()
    page.get_by_role("link", name="Was anybody worse off?").click()
    expect(page.locator("#reward-chart svg.wide circle")).to_have_count(2)
    page.get_by_role("link", name="Who got what").click()
    assert page.locator("#allocation-chart svg.wide rect.bar").count() > before

    # One decision's story, and a correction.
    page.get_by_role("link", name="Decisions", exact=True).click()
    page.get_by_label("Decision number").fill("2")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("heading", level=2)).to_contain_text("for hill")
    expect(page.locator("#probability-chart svg.wide")).to_be_visible()
    page.get_by_text("Correct the outcome").click()
    page.get_by_label("yield (t/ha)").fill("8.6")
    correction = page.locator("form", has=page.get_by_role("button", name="Correct", exact=True))
    correction.get_by_label("Reason").fill("the scale was off by half a tonne")
    correction.get_by_role("button").click()
    expect(page.get_by_role("status").first).to_contain_text("The outcome was corrected.")
    expect(page.get_by_role("region", name="Records of the outcome")).to_contain_text("yield 9.1 → 8.6")

    # Stop for good; not without saying so.
    page.get_by_role("link", name="Manage").click()
    stop = page.locator(".card.danger")
    stop.get_by_label("Reason").fill("two seasons, as planned")
    stop.get_by_role("button").click()
    expect(page.locator(".badge")).to_have_text("running")
    stop.get_by_label("I am sure").check()
    stop.get_by_role("button").click()
    expect(page.locator(".badge")).to_have_text("stopped")
    page.get_by_role("link", name="Ask").first.click()
    expect(page.get_by_text("is stopped and decides nothing")).to_be_visible()


@pytest.mark.parametrize("context", [(False, 1100), (True, PHONE)], indirect=True, ids=["light", "dark, phone"])
def test_everybody_can_use_every_page(tab: Tab) -> None:
    for address in PAGES:
        tab.go(address)
        check_for_everybody(tab.page, address)


def check_for_everybody(page: Page, address: str) -> None:
    """Everything on a page can be read and reached, also what it folds away."""
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    found = Axe().run(page)
    assert "color-contrast" in {rule["id"] for rule in found.response["passes"]}
    bad = [v for v in found.response["violations"] if v["impact"] in ("serious", "critical")]
    assert not bad, (address, [(v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in bad])
    width = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert width[0] <= width[1], f"{address} is wider than the screen"
    assert page.locator("h1").count() == 1


@pytest.mark.parametrize("context", [(True, PHONE)], indirect=True, ids=["dark, phone"])
def test_everybody_can_use_a_curve_of_doses_and_a_file_with_errors(tab: Tab, service: Running) -> None:
    trial, rng = Trial.create(TrialSpec.parse(FILE), service.service.store), np.random.default_rng(1)
    for season in (1, 2):
        trial.tell_many([Report(d.id, {"margin": rng.normal(500.0, 10.0)}) for d in trial.ask_many(episode=season)])
    Visitor(service.http).look("/trials/nitrogen")
    tab.go("/trials/nitrogen/results/covariates")
    expect(tab.page.get_by_role("heading", name="nitrogen").first).to_be_visible()
    check_for_everybody(tab.page, "doses")
    tab.go("/new")
    tab.page.get_by_label("Or paste its text").fill(FILE.replace("step", "stop"))
    tab.page.get_by_role("button", name="Create the trial").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("step")
    check_for_everybody(tab.page, "/new with errors")


@pytest.fixture(scope="module")
def clinic_of_400(service: Running) -> str:
    """A trial with 400 people who come once, and outcomes of all kinds; the last ten are pending."""
    harm = {"kind": "harm", "metric": "pain"}
    about, sexes = {"sex": {"levels": ["female", "male"]}}, ("female", "male")
    spec = clinic(attributes=about, floors={"control": 0.1}, stopping={"rules": {"harm": harm}})
    trial, rng = Trial.create(spec, service.service.store), np.random.default_rng(5)
    for first in range(0, 400, 100):
        new = {f"person {i}": {"attributes": {"sex": sexes[i % 2]}} for i in range(first, first + 100)}
        given = trial.ask_many(list(new), enrol=new)
        trial.tell_many([Report(d.id, outcome(rng, d.arm)) for d in given if d.id <= 390], confirm=True)
    trial.look()
    Visitor(service.http).look(f"/trials/{trial.name}")  # from now on no page waits for the analysis
    return f"/trials/{trial.name}"


@pytest.mark.parametrize("context", [(False, PHONE_WIDTH)], indirect=True, ids=["phone"])
def test_a_page_about_400_people_is_three_screens_of_a_phone_but_for_lists(tab: Tab, clinic_of_400: str) -> None:
    tab.page.set_default_navigation_timeout(60_000)  # the analysis of so many takes the machine for some seconds
    results = [f"/results/{page}" for page in RESULTS]
    for part in ("", *results, "/plan", "/ask", "/manage", "/decisions/9", "/given?decisions=9"):
        address = clinic_of_400 + part
        tab.go(address)
        screens = tab.page.evaluate("document.documentElement.scrollHeight") / PHONE_HEIGHT
        assert screens <= MOST_SCREENS, f"{address} takes {screens:.2f} screens"
        if not part or part in results:
            named = re.findall(r".{40}person \d.{40}", tab.page.content())
            assert not named, "people who do not return have no rows of their own"
        check_for_everybody(tab.page, address)
    for part in ("/log", "/log?show=changes", "/tell"):
        tab.go(clinic_of_400 + part)
        check_for_everybody(tab.page, part)
    rows = tab.page.locator("form tbody tr")
    expect(rows.first).to_contain_text("decision 391")
    rows.first.get_by_label("yes", exact=True).check()
    rows.first.get_by_label("7", exact=True).check(force=True)
    tab.page.get_by_role("button", name="Record", exact=True).click()
    expect(tab.page.get_by_role("status").first).to_contain_text("1 outcome recorded.")


@pytest.mark.parametrize("context", [(False, PHONE)], indirect=True, ids=["phone"])
def test_on_a_phone_the_name_of_a_row_stays_in_sight_while_its_numbers_are_typed(tab: Tab) -> None:
    tab.go(f"{DEMO}/ask")
    row = tab.page.locator("form .scroll tbody tr").first
    table, name, last = tab.page.locator("form .scroll").first, row.locator("th"), row.locator("input").last
    table.evaluate("part => { part.scrollLeft = part.scrollWidth; }")
    last.focus()
    edge, at, typed = table.bounding_box(), name.bounding_box(), last.bounding_box()
    assert edge is not None
    assert at is not None
    assert typed is not None
    assert edge["x"] <= at["x"]
    assert at["x"] + at["width"] <= typed["x"], "the name does not lie over the input"
    assert typed["x"] + typed["width"] <= edge["x"] + edge["width"]


@pytest.mark.parametrize("context", [(False, PHONE)], indirect=True, ids=["phone"])
def test_on_a_phone_no_outcome_has_to_be_scrolled_to_sideways(tab: Tab) -> None:
    tab.go(f"{DEMO}/tell")
    table = tab.page.locator("form .scroll").first
    for value, box in enumerate(table.locator("tbody tr").first.locator("input").all()):
        box.fill(f"9999{value}")
    tab.page.get_by_role("button", name="Record", exact=True).click()
    expect(tab.page.locator("tr.why")).to_be_visible()
    assert table.evaluate("part => part.scrollWidth <= part.clientWidth")
    label = table.locator("td[data-label]").first.evaluate("cell => getComputedStyle(cell, '::before').content")
    assert label.strip('"').startswith("yield"), "each field says what it is"


def test_charts_answer_to_pointer_keys_and_legend(tab: Tab) -> None:
    page = tab.page
    tab.go(f"{DEMO}/results/given")
    tip = page.locator("#tip")
    page.locator("#allocation-chart svg.wide rect.bar").first.hover()
    expect(tip).to_contain_text(re.compile(r"season 2020, practice: \d+ % \(\d+ of 24\)"))
    key = page.locator("#allocation-chart").locator("xpath=..").get_by_role("button", name="practice")
    key.press("Enter")
    expect(key).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#allocation-chart svg.wide rect.m-0").first).to_have_class(re.compile(r"\boff\b"))
    tab.go(f"{DEMO}/results/effects")
    page.locator("#effects-chart").focus()
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text(re.compile(r"lean: .*likely .* to .*; .* to "))
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("rich: ")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_a_page_is_walked_with_the_keyboard(tab: Tab) -> None:
    page = tab.page
    tab.go(f"{DEMO}/manage")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="All trials")).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert outline != "0px", "one sees where one is"


def test_pages_work_without_scripts(browser: Browser, service: Running) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{service.address}{DEMO}/results/effects")
    expect(page.locator("#effects-chart svg.wide")).to_be_visible()
    page.get_by_label("For", exact=True).select_option("dune")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("Effects on reward (EUR/ha) against control: dune").first).to_be_visible()
    context.close()


def test_signing_in_and_out(browser: Browser, tmp_path: Path) -> None:
    with served(Settings(store=str(tmp_path / "tokens.db"))) as running:
        _, text = auth.create_token(running.service.store, label="field office", role="manage")
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{running.address}/new?example=1")
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        assert not [v for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
        page.get_by_label("Token").fill("drimed_00000000_wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("not known")
        page.get_by_label("Token").fill(text)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(f"{running.address}/new?example=1")
        page.get_by_role("button", name="Create the trial").click()
        expect(page.get_by_role("status").first).to_contain_text("The trial was created.")
        assert text not in page.evaluate("document.cookie")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        page.goto(f"{running.address}/trials/maize-nitrogen")
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        context.close()
