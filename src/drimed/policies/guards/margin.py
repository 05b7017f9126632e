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

from drimed.numerics.arrays import FloatArray, check_settings
from drimed.numerics.compiled import helper, kernel
from drimed.numerics.quadratic_forms import quadratic

# A squared length below this share of its terms is round-off: it must not cost a w parallel to x_0 its certificate.
CANCELLED = 1e-14
STEPS = 60  # of Newton's method, which needs about five; at a double root each halves the distance to it


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
        check_settings(self, below_one=("relative",), not_negative=("absolute",))

    def note(self) -> str | None:
        """A warning for a person before a trial starts, if this leaves no room to learn."""
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


@kernel(
    "void(f8[:,:], f8[:], f8[:], f8[:,:], f8, f8, f8, f8[:], f8[:])",
    "(k,d),(d),(d),(d,d),(),(),()->(k),(k)",
)
def worst_case(w, x0, theta, S, r, rel, absolute, F, worst):  # type: ignore[no-untyped-def]
    """F and the t that attains it, for margins w (..., K, d) in the metric S (..., d, d): (..., K) twice."""
    K, d = w.shape
    B, E = 0.0, 0.0
    Sx0, at = np.empty(d), np.empty(d, np.int64)
    for i in range(d):
        Sx0[i] = 0.0
    for j in range(d):
        if x0[j] != 0.0:  # often few
            for i in range(d):
                Sx0[i] += S[i, j] * x0[j]
    for i in range(d):
        B += rel * x0[i] * theta[i]
        E += rel * rel * x0[i] * Sx0[i]
    for k in range(K):
        A, D = 0.0, 0.0
        for i in range(d):
            A += w[k, i] * theta[i]
            D += rel * w[k, i] * Sx0[i]
        t, norm = _worst(B, quadratic(S, w, k, at), D, E, r)
        F[k] = A + t * B - r * norm + absolute
        worst[k] = t


@kernel(
    "void(f8[:], f8[:], f8[:], f8[:], f8[:,:], f8, f8, f8, f8[:])",
    "(d),(d),(d),(d),(d,d),(),(),()->()",
)
def largest_share(safe, wish, x0, theta, S, r, rel, absolute, share):  # type: ignore[no-untyped-def]
    """The largest rho in [0, 1] for which rho wish + (1 - rho) safe is certified, margins (..., d); 0 where none is.

    Newton's method from 1: F is concave along the segment, so that it falls to the largest root and not below it.
    """
    A, B, C, D, E = absolute, 0.0, 0.0, 0.0, 0.0  # A, C and D of the safe end
    rise, turn, bend, tilt = 0.0, 0.0, 0.0, 0.0  # A' and D' along the segment; C' / 2 at its safe end, and C'' / 2
    for i in range(safe.shape[0]):
        along, held, moved, control = wish[i] - safe[i], 0.0, 0.0, 0.0
        for j in range(safe.shape[0]):
            held += S[i, j] * safe[j]
            moved += S[i, j] * (wish[j] - safe[j])
            control += S[i, j] * x0[j]
        A += safe[i] * theta[i]
        B += rel * x0[i] * theta[i]
        C += safe[i] * held
        D += rel * safe[i] * control
        E += rel * rel * x0[i] * control
        rise += along * theta[i]
        turn += along * held
        bend += along * moved
        tilt += rel * along * control
    share[0] = 1.0
    for _ in range(STEPS):
        rho = share[0]
        t, norm = _worst(B, C + 2.0 * rho * turn + rho * rho * bend, D + rho * tilt, E, r)
        F = A + rho * rise + t * B - r * norm
        if F >= 0.0:
            return
        slope = rise - r * (turn + rho * bend + t * tilt) / norm if norm > 0.0 else rise
        share[0] = rho - F / slope if slope < 0.0 else 0.0  # where it rises, all smaller shares are worse
        if share[0] <= 0.0 or share[0] == rho:
            share[0] = max(share[0], 0.0)
            return


@helper
def _worst(B: float, C: float, D: float, E: float, r: float) -> tuple[float, float]:
    """The t in [-1, 1] of the largest t B - r |w + t rel x_0|, and that length.

    B = rel <x_0, theta_hat>; C = |w|^2, D = rel <w, x_0> and E = rel^2 |x_0|^2 in V^-1.
    """
    unsure = r * r * E - B * B
    if unsure > 0.0:  # where the derivative vanishes
        t = min(max((B * np.sqrt(max(C * E - D * D, 0.0) / unsure) - D) / E, -1.0), 1.0)
    else:  # the sign of the control's mean is beyond doubt
        t = 1.0 if B >= 0.0 else -1.0
    squared = C + 2.0 * D * t + E * t * t
    return t, np.sqrt(squared) if squared > CANCELLED * (C + E * t * t) else 0.0
