"""The `drimed` command. A verb's module is imported when the verb is used: help and small verbs start at once."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from drimed.errors import DrimedError, MissingExtraError
from drimed.numerics.compiled import COLD, log


class Verb(NamedTuple):
    module: str  # of drimed.cli; it has the command under the verb's name
    extra: str  # what brings the packages that it needs
    about: str


VERBS = {
    "reproduce": Verb("simulate", "sim", "Re-measure every experiment of the paper, and judge its claims one by one."),
    "bench": Verb("simulate", "sim", "Measure regret, violations and speed of policies on a suite of worlds."),
    "policies": Verb("simulate", "", "List the policies, with their source and the information each one uses."),
    "evaluate": Verb("evaluate", "evaluation", "Estimate what other policies would have earned on a log."),
    "trial": Verb("trial", "trial", "Live trials: ask, tell, and never lose a decision."),
    "warm": Verb("trial", "trial", "Prepare the numerical code now: for images, and before a first use."),
    "serve": Verb("serve", "service", "Serve trials over HTTP."),
    "token": Verb("serve", "service", "Tokens for the service: make, list and revoke them."),
}


class _Verbs(TyperGroup):
    """Holds a name and a line of help for each verb, and loads the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else load(name), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            verb, missing = VERBS.get(str(ctx.invoked_subcommand)), str(error.name)
            if verb is None or not verb.extra or missing.startswith("drimed"):
                raise
            raise MissingExtraError(missing, verb.extra) from error


def load(name: str) -> Any:
    """The whole of a verb, from its module: a function, or a group of them."""
    verb, holder = getattr(import_module(f"drimed.cli.{VERBS[name].module}"), name), typer.Typer(add_completion=False)
    holder.callback()(lambda: None)
    if isinstance(verb, typer.Typer):
        holder.add_typer(verb, name=name)
    else:
        holder.command(name)(verb)
    group: Any = get_command(holder)
    return group.commands[name]


app = typer.Typer(
    cls=_Verbs,
    help="Experiments that learn which treatment is best for each user, and keep every user about as well off as "
    "under the control.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
for _name, _verb in VERBS.items():
    app.command(_name, help=_verb.about)(lambda: None)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    """Top-level options."""
    if show:
        from drimed import __version__

        typer.echo(__version__)
        raise typer.Exit


class _Compiling(logging.StreamHandler[Any]):
    """One line on stderr while the numerical code is compiled for the first time, to explain what takes so long.

    A trial needs all of that code sooner or later: another process begins with its largest part.
    """

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if record.msg == COLD and sys.argv[1:2] == ["trial"]:
            import subprocess  # here, because most commands do not need it

            self.beside = subprocess.Popen(
                [sys.executable, "-m", "drimed.cli.main", "warm"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip


def _tell_of_compiling() -> None:
    if not log.handlers:
        log.addHandler(_Compiling())
        log.setLevel(logging.INFO)


def main() -> None:
    """Run a command; an error of drimed's own is told in one line, without a traceback."""
    from drimed.policies.registry import look_here

    look_here()
    _tell_of_compiling()
    try:
        app()
    except DrimedError as error:
        from rich.console import Console

        from drimed.formatting import visible

        console = Console(stderr=True)
        console.print("[bold red]error:[/]", end=" ")
        console.print(visible(str(error)), highlight=False, markup=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
