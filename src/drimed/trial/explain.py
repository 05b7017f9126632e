"""Why a user got an arm, in words with numbers: from the decision as it was recorded, and from nothing else."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from drimed.formatting import listed, number, percent, short
from drimed.policies.guards.base import (
    CONTROL_FIRST,
    CONTROL_ONLY,
    MIXED,
    NOT_EARNED,
    NOTHING_KEPT,
    PENALISED,
    REASONS,
    RESTRICTED,
    UNCHANGED,
)
from drimed.records import Decision, Interval
from drimed.trial import events as kinds
from drimed.trial.spec import LARGEST
from drimed.trial.state import TrialState
from drimed.trial.store import Ledger

# Which arms nothing was known about when a decision was taken: no outcome of them was there by then.

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


NEAR = "within the tolerance of the control"
# Why a guard lets an arm be given of which nothing is known, by what it protects.
ALLOWED = {
    "every arm": " The guard allows that because even such an arm is sure enough to stay {near}.",
    "expected reward": " The guard allows that because a decision with these chances is sure enough to stay {near}.",
}


def guard_did(decision: Decision, near: str = NEAR) -> str:
    """What the guard did to a decision; `near` says how near to the control an arm must be sure to stay."""
    share = decision.share
    sure = "went to the control, or to other arms that are sure enough"
    kept = f"{'A part' if share is None else percent(share)} of the proposal was kept; the rest of the chance {sure}."
    stepped_in = f"The guard stepped in: what the policy proposed was not yet sure to stay {near}."
    said = {
        UNCHANGED: "The guard changed nothing: the chances are those that the policy proposed.",
        PENALISED: "The guard made arms less likely that may fall short of the control.",
        MIXED: f"{stepped_in} {kept}",
        RESTRICTED: f"The guard stepped in: the policy chose only among arms that are sure to stay {near}.",
        CONTROL_ONLY: f"The guard stepped in: no arm but the control was sure yet to stay {near}, so the control was "
        "given.",
        NOT_EARNED: "The guard stepped in: earlier decisions had not surely earned enough to pay for what the policy "
        "proposed, so the control was given.",
        CONTROL_FIRST: "In the first rounds the control is given, to learn about it.",
    }
    words = {REASONS[code]: words for code, words in said.items()}
    words[NOTHING_KEPT] = f"{stepped_in} {'All' if decision.propensity == 1 else 'Nearly all'} of the chance {sure}."
    return words.get(decision.reason, decision.reason)


def both_ends(confidence: float) -> str:
    """At which level a range holds, each end of which is a one-sided bound at the trial's confidence.

    >>> both_ends(0.95), both_ends(0.99)
    ('90 %', '98 %')
    """
    return f"{100 * (2 * confidence - 1):g} %"


def at_most(relative: float, absolute: float, what: str, unit: str) -> str:
    """How far something may fall short of the control's.

    >>> at_most(0.1, 0.5, "yield", "t/ha"), at_most(0, 0, "reward", "")
    ("10 % of the control's yield plus 0.5 t/ha", '')
    """
    parts = [f"{number(100 * relative)} % of the control's {what}"] if relative else []
    parts += [f"{number(absolute)}{f' {unit}' if unit else ''}"] if absolute else []
    return " plus ".join(parts)


def near_control(state: TrialState) -> str:
    """How near to the control a decision must be sure to stay: its tolerance, and its guardrails."""
    tolerance, spec = state.policy.traits.tolerance, state.spec
    if tolerance is None:
        return NEAR
    by = at_most(tolerance.relative, tolerance.absolute, "reward", spec.reward.unit)
    rails = "".join(f" and within the guardrail on {rail.metric}" for rail in spec.guardrails)
    return (f"within the tolerance (at most {by} below the control)" if by else "at or above the control") + rails


def in_words(ledger: Ledger, state: TrialState, decision: Decision) -> list[str]:
    """Why this arm, in the words of its trial; arms that the user can never get are not spoken of."""
    told, spec = possible(state, decision), state.spec
    unknown = untried(ledger, state, told)
    near, protects = near_control(state), state.policy.traits.protects
    return why_this_arm(
        told, confidence=spec.confidence, unit=spec.reward.unit, unknown=unknown, near=near, protects=protects
    )


def possible(state: TrialState, decision: Decision) -> Decision:
    """The decision without the effects of arms that its user can never get."""
    may = state.problem.available(state.profile(decision.user), ())
    if decision.effects is None or may is None:
        return decision
    never = {arm for k, arm in enumerate(state.problem.arms) if not may[k] and arm != decision.arm}
    return replace(
        decision,
        effects={arm: e for arm, e in decision.effects.items() if arm not in never},
        probabilities={arm: p for arm, p in decision.probabilities.items() if arm not in never},
    )


def why_this_arm(
    decision: Decision,
    *,
    confidence: float | str,
    unit: str = "",
    unknown: Collection[str] = (),
    near: str = NEAR,
    protects: str = "",
) -> list[str]:
    """What the arm was estimated to bring, how it came to be drawn, and what the guard did: a sentence each.

    `confidence` is that of the trial, at which each end of a range holds; `unit` is that of the reward; of `unknown`
    arms there was no outcome yet, so that what the model says of them rests on nothing. `protects` is what the guard
    certifies (`drimed.policies.guards.base`).

    >>> from drimed.records import Decision, Interval
    >>> effects = {"old": Interval(0.0, 0.0, 0.0), "new": Interval(126.0, 20.0, 232.0)}
    >>> decision = Decision(id=1, episode=3, user="north", arm="new", probabilities={"old": 0.03, "new": 0.97},
    ...     propensity=0.97, reason=REASONS[0], share=1.0, effects=effects, context=None, unavailable=[],
    ...     state_version=9, time="", actor="")
    >>> print(*why_this_arm(decision, confidence=0.99, unit="EUR"), sep="\\n")
    new is estimated to bring 126 EUR more than the control (98 % range: 20 to 232), the most of all arms.
    new was drawn with a chance of 97 %.
    The guard changed nothing: the chances are those that the policy proposed.
    """
    allowed = ALLOWED[protects].format(near=near) if protects in ALLOWED else ""
    return [*_estimated(decision, confidence, unit, unknown, allowed), _drawn(decision), guard_did(decision, near)]


def _estimated(
    d: Decision, confidence: float | str, unit: str, unknown: Collection[str], allowed: str = ""
) -> list[str]:
    if d.effects is None:
        return ["This policy does not estimate effects on the reward."]
    known = {arm: e for arm, e in d.effects.items() if arm not in d.unavailable}
    known = {arm: e for arm, e in known.items() if _is_control(e) or (arm not in unknown and _told(e))}
    silent = [arm for arm in d.probabilities if arm not in (d.arm, *known, *d.unavailable)]
    others = {arm: e for arm, e in known.items() if arm != d.arm}
    best = max(others, key=lambda arm: others[arm].estimate, default=None)
    if d.arm not in known:
        new = f"Nothing was known yet about {d.arm}: no outcome of it was recorded.{allowed}"
        return [f"{new} Giving it is how that is learned.", *_best_known(others, best, confidence, unit)]
    mine = known[d.arm]
    if _is_control(mine):
        return [f"{d.arm} is the control.", *_better_than_control(others, best, silent, confidence, unit)]
    said = f"{d.arm} is estimated to bring {_against(mine, confidence, unit)}"
    if best is None or others[best].estimate <= mine.estimate:
        whom = f"those that are known; about {listed(silent)} nothing was known yet" if silent else "all arms"
        return [f"{said}, the most of {whom}."]
    reaches = mine.high > others[best].estimate
    where = "the control" if _is_control(others[best]) else f"{best}, {_more(others[best].estimate, unit)},"
    learn = f" The range of {d.arm} reaches beyond that: giving it may show that it is better." if reaches else ""
    return [said + f"; {where} is estimated best.{learn}"]


def _best_known(others: dict[str, Interval], best: str | None, confidence: float | str, unit: str) -> list[str]:
    """What the best of the other arms brings, where anything is known of one that is not the control."""
    if best is None or all(_is_control(e) for e in others.values()):
        return []
    if others[best].estimate <= 0:
        return ["No arm of which something was known is estimated to bring more than the control."]
    return [f"Of those that were known, {best} is estimated best: {_against(others[best], confidence, unit)}."]


def _better_than_control(
    others: dict[str, Interval], best: str | None, silent: list[str], confidence: float | str, unit: str
) -> list[str]:
    if best is None:
        return ["Nothing was known yet about the other arms."]
    more = f"{best} is estimated to bring {_against(others[best], confidence, unit)}."
    said = more if others[best].estimate > 0 else "No other arm is estimated to bring more."
    if not silent:
        return [said]
    return [
        said.replace("No other arm", "No arm of which something was known"),
        f"Nothing was known yet about {listed(silent)}.",
    ]


def _drawn(d: Decision) -> str:
    if d.propensity is None:
        return "The probabilities of this policy have no closed form, so its chance is not known."
    if d.propensity == 1:
        return "No other arm had a chance."
    said = f"{d.arm} was drawn with a chance of {percent(d.propensity)}"
    likeliest = max(d.probabilities, key=lambda arm: d.probabilities[arm])
    if percent(d.probabilities[likeliest]) != percent(d.propensity) and d.probabilities[likeliest] > d.propensity:
        return f"{said}; {likeliest} was likelier, with {percent(d.probabilities[likeliest])}."
    return said + "."


def _against(e: Interval, confidence: float | str, unit: str) -> str:
    # What the guard decided on, for all arms together: not the range at all times of this one effect.
    level = "range for all decisions at once" if confidence == "anytime" else f"{both_ends(float(confidence))} range"
    return f"{_more(e.estimate, unit)} than the control ({level}: {short(e.low)} to {short(e.high)})"


def _more(value: float, unit: str) -> str:
    amount = short(abs(value)) + (f" {unit}" if unit else "")
    return f"{amount} {'less' if value < 0 else 'more'}"


def _is_control(e: Interval) -> bool:
    return e.estimate == e.low == e.high == 0


def _told(e: Interval) -> bool:
    """Whether anything was known."""
    return e.high - e.low <= LARGEST
