"""docs/adding_a_rule.md is followed to the letter, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from drimed.policies.registry import load
from drimed.policies.rules.base import Ask
from drimed.trial import template
from tests.examples import r1_fit, r1_offer

PAGE = (Path(__file__).parents[2] / "docs" / "adding_a_rule.md").read_text(encoding="utf-8")
RULE, PYTHON, POLICY = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
IN_A_TRIAL = re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)[0]
COMMANDS = re.findall(r"^\$ drimed (.*)$", PAGE, re.M)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_rules.py").write_text(RULE, encoding="utf-8")
    (tmp_path / "my_policies.py").write_text(POLICY, encoding="utf-8")
    return tmp_path


def run(folder: Path, *words: str) -> str:
    """As from a shell: the current folder is not on the path of an installed command."""
    code = "import sys; sys.path.remove(''); from drimed.cli.main import main; main()"
    env = os.environ | {"COLUMNS": "300", "DRIMED_ACTOR": "ann"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rule_is_a_line_in_the_benchmark(folder: Path) -> None:
    assert COMMANDS
    for command in COMMANDS:
        said = run(folder, *command.split(), "--jobs", "1")
        assert all(policy in said for policy in command.split()[-1].split(","))


def test_the_python_of_the_page_runs(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PYTHON], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"my_rules:InverseGap [\d.]+\nv_oful [\d.]+\n", done.stdout)


@pytest.mark.parametrize("policy", [IN_A_TRIAL, '[policy]\nname = "my_policies:careful"\nsharpness = 50\n'])
def test_the_rule_and_the_policy_run_a_trial(folder: Path, policy: str) -> None:
    before = template().partition("[policy]")[0].partition("[context.rain]")[0].partition("[[guardrails]]")[0]
    (folder / "t.toml").write_text(before + policy, encoding="utf-8")
    run(folder, "trial", "init", "t.toml")
    said = run(folder, "trial", "ask", "maize-nitrogen", "--episode", "1")
    assert "3 decided" in said
    assert "the log is intact" in run(folder, "trial", "verify", "maize-nitrogen")


def test_the_rule_of_the_page_is_right(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    rule = load("my_rules:InverseGap")(sharpness=10.0)
    del sys.modules["my_rules"]
    # R1: means .5, .1, .38, so that the gaps are .4 and .12: 1 / (3 + 4) = .142857 and 1 / (3 + 1.2) = .238095.
    np.testing.assert_allclose(rule.propose(r1_fit(), r1_offer(), Ask()), [0.619048, 0.142857, 0.238095], atol=5e-7)
    # Without the first arm the third leads, and the second is .28 behind it: 1 / (2 + 2.8).
    p = rule.propose(r1_fit(), r1_offer(), Ask(mask=np.array([False, True, True])))
    np.testing.assert_allclose(p, [0.0, 1 / 4.8, 3.8 / 4.8], atol=1e-12)
