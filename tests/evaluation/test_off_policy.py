"""Estimates are unbiased and their intervals cover; streaming equals whole; refusals are marked."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drimed.errors import DrimedError, InputError, UnknownNameError
from drimed.evaluation.decision_log import ROWS, Log, make_log
from drimed.evaluation.off_policy import (
    BIASED,
    ESTIMATORS,
    Estimate,
    Evaluation,
    EvaluationPlan,
    Evaluator,
    Sums,
    TargetPolicy,
    estimator_terms,
    evaluate,
    weights,
)
from drimed.numerics.arrays import FloatArray
from tests.evaluation.logs import MEANS, TARGET, drawn, value

TARGETS = [TargetPolicy.uniform(), TargetPolicy.fixed("mine", TARGET), TargetPolicy.logged()]
PLAN = EvaluationPlan(targets=TARGETS, estimators=list(ESTIMATORS), against="uniform")
REPLICATIONS, N = 400, 200
FALSE_ALARM = 4.5  # standard errors: a right estimator fails once in 150,000 choices of the seed
LOG, _ = drawn(20)


# Estimators


def estimated(name: str, log: Log, target: FloatArray) -> float:
    sums = Sums()
    sums.add(len(log), estimator_terms([name], log, target, weights(log, target))[name])
    return sums.estimate()[0]


@cache
def replications(wrong_model: float) -> list[tuple[Log, float]]:
    """Logs, and the target's true value on each."""
    logs = (drawn(N, seed=i, wrong_model=wrong_model) for i in range(REPLICATIONS))
    return [(log, value(means, TARGET)) for log, means in logs]


def errors_of(name: str, wrong_model: float) -> FloatArray:
    """Estimate minus truth in each replication: (REPLICATIONS,)."""
    return np.array([estimated(name, log, TARGET) - truth for log, truth in replications(wrong_model)])


def off(errors: FloatArray) -> float:
    """The mean error in standard errors."""
    return float(abs(errors.mean()) / (errors.std() / np.sqrt(len(errors))))


def test_weighting_is_unbiased_whatever_the_model_and_ratios_nearly_so() -> None:
    """The bias of ratios is of order 1 / n, far below the noise of one estimate."""
    assert max(off(errors_of(name, wrong_model=0.3)) for name in ("ips", "dr")) < FALSE_ALARM
    for errors in (errors_of(name, wrong_model=0.0) for name in ("snips", "sndr")):
        assert abs(errors.mean()) < 0.2 * errors.std()  # four standard errors


def test_a_wrong_model_biases_the_direct_method_and_a_good_one_makes_doubly_robust_less_noisy() -> None:
    assert errors_of("dm", wrong_model=0.3).mean() == pytest.approx(0.3 * TARGET[-1])
    assert np.abs(errors_of("dm", wrong_model=0.0)).max() < 1e-12
    assert errors_of("dr", 0.0).std() < 0.8 * errors_of("ips", 0.0).std()


def test_on_its_own_policy_every_weight_is_one() -> None:
    assert LOG.probabilities is not None
    np.testing.assert_allclose(weights(LOG, LOG.probabilities), 1.0)
    for name in ("ips", "snips"):
        assert estimated(name, LOG, LOG.probabilities) == pytest.approx(LOG.reward.mean())


CAMPAIGNS = [("random", "all"), ("bts", "men")]
THEIR_NAMES = {
    "ips": "InverseProbabilityWeighting",
    "snips": "SelfNormalizedInverseProbabilityWeighting",
    "dm": "DirectMethod",
    "dr": "DoublyRobust",
    "sndr": "SelfNormalizedDoublyRobust",
}


def _package() -> Path:
    spec = importlib.util.find_spec("obp")
    if spec is None or spec.origin is None:
        pytest.skip("obp is not installed: pip install --no-deps obp")
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def theirs() -> Iterator[Any]:
    """The module obp.ope.estimators, without the rest of its package.

    Two imports are stood in for: torch, which it uses for tensors, and a function of scikit-learn, which it uses for a
    bootstrap; neither is reached here.
    """
    root = _package()
    fakes: dict[str, Any] = {name: types.ModuleType(name) for name in ("torch", "sklearn", "sklearn.utils")}
    fakes["torch"].Tensor = type("Tensor", (), {})
    fakes["sklearn.utils"].check_random_state = None
    package, ope = types.ModuleType("_obp"), types.ModuleType("_obp.ope")
    package.__path__, ope.__path__ = [str(root)], [str(root / "ope")]
    with pytest.MonkeyPatch.context() as patch:
        for name, module in (fakes | {"_obp": package, "_obp.ope": ope}).items():
            patch.setitem(sys.modules, name, module)
        yield importlib.import_module("_obp.ope.estimators")


