"""Sheets that ask: plots have a row each, and those who are new join with what their columns say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from drimed.errors import BatchError, InputError
from drimed.records import AskRequest, Decision
from drimed.trial import sheets
from drimed.trial.store import MemoryStore
from drimed.trial.tables import Table, csv_text, read
from drimed.trial.trial import Trial
from tests.trial.fields import FIELD, PATIENTS, SEASON, WAITING


@pytest.fixture
def field() -> Trial:
    return Trial.create(FIELD, MemoryStore())


@pytest.fixture
def patients() -> Trial:
    return Trial.create(PATIENTS, MemoryStore())


def ask(trial: Trial, text: str, *, ignore: Sequence[str] = (), **words: Any) -> list[Decision]:
    with trial.writing() as tx:
        return sheets.ask_sheet(tx, read(text), AskRequest(**words), ignore=ignore)


def test_each_plot_of_a_sheet_gets_a_decision_in_its_block(field: Trial) -> None:
    given = ask(field, SEASON, episode=1)
    assert [(d.user, d.plot, d.block) for d in given] == [
        ("north", "A1", "A"), ("north", "A2", "A"), ("north", "B1", "B"), ("south", None, None)
    ]  # fmt: skip
    assert given[0].context == {"rain": 450.0, "slope": "flat"}
    assert [d.repeated for d in ask(field, SEASON, episode=1)] == [True] * 4


def test_a_sheet_of_all_users_can_be_filled_in_and_asked_with(field: Trial) -> None:
    rows = [row.cells for row in read(csv_text(sheets.blank_sheet(field.state()))).rows]
    assert [(r["user"], r.get("plot"), r.get("block")) for r in rows] == [
        ("north", "A1", "A"), ("north", "A2", "A"), ("north", "B1", "B"), ("south", None, None)
    ]  # fmt: skip
    with field.writing() as tx:
        assert len(sheets.ask_sheet(tx, Table.of(row | {"rain": "450", "slope": "flat"} for row in rows))) == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SEASON.replace("A2,450", "A2,460"), "row 3: rain of user 'north' is 460.0 here and 450.0 in another row"),
        (SEASON.replace("north,A2", "north,"), "row 3: user 'north' is in the sheet twice"),
        (SEASON.replace("flat", "falt"), "row 2: unknown level of 'slope' 'falt'; did you mean 'flat'"),
        (SEASON.replace("south", "suth"), "row 5: unknown user 'suth'; did you mean 'south'"),
        ("user,plot,block,rain,slope\nnorth,A1,B,450,flat\n", "row 2: plot 'A1' of user 'north' is in block 'A'"),
        ("user,plot,rain,slope\nnorth,A1,450,flat\nnorth,Z9,450,flat\n", "row 3: user 'north': unknown plot 'Z9'"),
        ("user,block,rain,slope\nnorth,B,450,flat\n", "row 2: column 'plot' is missing or empty"),
        (
            "user,plot,block,rain,slope\nsouth,1,W,450,flat\nsouth,2,,450,flat\n",
            "row 3: column 'block' is missing or empty: other plots of user 'south' have one",
        ),
        ("user,ph,rain,slope\nsouth,7.1,450,flat\n", "row 2: user 'south' joined with ph = 7.0, and 7.1 is another"),
        ("user,group,rain,slope\nsouth,coast,450,flat\n", "row 2: user 'south' has group 'hills', not 'coast'"),
        ("user,ph,rain,slope\nsouth,acid,450,flat\n", "row 2: ph must be a number, got 'acid'"),
    ],
)
def test_what_is_wrong_is_told_with_its_row_and_nothing_is_written(field: Trial, text: str, said: str) -> None:
    before = field.status().events
    with pytest.raises(BatchError, match=said):
        ask(field, text, episode=1)
    assert field.status().events == before


def test_a_sheet_of_new_patients_is_enough(patients: Trial) -> None:
    given = ask(patients, WAITING)
    assert [(d.user, d.arm) for d in given][1] == ("p2", "usual")  # the ward gives nothing else
    state = patients.state()
    first, second = (state.profile(user) for user in ("p1", "p2"))
    assert (first.definition.attributes, first.group) == ({"age": 61.0, "sex": "f"}, "clinic 1")
    assert (second.definition.attributes, second.definition.cohort) == ({"sex": "m"}, "ward")
    assert [e.kind for e in patients.log()] == ["created", "user", "user", "episode", "decision", "decision"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("user,age,sexx\np1,61,f\n", "unknown column 'sexx'; did you mean 'sex'"),
        ("user,age\np1,61\n", "row 2: attribute 'sex' is missing"),
        ("user,age,sex,cohort\np1,61,f,wrad\n", "row 2: unknown cohort 'wrad'; did you mean 'ward'"),
        ("user,age,sex\np1,61,f\np2,50,mm\n", "row 3: .*unknown level of 'sex' 'mm'; did you mean 'm'"),
        ("user,age,sex\np1,61,f\n=p2,50,m\n", "row 3: user must be a name"),
    ],
)
def test_somebody_new_is_described_rightly_or_nobody_joins(patients: Trial, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        ask(patients, text)
    assert patients.status().users == 0


def test_the_plots_of_somebody_new_are_theirs_from_then_on() -> None:
    trial = Trial.create(FIELD | {"enrolment": "open"}, MemoryStore())
    text = "user,plot,block,rain,slope,ph,soil\nwest,1,W,450,flat,6,sand\nwest,2,W,450,flat,,\n"
    ask(trial, text, episode=1)
    contexts: dict[str, dict[str, float | str]] = {"west": {"rain": 500.0, "slope": "flat"}}
    assert [d.plot for d in trial.ask_many(["west"], contexts=contexts, episode=2)] == ["1", "2"]


def test_outcomes_go_back_to_their_plots(field: Trial) -> None:
    given = ask(field, SEASON, episode=1)
    sheet = read(csv_text(sheets.decision_rows(field.state(), given)))
    told = [row.cells | {"yield": str(5 + i)} for i, row in enumerate(sheet.rows)]
    with (
        pytest.raises(BatchError, match="row 2: decision 1 is for plot 'A1', the sheet says 'A2'"),
        field.writing() as tx,
    ):
        sheets.tell_sheet(tx, Table.of([told[0] | {"plot": "A2"}, *told[1:]]))
    with field.writing() as tx:
        assert len(sheets.tell_sheet(tx, Table.of(told))) == 4


def test_a_context_that_was_decided_with_cannot_be_corrected_by_asking_again(field: Trial) -> None:
    ask(field, SEASON, episode=1)
    before = field.state().hash
    other = SEASON.replace("450", "300").replace("steep", "flat")
    with pytest.raises(BatchError) as refused:
        ask(field, other, episode=1)
    again = "a context cannot be changed after the decision: give"
    assert str(refused.value).splitlines() == [
        f"row 2: decision 1 for user 'north', plot 'A1' was taken with rain 450, and 300 came now; {again} 450 again, "
        "or none",
        f"row 5: decision 4 for user 'south' was taken with slope 'steep', and 'flat' came now; {again} 'steep' again, "
        "or none",
    ]
    assert field.state().hash == before


def test_a_context_may_be_given_again_as_another_text_for_it_or_left_empty(field: Trial) -> None:
    ask(field, SEASON, episode=1)
    for text in (SEASON.replace("450", "450.0"), "user,plot,rain,slope\nnorth,A1,,\nnorth,B1,,\nsouth,,,\n"):
        assert all(d.repeated and d.context is not None for d in ask(field, text, episode=1))
    with pytest.raises(BatchError, match=r"row 2: column 'rain' is empty"):
        ask(field, "user,rain,slope\nsouth,,steep\n", episode=1)
    with pytest.raises(BatchError, match=r"row 2: user 'south' has no context in season 2"):
        ask(field, "user,rain,slope\nsouth,,\n", episode=2)
    assert field.state().episode.number == 1


@pytest.mark.parametrize(
    ("column", "cells", "said"),
    [
        ("rain", ("450.0", "999"), "row 3: decision 4 is for rain 600.0, the sheet says '999'; was one column sorted"),
        ("slope", ("steep", ""), "row 2: decision 1 is for slope 'flat', the sheet says 'steep'"),
        ("ph", ("", "6.1"), "row 3: decision 4 is for ph 7.0, the sheet says '6.1'"),
        ("soil", ("loam", "loam"), "row 2: decision 1 is for soil 'sand', the sheet says 'loam'"),
    ],
)
def test_an_outcome_beside_a_context_or_an_attribute_of_another_decision_is_refused(
    field: Trial, column: str, cells: tuple[str, str], said: str
) -> None:
    ask(field, SEASON, episode=1)
    before = field.state().hash
    with field.writing() as tx, pytest.raises(BatchError, match=said):
        sheets.tell_sheet(tx, read(f"decision,{column},yield\n1,{cells[0]},7\n4,{cells[1]},8\n"))
    assert field.state().hash == before
    with field.writing() as tx:  # contexts as the trial wrote them, or as the spreadsheet program did
        assert len(sheets.tell_sheet(tx, read("decision;rain;ph;yield\n1;450,0;;7,1\n4;600.0;7;8,2\n"))) == 2


def test_nobody_chooses_an_arm_with_a_sheet(field: Trial) -> None:
    before = field.state().hash
    text = "user,plot,rain,slope,arm\nnorth,A1,450,flat,\nnorth,B1,450,flat,new\nsouth,,600,steep,old\n"
    with pytest.raises(BatchError) as refused:
        ask(field, text, episode=1)
    assert str(refused.value).splitlines() == [
        "row 3: the sheet says arm 'new', and the trial draws the arm: take the column out",
        "row 4: the sheet says arm 'old', and the trial draws the arm: take the column out",
    ]
    assert field.state().hash == before
    assert len(ask(field, text, episode=1, ignore=["arm"])) == 3
    assert len(ask(field, "user,rain,slope,arm\nsouth,600,steep,\n", episode=2)) == 1


def test_the_sheet_of_decisions_may_be_asked_with_again_with_the_arms_that_they_have(field: Trial) -> None:
    given = ask(field, SEASON, episode=1)
    text = csv_text(sheets.decision_rows(field.state(), given))
    assert [(d.id, d.repeated) for d in ask(field, text, episode=1)] == [(d.id, True) for d in given]
    other = "new" if given[3].arm == "old" else "old"
    row = f"south,600,steep,{other}\n"
    with pytest.raises(BatchError, match=f"row 2: the sheet says arm '{other}', and the trial draws the arm"):
        ask(field, "user,rain,slope,arm\n" + row, episode=1)
    with pytest.raises(BatchError, match=r"row 2: the sheet says arm .* the trial draws the arm"):
        ask(field, text, episode=2)
    assert field.state().episode.number == 1
