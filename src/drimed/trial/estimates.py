"""What a model leaves of a trial's outcomes, and whether it is wrong by that: the promise rests on what is left.

Shapes: n decisions, M metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from drimed.errors import InputError
from drimed.evaluation import propensity_effects
from drimed.evaluation.propensity_effects import LEAST_CHANCE, PLAYS, Scores
from drimed.evaluation.residual_checks import Check, DeclaredCovariate, ModelDescription, Residuals, check_residuals
from drimed.models.mixed import effects as confirmed
from drimed.models.mixed.cells import Rows
from drimed.models.mixed.effects import Known
from drimed.models.mixed.learner import Field
from drimed.models.mixed.observations import UNKNOWN
from drimed.models.mixed.prediction import make_rows
from drimed.models.mixed.summaries import evenly, residuals
from drimed.models.offer import Offer, Outcome
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.policy import Policy
from drimed.records import Effect
from drimed.trial.dataset import Gathered
from drimed.trial.state import TrialState

# What the checks of residuals are told of a trial: what its file says of the model, and what is known of its users.


class Beside(NamedTuple):
    """What is known beside the outcomes: context fields, and attributes of users."""

    names: tuple[str, ...]
    numbers: FloatArray  # (n, c)
    categories: dict[str, list[str]]  # (n,) each


def described(state: TrialState, terms: Collection[str] = ()) -> ModelDescription:
    """Of a trial whose model has these families."""
    spec, known = state.spec, state.problem.covariates
    model = spec.model
    tables = (("attributes", known.attributes), ("context", known.fields))
    return ModelDescription(
        kind=spec.kind,
        terms=frozenset(terms),
        covariates={
            c.name: DeclaredCovariate(f"{table}.{c.name}", frozenset(c.roles.split()))
            for table, covariates in tables
            for c in covariates.values()
        },
        seasons=model.seasons,
        arm_noise=model.noise == "arm" or bool(spec.noise.arms),
        arm_attributes=any(arm.attributes for arm in spec.arms.values()),
        difference=spec.feedback == "difference",
        discount=model.discount < 1,
    )


def beside(seen: Gathered, at: IntArray) -> Beside:
    """What is known of the decisions `at`. A number that nobody gave is the typical one."""
    known = seen.state.problem.covariates
    numbers, categories = dict[str, FloatArray](), dict[str, list[str]]()
    given = [seen.state.profiles[int(s)].definition.attributes or {} for s in seen.slot[at]]
    for c in known.attributes.values():
        if c.levels is None:
            numbers[c.name] = np.array([float(own.get(c.name, c.typical)) for own in given])
        else:
            categories[c.name] = [str(own.get(c.name, "")) for own in given]
    for i, c in enumerate(known.fields.values()):
        if seen.context is None:
            break
        if c.levels is None:
            numbers[c.name] = seen.context[at, i]
        else:
            categories[c.name] = [str(c.recorded(v)) for v in seen.context[at, i]]
    columns = np.stack(list(numbers.values()), 1) if numbers else np.zeros((len(at), 0))
    return Beside(tuple(numbers), columns, categories)


# Ranges at all times of effects from a trial's model, for some users together: nothing but the state is needed.


def offers_now(state: TrialState, users: Sequence[str] | None = None) -> Offer:
    """What some users, or (None) all, would be offered in a typical context; the users are the first axis."""
    names = list(state.users) if users is None else users
    if not names:
        raise InputError("there are no users yet")
    profiles = [state.profile(name) for name in names]
    masks = [state.problem.available(p, state.retired) for p in profiles]
    return state.problem.offer(profiles, [typical_context(state)] * len(names), masks)


def typical_context(state: TrialState) -> FloatArray | None:
    """What the trial file calls typical of each context field: (D,); None without any."""
    fields = state.spec.context.values()
    return np.array([f.typical for f in fields]) if fields else None


def known(state: TrialState, offers: Offer) -> Known | None:
    """What a trial's model knows about the users of these offers; None where it is the paper's."""
    policy = state.policy
    if not isinstance(policy, Policy) or not isinstance(policy.learner, Field):
        return None
    return confirmed.know(policy.learner, state.settled().evidence, offers)


def end(value: float) -> float | None:
    """An end of a range; None: nothing is known."""
    return float(value) if abs(value) < UNKNOWN else None


def seasons(
    state: TrialState, members: Mapping[str, list[int]], arms: Sequence[str], *, metric: str | None = None
) -> dict[tuple[str, str], int]:
    """How many have told of each arm and of the controls of these users; empty where that does not matter.

    It does where seasons have effects on single arms (`drimed.models.mixed.effects`).
    """
    found = _seasons(state, list(state.users))
    if found is None:
        return {}
    both = found[..., 0 if metric is None else 1 + state.problem.metrics.index(metric)]  # (H, K)
    places = [(arm, state.problem.arm(arm)) for arm in arms]
    none = dict.fromkeys(((who, arm) for who in members for arm in arms), 0)
    return none | {(who, arm): int(both[some, k].min()) for who, some in members.items() if some for arm, k in places}


def seasons_before(state: TrialState, user: str, episode: int) -> dict[str, int]:
    """How many before an episode, or it alone, have told of each arm and of the user's control; empty: no matter."""
    found = _seasons(state, [user], before=episode - 1)
    return {} if found is None else {arm: max(1, int(found[0, k, 0])) for k, arm in enumerate(state.problem.arms)}


