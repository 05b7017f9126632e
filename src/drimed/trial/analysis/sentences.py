"""A trial in a few sentences that need no statistics."""

from __future__ import annotations

from collections.abc import Iterable

from drimed.formatting import short
from drimed.trial.analysis.analyse import Analysis, share_of_arms
from drimed.trial.analysis.effects import Line
from drimed.trial.memory import Memory

LEAST_SHARE = 0.005  # of the decisions, for an arm to be named


def sentences(a: Analysis) -> list[str]:
    """What a reader should know first."""
    s, course = a.status, a.course
    said = []
    if s.decisions:
        shares = [(arm, share) for arm, share in share_of_arms(a) if share >= LEAST_SHARE]
        said.append("So far given: " + ", ".join(f"{arm} {100 * share:.0f} %" for arm, share in shares) + ".")
    memory = a.seen.memory
    own = [
        x
        for x in a.lines
        if x.who in memory.users and x.on == "reward" and x.kind == "regression" and _possible(memory, x)
    ]
    sure = [x for x in own if x.low > 0]
    certain = {x.who for x in sure}
    likely = [x for x in own if x.likely_low > 0 and x.who not in certain]
    for found, word in ((sure, "certainly"), (likely, "likely")):
        if found:
            n = len({x.who for x in found})
            said.append(f"For {n:,} of {s.users:,} users an arm is {word} better than control: {_arms(found)}.")
    if s.answered and not sure and not likely:
        said.append("For no user an arm is likely better than control yet.")
    if s.answered and len(course.gain):
        gain, low, high = course.gain[-1], course.gain_low[-1], course.gain_high[-1]
        if low == high == 0:
            said.append("Only the control was given, so nothing was gained or lost against it.")
        else:
            side = "more" if gain >= 0 else "less"
            said.append(
                f"In all, what was given is estimated to be worth {short(abs(gain))} {side} than giving the control "
                f"(guaranteed: {short(low)} to {short(high)}); {course.verdict}."
            )
    if not s.decisions:
        said.append("Nothing was decided yet.")
    elif not a.checks.alarms:
        said.append("No check of the assumptions has raised an alarm.")
    return said


def _possible(memory: Memory, line: Line) -> bool:
    """Whether the user may get the arm."""
    mask = memory.problem.available(memory.profile(line.who), memory.retired)
    return mask is None or bool(mask[memory.problem.arm(line.arm)])


def _arms(lines: Iterable[Line]) -> str:
    return ", ".join(sorted({x.arm for x in lines}))
