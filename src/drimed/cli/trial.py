"""`drimed trial`: describe an experiment, ask each season, tell the outcomes, prove it afterwards."""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from drimed import outputs
from drimed.errors import InputError, UnconfirmedError, UnknownNameError
from drimed.formatting import NOT_KNOWN, amount, counted, listed, short, visible
from drimed.records import PENDING, Fault
from drimed.trial.store import DEFAULT, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drimed.records import Claim, Decision, Event, Look, Receipt
    from drimed.simulation.sweep import OnDone
    from drimed.trial import tables
    from drimed.trial.spec import TrialSpec
    from drimed.trial.state import TrialState
    from drimed.trial.transaction import Transaction
    from drimed.trial.trial import Trial


# What the verbs of `drimed trial` share: options, sheets from files, tables on the screen.

T = TypeVar("T")

console = Console(highlight=False)
NOTHING_WRITTEN = ". Nothing was written."
NOTHING_DRAWN = ". Nothing was recorded, and no arm was drawn."
_ACTING = re.compile(
    r"[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)  # on a terminal
MOST_SHOWN = 40  # rows of a table on the screen; files hold all
GAP = 2  # between the columns of a table, with its padding
MOST_NAMED = 3  # of many that one line is about
LONGEST_WORD = 20  # letters of a word that is not broken in a table, if there is room

Name = Annotated[str, typer.Argument(metavar="NAME", help="The trial.")]
Address = Annotated[
    str, typer.Option("--store", envvar="DRIMED_STORE", help="A SQLite file, or postgresql://user@host/database.")
]
Who = Annotated[str | None, typer.Option("--actor", envvar="DRIMED_ACTOR", help="Who acts; default: the login name.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it is kept in the log.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Show what would happen; write nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Record unlikely values without asking.")]
Out = Annotated[Path | None, typer.Option("--out", help="A .csv, .xlsx or .json file to write; default: show it.")]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that exists.")]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", help="Something that is known about the user: ph=6.1 or soil=sand; repeatable."),
]
CohortName = Annotated[
    str | None, typer.Option("--cohort", help="Whose defaults the user takes; the trial file has cohorts.")
]
Values = Annotated[list[str] | None, typer.Argument(metavar="METRIC=VALUE", help="yield=5.2 cost=110")]
ControlValues = Annotated[
    list[str] | None,
    typer.Option("--control", help="Of the control plot, control.yield in sheets: yield=5; repeatable."),
]


def open_trial(name: str, store: str, actor: str | None = None) -> Trial:
    """A trial that exists."""
    from drimed.trial.trial import Trial

    file = os.environ.get("DRIMED_ANCHORS")
    anchors = Path(file) if file else None
    return Trial.open(name, open_store(store, create=False), actor=actor_name(actor), anchors=anchors)


def confirming(record: Callable[[bool], T], yes: bool) -> T:
    """Record; what is unlikely only once somebody says that it is right."""
    try:
        return record(yes)
    except UnconfirmedError as error:
        for question in questions(error.faults):
            say(question, "yellow")
        if console.is_terminal and typer.confirm("Record them anyway?", default=False):
            return record(True)
        raise InputError("nothing was recorded; if these values are right, repeat this with --yes") from None


def questions(faults: Sequence[Fault]) -> list[str]:
    """Values to confirm, one a line; of many the first ones.

    >>> questions([Fault((), "ph 70 is far from the others", row=n) for n in range(2, 9)])[2:]
    ['row 4: ph 70 is far from the others', 'and 4 more']
    """
    lines = [f"row {fault.row}: {fault.message}" if fault.row else fault.message for fault in faults]
    return lines if len(lines) <= MOST_NAMED else [*lines[:MOST_NAMED], f"and {len(lines) - MOST_NAMED:,} more"]


def actor_name(given: str | None) -> str:
    """Who acts, for the log."""
    if given:
        return given
    try:
        return getpass.getuser()
    except OSError:  # a machine without login names
        return "command line"


def say(text: str, style: str = "") -> None:
    """A line on the screen; nothing in it is taken for markup, nor for a command to the terminal."""
    console.print(Text(visible(text), style=style), soft_wrap=True)


def note(text: str) -> None:
    """Something that a person should know."""
    console.print(Text.assemble(("note: ", "yellow"), visible(text)), soft_wrap=True)


def say_json(data: Any, *, indent: int | None = None) -> None:
    """Data as JSON on the screen, or in a pipe."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    typer.echo(text if text.isprintable() else _ACTING.sub(lambda c: json.dumps(c[0])[1:-1], text))


def say_typical(state: TrialState, lacking: Mapping[str, int]) -> None:
    """That some came without an attribute, if any did."""
    if not lacking:
        return
    one, many = ("person", "people") if state.spec.kind == "people" else ("user", "users")
    parts = [f"{n} {one if n == 1 else many} came without {name}" for name, n in lacking.items()]
    more = f" and {len(parts) - MOST_NAMED} more attributes were left empty" if parts[MOST_NAMED:] else ""
    they = "it counts" if sum(lacking.values()) == 1 else "they count"
    note(f"{', '.join(parts[:MOST_NAMED])}{more}: {they} as typical")


def read_sheet(path: Path) -> tables.Table:
    """A sheet: CSV, JSON or a workbook."""
    from drimed.trial.tables import read

    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    found = read(data, path.name)
    if found.assumed:
        note(f"{path.name} is not UTF-8 and was read as {found.assumed}; check letters with accents")
    return found


def put(
    rows: list[dict[str, Any]],
    out: Path | None,
    full: list[dict[str, Any]],
    empty: Sequence[str] = (),
    *,
    force: bool = False,
) -> None:
    """To a file, CSV, JSON or a workbook by its name, or to the screen; `empty` are the columns of no rows."""
    if out is None:
        show(rows)
        return
    from drimed.trial.tables import sheet

    suffix = out.suffix.lower()
    written = sheet(full if suffix == ".json" else rows, suffix, empty)
    outputs.put(out, written, force=force)
    say(f"wrote {out}")


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Rows as a table on the screen; where that is too narrow for one, each row as a list."""
    if not rows:
        return
    names = list(dict.fromkeys(n for row in rows for n in row))
    numeric = {n for n in names if all(isinstance(row.get(n), int | float | None) for row in rows)}
    shown = [{n: _cell(row.get(n)) for n in names} for row in rows[:MOST_SHOWN]]
    least = {n: max(len(visible(n)), *(_least(row[n], n in numeric) for row in shown)) for n in names}
    room = console.width - GAP * len(names) - 1  # of the edge
    if sum(least.values()) <= room:
        widths = _narrowed({n: max(least[n], *(len(row[n]) for row in shown)) for n in names}, least, room)
        columns = (
            Column(Text(visible(n)), justify="right" if n in numeric else "left", overflow="fold", width=widths[n])
            for n in names
        )
        table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for row in shown:
            table.add_row(*(Text(row[n]) for n in names))
    else:
        table = Table.grid(Column(style="bold"), Column(overflow="fold"), padding=(0, GAP, 0, 0))
        for row in shown:
            for n in names:
                table.add_row(Text(visible(n)), Text(row[n]))
            table.add_row()
    console.print(table)
    if len(rows) > MOST_SHOWN:
        say(f"... and {len(rows) - MOST_SHOWN} more; --out FILE writes all")


