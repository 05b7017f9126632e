"""How effects developed: each point is what the outcomes up to then say, and the last one is what stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drimed.findings.charts.over_time import MOST_ARMS, over_time
from drimed.findings.over_time import MOST_POINTS

from drimed.findings import over_time as past
from drimed.findings.analysis import Analysis, analyse
from drimed.findings.effects import EVERYBODY, MODEL
from drimed.learning.field import cells as field_cells
from drimed.learning.field.contrasts import Known
from drimed.trial.model_free import REWARD
from tests.findings.field_trials import EFFECT, FIELD, PEOPLE, grown
from tests.findings.test_analyse import SPEC, play

SEASONS = 5


@pytest.fixture(scope="module")
def done() -> Analysis:
    return analyse(grown(FIELD, SEASONS))


def _effects(a: Analysis, episode: int) -> dict[tuple[str, str], tuple[float, ...]]:
    (found,) = [p for p in a.past if p.episode == episode]
    return {(x.arm, x.on): (x.estimate, *x.ends, *x.likely_ends) for x in found.effects}


def _now(a: Analysis) -> dict[tuple[str, str], tuple[float, ...]]:
    return {
        (x.arm, x.on): (x.estimate, *x.ends, *x.likely_ends)
        for x in a.effects
        if x.who == EVERYBODY and x.source == MODEL and x.arm in a.given and not x.is_control
    }


def test_the_last_point_is_the_effect_that_stands(done: Analysis) -> None:
    assert _effects(done, SEASONS) == _now(done)


def test_each_point_has_the_outcomes_up_to_its_season_and_no_others(done: Analysis) -> None:
    assert isinstance(done.fit, Known)
    for season in range(1, SEASONS + 1):
        counted = past._until(done.fit.evidence.cells, season).count
        assert counted == (done.seen.told & (done.seen.episode <= season)).sum()


def test_ranges_narrow_as_outcomes_come_and_hold_the_truth(done: Analysis) -> None:
    courses: dict[str, list[tuple[float, float]]] = {}
    for point in done.past:
        for x in point.effects:
            if x.on == "yield":
                courses.setdefault(x.arm, []).append((x.likely_ends[0], x.likely_ends[1]))
    assert set(courses) == {"good", "bad"}
    for arm, ranges in courses.items():
        widths = [high - low for low, high in ranges]
        assert widths == sorted(widths, reverse=True)
        assert ranges[-1][0] < EFFECT[arm] < ranges[-1][1]


def test_an_arm_begins_with_its_first_outcome() -> None:
    trial = grown(FIELD, 3)
    trial.add_arm("new")
    found = analyse(trial)
    assert all(x.arm != "new" for p in found.past for x in p.effects)
    first = {arm: min(p.episode for p in found.past for x in p.effects if x.arm == arm) for arm in ("good", "bad")}
    arms = found.seen.state.problem.arms
    assert first == {arm: found.seen.episode[found.seen.arm == arms.index(arm)].min() for arm in first}


@pytest.mark.parametrize("more", [{}, {"policy": {"name": "dri_med", "discount": 0.9}}])
def test_a_point_of_the_papers_model_is_what_the_trial_said_then(more: dict[str, Any]) -> None:
    """With known noise nothing else is learned that an earlier report could not have known."""
    late, then = analyse(play(SPEC | more, 8)), analyse(play(SPEC | more, 4))
    assert (late.seen.vector[: len(then.seen.vector)] == then.seen.vector).all()
    found, wanted = _effects(late, 4), _now(then)
    assert set(found) == set(wanted)
    for key, values in wanted.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-9, atol=1e-9, err_msg=str(key))


def test_outcomes_of_people_without_seasons_are_counted_in_again() -> None:
    found = analyse(grown(PEOPLE | {"model": {"kind": "people", "seasons": False}}, 3))
    assert isinstance(found.fit, Known)
    again, kept = (field_cells.compact(c) for c in (past._again(found.seen, found.fit, 3), found.fit.evidence.cells))
    np.testing.assert_array_equal(again.keys[: again.used], kept.keys[: kept.used])
    np.testing.assert_allclose(again.mean[: again.used], kept.mean[: kept.used])
    assert [p.episode for p in found.past] == [1, 2, 3]


def test_of_many_episodes_a_few_are_worked_out_and_the_last_is_among_them() -> None:
    episodes = past._points(np.arange(1, 51))
    assert len(episodes) <= MOST_POINTS
    assert episodes[-1] == 50
    assert len(set(np.diff(episodes).tolist())) == 1


def test_before_there_are_two_seasons_there_is_no_course() -> None:
    one = analyse(grown(FIELD, 1))
    assert one.past == []
    assert over_time(one, REWARD, "") is None


def test_the_chart_has_a_panel_for_each_arm_and_every_number_in_its_table(done: Analysis) -> None:
    made = over_time(done, "yield", "dt")
    assert made is not None
    assert "Effects on yield (dt) against control after each season" in made.title
    assert len(made.table.rows) == sum(x.on == "yield" for p in done.past for x in p.effects)
    assert all(made.wide.count(f">{arm}</text>") == 1 for arm in ("good", "bad"))
    assert "dt after 5" in made.says


def test_of_many_arms_those_given_most_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    arms = ["old", *(f"a{i}" for i in range(9))]
    spec = FIELD | {"arms": {a: {} for a in arms}, "policy": {"name": "uniform"}}
    monkeypatch.setattr("tests.findings.field_trials.EFFECT", dict.fromkeys(arms, 0.0))
    found = analyse(grown(spec, 3))
    made = over_time(found, REWARD, "")
    assert made is not None
    shown = {row[0] for row in made.table.rows}
    assert len(shown) == MOST_ARMS
    times = dict(zip(arms, found.course.allocation.sum(0).tolist(), strict=True))
    assert min(times[a] for a in shown) >= max(times[a] for a in arms[1:] if a not in shown)
    assert f"{MOST_ARMS} of 9 arms, those given most" in made.title
