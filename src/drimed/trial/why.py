"""Why a user got an arm, in words with numbers: from the decision as it was recorded, and from nothing else."""

from __future__ import annotations

from dataclasses import replace

from drimed.formatting import percent, short
from drimed.guards.guard import REASONS
from drimed.records import Decision, Interval
from drimed.trial.parts import LARGEST
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

TRACE = 0.005  # of a proposal: what is left of it is not worth speaking of


def guard_did(decision: Decision) -> str:
    """What the guard did to a decision."""
    said = _GUARD.get(decision.reason, decision.reason)
    if decision.reason == REASONS[2] and decision.share is not None and decision.share < TRACE:
        return (
            "Almost nothing of the policy's proposal could be certified: certified arms had nearly all of the chance."
        )
    if decision.share is not None and 0 < decision.share < 1:
        said += f" {percent(decision.share)} of the policy's own proposal is left in the probabilities."
    return said


def in_words(state: TrialState, decision: Decision) -> list[str]:
    """Why this arm, in the words of its trial; arms that the user can never get are not spoken of."""
    may = state.problem.available(state.profile(decision.user), ())
    never = set() if may is None else {arm for k, arm in enumerate(state.problem.arms) if not may[k]}
    known = {arm: e for arm, e in (decision.effects or {}).items() if arm not in never or arm == decision.arm}
    told = decision if decision.effects is None else replace(decision, effects=known)
    return why_this_arm(told, confidence=state.spec.confidence, unit=state.spec.reward.unit)


def why_this_arm(decision: Decision, *, confidence: float | str, unit: str = "") -> list[str]:
    """What the arm was estimated to bring, how it came to be drawn, and what the guard did: a sentence each.

    `confidence` is that of the trial, whose ranges the decision has; `unit` is that of the reward.

    >>> from drimed.records import Decision, Interval
    >>> effects = {"old": Interval(0.0, 0.0, 0.0), "new": Interval(126.0, 20.0, 232.0)}
    >>> decision = Decision(id=1, episode=3, user="north", arm="new", probabilities={"old": 0.03, "new": 0.97},
    ...     propensity=0.97, reason=REASONS[0], share=1.0, effects=effects, context=None, unavailable=[],
    ...     state_version=9, time="", actor="")
    >>> print(*why_this_arm(decision, confidence=0.99, unit="EUR"), sep="\\n")
    new is estimated to bring 126 EUR more than the control (99 % range: 20 to 232), the most of all arms.
    It had a chance of 97 %.
    The guard changed nothing: the arm was drawn exactly as the policy proposed.
    """
    return [*_estimated(decision, confidence, unit), _drawn(decision), guard_did(decision)]


def _estimated(d: Decision, confidence: float | str, unit: str) -> list[str]:
    if d.effects is None:
        return ["This policy does not estimate effects on the reward."]
    mine = d.effects[d.arm]
    others = {arm: e for arm, e in d.effects.items() if arm != d.arm and arm not in d.unavailable and _told(e)}
    best = max(others, key=lambda arm: others[arm].estimate, default=None)
    if _is_control(mine):
        return [f"{d.arm} is the control.", *_better_than_control(others, best, confidence, unit)]
    if not _told(mine):
        return [f"Nothing was known yet about the effect of {d.arm}."]
    said = f"{d.arm} is estimated to bring {_against(mine, confidence, unit)}"
    if best is None or others[best].estimate <= mine.estimate:
        return [said + ", the most of all arms."]
    reaches = mine.high > others[best].estimate
    where = "the control" if _is_control(others[best]) else f"{best}, {_more(others[best].estimate, unit)},"
    learn = " Its range reaches beyond that, so that giving it may show that it is better." if reaches else ""
    return [said + f"; {where} is estimated best.{learn}"]


def _better_than_control(
    others: dict[str, Interval], best: str | None, confidence: float | str, unit: str
) -> list[str]:
    if best is None:
        return ["Nothing was known yet about the other arms."]
    if others[best].estimate <= 0:
        return ["No other arm is estimated to bring more."]
    return [f"{best} is estimated to bring {_against(others[best], confidence, unit)}."]


def _drawn(d: Decision) -> str:
    if d.propensity is None:
        return "The probabilities of this policy have no closed form, so its chance is not known."
    if d.propensity == 1:
        return "No other arm had a chance."
    said = f"It had a chance of {percent(d.propensity)}"
    likeliest = max(d.probabilities, key=lambda arm: d.probabilities[arm])
    if d.probabilities[likeliest] > d.propensity:
        return f"{said}; {likeliest} was likelier, with {percent(d.probabilities[likeliest])}."
    return said + "."


def _against(e: Interval, confidence: float | str, unit: str) -> str:
    level = "range at all times" if confidence == "anytime" else f"{100 * float(confidence):g} % range"
    return f"{_more(e.estimate, unit)} than the control ({level}: {short(e.low)} to {short(e.high)})"


def _more(value: float, unit: str) -> str:
    amount = short(abs(value)) + (f" {unit}" if unit else "")
    return f"{amount} {'less' if value < 0 else 'more'}"


def _is_control(e: Interval) -> bool:
    return e.estimate == e.low == e.high == 0


def _told(e: Interval) -> bool:
    """Whether anything was known."""
    return e.high - e.low <= LARGEST
