"""Effects of arms against the control, for each user, each group and all users, and the best arm for each user.

Two ranges stand side by side. The likely range is the posterior's 95 % at one look. The long range of the paper's model
is guaranteed at all times for all effects together; that of a mixed model holds for one effect at all looks together.
A third range, from the propensities alone, needs no model of the mean.
Shapes: H users, K arms, M metrics; "on" the reward and then each metric: 1 + M. Five numbers are the estimate, the ends
of the long range and those of the likely one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from drimed.errors import InputError
from drimed.evaluation import effects as arm_effects
from drimed.models.linear_regression import Learner
from drimed.models.mixed import effects as mixed
from drimed.models.mixed.effects import EffectPosterior, FittedModel, seasons_with_both_arms
from drimed.models.noise_estimation import NoiseModel
from drimed.models.offer import Fit, Offer, Outcome
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.policy import Policy
from drimed.records import Effect
from drimed.trial.dataset import Dataset
from drimed.trial.estimates import REWARD as REWARD
from drimed.trial.estimates import (
    all_model_free_effects,
    effects_together,
    fitted_model,
    known_end,
    may_get,
    offers_now,
)
from drimed.trial.problem import PRIOR_DEVIATION, coefficients_are_scaled
from drimed.trial.state import TrialState

EVERYBODY = "all users"
MODEL = "model"  # the source of an effect, or PROPENSITIES
POSTERIOR_DRAWS = 4000
MOST_USERS = 1000  # whose average is computed to judge one of them; of more, a user's effect must stand alone
AT_ONCE = 64  # users whose posterior is drawn from at a time
OUTCOMES_AT_ONCE = 500  # of an episode, that are learned from together
MOST_REFITTED = 5000  # outcomes that are learned from again where each of them changes the noise
LIKELY = 0.95
ROUND_OFF = 1e-12  # of an estimate, relative to its likely range: less is nothing

Inference = Fit | FittedModel  # the source of effects: the paper's regression, or a mixed model
Refit = tuple[Fit, NoiseModel | None]  # the regression and the noise by the outcomes up to an episode; None: known


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


def own_effects(
    state: TrialState, users: Sequence[str], fit: Inference | None = None, everybody: EffectPosterior | None = None
) -> list[Effect]:
    """Every arm on the reward, user by user, from the state alone where the policy has a fit for inference.

    Where it has none, `fit` is that of an analysis, which has read the log. `everybody` has the effects of the arms for
    all users together, (K,); None: they are computed, unless there are too many users.
    """
    if not users:
        return []
    together = state.spec.kind != "paper" and everybody is None and len(state.users) <= MOST_USERS
    offers = offers_now(state, users)
    all_offers = offers_now(state) if together else offers
    model = fit or fitted_model(state, all_offers) or _own_fit(state)
    if isinstance(model, FittedModel):
        if together:
            names = list(state.users)
            everybody = effects_together(model, all_offers, range(len(names)), may_get(state, names)).at((..., 0))
        own = mixed.effects_of_users(model, offers).at((..., 0))  # (H, K)
        five, significant = _five(own), mixed.is_significant(own, everybody, compared_arms(state), len(state.users))
    else:
        five, significant = _of_regression(model, arm_effects.reward_effects(model, offers)), None
    times, can, seasons = given(state, users), available(state, users), _seasons(model, offers)
    effects: list[Effect] = []
    for h, user in enumerate(users):
        both, sure = (None if part is None else part[h] for part in (seasons, significant))
        sure = None if sure is None else sure[:, None]
        effects += _records(state, user, [REWARD], five[:, h, :, None], times[h], can[h], both, sure)
    return effects


def all_effects(data: Dataset, fit: Inference) -> list[Effect]:
    """All users and groups on the reward and on each metric, single users on the reward."""
    state = data.state
    names, members, offers = list(state.users), groups(state), offers_now(state)
    times, can, could = given(state, names), available(state, names), may_get(state, names)
    measures, seasons, compared = [REWARD, *state.problem.metrics], _seasons(fit, offers), compared_arms(state)
    everybody: EffectPosterior | None = None
    together: list[Effect] = []
    for who, some in members.items():  # all users are the first
        significant = None
        if isinstance(fit, FittedModel):
            posterior = effects_together(fit, offers, some, could)
            everybody = everybody or posterior
            others = 1 if who == EVERYBODY else len(members) - 1
            five, significant = _five(posterior), mixed.is_significant(posterior, everybody, compared, others)
        else:
            five = group_ranges(state, fit, offers, some, could)
        both, possible = None if seasons is None else seasons[some].min(0), np.asarray(can[some].any(0))
        records = _records(state, who, measures, five, times[some].sum(0), possible, both, significant)
        together += [x for x in records if x.on != REWARD or who not in state.users]
    own = own_effects(state, names, fit, None if everybody is None else everybody.at((..., 0)))
    on_reward = [x for x in together if x.on == REWARD]
    on_metrics = [x for m in state.problem.metrics for x in together if x.on == m]
    return [*on_reward, *own, *on_metrics, *all_model_free_effects(data, members, times, can)]


def effects_at(data: Dataset, fit: Inference) -> list[Effect]:
    """All users together on every measure, by an earlier fit; without counts of seasons."""
    state = data.state
    names = list(state.users)
    could, times = may_get(state, names), given(state, names).sum(0)
    five = group_ranges(state, fit, offers_now(state), range(len(names)), could)
    possible = np.asarray(available(state, names).any(0))
    return _records(state, EVERYBODY, [REWARD, *state.problem.metrics], five, times, possible)


def recommendations(data: Dataset, fit: Inference, own: Sequence[Effect]) -> list[Recommendation]:
    """The best arm for each user, of the control and the arms with outcomes; `own` are all users' effects in order."""
    state = data.state
    arms, offers = state.problem.arms, offers_now(state)
    among = offers.control > 0  # (H, K)
    among[:, np.unique(data.arm[data.has_outcome])] = True
    best: list[tuple[Any, ...]] = []
    for model, part, some in _posteriors(state, fit, offers):
        draws = arm_effects.recommend(model, part, seed=state.seed, draws=POSTERIOR_DRAWS, among=among[some])
        best += zip(draws.arm, draws.margin, draws.runner_up, draws.best, strict=True)
    return [
        Recommendation(
            user,
            " / ".join(arms[a] for a in np.flatnonzero(offers.control[h][: len(arms)])),
            own[h * len(arms) + int(arm)],
            float(margin),
            arms[int(runner_up)],
            float(p_best),
        )
        for h, (user, (arm, margin, runner_up, p_best)) in enumerate(zip(state.users, best, strict=True))
    ]


