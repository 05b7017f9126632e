"""Stopping rules: claims about an effect, judged by its range.

An effect is an arm against the control, in the unit of what is measured. Where ranges hold at all times at once, a rule
may be asked after every decision: it claims something false at most as often as its ranges ever miss. With m a margin,
on a scale where higher is better:

    superiority      low > m              it is better, by more than m
    non_inferiority  low > -m             it is not worse by m
    equivalence      -m < low, high < m   it differs by less than m
    futility         high < m             it cannot be better by m
    harm             high < -m            it is worse, by more than m

An end that is exactly at its margin shows nothing yet.

A rule may cover several arms and several groups. For superiority, non-inferiority and harm each arm is a claim of its
own, and so is each group: any of them may be the false one, so alpha is divided among them all. Futility and
equivalence claim something of all arms at once. Such a claim is false only if it is false of one arm whose range shows
it, and one range misses with probability alpha at most: alpha is divided among groups only. One end of a range misses
about half as often as both, so most claims are false more rarely than alpha. Shapes: any batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import numpy as np

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.numerics import arrays
from drimed.numerics.arrays import FloatArray

Kind = Literal["superiority", "non_inferiority", "equivalence", "futility", "harm"]
Better = Literal["higher", "lower"]

KINDS: tuple[Kind, ...] = get_args(Kind)
OF_ALL_ARMS: tuple[Kind, ...] = ("equivalence", "futility")  # claims that every arm in view must bear out
NEED_MARGIN: tuple[Kind, ...] = ("non_inferiority", "equivalence", "futility")  # without one they claim too much


@final
@dataclass(frozen=True, kw_only=True)
class Rule:
    """One question about the effect of an arm.

    >>> Rule(kind="superiority", margin=0.5).distance([0.4, 0.7], [1.0, 1.0]).round(3).tolist()
    [0.1, -0.2]
    """

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
        """Distance of ranges from `low` to `high` to meeting the rule, in the effect's unit; negative: met.

        Ends may be infinite.
        """
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
        """The same of ranges (..., n) that must all bear the claim out, as those of all arms: (...).

        >>> Rule(kind="futility", margin=1.0).distance_all([-1.0, 0.0], [0.5, 0.75]).item()
        -0.25
        """
        distances = self.distance(low, high)
        if not distances.ndim or not distances.shape[-1]:
            raise ShapeError(f"a claim about all arms needs the range of at least one, got shape {distances.shape}")
        return np.asarray(distances.max(-1))


def share_of(alpha: float, kind: Kind, *, arms: int, groups: int = 1) -> float:
    """The alpha of each range, so that a rule over so many arms and groups claims falsely at most in alpha.

    >>> [round(share_of(0.06, kind, arms=3, groups=2), 3) for kind in ("superiority", "futility")]
    [0.01, 0.03]
    """
    arrays.share("alpha", alpha)
    if arms < 1 or groups < 1:
        raise ConfigError(f"a rule has at least one arm and one group in view, got {arms} and {groups}")
    return alpha / (groups * (1 if kind in OF_ALL_ARMS else arms))
