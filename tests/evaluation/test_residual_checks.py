"""Residuals: quiet where nothing is wrong, and the right words where something is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import f, kurtosistest, rankdata

from drimed.errors import ConfigError
from drimed.evaluation import residual_checks
from drimed.evaluation.residual_checks import (
    Check,
    DeclaredCovariate,
    ModelDescription,
    Residuals,
    Space,
    advice,
    check_residuals,
    fit,
    own_lines,
)
from drimed.numerics.arrays import FloatArray

L, H, G, K = 10, 12, 4, 3
N = L * H
SEASON, USER = np.repeat(np.arange(L), H), np.tile(np.arange(H), L)
GROUP = USER % G


def right(seed: int = 0, noise: str = "normal", M: int = 1) -> dict[str, Any]:
    """Residuals of a model that is right, with labels: rain is shared by a season, ph belongs to a user."""
    rng = np.random.default_rng(seed)
    shape = (N, M)
    values = rng.standard_normal(shape)
    if noise != "normal":
        values = rng.standard_t(3, shape) if noise == "heavy" else rng.gamma(2, 1, shape)
    arm = rng.integers(0, K, N)
    rain, x, ph = rng.standard_normal(L)[SEASON], rng.standard_normal(N), rng.standard_normal(H)[USER]
    return {
        "values": values,
        "metrics": ("yield", "cost")[:M],
        "arm": arm,
        "user": USER,
        "group": GROUP,
        "season": SEASON,
        "covariates": {"rain": rain, "x": x, "ph": ph},
    }


def alarms(given: dict[str, Any], **settings: Any) -> list[Check]:
    return [c for c in check_residuals(Residuals(**given), **settings) if c.alarm]


def wrong(what: str, seed: int, size: float = 1.5) -> dict[str, Any]:
    given = right(seed)
    rng = np.random.default_rng([seed, 1])
    e, arm, x = given["values"][:, 0], given["arm"], given["covariates"]
    drawn = size * rng.standard_normal((L, H, K))
    e += {
        "season": drawn[SEASON, 0, 0],
        "group": drawn[0, GROUP, 0],
        "user": drawn[0, USER, 0],
        "season x arm": drawn[SEASON, 0, arm],
        "group x arm": drawn[0, GROUP, arm],
        "user x arm": drawn[0, USER, arm],
        "season x group": drawn[SEASON, GROUP, 0],
        "trend": size * SEASON / 3,
        "x: line": size * x["x"],
        "x: curve": size * x["x"] ** 2,
        "x: arms": size * x["x"] * (arm == 1),
        "rain: line": size * x["rain"],
        "ph: line": size * x["ph"],
    }[what]
    return given


def test_a_model_that_is_right_raises_alarms_at_the_stated_rate() -> None:
    """At 10 % for 25 checks together; 60 runs: above 22 % with a chance of 0.3 %."""
    rate = np.mean([bool(alarms(right(i), alpha=0.1)) for i in range(60)])
    assert 0.01 < rate < 0.22


@pytest.mark.parametrize("noise", ["heavy", "skewed"])
def test_noise_of_another_shape_does_not_look_like_levels_or_lines(noise: str) -> None:
    """At 10 %; 40 runs: 25 % and more with a chance of 0.5 %."""
    found = [[c for c in alarms(right(i, noise), alpha=0.1) if c.serious] for i in range(40)]
    assert np.mean([bool(x) for x in found]) < 0.25


@pytest.mark.parametrize(
    "what",
    ["season", "group", "user", "group x arm", "season x group", "trend", "x: line", "x: curve", "x: arms"],
)
def test_what_is_wrong_is_found_and_named_first(what: str) -> None:
    """Ten runs each: found in most, and another name comes first in few."""
    found = [alarms(wrong(what, seed)) for seed in range(10)]
    assert np.mean([what in [c.name for c in x] for x in found]) >= 0.8
    first = [x[0].name for x in found if x]
    assert np.mean([name == what for name in first]) >= 0.7


@pytest.mark.parametrize("what", ["season x arm", "user x arm"])
def test_effects_that_vary_are_found_whatever_comes_first(what: str) -> None:
    assert np.mean([what in [c.name for c in alarms(wrong(what, seed, 2.5))] for seed in range(8)]) >= 0.7


@pytest.mark.parametrize(("what", "levels", "line"), [("season", "season", "rain: line"), ("user", "user", "ph: line")])
def test_levels_are_not_taken_for_a_line_in_what_only_differs_between_them(what: str, levels: str, line: str) -> None:
    """Random levels of ten seasons are no evidence for rain. At 1 %; 20 runs: above 2 with a chance of 0.1 %."""
    found = [{c.name for c in alarms(wrong(what, seed))} for seed in range(20)]
    assert sum(line in x for x in found) <= 2
    assert sum(levels in x for x in found) >= 18


def test_a_line_between_seasons_is_found_where_the_seasons_lie_on_it() -> None:
    found = [{c.name for c in alarms(wrong("rain: line", seed))} for seed in range(8)]
    assert np.mean(["rain: line" in x for x in found]) > 0.8


def test_spread_that_differs_is_found() -> None:
    given = right(3)
    given["values"][given["arm"] == 1] *= 4
    found = alarms(given)
    assert found[0].name == "spread by arm"
    assert not found[0].serious


def claimed(seed: int, noise: str = "normal") -> dict[str, Any]:
    """Outcomes whose noise was claimed, of unit variance, with means by arm that were fitted."""
    given = right(seed, noise, M=2)
    given["values"] /= {"normal": 1.0, "skewed": np.sqrt(2)}[noise]
    return given | {"design": np.repeat((given["arm"][:, None] == np.arange(K)).astype(float)[:, None, :], 2, 1)}


def test_the_arm_and_metric_whose_noise_is_not_as_claimed_are_named() -> None:
    given = claimed(0)
    given["values"][given["arm"] == 1, 0] *= 2.5
    found = {c.name: c for c in alarms(given)}
    assert set(found) == {"noise under 1", "spread by arm"}
    assert found["noise under 1"].found.startswith("yield: outcomes under 1 scatter more than assumed (")
    assert not found["noise under 1"].serious
    given["values"] *= 0.5
    assert {(c.name, c.metric) for c in alarms(given)} >= {(f"noise under {k}", "cost") for k in range(K)}
    assert not alarms(right(0) | {"values": 2.5 * right(0)["values"]}), "nothing was claimed"


@pytest.mark.parametrize("noise", ["normal", "skewed"])
def test_noise_that_is_as_claimed_is_rarely_doubted(noise: str) -> None:
    """At 10 %; 40 runs: 25 % and more with a chance of 0.5 %."""
    found = [[c for c in alarms(claimed(i, noise), alpha=0.1) if c.name.startswith("noise")] for i in range(40)]
    assert np.mean([bool(x) for x in found]) < 0.25


def test_outcomes_of_a_user_that_follow_each_other_are_found() -> None:
    given = right(5)
    e = given["values"].reshape(L, H)
    for season in range(1, L):
        e[season] += 0.8 * e[season - 1]
    found = [c for c in alarms(given) if c.name == "serial"]
    assert found
    assert found[0].serious
    assert "correlation 0." in found[0].found


def test_one_outlier_is_named_by_its_row() -> None:
    given = right(6)
    given["values"][17] = 12.0
    found = alarms(given)
    assert [c.name for c in found] == ["outlier"]
    assert "row 18" in found[0].found
    named = alarms(given | {"decision": np.arange(len(given["values"])) + 101})
    assert "decision 118" in named[0].found


def test_heavy_tails_are_found_and_do_not_withdraw_a_promise() -> None:
    found = alarms(right(1, "heavy"))
    assert "tails" in [c.name for c in found] or "outlier" in [c.name for c in found]
    assert not any(c.serious for c in found)


@pytest.mark.parametrize(("rates", "name"), [([0.02], "two values"), ([0.01, 0.02], "small counts")])
def test_outcomes_with_few_values_are_named_and_their_spread_is_not_judged(rates: list[float], name: str) -> None:
    given = right(7)
    given["outcomes"] = np.random.default_rng(0).binomial(1, rates, (N, len(rates))).sum(1, keepdims=True).astype(float)
    given["outcomes"][: len(rates) + 1, 0] = np.arange(len(rates) + 1)
    given["values"] = (given["outcomes"] - given["outcomes"].mean()) / given["outcomes"].std()
    assert [c.name for c in alarms(given) if not c.serious] == [name]
    assert {"outlier", "tails"} & {c.name for c in alarms(given | {"outcomes": None})}


def stream(seed: int, group: float = 0.0) -> dict[str, Any]:
    """Residuals of people with two outcomes, .3 under one arm and .45 under the other: off the means so far."""
    rng = np.random.default_rng(seed)
    n, total, count = 300, np.array([0.5, 0.5]), np.array([1.0, 1.0])
    arm, y, values = rng.integers(0, 2, n), np.zeros(n), np.zeros(n)
    for i, a in enumerate(arm):
        mean = total[a] / count[a]
        y[i] = rng.random() < (0.3, 0.45)[a] + group * (i % 2)
        values[i] = (y[i] - mean) / np.sqrt(mean * (1 - mean) * (1 + 1 / count[a]))
        total[a] += y[i]
        count[a] += 1
    who = {"arm": arm, "user": np.arange(n), "group": np.arange(n) % 2}
    return {"values": values[:, None], "metrics": ("well",), "outcomes": y[:, None], **who}


def test_outcomes_of_two_values_are_not_taken_for_arms_that_differ_or_a_trend() -> None:
    """Ranks would order the zeros by their predicted means. At 1 %; 20 runs: above 2 with a chance of 0.1 %."""
    found = [[c.name for c in alarms(stream(seed)) if c.serious] for seed in range(20)]
    assert sum(bool(x) for x in found) <= 2
    differ = [[c.name for c in alarms(stream(seed, group=0.4))] for seed in range(10)]
    assert sum("group" in x for x in differ) >= 8


def test_one_typing_error_does_not_hide_what_else_is_wrong() -> None:
    given = wrong("season", 1)
    given["values"][17] = 400.0
    assert "season" in [c.name for c in alarms(given)]


def test_a_design_is_taken_out_with_its_degrees_of_freedom() -> None:
    """Outcomes at a level of 1000 with arms that differ by 50: the model of the arms leaves nothing to find."""
    rates = []
    for seed in range(40):
        given = right(seed)
        design = (given["arm"][:, None] == np.arange(K)).astype(float)[:, None, :]
        given["values"] = given["values"] + 1000 + 50 * given["arm"][:, None]
        rates.append(bool(alarms(given | {"design": design}, alpha=0.1)))
    assert np.mean(rates) < 0.25  # 40 runs at 10 %: this and more with a chance of 0.5 %
    assert alarms(given)[0].name == "arm"


def test_the_f_test_is_that_of_two_regressions() -> None:
    rng = np.random.default_rng(8)
    y, x = rng.standard_normal(60), rng.standard_normal((60, 2))
    a, b = rng.integers(0, 4, 60), rng.integers(0, 3, 60)
    p, _ = residual_checks._explains(y, Space((a,), (x,)), Space((b,)))

    def rss(*factors: Any) -> tuple[float, int]:
        X = np.concatenate([np.ones((60, 1)), x, *(np.eye(v.max() + 1)[v] for v in factors)], 1)
        left: FloatArray = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
        return float(left @ left), int(np.linalg.matrix_rank(X))

    (small, few), (large, more) = rss(a), rss(a, b)
    assert p == pytest.approx(f.sf((small - large) / (more - few) / (large / (60 - more)), more - few, 60 - more))


def test_tails_and_ranks_are_those_of_scipy() -> None:
    """Which is not used, because it takes most of a second to load."""
    n, rng = 30, np.random.default_rng(30)
    for x in (rng.standard_normal(n), rng.standard_t(3, n), rng.random(n), rng.integers(0, 4, n).astype(float)):
        expected = kurtosistest(x, alternative="greater").pvalue
        assert residual_checks._heavy_tails(x)[0] == pytest.approx(expected, rel=1e-9)
        np.testing.assert_array_equal(residual_checks._normal_scores(x), ndtri((rankdata(x) - 0.5) / n))


def test_lines_of_levels_are_fitted_as_if_they_were_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_checks, "ROWS", 37)
    rng = np.random.default_rng(1)
    n = 300
    y, x, arm, user = rng.normal(size=n), rng.normal(size=n), rng.integers(0, 6, n), rng.integers(0, 20, n)
    found = fit(y, Space((user, arm), (own_lines(x, arm),)), leverage=True)
    assert found is not None
    assert found.rank == 20 + 5 + 6
    levels = [(v[:, None] == np.arange(v.max() + 1)).astype(float) for v in (user, arm)]
    X = np.concatenate([*levels, x[:, None] * levels[1]], 1)
    hat = X @ np.linalg.pinv(X)
    np.testing.assert_allclose(found.rest, y - hat @ y, atol=1e-10)
    assert found.leverage is not None
    np.testing.assert_allclose(found.leverage, np.diag(hat), atol=1e-10)


def said(name: str, **has: Any) -> str:
    return advice(name, ModelDescription(**has))


def test_the_advice_depends_on_what_the_model_has() -> None:
    given = wrong("season", 0)
    told = next(c.advice for c in alarms(given) if c.name == "season")
    assert told == 'the model has no season level: use [model] kind = "field", or use control plots'
    assert all(c.advice == "" for c in check_residuals(Residuals(**given)) if not c.alarm)
    assert "does not cover this" in said("season", kind="field", terms={"season"})


@pytest.mark.parametrize(
    ("name", "has", "text"),
    [
        (
            "season",
            {"kind": "field", "seasons": False},
            "season level: remove seasons = false from [model], or use",
        ),
        ("trend", {"kind": "people"}, "new episode"),
        ("arm", {"arm_attributes": True}, "instead of attributes"),
        ("spread by arm", {"kind": "field"}, 'set noise = "arm" in [model]'),
        ("rain: line", {"kind": "field"}, "declare rain"),
        ("rain: line", {"kind": "field", "covariates": {"rain": {"noise"}}}, 'add "level" to affects under [context.r'),
        ("rain: arms", {"kind": "field", "covariates": {"rain": {"level"}}}, 'add "effects" to affects under [context'),
        ("rain: arms", {"kind": "field", "covariates": {"rain": {"level", "effects"}}}, "does not cover this"),
        ("rain: line", {"covariates": {"rain": {"noise"}}}, 'kind = "field", and add "level" to affects under [cont'),
    ],
)
def test_the_advice_is_what_the_trial_file_lacks(name: str, has: dict[str, Any], text: str) -> None:
    declared = {n: DeclaredCovariate(f"context.{n}", frozenset(a)) for n, a in has.get("covariates", {}).items()}
    assert text in said(name, **has | {"covariates": declared})


def test_advice_is_not_what_the_trial_has_already() -> None:
    assert "control plots" not in said("season", kind="field", seasons=False, difference=True)
    assert "arm" not in said("spread by arm", kind="field", arm_noise=True)


def test_a_category_is_looked_at_by_itself_and_with_the_arms() -> None:
    for form in ("levels", "arms"):
        found = []
        for seed in range(10):
            given = right(seed)
            soil = np.random.default_rng(seed).integers(0, 2, H)[USER]
            soil[USER < 2] = USER[USER < 2]
            given["values"][:, 0] += 2.5 * soil * (given["arm"] == 1 if form == "arms" else 1)
            found.append(alarms(given | {"categories": {"soil": np.array(["clay", "sand"])[soil]}}))
        assert sum(f"soil: {form}" in [c.name for c in x] for x in found) >= 8
    assert any(c.found == "yield: what an arm does depends on soil" for x in found for c in x)
    named = check_residuals(Residuals(**right(), categories={"name": [f"u{u}" for u in USER]}))
    assert not any(c.name.startswith("name") for c in named), "users are looked at already"


def test_with_a_discount_what_moves_is_not_looked_for() -> None:
    found = check_residuals(Residuals(**wrong("trend", 0)), model=ModelDescription(kind="field", discount=True))
    assert not {c.name for c in found} & set(residual_checks.MOVING)
    assert "season" in [c.name for c in found if c.alarm]


def test_metrics_and_rows_that_are_not_there_are_left_out() -> None:
    given = right(9, M=2)
    given["values"][:, 1] += 3 * np.random.default_rng(1).standard_normal(L)[SEASON]
    given["values"][::7, 0] = np.nan
    found = alarms(given)
    assert {c.metric for c in found} == {"cost"}
    few = {name: v[:15] if hasattr(v, "shape") else v for name, v in given.items() if name != "covariates"}
    assert check_residuals(Residuals(**few)) == ()


def test_misuse_is_refused() -> None:
    with pytest.raises(ConfigError, match="alpha"):
        check_residuals(Residuals(**right()), alpha=0.0)
