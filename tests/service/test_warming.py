"""Kernels are compiled, or loaded, when a worker starts, beside everything else."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from drimed.service import app
from drimed.service.runtime import Service
from drimed.service.settings import Settings
from drimed.trial.store import open_store
from drimed.trial.trial import Trial
from tests.service.serving import modules_as_before, served
from tests.trial.trials import BUSY

# The first questions and analyses of a trial like the template.
FIRST_USE = """
import tomllib
from drimed import MemoryStore, Trial
from drimed.reports.analysis import analyse
from drimed.numerics import compiled as kernel
from drimed.reports.analysis import prepare
from drimed.trial import template
prepare()
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


def test_the_service_answers_from_the_start_and_is_ready_when_it_is_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait()

    store = f"sqlite:///{tmp_path / 't.db'}"
    opened = open_store(store)
    busy, other = Trial.create(BUSY, opened), Trial.create(BUSY | {"name": "other"}, opened)
    busy.ask("site 0")
    other.stop(reason="it was only tried")
    monkeypatch.setattr(app, "prepare", slow)
    with modules_as_before():
        made = app.create_app(Settings(store=store, rate=0), warm=True)
    with served(made) as running:
        assert begun.wait(60)
        assert running.http.get("/healthz").status_code == 200
        refused = running.http.get("/readyz")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        page = running.http.get("/trials/busy")
        assert (page.status_code, "data-reload" in page.text, "being compiled" in page.text) == (503, True, True)
        go_on.set()
        assert made.state.service.warm.wait(60)
        assert running.http.get("/readyz").json() == {"status": "ready"}
        trials = made.state.service.trials
        assert (trials.open.cache_info().currsize, trials.recent()) == (2, ["other", "busy"])
        assert ["settled" in vars(trials.open(name).state()) for name in ("busy", "other")] == [True, False]


def test_a_failure_is_logged_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "prepare", lambda: 1 / 0)
    service = Service(Settings(store=f"sqlite:///{tmp_path / 't.db'}"))
    app.warm_up(service)
    service.close()
    assert service.warm.is_set()
    assert "could be prepared" in caplog.text
