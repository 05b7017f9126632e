from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest

from drimed.errors import SpecError
from drimed.models.linear_regression import Learner
from drimed.models.mixed.learner import Field
from drimed.policies.guards.base import Guardrail
from drimed.policies.policy import Policy
from drimed.policies.published import PublishedDri
from drimed.policies.rules.thompson import Thompson
from drimed.trial.problem import Problem, build_policy
from drimed.trial.queries import notes
from drimed.trial.spec import TrialSpec, User

KEPT: dict[str, Any] = {"floors": {"control": 0.05}}  # the control stays in the trial
KNOWN = {"kind": "known", "sd": {"yield": 0.5, "cost": 5.0}}


def spec_of(**changes: Any) -> TrialSpec:
    return TrialSpec.read(
        {
            "name": "t",
            "model": {"kind": "paper"},
            "metrics": {"yield": {"range": [0, 10]}, "cost": {"range": [0, 200], "better": "lower"}},
            "arms": {"old": {}, "new": {}},
            "preference": {"yield": 1.0, "cost": -0.02},
            "control": "old",
            "users": {"north": {}},
            "tolerance": {"relative": 0.05, "absolute": 0.3},
        }
        | changes
    )


def built(spec: TrialSpec) -> Policy:
    policy = build_policy(Problem(spec))
    assert isinstance(policy, Policy)
    return policy


def guard_of(spec: TrialSpec) -> Any:
    return built(spec).guard


def field_of(spec: TrialSpec) -> Field:
    learner = built(spec).learner
    assert isinstance(learner, Field)
    return learner


def learner_of(spec: TrialSpec) -> Learner:
    learner = built(spec).learner
    assert isinstance(learner, Learner)
    return learner


def test_tolerance_confidence_and_delta_of_the_file_reach_the_guard() -> None:
    spec = spec_of(confidence=0.9, delta=0.2)
    guard = guard_of(spec)
    assert (guard.tolerance.relative, guard.tolerance.absolute, guard.confidence) == (0.05, 0.3, 0.9)
    assert learner_of(spec).delta == 0.2


@pytest.mark.parametrize("guard", ["expected", "certain"])
def test_guardrails_reach_the_guard_in_the_learners_units(guard: str) -> None:
    rails = [{"metric": "cost", "absolute": 20.0, "relative": 0.1}, {"metric": "yield"}]
    found = guard_of(spec_of(guardrails=rails, policy={"name": "dri_med", "guard": guard})).guardrails
    assert found == (
        Guardrail(metric=1, relative=0.1, absolute=0.1, better="lower"),
        Guardrail(metric=0, relative=0.05, absolute=0.0, better="higher"),
    )


def test_settings_of_the_policy_come_first() -> None:
    spec = spec_of(policy={"name": "dri_med", "confidence": 0.8, "absolute": 1.0, "delta": 0.5, "regularisation": 3.0})
    assert (guard_of(spec).confidence, guard_of(spec).tolerance.absolute) == (0.8, 1.0)
    assert (learner_of(spec).delta, learner_of(spec).ridge_penalty) == (0.5, 3.0)


def test_the_prior_follows_from_the_ranges_unless_maps_are_given() -> None:
    learner = learner_of(spec_of())
    assert learner.norm_bound == sqrt(Problem(spec_of()).shape.d)
    assert learner.ridge_penalty == 4.0  # two deviations of 1/2 are the range
    mapped = spec_of(arms={"old": {"map": [[1, 0], [0, 1]]}, "new": {"map": [[0, 1], [1, 0]]}})
    assert (learner_of(mapped).norm_bound, learner_of(mapped).ridge_penalty) == (1.0, 1.0)


def test_the_published_algorithms_take_the_relative_tolerance() -> None:
    policy = build_policy(Problem(spec_of(noise=KNOWN, policy={"name": "published_dri_med"})))
    assert isinstance(policy, PublishedDri)
    assert policy.tolerance == 0.05
    own = build_policy(Problem(spec_of(noise=KNOWN, policy={"name": "published_dri_med", "tolerance": 0.2})))
    assert isinstance(own, PublishedDri)
    assert own.tolerance == 0.2


UNSEASONED: dict[str, Any] = {"model": {"kind": "field", "seasons": False}}
BY_MODEL = {"kind": "superiority", "evidence": "model"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"policy": {"name": "uniform"}}, "does not protect users"),
        ({"policy": {"name": "v_med"}}, "does not protect users"),
        ({"policy": {"name": "published_dri_med"}, "noise": KNOWN}, "only discourages decisions below the control"),
        ({"policy": {"name": "dri_med", "guard": "penalty"}}, "only discourages decisions below the control"),
        ({"tolerance": {"relative": 0.1}}, "the tolerance has no absolute part"),
        ({"users": {}}, "there are no users yet"),
        (UNSEASONED | KEPT | {"stopping": {"rules": {"r": BY_MODEL}}}, "r: a model without seasons takes a shift"),
        ({"model": {"kind": "field"}}, "set `[floors] control = 0.05`"),
        ({"model": {"kind": "field"}, "floors": {"arms": 0.05}}, "the control has no minimum probability"),
        (
            {"model": {"kind": "people", "seasons": False}, "stopping": {"rules": {"r": BY_MODEL}}},
            "r: a model without seasons takes a shift",
        ),
    ],
)
def test_what_a_person_should_know_before_the_start_is_said(changes: dict[str, Any], said: str) -> None:
    spec = spec_of(**changes)
    (note,) = notes(spec)
    assert said in note


