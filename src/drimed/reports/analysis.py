"""The analysis of a trial at one state: everything that reports, pages, the command line and HTTP read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from drimed.errors import DrimedError
from drimed.formatting import counted, listed, marked, percent, short
from drimed.models.mixed.likelihood_kernels import evaluate
from drimed.numerics.arrays import BoolArray, computing
from drimed.records import PENDING, Decision, Effect, Event, Look, Opening, Report, Search, Status
from drimed.reports import effects as estimation
from drimed.reports.assumption_checks import RATE, Agreement, Checks, agreement, check
from drimed.reports.benefit import Benefit, benefit
from drimed.trial import ask, queries
from drimed.trial.dataset import Dataset, load_dataset
from drimed.trial.estimates import REWARD, HoldoutComparison, fitted_model, holdout_comparison, may_get
from drimed.trial.events import DECISION, FORECAST, RULES, Calibration, Foreseen, body_of, now
from drimed.trial.look_history import ALL_USERS
from drimed.trial.seasons import calendar
from drimed.trial.spec import Stopping, StoppingRule
from drimed.trial.state import TrialState
from drimed.trial.stopping import looks
from drimed.trial.store import Ledger, MemoryStore
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

BYTES_EACH = 500  # of memory: an effect, or an arm of a decision
GUARANTEED, NOT_GUARANTEED, AT_ALL_TIMES = "guaranteed", "not guaranteed", "at all times"  # names of the long ranges
AT_THIS_LOOK = "range at this look"  # of sums over decisions, in mixed models
EVIDENCE = {
    "propensities": "the propensities alone",
    "exact": "the propensities alone, exactly, as long as outcomes stay within their ranges",
    "model": "the model",
    "calibrated": "the model at planned looks, beyond a bound from rehearsals of this trial",
    "spending": "the model at planned looks, beyond a group-sequential bound",
}
THEN = {
    "advise": "looks and reports say so", "pause": "the trial pauses", "stop": "the trial stops",
    "drop": "the arm is not given any more",
}  # fmt: skip
SHOWN = {
    "superiority": "the arm is shown to be better than the control",
    "non_inferiority": "the arm is shown to be not worse than the control by the margin",
    "equivalence": "the arm is shown to differ from the control by less than the margin",
    "futility": "the arm is shown to be no better than the control by the margin",
    "harm": "the arm is shown to be worse than the control",
}

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 1,
    "metrics": {"gain": {"range": [0.0, 10.0]}, "cost": {"range": [0.0, 10.0], "better": "lower"}},
    "arms": {"old": {}, "new": {}},
    "control": "old",
    "preference": {"gain": 1.0, "cost": -1.0},
    "tolerance": {"absolute": 9.0},
    "users": {f"u{i}": {"group": f"g{i % 2}"} for i in range(6)},
}


@dataclass(frozen=True)
class Analysis:
    """Results of a trial so far."""

    status: Status
    data: Dataset
    fit: estimation.Inference
    benefit: Benefit
    effects: list[Effect]
    recommendations: list[estimation.Recommendation]
    checks: Checks
    agreement: Agreement  # of the model with the propensities
    oldest_pending: int | None  # the first episode with a pending decision
    next: list[Decision]  # what the policy would decide now, without a draw
    why_not_next: str | None  # if it would decide nothing
    openings: list[Opening]  # unblindings
    stopping: StoppingHistory | None
    variation: estimation.Variation | None  # of a mixed model
    past: estimation.PastEffects
    holdout: HoldoutComparison | None  # None: the trial has none
    forecast: str  # how much longer it takes, or how to find out; empty: nothing more is to come

    @cached_property
    def size(self) -> int:
        """Bytes of memory, roughly."""
        return self.data.size + BYTES_EACH * (len(self.effects) + sum(len(d.probabilities) for d in self.next))

    @cached_property
    def own_effects(self) -> list[Effect]:
        """All arms on the reward of single users, in the order of the users."""
        users = self.data.state.users
        return [x for x in self.effects if x.who in users and x.on == REWARD and x.source == estimation.MODEL]

    @cached_property
    def own_rows(self) -> dict[str, int]:
        """Users with rows of their own in tables, and their decisions: people who came once may never return."""
        users, people = self.data.state.users, self.data.state.spec.kind == "people"
        asked = zip(users, np.bincount(self.data.user, minlength=len(users)).tolist(), strict=True)
        return {user: n for user, n in asked if n > 1 or not people}

    @property
    def promise(self) -> str:
        """The name of the long ranges: only the paper's model guarantees them."""
        return NOT_GUARANTEED if self.checks.withdrawn else GUARANTEED if self.variation is None else AT_ALL_TIMES

    @property
    def promise_of_sums(self) -> str:
        """The name of ranges of sums over decisions: in mixed models they hold at one look."""
        return AT_THIS_LOOK if self.promise == AT_ALL_TIMES else self.promise

    @cached_property
    def times(self) -> dict[str, int]:
        arms = self.data.state.problem.arms
        return dict(zip(arms, np.bincount(self.data.arm, minlength=len(arms)).tolist(), strict=True))

    @cached_property
    def deviations(self) -> int:
        """Decisions at which another arm was given than was drawn."""
        return int((self.data.given != self.data.arm).sum())

    @cached_property
    def given(self) -> set[str]:
        return {arm for arm, n in self.times.items() if n}

    @cached_property
    def _may_get(self) -> dict[str, BoolArray]:
        """Arms that a user, a group or all users may get in any season, or might until they were retired: (K,)."""
        state, users = self.data.state, list(self.data.state.users)
        members, may = estimation.groups(state) | {user: [h] for h, user in enumerate(users)}, may_get(state, users)
        return {who: np.asarray(may[some].any(0)) for who, some in members.items()}

    def can_be_judged(self, effect: Effect) -> bool:
        """The users of an effect may get its arm; only the paper's model judges arms that were never given."""
        needed = self.variation is not None or effect.arm in self.data.state.retired
        may = bool(self._may_get[effect.who][self.data.state.problem.arm(effect.arm)])
        return may and (effect.arm in self.given or not needed)

    def source(self, effect: Effect) -> estimation.EvidenceSource | None:
        """The outcomes that an effect on the reward rests on, by a mixed model."""
        if self.variation is None or effect.on != REWARD or effect.source != estimation.MODEL:
            return None
        return self.variation.sources.get((effect.who, effect.arm))

    def has_estimates(self) -> bool:
        """Outcomes have told something about arms."""
        return bool(self.data.has_outcome.any()) and all(x.is_known for x in self.own_effects)

    def label(self, arm: str) -> str:
        return marked(arm, self.data.state.retired)


