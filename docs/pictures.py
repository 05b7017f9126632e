"""Pictures of the pages for README and docs/service.md, taken from the demo: `make pictures`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, sync_playwright
from tests.service.serving import served

from drimed.service import demo
from drimed.service.settings import Settings

HERE = Path(__file__).parent
TRIAL = "/trials/maize-demo"
Scheme = Literal["light", "dark"]
# file -> address, width, height, colours
PICTURES: dict[str, tuple[str, int, int, Scheme]] = {
    "service_trial.png": (TRIAL, 1100, 1000, "light"),
    "service_decision.png": (f"{TRIAL}/decisions/100", 1100, 1560, "light"),
    "service_phone.png": (TRIAL, 390, 1400, "dark"),
}


def main(folder: Path = HERE, names: Collection[str] = tuple(PICTURES)) -> None:
    """Serve the demo, look at it, and write pictures into a folder."""
    with tempfile.TemporaryDirectory() as place, served(Settings(store=f"{place}/trials.db")) as running:
        demo.fill(running.service.store)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name in names:
                take(browser, running.address, folder / name, *PICTURES[name])
            browser.close()


def take(browser: Browser, address: str, file: Path, path: str, width: int, height: int, scheme: Scheme) -> None:
    """One page, once its analysis is there."""
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": height})
    page.goto(address + path)
    page.wait_for_selector("figure.card, .answers")
    page.screenshot(path=file)
    page.close()


if __name__ == "__main__":
    main()
