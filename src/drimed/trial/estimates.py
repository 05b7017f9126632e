"""Effects of arms against the control at one look, by the model and without it, and checks of the model's residuals.

Without the model, effects are averages over the decisions so far at which the arm and the user's own control had a
chance; users whose control the arm is count with an effect of zero.
Shapes: n decisions, H users, K arms, M metrics, C arms that are controls, "on" the reward and then each metric: 1 + M.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from drimed.errors import InputError, NumericalError
from drimed.evaluation import propensity_effects as arm_effects
from drimed.evaluation import residual_checks
from drimed.evaluation.propensity_effects import LEAST_CHANCE, PLAYS, Scores
from drimed.evaluation.residual_checks import Check
from drimed.models.mixed import effects as mixed
from drimed.models.mixed.effects import EffectPosterior, FittedModel
from drimed.models.mixed.learner import Field
from drimed.models.mixed.observations import UNKNOWN, Rows
from drimed.models.mixed.summaries import evenly_spaced, whitened_residuals
from drimed.models.offer import Fit, Offer, Outcome
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, computing
from drimed.numerics.quadratic_forms import leverages
from drimed.policies.guards.base import radius
from drimed.policies.policy import Policy
from drimed.records import Effect
from drimed.trial.dataset import Dataset
from drimed.trial.problem import Covariate
from drimed.trial.state import TrialState

REWARD = "reward"
PROPENSITIES = "propensities"  # the source of an effect
AS_GIVEN = "as given"  # from the propensities, as if each arm that was given had been drawn: not protected by that
EXACT = "propensities, exact"  # for every number of decisions; rests on the ranges that the file declares
LEVEL = 0.95
ROUND_OFF = 1e-6  # plays
SMALLEST = 1e-300  # of squared variances, which may be nothing
ALPHA = 0.01  # false-alarm rate of the residual checks over the whole trial

Members = Mapping[str, Sequence[int]]  # a name -> places of users
Bounds = tuple[float, float]


def offers_now(state: TrialState, users: Sequence[str] | None = None) -> Offer:
    """The offers to some users, or (None) all, in a typical context: (H, ...)."""
    names = list(state.users) if users is None else users
    if not names:
        raise InputError("there are no users yet")
    profiles = [state.profile(name) for name in names]
    masks = [state.problem.available(p, state.retired) for p in profiles]
    return state.problem.offer(profiles, [state.problem.covariates.typical] * len(names), masks)


def fitted_model(state: TrialState) -> FittedModel | None:
    """A trial's mixed model; None: its model is the paper's."""
    learner = _mixed_learner(state)
    return None if learner is None else FittedModel.of(learner, state.settled.evidence)


def _mixed_learner(state: TrialState) -> Field | None:
    learner = state.policy.learner if isinstance(state.policy, Policy) else None
    return learner if isinstance(learner, Field) else None


def may_get(state: TrialState, users: Sequence[str]) -> BoolArray:
    """True if each user may get each arm, in this season or another, or might until it was retired: (H, K)."""
    K = len(state.problem.arms)
    allowed = (state.profile(user).allowed for user in users)
    return np.array([np.ones(K, bool) if may is None else may[:K] for may in allowed]).reshape(-1, K)


def with_room(table: NDArray[Any], arms: int) -> NDArray[Any]:
    """A table by arm with columns of zeros for arms that are still to come: (n, K) -> (n, arms)."""
    return np.pad(table, ((0, 0), (0, arms - table.shape[-1])))


def effects_together(model: FittedModel, offers: Offer, some: Sequence[int], possible: BoolArray) -> EffectPosterior:
    """Each arm for some users together; `possible` is (H, arms), of all: (K, 1 + M)."""
    at = list(some)
    return mixed.effects_together(model, offers.take(at), with_room(possible[at], model.structure.arms))


def of_posterior(posterior: EffectPosterior, alpha: float = mixed.ALPHA) -> FloatArray:
    """The estimate of each effect, the ends of the range at all looks, and the likely ones: (5, ...)."""
    return np.stack([posterior.mean, *posterior.at_all_times(alpha), *posterior.likely])


def of_regression(fit: Fit, w: FloatArray) -> FloatArray:
    """The same of effects <w, theta> by the paper's regression: w (..., K, d) -> (5, ..., K).

    The self-normalised bound |<w, theta - theta_hat>| <= radius |w|_{V^-1} (Abbasi-Yadkori et al., 2011, Thm 2) holds
    for all w and all times together, for any policy, if the mean is linear and theta and the noise keep their bounds.

    >>> fit = Fit(np.array([1.0, 2.0]), np.eye(2) / 4, np.asarray(3.0), None, np.zeros(2), 1, 1.0)
    >>> of_regression(fit, np.array([[0.0, 0.0], [-1.0, 1.0]]))[:, 1].round(3).tolist()
    [1.0, -1.121, 3.121, -0.386, 2.386]
    """
    mean, deviation = np.matvec(w, fit.theta), np.sqrt(leverages(w, fit.metric))
    long, likely = (radius(fit, level)[..., None] * deviation for level in ("anytime", 0.5 + LEVEL / 2))
    return np.stack([mean, mean - long, mean + long, mean - likely, mean + likely])


def model_effects(
    state: TrialState,
    members: Members,
    arms: Sequence[str],
    *,
    alpha: float,
    metric: str | None = None,
    own: bool = False,
    deviations: float | None = None,
) -> dict[tuple[str, str], Effect]:
    """The effect of each arm for each of these groups of users; `own`: each is one user, with its own random effects.

    The range holds at all times, or has so many `deviations` to either side.
    """
    on, names = 0 if metric is None else 1 + state.problem.metrics.index(metric), list(state.users)
    effects = unknown_effects(members, arms, metric)
    if not names:
        return effects
    offers, learner = offers_now(state), _mixed_learner(state)
    if learner is None:
        raise InputError("only mixed models have ranges of any level")
    evidence = state.settled.evidence
    model = FittedModel.of(learner, evidence) if deviations is None else None
    seasons = mixed.seasons_with_both_arms(learner, evidence, offers)  # (H, K, 1 + M)
    possible = may_get(state, names)
    for who, some in members.items():
        columns = None
        if some and state.counts.decisions:
            if deviations is not None:
                mean, deviation = effect_moments(learner, evidence, offers, some, possible)
                wide, likely = deviations * deviation, mixed.STANDARD * deviation
                columns = np.stack([mean, mean - wide, mean + wide, mean - likely, mean + likely])[..., on]
            elif model is not None:
                if own:
                    posterior = mixed.effects_of_users(model, offers.take(list(some))).at((0,))
                else:
                    posterior = effects_together(model, offers, some, possible)
                columns = of_posterior(posterior, alpha)[..., on]  # (5, K)
        for arm in arms:
            k = state.problem.arm(arm)
            count = None if seasons is None else int(seasons[list(some), k, on].min()) if some else 0
            effects[who, arm] = replace(effects[who, arm], seasons=count)
            if columns is not None and np.abs(columns[1:3, k]).max() < UNKNOWN:
                mean, low, high, a, b = columns[:, k].tolist()
                effects[who, arm] = Effect(who, arm, metric or REWARD, mean, low, high, a, b, seasons=count)
    return effects


def effect_moments(
    learner: Field, evidence: Any, offers: Offer, some: Sequence[int], possible: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """The effect of each arm for some users together, and its deviation, by evidence of any batch: (..., K, 1 + M)."""
    at = list(some)
    can = with_room(possible[at], offers.control.shape[-1])
    return mixed.effect_moments(learner, evidence, offers.take(at), can)


def unknown_effects(members: Members, arms: Sequence[str], metric: str | None) -> dict[tuple[str, str], Effect]:
    effect = Effect("", "", metric or REWARD, 0.0, None, None, None, None)
    return {(who, arm): replace(effect, who=who, arm=arm) for who in members for arm in arms}


def seasons_before(state: TrialState, user: str, episode: int) -> dict[str, int]:
    """The number of seasons before an episode, at least one, with each arm and the user's control; empty: no matter."""
    seasons = None
    if (learner := _mixed_learner(state)) is not None:
        with suppress(NumericalError):
            evidence, offers = state.settled.evidence, offers_now(state, [user])
            seasons = mixed.seasons_with_both_arms(learner, evidence, offers, episode - 1)
    return {} if seasons is None else {arm: max(1, int(seasons[0, k, 0])) for k, arm in enumerate(state.problem.arms)}


