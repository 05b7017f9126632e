"""Everything that a report or an overview page shows, computed once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.errors import DrimedError
from drimed.findings.checks import Checks, check
from drimed.findings.course import Course, course
from drimed.findings.effects import MODEL, REWARD, Recommendation, all_effects, recommendations
from drimed.findings.gather import Gathered, gather, inference_fit
from drimed.learning.fit import Fit
from drimed.records import PENDING, STATES, Decision, Effect, Status
from drimed.trial import asking, queries
from drimed.trial.events import now
from drimed.trial.state import TrialState
from drimed.trial.stores.store import Ledger
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial


@dataclass(frozen=True)
class Analysis:
    """What a trial has taught so far."""

    status: Status
    seen: Gathered
    fit: Fit
    course: Course
    effects: list[Effect]
    recommendations: list[Recommendation]
    checks: Checks
    oldest_pending: int | None  # the first episode with a pending decision
    next: list[Decision]  # what the policy would decide now
    why_not_next: str | None  # if it would decide nothing

    @property
    def own_effects(self) -> list[Effect]:
        """Of single users: every arm on the reward, in the order of the users."""
        return _own(self.seen, self.effects)


def analyse(trial: Trial, before: Gathered | None = None) -> Analysis:
    """Read all of the trial, or what has changed in it since `before`, and work everything out."""
    with trial.reading() as (ledger, state):
        seen = gather(ledger, state, before)
        upcoming, why = _next(ledger, state)
    fit = inference_fit(seen)
    effects = all_effects(seen, fit) if state.users else []
    waiting = seen.standing == STATES.index(PENDING)
    return Analysis(
        status=queries.status(state),
        seen=seen,
        fit=fit,
        course=course(seen, fit),
        effects=effects,
        recommendations=recommendations(state, fit, _own(seen, effects)) if effects else [],
        checks=check(seen),
        oldest_pending=int(np.min(seen.episode[waiting])) if waiting.any() else None,
        next=upcoming,
        why_not_next=why,
    )


def _own(seen: Gathered, effects: list[Effect]) -> list[Effect]:
    users = seen.state.users
    return [x for x in effects if x.who in users and x.on == REWARD and x.source == MODEL]


def _next(ledger: Ledger, state: TrialState) -> tuple[list[Decision], str | None]:
    """What would be decided now for every user; nothing is written."""
    try:
        return asking.preview(Transaction(state, ledger, now(), "", dry_run=True)), None
    except DrimedError as error:
        return [], str(error)
