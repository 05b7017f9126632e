"""From a file to outcomes: template, init, tell, amend, missing. (`ask` has a file of its own.)"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drimed import outputs
from drimed.cli.trial import common
from drimed.cli.trial.common import NOTHING_WRITTEN, Address, ControlValues, Dry, Name, Values, Who, Why, Yes
from drimed.errors import InputError
from drimed.formatting import counted, listed
from drimed.trial.stores import DEFAULT, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drimed.records import Decision, Receipt
    from drimed.trial.state import TrialState

ALREADY = "already recorded"  # what a receipt says of values that are there
MOST_NAMED = 5  # decisions without an outcome


def template(
    out: Annotated[Path | None, typer.Option(help="Where to write it; default: show it.")] = None,
    force: common.Force = False,
) -> None:
    """Write a commented example of a trial file."""
    from drimed.trial import template as example

    if out is None:
        typer.echo(example())
    else:
        outputs.put(out, example().encode(), force=force)
        common.say(f"wrote {out}; edit it, then: drimed trial init {out}")


def init(
    file: Annotated[Path, typer.Argument(help="The trial file, .toml or .json.")],
    rehearse: Annotated[bool, typer.Option(help="Simulate it for a second or two first.")] = True,
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Check a trial file, say what a quick rehearsal shows, and create the trial."""
    from drimed.rehearsal import scenarios
    from drimed.rehearsal.quick import quick
    from drimed.trial.build import notes
    from drimed.trial.problem import Problem
    from drimed.trial.trial import Trial

    spec, worlds = scenarios.load(file)
    seen, said = quick(spec, worlds) if rehearse else (None, [])
    for text in [*notes(spec, Problem(spec).shape.d), *said]:
        common.note(text)
    size = f"{len(spec.arms)} arms, {len(spec.users)} users, {len(spec.metrics)} metrics"
    if dry_run:
        common.say(f"{file} is valid: trial {spec.name!r}, {size}{NOTHING_WRITTEN}")
        return
    Trial.create(spec, open_store(store), actor=common.actor_name(actor), rehearsal=seen)
    common.say(f"created trial {spec.name} in {store}: {size}. Next: drimed trial ask {spec.name}")


