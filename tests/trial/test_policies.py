"""Every policy runs a trial that can be proven, and what the file says about it binds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.policies import registry
from drimed.policies.guards.base import Guardrail
from drimed.policies.policy import Policy
from drimed.policies.registry import REGISTRY, make
from drimed.records import Report
from tests.trial.playing import KNOWN, new, play, verified


def _kind(policy: str) -> str:
    """The model that a policy of the registry comes with."""
    return {"dri_field": "field", "dri_people": "people", "rebandit": "people"}.get(policy, "paper")


OF_THE_PAPER = ("dri_med", "dri_imed", "lin_ts", "oful", "ids", "spanner_igw", "uniform", "clucb", "oplb", "w_roful")
LEARNING = [(name, _kind(name)) for name in REGISTRY if "published" not in name and "d_lin_ucb" not in name]


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in OF_THE_PAPER for kind in ("field", "people")] + LEARNING
)
def test_policies_run_with_every_model_that_learns_the_noise(name: str, kind: str) -> None:
    trial = new(model={"kind": kind}, policy={"name": name})
    play(trial, 3)
    trial.add_arm("fourth")
    trial.amend(1, {"yield": 4.0}, reason="typo")
    play(trial, 2, seed=1)
    verified(trial)


def test_guardrails_of_the_file_bind() -> None:
    """An arm that raises the reward by 2 and the cost by 7, where the cost may rise by 2 and a twentieth of 5."""
    outcomes = {"old": (5.0, 5.0), "new": (7.0, 12.0), "third": (5.2, 5.0)}
    shares = {}
    for rails in ([], [{"metric": "cost", "absolute": 2.0}]):
        trial = new(preference={"yield": 1.0}, noise=KNOWN, guardrails=rails)
        guard: Any = trial.state().policy.guard  # type: ignore[attr-defined]  # a Policy
        rail = Guardrail(metric=1, relative=0.05, absolute=2.0 / 20, better="lower")
        assert guard.guardrails == (rail,) * len(rails)
        for _ in range(20):
            trial.open_episode()
            told = {g.id: dict(zip(("yield", "cost"), outcomes[g.arm], strict=True)) for g in trial.ask_many()}
            trial.tell_many([Report(number, values) for number, values in told.items()])
        trial.open_episode()
        shares[len(rails)] = trial.ask("north").probabilities["new"]
        verified(trial)
    assert shares[0] > 0.9
    assert 0.1 < shares[1] <= 2.25 / 7


@pytest.mark.parametrize("name", REGISTRY)
def test_any_policy_runs_a_trial_that_verifies_exactly(name: str) -> None:
    known = {"noise": KNOWN} if _kind(name) == "paper" else {}
    trial = new(model={"kind": _kind(name)}, policy={"name": name}, **known)
    play(trial, 3)
    trial.add_user("east", {})
    trial.add_arm("fourth")
    trial.amend(1, {"yield": 4.0}, reason="typo")
    trial.mark_missing(5, reason="hail")
    play(trial, 2, seed=1)
    trial.change_preference("north", {"yield": 2.0}, reason="r")
    trial.retire_arm("third", reason="r")
    late = play(trial, 2, seed=2)
    assert "third" not in {g.arm for g in late}
    sampled = getattr(getattr(trial.state().policy, "rule", None), "randomisation", "") == "sampled"
    assert all((g.propensity is None) == sampled for g in late)
    assert all((g.effects is None) == (not isinstance(trial.state().policy, Policy)) for g in late)
    verified(trial)


def test_a_registered_policy_runs_a_field_trial_whatever_its_number_of_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "REGISTRY", dict(REGISTRY))

    @registry.register("own_field")
    def own_field(confidence: float = 0.9) -> Any:
        return make("dri_field", confidence=confidence)

    metrics = {"yield": {"range": [0, 10], "spread": 1.0}}
    trial = new(metrics=metrics, preference={"yield": 1.0}, model={"kind": "field"}, policy={"name": "own_field"})
    assert trial.ask("north").propensity


@pytest.mark.parametrize("sd", [1.0, 0.0])
@pytest.mark.parametrize(("kind", "users", "seasons"), [("paper", 100, 45), ("field", 6, 8), ("people", 20, 6)])
def test_metrics_that_never_vary_do_not_stop_a_trial(kind: str, users: int, seasons: int, sd: float) -> None:
    """One of them, or both."""
    rng = np.random.default_rng(0)
    trial = new(users={f"u{i}": {} for i in range(users)}, model={"kind": kind}, tolerance={"absolute": 30.0})
    for _ in range(seasons):
        trial.open_episode()
        given = trial.ask_many()
        trial.tell_many([Report(g.id, {"yield": float(rng.normal(5, sd)), "cost": 1.0}) for g in given])
    assert trial.ask("u0").propensity is not None
