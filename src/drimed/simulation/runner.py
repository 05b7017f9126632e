"""A run: one policy in one scenario, as plain data. It can be named, stored, sent to any worker and repeated."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Self, final

import numpy as np

from drimed import streams
from drimed.errors import ConfigError, InputError
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, pick
from drimed.policies.guards.margin import Tolerance
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy
from drimed.policies.registry import PolicySpec, find
from drimed.simulation.looks import LOOKS, Looks
from drimed.simulation.scenarios import AnyScenario, Scenario
from drimed.simulation.sweep import code_digest
from drimed.simulation.worlds import AnyBlock, AnyWorld, Block, Stage, World, side_by_side

# What a run is judged by, computed from its log block by block.

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


# What a run is judged by where everybody decides at once: regret, shares of the control, and broken promises.


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


# The loop: one policy in a batch of worlds. The functions that decide here are the ones that decide live.


@dataclass(frozen=True)
class RunRecord:
    """What is kept of a run: each metric of drimed.simulation.runner, stages and looks at some episodes, per seed.

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

    >>> from drimed.simulation.instances import quantile_control
    >>> from drimed.simulation.instances import authors_instance
    >>> from drimed.simulation.worlds import Setting
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


CURVE_POINTS = 100  # of each stored curve
MOST_FEATURES = 100_000  # numbers of one user in all worlds: a larger batch falls out of the cache and gains nothing


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a result depends on, besides the code."""

    policy: str  # as on the command line: dri_med:guard=certain+confidence=anytime
    scenario: AnyScenario = field(default_factory=Scenario)
    tolerance: Tolerance = field(default_factory=Tolerance)  # what counts as a violation
    seeds: tuple[int, ...] = (0,)

    def key(self) -> str:
        """The same for the same run and the same numerical code, and for nothing else."""
        described = json.dumps([type(self.scenario).__name__, asdict(self)], sort_keys=True)
        return hashlib.sha256(f"{policy_digest(self.policy)} {described}".encode()).hexdigest()[:32]

    @property
    def label(self) -> str:
        """Beside a progress bar."""
        return f"{self.policy}, {self.scenario.drift}"

    @property
    def record_type(self) -> type[RunRecord]:
        """Of its result."""
        return RunRecord

    def blocks(self) -> list[Run]:
        """The run in blocks of seeds: each can be computed, stored and repeated alone."""
        n = self.scenario.seeds_per_block
        return [replace(self, seeds=self.seeds[i : i + n]) for i in range(0, len(self.seeds), n)]

    def group(self) -> tuple[str, int]:
        """Runs that differ in nothing but their drift are computed together, as many as fit into the cache."""
        same = replace(self, scenario=self.scenario.under("none")).key()
        return same, max(1, MOST_FEATURES // (len(self.seeds) * self.scenario.numbers))

    def run_with(self, others: Sequence[Run] = ()) -> list[RunRecord]:
        """The records of this run and of others of its group, computed as one batch.

        A step of a batch costs about as much Python for 64 members as for 600, and each member is computed alone, so
        the numbers are the same to the last bit as of runs on their own. Time is shared: each gets the mean.
        """
        world = self.scenario.world(self.seeds)
        if others and isinstance(world, World):
            world = side_by_side(world, [run.scenario.drift for run in (self, *others)])
        policy = PolicySpec.parse(self.policy).build()
        record = simulate(policy, world, tolerance=self.tolerance, points=CURVE_POINTS)
        return record.split(1 + len(others))


@cache
def policy_digest(text: str) -> str:
    """The same with the files in which a policy's own learner, rule or guard is written, if they are not drimed's."""
    spec = PolicySpec.parse(text)
    policy, source = spec.build(), find(spec.name).source
    parts = [getattr(policy, name) for name in getattr(policy, "__dataclass_fields__", ())]
    modules = {type(part).__module__ for part in (policy, *parts)} | {getattr(source, "__module__", "drimed")}
    files = {getattr(sys.modules[m], "__file__", None) for m in modules if m.partition(".")[0] != "drimed"}
    written = [Path(file).read_bytes() for file in sorted(filter(None, files))]
    if not written:
        return code_digest()
    return hashlib.sha256(b"".join([code_digest().encode(), *written])).hexdigest()[:16]
