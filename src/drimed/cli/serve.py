"""`drimed serve` and `drimed token`: trials over HTTP, and who may use them."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from drimed.cli import console as common
from drimed.formatting import moment
from drimed.trial.events import now

if TYPE_CHECKING:
    from drimed.trial.store import Store

token = typer.Typer(help="Tokens for the service: make, list and revoke them.", no_args_is_help=True)
errors = Console(stderr=True)

ROLES = (
    "read, ask-tell (also asks and tells), manage (also changes trials), blinded (tells, sees no arms) or ask-blinded "
    "(asks too, sees codes)."
)
Address = Annotated[str | None, typer.Option("--store", help="The store, given as for `drimed serve`.")]
Config = Annotated[Path | None, typer.Option(envvar="DRIMED_CONFIG", help="The settings file of `drimed serve`.")]


def serve(
    store: Annotated[str | None, typer.Option(help="A SQLite file, or postgresql://user@host/database.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; others than 127.0.0.1 need tokens.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads for reads, and for writes, in each process.")] = None,
    largest_body: Annotated[int | None, typer.Option(help="Largest request, in bytes.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second per token and process; 0: no limit.")] = None,
    burst: Annotated[int | None, typer.Option(help="Requests that a token may make in one burst.")] = None,
    keep_answers: Annotated[float | None, typer.Option(help="Hours for which idempotency keys are remembered.")] = None,
    connections: Annotated[int | None, typer.Option(help="Connections at once, in each process.")] = None,
    connections_per_address: Annotated[int | None, typer.Option(help="Of these, from one address.")] = None,
    proxies: Annotated[
        str | None, typer.Option(help="Addresses of reverse proxies, with commas; they say who asks.")
    ] = None,
    grace: Annotated[int | None, typer.Option(help="Seconds to finish running requests when stopping.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    anchors: Annotated[str | None, typer.Option(help="A file that gets each episode's hash; default: none.")] = None,
    config: Annotated[Path | None, typer.Option(envvar="DRIMED_CONFIG", help="A TOML file of settings.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Simulate a trial first, if the store is empty.")] = False,
) -> None:
    """Serve trials over HTTP.

    Every setting can also come from the environment (DRIMED_STORE, DRIMED_BURST, ...) or from the file.
    """
    flags = {name: value for name, value in locals().items() if name not in ("config", "demo")}
    from drimed.service import app, auth  # a second that help does not need
    from drimed.service.demo import show
    from drimed.service.settings import Settings

    settings = Settings.resolve(flags, os.environ, config)
    guarded = app.check_access(settings)
    if demo:
        with closing(common.open_store(settings.store, create=True)) as opened:
            errors.print(Text(show(opened, settings.store)), soft_wrap=True)
    if not guarded:
        open_to_all = "there are no tokens, so every program on this machine may do everything, as 'local'"
        hint = escape(f"{open_to_all}; close it with: {auth.how_to(settings.store)}")
        errors.print(f"[yellow]note:[/] {hint}", highlight=False, soft_wrap=True)
    errors.print(f"serving on http://{settings.host}:{settings.port} (description: /v1/openapi.json)", highlight=False)
    app.run(settings)


@token.command()
def create(
    label: Annotated[str, typer.Option(help="Who acts with it; the log shows this name.")],
    role: Annotated[str, typer.Option(help=ROLES)],
    trial: Annotated[str | None, typer.Option(help="Only for this trial; default: for all.")] = None,
    days: Annotated[float | None, typer.Option(help="Days until it expires; default: never.")] = None,
    store: Address = None,
    config: Config = None,
    actor: common.Who = None,
) -> None:
    """Make a token. It is shown once; the store keeps only its hash."""
    from drimed.service import auth

    with _opened(store, config, create=True) as opened:
        made, text = auth.create_token(
            opened, label=label, role=role, trial=trial, days=days, actor=common.actor_name(actor)
        )
        if trial is not None and trial not in opened.names():
            typer.echo(f"note: there is no trial {trial!r} yet", err=True)
    until = f" until {moment(made.expires)}" if made.expires else ""
    typer.echo(f"{role} on {trial or 'all trials'}{until}; keep it, it is not shown again:", err=True)
    typer.echo(text)


@token.command("list")
def listed(store: Address = None, config: Config = None) -> None:
    """List all tokens, also revoked ones, without their secrets."""
    from drimed.service import auth

    with _opened(store, config) as opened:
        tokens = auth.list_tokens(opened)
    common.show([
        {"id": t.id, "label": t.label, "role": t.role, "trial": t.trial or "all", "created": moment(t.created)}
        | {"by": t.created_by, "expires": moment(t.expires) if t.expires else None}
        | {"state": t.state(now()) + (f" by {t.revoked_by}" if t.revoked_by else "")}
        for t in tokens
    ])  # fmt: skip


@token.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="LABEL", help="The label or the id of a token.")],
    store: Address = None,
    config: Config = None,
    actor: common.Who = None,
) -> None:
    """Revoke a token. A running service refuses it within seconds."""
    from drimed.service import auth

    with _opened(store, config) as opened:
        revoked = auth.revoke_token(opened, name, actor=common.actor_name(actor))
    common.say(f"token {revoked.label!r} ({revoked.id}) is revoked")


def _opened(store: str | None, config: Path | None, *, create: bool = False) -> closing[Store]:
    from drimed.service.settings import Settings

    return closing(common.open_store(Settings.resolve({"store": store}, os.environ, config).store, create=create))
