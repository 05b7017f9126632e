"""Small worlds that anybody would try first, played by trial files as a newcomer would write them.

    python -m benchmarks.worlds [--trials 50] [--world NAME ...] [--shorter 1] [--http]

One decision is asked for and its outcome told before the next. The functions that decide are the live ones, for all
trials at once: a live trial with the same seed and outcomes takes the same decisions, and with --http it is one, asked
and told over HTTP. Found: the best arm has the
largest probability at the end. The promise is broken where the expected reward of a decision is below the control's by
more than the tolerance. Regret is what was lost by not giving the best arm, in expectation under the probabilities.
Shapes: S trials, K arms.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tests.service.serving import served

from drimed import TrialSpec, streams
from drimed.client import Client
from drimed.models.mixed.effects import FittedModel, effects_of_users
from drimed.models.mixed.learner import Field
from drimed.models.offer import Outcome
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.policy import Policy
from drimed.rehearsal.play import ONE_SIDE
from drimed.service.settings import Settings
from drimed.trial.events import Created, Draft, chain
from drimed.trial.spec import User
from drimed.trial.state import TrialState

ROUND_OFF = 1e-9
LATE, LEAST = 100, 0.4  # decisions at the end, and the share of them that the best arm should have
AS_NUMBERS = "people, as numbers"  # yes or no as 0 and 1 in the Gaussian model


@dataclass(frozen=True)
class SmallWorld:
    """Arms with fixed means; the first one is the control."""

    means: tuple[float, ...]
    decisions: int
    tolerance: float
    sd: float | None = None  # of normal noise; None: outcomes are 0 or 1
    kinds: tuple[str, ...] = ("people", "field")

    def outcomes(self, seed: int) -> FloatArray:
        """Of every arm at every decision, whoever decides: (decisions, K)."""
        rng, size = streams.generator(seed, "outcomes"), (self.decisions, len(self.means))
        if self.sd is None:
            return (rng.random(size) < np.array(self.means)).astype(np.float64)
        return np.asarray(self.means + self.sd * rng.standard_normal(size))

    def spec(self, kind: str, *, as_numbers: bool = False) -> TrialSpec:
        """The trial file: people come once each; a field is one site, asked again and again."""
        binary = {"range": [0, 1]} if as_numbers or kind == "paper" else {"kind": "yes/no"}
        arms: dict[str, dict[str, str]] = {f"arm {k}": {} for k in range(len(self.means))}
        return TrialSpec.read(
            {
                "name": "world",
                "decisions": "any number",
                "metrics": {"outcome": {} if self.sd is not None else binary},
                "arms": arms,
                "control": next(iter(arms)),
                "preference": {"outcome": 1},
                "tolerance": {"relative": 0.0, "absolute": self.tolerance},
                "model": {"kind": kind},
                "users": {} if kind == "people" else {"site": {}},
            }
        )


@dataclass(frozen=True)
class Played:
    """What a policy did."""

    chances: FloatArray  # (S, decisions, K)
    given: IntArray | None = None  # (S, decisions)
    ranges: FloatArray | None = None  # 95 %, of effects for somebody who comes next: (2, S, K - 1)


WORLDS = {
    "small noise": SmallWorld(means=(4.0, 3.0, 3.5, 5.0, 6.0), decisions=500, tolerance=0.3, sd=0.1),
    "no noise": SmallWorld(means=(4.0, 3.0, 3.5, 5.0, 6.0), decisions=500, tolerance=0.3, sd=0.0),
    "clinic": SmallWorld(means=(0.30, 0.30, 0.45), decisions=400, tolerance=0.05, kinds=("people", AS_NUMBERS)),
    "half": SmallWorld(means=(0.50, 0.40, 0.60), decisions=1000, tolerance=0.05, kinds=("people", AS_NUMBERS)),
    "hardly any failure": SmallWorld(
        means=(0.97, 0.60, 0.60), decisions=400, tolerance=0.1, kinds=("people", AS_NUMBERS)
    ),
    "website": SmallWorld(
        means=(0.10, 0.13, 0.08), decisions=3000, tolerance=0.03, kinds=("people", AS_NUMBERS, "paper")
    ),
}
HEADINGS = (
    "world",
    "policy",
    "best arm found",
    "its share of the last 100",
    "trials below .4",
    "regret ± se",
    "control",
    "promise broken, of 10,000",
    "95 % ranges hold",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table: means over trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--first", type=int, default=90_000, help="seed of the first trial")
    parser.add_argument("--world", choices=WORLDS, nargs="*", default=list(WORLDS))
    parser.add_argument("--shorter", type=int, default=1, help="divides the number of decisions")
    parser.add_argument("--http", action="store_true", help="live trials, one request after the other")
    options = parser.parse_args(arguments)
    play = over_http if options.http else trial
    seeds = range(options.first, options.first + options.trials)
    print(f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|")
    for name in options.world:
        whole = WORLDS[name]
        world = replace(whole, decisions=whole.decisions // options.shorter)
        y = np.stack([world.outcomes(seed) for seed in seeds])  # (S, decisions, K)
        for policy in (*world.kinds, *(["Beta-Thompson"] if world.sd is None else [])):
            played = play(world, y, seeds, policy) if policy in world.kinds else Played(beta_thompson(y, seeds[0]))
            held = "" if played.ranges is None else f"{holding(world, played.ranges).mean():.3f}"
            print(f"| {name} | {policy} | {' | '.join(judged(world, played.chances))} | {held} |", flush=True)


def holding(world: SmallWorld, ranges: FloatArray) -> BoolArray:
    """Whether each range of an effect has the true one: (S, K - 1)."""
    true = np.array(world.means[1:]) - world.means[0]
    return np.asarray((ranges[0] <= true) & (true <= ranges[1]))


def judged(world: SmallWorld, p: FloatArray) -> list[str]:
    """Cells of the table, from probabilities (S, decisions, K)."""
    means = np.array(world.means)
    expected = p @ means
    regret = (means.max() - expected).sum(-1)
    found = np.count_nonzero(p[:, -1].argmax(-1) == means.argmax())
    broken = 1e4 * np.mean(expected < means[0] - world.tolerance - ROUND_OFF)
    error = regret.std(ddof=1) / np.sqrt(len(regret))
    late = p[:, -LATE:, means.argmax()].mean(-1)
    best = [f"{found} of {len(p)}", f"{late.mean():.3f}", str(np.count_nonzero(late < LEAST))]
    return [*best, f"{regret.mean():.3g} ± {error:.2g}", f"{p[..., 0].mean():.3f}", f"{broken:.3g}"]


def trial(world: SmallWorld, y: FloatArray, seeds: Sequence[int], policy_name: str) -> Played:
    """All decisions by a trial file, and its last ranges for the next unit."""
    kind = policy_name.split(",")[0]
    draft = Draft(
        Created(world.spec(kind, as_numbers=policy_name == AS_NUMBERS).plain(), 0, np.__version__, "benchmark")
    )
    (created,) = chain([draft], seq=0, hash="", time="1970-01-01T00:00:00Z", actor="worlds")
    state = TrialState.start(created)
    names = [f"person {i}" if kind == "people" else "site" for i in range(world.decisions + 1)]
    state = state.with_users((name, User()) for name in dict.fromkeys(names) if name not in state.users)
    policy, problem, S = state.policy, state.problem, len(seeds)
    learned = policy.init(problem.shape, (S,))
    width = policy.draws_needed(problem.shape)
    draws = np.stack([streams.uniforms(seed, "policy", 0, world.decisions, width) for seed in seeds])
    chosen, given = np.zeros((S, world.decisions, len(world.means))), np.zeros((S, world.decisions), dtype=np.int64)
    for i, name in enumerate(names[:-1]):
        offer = problem.offer([state.profile(name)], [None], [None]).broadcast((S, 1))
        learned = policy.begin_episode(learned, offer) if i == 0 else policy.settle(learned)
        draw = policy.decide(learned, offer, draws[:, i : i + 1])
        learned = policy.commit(learned, offer, draw)
        outcome = np.take_along_axis(y[:, i], draw.action, -1)[..., None]  # (S, 1, 1)
        learned = policy.observe(learned, offer, draw.action, Outcome(outcome[..., 0], outcome))
        chosen[:, i], given[:, i] = draw.probabilities[:, 0, : len(world.means)], draw.action[:, 0]
    if not isinstance(policy, Policy):
        return Played(chosen, given)
    newcomer = problem.offer([state.profile(names[-1])], [None], [None]).broadcast((S, 1))
    learned = policy.settle(learned)
    if isinstance(policy.learner, Field):
        likely = effects_of_users(FittedModel.of(policy.learner, learned.evidence), newcomer).likely
        low, high = (end[..., 0] for end in likely)
    else:
        estimate, above, below = policy.effects(learned, newcomer, ONE_SIDE)
        low, high = estimate - below, estimate + above
    return Played(chosen, given, np.stack([end[:, 0, 1 : len(world.means)] for end in (low, high)]))


def over_http(world: SmallWorld, y: FloatArray, seeds: Sequence[int], policy_name: str) -> Played:
    """The same decisions, asked for and told of over HTTP."""
    chances, kind = np.zeros(y.shape), policy_name.split(",")[0]
    spec = world.spec(kind, as_numbers=policy_name == AS_NUMBERS)
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Settings(store=f"sqlite:///{folder}/worlds.db")) as running,
        Client(running.address) as client,
    ):
        for outcomes, theirs, seed in zip(y, chances, seeds, strict=True):
            name = f"world-{seed}"
            client.create(spec.model_copy(update={"name": name, "seed": seed}).plain())
            for i, by_arm in enumerate(outcomes.tolist()):
                (decision,) = client.ask(name, f"person {i}" if kind == "people" else "site")
                theirs[i] = [*decision.probabilities.values()]
                client.tell(name, decision.id, {"outcome": by_arm[int(decision.arm.split()[1])]}, confirm=True)
    return Played(chances)


def beta_thompson(y: FloatArray, seed: int) -> FloatArray:
    """The arm of the largest draw from Beta posteriors with uniform priors: (S, decisions, K), one-hot."""
    S, L, K = y.shape
    successes, failures, chosen = np.ones((S, K)), np.ones((S, K)), np.zeros(y.shape)
    rng = streams.generator(seed, "beta")
    for i in range(L):
        arm = rng.beta(successes, failures).argmax(-1)
        chosen[np.arange(S), i, arm] = 1.0
        successes += chosen[:, i] * y[:, i]
        failures += chosen[:, i] * (1 - y[:, i])
    return chosen


if __name__ == "__main__":
    main()