def test_a_sound_trial_needs_no_note() -> None:
    assert notes(spec_of(model={"kind": "field"}), users=1) == []  # it has begun: its floors are fixed
    assert notes(spec_of()) == []
    by_chances = {"rules": {"r": BY_MODEL | {"evidence": "propensities"}}}
    assert notes(spec_of(**UNSEASONED, **KEPT, stopping=by_chances)) == []
    assert notes(spec_of(model={"kind": "field"}, **KEPT, stopping={"rules": {"r": BY_MODEL}})) == []
    assert notes(spec_of(**UNSEASONED, **KEPT, stopping={"rules": {"r": BY_MODEL}, "seasons": 1})) == []
    assert notes(spec_of(tolerance={}, policy={"name": "dri_med", "guard": "budget"})) == []


def test_the_model_of_the_file_reaches_the_learner_of_the_field() -> None:
    learner = field_of(
        spec_of(
            model={"kind": "field", "seasons": False, "noise": "arm", "discount": 0.9},
            arms={"old": {"attributes": {"dose": 1, "water": 0}}, "new": {"attributes": {"dose": 2, "water": 1}}},
            users={"north": {"attributes": {"ph": 6.0, "soil": "sand"}}},
            attributes={"soil": {"affects": ["level"]}},
            context={
                "rain": {"affects": ["noise", "level"]},
                "sky": {"levels": ["sun", "cloud"]},
                "moon": {"affects": []},
            },
            delta=0.2,
        )
    )
    assert (learner.kind, learner.seasons, learner.noise, learner.discount) == ("field", False, "arm", 0.9)
    assert learner.covariates == ("level effects", "level noise")  # ph, rain
    assert learner.categories == ("level", "level effects")  # soil, sky
    assert (learner.attributes, learner.delta) == (2, 0.2)
    assert field_of(spec_of(model={"kind": "people"})).kind == "people"


def test_tolerance_and_guardrails_of_a_field_trial_are_in_the_units_of_the_metrics() -> None:
    spec = spec_of(model={"kind": "field"}, guardrails=[{"metric": "cost", "absolute": 20.0}], confidence=0.9)
    guard = guard_of(spec)
    assert (guard.tolerance.relative, guard.tolerance.absolute, guard.confidence) == (0.05, 0.3, 0.9)
    assert guard.guardrails == (Guardrail(metric=1, relative=0.05, absolute=20.0, better="lower"),)


def test_an_attribute_without_any_scale_is_noted() -> None:
    spec = spec_of(model={"kind": "people"}, users={}, attributes={"age": {}, "sex": {"levels": []}})
    (note,) = notes(spec)
    assert note.startswith("attribute 'age' has no typical value or spread")
    assert notes(spec_of(model={"kind": "field"}, **KEPT, users={"a": {"attributes": {"age": 30.0}}})) == []


@pytest.mark.parametrize(
    ("kind", "declared", "promise"), [("people", None, "alike"), ("field", None, "each"), ("people", "each", "each")]
)
def test_the_promise_is_to_users_alike_where_people_come(kind: str, declared: str | None, promise: str) -> None:
    tolerance = {"absolute": 0.1} | ({} if declared is None else {"for": declared})
    spec = spec_of(model={"kind": kind}, tolerance=tolerance)
    assert field_of(spec).promise == spec.promise == promise
    assert TrialSpec.read(spec.plain()) == spec
    assert any("each person" in note for note in notes(spec)) == (kind == "people" and promise == "each")


def test_a_declared_spread_lets_the_first_decision_explore() -> None:
    """Without it nothing is known of the noise before the first outcomes, and the guard can only give the control."""
    control = []
    for spread in (None, 0.5):
        spreads: dict[str, Any] = {} if spread is None else {"spread": spread}
        metrics = {"yield": spreads, "cost": spreads and {"spread": 5.0}}
        problem = Problem(spec_of(model={"kind": "field"}, metrics=metrics, tolerance={"absolute": 1.0}, **KEPT))
        policy = build_policy(problem)
        offer = problem.offer([problem.profile("north", User(), 0)], [None], [None])
        state = policy.begin_episode(policy.init(problem.shape), offer)
        control.append(policy.decide(state, offer, np.full((1, 2), 0.5)).probabilities[0, 0])
    assert control[0] == 1.0
    assert 0.5 < control[1] < 0.95


def test_a_goal_of_finding_out_gives_every_arm_its_share() -> None:
    rule = built(spec_of(model={"kind": "field"}, goal="find", **KEPT)).rule
    assert isinstance(rule, Thompson)
    assert rule.even == 0.5


def spread(value: float, kind: str) -> dict[str, Any]:
    metrics = {"yield": {"range": [0, 10], "spread": value}, "cost": {"range": [0, 200], "better": "lower"}}
    return {"metrics": metrics, "model": {"kind": kind}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goal": "find"}, 'goal = "find" is for'),
        ({"policy": {"name": "dri_people"}}, r'write \[model\] kind = "people"'),
        ({"tolerance": {"absolute": 0.1, "for": "each"}}, "the paper's model has no place for it"),
        (spread(0.0, "field"), "above 0"),
        (spread(600.0, "field"), "unit of the metric"),
        (spread(0.5, "paper"), "has no place for it"),
    ],
)
def test_what_the_model_cannot_use_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_of(**changes)
