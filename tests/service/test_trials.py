from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from drimed.errors import UnknownNameError
from drimed.records import AskRequest, Decision
from drimed.service import runtime
from drimed.service.runtime import Author, Reply, Request, Trials
from drimed.trial import ask as asking
from drimed.trial import state as states
from drimed.trial.store import open_store
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial
from tests.service.serving import Running
from tests.service.test_endpoints import T, ok
from tests.trial.trials import SMALL


def test_a_trial_begins_with_the_sheet_of_the_past_that_comes_with_its_file(running: Running) -> None:
    metric, arm = next(iter(SMALL["metrics"])), SMALL["control"]
    spec = SMALL | {"name": "past", "history": {"sheet": f"season,site,arm,{metric}\n2021,a,{arm},1\n2021,b,{arm},2\n"}}
    known = "Before the trial: 2 outcomes of 2 units in 1 season (in the trial file)."
    advice = " ".join(ok(running.http.post("/v1/trials?dry_run=true", json=spec))["notes"])
    assert known in advice
    assert "not rehearsed" in advice
    made = ok(running.http.post("/v1/trials", json=spec), 201)
    assert made["history"].startswith(known)
    assert sum("not rehearsed" in note for note in made["notes"]) == 1
    assert "history" not in ok(running.http.get("/v1/trials/past/spec")).get("history", {})
    wrong = spec | {"name": "wrong", "history": {"sheet": f"season,site,arm,{metric}\n2021,a,{arm},much\n"}}
    for query in ("", "?dry_run=true"):
        answer = running.http.post(f"/v1/trials{query}", json=wrong)
        assert answer.status_code == 422
        assert "row 2" in answer.text or '"row":2' in answer.text.replace(" ", "")
    answer = running.http.post("/v1/trials", json=spec | {"name": "file", "history": {"file": "past.csv"}})
    assert answer.status_code == 422
    assert "put the sheet itself into the trial file" in answer.json()["detail"]


def test_readers_do_not_wait_for_a_slow_writer(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers of one trial fill neither the threads of readers nor those of other trials."""
    begun, go_on = threading.Event(), threading.Event()
    plain = asking.ask

    def slow(tx: Transaction, *args: Any, **kwargs: Any) -> list[Decision]:
        if tx.ledger.name == "small":
            begun.set()
            go_on.wait(20)
        return plain(tx, *args, **kwargs)

    monkeypatch.setattr(asking, "ask", slow)

    def ask() -> None:
        httpx.post(f"{running.address}{T}/ask", json={}, timeout=30)

    writers = [threading.Thread(target=ask) for _ in range(3 * running.service.settings.threads)]
    for writer in writers:
        writer.start()
    try:
        assert begun.wait(10)
        start = time.perf_counter()
        for _ in range(10):
            assert ok(running.http.get(T))["decisions"] == 0
            ok(running.http.get(f"{T}/effects"))
            ok(running.http.get("/v1/trials"))
        assert time.perf_counter() - start < 5
    finally:
        go_on.set()
        for writer in writers:
            writer.join(30)
    assert ok(running.http.get(T))["decisions"] == 2


def test_only_so_many_trials_are_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "MOST_TRIALS", 2)
    store = open_store(str(tmp_path / "s.db"))
    kept = Trials(store)
    for i in range(4):
        Trial.create(SMALL | {"name": f"t{i}"}, store)
    for _ in range(2):
        for i in range(4):
            request = Request(lambda tx: Reply(200, bytes(len(asking.ask(tx, AskRequest())))), Author("a"))
            assert isinstance(kept.write(f"t{i}", [request])[0], Reply)
            assert kept.open(f"t{i}").status().decisions == 2
    assert kept.open.cache_info().currsize == 2
    assert isinstance(kept.write("nobody", [Request(lambda _: Reply(200, b""), Author("a"))])[0], UnknownNameError)
    store.close()


def test_readers_take_over_the_state_of_the_writer(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folding every decision once more for readers would cost as much as taking it."""
    ok(running.http.get(T))
    for _ in range(3):
        ok(running.http.post(f"{T}/episodes", json={}))
        ok(running.http.post(f"{T}/ask", json={}))

    def folds(*_: object) -> None:
        raise AssertionError("it was folded again")

    monkeypatch.setattr(states, "fold", folds)
    assert ok(running.http.get(T))["decisions"] == 6
