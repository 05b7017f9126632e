"""Was anybody worse off? For each user, and in words: what was lost, what may have been, and what the limit means."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from drimed.findings.analyse import Analysis
from drimed.formatting import ENDLESS, amount, listed

MOST_NAMED = 5  # users in one sentence
CLEARLY = 1e-9  # of the limit: less than that is round-off


@dataclass(frozen=True)
class Off:
    """One user against the control."""

    user: str
    decisions: int
    gain: float
    low: float | None  # as sums over decisions have it; None: not worked out
    high: float | None
    allowed: float
    shortfalls: int  # decisions expected to be below the tolerance

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.high is not None and self.high < 0:
            return "worse off"
        if self.low is not None and self.low >= 0:
            return "not worse off"
        return "open"


def worse_off(a: Analysis, users: Collection[str] | None = None) -> list[Off]:
    """Some users, or (None) all, in their order; those without a decision are left out."""
    found = a.course.by_user
    return [
        Off(
            user=user,
            decisions=int(found.decisions[h]),
            gain=float(found.gain[h]),
            low=None if found.low is None else float(found.low[h]),
            high=None if found.high is None else float(found.high[h]),
            allowed=float(found.allowed[h]),
            shortfalls=int(found.shortfalls[h]),
        )
        for h, user in enumerate(a.seen.state.users)
        if found.decisions[h] and (users is None or user in users)
    ]


def said(a: Analysis) -> list[str]:
    """What a reader should know first."""
    everybody = worse_off(a)
    if not everybody or not a.seen.told.any():
        return []
    unit = a.seen.state.spec.reward.unit
    return [_losers(a, everybody, unit), *_worst_user(a, everybody, unit), *_worst_case(a, unit), *_meaning(a, unit)]


def _losers(a: Analysis, everybody: list[Off], unit: str) -> str:
    users = "users" if a.varying is None else a.varying.words.users_noun
    lost = sorted((x for x in everybody if x.gain < CLEARLY * x.allowed), key=lambda x: x.gain)
    if not lost:
        return f"None of {len(everybody):,} {users} is estimated to have earned less than under the control."
    named = listed([f"{x.user} {amount(x.gain, unit)}" for x in lost], MOST_NAMED, ", ")
    sure = sum(x.verdict == "worse off" for x in lost)
    certainly = "none of them certainly" if not sure else f"{sure:,} of them certainly"
    if len(lost) == 1:
        certainly = "certainly" if sure else "but not certainly"
    if a.checks.withdrawn:
        certainly = "without a guarantee, because the model is wrong"
    some = f"{len(lost):,} of {len(everybody):,} {users} {'is' if len(lost) == 1 else 'are'}"
    less = "estimated to have earned less than under the control, all their decisions together"
    return f"{some} {less}: {named}; {certainly}."


def _worst_user(a: Analysis, everybody: list[Off], unit: str) -> list[str]:
    """The user who may have lost most, and who else most beyond the tolerance; nothing where nobody can have lost."""
    lows = [(x.low, x) for x in everybody if x.low is not None and x.low > -ENDLESS]
    known = [(low, x) for low, x in lows if low < CLEARLY * x.allowed]
    if a.checks.withdrawn or len(everybody) < 2 or not known:
        return []
    low, x = min(known, key=lambda one: one[0])
    user = "user" if a.varying is None else a.varying.words.user
    over = "its tolerance allows" if low >= x.allowed else "beyond what its tolerance allows,"
    said = [
        f"The worst case of a single {user}, all decisions together, is that of {x.user}: {amount(low, unit)}; {over} "
        f"{amount(x.allowed, unit)}."
    ]
    low, other = min(known, key=lambda one: one[0] - one[1].allowed)
    if low < other.allowed and other is not x:
        beyond = f"is beyond what its tolerance allows, {amount(other.allowed, unit)}"
        said.append(f"That of {other.user}, {amount(low, unit)}, {beyond}.")
    return said


def _worst_case(a: Analysis, unit: str) -> list[str]:
    low, limit = float(a.course.gain_low[-1]), float(a.course.allowed[-1])
    if a.checks.withdrawn or low >= 0 or low <= -ENDLESS:
        return []
    if low >= limit:
        return [
            f"Even the worst case for all together, {amount(low, unit)}, is above the agreed limit, "
            f"{amount(limit, unit)}."
        ]
    return [f"The worst case for all together, {amount(low, unit)}, is below the agreed limit, {amount(limit, unit)}."]


def _meaning(a: Analysis, unit: str) -> list[str]:
    """Whether the limit promises anything: beside what the arms can do at all."""
    effects = [abs(x.estimate) for x in a.own_effects if x.arm in a.given and x.available]
    decisions = a.status.decisions
    largest, each = max(effects, default=0.0), -float(a.course.allowed[-1]) / max(1, decisions)
    if not largest or each <= largest:
        return []
    return [
        f"This limit allows {amount(each, unit)} in each decision, and the largest estimated effect of an arm is "
        f"{amount(largest, unit)}: keeping it promises little. A smaller tolerance would promise more."
    ]
