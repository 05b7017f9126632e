"""Confidence sequences: intervals for a mean that hold at all times at once, whatever decided how data were collected.

Observations x_t come in order. They need one mean given the past, for bands are intersected over time (where means may
change: drimed.evaluation.running); they need not be independent or equally distributed. Ranges, centres and
precisions must be known before x_t is seen.

* `Bernstein`, predictable plug-in empirical Bernstein: bounded x, exact. Waudby-Smith and Ramdas (2024), Thm 2; the
  one-sided form, which needs only one bound, and changing ranges: Waudby-Smith et al. (2024), Thm 1.
* `betting`, hedged capital: bounded x, exact, tighter and slower. Waudby-Smith and Ramdas (2024), Thm 3.
* `mixture`, normal mixture: sub-Gaussian x with known variances, exact. Robbins (1970); Howard et al. (2021), Eq. 14.
* `asymptotic`: any x with a variance; its level is right in the limit of a late start. Waudby-Smith et al. (2024).

Shapes: leading `...` is any batch of runs; the last axis is time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from drimed.errors import ConfigError, InputError
from drimed.linear import checks
from drimed.linear.arrays import BoolArray, FloatArray
from drimed.linear.kernel import kernel

STEP_CAP = 0.5  # share of the largest bet that keeps wealth positive; one half as in the source
EPS = 2.0**-52  # in squared units: variances are never quite zero
FIRST_SPREAD = 0.25  # variance assumed before any data, in squared units of the range: that of a fair coin
TELLING = 40.0  # observations that must count effectively, n over their kurtosis, before the asymptotic band begins
NARROWEST = 0.25  # of the range: a smaller distance from centre to bound would allow reckless first bets


@final
@dataclass(frozen=True, slots=True)
class Band:
    """Lower and upper ends at each time."""

    low: FloatArray  # (..., n)
    high: FloatArray  # (..., n)

    def running(self) -> Band:
        """The intersection over all times so far: still valid, and never wider later on."""
        return Band(np.maximum.accumulate(self.low, -1), np.minimum.accumulate(self.high, -1))

    def holds(self, mean: Any) -> BoolArray:
        """Whether `mean` (...) is inside at all times: (...)."""
        m = np.asarray(mean)[..., None]
        return np.asarray(((self.low <= m) & (m <= self.high)).all(-1))


@final
@dataclass(frozen=True, slots=True)
class Bernstein:
    """A lower confidence sequence that goes on where it stopped: all it needs to remember of the past.

    >>> first, state = Bernstein.start(alpha=0.05).extend(np.array([0.5, 0.6]))
    >>> both, _ = Bernstein.start(alpha=0.05).extend(np.array([0.5, 0.6, 0.7]))
    >>> more, _ = state.extend(np.array([0.7]))
    >>> bool(np.allclose(np.append(first, more), both))
    True
    """

    alpha: float  # the bound may ever fail with this probability
    unit: FloatArray  # (...), the range of x where it has one: the scale of first guesses
    most: float  # what the mean is at most
    horizon: float | None  # the number of observations at which it should be tightest; None: no preference
    warm_up: int  # observations that only teach the spread, where its first guess may be far off
    sums: FloatArray  # (..., 7): time, sum of h, of h x, of h y^2, of lambda, of lambda x, of psi(lambda) y^2

    @classmethod
    def start(
        cls,
        *,
        alpha: float,
        unit: Any = 1.0,
        most: float = np.inf,
        horizon: float | None = None,
        warm_up: int = 0,
        batch: tuple[int, ...] = (),
    ) -> Bernstein:
        """Before any data."""
        checks.share("alpha", alpha)
        size = checks.positive("unit", np.broadcast_to(np.asarray(unit, np.float64), batch))
        if horizon is not None and not horizon > 0:
            raise ConfigError(f"horizon must be positive, got {horizon}")
        return cls(alpha, size, most, horizon, warm_up, np.zeros((*batch, 7)))

    def extend(self, x: Any, *, floor: Any = 0.0, precision: Any = 1.0) -> tuple[FloatArray, Bernstein]:
        """Lower bounds of the mean after each of x (..., n), and the state behind them.

        `floor` (..., n) is the least that each x could have been, known before. `precision` h (..., n) is proportional
        to 1 / variance, as guessed before: observations with more of it count more, those with none not at all.
        """
        x = checks.finite("x", x)
        if x.shape[-1] == 0:
            return x, self
        low, h = (np.broadcast_to(np.asarray(v, np.float64), x.shape) for v in (floor, precision))
        if (x < low).any():
            raise InputError(f"x must not be below its floor, got {float((low - x).max())} below it")
        settings = np.array([np.log(1 / self.alpha), self.most, self.horizon or 0.0, self.warm_up])
        bound, sums = _bernstein_kernel(x, low, h, self.sums, self.unit, settings)
        return np.asarray(bound), replace(self, sums=sums)


def bernstein(
    x: Any,
    alpha: float,
    *,
    low: Any = 0.0,
    high: Any = 1.0,
    precision: Any = 1.0,
    unit: Any = None,
    horizon: float | None = None,
) -> Band:
    """Two-sided for x (..., n) within [low, high], which may change from time to time; `unit`: its range at first.

    >>> band = bernstein(np.tile([0.0, 1.0], 500), 0.05)
    >>> bool(band.low[-1] < 0.5 < band.high[-1])
    True
    """
    checks.share("alpha", alpha)
    x = checks.finite("x", x)
    bottom, top = (np.broadcast_to(np.asarray(v, np.float64), x.shape) for v in (low, high))
    unit = (top - bottom)[..., 0] if unit is None else unit
    state = Bernstein.start(alpha=alpha / 2, unit=unit, horizon=horizon, batch=x.shape[:-1])
    below, _ = state.extend(x, floor=bottom, precision=precision)
    above, _ = state.extend(-x, floor=-top, precision=precision)
    return Band(below, -above).running()


def betting(x: Any, alpha: float, *, low: float = 0.0, high: float = 1.0, grid: int = 1000) -> Band:
    """Two-sided for x (..., n) within [low, high]: a mean is ruled out when betting against it made 2 / alpha.

    Ends are rounded outwards to a `grid` of candidate means.

    >>> band = betting(np.tile([0.0, 1.0], 500), 0.05)
    >>> bool(band.low[-1] < 0.5 < band.high[-1])
    True
    """
    checks.share("alpha", alpha)
    x = checks.finite("x", x)
    if (x < low).any() or (x > high).any():
        raise InputError(f"x must be within [{low}, {high}], got {float(x.min())} to {float(x.max())}")
    if grid < 1:
        raise ConfigError(f"grid must be at least 1, got {grid}")
    unit = (x - low) / (high - low)
    candidates = np.linspace(0.0, 1.0, grid + 1)
    below = _capital(unit, candidates, alpha)
    above = 1 - _capital(1 - unit, candidates, alpha)
    return Band(low + (high - low) * below, low + (high - low) * above)


def mixture(variance: Any, alpha: float, *, tuned_at: float) -> FloatArray:
    """How far a sum of centred observations is from zero at any time: `variance` is the sum of theirs, known before.

    Tightest where the variance has reached `tuned_at`.

    >>> round(float(mixture(100.0, 0.05, tuned_at=100.0)), 2)
    30.35
    """
    checks.share("alpha", alpha)
    if not tuned_at > 0:
        raise ConfigError(f"tuned_at must be positive, got {tuned_at}")
    V = np.asarray(variance, np.float64)
    rho = tuned_at / tightest(alpha)
    return np.sqrt((V + rho) * np.log((V + rho) / (rho * alpha**2)))


def asymptotic(x: Any, alpha: float, *, weight: Any = 1.0, start: Any = None, tuned_at: float = 2.0) -> Band:
    """For the mean of x (..., n) of any size; infinitely wide before it begins.

    It begins at the time `start` (...), or without one when TELLING observations count effectively: rare events, which
    say little about how they vary, are waited for. `weight` h (..., n), known before x, makes it the sequence of the
    weighted mean; h proportional to 1 / (standard deviation of x given the past) stabilises the variance, which is what
    the limit theorem wants. It is tightest where the variance has become `tuned_at` times that at the start.
    """
    checks.share("alpha", alpha)
    x = checks.finite("x", x)
    n, batch = x.shape[-1], x.shape[:-1]
    h = np.broadcast_to(np.asarray(weight, np.float64), x.shape)
    if not tuned_at > 0:
        raise ConfigError(f"tuned_at must be positive, got {tuned_at}")
    if n == 0:
        return Band(x, x)
    total = np.cumsum(h, -1)
    some = np.where(total > 0, total, 1.0)
    shift = (h * x).sum(-1, keepdims=True) / some[..., -1:]  # any shift is right; this one keeps digits
    z = x - shift
    mean = np.cumsum(h * z, -1) / some
    h2 = h * h
    V = np.cumsum(h2 * z * z, -1) - 2 * mean * np.cumsum(h2 * z, -1) + mean**2 * np.cumsum(h2, -1)
    V = np.maximum(V, 0.0)
    if start is None:
        fourth = np.cumsum((h * (z - mean)) ** 4, -1)
        enough = (V > EPS) & (TELLING * fourth <= V**2)
        begin = np.where(enough.any(-1), enough.argmax(-1) + 1, n + 1)[..., None]
    else:
        begin = np.broadcast_to(np.asarray(start, np.intp), batch)[..., None]  # (..., 1)
        if (begin < 2).any():
            raise ConfigError(f"start must be at least 2, got {int(begin.min())}")
    open_ = np.arange(1, n + 1) < begin
    at_start = np.take_along_axis(V, np.minimum(begin, n) - 1, -1)
    rho = np.maximum(at_start, EPS * np.maximum(V.max(-1, keepdims=True), EPS)) * tuned_at / tightest(alpha)
    radius = np.where(open_ | (total <= 0), np.inf, np.sqrt((V + rho) * np.log((V + rho) / (rho * alpha**2))) / some)
    return Band(shift + mean - radius, shift + mean + radius)


def tightest(alpha: float) -> float:
    """A mixture is tightest near a variance of rho times this: Howard et al. (2021), Eq. 26."""
    return float(2 * np.log(1 / alpha) + np.log(1 + 2 * np.log(1 / alpha)))


@kernel("void(f8[:], f8[:], f8[:], f8[:], f8, f8[:], f8[:], f8[:])", "(n),(n),(n),(s),(),(p)->(n),(s)")
def _bernstein_kernel(x, floor, precision, before, unit, settings, bound, after):  # type: ignore[no-untyped-def]
    """One observation after the other: predict its centre and variance, bet, pay, bound."""
    need, most, horizon, warm_up = settings
    time, P, weighted, spread, bets, gains, price = before
    for i in range(x.shape[0]):
        h = precision[i]
        if time == 0.0 and P == 0.0 and h > 0.0:  # one imagined observation: mid-range, the spread of a fair coin
            P, weighted, spread = h, h * (floor[i] + unit / 2), h * FIRST_SPREAD * unit * unit
        if h > 0.0:
            time += 1.0
            centre = min(weighted / P, most)
            c = max(centre - floor[i], NARROWEST * unit)  # x - centre >= -c
            variance = max(spread / time, EPS * unit * unit * h)  # of sqrt(h) x
            # Cutting x from above lowers its mean: the bound stays one, and a huge weight cannot cost the whole wealth.
            y = min(x[i] - centre, max(unit, np.sqrt(variance / h * time)))
            until = P / time * horizon if horizon > 0.0 else P * np.log1p(time)
            bet = min(h * np.sqrt(2 * need / (variance * until)), STEP_CAP / c)
            if time <= warm_up:
                bet = 0.0
            bets += bet
            gains += bet * (centre + y)
            price += (-np.log1p(-c * bet) - c * bet) / (c * c) * y * y
            P += h
            weighted += h * (centre + y)
            spread += h * y * y
        bound[i] = (gains - price - need) / bets if bets > 0.0 else -np.inf
    after[0], after[1], after[2], after[3] = time, P, weighted, spread
    after[4], after[5], after[6] = bets, gains, price


@kernel("void(f8[:], f8[:], f8, f8[:])", "(n),(g),()->(n)")
def _capital(x, candidates, alpha, lower):  # type: ignore[no-untyped-def]
    """The largest candidate that every bet so far has ruled out as too low. Capital falls with the candidate."""
    need = np.log(2 / alpha)
    G = candidates.shape[0]
    wealth = np.zeros(G)
    dead = -1  # candidates up to this one are ruled out for good
    total, spread = 0.5, 0.25
    for t in range(x.shape[0]):
        centre = total / (t + 1)
        variance = spread / (t + 1)
        bet = np.sqrt(2 * need / (max(variance, EPS) * (t + 1) * np.log(t + 2.0)))
        for g in range(dead + 1, G):
            m = candidates[g]
            b = bet
            if b * m > 0.5:
                b = 0.5 / m
            wealth[g] += np.log(1 + b * (x[t] - m))
        while dead + 1 < G and wealth[dead + 1] >= need:
            dead += 1
        lower[t] = candidates[dead] if dead >= 0 else 0.0
        total += x[t]
        spread += (x[t] - centre) ** 2
