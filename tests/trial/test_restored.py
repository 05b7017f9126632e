"""A store whose file was put back by a backup while a process has it open."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from drimed.errors import StoreError
from drimed.trial.store import open_store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.states import same
from tests.trial.trials import BUSY, outcome


def backed_up(file: Path) -> Path:
    copy = file.with_name("backup.db")
    with closing(sqlite3.connect(file)) as old, closing(sqlite3.connect(copy)) as new:
        old.backup(new)
    return copy


def restored(file: Path, copy: Path) -> None:
    """As docs/service.md says, except that nothing was stopped."""
    for beside in ("-wal", "-shm"):
        file.with_name(file.name + beside).unlink()
    os.replace(copy, file)


@pytest.mark.parametrize("write", [True, False])
def test_a_process_goes_on_with_the_restored_file_and_forgets_what_is_not_in_it(
    write: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "trials.db"
    store = open_store(str(file))
    trial = Trial.create(BUSY, store)
    trial.tell(trial.ask("site 0").id, outcome(1, "new"))
    copy = backed_up(file)
    for i in range(1, 4):
        trial.tell(trial.ask(f"site {i}").id, outcome(9, "newer"))
    assert trial.status().decisions == 4
    restored(file, copy)
    if write:
        assert trial.ask("site 1").id == 2
    assert trial.status().decisions == 1 + write
    assert "trial busy: the store was set back" in caplog.text
    with closing(open_store(str(file))) as other:
        assert same(Trial.open("busy", other).state(), trial.state())
        assert verify(other, "busy").faults == []
    store.close()


def test_a_file_that_is_gone_is_said_to_be_gone(tmp_path: Path) -> None:
    file = tmp_path / "trials.db"
    with closing(open_store(str(file))) as store:
        trial = Trial.create(BUSY, store)
        file.unlink()
        with pytest.raises(StoreError, match=r"there is no store .*trials\.db any more; put it back"):
            trial.ask("site 0")
        assert not file.exists()
