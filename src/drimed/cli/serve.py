"""`drimed serve`: trials over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

app = typer.Typer(add_completion=False)
console = Console(stderr=True)


@app.command()
def serve(
    store: Annotated[str | None, typer.Option(help="A SQLite file, or postgresql://user@host/database.")] = None,
    host: Annotated[str | None, typer.Option(help="Where to listen; beyond 127.0.0.1 only with tokens.")] = None,
    port: Annotated[int | None, typer.Option(help="Where to listen.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes.")] = None,
    threads: Annotated[int | None, typer.Option(help="For reading, and as many for writing, in each process.")] = None,
    largest_body: Annotated[int | None, typer.Option(help="Largest request, in bytes.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second for a token and process; 0: any.")] = None,
    burst: Annotated[int | None, typer.Option(help="Requests that a token may make at once.")] = None,
    keep_answers: Annotated[float | None, typer.Option(help="Hours for which repeated writes are recognised.")] = None,
    grace: Annotated[int | None, typer.Option(help="Seconds to finish running requests when stopping.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    config: Annotated[
        Path | None, typer.Option(envvar="DRIMED_CONFIG", help="A TOML file with the same settings.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Fill an empty store with a simulated trial first.")] = False,
) -> None:
    """Serve trials over HTTP.

    Every setting can also come from the environment (DRIMED_STORE, DRIMED_PORT, ...) or from the file.
    """
    from drimed.service import running  # a second that help does not need
    from drimed.service.settings import Settings

    flags = {
        "store": store,
        "host": host,
        "port": port,
        "workers": workers,
        "threads": threads,
        "largest_body": largest_body,
        "rate": rate,
        "burst": burst,
        "keep_answers": keep_answers,
        "grace": grace,
        "log_level": log_level,
    }
    settings = Settings.resolve(flags, os.environ, config)
    prepared = running.prepare(settings, with_demo=demo)
    if prepared.filled:
        console.print(f"simulated a trial: [bold]{prepared.filled}[/]")
    elif demo:
        console.print("the store has trials already; nothing was simulated")
    if prepared.open:
        console.print(
            "[yellow]note:[/] there are no tokens, so every program on this machine may do everything, as 'local'; "
            f"close it with: {escape(running.how_to(settings.store))}",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"serving on http://{settings.host}:{settings.port} (description: /v1/openapi.json)", highlight=False)
    running.run(settings)


if __name__ == "__main__":
    app()
