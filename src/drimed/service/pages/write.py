"""Pages with forms: create a trial, ask, tell, correct outcomes, and change a running trial."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from starlette.responses import Response

from drimed.errors import BatchError, ConflictError, DrimedError, InputError, UnknownNameError
from drimed.records import AskRequest, Fault, Opening, Path, Receipt, Report, Told
from drimed.service.api import trial_text
from drimed.service.auth import ANY, ASK, MANAGE, TELL
from drimed.service.pages import read
from drimed.service.pages.base import NO_ERRORS, FormErrors, Pages, Visit, form_errors, go, sheet_errors, whole
from drimed.service.routing import AT_ONCE
from drimed.service.runtime import Reply
from drimed.trial import ask as asking
from drimed.trial import queries, sheets, template
from drimed.trial import tell as telling
from drimed.trial.blinding import asking_as, blinded_decision, blinded_status
from drimed.trial.changes import CHANGES, Change, checked
from drimed.trial.spec import CONTROL, METRIC, TrialSpec, parse_json, parse_toml
from drimed.trial.state import TrialState
from drimed.trial.store import Ledger
from drimed.trial.tables import TYPED, WORKBOOK, Record, Row, Table, number
from drimed.trial.transaction import Transaction

MOST_ASKED = 60  # users that the form for asking lists; in a larger trial one is named, or a sheet is uploaded
MOST_GIVEN = 20_000  # decisions that one answer holds
MOST_ROWS = 25  # decisions on a page of the form for telling
MOST_MANAGED = 300  # users that the page for changes lists
PARTS = {"y": METRIC, "k": CONTROL}  # in the names of inputs -> in the headings of a sheet
WHEN = ("season", "date")
EXAMPLES = {"field": "fields season after season", "people": "people who come once", "website": "a website"}
CONFIRM = "confirm"  # a field of changes whose values may be unlikely
SECTIONS = {
    "Running": ("pause", "resume", "stop"),
    "Users": ("add_user", "change_preference", "change_control"),
    "Arms": ("add_arm", "retire_arm"),
    "Stopping": ("look", "change_rules"),
    "Blinding": ("reveal",),
}

K = TypeVar("K", bound=Path)
T = TypeVar("T")
routes = Pages()


# New trial


@routes.page("/new", MANAGE)
async def new(visit: Visit, text: str = "", faults: Sequence[Fault] = (), status: int = 200) -> Response:
    """A form for a trial file, with the errors of the one that was sent."""
    example = visit.query("example")
    text = text or (template(example if example in EXAMPLES else "field") if example else "")
    lines, wrong = text.split("\n"), sorted({fault.line for fault in faults if fault.line is not None})
    listing = [(n, lines[n - 1], [fault.message for fault in faults if fault.line == n]) for n in wrong]
    faults = sorted(faults, key=lambda fault: fault.line or 0)
    return visit.page("new.html", status, text=text, examples=EXAMPLES, faults=faults, listing=listing)


@routes.page("/new", MANAGE, method="POST")
async def create(visit: Visit) -> Response:
    """Create a trial from a file, or show its errors at their lines."""
    text, sent = "", visit.upload
    try:
        text = trial_text(sent.data, sent.name)
        is_json = sent.name.lower().endswith(".json") or text.lstrip().startswith("{")  # no TOML begins so
        work = TrialSpec.parse, text, "json" if is_json else "toml"
        parse = visit.service.parse if len(text) <= AT_ONCE else partial(visit.service.parse_file, visit.caller.actor)
        spec = await parse(*work)
        visit.caller.must(MANAGE, spec.name)
        created = lambda _: Reply(303, f"/trials/{spec.name}?done=created".encode())  # noqa: E731
        reply = await visit.service.create(spec, created, visit.author())
    except DrimedError as error:
        faults = error.faults or [Fault((), str(error))]
        return await new(visit, text, faults, 409 if isinstance(error, ConflictError) else 422)
    return go(reply.text.decode())


# Ask


@routes.page("/trials/{trial}/ask", ASK, method="POST")
async def ask(visit: Visit) -> Response:
    """Decide by hand or for the users of a sheet, and show the decisions."""
    by_sheet = visit.field("how") == "sheet"
    when: dict[str, Any] = {name: visit.field(name) or None for name in WHEN}
    when |= {"episode": whole(visit.field("episode")), "key": visit.author().request}
    try:
        sheet = await visit.table() if by_sheet else None

        def act(tx: Transaction) -> str:
            table = _ask_table(visit, tx.state) if sheet is None else sheet
            if not table.rows:
                raise InputError("there is nobody to ask for: choose a user, or send a sheet with a column “user”")
            asked, blinded = AskRequest(**when), visit.blinded
            made = visit.confirmed(
                lambda sure: sheets.ask_sheet(tx, table, replace(asked, confirm=sure), blinded=blinded)
            )
            again = [d.id for d in made if d.repeated]
            address = f"/trials/{visit.trial}/given?decisions={as_ranges([d.id for d in made])}"
            return address + (f"&again={as_ranges(again)}" if again else "")

        return await visit.act(act)
    except DrimedError as error:
        errors = await sheet_errors(visit, error) if by_sheet else form_errors("hand", error, _ask_input(visit))
        return await ask_form(visit, errors)


def _ask_table(visit: Visit, state: TrialState) -> Table:
    """The form as a sheet: rows of the users that were ticked (`user` is `<row>:<name>`) or typed (`one`)."""
    rows, context = [], {f"context.{field}": field for field in state.problem.fields}
    begins = state.episode.number == 0 or whole(visit.field("episode")) == state.episode.number + 1
    typed = [f"one:{visit.field('one')}"] if visit.field("one") else []
    for value in [*map(str, visit.form.getlist("user")), *typed]:
        at, _, name = value.partition(":")
        cells = {"user": name}
        if at == "one":
            cells |= {f"attribute.{a}": visit.field(f"a:{a}") for a in state.problem.covariates.attributes}
            cells |= {word: visit.field(word) for word in ("cohort", "group", "plot", "block")}
        user = asking.resolve_user(state, name.strip())
        places = asking.places(state, user) if user in state.users and not begins else []
        shown = state.context_of(state.episode.contexts[user]) if user in state.episode.contexts else {}
        typed_context = {column: visit.field(f"c:{at}:{field}") for column, field in context.items()}
        decided = bool(places) and all(place.key in state.episode.asked for place in places)
        if not decided or [*typed_context.values()] != [str(shown.get(field, "")) for field in context.values()]:
            cells |= typed_context  # what the form showed says nothing about a decision with another context
        rows.append(Row(whole(at) or 1, cells))
    return Table(list(dict.fromkeys([*context, *(name for row in rows for name in row.cells)])), rows, WORKBOOK)


def _ask_input(visit: Visit) -> Callable[[Fault], str]:
    """The inputs that faults belong to: of a row, or of the season."""
    row = "one" if visit.field("one") else "user:{}"
    return lambda fault: row.format(fault.row) if fault.row else "".join(p for p in fault.path if p in WHEN)


@routes.page("/trials/{trial}/episodes", ASK, method="POST")
async def open_episode(visit: Visit) -> Response:
    def act(tx: Transaction) -> str:
        name, date = (visit.field(part) or None for part in ("season", "date"))
        with asking_as(tx.state, AskRequest(), blinded=visit.blinded):
            asking.open_episode(tx, number=whole(visit.field("episode")), name=name, date=date)
        return f"/trials/{visit.trial}/ask?done=episode"

    try:
        return await visit.act(act)
    except DrimedError as error:
        return await ask_form(visit, form_errors("open", error))


@routes.page("/trials/{trial}/ask", ASK)
async def ask_form(visit: Visit, errors: FormErrors = NO_ERRORS) -> Response:
    """Users and their contexts, to be filled in."""
    state = await visit.state()
    wanted, current, spec = whole(visit.field("episode")), state.episode.number, state.spec
    stale = wanted is not None and wanted < current
    if stale:
        message = f"season {current} was opened since this page was shown; check the values below and ask again"
        errors = FormErrors("hand", [("", message)])
    begins = visit.query("episode") == "next" if visit.request.method == "GET" else wanted == current + 1
    few = len(state.users) <= MOST_ASKED
    return visit.page(
        "ask.html",
        errors.status,
        s=blinded_status(queries.status(state)) if visit.blinded else queries.status(state),
        tab="ask",
        context=spec.context,
        users=[_ask_row(state, name) for name in state.users] if few else [],
        plotted=few and any(state.profile(user).definition.block_of() for user in state.users),
        one=spec.enrols or not few,
        attributes=_attribute_inputs(state) if spec.enrols else {},
        cohorts=list(spec.cohorts) if spec.enrols else [],
        groups=sorted({key.partition("/")[2] for key in state.numbers.groups if key.startswith("group/")}),
        one_each=spec.decisions == "one per episode",
        begin=begins or current == 0,
        timeless=spec.kind == "people" and not spec.model.seasons,
        posted=visit.field("how") == "hand" and not stale,
        errors=errors,
    )


def _ask_row(state: TrialState, name: str) -> dict[str, Any]:
    """A user in the form: its context in the open episode, and its decisions in it."""
    context, places = state.episode.contexts.get(name), asking.places(state, name)
    decisions = [state.episode.asked[place.key] for place in places if place.key in state.episode.asked]
    return {
        "name": name,
        "group": state.profile(name).group or "",
        "context": {} if context is None else state.context_of(context),
        "plots": [place.plot for place in places if place.plot is not None],
        "decisions": decisions,
    }


def _attribute_inputs(state: TrialState) -> dict[str, dict[str, Any]]:
    """The attributes of a new user: numbers, or categories with the levels so far."""
    declared = state.spec.attributes
    return {
        name: {
            "unit": declared[name].unit if name in declared else "",
            "typical": None if c.levels is not None or c.needed else c.typical,
            "needed": bool(c.roles) and c.needed,
            "levels": None if c.levels is None else list(state.numbers.levels.get(name, ())),
        }
        for name, c in state.problem.covariates.attributes.items()
    }


@routes.page("/trials/{trial}/given", ANY)
@routes.page("/trials/{trial}/given.csv", ANY)
@routes.page("/trials/{trial}/given.xlsx", ANY)
async def given(visit: Visit) -> Response:
    """Decisions as a table, or as a sheet with columns for their outcomes, to hand out."""
    wanted, again = (visit.request.query_params.get(name, "") for name in ("decisions", "again"))
    numbers = from_ranges(wanted)

    state, decisions = await visit.look(lambda ledger, state: (state, [*queries.decisions(ledger, state, numbers)]))
    status = queries.status(state)
    if visit.blinded:
        status, decisions = blinded_status(status), [blinded_decision(state, d) for d in decisions]
    if not visit.request.url.path.endswith("/given"):
        name = f"{visit.trial}-decisions{_mark(visit, state.hash)}"
        return visit.download(name, state, sheets.decision_rows(state, decisions))
    return visit.page(
        "given.html",
        s=status,
        tab="ask",
        given=decisions,
        earlier={d.id for d in decisions}.intersection(from_ranges(again) if again else ()),
        fields=list(decisions[0].context or {}) if decisions else [],
        places=sheets.places_of(decisions),
        numbers=wanted,
    )


@routes.page("/trials/{trial}/users.csv", ANY)
@routes.page("/trials/{trial}/users.xlsx", ANY)
async def users_sheet(visit: Visit) -> Response:
    """A sheet to fill in: users and their plots, and a column for each context field."""
    state = await visit.state()
    return visit.download(f"{visit.trial}-users", state, sheets.blank_sheet(state))


def as_ranges(numbers: Sequence[int]) -> str:
    """Numbers in short.

    >>> as_ranges([1, 2, 3, 7, 9, 10])
    '1-3,7,9-10'
    """
    runs = groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])  # equal along a run
    ends = [[n for _, n in run] for _, run in runs]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in ends)


def from_ranges(text: str) -> list[int]:
    """The numbers of `as_ranges`.

    >>> from_ranges("1-3,7")
    [1, 2, 3, 7]
    """
    numbers: list[int] = []
    for part in text.split(","):
        ends = [whole(end) for end in part.split("-", 1)]
        first, last = ends[0], ends[-1]
        if first is None or last is None:
            raise InputError(f"expected numbers of decisions such as 1-12,15; got {text[:100]!r}")
        if last - first > MOST_GIVEN - len(numbers):
            raise InputError(f"at most {MOST_GIVEN} decisions are shown at once; export the trial instead")
        numbers += range(first, last + 1)
    return numbers


# Tell


@routes.page("/trials/{trial}/tell", TELL, method="POST")
async def tell(visit: Visit) -> Response:
    """Record outcomes by hand or with a sheet: all of them or, if one is wrong, none."""
    by_sheet = visit.field("how") == "sheet"
    try:
        table = await visit.table() if by_sheet else _tell_table(visit)

        def act(tx: Transaction) -> str:
            receipts = visit.confirmed(lambda sure: sheets.tell_sheet(tx, table, confirm=sure, blinded=visit.blinded))
            again = sum(r.result == "already recorded" for r in receipts)
            waits = sum(bool(r.waits_for) for r in receipts)
            after = f"&after={last}" if (last := _last_row(visit)) is not None else ""
            counts = f"recorded={len(receipts) - again}&again={again}&waits={waits}"
            return f"/trials/{visit.trial}/tell?{counts}{after}"

        return await visit.act(act, tells=True)
    except DrimedError as error:
        if by_sheet:
            return await tell_form(visit, await sheet_errors(visit, error))
        errors = form_errors("hand", error, lambda fault: f"decision:{fault.row}" if fault.row else "")
        return await tell_form(visit, errors, also=[decision for decision, _, _ in _typed_values(visit)])


@routes.page("/trials/{trial}/pending.csv", ANY)
@routes.page("/trials/{trial}/pending.xlsx", ANY)
async def pending_sheet(visit: Visit) -> Response:
    """A sheet to fill in: all pending decisions, and a column for each metric."""

    def look(ledger: Ledger, state: TrialState) -> tuple[TrialState, list[Record], list[str]]:
        pending = queries.decisions(ledger, state, queries.pending(ledger))
        pending = (blinded_decision(state, d) for d in pending) if visit.blinded else pending
        return state, sheets.decision_rows(state, pending), sheets.headings(state, blinded=visit.blinded)

    state, rows, empty = await visit.look(look)
    return visit.download(f"{visit.trial}-pending{_mark(visit, state.hash)}", state, rows, empty)


def _mark(visit: Visit, hash: str) -> str:
    """The end of the name of a sheet; to the blinded a hash would confirm a guess of the arms."""
    return "" if visit.blinded else f"-{hash[:12]}"


def _typed_values(visit: Visit) -> dict[tuple[int, str, str], str]:
    """(decision, part, metric) -> text, from inputs `y:<decision>:<metric>` and `k:...` for control plots.

    On the page of a decision, only of that one.
    """
    values, own = {}, str(visit.request.path_params.get("decision", ""))
    for name, value in visit.form.multi_items():
        kind, decision, metric = (*name.split(":", 2), "", "")[:3]
        if kind in PARTS and (number := whole(decision)) is not None and own in ("", decision):
            values[number, PARTS[kind], metric] = str(value).strip()
    return values


def _tell_table(visit: Visit) -> Table:
    """The form as a sheet; the number of a row is that of its decision."""
    rows: dict[int, Record] = {}
    for (decision, part, metric), text in _typed_values(visit).items():
        if text:
            rows.setdefault(decision, {"decision": decision})[f"{part}.{metric}"] = text
    if not rows:
        raise InputError("fill in at least one value")
    names = list(dict.fromkeys(name for cells in rows.values() for name in cells))
    return Table(names, [Row(decision, cells) for decision, cells in rows.items()], WORKBOOK)


def _last_row(visit: Visit) -> int | None:
    """The last decision before this page of the form; None: it begins with the oldest."""
    return whole(visit.query("after") or visit.field("after"))


@routes.page("/trials/{trial}/tell", TELL)
async def tell_form(visit: Visit, errors: FormErrors = NO_ERRORS, also: Sequence[int] = ()) -> Response:
    """A page of the pending decisions, oldest first, and others that the form had values for.

    With the number of a decision in the query, the page of that one.
    """
    if visit.query("decision"):
        return go(read.decision_address(visit) + "#outcome")
    after = _last_row(visit)

    def look(ledger: Ledger, state: TrialState) -> dict[str, Any]:
        waiting = queries.pending(ledger)
        numbers = [n for n in waiting if after is None or n > after]
        page = numbers[:MOST_ROWS]
        rows = list(queries.decisions(ledger, state, {*page, *also}))
        rows = [blinded_decision(state, d) for d in rows] if visit.blinded else rows
        status = queries.status(state)
        return {
            "s": blinded_status(status) if visit.blinded else status,
            "units": {name: metric.unit for name, metric in state.spec.metrics.items()},
            "metrics": state.spec.metrics,
            "measured": {d.user: state.profile(d.user).measured for d in rows},
            "plots": state.spec.feedback == "difference",
            "rows": rows,
            "places": sheets.places_of(rows),
            "later": page[-1] if len(numbers) > MOST_ROWS else None,
        }

    context = await visit.look(look)
    counts = [whole(visit.query(name)) for name in ("recorded", "again", "waits")]
    return visit.page("tell.html", errors.status, tab="tell", errors=errors, after=after, counts=counts, **context)


# The outcome of one decision


@routes.page("/trials/{trial}/decisions/{decision}/outcome", TELL, method="POST")
@routes.page("/trials/{trial}/decisions/{decision}/amend", TELL, method="POST")
@routes.page("/trials/{trial}/decisions/{decision}/missing", TELL, method="POST")
@routes.page("/trials/{trial}/decisions/{decision}/given", TELL, method="POST")
async def act_on_decision(visit: Visit) -> Response:
    """Record the outcome of a decision, correct it (an emptied input takes a value back), mark it as missing, or say
    what was given."""
    form, decision = visit.request.url.path.rpartition("/")[2], read.decision_number(visit)
    reason = visit.field("reason")

    def act(tx: Transaction, sure: bool) -> Receipt:
        if form == "missing":
            return telling.mark_missing(tx, decision, reason)
        if form == "given":
            report = Report(decision, {}, given=visit.field("given"))
            return telling.amend(tx, report, reason=reason, blinded=visit.blinded)
        if form == "outcome":
            return sheets.tell_sheet(tx, _tell_table(visit), confirm=sure, blinded=visit.blinded)[0]
        values = _parsed(_typed_values(visit), lambda m, text: _correction(tx.state, m, text))
        parts = {part: {m: value for (_, p, m), value in values.items() if p == part} for part in PARTS.values()}
        saw = None
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # the outcome as the sent page showed it
            shown = json.loads(visit.field("saw"))
            saw = Report(decision, dict(shown["outcome"] or {}), shown["control"] and dict(shown["control"]))
        report = Report(decision, parts[METRIC], parts[CONTROL] or None)
        return telling.amend(tx, report, reason=reason, saw=saw, confirm=sure)

    def work(tx: Transaction) -> str:
        receipt = visit.confirmed(lambda sure: act(tx, sure))
        results = {"amended": form, "missing": "missing", "already recorded": "nothing"}
        return f"/trials/{visit.trial}/decisions/{decision}?done={results.get(receipt.result, 'recorded')}"

    try:
        return await visit.act(work, tells=True)
    except DrimedError as error:
        errors = form_errors(form, error, lambda fault: "".join(p for p in fault.path if p in ("reason", "given")))
        conflict = isinstance(error, ConflictError)
        saw = "" if conflict else visit.field("saw")
        return await read.decision_page(visit, errors, saw=saw, status=409 if conflict else 422)


def _correction(state: TrialState, metric: str, text: str) -> Told:
    return (
        sheets.metric_value(state.spec.metrics.get(metric), metric, text, TYPED) if text else None
    )  # an emptied input takes the value back


def _parsed(texts: Mapping[K, str], parse: Callable[[str, str], T]) -> dict[K, T]:
    """Values by their paths, from texts; all faults at once."""
    values, faults = {}, []
    for path, text in texts.items():
        try:
            values[path] = parse(str(path[-1]), text)
        except InputError as error:
            faults.append(Fault(path, str(error)))
    if faults:
        raise BatchError(faults)
    return values


# Change a running trial


@routes.page("/trials/{trial}/manage/{change}", MANAGE, method="POST")
async def change(visit: Visit) -> Response:
    path, changes = str(visit.request.path_params["change"]), {change.path: change for change in CHANGES.values()}
    if path not in changes:
        raise UnknownNameError("change", path[:40], changes)
    wanted = changes[path]

    def act(tx: Transaction) -> str:
        body = _change_body(visit, tx.state, wanted)
        done = visit.confirmed(lambda sure: wanted.apply(tx, body.model_copy(update={CONFIRM: True} if sure else {})))
        one = done.decision if isinstance(done, Opening) else None
        where = "manage" if one is None else f"decisions/{one}"
        return f"/trials/{visit.trial}/{where}?done={wanted.path}"

    try:
        return await visit.act(act)
    except DrimedError as error:
        return await manage(visit, form_errors(path, error, lambda fault: _change_input(visit, fault)))


def _change_body(visit: Visit, state: TrialState, wanted: Change) -> Any:
    """The fields of the form as the body of a change; what is left empty is left out."""
    if wanted.name == "stop" and visit.field("sure") != "yes":
        raise InputError("a stopped trial never decides again: tick the box to confirm this", ("sure",))
    if wanted.name == "reveal" and bool(visit.field("decision")) == (visit.field("sure") == "yes"):
        raise InputError("name a decision, or tick the box to open the code for all", ("sure",))
    values: dict[str, Any] = {}
    for name, field in wanted.body.model_fields.items():
        if name in (CONFIRM, "map", "dry_run"):  # no form has an input for these
            continue
        value = _change_value(visit, state, name, of_user=wanted.name == "add_user")
        if name == "preference" and (value or field.is_required()):
            left = [m for m in state.problem.metrics if m not in value]
            if left:
                has = "have" if len(left) > 1 else "has"
                message = f"{', '.join(left)} {has} no weight; enter 0 for a metric that does not count"
                raise InputError(message, ("preference", left[0]))
        if value or (field.is_required() and value == ""):
            values[name] = value
    return checked(wanted.body, values)


def _change_value(visit: Visit, state: TrialState, name: str, *, of_user: bool) -> Any:
    """The value of one field of a change."""
    text = visit.field(name)
    if name in ("plots", "blocks") and of_user:
        return sheets.plots_of([t.strip() for t in visit.field("plots").split(",") if t.strip()]).get(name)
    if name == "attributes" and of_user:
        known = state.problem.covariates.attributes
        return _by_name(visit, name, lambda n, text: sheets.covariate_value(state, n, text) if n in known else text)
    if name in ("preference", "attributes"):
        return _by_name(visit, name, number)
    if name == "noise":
        return {"sd": sd} if (sd := _by_name(visit, name, number)) else None
    if name == "arms":  # None: all of them
        ticked = [str(arm) for arm in visit.form.getlist("arms")]
        return None if set(ticked) >= {a for a in state.problem.arms if a not in state.retired} else ticked
    if name == "decision" and text:
        if whole(text) is None:
            raise InputError(f"expected the number of a decision, such as 12, got {text[:50]!r}", ("decision",))
        return whole(text)
    if name == "stopping":  # as in a trial file, with or without the name of the section, or as JSON
        data = parse_json(text) if text.startswith("{") else parse_toml(text)
        return data["stopping"] if isinstance(data.get("stopping"), dict) else data
    return text


def _by_name(visit: Visit, field: str, parse: Callable[[str, str], T]) -> dict[str, T]:
    """Inputs `<field>:<name>` that are filled in."""
    paths = {tuple(name.split(":", 1)): str(text).strip() for name, text in visit.form.multi_items()}
    values = _parsed({path: text for path, text in paths.items() if path[0] == field and path[1:] and text}, parse)
    return {path[-1]: value for path, value in values.items()}


def _change_input(visit: Visit, fault: Fault) -> str:
    """The input that a fault belongs to."""
    path = fault.path or ("",)
    if len(path) > 1 and path[0] in ("users", "arms") and path[1] in (visit.field("name"), visit.field("user")):
        path = path[2:] or ("user" if visit.field("user") else "name",)
    field, last = "plots" if path[0] == "blocks" else str(path[0]), str(path[-1])
    inputs = [name for name in visit.form if name.startswith(f"{field}:")]
    return f"{field}:{last}" if f"{field}:{last}" in inputs else inputs[0] if inputs else field


@routes.page("/trials/{trial}/manage", MANAGE)
async def manage(visit: Visit, errors: FormErrors = NO_ERRORS) -> Response:
    state = await visit.state()
    spec, few = state.spec, len(state.users) <= MOST_MANAGED
    return visit.page(
        "manage.html",
        errors.status,
        s=queries.status(state),
        tab="manage",
        sections={title: [CHANGES[name] for name in names] for title, names in SECTIONS.items()},
        spec=spec,
        reward="" if spec.preference is None else read.reward(spec.preference),
        control="" if spec.control is None else read.control(spec.control),
        arms=[a for a in state.problem.arms if a not in state.retired],
        users=read.user_rows(state, list(state.users)) if few else [],
        attributes=_attribute_inputs(state),
        opened=state.opened,
        codes=state.codes,
        errors=errors,
        rules=json.dumps(spec.stopping.plain() if spec.stopping is not None else {}, indent=1, ensure_ascii=False),
    )
