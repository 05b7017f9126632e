"""Analyses: once for each state of a trial, and never more than a small part of a core."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drimed.errors import NumericalError
from drimed.reports.analysis import analyse
from drimed.service import runtime
from drimed.service.runtime import Analyses, Trials
from drimed.trial.store import Store, open_store
from drimed.trial.trial import Trial
from tests.trial.trials import SMALL


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(str(tmp_path / "t.db"))
    Trial.create(SMALL, opened)
    yield opened
    opened.close()


async def newest(found: Analyses, trial: Trial, seconds: float = 30) -> Any:
    """The analysis of a trial as it is now, or an older one."""
    analysis = await found.get(trial.name, trial.status().hash, seconds)
    assert analysis is not None
    return analysis


def test_a_state_is_analysed_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _counted(monkeypatch)

    async def look() -> None:
        found, trial = Analyses(Trials(store)), Trial("small", store)
        first = await asyncio.gather(*(newest(found, trial) for _ in range(5)))
        assert len({id(w) for w in first}) == 1
        await newest(found, trial)
        assert len(calls) == 1
        trial.ask("north")
        again = await newest(found, trial)
        assert again.hash == trial.status().hash
        assert again.analysis.status.decisions == 1
        assert len(calls) == 2

    asyncio.run(look())


def test_a_slow_analysis_keeps_no_page_waiting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, gate, whole = Trial("small", store), threading.Event(), analyse

    async def look() -> None:
        found = Analyses(Trials(store))
        old = await newest(found, trial)

        def slow(opened: Trial, before: Any) -> Any:
            gate.wait(30)
            return whole(opened, before)

        monkeypatch.setattr(runtime, "analyse", slow)
        trial.ask("north")
        assert await newest(found, trial, 0.05) is old
        gate.set()
        assert (await newest(found, trial)).hash == trial.status().hash

    asyncio.run(look())


def test_without_budget_the_old_analysis_is_shown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, trial = _counted(monkeypatch), Trial("small", store)

    async def look() -> None:
        time = [0.0]
        found = Analyses(Trials(store), clock=lambda: time[0])
        first = await newest(found, trial)  # the first one is always worked out
        found._paid_until = 60.0  # six seconds of computing at a tenth of a core
        trial.ask("north")
        assert await newest(found, trial) is first
        assert len(calls) == 1
        assert found.wait() == 10.0
        time[0] = 10.0
        assert await newest(found, trial) is not first

    asyncio.run(look())


def test_an_analysis_that_fails_says_why(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Trial, __: Any) -> Any:
        raise NumericalError("a matrix is singular")

    monkeypatch.setattr(runtime, "analyse", fails)

    async def look() -> None:
        found = await newest(Analyses(Trials(store)), Trial("small", store))
        assert found.failure == "a matrix is singular"

    asyncio.run(look())


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls, whole = [], analyse

    def counted(trial: Trial, before: Any) -> Any:
        calls.append(trial.name)
        return whole(trial, before)

    monkeypatch.setattr(runtime, "analyse", counted)
    return calls


def test_large_analyses_are_let_go_when_others_come(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        Trial.create(SMALL | {"name": f"other{i}"}, store)

    async def look() -> None:
        found = Analyses(Trials(store))
        one = await newest(found, Trial("small", store))
        assert one.analysis.size > 0
        monkeypatch.setattr(runtime, "MOST_BYTES", 2.5 * one.analysis.size)
        for i in range(3):
            await newest(found, Trial(f"other{i}", store))
        assert [name for name in ("small", "other0", "other1", "other2") if found.newest(name)] == ["other1", "other2"]
        monkeypatch.setattr(runtime, "MOST_BYTES", 1)
        await newest(found, Trial("small", store))
        assert [name for name in ("small", "other0", "other1", "other2") if found.newest(name)] == ["small"]

    asyncio.run(look())
