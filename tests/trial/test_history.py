"""Outcomes from before a trial: what they teach, what they must not, and that they are replayed as all else is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConflictError, DrimedError, InputError, SpecError
from drimed.records import Decision
from drimed.reports.analysis import analyse
from drimed.trial import estimates, past, sheets, snapshots, tables
from drimed.trial.events import Draft, HistoryRead
from drimed.trial.problem import Problem
from drimed.trial.spec import TrialSpec
from drimed.trial.state import TrialState, catch_up
from drimed.trial.store import MemoryStore
from drimed.trial.tables import Table
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.fields import FIELD, PATIENTS, SEASON

ARMS = {"usual": 0.0, "early": 0.2, "rich": 0.5, "late": -0.4}
FARMS = [f"farm {i}" for i in range(6)]
SPEC: dict[str, Any] = {
    "name": "t",
    "seed": 3,
    "metrics": {"yield": {"unit": "t/ha", "range": [0.0, 14.0]}},
    "arms": {arm: {} for arm in ARMS},
    "control": "usual",
    "preference": {"yield": 1.0},
    "users": {farm: {"plots": ["1", "2"]} for farm in FARMS},
    "tolerance": {"relative": 0.0, "absolute": 1.0},
}
RANDOM: dict[str, Any] = {"history": {"arms": "random"}}
LEVEL = dict(zip([*FARMS, "gone"], np.linspace(-1.5, 1.5, 7).tolist(), strict=True))


def rows(arms: Iterable[str], bias: float = 0.0, seasons: int = 3, seed: int = 1) -> list[dict[str, Any]]:
    """A plot of each arm at each farm in each season; arms but the control had `bias` more in the past."""
    rng = np.random.default_rng(seed)
    return [
        {"season": 2021 + s, "user": farm, "arm": arm,
         "yield": 8 + LEVEL[farm] + 0.3 * s + ARMS.get(arm, 0.1) + bias * (arm != "usual") + rng.normal(0, 0.4)}
        for s in range(seasons) for farm in LEVEL for arm in arms
    ]  # fmt: skip


def event(spec: Mapping[str, Any], table: list[dict[str, Any]]) -> HistoryRead:
    problem = Problem(TrialSpec.read(spec))
    return past.of_rows(problem, past.read_rows(problem, Table.of(table)), "past.csv", "0" * 64)


def created(table: list[dict[str, Any]], **more: Any) -> Trial:
    return Trial.create(SPEC | more, MemoryStore(), history=event(SPEC | more, table))


def told(trial: Trial, decisions: Iterable[Decision], seed: int = 5) -> None:
    rng = np.random.default_rng(seed)
    for d in decisions:
        trial.tell(d.id, {"yield": 8 + LEVEL[d.user] + ARMS.get(d.arm, 0.3) + rng.normal(0, 0.4)})


def played(trial: Trial, seasons: int = 2) -> Trial:
    for season in range(1, seasons + 1):
        told(trial, trial.ask_many(episode=season), season)
    return trial


def effects(state: TrialState) -> tuple[Any, Any]:
    """Mean and deviation of each arm's effect for all users together."""
    model = estimates.fitted_model(state)
    assert model is not None
    offers = estimates.offers_now(state)
    users = list(state.users)
    found = estimates.effects_together(model, offers, range(len(users)), estimates.may_get(state, users))
    return found.mean[:, 0], found.deviation[:, 0]


def shares(decisions: list[Decision]) -> float:
    return float(np.mean([d.probabilities["usual"] for d in decisions]))


# What it teaches


def test_with_a_history_of_the_control_alone_the_first_season_explores() -> None:
    assert shares(Trial.create(SPEC, MemoryStore()).ask_many()) == 1.0
    assert shares(created(rows(["usual"])).ask_many()) < 0.6


@pytest.mark.parametrize("bias", [0.0, 2.0])
def test_arms_that_were_chosen_teach_no_effect_however_they_seem_to_differ(bias: float) -> None:
    mean, deviation = effects(created(rows(ARMS, bias)).state())
    assert mean == pytest.approx(np.zeros(4), abs=1e-6)
    assert (deviation[1:] > 0.4).all()


def test_arms_that_were_given_at_random_teach_their_effects() -> None:
    mean, deviation = effects(created(rows(ARMS), **RANDOM).state())
    assert np.abs(mean - list(ARMS.values())).max() < 0.3  # standard error 0.12
    assert (deviation[1:] < 0.3).all()


