"""Random sheets, extreme numbers, and processes that are killed at random moments: `python -m tests.trial.torture`.

Each process writes what it was given to a side file, synced to disk, before it acts on it: what the side files say was
given out must be in the log, once, whatever happened afterwards. A process that starts again reads its own side file
and goes on where it was.

Most of the time goes into the kills, each of which is followed by a proof of the whole log. On two cores that others
used too, all of it took seven minutes. `--kills 300 --rounds 20` is for an hour.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from drimed.errors import StoreError
from drimed.trial import events as kinds
from drimed.trial.state import catch_up, start_of
from drimed.trial.store import Store, open_store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial import extremes, servers, test_sheet_fuzz, troubles, workers
from tests.trial.states import same
from tests.trial.trials import BUSY

LONGEST_TROUBLE = 1.0  # seconds
LONGEST = 0.08  # seconds from a sign of life to the kill: about ten pairs
AT_THE_DOOR = 0.15  # of the kills come before that sign, while the store is opened and what is known read
RENEWED = 20  # kills after which a new trial begins, so that proving the log stays quick


class Campaign:
    """Some workers on one store; they are killed one at a time, and everything is checked each time."""

    def __init__(self, address: str, folder: Path, *, team: int, rng: random.Random, patient: bool = False) -> None:
        self.address, self.folder, self.rng, self.patient = address, folder, rng, patient
        workers.warm()  # here too: a worker that is stopped while it loads a kernel holds the lock on all kernels
        self.context = workers.context()
        self.names = [f"w{i}" for i in range(team)]
        self.running: dict[str, ForkServerProcess] = {}
        self.trial = ""
        self.kills, self.trials = 0, 0
        self.totals: Counter[str] = Counter()

    def run(self, kills: int, tick: Callable[[], None] = lambda: None) -> None:
        """Kill so many times."""

        def kill() -> Callable[[], None]:
            worker = self.rng.choice(self.names)
            self._kill(worker)
            return partial(self._start, worker)

        self._repeat(kills, kill, tick)

    def endure(
        self, rounds: int, trouble: Callable[[], AbstractContextManager[None]], tick: Callable[[], None] = lambda: None
    ) -> None:
        """Trouble with the store so many times, at random moments and for random times; everybody goes on after it."""

        def suffer() -> Callable[[], None]:
            self._all_at_work()
            time.sleep(self.rng.uniform(0, LONGEST))
            with trouble():
                time.sleep(self.rng.uniform(0, LONGEST_TROUBLE))
            self._all_at_work()
            return lambda: None

        self._repeat(rounds, suffer, tick)

    def _repeat(self, rounds: int, disturb: Callable[[], Callable[[], None]], tick: Callable[[], None]) -> None:
        """Disturb so many times, check everything each time, and then put right what was disturbed."""
        store = open_store(self.address)
        try:
            for n in range(rounds):
                if n % RENEWED == 0:
                    self._renew(store)
                put_right = disturb()
                self.kills += 1
                with self._others_held(store):
                    self.check(store)
                put_right()
                tick()
            self._renew(store, again=False)
        finally:
            for process in self.running.values():
                process.kill()
                process.join()
            store.close()

    def _all_at_work(self) -> None:
        """Each of them has got something done since now."""
        before = {name: _size(self.side(name)) for name in self.names}
        deadline = time.monotonic() + workers.PATIENCE
        while quiet := [name for name in self.names if _size(self.side(name)) == before[name]]:
            for name in quiet:
                self._expect_alive(name, deadline)
            time.sleep(0.005)

    def _expect_alive(self, worker: str, deadline: float = math.inf) -> None:
        """Whoever is silent until the deadline says what it is doing first."""
        process = self.running[worker]
        _expect(process.is_alive(), f"{worker} stopped by itself with {process.exitcode}: an error reached it")
        if time.monotonic() > deadline:
            os.kill(process.pid or 0, workers.SAY_WHAT)
            time.sleep(1.0)
            raise AssertionError(f"{worker} has done nothing for {workers.PATIENCE:g} s; its threads are printed above")

    def side(self, worker: str) -> Path:
        """What a worker says it was given."""
        return self.folder / f"{self.trial}-{worker}.jsonl"

    def _renew(self, store: Store, *, again: bool = True) -> None:
        """Finish one trial, with a last look when all is quiet, and begin the next."""
        for name in list(self.running):
            process = self.running.pop(name)
            process.kill()
            process.join()
        if self.trial:
            self.totals += self.check(store)
        if again:
            self.trials += 1
            self.trial = f"busy-{self.trials}"
            Trial.create(BUSY | {"name": self.trial}, store)
            for name in self.names:
                self._start(name)

    def _start(self, worker: str) -> None:
        process = self.context.Process(
            target=workers.without_end,
            args=(self.address, self.trial, self.side(worker), worker, self.patient),
            daemon=True,
        )
        process.start()
        self.running[worker] = process

    def _kill(self, worker: str) -> None:
        process, side = self.running[worker], self.side(worker)
        if self.rng.random() < AT_THE_DOOR:
            time.sleep(self.rng.uniform(0, 4 * LONGEST))
        else:
            before, deadline = _size(side), time.monotonic() + workers.PATIENCE
            while _size(side) == before:  # it has opened the store, and works
                self._expect_alive(worker, deadline)
                time.sleep(0.002)
            time.sleep(self.rng.uniform(0, LONGEST))
        self._expect_alive(worker)
        process.kill()
        process.join()
        process.close()
        del self.running[worker]

    @contextmanager
    def _others_held(self, store: Store) -> Iterator[None]:
        """Stopped where they are, perhaps in the middle of a transaction, so that the check has the processor.

        Whoever is just restoring the store after a kill keeps readers out, and goes on until it has done so.
        """
        deadline = time.monotonic() + workers.PATIENCE
        self._signal(signal.SIGSTOP)
        while not self._readable(store):
            _expect(time.monotonic() < deadline, "the store cannot be read while the others are held")
            self._signal(signal.SIGCONT)
            time.sleep(LONGEST)
            self._signal(signal.SIGSTOP)
        yield
        self._signal(signal.SIGCONT)

    def _signal(self, sign: signal.Signals) -> None:
        for name, process in self.running.items():
            self._expect_alive(name)
            os.kill(process.pid or 0, sign)

    def _readable(self, store: Store) -> bool:
        try:
            with store.reading(self.trial):
                return True
        except StoreError as error:
            if "locking protocol" not in str(error):
                raise
            return False

    def check(self, store: Store) -> Counter[str]:
        """What was given out is there, once; nothing is counted twice; the log proves itself. How many of each."""
        sides = {name: workers.lines(self.side(name)) for name in self.names}  # first: the log only grows
        found = verify(store, self.trial)
        _expect(found.ok, f"verify: {found.faults}")
        _expect(found.exact == found.decisions, f"{found.decisions - found.exact} decisions differ in the last digits")
        with store.reading(self.trial) as ledger:
            log = list(ledger.events())
            quick = catch_up(Trial.open(self.trial, store).state(), ledger)
            slow = catch_up(start_of(ledger), ledger)
        decisions = [e for e in log if e.kind == kinds.DECISION]
        outcomes = Counter(e.decision for e in log if e.kind == kinds.OUTCOME)
        _expect([e.decision for e in decisions] == list(range(1, len(decisions) + 1)), "decisions are not in order")
        keys = Counter(e.request for e in decisions)
        _expect(max(keys.values(), default=1) == 1, f"a request was decided twice: {keys.most_common(1)}")
        _expect(max(outcomes.values(), default=1) == 1, f"an outcome was counted twice: {outcomes.most_common(1)}")
        by_key = {e.request: e for e in decisions}
        for lines in sides.values():
            for line in lines:
                if "told" in line:
                    _expect(line["told"] in outcomes, f"the outcome of {line['told']} was taken and is lost")
                    continue
                event = by_key.get(line["key"])
                _expect(event is not None, f"decision {line['given']} was given out and is lost")
                assert event is not None
                seen = (event.decision, event.user, event.body["arm"])
                _expect(seen == (line["given"], line["user"], line["arm"]), f"{line} was given out, the log has {seen}")
        if slow.seq == quick.seq:  # nobody wrote in between
            _expect(same(quick, slow), "what is known from the snapshot is not what the log amounts to")
        counts = slow.counts
        _expect((counts.decisions, counts.complete) == (len(decisions), len(outcomes)), f"counts are off: {counts}")
        together = len(decisions) - len({e.body["state"] for e in decisions})  # with one before them, from its state
        return Counter(decisions=len(decisions), outcomes=len(outcomes), together=together)


def _size(side: Path) -> int:
    return side.stat().st_size if side.exists() else 0


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)


# By hand


@contextmanager
def _address(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'trials.db'}"
        return
    with servers.server() as running, running.database() as address:
        yield address


def main(arguments: Sequence[str] | None = None) -> None:
    """Kill, check, and say how often it went well."""
    parser = argparse.ArgumentParser(prog="python -m tests.trial.torture", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=60, help="of processes, on each store (%(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="of each trouble with a store (%(default)s)")
    parser.add_argument("--store", choices=("sqlite", "postgresql", "both"), default="both", help="(%(default)s)")
    parser.add_argument("--workers", type=int, default=3, help="processes at work at once (%(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the moments; they are never quite the same again")
    parser.add_argument("--sheets", type=int, default=10_000, help="random ones of each kind (%(default)s)")
    parser.add_argument("--worlds", type=int, default=200, help="trials in extreme numbers (%(default)s)")
    options = parser.parse_args(arguments)
    rng = random.Random(options.seed)
    for draw in test_sheet_fuzz.DRAWS:
        test_sheet_fuzz.check(draw, options.sheets)
        print(f"{draw.__name__}: of {options.sheets} none was read wrong", flush=True)
    for n in range(options.worlds):
        extremes.check(n)
    print(f"extreme numbers: all of {options.worlds} trials decided, recorded and were verified", flush=True)
    for kind in ("sqlite", "postgresql") if options.store == "both" else (options.store,):
        with tempfile.TemporaryDirectory(prefix="drimed-torture-") as folder, _address(kind, Path(folder)) as address:
            campaign = Campaign(address, Path(folder), team=options.workers, rng=rng)
            _report(f"{kind}: {options.kills} kills", campaign, partial(campaign.run, options.kills))
        for name, (store, troubled) in troubles.ALL.items():
            if store == kind and options.rounds:
                with tempfile.TemporaryDirectory(prefix="drimed-torture-") as folder, troubled(Path(folder)) as found:
                    if isinstance(found, str):
                        print(f"{name}: left out, {found}")
                        continue
                    address, trouble = found
                    campaign = Campaign(address, Path(folder), team=options.workers, rng=rng, patient=True)
                    _report(
                        f"{name}: {options.rounds} times", campaign, partial(campaign.endure, options.rounds, trouble)
                    )


def _report(name: str, campaign: Campaign, work: Callable[[Callable[[], None]], None]) -> None:
    start = time.perf_counter()

    def tick() -> None:
        if campaign.kills % 10 == 0:
            print(f"{name}: {campaign.kills} done", flush=True)

    work(tick)
    decisions, outcomes, together = (campaign.totals[name] for name in ("decisions", "outcomes", "together"))
    print(
        f"{name} in {time.perf_counter() - start:.0f} s; of {decisions} decisions ({together} of them together with "
        f"others) none was lost and none given twice, of {outcomes} outcomes none was lost or counted twice, and every "
        "proof of the log held",
        flush=True,
    )


if __name__ == "__main__":
    main()
