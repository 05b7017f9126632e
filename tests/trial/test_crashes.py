"""Processes killed at random moments; `make torture` does this hundreds of times."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.trial import troubles
from tests.trial.torture import Campaign

KILLS, ROUNDS = 6, 2


def test_nothing_is_lost_or_doubled_when_processes_are_killed(address: str, tmp_path: Path) -> None:
    campaign = Campaign(address, tmp_path, team=2, rng=random.Random(3))
    campaign.run(KILLS)  # checks after each kill, and once more at the end
    assert campaign.kills == KILLS
    assert campaign.totals["decisions"] >= KILLS // 2
    assert campaign.totals["together"] > 0


def test_the_check_itself_notices_a_decision_that_is_lost(tmp_path: Path) -> None:
    campaign = Campaign(f"sqlite:///{tmp_path / 'trials.db'}", tmp_path, team=1, rng=random.Random(3))
    campaign.run(1)
    side = campaign.side("w0")
    with side.open("a", encoding="utf-8") as stream:
        stream.write('{"given": 1000000, "key": "w0-1000000", "user": "site 0", "arm": "old"}\n')
    with pytest.raises(AssertionError, match="decision 1000000 was given out and is lost"):
        campaign.run(1)


@pytest.mark.parametrize("name", troubles.ALL)
def test_nothing_is_lost_or_doubled_when_the_store_is_in_trouble(name: str, tmp_path: Path) -> None:
    with troubles.ALL[name][1](tmp_path) as found:
        if isinstance(found, str):
            pytest.skip(found)
        address, trouble = found
        campaign = Campaign(address, tmp_path, team=2, rng=random.Random(5), patient=True)
        campaign.endure(ROUNDS, trouble)
        assert campaign.kills == ROUNDS
        assert campaign.totals["decisions"] >= ROUNDS
