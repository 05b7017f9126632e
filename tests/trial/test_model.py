"""The model of a trial file: what it may say, and what is refused with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from drimed.errors import SpecError
from drimed.trial.problem import Covariates, UnitIndex
from drimed.trial.queries import notes
from drimed.trial.spec import TrialSpec
from tests.trial.trials import SMALL

PAPER = {"kind": "paper"}


def spec_of(**changes: Any) -> TrialSpec:
    return TrialSpec.read(SMALL | changes)


def fault_of(**changes: Any) -> tuple[str, str]:
    with pytest.raises(SpecError) as error:
        spec_of(**changes)
    (fault,) = error.value.faults
    return ".".join(map(str, fault.path)), fault.message


# Kinds


def test_a_field_trial_with_control_plots_may_have_a_relative_tolerance_and_several_controls() -> None:
    spec = spec_of(feedback="difference", tolerance={"relative": 0.1}, users={"a": {}, "b": {"control": "new"}})
    assert spec.tolerance.absolute == 0.0
    assert fault_of(feedback="difference", model=PAPER, tolerance={"relative": 0.1})[0] == "tolerance"


@pytest.mark.parametrize(
    ("spread", "says"),
    [
        (0, "must be above 0, got 0"),
        (-1.5, "must be above 0, got -1.5"),
        (float("nan"), "must be a finite number, got nan"),
        (float("inf"), "must be a finite number, got inf"),
        ("0.6 t/ha", "must be a number, got '0.6 t/ha'"),
        ("0.6", "must be a number, got '0.6'"),
        (True, "must be a number, got True"),
        ([0.6], "must be a number, got [0.6]"),
        (600, "cannot have a spread of 600: it is at most half of that width, and not below 1/300 of it; give both in"),
        (0.0006, "outcomes between 0 and 10 cannot have a spread of 0.0006"),
        (5.1, "outcomes between 0 and 10 cannot have a spread of 5.1"),
    ],
)
def test_a_spread_that_cannot_be_is_refused(spread: Any, says: str) -> None:
    at, message = fault_of(metrics={"yield": {"range": [0, 10], "spread": spread}})
    assert at == "metrics.yield.spread"
    assert says in message
    assert spec_of(metrics={"yield": {"range": [0, 10], "spread": 5.0}}).metrics["yield"].spread == 5.0


def test_a_field_of_one_season_is_told_that_nothing_can_be_told_from_it() -> None:
    one = {"stopping": {"seasons": 1}}
    said = [any("all outcomes will be of one season" in note for note in notes(spec_of(**more))) for more in (
        {}, one, one | {"model": {"seasons": False}}, one | {"model": {"kind": "people"}}, one | {"model": PAPER}
    )]  # fmt: skip
    assert said == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("spread", "tolerance", "doubted"),
    [
        (600.0, {"relative": 0.0, "absolute": 0.5}, True),
        (0.0006, {"absolute": 168.0}, True),
        (600.0, {"relative": 0.1, "absolute": 0.5}, False),  # nobody said how high the control is
        (600.0, {"relative": 0.0, "absolute": 100.0}, False),
        (None, {"relative": 0.0, "absolute": 1e-9}, False),
    ],
)
def test_a_tolerance_out_of_proportion_to_the_spread_is_noted(
    spread: float | None, tolerance: dict[str, float], doubted: bool
) -> None:
    said = notes(spec_of(metrics={"yield": {} if spread is None else {"spread": spread}}, tolerance=tolerance))
    assert sum("check that they are in the same unit" in note for note in said) == doubted


def test_many_users_in_many_seasons_are_told_what_a_decision_will_cost() -> None:
    many: dict[str, Any] = {f"u{i}": {} for i in range(1000)}
    seasons = {"stopping": {"seasons": 1000}}
    kinds: tuple[dict[str, Any], ...] = ({}, {"users": many}, {"model": {"kind": "people"}}, {"model": PAPER})
    said = [any("are both many" in note for note in notes(spec_of(**seasons, **more))) for more in kinds]
    assert said == [False, True, True, False]


# Attributes and context fields


def users_of(*values: dict[str, Any]) -> dict[str, Any]:
    return {f"u{i}": {"attributes": v} for i, v in enumerate(values)}


def test_what_nobody_declared_follows_from_the_users_in_the_file() -> None:
    spec = spec_of(users=users_of({"ph": 6.0, "soil": "sand", "one": 3.0}, {"ph": 8.0, "soil": "loam", "one": 3.0}))
    found = Covariates(spec).attributes
    assert (found["ph"].typical, found["ph"].levels) == (7.0, None)
    assert found["ph"].spread == pytest.approx(2**0.5)
    assert found["soil"].levels == ()
    assert (found["one"].typical, found["one"].spread) == (3.0, 1.0)  # no spread can be told
    assert all(c.roles == "level effects" for c in found.values())


def test_what_is_declared_comes_first_and_the_rest_is_filled_in() -> None:
    spec = spec_of(
        users=users_of({"ph": 6.0}, {"ph": 8.0}),
        attributes={"age": {"typical": 40.0}, "ph": {"spread": 0.5, "affects": ["noise"]}},
    )
    found = Covariates(spec).attributes
    assert list(found) == ["age", "ph"]
    assert (found["age"].typical, found["age"].spread) == (40.0, 1.0)
    assert (found["ph"].typical, found["ph"].spread, found["ph"].roles) == (7.0, 0.5, "noise")


def test_a_missing_number_is_refused_unless_a_typical_value_was_declared() -> None:
    users = users_of({"ph": 6.0}, {})
    path, message = fault_of(users=users)
    assert path == "users.u1.attributes.ph"
    assert "'ph' is missing" in message
    spec = spec_of(users=users, attributes={"ph": {"typical": 6.5, "spread": 0.5}})
    joining = [("a", None, {}), ("b", None, {"ph": 7.0})]
    _, units = UnitIndex().joined(Covariates(spec), joining, 0, alone=False)
    assert [unit.covariates for unit in units] == [(0.0,), (1.0,)]


# Cohorts, blocks and plots


def test_a_user_takes_from_its_cohort_what_it_does_not_say_and_from_the_trial_what_neither_says() -> None:
    spec = spec_of(
        cohorts={"adults": {"preference": {"yield": 2.0}, "arms": ["old", "new"], "group": "clinic"}},
        users={"a": {"cohort": "adults"}, "b": {"cohort": "adults", "preference": {"yield": 3.0}}, "c": {}},
    )
    a, b, c = (spec.resolved(user) for user in spec.users.values())
    assert (a.preference, a.control, a.arms, a.group) == ({"yield": 2.0}, "old", ["old", "new"], "clinic")
    assert b.preference == {"yield": 3.0}
    assert (c.preference, c.arms) == ({"yield": 1.0}, None)
    assert (b.group, c.group) == ("clinic", None)


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"policy": {"name": "solid"}}, "policy", "keeps sums on features"),
    # Fields that only the paper's model knows.
    ({"noise": {"kind": "known", "sd": {"yield": 1.0}}}, "noise.kind", "learns the noise"),
    ({"policy": {"name": "dri_med", "weighting": "none"}}, "policy.weighting", "finds it out by itself"),
    ({"policy": {"name": "published_dri_med"}}, "policy", "comes with a model of its own"),
    # Fields that a model has no place for.
    ({"model": {"kind": "paper", "seasons": False}}, "model.seasons", "no place for it"),
    ({"model": {"kind": "paper", "discount": 0.9}}, "model.discount", "give it under [policy]"),
    ({"model": PAPER, "attributes": {"ph": {}}}, "attributes.ph", "no place for it"),
    ({"model": PAPER, "context": {"rain": {"affects": ["level"]}}}, "context.rain.affects", "no place for it"),
    ({"model": {"kind": "fields"}}, "model.kind", "must be 'field', 'people' or 'paper', got 'fields'"),
    ({"model": None}, "model", "must be a table of fields"),
    ({"policy": {"name": "dri_med", "discount": 0.9}}, "policy.discount", "give it under [model]"),
    # Attributes and context fields.
    ({"users": users_of({"soil": "sand"}, {})}, "users.u1.attributes.soil", "attribute 'soil' is missing"),
    ({"users": users_of({"soil": "sand"}, {"soil": 3.0})}, "users.u1.attributes.soil", "must be a text"),
    ({"users": users_of({"ph": "x"}), "attributes": {"ph": {"typical": 6.0}}}, "users.u0.attributes.ph", "be a number"),
    ({"users": users_of({"wet": True})}, "users.u0.attributes.wet", "must be a number, or a text"),
    ({"users": users_of({"ph": float("nan")})}, "users.u0.attributes.ph", "must be a finite number, or left out"),
    ({"attributes": {"sex": {"levels": ["f", "m", "f"]}}, "users": {}}, "attributes.sex.levels", "must differ"),
    (
        {"attributes": {"sex": {"levels": ["f", "m"]}}, "users": {"a": {"attributes": {"sex": "mm"}}}},
        "users.a.attributes.sex",
        "unknown level of 'sex' 'mm'; did you mean 'm'?",
    ),
    ({"attributes": {"sex": {"levels": [], "spread": 2.0}}, "users": {}}, "attributes.sex.spread", "levels only"),
    ({"attributes": {"s": {"levels": [], "affects": ["noise"]}}, "users": {}}, "attributes.s.affects", "not the noise"),
    ({"context": {"sky": {"levels": []}}}, "context.sky.levels", "must not be empty"),
    ({"context": {"rain": {"affects": ["levels"]}}}, "context.rain.affects.0", "must be 'level', 'effects' or"),
    ({"context": {"ph": {}}, "attributes": {"ph": {"typical": 6.0}}}, "attributes.ph", "would be one column of"),
    # Cohorts and plots.
    ({"users": {"a": {"cohort": "adult"}}, "cohorts": {"adults": {}}}, "users.a.cohort", "did you mean 'adults'?"),
    ({"cohorts": {"adults": {"arms": ["new"]}}}, "cohorts.adults.arms", "the control must be among the arms"),
    (
        {"cohorts": {"adults": {"arms": ["old"]}}, "users": {"a": {"cohort": "adults", "control": "new"}}},
        "users.a.control",
        "the control must be among the arms",
    ),
    ({"cohorts": {"adults": {"attributes": {}}}}, "cohorts.adults.attributes", "unknown field 'attributes'"),
    ({"users": {"a": {"plots": ["1"], "blocks": {"A": ["2"]}}}}, "users.a.plots", "not both"),
    ({"users": {"a": {"plots": []}}}, "users.a.plots", "must not be empty"),
    ({"users": {"a": {"blocks": {"A": ["1"], "B": ["1"]}}}}, "users.a.blocks", "'1' comes twice"),
    ({"users": {"a": {}, " a": {}}}, "users", "must have names that differ"),
    ({"users": {"a": {"group": "\ud800"}}}, "users.a.group", "cannot be seen"),
    ({"users": {"a": {"plots": [1]}}}, "users.a.plots.0", "must be text in quotes"),
]


@pytest.mark.parametrize(("changes", "path", "said"), FAULTS)
def test_what_cannot_be_used_is_refused_at_its_place(changes: dict[str, Any], path: str, said: str) -> None:
    found, message = fault_of(**changes)
    assert found == path
    assert said in message
