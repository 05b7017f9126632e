"""Ask which arm users get: by hand, or with a sheet; the answer as a table and as a sheet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response

from drimed.errors import BatchError, DrimedError, InputError, UnknownNameError
from drimed.records import Decision, Fault, Status
from drimed.service import observing
from drimed.service.pages import forms
from drimed.service.pages.forms import NO_ERRORS, FormErrors
from drimed.service.pages.route import Pages, Visit, whole
from drimed.service.tokens import ASK_TELL, READ
from drimed.trial import asking, queries, sheets
from drimed.trial.state import TrialState
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

MOST_USERS = 60  # that the form lists; in a larger trial one is named, or a sheet is uploaded
MOST_GIVEN = 20_000  # decisions that one answer holds

routes = Pages()
Contexts = dict[str, dict[str, float]]


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
        rows = sheets.read(sent.text, sent.form)
        if not rows:
            raise InputError("the sheet has no rows; it needs a column “user” and one for each context field")
        return await visit.act(lambda tx: _decide(visit, tx, lambda state: sheets.contexts(state, rows)))
    except DrimedError as error:
        return await _form(visit, forms.refused_sheet(sent, error))


async def _by_hand(visit: Visit) -> Response:
    try:
        return await visit.act(lambda tx: _decide(visit, tx, lambda state: _typed(visit, state)))
    except DrimedError as error:
        return await _form(visit, forms.refused("hand", error, lambda fault: _input(visit, fault)))


def _decide(visit: Visit, tx: Transaction, read: Callable[[TrialState], Contexts]) -> str:
    """Decide for these users, in the episode that the form is about; returns where the decisions are shown."""
    known, retry = read(tx.state), visit.retry()
    given = asking.ask(
        tx,
        list(known),
        contexts={user: context for user, context in known.items() if context},
        episode=whole(visit.field("episode")),
        key=None if retry is None else retry.name,
    )
    observing.DECISIONS.inc(sum(not d.repeated for d in given))
    again = [d.id for d in given if d.repeated]
    address = f"/trials/{visit.trial}/given?decisions={written([d.id for d in given])}"
    return address + (f"&again={written(again)}" if again else "")


@routes.page("/trials/{trial}/episodes", ASK_TELL, method="POST")
async def open_episode(visit: Visit) -> Response:
    """The next episode, without asking yet."""

    def act(tx: Transaction) -> str:
        asking.open_episode(tx, number=whole(visit.field("episode")))
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
        numbers=written([d.id for d in found]),
    )


@routes.page("/trials/{trial}/given.csv", READ)
async def given_csv(visit: Visit) -> Response:
    """The same as a sheet, to which outcomes can be added."""
    _, found = await _found(visit)
    return forms.download(f"{visit.trial}-decisions.csv", sheets.decision_rows(found))


@routes.page("/trials/{trial}/users.csv", READ)
async def users_csv(visit: Visit) -> Response:
    """A sheet to fill in: users, and a column for each context field."""
    state = await visit.service.read(visit.trial, lambda trial: trial.state())
    rows = ({"user": user, **dict.fromkeys(state.problem.fields)} for user in state.users)
    return forms.download(f"{visit.trial}-users.csv", rows)


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
        message = f"episode {current} was opened since this page was shown; check the values below and ask again"
        errors = FormErrors("hand", [("", message)])
    chosen = visit.query("episode") == "next" if visit.request.method == "GET" else meant == current + 1
    return visit.page(
        "ask.html",
        errors.status,
        s=queries.status(state),
        tab="ask",
        context=state.spec.context,
        users=_users(state) if len(state.users) <= MOST_USERS else [],
        one_each=state.spec.decisions == "one per episode",
        begin=chosen or current == 0,
        posted=visit.field("how") == "hand" and not stale,
        errors=errors,
    )


def _users(state: TrialState) -> list[dict[str, Any]]:
    """Users as the form lists them: with the context they have in the open episode, and their decision in it."""
    episode, fields = state.episode, state.problem.fields
    return [
        {
            "name": name,
            "group": state.profile(name).group or "",
            "context": dict(zip(fields, episode.contexts.get(name, ()), strict=False)),
            "decision": episode.asked.get(name),
        }
        for name in state.users
    ]


def _chosen(visit: Visit) -> list[tuple[str, str]]:
    """Users that were ticked (`user` is `<place>:<name>`) or typed (`one`), with the place of each in the form."""
    typed = [f"one:{visit.field('one')}"] if visit.field("one") else []
    pairs = [str(value).partition(":")[::2] for value in [*visit.form.getlist("user"), *typed]]
    return [(place, name.strip()) for place, name in pairs if name.strip()]


def _typed(visit: Visit, state: TrialState) -> Contexts:
    """Users and contexts of the form (`c:<place>:<field>`). Users that have their decision already need no context."""
    found: Contexts = {}
    faults: list[Fault] = []
    begins = state.episode.number == 0 or whole(visit.field("episode")) == state.episode.number + 1
    decided = () if begins else state.episode.asked
    for place, name in _chosen(visit):
        found[name] = {}
        texts = {field: visit.field(f"c:{place}:{field}") for field in state.problem.fields}
        if name not in state.users:
            faults.append(Fault(("users", name), str(UnknownNameError("user", name, state.users))))
        elif name not in decided or any(texts.values()):
            for field, text in texts.items():
                try:
                    if not text:
                        raise InputError(f"user {name!r} needs a value for {field}")
                    found[name][field] = sheets.number(f"user {name!r}: {field}", text)
                except InputError as error:
                    faults.append(Fault(("contexts", name, field), str(error)))
    if faults:
        raise BatchError(faults)
    if not found:
        raise InputError("choose at least one user")
    return found


def _input(visit: Visit, fault: Fault) -> str:
    """The input that a fault belongs to."""
    what, name, field = (*map(str, fault.path), "", "", "")[:3]
    place = next((place for place, chosen in _chosen(visit) if chosen == name), None)
    if place is None:
        return ""
    if what == "contexts" and field:
        return f"c:{place}:{field}"
    return "one" if place == "one" else f"user:{place}"


async def _found(visit: Visit) -> tuple[Status, list[Decision]]:
    wanted = numbers(visit.request.query_params.get("decisions", ""))

    def look(trial: Trial) -> tuple[Status, list[Decision]]:
        with trial.reading() as (ledger, state):
            return queries.status(state), list(queries.decisions(ledger, state, wanted))

    return await visit.service.read(visit.trial, look)
