"""Stopping rules act in a rehearsal as they act in a live trial with the same seed and outcomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import ConflictError
from drimed.records import Claim
from drimed.rehearsal import designs
from drimed.rehearsal.play import Season, StoppingMonitor, play, record
from drimed.rehearsal.results import Record, measures
from drimed.rehearsal.scenarios import Scenario, SimulatedTrials
from drimed.trial.events import LOOK, Calibration
from drimed.trial.spec import TrialSpec
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.rehearsal.test_live import PAPER, PLAIN, SEEDS, TWO, contexts, reports

EIGHT = [str(i) for i in range(8)]
PLOTS = {"users": {u: {"plots": EIGHT} for u in ("north", "south")}, "floors": {"arms": 0.2}}
GROUPS = PLOTS | {"users": {u: {"group": g, "plots": EIGHT} for u, g in (("north", "a"), ("south", "b"))}}
EFFECTS = {"effects": {"new": {"yield": 30.0}, "other": {"yield": -40.0}}, "site_arm": {"yield": 0.0}}


MANY: dict[str, Any] = {
    "users": {u: {"group": g, "plots": [str(i) for i in range(150)]} for u, g in (("north", "a"), ("south", "b"))},
    "floors": {"arms": 0.33},
}  # fmt: skip
PEOPLE = {
    "model": {"kind": "people"},
    "users": {},
    "cohorts": {"young": {"group": "a"}, "old": {"group": "b"}},
    "floors": {"arms": 0.25},
}


def rule(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "confidence": 0.6} | more


ON_MODEL = {
    "better": rule("superiority", evidence="model"),
    "in a": rule("superiority", evidence="model", group="a"),
    "in each": rule("harm", margin=5.0, evidence="model", each="group"),
    "north": rule("superiority", evidence="model", user="north", arm="new"),
    "each user": rule("harm", evidence="model", each="user"),
    "no use": rule("futility", margin=3.0, evidence="model"),
    "one of no use": rule("futility", margin=3.0, evidence="model", arm="other"),
}
FREE = {
    "harm": rule("harm", margin=5.0),
    "in b": rule("harm", group="b"),
    "in each": rule("superiority", each="group"),
    "south": rule("harm", user="south", arm="other"),
    "yield": rule("superiority", metric="yield"),
    "surely": rule("harm", evidence="exact"),
    "surely in a": rule("harm", evidence="exact", metric="yield", group="a"),
}
JOINING = {
    "better": rule("superiority", evidence="model"),
    "in each": rule("superiority", evidence="model", each="group"),
    "free": rule("harm"),
    "free in a": rule("superiority", group="a"),
}
TWO_METRICS = TWO | {"users": {n: u | {"plots": EIGHT} for n, u in TWO["users"].items()}, "floors": {"arms": 0.2}}  # type: ignore[attr-defined]
ON_METRICS = {
    "yield": rule("superiority", metric="yield", evidence="model"),
    "loss": rule("superiority", metric="loss", evidence="model", group="a"),
    "no loss": rule("non_inferiority", metric="loss", margin=10.0),
    "worse": rule("harm", metric="loss", evidence="exact"),
}
NOTHING: dict[str, Any] = {"claims": []}
STOP = rule("superiority", evidence="model", then="stop")
LESS = {"effects": {"new": {"yield": 4.0, "loss": -30.0}, "other": {"loss": 30.0}}}
PLANNED = {
    "up": rule("superiority", evidence="spending", shape="obrien-fleming"),
    "down": rule("harm", evidence="spending", then="drop"),
    "no use": rule("futility", margin=3.0, evidence="spending", then="drop"),
}
WIDE = {"tolerance": {"relative": 0.0, "absolute": 60.0}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "model": (GROUPS, EFFECTS, {"rules": ON_MODEL}),
    "propensities": (GROUPS | WIDE, EFFECTS, {"rules": FREE}),
    "late and lost": (GROUPS | WIDE, EFFECTS | {"delay": 1, "dropout": 0.2}, {"rules": FREE | ON_MODEL}),
    "control plots": (GROUPS | WIDE | {"feedback": "difference"}, EFFECTS, {"rules": FREE}),
    "metrics": (TWO_METRICS | WIDE, LESS, {"rules": ON_METRICS}),
    "paper": (PAPER | GROUPS | WIDE, EFFECTS, {"rules": FREE}),
    "many plots": (PAPER | MANY | WIDE, EFFECTS, {"rules": FREE}),
    "people who join": (PEOPLE | WIDE, EFFECTS | {"users": 30}, {"rules": JOINING}),
    "now and then": (GROUPS, EFFECTS, {"rules": ON_MODEL, "looks": 40}),
    "planned looks, and arms are dropped": (GROUPS | WIDE, EFFECTS, {"rules": PLANNED, "seasons": 4}),
    "the same of people": (PEOPLE | WIDE, EFFECTS | {"users": 30}, {"rules": PLANNED, "looks": 30, "decisions": 120}),
    "by hand": (GROUPS, EFFECTS, {"rules": {"stop": STOP}, "looks": "by hand"}),
    "stops by a group": (GROUPS, EFFECTS, {"rules": {"in a": STOP | {"group": "a"}}}),
    "so many seasons": (GROUPS, EFFECTS, {"rules": ON_MODEL, "seasons": 3}),
    "so many decisions": (GROUPS, EFFECTS, {"rules": ON_MODEL, "decisions": 48}),
    "no room for a season": (GROUPS, EFFECTS, {"decisions": 50}),
    "floor of a group": (
        GROUPS | {"floors": {"control": 0.3, "arms": 0.1, "until": "each"}},
        EFFECTS,
        {"rules": {"each": rule("superiority", evidence="model", each="group")}},
    ),
    "floor of a user, by a metric": (
        GROUPS | {"floors": {"control": 0.3, "arms": 0.1, "until": "each"}},
        EFFECTS,
        {"rules": {"each": rule("superiority", each="user", metric="yield", evidence="model")}},
    ),
}  # fmt: skip


def watched(spec: TrialSpec, scenario: dict[str, Any], seasons: int) -> tuple[StoppingMonitor, list[Season], Record]:
    watch = StoppingMonitor(SimulatedTrials.of(spec, Scenario.model_validate(scenario), SEEDS, seasons))
    found = list(play(watch.trials, designs.own(spec), monitor=watch))
    return watch, found, record(watch, found, spec.tolerance)


def lived(
    spec: TrialSpec, world: SimulatedTrials, seasons: list[Season], s: int, bounds: Calibration | None = None
) -> tuple[Trial, int]:
    """A live trial with the draws and outcomes of world s, and how many seasons it has."""
    trial = Trial.create(spec.plain() | {"seed": SEEDS[s]}, MemoryStore(), calibration=bounds)
    arms = list(spec.arms)
    waiting: list[Any] = []
    crowd = world
    for season in seasons:
        try:
            trial.open_episode(contexts(world, season.number, s))
            asked = [place.user for place in crowd.places[season.number]] if spec.enrols else None
            decisions = trial.ask_many(
                asked, enrol={u: crowd.state.profile(u).definition.model_dump(exclude_none=True) for u in asked or ()}
            )
        except ConflictError:  # it was stopped, or has no room for so many decisions
            return trial, season.number
        assert [arms.index(d.arm) for d in decisions] == season.action[s].tolist()
        waiting.append((season.number, reports(spec, season, s, [d.id for d in decisions])))
        last = season is seasons[-1]
        while waiting and (last or waiting[0][0] <= season.number - world.setting.delay):
            trial.tell_many(waiting.pop(0)[1], confirm=True)
    trial.look()
    return trial, len(seasons)


def last_look(trial: Trial) -> dict[str, Any]:
    with trial.reading() as (ledger, _):
        return [NOTHING, *(event.body for event in ledger.events(kinds=[LOOK]))][-1]


def ends(look: dict[str, Any]) -> list[float]:
    """Of all ranges; what cannot be told yet is infinite."""
    found = [claim[end] for claim in look["claims"] for end in ("low", "high")]
    return [np.inf if end is None else end for end in found]


@pytest.mark.parametrize(("more", "scenario", "stopping"), CASES.values(), ids=CASES)
def test_rules_are_met_and_act_in_a_live_trial_as_rehearsed(
    more: dict[str, Any], scenario: dict[str, Any], stopping: dict[str, Any]
) -> None:
    """The same rules, the same end, and while the trial lasts the same arms, also where a floor ends.

    Ranges of the last look agree to 1e-5: sums over a batch have their own round-off.
    """
    spec = TrialSpec.read(PLAIN | more | {"stopping": stopping})
    watch, seasons, kept = watched(spec, scenario, 4)
    s = len(SEEDS) - 1
    trial, lasted = lived(spec, watch.trials, seasons, s)
    rehearsed, live = watch.last_look.get(s, NOTHING), last_look(trial)
    np.testing.assert_allclose(ends(rehearsed), ends(live), rtol=1e-5)
    met = trial.state().looked.met
    assert kept.played[s] == lasted
    assert [bool(met.get(name)) for name in stopping.get("rules", {})] == kept.met[s, -1].tolist()
    assert np.isnan(kept.control[s, lasted:]).all()
    assert np.isfinite(kept.control[s, :lasted]).all()


def test_a_claim_is_false_where_the_world_says_otherwise_of_those_whom_it_is_about() -> None:
    """By the effects of the scenario, and against the margin of the rule."""
    rules = {g: rule("superiority", evidence="model", group=g, margin=m) for g, m in (("a", 0.0), ("b", 200.0))}
    spec = TrialSpec.read(PLAIN | GROUPS | {"stopping": {"rules": rules}})
    watch = StoppingMonitor(SimulatedTrials.of(spec, Scenario.model_validate(EFFECTS), SEEDS, 2))

    def is_false(who: str, arm: str) -> bool:
        claim = Claim(who, "superiority", "reward", "group", who, arm, 0.0, 1.0, 0.05, 0.0, -1.0, met=True)
        return watch._is_false(0, claim)

    assert not is_false("a", "new")
    assert is_false("a", "other")
    assert is_false("b", "new")  # it is better, but not by that margin


@pytest.mark.parametrize("more", [{}, {"delay": 1}, {"dropout": 0.2}], ids=["at once", "late", "lost"])
def test_ranges_from_propensities_are_those_of_a_rule_with_the_same_alpha(more: dict[str, Any]) -> None:
    """Those of the page are of the whole batch at 95 %: a rule with two arms has that at a confidence of 90 %."""
    paper = {} if "dropout" in more else PAPER  # which has no missing outcomes
    spec = TrialSpec.read(PLAIN | MANY | paper | WIDE | {"stopping": {"rules": {"b": rule("harm", confidence=0.9)}}})
    watch, _, kept = watched(spec, EFFECTS | more, 3)
    for s in range(len(SEEDS)):
        found = np.reshape(ends(watch.last_look[s]), (2, 2))  # arms but the control, low and high
        rehearsed = np.stack([kept.free_low[s, -1, 1:], kept.free_high[s, -1, 1:]], -1)
        np.testing.assert_allclose(rehearsed, found, rtol=1e-6)
        assert np.isfinite(found).all()


def test_measures_have_every_rule_and_the_seasons_of_trials_that_were_stopped() -> None:
    spec = TrialSpec.read(PLAIN | GROUPS | {"stopping": CASES["stops by a group"][2]})
    kept = watched(spec, EFFECTS, 4)[2]
    found = measures(kept, ["in a"])
    assert (kept.played < 4).any(), "some trial was stopped"
    assert found["seasons"] is not None
    assert found["seasons"].value == pytest.approx(kept.played.mean())
    assert all(n is None or np.isfinite(n.value) for n in found.values())
