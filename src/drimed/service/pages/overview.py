"""A trial: what it taught, what was given, whether anybody is worse off, whether its assumptions hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from drimed.formatting import short
from drimed.service.pages import plan
from drimed.service.pages.analyses import Analyses, Worked
from drimed.service.pages.charts import allocation, course, forest
from drimed.service.pages.charts.svg import Chart
from drimed.service.pages.route import Pages, Visit, whole
from drimed.service.tokens import READ
from drimed.trial.analysis.analyse import Analysis
from drimed.trial.analysis.checks import ALPHA
from drimed.trial.analysis.effects import EVERYBODY, Line
from drimed.trial.analysis.sentences import sentences
from drimed.trial.memory import Memory
from drimed.trial.records import Status

USERS = 20  # on one page of a table
MOST_NAMES = 300  # that a list to choose from holds
GROUPED = "all users and groups"
KEPT = ("who", "on", "by", "users")  # what a reader has chosen

routes = Pages()


@dataclass(frozen=True)
class Choice:
    """Whose effects on what are shown."""

    who: str
    on: str
    groups: list[str]
    users: list[str]  # empty: too many to list
    measures: list[str]


@routes.page("/trials/{trial}", READ)
async def trial(visit: Visit) -> Response:
    """The whole of it on one page."""
    status = await visit.service.read(visit.trial, lambda t: t.status())
    worked = await Analyses.of(visit.request).get(visit.trial, status.hash)
    found = worked.analysis if worked is not None else None
    more = await visit.service.run(lambda: _worked_out(visit, found)) if found is not None else {}
    kept = {name: value for name, value in visit.request.query_params.items() if name in KEPT}

    def here(**changed: object) -> str:
        """This page with something chosen differently, and all else as it is."""
        return f"/trials/{visit.trial}?{urlencode(kept | changed)}"

    return visit.page(
        "overview.html",
        s=status,
        tab="overview",
        worked=worked,
        a=found,
        behind=_behind(status, worked),
        kept=kept,
        here=here,
        **more,
    )


def _worked_out(visit: Visit, a: Analysis) -> dict[str, Any]:
    memory = a.seen.memory
    users = list(memory.users)
    pages = max(1, -(-len(users) // USERS))
    page = min(whole(visit.query("users"), 6) or 0, pages - 1)
    shown = users[page * USERS : (page + 1) * USERS]
    some = set(shown)
    by_user = visit.query("by") == "user"
    choice = _choice(visit, a)
    return {
        "summary": sentences(a),
        "level": f"{100 * (1 - memory.spec.delta):g} %",
        "alpha": ALPHA,
        "by_user": by_user,
        "allocation": allocation.by_user(a, shown) if by_user else allocation.by_arm(a),
        "choice": choice,
        "effects": _effects(a, choice),
        "reward": course.reward(a),
        "drift": [c for c in (course.contexts(a), course.evidence(a)) if c is not None],
        "advice": [x for x in a.advice if x.user in some],
        "upcoming": [g for g in a.next if g.user in some],
        "users_page": page,
        "users_pages": pages,
        "users_total": len(users),
        "arms": memory.problem.arms,
    }


def _choice(visit: Visit, a: Analysis) -> Choice:
    memory = a.seen.memory
    users = list(memory.users)
    groups = list(dict.fromkeys(g for u in users if (g := memory.profile(u).group) is not None))
    who = visit.query("who") or EVERYBODY
    if who not in (EVERYBODY, GROUPED, *groups) and who not in memory.users:
        who = EVERYBODY
    measures = ["reward", *memory.problem.metrics]
    on = visit.query("on") or "reward"
    if on not in measures or (who in memory.users and who not in groups):
        on = "reward"  # single users are estimated on the reward only
    return Choice(who, on, groups, users if len(users) <= MOST_NAMES else [], measures)


def _effects(a: Analysis, choice: Choice) -> Chart | None:
    several = choice.who == GROUPED
    wanted = {EVERYBODY, *choice.groups} if several else {choice.who}
    lines = [x for x in a.lines if x.who in wanted and x.on == choice.on and not (x.estimate == x.low == x.high == 0)]
    arms = a.seen.memory.problem.arms
    order = [EVERYBODY, *choice.groups, choice.who]
    lines.sort(key=lambda x: (order.index(x.who), arms.index(x.arm), x.kind != "regression"))
    metric = a.seen.memory.spec.metrics.get(choice.on)
    unit = choice.on + (f" ({metric.unit})" if metric is not None and metric.unit else "")
    title = f"Effects on {choice.on} against control: {choice.who}"
    return forest.forest("effects-chart", title, _rows(a.seen.memory, lines, several), unit=unit, caption=title)


def _rows(memory: Memory, lines: Sequence[Line], several: bool) -> list[forest.Row]:
    """Lines about one measure, as they are drawn."""
    better = {on: plan.better(memory, on) for on in {x.on for x in lines} if on in memory.spec.metrics}
    given = {who: _given(memory, who) for who in {x.who for x in lines}}
    return [
        forest.Row(
            (f"{x.who}: " if several else "") + x.arm,
            x.estimate,
            x.low,
            x.high,
            (x.likely_low, x.likely_high),
            model_free=x.kind != "regression",
            note=f" (95 %: {short(x.low)} to {short(x.high)}, without a model)" if x.kind != "regression" else "",
            better=better.get(x.on),
            given=given[x.who][memory.problem.arm(x.arm)],
        )
        for x in lines
    ]


def _given(memory: Memory, who: str) -> list[int]:
    """How often each arm was given to a user, to the members of a group, or to everybody."""
    members = [u for u in memory.users if who in (EVERYBODY, u, memory.profile(u).group)]
    pulls = [memory.pulls.get(u, []) for u in members]
    return [sum(p[k] for p in pulls if k < len(p)) for k in range(len(memory.problem.arms))]


def _behind(status: Status, worked: Worked | None) -> int:
    """Events that the analysis does not know yet."""
    return 0 if worked is None or worked.hash == status.hash else max(1, status.events - worked.events)
