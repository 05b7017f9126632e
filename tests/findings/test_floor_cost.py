"""What floors cost: by hand where the policy is known, and from what each decision recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.findings.analyse import Analysis, analyse
from drimed.findings.effects import EVERYBODY, MODEL
from drimed.findings.floor_cost import FloorCost
from drimed.findings.page import report
from drimed.trial.events import DECISION
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.findings.field_trials import FIELD
from tests.trial.floored import MEANS, SPEC, played


def bodies(trial: Trial) -> list[dict[str, Any]]:
    with trial.reading() as (ledger, _):
        return [e.body for e in ledger.events(kinds=(DECISION,))]


def estimates(a: Analysis) -> np.ndarray[Any, Any]:
    """Of the arms for all users, which have one mean for each arm."""
    return np.array([x.estimate for x in a.effects if (x.who, x.on, x.source) == (EVERYBODY, "reward", MODEL)])


def test_a_floor_under_the_control_costs_its_share_of_what_the_policy_gained() -> None:
    policy = {"guard": "off"}
    trial = played(SPEC | {"model": {"kind": "paper"}, "policy": policy, "floors": {"control": 0.2}})
    a = analyse(trial)
    without = np.array([b["without"] for b in bodies(trial)])
    drawn_from = np.array([b["probabilities"] for b in bodies(trial)])
    np.testing.assert_allclose(drawn_from, 0.8 * without + 0.2 * np.array([1.0, 0, 0]), atol=1e-12)
    cost = a.floor_cost
    assert cost is not None
    assert cost.loss == pytest.approx(0.2 * (without @ estimates(a)).sum())
    assert cost.low <= cost.loss <= cost.high
    assert cost.control == pytest.approx(0.2 * (1 - without[:, 0]).sum())
    assert (cost.decisions, cost.episodes, cost.running) == (32, 8, True)
    assert not any(cost.below.values())
    assert "What the floors cost" in report(a)


def test_what_would_have_been_played_is_what_the_policy_plays_without_a_floor() -> None:
    with_floor, without = (played(SPEC | more, seasons=1) for more in ({"floors": {"arms": 0.1}}, {}))
    recorded = [b["without"] for b in bodies(with_floor)]
    assert recorded == [b["probabilities"] for b in bodies(without)]
    assert bodies(without)[0].keys() == bodies(with_floor)[0].keys() - {"floor", "without"}


@pytest.mark.parametrize("kind", ["field", "people", "paper"])
def test_floors_that_the_guard_did_not_certify_are_counted(kind: str) -> None:
    trial = played(
        SPEC | {"model": {"kind": kind}, "floors": {"arms": 0.1, "shrink": 0.1}, "tolerance": {"absolute": 0.5}}
    )
    a = analyse(trial)
    cost = a.floor_cost
    assert cost is not None
    rows = bodies(trial)
    expected = {
        arm: sum(b["probabilities"][k] < b["floor"][1] * (1 - 1e-9) for b in rows) for k, arm in enumerate(MEANS)
    }
    assert cost.below == expected
    assert expected["bad"] > 0
    assert cost.possible == dict.fromkeys(MEANS, 32)
    assert any("could not certify the whole floor" in said for said in cost.says("at all times"))
    assert cost.low <= cost.loss <= cost.high
    assert verify(trial.store, "t").ok


def test_arms_that_were_not_available_have_no_floor_to_miss() -> None:
    trial = Trial.create(SPEC | {"floors": {"arms": 0.1}}, MemoryStore())
    trial.open_episode(unavailable={"u0": ["bad"]})
    trial.ask()
    cost = analyse(trial).floor_cost
    assert cost is not None
    assert cost.possible == {"old": 4, "new": 4, "bad": 3}


def test_a_trial_without_floors_has_no_cost() -> None:
    a = analyse(played(SPEC, seasons=2))
    assert a.floor_cost is None
    assert "What the floors cost" not in report(a)


def test_a_cost_that_is_round_off_is_no_number() -> None:
    cost = FloorCost(
        decisions=20, episodes=1, last=1, running=True, loss=-1.58e-63, low=-4e-63, high=8.8e-64, control=1e-65,
        below={"late": 20}, possible={"late": 20},
    )  # fmt: skip
    assert cost.says("at all times") == [
        "Floors were in force for 20 decisions in 1 season. They changed nothing that counts, and cost nothing.",
        "The guard could not certify the whole floor of every arm: late in 100 % of them.",
    ]


def test_floors_that_changed_no_chance_cost_nothing_also_where_nothing_is_known_yet() -> None:
    trial = Trial.create(FIELD | {"floors": {"control": 0.1, "arms": 0.03}}, MemoryStore())
    trial.open_episode({user: {"rain": 300.0} for user in FIELD["users"]})
    given = trial.ask()
    assert {d.arm for d in given} == {"old"}  # in the first season the guard certifies nothing else
    trial.tell(given[0].id, {"yield": 50.0, "cost": 20.0})  # one outcome tells no variance: every range is endless
    cost = analyse(trial).floor_cost
    assert cost is not None
    assert cost.loss == cost.low == cost.high == cost.control == 0
    said = cost.says("at all times")[0]
    assert (
        said == "Floors were in force for 12 decisions in 1 season. They changed nothing that counts, and cost nothing."
    )
