"""What happened: status, log, export, verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from drimed.cli.trial.common import Address, Name, console, open_trial
from drimed.errors import UnknownNameError
from drimed.trial.events import AMENDMENT, DECISION, EPISODE, KINDS, Event
from drimed.trial.stores.opening import DEFAULT, open_store


def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The trial; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    store: Address = DEFAULT,
) -> None:
    """A trial at a glance, or all of them."""
    from drimed.trial.trial import Trial

    opened = open_store(store, create=False)
    found = [Trial.open(n, opened).status() for n in ([name] if name else opened.names())]
    if as_json:
        plain = [s.plain() for s in found]
        typer.echo(json.dumps(plain[0] if name else plain, indent=1, ensure_ascii=False))
        return
    table = Table("trial", "status", "episode", "users", "arms", "decisions", "told", "awaited", "missing")
    for s in found:
        numbers = (s.episode, s.users, len(s.arms), s.decisions, s.answered, s.awaited, s.missing)
        table.add_row(f"[bold]{s.name}[/]", s.status, *map(str, numbers))
    console.print(table)
    for note in found[0].notes if name else ():
        console.print(f"[yellow]note:[/] {note}")


def log(
    name: Name,
    user: Annotated[str | None, typer.Option(help="Only about this user.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind; may be repeated.")] = None,
    decision: Annotated[int | None, typer.Option(help="The full story of one decision.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, one event on each line, all of them.")] = False,
    store: Address = DEFAULT,
) -> None:
    """What happened, newest last."""
    for k in kind or ():
        if k not in KINDS:
            raise UnknownNameError("kind", k, KINDS)
    trial = open_trial(name, store, None)
    if decision is not None:
        events = trial.decision(decision)[1]
    elif as_json:
        events = list(trial.log(kinds=kind or (), user=user))
    else:
        events = list(trial.log(kinds=kind or (), user=user, limit=limit, newest_first=True))[::-1]
    if as_json:
        for e in events:
            typer.echo(json.dumps(vars(e) | {"text": e.body}, ensure_ascii=False))
        return
    table = Table("event", "time (UTC)", "actor", "kind", "decision", "user", "what")
    for e in events:
        what = summary(e)
        about = str(e.decision or "")
        table.add_row(str(e.seq), e.time[:19].replace("T", " "), e.actor, e.kind, about, e.user or "", what)
    console.print(table)


def export(
    name: Name,
    out: Annotated[Path, typer.Option(help="A .csv, .json or .parquet file, or .npz for the Open Bandit Pipeline.")],
    whole: Annotated[bool, typer.Option("--whole", help="Only decisions whose reward is known in full.")] = False,
    store: Address = DEFAULT,
) -> None:
    """Every decision with what came of it, one row each, and a data dictionary beside it."""
    from drimed.trial.export import write

    count = write(open_trial(name, store, None), out, whole=whole)
    console.print(f"wrote {out}: {count} decisions; columns are explained in {out.with_suffix('.dictionary.csv')}")


def report(
    name: Name,
    out: Annotated[Path | None, typer.Option(help="A folder; default: out/trial/NAME.")] = None,
    store: Address = DEFAULT,
) -> None:
    """Write one page about the trial for everybody: effects, reward against control, drift, data quality."""
    from drimed.trial.reporting.write import write_report

    page = write_report(open_trial(name, store, None), out or Path("out/trial") / name)
    console.print(f"Open [bold]{page}[/]; figures and tables are beside it")


def verify(
    name: Name,
    expect: Annotated[
        str | None, typer.Option(help="A hash that verify has shown before: it must still be in the log.")
    ] = None,
    store: Address = DEFAULT,
) -> None:
    """Replay the whole trial from its log: the chain must hold, and every decision must come out again."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from drimed.trial.verify import verify as check

    opened = open_store(store, create=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("events")
        verdict = check(
            opened, name, expected_hash=expect, progress=lambda n, of: progress.update(bar, completed=n, total=of)
        )
    for fault in verdict.faults:
        console.print(f"[bold red]fault:[/] {fault}", highlight=False)
    replayed = f"{verdict.exact} of {verdict.decisions} decisions replayed to the last bit"
    if verdict.rounded:
        replayed += f", {verdict.rounded} to round-off (another machine or library)"
    console.print(f"{verdict.events} events; {replayed}; last hash {verdict.hash}")
    if not verdict.ok:
        raise typer.Exit(1)
    console.print("[green]the log is whole[/]")


def summary(event: Event) -> str:
    """An event in a few words."""
    body = event.body
    parts = [str(body["arm"])] if "arm" in body else []
    if body.get("propensity") is not None:
        parts.append(f"p = {body['propensity']:.3g}")
    if "outcome" in body:
        parts += [f"{name} = {value:g}" for name, value in body["outcome"]["metrics"].items()]
        old = (body["was"] or {}).get("metrics", {})
        if event.kind == AMENDMENT:
            parts += [f"(was {name} = {value:g})" for name, value in old.items()]
    if "preference" in body:
        parts += [f"{name} = {value:g}" for name, value in body["preference"].items()]
    if "episode" in body and event.kind == EPISODE:
        parts.append(f"episode {body['episode']}")
    if body.get("reason"):
        parts.append(f"{'because' if event.kind == DECISION else 'reason'}: {body['reason']}")
    return ", ".join(parts)
