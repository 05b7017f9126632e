"""What a run is judged by where everybody decides at once: regret, shares of the control, and broken promises.

    safe     mu_0 - rel |mu_0| - abs     the promise
    strict   mu_0 - rel |mu_0|           the same without the absolute part

`stage_regret` is the mean regret of the users of an episode: summed over episodes it is what Huch et al. (2024) report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from drimed.environments.stage import AnyWorld, Stage
from drimed.experiments.metrics import BlockLog, over_users
from drimed.guards.margin import Tolerance
from drimed.linear.arrays import BoolArray, FloatArray, pick


@final
@dataclass(frozen=True)
class StageJudge:
    """Turns logs into metrics; built once per run."""

    world: AnyWorld
    tolerance: Tolerance

    def episode_sums(self, stage: Stage, log: BlockLog) -> dict[str, FloatArray]:
        """Each metric summed over the decisions of an episode: name -> (S, 1)."""
        means = np.swapaxes(stage.means, 0, 1)[None]  # (1, n, S, K)
        control = np.swapaxes(stage.offered.control, 0, 1)[None]
        mu0 = np.vecdot(means, control)
        got = pick(means, log.action)
        expected = np.vecdot(means, log.probabilities) if log.exact else np.full_like(got, np.nan)
        below = {"safe": mu0 - self.tolerance.allowed(mu0), "strict": mu0 - self.tolerance.relative * np.abs(mu0)}
        regret = means.max(-1) - got
        sums: dict[str, FloatArray | BoolArray] = {
            "regret": regret,
            "stage_regret": regret / stage.users,
            "shortfall": np.maximum(below["safe"] - got, 0.0),
            "control": pick(control, log.action),
        }
        for name, threshold in below.items():
            sums[f"violations.{name}.realised"] = got < threshold
            sums[f"violations.{name}.expected"] = expected < threshold if log.exact else expected
        return {name: over_users(values) for name, values in sums.items()}

    def pulls(self, stage: Stage, log: BlockLog) -> FloatArray:
        """How often each user got each arm: (S, H, K)."""
        shape = self.world.shape
        played = log.action[0].T[..., None] == np.arange(shape.K)  # (S, n, K)
        found = np.zeros((len(played), shape.H, shape.K))
        users = np.broadcast_to(stage.offered.user, stage.means.shape[1])
        for i, h in enumerate(users):
            found[:, h] += played[:, i]
        return found
