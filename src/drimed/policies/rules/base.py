"""Rules: a frozen configuration and one pure function to a distribution over the allowed arms; and floors under it.

Shapes: leading `...` is any batch; K arms, d features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, final

import numpy as np

from drimed.errors import ConfigError
from drimed.models.offer import NEVER, OPEN, Fit, Floor, Offer
from drimed.numerics import probability, quadratic_forms
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, check_settings, pick

Randomisation = Literal["closed form", "one arm", "sampled"]
TIES = {"ties": ("first", "shared")}  # the allowed arm of lowest index, or equal parts
# Arms whose values differ by less than this share of the largest one differ by round-off: it is far above what sums of
# a few thousand terms lose, and far below any difference that data can show.
SAME = 1e-9
# The control is guaranteed a plot once the rule gives it at least this probability.
PLOT = {"always": 0.0, "open": OPEN, "never": NEVER}


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to a rule: the allowed arms, draws, and a penalty on arms."""

    mask: BoolArray | None = None  # (..., K), True where the rule may put mass
    draws: FloatArray | None = None  # (..., D), uniforms; the first is kept for choosing the arm
    penalty: FloatArray | None = None  # (..., K), >= 0, in the unit of the rule's own log weight or index
    memory: Any = None  # of a rule that has one

    def penalised(self, value: FloatArray) -> FloatArray:
        """The rule's own criterion, less the penalty: (..., K)."""
        return value if self.penalty is None else value - self.penalty


class Rule(Protocol):
    """A rule's `propose` returns probabilities (..., K) that vanish outside `ask.mask`.

    A rule with a memory of its own has `init(shape, batch)`, and `commit(memory, fit, offer, action)`, which moves the
    memory when decisions are given out.
    """

    # closed form: the probabilities are exact propensities. one arm: they are 0 or 1. sampled: the rule drew its
    # own randomness, from d more uniforms: the probabilities show only that draw, and the propensity is unknown.
    randomisation: ClassVar[Randomisation]

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray: ...


def every_arm(fit: Fit, offer: Offer) -> tuple[int, ...]:
    """The shape (..., K) of a decision: one state may serve many offers, and one offer many states."""
    return (*np.broadcast_shapes(fit.theta.shape[:-1], offer.features.shape[:-2]), offer.features.shape[-2])


def noise_levels(fit: Fit, offer: Offer) -> FloatArray:
    """lev(x_a) / sigma_a^2, the inverse of the effective number of pulls of a's direction: (..., K)."""
    level = fit.leverage(offer.features)
    return level if offer.sigma is None else level / offer.sigma**2


def widths(fit: Fit, x: FloatArray, squared: float | None) -> FloatArray:
    """The half-width of each arm's interval: at the learner's radius, or at this squared radius: (..., K)."""
    return fit.width(x) if squared is None else np.sqrt(squared * fit.leverage(x))


def play_largest(value: FloatArray, ask: Ask, ties: str = "first") -> FloatArray:
    """All mass on the allowed arm of largest value after its penalty: (..., K)."""
    value = ask.penalised(value)
    if ties == "shared":
        return shared(tied(value, ask.mask))
    return probability.one_hot(probability.best(value, ask.mask), value.shape[-1])


def tied(value: FloatArray, mask: BoolArray | None) -> BoolArray:
    """The allowed arms of largest value, up to round-off: (..., K)."""
    held = value if mask is None else np.where(mask, value, -np.inf)
    most = held.max(-1, keepdims=True)
    least = (value if mask is None else np.where(mask, value, np.inf)).min(-1, keepdims=True)
    return np.asarray(held >= most - SAME * np.maximum(np.abs(most), np.abs(least)))


def shared(among: BoolArray) -> FloatArray:
    """Equal mass on these arms, none where there are none: (..., K)."""
    return among / np.maximum(among.sum(-1, keepdims=True), 1)


