"""The margin to the control, and the smallest value it can have in the confidence set.

A choice with mean feature x keeps its promise if <x - x_0, theta> + rel |<x_0, theta>| + abs >= 0. The sign of the
control's mean is unknown, and (1 - rel) mu_0 would lie above mu_0 when mu_0 < 0: the tolerance is on |mu_0|.

For w = x - x_0 the worst case over |theta - theta_hat|_V <= r is, by minimax over the bilinear form |u| = max t u,

    F = max_{|t| <= 1} <w + t rel x_0, theta_hat> - r |w + t rel x_0|_{V^-1} + abs

which is exact: F >= 0 if and only if the promise holds for every theta in the set. It has a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from drimed.errors import ConfigError
from drimed.learning.fit import Fit
from drimed.linear.arrays import FloatArray
from drimed.linear.kernel import kernel

# Inner products lose half the digits where w is parallel to x_0; the control itself must stay certified there.
ROUND_OFF = 1e-8


@final
@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far below the control a choice may fall: relative |mu_0| + absolute, in the user's reward unit.

    >>> float(Tolerance(relative=0.1, absolute=0.05).allowed(np.array(-2.0)))
    0.25
    """

    relative: float = 0.1
    absolute: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.relative < 1:
            raise ConfigError(f"relative tolerance must be in [0, 1), got {self.relative}")
        if not 0 <= self.absolute < np.inf:
            raise ConfigError(f"absolute tolerance must be at least 0 and finite, got {self.absolute}")

    def note(self) -> str | None:
        """What to tell a person before a trial starts, if this leaves no room to learn.

        >>> Tolerance(relative=0.1, absolute=0.05).note() is None
        True
        """
        if self.absolute > 0:
            return None
        return (
            "the tolerance has no absolute part: while the control's mean may be zero nothing but the control is "
            "certified, and the trial may stay on it; give an absolute tolerance in the user's reward unit, or use the "
            "guard 'budget'"
        )

    def allowed(self, control_mean: FloatArray) -> FloatArray:
        """The shortfall that is tolerated for a control of this mean."""
        return self.relative * np.abs(control_mean) + self.absolute


def estimated(fit: Fit, x: FloatArray, x0: FloatArray, tolerance: Tolerance) -> FloatArray:
    """The margin at theta_hat: x (..., K, d), x0 (..., d) -> (..., K)."""
    mu0 = np.vecdot(x0, fit.theta)
    return fit.mean(x) - (mu0 - tolerance.allowed(mu0))[..., None]


def certified(fit: Fit, x: FloatArray, x0: FloatArray, tolerance: Tolerance, radius: FloatArray) -> FloatArray:
    """F, the smallest margin in the confidence set of this radius: x (..., K, d), x0 (..., d) -> (..., K)."""
    F, _ = worst_case(fit, x - x0[..., None, :], x0, tolerance.relative, tolerance.absolute, radius)
    return F