def model_free_effects(
    data: Dataset,
    members: Members,
    arms: Sequence[str],
    *,
    alpha: float = 1 - LEVEL,
    metric: str | None = None,
    exact: bool = False,
) -> dict[tuple[str, str], Effect]:
    """The effect of each arm for each of these groups of users from the propensities, at all times at once.

    Nothing is known of an exact range once an outcome has left the range that the trial file declares.
    """
    effects = unknown_effects(members, arms, metric)
    bounds = value_range(data, metric) if exact else None
    if not (exact and bounds is None):
        source = EXACT if exact else PROPENSITIES
        for effect in _propensity_effects(data, members, arms, metric, alpha, {source: bounds}):
            effects[effect.who, effect.arm] = effect
    return effects


def all_model_free_effects(data: Dataset, members: Members, given: IntArray, possible: BoolArray) -> list[Effect]:
    """Every arm of which the propensities tell something, on the reward and on metrics that are not plain numbers.

    Exact ranges come with the asymptotic ones where they can. `given` and `possible` are (H, K).
    """
    arms, shown = data.state.problem.arms, dict[tuple[str | None, str, str], list[Effect]]()
    measures = [None, *(name for name, metric in data.state.spec.metrics.items() if metric.kind != "number")]
    for on in measures:
        sources: dict[str, Bounds | None] = {PROPENSITIES: None}
        if not data.state.balances and (bounds := value_range(data, on)) is not None:
            sources[EXACT] = bounds  # which needs decisions whose draws are independent
        for e in _propensity_effects(data, members, arms, on, 1 - LEVEL, sources):
            if e.is_known and (e.source == PROPENSITIES or (on, e.who, e.arm) in shown):
                some, k = list(members[e.who]), arms.index(e.arm)
                times, can = int(given[some, k].sum()), bool(possible[some, k].any())
                shown.setdefault((on, e.who, e.arm), []).append(replace(e, decisions=times, available=can))
    if (as_given := _as_given(data)) is not None:
        for on in measures:
            for e in _propensity_effects(as_given, members, arms, on, 1 - LEVEL, {AS_GIVEN: None}):
                if (on, e.who, e.arm) in shown:  # beside the effect by assignment
                    mine = np.isin(data.user, list(members[e.who])) & (data.given == arms.index(e.arm))
                    shown[on, e.who, e.arm].append(replace(e, decisions=int(mine.sum())))
    return [e for on in measures for who in members for arm in arms for e in shown.get((on, who, arm), ())]


