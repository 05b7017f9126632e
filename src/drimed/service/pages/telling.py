"""Record the outcomes of decisions: by hand, or with a sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from drimed.errors import BatchError, DrimedError, InputError
from drimed.records import Fault, Receipt, Report, TellRequest
from drimed.service import observing
from drimed.service.pages import forms
from drimed.service.pages.forms import NO_ERRORS, FormErrors
from drimed.service.pages.route import Pages, Visit, go, whole
from drimed.service.tokens import ANY, TELL
from drimed.trial import queries, sheets, telling
from drimed.trial.blinding import blinded, blinded_status
from drimed.trial.tables.cells import TYPED, number
from drimed.trial.tables.table import Record, read
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

MOST_ROWS = 25  # decisions on a page of the form
PARTS = {"y": "outcome", "k": "control"}  # in the names of inputs -> in a report

routes = Pages()
Typed = Mapping[int, Mapping[str, Mapping[str, str]]]  # decision -> part -> metric -> text


@routes.page("/trials/{trial}/tell", TELL)
async def form(visit: Visit) -> Response:
    """Pending decisions, with an input for each value."""
    return await _form(visit)


@routes.page("/trials/{trial}/tell", TELL, method="POST")
async def tell(visit: Visit) -> Response:
    """Record outcomes: all of them or, if one is wrong, none."""
    if visit.field("how") == "find":
        which = whole(visit.field("decision"))
        if which is not None:
            return go(f"/trials/{visit.trial}/decisions/{which}#outcome")
        message = "expected the number of a decision, such as 12"
        return await _form(visit, FormErrors("find", [("decision", message)]))
    return await (_by_sheet(visit) if visit.field("how") == "sheet" else _by_hand(visit))


@routes.page("/trials/{trial}/pending.csv", ANY)
@routes.page("/trials/{trial}/pending.xlsx", ANY)
async def pending_sheet(visit: Visit) -> Response:
    """A sheet to fill in: all pending decisions, and a column for each metric."""

    def look(trial: Trial) -> tuple[str, list[Record], list[str]]:
        with trial.reading() as (ledger, state):
            found = queries.decisions(ledger, state, queries.pending(ledger))
            found = (blinded(state, d) for d in found) if visit.blinded else found
            return state.hash, sheets.to_fill_in(state, found), sheets.headings(state, blinded=visit.blinded)

    hash, rows, empty = await visit.service.read(visit.trial, look)
    mark = "" if visit.blinded else f"-{hash[:12]}"  # a hash would tell arms to whoever tries them
    return forms.download(visit, f"{visit.trial}-pending{mark}", rows, empty)


async def _by_sheet(visit: Visit) -> Response:
    sent = forms.Sent("", "")
    try:
        sent = await forms.sent(visit, "a sheet")
        table = await visit.service.parse(lambda: read(sent.data, sent.name))
        return await visit.act(
            lambda tx: _after(
                visit, forms.confirmed(visit, lambda sure: sheets.tell(tx, table, confirm=sure, blinded=visit.blinded))
            )
        )
    except DrimedError as error:
        return await _form(visit, forms.refused_sheet(sent, error))


async def _by_hand(visit: Visit) -> Response:
    values = typed(visit)

    def act(tx: Transaction) -> str:
        found = reports(values)
        return _after(
            visit, forms.confirmed(visit, lambda sure: telling.tell(tx, TellRequest(reports=found, confirm=sure)))
        )

    try:
        return await visit.act(act)
    except InputError as error:
        return await _form(visit, forms.refused("hand", error, lambda fault: place(values, fault)), also=list(values))


def typed(visit: Visit, *, blank: bool = False) -> Typed:
    """The values of a form, as text: inputs `y:<decision>:<metric>` and, for control plots, `k:<decision>:<metric>`."""
    found: dict[int, dict[str, dict[str, str]]] = {}
    for name, value in visit.form.multi_items():
        kind, _, rest = name.partition(":")
        which, _, metric = rest.partition(":")
        decision = whole(which)
        if kind in PARTS and decision is not None and isinstance(value, str) and (blank or value.strip()):
            found.setdefault(decision, {}).setdefault(PARTS[kind], {})[metric] = value.strip()
    return found


def reports(values: Typed) -> list[Report]:
    """The same as numbers; an empty text is None."""
    if not values:
        raise InputError("fill in at least one value")
    found, faults = [], []
    for i, (decision, parts) in enumerate(values.items()):
        numbers: dict[str, dict[str, float | None]] = {"outcome": {}}
        for part, texts in parts.items():
            for metric, text in texts.items():
                try:
                    what = f"decision {decision}: {metric}"
                    numbers.setdefault(part, {})[metric] = number(what, text, TYPED) if text else None
                except InputError as error:
                    faults.append(Fault(("reports", i, part, metric), str(error)))
        found.append(Report(decision, numbers["outcome"], numbers.get("control")))
    if faults:
        raise BatchError(faults)
    return found


def place(values: Typed, fault: Fault) -> str:
    """The input that a fault of a report belongs to."""
    path = fault.path if len(fault.path) > 1 and fault.path[0] == "reports" else ("reports", 0, *fault.path)
    decision, parts = list(values.items())[int(path[1])]
    part = str(path[2]) if len(path) > 2 else "outcome"
    kind = next((kind for kind, name in PARTS.items() if name == part), None)
    if kind is None:
        return "reason" if part == "reason" else ""
    metric = path[3] if len(path) > 3 else next((metric for texts in parts.values() for metric in texts), "")
    return f"{kind}:{decision}:{metric}"


def _after(visit: Visit, receipts: list[Receipt]) -> str:
    new = [r for r in receipts if r.result != "already recorded"]
    observing.OUTCOMES.inc(len(new))
    waits = sum(bool(r.waits_for) for r in receipts)
    before = f"&before={first}" if (first := _before(visit)) is not None else ""
    return f"/trials/{visit.trial}/tell?recorded={len(new)}&again={len(receipts) - len(new)}&waits={waits}{before}"


async def _form(visit: Visit, errors: FormErrors = NO_ERRORS, also: Sequence[int] = ()) -> Response:
    before = _before(visit)
    shown = await visit.service.read(visit.trial, lambda trial: _shown(trial, before, also, blind=visit.blinded))
    done = _done(visit)
    return visit.page("tell.html", errors.status, tab="tell", errors=errors, before=before, done=done, **shown)


def _before(visit: Visit) -> int | None:
    """Where this page of the form begins; None: with the newest."""
    return whole(visit.query("before") or visit.field("before"))


def _done(visit: Visit) -> str | None:
    """What was just recorded."""
    counts = [whole(visit.query(name)) for name in ("recorded", "again", "waits")]
    if None in counts:
        return visit.said()
    new, again, waits = (n or 0 for n in counts)
    said = f"{new} outcome{'s' if new != 1 else ''} recorded." if new else "Nothing new was recorded."
    if again:
        said += f" {again} had been recorded before, with the same values."
    if waits:
        said += f" {waits} will be learned from once the rest of {'its' if waits == 1 else 'their'} values is recorded."
    return said


def _shown(trial: Trial, before: int | None, also: Sequence[int], *, blind: bool) -> dict[str, Any]:
    """A page of the pending decisions, newest first, and others that the form had values for."""
    with trial.reading() as (ledger, state):
        waiting = queries.pending(ledger)
        numbers = sorted((n for n in waiting if before is None or n < before), reverse=True)
        page = numbers[:MOST_ROWS]
        rows = list(queries.decisions(ledger, state, {*page, *also}))[::-1]
        rows = [blinded(state, d) for d in rows] if blind else rows
        status = queries.status(state)
        return {
            "s": blinded_status(status) if blind else status,
            "units": {name: metric.unit for name, metric in state.spec.metrics.items()},
            "plots": state.spec.feedback == "difference",
            "rows": rows,
            "places": sheets.places_of(rows),
            "older": page[-1] if len(numbers) > MOST_ROWS else None,
        }