@computing()
def analyse(trial: Trial, before: Dataset | None = None) -> Analysis:
    """Analyse a trial as it stands; `before` is data that was read earlier, so that only changes are read."""
    with trial.reading() as (ledger, state):
        data, pending = load_dataset(ledger, state, before), ledger.decision_rows(Search(state=PENDING))
        unblindings, history = queries.openings(ledger, state), stopping_history(ledger, state)
        last_forecast = next(ledger.events(kinds=[FORECAST], until=state.seq, limit=1, newest_first=True), None)
        upcoming, why_not = [], None
        try:
            upcoming = ask.preview(Transaction(state, ledger, now(), "analysis", dry_run=True))
        except DrimedError as error:
            why_not = str(error)
    model = fitted_model(state) if state.users else None
    fit: estimation.Inference = model or estimation.fit_now(data)[0]
    effects = estimation.all_effects(data, fit) if state.users else []
    agreed = agreement(data, fit, effects) if effects else Agreement(0, RATE, [], [])
    checks = check(data, model)
    analysis = Analysis(
        status=queries.status(state),
        data=data,
        fit=fit,
        benefit=benefit(data, fit),
        effects=effects,
        recommendations=[],
        checks=replace(checks, alarms=[*checks.alarms, *agreed.alarms]),
        agreement=agreed,
        oldest_pending=int(data.episode[pending[-1].decision - 1]) if pending else None,
        next=upcoming,
        why_not_next=why_not,
        openings=unblindings,
        stopping=history,
        variation=None if model is None else estimation.variation(data, model),
        past=estimation.past_effects(data, fit, effects),
        holdout=holdout_comparison(data),
        forecast=_forecast(state, last_forecast) if model is not None and data.has_outcome.any() else "",
    )
    best = estimation.recommendations(data, fit, analysis.own_effects) if effects else []
    return replace(analysis, recommendations=best)


