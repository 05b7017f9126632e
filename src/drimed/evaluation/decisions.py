"""What every estimator shares: the weights of one target on one log, computed once and only when asked for."""

from __future__ import annotations

from functools import cached_property
from typing import final

import numpy as np

from drimed.errors import InputError, ShapeError
from drimed.evaluation.log import SUM_TOLERANCE, Log, unknown_propensity
from drimed.linear.arrays import FloatArray, pick


@final
class Decisions:
    """A log seen with a target policy's eyes.

    >>> from drimed.evaluation.log import make_log
    >>> log = make_log(action=[0, 1], reward=[1.0, 0.0], propensity=[0.5, 0.25])
    >>> Decisions(log, np.array([0.5, 0.5])).weight.tolist()
    [1.0, 2.0]
    """

    def __init__(self, log: Log, target: FloatArray) -> None:
        if target.shape not in ((log.K,), (len(log), log.K)):
            raise ShapeError(f"target must have shape ({log.K},) or ({len(log)}, {log.K}), got {target.shape}")
        self.log, self.target = log, target

    @property
    def reward(self) -> FloatArray:
        """(n,)."""
        return self.log.reward

    @cached_property
    def chance(self) -> FloatArray:
        """How likely the target plays the arm that was played: (n,)."""
        if self.target.ndim == 1:
            return self.target.take(self.log.action)
        return np.asarray(pick(self.target, self.log.action))

    @cached_property
    def weight(self) -> FloatArray:
        """chance / propensity: (n,)."""
        unknown = unknown_propensity(self.log)
        if unknown:
            raise InputError(unknown)
        return self.chance / self.log.propensity

    @cached_property
    def predicted(self) -> FloatArray:
        """q of the arm that was played: (n,)."""
        return np.asarray(pick(self._q, self.log.action))

    @cached_property
    def residual(self) -> FloatArray:
        """reward - q of the arm that was played: (n,)."""
        return self.reward - self.predicted

    @cached_property
    def direct(self) -> FloatArray:
        """The target's mean reward according to the model: (n,)."""
        return self._q @ self.target if self.target.ndim == 1 else np.vecdot(self.target, self._q)

    @property
    def _q(self) -> FloatArray:
        if self.log.predictions is None:
            raise InputError(
                "this estimator needs predictions of the reward of every arm (columns q_ARM), and the log has none"
            )
        return self.log.predictions


def missing_support(log: Log, target: FloatArray) -> str | None:
    """Why weighting cannot answer for this target on this piece of a log, or None.

    Only what a piece can tell: an arm that the target plays where the log says that it had no chance.
    """
    if log.available is None and log.probabilities is None:
        return None
    played = np.broadcast_to(target, (len(log), log.K)) > SUM_TOLERANCE  # (n, K)
    if log.available is not None and (played & ~log.available).any():
        row, arm = np.argwhere(played & ~log.available)[0]
        return f"the target plays {log.arms[arm]!r} at decision {log.start + row}, where that arm was not available"
    if log.probabilities is not None:
        without = played & (log.probabilities <= 0)
        if without.any():
            row, arm = np.argwhere(without)[0]
            share = float(without.any(-1).mean())
            return (
                f"support is missing: the target plays {log.arms[arm]!r} at decision {log.start + row}, where the "
                f"log gave it no chance (in {share:.1%} of the decisions of this piece)"
            )
    return None