@dataclass(frozen=True)
class HoldoutComparison:
    """Mean rewards of users whose arms the policy chose, minus those of users who were held out."""

    deciding: int  # users with a reward that the policy decides for
    held: int  # and of those held out
    estimate: float
    low: float | None  # of the likely range at this look; None: there are too few users
    high: float | None


def holdout_comparison(data: Dataset) -> HoldoutComparison | None:
    """The policy against the control, by the draw of who is held out alone; None: the trial has no holdout.

    A user is one observation, the mean of its rewards; the range is that of Welch (1947) for unequal variances.
    """
    if data.state.spec.holdout is None:
        return None
    known, H = ~np.isnan(data.reward), len(data.state.users)
    count, total = (np.bincount(data.user[known], w, H) for w in (None, data.reward[known]))
    held = np.array([data.state.profile(user).held_out for user in data.state.users], bool)
    means = np.where(count > 0, total / np.maximum(count, 1), 0.0)
    sides = [means[(count > 0) & side] for side in (~held, held)]
    sizes = [len(side) for side in sides]
    if min(sizes) < 2:
        return HoldoutComparison(sizes[0], sizes[1], 0.0, None, None)
    estimate = float(sides[0].mean() - sides[1].mean())
    variances = np.array([side.var(ddof=1) / len(side) for side in sides])
    freedom = variances.sum() ** 2 / max((variances**2 / (np.array(sizes) - 1)).sum(), SMALLEST)
    half = float(stdtrit(max(freedom, 1.0), 0.5 + LEVEL / 2) * np.sqrt(variances.sum()))
    return HoldoutComparison(sizes[0], sizes[1], estimate, estimate - half, estimate + half)


def adherence(data: Dataset) -> IntArray:
    """Decisions by the arm that was drawn and the arm that was given, the last column none of them: (K, K + 1)."""
    K = len(data.state.problem.arms)
    counts = np.zeros((K, K + 1), np.intp)
    np.add.at(counts, (data.arm, data.given), 1)
    return counts


