"""Pages with forms: create a trial, ask, tell, correct outcomes, and change a running trial."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import Response

from drimed.errors import BatchError, ConflictError, DrimedError, InputError, SpecError, UnknownNameError
from drimed.records import AmendRequest, AskRequest, Decision, Fault, Opening, Receipt, Report, Status, TellRequest
from drimed.service.api import LARGEST_TOML
from drimed.service.auth import ANY, ASK_TELL, MANAGE, READ, TELL
from drimed.service.pages import read
from drimed.service.pages.base import NO_ERRORS, FormErrors, Pages, Sent, Visit, form_errors, go, sheet_errors, whole
from drimed.service.runtime import Reply
from drimed.trial import ask as asking
from drimed.trial import queries, sheets, template
from drimed.trial import tell as telling
from drimed.trial.blinding import blinded_decision, blinded_status
from drimed.trial.changes import CHANGES, Change, checked
from drimed.trial.spec import TrialSpec, decode_utf, parse_toml, tidy
from drimed.trial.state import TrialState
from drimed.trial.tables import TYPED, Record, number
from drimed.trial.tables import read as read_table
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

AROUND = 3  # lines shown on either side of one with an error
MOST_ASKED = 60  # users that the form for asking lists; in a larger trial one is named, or a sheet is uploaded
MOST_GIVEN = 20_000  # decisions that one answer holds
MOST_ROWS = 25  # decisions on a page of the form for telling
MOST_MANAGED = 300  # users that the page for changes lists
PARTS = {"y": "outcome", "k": "control"}  # in the names of inputs -> in a report
CONFIRM = "confirm"  # a field of changes whose values may be unlikely
SECTIONS = {
    "Running": ("pause", "resume", "stop"),
    "Users": ("add_user", "change_preference", "change_control"),
    "Arms": ("add_arm", "retire_arm"),
    "Stopping": ("look", "change_rules"),
    "Blinding": ("reveal",),
}

T = TypeVar("T")
Typed = Mapping[int, Mapping[str, Mapping[str, str]]]  # decision -> part -> metric -> text
routes = Pages()


# New trial


@routes.page("/new", MANAGE)
async def new(visit: Visit) -> Response:
    """A form for a trial file."""
    return _new_form(visit, template() if visit.query("example") else "")


@routes.page("/new", MANAGE, method="POST")
async def create(visit: Visit) -> Response:
    """Create a trial from a file, or show its errors at their lines."""
    text = ""
    try:
        sent = await visit.sent("a trial file")
        text = sent.data if isinstance(sent.data, str) else decode_utf(sent.data, sent.name)
        if len(text.encode()) > LARGEST_TOML:
            raise InputError(f"a trial file may have at most {LARGEST_TOML} bytes")
        is_json = sent.name.lower().endswith(".json") or text.lstrip().startswith("{")  # no TOML begins so
        spec = await visit.service.parse(lambda: TrialSpec.parse(text, "json" if is_json else "toml"))
    except (SpecError, InputError) as error:
        return _new_form(visit, text, list(error.faults) or [Fault((), str(error))], 422)
    except RecursionError:
        return _new_form(visit, text, [Fault((), "nested too deeply")], 422)
    visit.caller.must(MANAGE, spec.name)
    try:
        created = lambda _: Reply(303, f"/trials/{spec.name}?done=created".encode())  # noqa: E731
        reply = await visit.service.create(spec, created, actor=visit.caller.actor, retry=visit.retry())
    except ConflictError as error:
        keys = [line.split("=")[0].strip() for line in text.split("\n")]
        line = keys.index("name") + 1 if "name" in keys else None
        return _new_form(visit, text, [Fault(("name",), str(error), line)], 409)
    except DrimedError as error:
        return _new_form(visit, text, [Fault((), str(error))], 422)
    return go(reply.text.decode())


def _new_form(visit: Visit, text: str, faults: Sequence[Fault] = (), status: int = 200) -> Response:
    near = {f.line + d for f in faults if f.line is not None for d in range(-AROUND, AROUND + 1)}
    shown: list[dict[str, Any]] = []  # lines with errors, and those around them
    for i, line in enumerate(text.split("\n"), 1):
        if i in near:
            skipped = i - 1 - (shown[-1]["number"] if shown else 0)
            here = [fault for fault in faults if fault.line == i]
            shown.append({"number": i, "text": line, "faults": here, "skipped": skipped})
    return visit.page("new.html", status, text=text, faults=sorted(faults, key=lambda f: f.line or 0), lines=shown)


# Ask


@routes.page("/trials/{trial}/ask", ASK_TELL)
async def ask_form(visit: Visit) -> Response:
    """Users and their contexts, to be filled in."""
    return await _ask_form(visit)


@routes.page("/trials/{trial}/ask", ASK_TELL, method="POST")
async def ask(visit: Visit) -> Response:
    """Decide by hand or for the users of a sheet, and show the decisions."""
    sent, by_sheet = Sent("", ""), visit.field("how") == "sheet"
    retry = visit.retry()
    when: dict[str, Any] = {"episode": whole(visit.field("episode")), "key": None if retry is None else retry.name}
    when |= {name: visit.field(name) or None for name in ("season", "date")}
    try:
        if by_sheet:
            sent = await visit.sent("a sheet")
            table = await visit.service.parse(lambda: read_table(sent.data, sent.name))
            if not table.rows:
                raise InputError("the sheet has no rows; it needs a column “user”, and one for each context field")

        def act(tx: Transaction) -> str:
            if by_sheet:
                made = visit.confirmed(lambda sure: sheets.ask_sheet(tx, table, AskRequest(confirm=sure, **when)))
            else:
                wanted = _typed_request(visit, tx.state)
                made = visit.confirmed(lambda sure: asking.ask(tx, AskRequest(**wanted, **when, confirm=sure)))
            again = [d.id for d in made if d.repeated]
            address = f"/trials/{visit.trial}/given?decisions={as_ranges([d.id for d in made])}"
            return address + (f"&again={as_ranges(again)}" if again else "")

        return await visit.act(act)
    except DrimedError as error:
        place = lambda fault: _ask_input(visit, fault)  # noqa: E731
        return await _ask_form(visit, sheet_errors(sent, error) if by_sheet else form_errors("hand", error, place))


def _chosen(visit: Visit) -> list[tuple[str, str]]:
    """Users that were ticked (`user` is `<place>:<name>`) or typed (`one`), with the place of each in the form."""
    typed = [f"one:{visit.field('one')}"] if visit.field("one") else []
    pairs = [str(value).partition(":")[::2] for value in [*visit.form.getlist("user"), *typed]]
    return [(at, name.strip()) for at, name in pairs if name.strip()]


def _typed_request(visit: Visit, state: TrialState) -> dict[str, Any]:
    """The fields of an AskRequest from the form; users that have their decisions already need no context."""
    users: list[str] = []
    tables: dict[str, dict[str, Any]] = {"contexts": {}, "enrol": {}, "plots": {}}
    faults: list[Fault] = []
    begins = state.episode.number == 0 or whole(visit.field("episode")) == state.episode.number + 1

    def values(path: tuple[str, ...], texts: Mapping[str, str]) -> dict[str, Any]:
        found = {}
        for field, text in texts.items():
            try:
                if text:
                    found[field] = sheets.covariate_value(state, field, text, TYPED)
            except InputError as error:
                faults.append(Fault((*path, field), f"user {path[1]!r}: {error}"))
        return found

    for at, chosen in _chosen(visit):
        name = asking.resolve_user(state, chosen)
        users.append(name)
        if name not in state.users and not state.spec.enrols:
            continue  # it is refused as unknown
        if at == "one":
            texts = {a: visit.field(f"a:{a}") for a in state.problem.covariates.attributes}
            about = {word: visit.field(word) for word in ("cohort", "group")}
            joins = about | {"attributes": values(("enrol", name, "attributes"), texts)}
            tables["enrol"][name] = {word: value for word, value in joins.items() if value}
            plot, block = visit.field("plot"), visit.field("block")
            if plot:
                tables["plots"][name] = {block: [plot]} if block else [plot]
            elif block:
                faults.append(Fault(("plots", name), f"user {name!r}: a block needs a plot"))
        texts = {field: visit.field(f"c:{at}:{field}") for field in state.problem.fields}
        places = asking.places(state, name, tables["plots"].get(name)) if name in state.users and not begins else []
        decided = bool(places) and all(place.key in state.episode.asked for place in places)
        if not decided or any(texts.values()):
            context, opened = values(("contexts", name), texts), state.episode.contexts.get(name)
            # The context that the form showed says nothing about a decision that was taken with another one.
            if context and not (decided and opened is not None and context == state.context_of(opened)):
                tables["contexts"][name] = context
            empty = [field for field, text in texts.items() if not text]
            faults += [Fault(("contexts", name, f), f"user {name!r} needs a value for {f}") for f in empty]
    if faults:
        raise BatchError(faults)
    if not users:
        raise InputError("choose at least one user")
    return {"users": users, **tables}


def _ask_input(visit: Visit, fault: Fault) -> str:
    """The input that a fault of an AskRequest belongs to."""
    what, name, field, last = (*fault.path, "", "", "", "")[:4]
    if what in ("season", "date"):
        return str(what)
    chosen = _chosen(visit)
    if what == "users" and isinstance(name, int):
        name = chosen[name][1]
    at = next((at for at, user in chosen if name in (user, tidy(user))), "")
    if what == "contexts" and field and at:
        return f"c:{at}:{field}"
    if at != "one":
        return f"user:{at}" if at else ""
    if what == "enrol" and field == "attributes":
        return f"a:{last}" if last else ""
    return "plot" if what == "plots" else str(field) if field in ("cohort", "group") else "one"


@routes.page("/trials/{trial}/episodes", ASK_TELL, method="POST")
async def open_episode(visit: Visit) -> Response:
    """Open the next episode without asking yet."""

    def act(tx: Transaction) -> str:
        name, date = (visit.field(part) or None for part in ("season", "date"))
        asking.open_episode(tx, number=whole(visit.field("episode")), name=name, date=date)
        return f"/trials/{visit.trial}/ask?done=episode"

    try:
        return await visit.act(act)
    except DrimedError as error:
        return await _ask_form(visit, form_errors("open", error))


async def _ask_form(visit: Visit, errors: FormErrors = NO_ERRORS) -> Response:
    state = await visit.service.read(visit.trial, lambda trial: trial.state())
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
        s=queries.status(state),
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


@routes.page("/trials/{trial}/given", READ)
async def given(visit: Visit) -> Response:
    """Decisions, as a table to hand out."""
    status, decisions = await _listed_decisions(visit)
    again = visit.request.query_params.get("again", "")
    return visit.page(
        "given.html",
        s=status,
        tab="ask",
        given=decisions,
        earlier={d.id for d in decisions}.intersection(from_ranges(again) if again else ()),
        fields=list(decisions[0].context or {}) if decisions else [],
        places=sheets.places_of(decisions),
        numbers=as_ranges([d.id for d in decisions]),
    )


@routes.page("/trials/{trial}/given.csv", READ)
@routes.page("/trials/{trial}/given.xlsx", READ)
async def given_sheet(visit: Visit) -> Response:
    """The same as a sheet, with columns for the outcomes."""
    status, decisions = await _listed_decisions(visit)
    rows = await visit.service.read(visit.trial, lambda trial: sheets.decision_rows(trial.state(), decisions))
    return visit.download(f"{visit.trial}-decisions-{status.hash[:12]}", rows)


@routes.page("/trials/{trial}/users.csv", READ)
@routes.page("/trials/{trial}/users.xlsx", READ)
async def users_sheet(visit: Visit) -> Response:
    """A sheet to fill in: users and their plots, and a column for each context field."""
    state = await visit.service.read(visit.trial, lambda trial: trial.state())
    return visit.download(f"{visit.trial}-users", sheets.blank_sheet(state))


async def _listed_decisions(visit: Visit) -> tuple[Status, list[Decision]]:
    wanted = from_ranges(visit.request.query_params.get("decisions", ""))

    def look(trial: Trial) -> tuple[Status, list[Decision]]:
        with trial.reading() as (ledger, state):
            return queries.status(state), list(queries.decisions(ledger, state, wanted))

    return await visit.service.read(visit.trial, look)


def as_ranges(numbers: Sequence[int]) -> str:
    """Numbers in short.

    >>> as_ranges([1, 2, 3, 7, 9, 10])
    '1-3,7,9-10'
    """
    parts: list[list[int]] = []
    for n in sorted(numbers):
        if parts and n == parts[-1][-1] + 1:
            parts[-1][1:] = [n]
        else:
            parts.append([n])
    return ",".join("-".join(map(str, part)) for part in parts)


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


@routes.page("/trials/{trial}/tell", TELL)
async def tell_form(visit: Visit) -> Response:
    """Pending decisions, with an input for each value."""
    return await _tell_form(visit)


@routes.page("/trials/{trial}/tell", TELL, method="POST")
async def tell(visit: Visit) -> Response:
    """Record outcomes by hand or with a sheet: all of them or, if one is wrong, none."""
    how, sent = visit.field("how"), Sent("", "")
    if how == "find":
        wanted = whole(visit.field("decision"))
        if wanted is not None:
            return go(f"/trials/{visit.trial}/decisions/{wanted}#outcome")
        message = "expected the number of a decision, such as 12"
        return await _tell_form(visit, FormErrors("find", [("decision", message)]))
    values = _typed_values(visit)
    try:
        if how == "sheet":
            sent = await visit.sent("a sheet")
            table = await visit.service.parse(lambda: read_table(sent.data, sent.name))

        def act(tx: Transaction) -> str:
            if how == "sheet":
                tell = lambda sure: sheets.tell_sheet(tx, table, confirm=sure, blinded=visit.blinded)  # noqa: E731
            else:
                reports = _reports(values)
                tell = lambda sure: telling.tell(tx, TellRequest(reports=reports, confirm=sure))  # noqa: E731
            receipts = visit.confirmed(tell)
            again = sum(r.result == "already recorded" for r in receipts)
            waits = sum(bool(r.waits_for) for r in receipts)
            before = f"&before={first}" if (first := _first_row(visit)) is not None else ""
            counts = f"recorded={len(receipts) - again}&again={again}&waits={waits}"
            return f"/trials/{visit.trial}/tell?{counts}{before}"

        return await visit.act(act, tells=True)
    except DrimedError as error:
        if how == "sheet":
            return await _tell_form(visit, sheet_errors(sent, error))
        errors = form_errors("hand", error, lambda fault: _tell_input(values, fault))
        return await _tell_form(visit, errors, also=list(values))


@routes.page("/trials/{trial}/pending.csv", ANY)
@routes.page("/trials/{trial}/pending.xlsx", ANY)
async def pending_sheet(visit: Visit) -> Response:
    """A sheet to fill in: all pending decisions, and a column for each metric."""

    def look(trial: Trial) -> tuple[str, list[Record], list[str]]:
        with trial.reading() as (ledger, state):
            found = queries.decisions(ledger, state, queries.pending(ledger))
            found = (blinded_decision(state, d) for d in found) if visit.blinded else found
            return state.hash, sheets.decision_rows(state, found), sheets.headings(state, blinded=visit.blinded)

    hash, rows, empty = await visit.service.read(visit.trial, look)
    mark = "" if visit.blinded else f"-{hash[:12]}"  # a hash would confirm a guess of the arms
    return visit.download(f"{visit.trial}-pending{mark}", rows, empty)


def _typed_values(visit: Visit, *, blank: bool = False) -> Typed:
    """The values of a form, as text: inputs `y:<decision>:<metric>` and, for control plots, `k:<decision>:<metric>`."""
    values: dict[int, dict[str, dict[str, str]]] = {}
    for name, value in visit.form.multi_items():
        kind, _, rest = name.partition(":")
        decision, _, metric = rest.partition(":")
        number = whole(decision)
        if kind in PARTS and number is not None and isinstance(value, str) and (blank or value.strip()):
            values.setdefault(number, {}).setdefault(PARTS[kind], {})[metric] = value.strip()
    return values


def _reports(values: Typed) -> list[Report]:
    """Typed values as reports; an empty text is None."""
    if not values:
        raise InputError("fill in at least one value")
    reports, faults = [], []
    for i, (decision, parts) in enumerate(values.items()):
        numbers: dict[str, dict[str, float | None]] = {"outcome": {}}
        for part, texts in parts.items():
            for metric, text in texts.items():
                try:
                    what = f"decision {decision}: {metric}"
                    numbers.setdefault(part, {})[metric] = number(what, text, TYPED) if text else None
                except InputError as error:
                    faults.append(Fault(("reports", i, part, metric), str(error)))
        reports.append(Report(decision, numbers["outcome"], numbers.get("control")))
    if faults:
        raise BatchError(faults)
    return reports


def _tell_input(values: Typed, fault: Fault) -> str:
    """The input that a fault of a TellRequest belongs to."""
    path = fault.path if len(fault.path) > 1 and fault.path[0] == "reports" else ("reports", 0, *fault.path)
    decision, parts = list(values.items())[int(path[1])]
    part = str(path[2]) if len(path) > 2 else "outcome"
    kind = next((kind for kind, name in PARTS.items() if name == part), None)
    if kind is None:
        return "reason" if part == "reason" else ""
    metric = path[3] if len(path) > 3 else next((metric for texts in parts.values() for metric in texts), "")
    return f"{kind}:{decision}:{metric}"


def _first_row(visit: Visit) -> int | None:
    """The decision at which this page of the form begins; None: with the newest."""
    return whole(visit.query("before") or visit.field("before"))


async def _tell_form(visit: Visit, errors: FormErrors = NO_ERRORS, also: Sequence[int] = ()) -> Response:
    """A page of the pending decisions, newest first, and others that the form had values for."""
    before = _first_row(visit)

    def look(trial: Trial) -> dict[str, Any]:
        with trial.reading() as (ledger, state):
            waiting = queries.pending(ledger)
            numbers = sorted((n for n in waiting if before is None or n < before), reverse=True)
            page = numbers[:MOST_ROWS]
            rows = list(queries.decisions(ledger, state, {*page, *also}))[::-1]
            rows = [blinded_decision(state, d) for d in rows] if visit.blinded else rows
            status = queries.status(state)
            return {
                "s": blinded_status(status) if visit.blinded else status,
                "units": {name: metric.unit for name, metric in state.spec.metrics.items()},
                "plots": state.spec.feedback == "difference",
                "rows": rows,
                "places": sheets.places_of(rows),
                "older": page[-1] if len(numbers) > MOST_ROWS else None,
            }

    context = await visit.service.read(visit.trial, look)
    counts = [whole(visit.query(name)) for name in ("recorded", "again", "waits")]
    done = visit.done()
    if None not in counts:
        new, again, waits = (n or 0 for n in counts)
        done = f"{new} outcome{'s' if new != 1 else ''} recorded." if new else "Nothing new was recorded."
        done += f" {again} had been recorded before, with the same values." if again else ""
        its = "its" if waits == 1 else "their"
        done += f" {waits} will be learned from once the rest of {its} values is recorded." if waits else ""
    return visit.page("tell.html", errors.status, tab="tell", errors=errors, before=before, done=done, **context)


# The outcome of one decision


@routes.page("/trials/{trial}/decisions/{decision}/outcome", TELL, method="POST")
@routes.page("/trials/{trial}/decisions/{decision}/amend", TELL, method="POST")
@routes.page("/trials/{trial}/decisions/{decision}/missing", TELL, method="POST")
async def act_on_decision(visit: Visit) -> Response:
    """Record the outcome of a decision, correct it (an emptied input takes a value back), or mark it as missing."""
    form, decision = visit.request.url.path.rpartition("/")[2], read.decision_number(visit)
    values, reason = _typed_values(visit, blank=form == "amend"), visit.field("reason")

    def work(tx: Transaction) -> str:
        receipt = visit.confirmed(lambda sure: act(tx, sure))
        results = {"amended": "amended", "missing": "missing", "already recorded": "nothing"}
        return f"/trials/{visit.trial}/decisions/{decision}?done={results.get(receipt.result, 'recorded')}"

    def act(tx: Transaction, sure: bool) -> Receipt:
        if form == "missing":
            return telling.mark_missing(tx, decision, reason)
        reports = _reports({n: parts for n, parts in values.items() if n == decision})
        if form == "outcome":
            return telling.tell(tx, TellRequest(reports=reports, confirm=sure))[0]
        saw = None
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # the outcome as the sent page showed it
            shown = json.loads(visit.field("saw"))
            saw = Report(decision, dict(shown["outcome"] or {}), shown["control"] and dict(shown["control"]))
        return telling.amend(tx, AmendRequest(report=reports[0], reason=reason, saw=saw, confirm=sure))

    try:
        return await visit.act(work, tells=True)
    except DrimedError as error:
        errors = form_errors(form, error, lambda fault: _tell_input(values or {decision: {}}, fault))
        conflict = isinstance(error, ConflictError)
        saw = "" if conflict else visit.field("saw")
        return await read.decision_page(visit, errors, saw=saw, status=409 if conflict else 422)


# Change a running trial


@routes.page("/trials/{trial}/manage", MANAGE)
async def manage(visit: Visit) -> Response:
    """One form for each change."""
    return await _manage_form(visit)


@routes.page("/trials/{trial}/manage/{change}", MANAGE, method="POST")
async def change(visit: Visit) -> Response:
    """Make one change."""
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
        return await _manage_form(visit, form_errors(path, error, lambda fault: _change_input(visit, fault)))


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
        try:
            data = json.loads(text) if text.startswith("{") else parse_toml(text)
        except SpecError as error:
            raise InputError(str(error), ("stopping",)) from None
        except (json.JSONDecodeError, RecursionError):
            raise InputError("these are no rules: expected TOML as in a trial file, or JSON", ("stopping",)) from None
        return data["stopping"] if isinstance(data.get("stopping"), dict) else data
    return text


def _by_name(visit: Visit, field: str, parse: Callable[[str, str], T]) -> dict[str, T]:
    """Inputs `<field>:<name>` that are filled in."""
    values, faults = {}, []
    for name, value in visit.form.multi_items():
        of, _, rest = name.partition(":")
        if of == field and rest and isinstance(value, str) and value.strip():
            try:
                values[rest] = parse(rest, value.strip())
            except InputError as error:
                faults.append(Fault((field, rest), str(error)))
    if faults:
        raise BatchError(faults)
    return values


def _change_input(visit: Visit, fault: Fault) -> str:
    """The input that a fault belongs to."""
    path = fault.path
    if len(path) > 1 and path[0] in ("users", "arms") and path[1] in (visit.field("name"), visit.field("user")):
        path = path[2:] or ("user" if visit.field("user") else "name",)
    field, last = "plots" if path[0] == "blocks" else str(path[0]), str(path[-1])
    inputs = [name for name in visit.form if name.startswith(f"{field}:")]
    return f"{field}:{last}" if f"{field}:{last}" in inputs else inputs[0] if inputs else field


async def _manage_form(visit: Visit, errors: FormErrors = NO_ERRORS) -> Response:
    state = await visit.service.read(visit.trial, lambda trial: trial.state())
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
