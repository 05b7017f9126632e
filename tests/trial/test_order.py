"""What a trial knows depends on the outcomes that stand, not on when and how they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drimed.policies.policy import Policy
from drimed.policies.protocol import to_arrays
from drimed.trial.state import TrialState
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.playing import new

EPISODES, USERS = 3, ("north", "south", "west", "east")
KNOWN = {"kind": "known", "covariance": [[0.5, 0.2], [0.2, 2.0]], "scale": "norm"}

# The uniform rule decides the same whatever it has learned; tests/policies/test_contract.py has all other policies.
BETWEEN: dict[str, dict[str, Any]] = {
    "learned vector": {"policy": {"name": "uniform", "weighting": "learned", "feedback": "vector"}},
    "known vector": {"policy": {"name": "uniform", "weighting": "known", "feedback": "vector"}, "noise": KNOWN},
    "discounted": {"policy": {"name": "uniform", "discount": 0.7}},
    "discounted vector": {
        "policy": {"name": "uniform", "weighting": "known", "feedback": "vector", "discount": 0.7},
        "noise": KNOWN,
    },
}

# Sums in another order differ by round-off; noise that is learned is fitted until it changes by less than 1e-8.
ROUND_OFF, CONVERGED = 1e-8, 1e-5


def new_trial(changes: dict[str, Any]) -> Trial:
    metrics, context = {"yield": {"range": [0, 10]}, "cost": {}}, {"rain": {"typical": 5, "spread": 2}}
    plain: dict[str, Any] = {"model": {"kind": "paper"}, "metrics": metrics, "context": context}
    plain |= {"preference": {"yield": 1.0, "cost": -0.5}, "tolerance": {"absolute": 2.0}}
    return new(**plain | {"users": {u: {} for u in USERS}} | changes)


def open_next(trial: Trial, episode: int) -> None:
    trial.open_episode({u: {"rain": 4.0 + episode + i} for i, u in enumerate(USERS)}, number=episode)


def truth(number: int, plot: int = 0) -> dict[str, float]:
    rng = np.random.default_rng([number, plot])
    return {"yield": float(5 + rng.standard_normal()), "cost": float(2 + 3 * rng.standard_normal())}


class Reporter:
    """Reports each outcome in one of many ways, which all end in the same values."""

    WAYS = ("at once", "in parts", "wrong, then amended", "marked missing, then told", "told twice", "a typo by far")

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.difference = trial.state().spec.feedback == "difference"

    def tell(self, number: int, way: str) -> None:
        right = truth(number)
        plots: dict[str, Any] = {"control": truth(number, 1)} if self.difference else {}
        if way == "marked missing, then told":
            self.trial.mark_missing(number, reason="hail")
        if way == "in parts":
            self.trial.tell(number, {"cost": right["cost"]}, **plots, confirm=True)
            self.trial.tell(number, {"yield": right["yield"]})
        elif way in ("wrong, then amended", "a typo by far"):
            wrong = {"yield": 9.0 if way == "wrong, then amended" else 5e11, "cost": right["cost"]}
            self.trial.tell(number, wrong, **plots, confirm=True)
            self.trial.amend(number, {"cost": None}, reason="another scale")
            self.trial.amend(number, {"yield": right["yield"]}, reason="typo")
            self.trial.amend(number, right, reason="complete", confirm=True)
        else:
            self.trial.tell(number, right, **plots, confirm=True)
        if way == "told twice":
            assert self.trial.tell(number, right, **plots).result == "already recorded"


def settled(trial: Trial) -> tuple[TrialState, dict[str, Any]]:
    known = trial.state()
    state = known.policy.settle(known.learned)
    return known, to_arrays(state)


def assert_same_knowledge(one: Trial, other: Trial) -> None:
    (known, mine), (_, its) = settled(one), settled(other)
    fitted = isinstance(known.policy, Policy) and known.policy.learner.weighting == "learned"
    rtol = CONVERGED if fitted else ROUND_OFF
    assert mine.keys() == its.keys()
    for name in mine:
        if name.split(".")[-1] in ("age", "changes", "fitted"):
            continue  # when to do what next
        scale = max(1.0, float(np.abs(its[name]).max(initial=0.0)))
        np.testing.assert_allclose(mine[name], its[name], rtol=rtol, atol=rtol * scale, err_msg=name)
    here, there = one.status(), other.status()
    assert (here.pending, here.partial, here.complete, here.missing) == (
        there.pending, there.partial, there.complete, there.missing,
    )  # fmt: skip
    assert [(r.id, r.state, r.outcome, r.control, r.reward) for r in one.decisions()] == [
        (r.id, r.state, r.outcome, r.control, r.reward) for r in other.decisions()
    ]


def plainly(trial: Trial, which: set[int]) -> None:
    reporter = Reporter(trial)
    for number in sorted(which):
        reporter.tell(number, "at once")


def decided(changes: dict[str, Any]) -> Trial:
    """Three episodes, decided before any outcome came."""
    trial = new_trial(changes)
    for episode in range(1, EPISODES + 1):
        open_next(trial, episode)
        trial.ask_many()
    return trial


NUMBERS = range(1, EPISODES * len(USERS) + 1)


@pytest.mark.parametrize(
    "changes",
    [{}, {"model": {"kind": "people"}}, {"feedback": "difference"}, {"model": {"kind": "field", "discount": 0.8}}],
    ids=["field", "people", "difference", "discounted"],
)
def test_outcomes_in_any_order_and_way_lead_a_field_trial_to_the_same_decisions(changes: dict[str, Any]) -> None:
    """Variances are fitted by steps that end when little changes: effects agree to a thousandth of their ranges."""
    changes = {"model": {"kind": "field"}} | changes
    straight = decided(changes)
    plainly(straight, set(NUMBERS))
    expected = straight.preview()
    for seed in range(2):
        rng = np.random.default_rng(seed)
        winding = decided(changes)
        reporter = Reporter(winding)
        for number in rng.permutation(NUMBERS):
            reporter.tell(int(number), Reporter.WAYS[int(rng.integers(len(Reporter.WAYS)))])
        for mine, its in zip(winding.preview(), expected, strict=True):
            assert mine.effects is not None
            assert its.effects is not None
            for arm, effect in its.effects.items():
                wide = max(effect.high - effect.low, 1e-9)
                assert mine.effects[arm].estimate == pytest.approx(effect.estimate, abs=1e-3 * wide)
                assert mine.effects[arm].high == pytest.approx(effect.high, abs=1e-3 * wide)
        assert verify(winding.store, "t").faults == []


@pytest.mark.parametrize("changes", BETWEEN.values(), ids=BETWEEN)
@settings(max_examples=15)
@given(st.data())
def test_outcomes_may_come_episodes_later_between_other_decisions(changes: dict[str, Any], data: st.DataObject) -> None:
    """The rule decides alike whatever it knows, so the decisions are the same; what is known must be too."""

    def played(tell: Callable[[Trial, int], None]) -> Trial:
        trial = new_trial(changes)
        for episode in range(1, EPISODES + 1):
            open_next(trial, episode)
            for user in USERS:
                trial.ask(user)
            tell(trial, episode)
        return trial

    n = len(USERS)
    which = data.draw(st.sets(st.sampled_from(NUMBERS), min_size=1))
    told_in = {number: data.draw(st.integers((number - 1) // n + 1, EPISODES)) for number in which}
    order = data.draw(st.permutations(sorted(which)))

    def in_time(trial: Trial, episode: int) -> None:
        plainly(trial, {number for number in which if (number - 1) // n + 1 == episode})

    def whenever(trial: Trial, episode: int) -> None:
        reporter = Reporter(trial)
        for number in order:
            if told_in[number] == episode:
                reporter.tell(number, data.draw(st.sampled_from(Reporter.WAYS)))

    straight, winding = played(in_time), played(whenever)
    assert [r.arm for r in straight.decisions()] == [r.arm for r in winding.decisions()]
    assert_same_knowledge(winding, straight)
    assert verify(winding.store, "t").faults == []