def _as_given(data: Dataset) -> Dataset | None:
    """The data as if the arms that were given had been drawn; None: they were.

    The chance of each is estimated from how often it was given where another was drawn. Users who were given another
    arm may differ in more than that, which no propensity tells.
    """
    if (data.given == data.arm).all():
        return None
    counts = adherence(data)[:, :-1]
    total = counts.sum(-1, keepdims=True)
    shares = np.where(total > 0, counts / np.maximum(total, 1), np.eye(len(counts)))
    left_out = data.given < 0
    return replace(
        data,
        arm=np.maximum(data.given, 0),
        probabilities=data.probabilities @ shares,
        reward=np.where(left_out, np.nan, data.reward),
        observed=data.observed & ~left_out[:, None],
    )


def _propensity_effects(
    data: Dataset,
    members: Members,
    arms: Sequence[str],
    metric: str | None,
    alpha: float,
    sources: Mapping[str, Bounds | None],
) -> Iterator[Effect]:
    log, problem = PropensityLog.of(data, metric), data.state.problem
    weights = np.array([[name == metric for name in problem.metrics]], np.float64)
    if metric is None:
        weights = np.unique([p.preference for p in data.state.profiles.values()] or weights, axis=0)
    limit = max(map(problem.largest_effect, weights))
    for arm in arms if len(log.at) else ():
        k = data.state.problem.arm(arm)
        plays = log.plays(k)
        if not any(plays[list(some)].sum() >= PLAYS - ROUND_OFF for some in members.values()):
            continue
        table = log.table(k)
        for who, some in members.items():
            for source, bounds in sources.items():
                scores = log.scores(table, some, bounds)
                if not scores.value.size:
                    continue
                tells = True
                if bounds is None:
                    band = arm_effects.asymptotic_band(scores, alpha)
                    low, high = float(band.low[-1]), float(band.high[-1])
                else:
                    band = arm_effects.exact_band(scores, alpha)
                    low, high = float(band.low), float(band.high)
                    least, most = float(scores.share[-1]) * np.array(scores.ends or bounds)
                    tells = bool(low > least or high < most)
                if not np.isfinite([low, high]).all():
                    continue
                middle, low, high = np.clip([(low + high) / 2, low, high], -limit, limit).tolist()
                a, b = (low, high) if tells else (None, None)
                yield Effect(who, arm, metric or REWARD, middle, low, high, a, b, source)


def value_range(data: Dataset, metric: str | None = None) -> Bounds | None:
    """The bounds of a metric or (None) the reward by the trial file; None: it has none, or a value has left them."""
    spec, problem = data.state.spec, data.state.problem
    ends = np.array([metric.ends or (np.nan, np.nan) for metric in spec.metrics.values()])  # (M, 2)
    if spec.feedback == "difference":
        ends = np.stack([ends[:, 0] - ends[:, 1], ends[:, 1] - ends[:, 0]], -1)
    if metric is None:
        preferences = [p.preference for p in data.state.profiles.values()]
        weights = np.array(preferences).reshape(-1, len(problem.metrics), 1) / problem.sizes[:, None]
        each = np.where(weights == 0, 0.0, weights * ends)  # (profiles, M, 2)
        least, most = (each.min(-1).sum(-1).min(initial=np.inf), each.max(-1).sum(-1).max(initial=-np.inf))
        values = data.reward[~np.isnan(data.reward)]
    else:
        m = problem.metrics.index(metric)
        (least, most), values = ends[m], data.vector[data.observed[:, m], m]
    if not least < most or not ((values >= least) & (values <= most)).all():
        return None
    return float(least), float(most)


