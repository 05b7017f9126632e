"""A trial in a few sentences that need no statistics."""

from __future__ import annotations

from collections.abc import Iterable

from drimed.report.page import short
from drimed.trial.analysis.analyse import Analysis, share_of_arms
from drimed.trial.analysis.effects import Advice

LEAST_SHARE = 0.005  # of the decisions, for an arm to be named


def sentences(a: Analysis) -> list[str]:
    """What a reader should know first."""
    s, course = a.status, a.course
    said = []
    if s.decisions:
        shares = [(arm, share) for arm, share in share_of_arms(a) if share >= LEAST_SHARE]
        said.append("So far given: " + ", ".join(f"{arm} {100 * share:.0f} %" for arm, share in shares) + ".")
    other = [x for x in a.advice if x.arm != x.control]
    sure = [x for x in other if x.effect_low > 0]
    likely = [x for x in other if x.likely_low > 0 >= x.effect_low]
    for found, word in ((sure, "certainly"), (likely, "likely")):
        if found:
            said.append(
                f"For {len(found):,} of {s.users:,} users an arm is {word} better than control: {_arms(found)}."
            )
    if s.answered and not sure and not likely:
        said.append("For no user an arm is likely better than control yet.")
    if s.answered and len(course.gain):
        gain, low, high = course.gain[-1], course.gain_low[-1], course.gain_high[-1]
        side = "more" if gain >= 0 else "less"
        said.append(
            f"In all, users earned {short(abs(gain))} {side} than the control is estimated to have earned "
            f"(guaranteed: {short(low)} to {short(high)})."
        )
    if not s.decisions:
        said.append("Nothing was decided yet.")
    elif not a.checks.alarms:
        said.append("No check of the assumptions has raised an alarm.")
    return said


def _arms(advice: Iterable[Advice]) -> str:
    return ", ".join(sorted({x.arm for x in advice}))
