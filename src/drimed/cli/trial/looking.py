"""Stopping rules: look at them, and change them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drimed.cli.trial import common
from drimed.cli.trial.common import Address, Dry, Name, Who, Why
from drimed.errors import InputError
from drimed.formatting import NOT_KNOWN, amount, listed, short
from drimed.trial.stores import DEFAULT

if TYPE_CHECKING:
    from drimed.records import Claim, Look
    from drimed.trial.spec import TrialSpec
    from drimed.trial.state import TrialState


def look(
    name: Name,
    dry_run: Dry = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Look at the stopping rules: what each says, and how far it is from being met. The look is recorded."""
    trial = common.open_trial(name, store, actor)
    found = trial.look(dry_run=dry_run)
    if as_json:
        common.say_json(found.plain(), indent=1)
        return
    show(found, trial.state())
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


def show(found: Look, state: TrialState) -> None:
    """A look on the screen."""
    from drimed.findings.stopping import then_of, until
    from drimed.trial.seasons import calendar

    spec = state.spec
    common.say(
        f"{calendar(state).said(found.episode)}, {found.decisions} decisions, {found.outcomes} complete outcomes"
    )
    common.show([_row(claim, _unit(claim, spec)) for claim in found.claims])
    waiting: dict[str, dict[str, None]] = {}
    for claim in found.claims:
        if claim.waits:
            waiting.setdefault(claim.waits, {})[claim.arm] = None
    for why, arms in waiting.items():
        common.say(f"no rule is met yet by {listed(list(arms))}: {why}")
    for name, kind in {claim.rule: claim.kind for claim in found.claims if claim.distance is not None}.items():
        common.say(f"to go in {name} is how far the range must still move")
        common.say(f"  until {until(kind, then_of(spec, name))}")
    for limit in found.limits:
        common.say(f"{limit.limit}: {limit.reached} of at most {limit.of}" + (", all of them" if limit.met else ""))
    for who in found.floor_ends:
        common.say(f"the floor ends for {who}")
    if found.demands is not None:
        common.say(f"the trial is {found.demands}: {found.reason}", "bold")


def _unit(claim: Claim, spec: TrialSpec) -> str:
    metric = spec.metrics.get(claim.on)
    return spec.reward.unit if metric is None else metric.unit


def _row(claim: Claim, unit: str) -> dict[str, Any]:
    ends = NOT_KNOWN
    if claim.low is not None and claim.high is not None:
        ends = f"{short(claim.low)} to {amount(claim.high, unit)}"
    return {
        "rule": claim.rule,
        "who": claim.who,
        "arm": claim.arm,
        "range": ends,
        "margin": short(claim.margin),
        "to go": None if claim.distance is None else short(max(claim.distance, 0.0)),
        "met": "yes" if claim.met else "no",
    } | ({} if claim.seasons is None else {"seasons": claim.seasons})
