"""One process of the service: its store, trials, callers and threads, and work that is done once for several requests.

Answers to writes are stored in the transaction of the write itself, so that a request that is repeated after a crash,
or that arrives twice at once, gets the same bytes again (IETF draft on the Idempotency-Key header).
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import logging
import math
import os
import resource
import signal
import sys
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from prometheus_client import Counter
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError
from starlette.requests import ClientDisconnect, HTTPConnection

from drimed.errors import ConflictError, DrimedError, InputError, StoreError
from drimed.policies.guards.base import FAILED as UNCOMPUTED
from drimed.policies.guards.base import REASONS
from drimed.records import LONGEST_KEY, AskRequest, Decision, Proof
from drimed.reports.analysis import Analysis, analyse
from drimed.service import auth
from drimed.service.refusals import Refusal, refusal, unavailable
from drimed.service.settings import Settings
from drimed.trial import queries
from drimed.trial.ask import resolve_user
from drimed.trial.events import DECISION, MISSING, now
from drimed.trial.spec import TrialSpec
from drimed.trial.state import TrialState
from drimed.trial.store import Prepared, Store, events, open_store, pack, trials
from drimed.trial.store import requests as answers
from drimed.trial.transaction import Transaction, Write
from drimed.trial.trial import Trial
from drimed.trial.verify import verify

DECISIONS = Counter("drimed_decisions", "Decisions taken and recorded.")
OUTCOMES = Counter("drimed_outcomes", "Outcomes recorded, amended or marked as missing.")
FAILED = Counter(
    "drimed_failures", "Times the model could not be computed: the control was given, or an outcome ignored."
)
SECONDS = Counter("drimed_trial_seconds", "Of the writers of a trial, by what they do.", ["trial", "what"])
_seconds = lru_cache(5000)(SECONDS.labels)
REPEATED = Counter("drimed_repeated", "Repeated writes, answered again.")
# Each kind of work has its own threads: no token waits behind readers, no reader behind writers or exports.
READS, WRITES, DOOR, HEAVY, PARSING, FILES, PROOFS = "read", "write", "door", "heavy", "parse", "file", "proof"
# Tokens, exports, large bodies, files and proofs at a time.
THREADS = {DOOR: 2, HEAVY: 2, PARSING: 1, FILES: 1, PROOFS: 1}
# Of a decision, for good.
TAKEN = ("user", "plot", "block", "episode", "arm", "code", "propensity", "probabilities", "context", "time", "reason")
ANALYSES = 2  # analyses at a time
SEE_OTHER = 303  # an answer to a form: the address of a page
MOST_TOGETHER = 64  # writes of one trial in one transaction: the first of them waits for the last
MOST_TRIALS = 200  # in memory; the one that was not used for longest is read again
PURGE_EVERY = 3600.0  # seconds
NEWEST_ANSWERS = 100_000  # kept whatever the clock says: one that was set ahead makes all look old
PURGED_AT_ONCE = 500  # answers: writers wait no longer than this takes

PATIENCE = 1.5  # seconds that a page waits for an analysis
MOST_ANALYSES, MOST_BYTES = 50, 400e6  # kept in memory; the newest one stays, however large it is
SHARE = 0.1  # of a core that analyses may take in the long run
BURST = 5.0  # seconds of computing that analyses may take at once
MOST_PROOFS = 16  # that run or wait
STARTING = 120.0  # seconds that the process that reads files has to start on a busy machine
NICENESS, MEMORY = 5, 2 * 1024**3  # of it: it makes room for requests; bytes
GLANCE = 0.5  # seconds between two checks whether the caller is still there
SWITCH = 0.001  # seconds that a thread computes before another one may: a request changes threads some ten times
# Python's search for cycles stops all threads for as long as it takes to look at every object, and a large sheet is a
# million. So it is done when nothing else is, or else after so many searches among new objects, 7,000 each.
RARELY, QUIET = 1000, 0.5

log = logging.getLogger(__name__)
T = TypeVar("T")

_FIND = Prepared(
    sa.select(answers.c.fingerprint, answers.c.status, answers.c.answer).where(
        answers.c.actor == sa.bindparam("actor"), answers.c.key == sa.bindparam("key")
    )
)
_KEEP = Prepared(answers.insert().values({c.name: sa.bindparam(c.name) for c in answers.c if c.name != "id"}))


@dataclass(frozen=True)
class Reply:
    """An answer to a write."""

    status: int
    text: bytes
    repeated: bool = False
    tells: bool = False  # all its events are about outcomes


@dataclass(frozen=True)
class Author:
    """The author of a write, with the idempotency key of the request if it has one."""

    actor: str  # different ones may use the same key
    key: str | None = None
    fingerprint: str = ""  # of the request

    @staticmethod
    def of(actor: str, key: str | None, *parts: bytes) -> Author:
        """The author of the request that consists of these parts."""
        if key is None:
            return Author(actor)
        key = key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key  # the draft writes it in quotes
        if not 0 < len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
            raise Refusal(400, "malformed", f"Idempotency-Key must be 1 to {LONGEST_KEY} printable ASCII characters")
        digest = hashlib.sha256()
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return Author(actor, key, digest.hexdigest())

    @property
    def request(self) -> str | None:
        """The key as the trial's log keeps it beside a decision; a long one as its hash."""
        if self.key is None:
            return None
        name = f"{self.actor}/{self.key}"
        return name if len(name) <= LONGEST_KEY else f"{self.actor}/{hashlib.sha256(self.key.encode()).hexdigest()}"

    def find(self, connection: Connection) -> Reply | None:
        """The first answer to the same request, if there is one."""
        row = None if self.key is None else _FIND(connection, {"actor": self.actor, "key": self.key}).fetchone()
        found: Reply | None = None
        if row is None:
            return None
        fingerprint, status, packed = row
        with suppress(zlib.error, TypeError):
            text = zlib.decompress(packed)
            if text.startswith(b"/trials/") if status == SEE_OTHER else status in (200, 201) and text[:1] == b"{":
                found = Reply(status, text, repeated=True)
        if fingerprint != self.fingerprint:
            detail = "this Idempotency-Key was used for another request; give each request its own key"
            fault = {"path": ["Idempotency-Key"], "detail": "was used for another request", "in": "header"}
            raise Refusal(422, "key-reused", detail, errors=[fault])
        if found is None:
            raise _changed()
        return found

    def keep(self, connection: Connection, reply: Reply) -> None:
        if self.key is None:
            return
        row = vars(self) | {"time": now(), "status": reply.status, "answer": pack(reply.text)}
        try:
            _KEEP(connection, row)
        except IntegrityError as error:
            raise ConflictError("another request with this Idempotency-Key is running; try again") from error