def _forecast(state: TrialState, last: Event | None) -> str:
    """The last forecast, which is kept because it takes long to make."""
    if state.status == "stopped":
        return ""
    if last is None:
        return f"No forecast yet: `drimed trial rehearse {state.spec.name}` makes one."
    body = body_of(last, Foreseen)
    made = f"forecast from {calendar(state).said(body.episode)} with {counted(body.trials, 'rehearsal')}"
    return f"{body.text.removesuffix('.')} ({made})."


def until(kind: str, then: str) -> str:
    """The event that a rule of this kind waits for.

    >>> until("harm", "stop")
    'the arm is shown to be worse than the control and the trial stops'
    """
    return SHOWN[kind] + ("" if then == "advise" else f" and {THEN[then]}")


@dataclass(frozen=True)
class Amendment:
    time: str
    actor: str
    reason: str
    after_decisions: bool
    removed: list[str]  # rules as sentences
    added: list[str]


@dataclass(frozen=True)
class StoppingHistory:
    state: TrialState
    looks: list[Look]
    amendments: list[Amendment]

    @property
    def rules(self) -> list[str]:
        return describe_rules(self.state.spec.stopping, self.state.calibration)

    def describe(self, *, withdrawn: bool = False) -> list[str]:
        """Events in order; `withdrawn`: the model was found wrong since, and its claims no longer count."""
        text = [f"{counted(len(self.looks), 'look')} so far." if self.looks else "No look was taken yet."]
        said, first = calendar(self.state).said, dict[tuple[str, str, str], Look]()
        for look in self.looks:
            for claim in look.claims:
                if claim.met:
                    first.setdefault((claim.rule, "all arms" if claim.all_arms else claim.arm, claim.who), look)
        for (rule, arm, who), look in first.items():
            when = f"in {said(look.episode)} after {counted(look.decisions, 'decision')}"
            text.append(f"{rule} was met for {arm}, {who}, {when}.")
        if self.looks and not first:
            text.append("No rule was met.")
        waits = {c.rule: c.waits for look in self.looks[-1:] for c in look.claims if c.withdrawn}
        text += [f"At the last look {rule} was not met: {why}." for rule, why in waits.items()]
        rules = self.state.spec.rules
        for rule in dict.fromkeys(rule for rule, _, _ in first) if withdrawn else ():
            if rule in rules and rules[rule].on_model:
                text.append(f"{rule} rests on the model, which was found wrong since: its claim does not hold.")
        for look in self.looks:
            text += [f"The floor ended for {who} after {said(look.episode)}." for who in look.floor_ends]
            if look.dropped:
                text.append(f"{listed(look.dropped)} was dropped after {said(look.episode)}: {look.reason}.")
            if look.demands is not None:
                text.append(f"The trial was {look.demands} after {said(look.episode)}: {look.reason}.")
        return text


