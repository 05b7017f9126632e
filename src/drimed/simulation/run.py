"""The loop: one policy in a batch of worlds. The functions that decide here are the ones that decide live."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from drimed import streams
from drimed.environments.world import Block, World
from drimed.errors import InputError
from drimed.guards.margin import Tolerance
from drimed.linear.arrays import FloatArray
from drimed.policies.policy import AnyPolicy
from drimed.simulation.metrics import BlockLog, Judge


@dataclass(frozen=True)
class Result:
    """Metrics of a run, per seed and episode.

    `series` holds each metric's sum over the users of an episode: name -> (S, L). Metrics are listed in
    drimed.simulation.metrics.
    """

    series: dict[str, FloatArray]
    allocation: FloatArray  # (S, H, K), share of pulls
    decisions: int  # per seed
    seconds: float  # wall time of the whole run, environment included

    def total(self, name: str) -> FloatArray:
        """A metric summed over the whole run: (S,)."""
        return self._series(name).sum(-1)

    def cumulative(self, name: str) -> FloatArray:
        """A metric's running sum: (S, L)."""
        return self._series(name).cumsum(-1)

    @property
    def microseconds_per_decision(self) -> float:
        """Wall time of one decision, averaged over the batch."""
        return 1e6 * self.seconds / (self.decisions * len(self.allocation))

    def _series(self, name: str) -> FloatArray:
        if name not in self.series:
            raise InputError(f"no metric {name!r}; there are {', '.join(sorted(self.series))}")
        return self.series[name]


def simulate(
    policy: AnyPolicy,
    world: World,
    *,
    tolerance: Tolerance | None = None,
    on_episode: Callable[[int], None] | None = None,
) -> Result:
    """Run `policy` in every world of the batch. `on_episode` is told the number of finished episodes.

    >>> from drimed.environments.control import quantile_control
    >>> from drimed.environments.instance import authors_instance
    >>> from drimed.environments.world import Setting
    >>> from drimed.policies.registry import make
    >>> instance = authors_instance()
    >>> world = World(instances=[instance], seeds=range(4), controls=[quantile_control(instance)],
    ...               setting=Setting(episodes=20))
    >>> simulate(make("oful"), world).total("regret").shape
    (4,)
    """
    start = time.perf_counter()
    judge = Judge(world=world, tolerance=tolerance or Tolerance())
    state = policy.init(world.shape, (world.batch,))
    pieces: list[dict[str, FloatArray]] = []
    pulls = np.zeros((world.batch, world.shape.H, world.shape.K))
    for block in world.blocks():
        state, log = _play(policy, state, block, on_episode)
        pieces.append(judge.episode_sums(block, log))
        pulls += judge.pulls(log)
    series = {name: np.concatenate([p[name] for p in pieces], axis=-1) for name in pieces[0]}
    decisions = world.setting.episodes * world.shape.H
    return Result(series, pulls / world.setting.episodes, decisions, time.perf_counter() - start)


def _play(
    policy: AnyPolicy, state: object, block: Block, on_episode: Callable[[int], None] | None
) -> tuple[object, BlockLog]:
    world = block.world
    n, (H, K, d), S = block.episodes, (world.shape.H, world.shape.K, world.shape.d), world.batch
    draws = policy_draws(world, block.start, n, policy.draws_needed(world.shape))
    action = np.empty((n, H, S), np.intp)
    probabilities = np.empty((n, H, S, K))
    theta = np.empty((n, H, S, d))
    exact = True
    for episode in range(n):
        state = policy.begin_episode(state, block.offers(episode))
        for user in range(H):
            offer = block.offer(episode, user)
            decision = policy.decide(state, offer, draws[episode, user])
            theta[episode, user] = policy.theta(state)
            outcome = block.respond(episode, user, decision.action)
            state = policy.update(state, offer, decision, outcome)
            action[episode, user] = decision.action
            probabilities[episode, user] = decision.probabilities
            exact = decision.exact
        if on_episode is not None:
            on_episode(block.start + episode + 1)
    return state, BlockLog(action, probabilities, theta, exact)


def policy_draws(world: World, start: int, n: int, width: int) -> FloatArray:
    """The uniforms of n episodes, addressed by seed and number of the decision: (n, H, S, width)."""
    H = world.shape.H
    per_seed = [streams.uniforms(seed, "policy", start * H, n * H, width) for seed in world.seeds]
    return np.ascontiguousarray(np.stack(per_seed, axis=1).reshape(n, H, world.batch, width))