@dataclass(frozen=True)
class PropensityLog:
    """Decisions of which the measured value and the propensity are known."""

    data: Dataset
    measured: FloatArray  # of all decisions, NaN: not known
    at: IntArray  # (n,), their places among all

    @classmethod
    def of(cls, data: Dataset, metric: str | None = None) -> PropensityLog:
        measured = data.reward
        if metric is not None:
            m = data.state.problem.metrics.index(metric)
            measured = np.where(data.observed[:, m], data.vector[:, m], np.nan)
        return cls(data, measured, np.flatnonzero(~np.isnan(measured) & ~np.isnan(data.propensity)))

    @cached_property
    def control(self) -> FloatArray:
        """The probability of each arm under the control, by slot of a profile."""
        state, K = self.data.state, len(self.data.state.problem.arms)
        return np.array([state.profiles[s].control[:K] for s in range(len(state.profiles))]).reshape(-1, K)

    def chance(self, k: int | IntArray) -> FloatArray:
        """The probability of arm k at each decision: (n,); of several arms (n, k)."""
        return self.data.probabilities[:, k][self.at]

    @cached_property
    def control_chance(self) -> FloatArray:
        """The probability of the rarest arm of the control at each decision: (n,)."""
        slots, chances = self.data.slot[self.at], np.full(len(self.at), np.inf)
        for a in np.flatnonzero(self.control.any(0)):
            mine = self.control[slots, a] > 0
            chances[mine] = np.minimum(chances[mine], self.chance(int(a))[mine])
        return chances

    def plays(self, k: int | None) -> FloatArray:
        """Expected plays of arm k, or (None) of the rarest arm of the control, where it had a chance, by user: (H,)."""
        chance = self.control_chance if k is None else self.chance(k)
        counted = np.where(chance >= LEAST_CHANCE, chance, 0.0)
        return np.asarray(np.bincount(self.data.user[self.at], counted, len(self.data.state.users)), np.float64)

    def is_control(self, k: int) -> bool:
        return bool((self.control[np.unique(self.data.slot[self.at]), k] == 1).all())

    def table(self, k: int) -> dict[str, Any]:
        """Columns for the effect of arm k: the controls, the arm, and all other arms together: (n, C + 2)."""
        data, at, slot, K = self.data, self.at, self.data.slot[self.at], len(self.data.state.problem.arms)
        controls = np.flatnonzero(self.control[np.unique(slot)].any(0))
        arms = np.append(controls[controls != k], k)
        place = np.full(K, len(arms))
        place[arms] = np.arange(len(arms))
        chances = self.chance(arms)
        contrast = (arms == k) - self.control[slot[:, None], arms]
        others = np.maximum(1 - chances.sum(-1, keepdims=True), 0.0)
        return {
            "action": place[data.arm[at]],
            "reward": self.measured[at],
            "probabilities": np.concatenate([chances, others], -1),
            "contrast": np.concatenate([contrast, np.zeros_like(others)], -1),
            # Of these arms, and last of the one that was played, before each decision.
            "predictions": arm_effects.running_predictions(
                data.arm[at], self.measured[at], K, user=data.user[at], season=data.episode[at], arms=arms
            ),
        }

    def scores(self, table: dict[str, Any], some: Sequence[int], bounds: Bounds | None = None) -> Scores:
        """Scores of the decisions of some users; the first decision of all has no prediction, and is left out."""
        rows = 1 + np.flatnonzero(np.isin(self.data.user[self.at[1:]], list(some)))
        columns = {name: column[rows] for name, column in table.items()}
        return arm_effects.effect_scores(**columns, reward_range=bounds)


def serious_fault(checks: Collection[Check]) -> str | None:
    """The clearest sign against the model."""
    return next((c.found for c in checks if c.alarm and c.serious), None)


def model_fault(data: Dataset) -> str | None:
    try:
        with computing():
            model = fitted_model(data.state) if data.state.users else None
            return None if model is None else serious_fault(check_model(data, model))
    except NumericalError as error:
        return str(error)


def check_model(data: Dataset, model: FittedModel) -> tuple[Check, ...]:
    """Checks of a mixed model's residuals; a control plot precedes its plot: what both share is taken out."""
    paired = bool(np.isfinite(data.plot).any())
    done = np.flatnonzero(data.teaches)
    at = done[evenly_spaced(len(done), model.structure.metrics * (2 if paired else 1))]
    decided, beside = outcome_rows(data, model, at)
    rows = decided if beside is None else _joined([beside, decided], model.structure.metrics)
    values = whitened_residuals(model.learner, model.evidence, rows)[len(rows.pattern) - len(at) :]
    return check_trial_residuals(data, at, values, terms=[f.name for f in model.structure.families])


