"""What a rule and a guard may know: the estimate, how sure it is, and how many pulls it rests on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.linear.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class Fit:
    """A read-only view of a learner's state at one decision.

    Features x are (..., K, d) on the scale of V's own rows: reward-scale x, with V weighted or not.
    """

    theta: FloatArray  # (..., d), theta_hat
    V_inv: FloatArray  # (..., d, d)
    radius: FloatArray  # (...), sqrt(beta)
    spread: FloatArray | None  # (..., d, d), V^-1 V2 V^-1 while discounting; None: V^-1 itself
    pulls: FloatArray  # (..., K), how often each arm was chosen so far
    round: int  # 1 for the first decision
    noise_bound: float  # R, in the units of V's rows

    def mean(self, x: FloatArray) -> FloatArray:
        """<x_a, theta_hat>: (..., K, d) -> (..., K)."""
        return np.matvec(x, self.theta)

    def leverage(self, x: FloatArray) -> FloatArray:
        """x_a^T V^-1 x_a: (..., K, d) -> (..., K)."""
        return np.maximum(np.vecdot(np.matmul(x, self.V_inv), x), 0.0)

    def width(self, x: FloatArray) -> FloatArray:
        """How far <x_a, theta> may be from its estimate, at the learner's confidence: (..., K, d) -> (..., K)."""
        return self.radius[..., None] * np.sqrt(np.maximum(np.vecdot(np.matmul(x, self.metric), x), 0.0))

    @property
    def metric(self) -> FloatArray:
        """The matrix whose norm, times the radius, is the width: (..., d, d)."""
        return self.V_inv if self.spread is None else self.spread
