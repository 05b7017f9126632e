"""Guards: what they ask of a rule, what leaves them, and the constraints and fallbacks that they share.

A draw is an arm, the exact probability of each arm, and the reason. A constraint is a linear functional of the outcome
that must not fall below the control's: the user's reward, or a single metric (a guardrail).

Shapes: leading `...` is any batch, its last axis the users; K arms, d features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, ClassVar, Literal, Protocol, final

import numpy as np
from numpy.typing import NDArray

from drimed.errors import InputError
from drimed.formatting import percent
from drimed.models.offer import Fit, Offer, Seen
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, check_settings, pick
from drimed.policies.guards import margin
from drimed.policies.guards.margin import Tolerance

# What the guard did to the policy's proposal, as logs and people read it. A `reason_code` is an index into this list.
REASONS = (
    "as the policy proposed; the guard changed nothing",
    "the guard made arms less likely that may fall short of the control",
    "to be safe, arms that are sure to stay near the control got a larger chance",
    "the guard let the policy choose only among arms that are sure to stay near the control",
    "the guard gave the control; no other arm is sure yet to stay near it",
    "the guard gave the control; past decisions have not surely earned enough for the policy's proposal",
    "the control, because the model could not be computed",
    "the guard gave the control, with a small chance of every arm, to learn enough to leave it",
    "the control, as always in the first rounds, to learn about it",
)
UNCHANGED, PENALISED, MIXED, RESTRICTED, CONTROL_ONLY, NOT_EARNED, FAILED, EXPLORED, CONTROL_FIRST = range(len(REASONS))
ANYTIME = {"confidence": ("anytime",)}  # instead of a level per decision
TRACE = 0.005  # a smaller share of a proposal is described as none
ROUND_OFF = 1e-12  # in a probability


def reason_text(reason: str, share: float | None, control: str, chance: float, whom: str = "user") -> str:
    """A recorded reason as people read it; `chance` is that of the control, `whom` gets the arm.

    >>> reason_text(REASONS[MIXED], 1e-9, "practice", 1.0, "plot")
    'too little is known about other arms yet, so this plot gets practice'
    >>> reason_text(REASONS[MIXED], 0.6, "practice", 0.52)
    'to be safe, practice got a larger chance (52 %)'
    >>> reason_text(REASONS[MIXED], 0.6, "practice", 0.1) == REASONS[MIXED]
    True
    """
    if reason != REASONS[MIXED] or share is None:
        return reason
    if share < TRACE and chance >= 1 - 2 * TRACE:
        return f"too little is known about other arms yet, so this {whom} gets {control}"
    return f"to be safe, {control} got a larger chance ({percent(chance)})" if chance >= 1 - share else reason


@dataclass(frozen=True, slots=True)
class Guarded:
    """A distribution that the guard lets through, and why it differs from the rule's."""

    probabilities: FloatArray  # (..., K)
    reason: IntArray  # (...), index into REASONS
    share: FloatArray | None = None  # (...), how much of the rule's proposal is left in it
    certified: IntArray | None = None  # (...), number of certified arms


@dataclass(frozen=True, slots=True)
class Draw:
    """The arm that was drawn for each user, from which probabilities, and why.

    Where the rule drew its own randomness (`exact` is False) the probabilities show one draw of it, and the propensity
    is unknown: NaN, never 1 or 1/K.
    """

    action: IntArray  # (...)
    probabilities: FloatArray  # (..., K)
    reason_code: IntArray  # (...), index into REASONS
    exact: bool = True
    share: FloatArray | None = None  # (...), how much of the rule's proposal the guard kept
    certified: IntArray | None = None  # (...), number of arms that the guard certified
    seen: Seen | None = None  # the fit and the offer that it was decided on

    @property
    def reason(self) -> str | NDArray[np.str_]:
        """The reason in words: a text for one decision, an array of them (...) for many."""
        words = np.asarray(REASONS)[self.reason_code]
        return words if np.ndim(words) else str(words)

    @property
    def propensity(self) -> FloatArray:
        """The probability of the drawn arm: (...)."""
        p = pick(self.probabilities, self.action)
        return np.asarray(p) if self.exact else np.full(p.shape, np.nan)


# What is certified against the control: each arm that is played; the expected reward of each decision; the sum of
# expected rewards so far; nothing, but shortfalls are discouraged; nothing at all.
Protects = Literal["every arm", "expected reward", "sum", "discourages", "nothing"]

# Asks the rule: allowed arms in, and a penalty on them where a guard has one; probabilities out.
AskRule = Callable[..., FloatArray]


class Guard(Protocol):
    """Asks the rule and may change the answer.

    A guard with a memory for each user (`offer.user`) has `init(shape, batch)`, and `commit(state, fit, offer, draw)`,
    which moves the memory when decisions are given out, never by their outcomes. The state of the others is None.
    """

    protects: ClassVar[Protects]
    promise: ClassVar[str]  # the same in a sentence

    def apply(self, state: Any, fit: Fit, offer: Offer, ask: AskRule) -> Guarded: ...


@final
@dataclass(frozen=True, kw_only=True)
class Off:
    """No guard: the rule's distribution goes through as it is."""

    protects: ClassVar[Protects] = "nothing"
    promise: ClassVar[str] = "nothing"

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state, fit
        p = ask(offer.available)
        return Guarded(p, np.full(p.shape[:-1], UNCHANGED))


