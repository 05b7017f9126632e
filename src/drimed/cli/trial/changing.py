"""What may change while a trial runs: users, arms, preferences, and whether it decides."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from drimed.cli.trial.common import Address, Name, Who, Why, console, numbers, open_trial, values
from drimed.trial.stores.opening import DEFAULT


def add_user(
    name: Name,
    user: Annotated[str, typer.Argument(help="The new user.")],
    preference: Annotated[list[str] | None, typer.Option(help="metric=weight; may be repeated.")] = None,
    control: Annotated[str | None, typer.Option(help="Its control arm.")] = None,
    group: Annotated[str | None, typer.Option(help="Its group.")] = None,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Let somebody join."""
    definition: dict[str, Any] = {"control": control, "group": group}
    if preference:
        definition["preference"] = values(preference)
    open_trial(name, store, actor).add_user(user, {k: v for k, v in definition.items() if v is not None})
    console.print(f"{user} joined")


def add_arm(
    name: Name,
    arm: Annotated[str, typer.Argument(help="The new arm.")],
    attribute: Annotated[list[str] | None, typer.Option(help="attribute=value; may be repeated.")] = None,
    sd: Annotated[list[str] | None, typer.Option(help="metric=deviation, where the noise is known.")] = None,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Offer one more arm. A changed arm is a new arm."""
    definition = {"attributes": values(attribute)} if attribute else {}
    open_trial(name, store, actor).add_arm(arm, definition, noise={"sd": values(sd)} if sd else None)
    console.print(f"{arm} is offered from now on")


def retire_arm(
    name: Name,
    arm: Annotated[str, typer.Argument(help="The arm.")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Never decide for an arm again."""
    open_trial(name, store, actor).retire_arm(arm, reason=reason)
    console.print(f"{arm} is not offered any more")


def prefer(
    name: Name,
    user: Annotated[str, typer.Argument(help="The user.")],
    weights: Annotated[list[str], typer.Argument(metavar="METRIC=WEIGHT...", help="yield=1 cost=-0.01")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Change how a user weighs the metrics, from now on."""
    open_trial(name, store, actor).change_preference(user, numbers(weights), reason=reason)
    console.print(f"{user} prefers {' '.join(weights)} from now on")


def control(
    name: Name,
    user: Annotated[str, typer.Argument(help="The user.")],
    arms: Annotated[list[str], typer.Argument(metavar="ARM...", help="An arm, or shares: old=0.7 new=0.3")],
    reason: Why,
    store: Address = DEFAULT,
    actor: Who = None,
) -> None:
    """Compare a user with another control, from now on."""
    shares = arms[0] if len(arms) == 1 and "=" not in arms[0] else numbers(arms)
    open_trial(name, store, actor).change_control(user, shares, reason=reason)
    console.print(f"the control of {user} is {' '.join(arms)} from now on")


def pause(name: Name, reason: Why, store: Address = DEFAULT, actor: Who = None) -> None:
    """Decide nothing for a while; outcomes are still taken."""
    open_trial(name, store, actor).pause(reason=reason)
    console.print(f"{name} is paused")


def resume(name: Name, reason: Why = "", store: Address = DEFAULT, actor: Who = None) -> None:
    """Go on after a pause."""
    open_trial(name, store, actor).resume(reason=reason)
    console.print(f"{name} is running")


def stop(name: Name, reason: Why, store: Address = DEFAULT, actor: Who = None) -> None:
    """Decide nothing any more, for good; outcomes are still taken."""
    open_trial(name, store, actor).stop(reason=reason)
    console.print(f"{name} is stopped")
