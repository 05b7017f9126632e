"""What a decision costs must not grow with the trial: no statement walks through all of its events."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from drimed.trial.stores.opening import open_store
from drimed.trial.trial import Trial
from tests.trial.trials import BUSY, outcome


def test_no_statement_of_the_daily_work_walks_through_the_whole_trial(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "trials.db"))
    seen: set[str] = set()

    @sa.event.listens_for(store._engine, "checkout")
    def _(connection: Any, _record: Any, _proxy: Any) -> None:
        connection.set_trace_callback(seen.add)

    trial = Trial.create(BUSY, store)
    for i in range(3):
        given = trial.ask(key=f"k{i}")
        trial.ask(key=f"k{i}")
        trial.ask("site 0", key=f"one {i}")
        trial.tell(given[0].id, outcome(given[0].id, given[0].arm))
        trial.decisions([g.id for g in given])
        trial.amend(given[0].id, {"yield": 4.0}, reason="r")
        trial.mark_missing(given[1].id, reason="r")
        trial.open_episode()
    store.close()

    reads = [s for s in seen if "FROM drimed_events" in s]
    assert any("request = 'k1'" in s for s in reads)
    assert any("decision IN" in s for s in reads)
    with sqlite3.connect(tmp_path / "trials.db") as plain:
        for statement in reads:
            steps = [row[3] for row in plain.execute(f"EXPLAIN QUERY PLAN {statement}")]
            assert steps
            for step in steps:
                assert not step.startswith("SCAN"), (statement, step)
                assert not step.endswith("(trial=?)"), (statement, step)