# Constraints


@final
@dataclass(frozen=True, kw_only=True)
class Guardrail:
    """A single metric that must stay near the control's, whatever the user's preference."""

    metric: int  # its number among the outcome's M metrics
    relative: float = 0.05
    absolute: float = 0.0
    better: str = "higher"  # or "lower", for costs

    def __post_init__(self) -> None:
        check_settings(self, {"better": ("higher", "lower")}, not_negative=("metric",))
        self.tolerance  # noqa: B018  checks the ranges

    @cached_property
    def tolerance(self) -> Tolerance:
        """The metric's own tolerance."""
        return Tolerance(relative=self.relative, absolute=self.absolute)


@dataclass(frozen=True, slots=True)
class Constraint:
    """Margins of every arm to the control in one functional of the outcome."""

    w: FloatArray  # (..., K, d), x_a - x_0
    x0: FloatArray  # (..., d)
    relative: float
    absolute: float

    def certified(self, fit: Fit, w: FloatArray, r: FloatArray) -> BoolArray:
        """Whether margins are certified at radius r: (..., n, d) -> (..., n)."""
        F, _ = margin.worst_case(w, self.x0, fit.theta, fit.metric, r, self.relative, self.absolute)
        return np.asarray(F >= 0)


def constraints(offer: Offer, tolerance: Tolerance, guardrails: tuple[Guardrail, ...] = ()) -> list[Constraint]:
    """The reward first, then each guardrail."""
    functionals = [(offer.features, tolerance)]
    for rail in guardrails:
        if offer.maps is None or rail.metric >= offer.maps.shape[-2]:
            metrics = "no maps" if offer.maps is None else f"{offer.maps.shape[-2]} metrics"
            raise InputError(f"a guardrail on metric {rail.metric} needs the offer's maps Phi(a); it has {metrics}")
        sign = 1.0 if rail.better == "higher" else -1.0
        functionals.append((sign * offer.maps[..., rail.metric, :], rail.tolerance))
    required = []
    for x, allowed in functionals:
        x0 = np.vecmat(offer.control, x)
        required.append(Constraint(x - x0[..., None, :], x0, allowed.relative, allowed.absolute))
    return required


def radius(fit: Fit, confidence: float | str) -> FloatArray:
    """Radius of the confidence set: at a level per decision (one-sided), or at all times at once."""
    if isinstance(confidence, str):
        r = fit.radius
    else:
        r = np.asarray(probability.student_quantile(confidence, fit.freedom) * fit.noise_bound)
    return r if noise_is_known(fit) else r * np.sqrt(fit.inflation)


def noise_is_known(fit: Fit) -> bool:
    return isinstance(fit.inflation, float) and fit.inflation == 1.0


def certified_arms(fit: Fit, required: list[Constraint], r: FloatArray, available: BoolArray | None) -> BoolArray:
    """The available arms whose margin is certified in every constraint: (..., K)."""
    ok = reduce(np.logical_and, (c.certified(fit, c.w, r) for c in required))
    return ok if available is None else ok & available


# Fallbacks


def control(offer: Offer) -> FloatArray:
    """pi_0, the lottery that everything is measured against: all of its arms must be available."""
    if offer.available is not None and (~offer.available & (offer.control > 0)).any():
        raise InputError(
            "the control plays an arm that is not available, so there is nothing to fall back on; make the arm "
            "available, or give this offer another control"
        )
    return offer.control


def safe_choice(ok: BoolArray, offer: Offer, ask: AskRule) -> FloatArray:
    """The rule asked again on the certified arms; the control, or its lottery, where there are none."""
    some = ok.any(-1, keepdims=True)
    if some.all():
        return ask(ok)
    if not some.any():
        return np.broadcast_to(control(offer), ok.shape)
    # A row without certified arms is asked on all of them: its answer is not used.
    anything = np.ones(ok.shape, bool) if offer.available is None else np.broadcast_to(offer.available, ok.shape)
    again = ask(np.where(some, ok, anything))
    return np.where(some, again, control(offer))


def only_safe(ok: BoolArray, offer: Offer, ask: AskRule) -> Guarded:
    """The rule on the certified arms alone; its own proposal where these are all there are."""
    all_ok = ok.all(-1) if offer.available is None else (ok | ~offer.available).all(-1)
    return explained(safe_choice(ok, offer, ask), np.where(all_ok, 1.0, 0.0), ok, offer)


def mixed(wish: FloatArray, safe: FloatArray, share: FloatArray, ok: BoolArray, offer: Offer) -> Guarded:
    """A share of the proposal, and the rest of it safe."""
    return explained(share[..., None] * wish + (1 - share)[..., None] * safe, share, ok, offer)


def explained(p: FloatArray, share: FloatArray, ok: BoolArray, offer: Offer) -> Guarded:
    """The distribution with its reason: how much of the proposal is left, and on which arms."""
    # Of a control that is a lottery some arms may be certified: what is played then is not the control.
    as_control = (np.abs(p - offer.control) <= ROUND_OFF).all(-1) & ~(ok & (offer.control == 0)).any(-1)
    replaced = np.where(as_control, CONTROL_ONLY, RESTRICTED)
    reason = np.where(share >= 1, UNCHANGED, np.where(share > 0, MIXED, replaced))
    return Guarded(p, reason, share, ok.sum(-1))
