from __future__ import annotations

import numpy as np
import pytest

from drimed.environments.drift import DRIFTS, levels
from drimed.errors import ConfigError, InputError
from drimed.evaluation.drift import context_drift, mean_features
from drimed.learning.offer import Offer
from drimed.linear.arrays import FloatArray

RUNS, L, H, D = 1000, 40, 6, 2
ALPHA = 0.1


def normal(runs: int = RUNS, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((runs, L, H, D))


@pytest.mark.parametrize("tails", ["normal", "heavy", "users differ"])
def test_without_drift_the_alarm_keeps_its_rate_whatever_the_contexts(tails: str) -> None:
    C = normal()
    if tails == "heavy":
        C = np.random.default_rng(1).standard_cauchy(C.shape)
    elif tails == "users differ":
        C = C * np.linspace(0.1, 10, H)[:, None] + 100 * np.arange(H)[:, None]
    found = context_drift(C, alpha=ALPHA)
    assert (found.alarm >= 0).mean() <= ALPHA
    assert (found.p_value[:, 1:] < 0.05).mean() < 0.07


def test_ties_are_broken_by_draws_of_their_own() -> None:
    """A seed for each run: runs that shared it would break their ties alike, and fail together."""
    C = np.round(normal(runs=300))
    found = [context_drift(each, alpha=ALPHA, seed=i) for i, each in enumerate(C)]
    assert np.mean([int(f.alarm) >= 0 for f in found]) <= ALPHA
    assert np.mean([f.p_value[1:] < 0.05 for f in found]) < 0.07


def world(kind: str, runs: int, seasons: int, users: int = 12) -> FloatArray:
    """Contexts without drift: (runs, seasons, users, 1)."""
    rng = np.random.default_rng(4)
    each = rng.standard_normal((runs, seasons, users, 1))
    season = rng.standard_normal((runs, seasons, 1, 1))
    site = 3 * rng.standard_normal((runs, 1, users, 1))
    return {
        "own": each,
        "shared": season + 0 * each,
        "season and user": season + each,
        "site rain": site + each,
        "site and season": site + 2 * season + each,
        "skewed season": rng.gamma(1.0, 1.0, season.shape) + 0.3 * each,
    }[kind]


KINDS = ["own", "shared", "season and user", "site rain", "site and season", "skewed season"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seasons", [5, 20, 40])
def test_seasons_that_differ_at_random_are_no_drift(kind: str, seasons: int) -> None:
    """At most 10 % by Ville; 400 runs, so above 14.5 % with a chance of 0.2 % where it is exactly 10 %."""
    assert (context_drift(world(kind, 400, seasons), alpha=ALPHA).alarm >= 0).mean() < 0.145


@pytest.mark.parametrize(
    ("kind", "size", "seasons", "found"),
    [("own", 2.0, 20, 0.8), ("own", 1.0, 40, 0.95), ("shared", 4.0, 40, 0.95), ("season and user", 4.0, 40, 0.95)],
)
def test_a_jump_that_stays_is_found(kind: str, size: float, seasons: int, found: float) -> None:
    C = world(kind, 200, seasons)
    C[:, seasons // 2 :] += size
    assert (context_drift(C, alpha=0.01).alarm >= seasons // 2).mean() > found


@pytest.mark.parametrize(
    ("kind", "rise", "seasons", "found"), [("own", 3.0, 15, 0.9), ("shared", 6.0, 20, 0.75), ("shared", 6.0, 40, 0.95)]
)
def test_a_trend_over_the_seasons_is_found(kind: str, rise: float, seasons: int, found: float) -> None:
    C = world(kind, 200, seasons) + rise * np.linspace(0, 1, seasons)[:, None, None]
    assert (context_drift(C, alpha=0.01).alarm >= 0).mean() > found


def test_how_far_the_users_of_a_season_agree_is_told() -> None:
    agree = {kind: float(np.mean(context_drift(world(kind, 50, 30)).agreement)) for kind in KINDS}
    assert agree["own"] < 0.1
    assert agree["site rain"] < 0.1
    assert agree["season and user"] == pytest.approx(0.5, abs=0.15)
    assert agree["shared"] > 0.9  # ranks lie between those of the past by a draw of each user
    assert (context_drift(world("own", 3, 30, users=1)).agreement == 0).all()


def test_few_seasons_are_not_enough_to_tell() -> None:
    assert not context_drift(world("shared", 1, 9)).enough
    assert context_drift(world("shared", 1, 10)).enough


@pytest.mark.parametrize("drift", [name for name in DRIFTS if name != "none"])
def test_every_drift_of_the_paper_is_found(drift: str) -> None:
    longer = 200  # fifty waves need more than forty episodes to be waves
    f = levels(drift, longer, 10.0)[:, None, None]
    z = np.random.default_rng(0).standard_normal((50, longer, H, D))
    assert (context_drift((1 + f) * z, alpha=ALPHA).alarm >= 0).mean() > 0.9


def test_the_size_of_a_drift_is_told() -> None:
    C = normal(runs=200)
    C[:, 20:] = 3 * C[:, 20:] + 5
    found = context_drift(C)
    assert found.scale[:, 20].mean() > 3
    assert found.shift[:, 20].mean() == pytest.approx(5, rel=0.15)  # 5 sqrt(2) over a spread of sqrt(2)
    assert found.scale[:, 19].mean() == pytest.approx(1, abs=0.05)
    assert (found.alarm >= 20).mean() > 0.95
    assert found.p_value[:, 20].max() < 0.05


@pytest.mark.parametrize("fields", [1, 2])
def test_a_past_that_does_not_vary_is_no_unit(fields: int) -> None:
    """As in the second of seasons whose users share their rain: until the past varies, a deviation is 1."""
    season = (np.array([430.0, 560.0, 380.0, 470.0]) - 450) / 100
    C = np.broadcast_to(season[:, None, None], (4, 7, fields))
    found = context_drift(C)
    assert found.shift[1] == pytest.approx(1.3)
    assert found.shift[2] == pytest.approx(1.15 / 0.65)  # the past has two seasons, each 0.65 from their mean
    assert found.borrowed.tolist() == [False, True, False, False]


def test_a_field_that_does_not_vary_does_not_count_as_a_deviation_of_another() -> None:
    each = 0.01 * np.random.default_rng(0).standard_normal((3, 7, 1))
    season = np.broadcast_to(np.array([0.3, 0.1 + 0.2, 1.3])[:, None, None], each.shape)
    found = context_drift(np.concatenate([each, season], -1))
    assert found.shift[2] == pytest.approx(1.0, abs=0.02), "it moved by 1; the other has hardly any spread"
    assert not context_drift(normal(runs=3)).borrowed.any()


def test_one_episode_has_no_past_to_differ_from() -> None:
    found = context_drift(normal()[:, :1])
    assert (found.p_value == 1).all()
    assert (found.alarm == -1).all()


def test_a_batch_equals_its_members() -> None:
    C = normal(runs=3)
    together = context_drift(C)
    np.testing.assert_array_equal(together.evidence[1], context_drift(C[1]).evidence)


def test_mean_features_are_those_of_the_algorithm() -> None:
    rng = np.random.default_rng(0)
    x, sigma = rng.standard_normal((H, 3, D)), rng.uniform(1, 2, (H, 3))
    offers = Offer(features=x, control=np.ones((H, 3)) / 3, sigma=sigma)
    np.testing.assert_allclose(mean_features(offers), np.mean([x[h] / sigma[h][:, None] for h in range(H)], axis=0))
    np.testing.assert_allclose(mean_features(Offer(features=x, control=np.ones((H, 3)) / 3)), x.mean(0))


def test_misuse_is_refused() -> None:
    with pytest.raises(ConfigError, match="alpha"):
        context_drift(normal(runs=1), alpha=0.0)
    with pytest.raises(InputError, match="finite"):
        context_drift([[[np.nan]]])
