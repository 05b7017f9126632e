"""Runs: one policy in a batch of worlds, judged block by block. The functions that decide here are the live ones.

Three thresholds that a decision should not fall below, for user h with control mean mu_0:

    safe       mu_0 - rel |mu_0| - abs      the promise, right for either sign of mu_0
    equation   (1 - rel) mu_0               the paper's Eq. (2); above mu_0 itself when mu_0 < 0
    published  (1 - rel) mean_h mu_0        what the authors' code compares every user with (I-3, I-4)

and three ways to count: `realised` (the mean of the arm played), `expected` (the mean under the policy's
probabilities), `estimated` (by the policy's own theta_hat; for `published` against the true threshold, as coded).
`stage_regret` is the mean regret of users who decide at once (Huch et al., 2024).
Shapes: S seeds, n episodes of a block, H users, K arms; logs are (n, H, S, ...).
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from scipy.special import ndtri

from drimed import streams
from drimed.errors import ConfigError, InputError
from drimed.models.mixed import effects
from drimed.models.mixed.learner import Field
from drimed.models.offer import Offer
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, pick
from drimed.policies.guards.margin import Tolerance
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy
from drimed.policies.registry import PolicySpec, find
from drimed.simulation.sweep import Record, Task, code_digest
from drimed.simulation.trial_world import FieldWorld
from drimed.simulation.worlds import AnyBlock, AnyWorld, Block, Scenario, World

CURVE_POINTS = 100  # of each stored curve
LOOK = "look."  # begins the names of metrics of looks
LEVELS = (0.95, 0.99)
LIKELY, CERTAIN = 0.95, 0.99  # levels at which an arm is called better
Z_LIKELY = float(ndtri(0.5 + LIKELY / 2))


@dataclass(frozen=True)
class RunRecord(Record):
    """Results of a run: metrics after some episodes, per seed.

    Metrics are summed from the first episode on, over all users; parameter_error and looks are taken as they are.
    """

    curves: dict[str, FloatArray]  # (S, T)
    episodes: IntArray  # (T,), numbers of finished episodes
    allocation: FloatArray  # (S, H, K), share of pulls
    decisions: int  # per seed
    seconds: FloatArray  # (S,), each seed's share of the wall time, environment included

    shared: ClassVar[tuple[str, ...]] = ("episodes", "decisions")

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
        return 1e6 * float(self.seconds.mean()) / self.decisions


@dataclass(frozen=True, kw_only=True)
class Run(Task[RunRecord]):
    """One policy in one scenario: everything that a result depends on, besides the code."""

    policy: str  # as on the command line: dri_med:guard=certain+confidence=anytime
    scenario: Scenario
    tolerance: Tolerance = field(default_factory=Tolerance)  # beyond it is a violation

    record_type: ClassVar[type[Record]] = RunRecord

    def described(self) -> Any:
        return [type(self.scenario).__name__, asdict(self)]

    def code(self) -> str:
        return policy_digest(self.policy)

    @property
    def label(self) -> str:
        return f"{self.policy}, {self.scenario.drift}"

    @property
    def block_size(self) -> int:
        return self.scenario.seeds_per_block

    def group(self) -> str:
        """The same for runs in the paper's worlds that differ in nothing but their drift and seeds."""
        scenario = self.scenario.under("none")
        return replace(self, scenario=scenario, seeds=self.seeds if scenario is self.scenario else ()).key()

    def run(self) -> RunRecord:
        return self.run_with(())[0]

    def run_with(self, others: Sequence[Run]) -> list[RunRecord]:
        """Simulate them as one batch: a step costs about as much Python for 64 members as for 256.

        Each member is computed alone, so that the numbers are the same to the last bit.
        """
        runs = (self, *others)
        world = self.scenario.world([seed for run in runs for seed in run.seeds])
        if isinstance(world, World):
            world = replace(world, drifts=[run.scenario.drift for run in runs for _ in run.seeds])
        policy = PolicySpec.parse(self.policy).build()
        record = simulate(policy, world, tolerance=self.tolerance, points=CURVE_POINTS)
        return record.split([len(run.seeds) for run in runs])


