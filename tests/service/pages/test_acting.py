"""Forms: what they do, once, and what is wrong shown where it is."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import httpx
import pytest

from drimed.trial import template
from drimed.trial.tables import read
from tests.service.pages.visiting import Visitor, readable
from tests.trial.test_kinds import METRICS
from tests.trial.trials import SMALL

MAIZE = "/trials/maize-nitrogen"


@pytest.fixture
def maize(visitor: Visitor) -> str:
    """A trial with contexts, made from the example file."""
    visitor.done(visitor.send("/new", {}, file=("maize.toml", template().encode())))
    return MAIZE


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


def test_a_season_is_opened_without_asking_where_there_is_no_context(visitor: Visitor, maize: str) -> None:
    visitor.done(visitor.send("/new", {"text": json.dumps(SMALL | {"name": "bare"})}))
    data = {"episode": "1", "season": "spring", "date": "2026-13-01"}
    assert "Only open a season" in visitor.look("/trials/bare/ask")
    assert "date" in readable(visitor.send("/trials/bare/ask", data, to="/trials/bare/episodes").text)
    page = visitor.done(visitor.send("/trials/bare/ask", data | {"date": "2026-03-01"}, to="/trials/bare/episodes"))
    assert "The season is open." in readable(page)
    status = visitor.http.get("/v1/trials/bare").json()
    assert (status["episode"], status["season"], status["decisions"]) == (1, "spring", 0)
    assert "Only open a season" not in visitor.look(f"{maize}/ask"), "contexts come with the request"


def test_asking_by_hand_opens_the_episode_and_gives_a_table_and_a_sheet(visitor: Visitor, maize: str) -> None:
    data = {"how": "hand", "episode": "1", "user": ["1:north", "3:river"], "c:1:rain": "400", "c:3:rain": "380.5"}
    page = visitor.done(visitor.send(f"{maize}/ask", data))
    assert "2 decisions in season 1" in readable(page)
    sheet = visitor.http.get(f"{maize}/given.csv?decisions=1-2").content.decode("utf-8-sig").splitlines()
    assert sheet[0] == "decision,episode,user,rain,arm,propensity,reason,yield,leaching,notes"
    assert sheet[1].startswith("1,1,north,400.0,")
    assert sheet[2].startswith("2,1,river,380.5,")


def test_an_unlikely_context_is_taken_when_it_is_confirmed(visitor: Visitor, http: httpx.Client, maize: str) -> None:
    page = f"{maize}/ask"
    data = {"how": "hand", "episode": "1", "user": "1:north", "c:1:rain": "-9999"}
    asked = visitor.send(page, data)
    assert asked.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "please confirm 1 unusual value. user 'north': rain -9999 is far from" in readable(asked.text)
    assert asked.text.count("these values are right") == 1
    assert "rain -9999 is far from" in _why(asked.text, "hand:user:1")
    assert http.get(f"/v1{maize}").json()["events"] == 1
    sure = {"confirm": _value(asked.text, "confirm")}
    assert "rain -9998 is far from" in readable(visitor.send(page, data | sure | {"c:1:rain": "-9998"}).text)
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


def test_values_of_an_episode_are_not_taken_for_one_that_was_opened_meanwhile(
    visitor: Visitor, maize: str, http: httpx.Client
) -> None:
    data = {"how": "hand", "episode": "1", "user": ["1:north"], "c:1:rain": "400"}
    visitor.done(visitor.send(f"{maize}/ask", data))
    http.post(f"/v1{maize}/episodes", json={"contexts": {"north": {"rain": 300.0}}}).raise_for_status()
    late = visitor.send(f"{maize}/ask", data)
    assert late.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "season 2 was opened since this page was shown" in readable(late.text)
    assert (_value(late.text, "episode"), _value(late.text, "c:1:rain")) == ("2", "300.0")
    same = visitor.send(f"{maize}/ask", data | {"episode": "2", "c:1:rain": "310"})
    assert "1 decision in season 2" in readable(visitor.done(same)), "the one that was meant, not a third"


def test_every_wrong_value_is_said_at_its_row_and_what_was_sent_stays(visitor: Visitor, maize: str) -> None:
    data = {"how": "hand", "episode": "1", "user": ["1:north", "3:river"], "c:1:rain": "4,500", "c:2:rain": "520"}
    answer = visitor.send(f"{maize}/ask", data)
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    page = answer.text
    for row, said in ((1, "can be read as 4500 or as 4.500"), (3, "column 'rain' is empty")):
        assert said in _why(page, f"hand:user:{row}")
    assert page.count('aria-invalid="true"') == 2
    assert "2 values cannot be used" in readable(page)
    assert (_value(page, "c:1:rain"), _value(page, "c:2:rain")) == ("4,500", "520")
    ticked = re.findall(r'name="user" value="([^"]+)"[^>]* checked', page)
    assert ticked == ["1:north", "3:river"]
    assert "No decisions yet." in readable(visitor.look(maize)), "nothing was written"


@pytest.mark.usefixtures("season")
def test_telling_by_hand_marks_the_row_that_is_wrong(visitor: Visitor) -> None:
    page = "/trials/busy/tell"
    answer = visitor.send(page, {"how": "hand", "y:21:yield": "5", "y:22:yield": "five"})
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    at = "hand%3Adecision%3A22"
    assert f'<tr id="{at}" class="wrong">' in answer.text
    assert f'id="why-{at}">↑ yield must be a number, got &#39;five&#39;' in answer.text
    assert _value(answer.text, "y:21:yield") == "5"
    said = readable(
        visitor.done(visitor.send(page, {"how": "hand", "y:21:yield": "5", "y:21:cost": "1", "y:22:yield": "4"}))
    )
    assert "2 outcomes recorded." in said
    assert "will be learned from" not in said, "what is there of an outcome is learned from at once"


@pytest.mark.usefixtures("season")
def test_a_partial_outcome_is_listed_until_it_is_complete(visitor: Visitor, http: httpx.Client) -> None:
    page = "/trials/busy/tell"
    assert "4 outcomes are pending." in readable(visitor.look(page))
    visitor.done(visitor.send(page, {"how": "hand", "y:22:yield": "4.25"}))
    listed = visitor.look(page)
    assert "3 outcomes are pending and 1 outcome is partial." in readable(listed)
    assert http.get("/v1/trials/busy").json()["pending"] == 3
    assert "decision 22 in season 6 partial" in readable(listed)
    assert ">4.25</td>" in listed
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


def test_all_pending_decisions_can_be_reached_and_downloaded(visitor: Visitor, http: httpx.Client) -> None:
    for _ in range(15):
        http.post("/v1/trials/busy/ask", json={}).raise_for_status()  # four each
    http.post("/v1/trials/busy/tell", json={"reports": [{"decision": 3, "outcome": {"yield": 5.5}}]}).raise_for_status()
    page, seen = "/trials/busy/tell", []
    while page:
        text = visitor.look(page)
        seen += [int(n) for n in re.findall(r'name="y:(\d+):cost"', text)]
        later = re.search(r'href="(/trials/busy/tell\?after=\d+)"', text)
        page = later[1] if later else ""
    assert seen == list(range(1, 61)), "oldest first"
    wrong = visitor.send("/trials/busy/tell?after=50", {"how": "hand", "after": "50", "y:52:yield": "x"})
    assert 'name="y:51:cost"' in wrong.text, "the same page of the list"
    assert 'name="y:50:cost"' not in wrong.text
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
    assert "recorded: cost 2" in late
    refused = visitor.send(page, {"reason": "hail"}, to=f"{page}/missing")
    assert "has its whole outcome; nothing of it is missing" in readable(refused.text)
    given = visitor.send(page, {"given": "other", "reason": "it was refused"}, to=f"{page}/given")
    shown = readable(visitor.done(given))
    assert "What was given was recorded" in shown
    assert "Given: other." in shown
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


def test_outcomes_of_all_kinds_are_told_with_the_inputs_that_fit_them(visitor: Visitor, http: httpx.Client) -> None:
    water = {"nitrate": {"detection": 0.5}, "seeds": {"kind": "yes/no", "of": "seeds"}}
    clinic = METRICS | water
    spec = {
        "name": "ward",
        "model": {"kind": "people"},
        "metrics": clinic,
        "arms": {"low": {}, "high": {}},
        "control": "low",
        "preference": {"cure": 1.0},
        "users": {"ann": {}, "bob": {"metrics": ["cure", "pain"]}},
    }
    http.post("/v1/trials", json=spec).raise_for_status()
    http.post("/v1/trials/ward/ask", json={}).raise_for_status()
    form = visitor.look("/trials/ward/tell")
    assert [form.count(f'name="y:1:cure" value="{value}"') for value in ("yes", "no", "")] == [1, 1, 1]
    assert re.findall(r'name="y:1:pain" value="(.*?)"', form) == [*map(str, range(11)), ""]
    assert ('name="y:1:nitrate"' in form, 'name="y:2:nitrate"' in form) == (True, False)
    values = {"cure": "yes", "pain": "0", "visits": "two", "weight": "70", "nitrate": "<0.5", "seeds": "7 of 20"}
    data = {"how": "hand", "y:2:cure": "", "y:2:pain": "10"} | {f"y:1:{name}": value for name, value in values.items()}
    wrong = visitor.send("/trials/ward/tell", data)
    assert "visits is a count: expected a whole number from 0, got 'two'" in readable(wrong.text)
    assert (
        'name="y:1:cure" value="yes" aria-invalid="true" aria-describedby="why-hand%3Adecision%3A1" checked'
        in wrong.text
    )
    assert "2 outcomes recorded" in readable(
        visitor.done(visitor.send("/trials/ward/tell", data | {"y:1:visits": "2"}))
    )
    recorded = http.get("/v1/trials/ward/decisions").json()["items"][::-1]
    assert [r["state"] for r in recorded] == ["complete", "partial"]
    assert recorded[0]["outcome"] == {
        "cure": 1.0, "pain": 0.0, "visits": 2.0, "weight": 70.0, "nitrate below": 0.5, "seeds": 0.35, "seeds of": 20.0
    }  # fmt: skip
    assert "cure yes, pain 0, visits 2, weight 70 kg, nitrate <0.5, seeds 7 of 20" in readable(
        visitor.look("/trials/ward/decisions/1")
    )
    sheet = visitor.http.get("/trials/ward/given.csv?decisions=1-2").content.decode("utf-8-sig").splitlines()
    assert sheet[1].endswith("yes,0.0,2.0,70.0,<0.5,7 of 20,".replace("0.0,2.0,70.0", "0,2,70.0"))
    back = visitor.send("/trials/ward/tell", {"how": "sheet", "text": "\n".join(sheet)})
    assert "had been recorded before" in readable(visitor.done(back))
