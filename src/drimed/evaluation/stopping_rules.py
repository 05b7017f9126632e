"""Stopping rules: claims about an effect, judged by its range.

An effect is an arm against the control, in the unit of what is measured. With m a margin, higher being better:

    superiority      low > m              it is better, by more than m
    non_inferiority  low > -m             it is not worse by m
    equivalence      -m < low, high < m   it differs by less than m
    futility         high < m             it cannot be better by m
    harm             high < -m            it is worse, by more than m

Each arm and each group is a claim of its own, so that alpha is divided among them all. Futility and equivalence claim
something of all arms at once, which is false only if it is of one arm whose range shows it: alpha is divided among
groups only. Where the number of looks is planned, ranges hold at these only: an estimate and so many deviations, by a
bound that stays as it is (Pocock, 1977) or falls as information grows (O'Brien and Fleming, 1979; Wang and Tsiatis,
1987); its height comes from a rehearsal or from `sequential_bound` (docs/stopping.md). Shapes: any batch; T looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, final, get_args

import numpy as np
from scipy.special import ndtr

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.numerics import arrays
from drimed.numerics.arrays import FloatArray

Kind = Literal["superiority", "non_inferiority", "equivalence", "futility", "harm"]
Better = Literal["higher", "lower"]
Shape = Literal["pocock", "wang-tsiatis", "obrien-fleming"]

KINDS: tuple[Kind, ...] = get_args(Kind)
OF_ALL_ARMS: tuple[Kind, ...] = ("equivalence", "futility")  # claims that every arm in view must bear out
POWERS: dict[Shape, float] = {"pocock": 0.0, "wang-tsiatis": 0.25, "obrien-fleming": 0.5}  # of the information
NODES, WEIGHTS = np.polynomial.legendre.leggauss(160)  # of the integral over each look
FAR = 10.0  # deviations beyond which there is no probability left
NEED_MARGIN: tuple[Kind, ...] = ("non_inferiority", "equivalence", "futility")  # without one they claim too much


@final
@dataclass(frozen=True, kw_only=True)
class Rule:
    """One question about the effect of an arm."""

    kind: Kind
    margin: float = 0.0
    better: Better = "higher"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"a stopping rule is one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.better not in get_args(Better):
            raise ConfigError(f"better must be 'higher' or 'lower', got {self.better!r}")
        if not 0 <= self.margin < np.inf:
            raise ConfigError(f"a margin must be finite and not negative, got {self.margin}")
        if self.kind in NEED_MARGIN and not self.margin > 0:
            raise ConfigError(f"{self.kind} needs a margin above zero: the smallest effect that matters")

    def distance(self, low: Any, high: Any) -> FloatArray:
        """Distance of ranges from `low` to `high` to meeting the rule, in the effect's unit; negative: met."""
        low, high = np.broadcast_arrays(np.asarray(low, np.float64), np.asarray(high, np.float64))
        if not (low <= high).all():
            raise InputError("a range goes from low to high, and neither end may be NaN")
        if self.better == "lower":
            low, high = -high, -low
        m = self.margin
        short = {
            "superiority": m - low,
            "non_inferiority": -m - low,
            "equivalence": np.maximum(-m - low, high - m),
            "futility": high - m,
            "harm": high + m,
        }
        return np.asarray(short[self.kind])

    def distance_all(self, low: Any, high: Any) -> FloatArray:
        """The same of ranges (..., n) that must all bear the claim out, as those of all arms: (...)."""
        distances = self.distance(low, high)
        if not distances.ndim or not distances.shape[-1]:
            raise ShapeError(f"a claim about all arms needs the range of at least one, got shape {distances.shape}")
        return np.asarray(distances.max(-1))


def share_of(alpha: float, *, arms: int, groups: int = 1, together: bool = False) -> float:
    """The alpha of each range, so that a rule over so many arms and groups claims falsely at most in alpha.

    `together`: the claim is one of all arms.
    """
    arrays.share("alpha", alpha)
    if arms < 1 or groups < 1:
        raise ConfigError(f"a rule has at least one arm and one group in view, got {arms} and {groups}")
    return alpha / (groups * (1 if together else arms))


def bound_shape(shape: Shape, information: Any) -> FloatArray:
    """The bound at looks with these shares of all information, relative to that at the last."""
    return np.asarray(information, np.float64) ** -POWERS[shape]


@cache
def sequential_bound(alpha: float, information: tuple[float, ...], shape: Shape) -> float:
    """Deviations at the last look so that no look goes above the bound but for alpha, where there is no effect.

    For a Brownian motion that is observed at these shares of all information, by integration from look to look
    (Armitage, McPherson and Rowe, 1969). It assumes that allocation does not follow the outcomes.

    >>> [round(sequential_bound(0.025, (0.2, 0.4, 0.6, 0.8, 1.0), s), 2) for s in ("pocock", "obrien-fleming")]
    [2.41, 2.04]
    """
    from scipy.optimize import brentq  # here, because it takes a quarter of a second that most commands do not need

    arrays.share("alpha", alpha)
    t = np.array(information)
    if not (t.size and t[0] > 0 and (np.diff(t) > 0).all()):
        raise ConfigError(f"information must grow from look to look, got {information}")
    steps, relative = np.sqrt(np.diff(t, prepend=0.0)), bound_shape(shape, t) * np.sqrt(t)

    def excess(bound: float) -> float:
        crossed, x, mass = 0.0, np.zeros(1), np.ones(1)  # nodes of the path, and the probability to be there
        for step, top in zip(steps, bound * relative, strict=True):
            bottom = -FAR * max(1.0, top)
            crossed += float(mass @ ndtr((x - top) / step))
            half = (top - bottom) / 2
            nodes = bottom + half * (1 + NODES)
            density = np.exp(-0.5 * ((nodes - x[:, None]) / step) ** 2) / (step * np.sqrt(2 * np.pi))
            x, mass = nodes, half * WEIGHTS * (mass @ density)
        return crossed - alpha

    return float(brentq(excess, 1e-3, FAR))
