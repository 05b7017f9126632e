"""A worker that dies is replaced at once, whatever it was asked before."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import Any

import pytest
import uvicorn
from uvicorn.supervisors import multiprocess
from uvicorn.supervisors.multiprocess import Multiprocess

from drimed.service import supervising
from drimed.service.supervising import Workers

PATIENCE = 6  # seconds in which a worker must answer


class Silent:
    """A worker that has begun to start, and answers nobody yet."""

    def __init__(self, *_: Any) -> None:
        self.parent_conn, self.child_conn = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)

    def start(self) -> None:
        self.process.start()

    def is_alive(self, timeout: float) -> bool:
        """As uvicorn asks."""
        if not self.process.is_alive():
            return False
        self.parent_conn.send(b"ping")
        return self.parent_conn.poll(timeout)

    def kill(self) -> None:
        self.process.kill()

    def join(self) -> None:
        self.process.join()

    @property
    def pid(self) -> int | None:
        return self.process.pid

    @property
    def exitcode(self) -> int | None:
        return self.process.exitcode


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in (supervising, multiprocess):
        monkeypatch.setattr(module, "Process", Silent)
    made: Any = Workers.__new__(Workers)  # without taking over this process's signals
    made.config, made.sockets, made.processes_num = uvicorn.Config("none:none"), [], 2
    made.config.timeout_worker_healthcheck = PATIENCE
    made.should_exit, made.processes, made._heard, made._asked = threading.Event(), [], {}, set()
    for _ in range(2):
        made.processes.append(Silent())
        made.processes[-1].start()
    yield made
    for process in made.processes:
        process.kill()
        process.join()


def replaced_after(keep: Any, workers: Any) -> float:
    """Seconds from the death of a worker that was asked and has not answered to its successor."""
    first = workers.processes[1]
    killer = threading.Timer(0.3, first.kill)
    killer.start()
    start = time.monotonic()
    while workers.processes[1] is first:
        keep(workers)
        time.sleep(0.05)
    killer.join()
    return time.monotonic() - start


def test_a_worker_that_dies_while_it_starts_is_replaced_at_once(workers: Any) -> None:
    assert replaced_after(Workers.keep_subprocess_alive, workers) < PATIENCE / 2


def test_uvicorn_itself_waits_for_it(workers: Any) -> None:
    """Once it no longer does, `supervising` is no longer needed."""
    assert replaced_after(Multiprocess.keep_subprocess_alive, workers) >= PATIENCE - 1


def test_a_worker_that_never_answers_is_replaced_in_the_end(workers: Any) -> None:
    workers.config.timeout_worker_healthcheck = 1
    first, start = workers.processes[0], time.monotonic()
    while workers.processes[0] is first and time.monotonic() - start < PATIENCE:
        workers.keep_subprocess_alive()
        time.sleep(0.05)
    assert workers.processes[0] is not first
    assert time.monotonic() - start >= 1
