"""Tell what came of decisions: by hand, or with a sheet."""

from __future__ import annotations

from typing import NamedTuple

from starlette.responses import Response

from drimed.errors import BatchError, DrimedError, InputError
from drimed.service import metrics
from drimed.service.pages import listing, uploads
from drimed.service.pages.listing import Entry, Wanted
from drimed.service.pages.route import Pages, Visit, go
from drimed.service.pages.uploads import BadSheet
from drimed.service.tokens import ASK_TELL
from drimed.trial import sheets
from drimed.trial.outcomes import Report
from drimed.trial.records import Status, Told
from drimed.trial.trial import Trial

MOST_ROWS = 25  # awaited decisions in the form

routes = Pages()


class Desk(NamedTuple):
    """What the form needs to know."""

    status: Status
    metrics: dict[str, str]  # metric -> unit
    control_plots: bool
    awaited: list[Entry]


@routes.page("/trials/{trial}/tell", ASK_TELL)
async def form(visit: Visit) -> Response:
    """Decisions that wait for an outcome."""
    return await _form(visit)


@routes.page("/trials/{trial}/tell", ASK_TELL, method="POST")
async def tell(visit: Visit) -> Response:
    """Record outcomes: all of them or, if one is wrong, none."""
    if visit.field("how") == "find":
        number = visit.field("decision")
        if number.isdecimal() and len(number) < 10:
            return go(f"/trials/{visit.trial}/decisions/{int(number)}#outcome")
        return await _form(visit, error="a decision is known by its number, such as 12")
    return await (_by_sheet(visit) if visit.field("how") == "sheet" else _by_hand(visit))


async def _by_sheet(visit: Visit) -> Response:
    came = uploads.Sent("", "")
    try:
        came = await uploads.sent(visit, "a sheet")
        rows = sheets.read(came.text, came.form)
        return await visit.act(lambda trial, actor, _: _after(trial, sheets.tell(trial, rows, actor=actor)))
    except DrimedError as error:
        return await _form(visit, sheet=uploads.bad_sheet(came, error), text=came.text)


async def _by_hand(visit: Visit) -> Response:
    try:
        reports = read_rows(visit)
    except BatchError as error:
        return await _form(visit, row_errors=error.errors)
    if not reports:
        return await _form(visit, error="fill in at least one value")
    try:
        return await visit.act(lambda trial, actor, _: _after(trial, trial.tell_many(reports, actor=actor)))
    except BatchError as error:
        return await _form(visit, row_errors={reports[i].decision: said for i, said in error.errors.items()})
    except DrimedError as error:
        return await _form(
            visit, row_errors={reports[0].decision: str(error)} if len(reports) == 1 else None, error=str(error)
        )


def read_rows(visit: Visit) -> list[Report]:
    """Values of the form: fields `y:<decision>:<metric>` and `k:<decision>:<metric>` (control plots)."""
    found: dict[int, tuple[dict[str, float | None], dict[str, float | None]]] = {}
    errors: dict[int, str] = {}
    for name, value in visit.form.multi_items():
        kind, _, rest = name.partition(":")
        number, _, metric = rest.partition(":")
        if kind not in ("y", "k") or not number.isdecimal() or not isinstance(value, str) or not value.strip():
            continue
        try:
            made = sheets.number(metric, value.strip())
        except InputError as error:
            errors[int(number)] = str(error)
            continue
        found.setdefault(int(number), ({}, {}))[kind == "k"][metric] = made
    if errors:
        raise BatchError(errors, "decision")
    return [Report(n, outcome, control or None) for n, (outcome, control) in found.items()]


def _after(trial: Trial, told: list[Told]) -> str:
    new = [t for t in told if t.state != "already recorded"]
    metrics.OUTCOMES.inc(len(new))
    waits = sum(bool(t.waits_for) for t in told)
    return f"/trials/{trial.name}/tell?told={len(new)}&again={len(told) - len(new)}&waits={waits}"


async def _form(
    visit: Visit,
    *,
    error: str | None = None,
    sheet: BadSheet | None = None,
    text: str = "",
    row_errors: dict[int, str] | None = None,
) -> Response:
    desk = await visit.service.read(visit.trial, _desk)
    status = 422 if error or sheet or row_errors else 200
    return visit.page(
        "tell.html",
        status,
        s=desk.status,
        tab="tell",
        desk=desk,
        error=error,
        sheet=sheet,
        text=text,
        row_errors=row_errors or {},
        recorded=_said(visit),
    )


def _said(visit: Visit) -> str | None:
    """What became of the outcomes that were just told."""
    counts = [visit.query(name) for name in ("told", "again", "waits")]
    if not all(c.isdecimal() for c in counts):
        return visit.said()
    told, again, waits = (int(c) for c in counts)
    said = f"{told} outcome{'s' if told != 1 else ''} recorded." if told else "Nothing new was recorded."
    if again:
        said += f" {again} had been told before, with the same values."
    if waits:
        said += f" {waits} will be learned from when the rest of their values has come."
    return said


def _desk(trial: Trial) -> Desk:
    memory = trial.memory()
    units = {name: metric.unit for name, metric in memory.spec.metrics.items()}
    found = listing.search(trial, Wanted(state="awaited"), most=MOST_ROWS).entries if memory.counts.awaited else []
    return Desk(trial.status(), units, memory.spec.feedback == "difference", found)
