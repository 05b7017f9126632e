"""Streaming equals whole, order does not matter, units do not matter, and refusals are marked."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drimed.errors import ConfigError, InputError
from drimed.evaluation import estimators as est
from drimed.evaluation import target
from drimed.evaluation.evaluate import ROWS, Estimate, Evaluation, Plan, Tally, evaluate
from drimed.evaluation.log import Log, make_log
from tests.evaluation.logs import MEANS, TARGET, drawn, value

ALL = [est.parse(name) for name in est.ESTIMATORS if name != "replay"] + [est.replay(bound=20.0)]
TARGETS = [target.uniform(), target.fixed("mine", TARGET), target.logged()]
PLAN = Plan(targets=TARGETS, estimators=ALL)


def numbers(found: Evaluation) -> list[float]:
    return [n for e in found.estimates for n in (e.value, e.standard_error, e.interval.low, e.interval.high)]


def reordered(log: Log, order: Any) -> Log:
    moved = {
        name: getattr(log, name)[order]
        for name in ("action", "reward", "propensity", "probabilities", "predictions", "user", "episode", "metrics")
    }
    return replace(log, **moved)


@given(n=st.integers(2, 60), cuts=st.lists(st.integers(0, 60), max_size=4), seed=st.integers(0, 50))
@settings(max_examples=40)
def test_pieces_of_any_length_give_the_whole(n: int, cuts: list[int], seed: int) -> None:
    log, _ = drawn(n, seed=seed)
    plan = replace(PLAN, reward_range=(0.0, 1.0), resamples=8, by_user=True)
    ends = [0, *sorted(min(c, n) for c in cuts), n]
    pieces = [log.rows(a, b) for a, b in itertools.pairwise(ends)]
    whole, streamed = evaluate(log, plan), evaluate(pieces, plan)
    np.testing.assert_allclose(numbers(streamed), numbers(whole), rtol=1e-10, atol=1e-12)
    for a, b in zip(streamed.estimates, whole.estimates, strict=True):
        assert a.refused == b.refused
        for mine, theirs in ((a.anytime, b.anytime), (a.bootstrap, b.bootstrap)):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                np.testing.assert_allclose([mine.low, mine.high], [theirs.low, theirs.high], rtol=1e-10)
    first, second = streamed.overlaps["mine"], whole.overlaps["mine"]
    assert first is not None
    assert second is not None
    assert first.by_user.keys() == second.by_user.keys()
    for user, weights in first.by_user.items():
        assert weights.effective == pytest.approx(second.by_user[user].effective)


@given(seed=st.integers(0, 100))
@settings(max_examples=30)
def test_the_order_of_decisions_does_not_matter(seed: int) -> None:
    log, _ = drawn(40, seed=seed)
    plan = replace(PLAN, estimators=ALL[:-1])  # replay draws a number for each place in the log
    order = np.random.default_rng(seed).permutation(40)
    np.testing.assert_allclose(
        numbers(evaluate(reordered(log, order), plan)), numbers(evaluate(log, plan)), rtol=1e-9, atol=1e-12
    )


@given(scale=st.floats(0.01, 100.0), seed=st.integers(0, 100))
@settings(max_examples=30)
def test_rewards_in_other_units_give_values_in_other_units(scale: float, seed: int) -> None:
    log, _ = drawn(40, seed=seed)
    assert log.predictions is not None
    other = replace(log, reward=scale * log.reward, predictions=scale * log.predictions)
    # A standard error of zero is one of round-off: the root of 1e-16, about.
    np.testing.assert_allclose(
        numbers(evaluate(other, PLAN)), scale * np.array(numbers(evaluate(log, PLAN))), rtol=1e-9, atol=1e-7 * scale
    )


def test_tallies_of_two_processes_merge() -> None:
    log, _ = drawn(100)
    plan = replace(PLAN, resamples=5)
    left, right = Tally(plan), Tally(plan)
    left.add(log.rows(0, 30))
    right.add(log.rows(30, 100))
    np.testing.assert_allclose(numbers(left.merge(right).result()), numbers(evaluate(log, plan)), rtol=1e-10)
    with pytest.raises(ConfigError, match="do not merge"):
        Tally(replace(PLAN, reward_range=(0.0, 1.0))).merge(left)


def test_a_piece_longer_than_the_cache_is_cut() -> None:
    n = ROWS + 10
    log = make_log(action=np.arange(n) % 2, reward=np.arange(n) / n, propensity=np.full(n, 0.5))
    plan = Plan(targets=[target.uniform()], estimators=[est.ips()])
    assert evaluate(log, plan).estimates[0].value == pytest.approx(log.reward.mean())


def test_normal_and_bootstrap_intervals_agree_and_cover() -> None:
    inside = []
    for seed in range(200):
        log, _ = drawn(400, seed=seed)
        found = evaluate(log, Plan(targets=TARGETS[1:2], estimators=[est.ips(), est.snips(), est.dr()]))
        truth = float(MEANS @ TARGET)  # x is symmetric around 0
        inside.append([e.interval.low <= truth <= e.interval.high for e in found.estimates])
    share = np.mean(inside, axis=0)
    assert (share > 0.90).all()  # 95% less 3.2 standard errors of 200 logs
    log, _ = drawn(2000)
    e = evaluate(log, Plan(targets=TARGETS[1:2], estimators=[est.snips()], resamples=400)).estimates[0]
    assert e.bootstrap is not None
    assert e.bootstrap.high - e.bootstrap.low == pytest.approx(e.interval.high - e.interval.low, rel=0.15)


def refusals(log: Log, *targets: target.Target) -> dict[str, Estimate]:
    found = evaluate(log, Plan(targets=targets, estimators=[est.ips(), est.dm()]))
    return {f"{e.target}/{e.estimator}": e for e in found.estimates}


def test_an_arm_that_the_log_never_played_is_a_marked_refusal_and_the_model_may_answer() -> None:
    log, _ = drawn(50)
    log = log.rows(0, 50)
    without = replace(
        reordered(log, log.action != 1), probabilities=None
    )  # nobody wrote down that the arm could have been played
    found = refusals(without, target.always("new"), target.always("old"))
    refused = found["arm=new/ips"]
    assert "support is missing: the target plays 'new' in 100.0% of decisions" in (refused.refused or "")
    assert np.isnan(refused.value)
    assert found["arm=new/dm"].refused is None
    assert found["arm=old/ips"].refused is None


def test_an_arm_without_a_chance_at_some_decisions_is_a_refusal_also_if_it_comes_late() -> None:
    log = make_log(action=[0, 1, 0], reward=[1.0, 1.0, 1.0], probabilities=[[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
    found = evaluate([log.rows(0, 2), log.rows(2, 3)], Plan(targets=[target.uniform()], estimators=[est.ips()]))
    assert "in row 3, where the log gave it no chance" in (found.estimates[0].refused or "")


def test_unknown_propensities_are_a_refusal_with_advice() -> None:
    log, _ = drawn(50)
    propensity = log.propensity.copy()
    propensity[31] = np.nan
    found = refusals(replace(log, propensity=propensity), target.uniform())
    assert "first in row 32" in (found["uniform/ips"].refused or "")
    assert found["uniform/dm"].refused is None


def test_without_predictions_only_the_model_based_estimators_are_refused() -> None:
    log, _ = drawn(50)
    found = refusals(replace(log, predictions=None), target.uniform())
    assert found["uniform/ips"].refused is None
    assert "needs predictions" in (found["uniform/dm"].refused or "")


def test_wrong_propensities_are_warned_about() -> None:
    log, _ = drawn(2000)
    wrong = replace(log, propensity=np.clip(log.propensity * 1.5, 0, 1), probabilities=None)
    plan = Plan(targets=[target.uniform()], estimators=[est.ips()])
    assert "instead of 1" in evaluate(wrong, plan).warnings["uniform"][0]
    assert evaluate(log, plan).warnings["uniform"] == []


def test_a_report_is_plain_json_with_refusals_as_null() -> None:
    log, _ = drawn(50)
    plain = evaluate(replace(log, predictions=None), replace(PLAN, by_user=True)).as_dict()
    read = json.loads(json.dumps(plain, allow_nan=False))
    assert {e["value"] is None for e in read["estimates"] if e["refused"]} == {True}
    assert read["overlap"]["mine"]["by_user"]["ada"]["decisions"] > 0


def test_plans_and_logs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one target"):
        Plan(targets=[], estimators=ALL)
    with pytest.raises(ConfigError, match="different names"):
        Plan(targets=TARGETS, estimators=[est.ips(), est.ips()])
    with pytest.raises(ConfigError, match="level"):
        replace(PLAN, level=1.0)
    with pytest.raises(InputError, match="empty"):
        evaluate([], PLAN)
    log, _ = drawn(10)
    with pytest.raises(InputError, match="same arms"):
        evaluate([log, replace(log, arms=("a", "b", "c"))], PLAN)
    with pytest.raises(InputError, match="there are uniform/dm"):
        evaluate(log, PLAN).estimate("uniform", "nothing")


def test_estimates_are_near_the_truth() -> None:
    log, means = drawn(20_000)
    found = evaluate(log, PLAN)
    for name in ("ips", "snips", "dr", "sndr", "dm"):
        e = found.estimate("mine", name)
        assert abs(e.value - value(means, TARGET)) < 5 * e.standard_error + 1e-9
