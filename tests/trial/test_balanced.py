"""Arms of one season in a live trial: spread evenly over sites and blocks, each with its own chance."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from drimed.errors import InputError, SpecError
from drimed.models.offer import NEVER
from drimed.records import Report
from drimed.reports.analysis import analyse
from drimed.trial import events as kinds
from drimed.trial.estimates import EXACT
from drimed.trial.trial import Trial
from tests.trial.playing import new, verified

USERS: dict[str, Any] = {f"site {i}": {"blocks": {"A": ["1", "2"], "B": ["3", "4"]}} for i in range(5)}
HALVES: dict[str, Any] = {"users": USERS, "policy": {"name": "uniform"}, "arms": {"old": {}, "new": {}}}
EXACTLY = {"rules": {"better": {"kind": "superiority", "arm": "new", "evidence": "exact"}}}
RANGED = {"metrics": {"yield": {"range": [0.0, 12.0]}}, "preference": {"yield": 1.0}}


def test_two_arms_of_one_half_share_every_block() -> None:
    trial = new(**HALVES)
    for season in range(3):
        given = trial.ask_many(episode=season + 1)
        assert {d.propensity for d in given} == {0.5}
        for i in range(5):
            for block in "AB":
                assert {d.arm for d in given if (d.user, d.block) == (f"site {i}", block)} == {"old", "new"}
    verified(trial)


SIX: dict[str, Any] = {"users": {f"site {i}": {"blocks": {"A": [*"123"], "B": [*"456"]}} for i in range(3)}}
ARMS: dict[str, Any] = {"arms": {name: {} for name in ("best", "a", "old", "b", "c")}}
BETTER = {"rules": {"better": {"kind": "superiority", "arm": "best", "evidence": "model", "confidence": 0.8}}}


def controls_of(trial: Trial, seasons: int) -> list[int]:
    """Plots of the control, by season and site, where one arm is far better."""
    rng, found = np.random.default_rng(4), []
    for season in range(1, seasons + 1):
        given = trial.ask_many(episode=season)
        found += [sum(d.arm == "old" for d in given if d.user == f"site {i}") for i in range(3)]
        y = [5 + 3 * (d.arm == "best") + rng.normal(0, 0.5) for d in given]
        trial.tell_many([Report(d.id, {"yield": one}) for d, one in zip(given, y, strict=True)])
    verified(trial)
    return found


def test_six_plots_in_two_blocks_always_have_one_of_the_control_beside_five_arms() -> None:
    more = SIX | ARMS | {"metrics": {"yield": {"range": [0.0, 12.0]}}, "preference": {"yield": 1.0}}
    found = controls_of(new(**more, floors={"plot": "always"}), 8)
    assert min(found) == 1
    assert max(found[9:]) == 1, "no more than that once another arm is better"
    last = new(**more | {"arms": ARMS["arms"] | {"d": {}, "e": {}}}, floors={"plot": "always"})
    assert 0 in controls_of(last, 8), "no room beside seven arms"
    trial = new(**more)
    assert 0 in controls_of(trial, 8), "as long as the control may be the best arm"
    for d in trial.decisions():
        assert d.probabilities["old"] >= 1 / 6 - 1e-9 or d.probabilities["old"] < 0.06


def test_the_plot_of_the_control_ends_with_the_floor() -> None:
    more = SIX | ARMS | {"metrics": {"yield": {"range": [0.0, 12.0]}}, "preference": {"yield": 1.0}}
    trial = new(**more, floors={"until": "better", "plot": "always"}, stopping=BETTER)
    found = controls_of(trial, 8)
    assert trial.status().floor_ended
    assert min(found[:6]) >= 1
    assert 0 in found


def test_plots_with_one_of_the_control_beside_each_need_no_other() -> None:
    trial = new(**SIX | ARMS, feedback="difference")
    assert trial.state().floor(["site 0"]).plot.tolist() == [NEVER]  # type: ignore[union-attr]


def test_a_place_that_is_asked_for_alone_is_drawn_alone() -> None:
    trial = new(**HALVES)
    given = [trial.ask("site 0", plot=plot, episode=season) for season in range(1, 30) for plot in "12"]
    pairs = Counter(len({a.arm, b.arm}) for a, b in zip(given[::2], given[1::2], strict=True))
    assert pairs[1] > 5  # of 29: both plots of a block have the same arm in half of the seasons
    verified(trial)


def test_exact_evidence_needs_every_decision_drawn_by_itself() -> None:
    exact = new(**HALVES, **RANGED, stopping=EXACTLY)
    assert not exact.state().balances
    with pytest.raises(SpecError, match="drawn one by one"):
        new(**HALVES, **RANGED, stopping=EXACTLY, model={"balanced": True})
    even = new(**HALVES, **RANGED)
    with pytest.raises(InputError, match="drawn one by one"):
        even.change_rules(EXACTLY, reason="a stricter look")
    even.change_rules({"rules": {"better": EXACTLY["rules"]["better"] | {"evidence": "propensities"}}}, reason="a look")
    assert not list(even.log(kinds=[kinds.LOOK]))
    verified(even)


def test_exact_ranges_are_left_out_where_decisions_are_spread_evenly() -> None:
    sources, rng = [], np.random.default_rng(1)
    for model in ({"kind": "field"}, {"kind": "field", "balanced": False}):
        trial = new(**HALVES, **RANGED, model=model)
        for season in range(1, 25):
            given = trial.ask_many(episode=season)
            y = [(10.0 if d.arm == "new" else 1.0) + rng.random() for d in given]
            trial.tell_many([Report(d.id, {"yield": one}) for d, one in zip(given, y, strict=True)])
        sources.append({x.source for x in analyse(trial).effects})
        verified(trial)
    assert EXACT not in sources[0]
    assert EXACT in sources[1]
