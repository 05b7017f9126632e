"""Effects where the model tells sites, seasons and people apart, in the numbers that findings are made of.

Two ranges stand side by side. The likely range is the posterior's 95 %, at one look. The range at all times holds for
one effect at all looks together but for 5 %, on average over what else may be true under the learned variances.
Shapes: H users, K arms, M metrics; five numbers are the estimate, the range at all times and the likely range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from drimed.evaluation import effects as linear
from drimed.learning.field import contrasts, single
from drimed.learning.field.contrasts import Found, Known
from drimed.learning.field.many import Compared
from drimed.learning.offer import Offer
from drimed.linear.arrays import BoolArray, FloatArray
from drimed.trial.state import TrialState

AT_ONCE = 64  # users whose posterior is drawn from at a time


def of_users(found: Known, offers: Offer) -> Compared:
    """Each arm on each user's reward: (H, K)."""
    noise, p = single.noise(found.learner, found.evidence, offers), contrasts.preferences(found, offers)
    return on_reward(Compared(contrasts.of_users(found, offers), single.of_users(noise, p, offers.control)))


def on_reward(effects: Compared) -> Compared:
    """Of effects on the reward and each metric, those on the reward."""
    return Compared(Found(*(column[..., 0] for column in effects.found)), effects.single[..., 0])


def compared(found: Known, offers: Offer, some: Sequence[int], possible: BoolArray) -> Compared:
    """Each arm for some users together, as `together` has it, to be compared with others: (K, 1 + M)."""
    part, can = _some(found, offers, some, possible)
    noise, p = single.noise(found.learner, found.evidence, part), contrasts.preferences(found, part)
    alone = single.together(noise, p, part.control, contrasts.weights(can))
    return Compared(contrasts.together(found, part, can), alone)


def group_ranges_at(
    found: Known, offers: Offer, some: Sequence[int], possible: BoolArray, alpha: float
) -> tuple[FloatArray, FloatArray]:
    """The range at all times of each arm on the reward, for some users together, at another level: (K,) twice."""
    low, high = together(found, offers, some, possible).at_all_times(alpha)
    return low[:, 0], high[:, 0]


def recommended(
    state: TrialState, found: Known, offers: Offer, draws: int, among: BoolArray
) -> Iterable[linear.Recommendation]:
    """The best arm for each user among some, (H, K), a few users at a time."""
    settled = state.settled()
    for first in range(0, len(offers.control), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        part = contrasts.some_of(offers, some)
        seen = found.learner.see(found.evidence, part, settled.pulls, settled.round, together=True)
        yield linear.recommend(seen.fit, seen.offer, seed=state.seed, draws=draws, among=among[some])


def together(found: Known, offers: Offer, some: Sequence[int], possible: BoolArray) -> Found:
    """Each arm for some users together, on the reward and each metric; possible is (H, arms): (K, 1 + M)."""
    return contrasts.together(found, *_some(found, offers, some, possible))


def _some(found: Known, offers: Offer, some: Sequence[int], possible: BoolArray) -> tuple[Offer, BoolArray]:
    """Some of the users, and which arms they can get."""
    can = np.zeros((len(some), found.structure.arms), bool)  # room for arms that are still to come is for nobody
    can[:, : possible.shape[-1]] = possible[list(some)]
    return contrasts.some_of(offers, list(some)), can


def five(found: Found) -> FloatArray:
    """Estimate, range at all times, likely range."""
    return np.stack([found.mean, *found.at_all_times(), *found.likely])
