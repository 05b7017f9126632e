"""What must not fall below the control: the user's reward, and any single metric besides it.

Each is a linear functional of the outcome: a set of features and a tolerance. One certificate serves all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import final

import numpy as np

from drimed.errors import ConfigError, InputError
from drimed.guards import margin
from drimed.guards.margin import Tolerance
from drimed.learning.offer import Fit, Offer
from drimed.linear import student
from drimed.linear.arrays import BoolArray, FloatArray


@final
@dataclass(frozen=True, kw_only=True)
class Guardrail:
    """A single metric that must stay near the control's, whatever the user's preference.

    >>> Guardrail(metric=0, relative=0.05).better
    'higher'
    """

    metric: int  # its number among the outcome's M metrics
    relative: float = 0.05
    absolute: float = 0.0
    better: str = "higher"  # or "lower", for costs

    def __post_init__(self) -> None:
        if self.metric < 0:
            raise ConfigError(f"guardrail metric must be the number of a metric, got {self.metric}")
        if self.better not in ("higher", "lower"):
            raise ConfigError(f"guardrail better must be 'higher' or 'lower', got {self.better!r}")
        self.tolerance  # noqa: B018  checks the ranges

    @property
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

    def mixed(self, p: FloatArray) -> FloatArray:
        """The margin of a distribution over arms: (..., K) -> (..., d)."""
        return np.vecmat(p, self.w)

    def certified(self, fit: Fit, w: FloatArray, r: FloatArray) -> BoolArray:
        """Whether margins are certified at radius r: (..., n, d) -> (..., n)."""
        F, _ = margin.worst_case(fit, w, self.x0, self.relative, self.absolute, r)
        return F >= 0

    def lower(self, fit: Fit, r: FloatArray) -> FloatArray:
        """The smallest margin of every arm, and last of the control, each at its own radius: (..., K + 1) twice."""
        w = np.concatenate((self.w, np.zeros_like(self.w[..., :1, :])), -2)[..., None, :]
        x0 = self.x0[..., None, :]
        each = replace(
            fit,
            theta=fit.theta[..., None, :],
            V_inv=fit.V_inv[..., None, :, :],
            spread=None if fit.spread is None else fit.spread[..., None, :, :],
        )
        F, _ = margin.worst_case(each, w, x0, self.relative, self.absolute, r)
        return F[..., 0]


def constraints(offer: Offer, tolerance: Tolerance, guardrails: tuple[Guardrail, ...]) -> list[Constraint]:
    """The reward first, then each guardrail."""
    found = [_constraint(offer.features, offer.control, tolerance)]
    for rail in guardrails:
        if offer.maps is None or rail.metric >= offer.maps.shape[-2]:
            there = "no maps" if offer.maps is None else f"{offer.maps.shape[-2]} metrics"
            raise InputError(f"a guardrail on metric {rail.metric} needs the offer's maps Phi(a); it has {there}")
        x = offer.maps[..., rail.metric, :] * (1.0 if rail.better == "higher" else -1.0)
        found.append(_constraint(x, offer.control, rail.tolerance))
    return found


def _constraint(x: FloatArray, control: FloatArray, tolerance: Tolerance) -> Constraint:
    x0 = np.vecmat(control, x)
    return Constraint(x - x0[..., None, :], x0, tolerance.relative, tolerance.absolute)


def check_confidence(confidence: float | str) -> None:
    """A level in (0.5, 1), or "anytime"."""
    ok = confidence == "anytime" if isinstance(confidence, str) else 0.5 < confidence < 1
    if not ok:
        raise ConfigError(f"confidence must be a level between 0.5 and 1, or 'anytime', got {confidence!r}")


def radius(fit: Fit, confidence: float | str) -> FloatArray:
    """How far theta may be from its estimate: at a level per decision (one-sided), or at all times at once."""
    if isinstance(confidence, str):
        r = fit.radius
    else:
        r = np.asarray(student.quantile(confidence, fit.freedom) * fit.noise_bound)
    return r if isinstance(fit.inflation, float) and fit.inflation == 1.0 else r * np.sqrt(fit.inflation)


def certified_arms(fit: Fit, required: list[Constraint], r: FloatArray, available: BoolArray | None) -> BoolArray:
    """The available arms whose margin is certified in every constraint: (..., K)."""
    ok = reduce(np.logical_and, (c.certified(fit, c.w, r) for c in required))
    return ok if available is None else ok & available


def above_zero(lower: list[FloatArray], available: BoolArray | None) -> BoolArray:
    """The available arms whose lower bound is not negative in any constraint: (..., K + 1) each -> (..., K)."""
    ok = reduce(np.logical_and, (F[..., :-1] >= 0 for F in lower))
    return ok if available is None else ok & available


def certified_whole(fit: Fit, required: list[Constraint], p: FloatArray, r: FloatArray) -> BoolArray:
    """Whether a distribution over all arms is certified as it is in every constraint: (..., K) -> (...)."""
    return reduce(np.logical_and, (c.certified(fit, c.mixed(p)[..., None, :], r)[..., 0] for c in required))
