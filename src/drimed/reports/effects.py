"""Effects of arms against the control for each user, group and all users, also earlier ones, best arms, and variation.

The likely range is the posterior's 95 % at one look. The long range of the paper's model is guaranteed at all times for
all effects together; that of a mixed model holds for one effect at all looks. That from propensities needs no model.
Shapes: H users, K arms, M metrics; "on" the reward and then each metric: 1 + M.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from drimed.errors import InputError, NumericalError
from drimed.models.linear_regression import Learner
from drimed.models.mixed import effects as mixed
from drimed.models.mixed import summaries
from drimed.models.mixed.effects import EffectPosterior, FittedModel, seasons_with_both_arms
from drimed.models.mixed.observations import UNKNOWN
from drimed.models.mixed.prediction import parts_of
from drimed.models.mixed.terms import BEND, FACTORS
from drimed.models.noise_estimation import NoiseModel
from drimed.models.offer import Fit, Offer, Outcome
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, computing, pick
from drimed.policies.policy import Policy
from drimed.policies.rules.base import Ask
from drimed.policies.rules.thompson import Thompson
from drimed.records import Effect
from drimed.trial import estimates
from drimed.trial.dataset import Dataset
from drimed.trial.estimates import REWARD as REWARD
from drimed.trial.problem import PRIOR_DEVIATION, coefficients_are_scaled
from drimed.trial.seasons import calendar
from drimed.trial.state import TrialState

EVERYBODY = "all users"
MODEL = "model"  # the source of an effect, or PROPENSITIES
POINTS = 1024  # of the posterior, of which an arm is best in some
MOST_USERS = 1000  # whose average is computed to judge one of them; of more, a user's effect must stand alone
OUTCOMES_AT_ONCE = 500  # that are learned from together
GRID = 9  # values of a covariate that effects are computed at
MOST_COUNTED = 2000  # users whose own outcomes are counted
MOST_CURVES = 12  # of a dose, by group
MOST_SITES = 200  # whose levels are listed
MOST_POINTS = 12  # seasons that past effects are computed for; of more, every so many
LIKELY = 0.95
ROUND_OFF = 1e-12  # of an estimate, relative to its likely range: less is nothing
SEASON = FACTORS.index("season")

Inference = Fit | FittedModel  # the source of effects: the paper's regression, or a mixed model
Refit = tuple[Fit, NoiseModel | None]  # the regression and the noise by the outcomes up to an episode; None: known
PastEffects = dict[int, list[Effect]]  # for all users together, by the outcomes up to an episode


@dataclass(frozen=True)
class Recommendation:
    """The best arm for one user so far."""

    user: str
    control: str  # arms of the control, by name
    effect: Effect  # of the recommended arm
    lead: float  # over the next best arm with outcomes; infinite where there is none
    runner_up: str  # the arm itself where there is none
    p_best: float  # of all arms, those without outcomes too

    @property
    def alone(self) -> bool:
        """No other arm that the user can get has outcomes."""
        return self.runner_up == self.effect.arm


@computing()
def own_effects(
    state: TrialState, users: Sequence[str], fit: Inference | None = None, everybody: EffectPosterior | None = None
) -> list[Effect]:
    """Every arm on the reward, user by user; `fit` is that of an analysis, for policies that have none for inference.

    `everybody` has the effects for all users together, (K,); None: they are computed, unless there are too many users.
    """
    if not users:
        return []
    together = state.spec.kind != "paper" and everybody is None and len(state.users) <= MOST_USERS
    offers = estimates.offers_now(state, users)
    all_offers = estimates.offers_now(state) if together else offers
    model = fit or estimates.fitted_model(state)
    if model is None:
        inference = state.policy.inference(state.settled)
        if inference is None:
            raise InputError(f"policy {state.spec.policy.name!r} has no fit for inference: give that of an analysis")
        model = inference[0]
    significant = None
    if isinstance(model, FittedModel):
        if together:
            could = estimates.may_get(state, list(state.users))
            everybody = estimates.effects_together(model, all_offers, range(len(could)), could).at((..., 0))
        own = mixed.effects_of_users(model, offers).at((..., 0))  # (H, K)
        five = estimates.of_posterior(own)
        significant = mixed.is_significant(own, everybody, compared_arms(state), len(state.users))[..., None]
    else:
        five = estimates.of_regression(model, offers.features - offers.control_features[..., None, :])
    times, can, seasons = given(state, users), available(state, users), _seasons(model, offers)
    effects: list[Effect] = []
    for h, user in enumerate(users):
        both, sure = (None if part is None else part[h] for part in (seasons, significant))
        effects += _records(state, user, [REWARD], five[:, h, :, None], times[h], can[h], both, sure)
    return effects


def all_effects(data: Dataset, fit: Inference) -> list[Effect]:
    """All users and groups on the reward and on each metric, single users on the reward."""
    state, members = data.state, groups(data.state)
    names = list(state.users)
    together, everybody = effects_of_groups(state, fit, members)
    own = own_effects(state, names, fit, None if everybody is None else everybody.at((..., 0)))
    on_reward = [x for x in together if x.on == REWARD and x.who not in state.users]
    on_metrics = [x for m in state.problem.metrics for x in together if x.on == m]
    free = estimates.all_model_free_effects(data, members, given(state, names), available(state, names))
    return [*on_reward, *own, *on_metrics, *free]


def effects_of_groups(
    state: TrialState, fit: Inference, members: Mapping[str, Sequence[int]]
) -> tuple[list[Effect], EffectPosterior | None]:
    """The members of each group together, on the reward and each metric; and the first posterior of a mixed model."""
    names, offers = list(state.users), estimates.offers_now(state)
    times, can, could = given(state, names), available(state, names), estimates.may_get(state, names)
    measures, seasons, compared = [REWARD, *state.problem.metrics], _seasons(fit, offers), compared_arms(state)
    everybody: EffectPosterior | None = None
    effects: list[Effect] = []
    for who, some in members.items():
        significant, at = None, list(some)
        if isinstance(fit, FittedModel):
            posterior = estimates.effects_together(fit, offers, at, could)
            everybody = everybody or posterior
            others = 1 if who == EVERYBODY else len(members) - 1
            five = estimates.of_posterior(posterior)
            significant = mixed.is_significant(posterior, everybody, compared, others)
        else:
            five = _group_ranges(state, fit, offers, at)
        both, possible = None if seasons is None else seasons[at].min(0), np.asarray(can[at].any(0))
        effects += _records(state, who, measures, five, times[at].sum(0), possible, both, significant)
    return effects, everybody


def recommendations(data: Dataset, fit: Inference, own: Sequence[Effect]) -> list[Recommendation]:
    """The best arm for each user, of the control and the arms with outcomes; `own` are all users' effects in order."""
    state = data.state
    arms, offers = state.problem.arms, estimates.offers_now(state)
    among = offers.control > 0  # (H, K)
    among[:, np.unique(data.learned[data.teaches])] = True
    among &= True if offers.available is None else offers.available
    parts = [
        (posterior.mean(part.features), Thompson(points=POINTS).propose(posterior, part, Ask(part.available)))
        for posterior, part in _posteriors(state, fit, offers)
    ]
    means, chances = (np.concatenate(column) for column in zip(*parts, strict=True))  # (H, K) each
    best = np.where(among, means, -np.inf).argmax(-1)
    other = among & (np.arange(means.shape[-1]) != best[:, None])
    behind = np.where(other, pick(means, best)[:, None] - means, np.inf)
    runners_up = np.where(other.any(-1), behind.argmin(-1), best)
    return [
        Recommendation(
            user,
            " / ".join(arms[a] for a in np.flatnonzero(offers.control[h][: len(arms)])),
            own[h * len(arms) + arm],
            float(behind[h].min()),
            arms[runners_up[h]],
            float(chances[h, arm]),
        )
        for h, (user, arm) in enumerate(zip(state.users, best.tolist(), strict=True))
    ]