def _narrowed(widths: dict[str, int], least: dict[str, int], room: int) -> dict[str, int]:
    """Widths that fit: the widest column that can be narrower gives way, one letter at a time.

    >>> _narrowed({"a": 9, "b": 4}, {"a": 3, "b": 4}, 10)
    {'a': 6, 'b': 4}
    """
    found = dict(widths)
    while sum(found.values()) > room:
        found[max((n for n in found if found[n] > least[n]), key=lambda n: found[n])] -= 1
    return found


def _least(cell: str, number: bool) -> int:
    """The width below which a cell cannot be read: a number's own, a text's longest word up to a limit."""
    return len(cell) if number else min(LONGEST_WORD, max(map(len, cell.split()), default=0))


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else visible(str(value))


def values(pairs: list[str] | None) -> dict[str, float | None]:
    """name=number pairs; nothing after the sign means no value."""
    from drimed.trial.names import tidy
    from drimed.trial.tables import number, typed_marks

    parts = [pair.partition("=") for pair in pairs or ()]
    for pair, (name, separator, _) in zip(pairs or (), parts, strict=True):
        if not separator or not name:
            raise InputError(f"expected METRIC=VALUE, got {pair!r}")
    marks = typed_marks(text for _, _, text in parts)
    return {tidy(name): number(name, text, marks) if text else None for name, _, text in parts}


def texts(pairs: list[str] | None) -> dict[str, str]:
    """name=value pairs as they are written: numbers, or levels of categories."""
    from drimed.trial.names import tidy

    found: dict[str, str] = {}
    for pair in pairs or ():
        name, _, text = pair.partition("=")
        if not name or not text:
            raise InputError(f"expected NAME=VALUE, such as ph=6.1 or soil=sand, got {pair!r}")
        found[tidy(name)] = text.strip()
    return found


def numbers(pairs: list[str]) -> dict[str, float]:
    """name=number pairs, every number given."""
    found = values(pairs)
    for name, value in found.items():
        if value is None:
            raise InputError(f"{name} needs a number")
    return {name: value for name, value in found.items() if value is not None}


# `drimed trial ask`: for the users of a sheet, for one, or for all.


def ask(
    name: Name,
    sheet: Annotated[
        Path | None,
        typer.Argument(help="A sheet of users, or of their plots, with contexts and attributes; .csv, .xlsx or .json."),
    ] = None,
    user: Annotated[list[str] | None, typer.Option(help="Only this user; repeatable.")] = None,
    attribute: Attributes = None,
    cohort: CohortName = None,
    context: Annotated[list[str] | None, typer.Option(help="Known before deciding: rain=410; repeatable.")] = None,
    plot: Annotated[list[str] | None, typer.Option(help="Only this plot of the user; repeatable.")] = None,
    block: Annotated[str | None, typer.Option(help="The block that the plot is in.")] = None,
    episode: Annotated[int | None, typer.Option(help="The episode this is for; the next one is opened.")] = None,
    season: Annotated[
        str | None, typer.Option(help='The same by name, as "spring 2026"; one with a new name is opened.')
    ] = None,
    date: Annotated[
        str | None, typer.Option(help="When a season that is opened begins, as 2026-03-15 or 15.03.2026.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: a repeat gets the first answer again.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column of the sheet to ignore; repeatable.")] = None,
    out: Out = None,
    force: Force = False,
    yes: Yes = False,
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show how likely each arm is (in a sheet, with --out); record nothing.")
    ] = False,
) -> None:
    """Decide which arm each user gets: those of the sheet, those named, or all.

    A user with plots gets a decision for each of them. Where enrolment is open, somebody new joins with the attributes
    and the cohort that come along, in the same step.
    """
    about: dict[str, Any] = {"attributes": texts(attribute), "context": texts(context), "cohort": cohort}
    about |= {"plots": plot, "block": block}
    if any(about.values()) and (sheet is not None or len(user or ()) != 1):
        options = "--attribute, --cohort, --context, --plot and --block"
        raise InputError(f"{options} are about one user: give one --user and no sheet")
    if block is not None and not plot:
        raise InputError("--block needs --plot: a decision is for a plot of the block")
    if out is not None:
        outputs.check_free(out, force=force)
    trial = open_trial(name, store, actor)
    when: dict[str, Any] = {"episode": episode, "season": season, "date": date}
    from drimed.trial import ask as trial_ask
    from drimed.trial import seasons as trial_seasons
    from drimed.trial import sheets as trial_sheets
    from drimed.trial.columns import Columns

    table = read_sheet(sheet) if sheet else None
    if table is not None and not table.rows:
        raise InputError(f"{sheet} has no rows; it needs a column 'user' and one for each context field")

    lacking: dict[str, int] = {}

    def decide(confirm: bool) -> list[Decision]:
        def act(tx: Transaction) -> list[Decision]:
            known = set(tx.state.users)
            if table is not None:
                made = trial_sheets.ask_sheet(
                    tx, table, users=user, ignore=ignore or (), key=key, confirm=confirm, **when
                )
            else:
                made = _without_sheet(tx, user, about, {"key": key, "confirm": confirm}, **when)
            lacking.clear()
            lacking.update(trial_ask.users_lacking(tx.state, {d.user for d in made} - known))
            return made

        return trial.decide(act, dry_run=dry_run)

    found = confirming(decide, yes)
    state = trial.state()
    season_said = trial_seasons.when(found[0])
    if out is None or dry_run:
        rows = trial_sheets.decision_rows(Columns.of(state.problem), found)
        rows = _with_chances(rows, found) if dry_run else rows
        rows = [_with_season(row) for row in rows] if out is None else rows
    else:
        rows = trial_sheets.to_fill_in(state, found)
    try:
        put(rows, out, [d.plain() for d in found], force=force)
    except InputError as error:
        if dry_run:
            raise
        kept = f"{counted(len(found), 'decision')} of {season_said} {'is' if len(found) == 1 else 'are'}"
        raise InputError(f"{error}. The {kept} recorded all the same: repeat this to get the sheet") from None
    if out is not None and not dry_run:
        say(f"log: event {state.seq}, hash {state.hash}")
    again = sum(d.repeated for d in found)
    decided = f"{len(found) - again} {'would be ' if dry_run else ''}decided"
    decided += f", {again} decided before" if again else ""
    say(f"{decided}; {season_said}" + (NOTHING_DRAWN if dry_run else ""))
    say_typical(state, lacking)