def worst_case(
    fit: Fit, w: FloatArray, x0: FloatArray, relative: float, absolute: FloatArray | float, radius: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """F and the t that attains it, for margins w (..., K, d): (..., K) twice."""
    F, t = _worst_case(w, x0, fit.theta, fit.metric, radius, relative, absolute)
    return F, t


def largest_share(
    fit: Fit,
    safe: FloatArray,
    wish: FloatArray,
    x0: FloatArray,
    relative: float,
    absolute: FloatArray | float,
    radius: FloatArray,
) -> FloatArray:
    """The largest rho in [0, 1] for which rho wish + (1 - rho) safe is certified; margins (..., d) -> (...).

    0 where not even `safe` is certified. Closed form: for fixed t the boundary is a quadratic in rho, and the set of
    certified (rho, t) is convex, so its largest rho is at t = 1, at t = -1, or where the derivative in t vanishes.
    """
    return _largest_share(safe, wish, x0, fit.theta, fit.metric, radius, relative, absolute)


@kernel(
    "void(f8[:,:], f8[:], f8[:], f8[:,:], f8, f8, f8, f8[:], f8[:])",
    "(k,d),(d),(d),(d,d),(),(),()->(k),(k)",
)
def _worst_case(w, x0, theta, S, r, rel, absolute, F, worst):  # type: ignore[no-untyped-def]
    K, d = w.shape
    B, E = 0.0, 0.0
    Sx0 = np.zeros(d)
    for i in range(d):
        for j in range(d):
            Sx0[i] += S[i, j] * x0[j]
        B += rel * x0[i] * theta[i]
        E += rel * rel * x0[i] * Sx0[i]
    certain = E <= 0.0 or r * r * E <= B * B  # the sign of the control's mean is beyond doubt at this radius
    unsure = 1.0 if certain else r * r * E - B * B
    E_or_1 = 1.0 if certain else E  # never divide by zero, not even on a branch that is not taken
    sign = 1.0 if B >= 0.0 else -1.0
    for k in range(K):
        A, C, D = 0.0, 0.0, 0.0
        for i in range(d):
            s = 0.0
            for j in range(d):
                s += S[i, j] * w[k, j]
            A += w[k, i] * theta[i]
            C += w[k, i] * s
            D += rel * w[k, i] * Sx0[i]
        t = sign
        if not certain:
            t = (B * np.sqrt(max(C * E - D * D, 0.0) / unsure) - D) / E_or_1
            t = min(max(t, -1.0), 1.0)
        F[k] = A + t * B - r * np.sqrt(max(C + 2.0 * D * t + E * t * t, 0.0)) + absolute
        worst[k] = t


@kernel(
    "void(f8[:], f8[:], f8[:], f8[:], f8[:,:], f8, f8, f8, f8[:])",
    "(d),(d),(d),(d),(d,d),(),(),()->()",
)
def _largest_share(ws, wp, x0, theta, S, r, rel, absolute, share):  # type: ignore[no-untyped-def]
    d = ws.shape[0]
    As, Ap, B, E = 0.0, 0.0, 0.0, 0.0
    Css, Csp, Cpp, Ds, Dp = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(d):
        Ss, Sp, S0 = 0.0, 0.0, 0.0
        for j in range(d):
            Ss += S[i, j] * ws[j]
            Sp += S[i, j] * wp[j]
            S0 += S[i, j] * x0[j]
        As += ws[i] * theta[i]
        Ap += wp[i] * theta[i]
        B += rel * x0[i] * theta[i]
        Css += ws[i] * Ss
        Csp += ws[i] * Sp
        Cpp += wp[i] * Sp
        Ds += rel * ws[i] * S0
        Dp += rel * wp[i] * S0
        E += rel * rel * x0[i] * S0
    certain = E <= 0.0 or r * r * E <= B * B
    unsure = 1.0 if certain else r * r * E - B * B
    E_or_1 = 1.0 if certain else E
    sign = 1.0 if B >= 0.0 else -1.0
    f = max(Css - 2.0 * Csp + Cpp, 0.0)
    slack = ROUND_OFF * r * (np.sqrt(max(Css, 0.0)) + np.sqrt(max(Cpp, 0.0)) + np.sqrt(max(E, 0.0)))

    def worst_t(rho: float) -> float:
        if certain:
            return sign
        C = Css + 2.0 * rho * (Csp - Css) + rho * rho * f
        D = Ds + rho * (Dp - Ds)
        return (B * np.sqrt(max(C * E - D * D, 0.0) / unsure) - D) / E_or_1

    def certificate(rho: float) -> float:
        t = min(max(worst_t(rho), -1.0), 1.0)
        C = Css + 2.0 * rho * (Csp - Css) + rho * rho * f
        D = Ds + rho * (Dp - Ds)
        return As + rho * (Ap - As) + t * B - r * np.sqrt(max(C + 2.0 * D * t + E * t * t, 0.0)) + absolute

    if certificate(1.0) >= 0.0:
        share[0] = 1.0
        return
    best = 0.0
    for which in range(3):  # t = 1, t = -1, and t where the derivative vanishes
        if which < 2:
            t = 1.0 - 2.0 * which
            if certain and t != sign:
                continue
            a, b, radius = As + t * B + absolute, Ap - As, r
            c = Css + 2.0 * t * Ds + t * t * E
            e, g = Csp - Css + t * (Dp - Ds), f
        else:
            if certain:
                continue
            a, b = As - B * Ds / E_or_1 + absolute, Ap - As - B * (Dp - Ds) / E_or_1
            c, e = Css - Ds * Ds / E_or_1, Csp - Css - Ds * (Dp - Ds) / E_or_1
            g, radius = f - (Dp - Ds) * (Dp - Ds) / E_or_1, np.sqrt(max(unsure / E_or_1, 0.0))
        # a + rho b >= radius sqrt(c + 2 rho e + rho^2 g): the largest root in [0, 1]
        al, be, ga = b * b - radius * radius * g, a * b - radius * radius * e, a * a - radius * radius * c
        disc = be * be - al * ga
        if disc < 0.0 and disc > -1e-10 * (be * be + abs(al * ga)):
            disc = 0.0
        if disc < 0.0:
            continue
        q = -(be + (1.0 if be >= 0.0 else -1.0) * np.sqrt(max(disc, 0.0)))
        for other in range(2):
            top, bottom = (q, al) if other == 0 else (ga, q)
            rho = top / (bottom if bottom != 0.0 else 1.0)
            if bottom != 0.0 and rho > best and rho <= 1.0 and a + rho * b >= -1e-7 * (abs(a) + abs(b)):
                t_here = worst_t(rho)
                if which < 2 or (t_here >= -1.0 and t_here <= 1.0):
                    best = rho
    if certificate(best) < -slack:  # round-off of the closed form: F is concave along the segment, so bisect
        low, high = 0.0, best
        for _ in range(60):
            middle = 0.5 * (low + high)
            if certificate(middle) >= 0.0:
                low = middle
            else:
                high = middle
        best = low
    share[0] = best
