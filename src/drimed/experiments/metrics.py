"""What a run is judged by, computed from its log block by block.

Four thresholds that a decision should not fall below, for user h with control mean mu_0:

    safe       mu_0 - rel |mu_0| - abs      the promise, right for either sign of mu_0
    strict     mu_0 - rel |mu_0|            the same without the absolute part
    equation   (1 - rel) mu_0               the paper's Eq. (2); above mu_0 itself when mu_0 < 0
    published  (1 - rel) mean_h mu_0        the one number that the authors' code compares every user with,
                                            from the Dirichlet means instead of the drawn preferences (I-3, I-4)

and three ways to count: `realised` (the mean of the arm played), `expected` (the mean under the policy's
probabilities), `estimated` (by the policy's own theta_hat; for `published` against the true threshold, as coded).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from drimed.environments.instance import Instance
from drimed.environments.world import Block, World
from drimed.guards.margin import Tolerance
from drimed.linear.arrays import BoolArray, FloatArray, IntArray, pick

THRESHOLDS = ("safe", "strict", "equation", "published")
COUNTS = ("realised", "expected", "estimated")


@dataclass(slots=True)
class BlockLog:
    """What a policy did in a block; filled while it runs."""

    action: IntArray  # (n, H, S)
    probabilities: FloatArray  # (n, H, S, K)
    theta: FloatArray  # (n, H, S, d), before the outcome
    exact: bool = True  # whether the probabilities are propensities


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Turns logs into metrics; built once per run."""

    world: World
    tolerance: Tolerance

    @cached_property
    def published_best(self) -> IntArray:
        """The arm that the authors' code takes for the best: (H, S)."""
        return np.array([i.means(i.preference_means).argmax(-1) for i in self._each]).T

    @cached_property
    def published_threshold(self) -> FloatArray:
        """(S,)."""
        return np.array(
            [
                (1 - self.tolerance.relative) * (control * i.means(i.preference_means)).sum(-1).mean()
                for i, control in zip(self._each, self._controls, strict=True)
            ]
        )

    def episode_sums(self, block: Block, log: BlockLog) -> dict[str, FloatArray]:
        """Each metric summed over the users of an episode: name -> (S, n)."""
        means, action = block.means, log.action
        # Fixed preferences give every episode of a block the same means: compute those once.
        one = slice(0, 1) if self.world.setting.constant else slice(None)
        mu0 = np.vecdot(means[one], self.world.control)
        got = _at(means, action)  # (n, H, S)
        expected = np.vecdot(means, log.probabilities) if log.exact else np.full_like(got, np.nan)
        estimate = np.vecdot(pick(block.features, action), log.theta)
        mu0_hat = np.vecdot(np.vecmat(self.world.control, block.features[one]), log.theta)
        thresholds = {
            "safe": mu0 - self.tolerance.allowed(mu0),
            "strict": mu0 - self.tolerance.relative * np.abs(mu0),
            "equation": (1 - self.tolerance.relative) * mu0,
            "published": self.published_threshold,
        }
        believed = {
            "safe": mu0_hat - self.tolerance.allowed(mu0_hat),
            "strict": mu0_hat - self.tolerance.relative * np.abs(mu0_hat),
            "equation": (1 - self.tolerance.relative) * mu0_hat,
            "published": thresholds["published"],
        }
        sums = {
            "regret": means[one].max(-1) - got,
            "regret_as_published": np.maximum(_at(means[one], self.published_best[None]) - got, 0.0),
            "shortfall": np.maximum(thresholds["safe"] - got, 0.0),
        }
        for name in THRESHOLDS:
            sums[f"violations.{name}.realised"] = _count(got < thresholds[name])
            sums[f"violations.{name}.expected"] = (
                _count(expected < thresholds[name]) if log.exact else np.full_like(got, np.nan)
            )
            sums[f"violations.{name}.estimated"] = _count(estimate < believed[name])
        result = {name: _over_users(values) for name, values in sums.items()}
        error = log.theta[:, -1] - block.theta  # (n, S, d)
        result["parameter_error"] = np.ascontiguousarray(np.linalg.norm(error, axis=-1).T)
        return result

    def pulls(self, log: BlockLog) -> FloatArray:
        """How often each user got each arm in the block: (S, H, K)."""
        K = self.world.shape.K
        played = log.action[..., None] == np.arange(K)  # (n, H, S, K)
        return np.swapaxes(played.sum(0), 0, 1).astype(np.float64)

    @property
    def _each(self) -> list[Instance]:
        instances = list(self.world.instances)
        return instances * self.world.batch if len(instances) == 1 else instances

    @property
    def _controls(self) -> list[FloatArray]:
        controls = list(self.world.controls)
        return controls * self.world.batch if len(controls) == 1 else controls


def _at(values: FloatArray, action: IntArray) -> FloatArray:
    return pick(values, np.broadcast_to(action, values.shape[:-1]))


def _over_users(values: FloatArray) -> FloatArray:
    """(n, H, S) -> (S, n), one user after the other: NumPy's own order of summing depends on S."""
    total = values[:, 0]
    for h in range(1, values.shape[1]):
        total = total + values[:, h]
    return np.ascontiguousarray(total.T)


def _count(fails: BoolArray) -> FloatArray:
    return fails.astype(np.float64)