@cache
def policy_digest(text: str) -> str:
    """Fingerprint of all code behind a policy, with the files of a learner, rule or guard that is not drimed's."""
    spec = PolicySpec.parse(text)
    policy, source = spec.build(), find(spec.name).source
    parts = [getattr(policy, name) for name in getattr(policy, "__dataclass_fields__", ())]
    modules = {type(part).__module__ for part in (policy, *parts)} | {getattr(source, "__module__", "drimed")}
    files = {getattr(sys.modules[m], "__file__", None) for m in modules if m.partition(".")[0] != "drimed"}
    foreign = [Path(file).read_bytes() for file in sorted(filter(None, files))]
    if not foreign:
        return code_digest()
    return hashlib.sha256(b"".join([code_digest().encode(), *foreign])).hexdigest()[:16]


@dataclass(slots=True)
class BlockLog:
    """Decisions of a policy in a block; filled while it runs."""

    action: IntArray  # (n, H, S)
    probabilities: FloatArray  # (n, H, S, K)
    theta: FloatArray | None  # (n, H, S, d), before the outcome; None: not on the offers' features
    exact: bool = True  # whether the probabilities are propensities


def simulate(
    policy: AnyPolicy, world: AnyWorld, *, tolerance: Tolerance | None = None, at_once: bool = False,
    points: int | None = None,
) -> RunRecord:  # fmt: skip
    """Run `policy` in every world of the batch.

    With `at_once`, and in worlds that demand it, all users of an episode are decided from one state, because outcomes
    come at its end; else one user after the other. The record has all episodes, or `points` of them, evenly spaced.
    """
    if isinstance(policy, str):
        raise ConfigError(f"expected a policy, such as make('dri_med'), got {policy!r}")
    start = time.perf_counter()
    judge, looks = Judge(world, tolerance or Tolerance()), None
    if isinstance(world, FieldWorld):
        effects_by_site = world.rewards[..., 1:] - world.rewards[..., :1]
        looks = Looks(world.offers(np.arange(world.setting.sites)), effects_by_site)
    S, shape, L = len(world.seeds), world.shape, world.episodes
    state = policy.init(shape, (S,))
    pieces: list[dict[str, FloatArray]] = []
    pulls, decisions = np.zeros((S, shape.H, shape.K)), 0
    for block in world.blocks():
        state, log = play(policy, state, block, at_once=at_once)
        pieces.append(judge.episode_sums(block, log))
        pulls += judge.pulls(block, log)
        decisions += log.action[:, :, 0].size
        if looks is not None:
            state = policy.settle(state)
            pieces[-1] |= looks.take(policy, state)
    episodes = np.unique(np.linspace(0, L, min(points or L, L) + 1).astype(int)[1:])
    curves = {}
    for name in pieces[0]:
        values = np.concatenate([p[name] for p in pieces], axis=-1)  # (S, L)
        as_is = name == "parameter_error" or name.startswith(LOOK)
        curves[name] = (values if as_is else values.cumsum(-1))[:, episodes - 1]
    shares = pulls / pulls.sum(-1, keepdims=True)
    return RunRecord(curves, episodes, shares, decisions, np.full(S, (time.perf_counter() - start) / S))


def play(policy: AnyPolicy, state: Any, block: AnyBlock, *, at_once: bool = False) -> tuple[Any, BlockLog]:
    """Let a policy decide through a block: its state afterwards, and its decisions."""
    world = block.world
    n, H, S, shape = *block.means.shape[:3], world.shape
    draws = policy_draws(world.seeds, block.first, n, H, policy.draws_needed(shape))
    logs_theta = isinstance(world, World) and (not isinstance(policy, Policy) or policy.learner.keeps_features)
    theta = np.empty((n, H, S, shape.d)) if logs_theta else None
    log = BlockLog(np.empty((n, H, S), np.intp), np.empty((n, H, S, shape.K)), theta)
    whole = at_once or world.at_once
    turns = [slice(None)] if whole else [slice(h, h + 1) for h in range(H)]
    for episode in range(n):
        offers = block.offers(episode)
        state = policy.begin_episode(state, offers)
        for users in turns:
            at, offer = (episode, users), offers if whole else block.offers(episode, users)
            state = policy.settle(state)
            draw = policy.decide(state, offer, draws[at].swapaxes(0, 1))
            if log.theta is not None:
                log.theta[at] = policy.theta(state)
            log.action[at] = draw.action.T
            log.probabilities[at] = draw.probabilities.swapaxes(0, 1)
            log.exact = draw.exact
            state = policy.update(state, offer, draw, block.respond(episode, draw.action, users))
    return state, log


