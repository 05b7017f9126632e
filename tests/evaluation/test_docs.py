"""docs/evaluation.md: its example runs, then its commands on what the example wrote."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.M | re.S)


def test_the_example_and_the_commands_run(tmp_path: Path) -> None:
    (code,), (shown,) = blocks("python"), blocks("console")
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}
    example = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "low=0.53" in example.stdout.replace("0.528", "0.53")
    commands = [line.removeprefix("$ ") for line in shown.splitlines()]
    assert len(commands) == 3
    done = subprocess.run(
        ["bash", "-c", "set -e\n" + "\n".join(commands)], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "95% at all times" in done.stdout
    assert done.stdout.rstrip().endswith("refused")
    assert "did you mean 'bold'" in done.stderr
    assert (tmp_path / "result.json").exists()
