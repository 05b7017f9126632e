"""`drimed policies`: what there is to choose from."""

from __future__ import annotations

import json

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from drimed.policies.registry import REGISTRY, offered


def policies(as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table.")) -> None:
    """List the policies, with their source and the information each one uses."""
    rows = [{"name": e.name, "about": e.about, "reference": e.reference, "uses": e.uses} for e in REGISTRY.values()]
    # What other packages offer is not imported for a list.
    rows += [{"name": n, "about": f"installed: {place}", "reference": "", "uses": ""} for n, place in offered().items()]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    columns = (Column(title, overflow="fold") for title in ("what it does", "reference", "what it uses"))
    table = Table(Column("name", no_wrap=True), *columns, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(f"[bold]{escape(row['name'])}[/]", *map(escape, (row["about"], row["reference"], row["uses"])))
    Console().print(table)
