"""The command line as a person meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from typer.testing import CliRunner

from drimed.cli.main import app
from drimed.policies.registry import REGISTRY

RUNNER = CliRunner()
DRIMED = [sys.executable, "-m", "drimed.cli.main"]


def test_policies_lists_every_policy_with_reference_and_information() -> None:
    result = RUNNER.invoke(app, ["policies", "--json"])
    rows = json.loads(result.stdout)
    assert [row["name"] for row in rows] == list(REGISTRY)
    assert all(row["reference"] and row["uses"] for row in rows)
    assert "published_dri_med" in RUNNER.invoke(app, ["policies"], env={"COLUMNS": "200"}).stdout


def test_help_explains_every_option_of_reproduce() -> None:
    text = RUNNER.invoke(app, ["reproduce", "--help"], env={"COLUMNS": "200"}).stdout
    for option in ("--seeds", "--only", "--jobs", "--out", "--reading"):
        assert option in text


def test_a_wrong_name_is_told_in_one_line_with_the_nearest_right_one() -> None:
    done = subprocess.run([*DRIMED, "reproduce", "--only", "mian"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown part 'mian'; did you mean 'main'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_is_shown() -> None:
    from drimed import __version__

    assert RUNNER.invoke(app, ["--version"]).stdout.strip() == __version__


def test_an_interrupted_run_continues_where_it_stopped(tmp_path: Path) -> None:
    command = [*DRIMED, "reproduce", "--seeds", "16", "--episodes", "300", "--only", "main", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("runs/*.npz"))) < 3:
        assert time.monotonic() < deadline, "no run was finished in two minutes"
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does
    said, _ = process.communicate(timeout=60)
    finished = set(tmp_path.glob("runs/*.npz"))
    assert process.returncode == 130, said
    assert "run the same command again to continue" in " ".join(said.split())
    assert not (tmp_path / "results.json").exists()

    stamps = {path: path.stat().st_mtime_ns for path in finished}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(finished)} runs from before" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in finished} == stamps
    assert json.loads((tmp_path / "results.json").read_text())["main"]["gradual"]["oful"]["seeds"] == 16
