"""The README is one screen, and its examples are what a newcomer types first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from drimed.trial import template

README = Path(__file__).parent.parent / "README.md"


def test_the_python_example_runs_and_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("maize.toml").write_text(template(), encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert scope["decision"].propensity > 0
    assert len(code.splitlines()) <= 14


def test_every_file_it_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert target.startswith("http") or (README.parent / target).exists(), target


def test_it_is_one_screen_with_a_picture_two_commands_and_three_links() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert text.count("![") == 1
    assert re.findall(r"^\$ (make \w+)", text, re.M) == ["make run", "make test"]
    assert len(re.findall(r"^\* .*\]\(", text, re.M)) == 3


def test_what_must_pass_before_a_change_lands_has_its_test_command() -> None:
    assert "make test" in (README.parent / ".ci" / "run").read_text(encoding="utf-8").splitlines()
