"""What would be decided next, as a table that can be read: the arms that matter, and plots that are alike together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drimed.formatting import counted
from drimed.records import Decision

MOST_ARMS = 10  # columns; other arms are added up
LEAST = 0.005  # probability of an arm that has a column


@dataclass(frozen=True)
class Row:
    """Decisions for one user that are alike."""

    who: str
    shares: list[float]  # of the arms with a column
    others: float  # of all others together
    reason: str
    known: bool = True  # False: the policy's draw has no closed form


@dataclass(frozen=True)
class Upcoming:
    """The table."""

    arms: list[str]
    others: int  # arms without a column
    rows: list[Row]


def upcoming(decisions: Sequence[Decision], arms: Sequence[str]) -> Upcoming:
    """Of what the policy would decide now."""
    most = {arm: max((d.probabilities.get(arm, 0.0) for d in decisions), default=0.0) for arm in arms}
    if len(arms) <= MOST_ARMS:
        chosen = list(arms)
    else:
        ranked = sorted(arms, key=lambda arm: -most[arm])[:MOST_ARMS]
        chosen = [arm for arm in arms if arm in ranked and most[arm] >= LEAST]
    rows: list[Row] = []
    alike: list[Decision] = []
    for d in decisions:
        if alike and not _alike(alike[0], d):
            rows.append(_row(alike, chosen))
            alike = []
        alike.append(d)
    return Upcoming(chosen, len(arms) - len(chosen), [*rows, *([_row(alike, chosen)] if alike else [])])


def _alike(one: Decision, other: Decision) -> bool:
    return (one.user, one.probabilities, one.reason) == (other.user, other.probabilities, other.reason)


def _row(alike: Sequence[Decision], arms: Sequence[str]) -> Row:
    first = alike[0]
    plots = [d.plot for d in alike if d.plot is not None]
    where = "" if not plots else f", plot {plots[0]}" if len(plots) == 1 else f", {counted(len(plots), 'plot')} alike"
    shares = [first.probabilities.get(arm, 0.0) for arm in arms]
    others = max(0.0, sum(first.probabilities.values()) - sum(shares))
    return Row(first.user + where, shares, others, first.reason, known=bool(first.probabilities))