def outcome_rows(data: Dataset, model: FittedModel, at: IntArray) -> tuple[Rows, Rows | None]:
    """The outcomes of decisions, and those of the control plots beside them."""
    M, features = model.structure.metrics, model.learner.features
    parts: list[list[Rows]] = [[], []]
    places = []
    for episode in np.unique(data.episode[at]):
        some = at[data.episode[at] == episode]
        places.append(some)
        offers = data.offers(some, data.block[some].tolist())
        plots = np.isfinite(data.plot[some])
        control = np.where(plots, data.plot[some], 0.0)
        outcome = Outcome(
            vector=data.vector[some] + control,
            observed=data.observed[some],
            control=control if plots.any() else None,
            control_observed=plots,
        )
        for part, rows in enumerate(features.outcome_rows(offers, data.learned[some], outcome, int(episode) - 1, M)):
            parts[part].append(rows)
    order = np.argsort(np.concatenate(places), kind="stable") if places else None
    return _joined(parts[0], M, order), _joined(parts[1], M) if parts[1] else None


def _joined(parts: list[Rows], metrics: int, order: IntArray | None = None) -> Rows:
    if not parts:
        return Rows(np.zeros((0, 1), np.intp), np.zeros(0, np.intp), np.zeros((0, metrics)))
    columns = zip(*((rows.keys, rows.pattern, rows.values) for rows in parts), strict=True)
    return Rows(*(np.concatenate(column)[... if order is None else order] for column in columns))


def check_trial_residuals(
    data: Dataset,
    at: IntArray,
    values: FloatArray,
    *,
    design: FloatArray | None = None,
    terms: Collection[str] = (),
) -> tuple[Check, ...]:
    """Checks of standardised residuals (len(at), M) of the decisions `at`; NaN: none for this metric.

    If the model is right they are independent and standard normal, less a `design`. Advice depends on its `terms`.
    """
    state, arm, constant = data.state, data.learned[at], np.full(data.vector.shape[1], len(at) > 0)
    for k in np.unique(arm):  # metrics with one value under each arm, such as a fixed cost, leave round-off
        y, observed = data.vector[at][arm == k], data.observed[at][arm == k]
        constant &= np.where(observed, y, -np.inf).max(0) <= np.where(observed, y, np.inf).min(0)
    constant |= np.array([metric.kind != "number" for metric in state.spec.metrics.values()])  # not normal by design
    profiles = data.profiles(at)
    grouped = any(p.group is not None for p in profiles)
    numbers, categories = _covariates_of(data, at)
    residuals = residual_checks.Residuals(
        values=np.where(data.observed[at] & ~constant, values, np.nan),
        metrics=tuple(state.problem.metrics),
        arm=np.array(state.problem.arms)[arm],
        user=[p.user for p in profiles],
        group=[p.group or p.user for p in profiles] if grouped else None,
        season=data.episode[at],
        covariates=numbers,
        categories=categories,
        design=design,
        outcomes=data.vector[at],
        decision=data.number[at],
    )
    spec, known = state.spec, state.problem.covariates
    description = residual_checks.ModelDescription(
        kind=spec.kind,
        terms=frozenset(terms),
        covariates={
            c.name: residual_checks.DeclaredCovariate(f"{table}.{c.name}", frozenset(c.roles.split()))
            for table, covariates in (("attributes", known.attributes), ("context", known.fields))
            for c in covariates.values()
        },
        seasons=spec.model.seasons,
        arm_noise=spec.model.noise == "arm" or bool(spec.noise.arms),
        arm_attributes=any(a.attributes for a in spec.arms.values()),
        difference=spec.feedback == "difference",
        discount=spec.model.discount < 1,
    )
    return residual_checks.check_residuals(residuals, model=description, alpha=ALPHA)


def _covariates_of(data: Dataset, at: IntArray) -> tuple[dict[str, FloatArray], dict[str, list[str]]]:
    """Attributes and contexts of decisions: numbers (a missing one is typical), and levels of categories."""
    known = data.state.problem.covariates
    attributes = [profile.definition.attributes or {} for profile in data.profiles(at)]
    columns: list[tuple[Covariate, list[float | str]]] = [
        (c, [own.get(c.name, c.typical if c.levels is None else "") for own in attributes])
        for c in known.attributes.values()
    ]
    if data.context is not None:
        columns += [(c, [c.recorded(v) for v in data.context[at, i]]) for i, c in enumerate(known.fields.values())]
    numbers = {c.name: np.array(values, np.float64) for c, values in columns if c.levels is None}
    return numbers, {c.name: [str(v) for v in values] for c, values in columns if c.levels is not None}