def _with_season(row: dict[str, Any]) -> dict[str, Any]:
    """On the screen a season has one column, with its name or its number."""
    named = {"season" if name == "episode" else name: value for name, value in row.items() if name != "season"}
    return named | {"season": row.get("season") or row["episode"]}


def _with_chances(rows: list[dict[str, Any]], found: list[Decision]) -> list[dict[str, Any]]:
    """A dry run shows how likely each arm is, and not which one will be drawn."""
    arms = dict.fromkeys(arm for d in found for arm in d.probabilities)
    return [
        {name: value for name, value in row.items() if name != "propensity"}
        | {f"chance of {arm}": d.probabilities.get(arm) for arm in arms}
        for row, d in zip(rows, found, strict=True)
    ]


def _without_sheet(
    tx: Transaction, users: list[str] | None, about: dict[str, Any], how: dict[str, Any], **when: Any
) -> list[Decision]:
    from drimed.records import AskRequest
    from drimed.trial import ask as trial_ask
    from drimed.trial import seasons as trial_seasons
    from drimed.trial import sheets as trial_sheets

    state = tx.state
    episode = trial_seasons.resolve_episode(state, when["season"], when["episode"])
    if state.problem.fields and not about["context"] and episode not in (None, state.episode.number):
        raise InputError(
            f"season {episode} begins with the contexts of its users; give a sheet with the columns "
            f"user, {', '.join(state.problem.fields)}, or ask for one with --user and --context"
        )
    words: dict[str, Any] = {**when, **how}
    users = None if users is None else [trial_ask.resolve_user(state, user) for user in users]
    if users and len(users) == 1:
        (one,) = users
        if about["context"]:
            words["contexts"] = {one: trial_sheets.covariate_values(state, about["context"])}
        if about["attributes"] or about["cohort"]:
            words["enrol"] = {
                one: {
                    "attributes": trial_sheets.covariate_values(state, about["attributes"]),
                    "cohort": about["cohort"],
                }
            }
        if about["plots"]:
            words["plots"] = {one: {about["block"]: about["plots"]} if about["block"] else about["plots"]}
    return trial_ask.ask(tx, AskRequest(users=users, **words))


# What may change while a trial runs: users, arms, preferences, and whether it decides.