def _seasons(state: TrialState, users: Sequence[str], before: int | None = None) -> IntArray | None:
    """Of each of these users, on the reward and each metric: (H, K, 1 + M)."""
    policy = state.policy
    if not users or not isinstance(policy, Policy) or not isinstance(policy.learner, Field):
        return None
    return confirmed.seasons_of_both(policy.learner, state.settled().evidence, offers_now(state, users), before)


def ranges(
    state: TrialState,
    members: Mapping[str, list[int]],
    arms: Sequence[str],
    *,
    alpha: float,
    metric: str | None = None,
    own: bool = False,
) -> dict[tuple[str, str], tuple[float, float]]:
    """The range of each arm for each of these groups of users, on a metric or (None) the reward.

    `own`: each group is one user, with all that is its own. An effect of which nothing can be told yet goes from minus
    to plus infinity.
    """
    found = dict.fromkeys(((who, arm) for who in members for arm in arms), (-np.inf, np.inf))
    if not state.users or not state.counts.decisions:
        return found
    offers = offers_now(state)
    learned = known(state, offers)
    if learned is None:
        raise InputError("only models of the field and of people have ranges of any level")
    names, on = list(state.users), 0 if metric is None else 1 + state.problem.metrics.index(metric)
    for who, some in members.items():
        if not some:
            continue
        some_offers = offers.take(some)
        if own:
            effects = confirmed.Found(*(part[0] for part in confirmed.of_users(learned, some_offers)))
        else:
            effects = confirmed.together(learned, some_offers, _possible(state, [names[h] for h in some], learned))
        low, high = effects.at_all_times(alpha)  # (K, 1 + M)
        for arm in arms:
            k = state.problem.arm(arm)
            ends = float(low[k, on]), float(high[k, on])
            found[who, arm] = (-np.inf, np.inf) if max(map(abs, ends)) >= UNKNOWN else ends
    return found


def _possible(state: TrialState, users: Sequence[str], learned: Known) -> BoolArray:
    """Whether each of these users may get each arm: (H, K), with room for arms that are still to come."""
    can = np.zeros((len(users), learned.structure.arms), bool)
    for row, user in zip(can, users, strict=True):
        allowed = state.profile(user).allowed
        row[: len(state.problem.arms)] = True if allowed is None else allowed[: len(state.problem.arms)]
    return can


# Effects on the reward from propensities alone, for some users together: no model of the mean is believed.

