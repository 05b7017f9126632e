"""Guards and what leaves them: a draw is an arm, the exact probability of each arm, and the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from drimed.learning.offer import Fit, Offer, Seen, Shape
from drimed.linear.arrays import BoolArray, FloatArray, IntArray, pick

# What the guard did to the policy's proposal, as logs and people read it. A `reason_code` is an index into this list.
REASONS = (
    "as the policy proposed; the guard changed nothing",
    "the guard made arms less likely that may fall short of the control",
    "the guard kept a part of the policy's proposal; the rest went to arms that are sure to stay near the control",
    "the guard let the policy choose only among arms that are sure to stay near the control",
    "the guard gave the control; no other arm is sure yet to stay near it",
    "the guard gave the control; past decisions have not surely earned enough for the policy's proposal",
    "the control, as always in the first rounds, to learn about it",
)
UNCHANGED, PENALISED, MIXED, RESTRICTED, CONTROL_ONLY, NOT_EARNED, CONTROL_FIRST = range(len(REASONS))
TRACE = 0.005  # a smaller share of a proposal is described as none
NOTHING_KEPT = (
    "the guard kept next to nothing of the policy's proposal; its chance went to arms that are sure to stay near the "
    "control"
)


def reason_text(reason: str, share: float | None) -> str:
    """A recorded reason as people read it; a share that is next to nothing is described as none.

    >>> reason_text(REASONS[MIXED], 1e-9) == NOTHING_KEPT, reason_text(REASONS[MIXED], 0.3) == REASONS[MIXED]
    (True, True)
    """
    return NOTHING_KEPT if reason == REASONS[MIXED] and share is not None and share < TRACE else reason


@dataclass(frozen=True, slots=True)
class Guarded:
    """A distribution that the guard lets through, and why it differs from the rule's."""

    probabilities: FloatArray  # (..., K)
    reason: IntArray  # (...), index into REASONS
    share: FloatArray | None = None  # (...), how much of the rule's own wish is left in it
    certified: IntArray | None = None  # (...), how many arms are certified


@dataclass(frozen=True, slots=True)
class Draw:
    """The arm that was drawn for each user, from which probabilities, and why.

    Where the rule drew its own randomness (`exact` is False) the probabilities show one draw of it, and the
    propensity is unknown: NaN, never 1 or 1/K.
    """

    action: IntArray  # (...)
    probabilities: FloatArray  # (..., K)
    reason_code: IntArray  # (...), index into REASONS
    exact: bool = True
    share: FloatArray | None = None  # (...), how much of the rule's own wish the guard left in it
    certified: IntArray | None = None  # (...), how many arms the guard certified
    seen: Seen | None = None  # the fit and the offer that it was decided on

    @property
    def reason(self) -> str | NDArray[np.str_]:
        """Why, in words: a text for one decision, an array of them (...) for many.

        >>> Draw(np.array(0), np.array([0.0, 1.0]), np.array(CONTROL_ONLY)).reason
        'the guard gave the control; no other arm is sure yet to stay near it'
        """
        words = np.asarray(REASONS)[self.reason_code]
        return words if np.ndim(words) else str(words)

    @property
    def propensity(self) -> FloatArray:
        """The probability that this arm had: (...)."""
        p = pick(self.probabilities, self.action)
        return np.asarray(p) if self.exact else np.full(p.shape, np.nan)


# What is certified against the control: each arm that is played; the expected reward of each decision; the sum of
# expected rewards so far; nothing, but shortfalls are discouraged; nothing at all.
Protects = Literal["every arm", "expected reward", "sum", "discourages", "nothing"]

# Asks the rule: allowed arms and penalty in, probabilities out.
AskRule = Callable[[BoolArray | None, FloatArray | None], FloatArray]


class Guard(Protocol):
    """It asks the rule and may change the answer. A guard without a memory of its own has the state None."""

    protects: ClassVar[Protects]
    promise: ClassVar[str]  # the same in a sentence

    def apply(self, state: Any, fit: Fit, offer: Offer, ask: AskRule) -> Guarded: ...


@runtime_checkable
class RemembersDecisions(Protocol):
    """A guard with a memory, moved when a decision is given out, never when its outcome comes.

    `offer.user` says whose memory is meant.
    """

    def init(self, shape: Shape, batch: tuple[int, ...]) -> Any: ...

    def commit(self, state: Any, fit: Fit, offer: Offer, draw: Draw) -> Any: ...


@final
@dataclass(frozen=True, kw_only=True)
class Off:
    """No guard: the rule's distribution goes through as it is.

    >>> Off().promise
    'nothing'
    """

    protects: ClassVar[Protects] = "nothing"
    promise: ClassVar[str] = "nothing"

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state, fit
        p = ask(offer.available, None)
        return Guarded(p, np.full(p.shape[:-1], UNCHANGED))
