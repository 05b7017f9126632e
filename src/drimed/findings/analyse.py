"""Everything that a report or an overview page shows, computed once, and the trial in a few plain sentences."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from drimed.errors import DrimedError
from drimed.findings.agreement import RATE, Agreement, agreement
from drimed.findings.checks import Checks, check
from drimed.findings.course import Course, course
from drimed.findings.effects import MODEL, Recommendation, all_effects, groups, may_get, recommendations
from drimed.findings.field_sentences import field_sentences
from drimed.findings.inference import Inference, inference_fit
from drimed.findings.over_time import Past, over_time
from drimed.findings.stopping import Stopped, stopped
from drimed.findings.varying import Varying, varying
from drimed.formatting import amount, counted, listed, marked, short, span
from drimed.learning.field.contrasts import Known
from drimed.linear.arrays import BoolArray
from drimed.records import PENDING, STATES, Decision, Effect, Opening, Status
from drimed.trial import asking, queries
from drimed.trial.blinding import openings
from drimed.trial.events import now
from drimed.trial.gather import Gathered, gather
from drimed.trial.left_over import ALPHA, left_by
from drimed.trial.model_free import REWARD
from drimed.trial.model_ranges import known, offers_now
from drimed.trial.seasons import NUMBERED, Calendar, calendar
from drimed.trial.state import TrialState
from drimed.trial.stores.store import Ledger
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

BYTES_EACH = 500  # of memory: an effect, or an arm of a decision
MOST_NAMED = 8  # arms in one sentence
LEAST_SHARE = 0.005  # of the decisions, for an arm to be named
GUARANTEED, NOT_GUARANTEED, AT_ALL_TIMES = "guaranteed", "not guaranteed", "at all times"  # the long ranges
AT_THIS_LOOK = "range at this look"  # those of sums over decisions, in models of the field


@dataclass(frozen=True)
class Analysis:
    """What a trial has taught so far."""

    status: Status
    seen: Gathered
    fit: Inference
    course: Course
    effects: list[Effect]
    recommendations: list[Recommendation]
    checks: Checks
    oldest_pending: int | None  # the first episode with a pending decision
    next: list[Decision]  # what the policy would decide now, without the arms that it would draw
    why_not_next: str | None  # if it would decide nothing
    agreement: Agreement  # of the model with what is known without it
    openings: list[Opening] = field(default_factory=list)  # of the code
    stopping: Stopped | None = None  # the stopping rules and what looks found
    varying: Varying | None = None  # sites, seasons and people, where the model tells them apart
    past: list[Past] = field(default_factory=list)  # how the effects developed

    @cached_property
    def size(self) -> int:
        """Bytes of memory, roughly."""
        return self.seen.size + BYTES_EACH * (len(self.effects) + sum(len(d.probabilities) for d in self.next))

    @cached_property
    def own_effects(self) -> list[Effect]:
        """Of single users: every arm on the reward, in the order of the users."""
        return _own(self.seen, self.effects)

    @property
    def promise(self) -> str:
        """What the long ranges are called: only the paper's model guarantees them."""
        if self.checks.withdrawn:
            return NOT_GUARANTEED
        return GUARANTEED if self.varying is None else AT_ALL_TIMES

    @property
    def promise_of_sums(self) -> str:
        """The same of sums over decisions: in models of the field a range at all times is for what stays the same."""
        return AT_THIS_LOOK if self.promise == AT_ALL_TIMES else self.promise

    @cached_property
    def given(self) -> set[str]:
        """Arms that somebody was given."""
        arms = self.seen.state.problem.arms
        return {arms[a] for a in np.unique(self.seen.arm)}

    @cached_property
    def _may_get(self) -> dict[str, BoolArray]:
        """The arms that a user, a group or all users may get, in any season, or might until they were retired: (K,)."""
        state = self.seen.state
        may = may_get(state, list(state.users))
        members = groups(state) | {user: [h] for h, user in enumerate(state.users)}
        return {who: np.asarray(may[some].any(0)) for who, some in members.items()}

    def known(self, effect: Effect) -> bool:
        """Whether something may be said of the arm: its users may get it, or could until it was retired.

        A retired arm must have been given, and any arm where the model is of the field: the paper's model knows arms by
        their description too.
        """
        needed = self.varying is not None or effect.arm in self.seen.state.retired
        may = bool(self._may_get[effect.who][self.seen.state.problem.arm(effect.arm)])
        return may and (effect.arm in self.given or not needed)

    def named(self, arm: str) -> str:
        """An arm, and whether it is retired."""
        return marked(arm, self.seen.state.retired)


