"""Information-directed sampling: pay regret where it buys the most information.

Source: Kirschner and Krause (2018). Departures: the optimum of (E gap)^2 / E information lies on two arms; instead of
all pairs, the lower hull of the points (information, gap) is walked from the smallest gap until the ratio, convex along
the hull, stops falling. Where the learner sees all metrics an arm is worth what its reward tells: the letter of the
method, what the whole outcome tells, measured worse. Shapes: leading `...` is any batch; K arms, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from drimed.models.offer import Fit, Offer
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray, check_settings, pick, pick_shared
from drimed.numerics.compiled import kernel
from drimed.numerics.quadratic_forms import leverages
from drimed.policies.rules.base import Ask, Randomisation, widths

ALL_BUT = 1 - 2.0**-53  # of an uncertainty can be removed by one outcome, at most: its logarithm stays finite


@final
@dataclass(frozen=True, kw_only=True)
class IDS:
    """Minimise (E gap)^2 / E information over distributions; `deterministic` over single arms.

    Regret is bounded by max UCB - LCB; the information of an arm is what its outcome would add to all of V ("f"), or
    take off the uncertainty about the arm of largest upper bound ("ucb").

    Two arms with gaps (1, 2) and information (1, 4): p = (2/3, 1/3), ratio 8/9, where each arm alone has 1.
    V = diag(3, 2), theta_hat = (.5, .1), arms e1, e2, (.6, .8) with noise .5, 1, 2: gaps (5.235922, 6.196073,
    5.727070), information (.169418, .277632, .104360), and e2 is played.
    """

    variant: str = "ucb"
    deterministic: bool = False  # DIDS
    width_squared: float | None = None  # None: the learner's radius; 2 measures well and promises nothing

    randomisation: ClassVar[Randomisation] = "closed form"

    def __post_init__(self) -> None:
        check_settings(self, {"variant": ("ucb", "f")}, not_negative=("width_squared",))

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        gap, information = self.trade_off(fit, offer, ask.mask)
        return best_ratio(-ask.penalised(-gap), information, ask.mask, deterministic=self.deterministic)

    def trade_off(self, fit: Fit, offer: Offer, mask: BoolArray | None) -> tuple[FloatArray, FloatArray]:
        """The surrogate gap and the information of each arm: (..., K) twice."""
        x, mean = offer.features, fit.mean(offer.features)
        width = widths(fit, x, self.width_squared)
        upper = mean + width
        optimist = probability.best(upper, mask)
        gap = pick(upper, optimist)[..., None] - (mean - width)
        z = x if offer.sigma is None else x / offer.sigma[..., None]  # what an outcome of each arm would add to V
        gained = leverages(z, fit.V_inv)  # (..., K)
        if self.variant == "f":
            return gap, np.log1p(gained)
        best = pick_shared(x, optimist, 2)  # one offer may serve many states
        own = leverages(best[..., None, :], fit.V_inv)  # (..., 1), the uncertainty that an outcome removes a share of
        removed = np.matvec(z, np.matvec(fit.V_inv, best)) ** 2 / (1 + gained)
        return gap, -np.log1p(-np.minimum(removed / np.where(own > 0, own, 1.0), ALL_BUT))


def best_ratio(
    gap: FloatArray, information: FloatArray, mask: BoolArray | None = None, *, deterministic: bool = False
) -> FloatArray:
    """The distribution on at most two arms that minimises (E gap)^2 / E information: (..., K) twice -> (..., K).

    Where no arm informs, the smallest gap is played.
    """
    allowed = np.ones(gap.shape[-1], bool) if mask is None else mask
    if not deterministic:
        return _best_pair(gap, information, allowed)
    informs = information > 0
    ratio = np.where(informs, gap**2 / np.where(informs, information, 1.0), np.inf)
    ratio = np.where(allowed, np.where(gap == 0, 0.0, ratio), np.inf)
    some = (ratio < np.inf).any(-1)
    best = np.where(some, ratio.argmin(-1), probability.best(-gap, allowed))
    return probability.one_hot(best, gap.shape[-1])


@kernel("void(f8[:], f8[:], b1[:], f8[:])", "(k),(k),(k)->(k)")
def _best_pair(gap, information, allowed, p):  # type: ignore[no-untyped-def]
    K, here = gap.shape[0], -1
    for k in range(K):
        p[k] = 0.0
        if allowed[k] and (
            here < 0 or gap[k] < gap[here] or (gap[k] == gap[here] and information[k] > information[here])
        ):
            here = k
    while True:
        there = -1  # the next corner of the lower hull: more information, at the least gap per unit of it
        rise, run = 0.0, 0.0
        for k in range(K):
            if allowed[k] and information[k] > information[here]:
                up, along = gap[k] - gap[here], information[k] - information[here]
                if there < 0 or up * run < rise * along or (up * run == rise * along and along > run):
                    there, rise, run = k, up, along
        share = 0.0
        if there >= 0:
            # Minimum of (gap + share rise)^2 / (information + share run); at equal gaps more information is better.
            share = gap[here] / rise - 2.0 * information[here] / run if rise > 0.0 else 1.0
        if share < 1.0:
            share = max(share, 0.0)
            p[here] = 1.0 - share
            if share > 0.0:
                p[there] = share
            return
        here = there
