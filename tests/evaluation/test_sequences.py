"""Confidence sequences hold at all times at once; what a fixed-time interval does instead is shown beside them.

A sequence at level alpha = 0.1 is allowed 10% of runs; with 1000 runs the tests allow no more than that. The bounded
ones are conservative, so a sound one fails these tests less than once in 10^4 choices of the seed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drimed.errors import ConfigError, InputError
from drimed.evaluation.sequences import Band, Bernstein, asymptotic, bernstein, betting, mixture
from drimed.linear.arrays import FloatArray

RUNS, N, ALPHA = 1000, 400, 0.1
RNG = np.random.default_rng(0)


def coins(p: float) -> FloatArray:
    return (np.random.default_rng(int(1000 * p)).random((RUNS, N)) < p).astype(np.float64)


@pytest.mark.parametrize("p", [0.5, 0.05])
def test_bernstein_holds_at_all_times(p: float) -> None:
    band = bernstein(coins(p), ALPHA)
    assert (~band.holds(p)).mean() <= ALPHA
    assert (band.high - band.low)[:, -1].mean() < 4 * 2 * 1.645 * np.sqrt(p * (1 - p) / N) + 0.02


@pytest.mark.parametrize("p", [0.5, 0.05])
def test_betting_holds_at_all_times_and_is_tighter(p: float) -> None:
    x = coins(p)
    band, wider = betting(x, ALPHA, grid=200), bernstein(x, ALPHA)
    assert (~band.holds(p)).mean() <= ALPHA
    assert (band.high - band.low)[:, -1].mean() < (wider.high - wider.low)[:, -1].mean()


def test_a_fixed_time_interval_looked_at_all_the_time_fails() -> None:
    x, t = coins(0.5), np.arange(1, N + 1)
    mean = x.cumsum(-1) / t
    half = 1.645 * np.sqrt(0.25 / t)
    naive = Band(mean - half, mean + half)
    assert (~naive.holds(0.5)).mean() > 0.4


def test_the_mixture_holds_for_a_known_variance_and_touches_its_level() -> None:
    noise = np.random.default_rng(1).standard_normal((RUNS, N))
    t = np.arange(1, N + 1)
    crossed = (np.abs(noise.cumsum(-1)) > mixture(t, ALPHA, tuned_at=50.0)).any(-1).mean()
    assert 0.01 < crossed <= ALPHA  # not wide for nothing


def test_the_mixture_is_tightest_near_where_it_is_tuned() -> None:
    radii = {at: float(mixture(100.0, 0.05, tuned_at=at)) for at in (1.0, 100.0, 10_000.0)}
    assert min(radii, key=lambda at: radii[at]) == 100.0


def test_the_asymptotic_sequence_holds_for_skewed_unbounded_data() -> None:
    x = np.random.default_rng(2).exponential(2.0, (RUNS, N))
    band = asymptotic(x, ALPHA, start=50)
    assert (~band.holds(2.0)).mean() <= ALPHA
    assert np.isinf(band.low[:, :49]).all()
    assert np.isfinite(band.low[:, 49:]).all()


@pytest.mark.parametrize("p", [0.5, 0.1, 0.02])
def test_the_asymptotic_sequence_waits_for_rare_events(p: float) -> None:
    """Until so many have come that they tell how they vary: with p = 0.02, for more than a thousand observations."""
    x = (np.random.default_rng(7).random((1000, 3000)) < p).astype(np.float64)
    band = asymptotic(x, 0.05)
    assert (~band.holds(p)).mean() <= 0.05 + 2.9 * np.sqrt(0.05 * 0.95 / 1000)
    assert np.isfinite(band.low[:, -1]).mean() > 0.9


def test_weights_known_before_keep_the_asymptotic_sequence_valid_and_tighten_it() -> None:
    rng = np.random.default_rng(3)
    sd = np.exp(rng.uniform(-1.5, 1.5, (RUNS, N)))
    x = 1 + sd * rng.standard_normal((RUNS, N))
    weighted, plain = asymptotic(x, ALPHA, weight=1 / sd), asymptotic(x, ALPHA)
    assert (~weighted.holds(1.0)).mean() <= ALPHA
    assert (weighted.high - weighted.low)[:, -1].mean() < 0.8 * (plain.high - plain.low)[:, -1].mean()


def test_a_lower_bound_needs_no_upper_end() -> None:
    """Weights of up to 10^4 with mean one: heavy, and non-negative."""
    rng = np.random.default_rng(4)
    x = np.where(rng.random((RUNS, N)) < 0.01, 100.0, 0.0)
    low, _ = Bernstein.start(alpha=ALPHA, most=1.0, batch=(RUNS,)).extend(x)
    assert (low > 1.0).any(-1).mean() <= ALPHA


def test_ranges_that_change_are_used() -> None:
    rng = np.random.default_rng(5)
    size = np.where(np.arange(N) % 2, 10.0, 1.0)
    x = size * rng.uniform(-1, 1, (RUNS, N))
    band = bernstein(x, ALPHA, low=-size, high=size, precision=1 / size**2, unit=2.0)
    blind = bernstein(x, ALPHA, low=-10.0, high=10.0)
    assert (~band.holds(0.0)).mean() <= ALPHA
    assert (band.high - band.low)[:, -1].mean() < 0.5 * (blind.high - blind.low)[:, -1].mean()


def test_observations_without_precision_change_nothing() -> None:
    x, h = RNG.random(50), np.ones(50)
    h[::3] = 0.0
    some, _ = Bernstein.start(alpha=ALPHA).extend(x, precision=h)
    only, _ = Bernstein.start(alpha=ALPHA).extend(x[h > 0])
    np.testing.assert_allclose(some[h > 0], only)
    assert some[0] == -np.inf


@given(cut=st.integers(0, 40), seed=st.integers(0, 1000))
@settings(max_examples=40)
def test_bernstein_goes_on_where_it_stopped(cut: int, seed: int) -> None:
    x = np.random.default_rng(seed).exponential(1.0, (2, 40))
    start = Bernstein.start(alpha=0.05, most=2.0, warm_up=5, batch=(2,))
    whole, _ = start.extend(x)
    first, state = start.extend(x[:, :cut])
    second, _ = state.extend(x[:, cut:])
    np.testing.assert_allclose(np.concatenate([first, second], -1), whole, rtol=1e-12)


@given(scale=st.floats(0.01, 100), shift=st.floats(-10, 10), seed=st.integers(0, 100))
@settings(max_examples=40)
def test_bounded_bands_follow_the_units(scale: float, shift: float, seed: int) -> None:
    x = np.random.default_rng(seed).random((2, 30))
    low, high = shift, shift + scale
    y = np.clip(shift + scale * x, low, high)
    for here, there, tolerance in (
        (bernstein(x, 0.1), bernstein(y, 0.1, low=low, high=high), 1e-8),
        (betting(x, 0.1, grid=50), betting(y, 0.1, low=low, high=high, grid=50), 1.01 / 50),  # a grid point may flip
    ):
        np.testing.assert_allclose((there.low - shift) / scale, here.low, atol=tolerance)
        np.testing.assert_allclose((there.high - shift) / scale, here.high, atol=tolerance)


def test_a_batch_equals_its_members() -> None:
    x = RNG.random((3, 60))
    makers: list[Callable[[FloatArray], Band]] = [
        lambda v: bernstein(v, 0.1),
        lambda v: betting(v, 0.1, grid=50),
        lambda v: asymptotic(v, 0.1),
    ]
    for make in makers:
        together = make(x)
        for i in range(3):
            np.testing.assert_array_equal(together.low[i], make(x[i]).low)


def test_what_cannot_be_bounded_is_refused() -> None:
    with pytest.raises(InputError, match="below its floor"):
        bernstein([0.5, -0.1], 0.1)
    with pytest.raises(InputError, match="within"):
        betting([0.5, 1.1], 0.1)
    with pytest.raises(ConfigError, match="alpha"):
        bernstein([0.5], 1.5)
    with pytest.raises(ConfigError, match="start"):
        asymptotic([0.5, 0.6], 0.1, start=1)
    with pytest.raises(ConfigError, match="tuned_at"):
        mixture(1.0, 0.1, tuned_at=0.0)
    with pytest.raises(ConfigError, match="horizon"):
        Bernstein.start(alpha=0.1, horizon=-1.0)
    with pytest.raises(ConfigError, match="grid"):
        betting([0.5], 0.1, grid=0)
