"""The loop: one policy in a batch of worlds. The functions that decide here are the ones that decide live."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from drimed import streams
from drimed.environments.stage import AnyBlock, AnyWorld
from drimed.environments.world import World
from drimed.errors import ConfigError, InputError
from drimed.experiments.looks import LOOKS, Looks
from drimed.experiments.metrics import BlockLog, Judge
from drimed.experiments.stages import StageJudge
from drimed.guards.margin import Tolerance
from drimed.linear.arrays import FloatArray, IntArray
from drimed.policies.contract import AnyPolicy
from drimed.policies.policy import Policy


@dataclass(frozen=True)
class RunRecord:
    """What is kept of a run: each metric of drimed.experiments.metrics, stages and looks at some episodes, per seed.

    Metrics are summed from the first episode on, over all users; parameter_error and looks are taken as they are.
    """

    curves: dict[str, FloatArray]  # (S, T)
    episodes: IntArray  # (T,), numbers of finished episodes
    allocation: FloatArray  # (S, H, K), share of pulls
    decisions: int  # per seed
    seconds: float  # wall time, environment included

    def curve(self, name: str) -> FloatArray:
        """A metric after each of `episodes`: (S, T)."""
        if name not in self.curves:
            raise InputError(f"no metric {name!r}; there are {', '.join(sorted(self.curves))}")
        return self.curves[name]

    def total(self, name: str) -> FloatArray:
        """A metric over the whole run: (S,)."""
        return self.curve(name)[:, -1]

    def rate(self, name: str) -> float:
        """A count per decision, over all seeds."""
        return float(self.total(name).mean()) / self.decisions

    def windows(self, name: str) -> FloatArray:
        """A count per decision between one stored episode and the next: (S, T)."""
        users = self.decisions / self.episodes[-1]
        return np.diff(self.curve(name), axis=-1, prepend=0.0) / (np.diff(self.episodes, prepend=0) * users)

    @property
    def microseconds_per_decision(self) -> float:
        """Wall time of one decision, averaged over the batch."""
        return 1e6 * self.seconds / (self.decisions * len(self.allocation))

    def split(self, parts: int) -> list[RunRecord]:
        """Equal parts of the seeds; each takes its share of the time."""
        n = len(self.allocation) // parts
        return [
            replace(
                self,
                curves={name: values[i * n : (i + 1) * n] for name, values in self.curves.items()},
                allocation=self.allocation[i * n : (i + 1) * n],
                seconds=self.seconds / parts,
            )
            for i in range(parts)
        ]

    @classmethod
    def concatenate(cls, records: Sequence[Self]) -> Self:
        """One record of all seeds, from records that differ in nothing else."""
        first = records[0]
        return replace(
            first,
            curves={name: np.concatenate([r.curves[name] for r in records]) for name in first.curves},
            allocation=np.concatenate([r.allocation for r in records]),
            seconds=sum(r.seconds for r in records),
        )

    def arrays(self) -> dict[str, Any]:
        """Everything, by name."""
        own = {name: getattr(self, name) for name in ("episodes", "allocation", "decisions", "seconds")}
        return own | {f"curve.{name}": values for name, values in self.curves.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Inverse of `arrays`."""
        curves = {k.removeprefix("curve."): values for k, values in arrays.items() if k.startswith("curve.")}
        decisions, seconds = int(arrays["decisions"]), float(arrays["seconds"])
        return cls(curves, arrays["episodes"], arrays["allocation"], decisions, seconds)


