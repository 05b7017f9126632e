"""Variance components, levels and covariates of trials with known truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.models.mixed.effects import FittedModel
from drimed.records import Report
from drimed.reports.analysis import Analysis, analyse
from drimed.reports.effects import EVERYBODY, MODEL, MOST_POINTS, Variation, _fit_until, past_effects
from drimed.reports.wording import words_of
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.reports.worlds import EFFECT, FIELD, PAPER, PEOPLE, drawn, field, grown, paper, play


def of(a: Analysis) -> Variation:
    assert a.variation is not None
    return a.variation


def test_variance_components_hold_the_truth() -> None:
    found = {c.family: c for c in of(field()).components if c.metric == "yield"}
    for family, values in {"season": drawn("year", 8), "group": drawn("level", 8)}.items():
        assert found[family].low < np.std(values, ddof=1) < found[family].high, family
        assert found[family].low < found[family].deviation < found[family].high
        assert found[family].identifiable
    # Effects are the same everywhere: what the model reserves for their differences is missing from the noise.
    assert 6 / 1.5 < found["residual"].deviation < 6 * 1.5


def test_levels_of_sites_and_seasons_are_those_of_the_control() -> None:
    truth = {f"s{i}": 60 + v for i, v in enumerate(drawn("level", 8))}
    sites = {v.name: v for v in of(field()).sites if v.metric == "yield"}
    seasons = [v for v in of(field()).seasons if v.metric == "yield"]
    assert [v.outcomes for v in sites.values()] == [16] * 6
    assert [(v.name, v.outcomes) for v in seasons] == [(str(i), 12) for i in range(1, 9)]
    for v in sites.values():
        assert abs(v.estimate - truth[v.name]) < 2 * (v.high - v.low), "four deviations"
    for v, year in zip(seasons, drawn("year", 8), strict=True):
        assert abs(v.estimate - np.mean(list(truth.values())) - year) < 2 * (v.high - v.low)


@pytest.mark.parametrize("kind", ["field", "people"])
def test_levels_of_seasons_follow_their_own_rain(kind: str) -> None:
    """It is the same at all sites and shifts outcomes by 15 for each spread; nothing else differs between seasons."""
    rains = [240.0, 390.0, 270.0, 330.0, 360.0, 210.0]
    users: dict[str, Any] = {f"s{i}": {} for i in range(12)}
    spec = FIELD | {"model": {"kind": kind}, "metrics": {"yield": {}}, "users": users, "preference": {"yield": 1.0}}
    rng = np.random.default_rng(2)
    trial = Trial.create(spec, MemoryStore())
    for rain in rains:
        trial.open_episode({user: {"rain": rain} for user in users})
        y = {g.id: 60 + (rain - 300) / 4 + EFFECT[g.arm] + 2 * rng.standard_normal() for g in trial.ask_many()}
        trial.tell_many([Report(i, {"yield": value}) for i, value in y.items()], confirm=True)
    # With noise of 2 a season's 12 outcomes tell its level to about 1; at typical rain the levels are all about 60.
    shown = [v.estimate for v in of(analyse(trial)).seasons]
    np.testing.assert_allclose(shown, [60 + (rain - 300) / 4 for rain in rains], atol=4)


def test_a_covariate_that_changes_an_effect_has_a_line() -> None:
    lines = {(x.covariate, x.arm): x for x in of(field()).covariates if x.on == "yield"}
    assert set(lines) == {(c, a) for c in ("rain", "soil") for a in ("good", "bad")}
    rain = lines["rain", "good"]
    slope = 60 * (rain.estimate[-1] - rain.estimate[0]) / (rain.values[-1] - rain.values[0])
    assert slope == pytest.approx(8.0, abs=4.0)
    assert min(rain.values) < 250 < 350 < max(rain.values)
    assert lines["soil", "good"].levels == ["loam", "sand"]


def test_evidence_is_counted_here_and_elsewhere() -> None:
    found = analyse(grown(FIELD, 4, untold="s3"))
    sources = of(found).sources
    here = [sources[f"s{i}", "good"].here for i in (0, 1, 2, 4, 5)]
    assert sources["s3", "good"].here == 0
    assert words_of(found).source(sources["s3", "good"]) == f"0 outcomes here, {sum(here)} from other sites"
    assert ("s3", "old") not in sources, "its control"
    users = {f"s{i}": {"group": "east" if i < 2 else "west"} for i in range(6)}
    grouped = analyse(grown(FIELD | {"users": users}, 4))
    east, west = (of(grouped).sources[group, "good"] for group in ("east", "west"))
    assert (east.here, east.elsewhere) == (west.elsewhere, west.here)
    assert words_of(grouped).source(east) == f"{east.here} outcomes here, {west.here} from other groups"


def numbers(a: Analysis, episode: int) -> dict[tuple[str, str], tuple[float, ...]]:
    return {(x.arm, x.on): (x.estimate, *x.ends, *x.likely_ends) for x in a.past[episode]}


def test_past_effects_use_the_outcomes_up_to_each_season_and_end_with_the_present() -> None:
    a = field()
    assert isinstance(a.fit, FittedModel)
    for season in (1, 4, 8):
        cells = _fit_until(a.data, a.fit, season).evidence.cells
        assert cells.count == (a.data.has_outcome & (a.data.episode <= season)).sum()
    now = [x for x in a.effects if (x.who, x.source) == (EVERYBODY, MODEL) and x.arm in a.given and not x.is_control]
    assert numbers(a, 8) == {(x.arm, x.on): (x.estimate, *x.ends, *x.likely_ends) for x in now}


@pytest.mark.parametrize("more", [{}, {"policy": {"name": "dri_med", "discount": 0.9}}])
def test_a_point_of_the_paper_s_model_is_the_effect_of_that_time(more: dict[str, Any]) -> None:
    """With known noise nothing else is learned that an earlier report could not have known."""
    late, then = analyse(play(PAPER | more, 8)), analyse(play(PAPER | more, 4))
    found, wanted = numbers(late, 4), numbers(then, 4)
    assert set(found) == set(wanted)
    for key, values in wanted.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-9, atol=1e-9, err_msg=str(key))


def test_outcomes_of_people_without_seasons_are_counted_again() -> None:
    found = analyse(grown(PEOPLE | {"model": {"kind": "people", "seasons": False}}, 3))
    assert isinstance(found.fit, FittedModel)
    again, kept = _fit_until(found.data, found.fit, 3).evidence.cells, found.fit.evidence.cells
    assert again.count == kept.count
    assert list(found.past) == [1, 2, 3]


def test_of_many_seasons_a_few_are_computed_and_the_last_is_among_them() -> None:
    episodes = list(paper().past)
    assert len(episodes) <= MOST_POINTS
    assert episodes[-1] == 40
    assert len(set(np.diff(episodes).tolist())) == 1
    one = analyse(grown(FIELD, 1))
    assert past_effects(one.data, one.fit, one.effects) == {}