REWARD = "reward"
PROPENSITIES = "propensities"
EXACT = "propensities, exact"  # for every number of decisions; rests on the ranges that the file declares
LEVEL = 0.95
ROUND_OFF = 1e-6  # plays


def model_free(seen: Gathered, members: Mapping[str, list[int]], given: IntArray, possible: BoolArray) -> list[Effect]:
    """Every arm that the propensities tell something about, for each of these groups of users, in their order.

    Where the file bounds the reward and decisions are drawn one by one, exact ranges come with the asymptotic ones.
    `given` and `possible` are (H, K).
    """
    log = Decisions.of(seen, seen.reward)
    # Exact ranges need decisions of which none tells anything about another's draw.
    bounds = None if seen.state.balances else reward_range(seen)
    found: dict[str, list[Effect]] = {who: [] for who in members}
    for k, arm in enumerate(seen.state.problem.arms if len(log.at) else ()):
        plays = log.plays(k)
        enough = {who: some for who, some in members.items() if plays[some].sum() >= PLAYS - ROUND_OFF}
        if not enough:
            continue
        table = log.table(k)
        for who, some in enough.items():
            times = int(given[some, k].sum()), bool(possible[some, k].any())
            for source, low, high in _told(log, table, some, bounds):
                ends = (low, high, low, high, source)
                found[who].append(Effect(who, arm, REWARD, (low + high) / 2, *ends, *times))
    return [effect for some_effects in found.values() for effect in some_effects]


def reward_range(seen: Gathered) -> tuple[float, float] | None:
    """What every reward lies between, by the ranges in the trial file; None: it has none, or rewards left them."""
    spec, problem = seen.state.spec, seen.state.problem
    declared = [spec.metrics[m].range for m in problem.metrics]
    ends = np.array([(np.nan, np.nan) if r is None else r for r in declared])  # (M, 2)
    if spec.feedback == "difference":
        ends = np.stack([ends[:, 0] - ends[:, 1], ends[:, 1] - ends[:, 0]], -1)
    profiles = seen.state.profiles.values()
    wish = np.array([p.preference for p in profiles]).reshape(-1, len(problem.metrics)) / problem.sizes
    each = np.where(wish[..., None] == 0, 0.0, wish[..., None] * ends)  # (profiles, M, 2)
    low, high = each.min(-1).sum(-1), each.max(-1).sum(-1)
    if not len(wish) or np.isnan(low).any():
        return None
    least, most = float(low.min()), float(high.max())
    inside = np.isnan(seen.reward) | ((seen.reward >= least) & (seen.reward <= most))
    return (least, most) if least < most and inside.all() else None


def metric_range(seen: Gathered, metric: str) -> tuple[float, float] | None:
    """What every value of a metric lies between, against its control plot where there is one; None: see above."""
    declared = seen.state.spec.metrics[metric].range
    if declared is None:
        return None
    low, high = declared
    if seen.state.spec.feedback == "difference":
        low, high = low - high, high - low
    m = seen.state.problem.metrics.index(metric)
    values = seen.vector[seen.observed[:, m], m]
    return (low, high) if ((values >= low) & (values <= high)).all() else None


def _told(
    log: Decisions, table: Table, some: list[int], bounds: tuple[float, float] | None
) -> Iterator[tuple[str, float, float]]:
    """The ranges as they are now, by where they come from; one that tells nothing is left out."""
    band = propensity_effects.asymptotic_band(log.scores(table, some), 1 - LEVEL)
    if not (band.low.size and np.isfinite(band.low[-1])):
        return
    yield PROPENSITIES, float(band.low[-1]), float(band.high[-1])
    if bounds is not None:
        found = log.scores(table, some, bounds)
        exact = propensity_effects.exact_band(found, 1 - LEVEL, now=True)
        low, high = exact.low, exact.high
        least, most = found.ends or bounds
        share = float(found.share[-1])
        if low > share * least or high < share * most:
            yield EXACT, float(low), float(high)