def analyse(trial: Trial, before: Gathered | None = None) -> Analysis:
    """Read all of the trial, or what has changed in it since `before`, and work everything out."""
    with trial.reading() as (ledger, state):
        seen = gather(ledger, state, before)
        upcoming, why = _next(ledger, state)
        opened = openings(ledger, state)
        looked = stopped(ledger, state)
    fit: Inference = (known(state, offers_now(state)) if state.users else None) or inference_fit(seen)
    effects = all_effects(seen, fit) if state.users else []
    left = left_by(seen, fit) if isinstance(fit, Known) else None
    agreed = agreement(seen, fit, effects) if effects else Agreement(0, RATE, [], [])
    checks = check(seen, left)
    waiting = seen.standing == STATES.index(PENDING)
    return Analysis(
        status=queries.status(state),
        seen=seen,
        fit=fit,
        course=course(seen, fit),
        effects=effects,
        recommendations=recommendations(seen, fit, _own(seen, effects)) if effects else [],
        checks=replace(checks, alarms=[*checks.alarms, *agreed.alarms]),
        oldest_pending=int(np.min(seen.episode[waiting])) if waiting.any() else None,
        next=upcoming,
        why_not_next=why,
        agreement=agreed,
        varying=varying(seen, fit) if isinstance(fit, Known) else None,
        past=over_time(seen, fit, effects),
        openings=opened,
        stopping=looked,
    )


def sentences(a: Analysis) -> list[str]:
    """What a reader should know first."""
    s, called = a.status, calendar(a.seen.state)
    if not s.decisions:
        return [f"The trial has {counted(s.users, 'user')} and {counted(len(s.arms), 'arm')}.", "No decisions yet."]
    states = [(s.complete, "complete"), (s.partial, "partial"), (s.pending, "pending"), (s.missing, "missing")]
    outcomes = ", ".join(f"{n:,} {state}" for n, state in states if n)
    said = [a.checks.withdrawn] if a.checks.withdrawn else []
    said += [
        f"{counted(s.decisions, 'decision')} for {counted(s.users, 'user')} in {counted(s.episode, called.word)}"
        f"{_began(called, s.episode)}; outcomes: {outcomes}.",
        f"Arms given so far: {_shares(a)}.",
    ]
    if a.seen.told.any():
        said += [
            *field_sentences(a.varying, list(filter(a.known, a.effects)), units(a.seen.state), a.seen.state.retired),
            *_better(a),
            _gain(a),
        ]
    if not a.checks.alarms:
        said.append("No check of the assumptions has raised an alarm.")
    return said


def _began(called: Calendar, last: int) -> str:
    """When the first and the last season began, as far as somebody has said so."""
    dated = [n for n in called.dates if n <= last]
    if not dated:
        return ""
    if min(dated) == max(dated):
        return f", {called.word} {called.dated(dated[0])}"
    return f", from {called.dated(min(dated))} to {called.dated(max(dated))}"


def units(state: TrialState) -> dict[str, str]:
    """Of the reward and of each metric; empty: none is given."""
    found = {name: metric.unit for name, metric in state.spec.metrics.items()}
    return found | {REWARD: state.spec.reward.unit}


def assumptions(checks: Checks, state: TrialState | None = None) -> list[tuple[str, str]]:
    """What was checked, and what was found, in the words of a trial."""
    called = NUMBERED if state is None else calendar(state)
    few, rate = "too few outcomes to check this yet.", f"(false-alarm rate {100 * ALPHA:g} %)"
    mean, noise, played = few, few, "cannot be checked: they are not known for all decisions."
    if state is not None and not state.counts.decisions:
        played = "there are no decisions yet."
    if state is not None and state.counts.decisions and not state.counts.complete:
        played = few
    if checks.mean is not None:
        mean = (
            f"no sign that what an arm does has changed since the trial began {rate}."
            if checks.mean.alarm < 0
            else f"what arms do has changed (noticed in {called.said(int(checks.mean.alarm) + 1)})."
        )
    if checks.residual is not None:
        wrong = checks.residual.wrong_variance.any()
        noise = "outcomes scatter more or less than assumed; see above." if wrong else "outcomes scatter as assumed."
    if checks.calibration is not None:
        p = checks.calibration.anytime_p
        fits = "arms were given as often as they say" if p >= ALPHA else "arms were not given as often as they say"
        played = f"{fits} (p = {short(p)})."
    found = [
        ("Effects", mean),
        ("Model", _left(checks, state)),
        ("Noise", noise),
        ("Logged probabilities", played),
    ]
    # What a model of the field leaves tells whether effects or noise move; the other two are of the paper's model.
    own = state is None or state.spec.kind == "paper"
    return found if own else [one for one in found if one[0] not in ("Effects", "Noise")]


def _left(checks: Checks, state: TrialState | None) -> str:
    """What the residuals say of the model of the mean."""
    if not checks.left:
        return "too few outcomes to check this yet."
    found = [c.found for c in checks.left if c.alarm]
    rate = f"(false-alarm rate {100 * ALPHA:g} % in all)"
    made = f"{counted(len(checks.left), 'check')} of what it does not explain of the outcomes {rate}"
    moves = state is not None and state.spec.model.discount < 1
    unseen = " Trends and arms that change were not looked for: the discount is for these." if moves else ""
    return (f"{made} found this: {'; '.join(found)}." if found else f"{made} found nothing.") + unseen


