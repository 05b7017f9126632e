"""The yardstick: LinUCB as most people would write it, one decision at a time, in plain NumPy.

It plays the paper's world, environment included, with the usual care (Sherman-Morrison instead of an inverse, features
computed once), and nothing clever. Every speed goal is a ratio to this loop, measured in the same run.
"""

from __future__ import annotations

import time

import numpy as np

from drimed.numerics.arrays import FloatArray
from drimed.simulation.instances import Instance, levels


class LinUCB:
    """Ridge regression, one upper confidence bound per arm."""

    def __init__(self, d: int, regularisation: float, noise: float, delta: float = 0.01) -> None:
        self.V_inv = np.eye(d) / regularisation
        self.b = np.zeros(d)
        self.theta = np.zeros(d)
        self.logdet: FloatArray | float = 0.0
        self.noise, self.offset, self.confidence = noise, np.sqrt(regularisation), 2 * np.log(1 / delta)

    def choose(self, x: FloatArray) -> int:
        """x is (K, d)."""
        beta = self.noise * np.sqrt(self.logdet + self.confidence) + self.offset
        width = np.sqrt(np.einsum("kd,de,ke->k", x, self.V_inv, x))
        return int(np.argmax(x @ self.theta + beta * width))

    def learn(self, x: FloatArray, reward: float) -> None:
        """x is (d,)."""
        u = self.V_inv @ x
        gain = 1.0 + x @ u
        self.V_inv -= np.outer(u, u) / gain
        self.b += reward * x
        self.theta = self.V_inv @ self.b
        self.logdet += np.log(gain)


def play(instance: Instance, seed: int, episodes: int, noise: float = 1.92) -> tuple[float, float]:
    """Seconds of processor time per decision, and the regret, of one run on the paper's gradual drift."""
    shape = instance.shape
    rng = np.random.default_rng(seed)
    x = np.einsum("hm,kmd->hkd", instance.preferences, instance.maps)
    means = x @ instance.theta
    roots = np.linalg.cholesky(instance.covariances)
    outcome_means = instance.maps @ instance.theta
    f = levels("gradual", episodes, 100.0)
    policy = LinUCB(shape.d, noise**2, noise)
    regret = 0.0
    start = time.process_time()
    for episode in range(episodes):
        contexts = (1 + f[episode]) * rng.standard_normal((shape.H, 2))
        for h in range(shape.H):
            a = policy.choose(x[h])
            scale = np.sqrt(0.1 * (1 + np.linalg.norm(contexts[h])))
            y = outcome_means[a] + scale * (roots[a] @ rng.standard_normal(shape.M))
            policy.learn(x[h, a], float(instance.preferences[h] @ y))
            regret += means[h].max() - means[h, a]
    return (time.process_time() - start) / (episodes * shape.H), float(regret)


def step_seconds(d: int, K: int, steps: int) -> float:
    """Seconds of processor time per choose and learn, without an environment."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((K, d)) / np.sqrt(d)
    policy = LinUCB(d, 1.0, 1.0)
    start = time.process_time()
    for _ in range(steps):
        a = policy.choose(x)
        policy.learn(x[a], 0.5)
    return (time.process_time() - start) / steps
