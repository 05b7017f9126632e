"""A trial's overview page: its findings, with a choice of what to see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from drimed.findings import page
from drimed.findings.analysis import Analysis
from drimed.findings.effects import EVERYBODY, groups
from drimed.findings.page import GROUPED, PageView
from drimed.records import Status
from drimed.service.analyses import Analyses, Worked
from drimed.service.pages.route import Pages, Visit, whole
from drimed.service.tokens import ASK_TELL, READ
from drimed.trial.model_free import REWARD

USERS = 20  # on one page of a table
MOST_NAMES = 300  # that a list to choose from holds
KEPT = ("who", "on", "by", "users")  # what a reader has chosen

routes = Pages()


@dataclass(frozen=True)
class Choice:
    """Whose effects on what are shown, and what else there is."""

    who: str
    on: str
    groups: list[str]
    users: list[str]  # empty: too many to list
    measures: list[str]


@routes.page("/trials/{trial}", READ)
async def trial(visit: Visit) -> Response:
    """The whole of it on one page."""
    status = await visit.service.read(visit.trial, lambda t: t.status())
    analyses = Analyses.of(visit.request)
    worked = await analyses.get(visit.trial, status.hash)
    found = worked.analysis if worked is not None else None
    more = {"a": None} if found is None else await visit.service.run(lambda: _findings(visit, found))
    kept = {name: value for name, value in visit.request.query_params.items() if name in KEPT}

    def here(**changed: object) -> str:
        """This page with something chosen differently, and all else as it is."""
        return f"/trials/{visit.trial}?{urlencode(kept | changed)}"

    return visit.page(
        "overview.html", s=status, tab="overview", live=True, worked=worked, behind=_behind(status, worked), kept=kept,
        wait=-int(-analyses.budget.wait() // 1), here=here, **more,
    )  # fmt: skip


def _findings(visit: Visit, a: Analysis) -> dict[str, Any]:
    users = list(a.data.state.users)
    pages = max(1, -(-len(users) // USERS))
    at = min(whole(visit.query("users"), 6) or 0, pages - 1)
    choice = _choice(visit, a)
    view = PageView(choice.who, [choice.on], users[at * USERS : (at + 1) * USERS], visit.query("by") == "user")
    paging = {"users_page": at, "users_pages": pages, "users_total": len(users)}
    foreseen = visit.may(ASK_TELL, visit.trial)  # what the next decisions will be like is for those who may ask
    return {"choice": choice, **paging, **page.page_context(a, view), "foreseen": foreseen}


def _choice(visit: Visit, a: Analysis) -> Choice:
    state = a.data.state
    users, named = list(state.users), [g for g in groups(state) if g != EVERYBODY]
    who = visit.query("who") or EVERYBODY
    if who not in (EVERYBODY, GROUPED, *named) and who not in state.users:
        who = EVERYBODY
    measures = [REWARD, *(m for m in state.problem.metrics if m != REWARD)]
    on = visit.query("on") or REWARD
    if on not in measures or (who in state.users and who not in named):
        on = REWARD  # single users are estimated on the reward only
    return Choice(who, on, named, users if len(users) <= MOST_NAMES else [], measures)


def _behind(status: Status, worked: Worked | None) -> int:
    """Events that the analysis does not know yet."""
    return 0 if worked is None or worked.hash == status.hash else max(1, status.events - worked.events)
