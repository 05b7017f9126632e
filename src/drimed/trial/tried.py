"""Which arms nothing was known about when a decision was taken: no outcome of them was there by then.

A model has an opinion about them all the same, from what is usual; it is no estimate that anybody should be told.
"""

from __future__ import annotations

from drimed.records import Decision
from drimed.trial import events as kinds
from drimed.trial.state import TrialState
from drimed.trial.stores.store import Ledger

CHUNK = 500  # decisions that are read at a time


def untried(ledger: Ledger, state: TrialState, decision: Decision) -> set[str]:
    """Arms without an outcome up to the event from which the decision was taken; none where arms teach each other.

    Of a later arm the log is read up to its first outcome, and of an arm that nobody was ever given not at all.
    """
    arms = state.problem.arms
    described = state.spec.arms.values()
    if state.spec.kind == "paper" and any(arm.attributes is not None or arm.map is not None for arm in described):
        return set()
    given = {arms[k] for pulls in state.pulls.values() for k, n in enumerate(pulls) if n}
    return (set(arms) - given) | _without_outcome(ledger, given & set(arms), decision.state_version)


def _without_outcome(ledger: Ledger, wanted: set[str], until: int) -> set[str]:
    """Those of which no outcome was recorded up to this event."""
    first, left = 1, set(wanted)
    while left:
        found = ledger.of_decisions(range(first, first + CHUNK))
        for about, *later in found.values():
            if about.seq > until:
                return left
            if any(e.kind == kinds.OUTCOME and e.seq <= until for e in later):
                left.discard(about.body["arm"])
        if len(found) < CHUNK:
            return left
        first += CHUNK
    return left
