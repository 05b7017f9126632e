"""The command line as a person meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drimed.cli import console as ui
from drimed.cli import main
from drimed.cli.main import VERBS, app, load
from drimed.numerics import compiled
from drimed.policies.registry import REGISTRY

RUNNER = CliRunner()
DRIMED = [sys.executable, "-m", "drimed.cli.main"]


def test_policies_lists_every_policy_with_reference_and_information() -> None:
    result = RUNNER.invoke(app, ["policies", "--json"])
    rows = json.loads(result.stdout)
    assert [row["name"] for row in rows] == list(REGISTRY)
    assert all(row["reference"] and row["uses"] for row in rows)
    assert "published_dri_med" in RUNNER.invoke(app, ["policies"], env={"COLUMNS": "200"}).stdout


ARRAYS = ("numpy", "scipy", "numba", "sqlalchemy", "alembic", "fastapi", "uvicorn", "polars")
WITHOUT_ARRAYS = [
    "--help",
    "--version",
    "policies",
    "policies --json",
    "trial --help",
    "trial template",
    "trial ask --help",
    "token --help",
    "token create --help",
    "serve --help",
]


def test_help_and_small_verbs_import_no_arrays_and_no_database() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom drimed.cli.main import app\n"
        f"for words in {WITHOUT_ARRAYS}:\n"
        "    done = CliRunner().invoke(app, words.split())\n"
        "    assert done.exit_code == 0 and done.stdout.strip(), (words, done.output)\n"
        f"    assert not {set(ARRAYS)} & set(sys.modules), words\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", VERBS)
def test_the_line_of_help_of_a_verb_is_the_verbs_own(name: str) -> None:
    command = load(name)
    assert command.name == name
    assert " ".join(command.help.partition("\n\n")[0].split()) == VERBS[name].about


def test_a_misspelled_verb_suggests_the_nearest() -> None:
    assert "Did you mean 'trial'" in RUNNER.invoke(app, ["trail"], env={"COLUMNS": "200"}).output


MISSING = """
import sys
from drimed.cli.main import main
for words, package in (["trial", "status"], "sqlalchemy"), (["token", "list"], "sqlalchemy"), (["serve"], "uvicorn"):
    sys.argv, sys.modules[package] = ["drimed", *words], None
    try:
        main()
    except SystemExit as end:
        assert end.code == 2, words
    del sys.modules[package]
"""


def test_a_verb_whose_extra_is_not_installed_says_which() -> None:
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=True)
    extras = re.findall(r"install 'drimed\[(\w+)\]'", " ".join(done.stderr.split()))
    assert extras == ["trial", "service", "service"]
    assert "Traceback" not in done.stderr


def test_a_wrong_name_is_told_in_one_line_with_the_nearest_right_one() -> None:
    done = subprocess.run([*DRIMED, "reproduce", "--only", "mian"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown part 'mian'; did you mean 'main'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_is_shown() -> None:
    from drimed import __version__

    assert RUNNER.invoke(app, ["--version"]).stdout.strip() == __version__


def test_an_interrupted_run_continues_where_it_stopped(tmp_path: Path) -> None:
    command = [*DRIMED, "reproduce", "--seeds", "8", "--episodes", "40", "--only", "main", "--out", str(tmp_path)]
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
    assert json.loads((tmp_path / "results.json").read_text())["main"]["gradual"]["oful"]["seeds"] == 8


def test_compiling_for_the_first_time_is_told_in_one_line_on_stderr_and_shared_with_another_process_for_a_trial(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, **_: started.append(words))
    before = compiled.log.handlers[:], compiled.log.level
    try:
        main._tell_of_compiling()
        main._tell_of_compiling()
        for verb in ("bench", "trial"):
            monkeypatch.setattr(sys, "argv", ["drimed", verb])
            compiled.log.info(compiled.COLD)
    finally:
        compiled.log.handlers[:] = before[0]
        compiled.log.setLevel(before[1])
    out, err = capsys.readouterr()
    assert (out, err) == ("", 2 * (compiled.COLD + "\n"))
    assert [words[1:] for words in started] == [["-m", "drimed.cli.main", "warm"]]


def test_without_a_terminal_progress_is_a_line_now_and_then_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ui, "EVERY", 0.01)
    errors = ""

    def wait_for(text: str) -> None:
        nonlocal errors
        end = time.monotonic() + 30
        while text not in errors and time.monotonic() < end:
            time.sleep(0.01)
            errors += capsys.readouterr().err
        assert text in errors

    with ui.progress("simulated trials") as move:
        wait_for("simulated trials: none yet (a first use prepares the numerical code), after 0 s\n")
        move(1200, 2400)
        wait_for("simulated trials: 1,200 of 2,400, after ")
        move(7, 9, "hard".ljust(9))
        wait_for("hard: 7 of 9, after ")
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr() == ("", "")
