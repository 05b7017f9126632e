"""Everything that a report or a dashboard shows, computed once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.errors import DrimedError
from drimed.learning.fit import Fit
from drimed.trial.analysis.checks import Checks, check
from drimed.trial.analysis.course import Course, course
from drimed.trial.analysis.effects import Advice, Line, advice, lines
from drimed.trial.analysis.gather import Gathered, gather, inference_fit
from drimed.trial.records import Given, Status
from drimed.trial.trial import Trial


@dataclass(frozen=True)
class Quality:
    """How complete the data are."""

    decisions: int
    told: int
    partial: int  # some metrics are not there
    awaited: int
    missing: int
    amended: int
    oldest_awaited: int | None  # episode


@dataclass(frozen=True)
class Analysis:
    """What a trial has taught so far."""

    status: Status
    seen: Gathered
    fit: Fit
    course: Course
    lines: list[Line]
    advice: list[Advice]
    checks: Checks
    quality: Quality
    next: list[Given]  # what the policy would do now
    why_not_next: str | None  # if it would do nothing


def analyse(trial: Trial, before: Gathered | None = None) -> Analysis:
    """Read the trial, or what has changed in it since `before`, and work everything out."""
    seen = gather(trial, before)
    fit = inference_fit(seen)
    upcoming, why = _next(trial)
    return Analysis(
        status=trial.status(),
        seen=seen,
        fit=fit,
        course=course(seen, fit),
        lines=lines(seen, fit) if seen.memory.users else [],
        advice=advice(seen, fit) if seen.memory.users else [],
        checks=check(seen),
        quality=_quality(seen),
        next=upcoming,
        why_not_next=why,
    )


def _quality(seen: Gathered) -> Quality:
    counts = seen.memory.counts
    partial = seen.told & ~seen.observed.all(-1)
    waiting = ~seen.told & ~seen.missing
    oldest = int(seen.episode[waiting].min()) if waiting.any() else None
    return Quality(
        counts.decisions, int(seen.told.sum()), int(partial.sum()), counts.awaited, counts.missing,
        int((seen.amended > 0).sum()), oldest,
    )  # fmt: skip


def _next(trial: Trial) -> tuple[list[Given], str | None]:
    """What would be decided now for every user, in the context of its last decision; nothing is written."""
    try:
        return trial.preview(), None
    except DrimedError as error:
        return [], str(error)


def share_of_arms(analysis: Analysis) -> list[tuple[str, float]]:
    """How often each arm was given, in all."""
    total = analysis.course.allocation.sum(0)
    return [
        (arm, float(n) / max(1, int(np.sum(total))))
        for arm, n in zip(analysis.seen.memory.problem.arms, total, strict=True)
    ]
