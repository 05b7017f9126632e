"""Effects against the control, for each user, each group and all users: from the model, and without one.

Where sites, seasons and people differ, the numbers are those of drimed.findings.field. In the paper's model three
ranges stand side by side. The guaranteed range of the regression holds at all times at once if means are linear
in the arms' description and the noise is as said or learned. The likely range is the posterior's 95 %: what to believe
under the same model and its prior, whatever the policy did, without a promise for repeated looks. The range from the
propensities needs no model of the mean, only that the logged probabilities are true; it is asymptotic.
Shapes: H users, K arms, M metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri

from drimed.errors import InputError
from drimed.evaluation import effects as linear
from drimed.findings import field
from drimed.findings.inference import Inference
from drimed.learning.field import many
from drimed.learning.field.confirmed import seasons_of_both
from drimed.learning.field.contrasts import Known
from drimed.learning.field.many import Compared
from drimed.learning.offer import Fit, Offer
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.records import Effect
from drimed.trial.gather import Gathered
from drimed.trial.model_free import REWARD as REWARD
from drimed.trial.model_free import model_free
from drimed.trial.model_ranges import end, known, offers_now
from drimed.trial.state import TrialState

EVERYBODY = "all users"
MODEL = "model"  # where an effect comes from, or PROPENSITIES
POSTERIOR_DRAWS = 4000
MOST_USERS = 1000  # whose average is worked out to judge one of them; of more, a user's effect must stand alone
LIKELY = 0.95
ROUND_OFF = 1e-12  # of an estimate, relative to its likely range: less is nothing


@dataclass(frozen=True)
class Recommendation:
    """The best arm for one user as things stand."""

    user: str
    control: str  # arms of the control, by name
    effect: Effect  # of the recommended arm
    lead: float  # over the next best arm with outcomes; infinite where there is none
    runner_up: str  # the arm itself where there is none
    p_best: float  # of all arms, those without outcomes too

    @property
    def alone(self) -> bool:
        """Whether there is nothing to compare it with: no other arm that the user can get has outcomes."""
        return self.runner_up == self.effect.arm


def effects(
    state: TrialState, users: Sequence[str], fit: Inference | None = None, everybody: Compared | None = None
) -> list[Effect]:
    """Every arm on the reward against the control, user by user. Needs nothing but the state where the policy infers.

    Where it does not, `fit` is the one of an analysis, which has read the log. `everybody` has the effects of the arms
    for all users together, (K,); None: they are worked out, unless there are too many users for that.
    """
    if not users:
        return []
    together = state.spec.kind != "paper" and everybody is None and len(state.users) <= MOST_USERS
    offers = offers_now(state, users)
    all_offers = offers_now(state) if together else offers
    found = fit or known(state, all_offers) or _own_fit(state)
    if isinstance(found, Known):
        everybody = _everybody(state, found, all_offers) if together else everybody
        own = field.of_users(found, offers)  # (H, K)
        ranges, stands = field.five(own.found), many.stands(own, everybody, compared(state), len(state.users))
    else:
        ranges, stands = _ranges(found, linear.reward_effects(found, offers)), None
    times, can, seen = given(state, users), available(state, users), _seasons(found, offers)
    return [
        x
        for h, user in enumerate(users)
        for x in named(
            state,
            user,
            REWARD,
            ranges[:, h],
            times[h],
            can[h],
            None if seen is None else seen[h, :, 0],
            None if stands is None else stands[h],
        )
    ]


def all_effects(seen: Gathered, fit: Inference) -> list[Effect]:
    """All users and groups on the reward and on each metric, single users on the reward."""
    state = seen.state
    names, offers = list(state.users), offers_now(state)
    members = groups(state)
    times, possible, could = given(state, names), available(state, names), may_get(state, names)
    measures, told = [REWARD, *state.problem.metrics], _seasons(fit, offers)
    together: list[list[Effect]] = [[] for _ in measures]
    everybody: Compared | None = None
    arms = compared(state)
    for who, some in members.items():  # all users are the first
        can, stands = np.asarray(possible[some].any(0)), None
        if isinstance(fit, Known):
            found = field.compared(fit, offers, some, could)
            everybody = everybody or found
            others = 1 if who == EVERYBODY else len(members) - 1
            ranges, stands = field.five(found.found), many.stands(found, everybody, arms, others)
        else:
            ranges = _group_ranges(state, fit, offers, some)
        for i, on in enumerate(measures):
            if i > 0 or who not in state.users:
                both = None if told is None else told[some, :, i].min(0)
                stood = None if stands is None else stands[:, i]
                together[i] += named(state, who, on, ranges[..., i], times[some].sum(0), can, both, stood)
    own = effects(state, names, fit, None if everybody is None else field.on_reward(everybody))
    return [
        *together[0],
        *own,
        *(x for some_effects in together[1:] for x in some_effects),
        *model_free(seen, members, times, possible),
    ]


def recommendations(seen: Gathered, fit: Inference, own: Sequence[Effect]) -> list[Recommendation]:
    """The best arm for each user, of the control and the arms with outcomes; `own` are all users' effects in order."""
    state = seen.state
    arms, offers = state.problem.arms, offers_now(state)
    among = offers.control > 0  # (H, K)
    among[:, np.unique(seen.arm[seen.told])] = True
    parts = (
        field.recommended(state, fit, offers, POSTERIOR_DRAWS, among)
        if isinstance(fit, Known)
        else [linear.recommend(fit, offers, seed=state.seed, draws=POSTERIOR_DRAWS, among=among)]
    )
    best = [row for b in parts for row in zip(b.arm, b.margin, b.runner_up, b.best, strict=True)]
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