def test_a_discount_makes_every_row_count_less() -> None:
    past_of = [created(rows(ARMS), history={"discount": discount}) for discount in (1.0, 0.5, 0.2)]
    deviations = [effects(trial.state())[1][1:].mean() for trial in past_of]
    assert deviations == sorted(deviations)
    assert deviations[2] > 1.3 * deviations[0]
    whole = effects(created(rows(ARMS), **RANDOM).state())[1][1:].mean()
    assert deviations[0] == pytest.approx(whole)


def test_a_trial_as_the_history_of_another_tells_it_all_that_it_knew() -> None:
    """The sheet of decisions is taken as it is, plots and propensities included."""
    first = played(Trial.create(SPEC, MemoryStore()), 3)
    sheet = [
        {"decision": d.id, "season": f"s{d.episode}", "user": d.user, "arm": d.arm, "propensity": d.propensity}
        | {"yield": (d.outcome or {})["yield"]}
        for d in first.decisions()
    ]
    again = effects(created(sheet, **RANDOM).state())
    for one, other in zip(effects(first.state()), again, strict=True):
        assert one == pytest.approx(other, abs=1e-9)


def test_levels_of_sites_are_known_before_their_first_outcome() -> None:
    state = created(rows(["usual"])).state()
    model = estimates.fitted_model(state)
    assert model is not None
    mean = model.learner.beliefs(model.evidence, estimates.offers_now(state)).mean[:, 0, 0]
    assert np.corrcoef(mean, [LEVEL[farm] for farm in FARMS])[0, 1] > 0.98


@pytest.mark.parametrize("more", [{}, RANDOM, {"model": {"noise": "arm"}}, {"model": {"seasons": False}}])
def test_arms_that_are_not_offered_any_more_and_arms_that_were_not_there_are_fine(more: dict[str, Any]) -> None:
    trial = played(created(rows(["usual", "early", "ploughed", "sown twice"]), **more))
    assert np.isfinite(effects(trial.state())).all()
    assert verify(trial.store, "t").ok


# Replay


@pytest.mark.parametrize("more", [{}, RANDOM, {"history": {"discount": 0.3}}])
def test_a_trial_with_a_history_is_replayed_grown_and_restored(more: dict[str, Any]) -> None:
    trial = played(created(rows([*ARMS, "ploughed"]), **more))
    trial.add_arm("newest")  # arrays grow: the log is folded again
    trial.add_user("gone", {})
    trial.add_user("never seen", {})
    trial.ask_many(episode=3)
    trial.amend(1, {"yield": 13.9}, reason="misread", confirm=True)
    state = trial.state()
    proof = verify(trial.store, "t")
    assert (proof.ok, proof.exact) == (True, proof.decisions), proof.faults
    again = snapshots.restore(state.created, snapshots.take(state))
    assert snapshots.take(again).data == snapshots.take(state).data
    assert [p.unit for p in again.profiles.values()] == [p.unit for p in state.profiles.values()]
    with trial.store.reading("t") as ledger:
        assert again.numbers == catch_up(TrialState.start(state.created, state.capacity), ledger).numbers


@pytest.mark.parametrize("history", [{}, RANDOM])
@pytest.mark.parametrize("spec", [FIELD, PATIENTS])
def test_attributes_contexts_and_groups_of_the_past_are_learned_from(
    spec: dict[str, Any], history: dict[str, Any]
) -> None:
    spec = spec | history | {"arms": {arm: {"attributes": {"dose": float(i)}} for i, arm in enumerate(spec["arms"])}}
    metric, (control, other), rng = next(iter(spec["metrics"])), spec["arms"], np.random.default_rng(2)
    described: list[dict[str, Any]] = [{"user": "p", "group": "clinic", "age": 44.0, "sex": "f"}, {"user": "q"}]
    if spec["name"] == "field":
        described = [{"user": "north", "ph": 6.1, "rain": 410.0}, {"user": "x", "soil": "peat", "slope": "steep"}]
    table = [
        {"season": str(s), "arm": arm, metric: 8 + rng.normal()} | who
        for s in range(3) for who in described for arm in (control, other, "given up")
    ]  # fmt: skip
    trial = Trial.create(spec, MemoryStore(), history=event(spec, table))
    if spec["name"] == "field":
        with trial.writing() as tx:
            made = sheets.ask_sheet(tx, tables.read(SEASON))
    else:
        people = {who: {"attributes": {"age": 50.0, "sex": "m"}} for who in ("p", "new")}
        made = trial.ask_many(list(people), enrol=people)
    for d in made:
        trial.tell(d.id, {metric: 8 + rng.normal()})
    trial.preview()
    assert analyse(trial).status.history
    proof = verify(trial.store, spec["name"])
    assert proof.ok, proof.faults


