"""Whoever may create a trial must not be able to import a module, however the service was started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from drimed.policies.registry import MODULES
from drimed.service.app import create_app, from_environment
from drimed.service.settings import Settings
from tests.service.serving import served
from tests.service.test_endpoints import problem
from tests.trial.trials import SMALL


@pytest.fixture(
    params=[lambda _: from_environment(), lambda folder: create_app(Settings(store=str(folder / "trials.db")))],
    ids=["from the environment", "from settings"],
)
def http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> Iterator[httpx.Client]:
    """A service as any server of applications starts it, with a module that it could find."""
    (tmp_path / "strangers.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(MODULES, "")  # so that it is as before after the test
    monkeypatch.delenv(MODULES)
    monkeypatch.setenv("DRIMED_STORE", str(tmp_path / "trials.db"))
    with served(request.param(tmp_path)) as running:
        yield running.http


@pytest.mark.parametrize("place", ["os:system", "strangers:Policy", "drimed_strangers.rules:Rule"])
@pytest.mark.parametrize("setting", ["name", "rule", "guard"])
def test_a_trial_that_names_a_module_is_refused(http: httpx.Client, setting: str, place: str) -> None:
    policy = {"name": "dri_med"} | {setting: place}
    found = problem(http.post("/v1/trials", json=SMALL | {"policy": policy}), 422)
    assert f"module '{place.partition(':')[0]}' may not be loaded here" in str(found)
    assert "strangers" not in sys.modules
    assert http.get("/v1/trials").json()["items"] == []