def tell(
    name: Name,
    sheet: Annotated[Path | None, typer.Argument(help="A sheet of outcomes: .csv, .xlsx or .json.")] = None,
    decision: Annotated[int | None, typer.Option(help="One decision, with --value.")] = None,
    value: Annotated[list[str] | None, typer.Option(help="yield=5.2; repeatable.")] = None,
    control: ControlValues = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column of the sheet to ignore; repeatable.")] = None,
    yes: Yes = False,
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Record outcomes: a sheet with a column `decision` and one for each metric, or a single one."""
    if sheet is None and (decision is None or not (value or control)):
        raise InputError("give a sheet, or --decision with --value")
    trial = common.open_trial(name, store, actor)
    from drimed.records import Report, TellRequest
    from drimed.trial import sheets, telling

    table = common.read_sheet(sheet) if sheet is not None else None

    def record(confirm: bool) -> tuple[list[Receipt], list[Decision], int]:
        """Receipts, what the sheet has no outcome of, and how many decisions are pending after it."""
        with trial.writing(dry_run=dry_run) as tx:
            if table is None:
                report = Report(int(decision or 0), common.values(value), common.values(control) if control else None)
                told = telling.tell(tx, TellRequest(reports=[report], confirm=confirm))
                empty = []
            else:
                told = sheets.tell(tx, table, ignore=ignore or (), confirm=confirm)
                empty = sheets.still_empty(tx, table, told, ignore or ())
            return told, empty, tx.state.counts.pending

    receipts, empty, pending = common.confirming(record, yes)
    results = [_done(r, dry_run) for r in receipts]
    said = ", ".join(f"{results.count(result)} {result}" for result in dict.fromkeys(results))
    said += _to_come(receipts, trial.state())
    if empty:
        said += f"; {counted(len(empty), 'row')} {'has' if len(empty) == 1 else 'have'} no outcome yet: {_named(empty)}"
    common.say(said + (NOTHING_WRITTEN if dry_run else ""))
    if waits := [r for r in receipts if r.waits_for]:
        needs = ", ".join(waits[0].waits_for)
        what = f"{len(waits)} {'would be ' if dry_run else ''}recorded but not learned from yet"
        common.say(f"{what}: decision {waits[0].decision} waits for {needs}")
    if not dry_run and pending > len(empty):
        others = counted(pending - len(empty), "other outcome" if empty else "outcome")
        how = f"drimed trial decisions {name} --state pending"
        common.say(f"{others} of the trial {'is' if pending - len(empty) == 1 else 'are'} still to come: {how}")


def amend(
    name: Name,
    amended: Values = None,
    *,
    decision: Annotated[int, typer.Option(help="Which decision.")],
    reason: Why,
    control: ControlValues = None,
    saw: Annotated[
        list[str] | None, typer.Option(help="A value as you read it: refused if it has changed since; repeatable.")
    ] = None,
    yes: Yes = False,
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Correct an outcome; the old value stays in the log. `yield=` takes the value back.

    A decision whose values are all taken back is pending again.
    """
    from drimed.trial.columns import control_plot

    trial, plots = common.open_trial(name, store, actor), common.values(control) if control else None

    def record(confirm: bool) -> list[Receipt]:
        new, seen = common.values(amended), common.values(saw) if saw else None
        words: dict[str, Any] = {"control": plots, "saw": seen, "confirm": confirm, "dry_run": dry_run}
        return [trial.amend(decision, new, reason=reason, **words)]

    (receipt,) = common.confirming(record, yes)
    told = [f"{m} = {v:.12g}" for m, v in (receipt.outcome or {}).items()]
    told += [f"{control_plot(m)} = {v:.12g}" for m, v in (receipt.control or {}).items()]
    result = _done(receipt, dry_run)
    common.say(
        f"decision {decision}: {result}, now {', '.join(told) or receipt.state}" + (NOTHING_WRITTEN if dry_run else "")
    )


def missing(
    name: Name,
    decision: Annotated[int, typer.Option(help="Which decision.")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Mark an outcome, or the rest of a partial one, as missing."""
    receipt = common.open_trial(name, store, actor).mark_missing(decision, reason=reason, dry_run=dry_run)
    common.say(f"decision {decision}: {_done(receipt, dry_run)}" + (NOTHING_WRITTEN if dry_run else ""))


def _done(receipt: Receipt, dry_run: bool) -> str:
    """What was done, or would be; what is recorded already stays so."""
    return f"would be {receipt.result}" if dry_run and receipt.result != ALREADY else receipt.result


def _to_come(receipts: Sequence[Receipt], state: TrialState) -> str:
    """Which values of partial outcomes are still to come."""
    from drimed.records import PARTIAL
    from drimed.trial.columns import control_plot

    partial = [r for r in receipts if r.state == PARTIAL]
    if not partial:
        return ""
    metrics, beside = state.problem.metrics, state.spec.feedback == "difference"
    said = []
    for receipt in partial:
        names = [m for m in metrics if m not in (receipt.outcome or {})]
        names += [control_plot(m) for m in metrics if beside and m not in (receipt.control or {})]
        said.append(f"decision {receipt.decision} has no {' and no '.join(names)} yet")
    return f"; {len(partial)} {'is' if len(partial) == 1 else 'are'} partial: {listed(said, MOST_NAMED, ', ')}"


def _named(decisions: Sequence[Decision]) -> str:
    """Some of these decisions, with the place of each."""
    places = ((d.id, ", ".join(filter(None, (d.user, f"plot {d.plot}" if d.plot else "")))) for d in decisions)
    return listed([f"decision {number} ({place})" for number, place in places], MOST_NAMED, ", ")