def ranges_model_free(
    seen: Gathered,
    members: Mapping[str, list[int]],
    arms: Sequence[str],
    *,
    alpha: float,
    metric: str | None = None,
    exact: bool = False,
) -> dict[tuple[str, str], tuple[float, float]]:
    """The range at all times of each arm for each of these groups of users, on a metric or (None) the reward.

    An effect of which nothing can be told yet goes from minus to plus infinity; so do exact ranges where an outcome has
    left what the trial file says to be its range.
    """
    known = seen.reward
    if metric is not None:
        m = seen.state.problem.metrics.index(metric)
        known = np.where(seen.observed[:, m], seen.vector[:, m], np.nan)
    log = Decisions.of(seen, known)
    found = dict.fromkeys(((who, arm) for who in members for arm in arms), (-np.inf, np.inf))
    bounds = (reward_range(seen) if metric is None else metric_range(seen, metric)) if exact else None
    for arm in arms if len(log.at) and not (exact and bounds is None) else ():
        k = seen.state.problem.arm(arm)
        plays = log.plays(k)
        if not any(plays[some].sum() >= PLAYS - ROUND_OFF for some in members.values()):
            continue
        table = log.table(k)
        for who, some in members.items():
            told = log.scores(table, some, bounds)
            if not told.value.size:
                continue
            if exact:
                band = propensity_effects.exact_band(told, alpha, now=True)
                found[who, arm] = float(band.low), float(band.high)
            else:
                band = propensity_effects.asymptotic_band(told, alpha)
                found[who, arm] = float(band.low[-1]), float(band.high[-1])
    return found


@dataclass(frozen=True)
class Table:
    """What one arm's effect is computed from; the last of the arms stands for all others."""

    action: IntArray  # (n,)
    probabilities: FloatArray  # (n, C + 2)
    contrast: FloatArray  # (n, C + 2)
    predictions: FloatArray  # (n, C + 2)