def groups(state: TrialState) -> dict[str, list[int]]:
    """The places of all users, and of the members of each group."""
    members: dict[str, list[int]] = {EVERYBODY: list(range(len(state.users)))}
    for h, name in enumerate(state.users):
        group = state.profile(name).group
        if group is not None:
            members.setdefault(group, []).append(h)
    return members


def better(state: TrialState, metric: str) -> Literal["higher", "lower"]:
    """Which way of a metric is good: as the file says, or down where every user who weighs it counts it as a cost."""
    if state.spec.metrics[metric].better == "lower":
        return "lower"
    m = state.problem.metrics.index(metric)
    weights = np.array([state.profile(u).preference[m] for u in state.users])
    return "lower" if (weights <= 0).all() and (weights < 0).any() else "higher"


def named(
    state: TrialState,
    who: str,
    on: str,
    ranges: FloatArray,
    times: IntArray,
    possible: BoolArray,
    seasons: IntArray | None = None,
    stands: BoolArray | None = None,
) -> list[Effect]:
    """The arms of (5, K) ranges by their names."""
    arms = state.problem.arms
    least = ROUND_OFF * (ranges[4] - ranges[3])
    ranges = np.concatenate([np.where(np.abs(ranges[:1]) > least, ranges[:1], 0.0), ranges[1:]])
    seen, stood = ([None] * len(arms) if column is None else column.tolist() for column in (seasons, stands))
    rows = zip(arms, ranges.T.tolist(), times.tolist(), possible.tolist(), seen, stood, strict=False)
    return [
        Effect(who, arm, on, value, end(a), end(b), end(c), end(d), MODEL, n, can, *rest)
        for arm, (value, a, b, c, d), n, can, *rest in rows
    ]


def compared(state: TrialState) -> int:
    """How many arms of this trial are compared with somebody's control; those that are retired were."""
    profiles, K = [state.profile(user) for user in state.users], len(state.problem.arms)
    kinds = {(p.control.tobytes(), p.allowed is None or p.allowed.tobytes()): p for p in profiles}  # most are alike
    control = np.array([p.control[:K] for p in kinds.values()])
    return many.compared(control, may_get(state, [p.user for p in kinds.values()]))


def _everybody(state: TrialState, found: Known, offers: Offer) -> Compared:
    """The effects on the reward of all users together, by their offers: (K,)."""
    names = list(state.users)
    return field.on_reward(field.compared(found, offers, range(len(names)), may_get(state, names)))


def _seasons(fit: Inference, offers: Offer) -> IntArray | None:
    """That have told of each arm and its control: (H, K, 1 + M); None: no season does anything to an arm alone."""
    return seasons_of_both(fit.learner, fit.evidence, offers) if isinstance(fit, Known) else None


def _own_fit(state: TrialState) -> Fit:
    own = state.policy.inference(state.settled())
    if own is None:
        raise InputError(f"policy {state.spec.policy.name!r} has no fit for inference: give that of an analysis")
    return own[0]


def group_ranges(state: TrialState, fit: Inference, offers: Offer, some: list[int], possible: BoolArray) -> FloatArray:
    """Of some users together, on the reward and each metric; possible is (H, K), of all: (5, K, 1 + M)."""
    if isinstance(fit, Known):
        return field.five(field.together(fit, offers, some, possible))
    return _group_ranges(state, fit, offers, some)


def _group_ranges(state: TrialState, fit: Fit, offers: Offer, some: list[int]) -> FloatArray:
    parts = [_ranges(fit, linear.group_effects(fit, offers, {"": some})[""])]
    for m, size in enumerate(state.problem.sizes):
        parts.append(size * _ranges(fit, linear.group_effects(fit, _metric_offer(offers, m), {"": some})[""]))
    return np.stack(parts, -1)


def _ranges(fit: Fit, found: linear.Effects) -> FloatArray:
    """Estimate, guaranteed and likely range: (5, ..., K)."""
    likely = float(ndtri(0.5 + LIKELY / 2) * fit.noise_bound / fit.radius)  # as a share of the guaranteed range
    half = likely * (found.estimate - found.low)
    return np.stack([found.estimate, found.low, found.high, found.estimate - half, found.estimate + half])


def given(state: TrialState, users: Sequence[str]) -> IntArray:
    """How often each arm was given to each of these users: (H, K)."""
    K = len(state.problem.arms)
    pulls = [list(state.pulls.get(user, ())) for user in users]
    return np.array([p + [0] * (K - len(p)) for p in pulls], np.intp).reshape(len(users), K)


def available(state: TrialState, users: Sequence[str]) -> BoolArray:
    """Whether each of these users can get each arm now: (H, K)."""
    arms, found = state.problem.arms, may_get(state, users)
    for row, user in zip(found, users, strict=True):
        excluded = set(state.excluded(user))
        row &= [arm not in excluded for arm in arms]
    return found


def may_get(state: TrialState, users: Sequence[str]) -> BoolArray:
    """Whether each of these users may get each arm, in this season or another, or might until it was retired: (H, K).

    What is known of an arm does not change when it is closed for a season, and stopping rules look at the same users.
    """
    found = np.ones((len(users), len(state.problem.arms)), bool)
    for row, user in zip(found, users, strict=True):
        allowed = state.profile(user).allowed
        row &= True if allowed is None else allowed[: len(row)]
    return found


def _metric_offer(offers: Offer, m: int) -> Offer:
    """The same users, as if one metric were the reward."""
    maps = offers.maps
    if maps is None:
        raise InputError("effects on metrics need the arms' maps Phi")
    return Offer(features=np.broadcast_to(maps[..., m, :], offers.features.shape), control=offers.control)
