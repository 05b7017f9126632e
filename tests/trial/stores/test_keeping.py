"""Which snapshots stay."""

from __future__ import annotations

import pytest

from drimed.trial.stores.keeping import given_up


@pytest.mark.parametrize("every", [1, 7, 1000])
def test_however_old_a_hash_is_some_snapshot_is_not_much_older(every: int) -> None:
    kept: list[int] = []
    for newest in range(every, 400 * every, every):
        kept = [seq for seq in kept if seq not in given_up(kept, newest)] + [newest]
        assert len(kept) <= 1 + newest.bit_length()
        for age in range(0, newest, 5 * every):
            before = max((seq for seq in kept if seq <= newest - age), default=0)
            assert newest - before <= 8 * age + 2 * every


def test_snapshots_of_a_log_that_was_set_back_go() -> None:
    assert given_up([10, 20, 30], 20) == [20, 30]
