"""Changes to a running trial: one table for Python, HTTP, pages and the command line.

Each change has a body whose fields are checked, and a function that records it if it can be folded in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from drimed.records import Look, Opening, Status
from drimed.trial import ask, blinding, event_checks, stopping
from drimed.trial import events as kinds
from drimed.trial.ask import valid
from drimed.trial.spec import Arm, ArmNoise, Control, Finite, Stopping, Value, tidy
from drimed.trial.spec_faults import name_faults
from drimed.trial.transaction import Transaction

Label = Annotated[str, Field(min_length=1, max_length=100)]
Reason = Annotated[str, Field(max_length=2000, description="Why; it is kept in the log.")]
Weights = dict[str, Finite]


class Body(BaseModel):
    """Nothing is guessed: an unknown field is an error, and a number in quotes is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ReasonBody(Body):
    """Why."""

    reason: Reason


class OptionalReasonBody(Body):
    """Why, if there is something to say."""

    reason: Reason = ""


class UserBody(Body):
    """A new user."""

    name: Label
    preference: Weights | None = Field(None, description="metric → weight in the reward; left out: the trial's own")
    control: Control | None = Field(None, description="An arm, or arm → share; left out: the trial's own")
    arms: list[Label] | None = Field(None, description="Where not all arms are possible.")
    group: Annotated[str, Field(max_length=100)] | None = Field(None, description="A site, farm or clinic.")
    metrics: list[Label] | None = Field(None, description="Where not all are measured.")
    cohort: Label | None = Field(None, description="Whose defaults it takes; the trial file declares cohorts.")
    attributes: dict[str, Value] | None = Field(None, description="What is known about it: numbers or levels.")
    blocks: dict[str, list[Label]] | None = Field(None, description="block → its plots, each with its own decision")
    plots: list[Label] | None = Field(None, description="The same without blocks.")
    confirm: bool = Field(False, description="Record unlikely attributes too; without it they are refused.")


class ArmBody(Body):
    """An arm that is offered from now on, described as the others are."""

    name: Label
    about: Annotated[str, Field(max_length=2000)] = ""
    attributes: Weights | None = None
    map: list[list[Finite]] | None = None
    noise: ArmNoise | None = Field(None, description="Its own noise, where noise is known.")


class RetireBody(ReasonBody):
    """An arm that is not given any more."""

    arm: Label


class RevealBody(ReasonBody):
    """Reveal the arm of a decision to a person who did not know it."""

    decision: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="The decision; left out: all of them, and the blinding ends."
    )


class PreferenceBody(ReasonBody):
    """Change how a user weighs the metrics, from now on."""

    user: Label
    preference: Weights


class LookBody(Body):
    """A look at the stopping rules."""

    dry_run: bool = Field(False, description="Only tell what they say; record nothing.")


class RulesBody(ReasonBody):
    """The stopping rules from now on."""

    stopping: Stopping = Field(description="As under [stopping] in a trial file; it replaces all of it.")


class ControlBody(ReasonBody):
    """The control of a user from now on."""

    user: Label
    control: Control = Field(description="An arm, or arm → share.")


@dataclass(frozen=True)
class Change:
    """One way to change a trial."""

    name: str  # of the function, the operation and the command
    path: str  # under a trial's address
    title: str
    about: str
    body: type[Body]
    apply: Callable[[Transaction, Any], Any]
    done: str  # what a person hears afterwards
    example: dict[str, Any]
    answer: type = Status  # what a program gets: what `apply` returns, or the status afterwards


def add_arm(
    tx: Transaction,
    name: str,
    arm: Arm | Mapping[str, Any] | None = None,
    noise: ArmNoise | Mapping[str, Any] | None = None,
) -> None:
    """Offer one more arm, with its own noise where noise is known by arm."""
    name = tidy(name)
    parts = [valid(Arm, arm or {}, ("arms", name))]
    parts += [] if noise is None else [valid(ArmNoise, noise, ("noise", "arms", name))]
    event_checks.raise_if_any(name_faults(name, ("name",)))
    definition, *own = (part.model_dump(mode="json", exclude_none=True) for part in parts)
    _record(tx, kinds.ArmAdded(name, definition, {name: own[0]} if own else None))


def _record(tx: Transaction, event: kinds.EventBody, user: str | None = None) -> None:
    tx.append([kinds.Draft(event, user=user)])


def _add_user(tx: Transaction, body: UserBody) -> None:
    definition = body.model_dump(exclude={"name", "confirm"}, exclude_none=True)
    ask.add_user(tx, body.name, definition, confirm=body.confirm)


