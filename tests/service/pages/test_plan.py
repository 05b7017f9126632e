"""The promise and the rehearsal on the plan page."""

from __future__ import annotations

from pathlib import Path

from drimed.service.pages import read
from drimed.service.settings import Settings
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.service.serving import served
from tests.trial.floored import SPEC


def test_a_tolerance_has_the_unit_of_the_reward() -> None:
    promise = read.promise(Trial.create(SPEC | {"reward": {"unit": "EUR/ha"}}, MemoryStore()).state())
    assert any("plus 1 EUR/ha" in sentence for sentence in promise)


def test_a_rehearsal_is_told_in_whole_per_cent(tmp_path: Path) -> None:
    seen = {"hash": 64 * "a", "scenario": "no difference", "seasons": 6, "trials": 20, "control": 0.7027, "power": 0.05}
    with served(Settings(store=str(tmp_path / "t.db"))) as running:
        name = Trial.create(SPEC, running.service.store, rehearsal=seen).name
        text = running.http.get(f"/trials/{name}/plan").text
    assert "70 % of decisions were for the control. A better arm was found in 5 % of them." in text
