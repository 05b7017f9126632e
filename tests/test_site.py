"""The site: complete, and readable where there is no network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import drimed

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(folder / "doctrees")]
    done = subprocess.run([*command, str(ROOT / "docs"), str(folder / "html")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_page_is_there_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert {page.stem for page in (ROOT / "docs").rglob("*.md")} <= {page.stem for page in pages}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"([^\"]+)\"", text)
        assert loaded
        assert [address for address in loaded if re.match(r"(https?:)?//", address)] == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_the_reference_has_every_public_name(site: Path) -> None:
    text = (site / "reference.html").read_text(encoding="utf-8")
    places = {name: f"drimed.{name}" for name in drimed.__all__ if name != "__version__"}
    missing = [
        name for name, place in places.items() if f'id="{place}"' not in text and f'id="module-{place}"' not in text
    ]
    assert missing == []
    assert "decide which arm one user gets" in text.lower()  # a docstring


def test_files_of_the_repository_that_pages_link_to_come_along(site: Path) -> None:
    linked = re.findall(r'href="([^"]*_downloads/[^"]*)"', (site / "service.html").read_text(encoding="utf-8"))
    assert {Path(address).name for address in linked} >= {"nginx.conf", "Caddyfile", "drimed.service"}
    assert all((site / address).exists() for address in linked)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_search_works_from_a_folder(site: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page, failed = browser.new_page(), list[str]()
        page.on("requestfailed", lambda request: failed.append(request.url))
        page.goto(f"{(site / 'search.html').as_uri()}?q=propensity")
        page.wait_for_selector("#search-results li a")
        assert page.locator("#search-results li a").count() > 3
        assert failed == []
        browser.close()