def simulate(
    policy: AnyPolicy,
    world: AnyWorld,
    *,
    tolerance: Tolerance | None = None,
    at_once: bool = False,
    points: int | None = None,
    on_episode: Callable[[int], None] | None = None,
) -> RunRecord:
    """Run `policy` in every world of the batch.

    With `at_once`, and in worlds that demand it, all users of an episode are decided from one state, because outcomes
    come at its end; else one user after the other. The record has all episodes, or `points` of them, evenly spaced.
    `on_episode` is called with the number of finished episodes.

    >>> from drimed.environments.instance import quantile_control
    >>> from drimed.environments.instance import authors_instance
    >>> from drimed.environments.world import Setting
    >>> from drimed.policies.registry import make
    >>> instance = authors_instance()
    >>> world = World(instances=[instance], seeds=range(4), controls=[quantile_control(instance)],
    ...               setting=Setting(episodes=20))
    >>> simulate(make("oful"), world).total("regret").shape
    (4,)
    """
    if isinstance(policy, str):
        raise ConfigError(f"expected a policy, such as make('dri_med'), got {policy!r}")
    start = time.perf_counter()
    tolerance = tolerance or Tolerance()
    judge: Any = Judge(world=world, tolerance=tolerance) if isinstance(world, World) else StageJudge(world, tolerance)
    looks = Looks.at(world)
    S, shape, L = len(world.seeds), world.shape, world.episodes
    state = policy.init(shape, (S,))
    pieces: list[dict[str, FloatArray]] = []
    pulls, decisions = np.zeros((S, shape.H, shape.K)), 0
    for block in world.blocks():
        state, log = play(policy, state, block, at_once=at_once, on_episode=on_episode)
        pieces.append(judge.episode_sums(block, log))
        pulls += judge.pulls(block, log)
        decisions += block.episodes * block.users
        if looks is not None:
            state = policy.settle(state)
            pieces[-1] |= looks.taken(policy, state)
    episodes = np.unique(np.linspace(0, L, min(points or L, L) + 1).astype(int)[1:])
    curves = {}
    for name in pieces[0]:
        values = np.concatenate([p[name] for p in pieces], axis=-1)  # (S, L)
        as_is = name == "parameter_error" or name.startswith(LOOKS)
        curves[name] = (values if as_is else values.cumsum(-1))[:, episodes - 1]
    shares = pulls / pulls.sum(-1, keepdims=True)
    return RunRecord(curves, episodes, shares, decisions, time.perf_counter() - start)


def play(
    policy: AnyPolicy,
    state: Any,
    block: AnyBlock,
    *,
    at_once: bool = False,
    on_episode: Callable[[int], None] | None = None,
) -> tuple[Any, BlockLog]:
    """Let a policy decide through a block: its state afterwards, and what it did."""
    world = block.world
    n, H, S, shape = block.episodes, block.users, len(world.seeds), world.shape
    draws = _draws(world.seeds, block.first, n, H, policy.draws_needed(shape))
    logs_theta = isinstance(world, World) and (not isinstance(policy, Policy) or policy.learner.keeps_features)
    theta = np.empty((n, H, S, shape.d)) if logs_theta else None
    log = BlockLog(np.empty((n, H, S), np.intp), np.empty((n, H, S, shape.K)), theta)
    whole = at_once or world.at_once
    turns = [slice(None)] if whole else [slice(h, h + 1) for h in range(H)]
    for episode in range(n):
        offers = block.offers(episode)
        state = policy.begin_episode(state, offers)
        for users in turns:
            offer = offers if whole else block.offers(episode, users)
            state = policy.settle(state)
            draw = policy.decide(state, offer, np.swapaxes(draws[episode, users], 0, 1))
            if log.theta is not None:
                log.theta[episode, users] = policy.theta(state)
            log.action[episode, users] = draw.action.T
            log.probabilities[episode, users] = np.swapaxes(draw.probabilities, 0, 1)
            log.exact = draw.exact
            state = policy.update(state, offer, draw, block.respond(episode, draw.action, users))
        if on_episode is not None:
            on_episode(block.start + episode + 1)
    return state, log


def policy_draws(world: World, start: int, n: int, width: int) -> FloatArray:
    """The uniforms of n episodes, addressed by seed and number of the decision: (n, H, S, width)."""
    H = world.shape.H
    return _draws(world.seeds, start * H, n, H, width)


def _draws(seeds: Sequence[int], first: int, n: int, H: int, width: int) -> FloatArray:
    per_seed = [streams.uniforms(int(seed), "policy", first, n * H, width) for seed in seeds]
    return np.ascontiguousarray(np.stack(per_seed, axis=1).reshape(n, H, len(seeds), width))
