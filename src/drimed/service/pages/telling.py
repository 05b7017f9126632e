"""Tell what came of decisions: by hand, or with a sheet."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from starlette.responses import Response

from drimed.errors import BatchError, DrimedError, InputError
from drimed.service import metrics
from drimed.service.pages import listing, uploads
from drimed.service.pages.listing import Entry
from drimed.service.pages.route import Pages, Visit, go, whole
from drimed.service.pages.uploads import BadSheet
from drimed.service.pages.waiting import waiting
from drimed.service.tokens import ASK_TELL, READ
from drimed.trial import sheets
from drimed.trial.outcomes import Report
from drimed.trial.records import Given, Status, Told
from drimed.trial.sheets import Record
from drimed.trial.trial import Trial

MOST_ROWS = 25  # decisions on a page of the form

routes = Pages()


class Desk(NamedTuple):
    """What the form needs to know."""

    status: Status
    metrics: dict[str, str]  # metric -> unit
    control_plots: bool
    rows: list[Entry]
    awaited: int
    begun: int
    older: int | None  # what follows are decisions before this one; None: that was all


class Doubt(NamedTuple):
    """Values outside the range that the trial file gives."""

    said: str
    mark: str  # what the form sends to say that they are right; other values have another one


@routes.page("/trials/{trial}/tell", ASK_TELL)
async def form(visit: Visit) -> Response:
    """Decisions that wait for values."""
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


@routes.page("/trials/{trial}/awaited.csv", READ)
async def awaited_csv(visit: Visit) -> Response:
    """A sheet to fill in: all decisions that wait, and a column for each metric."""

    def look(trial: Trial) -> list[Record]:
        memory = trial.memory()
        rows = []
        for story in trial.stories(trial.memory(), sorted(waiting(trial).partial)):
            given = Given.of(story.event, memory.problem.arms, memory.problem.fields)
            told = story.outcome or {"metrics": {}, "control": None}
            row = sheets.given_rows([given])[0] | {m: told["metrics"].get(m) for m in memory.problem.metrics}
            if memory.spec.feedback == "difference":
                row |= {sheets.CONTROL + m: (told["control"] or {}).get(m) for m in memory.problem.metrics}
            rows.append(row)
        return rows

    return uploads.download(f"{visit.trial}-awaited.csv", sheets.write(await visit.service.read(visit.trial, look)))


async def _by_sheet(visit: Visit) -> Response:
    came = uploads.Sent("", "")
    try:
        came = await uploads.sent(visit, "a sheet")
        rows = sheets.read(came.text, came.form)
        doubts = await visit.service.read(visit.trial, lambda trial: _doubts_of(trial, rows))
        if doubts and visit.field("sure") != _mark(doubts.values()):
            await visit.service.read(visit.trial, lambda trial: sheets.tell(trial, rows, dry_run=True))
            return await _form(visit, sheet_doubts=doubts, text=came.text)
        return await visit.act(lambda trial, actor, _: _after(visit, trial, sheets.tell(trial, rows, actor=actor)))
    except DrimedError as error:
        return await _form(visit, sheet=uploads.bad_sheet(came, error), text=came.text)


async def _by_hand(visit: Visit) -> Response:
    reports, errors = _rows(visit)
    if not reports and not errors:
        return await _form(visit, error="fill in at least one value")

    def check(trial: Trial) -> dict[int, Doubt]:
        found = doubts(trial, reports)
        if errors or found:  # everything that is wrong at once
            try:
                trial.tell_many(reports, dry_run=True)
            except InputError as error:
                errors.update(_places(reports, error))
        return found

    found = await visit.service.read(visit.trial, check)
    if errors or any(visit.field(f"sure:{n}") != doubt.mark for n, doubt in found.items()):
        return await _form(visit, row_errors=errors, doubts=found)
    try:
        return await visit.act(lambda trial, actor, _: _after(visit, trial, trial.tell_many(reports, actor=actor)))
    except InputError as error:
        return await _form(visit, row_errors=_places(reports, error), doubts=found)


def read_rows(visit: Visit) -> list[Report]:
    """Values of the form: fields `y:<decision>:<metric>` and `k:<decision>:<metric>` (control plots)."""
    reports, errors = _rows(visit)
    if errors:
        raise BatchError(errors, "decision")
    return reports


def doubts(trial: Trial, reports: Sequence[Report]) -> dict[int, Doubt]:
    """What somebody must confirm, by decision."""
    return {reports[i].decision: Doubt(said, _mark([said])) for i, said in outside(trial, reports).items()}


def outside(trial: Trial, reports: Sequence[Report]) -> dict[int, str]:
    """Reports, by their places, with new values outside the range that the trial file gives a metric."""
    ranges = {name: metric.range for name, metric in trial.memory().spec.metrics.items() if metric.range is not None}
    odd: dict[int, list[tuple[str, str, float]]] = {}
    for i, report in enumerate(reports):
        for part, values in (("metrics", report.outcome), ("control", report.control or {})):
            for name, value in values.items():
                if value is not None and name in ranges and not ranges[name][0] <= value <= ranges[name][1]:
                    odd.setdefault(i, []).append((part, name, value))
    known = {s.decision: s.outcome or {} for s in trial.stories(trial.memory(), [reports[i].decision for i in odd])}
    said: dict[int, str] = {}
    for i, found in odd.items():
        told = known.get(reports[i].decision, {})
        new = [
            f"{'control plot’s ' if part == 'control' else ''}{name} {value:.12g} is outside "
            f"{ranges[name][0]:g} to {ranges[name][1]:g}, the range in the trial file"
            for part, name, value in found
            if (told.get(part) or {}).get(name) != value
        ]
        if new:
            said[i] = "; ".join(new)
    return said


def _rows(visit: Visit) -> tuple[list[Report], dict[int, str]]:
    """What the form reports, and what is wrong with it, by decision."""
    found: dict[int, tuple[dict[str, float | None], dict[str, float | None]]] = {}
    errors: dict[int, str] = {}
    for name, value in visit.form.multi_items():
        kind, _, rest = name.partition(":")
        number, _, metric = rest.partition(":")
        known = kind in ("y", "k") and number.isdecimal() and len(number) < 10
        if not known or not isinstance(value, str) or not value.strip():
            continue
        try:
            made = sheets.number(metric, value.strip())
        except InputError as error:
            errors[int(number)] = str(error)
            continue
        found.setdefault(int(number), ({}, {}))[kind == "k"][metric] = made
    return [Report(n, outcome, control or None) for n, (outcome, control) in found.items()], errors


def _places(reports: Sequence[Report], error: InputError) -> dict[int, str]:
    """What is wrong, by decision."""
    if isinstance(error, BatchError):
        return {reports[i].decision: said for i, said in error.errors.items()}
    if len(reports) != 1:
        raise error
    return {reports[0].decision: str(error)}


def _doubts_of(trial: Trial, rows: Sequence[Record]) -> dict[int, str]:
    """Rows of a sheet, as a spreadsheet counts them, with values outside their range."""
    names = trial.memory().problem.metrics
    found: dict[int, Report] = {}
    for i, row in enumerate(rows):
        try:
            values, plots = (
                {m: sheets.number(m, row[prefix + m]) for m in names if prefix + m in row}
                for prefix in ("", sheets.CONTROL)
            )
            found[i + sheets.FIRST_ROW] = Report(sheets.decision_number(row), values, plots)
        except InputError:
            continue  # telling says what is wrong with it
    numbers = list(found)
    doubts = outside(trial, list(found.values()))
    return {numbers[i]: f"decision {found[numbers[i]].decision}: {said}" for i, said in doubts.items()}


def _mark(said: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def _after(visit: Visit, trial: Trial, told: list[Told]) -> str:
    new = [t for t in told if t.state != "already recorded"]
    metrics.OUTCOMES.inc(len(new))
    waits = sum(bool(t.waits_for) for t in told)
    before = f"&before={number}" if (number := _before(visit)) is not None else ""
    return f"/trials/{trial.name}/tell?told={len(new)}&again={len(told) - len(new)}&waits={waits}{before}"


async def _form(
    visit: Visit,
    *,
    error: str | None = None,
    sheet: BadSheet | None = None,
    text: str = "",
    row_errors: Mapping[int, str] | None = None,
    doubts: Mapping[int, Doubt] | None = None,
    sheet_doubts: Mapping[int, str] | None = None,
) -> Response:
    before, wrong = _before(visit), [*(row_errors or {}), *(doubts or {})]
    desk = await visit.service.read(visit.trial, lambda trial: _desk(trial, before, wrong))
    status = 422 if error or sheet or row_errors or doubts or sheet_doubts else 200
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
        doubts=doubts or {},
        sheet_doubts=sheet_doubts or {},
        sheet_mark=_mark((sheet_doubts or {}).values()),
        before=before,
        recorded=_said(visit),
    )


def _before(visit: Visit) -> int | None:
    """Where this page of the form begins; None: with the newest."""
    return whole(visit.query("before") or visit.field("before"))


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


def _desk(trial: Trial, before: int | None, also: Sequence[int]) -> Desk:
    """A page of the decisions that wait, newest first, and others that the form spoke of."""
    memory, lacking = trial.memory(), waiting(trial)
    numbers = sorted((n for n in lacking.partial if before is None or n < before), reverse=True)
    page = numbers[:MOST_ROWS]
    with trial.store.reading(trial.name) as ledger:
        found = ledger.of_decisions([*page, *also])
    return Desk(
        trial.status(),
        {name: metric.unit for name, metric in memory.spec.metrics.items()},
        memory.spec.feedback == "difference",
        [listing.entry_of(memory, found[n]) for n in sorted(found, reverse=True)],
        lacking.awaited,
        lacking.begun,
        page[-1] if len(numbers) > MOST_ROWS else None,
    )
