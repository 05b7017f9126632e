"""A test whether the theta of the paper's regression moves over time.

`mean_drift` tests the paper's stated limitation, one theta for the whole trial, by an e-process. Against every
constant theta it weighs one theta until an episode tau and another afterwards:

    E_l = sum_tau prior(tau) m(rows up to tau) m(rows after tau | rows up to tau) / sup_theta p_theta(rows up to l)

with m normal mixtures of the likelihood of whitened rows (closed forms in the sums V and b), the second one centred at
the estimate at tau. Divided by the supremum, it is below a test martingale under every constant theta: E ever reaches
1 / alpha with probability at most alpha (universal inference, Wasserman et al., 2020; Ville's inequality), for any
policy and any number of episodes. The supremum costs about d log(n) / 2 of log evidence. It assumes 1-sub-Gaussian
noise of the whitened rows, so noise that is larger than claimed raises alarms too: look at the residuals first.

Shapes: leading `...` is any batch; L episodes, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import logsumexp

from drimed.numerics.arrays import FloatArray, IntArray

# The supremum is taken over |theta| <= norm_bound by a penalty of this size, times |theta|^2 / norm_bound^2 / 2: it
# costs half of it in evidence, and keeps the fit defined before there are d rows.
PENALTY = 0.01


@final
@dataclass(frozen=True, slots=True)
class MeanDrift:
    """Evidence against a constant theta after each episode."""

    evidence: FloatArray  # (..., L), log E
    alpha: float

    @property
    def alarm(self) -> IntArray:
        """First episode, from 0, at the end of which the alarm is raised; -1: none."""
        crossed = self.evidence >= np.log(1 / self.alpha)
        return np.where(crossed.any(-1), crossed.argmax(-1), -1)


def mean_drift(
    gram: FloatArray, moment: FloatArray, *, alpha: float, norm_bound: float = 1.0, every: int = 5,
    jumps: tuple[float, ...] = (1.0, 0.3, 0.1),
) -> MeanDrift:  # fmt: skip
    """Test a constant theta at all times: evidence after each of L episodes, from sums over its whitened rows (z, w).

    `gram` (..., L, d, d) are those of z z^T, `moment` (..., L, d) of z w. |theta| is at most `norm_bound`. Candidate
    change-points are `every` so many episodes; `jumps` are lengths of change to look for, in norm bounds, with equal
    weights. A trial without drift ever raises the alarm with probability `alpha` at most.
    """
    A, b = np.cumsum(gram, -3), np.cumsum(moment, -2)
    L, d = b.shape[-2:]
    S2 = norm_bound**2
    before, theta = _log_mixture(A, b, d / S2)  # (..., L) and (..., L, d)
    before = before - _half_logdet(A, d / S2)
    constant = _log_mixture(A, b, PENALTY / S2)[0] + PENALTY / 2  # at least the supremum, less a term that cancels
    evidence = np.full(before.shape, -np.inf)
    for j, tau in enumerate(range(every, L, every), start=1):
        first_rows = tau - 1  # sums up to and including episode tau - 1
        centre = theta[..., first_rows, None, :]
        more_A = A[..., tau:, :, :] - A[..., first_rows, None, :, :]
        new_b = b[..., tau:, :] - b[..., first_rows, None, :]
        more_b = new_b - np.matvec(more_A, centre)
        # The rows after tau are rows of theta - centre, up to terms that the supremum has too.
        shift = np.vecdot(centre, new_b) - 0.5 * np.vecdot(centre, np.matvec(more_A, centre))
        penalties = [d / (S2 * jump**2) for jump in jumps]
        after = [_log_mixture(more_A, more_b, p)[0] - _half_logdet(more_A, p) for p in penalties]
        gain = logsumexp(np.stack(after), 0) - np.log(len(jumps)) + shift
        here = before[..., first_rows, None] + gain - constant[..., tau:] - np.log(j * (j + 1))
        evidence[..., tau:] = np.logaddexp(evidence[..., tau:], here)
    return MeanDrift(evidence, alpha)


def _log_mixture(A: FloatArray, b: FloatArray, penalty: float) -> tuple[FloatArray, FloatArray]:
    """b^T (A + penalty I)^-1 b / 2, and the ridge estimate."""
    theta: FloatArray = np.linalg.solve(A + penalty * np.eye(A.shape[-1]), b[..., None])[..., 0].astype(np.float64)
    return 0.5 * np.vecdot(b, theta), theta


def _half_logdet(A: FloatArray, penalty: float) -> FloatArray:
    """log det(A / penalty + I) / 2."""
    return 0.5 * np.linalg.slogdet(A / penalty + np.eye(A.shape[-1]))[1]
