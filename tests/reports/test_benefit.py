"""Benefit against the control: sums of effects with their ranges, by season and by user, and in sentences."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from drimed.models.mixed.effects import FittedModel
from drimed.reports.analysis import Analysis, analyse
from drimed.reports.benefit import Benefit, UserBalance, mixed_gains
from drimed.trial.estimates import offers_now
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.reports.worlds import ARMS, FIELD, PAPER, PAPER_EFFECT, PEOPLE, field, grown, paper, people, summary


def made(gain: list[float], half: float, allowed: float = -10.0) -> Benefit:
    """Users with these gains, four decisions each."""
    users = [UserBalance(f"site {h}", 4, g, g - half, g + half, allowed, 0) for h, g in enumerate(gain)]
    middle, low, high = (np.array([sum(gain) + side * half]) for side in (0, -1, 1))
    one, limit = np.ones(1, np.intp), np.array([len(gain) * allowed])
    return Benefit(one, np.array([[4 * len(gain)]]), one, middle, low, high, limit, 0, users)


def text(b: Benefit, unit: str = "", largest: float = 50.0, *, withdrawn: bool = False) -> list[str]:
    return b.describe(unit, users="users", largest=largest, withdrawn=withdrawn)


def test_the_paper_s_regression_counts_every_decision() -> None:
    a, b = paper(), paper().benefit
    assert b.allocation.sum() == 240 == a.status.decisions
    offers = offers_now(a.data.state)
    assert not isinstance(a.fit, FittedModel)
    effect = (offers.features[0] - offers.control_features[0]) @ a.fit.theta  # all users weigh alike
    assert b.gain[-1] == pytest.approx(effect[a.data.arm].sum())
    truth = sum(PAPER_EFFECT[a.data.state.problem.arms[k]] for k in a.data.arm)
    assert b.gain_low[-1] <= truth <= b.gain_high[-1]
    assert b.verdict == "the agreed limit was kept"
    assert (np.diff(b.allowed) < 0).all()
    assert b.expected_shortfalls == 0
    worse = FIELD | {"arms": {"old": {}, "bad": {}}, "policy": {"name": "uniform"}}
    short = analyse(grown(worse, 3, times=20.0)).benefit
    assert sum(x.shortfalls for x in short.users) == short.expected_shortfalls > 0


def test_a_trial_that_only_gave_the_control_has_gained_nothing() -> None:
    trial = Trial.create(PAPER | {"users": {"u0": {}}, "tolerance": {"absolute": 1e-6}}, MemoryStore())
    for episode in range(3):
        trial.open_episode({"u0": {"rain": 5.0}})
        given = trial.ask("u0", unavailable=["good", "bad"])
        trial.tell(given.id, {"yield": 7.0 + episode, "cost": 20.0})
    found = analyse(trial)
    assert (found.benefit.gain.tolist(), found.benefit.gain_high.tolist()) == ([0.0] * 3, [0.0] * 3)
    assert any("Only the control was given" in s for s in summary(found))


@pytest.mark.parametrize("kind", ["field", "people"])
def test_gains_are_sums_over_decisions_and_over_users(kind: str) -> None:
    """In whatever episodes decisions were, and for one user alone, a sum is one combination of effects."""
    a: Analysis = field() if kind == "field" else people()
    assert isinstance(a.fit, FittedModel)
    data, b = a.data, a.benefit
    own = {(x.who, x.arm): x.estimate for x in a.own_effects}
    if kind == "people":  # no contexts: every decision is worth the user's own effect
        names = list(data.state.users)
        total = sum(own[names[user], ARMS[arm]] for user, arm in zip(data.user, data.arm, strict=True))
        assert b.gain[-1] == pytest.approx(total, rel=1e-6)
    assert b.gain_low[-1] < b.gain[-1] < b.gain_high[-1]
    assert sum(x.gain for x in b.users) == pytest.approx(b.gain[-1])
    assert sum(x.allowed for x in b.users) == pytest.approx(b.allowed[-1])
    once = mixed_gains(replace(data, episode=np.ones_like(data.episode)), a.fit).total
    assert (once.value[0], once.low[0]) == pytest.approx((b.gain[-1], b.gain_low[-1]), rel=1e-6)
    user = int(data.user[0])
    rows = np.flatnonzero(data.user == user)
    columns = [f.name for f in fields(data) if isinstance(getattr(data, f.name), np.ndarray)]
    alone = mixed_gains(replace(data, **{name: getattr(data, name)[rows] for name in columns}), a.fit).total
    assert (alone.value[-1], alone.low[-1]) == pytest.approx((b.users[user].gain, b.users[user].low), rel=1e-6)


@pytest.mark.parametrize("kind", ["field", "people"])
def test_one_decision_has_the_range_of_its_arm_s_effect(kind: str) -> None:
    a = analyse(grown({k: v for k, v in FIELD.items() if k != "context"} if kind == "field" else PEOPLE, 2))
    own, compared = {(x.who, x.arm): x for x in a.own_effects}, 0
    for h, mine in enumerate(a.benefit.users):
        others = [ARMS[k] for k in a.data.arm[a.data.user == h] if ARMS[k] != "old"]
        if len(others) == 1:
            compared += 1
            assert (mine.low, mine.high) == pytest.approx(own[mine.user, others[0]].ends, rel=1e-6)
    assert compared, "a user got the control but once"


@pytest.mark.parametrize(
    ("gain", "half", "verdict"),
    [
        (0.0, 1.0, "the agreed limit was kept"),
        (0.0, 3.0, "the agreed limit was kept by the estimate, but not certainly"),
        (-3.0, 3.0, "by the estimate the agreed limit was not kept, but not certainly"),
        (-9.0, 3.0, "the agreed limit was not kept"),
    ],
)
def test_the_promise_is_judged_by_the_range(gain: float, half: float, verdict: str) -> None:
    assert made([gain], half, allowed=-2.0).verdict == verdict


def test_verdicts_of_users_follow_from_the_range() -> None:
    (one,) = made([5.0], 4.0).users
    assert one.verdict == "not worse off"
    assert replace(one, low=-1.0).verdict == "open"
    assert replace(one, low=-9.0, high=-1.0).verdict == "worse off"


def test_losers_are_named_with_how_sure_that_is() -> None:
    assert text(made([5.0, -3.0, -8.0], 4.0), "EUR")[0] == (
        "2 of 3 users are estimated to have earned less than under the control, all their decisions together: "
        "site 2 −8 EUR, site 1 −3 EUR; 1 of them certainly."
    )
    none = "None of 2 users is estimated to have earned less than under the control."
    assert text(made([5.0, 3.0], 4.0))[0] == none
    assert "and 3 more; 8 of them certainly" in text(made([-1.0] * 8, 0.5))[0]
    assert "without a guarantee" in text(made([-1.0] * 8, 0.5), withdrawn=True)[0]


def test_worst_cases_are_compared_with_limits() -> None:
    assert any("Even the worst case" in s for s in text(made([5.0, 3.0], 20.0)))
    assert any("is below the agreed limit, −20." in s for s in text(made([5.0, 3.0], 60.0)))


def test_a_limit_beyond_every_effect_is_called_weak() -> None:
    weak = text(made([5.0, 3.0], 4.0, allowed=-1096.0), "EUR/ha", 135.0)
    limit = "allows 274 EUR/ha in each decision, and the largest estimated effect of an arm is 135"
    assert any(limit in s for s in weak)
    assert not any("promises little" in s for s in text(made([5.0], 4.0)))
