"""The README's examples are what a newcomer types first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drimed.trial import template

README = Path(__file__).parent.parent / "README.md"


def test_the_python_examples_run_and_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("maize.toml").write_text(template(), encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert len(examples) == 2
    for code in examples:
        scope: dict[str, object] = {}
        exec(code, scope)
        assert scope["decision"].propensity > 0  # type: ignore[attr-defined]
        assert len([line for line in code.splitlines() if line.strip()]) <= 14


def test_every_file_it_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert target.startswith("http") or (README.parent / target).exists(), target
