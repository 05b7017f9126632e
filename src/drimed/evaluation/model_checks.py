"""Checks of the noise and of a constant theta, of the paper's regression.

`residual_check`: standardised one-step-ahead residuals should have variance one. Rows are those of a learner with
known noise: whitened.

`Monitor` watches the paper's stated limitation, one theta for the whole trial, by an e-process. Against every constant
theta it weighs one theta until an episode tau and another afterwards:

    E_l = sum_tau prior(tau) m(rows up to tau) m(rows after tau | rows up to tau) / sup_theta p_theta(rows up to l)

with m normal mixtures of the likelihood of whitened rows (closed forms in the sums V and b), the second one centred at
the estimate at tau. Divided by the supremum, it is below a test martingale under every constant theta: E ever reaches
1 / alpha with probability at most alpha (universal inference, Wasserman et al., 2020; Ville's inequality), for any
policy and any number of episodes. The supremum costs about d log(n) / 2 of log evidence. It assumes 1-sub-Gaussian
noise of the whitened rows, so noise that is larger than claimed raises alarms too: look at the residuals first.

Shapes: leading `...` is any batch; L episodes, K arms, M metrics (1 with reward feedback), n rows, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.special import logsumexp, ndtr

from drimed.errors import ConfigError, ShapeError
from drimed.numerics import arrays
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray

FEWEST = 20  # residuals of an arm and metric below which nothing is said about their variance

# The supremum is taken over |theta| <= norm_bound by a penalty of this size, times |theta|^2 / norm_bound^2 / 2: it
# costs half of it in evidence, and keeps the fit defined before there are d rows.
PENALTY = 0.01


@final
@dataclass(frozen=True, slots=True)
class ResidualCheck:
    """Variance of the residuals for each arm and metric; NaN where there are too few."""

    variance: FloatArray  # (K, M), realised over claimed: one if the noise is as claimed
    variance_p: FloatArray  # (K, M), two-sided p-value of that, allowing for heavy tails
    level: float

    @property
    def wrong_variance(self) -> BoolArray:
        """Cells whose noise is certainly not as claimed, at the level for all cells together: (K, M)."""
        cells = max(int(np.isfinite(self.variance_p).sum()), 1)
        return np.nan_to_num(self.variance_p, nan=1.0) < (1 - self.level) / cells


def residual_check(residuals: Any, arm: Any, K: int, *, level: float = 0.95) -> ResidualCheck:
    """Check standardised residuals (n, M) of decisions that played `arm` (n,).

    >>> rng = np.random.default_rng(1)
    >>> residual_check(2 * rng.standard_normal((500, 1)), np.zeros(500, int), 1).wrong_variance.tolist()
    [[True]]
    """
    arrays.share("level", level)
    e = arrays.finite("residuals", residuals)
    a: IntArray = np.asarray(arm, np.intp)
    if e.ndim != 2 or a.shape != e.shape[:1]:
        raise ShapeError(f"residuals must be (n, M) and arm (n,), got {e.shape} and {a.shape}")
    variance, p = np.full((2, K, e.shape[1]), np.nan)
    for k in range(K):
        mine = e[a == k]  # (n_k, M)
        if len(mine) < FEWEST:
            continue
        variance[k] = (mine**2).mean(0)
        off = mine - mine.mean(0)
        spread = np.maximum((off**2).mean(0), np.finfo(np.float64).tiny)
        excess = (off**4).mean(0) / spread**2 - 3
        # Var(e^2) is 2 + excess for unit variance: heavy tails alone should not look like a wrong scale.
        error = variance[k] * np.sqrt((2 + np.maximum(excess, 0.0)) / len(mine))
        p[k] = 2 * ndtr(-np.abs(variance[k] - 1) / error)
    return ResidualCheck(variance, p, level)


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


@final
@dataclass(frozen=True, kw_only=True)
class Monitor:
    """A test of a constant theta at all times.

    >>> Monitor(alpha=0.01).jumps
    (1.0, 0.3, 0.1)
    """

    alpha: float = 0.01  # the chance that a trial without drift ever raises the alarm
    norm_bound: float = 1.0  # S: bound on |theta|
    every: int = 5  # episodes between the candidate change-points
    jumps: tuple[float, ...] = (1.0, 0.3, 0.1)  # lengths of change to look for, in norm bounds; equally weighted

    def __post_init__(self) -> None:
        arrays.share("alpha", self.alpha)
        if not self.norm_bound > 0 or self.every < 1 or not self.jumps or not min(self.jumps) > 0:
            raise ConfigError("norm_bound, every and jumps must be positive")

    def watch(self, gram: FloatArray, moment: FloatArray) -> MeanDrift:
        """Evidence after each of L episodes, from sums over its whitened rows (z, w).

        `gram` (..., L, d, d) are those of z z^T, `moment` (..., L, d) of z w.
        """
        A, b = np.cumsum(gram, -3), np.cumsum(moment, -2)
        L, d = b.shape[-2:]
        S2 = self.norm_bound**2
        before, theta = _log_mixture(A, b, d / S2)  # (..., L) and (..., L, d)
        before = before - _half_logdet(A, d / S2)
        constant = _log_mixture(A, b, PENALTY / S2)[0] + PENALTY / 2  # at least the supremum, less a term that cancels
        evidence = np.full(before.shape, -np.inf)
        for j, tau in enumerate(range(self.every, L, self.every), start=1):
            first_rows = tau - 1  # sums up to and including episode tau - 1
            centre = theta[..., first_rows, None, :]
            more_A = A[..., tau:, :, :] - A[..., first_rows, None, :, :]
            new_b = b[..., tau:, :] - b[..., first_rows, None, :]
            more_b = new_b - np.matvec(more_A, centre)
            # The rows after tau are rows of theta - centre, up to terms that the supremum has too.
            shift = np.vecdot(centre, new_b) - 0.5 * np.vecdot(centre, np.matvec(more_A, centre))
            penalties = [d / (S2 * jump**2) for jump in self.jumps]
            after = [_log_mixture(more_A, more_b, p)[0] - _half_logdet(more_A, p) for p in penalties]
            gain = logsumexp(np.stack(after), 0) - np.log(len(self.jumps)) + shift
            here = before[..., first_rows, None] + gain - constant[..., tau:] - np.log(j * (j + 1))
            evidence[..., tau:] = np.logaddexp(evidence[..., tau:], here)
        return MeanDrift(evidence, self.alpha)


def _log_mixture(A: FloatArray, b: FloatArray, penalty: float) -> tuple[FloatArray, FloatArray]:
    """b^T (A + penalty I)^-1 b / 2, and the ridge estimate."""
    theta: FloatArray = np.linalg.solve(A + penalty * np.eye(A.shape[-1]), b[..., None])[..., 0].astype(np.float64)
    return 0.5 * np.vecdot(b, theta), theta


def _half_logdet(A: FloatArray, penalty: float) -> FloatArray:
    """log det(A / penalty + I) / 2."""
    return 0.5 * np.linalg.slogdet(A / penalty + np.eye(A.shape[-1]))[1]
