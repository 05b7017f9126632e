"""Two readings of the paper: what it prints, and what its authors ran.

`printed` mends only what cannot run as printed: I-16 (the saturation step sums to more than 1), I-17 (a sum over
users compared with a mean's width), I-20 (gamma^(L-l) wipes the memory), I-21 (an estimator of the current episode
only), I-22 (an indicator that uses an estimate which does not exist yet). Both readings share the mended design (I-18):
the medians are those of the authors' flawed one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.errors import UnknownNameError
from drimed.linear.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class Reading:
    """Where the two readings differ."""

    name: str
    subtract_log_lambda_again: bool  # I-6
    log_outside_root: bool  # I-12, Dri-IMED only
    index_variance: str  # I-12, Dri-IMED only
    step_uses_episode: bool  # I-14
    initial_dual: float  # I-15

    def radius(
        self, logdet: FloatArray, d: int, *, delta: float, regularisation: float, norm: float, indexed: bool
    ) -> FloatArray:
        """sqrt(beta); `indexed` for the step of Dri-IMED, which has its own formula.

        logdet is log det V - d log lambda.
        """
        confidence = 2 * np.log(1 / delta)
        if self.log_outside_root and indexed:
            # I-12: as printed, 2 log(1/alpha) stands outside the root.
            return np.sqrt(np.maximum(logdet, 0)) + confidence + np.sqrt(regularisation) * norm
        if self.subtract_log_lambda_again:
            # I-6: the tracked log-determinant starts at 0 already; d log lambda is taken off a second time.
            logdet = logdet - d * np.log(regularisation)
        # I-6: V holds lambda gamma^(l-1) I and is compared with lambda I, so this can be negative; clipped, as coded.
        return np.sqrt(np.maximum(logdet + confidence, 0)) + np.sqrt(regularisation) * norm


READINGS = {
    "printed": Reading(
        "printed",
        subtract_log_lambda_again=False,
        log_outside_root=True,
        index_variance="smallest",
        step_uses_episode=True,
        initial_dual=1.0,
    ),
    "code": Reading(
        "code",
        subtract_log_lambda_again=True,
        log_outside_root=False,
        index_variance="unit",
        step_uses_episode=False,
        initial_dual=0.0,
    ),
}


def reading(name: str) -> Reading:
    """The reading of that name."""
    if name not in READINGS:
        raise UnknownNameError("reading", name, READINGS)
    return READINGS[name]
