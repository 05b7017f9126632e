"""What blinded people and dry runs do not show, codes, and opening the code."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from drimed import streams
from drimed.errors import ConflictError, InputError, SpecError, UnknownNameError
from drimed.records import Decision, Member, Report, Status
from drimed.trial import blinding, queries, sheets, snapshots
from drimed.trial.spec import CODE_LETTERS, Blinding, TrialSpec
from drimed.trial.state import catch_up, start_of
from drimed.trial.store import MemoryStore
from drimed.trial.tables import read
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.trials import BUSY, outcome

POLICIES: dict[str, dict[str, Any]] = {
    "exact": {"policy": {"name": "dri_med"}},
    "at random": {"policy": {"name": "uniform"}},
    "its own draws": {"policy": {"name": "lin_ts"}, "model": {"kind": "paper"}},
    "accounts of users": {"policy": {"name": "dri_med", "guard": "budget"}},
}


def made(**changes: Any) -> Trial:
    return Trial.create(BUSY | changes, MemoryStore())


def played(trial: Trial, rounds: int = 4) -> Trial:
    for _ in range(rounds):
        trial.tell_many([Report(d.id, outcome(d.id, d.arm)) for d in trial.ask_many()])
    return trial


# Dry runs


@pytest.mark.parametrize("changes", POLICIES.values(), ids=POLICIES)
def test_nothing_that_a_dry_run_shows_depends_on_what_will_be_drawn(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials that differ in their seed alone: what they draw differs, what they show before is the same."""
    monkeypatch.setattr("drimed.trial.ask.secrets.randbits", lambda _: 5)
    plots = {"site 0": {"plots": ["1", "2", "3"]}, "site 1": {}}
    given, shown = [], []
    for seed in range(6):
        trial = made(seed=seed, users=plots, **changes)
        found = trial.ask_many(dry_run=True) + trial.preview()
        shown.append([replace(d, time="") for d in found])
        given.append(tuple(d.arm for d in trial.ask_many()))
    assert all(some == shown[0] for some in shown)
    assert len(set(given)) > 1 or changes["policy"]["name"] == "dri_med"  # which begins with the control
    assert {(d.arm, d.propensity, d.code) for some in shown for d in some} == {("", None, None)}


def test_a_dry_run_draws_with_a_seed_of_its_own_every_time() -> None:
    trial, seeds = made(), set()
    original = streams.uniforms

    def noted(seed: int, *rest: Any) -> Any:
        seeds.add(seed)
        return original(seed, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "uniforms", noted)
        for _ in range(3):
            trial.ask_many(dry_run=True)
    assert len(seeds) == 3
    assert trial.state().seed not in seeds


# Codes


def test_drawn_codes_are_different_stay_the_same_and_follow_from_the_seed() -> None:
    arms = tuple(f"arm {i}" for i in range(200))
    codes = Blinding().arm_codes(7, arms)
    assert len(set(codes.values())) == 200
    assert all(set(code) <= set(CODE_LETTERS) for code in codes.values())
    assert Blinding().arm_codes(7, (*arms, "more")).items() >= codes.items()
    assert Blinding().arm_codes(8, arms) != codes
    # The order of the codes says nothing of the order of the arms: of 199 neighbours about half rise.
    ordered = list(codes.values())
    assert 70 < sum(a < b for a, b in pairwise(ordered)) < 130


