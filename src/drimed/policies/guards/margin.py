"""The margin to the control, and the smallest value it can have in the confidence set.

A choice with mean feature x keeps its promise if <x - x_0, theta> + rel |<x_0, theta>| + abs >= 0. The sign of the
control's mean is unknown, and (1 - rel) mu_0 would lie above mu_0 when mu_0 < 0: the tolerance is on |mu_0|.

For w = x - x_0 the worst case over |theta - theta_hat|_V <= r is, by minimax over the bilinear form |u| = max t u,

    F = max_{|t| <= 1} <w + t rel x_0, theta_hat> - r |w + t rel x_0|_{V^-1} + abs

which is exact: F >= 0 if and only if the promise holds for every theta in the set. It has a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from drimed.errors import ConfigError
from drimed.models.offer import Fit
from drimed.numerics.arrays import FloatArray
from drimed.numerics.compiled import helper, kernel
from drimed.numerics.quadratic_forms import entries_of, quadratic_at

# Inner products lose half the digits where w is parallel to x_0; the control itself must stay certified there.
ROUND_OFF = 1e-8
TANGENT = 1e-10  # a discriminant this far below zero, relative to its terms, is a double root and round-off
WRONG_SIDE = 1e-7  # a root this far on the wrong side of a + rho b = 0, relative to a and b, is on it
HALVINGS = 60  # of [0, 1]: more than a double has digits


@final
@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The tolerated shortfall of a choice below the control: relative |mu_0| + absolute, in the user's reward unit.

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
        """A warning for a person before a trial starts, if this leaves no room to learn.

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
    return _worst_case(w, x0, fit.theta, fit.metric, radius, relative, absolute)


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


class _Control(NamedTuple):
    """The control's part in certificates: B = rel <x_0, theta_hat> and E = rel^2 |x_0|^2_{V^-1}, at radius r."""

    B: float
    E: float
    r: float
    certain: bool  # the sign of the control's mean is beyond doubt at this radius
    unsure: float  # r^2 E - B^2, or 1 if certain
    E_or_1: float  # never divide by zero, not even on a branch that is not taken


class _Segment(NamedTuple):
    """Margins w = safe + rho (wish - safe): A = <w, theta_hat>, C = |w|^2 and D = rel <w, x_0> at both ends."""

    As: float
    Ap: float
    Css: float
    Csp: float
    f: float  # |wish - safe|^2
    Ds: float
    Dp: float
    absolute: float


@kernel(
    "void(f8[:,:], f8[:], f8[:], f8[:,:], f8, f8, f8, f8[:], f8[:])",
    "(k,d),(d),(d),(d,d),(),(),()->(k),(k)",
)
def _worst_case(w, x0, theta, S, r, rel, absolute, F, worst):  # type: ignore[no-untyped-def]
    K, d = w.shape
    B, E = 0.0, 0.0
    Sx0, at = np.zeros(d), np.empty(d, np.int64)
    n = entries_of(x0, at)  # often few
    for i in range(d):
        for j in at[:n]:
            Sx0[i] += S[i, j] * x0[j]
        B += rel * x0[i] * theta[i]
        E += rel * rel * x0[i] * Sx0[i]
    control = _control(B, E, r)
    for k in range(K):
        A, D = 0.0, 0.0
        n = entries_of(w[k], at)
        C = quadratic_at(S, w[k], at, n)
        for i in at[:n]:
            A += w[k, i] * theta[i]
            D += rel * w[k, i] * Sx0[i]
        t = min(max(_stationary(control, C, D), -1.0), 1.0)
        F[k] = _margin(control, A, C, D, t) + absolute
        worst[k] = t


