"""Alerts: conditions of trials that somebody should be woken for, as metrics and to a webhook.

One process of the service looks every few seconds. Nothing here is on the way of a request: a receiver that does not
answer is tried some times more, and then left.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import hmac
import logging
import os
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

import httpx
from prometheus_client import Counter, Gauge

from drimed.service.routing import METRICS_FOLDER
from drimed.service.runtime import MOST_TRIALS, Service
from drimed.trial.events import now, to_json
from drimed.trial.state import TrialState
from drimed.trial.trial import Trial

HARM, WITHDRAWN, OVERDUE, PROOF, FAILURES = KINDS = ("harm", "withdrawn", "overdue", "proof", "failures")
LOOK_EVERY = 15.0  # seconds
ATTEMPTS, FIRST_WAIT, PATIENCE = 6, 1.0, 10.0  # of a webhook: tries, seconds before the second one, and for each
MOST_WAITING = 100  # alerts that wait for the receiver

ALERT = Gauge("drimed_alert", "1 while it holds.", ["trial", "kind"], multiprocess_mode="mostrecent")
SENT = Counter("drimed_webhooks", "Alerts that were sent.", ["result"])
OF_TRIAL = {
    name: Gauge(f"drimed_trial_{name}", about, ["trial"], multiprocess_mode="mostrecent")
    for name, about in {
        "events": "Number of the last event: the version of what is known.",
        "decisions": "Decisions.",
        "pending": "Decisions whose outcome, or some of it, has not come.",
        "running": "1 while it decides; 0: paused or stopped.",
        "alarms": "Alarms of the newest checks.",
    }.items()
}

log = logging.getLogger(__name__)


def signature(secret: str, moment: str, body: bytes) -> str:
    """The header with which a receiver knows its sender: HMAC-SHA256 of the time, a dot and the body.

    >>> signature("secret", "1700000000", b"{}")[:25]
    't=1700000000,v1=b8569b787'
    """
    return f"t={moment},v1={hmac.new(secret.encode(), f'{moment}.'.encode() + body, hashlib.sha256).hexdigest()}"


class Watch:
    """Looks at the trials, sets the metrics, and tells the webhook what is new."""

    def __init__(self, service: Service, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._service, self._settings, self._transport = service, service.settings, transport
        self._holding = dict[tuple[str, str], str]()  # trial and kind -> what holds, as it was told
        self._waiting = asyncio.Queue[dict[str, str]](MOST_WAITING)

    async def run(self) -> None:
        """Look again and again, in one worker of those of a service; another one goes on when it ends."""
        folder = os.environ.get(METRICS_FOLDER)
        with Path(os.devnull if folder is None else f"{folder}/watch").open("a") as turn:
            while folder is not None and not _is_first(turn):
                await asyncio.sleep(LOOK_EVERY)
            async with asyncio.TaskGroup() as tasks:
                if self._settings.webhook:
                    tasks.create_task(self._send())
                if self._settings.prove:
                    tasks.create_task(self._prove())
                while True:
                    await asyncio.sleep(LOOK_EVERY)
                    try:
                        await self.look()
                    except Exception:
                        log.exception("the trials cannot be watched now")

    async def look(self) -> None:
        """Look at every trial once."""
        for name in (await self._service.run(self._service.store.names))[:MOST_TRIALS]:
            found, proof = dict[str, str](), self._service.proofs.get(name)
            if proof is not None and not proof.ok:
                found[PROOF] = f"the proof of the log has found: {'; '.join(proof.faults[:3])}"
            try:
                found |= await self._look_at(name)
            except Exception as error:  # others are watched nevertheless
                log.warning("trial %s cannot be watched: %s", name, error)
            for kind in KINDS:
                ALERT.labels(name, kind).set(kind in found)
                self._tell(name, kind, found.get(kind))

    async def _look_at(self, name: str) -> dict[str, str]:
        state = await self._service.read(name, lambda trial: trial.state())
        found = await self._service.read(name, lambda trial: self._conditions(trial, state))
        analysed = await self._service.analyses.get(name, state.hash, 0.0, needed=False)
        checks = None if analysed is None or analysed.analysis is None else analysed.analysis.checks
        if checks is not None and checks.withdrawn is not None:
            found[WITHDRAWN] = checks.withdrawn
        counts, alarms = state.counts, len(checks.alarms) if checks is not None else 0
        values = {"events": state.seq, "decisions": counts.decisions, "pending": counts.pending + counts.partial}
        values |= {"running": int(state.status == "running"), "alarms": alarms}
        for gauge, value in values.items():
            OF_TRIAL[gauge].labels(name).set(value)
        return found

    def _tell(self, trial: str, kind: str, text: str | None) -> None:
        """Queue what did not hold at the last look."""
        known = self._holding.pop((trial, kind), None)
        if text is None:
            return
        self._holding[trial, kind] = known or text
        if known is None:
            log.warning("alert: trial %s: %s: %s", trial, kind, text)
            own_id = hashlib.sha256(f"{trial}/{kind}/{text}".encode()).hexdigest()[:32]
            if self._settings.webhook and not self._waiting.full():
                self._waiting.put_nowait({"id": own_id, "trial": trial, "kind": kind, "text": text, "time": now()})

    def _conditions(self, trial: Trial, state: TrialState) -> dict[str, str]:
        """What is seen without an analysis."""
        found = dict[str, str]()
        harm = [name for name, rule in state.spec.rules.items() if rule.kind == "harm" and state.looked.met.get(name)]
        if harm:
            found[HARM] = f"a look has found harm by the stopping rule {' and '.join(harm)}"
        if state.counts.failures:
            found[FAILURES] = "a model could not be computed: the control was given, or an outcome was not learned from"
        if self._settings.overdue and state.counts.pending + state.counts.partial:
            with trial.store.reading(trial.name) as ledger:
                oldest = ledger.oldest_open()
            latest = datetime.now(UTC) - timedelta(days=self._settings.overdue)
            if oldest is not None and datetime.fromisoformat(oldest.time) < latest:
                day = oldest.time[:10]
                found[OVERDUE] = f"decision {oldest.decision} of {day} and perhaps others wait for their outcomes"
        return found

    async def _prove(self) -> None:
        """Prove every log again and again, one after the other."""
        while True:
            for name in await self._service.run(self._service.store.names):
                with suppress(Exception):  # of the store, or too many proofs at once: the next time will do
                    await self._service.prove(name, None, _never)
            await asyncio.sleep(3600 * self._settings.prove)

    async def _send(self) -> None:
        async with httpx.AsyncClient(timeout=PATIENCE, transport=self._transport) as http:
            while True:
                await self._deliver(http, await self._waiting.get())

    async def _deliver(self, http: httpx.AsyncClient, alert: dict[str, str]) -> bool:
        """Tell the receiver, some times if it does not answer; a repeated one has the same `id`."""
        body, wait = to_json(alert).encode(), FIRST_WAIT
        for attempt in range(ATTEMPTS):
            headers = {"Content-Type": "application/json", "Idempotency-Key": alert["id"]}
            if self._settings.webhook_secret:
                moment = str(int(time.time()))
                headers["Drimed-Signature"] = signature(self._settings.webhook_secret, moment, body)
            try:
                answer = await http.post(self._settings.webhook, content=body, headers=headers)
                if answer.is_success:
                    SENT.labels("delivered").inc()
                    return True
                reason = f"status {answer.status_code}"
            except httpx.HTTPError as error:
                reason = type(error).__name__
            if attempt < ATTEMPTS - 1:
                await asyncio.sleep(wait)
                wait *= 4
        SENT.labels("failed").inc()
        log.error("alert: the webhook did not take it: %s", reason)
        return False


def _is_first(turn: IO[str]) -> bool:
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


async def _never() -> bool:
    return False