def test_evidence_that_is_summed_again_has_the_history_in_it() -> None:
    trial = created(rows(ARMS), **RANDOM)
    first = trial.ask_many()[0]
    trial.tell(first.id, {"yield": 1e15}, confirm=True)
    trial.amend(first.id, {"yield": 8.0}, reason="a slip")
    other = created(rows(ARMS), **RANDOM)
    other.ask_many()
    other.tell(first.id, {"yield": 8.0})
    for one, two in zip(effects(trial.state()), effects(other.state()), strict=True):
        assert one == pytest.approx(two, abs=0.01)  # here variances are fitted again, there at the next tenth


@pytest.mark.parametrize("spec", [SPEC, PATIENTS])
def test_a_site_of_the_history_that_joins_later_is_the_same_unit(spec: dict[str, Any]) -> None:
    metric, control = next(iter(spec["metrics"])), spec["control"]
    table = [{"season": "1", "user": who, "arm": control, metric: 5.0 + i} for i, who in enumerate(["gone", "there"])]
    trial = Trial.create(spec, MemoryStore(), history=event(spec, table))
    attributes = {"attributes": {"age": 40.0, "sex": "f"}} if spec is PATIENTS else {}
    trial.add_user("new", attributes)
    trial.add_user("there", attributes)
    state, known = trial.state(), trial.state().numbers.past
    where = [(p.unit.number, p.unit.group, p.unit.member) for p in state.profiles.values()]
    assert where[-1] == (known["there"].number, known["there"].group, known["there"].member)
    assert len({*where, (known["gone"].number, known["gone"].group, 0)}) == len(where) + 1


def test_reports_name_the_seasons_of_the_history_and_what_rests_on_it() -> None:
    for more in ({}, {"model": {"seasons": False}}):
        trial = played(created(rows(ARMS), **RANDOM, **more), 3)
        analysis = analyse(trial)
        assert "effects of usual, early, rich and late too" in trial.status().history
        variation = analysis.variation
        if not more and variation is not None:
            assert [level.name for level in variation.seasons][:4] == ["2021", "2022", "2023", "1"]


# Reading


@pytest.mark.parametrize("unit", ["user", "site", "group", "Site"])
def test_the_column_of_units_may_have_any_of_its_names(unit: str) -> None:
    table = rows(ARMS)
    renamed = [{unit if name == "user" else name: value for name, value in row.items()} for row in table]
    assert event(SPEC, renamed) == event(SPEC, table)


def test_a_unit_may_be_a_user_or_a_group_of_the_trial_or_neither() -> None:
    sites = ("north", "coast", "coast", "elsewhere")
    table = [{"season": "1", "site": site, "arm": "old", "yield": 5.0} for site in sites]
    units = event(FIELD, table).units
    assert [(u["name"], u["group"]) for u in units] == [("north", None), ("", "coast"), ("elsewhere", None)]
    trial = Trial.create(FIELD, MemoryStore(), history=event(FIELD, table))
    known = trial.state().numbers.past
    assert known[" 1"].group == trial.state().profile("north").unit.group
    assert known["elsewhere"].group not in {p.unit.group for p in trial.state().profiles.values()}


def test_people_of_a_group_are_others_each_time() -> None:
    spec = PATIENTS | {"cohorts": {"ward": {"group": "clinic"}}}
    table = [{"season": "1", "group": "clinic", "arm": "usual", "age": 30 + i, "score": 50 + i} for i in range(3)]
    assert len(event(spec, table).units) == 3
    two = [row | {"user": "p1"} for row in table]
    with pytest.raises(DrimedError, match="row 3: age of 'p1' is 31 here and 30 in row 2"):
        event(spec, two)


@pytest.mark.parametrize(
    ("spec", "cells", "says"),
    [
        (SPEC, {"yeild": 3.0}, "'yeild'"),
        (SPEC, {"yield": 20.0}, "row 2: yield 20 is outside 0 to 14, the range in the trial file"),
        (SPEC, {"yield": "much"}, "row 2: yield must be a number"),
        (SPEC, {"season": None}, "no column 'season'"),
        (SPEC, {"yield": "NA"}, "no row with a value"),
        (FIELD, {"ph": "sour"}, "row 2: ph must be a number"),
        (FIELD, {"ph": 3.0}, "row 2: ph of 'north' is 3 here and 6.1 in the trial file"),
        (FIELD, {"group": "hills"}, "row 2: group of 'north' is 'hills' here and 'coast' in the trial file"),
        (FIELD, {"rain": 41000.0}, "row 2: rain 41000 is far from .*, which is typical by the trial file"),
        (SPEC, {"yield (kg/ha)": 5.0, "yield": None}, "is in kg/ha, and yield of the trial in t/ha"),
        (FIELD, {"slope": "stepe"}, "row 2: .*did you mean 'steep'"),
    ],
)
def test_a_history_that_contradicts_the_trial_file_is_refused(
    spec: dict[str, Any], cells: dict[str, Any], says: str
) -> None:
    row = {"season": "2021", "user": next(iter(spec["users"])), "arm": "usual", "yield": 5.0} | cells
    with pytest.raises(DrimedError, match=says):
        event(spec, [row])


