"""Among many arms and sites some look better by chance: what pages, sentences and charts say then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.models.mixed import effects
from drimed.records import Effect
from drimed.reports.analysis import Analysis, analyse
from drimed.reports.charts.effects import EffectRow, forest
from drimed.reports.effects import EVERYBODY, own_effects
from drimed.reports.wording import summary
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.reports.field_trials import FIELD, PEOPLE, grown
from tests.reports.test_confirmed import CLEAR

CHANCE = "inconclusive after adjusting for multiple comparisons"


@pytest.fixture(scope="module")
def done() -> Analysis:
    return analyse(grown(FIELD, 4))


def effect(who: str, low: float, high: float, *, significant: bool | None) -> Effect:
    ends = low - 9, high + 9, low, high
    return Effect(who, "good", "reward", (low + high) / 2, *ends, seasons=4, significant=significant)


def test_a_range_on_one_side_of_zero_says_nothing_where_it_does_not_stand() -> None:
    for stands, likely in ((True, 1), (None, 1), (False, 0)):
        assert effect("s0", 0.2, 2.0, significant=stands).likely == likely
        assert effect("s0", -2.0, -0.2, significant=stands).likely == -likely
    assert effect("s0", 0.2, 2.0, significant=False).why_open == CHANCE
    assert not effect("s0", 0.2, 2.0, significant=True).why_open
    assert not effect("s0", -0.2, 2.0, significant=False).why_open, "it is open by its range"
    assert "one season only" in replace(effect("s0", 0.2, 2.0, significant=False), seasons=1).why_open


def test_what_is_certain_needs_no_other_user() -> None:
    sure = replace(effect("s0", 0.2, 2.0, significant=False), low=0.1, high=2.1)
    assert (sure.certain, sure.likely) == (1, 0)
    assert not sure.why_open
    drawn = forest("effects", "Effects", [EffectRow("good", sure)], on="reward")
    assert drawn is not None
    assert "chance" not in drawn.text + drawn.wide


def test_sentences_and_charts_say_that_it_may_be_chance(done: Analysis) -> None:
    users = list(done.data.state.users)
    found = [effect(users[0], 0.2, 2.0, significant=False), effect(users[1], -1.0, 2.0, significant=False)]
    said = summary(replace(done, effects=found))
    assert "No arm is likely to be better than the control for any site so far." in said
    chance = "By the range alone, good would be called better for 1 of 6 sites; among so many arms and sites"
    assert any(s.startswith(chance) for s in said)
    drawn = forest("effects", "Effects", [EffectRow("good", found[0])], on="reward")
    assert drawn is not None
    assert "that may be chance among so many comparisons" in drawn.text
    assert CHANCE in drawn.wide
    assert ">open, may be chance</text>" in drawn.wide


def test_the_summary_calls_what_is_certain_clear_though_its_likely_range_does_not_stand(done: Analysis) -> None:
    open_ = effect(EVERYBODY, 0.2, 2.0, significant=False)
    for found, words in ((open_, "is estimated to earn"), (replace(open_, low=0.1, high=2.1), "earns")):
        said = next(s for s in summary(replace(done, effects=[found])) if s.startswith("For the average of"))
        assert f"good {words} 1.1 more than the control" in said
        assert ("still open" in said) == (found.certain == 0)


def test_a_site_is_judged_with_all_sites_together() -> None:
    """An arm that is clearly better everywhere stands at every site, also at one that is asked about alone."""
    trial = grown(CLEAR, 3, times=2.0)
    state, found = trial.state(), analyse(trial)
    alone = {x.arm: x for x in own_effects(state, ["s0"])}
    for x in found.effects:
        if x.source == "model" and x.arm == "good" and x.on == "reward":
            assert x.significant
    report_s0 = {x.arm: x for x in found.own_effects if x.who == "s0"}
    assert {arm: x.significant for arm, x in alone.items()} == {arm: x.significant for arm, x in report_s0.items()}


def test_with_many_users_one_of_them_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = grown(CLEAR, 3, times=1.0)
    state = trial.state()
    together = own_effects(state, list(state.users))
    monkeypatch.setattr("drimed.reports.effects.MOST_USERS", 3)
    alone = own_effects(state, list(state.users))
    for one, other in zip(together, alone, strict=True):
        assert bool(one.significant) >= bool(other.significant)
        assert replace(one, significant=None) == replace(other, significant=None)
    assert [x.significant for x in together] != [x.significant for x in alone]


def test_of_the_papers_model_it_is_not_asked() -> None:
    paper = {k: v for k, v in CLEAR.items() if k not in ("users", "model")}
    trial = Trial.create(
        paper | {"model": {"kind": "paper"}, "policy": {"name": "dri_med"}, "users": {"s0": {}, "s1": {}}},
        MemoryStore(),
    )
    assert {x.significant for x in own_effects(trial.state(), ["s0"])} == {None}


def test_what_is_known_counts_for_users_groups_and_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound that nothing reaches where single outcomes tell anything, nothing stands; people have none."""
    monkeypatch.setattr(effects, "bound", lambda known, _: np.where(known > 0, 99.0, 0.0))
    found = [x for x in analyse(grown(CLEAR, 3, times=3.0)).effects if x.source == "model"]
    assert {x.who for x in found} == {"all users", "a", "b", "s0", "s1", "s2", "s3"}
    assert {x.on for x in found} == {"reward", "yield", "cost"}
    assert not any(x.significant for x in found)
    people = [x for x in analyse(grown(PEOPLE, 4, times=3.0)).effects if x.source == "model" and x.arm == "good"]
    assert any(x.significant for x in people)


def test_users_and_groups_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two arms besides the control, for all users, one of two groups, or one of four users."""
    counted = set()

    def count(arms: int, users: int = 1) -> float:
        counted.add((arms, users))
        return 2.0

    monkeypatch.setattr(effects, "dunnett", count)
    trial = grown(CLEAR, 2)
    own_effects(trial.state(), ["s0"])
    assert counted == {(2, 1), (2, 4)}
    analyse(trial)
    assert counted == {(2, 1), (2, 2), (2, 4)}


def test_an_arm_that_is_only_the_control_of_some_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three arms, of which two are controls: all three are compared with one."""
    counted, dunnett = set(), effects.dunnett

    def count(arms: int, users: int = 1) -> float:
        counted.add(arms)
        return dunnett(arms, users)

    users = {user: CLEAR["users"][user] | {"control": "bad" if i else "old"} for i, user in enumerate(CLEAR["users"])}
    trial = grown(CLEAR | {"users": users}, 2)
    monkeypatch.setattr(effects, "dunnett", count)
    own_effects(trial.state(), ["s0"])
    analyse(trial)
    assert counted == {3}


def test_what_is_known_is_laid_out_once_for_effects_of_some_users(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, know = [], effects.know

    def counted(learner: Any, evidence: Any, offers: Any) -> effects.Known:
        calls.append(len(offers.control))
        return know(learner, evidence, offers)

    state = grown(CLEAR, 2).state()
    monkeypatch.setattr(effects, "know", counted)
    own_effects(state, ["s0", "s2"])
    assert calls == [4], "for all users, of whom two were asked about"
