"""The examples run as their first lines say, and go on where they were."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "first", "more"),
    [
        ("crop_trial", ["--seasons", "2"], ["--seasons", "3"]),
        ("recommender", ["--days", "1", "--visits", "8"], ["--days", "2", "--visits", "8"]),
    ],
)
def test_an_example_plays_and_goes_on(name: str, first: list[str], more: list[str], tmp_path: Path) -> None:
    def play(options: list[str]) -> str:
        script = [sys.executable, str(EXAMPLES / name / "play.py"), "--store", str(tmp_path / "x.db"), *options]
        ran = subprocess.run(script, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert "the log is intact" in play(first)
    said = play(more)
    assert "the log is intact" in said
    assert len(said.splitlines()) == 2  # one more season, and the verdict
