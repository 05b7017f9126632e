"""The `drimed` command."""

from __future__ import annotations

import sys
from importlib import import_module

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


def _offer(module: str, name: str, *, group: bool, about: str) -> None:
    """A command whose own dependencies may not be installed: then it says which extra brings them."""
    try:
        loaded = import_module(module)
    except MissingExtraError as error:
        lacking = error

        @app.command(name, help=about, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
        def refuse() -> None:
            raise lacking

        return
    if group:
        app.add_typer(loaded.app, name=name)
    else:
        app.command(name)(getattr(loaded, name))


_offer("drimed.cli.trial", "trial", group=True, about="Live trials; needs the extra `trial`.")
_offer("drimed.cli.serve", "serve", group=False, about="Trials over HTTP; needs the extra `service`.")
_offer("drimed.cli.token", "token", group=True, about="Tokens for the service; needs the extra `service`.")


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
        console = Console(stderr=True)
        console.print("[bold red]error:[/]", end=" ")
        console.print(str(error), highlight=False, markup=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
