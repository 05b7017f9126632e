"""The loop: one policy in a batch of worlds. The functions that decide here are the ones that decide live."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from drimed import streams
from drimed.environments.world import Block, World
from drimed.errors import ConfigError, InputError
from drimed.guards.margin import Tolerance
from drimed.linear.arrays import FloatArray
from drimed.policies.policy import AnyPolicy, Policy
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
    together: bool = False,
    on_episode: Callable[[int], None] | None = None,
) -> Result:
    """Run `policy` in every world of the batch. `on_episode` is told the number of finished episodes.

    With `together` all users of an episode are decided from one state, because outcomes come at its end; else one
    user after the other.

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
        state, log = _play(policy, state, block, together, on_episode)
        pieces.append(judge.episode_sums(block, log))
        pulls += judge.pulls(log)
    series = {name: np.concatenate([p[name] for p in pieces], axis=-1) for name in pieces[0]}
    decisions = world.setting.episodes * world.shape.H
    return Result(series, pulls / world.setting.episodes, decisions, time.perf_counter() - start)


def _play(
    policy: AnyPolicy, state: Any, block: Block, together: bool, on_episode: Callable[[int], None] | None
) -> tuple[Any, BlockLog]:
    world = block.world
    n, (H, K, d), S = block.episodes, (world.shape.H, world.shape.K, world.shape.d), world.batch
    draws = policy_draws(world, block.start, n, policy.draws_needed(world.shape))
    log = BlockLog(np.empty((n, H, S), np.intp), np.empty((n, H, S, K)), np.empty((n, H, S, d)))
    for episode in range(n):
        state = policy.begin_episode(state, block.offers(episode))
        step = _episode_at_once if together else _one_by_one
        state = step(policy, state, block, episode, draws[episode], log)
        if on_episode is not None:
            on_episode(block.start + episode + 1)
    return state, log


def _one_by_one(policy: AnyPolicy, state: Any, block: Block, episode: int, draws: FloatArray, log: BlockLog) -> Any:
    for user in range(block.world.shape.H):
        offer = block.offer(episode, user)
        state = policy.settle(state)
        decision = policy.decide(state, offer, draws[user])
        log.theta[episode, user] = policy.theta(state)
        outcome = block.respond(episode, user, decision.action)
        state = policy.update(state, offer, decision, outcome)
        log.action[episode, user] = decision.action
        log.probabilities[episode, user] = decision.probabilities
        log.exact = decision.exact
    return state


def _episode_at_once(
    policy: AnyPolicy, state: Any, block: Block, episode: int, draws: FloatArray, log: BlockLog
) -> Any:
    if not isinstance(policy, Policy):
        raise ConfigError("the published algorithms decide one user after the other; run them without together")
    offers = block.offers(episode)
    state = policy.settle(state)
    decision = policy.decide_together(state, offers, np.swapaxes(draws, 0, 1))
    log.theta[episode] = policy.theta(state)
    log.action[episode] = decision.action.T
    log.probabilities[episode] = np.swapaxes(decision.probabilities, 0, 1)
    log.exact = decision.exact
    outcome = block.respond_together(episode, decision.action)
    state = policy.commit_together(state, offers, decision)
    return policy.observe(state, offers, decision.action, outcome)


def policy_draws(world: World, start: int, n: int, width: int) -> FloatArray:
    """The uniforms of n episodes, addressed by seed and number of the decision: (n, H, S, width)."""
    H = world.shape.H
    per_seed = [streams.uniforms(int(seed), "policy", start * H, n * H, width) for seed in world.seeds]
    return np.ascontiguousarray(np.stack(per_seed, axis=1).reshape(n, H, world.batch, width))