def _changed() -> ConflictError:
    text = "the answer that is kept for this request is not what the log has: somebody changed the store"
    return ConflictError(f"{text}; use another Idempotency-Key, and verify the trial")


Question = tuple[AskRequest, Callable[[list[Decision]], Reply]]


@dataclass
class Request:
    """A write, with its author. `act` may be called more than once, and must change nothing but its transaction."""

    act: Callable[[Transaction], Reply]
    author: Author
    large: bool = False
    question: Question | None = None  # all that `act` does, and its answer
    users: Sequence[str] | None = None  # whom it asks for; None: all, or nobody
    blinded: bool = False
    states: tuple[TrialState, TrialState] | None = None  # before and after it
    taken: Sequence[Decision] = ()  # by it, together with those of others

    def write(self) -> Write[Reply]:
        def act(tx: Transaction) -> Reply:
            before = tx.state
            reply = self.act(tx)
            self.states = before, tx.state
            return reply

        def taken(decisions: list[Decision]) -> Reply:
            self.taken = decisions
            return answer(decisions)

        author, (asks, answer) = self.author, self.question or (None, lambda _: Reply(0, b""))
        return Write(
            act,
            author.actor,
            find=lambda ledger: author.find(ledger.connection),
            keep=lambda ledger, reply: author.keep(ledger.connection, reply),
            large=self.large,
            question=None if asks is None else (asks, taken),
        )

    def count(self, reply: Reply) -> None:
        """Add it to the metrics."""
        if reply.repeated:
            REPEATED.inc()
        elif self.states is not None:
            before, after = self.states
            DECISIONS.inc(after.counts.decisions - before.counts.decisions)
            FAILED.inc(after.counts.failures - before.counts.failures)
            OUTCOMES.inc(after.seq - before.seq if reply.tells else 0)
        DECISIONS.inc(sum(not one.repeated for one in self.taken))
        FAILED.inc(sum(one.reason == REASONS[UNCOMPUTED] for one in self.taken))