def stopping_history(ledger: Ledger, state: TrialState) -> StoppingHistory | None:
    """All looks and changes up to a state; None for a trial that never had rules."""
    changes = list(ledger.events(kinds=[RULES], until=state.seq))
    if state.spec.stopping is None and not changes:
        return None
    decided = next(ledger.events(kinds=[DECISION], until=state.seq, limit=1), None)
    amendments = []
    for event in changes:
        body: Mapping[str, Any] = event.body
        old, new = (describe_rules(Stopping.model_validate(body[name] or {})) for name in ("was", "stopping"))
        removed, added = [rule for rule in old if rule not in new], [rule for rule in new if rule not in old]
        late = decided is not None and event.seq > decided.seq
        amendments.append(Amendment(event.time, event.actor, body["reason"], late, removed, added))
    return StoppingHistory(state, list(looks(ledger, until=state.seq)), amendments)


def describe_rules(stopping: Stopping | None, calibration: Calibration | None = None) -> list[str]:
    """Rules and limits, one sentence each."""
    if stopping is None:
        return []
    text = [_describe_rule(name, rule) for name, rule in stopping.rules.items()]
    text += describe_bounds(calibration)
    for most, unit in ((stopping.seasons, "season"), (stopping.decisions, "decision")):
        text += [] if most is None else [f"The trial stops after {counted(most, unit)}."]
    if stopping.rules:
        times = {"season": "before each season", "by hand": "on request"}
        when = times.get(str(stopping.looks), f"after every {stopping.looks} decisions")
        when += f" from {stopping.first} on" if stopping.first else ""
        planned = [name for name, rule in stopping.rules.items() if rule.is_planned]
        text.append(f"A look is taken {when}.")
        if len(planned) < len(stopping.rules):
            some = "Ranges of the other rules" if planned else "Ranges"
            some += " hold at all times at once: any number of looks is allowed"
            text.append(f"{some}, and less is found than by planned ones.")
        if planned:
            some = f"For {listed(planned)} {len(stopping.planned())} looks are planned, and no other counts"
            text.append(f"{some}: more is found, while the trial goes as planned.")
    return text


def describe_bounds(calibration: Calibration | None) -> list[str]:
    if calibration is None:
        return []
    size, digest = f"{calibration['trials']:,} rehearsals of each scenario", calibration["hash"][:12]
    return [
        f"{name}: the bound is {bound:.3g} deviations at the last look. By {size} the error rate holds in the worst, "
        f"{calibration['worst'][name]!r}, allowing for Monte Carlo error (hash {digest})."
        for name, bound in calibration["thresholds"].items()
    ]


def _describe_rule(name: str, rule: StoppingRule) -> str:
    whom, margin = rule.group or rule.user or (f"each {rule.each}" if rule.each else ALL_USERS), short(rule.margin)
    more, arm = f" by more than {margin}" if rule.margin else "", rule.arm or "an arm"
    some, can = ("no arm", "can") if rule.of_all_arms else ("an arm", "cannot")
    claim = {
        "superiority": f"{arm} is better than the control{more}",
        "non_inferiority": f"{arm} is not worse than the control by {margin}",
        "equivalence": f"{rule.arm or 'every arm'} differs from the control by less than {margin}",
        "futility": f"{rule.arm or some} {'cannot' if rule.arm else can} be better than the control by {margin}",
        "harm": f"{arm} is worse than the control{more}",
    }[rule.kind]
    return (
        f"{name}: {claim}, on {rule.metric or 'the reward'}, for {whom}; shown by {EVIDENCE[rule.evidence]}, at a "
        f"confidence of {percent(rule.confidence)}. Then {THEN[rule.then]}."
    )


def prepare() -> None:
    """Compile or load the numerical code by playing and analysing a small trial of each model in memory."""
    evaluate.prepare()  # the largest first: other processes can compile the others meanwhile
    for kind in ("field", "paper", "people"):
        trial = Trial.create(SMALL | {"model": {"kind": kind}}, MemoryStore())
        for season in (1, 2, 3):
            numbers = [d.id for d in trial.ask_many(episode=season)]
            trial.tell_many([Report(n, {"gain": 4.0 + n % 13 / 6, "cost": 3.0 + n % 11 / 5}) for n in numbers])
        analyse(trial)