def _posteriors(state: TrialState, fit: Inference, offers: Offer) -> Iterator[tuple[Fit, Offer]]:
    """Posteriors of some users at a time, with their offers."""
    settled = state.settled
    for some in parts_of(len(offers.control), POINTS * offers.control.shape[-1]):
        part = offers.take(some)
        if isinstance(fit, FittedModel):
            view = fit.learner.see(fit.evidence, part, settled.pulls, settled.round)
            yield view.fit, view.offer
        else:
            yield replace(fit, V_inv=fit.metric * fit.noise_bound**2 * fit.inflation, spread=None), part


def _group_ranges(state: TrialState, fit: Fit, offers: Offer, some: Sequence[int]) -> FloatArray:
    """Some users together by the regression, on the reward and each metric: (5, K, 1 + M)."""
    if offers.maps is None:
        raise InputError("effects on metrics need the arms' maps Phi")
    maps = np.broadcast_to(offers.maps, (*offers.features.shape[:-1], *offers.maps.shape[-2:]))  # (H, K, M, d)
    x = np.concatenate([offers.features[..., None, :], maps], -2)  # of each measure: (H, K, 1 + M, d)
    w = x - np.einsum("hk,hkod->hod", offers.control, x)[:, None]
    return np.array([1.0, *state.problem.sizes]) * estimates.of_regression(fit, w[list(some)].mean(0))


