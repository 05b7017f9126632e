from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError, ShapeError, UnknownNameError
from drimed.simulation.instances import DRIFTS, levels
from drimed.simulation.worlds import Setting

L, KAPPA = 1000, 100.0


def test_without_drift_nothing_moves() -> None:
    assert not levels("none", L, KAPPA).any()


def test_gradual_climbs_straight_and_starts_at_zero() -> None:
    f = levels("gradual", L, KAPPA)
    assert f[0] == 0.0
    assert f[-1] == pytest.approx(99.9)
    np.testing.assert_allclose(np.diff(f), 0.1)


def test_periodic_has_fifty_waves_between_zero_and_the_magnitude() -> None:
    f = levels("periodic", L, KAPPA)
    assert f[0] == pytest.approx(50.0)
    assert f[5] == pytest.approx(100.0)  # a quarter of 20 episodes
    assert f[15] == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(f[20:], f[:-20], atol=1e-9)
    # The wavelength is L // 50 in whole episodes, and 1 where there are fewer than 50.
    np.testing.assert_allclose(levels("periodic", 149, KAPPA)[2:], levels("periodic", 149, KAPPA)[:-2], atol=1e-9)
    np.testing.assert_allclose(levels("periodic", 30, KAPPA), 50.0, atol=1e-9)


def test_abrupt_jumps_once_at_a_third() -> None:
    f = levels("abrupt", L, KAPPA)
    assert not f[:333].any()
    assert (f[333:] == 100.0).all()


def test_abrupt_growing_reaches_three_times_the_magnitude() -> None:
    f = levels("abrupt_growing", L, KAPPA)
    assert [f[332], f[333], f[665], f[666], f[999]] == [0.0, 100.0, 100.0, 300.0, 300.0]


def test_decaying_starts_loud() -> None:
    f = levels("decaying", L, KAPPA)
    assert f[0] == 100.0
    assert f[200] == pytest.approx(100.0 * np.exp(-1.0))
    assert (np.diff(f) < 0).all()


def test_burst_has_three_bells() -> None:
    f = levels("burst", L, KAPPA)
    for centre in (200, 500, 800):
        assert f[centre] == pytest.approx(100.0, abs=0.01)
        assert f[centre] == f[centre - 30 : centre + 30].max()
    assert f[350] < 2.5


def test_regime_shift_has_five_levels_that_belong_to_the_definition() -> None:
    f = levels("regime_shift", L, KAPPA)
    want = 100 * np.random.default_rng(0).uniform(0, 1, size=5)
    for i in range(5):
        np.testing.assert_allclose(f[200 * i : 200 * (i + 1)], want[i])


def test_sawtooth_falls_after_each_of_five_ramps() -> None:
    f = levels("sawtooth", L, KAPPA)
    assert f[0] == f[200] == f[800] == 0.0
    assert f[199] == pytest.approx(99.5)
    assert np.count_nonzero(np.diff(f) < 0) == 4


@pytest.mark.parametrize("name", DRIFTS)
@pytest.mark.parametrize("episodes", [1, 2, 7, 50])
def test_every_drift_is_finite_and_not_negative_for_any_length(name: str, episodes: int) -> None:
    f = levels(name, episodes, KAPPA)
    assert f.shape == (episodes,)
    assert np.isfinite(f).all()
    assert (f >= 0).all()


@pytest.mark.parametrize("name", DRIFTS)
def test_every_drift_grows_with_its_magnitude(name: str) -> None:
    np.testing.assert_allclose(levels(name, 60, 3.0), 3 * levels(name, 60, 1.0), atol=1e-12)
    assert not levels(name, 60, 0.0).any()


def test_a_drift_can_be_a_function_of_ones_own() -> None:
    assert levels(lambda e, n, m: m * (e == n - 1), 3, 2.0).tolist() == [0.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("gradul", 10, 1.0), UnknownNameError, "unknown drift 'gradul'; did you mean 'gradual'"),
        (("gradual", 0, 1.0), ConfigError, "number of episodes must be at least 1, got 0"),
        (("gradual", 10, -1.0), ConfigError, "magnitude must be at least 0 and finite, got -1.0"),
        (("gradual", 10, np.inf), ConfigError, "magnitude must be at least 0 and finite, got inf"),
        (("gradual", 10, np.nan), ConfigError, "magnitude must be at least 0 and finite, got nan"),
        ((lambda e, *_: e[:3], 10, 1.0), ShapeError, r"drift must have shape \(\.\.\., 10\), got \(3,\)"),
        ((lambda e, *_: np.nan * e, 10, 1.0), InputError, "drift must be finite, got nan"),
        ((lambda e, *_: -e, 10, 1.0), ConfigError, "a drift must not be negative, got -9.0 at episode 9"),
    ],
)
def test_a_bad_drift_is_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        levels(*arguments)


def test_a_setting_checks_its_drift() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'periodic'"):
        Setting(drift="perodic")