@kernel(
    "void(f8[:], f8[:], f8[:], f8[:], f8[:,:], f8, f8, f8, f8[:])",
    "(d),(d),(d),(d),(d,d),(),(),()->()",
)
def _largest_share(ws, wp, x0, theta, S, r, rel, absolute, share):  # type: ignore[no-untyped-def]
    As, Ap, B, E = 0.0, 0.0, 0.0, 0.0
    Css, Csp, Cpp, Ds, Dp = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(ws.shape[0]):
        Ss, Sp, S0 = 0.0, 0.0, 0.0
        for j in range(ws.shape[0]):
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
    control = _control(B, E, r)
    segment = _Segment(As, Ap, Css, Csp, max(Css - 2.0 * Csp + Cpp, 0.0), Ds, Dp, absolute)
    if _certificate(control, segment, 1.0) >= 0.0:
        share[0] = 1.0
        return
    best = 0.0
    for t in (1.0, -1.0, 0.0):  # the ends, and (0) where the derivative in t vanishes
        if not control.certain or t == (1.0 if B >= 0.0 else -1.0):
            best = _largest_root(control, segment, t, best)
    slack = ROUND_OFF * r * (np.sqrt(max(Css, 0.0)) + np.sqrt(max(Cpp, 0.0)) + np.sqrt(max(E, 0.0)))
    if _certificate(control, segment, best) < -slack:  # round-off: F is concave along the segment, so bisect
        low, high = 0.0, best
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            if _certificate(control, segment, middle) >= 0.0:
                low = middle
            else:
                high = middle
        best = low
    share[0] = best


@helper
def _control(B: float, E: float, r: float) -> _Control:
    certain = E <= 0.0 or r * r * E <= B * B
    return _Control(B, E, r, certain, 1.0 if certain else r * r * E - B * B, 1.0 if certain else E)


@helper
def _margin(c: _Control, A: float, C: float, D: float, t: float) -> float:
    """<w + t rel x_0, theta_hat> - r |w + t rel x_0|."""
    return A + t * c.B - c.r * np.sqrt(max(C + 2.0 * D * t + c.E * t * t, 0.0))


@helper
def _stationary(c: _Control, C: float, D: float) -> float:
    """The t where the margin's derivative vanishes; where it never does, the end that the margin rises to."""
    if c.certain:
        return 1.0 if c.B >= 0.0 else -1.0
    return (c.B * np.sqrt(max(C * c.E - D * D, 0.0) / c.unsure) - D) / c.E_or_1


@helper
def _at(s: _Segment, rho: float) -> tuple[float, float, float]:
    """A, C and D on the segment."""
    return s.As + rho * (s.Ap - s.As), s.Css + 2.0 * rho * (s.Csp - s.Css) + rho * rho * s.f, s.Ds + rho * (s.Dp - s.Ds)


@helper
def _certificate(c: _Control, s: _Segment, rho: float) -> float:
    A, C, D = _at(s, rho)
    return _margin(c, A, C, D, min(max(_stationary(c, C, D), -1.0), 1.0)) + s.absolute


@helper
def _largest_root(c: _Control, s: _Segment, t: float, best: float) -> float:
    """The largest rho in (best, 1] at which the margin is zero: for t = 1 or -1, or at its stationary t (t = 0)."""
    if t != 0.0:
        a, b, radius = s.As + t * c.B + s.absolute, s.Ap - s.As, c.r
        C = s.Css + 2.0 * t * s.Ds + t * t * c.E
        e, g = s.Csp - s.Css + t * (s.Dp - s.Ds), s.f
    else:
        rise = s.Dp - s.Ds
        a, b = s.As - c.B * s.Ds / c.E_or_1 + s.absolute, s.Ap - s.As - c.B * rise / c.E_or_1
        C, e = s.Css - s.Ds * s.Ds / c.E_or_1, s.Csp - s.Css - s.Ds * rise / c.E_or_1
        g, radius = s.f - rise * rise / c.E_or_1, np.sqrt(max(c.unsure / c.E_or_1, 0.0))
    # a + rho b >= radius sqrt(C + 2 rho e + rho^2 g)
    al, be, ga = b * b - radius * radius * g, a * b - radius * radius * e, a * a - radius * radius * C
    disc = be * be - al * ga
    if disc < -TANGENT * (be * be + abs(al * ga)):
        return best
    q = -(be + (1.0 if be >= 0.0 else -1.0) * np.sqrt(max(disc, 0.0)))
    for top, bottom in ((q, al), (ga, q)):
        rho = top / (bottom if bottom != 0.0 else 1.0)
        if bottom != 0.0 and rho > best and rho <= 1.0 and a + rho * b >= -WRONG_SIDE * (abs(a) + abs(b)):
            _, C_here, D_here = _at(s, rho)
            if t != 0.0 or abs(_stationary(c, C_here, D_here)) <= 1.0:
                best = rho
    return best
