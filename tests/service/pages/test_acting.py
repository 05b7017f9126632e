"""Forms: what they do, once, and what is wrong shown where it is."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from drimed.trial import template
from drimed.trial.tables import read
from tests.service.pages.visiting import Visitor, readable
from tests.trial.trials import BUSY, SMALL

MAIZE = "/trials/maize-nitrogen"


@pytest.fixture
def maize(visitor: Visitor) -> str:
    """A trial with contexts, made from the example file."""
    visitor.done(visitor.send("/new", {}, file=("maize.toml", template().encode())))
    return MAIZE


def test_a_trial_is_made_from_a_file(visitor: Visitor) -> None:
    answer = visitor.send("/new", {}, file=("maize.toml", template().encode()))
    assert answer.headers["location"] == f"{MAIZE}?done=created"
    assert "The trial was created." in readable(visitor.done(answer))


def test_a_pasted_text_that_begins_with_a_brace_is_json(visitor: Visitor) -> None:
    text = "\n" + json.dumps(SMALL | {"name": "pasted"}, indent=1)
    assert "The trial was created." in readable(visitor.done(visitor.send("/new", {"text": text})))
    wrong = visitor.send("/new", {"text": text.replace('"control"', '"kontrol"')})
    assert "did you mean" in readable(wrong.text)


def test_faults_of_a_file_are_shown_at_their_lines(visitor: Visitor) -> None:
    wrong = template().replace("leaching = -1 }", "leeching = -1 }").replace('metric = "yield"', 'metric = "yeild"')
    answer = visitor.send("/new", {"text": wrong})
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    lines = wrong.split("\n")
    for fault, said in (("leeching = -1 }", "did you mean"), ("yeild", "did you mean 'yield'?")):
        number = next(i for i, line in enumerate(lines, 1) if fault in line)
        marked = re.search(
            rf'<div class="line wrong" id="line-{number}">.*?</div>\s*<div class="line wrong why">(.*?)</div>',
            answer.text,
            re.S,
        )
        assert marked is not None, number
        assert said in readable(marked[1])
        assert f'href="#line-{number}"' in answer.text
    assert "leeching" in answer.text.partition("<textarea")[2]
    assert "maize-nitrogen" not in visitor.look("/")


def test_a_text_that_is_no_toml_is_shown_at_its_line(visitor: Visitor) -> None:
    answer = visitor.send("/new", {"text": 'name = "x"\nmetrics = = 3\n'})
    assert re.search(r'class="line wrong" id="line-2"', answer.text)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (("a.toml", b"\xff\xfe\x00"), "not UTF-16"),
        (("a.xlsx", b"PK\x03\x04rest"), "save it as"),
        (("a.toml", b'name = "M\xfcller"'), "not UTF-8"),
        (None, "choose a trial file or paste"),
    ],
)
def test_files_of_other_kinds_are_refused_in_words(visitor: Visitor, file: Any, said: str) -> None:
    answer = visitor.send("/new", {}, file=file)
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert said in readable(answer.text)


def test_a_name_that_is_taken_is_shown_at_its_line(visitor: Visitor, maize: str) -> None:
    answer = visitor.send("/new", {"text": template()})
    assert answer.status_code == httpx.codes.CONFLICT
    assert 'class="line wrong" id="line-3"' in answer.text
    assert maize


def test_asking_by_hand_opens_the_episode_and_gives_a_table_and_a_sheet(visitor: Visitor, maize: str) -> None:
    data = {"how": "hand", "episode": "1", "user": ["0:north", "2:river"], "c:0:rain": "400", "c:2:rain": "380.5"}
    page = visitor.done(visitor.send(f"{maize}/ask", data))
    assert "2 decisions in season 1" in readable(page)
    sheet = visitor.http.get(f"{maize}/given.csv?decisions=1-2").content.decode("utf-8-sig").splitlines()
    assert sheet[0] == "decision,episode,user,rain,arm,propensity,reason,yield,leaching,notes"
    assert sheet[1].startswith("1,1,north,400.0,")
    assert sheet[2].startswith("2,1,river,380.5,")


def test_a_context_that_is_missing_or_no_number_is_said(visitor: Visitor, maize: str) -> None:
    for value, said in (("", "'north' needs a value for rain"), ("4,500", "can be read as 4500 or as 4.500")):
        answer = visitor.send(f"{maize}/ask", {"how": "hand", "episode": "1", "user": "0:north", "c:0:rain": value})
        assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
        assert said in readable(answer.text)
    assert "season 0" in readable(visitor.look(maize)), "nothing was written"


def test_an_unlikely_context_is_taken_when_it_is_confirmed(visitor: Visitor, http: httpx.Client, maize: str) -> None:
    page = f"{maize}/ask"
    data = {"how": "hand", "episode": "1", "user": "0:north", "c:0:rain": "-9999"}
    asked = visitor.send(page, data)
    assert asked.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "please confirm 1 unusual value. user 'north': rain -9999 is far from" in readable(asked.text)
    assert asked.text.count("these values are right") == 1
    assert "rain -9999 is far from" in _why(asked.text, "hand:c:0:rain")
    assert http.get(f"/v1{maize}").json()["events"] == 1
    sure = {"confirm": _value(asked.text, "confirm")}
    assert "rain -9998 is far from" in readable(visitor.send(page, data | sure | {"c:0:rain": "-9998"}).text)
    sheet = "user,rain\nnorth,480\nriver,-9999\n"
    refused = visitor.send(page, {"how": "sheet", "episode": "1", "text": sheet})
    assert "Row 3: user 'river': rain -9999 is far from" in readable(refused.text)
    assert http.get(f"/v1{maize}").json()["events"] == 1
    visitor.done(visitor.send(page, data | sure))
    assert http.get(f"/v1{maize}/decisions/1").json()["context"] == {"rain": -9999.0}
    sure = {"confirm": _value(visitor.send(page, {"how": "sheet", "episode": "2", "text": sheet}).text, "confirm")}
    visitor.done(visitor.send(page, {"how": "sheet", "episode": "2", "text": sheet} | sure))
    assert http.get(f"/v1{maize}").json()["decisions"] == 3


def _value(page: str, name: str) -> str:
    """What a field of a page is filled in with."""
    found = re.search(rf'name="{re.escape(name)}"[^>]* value="([^"]*)"', page)
    assert found is not None, name
    return found[1]


def _why(page: str, field: str) -> str:
    """What a page says is wrong with an input, which refers to it."""
    at = quote(field, safe="")
    assert re.search(rf'id="{at}"[^>]* aria-invalid="true" aria-describedby="why-{at}"', page), field
    found = re.search(rf'id="why-{at}">(.*?)</span>', page)
    assert found is not None, field
    return readable(found[1])


def test_a_new_episode_begins_with_empty_contexts(visitor: Visitor, maize: str) -> None:
    data = {"how": "hand", "episode": "1", "user": ["0:north"], "c:0:rain": "400"}
    visitor.done(visitor.send(f"{maize}/ask", data))
    now, then = visitor.look(f"{maize}/ask"), visitor.look(f"{maize}/ask?episode=next")
    assert (_value(now, "episode"), _value(now, "c:0:rain")) == ("1", "400.0")
    assert (_value(then, "episode"), _value(then, "c:0:rain")) == ("2", "")
    assert "last 400" in readable(then)
    answer = visitor.send(f"{maize}/ask", data | {"episode": "2", "c:0:rain": ""})
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    why = re.search(r'id="why-hand%3Ac%3A0%3Arain">(.*?)</span>', answer.text)
    assert why is not None
    assert "'north' needs a value for rain" in readable(why[1])
    assert _value(answer.text, "episode") == "2"
    assert "season 1" in readable(visitor.look(maize)), "none was begun"


def test_values_of_an_episode_are_not_taken_for_one_that_was_opened_meanwhile(
    visitor: Visitor, maize: str, http: httpx.Client
) -> None:
    data = {"how": "hand", "episode": "1", "user": ["0:north"], "c:0:rain": "400"}
    visitor.done(visitor.send(f"{maize}/ask", data))
    http.post(f"/v1{maize}/episodes", json={"contexts": {"north": {"rain": 300.0}}}).raise_for_status()
    late = visitor.send(f"{maize}/ask", data)
    assert late.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "season 2 was opened since this page was shown" in readable(late.text)
    assert (_value(late.text, "episode"), _value(late.text, "c:0:rain")) == ("2", "300.0")
    same = visitor.send(f"{maize}/ask", data | {"episode": "2", "c:0:rain": "310"})
    assert "1 decision in season 2" in readable(visitor.done(same)), "the one that was meant, not a third"


def test_every_wrong_value_is_said_at_its_row_and_what_was_sent_stays(visitor: Visitor, maize: str) -> None:
    data = {"how": "hand", "episode": "1", "user": ["0:north", "2:river"], "c:0:rain": "4,500", "c:1:rain": "520"}
    page = visitor.send(f"{maize}/ask", data).text
    for place, said in ((0, "can be read as 4500 or as 4.500"), (2, "'river' needs a value for rain")):
        at = f"hand%3Ac%3A{place}%3Arain"
        assert re.search(rf'id="{at}"[^>]* aria-invalid="true" aria-describedby="why-{at}"', page)
        why = re.search(rf'id="why-{at}">(.*?)</span>', page)
        assert why is not None
        assert said in readable(why[1])
    assert page.count('aria-invalid="true"') == 2
    assert "2 values cannot be used" in readable(page)
    assert (_value(page, "c:0:rain"), _value(page, "c:1:rain")) == ("4,500", "520")
    ticked = re.findall(r'name="user" value="([^"]+)"[^>]* checked', page)
    assert ticked == ["0:north", "2:river"]


def test_asking_again_says_what_had_been_decided(visitor: Visitor, maize: str) -> None:
    data = {"how": "hand", "episode": "1", "user": ["0:north"], "c:0:rain": "400"}
    visitor.done(visitor.send(f"{maize}/ask", data))
    other = visitor.send(f"{maize}/ask", data | {"c:0:rain": "90"})
    assert "was taken with rain 400, and 90 came now; a context cannot be changed" in readable(other.text)
    again = readable(visitor.done(visitor.send(f"{maize}/ask", data)))
    assert "Nothing new was decided. 1 user already had a decision in this season." in again
    assert "recorded" not in again
    both = visitor.send(f"{maize}/ask", data | {"user": ["0:north", "1:hill"], "c:0:rain": "", "c:1:rain": "500"})
    assert both.headers["location"].endswith("/given?decisions=1-2&again=1")
    page = readable(visitor.done(both))
    assert "1 decision in season 1. It is recorded" in page
    assert "1 user already had a decision in this season" in page


def test_why_an_arm_is_given_is_said_in_plain_words(visitor: Visitor, maize: str) -> None:
    data = {"how": "hand", "episode": "1", "user": ["0:north"], "c:0:rain": "400"}
    page = visitor.done(visitor.send(f"{maize}/ask", data))
    why = re.search(r'<td class="why-cell">(.*?)</td>', page)
    assert why is not None
    assert why[1].startswith(("The ", "Almost ", "Some ", "Only ", "Arms ", "Earlier ", "In "))
    assert "_" not in why[1]


def test_asking_with_a_sheet_shows_errors_at_their_rows(visitor: Visitor, maize: str) -> None:
    data = {"how": "sheet", "episode": "1"}
    wrong = visitor.send(f"{maize}/ask", data, file=("s.csv", b"user;rain\nnorth;400\nhil;520\nriver;\n"))
    assert wrong.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert re.search(r'<tr id="row-3" class="wrong">', wrong.text)
    assert re.search(r'<tr id="row-4" class="wrong">', wrong.text)
    assert "Row 3: unknown user 'hil'; did you mean 'hill'?" in readable(wrong.text)
    page = visitor.done(visitor.send(f"{maize}/ask", data, file=("s.csv", b"user;rain\nnorth;400\nhill;520\n")))
    assert "2 decisions in season 1" in readable(page)


@pytest.mark.usefixtures("season")
def test_telling_by_hand_marks_the_row_that_is_wrong(visitor: Visitor) -> None:
    page = "/trials/busy/tell"
    answer = visitor.send(page, {"how": "hand", "y:21:yield": "5", "y:22:yield": "five"})
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    at = "hand%3Ay%3A22%3Ayield"
    assert f'id="{at}" aria-invalid="true" aria-describedby="why-{at}"' in answer.text
    assert f'id="why-{at}">↑ decision 22: yield must be a number, got &#39;five&#39;' in answer.text
    assert _value(answer.text, "y:21:yield") == "5"
    said = readable(
        visitor.done(visitor.send(page, {"how": "hand", "y:21:yield": "5", "y:21:cost": "1", "y:22:yield": "4"}))
    )
    assert "2 outcomes recorded." in said
    assert "will be learned from" not in said, "what is there of an outcome is learned from at once"


def test_a_policy_that_waits_for_all_metrics_says_so(visitor: Visitor, http: httpx.Client) -> None:
    http.post("/v1/trials", json=BUSY | {"name": "whole", "model": {"kind": "paper"}}).raise_for_status()
    http.post("/v1/trials/whole/ask", json={}).raise_for_status()
    values = {"how": "hand", "y:1:yield": "5", "y:1:cost": "1", "y:2:yield": "4"}
    said = readable(visitor.done(visitor.send("/trials/whole/tell", values)))
    assert "2 outcomes recorded. 1 will be learned from once the rest of its values is recorded." in said


@pytest.mark.usefixtures("season")
def test_telling_with_a_wrong_sheet_shows_its_rows_and_writes_nothing(visitor: Visitor, http: httpx.Client) -> None:
    before = http.get("/v1/trials/busy").json()["events"]
    sheet = b"decision,user,yield,cost\n21,site 0,5.1,1\n22,site 3,5.2,1\n23,site 2,,\n99,,5,1\n"
    wrong = visitor.send("/trials/busy/tell", {"how": "sheet"}, file=("h.csv", sheet))
    assert wrong.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert re.search(r'<tr id="row-3" class="wrong">', wrong.text)
    assert "decision 22 is for user 'site 1', the sheet says 'site 3'" in readable(wrong.text)
    assert "23,site 2" in wrong.text.partition("<textarea")[2], "to be corrected in place"
    assert http.get("/v1/trials/busy").json()["events"] == before
    right = visitor.send(
        "/trials/busy/tell", {"how": "sheet"}, file=("h.csv", b"decision,yield,cost\n21,5.1,1\n22,5.2,\n")
    )
    assert "2 outcomes recorded" in readable(visitor.done(right))


@pytest.mark.usefixtures("season")
def test_a_partial_outcome_is_listed_until_it_is_complete(visitor: Visitor, http: httpx.Client) -> None:
    page = "/trials/busy/tell"
    assert "4 outcomes are pending." in readable(visitor.look(page))
    visitor.done(visitor.send(page, {"how": "hand", "y:22:yield": "4.25"}))
    listed = visitor.look(page)
    assert "3 outcomes are pending and 1 outcome is partial." in readable(listed)
    assert http.get("/v1/trials/busy").json()["pending"] == 3
    assert "22 partial" in readable(listed)
    assert ">4.25</span></td>" in listed
    assert 'name="y:22:yield"' not in listed
    assert 'name="y:22:cost"' in listed
    own = visitor.look("/trials/busy/decisions/22")
    form = own.partition("Record the rest of the outcome")[2].partition("</form>")[0]
    assert "yield, recorded: 4.25" in readable(form)
    assert 'name="y:22:yield"' not in form
    assert 'name="y:22:cost"' in form
    visitor.done(visitor.send(page, {"how": "hand", "y:22:cost": "1"}))
    assert "3 outcomes are pending." in readable(visitor.look(page))
    assert "22" not in re.findall(r'href="/trials/busy/decisions/(\d+)"', visitor.look(page))
    amend = {"outcome": {"cost": None}, "reason": "another scale"}
    http.post("/v1/trials/busy/decisions/22/amend", json=amend).raise_for_status()
    http.post("/v1/trials/busy/decisions/23/missing", json={"reason": "hail"}).raise_for_status()
    assert "2 outcomes are pending and 1 outcome is partial." in readable(visitor.look(page))


@pytest.mark.usefixtures("season")
def test_a_decision_that_was_told_elsewhere_is_named_with_the_reason(visitor: Visitor, http: httpx.Client) -> None:
    elsewhere = {"reports": [{"decision": 21, "outcome": {"yield": 6.0, "cost": 2.0}}]}
    http.post("/v1/trials/busy/tell", json=elsewhere).raise_for_status()
    for others in ({}, {"y:22:yield": "5"}):
        page = visitor.send("/trials/busy/tell", {"how": "hand", "y:21:yield": "5"} | others).text
        top = readable(page.partition('role="alert"')[2].partition("</div>")[0])
        assert "1 value cannot be used" in top
        assert "decision 21 already has yield = 6.0, and 5.0 is another value" in top
        assert 'id="why-hand%3Ay%3A21%3Ayield">' in page, "and at its row, which is shown once more"
    assert _value(page, "y:22:yield") == "5"


@pytest.mark.usefixtures("season")
def test_values_outside_their_range_are_recorded_when_they_are_confirmed(visitor: Visitor, http: httpx.Client) -> None:
    page, before = "/trials/busy/tell", http.get("/v1/trials/busy").json()["events"]
    data = {"how": "hand", "y:21:yield": "51", "y:21:cost": "1", "y:22:yield": "5", "y:22:cost": "1"}
    asked = visitor.send(page, data)
    assert asked.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "yield 51 is outside 0 to 10, the range in the trial file" in readable(asked.text)
    assert asked.text.count("these values are right") == 1
    assert http.get("/v1/trials/busy").json()["events"] == before
    sure = {"confirm": _value(asked.text, "confirm")}
    other = visitor.send(page, data | sure | {"y:21:yield": "52"})
    assert "yield 52 is outside" in readable(other.text), "other values are asked for again"
    assert http.get("/v1/trials/busy").json()["events"] == before
    assert "2 outcomes recorded" in readable(visitor.done(visitor.send(page, data | sure)))


@pytest.mark.usefixtures("season")
def test_a_sheet_with_values_outside_their_range_is_recorded_when_it_is_confirmed(
    visitor: Visitor, http: httpx.Client
) -> None:
    page, before = "/trials/busy/tell", http.get("/v1/trials/busy").json()["events"]
    sheet = "decision,yield,cost\n21,5,1\n22,51,-1\n"
    asked = visitor.send(page, {"how": "sheet"}, file=("h.csv", sheet.encode()))
    assert asked.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "Row 3: decision 22: yield 51 is outside 0 to 10" in readable(asked.text)
    assert "cost -1 is outside 0 to 4" in readable(asked.text)
    assert http.get("/v1/trials/busy").json()["events"] == before
    wrong = visitor.send(page, {"how": "sheet", "text": sheet + "99,5,1\n"})
    assert "has no decision 99" in readable(wrong.text), "what cannot be used is said first"
    data = {"how": "sheet", "text": sheet, "confirm": _value(asked.text, "confirm")}
    assert "2 outcomes recorded" in readable(visitor.done(visitor.send(page, data)))
    again = visitor.send(page, {"how": "sheet", "text": sheet + "23,5.5,1\n"})
    assert "1 outcome recorded" in readable(visitor.done(again)), "what is recorded is not asked for again"


def test_without_a_range_in_the_file_any_value_is_recorded(visitor: Visitor, http: httpx.Client) -> None:
    http.post("/v1/trials", json=SMALL | {"name": "free", "metrics": {"yield": {}}}).raise_for_status()
    http.post("/v1/trials/free/ask", json={}).raise_for_status()
    answer = visitor.send("/trials/free/tell", {"how": "hand", "y:1:yield": "1e6"})
    assert "1 outcome recorded" in readable(visitor.done(answer))


def test_all_pending_decisions_can_be_reached_and_downloaded(visitor: Visitor, http: httpx.Client) -> None:
    for _ in range(15):
        http.post("/v1/trials/busy/ask", json={}).raise_for_status()  # four each
    http.post("/v1/trials/busy/tell", json={"reports": [{"decision": 3, "outcome": {"yield": 5.5}}]}).raise_for_status()
    page, seen = "/trials/busy/tell", []
    while page:
        text = visitor.look(page)
        seen += [int(n) for n in re.findall(r'name="y:(\d+):cost"', text)]
        older = re.search(r'href="(/trials/busy/tell\?before=\d+)"', text)
        page = older[1] if older else ""
    assert seen == list(range(60, 0, -1))
    wrong = visitor.send("/trials/busy/tell?before=11", {"how": "hand", "before": "11", "y:2:yield": "x"})
    assert 'name="y:10:cost"' in wrong.text, "the same page of the list"
    assert 'name="y:11:cost"' not in wrong.text
    assert 'href="/trials/busy/pending.csv"' in text
    sheet = http.get("/trials/busy/pending.csv").content.decode("utf-8-sig").splitlines()
    assert sheet[0] == "decision,episode,user,arm,propensity,reason,yield,cost,notes"
    assert [line.partition(",")[0] for line in sheet[1:]] == [str(n) for n in range(1, 61)]
    assert sheet[1].endswith(",,,")
    assert sheet[3].endswith(",5.5,,")
    filled = "\n".join([sheet[0], sheet[1].removesuffix(",,,") + ",5,1,", sheet[3][:-1] + "1,", *sheet[4:]])
    book = read(http.get("/trials/busy/pending.xlsx").content, "pending.xlsx")
    same = read("\n".join(sheet))
    assert book.names == same.names
    assert [str(row.cells["decision"]) for row in book.rows] == [row.cells["decision"] for row in same.rows]
    told = visitor.send("/trials/busy/tell", {"how": "sheet"}, file=("h.csv", filled.encode()))
    assert "2 outcomes recorded." in readable(visitor.done(told))


@pytest.mark.usefixtures("season")
def test_a_form_that_is_sent_twice_is_done_once(visitor: Visitor, http: httpx.Client) -> None:
    form = visitor.hidden("/trials/busy/ask") | {"how": "hand", "episode": "6", "user": ["0:site 0"]}
    first, second = (http.post("/trials/busy/ask", data=form) for _ in range(2))
    assert first.headers["location"] == second.headers["location"] == "/trials/busy/given?decisions=25"
    other = http.post("/trials/busy/ask", data=form | {"user": ["1:site 1"]})
    assert other.headers["location"] == "/trials/busy/given?decisions=26", "another content is another request"


@pytest.mark.usefixtures("season")
def test_an_outcome_is_recorded_amended_and_marked_missing_on_its_page(visitor: Visitor) -> None:
    page = "/trials/busy/decisions/24"
    assert "fill in at least one value" in readable(visitor.send(page, {}, to=f"{page}/outcome").text)
    told = visitor.send(page, {"y:24:yield": "4.5", "y:24:cost": "1.5"}, to=f"{page}/outcome")
    assert "The outcome was recorded." in readable(visitor.done(told))
    unsaid = visitor.send(page, {"y:24:yield": "5.5", "y:24:cost": "", "reason": " "}, to=f"{page}/amend")
    assert "a reason is needed" in readable(unsaid.text)
    amended = visitor.send(page, {"y:24:yield": "5.5", "y:24:cost": "", "reason": "typed wrong"}, to=f"{page}/amend")
    assert "corrected: yield 4.5 → 5.5, cost 1.5 taken back typed wrong" in readable(visitor.done(amended))
    partial = visitor.send(page, {"reason": "lost"}, to=f"{page}/missing")
    said = readable(visitor.done(partial))
    assert "the rest of the outcome is missing lost local" in said
    assert "The outcome is missing" in said
    late = readable(visitor.done(visitor.send(page, {"y:24:cost": "2"}, to=f"{page}/outcome")))
    assert "The outcome is complete" in late, "what comes after all still counts"
    assert "recorded: cost 2 (after it had been marked as missing)" in late
    refused = visitor.send(page, {"reason": "hail"}, to=f"{page}/missing")
    assert "has its whole outcome; nothing of it is missing" in readable(refused.text)
    page = "/trials/busy/decisions/23"
    without_reason = visitor.send(page, {"reason": " "}, to=f"{page}/missing").text
    assert 'aria-describedby="why-missing%3Areason"' in without_reason
    given_up = visitor.send(page, {"reason": "hail"}, to=f"{page}/missing")
    assert "the outcome is missing hail local" in readable(visitor.done(given_up))


def test_a_trial_is_paused_resumed_and_stopped(visitor: Visitor) -> None:
    page = "/trials/small/manage"
    assert "a reason is needed" in _why(visitor.send(page, {"reason": ""}, to=f"{page}/pause").text, "pause:reason")
    assert "The trial is paused" in visitor.done(visitor.send(page, {"reason": "board"}, to=f"{page}/pause"))
    assert "decides nothing until it is resumed" in readable(visitor.look("/trials/small/ask"))
    assert "The trial is running again" in visitor.done(visitor.send(page, {}, to=f"{page}/resume"))
    unsure = visitor.send(page, {"reason": "done"}, to=f"{page}/stop")
    assert "tick the box" in readable(unsure.text)
    assert "stopped for good" in visitor.done(visitor.send(page, {"reason": "done", "sure": "yes"}, to=f"{page}/stop"))
    assert "it cannot be paused" in readable(visitor.send(page, {"reason": "x"}, to=f"{page}/pause").text)


def test_users_and_arms_join_and_leave(visitor: Visitor, http: httpx.Client) -> None:
    page = "/trials/small/manage"
    user = {"name": "lake", "group": "wet", "preference:yield": "2", "control": "old", "arms": ["old", "new"]}
    assert "The user was added" in visitor.done(visitor.send(page, user, to=f"{page}/users"))
    twice = visitor.send(page, user, to=f"{page}/users").text
    assert _why(twice, "users:name") == "↑ there is a user 'lake' already"
    assert _value(twice, "group") == "wet", "what was sent stays"
    assert "The arm was added" in visitor.done(visitor.send(page, {"name": "newest"}, to=f"{page}/arms"))
    changed = visitor.send(page, {"user": "lake", "preference:yield": "3", "reason": "levy"}, to=f"{page}/preference")
    assert "The preference was changed" in visitor.done(changed)
    control = {"user": "lake", "control": "new", "reason": "another practice"}
    assert "The control was changed" in visitor.done(visitor.send(page, control, to=f"{page}/control"))
    unknown = visitor.send(page, control | {"user": "sea"}, to=f"{page}/control")
    assert "unknown user 'sea'" in _why(unknown.text, "control:user")
    retired = visitor.send(page, {"arm": "newest", "reason": "no more"}, to=f"{page}/retire")
    assert "The arm is retired" in visitor.done(retired)
    lake = next(u for u in http.get("/v1/trials/small/users").json()["items"] if u["name"] == "lake")
    assert (lake["preference"], lake["control"], lake["arms"], lake["group"]) == ({"yield": 3.0}, "new", None, "wet")
    assert http.get("/v1/trials/small").json()["retired"] == ["newest"]


def test_weights_are_given_for_all_metrics_or_for_none(visitor: Visitor, http: httpx.Client) -> None:
    page = "/trials/busy/manage"
    some = {"preference:yield": "2", "preference:cost": ""}
    for what, data in (
        ("preference", {"user": "site 0", "reason": "levy"}),
        ("users", {"name": "lake", "control": "old", "arms": ["old", "new", "newer"]}),
    ):
        refused = visitor.send(page, data | some, to=f"{page}/{what}")
        assert refused.status_code == httpx.codes.UNPROCESSABLE_ENTITY
        assert "cost has no weight; enter 0 for a metric that does not count" in readable(refused.text)
    none = visitor.send(page, {"user": "site 0", "reason": "levy"}, to=f"{page}/preference")
    assert "yield, cost have no weight" in readable(none.text)
    lake = {
        "name": "lake",
        "control": "old",
        "arms": ["old", "new", "newer"],
        "preference:yield": "",
        "preference:cost": "",
    }
    visitor.done(visitor.send(page, lake, to=f"{page}/users"))
    visitor.done(
        visitor.send(
            page,
            {"user": "site 0", "reason": "levy", "preference:yield": "2", "preference:cost": "0"},
            to=f"{page}/preference",
        )
    )
    users = {u["name"]: u for u in http.get("/v1/trials/busy/users").json()["items"]}
    assert users["site 0"]["preference"] == {"yield": 2.0, "cost": 0.0}


def test_what_users_prefer_and_are_compared_with_is_shown(visitor: Visitor, maize: str) -> None:
    page = f"{maize}/manage"
    visitor.done(visitor.send(page, {"user": "hill", "control": "split", "reason": "x"}, to=f"{page}/control"))
    user = {"name": "lake", "preference:yield": "100", "preference:leaching": "-2.5", "arms": ["practice", "split"]}
    visitor.done(visitor.send(page, user, to=f"{page}/users"))
    table = visitor.look(page).partition('aria-label="Users"')[2].partition("</table>")[0]
    assert "default control: practice" in readable(table)
    rows = [readable(row).strip() for row in table.split("<tr>")[2:]]
    assert rows == [
        "north sand ph 6.1 200 × yield − 3 × leaching default all",
        "hill loam ph 6.8 200 × yield − leaching split all",
        "river sand 150 × yield − 6 × leaching default all",
        "lake 100 × yield − 2.5 × leaching default practice, split",
    ]


def test_where_noise_is_known_a_new_arm_may_have_its_own(visitor: Visitor, http: httpx.Client) -> None:
    noise = {"kind": "known", "sd": {"yield": 0.5}}
    spec = SMALL | {"name": "known", "noise": noise, "model": {"kind": "paper"}}
    http.post("/v1/trials", json=spec).raise_for_status()
    page = "/trials/known/manage"
    assert "standard deviation of yield" in readable(visitor.look(page))
    wrong = visitor.send(page, {"name": "late", "noise:yield": "-1"}, to=f"{page}/arms")
    assert "must be above 0" in _why(wrong.text, "arms:noise:yield")
    visitor.done(visitor.send(page, {"name": "late", "noise:yield": "0.8"}, to=f"{page}/arms"))
    assert http.get("/v1/trials/known/spec").json()["noise"]["arms"] == {"late": {"sd": {"yield": 0.8}}}
    assert "standard deviation" not in readable(visitor.look("/trials/small/manage"))


def test_names_cannot_smuggle_anything_into_a_page(visitor: Visitor, http: httpx.Client) -> None:
    evil = "<script>alert(1)<"  # names hold no quotes and no slash
    spec = {
        "name": "evil", "about": "</p><script>alert('x')</script>", "metrics": {"<b>y": {"unit": "<i>"}},
        "arms": {"old": {}, evil: {}}, "control": "old", "preference": {"<b>y": 1.0}, "tolerance": {"absolute": 1.0},
        "users": {evil: {"group": "<img src=x onerror=alert(1)>"}}, "context": {"<u>c": {}},
    }  # fmt: skip
    http.post("/v1/trials", json=spec).raise_for_status()
    http.post("/v1/trials/evil/ask", json={"users": [evil], "contexts": {evil: {"<u>c": 1.0}}}).raise_for_status()
    outcome = {"decision": 1, "outcome": {"<b>y": 2.0}}
    http.post("/v1/trials/evil/tell", json={"reports": [outcome]}).raise_for_status()
    amend = {"outcome": {"<b>y": 3.0}, "reason": "<script>alert(2)</script>"}
    http.post("/v1/trials/evil/decisions/1/amend", json=amend).raise_for_status()
    pages = [
        "/",
        *(f"/trials/evil{p}" for p in ("", "?by=user", "/ask", "/tell", "/log", "/log?show=changes", "/manage")),
    ]
    for address in [
        *pages,
        "/trials/evil/decisions/1",
        "/trials/evil/given?decisions=1",
        f"/trials/evil/log?user={evil}",
    ]:
        page = visitor.look(address)
        assert page.count("<script") == 1, address
        for part in ("<b>", "<i>", "<u>", "<img src=x", 'alert(1)<"'):
            assert part not in page, (address, part)
    sheet = f"user,<u>c\n{evil},x\n".encode()
    answer = visitor.send("/trials/evil/ask", {"how": "sheet"}, file=("<b>.csv", sheet))
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert answer.text.count("<script") == 1


def test_a_decision_s_own_page_asks_about_values_outside_the_range_too(visitor: Visitor, http: httpx.Client) -> None:
    http.post("/v1/trials/small/ask", json={"users": ["north"]}).raise_for_status()
    page = "/trials/small/decisions/1"
    asked = visitor.send(page, {"y:1:yield": "84"}, to=f"{page}/outcome")
    assert (
        "Nothing was recorded yet: please confirm 1 unusual value. decision 1: yield 84 is outside 0 to 10"
        in readable(asked.text)
    )
    (mark,) = re.findall(r'name="confirm" value="(\w+)"', asked.text)
    other = visitor.send(page, {"y:1:yield": "85", "confirm": mark}, to=f"{page}/outcome")
    assert "decision 1: yield 85 is outside" in readable(other.text), "other values were confirmed"
    visitor.done(visitor.send(page, {"y:1:yield": "84", "confirm": mark}, to=f"{page}/outcome"))
    amended = visitor.send(page, {"y:1:yield": "48", "reason": "typo"}, to=f"{page}/amend")
    assert "decision 1: yield 48 is outside" in readable(amended.text)
    assert http.get("/v1/trials/small/decisions/1").json()["outcome"] == {"yield": 84.0}
    (mark,) = re.findall(r'name="confirm" value="(\w+)"', amended.text)
    visitor.done(visitor.send(page, {"y:1:yield": "48", "reason": "typo", "confirm": mark}, to=f"{page}/amend"))
    assert http.get("/v1/trials/small/decisions/1").json()["outcome"] == {"yield": 48.0}


@pytest.mark.parametrize(
    "sheet", ["decision,yield\r1,x\r2,y\r", "decision,yield\r\n1,x\r\n", '"' + "9" * 200_000 + '",1\nx\n']
)
def test_sheets_of_other_systems_with_faults_are_shown_not_failed_on(visitor: Visitor, sheet: str) -> None:
    sent = visitor.send("/trials/small/tell", {"how": "sheet"}, file=("s.csv", sheet.encode()))
    assert sent.status_code == 422
