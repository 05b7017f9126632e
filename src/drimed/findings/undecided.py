"""Who is undecided: users for whom no arm is clearly the best one yet."""

from __future__ import annotations

from drimed.findings.analyse import Analysis
from drimed.findings.effects import LIKELY
from drimed.formatting import percent

MOST_NAMED = 8  # users in one sentence
NOTHING_YET = "There is nothing to recommend yet: of the arms that can be given, only the control has outcomes."
UNTRIED = "an arm without outcomes"


def undecided(a: Analysis) -> str | None:
    """In a sentence; None where it is not judged."""
    if not a.recommendations or a.checks.withdrawn:
        return None
    open_ = [r for r in a.recommendations if r.p_best < LIKELY or not r.effect.confirmed]
    users, total = ("users", "user") if a.varying is None else (a.varying.words.users_noun, a.varying.words.user)
    n = len(a.recommendations)
    least = f"a chance of {percent(LIKELY)} or more of being the best"
    if any(r.p_best >= LIKELY for r in open_):
        least += " and is known from more than one season"
    if not open_:
        return f"Nobody is undecided: for each {total} one arm has {least}."
    named = "; ".join(f"{r.user}: {r.effect.arm} or {UNTRIED if r.alone else r.runner_up}" for r in open_[:MOST_NAMED])
    more = f"; and {len(open_) - MOST_NAMED:,} more" if len(open_) > MOST_NAMED else ""
    some = (
        f"{len(open_):,} of {n:,} {users} {'is' if len(open_) == 1 else 'are'} undecided"
        if n > 1
        else f"This {total} is undecided"
    )
    return f"{some}: no arm has {least} ({named}{more})."
