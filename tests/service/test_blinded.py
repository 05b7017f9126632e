"""Somebody who is blinded learns no arm: in trials that differ in their arms, every address gives the same bytes.

The addresses are those of the application itself: one that is added is compared too, with questions and forms that
suit any.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route

from drimed.client import Client
from drimed.service import auth
from drimed.service.app import create_app
from drimed.service.auth import COOKIE
from drimed.service.pages.base import static_files
from drimed.service.settings import Settings
from drimed.trial import tables
from drimed.trial.changes import CHANGES
from drimed.trial.trial import Trial
from tests.service.pages.visiting import Visitor, readable
from tests.service.serving import Running, modules_as_before, served
from tests.trial.forging import Clock

NAME = "trial"
T = f"/v1/trials/{NAME}"
SPEC: dict[str, Any] = {
    "name": NAME,
    "metrics": {"yield": {"range": [0.0, 10.0]}, "cost": {}},
    "preference": {"yield": 1.0, "cost": -1.0},
    "users": {
        f"site {i}": {"group": "sand" if i % 2 else "loam", "attributes": {"ph": 6.0 + i / 10}} for i in range(6)
    },
    "context": {"rain": {"typical": 400.0, "spread": 100.0}},
    "tolerance": {"relative": 0.3, "absolute": 2.0},
    "policy": {"name": "uniform"},
}
# Trials that differ in what must not be seen: the draws; or the names, the number and the codes of the arms as well.
ONE: dict[str, Any] = {"seed": 1, "arms": {"zqold": {}, "zqnew": {}}, "control": "zqold"}
OTHERS: dict[str, dict[str, Any]] = {
    "other draws": ONE | {"seed": 2},
    "other arms": {
        "seed": 3,
        "arms": {"zqpractice as it is": {}, "zqsplit": {}, "zqreduced": {}},
        "control": "zqpractice as it is",
        "blinding": {"codes": {"zqpractice as it is": "QQ1", "zqsplit": "QQ2", "zqreduced": "QQ3"}},
    },
}
# What somebody who is blinded may use; everything else is refused.
ALLOWED = {
    ("GET", "/v1/trials"),
    ("GET", "/v1/trials/{trial}"),
    ("GET", "/v1/trials/{trial}/users"),
    ("GET", "/v1/trials/{trial}/decisions"),
    ("GET", "/v1/trials/{trial}/decisions/{decision}"),
    ("POST", "/v1/trials/{trial}/tell"),
    ("POST", "/v1/trials/{trial}/decisions/{decision}/outcome"),
    ("POST", "/v1/trials/{trial}/decisions/{decision}/amend"),
    ("POST", "/v1/trials/{trial}/decisions/{decision}/missing"),
    ("GET", "/"),
    ("GET", "/trials/{trial}/tell"),
    ("POST", "/trials/{trial}/tell"),
    ("GET", "/trials/{trial}/pending.csv"),
    ("GET", "/trials/{trial}/pending.xlsx"),
    ("GET", "/trials/{trial}/decisions/{decision}"),
    ("POST", "/trials/{trial}/decisions/{decision}/outcome"),
    ("POST", "/trials/{trial}/decisions/{decision}/amend"),
    ("POST", "/trials/{trial}/decisions/{decision}/missing"),
    ("POST", "/trials/{trial}/decisions/{decision}/given"),
    *(("GET", f"/trials/{{trial}}/{name}") for name in ("given", "given.csv", "given.xlsx", "users.csv", "users.xlsx")),
}
# The same, where somebody asks who sees no arms.
ASKING = {
    ("POST", "/v1/trials/{trial}/episodes"),
    ("POST", "/v1/trials/{trial}/ask"),
    ("GET", "/trials/{trial}/ask"),
    ("POST", "/trials/{trial}/ask"),
    ("POST", "/trials/{trial}/episodes"),
}
MAY = {"blinded": ALLOWED, "ask-blinded": ALLOWED | ASKING}
PUBLIC = {
    ("GET", "/sign-in"), ("POST", "/sign-in"), ("POST", "/sign-out"), ("GET", "/static/{name}"), ("GET", "/healthz"),
    ("GET", "/readyz"), ("GET", "/v1/openapi.json"), ("GET", "/http"),
}  # fmt: skip
ARMS = ("zqold", "zqsplit", "nothing")  # as an address or a form may name them
FILLED: dict[str, list[str]] = {
    "trial": [NAME, "another"],
    "decision": ["3", "8", "99", "x"],
    "change": [*(change.path for change in CHANGES.values()), "nothing"],
}
QUERIES = [
    *(f"arm={arm}" for arm in ARMS), "user=site+1", "state=complete", "state=amended", "limit=2", "before=5", "plot=1",
    "format=csv", "format=xlsx", "order=newest", "kind=decision", "kind=revealed", "cursor=3", "after=site+1",
    "decision=3", "decisions=1-12", "show=changes", "who=site+1&by=user", "on=yield", "expect=" + "0" * 64,
    "users=1", "page=1", "done=reveal", "recorded=1&again=0&waits=0", "example=1", "next=/", "dry_run=true",
]  # fmt: skip
OUTCOME = {"yield": 5.25, "cost": 1.5}
RAIN = {f"site {i}": {"rain": 400.0 + i} for i in range(6)}
SHEET = "user,rain\n" + "".join(f"site {i},{400 + i}\n" for i in range(6))
BODIES: list[dict[str, Any]] = [
    {},
    {"reason": "r"},
    {"reports": [{"decision": 7, "outcome": {"yield": 5.0}}]},
    {"reports": [{"decision": 7, "outcome": {"yield": 5.0}}, {"decision": 99, "outcome": {"yield": 5.0}}]},
    {"reports": [{"decision": 8, "outcome": {"yield": 50.0}}]},
    {"reports": [{"decision": 8, "outcome": {"yield": 5.0}}], "dry_run": True},
    {"reports": [{"decision": 9, "outcome": {"zqold": 5.0}}]},
    {"outcome": OUTCOME},
    {"outcome": {"yield": 5.0, "zqsplit": 1.0}},
    {"outcome": OUTCOME, "reason": "misread", "saw": {"yield": 1.0}},
    {"outcome": {"yield": 5.5}, "reason": "misread"},
    *({"arm": arm, "reason": "r"} for arm in ARMS),
    *({"users": ["site 1"], "unavailable": [arm], "dry_run": True} for arm in ARMS),
    {"decision": 1, "reason": "r"},
    {"name": "zqold", "reason": "r"},
    {"users": ["site 1", "site 2"], "contexts": RAIN, "episode": 3, "dry_run": True},
    {"users": ["site 1", "site 2"], "contexts": RAIN, "episode": 3},
    {"contexts": RAIN},
    {"users": ["new"], "enrol": {"new": {"control": "zqold"}}},
    {"users": ["new"], "enrol": {"new": {"arms": ["zqsplit"]}}},
    {"contexts": RAIN, "unavailable": {"site 1": ["zqold"]}},
    {"given": "other", "reason": "it was refused"},
    {"outcome": OUTCOME, "given": "zqold", "reason": "r"},
    {"given": "QQ1", "reason": "r"},
    {"reports": [{"decision": 9, "outcome": OUTCOME, "given": "zqnew", "reason": "r"}]},
    {"user": "site 1", "control": "zqold", "reason": "r"},
]
FORMS: list[dict[str, str]] = [
    {},
    {"reason": "r"},
    {"how": "hand", "y:10:yield": "5", "y:10:cost": "1"},
    {"how": "hand", "y:11:yield": "50"},
    {"how": "hand", "y:11:zqold": "5"},
    {"how": "sheet", "text": "decision,yield\n11,5.5\n"},
    {"how": "sheet", "text": "decision,user,yield\n12,site 0,5.5\n"},
    {"how": "sheet", "text": "decision,zqold\n12,5.5\n"},
    *({"how": "sheet", "text": f"decision,arm,yield\n12,{arm},5.5\n"} for arm in ARMS),
    *({"how": "sheet", "text": f"decision,code,yield\n12,{code},\n"} for code in ("QQ1", "QQ2")),
    {"y:3:yield": "5.5", "reason": "misread", "saw": '{"outcome": {"yield": 1.0}, "control": null}'},
    {"y:3:yield": "5.5", "reason": "misread"},
    {"decision": "1", "reason": "r", "sure": "yes"},
    {"given": "other", "reason": "it was refused"},
    {"given": "zqold", "reason": "r"},
    {"how": "hand", "user": "1:site 0", "c:1:rain": "400", "episode": "4"},
    {"how": "sheet", "episode": "4", "text": SHEET},
    {"how": "sheet", "text": SHEET},
    {"how": "sheet", "text": SHEET.replace("\n", ",zqold\n").replace("rain,zqold", "rain,arm")},
    {"episode": "5", "season": "autumn"},
]
FEW = 2  # questions to an address that is refused, after the first
_RANDOM = re.compile(r'(name="(?:form_key|once)" value=)"[^"]+"')
_OWN = ("date", "x-request-id", "set-cookie")  # headers that differ from answer to answer


@dataclass
class World:
    """A service with one trial, and somebody who is blinded."""

    running: Running
    headers: dict[str, str]
    token: str
    arms: list[str]  # that were given
    browser: httpx.Client | None = None
    hidden: dict[str, str] = field(default_factory=dict)  # what forms bring along
    sent: int = 0  # forms

    def ask(self, method: str, address: str, **more: Any) -> tuple[int, dict[str, str], str]:
        """An answer to a program."""
        answer = self.running.http.request(method, address, headers=self.headers | more.pop("headers", {}), **more)
        return _plain(answer)

    def send(self, address: str, form: dict[str, str]) -> tuple[int, dict[str, str], str]:
        """An answer to somebody who fills in a form."""
        if self.browser is None:
            self.browser = httpx.Client(base_url=self.running.address, cookies={COOKIE: self.token})
            self.hidden = Visitor(self.browser).hidden("/")
        self.sent += 1
        own = {"once": f"{self.hidden['once'][:12]}-{self.sent}"}
        return _plain(self.browser.post(address, data=self.hidden | own | form))

    @property
    def secrets(self) -> set[str]:
        """What no answer may hold: arms, their codes, and the hashes of events."""
        trial = Trial.open(NAME, self.running.service.store)
        state = trial.state()
        return {*state.spec.arms, *state.codes.values(), *(event.hash[:10] for event in trial.log())}


def _plain(answer: httpx.Response) -> tuple[int, dict[str, str], str]:
    headers = {name: value for name, value in answer.headers.items() if name not in _OWN}
    if tables.is_workbook(answer.content):  # it has the time at which it was made
        del headers["content-length"]
        return answer.status_code, headers, tables.table_text(tables.read(answer.content, "sheet.xlsx"))
    return answer.status_code, headers, _RANDOM.sub(r'\1"-"', answer.text)


def played(running: Running, spec: dict[str, Any], *, more: bool) -> list[str]:
    """Two seasons, with the same outcomes whatever the arms; `more` is what only those who see arms may notice."""
    store, clock = running.service.store, Clock()
    trial = Trial.create(SPEC | spec, store, actor="ann", clock=clock)
    opened = {NAME: trial}  # with its own clock
    running.service.trials.open = lambda name: opened.get(name) or Trial(name, store)  # type: ignore[assignment]
    arms = []
    for season in (1, 2):
        contexts = {user: {"rain": 300.0 + 10 * season + i} for i, user in enumerate(SPEC["users"])}
        away = {"site 2": [list(spec["arms"])[-1]]} if more else {}
        clock.seconds = 100 * season
        trial.open_episode(contexts, unavailable=away)
        arms += [d.arm for d in trial.ask_many()]
        for number in range(6 * season - 5, 6 * season - 1) if season == 1 else ():
            trial.tell(number, {"yield": 4.0 + number / 10, "cost": 1.0}, actor="bob")
        if season == 1:
            reason = f"it was {arms[1]}" if more else "hail"
            trial.amend(2, {"yield": 4.5}, reason=reason, actor="bob")
            trial.mark_missing(5, reason=reason, actor="bob")
        if more:
            trial.reveal(1, reason="an emergency")
            trial.add_arm(f"zqlate {season}")
            trial.retire_arm(f"zqlate {season}", reason="too late")
    clock.seconds = 300
    return arms


def world(app: FastAPI, spec: dict[str, Any], *, more: bool, role: str = "blinded") -> Iterator[World]:
    with served(app) as running:
        arms = played(running, spec, more=more)
        _, text = auth.create_token(running.service.store, label="dora", role=role)
        auth.create_token(running.service.store, label="admin", role="manage")
        made = World(running, {"Authorization": f"Bearer {text}"}, text, arms)
        yield made
        if made.browser is not None:
            made.browser.close()


@pytest.fixture(params=MAY)
def worlds(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, World]]:
    """The one that the others are compared with comes first."""
    with modules_as_before(), ExitStack() as stack:
        made = {}
        for name, spec in ({"one": ONE} | OTHERS).items():
            app = create_app(Settings(store=str(tmp_path / f"{name}.db"), rate=0))
            opened = world(app, spec, more=name != "one", role=request.param)
            made[name] = next(opened)
            stack.callback(next, opened, None)
        yield made


def every_route(among: Iterable[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str, str | None]]:
    """The method, the address and the role of each; newer versions of FastAPI keep included routers as they are."""
    for route in among:
        if hasattr(route, "original_router"):
            inner = prefix + route.include_context.prefix  # type: ignore[attr-defined]
            yield from every_route(route.original_router.routes, inner)
            continue
        assert isinstance(route, Route | APIRoute), route
        role = (getattr(route, "openapi_extra", None) or {}).get("x-role")
        yield from ((method, prefix + route.path, role) for method in route.methods or () if method != "HEAD")


with modules_as_before():
    ROUTES = sorted(every_route(create_app(Settings(store="unused.db")).routes), key=str)


def addresses(path: str) -> Iterator[str]:
    """An address with each of the values that may stand in it, one after the other."""
    names = re.findall(r"{(\w+)}", path)
    values = {n: FILLED[n] if n in FILLED else [*list(static_files())[:2], "nothing"] for n in names}
    first = {n: values[n][0] for n in names}
    for filled in [first, *(first | {n: value} for n in names for value in values[n][1:])]:
        yield path.format(**{n: quote(value) for n, value in filled.items()})


def test_every_address_answers_the_same_bytes_whatever_arms_were_given(worlds: dict[str, World]) -> None:
    one = worlds["one"]
    assert all(worlds[name].arms != one.arms for name in OTHERS)
    heard: dict[str, list[tuple[str, str]]] = {name: [] for name in worlds}
    for method, path, _ in ROUTES:
        for address in addresses(path):
            for what, answers in _asked(method, path, address, worlds):
                for name in OTHERS:
                    assert answers["one"] == answers[name], (name, method, address, what)
                assert answers["one"][0] < 500, (method, address, what)
                for name, (_, headers, text) in answers.items():
                    heard[name].append((f"{method} {address} {what}", f"{headers} {text}"))
    assert len(heard["one"]) > 500
    for name, own in worlds.items():
        secret = re.compile("|".join(map(re.escape, sorted(own.secrets))))
        for what, text in heard[name]:
            told = set(secret.findall(text)) - set(secret.findall(what))  # what came with a form is shown again
            assert not told, (name, what)
        assert Trial.open(NAME, own.running.service.store).status().complete > 5  # the forms and bodies did something


def _asked(
    method: str, path: str, address: str, worlds: dict[str, World]
) -> Iterator[tuple[object, dict[str, tuple[int, dict[str, str], str]]]]:
    """Each question or form with all answers; where the first is refused for its role, few more."""
    if method == "GET":
        tries: list[Any] = ["", *QUERIES]
    else:
        tries = BODIES if path.startswith("/v1/") else FORMS
    for i, what in enumerate(tries):
        for _ in range(2 if tries is BODIES else 1):  # the second time the first answer comes again
            if method == "GET":
                answers = {name: w.ask("GET", address + (f"?{what}" if what else "")) for name, w in worlds.items()}
            elif tries is BODIES:
                key = {"Idempotency-Key": f"{address} {i}"}
                answers = {name: w.ask(method, address, json=what, headers=key) for name, w in worlds.items()}
            else:
                answers = {name: w.send(address, what) for name, w in worlds.items()}
            yield what, answers
        if i == FEW and {answer[0] for answer in answers.values()} == {403}:
            return


def test_what_is_open_to_the_blinded_is_this_and_no_more(
    worlds: dict[str, World], request: pytest.FixtureRequest
) -> None:
    one, allowed = worlds["one"], MAY[request.node.callspec.params["worlds"]]
    for method, path, _ in ROUTES:
        if (method, path) in PUBLIC:
            continue
        address = re.sub(r"{(\w+)}", lambda m: {"trial": NAME, "change": "pause"}.get(m[1], "3"), path)
        answer = one.ask(method, address, json={}) if method == "POST" and path.startswith("/v1") else None
        answer = answer or (one.ask("GET", address) if method == "GET" else one.send(address, {}))
        assert (answer[0] != 403) == ((method, path) in allowed), (method, path, answer)


@pytest.mark.parametrize(("method", "path", "role"), ROUTES)
def test_every_route_says_whom_it_is_for(method: str, path: str, role: str | None) -> None:
    assert (role in (None, "public")) == ((method, path) in {*PUBLIC, ("GET", "/metrics")})
    assert (role in ("any", "tell", "ask")) == ((method, path) in MAY["ask-blinded"])
    assert (role == "ask") == ((method, path) in ASKING)


@pytest.fixture
def coded(tmp_path: Path) -> Iterator[World]:
    with modules_as_before():
        app = create_app(Settings(store=str(tmp_path / "coded.db"), rate=0))
    yield from world(app, OTHERS["other arms"] | {"blinding": {"show_codes": True}}, more=False)


def test_codes_are_shown_to_the_blinded_where_the_file_says_so_and_nothing_else(coded: World) -> None:
    trial = Trial.open(NAME, coded.running.service.store)
    codes = trial.state().codes
    found = coded.running.http.get(f"{T}/decisions", headers=coded.headers).json()["items"]
    assert [d["code"] for d in reversed(found)] == [codes[arm] for arm in coded.arms]
    assert {d["arm"] for d in found} == {""}
    sheet = coded.ask("GET", f"/trials/{NAME}/pending.csv")[2]
    assert sheet.splitlines()[0].endswith("decision,episode,user,rain,code,yield,cost,notes")
    assert codes[coded.arms[-1]] in sheet
    assert coded.send(f"/trials/{NAME}/tell", {"how": "sheet", "text": sheet.replace(",,", ",5.0,1.0", 1)})[0] == 303
    for page in (f"/trials/{NAME}/tell", f"/trials/{NAME}/decisions/12"):
        text = readable(coded.ask("GET", page)[2])
        assert codes[coded.arms[11]] in text
        assert not any(arm in text for arm in codes)


def test_codes_of_decisions_and_all_else_that_a_blinded_asker_gets_tell_nothing_of_the_arm(tmp_path: Path) -> None:
    """Two trials with one seed whose arms have changed their names: each decision has the other arm."""
    heard: list[list[Any]] = []
    for names in (("zqold", "zqnew"), ("zqnew", "zqold")):
        spec = {"seed": 1, "arms": {name: {} for name in names}, "control": names[0], "blinding": {"codes": "decision"}}
        with modules_as_before():
            app = create_app(Settings(store=str(tmp_path / f"{names[0]}.db"), rate=0))
        for own in world(app, spec, more=False, role="ask-blinded"):
            said = [
                own.ask("POST", f"{T}/ask", json={"contexts": RAIN, "episode": 3, "dry_run": dry}) for dry in (1, 0)
            ]
            said += [own.ask("POST", f"{T}/ask", json={"contexts": RAIN, "episode": 3})]
            assert own.send(f"/trials/{NAME}/ask", {"how": "sheet", "episode": "4", "text": SHEET})[0] == 303
            said += [own.ask("GET", f"/trials/{NAME}/given{form}?decisions=13-24") for form in ("", ".csv", ".xlsx")]
            trial = Trial.open(NAME, own.running.service.store)
            codes = [str(trial.decision(n).code) for n in range(13, 25)]
            assert all(code in said[-2][2] and code in readable(said[-3][2]) for code in codes)
            own.arms += [trial.decision(n).arm for n in range(13, 25)]
            said += [own.ask("POST", f"{T}/decisions/13/outcome", json={"given": codes[3], "reason": "r"})]
            said += [own.ask("GET", f"{T}/decisions/13"), own.ask("GET", f"/trials/{NAME}/decisions/13")]
            trial.pause(reason="zqnew is worse")
            said += [own.ask("POST", f"{T}/ask", json={"users": ["site 1"], "contexts": RAIN, "episode": 5})]
            text = str(said)
            assert not any(word in text for word in ("zqold", "zqnew"))
            heard.append([own.arms, *said])
    first, second = heard
    assert all(a != b for a, b in zip(first[0], second[0], strict=True))
    for one, other in zip(first[1:], second[1:], strict=True):
        assert _untimed(one) == _untimed(other)


def _untimed(answer: Any) -> Any:
    return re.sub(r"2026-[^\"<,]*", "TIME", str(answer))


def test_a_code_that_was_opened_for_one_decision_stays_closed_to_the_blinded(coded: World) -> None:
    service = coded.running
    _, text = auth.create_token(service.service.store, label="safety desk", role="manage")
    before = coded.ask("GET", f"{T}/decisions/3")
    with Client(service.address, token=text) as manager:
        opened = manager.reveal(NAME, 3, reason="an emergency")
        assert (opened.decision, opened.arm, opened.actor) == (3, coded.arms[2], "safety desk")
        assert coded.ask("GET", f"{T}/decisions/3") == before
        log = list(manager.log(NAME, kinds=["revealed"]))
        assert [(e.actor, e.body) for e in log] == [("safety desk", {"reason": "an emergency", "decision": 3})]
        manager.reveal(NAME, reason="all outcomes are in")
        with Client(service.address, token=coded.token) as blinded:
            shown = blinded.decision(NAME, 3)
            assert shown.arm == coded.arms[2]
            assert (shown.probabilities, shown.effects, shown.propensity, shown.reason) == ({}, None, None, "")
            assert {d.arm for d in blinded.decisions(NAME).items} == set(coded.arms)
        assert manager.verify(NAME).ok


def test_a_reader_does_not_see_what_the_next_decisions_will_be_like(coded: World) -> None:
    titles = {}
    for role in ("read", "ask-tell"):
        _, text = auth.create_token(coded.running.service.store, label=role, role=role)
        with httpx.Client(base_url=coded.running.address, cookies={COOKIE: text}, timeout=120) as http:
            titles[role] = "What would be decided next" in Visitor(http).look(f"/trials/{NAME}/results/next")
    assert titles == {"read": False, "ask-tell": True}


def test_somebody_blinded_who_opens_a_trial_is_led_to_where_outcomes_are_told(coded: World) -> None:
    http = coded.running.http
    for page in ("", "/plan", "/log"):
        refused = http.get(f"/trials/{NAME}{page}", headers=coded.headers)
        assert refused.status_code == httpx.codes.FORBIDDEN
        assert f'href="/trials/{NAME}/tell"' in refused.text
        assert "You are blinded" in readable(refused.text)
    assert http.get(f"/trials/{NAME}/tell", headers=coded.headers).status_code == httpx.codes.OK
    _, elsewhere = auth.create_token(coded.running.service.store, label="emil", role="blinded", trial="another")
    other = http.get(f"/trials/{NAME}", headers={"Authorization": f"Bearer {elsewhere}"})
    assert "/tell" not in other.text, "who may tell nothing there is not sent there"
