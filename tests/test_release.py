"""What a release must agree on."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_there_is_one_version() -> None:
    version = PROJECT["version"]
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    newest = re.search(r"^## (\S+), (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert citation is not None
    assert newest is not None
    assert citation[1] == newest[1] == version
    assert newest[2] == "unreleased" or re.fullmatch(r"\d{4}-\d\d-\d\d", newest[2])
    assert f"{version.rpartition('.')[0]}, the newest release" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_the_development_extra_has_all_the_others() -> None:
    extras = PROJECT["optional-dependencies"]
    (ours,) = [wanted for wanted in extras["dev"] if wanted.startswith("drimed[")]
    assert set(ours.removeprefix("drimed[").removesuffix("]").split(",")) == set(extras) - {"dev"}


def test_the_classifiers_name_pythons_that_may_be_used() -> None:
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    least = PROJECT["requires-python"].removeprefix(">=")
    assert named[0] == least
    assert named == [f"3.{minor}" for minor in range(int(least[2:]), int(least[2:]) + len(named))]
