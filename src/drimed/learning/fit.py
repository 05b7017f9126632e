"""What a rule and a guard may know: the estimate, how sure it is, and how many pulls it rests on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.linear import forms
from drimed.linear.arrays import BoolArray, FloatArray, IntArray


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
    inflation: FloatArray | float = 1.0  # (...), by which squared radii grow while the noise itself is uncertain

    def mean(self, x: FloatArray) -> FloatArray:
        """<x_a, theta_hat>: (..., K, d) -> (..., K)."""
        return np.matvec(x, self.theta)

    def leverage(self, x: FloatArray) -> FloatArray:
        """x_a^T V^-1 x_a: (..., K, d) -> (..., K)."""
        return forms.leverages(x, self.V_inv)

    def width(self, x: FloatArray) -> FloatArray:
        """How far <x_a, theta> may be from its estimate, at the learner's confidence: (..., K, d) -> (..., K)."""
        return self.radius[..., None] * np.sqrt(forms.leverages(x, self.metric))

    def behind_leader(self, x: FloatArray, mask: BoolArray | None) -> tuple[IntArray, FloatArray, FloatArray]:
        """The empirical best allowed arm, each arm's gap to it, and |x_best - x_a|^2 in V^-1."""
        return forms.behind_leader(x, self.theta, self.V_inv, mask)

    @property
    def metric(self) -> FloatArray:
        """The matrix whose norm, times the radius, is the width: (..., d, d)."""
        return self.V_inv if self.spread is None else self.spread
