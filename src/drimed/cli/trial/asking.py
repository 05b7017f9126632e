"""`drimed trial ask`: for the users of a sheet, for one, or for all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drimed import outputs
from drimed.cli.trial import common
from drimed.cli.trial.common import NOTHING_DRAWN, Address, Attributes, CohortName, Force, Name, Out, Who, Yes
from drimed.errors import InputError
from drimed.formatting import counted
from drimed.trial.stores import DEFAULT

if TYPE_CHECKING:
    from drimed.records import Decision
    from drimed.trial.transaction import Transaction


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
    about: dict[str, Any] = {"attributes": common.texts(attribute), "context": common.texts(context), "cohort": cohort}
    about |= {"plots": plot, "block": block}
    if any(about.values()) and (sheet is not None or len(user or ()) != 1):
        options = "--attribute, --cohort, --context, --plot and --block"
        raise InputError(f"{options} are about one user: give one --user and no sheet")
    if block is not None and not plot:
        raise InputError("--block needs --plot: a decision is for a plot of the block")
    if out is not None:
        outputs.check_free(out, force=force)
    trial = common.open_trial(name, store, actor)
    when: dict[str, Any] = {"episode": episode, "season": season, "date": date}
    from drimed.trial import enrolling, roster, seasons, sheets
    from drimed.trial.columns import Columns

    table = common.read_sheet(sheet) if sheet else None
    if table is not None and not table.rows:
        raise InputError(f"{sheet} has no rows; it needs a column 'user' and one for each context field")

    lacking: dict[str, int] = {}

    def decide(confirm: bool) -> list[Decision]:
        def act(tx: Transaction) -> list[Decision]:
            known = set(tx.state.users)
            if table is not None:
                made = roster.ask(tx, table, users=user, ignore=ignore or (), key=key, confirm=confirm, **when)
            else:
                made = _without_sheet(tx, user, about, {"key": key, "confirm": confirm}, **when)
            lacking.clear()
            lacking.update(enrolling.lacking(tx.state, {d.user for d in made} - known))
            return made

        return trial.decide(act, dry_run=dry_run)

    found = common.confirming(decide, yes)
    state = trial.state()
    season_said = seasons.when(found[0])
    if out is None or dry_run:
        rows = sheets.decision_rows(Columns.of(state.problem), found)
        rows = _with_chances(rows, found) if dry_run else rows
        rows = [_with_season(row) for row in rows] if out is None else rows
    else:
        rows = sheets.to_fill_in(state, found)
    try:
        common.put(rows, out, [d.plain() for d in found], force=force)
    except InputError as error:
        if dry_run:
            raise
        kept = f"{counted(len(found), 'decision')} of {season_said} {'is' if len(found) == 1 else 'are'}"
        raise InputError(f"{error}. The {kept} recorded all the same: repeat this to get the sheet") from None
    if out is not None and not dry_run:
        common.say(f"log: event {state.seq}, hash {state.hash}")
    again = sum(d.repeated for d in found)
    decided = f"{len(found) - again} {'would be ' if dry_run else ''}decided"
    decided += f", {again} decided before" if again else ""
    common.say(f"{decided}; {season_said}" + (NOTHING_DRAWN if dry_run else ""))
    common.say_typical(state, lacking)


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
    from drimed.trial import asking, roster, seasons

    state = tx.state
    episode = seasons.meant(state, when["season"], when["episode"])
    if state.problem.fields and not about["context"] and episode not in (None, state.episode.number):
        raise InputError(
            f"season {episode} begins with the contexts of its users; give a sheet with the columns "
            f"user, {', '.join(state.problem.fields)}, or ask for one with --user and --context"
        )
    words: dict[str, Any] = {**when, **how}
    users = None if users is None else [asking.known_name(state, user) for user in users]
    if users and len(users) == 1:
        (one,) = users
        if about["context"]:
            words["contexts"] = {one: roster.described(state, about["context"])}
        if about["attributes"] or about["cohort"]:
            words["enrol"] = {
                one: {"attributes": roster.described(state, about["attributes"]), "cohort": about["cohort"]}
            }
        if about["plots"]:
            words["plots"] = {one: {about["block"]: about["plots"]} if about["block"] else about["plots"]}
    return asking.ask(tx, AskRequest(users=users, **words))
