"""docs/rehearse.md is followed to the letter: from the template to a number of seasons, in an empty folder."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from drimed.rehearsal import designs, scenarios
from drimed.rehearsal.designs import Plan
from drimed.trial import template
from drimed.trial.spec import TrialSpec
from tests.test_docs import DOCS
from tests.walkthrough import blocks, commands, follow

PAGE = (DOCS / "rehearse.md").read_text(encoding="utf-8")


def test_a_newcomer_comes_from_the_template_to_a_number_of_seasons(tmp_path: Path) -> None:
    todo = [step for block in blocks(PAGE, "console") for step in commands(block)]
    said_there = "\n".join(follow(todo, tmp_path, {"COLUMNS": "200"}))
    found = re.search(r"(\d+) seasons reach a power of 0\.8 .*Monte Carlo error: (\d+) to (\d+)", said_there)
    assert found is not None, said_there[-2000:]
    said = re.search(r"answer was (\d+) seasons, and within Monte Carlo error (\d+) to (\d+)", PAGE)
    assert said is not None
    assert found.groups() == said.groups()
    assert (tmp_path / "out" / "rehearsal" / "maize-nitrogen" / "index.html").exists()


def test_the_scenario_of_the_page_is_one() -> None:
    (text,) = blocks(PAGE, "toml")
    data = tomllib.loads(text)
    found = scenarios.read(TrialSpec.parse(template()), data["scenarios"])
    assert found["dry-years"].dropout == 0.1


def test_the_example_of_the_page_stops_by_its_rule() -> None:
    """Ten times the effect: superiority is found long before the end."""
    spec, worlds = scenarios.load(DOCS.parent / "examples" / "three_arms" / "trial.toml")
    assert set(worlds) == {"differences", "no-difference"}
    strong = worlds["differences"].model_copy(update={"effects": {"B": {"event": -0.5}}, "seasons": 10})
    record = Plan(spec, {"s": strong}, (designs.own(spec),), trials=2).run(None, jobs=1)["s", designs.OWN]
    assert (record.played < 10).all()