def test_an_arm_that_is_added_gets_a_code() -> None:
    trial = made(blinding={"codes": {"old": "A", "new": "B", "newer": "C"}})
    assert {d.code for d in played(trial).decisions()} <= {"A", "B", "C"}
    trial.add_arm("late")
    codes = trial.state().codes
    assert list(codes.values())[:3] == ["A", "B", "C"]
    assert len(codes["late"]) == 4
    assert verify(trial.store, "busy").ok


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ({"old": "A", "new": "B"}, "gives no code to newer"),
        ({"old": "A", "new": "B", "newer": "a"}, "'a' is the code of 'old' too"),
        ({"old": "A", "new": "B", "newer": "OLD"}, "'OLD' is the name of arm 'old'"),
        ({"old": "A", "new": "B", "newer": "C", "none": "D"}, "unknown arm .none."),
        ({"old": "A", "new": "B", "newer": ""}, "must be a name"),
        ({"old": "A", "new": "B", "newer": "C\u200b"}, "cannot be seen"),
    ],
)
def test_codes_that_cannot_be_told_apart_are_refused(codes: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        TrialSpec.read(BUSY | {"blinding": {"codes": codes}})


def test_a_seed_in_the_file_of_a_blinded_trial_is_noted() -> None:
    assert any("`seed` out of the file" in note for note in made(blinding={}).status().notes)
    assert not any("`seed` out of the file" in note for note in made().status().notes)
    unseeded = {name: value for name, value in BUSY.items() if name != "seed"}
    drawn = Trial.create(unseeded | {"blinding": {}}, MemoryStore())
    assert not any("`seed` out of the file" in note for note in drawn.status().notes)


# Who is blinded


def shown(trial: Trial, number: int = 1) -> Decision:
    return blinding.blinded_decision(trial.state(), trial.decision(number))


@pytest.mark.parametrize(("part", "code"), [(None, False), ({}, False), ({"show_codes": True}, True)])
def test_a_blinded_decision_has_its_outcome_and_neither_arm_nor_anything_that_tells_it(part: Any, code: bool) -> None:
    trial = played(made() if part is None else made(blinding=part))
    found, whole = shown(trial), trial.decision(1)
    assert (found.arm, found.code) == ("", whole.code if code else None)
    assert (found.probabilities, found.propensity, found.reason) == ({}, None, "")
    assert (found.share, found.effects, found.unavailable, found.state_version) == (None, None, [], 0)
    assert (found.id, found.user, found.outcome, found.state) == (1, whole.user, whole.outcome, "complete")


SHOWN: dict[type, set[str]] = {
    Decision: {
        "id", "episode", "season", "user", "context", "time", "actor", "plot", "block", "state", "outcome", "control",
        "amendments", "repeated",
    },
    Status: {
        "name", "about", "status", "episode", "season", "users", "decisions", "pending", "partial", "complete",
        "missing", "amendments", "created", "model", "enrolment",
    },
    Member: {"name", "group", "cohort", "attributes", "blocks", "plots"},
}  # fmt: skip


@pytest.mark.parametrize("kind", SHOWN)
def test_a_field_that_is_added_to_a_record_is_not_shown_to_the_blinded(kind: type) -> None:
    """Every field has a value of its own; those that come out are these, and no others."""
    names = kind.__dataclass_fields__  # type: ignore[attr-defined]
    whole = kind(**{name: f"value of {name}" for name in names})
    state = made().state()
    makers: dict[type, Any] = {
        Decision: lambda d: blinding.blinded_decision(state, d),
        Status: blinding.blinded_status,
        Member: blinding.blinded_member,
    }
    found = makers[kind](whole)
    assert {name for name in names if getattr(found, name) == f"value of {name}"} == SHOWN[kind]


def test_a_sheet_for_the_blinded_has_no_column_of_arms_and_one_that_has_is_refused_whatever_it_says() -> None:
    trial = made()
    given = trial.ask_many()
    state = trial.state()
    rows = sheets.decision_rows(state, [blinding.blinded_decision(state, d) for d in given])
    assert list(rows[0]) == ["decision", "episode", "user", "yield", "cost", "notes"]
    with trial.writing() as tx:
        for arm in state.spec.arms:
            table = read(f"decision,Arm,yield\n1,{arm},5\n")
            with pytest.raises(InputError, match="has no column 'arm'"):
                sheets.tell_sheet(tx, table, blinded=True)
        assert sheets.tell_sheet(tx, read("decision,yield\n1,5\n"), blinded=True)[0].result == "recorded"
        right = read(f"decision,arm,yield\n2,{given[1].arm},5\n")
        assert sheets.tell_sheet(tx, right)[0].result == "recorded"


# Opening the code


def test_opening_the_code_is_an_event_with_who_and_why_and_is_proven() -> None:
    trial = played(made(blinding={}))
    one = trial.reveal(3, reason="an emergency", actor="safety desk")
    assert (one.decision, one.arm, one.code) == (3, trial.decision(3).arm, trial.decision(3).code)
    assert shown(trial, 3).arm == ""
    assert not trial.state().opened
    every = trial.reveal(reason="the end")
    assert every.codes == trial.state().codes
    assert shown(trial, 3).arm == one.arm
    assert shown(trial, 3).probabilities == {}
    with trial.reading() as (ledger, state):
        told = [(o.decision, o.actor, o.reason, o.arm) for o in queries.openings(ledger, state)]
        assert catch_up(start_of(ledger), ledger).openings == state.openings
    assert told == [(3, "safety desk", "an emergency", one.arm), (None, "python", "the end", None)]
    assert verify(trial.store, "busy").ok
    assert [e.body for e in trial.log(kinds=["revealed"])] == [
        {"reason": "an emergency", "decision": 3}, {"reason": "the end"}
    ]  # fmt: skip


def test_a_code_is_opened_once_for_decisions_that_exist_and_for_a_reason() -> None:
    trial = played(made())
    trial.reveal(reason="r")
    for decision, reason, error, said in (
        (99, "r", UnknownNameError, "has no decision 99"),
        (1, " ", InputError, "a reason is needed"),
        (None, "r", ConflictError, "unblinded already"),
    ):
        with pytest.raises(error, match=said):
            trial.reveal(decision, reason=reason)
    assert trial.status().events == len(list(trial.log()))


def test_a_snapshot_knows_whether_the_code_is_open() -> None:
    trial = played(made())
    for decision in (1, None):
        trial.reveal(decision, reason="r")
        state = trial.state()
        restored = snapshots.restore(state.created, snapshots.take(state))
        assert restored is not None
        assert (restored.opened, restored.openings) == (decision is None, state.openings)