def purge_answers(store: Store, hours: float, newest: int = NEWEST_ANSWERS) -> int:
    """Delete answers that are older than so many hours, but for the newest; returns how many."""
    before = (datetime.now(UTC) - timedelta(hours=hours)).isoformat(timespec="microseconds")
    purged = 0
    while True:
        with store.transaction(write=True) as connection:
            last = connection.scalar(sa.select(answers.c.id).order_by(answers.c.id.desc()).offset(newest).limit(1))
            old = sa.select(answers.c.id).where(answers.c.time < before, answers.c.id <= (last or 0))
            ids = list(connection.scalars(old.limit(PURGED_AT_ONCE)))
            if ids:
                connection.execute(answers.delete().where(answers.c.id.in_(ids)))
        purged += len(ids)
        if len(ids) < PURGED_AT_ONCE:
            return purged


class Trials:
    """Trials by name, and writes that are done once however often they are requested; threads may share it."""

    def __init__(self, store: Store, anchors: Path | None = None) -> None:
        self.store = store
        self.open = lru_cache(MOST_TRIALS)(lambda name: Trial(name, store, anchors=anchors))

    def recent(self) -> list[str]:
        """The trials to which something happened last."""
        last = (events.c.trial == trials.c.id) & (events.c.seq == trials.c.seq)
        with self.store.transaction(write=False) as connection:
            names = sa.select(trials.c.name).join(events, last).order_by(events.c.time.desc()).limit(MOST_TRIALS)
            return list(connection.scalars(names))

    def write(self, name: str, requests: Sequence[Request]) -> list[Reply | Exception]:
        """Change a trial: what a request did and what it answered become durable together, or nothing does."""
        trial = self.open(name)
        before = dict(trial.spent)
        replies = trial.commit_all([request.write() for request in requests])
        for what, seconds in trial.spent.items():
            _seconds(name, what).inc(max(0.0, seconds - before[what]))
        for i, (request, reply) in enumerate(zip(requests, replies, strict=True)):
            if not isinstance(reply, Reply):
                continue
            request.count(reply)
            try:
                is_of_log = not reply.repeated or _is_of_log(trial, request, reply)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # whatever was written there
                is_of_log = False
            if not is_of_log:
                replies[i] = _changed()
        return replies

    def create(self, spec: TrialSpec, act: Callable[[Transaction], Reply], author: Author) -> Reply:
        replies: list[Reply] = []

        def record_answer(tx: Transaction) -> None:
            replies.append(act(tx))
            author.keep(tx.ledger.connection, replies[0])

        try:
            Trial.create(spec, self.store, actor=author.actor, also=record_answer)
            return replies[0]
        except ConflictError:
            with self.store.transaction(write=False) as connection:
                if (before := author.find(connection)) is not None:
                    return before
            raise


def _is_of_log(trial: Trial, request: Request, reply: Reply) -> bool:
    """Whether the decisions and the outcomes of a kept answer are those of the log, and of this request."""
    if reply.status == SEE_OTHER:
        return True
    data = json.loads(reply.text)
    is_list = isinstance(data.get("decisions"), list)  # a status has their number
    given = data["decisions"] if is_list else [data] if "propensity" in data else []
    receipts = data.get("receipts", [data] if "result" in data else [])
    with trial.reading() as (ledger, state):
        known = {d.id: asdict(d) for d in queries.decisions(ledger, state, [d["id"] for d in given])}
        histories = ledger.of_decisions([receipt["decision"] for receipt in receipts])
        events = ledger.of_request(request.author.request) if request.author.request and is_list else []
        users = None if request.users is None else {resolve_user(state, user) for user in request.users}
    own, new = {e.decision for e in events if e.kind == DECISION}, {d["id"] for d in given if not d["repeated"]}
    # A key whose answer was deleted is answered from the log: its decisions are repeated too.
    if (is_list and new != own and (new or not own <= known.keys())) or len(known) < len(given):
        return False
    # What was blinded then may be open now.
    hidden: tuple[Any, ...] = (None, "", {}) if request.blinded else ()
    for d in given:
        log = known[d["id"]]
        if (users is not None and log["user"] not in users) or any(
            d[name] != log[name] and d[name] not in hidden for name in TAKEN
        ):
            return False
    for r in receipts:
        told = [event.body.get("outcome") or {} for event in histories[r["decision"]]]
        missing = any(event.kind == MISSING for event in histories[r["decision"]])
        if {"metrics": r["outcome"], "control": r["control"]} not in told and (
            r["outcome"] is not None or (any(told) and not missing)
        ):
            return False
    return True


