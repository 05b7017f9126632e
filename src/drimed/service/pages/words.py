"""What guards, states and messages mean, in plain words."""

from __future__ import annotations

from drimed.guards.decision import REASONS
from drimed.trial.records import Given

_GUARD = dict(
    zip(
        REASONS,
        (
            "The guard had nothing to object to: the arm was drawn exactly as the policy wished.",
            "Arms that may fall short of the control were made less likely.",
            "The policy's wish alone could not be certified. It was mixed with arms that are certified, just until the "
            "mixture was sure enough to stay within the tolerance.",
            "Some arms could not be certified. The policy was asked again, about the certified ones only.",
            "Only the control could be certified, so the control was given.",
            "Past choices had not certainly earned enough to pay for this wish, so the control was given.",
            "In the first rounds the control is given, to learn about it.",
        ),
        strict=True,
    )
)

# What a page says after something was done; the address holds the key only.
DONE = {
    "created": "The trial was created.",
    "paused": "The trial is paused. Outcomes are still taken.",
    "resumed": "The trial runs again.",
    "stopped": "The trial is stopped for good. Outcomes are still taken.",
    "user": "The user was added.",
    "arm": "The arm was added.",
    "retired": "The arm is retired.",
    "preference": "The preference was changed; it holds from the next decision on.",
    "control": "The control was changed; it holds from the next decision on.",
    "episode": "The episode is open.",
    "told": "The outcome was recorded.",
    "amended": "The outcome was corrected. The old values stay in the log.",
    "missing": "The outcome was marked as missing. Should it come after all, it can still be told.",
    "nothing": "That was recorded already; nothing has changed.",
}


def guard_did(given: Given) -> str:
    """What the guard did to a decision."""
    said = _GUARD.get(given.reason, given.reason)
    if given.share is not None and 0 < given.share < 1:
        said += f" {100 * given.share:.0f} % of the policy's own wish is left in the probabilities."
    return said


def state(name: str) -> str:
    """What has become of a decision."""
    return {"told": "told", "partial": "told in part", "awaited": "awaited", "missing": "will not come"}.get(name, name)
