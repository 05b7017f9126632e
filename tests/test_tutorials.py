"""The tutorials are followed to the letter, one after the other, in an empty folder."""

from __future__ import annotations

from pathlib import Path

from tests.walkthrough import agrees, follow, steps

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"
ORDER = ("plan", "seasons", "evaluate")


def test_every_tutorial_is_run() -> None:
    assert {page.stem for page in TUTORIALS.glob("*.md")} == set(ORDER)


def test_the_tutorials_say_what_you_will_see(tmp_path: Path) -> None:
    todo = [step for name in ORDER for step in steps((TUTORIALS / f"{name}.md").read_text(encoding="utf-8"))]
    assert len(todo) > 20
    assert sum(step.shown is not None for step in todo) > 15
    said = follow(todo, tmp_path, {"COLUMNS": "80", "DRIMED_ACTOR": "ann", "DRIMED_STORE": ""})
    for step, output in zip(todo, said, strict=True):
        assert agrees(step.shown or "", output), f"{step.command}\nsaid:\n{output}\nthe page shows:\n{step.shown}"


def test_a_page_that_shows_something_else_is_found() -> None:
    assert agrees("3 decided\nhash ... is kept\n", "3  decided\nhash 12 ab is kept")
    assert not agrees("3 decided", "4 decided")
    assert not agrees("", "a warning")
