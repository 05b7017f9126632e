"""Explain why a user got an arm, in sentences with numbers, from the decision as it was recorded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from drimed.formatting import amount, listed, number, percent, short
from drimed.records import Decision, Interval
from drimed.trial import events as kinds
from drimed.trial.spec import LARGEST
from drimed.trial.state import TrialState
from drimed.trial.store import Ledger

AT_ONCE = 500  # decisions that are read at a time
NEAR = "within the tolerance of the control"
ALLOWED = {  # why a guard allows an arm without outcomes, by what it protects
    "every arm": " The guard allows that because even such an arm is sure enough to stay {near}.",
    "expected reward": " The guard allows that because a decision with these chances is sure enough to stay {near}.",
}


def explain(ledger: Ledger, state: TrialState, decision: Decision) -> list[str]:
    """Why this arm, for a decision of a trial; arms that the user can never get are left out."""
    return explain_decision(possible_arms(state, decision), state, arms_without_outcomes(ledger, state, decision))


def explain_decision(decision: Decision, state: TrialState, unknown: Collection[str] = ()) -> list[str]:
    """The arm's estimated effect, how it was drawn, and what the guard did: a sentence each.

    `unknown` arms had no outcome yet, so that their estimates rest on the prior alone.
    """
    near = near_control(state)
    estimated = _estimated(decision, state, unknown, ALLOWED.get(state.policy.traits.protects, "").format(near=near))
    chance, chances = decision.propensity, decision.probabilities
    likeliest = max(chances, key=lambda arm: chances[arm], default="")
    if not decision.drawn:
        return [f"Nothing was drawn: the caller could not wait, and gave {decision.arm} ({decision.reason})."]
    if chance is None:
        drawn = "The probabilities of this policy have no closed form, so its chance is not known."
    elif decision.held_out is not None:
        held = f"{decision.user} is held out, by a chance of {percent(decision.held_out)}: always the control"
        return [*estimated, f"{held}, so that what the policy decides for others is compared with it by chance alone."]
    elif chance == 1:
        drawn = "No other arm had a chance."
    elif chances[likeliest] > chance and percent(chances[likeliest]) != percent(chance):
        likelier = f"{likeliest} was likelier, with {percent(chances[likeliest])}"
        drawn = f"{decision.arm} was drawn with a chance of {percent(chance)}; {likelier}."
    else:
        drawn = f"{decision.arm} was drawn with a chance of {percent(chance)}."
    guard = decision.reason.replace("near the control", near).replace("near it", near)
    if guard.startswith("to be safe") and near not in guard:
        guard += f": that keeps the decision {near}"
    return [*estimated, drawn, f"{guard[:1].upper()}{guard[1:]}."]


def arms_without_outcomes(ledger: Ledger, state: TrialState, decision: Decision) -> set[str]:
    """Arms without an outcome at the event from which the decision was taken; none where arms share coefficients."""
    if state.spec.kind == "paper" and any(arm.kind != "own effects" for arm in state.spec.arms.values()):
        return set()
    arms = state.problem.arms
    left = {arms[k] for pulls in state.pulls.values() for k, n in enumerate(pulls) if n}
    never = set(arms) - left
    if state.history is not None and state.spec.past_weight:
        never, left = never.difference(state.history.arms), left.difference(state.history.arms)
    for first in range(1, decision.id, AT_ONCE):
        for event, *later in ledger.of_decisions(range(first, min(first + AT_ONCE, decision.id))).values():
            if any(e.kind == kinds.OUTCOME and e.seq <= decision.state_version for e in later):
                given = next((e.body["given"] for e in reversed(later) if e.kind == kinds.GIVEN), None)
                left.discard(given if given and state.spec.learns == "given" else event.body["arm"])
        if not left:
            break
    return never | left


def possible_arms(state: TrialState, decision: Decision) -> Decision:
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


def both_ends(confidence: float) -> str:
    """The level of a range each end of which is a one-sided bound at the trial's confidence.

    >>> both_ends(0.95), both_ends(0.99)
    ('90 %', '98 %')
    """
    return f"{100 * (2 * confidence - 1):g} %"


def shortfall(relative: float, absolute: float, what: str, unit: str) -> str:
    """The largest allowed shortfall against the control.

    >>> shortfall(0.1, 0.5, "yield", "t/ha"), shortfall(0, 0, "reward", "")
    ("10 % of the control's yield plus 0.5 t/ha", '')
    """
    parts = [f"{number(100 * relative)} % of the control's {what}"] if relative else []
    parts += [f"{number(absolute)}{f' {unit}' if unit else ''}"] if absolute else []
    return " plus ".join(parts)


def near_control(state: TrialState) -> str:
    """The allowed distance from the control: the tolerance, and the guardrails."""
    tolerance, spec = state.policy.traits.tolerance, state.spec
    if tolerance is None:
        return NEAR
    by = shortfall(tolerance.relative, tolerance.absolute, "reward", spec.reward.unit)
    rails = "".join(f" and within the guardrail on {rail.metric}" for rail in spec.guardrails)
    return (f"within the tolerance (at most {by} below the control)" if by else "at or above the control") + rails


def _estimated(d: Decision, state: TrialState, unknown: Collection[str], allowed: str) -> list[str]:
    confidence, unit = state.spec.confidence, state.spec.reward.unit
    # The range that the guard decided on, for all arms together: not the range at all times of this one effect.
    level = "range for all decisions at once" if confidence == "anytime" else f"{both_ends(float(confidence))} range"

    def against(e: Interval) -> str:
        more = f"{amount(abs(e.estimate), unit)} {'less' if e.estimate < 0 else 'more'} than the control"
        return f"{more} ({level}: {short(e.low)} to {short(e.high)})"

    if d.effects is None:
        return ["This policy does not estimate effects on the reward."]
    known = {
        arm: e
        for arm, e in d.effects.items()
        if arm not in d.unavailable and (e.is_control or (arm not in unknown and e.high - e.low <= LARGEST))
    }
    silent = [arm for arm in d.probabilities if arm not in (d.arm, *known, *d.unavailable)]
    own, others = known.get(d.arm), {arm: e for arm, e in known.items() if arm != d.arm}
    best = max(others, key=lambda arm: others[arm].estimate, default=None)
    is_beaten = best is not None and others[best].estimate > (0.0 if own is None else own.estimate)
    if own is None:
        texts = [f"No outcome of {d.arm} was recorded yet.{allowed} Assigned in order to learn about it."]
    elif own.is_control:
        texts = [f"{d.arm} is the control."]
    else:
        most = "" if is_beaten else f", the most of {'those that are known' if silent else 'all arms'}"
        texts = [f"{d.arm} is estimated to bring {against(own)}{most}."]
    if best is not None and is_beaten:
        which = "it is the control" if others[best].is_control else against(others[best])
        texts.append(f"{best} is estimated best: {which}.")
        if own is not None and own.high > others[best].estimate:
            texts.append(f"The range of {d.arm} reaches beyond that: it may still be better.")
    elif (own is None or own.is_control) and not all(e.is_control for e in others.values()):
        texts.append("No arm of which something was known is estimated to bring more than the control.")
    return [*texts, f"Nothing was known yet about {listed(silent)}."] if silent else texts