def policy_draws(seeds: Sequence[int], first: int, n: int, H: int, width: int) -> FloatArray:
    """Uniforms of n episodes of H decisions, addressed by seed and number of the decision: (n, H, S, width)."""
    drawn = {seed: streams.uniforms(int(seed), "policy", first, n * H, width) for seed in dict.fromkeys(seeds)}
    return np.stack([drawn[seed] for seed in seeds], axis=1).reshape(n, H, len(seeds), width)


@final
@dataclass(frozen=True)
class Judge:
    """Turns logs into metrics; built once per run."""

    world: AnyWorld
    tolerance: Tolerance

    def episode_sums(self, block: AnyBlock, log: BlockLog) -> dict[str, FloatArray]:
        """Each metric summed over the users of an episode: name -> (S, n)."""
        means = block.means
        # One set of means is enough where all episodes of a block have the same.
        some = means if isinstance(block, Block) and block.world.setting.rotation else means[:1]
        mu0 = np.vecdot(some, block.control)
        got = pick(means, log.action)  # (n, H, S)
        regret = some.max(-1) - got
        expected = np.vecdot(means, log.probabilities) if log.exact else np.full_like(got, np.nan)
        thresholds = self._thresholds(mu0)
        metrics: dict[str, FloatArray | BoolArray] = {
            "regret": regret,
            "shortfall": np.maximum(thresholds["safe"] - got, 0.0),
        }
        for name, threshold in thresholds.items():
            metrics[f"violations.{name}.realised"] = got < threshold
            metrics[f"violations.{name}.expected"] = expected < threshold if log.exact else expected
        if not isinstance(block, Block):
            metrics |= {"stage_regret": regret / regret.shape[1], "control": pick(block.control[None], log.action)}
            return {name: over_users(values) for name, values in metrics.items()}
        best = pick(some, np.broadcast_to(self._published[0], some.shape[:-1]))
        metrics["regret_as_published"] = np.maximum(best - got, 0.0)
        theta = np.full((*got.shape, self.world.shape.d), np.nan) if log.theta is None else log.theta
        estimate = np.vecdot(pick(block.world.features[None], log.action), theta)
        control = np.vecdot(np.vecmat(block.control, block.world.features), theta)
        for name, threshold in self._thresholds(control).items():
            metrics[f"violations.{name}.estimated"] = estimate if log.theta is None else estimate < threshold
        totals = {name: over_users(values) for name, values in metrics.items()}
        error = np.linalg.norm(theta[:, -1] - block.theta, axis=-1)  # (n, S)
        return totals | {"parameter_error": np.ascontiguousarray(error.T)}

    def pulls(self, block: AnyBlock, log: BlockLog) -> FloatArray:
        """Number of times that each user got each arm in the block: (S, H, K)."""
        H, K = self.world.shape.H, self.world.shape.K
        played = (log.action[..., None] == np.arange(K)).sum(0)  # (n, S, K)
        counts = np.zeros((H, *played.shape[1:]))
        np.add.at(counts, np.broadcast_to(block.offers(0).user, len(played)), played)
        return counts.swapaxes(0, 1)

    def _thresholds(self, mu0: FloatArray) -> dict[str, FloatArray]:
        safe = {"safe": mu0 - self.tolerance.allowed(mu0)}
        if not isinstance(self.world, World):
            return safe
        return safe | {"equation": (1 - self.tolerance.relative) * mu0, "published": self._published[1]}

    @cached_property
    def _published(self) -> tuple[IntArray, FloatArray]:
        """The best arm (H, S) and the threshold (S,) of the authors' code: by each user's mean preference."""
        if not isinstance(self.world, World):
            raise ConfigError("the published threshold is of the paper's worlds alone")
        means = [i.means(i.preference_means) for i in self.world.instances]  # (H, K) each
        mu0 = [float((c * m).sum(-1).mean()) for c, m in zip(self.world.controls, means, strict=True)]
        each = len(self.world.seeds) if len(means) == 1 else 1
        return np.array([m.argmax(-1) for m in means] * each).T, (1 - self.tolerance.relative) * np.array(mu0 * each)


