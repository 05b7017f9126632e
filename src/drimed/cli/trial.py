"""`drimed trial`: describe an experiment, ask each season, tell what came of it, prove it afterwards."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from drimed.errors import InputError, MissingExtraError, UnknownNameError

try:
    from drimed.trial import sheets
    from drimed.trial.build import notes
    from drimed.trial.events import AMENDMENT, DECISION, EPISODE, KINDS, Event
    from drimed.trial.outcomes import Report
    from drimed.trial.problem import Problem
    from drimed.trial.spec import TrialSpec
    from drimed.trial.stores.opening import DEFAULT, open_store
    from drimed.trial.template import TEMPLATE
    from drimed.trial.trial import Trial
    from drimed.trial.verify import verify as check
except ModuleNotFoundError as error:  # the base install leaves trials out
    raise MissingExtraError(str(error.name), "trial") from error

app = typer.Typer(help="Live trials: ask, tell, and never lose a decision.", no_args_is_help=True)
console = Console()
MOST_SHOWN = 40  # rows of a table on the screen; files hold all

Name = Annotated[str, typer.Argument(metavar="NAME", help="The trial.")]
Address = Annotated[
    str, typer.Option("--store", envvar="DRIMED_STORE", help="A SQLite file, or postgresql://user@host/database.")
]
Who = Annotated[str | None, typer.Option("--actor", envvar="DRIMED_ACTOR", help="Who acts; default: the login name.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it is kept in the log.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Show what would happen; write nothing.")]
Out = Annotated[Path | None, typer.Option("--out", help="A .csv or .json file to write; default: show it.")]
Values = Annotated[list[str] | None, typer.Argument(metavar="METRIC=VALUE", help="yield=5.2 cost=110")]


@app.command()
def template(out: Annotated[Path | None, typer.Option(help="Where to write it; default: show it.")] = None) -> None:
    """Write a commented example of a trial file."""
    if out is None:
        typer.echo(TEMPLATE)
    elif out.exists():
        raise InputError(f"{out} exists; choose another name")
    else:
        out.write_text(TEMPLATE, encoding="utf-8")
        console.print(f"wrote {out}; edit it, then: drimed trial init {out}")


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The trial file, .toml or .json.")],
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Check a trial file and create the trial."""
    spec = TrialSpec.load(file)
    for note in notes(spec, Problem(spec).shape.d):
        console.print(f"[yellow]note:[/] {note}")
    size = f"{len(spec.arms)} arms, {len(spec.users)} users, {len(spec.metrics)} metrics"
    if dry_run:
        console.print(f"{file} is a sound trial: {spec.name!r}, {size}. Nothing was written.")
        return
    Trial.create(spec, open_store(store), actor=_actor(actor))
    console.print(f"created trial [bold]{spec.name}[/] in {store}: {size}. Next: drimed trial ask {spec.name}")


@app.command()
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
    trial = _open(name, store, actor)
    rows = _read(sheet) if sheet else []
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
    _put(sheets.given_rows(given), out, [g.plain() for g in given])
    again = sum(g.repeated for g in given)
    decided = f"{len(given) - again} decided" + (f", {again} had been decided before" if again else "")
    console.print(f"{decided}; episode {given[0].episode}" + (". Nothing was written." if dry_run else ""))


@app.command()
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
    trial = _open(name, store, actor)
    if sheet is not None:
        told = sheets.tell(trial, _read(sheet), ignore=ignore or (), dry_run=dry_run)
    elif decision is not None and (value or control):
        report = Report(decision, _values(value), _values(control) if control else None)
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


@app.command()
def amend(
    name: Name,
    values: Values = None,
    decision: Annotated[int, typer.Option(help="Which decision.")] = ...,  # type: ignore[assignment]  # required
    reason: Why = ...,  # type: ignore[assignment]  # required
    control: Annotated[list[str] | None, typer.Option(help="The same of the control plot.")] = None,
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Correct an outcome; the old value stays in the log. `yield=` takes the value back."""
    told = _open(name, store, actor).amend(
        decision,
        _values(values),
        reason=reason,
        control=_values(control) if control else None,
        dry_run=dry_run,
    )
    console.print(f"decision {decision}: {told.state}, now {told.outcome}")


@app.command()
def missing(
    name: Name,
    decision: Annotated[int, typer.Option(help="Which decision.")] = ...,  # type: ignore[assignment]  # required
    reason: Why = ...,  # type: ignore[assignment]  # required
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Say that an outcome will not come."""
    told = _open(name, store, actor).mark_missing(decision, reason=reason, dry_run=dry_run)
    console.print(f"decision {decision}: {told.state}")


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The trial; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    store: Address = DEFAULT,
) -> None:
    """A trial at a glance, or all of them."""
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


@app.command()
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
    trial = _open(name, store, None)
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
        what = _summary(e)
        about = str(e.decision or "")
        table.add_row(str(e.seq), e.time[:19].replace("T", " "), e.actor, e.kind, about, e.user or "", what)
    console.print(table)


@app.command()
def export(name: Name, out: Out = None, store: Address = DEFAULT) -> None:
    """Every decision with what came of it, one row each (columns: docs/trial.md)."""
    rows = list(sheets.export_rows(_open(name, store, None).rows()))
    _put(rows, out, rows)
    console.print(f"{len(rows)} decisions")


