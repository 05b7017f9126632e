"""Stopping rules: look at them, and change them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drimed.cli.trial import common
from drimed.cli.trial.common import Address, Dry, Name, Who, Why
from drimed.errors import InputError
from drimed.trial.stores import DEFAULT

if TYPE_CHECKING:
    from drimed.records import Claim, Look


def look(
    name: Name,
    dry_run: Dry = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Look at the stopping rules: what each says, and how far it is from being met. The look is recorded."""
    from drimed.trial import seasons

    trial = common.open_trial(name, store, actor)
    found = trial.look(dry_run=dry_run)
    if as_json:
        common.say_json(found.plain(), indent=1)
        return
    show(found, seasons.said(trial.state(), found.episode))
    if dry_run:
        common.say("Nothing was written.")


def rules(
    name: Name,
    file: Annotated[Path, typer.Argument(help="A .toml file with a section [stopping], such as the trial file.")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Replace the stopping rules by those of a file; what they were stays in the log, and the report tells of it."""
    from drimed.trial import lines
    from drimed.trial.tables.decoding import decode_utf

    try:
        data = lines.parse(decode_utf(file.read_bytes(), str(file)))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from None
    stopping = data.get("stopping")
    if not isinstance(stopping, dict):
        raise InputError(f"{file} has no section [stopping]")
    common.open_trial(name, store, actor).change_rules(stopping, reason=reason)
    common.say("The stopping rules were changed; they apply from the next look on.")


def show(found: Look, season: str) -> None:
    """A look on the screen, at what is called so."""
    common.say(f"{season}, {found.decisions} decisions, {found.outcomes} complete outcomes")
    common.show([_row(claim) for claim in found.claims])
    for limit in found.limits:
        common.say(f"{limit.limit}: {limit.reached} of at most {limit.of}" + (", all of them" if limit.met else ""))
    for who in found.floor_ends:
        common.say(f"the floor ends for {who}")
    if found.demands is not None:
        common.say(f"the trial is {found.demands}: {found.reason}", "bold")


def _row(claim: Claim) -> dict[str, Any]:
    ends = "open" if claim.low is None or claim.high is None else f"{claim.low:.3g} to {claim.high:.3g}"
    return {
        "rule": claim.rule,
        "who": claim.who,
        "arm": claim.arm,
        "range": ends,
        "margin": claim.margin,
        "to go": None if claim.distance is None else max(claim.distance, 0.0),
        "met": "yes" if claim.met else "no",
    }
