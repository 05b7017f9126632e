"""The pages about trials are followed to the letter: every command, in order, in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.walkthrough import agrees, blocks, commands, follow

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ("trial_file", "seasons", "verify")


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def test_every_command_of_the_pages_works_and_says_what_they_say(tmp_path: Path) -> None:
    todo = [step for page in PAGES for block in blocks(text_of(page), "console") for step in commands(block)]
    assert len(todo) > 20
    said = follow(todo, tmp_path, {"COLUMNS": "400", "DRIMED_ACTOR": "ann"})
    for step, output in zip(todo, said, strict=True):
        assert step.shown is None or agrees(step.shown, output), (step.command, output)
    export = (tmp_path / "maize.csv").read_text(encoding="utf-8").splitlines()
    assert len(export) == 1 + 6
    assert any("the log is intact" in output for output in said)


def test_the_python_of_the_pages_runs(tmp_path: Path) -> None:
    (code,) = blocks(text_of("seasons"), "python")
    setup = "from drimed.trial import template\nopen('maize.toml', 'w').write(template())\n"
    ran = subprocess.run([sys.executable, "-c", setup + code], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[0] in ("practice", "split", "reduced")