def over_users(values: FloatArray | BoolArray) -> FloatArray:
    """(n, H, S) -> (S, n), one user after the other: NumPy's own order of summing depends on S."""
    return np.ascontiguousarray(sum(values.swapaxes(0, 1), np.zeros(1)).T)


@final
class Looks:
    """Looks at a batch of fields after each season: coverage and width of the ranges of effects by site, and claims.

    Effects are those of every arm but the control, at every site, in an average season. An arm is called better where
    the lower end of a range is above 0, likely (95 %, at one look) or certainly (99 %, at all times), as in a report.
    """

    def __init__(self, offers: Offer, true: FloatArray) -> None:
        self._offers = offers  # (S, I)
        self._true = true  # (S, I, K - 1)
        self._held = np.ones(true.shape, bool)  # at all looks so far, by the ranges at all times
        self._certainly_wrong = np.zeros(len(true), bool)  # at any look so far

    def take(self, policy: AnyPolicy, state: Any) -> dict[str, FloatArray]:
        """One look, at a state that was settled: name -> (S, 1), none from a policy that learns no noise."""
        if not isinstance(policy, Policy) or policy.learner.weighting != "learned":
            return {}
        values: dict[str, Any] = {}
        beyond = np.zeros(self._true.shape, bool)
        for level in reversed(LEVELS):
            found = policy.effects(state, self._offers, 0.5 + level / 2)
            mean, above, below = (part[..., 1:] for part in found)
            values[f"holds.{level:g}"] = _share((mean - below <= self._true) & (self._true <= mean + above))
            values[f"width.{level:g}"] = (below + above).reshape(len(above), -1).mean(-1)
            beyond = mean - below > 0  # of the last one, LIKELY
        learner: Any = policy.learner
        control, enough = self._offers.control, effects.has_enough_seasons(learner, state.evidence, self._offers)
        confirmed = np.broadcast_to(enough, control.shape)[..., 1:]
        called = beyond & confirmed
        if hasattr(learner, "beliefs"):
            field_learner = learner if isinstance(learner, Field) else learner.inner
            model = effects.FittedModel.of(field_learner, state.evidence)
            own = effects.effects_of_users(model, self._offers).at((..., slice(1, None), 0))
            if learner is field_learner:
                together = effects.effects_together(model, self._offers, np.ones(control.shape, bool))
                together = together.at((slice(None), None, slice(1, None), 0))
                arms, sites = effects.compared_arms(control), control.shape[-2]
                called = called & effects.is_significant(own, together, arms, sites)
            belief = own.mean, own.deviation**2, own.prior**2
            low, high = effects.anytime_range(*belief, 1 - LIKELY)
            self._held &= (low <= self._true) & (self._true <= high)
            values["held_at_all_times"] = _share(self._held)
            finite = np.isfinite(low) & np.isfinite(high)
            ratio = np.where(finite, high - low, 0.0) / (2 * Z_LIKELY * own.deviation)
            pairs = zip(ratio, finite, strict=True)
            values["times_as_wide"] = [np.median(r[some]) if some.any() else np.nan for r, some in pairs]
            certain = (effects.anytime_range(*belief, 1 - CERTAIN)[0] > 0) & confirmed
            wrong, values["certainly.right"] = self._judged(certain)
            self._certainly_wrong |= wrong
            values["certainly.wrong"] = self._certainly_wrong
        values["likely.wrong"], values["likely.right"] = self._judged(called)
        return {LOOK + name: np.asarray(each, np.float64)[:, None] for name, each in values.items()}

    def _judged(self, called: BoolArray) -> tuple[BoolArray, BoolArray]:
        """Whether any arm was called better wrongly, and rightly, anywhere: (S,) twice."""
        wrong, right = called & (self._true <= 0), called & (self._true > 0)
        return np.asarray(wrong.any((-2, -1))), np.asarray(right.any((-2, -1)))


def _share(held: BoolArray) -> FloatArray:
    return np.asarray(held.reshape(len(held), -1).mean(-1))
