"""A clinic of 200 people in a real browser, from the file to the report; nurses record outcomes and see no arm."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from drimed.service.settings import Settings
from drimed.trial import template
from drimed.trial.trial import Trial
from tests.service.pages.test_blinded_browser import signed_in
from tests.service.pages.test_browser import CHROMIUM, PHONE_WIDTH, browser, check_for_everybody  # noqa: F401
from tests.service.serving import PATIENCE, Running, served

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
TRIAL, PEOPLE, AT_ONCE = "/trials/dose-finding", 200, 40
CURED = {"standard": 0.3, "middle": 0.6, "high": 0.6}
EFFECTS = {"standard": 2.0, "middle": 2.0, "high": 6.0}
FILE = template("people").replace("absolute = 0.05", "absolute = 0.3").replace("absolute = 1\n", "absolute = 5\n")
RESULTS = ("outcomes", "effects", "best", "worse", "given", "next", "checks")


def opened(page: Page, running: Running, path: str) -> None:
    page.goto(running.address + path)
    check_for_everybody(page, path)


def by_sheet(page: Page, text: str, button: str) -> None:
    form = page.locator("form", has=page.get_by_role("button", name=button))
    if not form.get_by_label("Text of the sheet").is_visible():
        form.get_by_text("Or paste it").click()
    form.get_by_label("Text of the sheet").fill(text)
    form.get_by_role("button", name=button).click()


def outcomes(trial: Trial, rng: np.random.Generator, first: int, last: int) -> str:
    """A sheet of what the nurses saw of these decisions."""
    rows = ["decision,cure,effects"]
    for decision in range(first, last + 1):
        arm = trial.decision(decision).arm
        cure = "yes" if rng.random() < CURED[arm] else "no"
        rows.append(f"{decision},{cure},{np.clip(round(rng.normal(EFFECTS[arm], 1.5)), 0, 10):.0f}")
    return "\n".join(rows)


def test_a_clinic_of_200_people_from_the_file_to_the_report(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    rng = np.random.default_rng(8)
    with served(Settings(store=str(tmp_path / "trials.db"))) as running:
        doctor, nurse = (browser.new_context(viewport={"width": w, "height": 800}) for w in (1100, PHONE_WIDTH))
        for context in (doctor, nurse):
            context.set_default_timeout(60_000)
        page, ward = doctor.new_page(), nurse.new_page()
        signed_in(page, running, "manage")

        # The file is pasted, with a mistake first.
        opened(page, running, "/new")
        page.get_by_label("Or paste its text").fill(FILE.replace("effects = -0.03", "efects = -0.03"))
        page.get_by_role("button", name="Create the trial").click()
        expect(page.get_by_role("alert")).to_contain_text("did you mean 'effects'?")
        check_for_everybody(page, "/new with errors")
        page.get_by_label("Or correct the text here").fill(FILE)
        page.get_by_role("button", name="Create the trial").click()
        expect(page.get_by_role("status").first).to_contain_text("The trial was created.")
        check_for_everybody(page, TRIAL)
        opened(page, running, f"{TRIAL}/plan")
        signed_in(ward, running, "blinded")

        trial = Trial.open("dose-finding", running.service.store)
        for first in range(1, PEOPLE, AT_ONCE):
            last = first + AT_ONCE - 1
            page.goto(f"{running.address}{TRIAL}/ask")
            assert "season" not in page.inner_text("main"), "nothing shifts, and people come when they come"
            if first < 2 * AT_ONCE:
                check_for_everybody(page, "ask")
            people = [f"person {i},{rng.normal(50, 15):.0f}" for i in range(first, last + 1)]
            by_sheet(page, "\n".join(["user,age", *people]), "Ask for the users of the sheet")
            expect(page.get_by_role("status").first).to_contain_text(f"{AT_ONCE} decisions")
            ward.goto(f"{running.address}{TRIAL}/tell")
            right = outcomes(trial, rng, first, last)
            if first == 1:  # every wrong value is named with its row, and nothing is recorded
                wrong = (
                    f"decision,cure,effects\n{first},perhaps,3\n{first + 1},no,12\n{first + 2},0.5,4\n{first + 3},yes,1"
                )
                by_sheet(ward, wrong, "Record the sheet")
                said = ward.get_by_role("alert")
                for text in ("cure is yes or no", "'perhaps'", "effects is a score from 0 to 10, got 12", "got 0.5"):
                    expect(said).to_contain_text(text)
                rows = [f"ow {row}" for row in (2, 3, 4)]
                assert all(row in said.inner_text() for row in rows)
                assert "ow 5" not in said.inner_text()
                check_for_everybody(page, "given")
                check_for_everybody(ward, "a wrong sheet")
            by_sheet(ward, right, "Record the sheet")
            expect(ward.get_by_role("status").first).to_contain_text(f"{AT_ONCE} outcomes recorded.")
            assert not [arm for arm in CURED if arm in ward.content()]

        check_for_everybody(ward, "told")
        page.goto(running.address + TRIAL)
        until = time.monotonic() + PATIENCE
        while page.get_by_text("events behind").is_visible() and time.monotonic() < until:
            page.wait_for_timeout(500)
            page.reload()
        check_for_everybody(page, TRIAL)
        for text in ("What to do now", "high is certainly worse than the control on effects", "200 complete"):
            expect(page.locator("main")).to_contain_text(text)
        for result in RESULTS:
            opened(page, running, f"{TRIAL}/results/{result}")
        doctor.close()
        nurse.close()
