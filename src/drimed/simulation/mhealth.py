"""Mobile health: a stream of users who decide again and again, with or without effects of their own.

    reward = g(s) + a (1, s1, s2) . theta_user + N(0, 1),   s uniform on [-1, 1]^2,   a = 0 or 1

At stage t users 1 to t decide together. The three settings of Huch et al. (2024), appendix A.1: homogeneous (one theta
for all), heterogeneous (each user's theta has N(0, I) added), nonlinear (a baseline of bumps and steps besides, and an
effect that wears off with the time since joining). The nonlinear baseline is drawn afresh for each seed. The control
is not to act. Offers have each arm's own constant and slopes as features, and s as covariates of the user. Shapes: S
seeds, n users of a stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from drimed import streams
from drimed.errors import ConfigError
from drimed.models.offer import Offer, Outcome, Shape, Unit
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.simulation.worlds import Stage

SETTINGS = ("homogeneous", "heterogeneous", "nonlinear")
THETA = (1.0, 0.5, -4.0)  # effect of acting: constant, s1, s2
BASELINE = (2.0, -2.0, 3.0)
BUMPS, STEPS = 8, 4  # of the nonlinear baseline
WIDTH = 0.4  # of a bump
WEARS_OFF, WOBBLE = 6.0, 0.2


@final
@dataclass(frozen=True)
class MobileHealth:
    """One study for each seed."""

    setting: str
    seeds: Sequence[int]
    stages: int = 200

    at_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.setting not in SETTINGS:
            raise ConfigError(f"setting must be one of {SETTINGS}, got {self.setting!r}")
        if self.stages < 1:
            raise ConfigError(f"stages must be at least 1, got {self.stages}")

    @property
    def shape(self) -> Shape:
        """Two arms with a constant and two slopes each; as many users as stages."""
        return Shape(d=6, K=2, M=1, H=self.stages)

    @property
    def episodes(self) -> int:
        """As many as stages."""
        return self.stages

    def blocks(self) -> Iterator[Stage]:
        """Stage by stage."""
        for stage in range(self.stages):
            states = self.states(stage)
            effect = self.effects(stage, states)
            means = self._baseline(states)[..., None] + effect[..., None] * np.arange(2.0)

            def outcomes(action: IntArray, stage: int = stage, states: FloatArray = states) -> Outcome:
                reward = self.respond(stage, states, action)
                return Outcome(reward, reward[..., None])

            yield Stage(stage, stage * (stage + 1) // 2, _offers(states), means, outcomes, self)

    @cached_property
    def theta(self) -> FloatArray:
        """Effects by user: (S, users, 3)."""
        own = np.stack([streams.generator(int(s), "users").standard_normal((self.stages, 3)) for s in self.seeds])
        return np.asarray(THETA) + (np.zeros_like(own) if self.setting == "homogeneous" else own)

    @cached_property
    def wearing(self) -> FloatArray:
        """Additions to theta, by stages since joining: (S, stages, 3)."""
        if self.setting != "nonlinear":
            return np.zeros((len(self.seeds), self.stages, 3))
        decay = 1 / (1 + WEARS_OFF * np.arange(self.stages) / self.stages)
        drawn = []
        for s in self.seeds:
            g = streams.generator(int(s), "wearing off")
            start = g.standard_normal(3)
            drawn.append(decay[:, None] * start + WOBBLE * g.standard_normal((self.stages, 3)))
        return np.stack(drawn)

    def states(self, stage: int) -> FloatArray:
        """s of the users who decide at stage `stage` (from 0): (S, stage + 1, 2)."""
        draws = [streams.uniforms(int(s), f"states {stage}", 0, stage + 1, 2) for s in self.seeds]
        return 2 * np.stack(draws) - 1

    def effects(self, stage: int, states: FloatArray) -> FloatArray:
        """The mean difference that acting makes: (S, stage + 1)."""
        users = np.arange(stage + 1)
        theta = self.theta[:, users] + self.wearing[:, stage - users]
        ones = np.ones((*states.shape[:-1], 1))
        return np.asarray((np.concatenate([ones, states], -1) * theta).sum(-1))

    def respond(self, stage: int, states: FloatArray, action: IntArray) -> FloatArray:
        """Rewards: (S, stage + 1)."""
        noise = [streams.generator(int(s), f"noise {stage}").standard_normal(stage + 1) for s in self.seeds]
        return self._baseline(states) + action * self.effects(stage, states) + np.stack(noise)

    def _baseline(self, states: FloatArray) -> FloatArray:
        linear = BASELINE[0] + states @ np.asarray(BASELINE[1:])
        if self.setting != "nonlinear":
            return np.asarray(linear)
        extra = np.empty(linear.shape)
        for i, seed in enumerate(self.seeds):
            g = streams.generator(int(seed), "baseline")
            centres, heights = g.uniform(-1, 1, (BUMPS, 2)), 3 * g.standard_normal(BUMPS)
            cuts, rises = g.uniform(-1, 1, STEPS), g.standard_normal(STEPS)
            distance = ((states[i, :, None, :] - centres) ** 2).sum(-1)
            bumps = np.exp(-distance / (2 * WIDTH**2)) @ heights
            extra[i] = bumps + (states[i, :, :1] > cuts) @ rises
        return np.asarray(linear + extra)


def _offers(states: FloatArray) -> Offer:
    """Offers to the users of a stage in states (S, n, 2): batch (S, n)."""
    lead = states.shape[:-1]
    z = np.concatenate([np.ones((*lead, 1)), states], -1)
    features = np.zeros((*lead, 2, 6))
    features[..., 0, :3] = features[..., 1, 3:] = z
    users = np.arange(lead[-1])
    return Offer(
        features=features,
        control=np.broadcast_to(np.eye(2)[0], (*lead, 2)),
        maps=features[..., None, :],
        preference=np.ones((*lead, 1)),
        user=users,
        unit=Unit(user=users, group=users, covariates=states),
    )
