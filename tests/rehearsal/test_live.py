"""A rehearsal forecasts what the trial will do: with the same seed and outcomes a live trial takes its decisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.models.mixed import effects
from drimed.records import Report
from drimed.rehearsal.designs import own
from drimed.rehearsal.play import Season, play
from drimed.rehearsal.scenarios import Scenario, SimulatedTrials, of_past
from drimed.reports.analysis import analyse
from drimed.trial.events import HistoryRead
from drimed.trial.past import of_rows, read_rows
from drimed.trial.problem import Problem
from drimed.trial.spec import TrialSpec
from drimed.trial.store import MemoryStore
from drimed.trial.tables import Table
from drimed.trial.trial import Trial

SEEDS = (11, 12)
PLAIN: dict[str, Any] = {
    "name": "t",
    "metrics": {"yield": {"range": [0, 100]}},
    "arms": {"old": {}, "new": {}, "other": {}},
    "control": "old",
    "preference": {"yield": 1.0},
    "users": {"north": {}, "south": {}, "west": {}},
    "tolerance": {"relative": 0.0, "absolute": 12.0},
    "confidence": 0.9,
}
TWO = {
    "metrics": {"yield": {"range": [0, 15]}, "loss": {"range": [0, 80], "better": "lower"}},
    "preference": {"yield": 10.0, "loss": -0.5},
    "users": {"north": {"group": "a", "attributes": {"ph": 6.0}}, "hill": {"group": "b", "attributes": {"ph": 7.0}},
              "river": {"group": "a", "preference": {"yield": 12.0}, "attributes": {"ph": 6.2}}},
    "context": {"rain": {"typical": 450, "spread": 100}},
    "guardrails": [{"metric": "yield", "relative": 0.2, "absolute": 1.0}],
}  # fmt: skip
PLOTS = {"users": {u: {"blocks": {"A": ["1", "2"], "B": ["3"]}} for u in ("north", "south")}}
MIXED: dict[str, Any] = {
    "model": {"kind": "people"},
    "enrolment": "closed",
    "users": {f"p{i}": {"group": "ab"[i % 2]} if 1 < i < 6 else {} for i in range(9)},
}
PAPER = {"model": {"kind": "paper"}}
KNOWN: dict[str, Any] = PAPER | {"noise": {"kind": "known", "sd": {"yield": 16.0}}}

TRIALS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sites": ({}, {"effects": {"new": {"yield": 15.0}}}),
    "two metrics, contexts, guardrail": (TWO, {"effects": {"new": {"yield": 3.0}}}),
    "blocks, floors": (PLOTS | {"floors": {"control": 0.2, "shrink": 0.1}}, {"effects": {"new": {"yield": 9}}}),
    "plots, budget": (PLOTS | {"policy": {"name": "dri_med", "guard": "budget"}}, {"effects": {"new": {"yield": 20}}}),
    "control plots": ({"feedback": "difference"}, {"effects": {"new": {"yield": 15.0}}}),
    "own and drawn controls, an arm that one cannot get, noise by arm": (
        {"model": {"noise": "arm"}, "users": {"north": {"control": {"old": 0.5, "other": 0.5}}, "west": {},
                                              "south": {"arms": ["old", "new"], "preference": {"yield": 3.0}}}},
        {"effects": {"new": {"yield": 15.0}}},
    ),
    "people of whom some are in no group": (MIXED, {"effects": {"new": {"yield": 15.0}}}),
    "people, spread evenly": (
        MIXED | {"model": {"kind": "people", "balanced": True}}, {"effects": {"new": {"yield": 15.0}}},
    ),
    "paper": (PAPER, {"effects": {"new": {"yield": 15.0}}}),
    "yes or no": (
        {"metrics": {"yield": {"kind": "yes/no", "typical": 0.4}}, "tolerance": {"absolute": 0.2}},
        {"effects": {"new": {"yield": 0.3}}},
    ),
    "people, counts and scores": (
        MIXED | {"metrics": {"yield": {"kind": "count", "typical": 2.0}, "pain": {"kind": "score", "range": [0, 10]}},
                 "preference": {"yield": 1.0, "pain": -0.1}, "tolerance": {"absolute": 0.8}},
        {"effects": {"new": {"yield": 1.5}}},
    ),
    "blocks, half held out": (
        {"users": {f"u{i}": {"blocks": {"A": ["1", "2"], "B": ["3"]}} for i in range(4)}, "holdout": {"share": 0.5}},
        {"effects": {"new": {"yield": 15.0}}},
    ),
    "people, half held out, published": (
        KNOWN | {"users": {f"u{i}": {} for i in range(6)}, "holdout": {"share": 0.5},
                 "policy": {"name": "published_dri_med"}},
        {"effects": {"new": {"yield": 15.0}}},
    ),
    "late": ({"floors": {"control": 0.3, "count": "user"}}, {"effects": {"new": {"yield": 15.0}}, "delay": 2}),
    "lost": ({}, {"effects": {"new": {"yield": 15.0}}, "dropout": 0.3}),
    "published": (KNOWN | {"policy": {"name": "published_dri_med"}}, {"effects": {"new": {"yield": 15.0}}}),
    "published index, plots, late": (
        KNOWN | PLOTS | {"policy": {"name": "published_dri_imed"}},
        {"effects": {"new": {"yield": 15.0}}, "delay": 1},
    ),
    "published, contexts": (
        KNOWN | {"context": {"rain": {"typical": 2.0, "spread": 0.3}}, "policy": {"name": "published_dri_med"},
                 "noise": KNOWN["noise"] | {"scale": "norm"}},
        {"effects": {"new": {"yield": 15.0}}},
    ),
}  # fmt: skip


def rehearsed(
    spec: TrialSpec, scenario: dict[str, Any], seasons: int, past: HistoryRead | None = None
) -> tuple[SimulatedTrials, list[Season]]:
    world = SimulatedTrials.of(spec, Scenario.model_validate(scenario), SEEDS, seasons, past)
    return world, list(play(world, own(spec)))


def contexts(world: SimulatedTrials, season: int, s: int) -> dict[str, dict[str, float]]:
    fields = list(world.state.problem.covariates.fields)
    found = zip(world.places[season], world.contexts(season), strict=True)
    return (
        {} if not fields else {p.user: dict(zip(fields, c[s].tolist(), strict=True)) for p, c in found if c is not None}
    )


def reports(spec: TrialSpec, season: Season, s: int, ids: list[int]) -> list[Report]:
    metrics, told = list(spec.metrics), season.response
    found = []
    for i, decision in enumerate(ids):
        if told.observed[s, i]:
            values = dict(zip(metrics, told.y[s, i].tolist(), strict=True))
            beside = dict(zip(metrics, told.control[s, i].tolist(), strict=True))
            found.append(Report(decision, values, beside if spec.feedback == "difference" else None))
    return found


@pytest.mark.parametrize(("more", "scenario"), TRIALS.values(), ids=TRIALS)
def test_a_live_trial_with_the_same_draws_takes_the_rehearsed_decisions(
    more: dict[str, Any], scenario: dict[str, Any]
) -> None:
    assert_as_live(TrialSpec.read(PLAIN | more), scenario)


def assert_as_live(spec: TrialSpec, scenario: dict[str, Any], past: HistoryRead | None = None) -> list[Season]:
    """Arms exactly; probabilities to 1e-6: sums over a batch have their own round-off."""
    world, played = rehearsed(spec, scenario, 4, past)
    arms, s = list(spec.arms), len(SEEDS) - 1
    trial = Trial.create(spec.plain() | {"seed": SEEDS[s]}, MemoryStore(), history=past)
    waiting: list[tuple[int, list[Report]]] = []
    for season in played:
        trial.open_episode(contexts(world, season.number, s))
        decisions = trial.ask_many()
        assert [arms.index(d.arm) for d in decisions] == season.action[s].tolist()
        live = np.array([list(d.probabilities.values()) for d in decisions])
        np.testing.assert_allclose(live, season.probabilities[s], atol=1e-6)
        waiting.append((season.number, reports(spec, season, s, [d.id for d in decisions])))
        while waiting and waiting[0][0] <= season.number - world.setting.delay:
            trial.tell_many(waiting.pop(0)[1], confirm=True)
    assert len({a for season in played for a in season.action.ravel().tolist()}) > 1, "not only the control"
    return played


LEVELS = {"north": -20.0, "south": 0.0, "hill": 20.0}


def past_of(spec: TrialSpec, column: str) -> HistoryRead:
    """Three seasons of every arm at three places."""
    noise = np.random.default_rng(0).normal(0, 4, (3, 3, 3))
    rows = [
        {"season": 2020 + y, column: place, "arm": arm, "yield": 50 + level + 5 * y + noise[y, g, k]}
        for y in range(3) for g, (place, level) in enumerate(LEVELS.items()) for k, arm in enumerate(spec.arms)
    ]  # fmt: skip
    return of_rows(Problem(spec), read_rows(Problem(spec), Table.of(rows)), "past.csv", "0" * 64)


@pytest.mark.parametrize("arms", ["chosen", "random"])
@pytest.mark.parametrize("column", ["user", "site", "group"])
def test_a_rehearsed_trial_begins_with_its_history_as_the_live_one_does(column: str, arms: str) -> None:
    grouped = {"users": {f"field {i}": {"group": name} for i, name in enumerate(("north", "south", "west"))}}
    spec = TrialSpec.read(PLAIN | (grouped if column == "group" else {}) | {"history": {"arms": arms}})
    scenario, past = {"effects": {"new": {"yield": 15.0}}}, past_of(spec, column)
    first = assert_as_live(spec, scenario, past)[0]
    assert (first.probabilities[..., 0] < 1).all()  # without it the first season is on the control
    assert (rehearsed(spec, scenario, 1)[1][0].probabilities[..., 0] == 1).all()


def test_places_of_the_past_keep_their_levels_and_others_are_drawn() -> None:
    spec = TrialSpec.read(PLAIN | {"history": {"arms": "chosen"}})
    past = past_of(spec, "site")
    worlds = of_past(spec, past, 2)
    scenario = worlds["as estimated from the past"]
    assert scenario.level is not None
    assert scenario.level["yield"] == pytest.approx(55, abs=3)  # standard error 1.3
    trials = SimulatedTrials.of(spec, worlds["no difference"], SEEDS, 2, past)
    north, south, west = np.moveaxis(trials.world.lasting[..., 0, 0] - trials.setting.level[0], 1, 0)
    assert north == pytest.approx([-20, -20], abs=5)
    assert south == pytest.approx([0, 0], abs=5)
    assert west[0] != west[1]


@pytest.mark.parametrize(
    "name", ["two metrics, contexts, guardrail", "people of whom some are in no group", "paper", "lost"]
)
def test_what_a_rehearsal_claims_is_what_the_report_of_a_live_trial_shows(name: str) -> None:
    """Of all users together at the end: estimates, likely ranges and ranges at all times, to 1e-5."""
    more, scenario = TRIALS[name]
    spec = TrialSpec.read(PLAIN | more)
    world, played = rehearsed(spec, scenario, 3)
    look = played[-1].look
    assert look is not None
    for s in (1,):
        trial = Trial.create(spec.plain() | {"seed": SEEDS[s]}, MemoryStore())
        for season in played:
            trial.open_episode(contexts(world, season.number, s))
            trial.tell_many(reports(spec, season, s, [d.id for d in trial.ask_many()]), confirm=True)
        shown = [e for e in analyse(trial).effects if (e.who, e.on, e.source) == ("all users", "reward", "model")]
        arms = [list(spec.arms).index(e.arm) for e in shown]
        found = [look.mean, look.mean - look.likely, look.mean + look.likely, look.low, look.high]
        live = [[getattr(e, n) for e in shown] for n in ("estimate", "likely_low", "likely_high", "low", "high")]
        np.testing.assert_allclose([part[s, arms] for part in found], live, rtol=1e-5, atol=1e-6)
        assert look.confirmed[s, arms].tolist() == [e.confirmed for e in shown]
        assert look.significant[s, arms].tolist() == [e.significant is not False for e in shown]
        assert len(arms) > 1


def test_a_rehearsal_allows_for_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound that nothing reaches where single outcomes tell anything, no arm stands."""
    spec = TrialSpec.read(PLAIN | PLOTS)
    scenario = {"effects": {"new": {"yield": 40.0}}, "noise": {"yield": 4.0}}
    look = rehearsed(spec, scenario, 4)[1][-1].look
    assert look is not None
    assert look.significant[:, 1].all()
    monkeypatch.setattr(effects, "density_bound", lambda known, _: np.where(known > 0, 99.0, 0.0))
    look = rehearsed(spec, scenario, 4)[1][-1].look
    assert look is not None
    assert not look.significant.any()
