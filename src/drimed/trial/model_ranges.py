"""Ranges at all times of effects from a trial's model, for some users together: nothing but the state is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from drimed.errors import InputError
from drimed.learning.field import confirmed, contrasts
from drimed.learning.field.contrasts import Known
from drimed.learning.field.design import UNKNOWN
from drimed.learning.field.learner import Field
from drimed.learning.offer import Offer
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.policy import Policy
from drimed.trial.state import TrialState


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
    return contrasts.know(policy.learner, state.settled().evidence, offers)


def end(value: float) -> float | None:
    """An end of a range; None: nothing is known."""
    return float(value) if abs(value) < UNKNOWN else None


def seasons(
    state: TrialState, members: Mapping[str, list[int]], arms: Sequence[str], *, metric: str | None = None
) -> dict[tuple[str, str], int]:
    """How many have told of each arm and of the controls of these users; empty where that does not matter.

    It does where seasons have effects on single arms (`drimed.learning.field.confirmed`).
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
            effects = contrasts.Found(*(part[0] for part in contrasts.of_users(learned, some_offers)))
        else:
            effects = contrasts.together(learned, some_offers, _possible(state, [names[h] for h in some], learned))
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