def groups(state: TrialState) -> dict[str, list[int]]:
    """The places of all users, and of the members of each group."""
    members: dict[str, list[int]] = {EVERYBODY: list(range(len(state.users)))}
    for h, name in enumerate(state.users):
        if (group := state.profile(name).group) is not None:
            members.setdefault(group, []).append(h)
    return members


def compared_arms(state: TrialState) -> int:
    """Number of arms that are compared with a control, retired ones too."""
    control = np.array([state.profile(user).control[: len(state.problem.arms)] for user in state.users])
    return mixed.compared_arms(control, estimates.may_get(state, list(state.users)))


def given(state: TrialState, users: Sequence[str]) -> IntArray:
    """Number of times each arm was given to each of these users: (H, K)."""
    counts = np.zeros((len(users), len(state.problem.arms)), np.intp)
    for row, pulls in zip(counts, (state.pulls.get(user, ()) for user in users), strict=True):
        row[: len(pulls)] = pulls
    return counts


def available(state: TrialState, users: Sequence[str]) -> BoolArray:
    """Arms that each of these users can get now: (H, K)."""
    arms, can = state.problem.arms, estimates.may_get(state, users)
    for row, user in zip(can, users, strict=True):
        excluded = set(state.excluded(user))
        row &= [arm not in excluded for arm in arms]
    return can


def _records(
    state: TrialState, who: str, measures: Sequence[str], five: FloatArray, times: IntArray, can: BoolArray,
    seasons: IntArray | None = None, significant: BoolArray | None = None,
) -> list[Effect]:  # fmt: skip
    """Effects by arm and measure from (5, K, 1 + M); seasons and significance, where they are known, are (K, 1 + M)."""
    estimate, *ends = five
    estimate = np.where(np.abs(estimate) > ROUND_OFF * (ends[3] - ends[2]), estimate, 0.0)
    effects = []
    for m, on in enumerate(measures):
        for k, arm in enumerate(state.problem.arms):
            a, b, c, d = (float(end) if abs(end := part[k, m]) < UNKNOWN else None for part in ends)
            both = None if seasons is None else int(seasons[k, m])
            sure = None if significant is None else bool(significant[k, m])
            value, n, possible = float(estimate[k, m]), int(times[k]), bool(can[k])
            effects.append(Effect(who, arm, on, value, a, b, c, d, MODEL, n, possible, both, sure))
    return effects


def _seasons(fit: Inference, offers: Offer) -> IntArray | None:
    """Seasons with outcomes of each arm and of its control: (H, K, 1 + M); None: no season acts on a single arm."""
    return seasons_with_both_arms(fit.learner, fit.evidence, offers) if isinstance(fit, FittedModel) else None


