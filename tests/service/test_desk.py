from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest

from drimed.errors import StoreError, UnknownNameError
from drimed.service import desk, wire
from drimed.service.desk import Desk, Held
from drimed.service.retries import Reply
from drimed.trial.memory import Memory
from drimed.trial.stores.opening import open_store
from drimed.trial.trial import Trial
from tests.service.serving import Running
from tests.service.test_endpoints import T, ok
from tests.trial.trials import SMALL


def test_whoever_looks_does_not_wait_for_a_slow_write(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers of one trial fill neither the threads of readers nor those of other trials."""
    begun, go_on = threading.Event(), threading.Event()
    plain = Trial.ask

    def slow(self: Trial, *args: object, **kwargs: object) -> object:
        if self.name == "small":
            begun.set()
            go_on.wait(20)
        return plain(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Trial, "ask", slow)

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
    monkeypatch.setattr(desk, "MOST_TRIALS", 2)
    store = open_store(str(tmp_path / "s.db"))
    kept = Desk(store)
    for i in range(4):
        Trial.create(SMALL | {"name": f"t{i}"}, store)
    for _ in range(2):
        for i in range(4):
            kept.write(f"t{i}", lambda t: Reply(200, wire.written([g.id for g in t.ask()])))
            assert kept.read(f"t{i}", lambda t: t.status().decisions) == 2
    assert len(kept._entries) == 2
    with pytest.raises(UnknownNameError):
        kept.read("nobody", lambda t: t.status())
    with pytest.raises(UnknownNameError):
        kept.write("nobody", lambda _: Reply(200, b""))
    assert "nobody" not in kept._entries
    store.close()


def test_a_trial_that_is_held_cannot_write_by_itself(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "s.db"))
    Trial.create(SMALL, store)
    with pytest.raises(StoreError, match="nobody has opened"):
        Trial("small", Held(store)).ask("north")
    store.close()


def test_whoever_looks_takes_over_what_the_writer_knows(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folding every decision once more for those who look would cost as much as taking it."""
    ok(running.http.get(T))
    for _ in range(3):
        ok(running.http.post(f"{T}/episodes", json={}))
        ok(running.http.post(f"{T}/ask", json={}))

    def folds(*_: object) -> None:
        raise AssertionError("it was folded again")

    monkeypatch.setattr(Memory, "take", folds)
    assert ok(running.http.get(T))["decisions"] == 6
