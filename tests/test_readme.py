"""The README's example is what a newcomer types first."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_python_example_runs_and_is_short() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    scope: dict[str, object] = {}
    exec(code, scope)
    assert scope["decision"].propensity > 0  # type: ignore[attr-defined]
    assert len([line for line in code.splitlines() if line.strip()]) <= 14


def test_every_file_it_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert target.startswith("http") or (README.parent / target).exists(), target
