"""What the outcomes alone say about each variance: the most likely value, and a range, by the profile likelihood.

Decisions need a variance even where little is known of it, and take it with a prior (drimed.learning.field.variances).
A report of how much something varies must not repeat the prior. So each variance is set to many values in turn, the
others of its metric are made as likely as they can be, and it stays in the range while that costs little likelihood.
A range may begin at zero. A variance is not told where the likelihood does not change from zero to nearly the end:
others take up all that it gives away, as the noise does for people who were seen once.
One thing is taken for granted about the others, if less firmly than for decisions: what is crossed, such as an arm's
effect that differs between seasons, is rarely many times the noise. Without it a season in which nearly all got the
same arm might have been good for this arm alone.
Shapes: M metrics, n variances of each: the families', then the residual's; u = M n; s of them that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import chdtri

from drimed.learning.field.likelihood import Design, counts, slopes
from drimed.learning.field.regrouped import regrouped
from drimed.learning.field.search import Found, descend
from drimed.learning.field.variances import Parameters
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

ZERO = 2 * np.log(0.01)  # a log variance that is as good as none: a hundredth of the noise's deviation
MOST = 2 * np.log(1e4)  # and one beyond which nobody looks
LEAST_START = 2 * np.log(0.1)  # below it a variance hardly matters, and a step of its log neither
NEAR = 0.02  # a gradient at which the likelihood is as good as at its highest: that much, or less, is missing
TRIES, CLOSE = 3, 0.02  # of the line that leads to an end of a range; a root of the deviance that is near enough to it
FLAT, SHORT = 0.5, 2 * np.log(0.7)  # not told: so little changes from zero to this much below the end of the range


WIDER = 1.5  # what is taken for granted about crossed families, relative to the spread of a decision's prior
CROSSED = ("group x arm", "user x arm", "season x group", "season x arm")


class Profile(NamedTuple):
    """Log variances in standardised units: (M, s) each."""

    best: FloatArray
    low: FloatArray  # minus infinity where zero fits
    high: FloatArray
    told: BoolArray


def profile(
    parameters: Parameters, design: Design, mode: FloatArray, share: float, asked: Sequence[int] | None = None
) -> Profile:
    """The range of each variance that holds it with probability `share`; `mode` (p,) is where the search starts.

    `asked` are the numbers of those that are asked for, of each metric; None: all.
    """
    M, u = parameters.metrics, parameters.uncertain
    families = np.arange(u - M).reshape(M, -1)
    own = np.concatenate([families, np.arange(u - M, u)[:, None]], 1)  # (M, n), the coordinate of each variance
    search, some = _Search(parameters, regrouped(design), mode[u:], own), slice(None) if asked is None else list(asked)
    everyone = np.arange(u).reshape(M, -1)[:, some].ravel()  # numbers of variances, (M s,)
    first, alike = search.alike(everyone)
    found = search.least(np.repeat(np.clip(mode[None, :u], ZERO, MOST), len(first), 0), first, held=False)
    top, least = np.empty((u, u)), np.empty(u)
    top[everyone], least[everyone] = (part[alike] for part in found)
    best, most = top[everyone, own.ravel()[everyone]], float(chdtri(1, 1 - share))

    def deviance(t: FloatArray, which: IntArray) -> FloatArray:
        """Twice the log likelihood that is lost where variances number `which`, (members,), are t."""
        x = top[which]
        x[np.arange(len(which)), own.ravel()[which]] = t
        return np.maximum(2 * (search.least(x, which, held=True)[1] - least[which]), 0.0)

    none = deviance(np.full(len(everyone), ZERO), everyone)
    high = _end(deviance, np.maximum(best, LEAST_START), MOST, most, everyone)
    low, away = np.full(len(everyone), -np.inf), np.flatnonzero(none > most)
    low[away] = _end(deviance, best[away], ZERO, most, everyone[away])
    told, shape = none > FLAT, (M, -1)
    flat = np.flatnonzero(~told)
    if len(flat):
        told[flat] = deviance(np.maximum(high[flat] + SHORT, ZERO), everyone[flat]) > FLAT
    return Profile(best.reshape(shape), low.reshape(shape), high.reshape(shape), told.reshape(shape))


@dataclass(frozen=True)
class _Search:
    """Where the variances of a metric are most likely, at the residual's most plausible shape."""

    parameters: Parameters
    design: Design
    shape: FloatArray  # (p - u,)
    own: IntArray  # (M, n)

    def least(self, x: FloatArray, which: IntArray, *, held: bool) -> tuple[FloatArray, FloatArray]:
        """From points x (members, u) for variances number `which` to where minus the log likelihood is least.

        All variances of the same metric move, but for these where they are held. And its value there.
        """
        u, members = x.shape[-1], np.arange(len(which))
        free = np.zeros(x.shape, bool)
        free[members[:, None], self.own[which // self.own.shape[1]]] = True
        free[members, self.own.ravel()[which]] = not held
        precision = self._precision(self.own.ravel()[which])
        centre, metric = self.parameters.centre[:u], which // self.own.shape[1]
        count = counts(self.design, self.parameters.metrics)

        def objective(x: FloatArray, some: IntArray) -> Found:
            full = np.concatenate([x, np.broadcast_to(self.shape, (len(x), len(self.shape)))], -1)
            v, R = self.parameters.variances(full), self.parameters.residual(full)
            found = slopes(self.design, v, R, curvature=True, metric=metric[some])
            pull = np.matvec(precision[some], x - centre)
            g = pull - self.parameters.gradient_by_unit(found, count)
            # What wants to go beyond an end stays there.
            loose = free[some] & ~((x <= ZERO) & (g > 0)) & ~((x >= MOST) & (g < 0))
            H = precision[some] - self.parameters.curvature(found)
            H = np.where(loose[..., :, None] & loose[..., None, :], H, 0.0) + np.eye(u) * ~loose[..., None, :]
            return 0.5 * np.vecdot(x - centre, pull) - found.value, np.where(loose, g, 0.0), H

        x, (value, *_) = descend(objective, x, (np.full(u, ZERO), np.full(u, MOST)), NEAR)
        return x, value

    def alike(self, which: IntArray) -> tuple[IntArray, IntArray]:
        """Some of them for all, and whose is whose: with nothing held, many of a metric are searched for in one way."""
        taken = self._precision(self.own.ravel()[which]).reshape(len(which), -1)
        searches = np.column_stack([which // self.own.shape[1], taken])
        _, first, alike = np.unique(searches, axis=0, return_index=True, return_inverse=True)
        return which[first], alike

    def _precision(self, asked: IntArray) -> FloatArray:
        """Of what is taken for granted about other variances than those that are asked about: (members, u, u)."""
        u, M, n = self.own.size, *self.own.shape
        families = [self.parameters.families[k] for k in self.parameters.learned]
        weight = np.zeros((len(asked), u))
        weight[:, : u - M] = [(WIDER * f.spread) ** -2.0 if f.name in CROSSED else 0.0 for f in families] * M
        weight[np.arange(len(asked)), asked] = 0.0
        weight[asked >= u - M] = 0.0  # what is reserved for others would be missing from the noise
        against = np.eye(u)
        against[np.arange(u - M), u - M + np.arange(u - M) // max(n - 1, 1)] = -1.0  # relative to the residual's
        return np.asarray(np.matmul(against.T * weight[:, None, :], against))


def _end(
    deviance: Callable[[FloatArray, IntArray], FloatArray], best: FloatArray, limit: float, most: float, which: IntArray
) -> FloatArray:
    """Where the deviance reaches `most` on the way from the most likely values to a limit: (members,)."""
    if not len(which):
        return best
    root = np.sqrt(most)
    inside, outside = best.copy(), best.copy()
    r_inside, r_outside = np.zeros(len(best)), np.zeros(len(best))  # roots of the deviance, which are nearly lines
    way, reach = np.sign(limit - best), 1.0
    while len(seeking := np.flatnonzero((r_outside <= root) & (outside != limit))):
        inside[seeking], r_inside[seeking] = outside[seeking], r_outside[seeking]
        step = outside[seeking] + way[seeking] * reach
        outside[seeking] = np.minimum(step, limit) if limit == MOST else np.maximum(step, limit)
        reach *= 2
        r_outside[seeking] = np.sqrt(deviance(outside[seeking], which[seeking]))
    left = np.arange(len(best))
    for _ in range(TRIES):
        t = _between(inside, outside, r_inside, r_outside, root)
        r = np.sqrt(deviance(t[left], which[left]))
        beyond = r > root
        outside[left[beyond]], r_outside[left[beyond]] = t[left[beyond]], r[beyond]
        inside[left[~beyond]], r_inside[left[~beyond]] = t[left[~beyond]], r[~beyond]
        left = left[np.abs(r - root) > CLOSE * root]
        if not len(left):
            break
    return _between(inside, outside, r_inside, r_outside, root)


def _between(
    inside: FloatArray, outside: FloatArray, r_inside: FloatArray, r_outside: FloatArray, root: float
) -> FloatArray:
    """Where a line between two points reaches the root: (members,)."""
    share = (root - r_inside) / np.maximum(r_outside - r_inside, 1e-9 * root)
    return np.asarray(inside + np.clip(share, 0.0, 1.0) * (outside - inside))
