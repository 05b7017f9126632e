"""Forms: what they do, once, and what is wrong shown where it is."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from drimed.trial.template import TEMPLATE
from tests.service.pages.visiting import Visitor, readable
from tests.trial.trials import SMALL

MAIZE = "/trials/maize-nitrogen"


@pytest.fixture
def maize(visitor: Visitor) -> str:
    """A trial with contexts, made from the example file."""
    visitor.done(visitor.send("/new", {}, file=("maize.toml", TEMPLATE.encode())))
    return MAIZE


def test_a_trial_is_made_from_a_file(visitor: Visitor) -> None:
    answer = visitor.send("/new", {}, file=("maize.toml", TEMPLATE.encode()))
    assert answer.headers["location"] == f"{MAIZE}?done=created"
    assert "The trial was created." in readable(visitor.done(answer))


def test_faults_of_a_file_are_shown_at_their_lines(visitor: Visitor) -> None:
    wrong = TEMPLATE.replace("leaching = -1 }", "leeching = -1 }").replace('metric = "yield"', 'metric = "yeild"')
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
        (("a.toml", b"\xff\xfe\x00"), "not UTF-8"),
        (("a.xlsx", b"PK\x03\x04rest"), "save it as"),
        (None, "choose a trial file or paste"),
    ],
)
def test_files_of_other_kinds_are_refused_in_words(visitor: Visitor, file: Any, said: str) -> None:
    answer = visitor.send("/new", {}, file=file)
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert said in readable(answer.text)


def test_a_name_that_is_taken_is_shown_at_its_line(visitor: Visitor, maize: str) -> None:
    answer = visitor.send("/new", {"text": TEMPLATE})
    assert answer.status_code == httpx.codes.CONFLICT
    assert 'class="line wrong" id="line-3"' in answer.text
    assert maize


def test_asking_by_hand_opens_the_episode_and_gives_a_table_and_a_sheet(visitor: Visitor, maize: str) -> None:
    data = {"how": "hand", "episode": "next", "user": ["0:north", "2:river"], "c:0:rain": "400", "c:2:rain": "380.5"}
    page = visitor.done(visitor.send(f"{maize}/ask", data))
    assert "2 decisions in episode 1" in readable(page)
    sheet = visitor.http.get(f"{maize}/given.csv?decisions=1-2").content.decode("utf-8-sig").splitlines()
    assert sheet[0] == "decision,episode,user,rain,arm,propensity,reason"
    assert sheet[1].startswith("1,1,north,400.0,")
    assert sheet[2].startswith("2,1,river,380.5,")


def test_a_context_that_is_missing_or_no_number_is_said(visitor: Visitor, maize: str) -> None:
    for value, said in (("", "'north' needs a value for rain"), ("4,5", "write decimals with a point")):
        answer = visitor.send(f"{maize}/ask", {"how": "hand", "episode": "next", "user": "0:north", "c:0:rain": value})
        assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
        assert said in readable(answer.text)
    assert "episode 0" in readable(visitor.look(maize)), "nothing was written"


def test_asking_with_a_sheet_shows_errors_at_their_rows(visitor: Visitor, maize: str) -> None:
    data = {"how": "sheet", "episode": "next"}
    wrong = visitor.send(f"{maize}/ask", data, file=("s.csv", b"user;rain\nnorth;400\nhil;520\nriver;\n"))
    assert wrong.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert re.search(r'<tr id="row-3" class="wrong">', wrong.text)
    assert re.search(r'<tr id="row-4" class="wrong">', wrong.text)
    assert "Row 3 : unknown user 'hil'; did you mean 'hill'?" in readable(wrong.text)
    page = visitor.done(visitor.send(f"{maize}/ask", data, file=("s.csv", b"user;rain\nnorth;400\nhill;520\n")))
    assert "2 decisions in episode 1" in readable(page)


@pytest.mark.usefixtures("season")
def test_telling_by_hand_marks_the_row_that_is_wrong(visitor: Visitor) -> None:
    page = "/trials/busy/tell"
    answer = visitor.send(page, {"how": "hand", "y:21:yield": "5", "y:22:yield": "five"})
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert re.search(r'id="why-22">↑ yield must be a number, got &#39;five&#39;', answer.text)
    assert (
        'name="y:21:yield" inputmode="decimal" autocomplete="off" aria-label="yield of decision 21" value="5"'
        in answer.text
    )
    said = readable(
        visitor.done(visitor.send(page, {"how": "hand", "y:21:yield": "5", "y:21:cost": "1", "y:22:yield": "4"}))
    )
    assert "2 outcomes recorded. 1 will be learned from when the rest of their values has come." in said


@pytest.mark.usefixtures("season")
def test_telling_with_a_wrong_sheet_shows_its_rows_and_writes_nothing(visitor: Visitor, http: httpx.Client) -> None:
    before = http.get("/v1/trials/busy").json()["events"]
    sheet = b"decision,user,yield,cost\n21,site 0,5.1,1\n22,site 3,5.2,1\n23,site 2,,\n99,,5,1\n"
    wrong = visitor.send("/trials/busy/tell", {"how": "sheet"}, file=("h.csv", sheet))
    assert wrong.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert re.search(r'<tr id="row-3" class="wrong">', wrong.text)
    assert "decision 22 is for user 'site 1', the sheet says 'site 3'" in readable(wrong.text)
    assert "23,site 2" in wrong.text.partition("<textarea")[2], "to be mended in place"
    assert http.get("/v1/trials/busy").json()["events"] == before
    right = visitor.send(
        "/trials/busy/tell", {"how": "sheet"}, file=("h.csv", b"decision,yield,cost\n21,5.1,1\n22,5.2,\n")
    )
    assert "2 outcomes recorded" in readable(visitor.done(right))


@pytest.mark.usefixtures("season")
def test_a_form_that_is_sent_twice_is_done_once(visitor: Visitor, http: httpx.Client) -> None:
    form = visitor.hidden("/trials/busy/ask") | {"how": "hand", "episode": "now", "user": ["0:site 0"]}
    first, second = (http.post("/trials/busy/ask", data=form) for _ in range(2))
    assert first.headers["location"] == second.headers["location"] == "/trials/busy/given?decisions=25"
    other = http.post("/trials/busy/ask", data=form | {"user": ["1:site 1"]})
    assert other.headers["location"] == "/trials/busy/given?decisions=26", "another content is another request"


@pytest.mark.usefixtures("season")
def test_a_decision_is_told_amended_and_given_up_on_its_page(visitor: Visitor) -> None:
    page = "/trials/busy/decisions/24"
    assert "fill in at least one value" in readable(visitor.send(page, {}, to=f"{page}/outcome").text)
    told = visitor.send(page, {"y:24:yield": "4.5", "y:24:cost": "1.5"}, to=f"{page}/outcome")
    assert "The outcome was recorded." in readable(visitor.done(told))
    unsaid = visitor.send(page, {"y:24:yield": "5.5", "y:24:cost": "", "reason": " "}, to=f"{page}/amend")
    assert "a reason is needed" in readable(unsaid.text)
    amended = visitor.send(page, {"y:24:yield": "5.5", "y:24:cost": "", "reason": "typed wrong"}, to=f"{page}/amend")
    assert "corrected: yield 4.5 → 5.5, cost 1.5 taken back typed wrong" in readable(visitor.done(amended))
    refused = visitor.send(page, {"reason": "hail"}, to=f"{page}/missing")
    assert "has an outcome; it is not missing" in readable(refused.text)
    page = "/trials/busy/decisions/23"
    given_up = visitor.send(page, {"reason": "hail"}, to=f"{page}/missing")
    assert "the outcome will not come hail local" in readable(visitor.done(given_up))


def test_a_trial_is_paused_resumed_and_stopped(visitor: Visitor) -> None:
    page = "/trials/small/manage"
    assert "a reason is needed" in readable(visitor.send(page, {"reason": ""}, to=f"{page}/pause").text)
    assert "The trial is paused" in visitor.done(visitor.send(page, {"reason": "board"}, to=f"{page}/pause"))
    assert "decides nothing until it is resumed" in readable(visitor.look("/trials/small/ask"))
    assert "The trial runs again" in visitor.done(visitor.send(page, {}, to=f"{page}/resume"))
    unsure = visitor.send(page, {"reason": "done"}, to=f"{page}/stop")
    assert "tick the box" in readable(unsure.text)
    assert "stopped for good" in visitor.done(visitor.send(page, {"reason": "done", "sure": "yes"}, to=f"{page}/stop"))
    assert "it cannot be paused" in readable(visitor.send(page, {"reason": "x"}, to=f"{page}/pause").text)


def test_users_and_arms_join_and_leave(visitor: Visitor, http: httpx.Client) -> None:
    page = "/trials/small/manage"
    user = {"name": "lake", "group": "wet", "w:yield": "2", "control": "old", "arms": ["old", "new"]}
    assert "The user was added" in visitor.done(visitor.send(page, user, to=f"{page}/user"))
    assert "there is a user 'lake' already" in readable(visitor.send(page, user, to=f"{page}/user").text)
    assert "The arm was added" in visitor.done(visitor.send(page, {"name": "newest"}, to=f"{page}/arm"))
    changed = visitor.send(page, {"user": "lake", "w:yield": "3", "reason": "levy"}, to=f"{page}/preference")
    assert "The preference was changed" in visitor.done(changed)
    control = {"user": "lake", "control": "new", "reason": "another practice"}
    assert "The control was changed" in visitor.done(visitor.send(page, control, to=f"{page}/control"))
    unknown = visitor.send(page, control | {"user": "sea"}, to=f"{page}/control")
    assert "unknown user 'sea'" in readable(unknown.text)
    retired = visitor.send(page, {"arm": "newest", "reason": "no more"}, to=f"{page}/retire")
    assert "The arm is retired" in visitor.done(retired)
    lake = next(u for u in http.get("/v1/trials/small/users").json()["items"] if u["name"] == "lake")
    assert (lake["preference"], lake["control"], lake["arms"], lake["group"]) == ({"yield": 3.0}, "new", None, "wet")
    assert http.get("/v1/trials/small").json()["retired"] == ["newest"]


def test_where_noise_is_known_a_new_arm_may_have_its_own(visitor: Visitor, http: httpx.Client) -> None:
    spec = SMALL | {"name": "known", "noise": {"kind": "known", "sd": {"yield": 0.5}}}
    http.post("/v1/trials", json=spec).raise_for_status()
    page = "/trials/known/manage"
    assert "standard deviation of yield" in readable(visitor.look(page))
    wrong = visitor.send(page, {"name": "late", "sd:yield": "-1"}, to=f"{page}/arm")
    assert "must be above 0" in readable(wrong.text)
    visitor.done(visitor.send(page, {"name": "late", "sd:yield": "0.8"}, to=f"{page}/arm"))
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
    http.post("/v1/trials/evil/ask", json={"user": evil, "context": {"<u>c": 1.0}}).raise_for_status()
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