@pytest.mark.parametrize(("policy", "campaign"), CAMPAIGNS)
def test_open_bandit_data_gives_the_numbers_of_the_open_bandit_pipeline(
    theirs: Any, policy: str, campaign: str
) -> None:
    path = _package() / "dataset" / "obd" / policy / campaign / f"{campaign}.csv"
    item, position, click, propensity = np.genfromtxt(path, delimiter=",", skip_header=1, usecols=(2, 3, 4, 5)).T
    action = item.astype(np.intp)
    n, K = len(action), int(action.max()) + 1
    assert n == 10_000
    rng = np.random.default_rng(0)
    target = rng.dirichlet(np.ones(K), size=3)[position.astype(int) - 1]  # another lottery in each place on the page
    q = np.clip(0.004 + 0.002 * rng.standard_normal((n, K)), 0, 1)
    log = make_log(action=action, reward=click, propensity=propensity, predictions=q, arms=K)
    for name, cls in THEIR_NAMES.items():
        values: dict[str, Any] = {
            "reward": log.reward,
            "action": log.action,
            "pscore": log.propensity,
            "action_dist": target[:, :, None],
            "position": np.zeros(n, dtype=int),
        }
        if name not in ("ips", "snips"):
            values["estimated_rewards_by_reg_model"] = q[:, :, None]
        expected = getattr(theirs, cls)().estimate_policy_value(**values)
        assert estimated(name, log, target) == pytest.approx(float(expected), abs=1e-9, rel=1e-9), name


# Targets


