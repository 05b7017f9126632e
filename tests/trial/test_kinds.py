"""Trials with yes-or-no outcomes, counts and scores: from the file to decisions, replays and reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import BatchError, ConflictError, InputError, SpecError
from drimed.formatting import percent, short
from drimed.models.mixed.learner import Field
from drimed.policies.policy import Policy
from drimed.records import Report
from drimed.reports.analysis import analyse
from drimed.reports.page import report
from drimed.reports.wording import _in_100, outcomes_by_arm, recorded_by_arm
from drimed.trial import estimates, sheets, template
from drimed.trial.spec import TrialSpec
from drimed.trial.store import MemoryStore
from drimed.trial.tables import read
from drimed.trial.trial import Trial
from tests.trial.playing import refused, verified

METRICS: dict[str, dict[str, Any]] = {
    "cure": {"kind": "yes/no", "typical": 0.3},
    "pain": {"kind": "score", "range": [0, 10], "better": "lower"},
    "visits": {"kind": "count", "better": "lower"},
    "weight": {"unit": "kg"},
}


def clinic(**changes: Any) -> dict[str, Any]:
    return {
        "name": "clinic",
        "seed": 1,
        "model": {"kind": "people"},
        "enrolment": "open",
        "metrics": METRICS,
        "arms": {"low": {}, "mid": {}, "high": {}},
        "control": "low",
        "preference": {"cure": 1.0, "pain": -0.02, "visits": -0.01, "weight": 0.0},
        "tolerance": {"absolute": 0.1},
        "guardrails": [{"metric": "pain", "absolute": 1.5}],
    } | changes


def outcome(rng: np.random.Generator, arm: str) -> dict[str, Any]:
    k = ("low", "mid", "high").index(arm)
    return {
        "cure": "yes" if rng.random() < (0.3, 0.3, 0.6)[k] else "no",
        "pain": int(rng.integers(0, 9)),
        "visits": int(rng.poisson(2.0)),
        "weight": float(rng.normal(70, 5)),
    }


def played(n: int = 40, **changes: Any) -> Trial:
    trial, rng = Trial.create(clinic(**changes), MemoryStore()), np.random.default_rng(3)
    for i in range(n):
        given = trial.ask(f"p{i}")
        told = outcome(rng, given.arm)
        if i % 7 == 3:
            told.pop("weight")  # comes later, or never
        trial.tell(given.id, told)
    return trial


def test_a_trial_of_all_kinds_is_reproduced_to_the_last_bit() -> None:
    trial = played()
    trial.amend(3, {"cure": "no", "pain": 9}, reason="the chart was misread")
    trial.ask("late")
    verified(trial)
    assert trial.decision(3).outcome == {**(trial.decision(3).outcome or {}), "cure": 0.0, "pain": 9.0}


@pytest.mark.parametrize("word", ["yes", "Ja", "oui", "TRUE", "1", 1, 1.0, True])
def test_yes_is_understood_as_people_write_it(word: object) -> None:
    trial = played(0)
    given = trial.ask("p")
    trial.tell(given.id, {"cure": word})  # type: ignore[dict-item]
    assert trial.decision(given.id).outcome == {"cure": 1.0}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cure": 0.5}, "cure is yes or no: expected yes, no, 1 or 0, got 0.5"),
        ({"cure": "maybe"}, "got 'maybe'"),
        ({"cure": "7 of 20"}, "cure is yes or no"),
        ({"cure": [1]}, "cure is yes or no: expected yes, no, 1 or 0, got \\[1"),
        ({"visits": 10**400}, "visits is a count"),
        ({"pain": 11}, "pain is a score from 0 to 10, got 11"),
        ({"visits": 1.5}, "visits is a count: expected a whole number from 0, got 1.5"),
        ({"visits": -1}, "visits is a count"),
        ({"visits": "two"}, "visits is a count: expected a whole number from 0, got 'two'"),
        ({"pain": True}, "pain is a score from 0 to 10, got True"),
        ({"weight": "heavy"}, "must be a finite number"),
        ({"cure": "perhaps", "pain": "high"}, "outcome.pain: pain is a score from 0 to 10, got 'high'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_and_nothing_is_recorded(wrong: dict[str, Any], message: str) -> None:
    trial = played(0)
    given = trial.ask("p")
    refused(trial, lambda: trial.tell(given.id, wrong), InputError, message)


def test_a_sheet_names_the_row_of_every_wrong_value() -> None:
    trial = played(0)
    for i in range(3):
        trial.ask(f"p{i}")
    good = read("decision;cure;pain;visits\n1;ja;3;0\n2;no;4;2\n3;;10;\n")
    bad = read("decision,cure,pain,visits\n1,perhaps,3,two\n2,no,12,0\n3,yes,4,1\n")
    with pytest.raises(BatchError) as caught, trial.writing() as tx:
        sheets.tell_sheet(tx, bad)
    assert [(f.row, f.message.split(":")[0]) for f in caught.value.faults] == [
        (2, "cure is yes or no"),
        (2, "visits is a count"),
        (3, "pain is a score from 0 to 10, got 12"),
    ]
    with trial.writing() as tx:
        sheets.tell_sheet(tx, good)
    assert [trial.decision(i).outcome for i in (1, 2, 3)] == [
        {"cure": 1.0, "pain": 3.0, "visits": 0.0},
        {"cure": 0.0, "pain": 4.0, "visits": 2.0},
        {"pain": 10.0},
    ]


def test_seven_of_twenty_counts_as_twenty_outcomes() -> None:
    metrics = {"germinated": {"kind": "yes/no", "of": "seeds"}, "weeds": {"kind": "count", "of": "m2"}}
    changes = {"metrics": metrics, "preference": {"germinated": 1.0}, "guardrails": []}
    trial = Trial.create(clinic(**changes), MemoryStore())
    for i in range(12):
        given = trial.ask(f"p{i}")
        trial.tell(given.id, {"germinated": f"{7 + i % 3} of 20", "weeds": f"{i} in 2.5"})
    assert trial.decision(1).outcome == {"germinated": 0.35, "germinated of": 20.0, "weeds": 0.0, "weeds of": 2.5}
    last = trial.ask("last")
    refused(trial, lambda: trial.tell(last.id, {"germinated": "21 of 20"}), InputError, "such as '7 of 20'")
    refused(trial, lambda: trial.tell(last.id, {"germinated": 0.4}), InputError, "needs its number of seeds")
    trial.amend(1, {"germinated": "3 of 10"}, reason="two trays were one", saw=trial.decision(1))
    assert (trial.decision(1).outcome or {})["germinated of"] == 10.0
    table, told = recorded_by_arm(analyse(trial)), [d.outcome or {} for d in trial.decisions() if d.arm == "low"]
    assert table is not None
    seeds, weeds = (sum(o.get(f"{m} of", 0.0) for o in told) for m in metrics)
    grown, found = (sum(o.get(m, 0.0) * o.get(f"{m} of", 0.0) for o in told) for m in metrics)
    assert table.rows[0][2] == f"{grown:.0f} of {seeds:.0f} seeds ({percent(grown / seeds)})"
    assert table.rows[0][3] == f"{short(found / weeds)} ({found:.0f} in {short(weeds)} m2)"
    verified(trial)


def test_yes_or_no_and_counts_of_a_history_are_learned_from() -> None:
    rows = [f"2020,s{i % 4},low,{'no' if i % 5 == 0 else 'yes'},{4 + i % 3}" for i in range(80)]
    trial = Trial.create(
        clinic(
            model={"kind": "field"},
            enrolment="closed",
            metrics={name: METRICS[name] for name in ("cure", "visits")},
            preference={"cure": 1.0},
            guardrails=[],
            users={f"s{i}": {} for i in range(4)},
            history={"sheet": "\n".join(["season,site,arm,cure,visits", *rows])},
        ),
        MemoryStore(),
    )
    state = trial.state()
    assert isinstance(state.policy, Policy)
    assert isinstance(state.policy.learner, Field)
    draws = state.policy.learner.means(state.settled.evidence, estimates.offers_now(state)).draws  # (H, S, K, M)
    assert np.allclose(np.median(draws, (0, 1))[0], [0.8, 5.0], rtol=0.15)
    verified(trial)


def test_effects_of_rare_events_keep_a_decimal() -> None:
    assert [_in_100(share) for share in (0.004, -0.0004, 0.0004, -0.012)] == [
        "0.4 more",
        "0 fewer",
        "0 more",
        "1 fewer",
    ]


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"model": {"kind": "paper"}}, ("metrics", "cure", "kind"), "the paper's model has numbers only"),
        ({"confidence": "anytime"}, ("metrics", "cure", "kind"), "and not 'anytime'"),
        ({"model": {"kind": "people", "discount": 0.9}}, ("metrics", "cure", "kind"), "a discount would be ignored"),
        ({"policy": {"guard": "budget"}, "guardrails": []}, ("policy", "guard"), "for normal outcomes"),
        ({"policy": {"guard": "penalty"}, "guardrails": []}, ("policy", "guard"), "for normal outcomes"),
        ({"policy": {"simultaneous": True}}, ("policy", "simultaneous"), "for normal outcomes"),
        ({"metrics": METRICS | {"pain": {"kind": "score"}}}, ("metrics", "pain", "range"), "a score needs"),
        ({"metrics": METRICS | {"cure": {"kind": "yes/no", "spread": 1.0}}}, ("metrics", "cure", "spread"), "leave it"),
        (
            {"metrics": METRICS | {"cure": {"kind": "yes/no", "range": [0, 1]}}},
            ("metrics", "cure", "range"),
            "no range",
        ),
        ({"metrics": METRICS | {"cure": {"kind": "yes/no", "typical": 30}}}, ("metrics", "cure", "typical"), "between"),
        ({"metrics": METRICS | {"weight": {"of": "people"}}}, ("metrics", "weight", "of"), "only kind"),
    ],
)
def test_a_file_with_kinds_that_do_not_fit_is_refused(
    changes: dict[str, Any], path: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        TrialSpec.read(clinic(**changes))
    assert any(f.path == path and message in f.message for f in caught.value.faults), caught.value.faults


def test_the_report_shows_rates_counts_and_words_within_the_possible() -> None:
    trial = played(60)
    analysis = analyse(trial)
    cure, pain, visits = outcomes_by_arm(analysis)
    assert cure.columns == ["arm", "recorded", "estimate", "against the control", "ratio"]
    low = [d for d in trial.decisions() if d.arm == "low"]
    told = f"{sum((d.outcome or {}).get('cure', 0.0) for d in low):.0f} of {len(low)} ("
    assert cure.rows[0][1].startswith(told)
    assert " in 100 (" in cure.rows[1][3]
    assert cure.rows[0][3:] == ["", ""]
    assert (bool(cure.rows[1][4]), bool(visits.rows[1][4])) == (True, True)
    assert [len(row) for row in pain.rows] == [4] * len(pain.rows)  # a ratio of scores says nothing
    assert pain.columns[-1] == "against the control"
    recorded = recorded_by_arm(analysis)
    assert recorded is not None
    assert recorded.columns == ["arm", "given", "cure", "pain", "visits", "weight (kg)"]
    assert recorded.rows[0][2].startswith(told)
    assert analysis.variation is not None
    assert {c.metric for c in analysis.variation.components} == {"weight"}
    assert not analysis.checks.alarms
    page = report(analysis)
    assert "Outcomes by arm" in page
    assert "Effects on cure (in 100)" in page


@pytest.mark.parametrize("n", [2, 4, 60])
def test_no_range_of_an_effect_is_beyond_the_possible(n: int) -> None:
    analysis = analyse(played(n))
    widest = {"cure": 1.0, "pain": 10.0, "reward": np.inf, "visits": np.inf, "weight": np.inf}
    known = [x for x in analysis.effects if x.is_known]
    assert {x.on for x in known} >= {"cure", "pain"}
    for x in known:
        ends = [end for end in (x.low, x.high, x.likely_low, x.likely_high, x.estimate) if end is not None]
        assert -widest[x.on] <= min(ends) <= max(ends) <= widest[x.on], x
    problem = played(0).state().problem
    limits = [problem.largest_effect(np.array(w)) for w in ([2, 0, 0, 0], [1, -0.02, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1])]
    assert limits == [2.0, 1.2, np.inf, np.inf]


def test_the_range_of_a_decision_has_little_room_above_a_control_that_nearly_always_succeeds() -> None:
    changes = {"metrics": {"cure": {"kind": "yes/no"}}, "preference": {"cure": 1.0}, "guardrails": []}
    trial = Trial.create(clinic(**changes), MemoryStore())
    for i in range(60):
        given = trial.ask(f"p{i}")
        trial.tell(given.id, {"cure": "yes"})
    effects = trial.ask("the next").effects
    assert effects is not None
    assert max(x.high for x in effects.values()) < 0.1
    assert min(x.low for x in effects.values()) < -0.1
    assert all(x.low <= x.estimate <= x.high for x in effects.values())
    verified(trial)


def test_the_better_arm_is_found_and_the_control_left() -> None:
    metrics = {"cure": {"kind": "yes/no"}}
    changes = {"metrics": metrics, "preference": {"cure": 1.0}, "guardrails": []}
    trial, rng = Trial.create(clinic(**changes), MemoryStore()), np.random.default_rng(5)
    arms = []
    for i in range(160):
        given = trial.ask(f"p{i}")
        arms.append(given.arm)
        rate = {"low": 0.3, "mid": 0.2, "high": 0.7}[given.arm]
        trial.tell_many([Report(given.id, {"cure": bool(rng.random() < rate)})])
    assert arms[-40:].count("high") > 25


WATER: dict[str, Any] = {
    "metrics": {"yield": {"unit": "t/ha"}, "nitrate": {"unit": "mg/l", "detection": 0.5, "better": "lower"}},
    "preference": {"yield": 1.0, "nitrate": -0.1},
    "guardrails": [],
    "cohorts": {"dry": {"metrics": ["yield"]}, "wet": {}},
}


def test_a_value_below_the_limit_of_detection_is_recorded_and_left_out() -> None:
    trial = Trial.create(clinic(**WATER), MemoryStore())
    given = [trial.ask(f"p{i}", cohort="wet") for i in range(12)]
    sheet = "decision;yield;nitrate\n" + "".join(
        f"{d.id};8,{d.id % 5};{'< 0,5' if d.id % 3 else '1,2'}\n" for d in given[:11]
    )
    with trial.writing() as tx:
        sheets.tell_sheet(tx, read(sheet))
    assert trial.decision(1).outcome == {"yield": 8.1, "nitrate below": 0.5}
    assert (trial.decision(1).state, trial.decision(1).reward) == ("complete", None)
    assert trial.decision(3).outcome == {"yield": 8.3, "nitrate": 1.2}
    last = given[11].id
    refused(trial, lambda: trial.tell(last, {"nitrate": 0.3}), InputError, "or '<0.5', got 0.3")
    refused(trial, lambda: trial.tell(last, {"nitrate": "<0.7"}), InputError, "or '<0.5', got '<0.7'")
    refused(trial, lambda: trial.tell(1, {"nitrate": 2.0}), ConflictError, "amend it")
    refused(trial, lambda: trial.tell(3, {"nitrate": "<0.5"}), ConflictError, "amend it")
    trial.amend(3, {"nitrate": "<0.5"}, reason="read again", saw=trial.decision(3))
    trial.amend(1, {"nitrate": 2.5}, reason="read again", saw=trial.decision(1))
    assert trial.decision(1).outcome == {"yield": 8.1, "nitrate": 2.5}
    rows = sheets.decision_rows(trial.state(), trial.decisions())
    assert {row["decision"]: row["nitrate"] for row in rows}[3] == "<0.5"
    assert "8 of 11 outcomes of nitrate lie below the limit of detection, 0.5 mg/l" in report(analyse(trial))
    verified(trial)


def test_what_is_not_measured_for_a_user_is_not_waited_for() -> None:
    trial = Trial.create(clinic(**WATER), MemoryStore())
    dry, wet = trial.ask("d", cohort="dry"), trial.ask("w", cohort="wet")
    assert trial.tell(dry.id, {"yield": 8.0}).waits_for == []
    assert trial.tell(wet.id, {"yield": 8.0}).state == "partial"
    assert [trial.decision(d.id).state for d in (dry, wet)] == ["complete", "partial"]
    other = trial.ask("e", cohort="dry")
    refused(trial, lambda: trial.tell(other.id, {"nitrate": 2.0}), InputError, "not measured for user 'e'")
    verified(trial)


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"metrics": {"cure": {"kind": "yes/no", "detection": 0.5}}}, ("metrics", "cure", "detection"), "no limit"),
        ({"model": {"kind": "paper"}}, ("metrics", "nitrate", "detection"), "whole outcomes only"),
        ({"cohorts": {"dry": {"metrics": ["yeild"]}}}, ("cohorts", "dry", "metrics", 0), "did you mean 'yield'"),
    ],
)
def test_limits_and_unmeasured_metrics_that_do_not_fit_are_refused(
    changes: dict[str, Any], path: tuple[str | int, ...], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        TrialSpec.read(clinic(**WATER) | changes)
    assert any(f.path == path and message in f.message for f in caught.value.faults), caught.value.faults


@pytest.mark.parametrize("name", ["people", "website"])
def test_a_trial_from_a_template_decides_for_somebody_new_and_learns(name: str) -> None:
    spec = TrialSpec.parse(template(name))
    trial = Trial.create(spec, MemoryStore())
    levels = {name: known.levels[0] for name, known in spec.attributes.items() if known.levels}
    for i in range(3):
        decision = trial.ask(f"visitor {i}", attributes=levels)
        trial.tell(decision.id, dict.fromkeys(spec.metrics, 1))
    assert trial.status().complete == 3
    with pytest.raises(InputError, match="yes or no"):
        trial.tell(trial.ask("visitor 3", attributes=levels).id, {next(iter(spec.metrics)): 0.5})
