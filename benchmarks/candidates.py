"""What is timed: every policy of the registry, the published ones in each reading."""

from __future__ import annotations

from drimed.policies.protocol import AnyPolicy
from drimed.policies.published import READINGS, PublishedDri
from drimed.policies.registry import REGISTRY, make


def candidates() -> dict[str, AnyPolicy]:
    """Policies by name; a published one is named with its reading, as in "published_dri_med (code)"."""
    found: dict[str, AnyPolicy] = {}
    for name in REGISTRY:
        policy = make(name)
        if isinstance(policy, PublishedDri):
            found |= {in_reading(name, reading): make(name, reading=reading) for reading in READINGS}
        else:
            found[name] = policy
    return found


def in_reading(name: str, reading: str) -> str:
    """The name of a published policy in one reading."""
    return f"{name} ({reading})"