def test_uniform_plays_the_available_arms_only() -> None:
    mask = np.array([[True, True, False], [True, True, True]])
    log = make_log(action=[0, 1], reward=[0.0, 0.0], propensity=[0.5, 0.5], arms=3, available=mask)
    assert TargetPolicy.uniform().probabilities(log).tolist() == [[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]
    assert TargetPolicy.uniform().probabilities(LOG).tolist() == [1 / 3] * 3


def test_targets_are_parsed_by_name() -> None:
    assert TargetPolicy.parse("control", control="old").probabilities(LOG).tolist() == [1.0, 0.0, 0.0]
    assert TargetPolicy.parse("arm=new").probabilities(LOG).tolist() == [0.0, 1.0, 0.0]
    np.testing.assert_array_equal(TargetPolicy.parse("logged").probabilities(LOG), LOG.probabilities)
    for text in ("unifrom", "arm=", "columns=", "arm"):
        with pytest.raises(UnknownNameError, match="unknown target policy"):
            TargetPolicy.parse(text)
    with pytest.raises(InputError, match="--control NAME"):
        TargetPolicy.parse("control")
    with pytest.raises(UnknownNameError, match="unknown arm 'odl'; did you mean 'old'"):
        TargetPolicy.parse("control", control="odl").probabilities(LOG)


def test_targets_that_the_log_cannot_answer_are_refused() -> None:
    log = make_log(action=[0], reward=[0.0], propensity=[0.5])
    with pytest.raises(InputError, match="only that of the arm played"):
        TargetPolicy.logged().probabilities(log)
    with pytest.raises(InputError, match="has 2 arms, the log has 3"):
        TargetPolicy.fixed("narrow", [0.5, 0.5]).probabilities(LOG)
    with pytest.raises(InputError, match="no target probabilities under 'pi_'"):
        TargetPolicy.columns("pi_").probabilities(LOG)


def test_a_target_with_a_row_for_each_decision_follows_the_pieces() -> None:
    rows = np.eye(3)[np.arange(20) % 3]
    each = TargetPolicy.fixed("mine", rows)
    np.testing.assert_array_equal(each.probabilities(LOG.rows(5, 9)), rows[5:9])
    with pytest.raises(InputError, match="has 3 rows, the log has at least 20"):
        TargetPolicy.fixed("short", rows[:3]).probabilities(LOG)


def test_users_may_have_a_lottery_each() -> None:
    p = TargetPolicy.by_user("advice", {"ada": [1.0, 0.0, 0.0], "bob": [0.0, 0.0, 1.0]}).probabilities(LOG)
    assert LOG.user is not None
    assert (p[LOG.user == "ada", 0] == 1).all()
    assert (p[LOG.user == "bob", 2] == 1).all()
    with pytest.raises(InputError, match="says nothing about user 'bob'"):
        TargetPolicy.by_user("half", {"ada": [1.0, 0.0, 0.0]}).probabilities(LOG)


# Streaming, order, units


def numbers(found: Evaluation) -> list[float]:
    each: list[Any] = [*found.estimates, *found.differences]
    return [n for e in each for n in (e.value, e.standard_error, e.interval.low, e.interval.high)]


def reordered(log: Log, order: Any) -> Log:
    names = ("action", "reward", "propensity", "probabilities", "predictions", "user")
    return replace(log, **{name: getattr(log, name)[order] for name in names})


@given(n=st.integers(2, 60), cuts=st.lists(st.integers(0, 60), max_size=4), seed=st.integers(0, 50))
@settings(max_examples=20)
def test_pieces_of_any_length_give_the_whole(n: int, cuts: list[int], seed: int) -> None:
    log, _ = drawn(n, seed=seed)
    plan = replace(PLAN, reward_range=(0.0, 1.0), by_user=True)
    ends = [0, *sorted(min(c, n) for c in cuts), n]
    whole = evaluate(log, plan)
    streamed = evaluate([log.rows(a, b) for a, b in itertools.pairwise(ends)], plan)
    np.testing.assert_allclose(numbers(streamed), numbers(whole), rtol=1e-9, atol=1e-12)
    for a, b in zip(streamed.estimates, whole.estimates, strict=True):
        assert a.refused == b.refused
        if a.anytime is not None and b.anytime is not None:
            np.testing.assert_allclose([a.anytime.low, a.anytime.high], [b.anytime.low, b.anytime.high], rtol=1e-10)
    first, second = streamed.overlaps["mine"], whole.overlaps["mine"]
    assert first is not None
    assert second is not None
    assert first.effective == pytest.approx(second.effective)
    sizes = {user: pytest.approx(each.effective) for user, each in second.by_user.items()}
    assert {user: each.effective for user, each in first.by_user.items()} == sizes


@given(scale=st.floats(0.01, 100.0), seed=st.integers(0, 100))
@settings(max_examples=15)
def test_the_order_of_decisions_does_not_matter_and_units_carry_over(scale: float, seed: int) -> None:
    log, _ = drawn(40, seed=seed)
    assert log.predictions is not None
    moved = reordered(log, np.random.default_rng(seed).permutation(40))
    other = replace(moved, reward=scale * moved.reward, predictions=scale * np.asarray(moved.predictions))
    # A standard error of zero is one of round-off: the root of 1e-16, about.
    np.testing.assert_allclose(
        numbers(evaluate(other, PLAN)), scale * np.array(numbers(evaluate(log, PLAN))), rtol=1e-9, atol=1e-7 * scale
    )


def test_a_piece_longer_than_the_cache_is_cut() -> None:
    n = ROWS + 10
    log = make_log(action=np.arange(n) % 2, reward=np.arange(n) / n, propensity=np.full(n, 0.5))
    plan = EvaluationPlan(targets=[TargetPolicy.uniform()], estimators=["ips"])
    assert evaluate(log, plan).estimates[0].value == pytest.approx(log.reward.mean())


# Intervals


def test_normal_intervals_cover_values_and_differences() -> None:
    truth, gain = float(MEANS @ TARGET), float(MEANS @ TARGET - MEANS.mean())  # x is symmetric around 0
    plan, inside = replace(PLAN, targets=TARGETS[:2], estimators=["ips", "snips", "dr"]), []
    for seed in range(100):
        found = evaluate(drawn(400, seed=seed)[0], plan)
        values = [e.interval.low <= truth <= e.interval.high for e in found.estimates if e.target == "mine"]
        inside.append(values + [d.interval.low <= gain <= d.interval.high for d in found.differences])
    assert (np.mean(inside, axis=0) > 0.88).all()  # 95% less 3.2 standard errors of 100 logs


def test_the_anytime_interval_holds_at_all_times_also_where_the_value_changes() -> None:
    """100 logs of two clinics, one after the other, looked at after every 100 decisions."""
    plan = EvaluationPlan(targets=[TargetPolicy.always("1")], estimators=["ips"], reward_range=(0.0, 1.0))
    n, held, widths = 1000, [], []
    value_at = np.where(np.arange(n) < n // 2, 0.2, 0.7)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        action = (rng.random(n) < 0.5).astype(np.intp)
        reward = (rng.random(n) < value_at).astype(np.float64)
        log = make_log(action=action, reward=reward, propensity=np.full(n, 0.5))
        evaluator, inside = Evaluator(plan), True
        for at in range(0, n, 100):
            evaluator.add(log.rows(at, at + 100))
            found, truth = evaluator.result().estimates[0].anytime, value_at[: at + 100].mean()
            assert found is not None
            inside, width = inside and found.low <= truth <= found.high, found.high - found.low
        held.append(inside)
        widths.append(width)
    assert np.mean(held) >= 0.95
    assert np.mean(widths) < 0.35


def test_a_reward_in_other_units_has_its_anytime_interval_in_other_units() -> None:
    def interval(log: Log, low: float, high: float) -> list[float]:
        plan = EvaluationPlan(targets=TARGETS[1:2], reward_range=(low, high), level=0.9)
        found = evaluate(log, plan).estimate("mine", "ips").anytime
        assert found is not None
        return [found.low, found.high]

    log, _ = drawn(500)
    there = interval(replace(log, reward=20 * log.reward - 5), -5.0, 15.0)
    assert there == pytest.approx([20 * end - 5 for end in interval(log, 0.0, 1.0)])
    with pytest.raises(InputError, match=r"rewards must be within 0\.0 to 0\.5"):
        interval(log, 0.0, 0.5)


def test_a_difference_has_the_spread_of_the_differences_decision_by_decision() -> None:
    log, _ = drawn(300)
    whole = evaluate(log, PLAN)
    found = {(d.target, d.estimator): d for d in whole.differences}
    assert set(found) == {(t, e) for t in ("mine", "logged") for e in ESTIMATORS}
    terms = (np.take(TARGET, log.action) - 1 / 3) / log.propensity * log.reward
    assert found["mine", "ips"].value == pytest.approx(terms.mean())
    assert found["mine", "ips"].standard_error == pytest.approx(terms.std(ddof=1) / np.sqrt(300))
    same = replace(PLAN, targets=[TargetPolicy.uniform(), TargetPolicy.fixed("same", np.full(3, 1 / 3))])
    for d in evaluate(log, same).differences:  # policies that do the same differ by nothing, and have no interval
        assert d.value == pytest.approx(0, abs=1e-12)
        assert np.isnan([d.standard_error, d.interval.low]).all()
    for (target, name), d in found.items():
        apart = whole.estimate(target, name).value - whole.estimate("uniform", name).value
        assert d.value == pytest.approx(apart, abs=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_decisions_that_are_all_the_same_give_a_value_and_no_interval(offset: float) -> None:
    rewards = [1.0 + offset, 3.0, 1.0 + offset, 2.0]
    log = make_log(action=[0, 1, 0, 1], reward=rewards, propensity=[0.3, 0.5, 0.7, 0.5])
    found = evaluate(log, EvaluationPlan(targets=[TargetPolicy.always("0")], estimators=["snips", "ips"]))
    snips = found.estimate("arm=0", "snips")
    assert snips.value == pytest.approx(1 + offset)
    assert np.isnan([snips.standard_error, snips.interval.low, snips.interval.high]).all()
    assert found.estimate("arm=0", "ips").standard_error > 0
    assert any("no interval for snips" in text for text in found.warnings["arm=0"])
    assert found.as_dict()["estimates"][0]["interval"]["low"] is None


# Support, warnings, refusals


def refusals(log: Log, *targets: TargetPolicy) -> dict[str, Estimate]:
    found = evaluate(log, EvaluationPlan(targets=targets, estimators=["ips", "dm"]))
    return {f"{e.target}/{e.estimator}": e for e in found.estimates}


def test_an_arm_that_the_log_never_played_is_a_marked_refusal_and_the_model_may_answer() -> None:
    log, _ = drawn(50)
    without = replace(reordered(log, log.action != 1), probabilities=None)
    found = refusals(without, TargetPolicy.always("new"), TargetPolicy.always("old"))
    refused = found["arm=new/ips"]
    assert "support is missing: the target plays 'new' in 100.0% of decisions" in (refused.refused or "")
    assert np.isnan(refused.value)
    assert found["arm=new/dm"].refused is None
    assert found["arm=old/ips"].refused is None


def test_an_arm_without_a_chance_at_some_decisions_is_a_refusal_also_if_it_comes_late() -> None:
    log = make_log(action=[0, 1, 0], reward=[1.0, 1.0, 1.0], probabilities=[[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
    plan = EvaluationPlan(targets=[TargetPolicy.always("0"), TargetPolicy.uniform()], against="arm=0")
    found = evaluate([log.rows(0, 2), log.rows(2, 3)], plan)
    assert "in row 3, where the log gave it no chance" in (found.estimate("uniform", "ips").refused or "")
    assert found.differences == []
    masked = make_log(action=[0], reward=[1.0], propensity=[1.0], available=[[True, False]], arms=2)
    assert "not available" in (refusals(masked, TargetPolicy.always("1"))["arm=1/ips"].refused or "")


def test_unknown_propensities_are_a_refusal_with_advice() -> None:
    log, _ = drawn(50)
    propensity = log.propensity.copy()
    propensity[31] = np.nan
    found = refusals(replace(log, propensity=propensity), TargetPolicy.uniform())
    assert "first in row 32" in (found["uniform/ips"].refused or "")
    assert "direct method" in (found["uniform/ips"].refused or "")
    assert found["uniform/dm"].refused is None


def test_without_predictions_only_the_model_based_estimators_are_refused() -> None:
    log, _ = drawn(50)
    found = refusals(replace(log, predictions=None), TargetPolicy.uniform())
    assert found["uniform/ips"].refused is None
    assert "needs predictions" in (found["uniform/dm"].refused or "")


def test_wrong_propensities_and_few_decisions_are_warned_about() -> None:
    log, _ = drawn(2000)
    wrong = replace(log, propensity=np.clip(log.propensity * 1.5, 0, 1), probabilities=None)
    plan = EvaluationPlan(targets=[TargetPolicy.uniform()], estimators=["ips"])
    assert "instead of 1" in evaluate(wrong, plan).warnings["uniform"][0]
    assert evaluate(log, plan).warnings["uniform"] == []
    assert evaluate(log, replace(plan, estimators=["dm", "dr"])).warnings["uniform"] == [BIASED]
    four = make_log(action=[0, 1, 0, 1], reward=[1.0, 0.0, 0.5, 0.0], propensity=[0.5] * 4)
    (text,) = evaluate(four, plan).warnings["uniform"]
    assert text.startswith("only 4 of 4 decisions count effectively: normal")


def test_effective_sample_sizes_are_those_of_kish() -> None:
    for played, expected in (([1] * 10, 10), ([0, 0, 1], 1), ([0], 0)):
        log = make_log(action=played, reward=[0.0] * len(played), propensity=[0.5] * len(played), arms=2)
        found = evaluate(log, EvaluationPlan(targets=[TargetPolicy.always("1")])).overlaps["arm=1"]
        assert found is not None
        assert found.effective == expected


def test_users_for_whom_the_target_was_never_played_are_named() -> None:
    log = make_log(action=[0, 1, 1], reward=[0.0] * 3, propensity=[0.5] * 3, user=["ada", "bob", "bob"])
    found = evaluate(log, EvaluationPlan(targets=[TargetPolicy.always("0")], by_user=True))
    assert any("1 users, 'bob' among them" in text for text in found.warnings["arm=0"])


def test_a_report_is_plain_json_with_refusals_as_null() -> None:
    log, _ = drawn(50)
    plain = evaluate(replace(log, predictions=None), replace(PLAN, by_user=True)).as_dict()
    read = json.loads(json.dumps(plain, allow_nan=False))
    assert {e["value"] is None for e in read["estimates"] if e["refused"]} == {True}
    assert read["overlaps"]["mine"]["decisions"] == 50
    assert read["overlaps"]["mine"]["by_user"]["ada"]["decisions"] > 0
    assert read["differences"][0]["against"] == "uniform"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"targets": []}, "at least one target"),
        ({"estimators": ["ips", "ips"]}, "different names"),
        ({"estimators": ["snip"]}, "did you mean 'snips'"),
        ({"against": "unifrm"}, "uniform"),
        ({"level": 1.0}, "level"),
        ({"reward_range": (1.0, 0.0)}, "from low to high"),
    ],
)
def test_plans_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DrimedError, match=message):
        replace(PLAN, **settings)


def test_logs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        evaluate([], PLAN)
    log, _ = drawn(10)
    with pytest.raises(InputError, match="same arms"):
        evaluate([log, replace(log, arms=("a", "b", "c"))], PLAN)
    with pytest.raises(InputError, match="there are uniform/dm"):
        evaluate(log, PLAN).estimate("uniform", "nothing")
    path: Any = "log.csv"
    with pytest.raises(InputError, match=r"must be read first: evaluate\(read_log\('log.csv'\), plan\)"):
        evaluate(path, PLAN)
