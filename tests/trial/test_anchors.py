"""Anchors: hashes that are kept where the store's owner cannot change them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drimed.errors import InputError
from drimed.records import Event, Head
from drimed.trial import transaction
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.forging import NAME, chained, recorded, stored, with_body
from tests.trial.trials import SMALL


@pytest.fixture(scope="module")
def log() -> list[Event]:
    return recorded(MemoryStore())


def kept(log: list[Event], *numbers: int) -> list[Head]:
    return [Head(NAME, n, log[n - 1].hash, f"2026-0{i}-01T00:00:00+00:00") for i, n in enumerate(numbers, 1)]


def test_anchors_of_an_unchanged_log_hold(log: list[Event]) -> None:
    proof = verify(stored(log), NAME, anchors=[*kept(log, 1, 5, len(log)), Head("other", 3, "0" * 64, "then")])
    assert (proof.faults, proof.anchors) == ([], 3)


def test_what_verify_alone_cannot_find_an_anchor_finds(log: list[Event]) -> None:
    """An actor, a time, a reason or the last outcome is changed, and the log is chained again."""
    last = log[-1]
    better = {"outcome": {"metrics": {"yield": 9.0, "cost": 0.1}, "control": None}, "was": None}
    for new in (replace(last, actor="eve"), with_body(last, better)):
        forged = stored(chained([*log[:-1], new]))
        assert verify(forged, NAME).ok
        (fault,) = verify(forged, NAME, anchors=kept(log, 3, len(log))).faults
        n = len(log)
        assert fault.startswith(f"at 2026-02-01T00:00:00+00:00 event {n} had the hash {log[-1].hash[:12]}, and")
        assert f"something up to event {n} was changed after that; nothing up to event 3 was" in fault


def test_an_end_that_was_cut_off_with_the_head_moved_back_is_found(log: list[Event]) -> None:
    cut = stored(log[:-2])
    assert verify(cut, NAME).ok
    (fault,) = verify(cut, NAME, anchors=kept(log, 4, len(log))).faults
    assert f"the log ends with event {len(log) - 2}: what followed was cut off" in fault


def test_the_first_anchor_that_differs_is_named_and_the_others_are_counted(log: list[Event]) -> None:
    forged = chained([log[0], replace(log[1], actor="eve"), *log[2:]])
    proof = verify(stored(forged), NAME, anchors=kept(log, 9, 1, 2, 5))
    (fault,) = proof.faults
    assert " event 2 had the hash" in fault
    assert fault.endswith("2 later anchors differ too.")
    assert proof.anchors == 1


def test_each_episode_and_the_end_leave_a_line(tmp_path: Path) -> None:
    file, store = tmp_path / "anchors.txt", MemoryStore()
    Trial.create(SMALL, store)
    trial = Trial.open("small", store, anchors=file)
    trial.ask("north")  # opens the first episode
    trial.tell(1, {"yield": 5.0})
    trial.open_episode()
    trial.stop(reason="the end")
    found = transaction.load_anchors(file)
    events, head = list(trial.log()), trial.head()
    assert (head.trial, head.event, head.hash) == ("small", 6, events[-1].hash)
    assert [head.event for head in found] == [3, 5, 6]
    assert all(head.hash == events[head.event - 1].hash for head in found)
    assert verify(store, "small", anchors=found).anchors == 3


def test_a_file_in_trouble_does_not_stop_a_trial(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    Trial.create(SMALL, store)
    trial = Trial.open("small", store, anchors=tmp_path / "gone" / "anchors.txt")
    assert trial.ask("north").id == 1
    assert "event 3 has no anchor: cannot write" in caplog.text


def test_a_file_gets_what_it_does_not_have_yet(tmp_path: Path) -> None:
    file, store = tmp_path / "anchors.txt", MemoryStore()
    trial = Trial.create(SMALL, store)
    trial.ask_many()
    trial.open_episode()
    trial.ask_many()

    def add() -> list[int]:
        known = transaction.load_anchors(file) if file.exists() else []
        with store.reading("small") as ledger:
            new = list(transaction.missing_anchors(ledger, known, "2026-05-01T10:00:00+00:00"))
        transaction.append_anchors(file, new)
        return [head.event for head in new]

    assert add() == [2, 5, 7]
    assert add() == []
    trial.pause(reason="rain")
    assert add() == [8]
    assert len(file.read_text().splitlines()) == 4


@pytest.mark.parametrize("line", ["2026 small 3", "2026 small 0 " + "a" * 64, "2026 small 3 " + "A" * 64, "x"])
def test_a_line_that_is_none_is_refused_with_its_number(line: str, tmp_path: Path) -> None:
    (tmp_path / "anchors.txt").write_text(f"# of our trials\n\n{line}\n")
    with pytest.raises(InputError, match=r"anchors.txt, line 3: expected a time, a trial"):
        transaction.load_anchors(tmp_path / "anchors.txt")
