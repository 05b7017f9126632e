"""Differences between policies on one log, and values about which nothing is known."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.errors import InputError, UnknownNameError
from drimed.evaluation import estimators as est
from drimed.evaluation import target
from drimed.evaluation.evaluate import Plan, Tally, evaluate
from drimed.evaluation.log import make_log
from tests.evaluation.logs import MEANS, TARGET, drawn

TARGETS = [target.uniform(), target.fixed("mine", TARGET), target.logged()]
PLAN = Plan(targets=TARGETS, estimators=[est.ips(), est.snips(), est.dr()], against="uniform")


def test_a_difference_has_the_spread_of_the_differences_decision_by_decision() -> None:
    log, _ = drawn(300)
    found = {(d.target, d.estimator): d for d in evaluate(log, PLAN).differences}
    assert set(found) == {(t, e) for t in ("mine", "logged") for e in ("ips", "snips", "dr")}
    weight = np.take(TARGET, log.action) / log.propensity - 1 / 3 / log.propensity
    terms = weight * log.reward
    assert found["mine", "ips"].value == pytest.approx(terms.mean())
    assert found["mine", "ips"].standard_error == pytest.approx(terms.std(ddof=1) / np.sqrt(300))


def test_a_difference_is_that_of_the_values_and_streams_and_merges() -> None:
    log, _ = drawn(200)
    whole = evaluate(log, PLAN)
    streamed = evaluate([log.rows(a, b) for a, b in itertools.pairwise((0, 30, 31, 200))], PLAN)
    left, right = Tally(PLAN), Tally(PLAN)
    left.add(log.rows(0, 90))
    right.add(log.rows(90, 200))
    for d, s, m in zip(whole.differences, streamed.differences, left.merge(right).result().differences, strict=True):
        apart = whole.estimate(d.target, d.estimator).value - whole.estimate("uniform", d.estimator).value
        assert d.value == pytest.approx(apart, abs=1e-12)
        np.testing.assert_allclose([s.value, s.standard_error], [d.value, d.standard_error], rtol=1e-9)
        np.testing.assert_allclose([m.value, m.standard_error], [d.value, d.standard_error], rtol=1e-9)
    assert whole.as_dict()["differences"][0]["against"] == "uniform"


def test_intervals_of_differences_cover() -> None:
    truth = float(MEANS @ TARGET - MEANS.mean())
    inside = []
    for seed in range(200):
        log, _ = drawn(400, seed=seed)
        found = [d for d in evaluate(log, PLAN).differences if d.target == "mine"]
        inside.append([d.interval.low <= truth <= d.interval.high for d in found])
    assert (np.mean(inside, axis=0) > 0.90).all()  # 95% less 3.2 standard errors of 200 logs


def test_policies_that_do_the_same_differ_by_nothing_and_have_no_interval() -> None:
    log, _ = drawn(100)
    plan = replace(PLAN, targets=[target.uniform(), target.fixed("same", np.full(3, 1 / 3))])
    for d in evaluate(log, plan).differences:
        assert d.value == pytest.approx(0, abs=1e-12)
        assert np.isnan(d.standard_error)
        assert np.isnan(d.interval.low)


def test_a_refused_policy_has_no_difference_and_an_unknown_one_is_named() -> None:
    log = make_log(action=[0, 1, 0], reward=[1.0, 0.0, 1.0], probabilities=[[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
    plan = Plan(targets=[target.always("0"), target.always("1")], estimators=[est.ips()], against="arm=0")
    assert evaluate(log, plan).differences == []
    with pytest.raises(UnknownNameError, match="arm=0"):
        replace(plan, against="arm=O")


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_decisions_that_all_say_the_same_give_a_value_and_no_interval(offset: float) -> None:
    rewards = [1.0 + offset, 3.0, 1.0 + offset, 2.0]
    log = make_log(action=[0, 1, 0, 1], reward=rewards, propensity=[0.3, 0.5, 0.7, 0.5])
    plan = Plan(targets=[target.always("0")], estimators=[est.snips(), est.ips()], resamples=50)
    found = evaluate(log, plan)
    snips = found.estimate("arm=0", "snips")
    assert snips.value == pytest.approx(1 + offset)
    assert np.isnan([snips.standard_error, snips.interval.low, snips.interval.high]).all()
    assert found.estimate("arm=0", "ips").standard_error > 0
    assert any("no interval for snips" in text for text in found.warnings["arm=0"])
    assert found.as_dict()["estimates"][0]["interval"]["low"] is None


def test_four_decisions_are_few_whatever_their_weights() -> None:
    log = make_log(action=[0, 1, 0, 1], reward=[1.0, 0.0, 0.5, 0.0], propensity=[0.5] * 4)
    (told,) = evaluate(log, Plan(targets=[target.uniform()], estimators=[est.ips()])).warnings["uniform"]
    assert told.startswith("only 4 of 4 decisions count effectively: normal")


def test_the_path_of_a_log_is_refused_with_how_to_read_it() -> None:
    path: Any = "log.csv"
    with pytest.raises(InputError, match=r"must be read first: evaluate\(read_log\('log.csv'\), plan\)"):
        evaluate(path, PLAN)
