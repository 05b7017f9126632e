"""Small logs with a known truth."""

from __future__ import annotations

import numpy as np

from drimed.evaluation.decision_log import Log, make_log
from drimed.numerics.arrays import FloatArray

ARMS = ("old", "new", "other")
K = len(ARMS)
MEANS = np.array([0.3, 0.5, 0.7])  # at x = 0; x moves every arm alike
TARGET = np.array([0.1, 0.2, 0.7])


def drawn(n: int, *, seed: int = 0, wrong_model: float = 0.0) -> tuple[Log, FloatArray]:
    """A log of n decisions whose policy leans on a context, and the true means (n, K).

    The model that predicts is off by `wrong_model` on the last arm.
    """
    rng = np.random.default_rng(seed)
    x = rng.uniform(-0.2, 0.2, n)
    means = MEANS + x[:, None]
    logits = np.stack([np.zeros(n), 3 * x, -3 * x], axis=-1)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    action = (p.cumsum(-1) < rng.random(n)[:, None]).sum(-1)
    reward = (rng.random(n) < means[np.arange(n), action]).astype(np.float64)
    q = means + wrong_model * np.eye(K)[-1]
    log = make_log(
        arms=ARMS,
        action=action,
        reward=reward,
        probabilities=p,
        predictions=q,
        user=np.array(["ada", "bob"])[rng.integers(2, size=n)],
    )
    return log, means


def value(means: FloatArray, target: FloatArray) -> float:
    """The target's true value on these contexts."""
    return float((means * target).sum(-1).mean())


def table(log: Log) -> dict[str, object]:
    """The log as columns."""
    assert log.probabilities is not None
    assert log.predictions is not None
    columns: dict[str, object] = {
        "action": np.array(log.arms)[log.action],
        "reward": log.reward,
        "propensity": log.propensity,
        "user": log.user,
    }
    for prefix, values in (("probability_", log.probabilities), ("q_", log.predictions)):
        columns |= {f"{prefix}{arm}": values[:, k].copy() for k, arm in enumerate(log.arms)}
    columns |= {f"target_{arm}": np.full(len(log), TARGET[k]) for k, arm in enumerate(log.arms)}
    return columns | {"metric_0": np.arange(len(log)) % 7 / 7}