def _own(seen: Gathered, effects: list[Effect]) -> list[Effect]:
    users = seen.state.users
    return [x for x in effects if x.who in users and x.on == REWARD and x.source == MODEL]


def _next(ledger: Ledger, state: TrialState) -> tuple[list[Decision], str | None]:
    """How likely each arm is now for every user; nothing is drawn or written."""
    try:
        return asking.preview(Transaction(state, ledger, now(), "", dry_run=True)), None
    except DrimedError as error:
        return [], str(error)


def _shares(a: Analysis) -> str:
    """How often each arm was given, in all."""
    arms, total = a.seen.state.problem.arms, a.course.allocation.sum(0)
    share = total / max(1, int(np.sum(total)))
    some = sorted(np.argsort(-total, kind="stable")[:MOST_NAMED].tolist())
    if (share > 0).sum() <= MOST_NAMED:
        return ", ".join(f"{arms[k]} {100 * share[k]:.0f} %" for k in some if share[k] >= LEAST_SHARE)
    rest = counted(int((share > 0).sum()) - len(some), "other arm")
    named = ", ".join(f"{arms[k]} {100 * share[k]:.0f} %" for k in some)
    return f"{named}, {rest} {100 * (1 - share[some].sum()):.0f} %"


def _better(a: Analysis) -> list[str]:
    """For how many users some arm is better than the control."""
    if a.checks.withdrawn:
        return ["Which arm is better is not judged while the model is wrong: the estimates below are descriptions."]
    own = [x for x in a.own_effects if a.known(x)]
    sure = [x for x in own if x.certain > 0]
    offered = [x for x in own if x.arm not in a.seen.state.retired]
    certain = {x.who for x in sure if x.arm not in a.seen.state.retired}
    likely = [x for x in own if x.likely > 0 and x.who not in certain]
    said = []
    for found, word in ((sure, "certainly"), (likely, "likely")):
        if found:
            arms, n = sorted({a.named(x.arm) for x in found}), len({x.who for x in found})
            which = arms[0] if len(arms) == 1 else f"at least one arm ({', '.join(arms)})"
            users, scope = counted(a.status.users, "user"), ""
            if a.varying is not None:
                users, scope = f"{a.status.users:,} {a.varying.words.users_noun}", a.varying.words.scope
            said.append(f"For {n:,} of {users}, {which} is {word} better than the control{scope}.")
    said += _unconfirmed(offered)
    user = "user" if a.varying is None else a.varying.words.user
    said = said or [f"No arm is likely to be better than the control for any {user} so far."]
    return said + _by_chance(a, own)


def _by_chance(a: Analysis, own: list[Effect]) -> list[str]:
    """Which arms look better somewhere, but not for all users together."""
    found = [x for x in own if x.by_chance and x.estimate > 0]
    if not found or a.varying is None:
        return []
    arms, n = sorted({a.named(x.arm) for x in found}), len({x.who for x in found})
    who = a.varying.words.users_noun
    some, many = (f" for {n:,} of {a.status.users:,} {who}", f"arms and {who}") if a.status.users > 1 else ("", "arms")
    named = listed(arms, MOST_NAMED)
    return [f"By the range alone, {named} would be called better{some}; among so many {many} that may be chance."]


def _unconfirmed(own: list[Effect]) -> list[str]:
    """Of which arms nothing is said yet, and why."""
    waiting: dict[str, list[str]] = {}
    for x in own:
        if x.unconfirmed and not x.is_control and x.arm not in waiting.get(x.unconfirmed, ()):
            waiting.setdefault(x.unconfirmed, []).append(x.arm)
    return [f"Not judged yet: {listed(arms, MOST_NAMED)} ({why})." for why, arms in waiting.items()]


def _gain(a: Analysis) -> str:
    gain, low, high = a.course.gain[-1], a.course.gain_low[-1], a.course.gain_high[-1]
    unit, n = a.seen.state.spec.reward.unit, int(a.course.allocation.sum())
    if low == high == 0:
        return "Only the control was given, so nothing was gained or lost against it."
    worth = (
        f"Added up over {counted(n, 'decision')}, the arms given are estimated to be worth {amount(abs(gain), unit)} "
        f"{'more' if gain >= 0 else 'less'} than giving everybody the control"
    )
    if a.checks.withdrawn:
        return f"{worth}, without a guarantee."
    each = f"{amount(abs(gain) / n, unit)} for each"
    return f"{worth} ({a.promise_of_sums}: {span(low, high)}), {each}; {a.course.verdict}."
