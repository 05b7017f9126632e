"""A log with a chain that holds is still no proof: every event must be one that could have been recorded there.

Somebody who may write to the database changes a log and chains it again. What they have then is found, or it is a log
that the program could have written: the second is tried by playing it again through the public interface.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest

from drimed.records import Event, Proof
from drimed.trial import events as kinds
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial import forging
from tests.trial.forging import NAME, WHOLE, Log, chained, changes, could_be_written, shifted, stored, with_body

SOME = 200  # single changes that are tried in one run; there are some 1,900
# What an earlier version wrote, or another version of NumPy; a seed that was drawn; a file that newer rules refuse.
OTHER_VERSIONS = ("- was", "- late", "- missing", "- seed", ".seed = None", ".preference + more", ".sd + more")


@pytest.fixture(scope="module")
def log() -> Log:
    found = forging.recorded(MemoryStore())
    assert {e.kind for e in found} == set(kinds.KINDS) - {kinds.HISTORY}  # of which test_history.py has forgeries
    assert could_be_written(found)
    assert exact(found)
    return found


def proof(log: Log) -> Proof:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of numbers that nobody could have recorded
        return verify(stored(log), NAME)


def exact(log: Log) -> bool:
    found = proof(log)
    return found.ok and found.exact == found.decisions


def of_kind(log: Log, kind: str, nth: int = 0) -> Event:
    return [e for e in log if e.kind == kind][nth]


FORGED: dict[str, Callable[[Log], Log]] = {
    "a second value without a reason": lambda log: [
        *log,
        with_body(log[-1], {"outcome": values(9.0), "was": log[-1].body["outcome"]}),
    ],
    "a second value as if it were the first": lambda log: [
        *log,
        with_body(log[-1], log[-1].body | {"outcome": values(9.0)}),
    ],
    "an outcome of a decision that does not exist": lambda log: [*log, replace(log[-1], decision=99)],
    "an outcome of somebody else's decision": lambda log: [*log, replace(log[-1], decision=5)],
    "an amendment without a reason": lambda log: changed(log, kinds.AMENDMENT, reason="  "),
    "an amendment of what was never told": lambda log: [
        *log,
        replace(
            log[-1],
            kind=kinds.AMENDMENT,
            decision=6,
            user="south",
            text='{"outcome":{"metrics":{"yield":1.0},"control":null},"was":null,"reason":"mine"}',
        ),
    ],
    "somebody who joins under a known name": lambda log: changed(log, kinds.USER, user="north"),
    "a control that is retired": lambda log: changed(log, kinds.RETIRED, arm="old"),
    "an episode after it was stopped": lambda log: [
        *log,
        with_body(of_kind(log, kinds.EPISODE), {"episode": 3, "contexts": {}, "unavailable": {}}),
    ],
    "an outcome that was marked as missing and is complete": lambda log: [
        *log,
        replace(log[-1], kind=kinds.MISSING, text='{"reason":"lost","was":null}'),
    ],
}


def values(number: float) -> dict[str, object]:
    return {"metrics": {"yield": number, "cost": 0.5}, "control": None}


def changed(log: Log, kind: str, user: str | None = None, **fields: object) -> Log:
    victim = of_kind(log, kind)
    new = with_body(victim, victim.body | fields)
    new = new if user is None else replace(new, user=user)
    return [new if e is victim else e for e in log]


@pytest.mark.parametrize("what", FORGED)
def test_what_no_trial_would_have_recorded_is_found(what: str, log: Log) -> None:
    forged = chained(FORGED[what](log))
    assert not could_be_written(forged)
    assert any("cannot have been recorded there" in fault for fault in proof(forged).faults)


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (kinds.STOPPED, '{"reason":"the end"}', "is stopped and decides nothing"),
        (kinds.PAUSED, '{"reason":"holidays"}', "is paused and decides nothing"),
        (kinds.RETIRED, '{"arm":"new","reason":"withdrawn"}', "unavailable, expected ['new']"),
    ],
)
def test_a_decision_that_follows_from_its_state_and_was_not_allowed_is_found(kind: str, text: str, why: str) -> None:
    """The forger lets the program decide, and puts what would have forbidden the decision before it."""
    store = MemoryStore()
    trial = Trial.create(WHOLE, store)
    trial.open_episode()
    trial.ask("north", context={"rain": 450.0})
    honest = list(trial.log())
    forbids = replace(honest[1], kind=kind, text=text)
    faults = proof(chained([*honest[:2], forbids, *shifted(honest[2:], 2, 1)])).faults
    assert [f.partition(":")[0] for f in faults][:1] == ["event 4 (decision) cannot have been recorded there"]
    assert why in faults[0]


def test_a_single_change_of_one_event_is_found_or_could_have_been_recorded(log: Log) -> None:
    """A sample of all that can be changed in one event, with a fixed seed; whatever is proven is played again."""
    tries = [(e, what, new) for e in log for what, new in changes(e)]
    assert len(tries) > 9 * SOME
    proven = 0
    for event, what, new in random.Random(13).sample(tries, SOME):
        if what.endswith(OTHER_VERSIONS) or ".numpy" in what:
            continue
        # Decisions from one state may be those of several requests, each with its own actor and key.
        if event.kind == kinds.DECISION and what.startswith(("request", "actor")):
            continue
        forged = chained([new if e is event else e for e in log])
        if exact(forged):
            proven += 1
            assert could_be_written(forged), (event.seq, event.kind, what)
    assert 0 < proven < SOME / 4  # other actors, times and reasons; only an anchor finds these


def test_an_event_that_is_dropped_doubled_or_moved_is_found_or_could_have_been_recorded(log: Log) -> None:
    proven = 0
    for i, event in enumerate(log):
        rest, again = log[:i] + log[i + 1 :], log[i:]
        moved = [*rest[: i + 2], event, *rest[i + 2 :]]
        for forged in (
            rest,
            shifted(rest, event.seq, -1),
            [*log[: i + 1], *again],
            [*log[: i + 1], *shifted(again, event.seq, 1)],
            [*log, event],
            moved,
        ):
            whole = chained(forged)
            if whole != log and exact(whole):
                proven += 1
                assert could_be_written(whole), (event.seq, event.kind)
    assert proven > 0  # the end can be cut off


def test_no_log_that_could_have_been_recorded_is_refused(log: Log) -> None:
    """A false alarm would teach people to ignore alarms."""
    tries = [(e, new) for e in log[1:] for what, new in changes(e) if what in ("actor", "time", ".reason = 'newer'")]
    cut = [log[:n] for n in range(1, len(log))]
    possible = 0
    for forged in [*cut, *([new if e is event else e for e in log] for event, new in tries)]:
        whole = chained(forged)
        if could_be_written(whole):
            possible += 1
            assert proof(whole).faults == []
    assert possible > len(cut)