@dataclass(frozen=True)
class Decisions:
    """Decisions of which what is measured and the propensity are known."""

    seen: Gathered
    measured: FloatArray  # of all decisions, NaN: not known
    at: IntArray  # (n,), their places among all

    @classmethod
    def of(cls, seen: Gathered, measured: FloatArray) -> Decisions:
        return cls(seen, measured, np.flatnonzero(~np.isnan(measured) & ~np.isnan(seen.propensity)))

    @cached_property
    def control(self) -> FloatArray:
        """The probability of each arm under the control, by slot of a profile."""
        state, K = self.seen.state, len(self.seen.state.problem.arms)
        return np.array([state.profiles[s].control[:K] for s in range(len(state.profiles))]).reshape(-1, K)

    def plays(self, k: int) -> FloatArray:
        """How often at most arm k was played in expectation, for each user, where it had a chance: (H,)."""
        seen, at = self.seen, self.at
        chance = seen.probabilities[at, k] / seen.total[at]
        told = np.where(chance >= LEAST_CHANCE, chance, 0.0)
        return np.asarray(np.bincount(seen.user[at], told, len(seen.state.users)), np.float64)

    def control_plays(self) -> FloatArray:
        """How often at most every arm of the control was played in expectation, for each user: (H,)."""
        chance = self._control_chance
        told = np.where(chance >= LEAST_CHANCE, chance, 0.0)
        return np.asarray(np.bincount(self.seen.user[self.at], told, len(self.seen.state.users)), np.float64)

    def together(self, k: int) -> float:
        """Expected plays of the rarer of arm k and the control, where both had a chance."""
        both = np.minimum(self.seen.probabilities[self.at, k] / self.seen.total[self.at], self._control_chance)
        return float(both[both >= LEAST_CHANCE].sum())

    def is_control(self, k: int) -> bool:
        """Whether arm k is the control of everybody."""
        return bool((self.control[np.unique(self.seen.slot[self.at]), k] == 1).all())

    @cached_property
    def _control_chance(self) -> FloatArray:
        """Of the rarest arm of the control, decision by decision: (n,)."""
        seen, at = self.seen, self.at
        found = np.full(len(at), np.inf)
        for a in np.flatnonzero(self.control.any(0)):
            mine = self.control[seen.slot[at], a] > 0
            found[mine] = np.minimum(found[mine], seen.probabilities[at[mine], a] / seen.total[at[mine]])
        return found

    def table(self, k: int) -> Table:
        """Of arm k."""
        seen, at = self.seen, self.at
        slot, action = seen.slot[at], seen.arm[at]
        controls = np.flatnonzero(self.control[np.unique(slot)].any(0))
        arms = np.append(controls[controls != k], k)
        K = len(seen.state.problem.arms)
        place = np.full(K, len(arms))
        place[arms] = np.arange(len(arms))
        e = seen.probabilities[at[:, None], arms] / seen.total[at, None]
        g = (arms == k) - self.control[slot[:, None], arms]
        q = self.predictions(arms)
        others = np.maximum(1 - e.sum(-1, keepdims=True), 0.0)
        return Table(place[action], np.concatenate([e, others], -1), np.concatenate([g, np.zeros_like(others)], -1), q)

    def predictions(self, arms: IntArray) -> FloatArray:
        """Of what these arms give, and last the one that was played, before each decision: (n, k + 1)."""
        seen, at = self.seen, self.at
        K = len(seen.state.problem.arms)
        return propensity_effects.running_predictions(
            seen.arm[at], self.measured[at], K, user=seen.user[at], season=seen.episode[at], arms=arms
        )

    def scores(self, table: Table, some: list[int], bounds: tuple[float, float] | None = None) -> Scores:
        """Of the decisions of some users; nothing predicted the first decision of all, so it is left out."""
        member = np.zeros(len(self.seen.state.users), bool)
        member[some] = True
        rows = 1 + np.flatnonzero(member[self.seen.user[self.at[1:]]])
        return propensity_effects.effect_scores(
            action=table.action[rows],
            reward=self.measured[self.at[rows]],
            probabilities=table.probabilities[rows],
            contrast=table.contrast[rows],
            predictions=table.predictions[rows],
            reward_range=bounds,
        )


# What a model of the field leaves of the outcomes, for the checks.


def field_residuals(seen: Gathered, known: Known) -> tuple[IntArray, FloatArray]:
    """Decisions with outcomes, or evenly spaced ones of many, and their standardised residuals: (n,), (n, M).

    A control plot comes before the plot beside it, so that what both share is taken out.
    """
    M = known.structure.metrics
    paired = bool(np.isfinite(seen.plot).any())
    told = np.flatnonzero(seen.told)
    at = told[evenly(len(told), M * (2 if paired else 1))]
    decided, beside = outcome_rows(seen, known, at)
    order = [decided] if beside is None else [beside, decided]
    rows = Rows(*(np.concatenate(parts) for parts in zip(*((r.keys, r.pattern, r.values) for r in order), strict=True)))
    return at, residuals(known.learner, known.evidence, rows)[len(rows.pattern) - len(at) :]


