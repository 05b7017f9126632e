"""Unbiased where they should be, over replications with a known truth; limits that meet; settings that are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError, UnknownNameError
from drimed.evaluation import estimators as est
from drimed.evaluation.log import make_log
from drimed.evaluation.target import Decisions, missing_support
from drimed.linear.arrays import FloatArray
from tests.evaluation.logs import TARGET, drawn, value

REPLICATIONS, N = 1000, 200
FALSE_ALARM = 4.5  # standard errors: a right estimator fails once in 150,000 choices of the seed
LOG, MEANS = drawn(500, wrong_model=0.3)
HERE = Decisions(LOG, TARGET)


def errors_of(estimator: est.Estimator, wrong_model: float) -> FloatArray:
    """Estimate minus truth in each replication: (REPLICATIONS,)."""
    found = np.empty(REPLICATIONS)
    for i in range(REPLICATIONS):
        log, means = drawn(N, seed=i, wrong_model=wrong_model)
        if estimator.name == "replay":
            estimator = est.replay(estimator.setting, seed=i)
        found[i] = estimator.parts(Decisions(log, TARGET)).terms().mean() - value(means, TARGET)
    return found


def off(errors: FloatArray) -> float:
    """The mean error in standard errors."""
    return float(abs(errors.mean()) / (errors.std() / np.sqrt(len(errors))))


@pytest.mark.parametrize("estimator", [est.ips(), est.dr()], ids=lambda e: e.name)
def test_weighting_is_unbiased_whatever_the_model(estimator: est.Estimator) -> None:
    assert off(errors_of(estimator, wrong_model=0.3)) < FALSE_ALARM


@pytest.mark.parametrize(
    "estimator",
    [est.snips(), est.sndr(), est.replay(bound=8.0)],
    ids=lambda e: e.name,
)
def test_ratios_are_nearly_unbiased(estimator: est.Estimator) -> None:
    """Their bias is of order 1 / n, far below the noise of one estimate."""
    errors = errors_of(estimator, wrong_model=0.0)
    assert abs(errors.mean()) < 0.1 * errors.std()


@pytest.mark.parametrize(
    "estimator",
    [est.dm(), est.switch_dr(threshold=1.5), est.dros(shrinkage=1.0), est.dr()],
    ids=lambda e: e.name,
)
def test_with_a_right_model_every_model_based_estimator_is_unbiased(estimator: est.Estimator) -> None:
    errors = errors_of(estimator, wrong_model=0.0)
    assert abs(errors.mean()) <= FALSE_ALARM * errors.std() / np.sqrt(REPLICATIONS) + 1e-12


def test_a_wrong_model_biases_the_direct_method_and_clipping_biases_ips() -> None:
    assert errors_of(est.dm(), wrong_model=0.3).mean() == pytest.approx(0.3 * TARGET[-1])
    clipped = errors_of(est.clipped(cap=1.0), wrong_model=0.0)
    assert off(clipped) > FALSE_ALARM
    assert clipped.mean() < 0  # rewards are not negative


def test_doubly_robust_is_less_noisy_than_ips_with_a_good_model() -> None:
    assert errors_of(est.dr(), 0.0).std() < 0.8 * errors_of(est.ips(), 0.0).std()


def terms(estimator: est.Estimator) -> FloatArray:
    return estimator.parts(HERE).terms()


def test_limits_of_settings_are_other_estimators() -> None:
    np.testing.assert_allclose(terms(est.dros(shrinkage=0.0)), terms(est.dm()))
    np.testing.assert_allclose(terms(est.dros(shrinkage=np.inf)), terms(est.dr()))
    np.testing.assert_allclose(terms(est.dros(shrinkage=1e14)), terms(est.dr()))
    np.testing.assert_allclose(terms(est.switch_dr(threshold=np.inf)), terms(est.dr()))
    np.testing.assert_allclose(terms(est.switch_dr(threshold=0.0)), terms(est.dm()))
    np.testing.assert_allclose(terms(est.clipped(cap=np.inf)), terms(est.ips()))


def test_on_its_own_policy_every_weight_is_one() -> None:
    assert LOG.probabilities is not None
    own = Decisions(LOG, LOG.probabilities)
    np.testing.assert_allclose(own.weight, 1.0)
    for estimator in (est.ips(), est.snips()):
        assert estimator.parts(own).terms().mean() == pytest.approx(LOG.reward.mean())


def test_replay_of_one_arm_on_a_uniform_log_keeps_the_decisions_that_agree() -> None:
    rng = np.random.default_rng(3)
    action, reward = rng.integers(4, size=200), rng.standard_normal(200)
    log = make_log(action=action, reward=reward, propensity=np.full(200, 0.25), arms=4)
    parts = est.replay().parts(Decisions(log, np.eye(4)[2]))
    assert parts.terms().mean() == pytest.approx(reward[action == 2].mean())


def test_replay_refuses_weights_above_its_bound_and_says_which_would_do() -> None:
    with pytest.raises(InputError, match="give a larger one: replay="):
        est.replay(bound=1.0).parts(HERE)


def test_estimators_say_what_they_miss() -> None:
    bare = make_log(action=[0, 1], reward=[1.0, 2.0], propensity=[0.5, np.nan])
    decisions = Decisions(bare, np.array([0.5, 0.5]))
    with pytest.raises(InputError, match="propensity is unknown"):
        est.ips().parts(decisions)
    with pytest.raises(InputError, match="needs predictions"):
        est.dm().parts(decisions)


def test_missing_support_is_seen_where_the_probabilities_tell() -> None:
    log = make_log(action=[0, 0], reward=[1.0, 2.0], probabilities=[[0.5, 0.5], [1.0, 0.0]], start=10)
    told = missing_support(log, np.array([0.5, 0.5]))
    assert told is not None
    assert "plays '1' in row 12" in told
    assert missing_support(log, np.array([1.0, 0.0])) is None
    masked = make_log(action=[0], reward=[1.0], propensity=[1.0], available=[[True, False]], arms=2)
    assert "not available" in (missing_support(masked, np.array([0.0, 1.0])) or "")


def test_estimators_are_parsed_with_their_setting() -> None:
    assert [est.parse(name).name for name in est.ESTIMATORS] == list(est.ESTIMATORS)
    assert est.parse("clipped=3") == replace(est.clipped(cap=3.0), name="clipped=3")
    assert est.parse("replay=20") == replace(est.replay(bound=20.0), name="replay=20")


@pytest.mark.parametrize("text", ["ips=3", "clipped=x", "clipped=0", "switch-dr=-1", "dros=-1", "replay=0"])
def test_wrong_settings_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        est.parse(text)


def test_an_unknown_estimator_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'snips'"):
        est.parse("snip")