def behind_leaders(
    fit: Fit, x: FloatArray, mask: BoolArray | None
) -> Iterator[tuple[FloatArray, IntArray, FloatArray, FloatArray]]:
    """For each arm that ties for the lead its share (..., 1), and the result of `Fit.behind_leader`: x (..., K, d).

    A leader is its row's first, second and so on of those that tie; rows with fewer repeat the first with a share of 0.
    """
    first, gap, distance = fit.behind_leader(x, mask)
    near = gap <= SAME * np.sqrt(distance)  # no data can tell them apart
    lead = tied(fit.mean(x), mask) | (near if mask is None else near & mask)
    most = int(lead.sum(-1).max(initial=1))
    if most == 1:
        yield np.ones((*first.shape, 1)), first, gap, distance
        return
    share, gap = shared(lead), np.where(lead, 0.0, gap)
    order = np.argsort(~lead, axis=-1, kind="stable")  # those that tie come first
    for nth in range(most):
        part = pick(share, order[..., nth])
        leader = np.where(part > 0, order[..., nth], order[..., 0])
        yield part[..., None], leader, gap, quadratic_forms.distances(x, leader, fit.V_inv)


@final
@dataclass(frozen=True, kw_only=True)
class Floors:
    """Least probabilities; after n decisions a floor is its first height times (n + 1) ** -shrink."""

    control: float = 0.0
    arms: float = 0.0
    shrink: float = 0.0  # 0: constant
    plot: Literal["open", "always", "never"] = "open"  # whether the control has one of a user's plots
    count: Literal["all", "user"] = "all"  # which decisions count: all of the trial's, or those of this user

    def __post_init__(self) -> None:
        check_settings(self, {"count": ("all", "user"), "plot": tuple(PLOT)}, below_one=("control", "arms", "shrink"))

    def check(self, K: int) -> None:
        """Refuse floors that leave K arms no room for a choice."""
        if self.control + K * self.arms >= 1:
            most = (1 - self.control) / K
            raise ConfigError(
                f"a floor of {self.control} for the control and {self.arms} for each of {K} arms leaves nothing to "
                f"choose; a floor for the arms must be below {most:.3g}"
            )

    def after(self, decisions: Any) -> Floor:
        """The floors of the next decision after so many: (...)."""
        left = (np.asarray(decisions, np.float64) + 1.0) ** -self.shrink
        return Floor(control=self.control * left, arms=self.arms * left, plot=np.full(left.shape, PLOT[self.plot]))


def one_of_the_plots(offer: Offer, user: Any) -> FloatArray:
    """The smallest probability of the control on each plot that gives its user one control plot: 1 / plots, (..., n).

    Zero if the user has fewer plots than arms, only two plots, several control arms, or a floor that asks for none.
    """
    number = np.unique(np.broadcast_to(np.asarray(user), offer.batch[-1:]), return_inverse=True)[1].reshape(-1)
    plots = np.bincount(number)[number]
    available = np.ones(offer.control.shape, bool) if offer.available is None else offer.available
    room = (plots >= available.sum(-1)) & (plots > 2) & ((offer.control * available).max(-1) == 1)
    return np.where(room if offer.floor is None else room & (offer.floor.plot <= 1), 1 / plots, 0.0)


def raised(p: FloatArray, offer: Offer, mask: BoolArray | None, least: FloatArray | None = None) -> FloatArray:
    """The lottery with the floors of the offer; those of arms outside the mask go to the rest: (..., K).

    `least` (...) is the minimum of the control unless the rule excludes it; only the shortfall is added.
    """
    if least is not None:
        least = np.where(np.vecdot(p, offer.control) >= (OPEN if offer.floor is None else offer.floor.plot), least, 0.0)
    if offer.floor is not None:
        allowed = True if mask is None else mask
        if offer.available is not None and (~offer.available & (offer.control > 0)).any():
            raise ConfigError("a floor for the control needs all arms of the control to be available")
        arms, control = (np.asarray(floor)[..., None] for floor in (offer.floor.arms, offer.floor.control))
        lowest = np.broadcast_to(arms * allowed + control * offer.control, p.shape)
        taken = lowest.sum(-1, keepdims=True)
        if (taken > 1).any():
            raise ConfigError(
                f"floors for {p.shape[-1]} arms take {float(taken.max()):.3g} of the lottery; they must leave some"
            )
        p = np.asarray((1 - taken) * p + lowest)
    if least is None:
        return p
    kept = ((1 - least) / (1 - np.minimum(np.vecdot(p, offer.control), least)))[..., None]
    return np.asarray(kept * p + (1 - kept) * offer.control)
