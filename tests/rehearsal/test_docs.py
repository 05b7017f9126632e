"""docs/rehearse.md is followed to the letter: from the template to a number of seasons, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from drimed.rehearsal import scenarios
from drimed.trial import template
from drimed.trial.spec import TrialSpec

PAGE = (Path(__file__).parents[2] / "docs" / "rehearse.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.M | re.S)


def test_a_newcomer_comes_from_the_template_to_a_number_of_seasons(tmp_path: Path) -> None:
    steps = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "set -euo pipefail\n" + "\n".join(steps)
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-2000:]
    found = re.search(r"(\d+) seasons reach a power of 0\.8 .*Monte Carlo error: (\d+) to (\d+)", ran.stdout)
    assert found is not None, ran.stdout[-2000:]
    said = re.search(r"answer was (\d+) seasons, and within Monte Carlo error (\d+) to (\d+)", PAGE)
    assert said is not None
    assert found.groups() == said.groups()
    assert (tmp_path / "out" / "rehearsal" / "maize-nitrogen" / "index.html").exists()


def test_the_scenario_of_the_page_is_one() -> None:
    (text,) = blocks("toml")
    data = tomllib.loads(text)
    found = scenarios.read(TrialSpec.parse(template()), data["scenarios"])
    assert found["dry-years"].dropout == 0.1
