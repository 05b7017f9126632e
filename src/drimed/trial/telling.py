"""What came of decisions: told once, completed later, corrected with a reason, or given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from drimed.errors import BatchError, ConflictError, InputError
from drimed.trial import events as kinds
from drimed.trial import outcomes
from drimed.trial.events import Draft
from drimed.trial.outcomes import Report, Story
from drimed.trial.recorder import Transaction
from drimed.trial.records import Told
from drimed.trial.running import need_reason


def tell(now: Transaction, reports: Sequence[Report]) -> list[Told]:
    """All of them or, if one is refused, none."""
    reports = [replace(r, decision=whole(r.decision)) for r in reports]
    if len({r.decision for r in reports}) < len(reports):
        raise InputError("one decision is reported twice in one call; report each once")
    found = now.ledger.of_decisions([r.decision for r in reports])
    stories = {number: Story.of(events) for number, events in found.items()}
    drafts, answers = [], []
    for report, outcome in zip(reports, _merged(now, stories, reports), strict=True):
        story = stories[report.decision]
        if outcome == story.outcome:
            answers.append(outcomes.told(now.memory, story, "already recorded", outcome))
            continue
        body = {
            "outcome": outcome,
            "was": story.outcome,
            "late": story.missing and story.outcome is None,  # it had been given up
        }
        drafts.append(Draft(kinds.OUTCOME, body, report.decision, story.event.user))
        state = "recorded" if story.outcome is None else "completed"
        answers.append(outcomes.told(now.memory, story, state, outcome))
    now.append(drafts, {n: s.event for n, s in stories.items()})
    return answers


def amend(now: Transaction, report: Report, reason: str) -> Told:
    """Correct an outcome; the old one stays in the log."""
    need_reason(reason)
    story = _story(now, report.decision)
    new = outcomes.amended(now.memory, story, report)
    if new == story.outcome:
        return outcomes.told(now.memory, story, "already recorded", new)
    body = {"outcome": new, "was": story.outcome, "reason": reason}
    now.append([Draft(kinds.AMENDMENT, body, story.decision, story.event.user)], {story.decision: story.event})
    return outcomes.told(now.memory, story, "amended", new)


def mark_missing(now: Transaction, decision: int, reason: str) -> Told:
    """Give an outcome up."""
    need_reason(reason)
    story = _story(now, decision)
    if story.outcome is not None:
        raise ConflictError(f"decision {story.decision} has an outcome; it is not missing")
    if not story.missing:
        draft = Draft(kinds.MISSING, {"reason": reason}, story.decision, story.event.user)
        now.append([draft], {story.decision: story.event})
    return outcomes.told(now.memory, story, "already recorded" if story.missing else "missing", None)


def whole(decision: object) -> int:
    """A decision's number."""
    if isinstance(decision, bool) or not isinstance(decision, int | np.integer):
        raise InputError(f"a decision is known by its number, got {decision!r}")
    return int(decision)


def unknown_decision(trial: str, decision: int) -> InputError:
    """There is no such decision."""
    return InputError(f"trial {trial!r} has no decision {decision!r}")


def _story(now: Transaction, decision: int) -> Story:
    number = whole(decision)
    found = now.ledger.of_decisions([number])
    if number not in found:
        raise unknown_decision(now.ledger.name, number)
    return Story.of(found[number])


def _merged(now: Transaction, stories: dict[int, Story], reports: Sequence[Report]) -> list[dict[str, Any]]:
    merged, errors = [], {}
    for i, report in enumerate(reports):
        try:
            if report.decision not in stories:
                raise unknown_decision(now.ledger.name, report.decision)
            merged.append(outcomes.merged(now.memory, stories[report.decision], report))
        except InputError as error:
            if len(reports) == 1:
                raise
            errors[i] = str(error)
    if errors:
        raise BatchError(errors, "report")
    return merged
