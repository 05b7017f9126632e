"""Plots, attributes and people who are new, on the pages."""

from __future__ import annotations

import httpx
import pytest

from tests.service.pages.visiting import Visitor, readable
from tests.trial.fields import FIELD, PATIENTS, SEASON, WAITING

F, P = "/trials/field", "/trials/patients"


@pytest.fixture(autouse=True)
def made(http: httpx.Client) -> None:
    """A trial of sites and one of patients."""
    for spec in (FIELD, PATIENTS):
        http.post("/v1/trials", json=spec).raise_for_status()


def test_a_season_of_plots_by_sheet_from_asking_to_the_story(visitor: Visitor, http: httpx.Client) -> None:
    given = visitor.done(visitor.send(f"{F}/ask", {"how": "sheet", "episode": "1", "text": SEASON}))
    assert "decision user plot block arm probability rain slope why" in readable(given)
    assert "2 north A2 A old" in readable(given)
    assert "north,A2,A,450.0,flat,old" in http.get(f"{F}/given.csv?decisions=1-4").text
    assert "north, plot A2 in block A decision 2 old" in readable(visitor.look(f"{F}/tell"))
    assert "north,B1,B," in http.get(f"{F}/pending.csv").text
    page = readable(visitor.look(f"{F}/log?block=A"))
    assert "north A2 A old" in page
    assert "north B1" not in page
    story = readable(visitor.look(f"{F}/decisions/2"))
    assert "Decision 2: old for north, plot A2 in block A" in story
    assert "group coast ph 6.1 soil sand rain (mm) 450 slope flat" in story
    assert "Nothing was known yet about the effect of new." in story


def test_a_user_with_plots_is_asked_for_by_hand(visitor: Visitor) -> None:
    form = readable(visitor.look(f"{F}/ask"))
    assert "north coast A1, A2, B1" in form
    context = {"c:0:rain": "450", "c:0:slope": "flat"}
    given = visitor.done(visitor.send(f"{F}/ask", {"how": "hand", "episode": "1", "user": "0:north", **context}))
    assert "3 decisions in season 1" in readable(given)
    assert "decided on 3 of 3 plots" in readable(visitor.look(f"{F}/ask"))


def test_a_context_that_is_a_category_is_chosen_from_its_levels(visitor: Visitor) -> None:
    assert "<option>steep</option>" in visitor.look(f"{F}/ask")
    refused = visitor.send(f"{F}/ask", {"how": "hand", "episode": "1", "user": "1:south", "c:1:rain": "450"})
    assert refused.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "column 'slope' is empty" in readable(refused.text)


def test_another_context_is_refused_for_a_decision_that_stands_unless_the_form_showed_it(
    visitor: Visitor, http: httpx.Client
) -> None:
    opened, given = {"rain": 450.0, "slope": "flat"}, {"rain": 500.0, "slope": "flat"}
    http.post(f"/v1{F}/episodes", json={"contexts": {"south": opened}}).raise_for_status()
    http.post(f"/v1{F}/ask", json={"users": ["south"], "contexts": {"south": given}}).raise_for_status()
    form = {"how": "hand", "episode": "1", "user": "1:south", "c:1:rain": "450.0", "c:1:slope": "flat"}
    assert "Nothing new was decided" in readable(visitor.done(visitor.send(f"{F}/ask", form)))
    refused = visitor.send(f"{F}/ask", form | {"c:1:rain": "300"})
    assert "was taken with rain 500, and 300 came now" in readable(refused.text)


def test_somebody_new_is_asked_for_with_a_small_form(visitor: Visitor, http: httpx.Client) -> None:
    assert "Ask for one" in readable(visitor.look(f"{P}/ask"))
    new = {
        "how": "hand",
        "episode": "1",
        "one": "p1",
        "a:age": "61",
        "a:sex": "f",
        "cohort": "ward",
        "group": "clinic 1",
    }
    assert "1 decision" in readable(visitor.done(visitor.send(f"{P}/ask", new)))
    (member,) = http.get(f"/v1{P}/users").json()["items"]
    assert (member["attributes"], member["cohort"], member["group"]) == ({"age": 61.0, "sex": "f"}, "ward", "clinic 1")
    assert "Ask for somebody new" in readable(visitor.look(f"{P}/ask"))
    again = {"how": "hand", "episode": "1", "one": "p1"}
    assert "1 decision" in readable(visitor.done(visitor.send(f"{P}/ask", again)))


def test_what_is_wrong_with_somebody_new_is_said_beside_its_name(visitor: Visitor, http: httpx.Client) -> None:
    for fields, said in [
        ({"a:sex": "f", "a:age": "old"}, "age must be a number, got 'old'"),
        ({"a:sex": "f", "cohort": "wrad"}, "did you mean 'ward'"),
        ({"a:sex": "f", "one": "=p"}, "must be a name"),
        ({"a:sex": "f", "block": "W"}, "a block has plots"),
        ({"a:age": "61"}, "attribute 'sex' is missing"),
    ]:
        answer = visitor.send(f"{P}/ask", {"how": "hand", "episode": "1", "one": "p1", **fields})
        assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
        assert said in readable(answer.text)
        assert 'id="hand%3Aone" aria-invalid="true"' in answer.text
        assert http.get(f"/v1{P}").json()["users"] == 0


def test_a_sheet_of_patients_enrols_them_or_shows_the_row_at_fault(visitor: Visitor, http: httpx.Client) -> None:
    wrong = visitor.send(f"{P}/ask", {"how": "sheet", "episode": "1", "text": WAITING.replace("ward", "wrad")})
    assert "Row 3: unknown cohort 'wrad'" in readable(wrong.text)
    visitor.done(visitor.send(f"{P}/ask", {"how": "sheet", "episode": "1", "text": WAITING}))
    assert http.get(f"/v1{P}").json()["users"] == 2
    assert http.get(f"{P}/users.csv").text.splitlines()[1:] == ["p1,61.0,f,", "p2,,m,ward"]


def test_the_sheet_to_fill_in_names_what_somebody_new_needs(http: httpx.Client) -> None:
    assert http.get(f"{P}/users.csv").text.lstrip("\ufeff").splitlines()[0] == "user,age,sex,cohort"
    assert http.get(f"{F}/users.csv").text.lstrip("\ufeff").splitlines()[:2] == [
        "user,plot,block,rain,slope",
        "north,A1,A,,",
    ]


def test_a_user_with_attributes_and_plots_is_added_by_form(visitor: Visitor, http: httpx.Client) -> None:
    form = {
        "name": "west",
        "attributes:ph": "5.5",
        "attributes:soil": "peat",
        "plots": "W/1, W/2",
        "arms": ["old", "new"],
    }
    to = f"{F}/manage/users"
    wrong = visitor.send(f"{F}/manage", form | {"attributes:ph": "acid", "plots": "W/1, 2"}, to=to)
    assert "ph must be a number, got 'acid'" in readable(wrong.text)
    mixed = visitor.send(f"{F}/manage", form | {"plots": "W/1, 2"}, to=to)
    assert "plot '2' has no block, and others have one" in readable(mixed.text)
    visitor.done(visitor.send(f"{F}/manage", form, to=to))
    west = http.get(f"/v1{F}/users").json()["items"][-1]
    assert (west["attributes"], west["blocks"]) == ({"ph": 5.5, "soil": "peat"}, {"W": ["1", "2"]})