def _posteriors(state: TrialState, fit: Inference, offers: Offer) -> Iterator[tuple[Fit, Offer, slice]]:
    """Fits to draw from: one for all users, or some users at a time by a mixed model."""
    if not isinstance(fit, FittedModel):
        yield fit, offers, slice(None)
        return
    settled = state.settled
    for first in range(0, len(offers.control), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        view = fit.learner.see(fit.evidence, offers.take(some), settled.pulls, settled.round)
        yield view.fit, view.offer, some


def group_ranges(
    state: TrialState, fit: Inference, offers: Offer, some: Sequence[int], possible: BoolArray
) -> FloatArray:
    """Some users together, on the reward and each metric; `possible` is (H, K), of all: (5, K, 1 + M)."""
    if isinstance(fit, FittedModel):
        return _five(effects_together(fit, offers, some, possible))
    parts = [_of_regression(fit, arm_effects.group_effects(fit, offers, some))]
    for m, size in enumerate(state.problem.sizes):
        if offers.maps is None:
            raise InputError("effects on metrics need the arms' maps Phi")
        maps = np.broadcast_to(offers.maps[..., m, :], offers.features.shape)  # as if the metric were the reward
        one = arm_effects.group_effects(fit, Offer(features=maps, control=offers.control), some)
        parts.append(size * _of_regression(fit, one))
    return np.stack(parts, -1)


def groups(state: TrialState) -> dict[str, list[int]]:
    """The places of all users, and of the members of each group."""
    members: dict[str, list[int]] = {EVERYBODY: list(range(len(state.users)))}
    for h, name in enumerate(state.users):
        group = state.profile(name).group
        if group is not None:
            members.setdefault(group, []).append(h)
    return members


def compared_arms(state: TrialState) -> int:
    """Number of arms that are compared with a control, retired ones too."""
    control = np.array([state.profile(user).control[: len(state.problem.arms)] for user in state.users])
    return mixed.compared_arms(control, may_get(state, list(state.users)))


def given(state: TrialState, users: Sequence[str]) -> IntArray:
    """Number of times each arm was given to each of these users: (H, K)."""
    K = len(state.problem.arms)
    pulls = [list(state.pulls.get(user, ())) for user in users]
    return np.array([p + [0] * (K - len(p)) for p in pulls], np.intp).reshape(len(users), K)


def available(state: TrialState, users: Sequence[str]) -> BoolArray:
    """Arms that each of these users can get now: (H, K)."""
    arms, can = state.problem.arms, may_get(state, users)
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
            a, b, c, d = (known_end(float(part[k, m])) for part in ends)
            both = None if seasons is None else int(seasons[k, m])
            sure = None if significant is None else bool(significant[k, m])
            value, n, possible = float(estimate[k, m]), int(times[k]), bool(can[k])
            effects.append(Effect(who, arm, on, value, a, b, c, d, MODEL, n, possible, both, sure))
    return effects


def _five(posterior: EffectPosterior) -> FloatArray:
    return np.stack([posterior.mean, *posterior.at_all_times(), *posterior.likely])


def _of_regression(fit: Fit, effects: arm_effects.Effects) -> FloatArray:
    likely = float(ndtri(0.5 + LIKELY / 2) * fit.noise_bound / fit.radius)  # as a share of the guaranteed range
    half = likely * (effects.estimate - effects.low)
    return np.stack([effects.estimate, effects.low, effects.high, effects.estimate - half, effects.estimate + half])


def _seasons(fit: Inference, offers: Offer) -> IntArray | None:
    """Seasons with outcomes of each arm and of its control: (H, K, 1 + M); None: no season acts on a single arm."""
    return seasons_with_both_arms(fit.learner, fit.evidence, offers) if isinstance(fit, FittedModel) else None


def _own_fit(state: TrialState) -> Fit:
    own = state.policy.inference(state.settled)
    if own is None:
        raise InputError(f"policy {state.spec.policy.name!r} has no fit for inference: give that of an analysis")
    return own[0]


# The paper's regression on whole outcome vectors, fitted again from the log where a policy has no fit of its own


def fit_now(data: Dataset) -> Refit:
    """By all outcomes: the policy's own fit, or one from the log."""
    state = data.state
    own, learner = state.policy.inference(state.settled), inference_learner(state)
    if own is not None and (own[1] is not None or learner.weighting != "learned"):
        return own
    fit, noise = _refits(data, learner, [state.episode.number], aging=False)[-1]
    return (fit if own is None else own[0]), noise


def fits_after(data: Dataset, episodes: Sequence[int]) -> list[Fit] | None:
    """By the outcomes up to each of these episodes, as they are recorded now; None: too much work."""
    policy, learner = data.state.policy, inference_learner(data.state)
    aging = policy.inference(data.state.settled) is not None
    if aging and isinstance(policy, Policy) and isinstance(policy.learner, Learner):
        learner = policy.learner
    if learner.weighting == "learned" and usable(data, learner).sum() > MOST_REFITTED:
        return None
    return [fit for fit, _ in _refits(data, learner, episodes, aging=aging)]


def _refits(data: Dataset, learner: Learner, episodes: Sequence[int], *, aging: bool) -> list[Refit]:
    shape, whole = data.state.problem.shape, usable(data, learner)
    gathered, refits = learner.start(shape), []
    for episode in range(1, int(episodes[-1]) + 1):
        if aging:
            gathered = learner.age(gathered)
        at = np.flatnonzero(whole & (data.episode == episode))
        for first in range(0, len(at), OUTCOMES_AT_ONCE):
            gathered = learner.add(gathered, *evidence(data, at[first : first + OUTCOMES_AT_ONCE]))
        if episode in episodes:
            refits.append(_refit(data, learner, gathered, episode))
    return refits or [_refit(data, learner, gathered, 0)]


def _refit(data: Dataset, learner: Learner, gathered: Any, episode: int) -> Refit:
    ready = learner.ready(gathered)
    pulls = np.bincount(data.arm[data.episode <= episode], minlength=data.state.problem.shape.K).astype(np.float64)
    fit = learner.fit(ready, pulls, int(pulls.sum()) + 1)
    return replace(fit, radius=np.asarray(fit.radius)), ready.noise


def inference_learner(state: TrialState) -> Learner:
    """A learner with vector feedback and the trial's noise."""
    settings: dict[str, Any] = {"delta": state.spec.delta, "feedback": "vector"}
    if coefficients_are_scaled(state.spec):
        settings |= {"norm_bound": state.problem.shape.d**0.5, "regularisation": PRIOR_DEVIATION**-2}
    if state.spec.noise.kind == "learned":
        return Learner(weighting="learned", refits="converged", **settings)
    return Learner(weighting="known", **settings)


def usable(data: Dataset, learner: Learner) -> BoolArray:
    """Decisions with outcomes that the learner can take: (n,)."""
    return np.asarray(data.observed.all(-1) if learner.weighting == "learned" else data.has_outcome)


def evidence(data: Dataset, at: IntArray) -> tuple[Offer, IntArray, Outcome]:
    """Offers, arms and outcomes of some decisions."""
    problem, n = data.state.problem, len(at)
    profiles = [data.state.profiles[int(s)] for s in data.slot[at]]
    contexts = [None] * n if data.context is None else list(data.context[at])
    observed = data.observed[at]
    outcome = Outcome(None, data.vector[at] / problem.sizes, None if observed.all() else observed)
    return problem.offer(profiles, contexts, [None] * n), np.asarray(data.arm[at]), outcome