def past_effects(data: Dataset, fit: Inference, now: Sequence[Effect]) -> PastEffects:
    """Effects by the outcomes up to each season, as they are recorded `now`, of the arms with outcomes by then.

    Variances are the present ones: only the evidence about the arms changes. Empty before there are two seasons.
    """
    seasons, state = np.unique(data.episode[data.has_outcome]), data.state
    episodes = seasons[::-1][:: max(1, -(-len(seasons) // MOST_POINTS))][::-1].tolist()
    if len(episodes) < 2 or not now:
        return {}
    if isinstance(fit, FittedModel) and not _is_seasonal(fit) and any(m.of for m in state.spec.metrics.values()):
        return {}  # outcomes would have to be counted again with their sizes
    everybody, past = {EVERYBODY: range(len(state.users))}, PastEffects()
    try:
        for episode, one in zip(episodes, [*_fits_until(data, fit, episodes[:-1]), None], strict=True):
            effects = effects_of_groups(state, one, everybody)[0] if one is not None else now
            arms = {state.problem.arms[k] for k in data.learned[data.teaches & (data.episode <= episode)]}
            shown = (x for x in effects if x.arm in arms and x.is_known and not x.is_control)
            past[episode] = [x for x in shown if x.who == EVERYBODY and x.source == MODEL]
    except NumericalError:  # of so few outcomes; the report does without them
        return {}
    return past


def _fits_until(data: Dataset, fit: Inference, episodes: Sequence[int]) -> Iterator[Inference]:
    """By the outcomes up to each of these episodes, as they are recorded now."""
    if isinstance(fit, FittedModel):
        return (_fit_until(data, fit, episode) for episode in episodes)
    policy, learner = data.state.policy, inference_learner(data.state)
    aging = policy.inference(data.state.settled) is not None
    if aging and isinstance(policy, Policy) and isinstance(policy.learner, Learner):
        learner = policy.learner
    return (earlier for earlier, _ in _refits(data, learner, episodes, aging=aging))


def _is_seasonal(fit: FittedModel) -> bool:
    return fit.learner.seasons or fit.learner.discount < 1


def _fit_until(data: Dataset, fit: FittedModel, episode: int) -> FittedModel:
    """The fit of the outcomes up to an episode, with the present variances."""
    learner, cells, first = fit.learner, fit.evidence.cells.live(), fit.learner.past[0]
    seasonal = _is_seasonal(fit)
    # Seasons count from 0 there, those before the trial first.
    cells = cells.at(np.flatnonzero(cells.keys[:, SEASON] < first + (episode if seasonal else 0)))
    if not seasonal:  # outcomes of the trial are counted again
        for part in estimates.outcome_rows(data, fit, np.flatnonzero(data.teaches & (data.episode <= episode))):
            if part is not None:
                part.keys[:, SEASON] = first
                cells = cells.add(part)
    evidence = replace(fit.evidence, cells=cells, included=-1, drawn_count=-1, season=first + episode - 1)
    return FittedModel.of(learner, learner.ready(evidence, variances=False, complete=True))


def fit_now(data: Dataset) -> Refit:
    """By all outcomes: the policy's own fit, or one from the log."""
    state = data.state
    own, learner = state.policy.inference(state.settled), inference_learner(state)
    if own is not None and (own[1] is not None or learner.weighting != "learned"):
        return own
    ((fit, noise),) = _refits(data, learner, [state.episode.number], aging=False)
    return (fit if own is None else own[0]), noise


def _refits(data: Dataset, learner: Learner, episodes: Sequence[int], *, aging: bool) -> Iterator[Refit]:
    shape, whole = data.state.problem.shape, usable(data, learner)
    gathered = learner.start(shape)
    for episode in range(int(episodes[-1]) + 1):
        gathered = learner.age(gathered) if aging and episode else gathered
        at = np.flatnonzero(whole & (data.episode == episode))
        for first in range(0, len(at), OUTCOMES_AT_ONCE):
            gathered = learner.add(gathered, *evidence(data, at[first : first + OUTCOMES_AT_ONCE]))
        if episode in episodes:
            pulls = np.bincount(data.arm[data.episode <= episode], minlength=shape.K).astype(np.float64)
            ready = learner.ready(gathered)
            fit = learner.fit(ready, pulls, int(pulls.sum()) + 1)
            yield replace(fit, radius=np.asarray(fit.radius)), ready.noise


def inference_learner(state: TrialState) -> Learner:
    """A learner with vector feedback and the trial's noise."""
    settings: dict[str, Any] = {"delta": state.spec.delta, "feedback": "vector", "weighting": state.spec.noise.kind}
    if coefficients_are_scaled(state.spec):
        settings |= {"norm_bound": state.problem.shape.d**0.5, "regularisation": PRIOR_DEVIATION**-2}
    return Learner(**settings)


def usable(data: Dataset, learner: Learner) -> BoolArray:
    """Decisions with outcomes that the learner can take: (n,)."""
    whole = data.observed.all(-1) if learner.weighting == "learned" else data.has_outcome
    return np.asarray(whole & data.teaches)


def evidence(data: Dataset, at: IntArray) -> tuple[Offer, IntArray, Outcome]:
    observed = data.observed[at]
    outcome = Outcome(None, data.vector[at] / data.state.problem.sizes, None if observed.all() else observed)
    return data.offers(at), np.asarray(data.learned[at]), outcome


class EvidenceSource(NamedTuple):
    """Outcomes of an arm that an effect rests on."""

    here: int  # of the user or group
    elsewhere: int
    group: bool = False  # of a group, and not of a user


@dataclass(frozen=True)
class Component:
    """A variance component, as a standard deviation in the metric's unit."""

    metric: str
    family: str
    deviation: float
    low: float  # likely range; 0: the effects of the family may not vary
    high: float
    identifiable: bool  # from the other components


@dataclass(frozen=True)
class Level:
    """The mean outcome at a site or in a season, under the control."""

    metric: str
    name: str
    outcomes: int
    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class CovariateEffect:
    """An arm's effect at values of a covariate, or at the levels of a category."""

    covariate: str
    unit: str
    arm: str
    on: str
    values: list[float]  # numbers of the levels, for a category
    levels: list[str] | None  # None: a number
    estimate: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class DoseResponse:
    """The mean reward of some users under each dose in an average season, from the lowest dose on."""

    dose: str
    unit: str
    who: str  # all users, a group or a user; with the other attributes of the arms
    values: list[float]
    estimate: list[float]
    low: list[float]  # likely range, of numbers without the level that seasons and sites share
    high: list[float]
    recorded: list[float | None]  # mean of the outcomes; in a field less what seasons and sites differ by
    p_best: list[float]  # of the doses that can be given

    @property
    def best(self) -> tuple[float, float, float, float]:
        """The dose that is best most likely, the chance that it is, and the central 95 % of the best dose."""
        k, chances = int(np.argmax(self.p_best)), np.cumsum(self.p_best)
        low, high = (int(np.searchsorted(chances, level)) for level in (0.5 - LIKELY / 2, 0.5 + LIKELY / 2))
        return self.values[k], self.p_best[k], self.values[low], self.values[high]


@dataclass(frozen=True)
class Variation:
    """The findings of a mixed model besides effects."""

    components: list[Component]
    sites: list[Level]
    seasons: list[Level]
    covariates: list[CovariateEffect]
    doses: list[DoseResponse]
    sources: dict[tuple[str, str], EvidenceSource]  # (user or group, arm) -> of its effect on the reward


def variation(data: Dataset, fit: FittedModel) -> Variation:
    if not fit.evidence.cells.count or not fit.scale.known.all():
        return Variation([], [], [], [], [], {})
    state, offers = data.state, estimates.offers_now(data.state)
    return Variation(
        components=_components(state, fit),
        sites=_site_levels(state, fit, offers),
        seasons=_season_levels(state, fit, offers),
        covariates=_covariate_effects(state, fit, offers),
        doses=_dose_responses(data, fit, offers),
        sources=_sources(data),
    )


def _components(state: TrialState, fit: FittedModel) -> list[Component]:
    components = []
    for c in summaries.components(fit):
        # An effect against the control has the part of the control as well.
        both = " x arm" in c.family and fit.learner.reference is None
        scale = np.sqrt(2.0) if both else np.sqrt(1 + BEND) if c.family.endswith(" x dose") else 1.0
        for m, metric in enumerate(state.problem.metrics):
            if state.spec.metrics[metric].kind != "number":  # which scatters as its mean says
                continue
            deviation, low, high = (float(scale * part[m]) for part in (c.deviation, c.low, c.high))
            components.append(Component(metric, c.family, deviation, low, high, bool(c.told[m])))
    return components


def _site_levels(state: TrialState, fit: FittedModel, offers: Offer) -> list[Level]:
    """All sites of field trials; the groups of trials with people."""
    members: dict[str, list[int]] = {}
    group = [state.profile(user).unit.group for user in state.users]
    names = {number: key for key, number in state.numbers.groups.items()}
    for h, number in enumerate(group):
        kind, name = names.get(number, "user/").split("/", 1)
        if kind == "group" or state.spec.kind == "field":
            members.setdefault(name, []).append(h)
    if not 1 < len(members) <= MOST_SITES:
        return []
    counts = summaries.outcomes(fit, "group").sum(-1)
    n = [round(counts[group[some[0]]]) if group[some[0]] < len(counts) else 0 for some in members.values()]
    return _levels(state, list(members), n, summaries.group_levels(fit, offers, list(members.values())))


def _season_levels(state: TrialState, fit: FittedModel, offers: Offer) -> list[Level]:
    """Each season in its own context: the effect of its rain is part of its level."""
    if not fit.learner.seasons:
        return []
    counted, context = state.problem.covariates.counted, state.spec.context
    own = ([i for i, c in enumerate(some) if c.name in context] for some in counted)
    try:
        seasons, levels = summaries.season_levels(fit, offers, *own)
    except NumericalError:  # sites are eliminated here, and outcomes whose scales differ extremely may not allow it
        return []
    counts = summaries.outcomes(fit, "season").sum(-1)
    past = [] if state.history is None else state.history.seasons
    names = [past[s] if s < len(past) else calendar(state).label(int(s) + 1 - len(past)) for s in seasons]
    return _levels(state, names, [round(counts[s]) for s in seasons], levels)


def _levels(state: TrialState, names: list[str], outcomes: list[int], levels: EffectPosterior) -> list[Level]:
    parts = (levels.mean, *levels.likely)
    return [
        Level(metric, name, outcomes[i], *(float(part[i, m]) for part in parts))
        for m, metric in enumerate(state.problem.metrics)
        for i, name in enumerate(names)
    ]


def _covariate_effects(state: TrialState, fit: FittedModel, offers: Offer) -> list[CovariateEffect]:
    """Every covariate that may change effects, and every arm with outcomes."""
    numbers, categories = state.problem.covariates.counted
    possible = estimates.with_room(estimates.may_get(state, list(state.users)), fit.structure.arms)
    lines: list[tuple[str, list[float], list[str] | None, EffectPosterior]] = []
    for i, c in enumerate(numbers):
        low, high = summaries.span(fit, i)
        if "effects" in c.roles.split() and low < high:
            z = np.linspace(low, high, GRID)
            effects = summaries.effects_at(fit, offers, "covariates", i, z, possible)
            lines.append((c.name, list(c.typical + c.spread * z), None, effects))
    for i, c in enumerate(categories):
        texts = list(c.levels or ()) if c.name in state.spec.context else list(state.numbers.levels[c.name])
        if "effects" in c.roles.split() and len(texts) > 1:
            effects = summaries.effects_at(fit, offers, "levels", i, range(len(texts)), possible)
            lines.append((c.name, [float(v) for v in range(len(texts))], texts, effects))
    outcomes, declared = summaries.outcomes(fit, "arm").sum(0), state.spec.attributes | state.spec.context
    found = []
    for name, values, texts_or_none, effects in lines:
        unit, parts = declared[name].unit if name in declared else "", (effects.mean, *effects.likely)
        for m, on in enumerate((REWARD, *state.problem.metrics)):
            for k, arm in enumerate(state.problem.arms):
                if outcomes[k] > 0 and (effects.deviation[:, k] > 0).any():
                    course = (part[:, k, m].tolist() for part in parts)
                    found.append(CovariateEffect(name, unit, arm, on, values, texts_or_none, *course))
    return found


def _dose_responses(data: Dataset, fit: FittedModel, offers: Offer) -> list[DoseResponse]:
    """For all users and each group, or each site where there are no groups, as far as they are few."""
    state, members, responses = data.state, groups(data.state), list[DoseResponse]()
    if len(members) == 1 and state.spec.kind == "field":
        members |= {name: [h] for h, name in enumerate(state.users)}
    if not 2 < len(members) <= MOST_CURVES:
        members = {EVERYBODY: members[EVERYBODY]}
    described = [arm.attributes or {} for arm in state.spec.arms.values()]
    can = available(state, list(state.users))
    for who, some in members.items() if state.spec.doses else ():
        curves, draws = summaries.responses(fit, offers.take(some))
        possible = np.asarray(can[some].any(0))
        mine = np.isin(data.user, some) & np.isfinite(data.reward) & data.teaches
        y = data.reward[mine]
        if state.spec.kind == "field" and not state.spec.has_kinds:
            _, cell = np.unique(data.episode[mine] * (1 + len(state.users)) + data.user[mine], return_inverse=True)
            beyond = y - curves[0][data.learned[mine]]  # what is left of the response
            y = y - (np.bincount(cell, beyond) / np.bincount(cell))[cell]
        for name, dose in state.spec.doses.items():
            others = [tuple((n, v) for n, v in a.items() if n != name) for a in described]
            for other in dict.fromkeys(others):
                arms = sorted((k for k, o in enumerate(others) if o == other), key=lambda k: described[k][name])
                best = np.where(possible[arms], draws[:, arms], -np.inf).argmax(-1)
                rewards = [y[data.learned[mine] == k] for k in arms]
                response = DoseResponse(
                    dose=name,
                    unit=dose.unit,
                    who=", ".join([who, *(f"{n} {v:g}" for n, v in other)]),
                    values=[described[k][name] for k in arms],
                    **dict(zip(("estimate", "low", "high"), curves[:, arms].tolist(), strict=True)),
                    recorded=[float(own.mean()) if len(own) else None for own in rewards],
                    p_best=(np.bincount(best, minlength=len(arms)) / len(best)).tolist(),
                )
                responses.append(response)
    return responses


def _sources(data: Dataset) -> dict[tuple[str, str], EvidenceSource]:
    """Outcomes of each arm but the control, by user and by group."""
    state, arms, names = data.state, data.state.problem.arms, list(data.state.users)
    if not 1 < len(names) <= MOST_COUNTED:
        return {}
    cell = data.user[data.teaches] * len(arms) + data.learned[data.teaches]
    counts = np.bincount(cell, minlength=len(names) * len(arms)).reshape(len(names), len(arms))  # (H, K)
    control = np.array([state.profile(name).control[: len(arms)] == 1 for name in names])  # (H, K)
    own, shared = {name: [h] for h, name in enumerate(names)}, groups(state)
    sites = {who: some for who, some in shared.items() if who != EVERYBODY and who not in own and len(shared) > 2}
    return {
        (who, arms[k]): EvidenceSource(n := int(counts[some, k].sum()), int(counts[:, k].sum()) - n, who in sites)
        for who, some in (own | sites).items()
        for k in np.flatnonzero(~control[some].all(0))
    }