@app.command()
def verify(
    name: Name,
    expect: Annotated[
        str | None, typer.Option(help="A hash that verify has shown before: it must still be in the log.")
    ] = None,
    store: Address = DEFAULT,
) -> None:
    """Replay the whole trial from its log: the chain must hold, and every decision must come out again."""
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


@app.command()
def add_user(
    name: Name,
    user: Annotated[str, typer.Argument(help="The new user.")],
    preference: Annotated[list[str] | None, typer.Option(help="metric=weight; may be repeated.")] = None,
    control: Annotated[str | None, typer.Option(help="Its control arm.")] = None,
    group: Annotated[str | None, typer.Option(help="Its group.")] = None,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Let somebody join."""
    definition: dict[str, Any] = {"control": control, "group": group}
    if preference:
        definition["preference"] = _values(preference)
    _open(name, store, actor).add_user(user, {k: v for k, v in definition.items() if v is not None})
    console.print(f"{user} joined")


@app.command()
def add_arm(
    name: Name,
    arm: Annotated[str, typer.Argument(help="The new arm.")],
    attribute: Annotated[list[str] | None, typer.Option(help="attribute=value; may be repeated.")] = None,
    sd: Annotated[list[str] | None, typer.Option(help="metric=deviation, where the noise is known.")] = None,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Offer one more arm. A changed arm is a new arm."""
    definition = {"attributes": _values(attribute)} if attribute else {}
    _open(name, store, actor).add_arm(arm, definition, noise={"sd": _values(sd)} if sd else None)
    console.print(f"{arm} is offered from now on")


@app.command()
def retire_arm(
    name: Name,
    arm: Annotated[str, typer.Argument(help="The arm.")],
    reason: Why = ...,  # type: ignore[assignment]  # required
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Never decide for an arm again."""
    _open(name, store, actor).retire_arm(arm, reason=reason)
    console.print(f"{arm} is not offered any more")


@app.command()
def prefer(
    name: Name,
    user: Annotated[str, typer.Argument(help="The user.")],
    weights: Annotated[list[str], typer.Argument(metavar="METRIC=WEIGHT...", help="yield=1 cost=-0.01")],
    reason: Why = ...,  # type: ignore[assignment]  # required
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Change how a user weighs the metrics, from now on."""
    _open(name, store, actor).change_preference(user, _numbers(weights), reason=reason)
    console.print(f"{user} prefers {' '.join(weights)} from now on")


@app.command()
def pause(name: Name, reason: Why = ..., store: Address = DEFAULT, actor: Who = None) -> None:  # type: ignore[assignment]  # required
    """Decide nothing for a while; outcomes are still taken."""
    _open(name, store, actor).pause(reason=reason)
    console.print(f"{name} is paused")


@app.command()
def resume(name: Name, reason: Why = "", store: Address = DEFAULT, actor: Who = None) -> None:
    """Go on after a pause."""
    _open(name, store, actor).resume(reason=reason)
    console.print(f"{name} is running")


@app.command()
def stop(name: Name, reason: Why = ..., store: Address = DEFAULT, actor: Who = None) -> None:  # type: ignore[assignment]  # required
    """Decide nothing any more, for good; outcomes are still taken."""
    _open(name, store, actor).stop(reason=reason)
    console.print(f"{name} is stopped")


def _open(name: str, store: str, actor: str | None) -> Trial:
    return Trial.open(name, open_store(store, create=False), actor=_actor(actor))


def _actor(given: str | None) -> str:
    if given:
        return given
    try:
        return getpass.getuser()
    except OSError:  # a machine without login names
        return "command line"


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    return sheets.read(text, "json" if path.suffix.lower() == ".json" else "csv")


def _put(rows: list[dict[str, Any]], out: Path | None, full: list[dict[str, Any]]) -> None:
    """To a file, CSV or JSON by its name, or to the screen."""
    if out is not None:
        json_wanted = out.suffix.lower() == ".json"
        text = sheets.write(full if json_wanted else rows, "json" if json_wanted else "csv")
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write {out}: {error}") from None
        console.print(f"wrote {out}")
        return
    if not rows:
        return
    names = list(dict.fromkeys(n for row in rows for n in row))
    table = Table(*names)
    for row in rows[:MOST_SHOWN]:
        table.add_row(*(_cell(row.get(n)) for n in names))
    console.print(table)
    if len(rows) > MOST_SHOWN:
        console.print(f"... and {len(rows) - MOST_SHOWN} more; --out FILE writes all")


def _summary(event: Event) -> str:
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


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _values(pairs: list[str] | None) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for pair in pairs or ():
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise InputError(f"expected METRIC=VALUE, got {pair!r}")
        try:
            found[name] = float(text) if text else None
        except ValueError:
            raise InputError(f"{name} must be a number, got {text!r}") from None
    return found


def _numbers(pairs: list[str]) -> dict[str, float]:
    values = _values(pairs)
    return {name: _given_number(name, value) for name, value in values.items()}


def _given_number(name: str, value: float | None) -> float:
    if value is None:
        raise InputError(f"{name} needs a number")
    return value
