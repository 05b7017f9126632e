"""The analysis of a trial at one state: everything that reports, pages, the command line and HTTP read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from drimed.errors import DrimedError
from drimed.formatting import marked
from drimed.numerics.arrays import BoolArray
from drimed.records import PENDING, STATES, Decision, Effect, Opening, Status
from drimed.reports.benefit import Benefit, benefit
from drimed.reports.checks import RATE, Agreement, Checks, agreement, check
from drimed.reports.effects import MODEL, Recommendation, all_effects, groups, recommendations
from drimed.reports.regression import Inference, fit_now
from drimed.reports.stopping import StoppingHistory, stopping_history
from drimed.reports.variation import PastEffects, Variation, past_effects, variation
from drimed.trial import ask, queries
from drimed.trial.blinding import openings
from drimed.trial.dataset import Dataset, load_dataset
from drimed.trial.estimates import REWARD, check_model, fitted_model, may_get, offers_now
from drimed.trial.events import now
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

BYTES_EACH = 500  # of memory: an effect, or an arm of a decision
GUARANTEED, NOT_GUARANTEED, AT_ALL_TIMES = "guaranteed", "not guaranteed", "at all times"  # names of the long ranges
AT_THIS_LOOK = "range at this look"  # of sums over decisions, in mixed models


@dataclass(frozen=True)
class Analysis:
    """Results of a trial so far."""

    status: Status
    data: Dataset
    fit: Inference
    benefit: Benefit
    effects: list[Effect]
    recommendations: list[Recommendation]
    checks: Checks
    agreement: Agreement  # of the model with the propensities
    oldest_pending: int | None  # the first episode with a pending decision
    next: list[Decision]  # what the policy would decide now, without a draw
    why_not_next: str | None  # if it would decide nothing
    openings: list[Opening]  # unblindings
    stopping: StoppingHistory | None
    variation: Variation | None  # of a mixed model
    past: list[PastEffects]

    @cached_property
    def size(self) -> int:
        """Bytes of memory, roughly."""
        return self.data.size + BYTES_EACH * (len(self.effects) + sum(len(d.probabilities) for d in self.next))

    @cached_property
    def own_effects(self) -> list[Effect]:
        """Every arm on the reward of single users, in the order of the users."""
        users = self.data.state.users
        return [x for x in self.effects if x.who in users and x.on == REWARD and x.source == MODEL]

    @property
    def promise(self) -> str:
        """The name of the long ranges: only the paper's model guarantees them."""
        if self.checks.withdrawn:
            return NOT_GUARANTEED
        return GUARANTEED if self.variation is None else AT_ALL_TIMES

    @property
    def promise_of_sums(self) -> str:
        """The name of ranges of sums over decisions: in mixed models they hold at one look."""
        return AT_THIS_LOOK if self.promise == AT_ALL_TIMES else self.promise

    @cached_property
    def given(self) -> set[str]:
        """Arms that were given."""
        arms = self.data.state.problem.arms
        return {arms[a] for a in np.unique(self.data.arm)}

    @cached_property
    def times(self) -> dict[str, int]:
        """Decisions for each arm."""
        arms = self.data.state.problem.arms
        return dict(zip(arms, np.bincount(self.data.arm, minlength=len(arms)).tolist(), strict=True))

    @cached_property
    def _may_get(self) -> dict[str, BoolArray]:
        """Arms that a user, a group or all users may get in any season, or might until they were retired: (K,)."""
        state = self.data.state
        may = may_get(state, list(state.users))
        members = groups(state) | {user: [h] for h, user in enumerate(state.users)}
        return {who: np.asarray(may[some].any(0)) for who, some in members.items()}

    def can_be_judged(self, effect: Effect) -> bool:
        """The users of an effect may get its arm, or might until it was retired.

        A retired arm must have been given, and in a mixed model any arm: the paper's model also learns about an arm
        from its description.
        """
        needed = self.variation is not None or effect.arm in self.data.state.retired
        may = bool(self._may_get[effect.who][self.data.state.problem.arm(effect.arm)])
        return may and (effect.arm in self.given or not needed)

    def has_estimates(self) -> bool:
        """Outcomes have told something about arms."""
        return bool(self.data.has_outcome.any()) and all(x.is_known for x in self.own_effects)

    def label(self, arm: str) -> str:
        """An arm's name, with a mark if it is retired."""
        return marked(arm, self.data.state.retired)


def analyse(trial: Trial, before: Dataset | None = None) -> Analysis:
    """Analyse a trial as it stands; of `before`, data that was read earlier, only changes are read."""
    with trial.reading() as (ledger, state):
        data = load_dataset(ledger, state, before)
        unblindings, history = openings(ledger, state), stopping_history(ledger, state)
        upcoming, why_not = [], None
        try:
            upcoming = ask.preview(Transaction(state, ledger, now(), "analysis", dry_run=True))
        except DrimedError as error:
            why_not = str(error)
    model = fitted_model(state, offers_now(state)) if state.users else None
    fit: Inference = model or fit_now(data).fit
    effects = all_effects(data, fit) if state.users else []
    agreed = agreement(data, fit, effects) if effects else Agreement(0, RATE, [], [])
    checks = check(data, None if model is None else check_model(data, model))
    pending = data.standing == STATES.index(PENDING)
    analysis = Analysis(
        status=queries.status(state),
        data=data,
        fit=fit,
        benefit=benefit(data, fit),
        effects=effects,
        recommendations=[],
        checks=replace(checks, alarms=[*checks.alarms, *agreed.alarms]),
        agreement=agreed,
        oldest_pending=int(np.min(data.episode[pending])) if pending.any() else None,
        next=upcoming,
        why_not_next=why_not,
        openings=unblindings,
        stopping=history,
        variation=None if model is None else variation(data, model),
        past=past_effects(data, fit, effects),
    )
    return replace(analysis, recommendations=recommendations(data, fit, analysis.own_effects) if effects else [])
