"""Control policies pi_0: what the users would get without the experiment."""

from __future__ import annotations

from typing import Any

import numpy as np

from drimed.environments.instance import Instance
from drimed.errors import ConfigError
from drimed.linear import checks
from drimed.linear.arrays import FloatArray


def quantile_control(instance: Instance, quantile: float = 0.5, *, judged_by: str = "preferences") -> FloatArray:
    """One arm per user: the one whose mean reward is nearest the quantile of that user's arms. (H, K), one-hot.

    `judged_by="preferences"` ranks arms by what the user really values; "preference_means" by what the authors' code
    uses instead (docs/paper.md, I-4).

    >>> from drimed.environments.instance import draw_instance
    >>> quantile_control(draw_instance(0)).sum(-1).tolist() == [1.0] * 10
    True
    """
    if not 0 <= quantile <= 1:
        raise ConfigError(f"quantile must be in [0, 1], got {quantile}")
    if judged_by not in ("preferences", "preference_means"):
        raise ConfigError(f"judged_by must be 'preferences' or 'preference_means', got {judged_by!r}")
    means = instance.means(getattr(instance, judged_by))
    arm = np.abs(means - np.quantile(means, quantile, axis=-1, keepdims=True)).argmin(-1)
    return (arm[:, None] == np.arange(means.shape[-1])).astype(np.float64)


def mixed_control(instance: Instance, seed: int) -> FloatArray:
    """A lottery per user: a random distribution over all arms. (H, K)

    >>> from drimed.environments.instance import draw_instance
    >>> bool((mixed_control(draw_instance(0), 1) < 1).all())
    True
    """
    rng = np.random.default_rng([seed, instance.shape.K])
    return rng.dirichlet(np.ones(instance.shape.K), size=instance.shape.H)


def given_control(control: Any, instance: Instance) -> FloatArray:
    """Any pi_0, mixed ones too: one distribution for all users (K,), or one each (H, K)."""
    shape = instance.shape
    array = checks.shaped("control", checks.finite("control", control), (shape.K,))
    if array.ndim > 1:
        checks.shaped("control", array, (shape.H, shape.K))
    return np.broadcast_to(checks.probabilities("control", array), (shape.H, shape.K)).copy()
