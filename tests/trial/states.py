"""Everything that a trial's state holds, to compare to the last bit."""

from __future__ import annotations

from typing import Any

from drimed.policies.state import to_arrays
from drimed.trial.state import TrialState


def contents(state: TrialState) -> dict[str, Any]:
    """All of it, as plain values; the order of users counts."""
    learned = {name: (array.shape, array.tobytes()) for name, array in to_arrays(state.learned).items()}
    episode = state.episode
    return learned | {
        "created": state.created,
        "spec": state.spec,
        "room": state.room,
        "arms": state.problem.arms,
        "profiles": [
            (slot, p.user, p.slot, p.definition, p.preference.tolist(), p.control.tolist(), p.group)
            for slot, p in state.profiles.items()
        ],
        "users": list(state.users.items()),
        "episode": (episode.number, episode.contexts, episode.unavailable, list(episode.asked.items())),
        "counts": state.counts,
        "pulls": dict(state.pulls),
        "retired": state.retired,
        "status": state.status,
        "stale": state.stale,
        "at": (state.seq, state.hash),
    }


def same(one: TrialState, other: TrialState) -> bool:
    """Whether two states hold the same, to the last bit."""
    return contents(one) == contents(other)
