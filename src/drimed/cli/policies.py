"""`drimed policies`: what there is to choose from."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.table import Table

from drimed.policies.registry import REGISTRY


def policies(as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table.")) -> None:
    """List the policies, with their source and the information each one uses."""
    if as_json:
        rows = [{"name": e.name, "about": e.about, "reference": e.reference, "uses": e.uses} for e in REGISTRY.values()]
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table("name", "what it does", "reference", "what it uses")
    for e in REGISTRY.values():
        table.add_row(f"[bold]{e.name}[/]", e.about, e.reference, e.uses)
    Console().print(table)
