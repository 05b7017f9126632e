"""What a run is judged by, computed from its log block by block.

Four thresholds that a decision should not fall below, for user h with control mean mu_0:

    safe       mu_0 - rel |mu_0| - abs      the promise, right for either sign of mu_0
    strict     mu_0 - rel |mu_0|            the same without the absolute part
    equation   (1 - rel) mu_0               the paper's Eq. (2); above mu_0 itself when mu_0 < 0
    published  (1 - rel) mean_h mu_0        the one number that the authors' code compares every user with,
                                            from the Dirichlet means instead of the drawn preferences (I-3, I-4)

and three ways to count: `realised` (the mean of the arm played), `expected` (the mean under the policy's
probabilities), `estimated` (by the policy's own theta_hat; for `published` against the true threshold, as coded).
What needs a theta_hat on the offers' features is unknown for policies that learn something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from drimed.environments.world import Block, World
from drimed.guards.margin import Tolerance
from drimed.linear.arrays import BoolArray, FloatArray, IntArray, pick

THRESHOLDS = ("safe", "strict", "equation", "published")


@dataclass(slots=True)
class BlockLog:
    """What a policy did in a block; filled while it runs."""

    action: IntArray  # (n, H, S)
    probabilities: FloatArray  # (n, H, S, K)
    theta: FloatArray | None  # (n, H, S, d), before the outcome; None: not on the offers' features
    exact: bool = True  # whether the probabilities are propensities


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Turns logs into metrics; built once per run."""

    world: World
    tolerance: Tolerance

    @cached_property
    def published_best(self) -> IntArray:
        """The arm that the authors' code takes for the best: (H, S)."""
        return self._per_seed([means.argmax(-1) for means in self._published_means]).T

    @cached_property
    def published_threshold(self) -> FloatArray:
        """(S,)."""
        pairs = zip(self.world.controls, self._published_means, strict=True)
        return self._per_seed([(1 - self.tolerance.relative) * (c * means).sum(-1).mean() for c, means in pairs])

    @cached_property
    def _published_means(self) -> list[FloatArray]:
        """Of the arms under each user's mean preference, for each instance: (H, K)."""
        return [i.means(i.preference_means) for i in self.world.instances]

    def episode_sums(self, block: Block, log: BlockLog) -> dict[str, FloatArray]:
        """Each metric summed over the users of an episode: name -> (S, n)."""
        means, action = block.means, log.action
        # Fixed preferences give every episode of a block the same means: compute those once.
        one = slice(0, 1) if self.world.setting.constant else slice(None)
        mu0 = np.vecdot(means[one], self.world.control)
        got = _at(means, action)  # (n, H, S)
        expected = np.vecdot(means, log.probabilities) if log.exact else np.full_like(got, np.nan)
        thresholds = self._thresholds(mu0)
        sums: dict[str, FloatArray | BoolArray] = {
            "regret": means[one].max(-1) - got,
            "regret_as_published": np.maximum(_at(means[one], self.published_best[None]) - got, 0.0),
            "shortfall": np.maximum(thresholds["safe"] - got, 0.0),
        }
        for name, threshold in thresholds.items():
            sums[f"violations.{name}.realised"] = got < threshold
            sums[f"violations.{name}.expected"] = expected < threshold if log.exact else expected
        sums |= self._estimated(block, log, one)
        result = {name: over_users(values) for name, values in sums.items()}
        error = np.full(block.theta.shape, np.nan) if log.theta is None else log.theta[:, -1] - block.theta  # (n, S, d)
        result["parameter_error"] = np.ascontiguousarray(np.linalg.norm(error, axis=-1).T)
        return result

    def _estimated(self, block: Block, log: BlockLog, one: slice) -> dict[str, FloatArray | BoolArray]:
        """Violations as the policy itself estimates them: (n, H, S)."""
        if log.theta is None:
            return {f"violations.{name}.estimated": np.full(log.action.shape, np.nan) for name in THRESHOLDS}
        estimate = np.vecdot(pick(block.features, log.action), log.theta)
        mu0_hat = np.vecdot(np.vecmat(self.world.control, block.features[one]), log.theta)
        believed = self._thresholds(mu0_hat)
        return {f"violations.{name}.estimated": estimate < believed[name] for name in THRESHOLDS}

    def _thresholds(self, mu0: FloatArray) -> dict[str, FloatArray]:
        return {
            "safe": mu0 - self.tolerance.allowed(mu0),
            "strict": mu0 - self.tolerance.relative * np.abs(mu0),
            "equation": (1 - self.tolerance.relative) * mu0,
            "published": self.published_threshold,
        }

    def pulls(self, block: Block, log: BlockLog) -> FloatArray:
        """How often each user got each arm in the block: (S, H, K)."""
        K = block.world.shape.K
        played = log.action[..., None] == np.arange(K)  # (n, H, S, K)
        return np.swapaxes(played.sum(0), 0, 1).astype(np.float64)

    def _per_seed(self, values: list[Any]) -> Any:
        """One value for each instance -> one for each seed, as the first axis."""
        return np.array(values * self.world.batch if len(values) == 1 else values)


def _at(values: FloatArray, action: IntArray) -> FloatArray:
    return pick(values, np.broadcast_to(action, values.shape[:-1]))


def over_users(values: FloatArray | BoolArray) -> FloatArray:
    """(n, H, S) -> (S, n), one user after the other: NumPy's own order of summing depends on S."""
    total = values[:, 0].astype(np.float64)
    for h in range(1, values.shape[1]):
        total = total + values[:, h]
    return np.ascontiguousarray(total.T)
