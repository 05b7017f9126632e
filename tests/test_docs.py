"""docs/trial.md is followed to the letter: every command, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def commands(block: str) -> list[tuple[str, str]]:
    """Each command with the output that the page shows for it, if any."""
    found: list[tuple[str, str]] = []
    lines = iter(block.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            if "<<'END'" in command:
                for more in lines:
                    command += "\n" + more
                    if more == "END":
                        break
            found.append((command, ""))
        else:
            command, output = found[-1]
            found[-1] = (command, output + line + "\n")
    return found


def test_every_command_of_the_walk_through_works_and_says_what_the_page_says(tmp_path: Path) -> None:
    page = (DOCS / "trial.md").read_text(encoding="utf-8")
    steps = [step for block in blocks(page, "console") for step in commands(block)]
    assert len(steps) > 20
    script = "set -euo pipefail\n" + "".join(f"echo '@@{i}'\n{c}\n" for i, (c, _) in enumerate(steps))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "COLUMNS": "400", "DRIMED_ACTOR": "ann"}
    ran = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert ran.returncode == 0, ran.stdout[-2000:]
    outputs = dict(re.findall(r"@@(\d+)\n(.*?)(?=@@\d+\n|\Z)", ran.stdout, flags=re.S))
    for i, (command, expected) in enumerate(steps):
        if expected:
            assert " ".join(expected.split()) == " ".join(outputs[str(i)].split()), command
    export = (tmp_path / "maize.csv").read_text(encoding="utf-8").splitlines()
    assert len(export) == 1 + 6
    assert "the log is intact" in ran.stdout


def test_the_python_of_the_walk_through_runs(tmp_path: Path) -> None:
    page = (DOCS / "trial.md").read_text(encoding="utf-8")
    (code,) = blocks(page, "python")
    setup = "from drimed.trial import template\nopen('maize.toml', 'w').write(template())\n"
    ran = subprocess.run([sys.executable, "-c", setup + code], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[0] in ("practice", "split", "reduced")
