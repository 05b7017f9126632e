"""Outcomes that are compared with a control plot, in the paper's model; that of the field is in test_field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import ConflictError, SpecError
from drimed.reports.analysis import analyse
from drimed.trial.trial import Trial
from tests.trial.playing import KNOWN, new, refused, verified


def paired(**changes: Any) -> Trial:
    return new(feedback="difference", model={"kind": "paper"}, **changes)


def test_the_difference_to_the_control_plot_is_what_is_learned_from() -> None:
    """A site's level, whatever it is, changes nothing."""
    flat, hilly = paired(noise=KNOWN), paired(noise=KNOWN)
    decided = []
    for trial, level in ((flat, 0.0), (hilly, 3.0)):
        rng, arms = np.random.default_rng(0), []
        for _ in range(10):
            trial.open_episode()
            for g in trial.ask_many():
                arms.append(g.arm)
                effect = {"old": 0.0, "new": 1.0, "third": -1.0}[g.arm]
                plot, other = rng.normal(0, 0.25, 2).round(3)
                site = 1.0 + level * (g.id % 4)
                mine, its = {"yield": site + effect + plot, "cost": 5.0}, {"yield": site + other, "cost": 5.0}
                trial.tell(g.id, mine, control=its, confirm=True)
        decided.append(arms)
        verified(trial)
    assert decided[0] == decided[1]
    found = {x.arm: x for x in analyse(flat).effects if (x.who, x.on, x.source) == ("all users", "yield", "model")}
    assert found["new"].estimate == pytest.approx(1.0, abs=0.4)
    final = flat.ask("north")
    assert final.effects is not None
    assert final.effects["new"].estimate == pytest.approx(1.0, abs=0.4)
    assert final.effects["old"] == type(final.effects["old"])(0.0, 0.0, 0.0)


def test_a_difference_needs_both_plots_which_may_come_one_after_the_other() -> None:
    trial = paired()
    given = trial.ask("north")
    told = trial.tell(given.id, {"yield": 5.0, "cost": 1.0})
    assert (told.state, told.control, told.waits_for) == ("partial", {}, ["yield", "cost"])
    assert next(trial.decisions()).reward is None
    assert trial.state().learned.evidence.ridge.b.tolist() == [0.0] * len(trial.state().learned.evidence.ridge.b)
    told = trial.tell(given.id, {}, control={"yield": 4.0})
    assert told.waits_for == ["cost"]
    assert trial.tell(given.id, {}, control={"cost": 3.0}).waits_for == []
    (row,) = trial.decisions()
    assert row.reward == pytest.approx(1.0 - 0.1 * -2.0)
    assert row.control == {"yield": 4.0, "cost": 3.0}
    refused(trial, lambda: trial.tell(given.id, {}, control={"cost": 4.0}), ConflictError, "already has cost = 3.0")
    trial.amend(given.id, {}, control={"cost": 4.0}, reason="typo")
    assert next(trial.decisions()).reward == pytest.approx(1.0 + 0.3)
    verified(trial)


def test_the_control_plots_of_a_trial_stay_comparable_when_a_control_changes() -> None:
    """Differences to control plots are learned from with one map for each arm: another control would need another."""
    trial = paired(users={"north": {}, "south": {}})
    refused(trial, lambda: trial.add_user("west", {"control": "new"}), SpecError, "control")
    refused(trial, lambda: trial.change_control("north", "new", reason="r"), SpecError, "control")


@pytest.mark.parametrize(
    "more", [{"noise": KNOWN}, {"policy": {"name": "dri_med_reward"}}, {"policy": {"name": "uniform"}}]
)
def test_sites_with_different_control_plots_need_known_noise_or_the_reward_alone(more: dict[str, Any]) -> None:
    trial = paired(users={"north": {}, "south": {"control": "new"}}, **more)
    for given in trial.ask_many():
        trial.tell(given.id, {"yield": 5.0, "cost": 1.0}, control={"yield": 4.0, "cost": 3.0})
    verified(trial)


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"tolerance": {"relative": 0.2}}, "tolerance", "the control's level cancels: give `absolute`"),
        ({"guardrails": [{"metric": "cost", "relative": 0.1}]}, "guardrails.0", "give `absolute`"),
        ({"users": {"north": {}, "south": {"control": "new"}}}, "users.south.control", "must have one control"),
    ],
)
def test_what_a_difference_cannot_carry_is_refused(changes: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        paired(**changes)
    assert [".".join(map(str, fault.path)) for fault in error.value.faults] == [path]
