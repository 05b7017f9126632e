"""Stopping rules in reports: as sentences, with their looks and amendments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drimed.records import Claim, Look
from drimed.reports import charts
from drimed.reports.analysis import analyse, describe_rules
from drimed.reports.page import report, write_report
from drimed.trial.seasons import calendar
from drimed.trial.spec import Stopping
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.trial.test_stopping import SPEC, SUPERIOR, create, drifting, play


def test_the_report_tells_the_rules_the_looks_and_the_changes(tmp_path: Path) -> None:
    trial = create({"rules": {"good": SUPERIOR | {"margin": 0.5, "then": "stop"}}, "seasons": 50})
    good = {"rules": {"good": SUPERIOR | {"then": "stop"}}}
    trial.change_rules(good | {"seasons": 50}, reason="a misprint", actor="ann")
    play(trial, 4)
    trial.change_rules({"rules": {"good": SUPERIOR | {"then": "stop"}}, "seasons": 40}, reason="no money", actor="bob")
    play(trial, 30)
    found = analyse(trial).stopping
    assert found is not None
    last = trial.state().episode.number
    assert found.describe() == [
        f"{last} looks so far.",
        f"good was met for new, all users, in season {last} after {6 * last} decisions.",
        f"The trial was stopped after season {last}: stopping rule 'good' is met: new for all users.",
    ]
    assert [(a.reason, a.after_decisions) for a in found.amendments] == [("a misprint", False), ("no money", True)]
    assert found.amendments[1].removed == ["The trial stops after 50 seasons."]
    assert found.amendments[1].added == ["The trial stops after 40 seasons."]
    page = write_report(trial, tmp_path).read_text(encoding="utf-8")
    for text in (
        "no money",
        "Changed after the first decision",
        "Changed before the first decision",
        "stopping-chart-1",
    ):
        assert text in page
    (chart,) = charts.rule_charts(found)
    assert "to go until the arm is shown to be better than the control and the trial stops" in chart.table.columns
    assert len(chart.table.rows) == last
    assert chart.picture("wide").count("met-line") == 1
    assert [row[-1] for row in chart.table.rows] == ["no"] * (last - 1) + ["yes"]


def test_a_rule_by_a_model_that_is_wrong_is_not_met_and_an_earlier_claim_does_not_hold() -> None:
    trial = drifting(10)
    trial.look()
    page = report(analyse(trial))
    assert "At the last look r was not met: the model is wrong and shows nothing (yield:" in page
    assert "No rule was met." in page
    found = analyse(create({"rules": {"r": SUPERIOR | {"evidence": "model"}}})).stopping
    assert found is not None
    claim = Claim("r", "superiority", "reward", "all", "all users", "new", 1.0, 2.0, 0.05, 0.0, -1.0, met=True)
    met = replace(found, looks=[Look(1, "", "", "season", 0, 2, 9, 9, [claim], [], [], None, [], "", "")])
    rule = met.state.spec.rules["r"]
    for evidence, end in (
        ("model", "of which at all looks together at most 5 % fail. Later"),
        ("calibrated", "which claims something false of any arm in at most 5 % of trials, over all planned looks"),
        ("spending", "which claims something false of this arm in at most 5 % of trials, over all planned looks"),
    ):
        of_kind = rule.model_copy(update={"evidence": evidence})
        chart = charts._looks("c", [(met.looks[0], claim)], "higher", "", calendar(met.state), of_kind)
        assert chart is not None
        assert end in chart.text
    text = "r rests on the model, which was found wrong since: its claim does not hold."
    assert text in met.describe(withdrawn=True)
    assert text not in met.describe()


def test_a_trial_without_rules_says_nothing_of_them(tmp_path: Path) -> None:
    trial = play(Trial.create(SPEC, MemoryStore()), 1)
    assert analyse(trial).stopping is None
    assert "stopping" not in write_report(trial, tmp_path).read_text(encoding="utf-8").lower()
    trial.change_rules({"seasons": 3}, reason="x")
    assert analyse(trial).stopping is not None


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"kind": "superiority", "arm": "new", "margin": 2.0}, "new is better than the control by more than 2"),
        ({"kind": "non_inferiority", "margin": 2.0}, "an arm is not worse than the control by 2"),
        ({"kind": "equivalence", "margin": 2.0}, "every arm differs from the control by less than 2"),
        ({"kind": "futility", "margin": 2.0}, "no arm can be better than the control by 2"),
        ({"kind": "futility", "arm": "new", "margin": 2.0}, "new cannot be better than the control by 2"),
        ({"kind": "harm", "metric": "cost", "each": "group"}, "is worse than the control, on cost, for each group"),
    ],
)
def test_rules_in_words(rule: dict[str, object], said: str) -> None:
    assert said in describe_rules(Stopping.model_validate({"rules": {"r": rule}}))[0]
