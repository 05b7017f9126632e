"""Trials of people who may be in a group: somebody in none costs no more than anybody else, and is no typical group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from drimed.models.mixed.learner import Field
from drimed.policies.policy import Policy
from drimed.records import Decision, Report
from drimed.reports.analysis import analyse
from drimed.trial import snapshots
from drimed.trial.trial import Trial
from tests.trial.playing import new, verified
from tests.trial.states import contents

PEOPLE: dict[str, Any] = {"model": {"kind": "people"}, "metrics": {"steps": {}}, "preference": {"steps": 1.0}}
WHO: dict[str, Callable[[int], dict[str, Any]]] = {
    "everybody": lambda i: {"group": f"clinic {i % 3}"},
    "one group": lambda _: {"group": "clinic"},
    "nobody": lambda _: {},
    "some": lambda i: {"group": f"clinic {i % 3}"} if i % 4 < 2 else {},
}


def joined(trial: Trial, people: range, who: str, *, seed: int = 0) -> list[Decision]:
    """New people, five at a time, each with two outcomes."""
    rng = np.random.default_rng(seed)
    found = []
    for first in people[::5]:
        names = {f"p{i}": WHO[who](i) for i in range(first, min(first + 5, people.stop))}
        for enrol in (names, None):
            trial.open_episode()
            given = trial.ask_many(list(names), enrol=enrol)
            y = [float(rng.normal(10.0 * (d.arm == "new") + 4 * (int(d.user[1:]) % 3), 3.0)) for d in given]
            trial.tell_many([Report(d.id, {"steps": one}) for d, one in zip(given, y, strict=True)], confirm=True)
            found += given
    return found


def columns(trial: Trial) -> int:
    """Of the model's common part."""
    policy, settled = trial.state().policy, trial.state().settled
    assert isinstance(policy, Policy)
    assert isinstance(policy.learner, Field)
    return len(policy.learner.structure(settled.evidence).common.family)


@pytest.mark.parametrize("who", ["nobody", "some"])
def test_what_is_common_does_not_grow_with_people_who_are_in_no_group(who: str) -> None:
    trial = new(**PEOPLE | {"users": {}})
    joined(trial, range(20), who)
    before = columns(trial)
    joined(trial, range(20, 60), who)
    assert columns(trial) == before + 16  # one for each new season


def test_a_trial_with_people_in_no_group_is_proven_and_restored_and_reported() -> None:
    trial = new(**PEOPLE | {"users": {"first": {}, "second": {"group": "clinic 0"}}})
    joined(trial, range(40), "some")
    state = trial.state()
    assert state.numbers.places == 3 + 1 + 20  # three clinics, the first person and half of the others
    verified(trial)
    restored = snapshots.restore(state.created, snapshots.take(state))
    assert restored is not None
    assert contents(restored) == contents(state)
    found = analyse(trial)
    assert {e.who for e in found.effects} >= {"clinic 0", "clinic 1", "clinic 2", "first", "p3"}
    assert found.variation is not None
    assert [level.name for level in found.variation.sites] == ["clinic 0", "clinic 1", "clinic 2"]
