"""Ask which arm users get: by hand, or with a sheet; the answer as a table and as a sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from drimed.errors import ConflictError, DrimedError, InputError, UnknownNameError
from drimed.service import metrics
from drimed.service.pages import uploads
from drimed.service.pages.route import Pages, Visit, whole
from drimed.service.pages.uploads import BadSheet
from drimed.service.tokens import ASK_TELL, READ
from drimed.trial import sheets
from drimed.trial.records import Given, Status
from drimed.trial.trial import Trial

MOST_USERS = 60  # that the form lists; of more, one is named or a sheet is uploaded
MOST_GIVEN = 20_000  # decisions that one answer holds

routes = Pages()


@dataclass(frozen=True)
class Asker:
    """A user in the form."""

    name: str
    group: str | None
    context: dict[str, float]  # as it is known in the open episode
    decision: int | None  # that it has in the open episode


@dataclass(frozen=True)
class Desk:
    """What the form needs to know."""

    status: Status
    fields: dict[str, str]  # context field -> unit
    typical: dict[str, float]
    users: list[Asker]  # empty: too many
    one_each: bool


@routes.page("/trials/{trial}/ask", ASK_TELL)
async def form(visit: Visit) -> Response:
    """Who is asked for, and what is known of them."""
    return await _form(visit)


@routes.page("/trials/{trial}/ask", ASK_TELL, method="POST")
async def ask(visit: Visit) -> Response:
    """Decide, and show it."""
    return await (_by_sheet(visit) if visit.field("how") == "sheet" else _by_hand(visit))


async def _by_sheet(visit: Visit) -> Response:
    came = uploads.Sent("", "")
    try:
        came = await uploads.sent(visit, "a sheet")
        rows = sheets.read(came.text, came.form)
        if not rows:
            raise InputError("the sheet has no rows; it needs a column “user” and one for each context field")
        return await visit.act(
            lambda trial, actor, key: _decide(visit, trial, sheets.contexts(trial.memory(), rows), actor, key)
        )
    except DrimedError as error:
        return await _form(visit, sheet=uploads.bad_sheet(came, error), text=came.text)


async def _by_hand(visit: Visit) -> Response:
    known, errors = await visit.service.read(visit.trial, lambda trial: _read_rows(visit, trial))
    if errors:
        return await _form(visit, errors=errors)
    if not known:
        return await _form(visit, error="choose at least one user")
    try:
        return await visit.act(lambda trial, actor, key: _decide(visit, trial, known, actor, key))
    except DrimedError as error:
        return await _form(visit, error=str(error))


def _decide(visit: Visit, trial: Trial, known: dict[str, dict[str, float]], actor: str, key: str | None) -> str:
    """Decide for these users, in the episode that the form spoke of; where the answer is shown."""
    memory = trial.memory()
    now, meant = memory.episode.number, visit.field("number")
    contexts = {user: context for user, context in known.items() if context}
    if begins(visit, now):
        number = whole(meant)
        trial.open_episode(contexts, number=now + 1 if number is None else number, actor=actor)
    elif meant and meant != str(now):
        raise ConflictError(
            f"episode {now} was opened since this page was shown, and the values were those of episode {meant}; "
            "look at them again"
        )
    given = trial.ask(list(known), contexts=contexts or None, key=key, actor=actor)
    metrics.DECISIONS.inc(sum(not g.repeated for g in given))
    again = [g.id for g in given if g.repeated]
    return f"/trials/{trial.name}/given?decisions={written([g.id for g in given])}" + (
        f"&again={written(again)}" if again else ""
    )


@routes.page("/trials/{trial}/episodes", ASK_TELL, method="POST")
async def open_episode(visit: Visit) -> Response:
    """The next episode, without asking yet."""

    def act(trial: Trial, actor: str, _: str | None) -> str:
        trial.open_episode(number=trial.memory().episode.number + 1, actor=actor)
        return f"/trials/{trial.name}/ask?done=episode"

    try:
        return await visit.act(act)
    except DrimedError as error:
        return await _form(visit, error=str(error))


@routes.page("/trials/{trial}/given", READ)
async def given(visit: Visit) -> Response:
    """Decisions, as a table to hand out."""
    found = await _found(visit)
    status = await visit.service.read(visit.trial, lambda t: t.status())
    fields = list(found[0].context or {}) if found else []
    again = visit.request.query_params.get("again", "")
    earlier = {g.id for g in found}.intersection(numbers(again) if again else ())
    return visit.page(
        "given.html",
        s=status,
        tab="ask",
        given=found,
        earlier=earlier,
        fields=fields,
        numbers=written([g.id for g in found]),
    )


@routes.page("/trials/{trial}/given.csv", READ)
async def given_csv(visit: Visit) -> Response:
    """The same as a sheet, to which outcomes can be added."""
    found = await _found(visit)
    return uploads.download(f"{visit.trial}-decisions.csv", sheets.write(sheets.given_rows(found)))


@routes.page("/trials/{trial}/users.csv", READ)
async def users_csv(visit: Visit) -> Response:
    """A sheet to fill in: users, and a column for each context field."""

    def look(trial: Trial) -> list[dict[str, object]]:
        memory = trial.memory()
        return [{"user": user, **dict.fromkeys(memory.problem.fields)} for user in memory.users]

    rows = await visit.service.read(visit.trial, look)
    return uploads.download(f"{visit.trial}-users.csv", sheets.write(rows))


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
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and len(first) < 10 and len(last) < 10):
            raise InputError(f"expected numbers of decisions such as 1-12,15; got {text[:100]!r}")
        if int(last or first) - int(first) > MOST_GIVEN - len(found):
            raise InputError(f"at most {MOST_GIVEN} decisions are shown at once; export the trial instead")
        found += range(int(first), int(last or first) + 1)
    return found


def begins(visit: Visit, episode: int) -> bool:
    """Whether the form is about the episode that comes next; without an open one it is."""
    chosen = visit.field("episode") if visit.request.method == "POST" else visit.query("episode")
    return chosen == "next" or episode == 0


async def _form(
    visit: Visit,
    *,
    error: str | None = None,
    sheet: BadSheet | None = None,
    text: str = "",
    errors: dict[str, str] | None = None,
) -> Response:
    desk = await visit.service.read(visit.trial, _desk)
    status = 422 if error or sheet or errors else 200
    posted = visit.request.method == "POST" and visit.field("how") == "hand"
    number, meant = desk.status.episode, visit.field("number")
    begin = begins(visit, number)
    if meant and meant != str(number + begin):  # another episode was opened meanwhile
        posted, begin = posted and meant == str(number), False
    return visit.page(
        "ask.html",
        status,
        s=desk.status,
        tab="ask",
        desk=desk,
        error=error,
        sheet=sheet,
        text=text,
        errors=errors or {},
        posted=posted,
        begin=begin,
    )


def _desk(trial: Trial) -> Desk:
    memory = trial.memory()
    spec, episode = memory.spec, memory.episode
    few = len(memory.users) <= MOST_USERS
    askers = [
        Asker(
            name,
            memory.profile(name).group,
            dict(zip(memory.problem.fields, episode.contexts.get(name, ()), strict=False)),
            episode.asked.get(name),
        )
        for name in (memory.users if few else ())
    ]
    fields = {name: spec.context[name].unit for name in memory.problem.fields}
    typical = {name: spec.context[name].typical for name in memory.problem.fields}
    return Desk(trial.status(), fields, typical, askers, spec.decisions == "one per episode")


def _read_rows(visit: Visit, trial: Trial) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Users and contexts of the form, and what is wrong with its fields, by their names.

    `user` is ticked, `one` typed; `c:<place>:<field>` are the values. Who has a decision already needs none.
    """
    memory = trial.memory()
    found: dict[str, dict[str, float]] = {}
    errors: dict[str, str] = {}
    decided = {} if begins(visit, memory.episode.number) else memory.episode.asked
    typed = [f"one:{visit.field('one')}"] if visit.field("one") else []
    for value in [*visit.form.getlist("user"), *typed]:
        place, _, name = str(value).partition(":")
        name = name.strip()
        if not name:
            continue
        if name not in memory.users:
            errors["one" if place == "one" else f"user:{place}"] = str(UnknownNameError("user", name, memory.users))
            continue
        values = {field: f"c:{place}:{field}" for field in memory.problem.fields}
        found[name] = {}
        if name in decided and not any(visit.field(at) for at in values.values()):
            continue
        for field, at in values.items():
            try:
                found[name][field] = _number(name, field, visit.field(at))
            except InputError as error:
                errors[at] = str(error)
    return found, errors


def _number(user: str, field: str, text: str) -> float:
    if not text:
        raise InputError(f"user {user!r} needs a value for {field}")
    return sheets.number(f"user {user!r}: {field}", text)


async def _found(visit: Visit) -> list[Given]:
    wanted = numbers(visit.request.query_params.get("decisions", ""))
    known = await visit.service.read(visit.trial, lambda t: t.decisions(wanted))
    return [known[n] for n in wanted if n in known]
