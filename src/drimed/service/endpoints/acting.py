"""One write: in one transaction with its answer, counted, and repeated without doing it twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from drimed.errors import UnknownNameError
from drimed.service import metrics, wire
from drimed.service.answers import Done
from drimed.service.retries import Reply
from drimed.service.route import caller_of, replied, retry_of, service_of
from drimed.trial.trial import Trial

Act = Callable[[Trial, str], Any]  # the trial and who acts -> a record to answer with


async def write(request: Request, trial: str, act: Act) -> Response:
    """Do it once, and answer."""
    actor = caller_of(request).actor
    retry = await retry_of(request)

    def work(opened: Trial) -> Reply:
        return Reply(200, wire.written(asdict(act(opened, actor))))

    reply = await service_of(request).write(trial, work, retry)
    if reply.repeated:
        metrics.REPEATED.inc()
    return replied(reply)


def done(trial: Trial) -> Done:
    """The answer to a change."""
    return Done(trial.name, trial.memory().seq)


def must_exist(trial: Trial, decision: int) -> None:
    """A decision that an address names."""
    if decision not in trial.decisions([decision]):
        raise UnknownNameError("decision", str(decision), ())