@dataclass(frozen=True)
class Analysed:
    """An analysis, or the reason why there is none."""

    hash: str  # of the last event that it includes
    analysis: Analysis | None
    failure: str | None = None


class Analyses:
    """Analyses in the background, one for each state of a trial's log; no request waits long for it.

    However often pages are loaded, analyses take a small share of a core.
    """

    def __init__(self, trials: Trials, clock: Callable[[], float] = time.monotonic) -> None:
        self._trials, self._clock = trials, clock
        self._done: OrderedDict[str, Analysed] = OrderedDict()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._pool = ThreadPoolExecutor(ANALYSES, "analysis")
        self._paid_until = -math.inf  # when the computing so far has its share of the time

    def newest(self, name: str) -> Analysed | None:
        """The newest analysis that is there; never waits."""
        return self._done.get(name)

    def wait(self) -> float:
        """Seconds until another analysis may begin."""
        return max(0.0, self._paid_until - self._clock() - BURST / SHARE)

    async def get(self, name: str, hash: str, patience: float = PATIENCE, *, needed: bool = True) -> Analysed | None:
        """The analysis after the event with this hash, or an older one, or (None) none yet.

        A first analysis that is `needed` begins at once, whatever others took before.
        """
        done = self._done.get(name)
        if done is not None and done.hash == hash:
            self._done.move_to_end(name)
            return done
        if name not in self._tasks and ((done is None and needed) or not self.wait()):
            self._tasks[name] = asyncio.create_task(self._run(name, hash))
        if name in self._tasks:
            await asyncio.wait([self._tasks[name]], timeout=patience)
        return self._done.get(name)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _run(self, name: str, hash: str) -> None:
        try:
            loop = asyncio.get_running_loop()
            analysed, seconds = await loop.run_in_executor(self._pool, self._analyse, name, hash)
            self._paid_until = max(self._paid_until, self._clock()) + seconds / SHARE
            self._done[name] = analysed
            self._done.move_to_end(name)
            size = sum(one.analysis.size for one in self._done.values() if one.analysis is not None)
            while len(self._done) > 1 and (len(self._done) > MOST_ANALYSES or size > MOST_BYTES):
                _, oldest = self._done.popitem(last=False)
                size -= 0 if oldest.analysis is None else oldest.analysis.size
        finally:
            del self._tasks[name]

    def _analyse(self, name: str, hash: str) -> tuple[Analysed, float]:
        start = time.thread_time()
        done = self._done.get(name)
        before = done.analysis.data if done is not None and done.analysis is not None else None
        try:
            analysis = analyse(self._trials.open(name), before)  # what was gathered before is not read again
            analysed = Analysed(analysis.status.hash, analysis)
        except Exception as error:
            failure = "the service's log has the details"
            if isinstance(error, DrimedError) and not isinstance(error, StoreError):
                failure = str(error)
            else:
                log.error("trial %s cannot be analysed", name, exc_info=error)
            analysed = Analysed(hash, None, failure)
        return analysed, time.thread_time() - start


