"""Users, events, guards and what was just done, in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drimed.formatting import short
from drimed.guards.guard import REASONS
from drimed.records import Decision, Event
from drimed.trial import events as kinds
from drimed.trial.changes import CHANGES
from drimed.trial.spec import User
from drimed.trial.state import TrialState

_GUARD = dict(
    zip(
        REASONS,
        (
            "The guard changed nothing: the arm was drawn exactly as the policy proposed.",
            "Arms that may fall short of the control were made less likely.",
            "The policy's proposal alone could not be certified. It was mixed with certified arms, just enough for the "
            "mixture to stay within the tolerance.",
            "Some arms could not be certified. The policy was asked again, about the certified ones only.",
            "Only the control could be certified, so the control was given.",
            "Earlier decisions had not certainly earned enough to pay for this proposal, so the control was given.",
            "In the first rounds the control is given, to learn about it.",
        ),
        strict=True,
    )
)

# What a page says after something was done; the address holds only the key.
DONE = {
    "created": "The trial was created.",
    "episode": "The episode is open.",
    "recorded": "The outcome was recorded.",
    "amended": "The outcome was corrected. The old values stay in the log.",
    "missing": "The outcome was marked as missing. If it comes after all, it can still be recorded.",
    "nothing": "That was recorded already; nothing has changed.",
} | {change.path: change.done for change in CHANGES.values()}


DEFAULT = "default"  # as the trial file says for all users


@dataclass(frozen=True)
class UserRow:
    """A user as it is now."""

    name: str
    group: str
    reward: str
    control: str
    arms: str


def user_rows(state: TrialState, names: Sequence[str]) -> list[UserRow]:
    """Some users as a table shows them."""
    return [_user(state, name) for name in names]


def _user(state: TrialState, name: str) -> UserRow:
    user = state.profile(name).definition
    offered = [a for a in state.spec.arms if a not in state.retired]
    possible = [a for a in user.arms or offered if a in offered]
    return UserRow(
        name,
        user.group or "",
        DEFAULT if user.preference is None else reward(user.preference),
        DEFAULT if user.control is None else control(user.control),
        "all" if len(possible) == len(offered) else ", ".join(possible),
    )


def reward(weights: Mapping[str, float]) -> str:
    """Weights as the sum that they make.

    >>> reward({"yield": 200, "leaching": -3, "water": -1.5, "colour": 0, "taste": 1})
    '200 × yield − 3 × leaching − 1.5 × water + taste'
    """
    said = ""
    for metric, weight in weights.items():
        if not weight:
            continue
        sign = ("−" if weight < 0 else "") if not said else " − " if weight < 0 else " + "
        said += sign + (metric if abs(weight) == 1 else f"{number(abs(weight))} × {metric}")
    return said or "0"


def control(shares: str | Mapping[str, float]) -> str:
    """A control in words.

    >>> control({"practice": 0.7, "split": 0.3, "none": 0})
    '70 % practice, 30 % split'
    """
    if isinstance(shares, str):
        return shares
    return ", ".join(f"{number(100 * share)} % {arm}" for arm, share in shares.items() if share)


def number(value: float) -> str:
    """A number as it was given.

    >>> number(-22500.0), number(0.05)
    ('−22,500', '0.05')
    """
    return f"{value:,.12g}".replace("-", "−")


def guard_did(decision: Decision) -> str:
    """What the guard did to a decision."""
    said = _GUARD.get(decision.reason, decision.reason)
    if decision.share is not None and 0 < decision.share < 1:
        said += f" {100 * decision.share:.0f} % of the policy's own proposal is left in the probabilities."
    return said


def change(event: Event) -> str:
    """What an event other than a decision or an outcome changed."""
    body, user = event.body, event.user
    made = {
        kinds.CREATED: "created",
        kinds.EPISODE: f"episode {body.get('episode')} opened",
        kinds.AMENDMENT: f"outcome of decision {event.decision} corrected",
        kinds.MISSING: f"outcome of decision {event.decision} marked as missing",
        kinds.USER: f"user {user} added",
        kinds.PREFERENCE: f"preference of {user} changed",
        kinds.CONTROL: f"control of {user} changed",
        kinds.ARM: f"arm {body.get('arm')} added",
        kinds.RETIRED: f"arm {body.get('arm')} retired",
    }
    return made.get(event.kind, event.kind)


def from_to(state: TrialState, events: Sequence[Event]) -> dict[int, str]:
    """What preferences and controls were before and after each change of one, by the event's number.

    `events` are all such changes up to some moment, in order.
    """
    definitions: dict[str, list[User]] = {}
    for profile in state.profiles.values() if events else ():
        definitions.setdefault(profile.user, []).append(profile.definition)
    said = {}
    for event in events:
        old, new = definitions[str(event.user)][:2]
        del definitions[str(event.user)][0]
        if event.kind == kinds.PREFERENCE:
            sides = [reward(u.preference or state.spec.preference or {}) for u in (old, new)]
        else:
            sides = [control(u.control or state.spec.control or {}) for u in (old, new)]
        said[event.seq] = " → ".join(sides)
    return said


def about_outcome(event: Event) -> str:
    """What an event recorded about a decision's outcome."""
    body = event.body
    if event.kind == kinds.MISSING:
        return "the rest of the outcome is missing" if body.get("was") else "the outcome is missing"
    now, was = body["outcome"], body.get("was") or {"metrics": {}, "control": None}
    said = []
    for part, prefix in (("metrics", ""), ("control", "control plot's ")):
        new, old = now[part] or {}, was[part] or {}
        for name in dict.fromkeys([*old, *new]):
            if name not in old:
                said.append(f"{prefix}{name} {short(new[name])}")
            elif name not in new:
                said.append(f"{prefix}{name} {number(old[name])} taken back")
            elif old[name] != new[name]:
                said.append(f"{prefix}{name} {number(old[name])} → {number(new[name])}")
    late = " (after it had been marked as missing)" if body.get("late") else ""
    return {kinds.AMENDMENT: "corrected: "}.get(event.kind, "recorded: ") + ", ".join(said) + late
