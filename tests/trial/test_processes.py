"""Eight processes on one store: nobody sees an error, and the result is that of one after the other."""

from __future__ import annotations

from collections import Counter
from typing import Any

from drimed.trial.state import catch_up, start_of
from drimed.trial.store import open_store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial import workers
from tests.trial.states import same
from tests.trial.trials import BUSY, outcome

PROCESSES, PAIRS = 8, 8


def at_once(target: Any, address: str, *, n: int) -> dict[str, Any]:
    """What each of eight processes says."""
    context = workers.context()
    barrier, results = context.Barrier(PROCESSES), context.Queue()
    names = [f"w{i}" for i in range(PROCESSES)]
    processes = [
        context.Process(target=target, args=(address, BUSY["name"], name, n, barrier, results), daemon=True)
        for name in names
    ]
    for process in processes:
        process.start()
    said = dict(results.get(timeout=workers.PATIENCE) for _ in processes)
    for process in processes:
        process.join(workers.PATIENCE)
        process.close()
    results.close()
    assert sorted(said) == names
    return said


def test_eight_processes_ask_and_tell_at_once(address: str) -> None:
    store = open_store(address)
    trial = Trial.create(BUSY, store)
    said = at_once(workers.some_pairs, address, n=PAIRS)
    assert [found for found in said.values() if isinstance(found, str)] == []  # no error reached anybody
    ids = sorted(i for found in said.values() for i in found)
    assert ids == list(range(1, PROCESSES * PAIRS + 1))
    status = trial.status()
    assert (status.decisions, status.complete, status.pending) == (PROCESSES * PAIRS, PROCESSES * PAIRS, 0)
    found = verify(store, trial.name)
    assert found.faults == []
    assert found.exact == PROCESSES * PAIRS
    with store.reading(trial.name) as ledger:
        one_after_the_other = catch_up(start_of(ledger), ledger)
        actors = Counter(e.actor for e in ledger.events(kinds=("decision",)))
    assert same(trial.state(), one_after_the_other)
    assert actors == Counter(dict.fromkeys(said, PAIRS))
    for given in trial.decisions():
        assert given.outcome == outcome(given.id, given.arm)
    store.close()


def test_one_request_that_eight_processes_make_is_decided_once(address: str) -> None:
    store = open_store(address)
    trial = Trial.create(BUSY, store)
    said = at_once(workers.one_request, address, n=5)
    answers = {name: found for name, found in said.items() if isinstance(found, list)}
    assert len(answers) == PROCESSES
    assert len({tuple(ids) for ids in answers.values()}) == 1
    assert trial.status().decisions == 5
    assert trial.status().complete == 5
    assert verify(store, trial.name).ok
    store.close()


def test_one_episode_that_eight_processes_open_is_opened_once(address: str) -> None:
    store = open_store(address)
    trial = Trial.create(BUSY | {"decisions": "one per episode"}, store)
    said = at_once(workers.one_episode, address, n=1)
    assert all(found == said["w0"] for found in said.values())
    assert trial.status().episode == 1
    assert trial.status().decisions == len(BUSY["users"])
    store.close()