@pytest.mark.parametrize("factor", [0.001, 1000.0])
def test_a_spread_in_another_unit_than_the_history_is_refused(factor: float) -> None:
    table = rows(["usual"])
    spec = SPEC | {"metrics": {"yield": {"spread": 0.5}}}
    event(spec, table)
    with pytest.raises(DrimedError, match="give both in the same unit"):
        event(spec | {"metrics": {"yield": {"spread": 0.5 * factor}}}, table)


def test_all_faults_are_told_at_once_with_their_rows() -> None:
    table = rows(["usual"])
    table[0] |= {"yield": 99.0}
    table[3] |= {"arm": ""}
    table[4] |= {"yield": "n.d."}
    with pytest.raises(DrimedError) as error:
        event(SPEC, table)
    assert [fault.row for fault in error.value.faults] == [2, 5, 6]


def test_a_history_comes_before_everything_else_and_only_where_the_model_can_learn_from_it() -> None:
    trial = Trial.create(SPEC, MemoryStore())
    trial.ask_many()
    with pytest.raises(ConflictError, match="when the trial is created"), trial.writing() as tx:
        tx.append([Draft(event(SPEC, rows(["usual"])))])
    with pytest.raises(SpecError, match="paper's model has no place"):
        TrialSpec.read(SPEC | RANDOM | {"model": {"kind": "paper"}})
    with pytest.raises(InputError, match="whose sheet must come with it"):
        Trial.create(SPEC | RANDOM, MemoryStore())


@pytest.mark.parametrize(
    "change",
    [
        lambda e: replace(e, arm=[9, *e.arm[1:]]),
        lambda e: replace(e, season=e.season[1:]),
        lambda e: replace(e, metrics={"height": e.metrics["yield"]}),
        lambda e: replace(e, metrics={"yield": [1e300, *e.metrics["yield"][1:]]}),
        lambda e: replace(e, units=[{**e.units[0], "attributes": {"ph": 6.0}}, *e.units[1:]]),
    ],
)
def test_an_event_that_no_file_could_have_made_is_refused(change: Callable[[Any], Any]) -> None:
    with pytest.raises(DrimedError):
        Trial.create(SPEC, MemoryStore(), history=change(event(SPEC, rows(["usual"]))))


def test_a_sheet_in_the_trial_file_is_read_as_one_beside_it_and_is_not_kept_twice(tmp_path: Path) -> None:
    text = "season;site;arm;yield\n2021;farm 0;usual;8,4\n2022;farm 0;ploughd;8,1\n"
    (tmp_path / "past.csv").write_text(text)
    beside = past.of_trial(TrialSpec.read(SPEC | {"history": {"file": "past.csv"}}), tmp_path / "t.toml")
    within = SPEC | {"history": {"file": "past.csv", "sheet": text}}
    assert past.of_trial(TrialSpec.read(within)) == beside
    trial = Trial.create(within, MemoryStore())
    assert trial.state().history == beside
    assert trial.state().spec.plain()["history"] == {"file": "past.csv"}
    assert trial.status().history.endswith("Not offered by the trial: ploughd.")
    assert verify(trial.store, "t").ok
    with pytest.raises(InputError, match=r"'past\.csv' did not come with the trial file: put the sheet itself"):
        Trial.create(SPEC | {"history": {"file": "past.csv"}}, MemoryStore())


def test_a_file_is_known_by_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    path.write_text("season;site;arm;yield\n2021;farm 0;usual;8,4\n2021;farm 0;usual;8,1\n")
    trial = Trial.create(SPEC, MemoryStore(), history=path)
    body = next(trial.log(kinds=["history"])).body
    assert (body["file"], len(body["hash"])) == ("past.csv", 64)
    assert body["metrics"] == {"yield": [8.4, 8.1]}
    with pytest.raises(InputError, match="cannot read"):
        Trial.create(SPEC, MemoryStore(), history=tmp_path / "none.csv")
