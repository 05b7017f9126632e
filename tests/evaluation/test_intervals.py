from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.evaluation.estimators import Parts
from drimed.evaluation.intervals import Anytime, Bootstrap, Moments, normal
from drimed.evaluation.target import Decisions
from drimed.linear.arrays import FloatArray
from tests.evaluation.logs import MEANS, TARGET, drawn


def test_the_anytime_interval_holds_at_all_times_and_shrinks() -> None:
    """300 logs, looked at after every 25 decisions."""
    truth, failed, widths = float(MEANS @ TARGET), 0, []
    for seed in range(300):
        log, _ = drawn(1000, seed=seed)
        weight, so_far, held = Decisions(log, TARGET).weight, Anytime.start((0.0, 1.0), 0.9), True
        for at in range(0, 1000, 25):
            so_far = so_far.extend(weight[at : at + 25], log.reward[at : at + 25])
            found = so_far.interval()
            held &= found.low <= truth <= found.high
        failed += not held
        widths.append(found.high - found.low)
    assert failed <= 0.1 * 300  # conservative: the true rate is far below
    assert np.mean(widths) < 0.35


@pytest.mark.parametrize("shape", ["two clinics", "trend"])
def test_the_anytime_interval_follows_a_value_that_changes_along_the_log(shape: str) -> None:
    n, held = 1000, []
    value = np.where(np.arange(n) < n // 2, 0.2, 0.7) if shape == "two clinics" else np.linspace(0.3, 0.5, n)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        weight = np.where(rng.random(n) < 0.5, 2.0, 0.0)
        reward = (rng.random(n) < value).astype(np.float64)
        so_far, inside = Anytime.start((0.0, 1.0), 0.95), True
        for at in range(0, n, 50):
            so_far = so_far.extend(weight[at : at + 50], reward[at : at + 50])
            found, truth = so_far.interval(), value[: at + 50].mean()
            inside &= found.low <= truth <= found.high
        held.append(inside)
    assert np.mean(held) >= 0.95


def test_rewards_outside_their_range_are_refused() -> None:
    log, _ = drawn(100)
    with pytest.raises(InputError, match=r"rewards must be within 0\.0 to 0\.5"):
        Anytime.start((0.0, 0.5), 0.9).extend(Decisions(log, TARGET).weight, log.reward)
    with pytest.raises(ConfigError, match="from low to high"):
        Anytime.start((1.0, 0.0), 0.9)


def test_a_reward_in_other_units_has_its_interval_in_other_units() -> None:
    log, _ = drawn(500)
    w = Decisions(log, TARGET).weight
    here = Anytime.start((0.0, 1.0), 0.9).extend(w, log.reward).interval()
    there = Anytime.start((-5.0, 15.0), 0.9).extend(w, 20 * log.reward - 5).interval()
    assert there.low == pytest.approx(20 * here.low - 5)
    assert there.high == pytest.approx(20 * here.high - 5)


def test_a_bootstrap_knows_the_standard_error_of_a_mean() -> None:
    x = np.random.default_rng(0).standard_normal(2000)
    found = Bootstrap.of(Parts(base=x), start=0, resamples=2000).interval(0.95)
    assert found.high - found.low == pytest.approx(2 * 1.96 * x.std() / np.sqrt(2000), rel=0.06)


def test_a_bootstrap_without_any_weight_says_so() -> None:
    found = Bootstrap.of(Parts(correction=np.zeros(5), normaliser=np.zeros(5)), start=0, resamples=4).interval(0.9)
    assert np.isnan(found.low)


def test_levels_and_resamples_are_checked() -> None:
    with pytest.raises(ConfigError, match="level"):
        normal(0.0, 1.0, 95)
    with pytest.raises(ConfigError, match="resamples"):
        Bootstrap.of(Parts(base=np.ones(3)), start=0, resamples=1)


ROWS = st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1.0, 1.0)), min_size=1, max_size=30)


def columns(rows: list[tuple[float, float]]) -> list[FloatArray]:
    return list(np.array(rows).T)


@given(rows=ROWS, cut=st.integers(0, 30), far=st.sampled_from([0.0, 1e6]))
def test_pieces_merge_to_the_whole_also_far_from_zero(rows: list[tuple[float, float]], cut: int, far: float) -> None:
    whole = [c + far for c in columns(rows)]
    merged = Moments.of([c[:cut] for c in whole]).merge(Moments.of([c[cut:] for c in whole]))
    expected = Moments.of(whole)
    assert merged.count == expected.count
    np.testing.assert_allclose(merged.mean, expected.mean, rtol=1e-13, atol=1e-10)
    np.testing.assert_allclose(merged.scatter, expected.scatter, rtol=1e-9, atol=1e-9 * max(far, 1.0))


@given(rows=ROWS)
def test_covariance_is_that_of_numpy(rows: list[tuple[float, float]]) -> None:
    found = Moments.of(columns(rows)).covariance
    if len(rows) > 1:
        np.testing.assert_allclose(found, np.cov(np.array(rows).T), rtol=1e-9, atol=1e-9)
    else:
        assert (found == 0).all()


def test_other_columns_do_not_merge() -> None:
    with pytest.raises(ShapeError, match="1 and 2 columns"):
        Moments.of([np.ones(3)]).merge(Moments.of([np.ones(3)] * 2))
