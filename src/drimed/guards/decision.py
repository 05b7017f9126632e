"""What leaves a guard, and what a decision is: an arm, and exactly how likely each arm was."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drimed.linear.arrays import FloatArray, IntArray, pick

# Why a decision is not the rule's own wish. A guard's `reason` is an index into this list.
REASONS = (
    "the rule's own choice",
    "arms that may fall short of the control were penalised",
    "the rule's choice was mixed with certified arms until the mixture was certified",
    "the rule was asked again on the certified arms only",
    "only the control is certified",
    "the rule's choice is not covered by what past choices certainly earned; the control was played",
    "the control is played in the first rounds, to learn about it",
)
UNCHANGED, PENALISED, MIXED, RESTRICTED, CONTROL_ONLY, NOT_EARNED, CONTROL_FIRST = range(len(REASONS))


@dataclass(frozen=True, slots=True)
class Guarded:
    """A distribution that the guard lets through, and why it differs from the rule's."""

    probabilities: FloatArray  # (..., K)
    reason: IntArray  # (...), index into REASONS
    share: FloatArray | None = None  # (...), how much of the rule's own wish is left in it
    certified: IntArray | None = None  # (...), how many arms are certified


@dataclass(frozen=True, slots=True)
class Decision:
    """The arm that was drawn, from which probabilities, and why.

    Where the rule drew its own randomness (`exact` is False) the probabilities show one draw of it, and the
    propensity is unknown: NaN, never 1 or 1/K.
    """

    action: IntArray  # (...)
    probabilities: FloatArray  # (..., K)
    reason: IntArray  # (...), index into REASONS
    exact: bool = True
    share: FloatArray | None = None  # (...), how much of the rule's own wish the guard left in it
    certified: IntArray | None = None  # (...), how many arms the guard certified

    @property
    def reason_words(self) -> NDArray[np.str_]:
        """The reason in words: one text, or an array of them (...).

        >>> print(Decision(np.array(0), np.array([0.0, 1.0]), np.array(CONTROL_ONLY)).reason_words)
        only the control is certified
        """
        return np.asarray(REASONS)[self.reason]

    @property
    def propensity(self) -> FloatArray:
        """The probability that this arm had: (...)."""
        p = pick(self.probabilities, self.action)
        return np.asarray(p) if self.exact else np.full(p.shape, np.nan)