class Reader:
    """A process that reads files: one that takes too long is killed, and nothing else waits for it.

    It starts when it is needed. One thread at a time may use it, and any thread may close it.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._process: SpawnProcess | None = None
        self._pipe: Pipe | None = None

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """The result of a function of a module; InputError if it takes too long or too much memory."""
        try:
            pipe = self._pipe if self._pipe is not None else self._start()
            pipe.send((work, arguments))
            if not pipe.poll(self.seconds):
                raise InputError(f"it took more than {self.seconds:g} s to read this; send it as CSV, or in parts")
            answer: T | DrimedError = pipe.recv()
        except (EOFError, OSError):
            self.close()
            log.error("the process that reads files has died")
            raise InputError("this could not be read: the process that did it died; send it in parts") from None
        except InputError:
            self.close()
            raise
        if isinstance(answer, DrimedError):
            raise answer
        return answer

    def close(self) -> None:
        process, self._process, self._pipe = self._process, None, None
        if process is not None:
            process.kill()
            process.join()

    def _start(self) -> Pipe:
        context = get_context("spawn")
        pipe, other = context.Pipe()
        process = context.Process(target=_serve, args=(other, self.seconds), name="reader", daemon=True)
        process.start()
        self._process = process
        other.close()  # so that either end notices when the other one dies
        if not pipe.poll(STARTING) or pipe.recv() is not None:
            raise EOFError
        self._pipe = pipe
        return pipe


def _serve(pipe: Pipe, seconds: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service says when it is over
    os.nice(NICENESS)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY if most < 0 else min(MEMORY, most), most))
    pipe.send(None)
    with suppress(EOFError, BrokenPipeError):
        while True:
            work, arguments = pipe.recv()
            signal.setitimer(signal.ITIMER_REAL, seconds + 1)  # it ends by itself where nobody is left to kill it
            try:
                answer = work(*arguments)
            except DrimedError as error:
                answer = error
            except MemoryError:
                answer = InputError("this takes too much memory to read; send it as CSV, or in parts")
            signal.setitimer(signal.ITIMER_REAL, 0)
            pipe.send(answer)


class _Abandoned(BaseException):
    """Ends a proof without a caller. Not an Exception: a proof takes any of these for a fault of the log."""


class Service:
    """One process of the service."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        sizes = {READS: settings.threads, WRITES: settings.threads} | THREADS
        self.store = open_store(settings.store, connections=sum(sizes.values()) + ANALYSES)
        self.trials = Trials(self.store, Path(settings.anchors) if settings.anchors else None)
        self.access, self.analyses = auth.Access(self.store, settings), Analyses(self.trials)
        self.stopping, self.requests = False, 0  # in progress
        self.warm = threading.Event()  # set when the first ask is as fast as any other
        self._pools = {name: ThreadPoolExecutor(size, name) for name, size in sizes.items()}
        self._waiting = dict[str, list[tuple[Request, asyncio.Future[Reply]]]]()  # trial -> writes whose turn comes
        self._writers = set[asyncio.Task[None]]()
        self._proof_turn, self._proofs = asyncio.Lock(), 0
        self.proofs = dict[str, Proof]()  # the last of each trial
        self._reader, self._reading = Reader(settings.reading), set[str]()  # and whose files it reads or will read

    async def run(self, work: Callable[[], T], pool: str = READS) -> T:
        """Work in a thread; the text of a store's error is for the log, not for callers."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pools[pool], work)
        except StoreError as error:
            raise refusal(error) from error

    async def read(self, trial: str, look: Callable[[Trial], T]) -> T:
        return await self.run(lambda: look(self.trials.open(trial)))

    async def parse(self, work: Callable[..., T], *arguments: Any) -> T:
        """Read a large body: one at a time, beside everything else."""
        return await self.run(lambda: work(*arguments), PARSING)

    async def parse_file(self, actor: str, work: Callable[..., T], *arguments: Any) -> T:
        """Read a file that may be made to harm, in a process of its own and one of a caller at a time.

        `work` is a function of a module.
        """
        if actor in self._reading:
            detail = "another file of yours is being read; send one at a time"
            raise Refusal(429, "too-many", detail, headers={"Retry-After": "5"})
        self._reading.add(actor)
        try:
            return await self.run(lambda: self._reader.run(work, *arguments), FILES)
        finally:
            self._reading.discard(actor)

    async def write(
        self,
        trial: str,
        act: Callable[[Transaction], Reply],
        author: Author,
        *,
        large: bool = False,
        question: Question | None = None,
        users: Sequence[str] | None = None,
        blinded: bool = False,
    ) -> Reply:
        """Change a trial. Requests that come while others are written wait, and are written together."""
        waiting = self._waiting.get(trial)
        if waiting is None:
            waiting = self._waiting[trial] = []
            self._writers.add(writer := asyncio.create_task(self._write(trial, waiting)))
            writer.add_done_callback(self._writers.discard)
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        waiting.append((Request(act, author, large, question, users, blinded), reply))
        try:
            return await reply
        finally:
            del reply  # which holds an error, which holds this frame

    async def _write(self, trial: str, waiting: list[tuple[Request, asyncio.Future[Reply]]]) -> None:
        """Write what waits until nothing does."""
        while waiting:
            # A large one is alone, so that its answer is sent before the next one is taken.
            large = (at for at, (request, _) in enumerate(waiting) if request.large)
            count = max(1, min(MOST_TOGETHER, next(large, len(waiting))))
            some = [(request, reply) for request, reply in waiting[:count] if not reply.cancelled()]
            del waiting[:count]
            requests = [request for request, _ in some]
            try:
                answers = await self.run(lambda: self.trials.write(trial, requests), WRITES)  # noqa: B023
            except Exception as error:
                answers = [error] * len(some)
            for (_, reply), answer in zip(some, answers, strict=True):
                if reply.cancelled():
                    continue
                if isinstance(answer, Reply):
                    reply.set_result(answer)
                elif isinstance(answer, StoreError):
                    reply.set_exception(refusal(answer))
                else:
                    if isinstance(answer, DrimedError):  # its frames hold the whole request
                        answer.__context__ = answer.__traceback__ = None
                    reply.set_exception(answer)
            answers.clear()  # errors and frames hold each other
        del self._waiting[trial]

    async def create(self, spec: TrialSpec, act: Callable[[Transaction], Reply], author: Author) -> Reply:
        return await self.run(lambda: self.trials.create(spec, act, author), WRITES)

    async def prove(self, trial: str, expect: str | None, gone: Callable[[], Awaitable[bool]]) -> Proof:
        """A proof of the log as it stands, one at a time; it stops when the caller is `gone`."""
        if self._proofs >= MOST_PROOFS:
            raise Refusal(429, "too-many", "too many proofs are waiting; try again", headers={"Retry-After": "10"})
        abandoned = threading.Event()

        def progress(_: int, __: int) -> None:
            if abandoned.is_set() or self.stopping:
                raise _Abandoned

        def work() -> Proof:
            return verify(self.store, trial, expected_hash=expect, progress=progress)

        proof: asyncio.Future[Proof] | None = None
        self._proofs += 1
        try:
            async with self._proof_turn:
                while proof is None or not proof.done():
                    if await gone():
                        raise ClientDisconnect
                    proof = proof or asyncio.get_running_loop().run_in_executor(self._pools[PROOFS], work)
                    await asyncio.wait([proof], timeout=GLANCE)
            self.proofs[trial] = proof.result()
            return proof.result()
        except _Abandoned:
            raise unavailable("the service is stopping; try again") from None
        finally:
            self._proofs -= 1
            abandoned.set()
            if proof is not None:
                proof.cancel()

    async def identify(self, connection: HTTPConnection, token: str | None = None) -> auth.Caller:
        """The author of a request, by its own token or the one that is given; or a refusal."""
        return await self.access.identify(connection, token, lambda work: self.run(work, DOOR))

    async def tidy(self) -> None:
        """Keep the threads of this process from holding up each other, for as long as the service runs."""
        sys.setswitchinterval(SWITCH)
        gc.set_threshold(*gc.get_threshold()[:2], RARELY)
        gc.freeze()  # what is there from the start stays
        while True:
            await asyncio.sleep(QUIET)
            if not self.requests and gc.get_count()[2]:
                gc.collect()

    async def purge(self) -> None:
        """Delete old answers, for as long as the service runs."""
        while True:
            with suppress(Exception):  # the next time will do
                purged = await self.run(lambda: purge_answers(self.store, self.settings.keep_answers), HEAVY)
                if purged:
                    log.info("deleted %d old answers", purged)
            await asyncio.sleep(PURGE_EVERY)

    def close(self) -> None:
        """Finish running work, without waiting for a turn in the store, and close everything."""
        self.stopping = True
        self.store.stop_waiting()
        self._reader.close()
        self.analyses.close()
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)
        self.store.close()
