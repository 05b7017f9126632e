"""What may change while a trial runs: users, arms, preferences, and whether it decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from drimed.cli.trial import common
from drimed.cli.trial.common import Address, Attributes, CohortName, Name, Who, Why, Yes
from drimed.errors import InputError
from drimed.trial.stores import DEFAULT

if TYPE_CHECKING:
    from drimed.trial.trial import Trial


def add_user(
    name: Name,
    user: Annotated[str, typer.Argument(help="The new user.")],
    preference: Annotated[list[str] | None, typer.Option(help="metric=weight; repeatable.")] = None,
    control: Annotated[str | None, typer.Option(help="Its control arm.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help="An arm that is possible for it; default: all.")] = None,
    group: Annotated[str | None, typer.Option(help="Its site, farm, clinic or other group.")] = None,
    attribute: Attributes = None,
    cohort: CohortName = None,
    plot: Annotated[
        list[str] | None, typer.Option(help="A plot with a decision of its own: A1, or A/A1 in block A; repeatable.")
    ] = None,
    yes: Yes = False,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Enrol a user."""
    opened = common.open_trial(name, store, actor)
    from drimed.trial import enrolling, roster
    from drimed.trial.names import tidy

    attributes = roster.described(opened.state(), common.texts(attribute)) if attribute else None
    weights = common.numbers(preference) if preference else None
    fields = {"preference": weights, "control": control, "arms": arm, "group": group, "cohort": cohort}
    about = {"name": user, "attributes": attributes, **fields, **roster.plots_of(plot or [])}
    common.confirming(lambda sure: _apply(opened, "add_user", {**about, "confirm": sure}), yes)
    state = opened.state()
    common.say_typical(state, enrolling.lacking(state, [tidy(user)]))


def add_arm(
    name: Name,
    arm: Annotated[str, typer.Argument(help="The new arm.")],
    attribute: Annotated[list[str] | None, typer.Option(help="attribute=value; repeatable.")] = None,
    sd: Annotated[list[str] | None, typer.Option(help="metric=deviation, where the noise is known.")] = None,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Add an arm. A changed arm is a new arm."""
    attributes, noise = common.numbers(attribute) if attribute else None, {"sd": common.values(sd)} if sd else None
    _change(name, store, actor, "add_arm", name=arm, attributes=attributes, noise=noise)


def retire_arm(
    name: Name,
    arm: Annotated[str, typer.Argument(help="The arm.")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Retire an arm: it is never given again."""
    _change(name, store, actor, "retire_arm", arm=arm, reason=reason)


def prefer(
    name: Name,
    user: Annotated[str, typer.Argument(help="The user.")],
    weights: Annotated[list[str], typer.Argument(metavar="METRIC=WEIGHT...", help="yield=1 cost=-0.01")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Change how a user weighs the metrics, from now on."""
    _change(name, store, actor, "change_preference", user=user, preference=common.numbers(weights), reason=reason)


def control(
    name: Name,
    user: Annotated[str, typer.Argument(help="The user.")],
    arms: Annotated[list[str], typer.Argument(metavar="ARM...", help="An arm, or shares: old=0.7 new=0.3")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Compare a user with another control, from now on."""
    shares = arms[0] if len(arms) == 1 and "=" not in arms[0] else common.numbers(arms)
    _change(name, store, actor, "change_control", user=user, control=shares, reason=reason)


def pause(name: Name, reason: Why, store: Address = DEFAULT, actor: Who = None) -> None:
    """Pause decisions; outcomes are still taken."""
    _change(name, store, actor, "pause", reason=reason)


def resume(name: Name, reason: Why = "", store: Address = DEFAULT, actor: Who = None) -> None:
    """Resume decisions after a pause."""
    _change(name, store, actor, "resume", reason=reason)


def stop(name: Name, reason: Why, store: Address = DEFAULT, actor: Who = None) -> None:
    """Stop decisions for good; outcomes are still taken."""
    _change(name, store, actor, "stop", reason=reason)


def reveal(
    name: Name,
    reason: Why,
    decision: Annotated[int | None, typer.Argument(help="The decision; left out: all, with --all.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Open the code for all decisions: the blinding ends.")] = False,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Open the code: tell which arm a decision got. Who did it and why stays in the log."""
    if (decision is None) != every:
        raise InputError("give the number of a decision, or --all to open the code for all of them")
    opened = common.open_trial(name, store, actor).reveal(decision, reason=reason)
    if opened.decision is not None:
        coded = f" (code {opened.code})" if opened.code else ""
        common.say(f"decision {opened.decision}: {opened.arm}{coded}. The log has who opened this, and why.")
        return
    for arm, code in (opened.codes or {}).items():
        common.say(f"{code}: {arm}")
    common.say("The code is open for all decisions; the log has who opened it, and why.")


def _change(trial: str, store: str, actor: str | None, change: str, **fields: Any) -> None:
    _apply(common.open_trial(trial, store, actor), change, fields)


def _apply(opened: Trial, change: str, fields: dict[str, Any]) -> None:
    """One of the table's changes."""
    from drimed.trial.changes import CHANGES, checked

    found = CHANGES[change]
    body = checked(found.body, {k: v for k, v in fields.items() if v is not None})
    with opened.writing() as tx:
        found.apply(tx, body)
    common.say(found.done)
