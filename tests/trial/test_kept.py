"""A store that an older version made, with every kind of event: each of its trials opens, is proven and goes on.

`kept/store.db.gz` is a SQLite store, `kept/store.dump` the same trials in PostgreSQL (`pg_dump -Fc`). Their snapshots
have an older form, which is not used any more.
"""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from drimed.records import Decision
from drimed.service import tokens
from drimed.trial import events as kinds
from drimed.trial import opened as opened_trials
from drimed.trial import snapshots
from drimed.trial.fold import at_start, caught_up
from drimed.trial.state import Counts, TrialState
from drimed.trial.stores import open_store
from drimed.trial.stores.sql import SqlStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.servers import Server
from tests.trial.states import contents

KEPT = Path(__file__).parent / "kept"
COUNTS = {
    "orchard": Counts(pending=3, partial=1, complete=29, missing=1, amendments=2),
    "plots": Counts(pending=1, partial=1, complete=10),
    "stream": Counts(pending=158, partial=188, complete=754),
    "published": Counts(complete=16, amendments=2),
}
NEWER = {kinds.SNAPSHOT, kinds.REVEALED, kinds.LOOK, kinds.RULES}  # kinds that came after it was made
EACH = pytest.mark.parametrize("name", COUNTS)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    """The kept store."""
    if request.param == "sqlite":
        file = tmp_path / "store.db"
        file.write_bytes(gzip.decompress((KEPT / "store.db.gz").read_bytes()))
        opened = open_store(str(file), create=False)
        yield opened
        opened.close()
        return
    server: Server = request.getfixturevalue("postgres")
    with server.database() as address:
        plain = sa.make_url(address).set(drivername="postgresql").render_as_string(hide_password=False)
        subprocess.run([server.programs / "pg_restore", "--no-owner", "-d", plain, KEPT / "store.dump"], check=True)
        opened = open_store(address, create=False)
        yield opened
        opened.close()


def test_the_kept_store_has_every_kind_of_event_and_a_token(store: SqlStore) -> None:
    assert store.names() == list(COUNTS)
    assert {e.kind for name in COUNTS for e in Trial.open(name, store).log()} == {*kinds.KINDS} - NEWER
    assert len(tokens.listed(store)) == 1


@EACH
def test_a_kept_trial_opens_and_every_decision_is_reproduced_exactly(store: SqlStore, name: str) -> None:
    trial = Trial.open(name, store)
    state = trial.state()
    assert state.counts == COUNTS[name]
    assert (state.seq, state.hash) == (trial.status().events, trial.status().hash)
    proof = verify(store, name)
    assert (proof.ok, proof.faults) == (True, [])
    assert proof.exact == proof.decisions == COUNTS[name].decisions
    shown = [d.state for d in trial.decisions()]
    assert {s: shown.count(s) for s in set(shown)} == {s: n for s, n in counted(state).items() if n}


@EACH
def test_a_kept_trial_goes_on(store: SqlStore, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_trials, "SNAPSHOT_EVERY", 10)
    trial = Trial.open(name, store, actor="heir")
    before = list(trial.decisions())
    given = decided(trial, before)
    metrics = list(trial.state().spec.metrics)
    plot = dict.fromkeys(metrics, 1.0) if trial.state().spec.feedback == "difference" else None
    assert trial.tell(given.id, dict.fromkeys(metrics, 2.0), control=plot, confirm=True).state == "complete"
    amended = trial.amend(given.id, {metrics[0]: 3.0}, reason="misread", confirm=True)
    assert (amended.result, amended.state) == ("amended", "complete")
    trial.amend(before[1].id, {metrics[0]: 2.5}, reason="misread", confirm=True)
    before = [d for d in before if d.id not in (given.id, 2)]
    arms = trial.state().spec.arms
    attributes = next(iter(arms.values())).attributes
    trial.add_arm("late", {"attributes": attributes} if attributes else {})
    assert list(trial.state().spec.arms) == [*arms, "late"]
    trial.change_preference(given.user, {metrics[0]: 2.0}, reason="prices")  # takes the snapshot that is due

    with store.reading(name) as ledger:
        snapshot = ledger.snapshot()
        assert snapshot is not None
        start = at_start(ledger)
        restored = snapshots.restore(start.created, snapshot)
        assert restored is not None  # it has the present form
        whole = caught_up(start, ledger)
        assert contents(caught_up(restored, ledger)) == contents(whole) == contents(trial.state())
    proof = verify(store, name)
    assert (proof.faults, proof.exact) == ([], whole.counts.decisions)
    assert list(trial.decisions([d.id for d in before])) == before  # nothing else about the past has changed


@EACH
def test_a_state_from_a_snapshot_that_is_taken_now_is_the_one_from_the_log(store: SqlStore, name: str) -> None:
    with store.reading(name) as ledger:
        start = at_start(ledger)
        folded = caught_up(start, ledger)
        restored = snapshots.restore(start.created, snapshots.take(folded))
    assert restored is not None
    assert contents(restored) == contents(folded)


@pytest.mark.parametrize("name", ["orchard", "stream"])
def test_a_snapshot_of_the_older_form_is_there_and_not_used(store: SqlStore, name: str) -> None:
    with store.reading(name) as ledger:
        snapshot = ledger.snapshot()
        assert snapshot is not None
        assert snapshots.restore(at_start(ledger).created, snapshot) is None
        assert contents(snapshots.recall(ledger)[0]) == contents(caught_up(at_start(ledger), ledger))


@pytest.mark.parametrize("form", [3, 4, 5, 6, 7])
def test_trials_of_each_earlier_form_are_reproduced_exactly_and_go_on(form: int, tmp_path: Path) -> None:
    """`kept/formN.db.gz` are SQLite stores without snapshots, by the version that wrote this form last."""
    file = tmp_path / "store.db"
    file.write_bytes(gzip.decompress((KEPT / f"form{form}.db.gz").read_bytes()))
    kept = open_store(str(file), create=False)
    names = kept.names()
    assert len(names) >= 2
    for name in names:
        trial = Trial.open(name, kept)
        before = trial.state().counts.decisions
        assert trial.state().form == form
        trial.open_episode()
        given = trial.ask_many()
        assert given
        proof = verify(kept, name)
        assert (proof.faults, proof.exact) == ([], before + len(given))
    kept.close()


def counted(state: TrialState) -> dict[str, int]:
    return {s: getattr(state.counts, s) for s in ("pending", "partial", "complete", "missing")}


def decided(trial: Trial, before: list[Decision]) -> Decision:
    """A new decision; of a stopped trial one whose outcome is pending."""
    state = trial.state()
    if state.status != "running":
        return next(d for d in before if d.state == "pending")
    contexts: dict[str, Any] = {u: dict.fromkeys(state.problem.fields, 500.0) for u in state.users}
    if state.spec.decisions == "any number":
        given = trial.ask_many(list(state.users), contexts=contexts)
    else:
        given = trial.ask_many(contexts=contexts, episode=state.episode.number + 1)
        assert {d.episode for d in given} == {state.episode.number + 1}
    assert [d.id for d in given] == list(range(len(before) + 1, len(before) + 1 + len(given)))
    return given[0]
