"""The `drimed` command."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from drimed.cli.bench import bench
from drimed.cli.evaluate import evaluate
from drimed.cli.policies import policies
from drimed.cli.reproduce import reproduce
from drimed.errors import DrimedError, MissingExtraError

app = typer.Typer(
    help="Experiments that learn which treatment is best for each user, and keep every user about as well off as "
    "under the control.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command()(reproduce)
app.command()(bench)
app.command()(policies)
app.command()(evaluate)

try:
    from drimed.cli.trial import app as trials
except MissingExtraError as missing:
    lacking = missing

    @app.command()
    def trial() -> None:
        """Live trials; needs the extra `trial`."""
        raise lacking
else:
    app.add_typer(trials, name="trial")


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    """Top-level options."""
    if show:
        from drimed import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run a command; an error of drimed's own is told in one line, without a traceback."""
    try:
        app()
    except DrimedError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