def _add_arm(tx: Transaction, body: ArmBody) -> None:
    definition = body.model_dump(exclude={"name", "noise"}, exclude_none=True, exclude_defaults=True)
    add_arm(tx, body.name, definition, body.noise)


def _retire_arm(tx: Transaction, body: RetireBody) -> None:
    if body.arm not in tx.state.retired:
        _record(tx, kinds.ArmRetired(body.arm, body.reason))


def _change_rules(tx: Transaction, body: RulesBody) -> None:
    was = tx.state.spec.stopping
    _record(tx, kinds.RulesChanged(body.stopping.plain(), None if was is None else was.plain(), body.reason))


_TABLE = [
    Change(
        "pause", "pause", "Pause", "Decide nothing until it is resumed. Outcomes are still taken.", ReasonBody,
        lambda tx, body: _record(tx, kinds.Paused(body.reason)), "The trial is paused. Outcomes are still taken.",
        {"reason": "outcomes are late"},
    ),
    Change(
        "resume", "resume", "Resume", "Decide again after a pause.", OptionalReasonBody,
        lambda tx, body: _record(tx, kinds.Resumed(body.reason)), "The trial is running again.",
        {"reason": "the outcomes are in"},
    ),
    Change(
        "stop", "stop", "Stop", "Decide nothing more, for good. Outcomes are still taken.", ReasonBody,
        lambda tx, body: _record(tx, kinds.Stopped(body.reason)),
        "The trial is stopped for good. Outcomes are still taken.", {"reason": "the question is answered"},
    ),
    Change(
        "add_user", "users", "Add a user", "Enrol a user.", UserBody, _add_user, "The user was added.",
        {"name": "dune", "preference": {"yield": 200, "leaching": -8}, "group": "sand"},
    ),
    Change(
        "add_arm", "arms", "Add an arm", "Offer one more arm from now on. A changed arm is a new arm.", ArmBody,
        _add_arm, "The arm was added.", {"name": "late", "attributes": {"nitrogen": 100, "irrigation": 1}},
    ),
    Change(
        "retire_arm", "retire", "Retire an arm",
        "Never give it again; what was decided and learned stays. Retiring it twice does nothing.", RetireBody,
        _retire_arm, "The arm is retired.",
        {"arm": "rich", "reason": "it is no longer available"},
    ),
    Change(
        "change_preference", "preference", "Change a preference",
        "From now on this user weighs the metrics differently; what was learned about the arms is kept.",
        PreferenceBody, lambda tx, body: _record(tx, kinds.PreferenceChanged(body.preference, body.reason), body.user),
        "The preference was changed; it applies from the next decision on.",
        {"user": "north", "preference": {"yield": 200, "leaching": -6}, "reason": "prices have changed"},
    ),
    Change(
        "change_control", "control", "Change a control",
        "From now on this user is compared with another control; past decisions keep theirs.", ControlBody,
        lambda tx, body: _record(tx, kinds.ControlChanged(body.control, body.reason), body.user),
        "The control was changed; it applies from the next decision on.",
        {"user": "north", "control": "usual", "reason": "the usual practice has changed here"},
    ),
    Change(
        "reveal", "reveal", "Open the code",
        "For one decision, in an emergency: the log has who opened it and why, and blinded people still do not see "
        "it. Without a decision, for all: from then on blinded people see the arm of every decision.", RevealBody,
        lambda tx, body: blinding.reveal(tx, body.decision, body.reason), "The code was opened, and the log says so.",
        {"decision": 17, "reason": "an emergency: the physician must know what was given"}, Opening,
    ),
    Change(
        "look", "looks", "Look at the stopping rules",
        "What each rule says now. The look is recorded, and so is a pause or a stop that a rule demands. Any "
        "number of looks is allowed; rules with planned looks are met at these only.", LookBody,
        lambda tx, body: stopping.record_look(tx, preview=body.dry_run),
        "A look was taken: the overview has what the rules said.", {"dry_run": False}, Look,
    ),
    Change(
        "change_rules", "rules", "Change the stopping rules",
        "Replace all stopping rules and limits. What they were stays in the log, and the report shows the change.",
        RulesBody, _change_rules, "The stopping rules were changed; they apply from the next look on.",
        {
            "stopping": {"seasons": 30, "rules": {"better": {"kind": "superiority", "then": "stop"}}},
            "reason": "the budget ends then",
        },
    ),
]  # fmt: skip
CHANGES = {change.name: change for change in _TABLE}


def checked(kind: type[Body], fields: Mapping[str, Any]) -> Any:
    """A body of this kind; SpecError says which fields are wrong."""
    return valid(kind, dict(fields), ())
