"""`drimed token`: who may use the service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from drimed.trial.events import now
from drimed.trial.stores import open_store

app = typer.Typer(help="Tokens for the service: make, list and revoke them.", no_args_is_help=True)
console = Console()
# What a narrow terminal must not break: ids, roles, days, states; labels and trials go on in the next line.
COLUMNS = {"id": 8, "label": 5, "role": 8, "trial": 5, "created (UTC)": 10, "expires (UTC)": 10, "state": 7}

Address = Annotated[
    str | None,
    typer.Option("--store", help="A SQLite file, or postgresql://user@host/database; or DRIMED_STORE, or in --config."),
]
Config = Annotated[
    Path | None, typer.Option(envvar="DRIMED_CONFIG", help="The TOML file that `drimed serve` has its settings from.")
]


@app.command()
def create(
    label: Annotated[str, typer.Option(help="Who acts with it; the log shows this name.")],
    role: Annotated[str, typer.Option(help="read, ask-tell (also asks and tells) or manage (also changes trials).")],
    trial: Annotated[str | None, typer.Option(help="The only trial it is for; default: all.")] = None,
    days: Annotated[float | None, typer.Option(help="How long it is good for; default: until it is revoked.")] = None,
    store: Address = None,
    config: Config = None,
) -> None:
    """Make a token. It is shown once: the store keeps a hash of it only."""
    from drimed.service import tokens

    opened = open_store(_address(store, config))
    token, text = tokens.create(opened, label=label, role=role, trial=trial, days=days)
    if trial is not None and trial not in opened.names():
        typer.echo(f"note: there is no trial {trial!r} yet", err=True)
    until = f" until {token.expires[:16].replace('T', ' ')} UTC" if token.expires else ""
    typer.echo(f"{role} on {trial or 'all trials'}{until}; keep it, it is not shown again:", err=True)
    typer.echo(text)
    opened.close()


@app.command("list")
def listed(store: Address = None, config: Config = None) -> None:
    """Show every token there has been; not the tokens themselves."""
    from drimed.service import tokens

    opened = open_store(_address(store, config), create=False)
    table, moment = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0)), now()
    for name, width in COLUMNS.items():
        table.add_column(name, min_width=width, overflow="fold")
    for token in tokens.listed(opened):
        times = (t[:16].replace("T", " ") if t else "" for t in (token.created, token.expires))
        table.add_row(token.id, token.label, token.role, token.trial or "all", *times, token.state(moment))
    console.print(table)
    opened.close()


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="LABEL", help="The label or the id of a token.")],
    store: Address = None,
    config: Config = None,
) -> None:
    """Never accept a token again. A running service notices within seconds."""
    from drimed.service import tokens

    opened = open_store(_address(store, config), create=False)
    token = tokens.revoke(opened, name)
    console.print(f"token {token.label!r} ({token.id}) is revoked")
    opened.close()


def _address(store: str | None, config: Path | None) -> str:
    """The store that `drimed serve` would serve here."""
    from drimed.service.settings import Settings

    return Settings.resolve({"store": store}, os.environ, config).store