def add_user(
    name: Name,
    user: Annotated[str, typer.Argument(help="The new user.")],
    preference: Annotated[list[str] | None, typer.Option(help="metric=weight; repeatable.")] = None,
    control: Annotated[str | None, typer.Option(help="Its control arm.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help="An arm that is possible for it; default: all.")] = None,
    group: Annotated[str | None, typer.Option(help="Its site, farm, clinic or other group.")] = None,
    attribute: Attributes = None,
    cohort: CohortName = None,
    plot: Annotated[
        list[str] | None, typer.Option(help="A plot with a decision of its own: A1, or A/A1 in block A; repeatable.")
    ] = None,
    yes: Yes = False,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Enrol a user."""
    opened = open_trial(name, store, actor)
    from drimed.trial import ask as trial_ask
    from drimed.trial import sheets as trial_sheets
    from drimed.trial.names import tidy

    attributes = trial_sheets.covariate_values(opened.state(), texts(attribute)) if attribute else None
    weights = numbers(preference) if preference else None
    fields = {"preference": weights, "control": control, "arms": arm, "group": group, "cohort": cohort}
    about = {"name": user, "attributes": attributes, **fields, **trial_sheets.plots_of(plot or [])}
    confirming(lambda sure: _apply(opened, "add_user", {**about, "confirm": sure}), yes)
    state = opened.state()
    say_typical(state, trial_ask.users_lacking(state, [tidy(user)]))


def add_arm(
    name: Name,
    arm: Annotated[str, typer.Argument(help="The new arm.")],
    attribute: Annotated[list[str] | None, typer.Option(help="attribute=value; repeatable.")] = None,
    sd: Annotated[list[str] | None, typer.Option(help="metric=deviation, where the noise is known.")] = None,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Add an arm. A changed arm is a new arm."""
    attributes, noise = numbers(attribute) if attribute else None, {"sd": values(sd)} if sd else None
    _change(name, store, actor, "add_arm", name=arm, attributes=attributes, noise=noise)


def retire_arm(
    name: Name,
    arm: Annotated[str, typer.Argument(help="The arm.")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Retire an arm: it is never given again."""
    _change(name, store, actor, "retire_arm", arm=arm, reason=reason)


def prefer(
    name: Name,
    user: Annotated[str, typer.Argument(help="The user.")],
    weights: Annotated[list[str], typer.Argument(metavar="METRIC=WEIGHT...", help="yield=1 cost=-0.01")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Change how a user weighs the metrics, from now on."""
    _change(name, store, actor, "change_preference", user=user, preference=numbers(weights), reason=reason)


def control(
    name: Name,
    user: Annotated[str, typer.Argument(help="The user.")],
    arms: Annotated[list[str], typer.Argument(metavar="ARM...", help="An arm, or shares: old=0.7 new=0.3")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Compare a user with another control, from now on."""
    shares = arms[0] if len(arms) == 1 and "=" not in arms[0] else numbers(arms)
    _change(name, store, actor, "change_control", user=user, control=shares, reason=reason)


def pause(name: Name, reason: Why, store: Address = DEFAULT, actor: Who = None) -> None:
    """Pause decisions; outcomes are still taken."""
    _change(name, store, actor, "pause", reason=reason)


def resume(name: Name, reason: Why = "", store: Address = DEFAULT, actor: Who = None) -> None:
    """Resume decisions after a pause."""
    _change(name, store, actor, "resume", reason=reason)


def stop(name: Name, reason: Why, store: Address = DEFAULT, actor: Who = None) -> None:
    """Stop decisions for good; outcomes are still taken."""
    _change(name, store, actor, "stop", reason=reason)


def reveal(
    name: Name,
    reason: Why,
    decision: Annotated[int | None, typer.Argument(help="The decision; left out: all, with --all.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Open the code for all decisions: the blinding ends.")] = False,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Open the code: tell which arm a decision got. Who did it and why stays in the log."""
    if (decision is None) != every:
        raise InputError("give the number of a decision, or --all to open the code for all of them")
    opened = open_trial(name, store, actor).reveal(decision, reason=reason)
    if opened.decision is not None:
        coded = f" (code {opened.code})" if opened.code else ""
        say(f"decision {opened.decision}: {opened.arm}{coded}. The log has who opened this, and why.")
        return
    for arm, code in (opened.codes or {}).items():
        say(f"{code}: {arm}")
    say("The code is open for all decisions; the log has who opened it, and why.")


def _change(trial: str, store: str, actor: str | None, change: str, **fields: Any) -> None:
    _apply(open_trial(trial, store, actor), change, fields)


def _apply(opened: Trial, change: str, fields: dict[str, Any]) -> None:
    """One of the table's changes."""
    from drimed.trial.changes import CHANGES, checked

    found = CHANGES[change]
    body = checked(found.body, {k: v for k, v in fields.items() if v is not None})
    with opened.writing() as tx:
        found.apply(tx, body)
    say(found.done)


# Stopping rules: look at them, and change them.


def look(
    name: Name,
    dry_run: Dry = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Look at the stopping rules: what each says, and how far it is from being met. The look is recorded."""
    trial = open_trial(name, store, actor)
    found = trial.look(dry_run=dry_run)
    if as_json:
        say_json(found.plain(), indent=1)
        return
    show_looking(found, trial.state())
    if dry_run:
        say("Nothing was written.")


def rules(
    name: Name,
    file: Annotated[Path, typer.Argument(help="A .toml file with a section [stopping], such as the trial file.")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Replace the stopping rules by those of a file; what they were stays in the log, and the report tells of it."""
    from drimed.trial.spec import parse_toml
    from drimed.trial.tables import decode_utf

    try:
        data = parse_toml(decode_utf(file.read_bytes(), str(file)))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from None
    stopping = data.get("stopping")
    if not isinstance(stopping, dict):
        raise InputError(f"{file} has no section [stopping]")
    open_trial(name, store, actor).change_rules(stopping, reason=reason)
    say("The stopping rules were changed; they apply from the next look on.")


def show_looking(found: Look, state: TrialState) -> None:
    """A look on the screen."""
    from drimed.reports.stopping import then_of, until
    from drimed.trial.seasons import calendar

    spec = state.spec
    say(f"{calendar(state).said(found.episode)}, {found.decisions} decisions, {found.outcomes} complete outcomes")
    show([_row(claim, _unit(claim, spec)) for claim in found.claims])
    waiting: dict[str, dict[str, None]] = {}
    for claim in found.claims:
        if claim.waits:
            waiting.setdefault(claim.waits, {})[claim.arm] = None
    for why, arms in waiting.items():
        say(f"no rule is met yet by {listed(list(arms))}: {why}")
    for name, kind in {claim.rule: claim.kind for claim in found.claims if claim.distance is not None}.items():
        say(f"to go in {name} is how far the range must still move")
        say(f"  until {until(kind, then_of(spec, name))}")
    for limit in found.limits:
        say(f"{limit.limit}: {limit.reached} of at most {limit.of}" + (", all of them" if limit.met else ""))
    for who in found.floor_ends:
        say(f"the floor ends for {who}")
    if found.demands is not None:
        say(f"the trial is {found.demands}: {found.reason}", "bold")


def _unit(claim: Claim, spec: TrialSpec) -> str:
    metric = spec.metrics.get(claim.on)
    return spec.reward.unit if metric is None else metric.unit


def _row(claim: Claim, unit: str) -> dict[str, Any]:
    ends = NOT_KNOWN
    if claim.low is not None and claim.high is not None:
        ends = f"{short(claim.low)} to {amount(claim.high, unit)}"
    return {
        "rule": claim.rule,
        "who": claim.who,
        "arm": claim.arm,
        "range": ends,
        "margin": short(claim.margin),
        "to go": None if claim.distance is None else short(max(claim.distance, 0.0)),
        "met": "yes" if claim.met else "no",
    } | ({} if claim.seasons is None else {"seasons": claim.seasons})


# What is known: status, decisions, effects, log, export, report, proof.

NOT_PROVED = 2  # exit code where a proof needs something that is not here


def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The trial; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    store: Address = DEFAULT,
) -> None:
    """The state of a trial, or of all trials, at a glance."""
    from drimed.trial.trial import Trial

    opened = open_store(store, create=False)
    trials = [Trial.open(n, opened) for n in ([name] if name else opened.names())]
    found = [trial.status() for trial in trials]
    if as_json:
        plain = [s.plain() for s in found]
        say_json(plain[0] if name else plain, indent=1)
        return
    columns, states = ("users", "decisions"), ("pending", "partial", "complete", "missing")
    show(
        [
            {"trial": s.name, "status": s.status, "model": s.model, "season": s.season or s.episode}
            | {c: getattr(s, c) for c in columns}
            | {"outcomes": ", ".join(f"{getattr(s, c)} {c}" for c in states if getattr(s, c))}
            for s in found
        ]
    )
    if name and (wrong := _withdrawn(trials[0])):
        say(wrong, "bold")
    if name and found[0].rules_met:
        say(f"stopping rules that are met: {', '.join(found[0].rules_met)}")
    if name and found[0].floor_ended:
        say(f"the floor has ended for {', '.join(found[0].floor_ended)}")
    if name and found[0].halted:
        say(f"{found[0].status}: {found[0].halted}")
    if name and found[0].enrolment == "open":
        say("enrolment is open: asking for somebody new enrols them")
    for text in found[0].notes if name else ():
        note(text)


def _withdrawn(trial: Trial) -> str | None:
    """Which promise of a trial does not hold; it is a check of all outcomes, and made where a person reads."""
    from drimed.reports.checks import withdrawn

    return withdrawn(trial)


def decisions(
    name: Name,
    user: Annotated[str, typer.Option(help="Only for this user.")] = "",
    plot: Annotated[str, typer.Option(help="Only on this plot.")] = "",
    block: Annotated[str, typer.Option(help="Only in this block.")] = "",
    arm: Annotated[str, typer.Option(help="Only this arm.")] = "",
    state: Annotated[str, typer.Option(help="pending, partial, complete, missing or amended.")] = "",
    before: Annotated[int | None, typer.Option(help="Only decisions before this one.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="At most this many of the newest; default: 25 on the screen, all in a file."),
    ] = None,
    blinded: Annotated[
        bool, typer.Option("--blinded", help="For somebody who must not know the arms: without all that tells them.")
    ] = False,
    out: Out = None,
    force: Force = False,
    store: Address = DEFAULT,
) -> None:
    """Decisions with their outcomes, newest first; in a file, oldest first.

    `--state pending --out sheet.csv` is a sheet to fill in.
    """
    if blinded and arm:
        raise InputError("--blinded shows no arms: leave out --arm")
    trial = open_trial(name, store)
    from drimed.trial import blinding as trial_blinding
    from drimed.trial import queries as trial_queries
    from drimed.trial import sheets as trial_sheets
    from drimed.trial.store import SEARCHES, Search

    if state and state not in SEARCHES:
        raise UnknownNameError("state", state, SEARCHES)
    with trial.reading() as (ledger, known):
        wanted = Search(user, arm, state, plot, block)
        most = trial_queries.PAGE if out is None else known.counts.decisions
        found = trial_queries.search(ledger, known, wanted, before=before, limit=limit or max(1, most))
        given = [trial_blinding.blinded_decision(known, d) for d in found.decisions] if blinded else found.decisions
        given = given if out is None else given[::-1]  # people fill in one season after the other
        rows = trial_sheets.to_fill_in(known, given)
    if out is None:
        places = trial_sheets.places_of(given)
        names = ["user", *places, "arm", "code", "state", "reward"]
        unused = {name for name in ("code",) if all(d.code is None for d in given)}
        unused |= {"arm", "reward"} if blinded and not known.opened else set()
        rows = [
            {"decision": d.id, "season": d.season or d.episode} | {n: getattr(d, n) for n in names if n not in unused}
            for d in given
        ]
    empty = trial_sheets.headings(known, blinded=blinded)
    put(rows, out, [d.plain() for d in given], empty, force=force)
    if not given:
        say("no such decisions" + _partial(name, known.counts.partial if state == PENDING else 0))
    if found.before is not None:
        say(f"older decisions: --before {found.before}")


def _partial(name: str, count: int) -> str:
    """Where to look for outcomes of which something is still to come, when none is pending."""
    are = "is" if count == 1 else "are"
    return f"; {count} {are} partial: drimed trial decisions {name} --state partial" if count else ""


def why(
    name: Name,
    decision: Annotated[int, typer.Argument(metavar="DECISION", help="The number of the decision.")],
    store: Address = DEFAULT,
) -> None:
    """Why this arm: what it was estimated to bring, how likely it was, and what the guard did."""
    trial = open_trial(name, store)
    from drimed.trial import queries as trial_queries
    from drimed.trial.explain import explain
    from drimed.trial.seasons import when

    with trial.reading() as (ledger, state):
        found = trial_queries.decision(ledger, state, decision)
        sentences = explain(ledger, state, found)
    where = "" if found.plot is None else f", plot {found.plot}"
    say(f"decision {found.id}, {when(found)}: {found.arm} for {found.user}{where}", "bold")
    for sentence in sentences:
        say(sentence)
    if wrong := _withdrawn(trial):
        from drimed.reports.checks import no_promise

        say(no_promise(wrong))


def log(
    name: Name,
    user: Annotated[str | None, typer.Option(help="Only about this user.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind; repeatable.")] = None,
    decision: Annotated[int | None, typer.Option(help="All events about one decision.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many of the newest events.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, one event on each line, all of them.")] = False,
    store: Address = DEFAULT,
) -> None:
    """The events of a trial, newest last."""
    trial = open_trial(name, store)
    from drimed.trial import queries as trial_queries
    from drimed.trial.events import KINDS

    for k in kind or ():
        if k not in KINDS:
            raise UnknownNameError("kind", k, KINDS)
    if decision is not None:
        with trial.reading() as (ledger, state):
            events = trial_queries.history(ledger, state, decision)
    elif as_json:
        events = list(trial.log(kinds=kind or (), user=user))
    else:
        events = list(trial.log(kinds=kind or (), user=user, limit=limit, newest_first=True))[::-1]
    if as_json:
        for e in events:
            say_json(e.plain())
        return
    show(
        [
            {
                "event": e.seq,
                "time (UTC)": e.time[:16].replace("T", " "),
                "actor": e.actor,
                "kind": e.kind,
                "decision": e.decision,
                "user": e.user,
                "what": summary(e),
            }
            for e in events
        ]
    )


def export(
    name: Name,
    out: Annotated[Path, typer.Option(help="A .csv, .xlsx, .json or .parquet file.")],
    force: Force = False,
    whole: Annotated[bool, typer.Option("--whole", help="Only decisions whose reward is known.")] = False,
    store: Address = DEFAULT,
) -> None:
    """Every decision with its outcome, one row each, and a data dictionary beside it."""
    trial = open_trial(name, store)
    from drimed.trial.export import write

    count = write(trial, out, whole=whole, force=force)
    say(f"wrote {out}: {count} decisions; columns are explained in {out.with_suffix('.dictionary.csv')}")


def report(
    name: Name,
    out: Annotated[Path | None, typer.Option(help="A folder; default: out/trial/NAME, written over.")] = None,
    force: Force = False,
    xlsx: Annotated[bool, typer.Option("--xlsx", help="Its tables as workbooks (.xlsx) and not as CSV.")] = False,
    store: Address = DEFAULT,
) -> None:
    """Write a report as one page: effects, reward against the control, drift, data quality."""
    trial = open_trial(name, store)
    from drimed.reports.page import write_report

    suffix, place = ".xlsx" if xlsx else ".csv", out or Path("out/trial") / name
    page = write_report(trial, place, suffix=suffix, force=force or out is None)
    say(f"Open {page}; tables are beside it")


def anchor(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The trial; default: all.")] = None,
    to: Annotated[Path | None, typer.Option(help="A file to add to; default: print the lines.")] = None,
    store: Address = DEFAULT,
) -> None:
    """Keep where the log stands, on another disk or machine: `verify --anchors` then finds every change before it.

    A line has a time, the trial, the number of an event and its hash. The file gets each episode that it does not have
    yet, and the last event.
    """
    from drimed.records import Head
    from drimed.trial import anchors as trial_anchors
    from drimed.trial.events import now

    opened = open_store(store, create=False)
    known = trial_anchors.load(to) if to is not None and to.exists() else []
    new = []
    for one in [name] if name else opened.names():
        with opened.reading(one) as ledger:
            new += list(
                trial_anchors.missing(ledger, known, now())
                if to is not None
                else [Head(ledger.name, ledger.seq, ledger.hash, now())]
            )
    if to is None:
        for head in new:
            typer.echo(trial_anchors.line(head))
        return
    trial_anchors.append(to, new)
    say(f"added {len(new)} line{'' if len(new) == 1 else 's'} to {to}")


def verify(
    name: Name,
    expect: Annotated[str | None, typer.Option(help="A hash shown earlier: it must still be in the log.")] = None,
    anchored: Annotated[
        Path | None, typer.Option("--anchors", help="A file of `drimed trial anchor`: its hashes must be in the log.")
    ] = None,
    store: Address = DEFAULT,
) -> None:
    """Replay the whole trial from its log: the chain must hold, every event must be one that could have been recorded
    there, and every decision must be reproduced."""
    from drimed.trial import anchors as trial_anchors
    from drimed.trial.verify import verify as check

    opened = open_store(store, create=False)
    kept = [] if anchored is None else [head for head in trial_anchors.load(anchored) if head.trial == name]
    if anchored is not None and not kept:
        raise InputError(f"{anchored} has no anchor of trial {name!r}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("events")
        proof = check(
            opened,
            name,
            expected_hash=expect,
            anchors=kept,
            progress=lambda n, of: progress.update(bar, completed=n, total=of),
        )
    for fault in proof.faults:
        say(f"fault: {fault}", "bold red")
    replayed = f"{proof.exact} of {proof.decisions} decisions reproduced to the last bit"
    if proof.rounded:
        replayed += f", {proof.rounded} to round-off (another machine or library)"
    if proof.looks:
        replayed += f"; {proof.looks} look{'' if proof.looks == 1 else 's'} taken again"
    say(f"{proof.events} events; {replayed}; last hash {proof.hash}")
    if proof.faults:
        raise typer.Exit(1)
    if proof.unchecked is not None:
        say(proof.unchecked, "yellow")
        say("every event is in its place and unchanged, as far as the hashes show; the rest is not proved")
        raise typer.Exit(NOT_PROVED)
    say("the log is intact", "green")
    if kept:
        last = max(kept, key=lambda head: head.event)
        say(
            f"{proof.anchors} anchors hold: nothing up to event {last.event} was changed since {last.time[:16]} UTC",
            "green",
        )


def summary(event: Event) -> str:
    """An event in a few words."""
    body = event.body
    parts = [str(body["arm"])] if "arm" in body else []
    if event.kind == "revealed":
        parts.append(f"decision {body['decision']}" if "decision" in body else "all decisions")
    if body.get("plot") is not None:
        parts.append(f"plot {body['plot']}" + (f" in block {body['block']}" if body.get("block") else ""))
    if event.kind == "user":
        known = body["definition"].get("attributes") or {}
        parts += [f"{name} = {value}" for name, value in known.items()]
    if body.get("propensity") is not None:
        parts.append(f"p = {body['propensity']:.3g}")
    if "outcome" in body:
        parts += [f"{name} = {value:g}" for name, value in body["outcome"]["metrics"].items()]
        old = (body["was"] or {}).get("metrics", {})
        if event.kind == "amendment":
            parts += [f"(was {name} = {value:g})" for name, value in old.items()]
    if "preference" in body:
        parts += [f"{name} = {value:g}" for name, value in body["preference"].items()]
    if event.kind == "episode":
        parts.append(f"season {body['name']}" if "name" in body else f"episode {body['episode']}")
        parts += [str(body["date"])] if "date" in body else []
    if event.kind == "look":
        met = [said["rule"] for said in body["rules"] if any(claim["met"] for claim in said["claims"])]
        parts.append(f"rules met: {', '.join(met)}" if met else "no rule is met")
        parts += [f"the trial is {body['demands']['kind']}"] if body["demands"] else []
    if event.kind == "rules":
        parts.append(f"stopping rules: {', '.join(body['stopping'].get('rules', {})) or 'none'}")
    if body.get("reason") and event.kind != "decision":
        parts.append(f"reason: {body['reason']}")
    return ", ".join(parts)


# `drimed trial rehearse`: what a trial will do, before anybody is in it.

QUICK = 100  # trials


def rehearse(
    file: Annotated[Path, typer.Argument(help="The trial file, .toml or .json; it may have scenarios of its own.")],
    scenarios: Annotated[Path | None, typer.Option(help="A file with scenarios, instead.")] = None,
    history: Annotated[
        Path | None, typer.Option(help="A table of the past: season, site, arm and metrics; .csv, .xlsx or .json.")
    ] = None,
    trials: Annotated[int, typer.Option(min=2, help="Simulated trials of each scenario.")] = 1000,
    seasons: Annotated[int | None, typer.Option(min=1, help="Seasons, whatever the scenarios say.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all draws.")] = 0,
    quick: Annotated[bool, typer.Option(help=f"{QUICK} trials, and few other designs.")] = False,
    find: Annotated[str | None, typer.Option(help="The smallest of: seasons, tolerance, floor.")] = None,
    goal: Annotated[str | None, typer.Option("--for", help='What it must reach: "power 0.8".')] = None,
    scenario: Annotated[str | None, typer.Option(help="Of --find. Default: the first with an effect.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes; -1 for all cores.")] = -1,
    cluster: Annotated[str | None, typer.Option(help="Run on a cluster instead: dask=tcp://host:port.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the page goes. Default: out/rehearsal/TRIAL, written over.")
    ] = None,
    force: Force = False,
) -> None:
    """Simulate a trial many times: what it finds, whom it harms, and how long it stays on the control.

    Finished blocks are kept under OUT/blocks: an interrupted rehearsal continues where it stopped.
    """
    from drimed.rehearsal import designs
    from drimed.rehearsal.page import Results, write
    from drimed.simulation.sweep import Cluster

    if (find is None) != (goal is None):
        raise InputError('--find and --for belong together, such as --find seasons --for "power 0.8"')
    most = QUICK if quick else trials
    plan = designs.Plan.of_files(
        file, scenarios, history, every_design=not quick, trials=min(trials, most), seasons=seasons, seed=seed
    )
    wanted = scenario or plan.main
    if wanted not in plan.scenarios:
        raise InputError(f"no scenario {wanted!r}; there are {', '.join(plan.scenarios)}")
    place = out or Path("out") / "rehearsal" / plan.spec.name
    how: dict[str, Any] = {"jobs": jobs, "cluster": Cluster.parse(cluster) if cluster else None}
    answer = None
    try:
        if find is not None and goal is not None:
            aim = designs.Goal.parse(goal)
            with _progress(f"finding {find}") as done:
                answer = designs.find(find, aim, plan, wanted, place / "blocks", on_done=done, **how)
            say(answer.text())
        with _progress("rehearsing") as done:
            records = plan.run(place / "blocks", on_done=done, **how)
    except KeyboardInterrupt:
        say(f"interrupted; finished blocks are kept in {place / 'blocks'}: the same command continues")
        raise typer.Exit(130) from None
    results = Results(plan, records, answer)
    show(results.summary())
    for sentence in results.verdict():
        (note if sentence.warns else say)(sentence.text)
    say(f"wrote {write(results, place, force=force or out is None)}")


@contextmanager
def _progress(what: str) -> Iterator[OnDone]:
    """A bar of simulated trials."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("trials"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done: progress.update(task, completed=done.finished_seeds, total=done.seeds)


# From a file to outcomes: template, init, tell, amend, missing. (`ask` has a file of its own.)

ALREADY = "already recorded"  # what a receipt says of values that are there
MOST_NAMED_season = 5  # decisions without an outcome


def template(
    out: Annotated[Path | None, typer.Option(help="Where to write it; default: show it.")] = None,
    force: Force = False,
) -> None:
    """Write a commented example of a trial file."""
    from drimed.trial import template as example

    if out is None:
        typer.echo(example())
    else:
        outputs.put(out, example().encode(), force=force)
        say(f"wrote {out}; edit it, then: drimed trial init {out}")


def init(
    file: Annotated[Path, typer.Argument(help="The trial file, .toml or .json.")],
    rehearse: Annotated[bool, typer.Option(help="Simulate it for a second or two first.")] = True,
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Check a trial file, say what a quick rehearsal shows, and create the trial."""
    from drimed.rehearsal import scenarios as rehearsal_scenarios
    from drimed.rehearsal.designs import quick
    from drimed.trial.policy import notes
    from drimed.trial.problem import Problem
    from drimed.trial.trial import Trial

    spec, worlds = rehearsal_scenarios.load(file)
    seen, said = quick(spec, worlds) if rehearse else (None, [])
    for text in [*notes(spec, Problem(spec).shape.d), *said]:
        note(text)
    size = f"{len(spec.arms)} arms, {len(spec.users)} users, {len(spec.metrics)} metrics"
    if dry_run:
        say(f"{file} is valid: trial {spec.name!r}, {size}{NOTHING_WRITTEN}")
        return
    Trial.create(spec, open_store(store), actor=actor_name(actor), rehearsal=seen)
    say(f"created trial {spec.name} in {store}: {size}. Next: drimed trial ask {spec.name}")


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
    trial = open_trial(name, store, actor)
    from drimed.records import Report, TellRequest
    from drimed.trial import sheets as trial_sheets
    from drimed.trial import tell as trial_tell

    table = read_sheet(sheet) if sheet is not None else None

    def record(confirm: bool) -> tuple[list[Receipt], list[Decision], int]:
        """Receipts, what the sheet has no outcome of, and how many decisions are pending after it."""
        with trial.writing(dry_run=dry_run) as tx:
            if table is None:
                report = Report(int(decision or 0), values(value), values(control) if control else None)
                told = trial_tell.tell(tx, TellRequest(reports=[report], confirm=confirm))
                empty = []
            else:
                told = trial_sheets.tell_sheet(tx, table, ignore=ignore or (), confirm=confirm)
                empty = trial_sheets.still_empty(tx, table, told, ignore or ())
            return told, empty, tx.state.counts.pending

    receipts, empty, pending = confirming(record, yes)
    results = [_done(r, dry_run) for r in receipts]
    said = ", ".join(f"{results.count(result)} {result}" for result in dict.fromkeys(results))
    said += _to_come(receipts, trial.state())
    if empty:
        said += f"; {counted(len(empty), 'row')} {'has' if len(empty) == 1 else 'have'} no outcome yet: {_named(empty)}"
    say(said + (NOTHING_WRITTEN if dry_run else ""))
    if waits := [r for r in receipts if r.waits_for]:
        needs = ", ".join(waits[0].waits_for)
        what = f"{len(waits)} {'would be ' if dry_run else ''}recorded but not learned from yet"
        say(f"{what}: decision {waits[0].decision} waits for {needs}")
    if not dry_run and pending > len(empty):
        others = counted(pending - len(empty), "other outcome" if empty else "outcome")
        how = f"drimed trial decisions {name} --state pending"
        say(f"{others} of the trial {'is' if pending - len(empty) == 1 else 'are'} still to come: {how}")


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
    from drimed.trial.names import control_plot

    trial, plots = open_trial(name, store, actor), values(control) if control else None

    def record(confirm: bool) -> list[Receipt]:
        new, seen = values(amended), values(saw) if saw else None
        words: dict[str, Any] = {"control": plots, "saw": seen, "confirm": confirm, "dry_run": dry_run}
        return [trial.amend(decision, new, reason=reason, **words)]

    (receipt,) = confirming(record, yes)
    told = [f"{m} = {v:.12g}" for m, v in (receipt.outcome or {}).items()]
    told += [f"{control_plot(m)} = {v:.12g}" for m, v in (receipt.control or {}).items()]
    result = _done(receipt, dry_run)
    say(f"decision {decision}: {result}, now {', '.join(told) or receipt.state}" + (NOTHING_WRITTEN if dry_run else ""))


def missing(
    name: Name,
    decision: Annotated[int, typer.Option(help="Which decision.")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
    dry_run: Dry = False,
) -> None:
    """Mark an outcome, or the rest of a partial one, as missing."""
    receipt = open_trial(name, store, actor).mark_missing(decision, reason=reason, dry_run=dry_run)
    say(f"decision {decision}: {_done(receipt, dry_run)}" + (NOTHING_WRITTEN if dry_run else ""))


def _done(receipt: Receipt, dry_run: bool) -> str:
    """What was done, or would be; what is recorded already stays so."""
    return f"would be {receipt.result}" if dry_run and receipt.result != ALREADY else receipt.result


def _to_come(receipts: Sequence[Receipt], state: TrialState) -> str:
    """Which values of partial outcomes are still to come."""
    from drimed.records import PARTIAL
    from drimed.trial.names import control_plot

    partial = [r for r in receipts if r.state == PARTIAL]
    if not partial:
        return ""
    metrics, beside = state.problem.metrics, state.spec.feedback == "difference"
    said = []
    for receipt in partial:
        names = [m for m in metrics if m not in (receipt.outcome or {})]
        names += [control_plot(m) for m in metrics if beside and m not in (receipt.control or {})]
        said.append(f"decision {receipt.decision} has no {' and no '.join(names)} yet")
    return f"; {len(partial)} {'is' if len(partial) == 1 else 'are'} partial: {listed(said, MOST_NAMED_season, ', ')}"


def _named(decisions: Sequence[Decision]) -> str:
    """Some of these decisions, with the place of each."""
    places = ((d.id, ", ".join(filter(None, (d.user, f"plot {d.plot}" if d.plot else "")))) for d in decisions)
    return listed([f"decision {number} ({place})" for number, place in places], MOST_NAMED_season, ", ")


trial = typer.Typer(help="Live trials: ask, tell, and never lose a decision.", no_args_is_help=True)
for verb in (
    template, rehearse, init, ask, tell, amend, missing,
    status, decisions, why, log, export, verify, anchor,
    report,
    add_user, add_arm, retire_arm, prefer, control, pause,
    resume, stop, reveal, look, rules,
):  # fmt: skip
    trial.command()(verb)
