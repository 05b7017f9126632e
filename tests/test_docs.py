"""docs/trial.md is followed to the letter: every command, in order, in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.walkthrough import agrees, blocks, commands, follow

DOCS = Path(__file__).parent.parent / "docs"


def test_every_command_of_the_walk_through_works_and_says_what_the_page_says(tmp_path: Path) -> None:
    page = (DOCS / "trial.md").read_text(encoding="utf-8")
    todo = [step for block in blocks(page, "console") for step in commands(block)]
    assert len(todo) > 20
    said = follow(todo, tmp_path, {"COLUMNS": "400", "DRIMED_ACTOR": "ann"})
    for step, output in zip(todo, said, strict=True):
        assert step.shown is None or agrees(step.shown, output), step.command
    export = (tmp_path / "maize.csv").read_text(encoding="utf-8").splitlines()
    assert len(export) == 1 + 6
    assert any("the log is intact" in output for output in said)


def test_the_python_of_the_walk_through_runs(tmp_path: Path) -> None:
    page = (DOCS / "trial.md").read_text(encoding="utf-8")
    (code,) = blocks(page, "python")
    setup = "from drimed.trial import template\nopen('maize.toml', 'w').write(template())\n"
    ran = subprocess.run([sys.executable, "-c", setup + code], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[0] in ("practice", "split", "reduced")
