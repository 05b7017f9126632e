"""`drimed token`: who may use the service."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from drimed.errors import MissingExtraError

try:
    from drimed.service import tokens
    from drimed.trial.events import now
    from drimed.trial.stores.opening import DEFAULT, open_store
except ModuleNotFoundError as error:  # the base install leaves the service out
    raise MissingExtraError(str(error.name), "service") from error

app = typer.Typer(help="Tokens for the service: make, list and revoke them.", no_args_is_help=True)
console = Console()

Address = Annotated[
    str, typer.Option("--store", envvar="DRIMED_STORE", help="A SQLite file, or postgresql://user@host/database.")
]


@app.command()
def create(
    label: Annotated[str, typer.Option(help="Who acts with it; the log shows this name.")],
    role: Annotated[str, typer.Option(help="read, ask-tell (also asks and tells) or manage (also changes trials).")],
    trial: Annotated[str | None, typer.Option(help="The only trial it is for; default: all.")] = None,
    days: Annotated[float | None, typer.Option(help="How long it is good for; default: until it is revoked.")] = None,
    store: Address = DEFAULT,
) -> None:
    """Make a token. It is shown once: the store keeps a hash of it only."""
    opened = open_store(store)
    token, text = tokens.create(opened, label=label, role=role, trial=trial, days=days)
    if trial is not None and trial not in opened.names():
        typer.echo(f"note: there is no trial {trial!r} yet", err=True)
    until = f" until {token.expires[:16].replace('T', ' ')} UTC" if token.expires else ""
    typer.echo(f"{role} on {trial or 'all trials'}{until}; keep it, it is not shown again:", err=True)
    typer.echo(text)
    opened.close()


@app.command("list")
def listed(store: Address = DEFAULT) -> None:
    """Show every token there has been; not the tokens themselves."""
    opened = open_store(store, create=False)
    table, moment = Table("id", "label", "role", "trial", "created (UTC)", "expires (UTC)", "state"), now()
    for token in tokens.listed(opened):
        times = (t[:16].replace("T", " ") if t else "" for t in (token.created, token.expires))
        table.add_row(token.id, token.label, token.role, token.trial or "all", *times, token.state(moment))
    console.print(table)
    opened.close()


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="LABEL", help="The label or the id of a token.")],
    store: Address = DEFAULT,
) -> None:
    """Never accept a token again. A running service notices within seconds."""
    opened = open_store(store, create=False)
    token = tokens.revoke(opened, name)
    console.print(f"token {token.label!r} ({token.id}) is revoked")
    opened.close()
