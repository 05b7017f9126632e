"""Kernels are compiled, or loaded, when a worker starts, beside everything else."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from drimed.service import app
from drimed.service.settings import Settings
from tests.service.serving import modules_as_before, served

# The first questions and analyses of a trial like the template.
FIRST_USE = """
import tomllib
from drimed import MemoryStore, Trial
from drimed.reports.analysis import analyse
from drimed.numerics import compiled as kernel
from drimed.service import app
from drimed.trial import template
app.warm_up()
kernel.Kernel._compile = None  # whatever is compiled or loaded from here on fails
trial = Trial.create(tomllib.loads(template()), MemoryStore())
for season in range(3):
    rain = {user: {"rain": 400.0 + season} for user in trial.state().users}
    given = trial.ask_many(contexts=rain, episode=season + 1)
    for d in given:
        trial.tell(d.id, {"yield": 8.0 + d.id % 3, "leaching": 30.0 + d.id % 5})
analyse(trial)
"""


def test_after_it_a_trial_like_the_template_finds_all_its_kernels() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_begins_with_the_worker_and_the_service_is_ready_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait()

    monkeypatch.setattr(app, "warm_up", slow)
    with modules_as_before():
        made = app.create_app(Settings(store=str(tmp_path / "t.db"), rate=0), warm=True)
    with served(made) as running:
        assert begun.wait(60)
        assert running.http.get("/readyz").json() == {"status": "ready"}
        go_on.set()


def test_a_failure_is_logged_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "analyse", lambda _: 1 / 0)
    app.warm_up()
    assert "could not be prepared" in caplog.text
