"""Ask which arm users get: by hand, somebody new among them, or with a sheet; the answer as a table and as a sheet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from drimed.errors import DrimedError, InputError
from drimed.records import AskRequest, Decision, Status
from drimed.service.pages import asked, forms
from drimed.service.pages.forms import NO_ERRORS, FormErrors
from drimed.service.pages.route import Pages, Visit, whole
from drimed.service.tokens import ASK_TELL, READ
from drimed.trial import asking, plots, queries, roster, sheets
from drimed.trial.state import TrialState
from drimed.trial.tables.table import read
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

MOST_USERS = 60  # that the form lists; in a larger trial one is named, or a sheet is uploaded
MOST_GIVEN = 20_000  # decisions that one answer holds

routes = Pages()


@routes.page("/trials/{trial}/ask", ASK_TELL)
async def form(visit: Visit) -> Response:
    """Users and their contexts, to be filled in."""
    return await _form(visit)


@routes.page("/trials/{trial}/ask", ASK_TELL, method="POST")
async def ask(visit: Visit) -> Response:
    """Decide, and show the decisions."""
    return await (_by_sheet(visit) if visit.field("how") == "sheet" else _by_hand(visit))


async def _by_sheet(visit: Visit) -> Response:
    sent = forms.Sent("", "")
    try:
        sent = await forms.sent(visit, "a sheet")
        table = await visit.service.parse(lambda: read(sent.data, sent.name))
        if not table.rows:
            raise InputError("the sheet has no rows; it needs a column “user”, and one for each context field")

        def act(tx: Transaction) -> str:
            ask = lambda sure: roster.ask(tx, table, confirm=sure, **_in_episode(visit))  # noqa: E731
            return _given(visit, forms.confirmed(visit, ask))

        return await visit.act(act, decides=True)
    except DrimedError as error:
        return await _form(visit, forms.refused_sheet(sent, error))


async def _by_hand(visit: Visit) -> Response:
    def act(tx: Transaction) -> str:
        wanted = asked.typed(visit, tx.state)
        about: dict[str, Any] = {"contexts": wanted.contexts, "enrol": wanted.enrol, "plots": wanted.plots}
        ask = lambda sure: asking.ask(tx, AskRequest(users=wanted.users, confirm=sure, **about, **_in_episode(visit)))  # noqa: E731
        return _given(visit, forms.confirmed(visit, ask))

    try:
        return await visit.act(act, decides=True)
    except DrimedError as error:
        return await _form(visit, forms.refused("hand", error, lambda fault: asked.place(visit, fault)))


def _in_episode(visit: Visit) -> dict[str, Any]:
    """The episode that the form is about, and the key under which the log keeps the request."""
    retry = visit.retry()
    episode = {"episode": whole(visit.field("episode")), "key": None if retry is None else retry.name}
    return episode | {name: visit.field(name).strip() or None for name in ("season", "date")}


def _given(visit: Visit, decisions: Sequence[Decision]) -> str:
    """Where these decisions are shown."""
    again = [d.id for d in decisions if d.repeated]
    address = f"/trials/{visit.trial}/given?decisions={written([d.id for d in decisions])}"
    return address + (f"&again={written(again)}" if again else "")


@routes.page("/trials/{trial}/episodes", ASK_TELL, method="POST")
async def open_episode(visit: Visit) -> Response:
    """The next episode, without asking yet."""

    def act(tx: Transaction) -> str:
        name, date = (visit.field(part).strip() or None for part in ("season", "date"))
        asking.open_episode(tx, number=whole(visit.field("episode")), name=name, date=date)
        return f"/trials/{visit.trial}/ask?done=episode"

    try:
        return await visit.act(act)
    except DrimedError as error:
        return await _form(visit, forms.refused("open", error))


@routes.page("/trials/{trial}/given", READ)
async def given(visit: Visit) -> Response:
    """Decisions, as a table to hand out."""
    status, found = await _found(visit)
    again = visit.request.query_params.get("again", "")
    return visit.page(
        "given.html",
        s=status,
        tab="ask",
        given=found,
        earlier={d.id for d in found}.intersection(numbers(again) if again else ()),
        fields=list(found[0].context or {}) if found else [],
        places=sheets.places_of(found),
        numbers=written([d.id for d in found]),
    )


@routes.page("/trials/{trial}/given.csv", READ)
@routes.page("/trials/{trial}/given.xlsx", READ)
async def given_sheet(visit: Visit) -> Response:
    """The same as a sheet, with columns for the outcomes."""
    status, found = await _found(visit)
    rows = await visit.service.read(visit.trial, lambda trial: sheets.to_fill_in(trial.state(), found))
    return forms.download(visit, f"{visit.trial}-decisions-{status.hash[:12]}", rows)


@routes.page("/trials/{trial}/users.csv", READ)
@routes.page("/trials/{trial}/users.xlsx", READ)
async def users_sheet(visit: Visit) -> Response:
    """A sheet to fill in: users and their plots, and a column for each context field."""
    state = await visit.service.read(visit.trial, lambda trial: trial.state())
    return forms.download(visit, f"{visit.trial}-users", roster.blank(state))


def written(numbers: Sequence[int]) -> str:
    """Numbers in short.

    >>> written([1, 2, 3, 7, 9, 10])
    '1-3,7,9-10'
    """
    parts: list[list[int]] = []
    for n in sorted(numbers):
        if parts and n == parts[-1][-1] + 1:
            parts[-1][1:] = [n]
        else:
            parts.append([n])
    return ",".join("-".join(map(str, part)) for part in parts)


def numbers(text: str) -> list[int]:
    """What `written` wrote.

    >>> numbers("1-3,7")
    [1, 2, 3, 7]
    """
    found: list[int] = []
    for part in text.split(","):
        ends = [whole(end) for end in part.split("-", 1)]
        first, last = ends[0], ends[-1]
        if first is None or last is None:
            raise InputError(f"expected numbers of decisions such as 1-12,15; got {text[:100]!r}")
        if last - first > MOST_GIVEN - len(found):
            raise InputError(f"at most {MOST_GIVEN} decisions are shown at once; export the trial instead")
        found += range(first, last + 1)
    return found


async def _form(visit: Visit, errors: FormErrors = NO_ERRORS) -> Response:
    state = await visit.service.read(visit.trial, lambda trial: trial.state())
    meant, current = whole(visit.field("episode")), state.episode.number
    stale = meant is not None and meant < current
    if stale:
        message = f"season {current} was opened since this page was shown; check the values below and ask again"
        errors = FormErrors("hand", [("", message)])
    chosen = visit.query("episode") == "next" if visit.request.method == "GET" else meant == current + 1
    return visit.page(
        "ask.html",
        errors.status,
        s=queries.status(state),
        tab="ask",
        context=state.spec.context,
        users=_users(state) if (few := len(state.users) <= MOST_USERS) else [],
        plotted=few and any(state.profile(user).definition.block_of() for user in state.users),
        one=state.spec.enrols or not few,
        attributes=attributes(state) if state.spec.enrols else {},
        cohorts=list(state.spec.cohorts) if state.spec.enrols else [],
        groups=sorted({key.partition("/")[2] for key in state.numbers.groups if key.startswith("group/")}),
        one_each=state.spec.decisions == "one per episode",
        begin=chosen or current == 0,
        posted=visit.field("how") == "hand" and not stale,
        errors=errors,
    )


def _users(state: TrialState) -> list[dict[str, Any]]:
    """Users as the form lists them: with the context they have in the open episode, and their decisions in it."""
    episode = state.episode
    rows = []
    for name in state.users:
        known, there = episode.contexts.get(name), plots.places(state, name)
        decisions = [episode.asked[place.key] for place in there if place.key in episode.asked]
        rows.append(
            {
                "name": name,
                "group": state.profile(name).group or "",
                "context": {} if known is None else queries.context_of(state, known),
                "plots": [place.plot for place in there if place.plot is not None],
                "decisions": decisions,
                "done": len(decisions) == len(there),
            }
        )
    return rows


def attributes(state: TrialState) -> dict[str, dict[str, Any]]:
    """What somebody new is described by: a number, or one of the levels that are known so far."""
    declared, known = state.spec.attributes, state.problem.covariates.attributes
    return {
        name: {
            "unit": declared[name].unit if name in declared else "",
            "typical": None if c.levels is not None or c.needed else c.typical,
            "needed": bool(c.roles) and c.needed,
            "levels": None if c.levels is None else list(state.numbers.levels.get(name, ())),
        }
        for name, c in known.items()
    }


async def _found(visit: Visit) -> tuple[Status, list[Decision]]:
    wanted = numbers(visit.request.query_params.get("decisions", ""))

    def look(trial: Trial) -> tuple[Status, list[Decision]]:
        with trial.reading() as (ledger, state):
            return queries.status(state), list(queries.decisions(ledger, state, wanted))

    return await visit.service.read(visit.trial, look)
