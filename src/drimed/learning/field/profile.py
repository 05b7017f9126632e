"""What the outcomes alone say about each variance: the most likely value, and a range, by the profile likelihood.

Decisions need a variance even where little is known of it, and take it with a prior (drimed.learning.field.variances).
A report of how much something varies must not repeat the prior. So each variance is set to many values in turn, the
others of its metric are made as likely as they can be, and it stays in the range while that costs little likelihood.
A range may begin at zero. A variance is not told where the likelihood does not change from zero to nearly the end:
others take up all that it gives away, as the noise does for people who were seen once.
Shapes: M metrics, n variances of each: the families', then the residual's; u = M n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import chdtri

from drimed.learning.field.likelihood import Design, slopes
from drimed.learning.field.search import Found, descend
from drimed.learning.field.variances import Parameters
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

ZERO = 2 * np.log(0.01)  # a log variance that is as good as none: a hundredth of the noise's deviation
MOST = 2 * np.log(1e4)  # and one beyond which nobody looks
LEAST_START = 2 * np.log(0.1)  # below it a variance hardly matters, and a step of its log neither
NEAR = 0.02  # a gradient at which the likelihood is as good as at its highest: that much, or less, is missing
TRIES = 3  # of the line that leads to an end of a range
FLAT, SHORT = 0.5, 2 * np.log(0.7)  # not told: so little changes from zero to this much below the end of the range


class Profile(NamedTuple):
    """Log variances in standardised units: (M, n) each."""

    best: FloatArray
    low: FloatArray  # minus infinity where zero fits
    high: FloatArray
    told: BoolArray


def profile(parameters: Parameters, design: Design, mode: FloatArray, share: float) -> Profile:
    """The range of every variance that holds it with probability `share`; `mode` (p,) is where the search starts."""
    M, u = parameters.metrics, parameters.uncertain
    families = np.arange(u - M).reshape(M, -1)
    own = np.concatenate([families, np.arange(u - M, u)[:, None]], 1)  # (M, n), the coordinate of each variance
    search = _Search(parameters, design, mode[u:], own)
    start = np.clip(mode[None, :u], ZERO, MOST)
    top, least = search.least(start, np.ones((1, u), bool))
    best, most = top[0, own.ravel()], float(chdtri(1, 1 - share))

    def deviance(t: FloatArray, which: IntArray) -> FloatArray:
        """Twice the log likelihood that is lost where variances number `which`, (members,), are t."""
        return np.maximum(2 * (search.at(t, which, top[0]) - least), 0.0)

    everyone = np.arange(u)
    none = deviance(np.full(u, ZERO), everyone)
    high = _end(deviance, np.maximum(best, LEAST_START), MOST, most, everyone)
    low, away = np.full(u, -np.inf), np.flatnonzero(none > most)
    low[away] = _end(deviance, best[away], ZERO, most, away)
    told = (none > FLAT) | (deviance(np.maximum(high + SHORT, ZERO), everyone) > FLAT)
    return Profile(*(a.reshape(own.shape) for a in (best, low, high)), told.reshape(own.shape))


@dataclass(frozen=True)
class _Search:
    """Where the log likelihood of the variances is highest, at the residual's most plausible shape."""

    parameters: Parameters
    design: Design
    shape: FloatArray  # (p - u,)
    own: IntArray  # (M, n)

    def at(self, t: FloatArray, which: IntArray, start: FloatArray) -> FloatArray:
        """Minus the log likelihood where variances number `which` are t, and the others of their metric the best."""
        members, held = np.arange(len(which)), self.own.ravel()[which]
        free = np.zeros((len(which), len(start)), bool)
        free[members[:, None], self.own[which // self.own.shape[1]]] = True
        free[members, held] = False
        x = np.repeat(start[None], len(which), 0)
        x[members, held] = t
        return self.least(x, free)[1]

    def least(self, x: FloatArray, free: BoolArray) -> tuple[FloatArray, FloatArray]:
        """From points x (members, u) to where it is least over the coordinates that are free, and its value there."""

        def objective(x: FloatArray, which: IntArray) -> Found:
            full = np.concatenate([x, np.broadcast_to(self.shape, (len(x), len(self.shape)))], -1)
            found = slopes(self.design, self.parameters.variances(full), self.parameters.residual(full), curvature=True)
            g = -self.parameters.gradient(full, found)[..., : x.shape[-1]]
            # What wants to go beyond an end stays there.
            loose = free[which] & ~((x <= ZERO) & (g > 0)) & ~((x >= MOST) & (g < 0))
            H = np.where(loose[..., :, None] & loose[..., None, :], -self.parameters.curvature(found), 0.0)
            return -found.value, np.where(loose, g, 0.0), H + np.eye(x.shape[-1]) * ~loose[..., None, :]

        bounds = np.full(x.shape[-1], ZERO), np.full(x.shape[-1], MOST)
        x, (value, *_) = descend(objective, x, bounds, NEAR)
        return x, value


def _end(
    deviance: Callable[[FloatArray, IntArray], FloatArray], best: FloatArray, limit: float, most: float, which: IntArray
) -> FloatArray:
    """Where the deviance reaches `most` on the way from the most likely values to a limit: (members,)."""
    if not len(which):
        return best
    root = np.sqrt(most)
    inside, outside = best, best
    r_inside, r_outside = np.zeros(len(best)), np.zeros(len(best))  # roots of the deviance, which are nearly lines
    way, reach = np.sign(limit - best), 1.0
    while ((r_outside <= root) & (outside != limit)).any():
        seeking = r_outside <= root
        inside, r_inside = np.where(seeking, outside, inside), np.where(seeking, r_outside, r_inside)
        step = outside + way * reach
        step = np.minimum(step, limit) if limit == MOST else np.maximum(step, limit)
        outside, reach = np.where(seeking, step, outside), 2 * reach
        r_outside = np.sqrt(deviance(outside, which))
    for left in range(TRIES, -1, -1):
        share = (root - r_inside) / np.maximum(r_outside - r_inside, 1e-9 * root)
        t = inside + np.clip(share, 0.0, 1.0) * (outside - inside)
        if not left:
            break
        r = np.sqrt(deviance(t, which))
        beyond = r > root
        inside, r_inside = np.where(beyond, inside, t), np.where(beyond, r_inside, r)
        outside, r_outside = np.where(beyond, t, outside), np.where(beyond, r, r_outside)
    return t
