"""People who join by being asked for: in the transaction of their first decision, or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from drimed.errors import MOST_HINTS, ConflictError, DrimedError, InputError, SpecError, UnknownNameError
from drimed.records import Decision
from drimed.trial import events as kinds
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.trial.playing import refused, spec_of, verified

OPEN = spec_of(
    users={},
    enrolment="open",
    decisions="any number",
    attributes={"age": {"typical": 50.0, "spread": 10.0}, "sex": {"levels": ["f", "m"]}},
    cohorts={"adults": {"preference": {"yield": 2.0}, "group": "clinic"}},
)
ANN = {"attributes": {"age": 61.0, "sex": "f"}, "cohort": "adults"}


def opened(**changes: Any) -> Trial:
    return Trial.create(OPEN | changes, MemoryStore())


def join(trial: Trial, name: str, **asked: Any) -> Decision:
    return trial.ask(name, attributes={"age": 61.0, "sex": "f"}, cohort="adults", **asked)


def kinds_of(trial: Trial) -> list[str]:
    return [e.kind for e in trial.log()]


def test_asking_for_somebody_new_enrols_them_with_the_decision_in_one_transaction() -> None:
    trial = opened()
    given = trial.ask("ann", attributes={"age": 61.0, "sex": "f"}, cohort="adults")
    assert given.user == "ann"
    assert kinds_of(trial) == [kinds.CREATED, kinds.USER, kinds.EPISODE, kinds.DECISION]
    assert len({e.time for e in list(trial.log())[1:]}) == 1
    profile = trial.state().profile("ann")
    assert profile.preference.tolist() == [2.0, 0.0]
    assert profile.group == "clinic"
    trial.tell(given.id, {"yield": 5.0, "cost": 1.0})
    assert trial.ask("ann").id == 2
    verified(trial)


def test_several_join_in_the_order_in_which_they_are_asked_for() -> None:
    trial = opened()
    join(trial, "ann")
    given = trial.ask_many(["bob", "ann", "eve"], enrol={"bob": {"attributes": {"sex": "m"}}, "eve": ANN})
    assert [d.user for d in given] == ["bob", "ann", "eve"]
    people = [trial.state().profile(u).unit for u in ("ann", "bob", "eve")]
    assert [p.number for p in people] == [0, 1, 2]
    assert [p.group for p in people] == [0, 1, 0]  # bob has no group, and is one of his own
    assert [p.covariates for p in people] == [(1.1,), (0.0,), (1.1,)]
    assert [p.levels for p in people] == [(0,), (1,), (0,)]
    verified(trial)


def test_levels_of_a_category_that_lists_none_are_numbered_as_they_come() -> None:
    trial = opened(attributes={"sex": {"levels": []}})
    for name, sex in (("a", "x"), ("b", "m"), ("c", "y"), ("d", "x")):
        trial.ask(name, attributes={"sex": sex})
    found = [trial.state().profile(u).unit.levels for u in "abcd"]
    assert found == [(0,), (1,), (2,), (0,)]
    again = Trial.open("t", trial.store).state()
    assert [again.profile(u).unit.levels for u in "abcd"] == found


@pytest.mark.parametrize(
    ("enrol", "error", "match"),
    [
        ({"bob": {"attributes": {"age": "old", "sex": "m"}}}, SpecError, "enrol.bob.attributes.age: must be a number"),
        ({"bob": {"attributes": {"age": 5.0}}}, SpecError, "attribute 'sex' is missing"),
        ({"bob": {"attributes": {"sex": "m", "size": 1.0}}}, SpecError, r"declare it under \[attributes.size\]"),
        ({"bob": {"attributes": {"sex": "m"}, "cohort": "adult"}}, SpecError, "did you mean 'adults'"),
        ({"bob": {"attributes": {"sex": "m"}, "colour": 3}}, SpecError, "unknown field 'colour'"),
        ({"bob": {"attributes": {"sex": "m"}}, "eve": ANN}, InputError, "'eve' is described but not asked for"),
        ({"bob": {"attributes": {"sex": "m"}}, "ann": {"attributes": {"age": 62.0}}}, ConflictError, "age = 61.0"),
        ({"bob": {"attributes": {"sex": "m"}}, "ann": {"cohort": "none"}}, ConflictError, "has cohort 'adults', not"),
    ],
)
def test_one_bad_description_refuses_the_whole_request_and_enrols_nobody(
    enrol: dict[str, Any], error: type[DrimedError], match: str
) -> None:
    trial = opened()
    join(trial, "ann")
    refused(trial, lambda: trial.ask_many(["carl", "ann", "bob"], enrol={"carl": ANN} | enrol), error, match)


def test_what_a_mistyped_cohort_lacks_is_not_complained_of() -> None:
    """Preference and control come from the cohort."""
    own = {name: value for name, value in OPEN.items() if name not in ("preference", "control")}
    own["cohorts"] = {"adults": {"preference": {"yield": 2.0}, "control": "old"}}
    trial = Trial.create(own, MemoryStore())
    with pytest.raises(SpecError) as error:
        trial.ask("bob", attributes={"sex": "m"}, cohort="adult")
    assert [(".".join(map(str, f.path)), f.message) for f in error.value.faults] == [
        ("enrol.bob.cohort", "unknown cohort 'adult'; did you mean 'adults'? Known: adults")
    ]


def test_faults_of_all_who_join_are_reported_at_once() -> None:
    trial = opened()
    with pytest.raises(SpecError) as error:
        trial.ask_many(["a", "b"], enrol={"a": {"attributes": {"sex": 3.0}}, "b": {}})
    assert [f.path for f in error.value.faults] == [("enrol", name, "attributes", "sex") for name in "ab"]


def test_the_first_faults_alone_say_what_was_meant() -> None:
    users = {f"user {i}": {"attributes": {"age": 61.0, "sex": "fem"}} for i in range(40)}
    with pytest.raises(SpecError) as caught:
        opened().ask_many(enrol=users)
    assert ["did you mean 'm'" in fault.message for fault in caught.value.faults] == [i < MOST_HINTS for i in range(40)]


def test_a_later_failure_of_the_request_takes_the_enrolment_back() -> None:
    trial = opened()
    refused(trial, lambda: join(trial, "ann", episode=7), ConflictError, "episode 7")
    refused(trial, lambda: join(trial, "ann", unavailable=["x"]), UnknownNameError, "arm 'x'")
    refused(trial, lambda: join(trial, "a/b"), SpecError, "must be a name")


def test_with_closed_enrolment_nobody_joins_by_being_asked_for() -> None:
    trial = opened(enrolment="closed")
    refused(trial, lambda: join(trial, "ann"), UnknownNameError, "unknown user 'ann'")
    trial.add_user("ann", ANN)
    assert trial.ask("ann").user == "ann"
    refused(trial, lambda: trial.add_user("bob", {"attributes": {"age": 3.0}}), SpecError, "'sex' is missing")


def test_a_repeated_request_enrols_nobody_twice_and_returns_the_first_decision() -> None:
    trial = opened()
    first = join(trial, "ann", key="visit 1")
    again = join(trial, "ann", key="visit 1")
    assert (again.id, again.repeated) == (first.id, True)
    assert join(trial, "ann").id == 2  # described again as she is
    assert kinds_of(trial).count(kinds.USER) == 1


def test_a_dry_run_shows_the_decision_and_enrols_nobody() -> None:
    for policy in ({"name": "dri_med"}, {"name": "dri_med", "guard": "budget"}):
        trial = opened(policy=policy)
        many = [f"p{i}" for i in range(20)]  # more than the arrays of the guard have room for
        enrol = dict.fromkeys(many, ANN)
        shown = trial.ask_many(many, enrol=enrol, dry_run=True)
        assert kinds_of(trial) == [kinds.CREATED]
        given = trial.ask_many(many, enrol=enrol)
        assert [d.probabilities for d in shown] == [d.probabilities for d in given]
        assert [d.id for d in shown] == [d.id for d in given]
        verified(trial)


def test_nothing_is_folded_again_when_somebody_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = opened(model={"kind": "people"})
    join(trial, "ann")

    def folded(*_: object) -> None:
        raise AssertionError("the past was folded again")

    with monkeypatch.context() as patched:
        patched.setattr("drimed.trial.state.Capacity", SimpleNamespace(holding=folded))
        for i in range(40):
            join(trial, f"p{i}")
    assert trial.status().users == 41
    verified(trial)
