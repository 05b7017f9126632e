"""Other processes that ask and tell. They start fast: what they need is imported and compiled once, and forked."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, TypeVar

from drimed.errors import StoreError
from drimed.records import AskRequest, Report
from drimed.trial import ask as asking
from drimed.trial import tell as telling
from drimed.trial.store import MemoryStore, open_store
from drimed.trial.transaction import Write
from drimed.trial.trial import Trial
from tests.trial.trials import BUSY, outcome

T = TypeVar("T")
PATIENCE = 180.0  # seconds for processes to start on a busy machine
SAY_WHAT = signal.SIGUSR1  # one that works without end prints what it is doing


def context() -> ForkServerContext:
    """Where these processes come from."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["tests.trial.warm"])
    return made


def warm() -> None:
    """Load all that a trial uses."""
    trial = Trial.create(BUSY, MemoryStore())
    for _ in range(8):
        pair(trial, next(iter(BUSY["users"])), None)


def pair(trial: Trial, user: str, key: str | None) -> int:
    """Ask, and tell what came of it."""
    given = trial.ask(user, key=key)
    trial.tell(given.id, outcome(given.id, given.arm))
    return given.id


def some_pairs(address: str, name: str, worker: str, n: int, barrier: Any, results: Any) -> None:
    """A number of pairs, all at once with the others; the decisions that were given out."""

    def task(trial: Trial) -> list[int]:
        users = list(trial.state().users)
        return [pair(trial, users[i % len(users)], f"{worker}-{i}") for i in range(n)]

    _report(task, address, name, worker, barrier, results)


def one_request(address: str, name: str, worker: str, n: int, barrier: Any, results: Any) -> None:
    """The same requests as everybody else; the decisions that were given out."""

    def task(trial: Trial) -> list[int]:
        return [pair(trial, "site 0", f"request {i}") for i in range(n)]

    _report(task, address, name, worker, barrier, results)


def one_episode(address: str, name: str, worker: str, n: int, barrier: Any, results: Any) -> None:
    """Open the same episode as everybody else and ask for all; who was given what."""

    def task(trial: Trial) -> list[tuple[int, str, str]]:
        trial.open_episode(number=n)
        return [(given.id, given.user, given.arm) for given in trial.ask_many()]

    _report(task, address, name, worker, barrier, results)


def _report(task: Any, address: str, name: str, worker: str, barrier: Any, results: Any) -> None:
    try:
        store = open_store(address)
        trial = Trial.open(name, store, actor=worker)
        barrier.wait(PATIENCE)
        results.put((worker, task(trial)))
        store.close()
    except BaseException as error:
        results.put((worker, repr(error)))


def without_end(address: str, name: str, side: Path, worker: str, patient: bool = False) -> None:
    """Ask and tell until killed. Whatever was given out is written to the side file before anybody acts on it.

    A `patient` one comes again, with the same request, where the store cannot be used.
    """
    parent = os.getppid()
    faulthandler.register(SAY_WHAT)
    trial = _again(lambda: Trial.open(name, open_store(address), actor=worker), patient)
    users = list(_again(trial.state, patient).users)
    _mend(side)
    n = len({line["told"] for line in lines(side) if "told" in line})
    with side.open("a", encoding="utf-8") as stream:
        while os.getppid() == parent:  # a decision whose outcome may not have arrived is asked for again, with its key
            together = range(n, n + (1 if n % 3 == 0 else len(users)))
            asks = [_question(users[i % len(users)], f"{worker}-{i}") for i in together]
            answers = _again(lambda: _all(trial, asks), patient)  # noqa: B023  # called at once
            for i, (given,) in zip(together, answers, strict=True):
                _put(stream, {"given": given.id, "key": f"{worker}-{i}", "user": given.user, "arm": given.arm})
            tells = [_outcome_of(given.id, given.arm) for (given,) in answers]
            receipts = _again(lambda: _all(trial, tells), patient)  # noqa: B023
            for (given,), (receipt,) in zip(answers, receipts, strict=True):
                _put(stream, {"told": given.id, "state": receipt.state})
            n += len(together)


def _question(user: str, key: str) -> Write[list[Any]]:
    request = AskRequest(users=[user], key=key)
    return Write(lambda tx: asking.ask(tx, request), question=(request, lambda decisions: decisions))


def _outcome_of(decision: int, arm: str) -> Write[list[Any]]:
    return Write(lambda tx: telling.tell(tx, [Report(decision, outcome(decision, arm))]))


def _all(trial: Trial, writes: list[Write[list[Any]]]) -> list[list[Any]]:
    """Record what the service records of requests that wait together."""
    answers = trial.commit_all(writes)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return [answer for answer in answers if isinstance(answer, list)]


def _again(work: Callable[[], T], patient: bool) -> T:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return work()
        except StoreError:
            if not patient or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def lines(side: Path) -> list[dict[str, Any]]:
    """A side file; a line that a kill cut off was not finished, and nobody acted on it."""
    text = side.read_bytes() if side.exists() else b""
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]


def _mend(side: Path) -> None:
    if side.exists():
        text = side.read_bytes()
        os.truncate(side, text.rfind(b"\n") + 1)


def _put(stream: Any, line: dict[str, Any]) -> None:
    """A line that no crash can take back."""
    stream.write(json.dumps(line) + "\n")
    stream.flush()
    os.fsync(stream.fileno())