def outcome_rows(seen: Gathered, known: Known, at: IntArray) -> tuple[Rows, Rows | None]:
    """The outcomes of decisions, and those of the control plots beside them."""
    structure, reading, problem = known.structure, known.learner._reading, seen.state.problem
    kept: list[list[Rows]] = [[], []]
    places = []
    for episode in np.unique(seen.episode[at]):
        some = at[seen.episode[at] == episode]
        places.append(some)
        contexts = [None if seen.context is None else seen.context[i] for i in some]
        profiles = [seen.state.profiles[int(s)] for s in seen.slot[some]]
        offers = problem.offer(profiles, contexts, [None] * len(some), seen.block[some].tolist())
        control = np.where(np.isfinite(seen.plot[some]), seen.plot[some], 0.0)
        plots = np.isfinite(seen.plot[some])
        outcome = Outcome(
            vector=seen.vector[some] + control,
            observed=seen.observed[some],
            control=control if plots.any() else None,
            control_observed=plots,
        )
        found = reading.told(offers, seen.arm[some], outcome, int(episode) - 1)
        for part, told in enumerate(found):
            kept[part].append(make_rows(structure, told.keys, told.y, told.covariates, told.observed))
    order = np.argsort(np.concatenate(places), kind="stable") if places else np.zeros(0, np.intp)
    return _joined(kept[0], structure.metrics, order), _joined(kept[1], structure.metrics) if kept[1] else None


def _joined(parts: list[Rows], metrics: int, order: IntArray | None = None) -> Rows:
    if not parts:
        return Rows(np.zeros((0, 1), np.intp), np.zeros(0, np.intp), np.zeros((0, metrics)))
    keys, pattern, values = (
        np.concatenate(column) for column in zip(*((r.keys, r.pattern, r.values) for r in parts), strict=True)
    )
    return Rows(keys, pattern, values) if order is None else Rows(keys[order], pattern[order], values[order])


ALPHA = 0.01  # false-alarm rate: the probability that a trial without drift ever raises an alarm


def wrong_because(left: Collection[Check]) -> str | None:
    """The clearest sign that ranges and promise rest on something false; None: there is no such sign."""
    return next((c.found for c in left if c.alarm and c.serious), None)


def model_is_wrong(seen: Gathered) -> str | None:
    """The same for a trial with a model of the field or of people, from all that was told so far."""
    found = known(seen.state, offers_now(seen.state)) if seen.state.users else None
    return None if found is None else wrong_because(left_by(seen, found))


def left_by(seen: Gathered, model: Known) -> tuple[Check, ...]:
    """What a model of the field or of people leaves."""
    terms = [f.name for f in model.structure.families]
    return residual_findings(seen, *field_residuals(seen, model), terms=terms)


def residual_findings(
    seen: Gathered,
    at: IntArray,
    values: FloatArray,
    *,
    design: FloatArray | None = None,
    fitted: FloatArray | None = None,
    terms: Collection[str] = (),
) -> tuple[Check, ...]:
    """What standardised residuals (len(at), M) of the decisions `at` show; NaN: none for this metric.

    They are independent and standard normal if the model is right, once a design is taken out where one is given.
    `terms` are the families that the model has ("season", "group", "group x arm", ...): the advice depends on them.
    """
    values = np.where(_fixed(seen, at), np.nan, values)
    people = [seen.state.profiles[int(s)] for s in seen.slot[at]]
    grouped, told = any(p.group is not None for p in people), beside(seen, at)
    residuals = Residuals(
        values=np.where(seen.observed[at], values, np.nan),
        metrics=tuple(seen.state.problem.metrics),
        arm=seen.arm[at],
        user=[p.user for p in people],
        group=[p.group or p.user for p in people] if grouped else None,
        season=seen.episode[at],
        order=seen.number[at],
        covariates=told.numbers,
        names=told.names,
        categories=told.categories,
        design=design,
        fitted=fitted,
        outcomes=seen.vector[at],
        decision=seen.number[at],
    )
    return check_residuals(residuals, model=described(seen.state, terms), alpha=ALPHA)


def _fixed(seen: Gathered, at: IntArray) -> BoolArray:
    """Metrics that have one value under each arm, such as a fixed cost: what is left of them is round-off. (M,)"""
    arm, fixed = seen.arm[at], np.full(seen.vector.shape[1], len(at) > 0)
    for k in np.unique(arm):
        y, there = seen.vector[at][arm == k], seen.observed[at][arm == k]
        fixed &= np.where(there, y, -np.inf).max(0) <= np.where(there, y, np.inf).min(0)
    return fixed
