"""A season from file to outcomes: template, init, ask, tell, amend, missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drimed.cli.trial.common import (
    Address,
    Dry,
    Name,
    Out,
    Values,
    Who,
    Why,
    actor_name,
    console,
    open_trial,
    put,
    read,
)
from drimed.cli.trial.common import values as parsed
from drimed.errors import InputError
from drimed.trial.stores.opening import DEFAULT, open_store
from drimed.trial.template import TEMPLATE


def template(out: Annotated[Path | None, typer.Option(help="Where to write it; default: show it.")] = None) -> None:
    """Write a commented example of a trial file."""
    if out is None:
        typer.echo(TEMPLATE)
    elif out.exists():
        raise InputError(f"{out} exists; choose another name")
    else:
        out.write_text(TEMPLATE, encoding="utf-8")
        console.print(f"wrote {out}; edit it, then: drimed trial init {out}")


def init(
    file: Annotated[Path, typer.Argument(help="The trial file, .toml or .json.")],
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Check a trial file and create the trial."""
    from drimed.trial.build import notes
    from drimed.trial.problem import Problem
    from drimed.trial.spec import TrialSpec
    from drimed.trial.trial import Trial

    spec = TrialSpec.load(file)
    for note in notes(spec, Problem(spec).shape.d):
        console.print(f"[yellow]note:[/] {note}")
    size = f"{len(spec.arms)} arms, {len(spec.users)} users, {len(spec.metrics)} metrics"
    if dry_run:
        console.print(f"{file} is a sound trial: {spec.name!r}, {size}. Nothing was written.")
        return
    Trial.create(spec, open_store(store), actor=actor_name(actor))
    console.print(f"created trial [bold]{spec.name}[/] in {store}: {size}. Next: drimed trial ask {spec.name}")


def ask(
    name: Name,
    sheet: Annotated[Path | None, typer.Argument(help="A sheet of users and contexts, .csv or .json.")] = None,
    user: Annotated[list[str] | None, typer.Option(help="Only this user; may be repeated.")] = None,
    episode: Annotated[
        int | None, typer.Option(help="The episode this is for; it is opened if it is the next one.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Your name for this request: repeated, it is answered and not decided again.")
    ] = None,
    out: Out = None,
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Decide which arm each user gets: those of the sheet, those named, or all."""
    from drimed.trial import sheets

    trial = open_trial(name, store, actor)
    rows = read(sheet) if sheet else []
    known = sheets.contexts(trial.memory(), rows) if rows else {}
    current = trial.memory().episode.number
    opens = episode is not None and episode != current
    if opens and dry_run:
        raise InputError(f"episode {episode} is not open; a dry run opens none. The present one is {current}")
    fields = bool(trial.memory().problem.fields)
    if opens and fields and not rows:
        raise InputError(f"episode {episode} begins with the contexts of its users: give a sheet of them")
    if opens:
        trial.open_episode(known if fields else None, number=episode)
    wanted = user or (list(known) if rows else None)
    given = trial.ask(wanted, contexts=known if fields else None, key=key, dry_run=dry_run)
    put(sheets.given_rows(given), out, [g.plain() for g in given])
    again = sum(g.repeated for g in given)
    decided = f"{len(given) - again} decided" + (f", {again} had been decided before" if again else "")
    console.print(f"{decided}; episode {given[0].episode}" + (". Nothing was written." if dry_run else ""))


def tell(
    name: Name,
    sheet: Annotated[Path | None, typer.Argument(help="A sheet of outcomes, .csv or .json.")] = None,
    decision: Annotated[int | None, typer.Option(help="One decision, with --value.")] = None,
    value: Annotated[list[str] | None, typer.Option(help="yield=5.2; may be repeated.")] = None,
    control: Annotated[list[str] | None, typer.Option(help="The same of the control plot.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column of the sheet that is not for us.")] = None,
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Report outcomes: a sheet with a column `decision` and one for each metric, or a single one."""
    from drimed.trial import sheets
    from drimed.trial.outcomes import Report

    trial = open_trial(name, store, actor)
    if sheet is not None:
        told = sheets.tell(trial, read(sheet), ignore=ignore or (), dry_run=dry_run)
    elif decision is not None and (value or control):
        report = Report(decision, parsed(value), parsed(control) if control else None)
        told = trial.tell_many([report], dry_run=dry_run)
    else:
        raise InputError("give a sheet, or --decision with --value")
    states = [t.state for t in told]
    counts = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states)) or "no outcomes in it"
    console.print(counts + (". Nothing was written." if dry_run else ""))
    waits = [t for t in told if t.waits_for]
    if waits:
        first = waits[0]
        console.print(
            f"{len(waits)} are recorded but not learned from yet; decision {first.decision} waits for "
            f"{', '.join(first.waits_for)}"
        )


def amend(
    name: Name,
    values: Values = None,
    *,
    decision: Annotated[int, typer.Option(help="Which decision.")],
    reason: Why,
    control: Annotated[list[str] | None, typer.Option(help="The same of the control plot.")] = None,
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Correct an outcome; the old value stays in the log. `yield=` takes the value back."""
    told = open_trial(name, store, actor).amend(
        decision,
        parsed(values),
        reason=reason,
        control=parsed(control) if control else None,
        dry_run=dry_run,
    )
    console.print(f"decision {decision}: {told.state}, now {told.outcome}")


def missing(
    name: Name,
    decision: Annotated[int, typer.Option(help="Which decision.")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Say that an outcome will not come."""
    told = open_trial(name, store, actor).mark_missing(decision, reason=reason, dry_run=dry_run)
    console.print(f"decision {decision}: {told.state}")
