"""Yes-or-no outcomes, counts and scores in simulated trials: whether ranges hold and promises are kept, what is earned.

    python -m benchmarks.outcomes [--trials 100] [--world NAME ...] [--policy NAME ...] [--minutes 60]

Effects are drawn on a logit or log scale: of places (patterns of attributes, or sites) with deviation .4, of arms at a
place .2, of seasons .3, of arms in a season .2. Against the control, arms have 0, .6 and -.6 more; in every other trial
all arms are alike everywhere. In stressed worlds everything is 2.5 times as large, in the harsh ones the control
succeeds in 97 % and every other arm in 60 %. Scores are beta-binomial, of 0 to 10; exposures are evenly spread between
.1 and 10 on a log scale. People come once each, ten at a time; sites decide 17 plots in each of ten
seasons. The functions that decide are the live ones. Results are stored by blocks of trials: a run that is interrupted,
or out of time, continues where it stopped, with the same code.

Ranges are of effects on all places together (early: after 12 % of the decisions; always: ranges at all times, at all
looks), at each place, and of the better and the harmful arm alone. The promise is broken where the expected mean of a
decision is below the control's by more than the tolerance. Lost: the mean below that of the place's best arm.
Shapes: S trials, G places, K arms, T looks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, logit

from drimed import TrialSpec, streams
from drimed.competitors.generalised_linear import Logistic
from drimed.models.mixed.effects import EffectPosterior, FittedModel, effects_of_users, effects_together
from drimed.models.mixed.learner import Field
from drimed.models.offer import Offer, Outcome
from drimed.numerics.arrays import FloatArray
from drimed.policies.guards.base import Off
from drimed.policies.policy import Policy
from drimed.policies.rules.simple import Greedy
from drimed.policies.rules.thompson import Thompson
from drimed.simulation.sweep import Record, Task, load, save
from drimed.trial.events import Created, Draft, chain
from drimed.trial.spec import User
from drimed.trial.state import TrialState

BLOCK = 5  # trials side by side: more of them leave the cache
TOGETHER = 10  # people who are asked for at a time
PLACE, PLACE_ARM, SEASON, SEASON_ARM = 0.4, 0.2, 0.3, 0.2
ARMS = (0.0, 0.6, -0.6, 0.0)
BETTER, HARMFUL = 1, 2
STRESS = 2.5
PEOPLE, FIELD = "people", "field"
EARLY = 0.12  # of the decisions: the first look
LOOKS = 8
SCORES = 10  # the largest score
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
OFUGLB = "OFUGLB"
RIVALS = ("GLM Thompson", OFUGLB)
POLICIES: dict[str, dict[str, Any]] = {
    "drimed": {},
    "as numbers": {},  # the Gaussian model of 0 and 1, or of counts
    "unguarded": {"guard": "off"},
    "GLM Thompson": {},
    OFUGLB: {},
}


@dataclass(frozen=True)
class World:
    """Truths of trials and their trial file."""

    rate: float  # under the control at a typical place: a probability, or the mean of a count
    tolerance: float
    kind: str = PEOPLE
    outcome: str = "yes/no"
    scatter: float = 0.0  # of a count's rate, squared and relative; of a score, the correlation of its points
    exposed: bool = False  # counts have exposures
    stress: float = 1.0
    others: float | None = None  # the rate of all other arms alike, in the harsh worlds
    seasons: int = 10
    each: int = 17  # plots of a site in a season
    places: int = 6

    @property
    def decisions(self) -> int:
        return self.seasons * self.each * self.places if self.kind == FIELD else 1000

    @property
    def top(self) -> float:
        """The largest mean."""
        return SCORES if self.outcome == "score" else 1.0

    def link(self, mean: float) -> float:
        return float(np.log(mean) if self.outcome == "count" else logit(mean / self.top))

    def mean(self, eta: FloatArray) -> FloatArray:
        return np.asarray(np.exp(eta) if self.outcome == "count" else self.top * expit(eta))

    def outcomes(self, mean: FloatArray, size: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Of decisions with these means and exposures (n,)."""
        if self.outcome == "yes/no":
            return (rng.random(len(mean)) < mean).astype(np.float64)
        if self.outcome == "score":
            share, weight = np.clip(mean / self.top, 1e-9, 1 - 1e-9), 1 / self.scatter - 1
            return rng.binomial(SCORES, rng.beta(share * weight, (1 - share) * weight)).astype(np.float64)
        if self.scatter:
            mean = mean * rng.gamma(1 / self.scatter, self.scatter, len(mean))
        return np.asarray(rng.poisson(mean * size) / size)

    def effects(self, seed: int) -> tuple[FloatArray, FloatArray]:
        """Linear predictors of arms at places (G, K), and what seasons add to them (L, K)."""
        rng = streams.generator(seed, "truth")
        G, L, K = self.places, self.seasons, len(ARMS)
        place, season = PLACE * rng.standard_normal((G, 1)), SEASON * rng.standard_normal((L, 1))
        of_arm, arm_season = PLACE_ARM * rng.standard_normal((G, K)), SEASON_ARM * rng.standard_normal((L, K))
        differ, arms = self.differ(seed), np.array(ARMS)
        if self.others is not None:
            arms = np.where(np.arange(K) > 0, self.link(self.others) - self.link(self.rate), 0.0)
        eta = self.link(self.rate) + self.stress * (place + differ * of_arm)
        if self.others is not None or differ:
            eta = eta + self.stress * arms
        return eta, (self.kind == FIELD) * self.stress * (season + differ * arm_season)

    def differ(self, seed: int) -> float:
        """1 where effects of arms differ by place and season."""
        return float(seed % 2) if self.others is None else 0.0

    def average(self, eta: FloatArray, seeds: Sequence[int]) -> FloatArray:
        """Means in an average season: (S, G, K)."""
        differ = np.array([self.differ(seed) for seed in seeds])
        sd = (self.kind == FIELD) * self.stress * np.sqrt(SEASON**2 + differ * SEASON_ARM**2)
        at = self.mean(eta[..., None] + sd[:, None, None, None] * NODES)
        return np.asarray(at @ WEIGHTS / WEIGHTS.sum())

    def spec(self, policy: str) -> TrialSpec:
        """The trial file."""
        top = max(10.0, 6 * self.rate) if self.outcome == "count" else self.top
        kinds: dict[str, Any] = {"range": [0, top]}
        if policy != "as numbers":
            kinds = {"kind": self.outcome} | (kinds if self.outcome == "score" else {})
        plots = [str(i) for i in range(self.each)]
        data: dict[str, Any] = {
            "name": "world",
            "decisions": "any number",
            "metrics": {"outcome": kinds},
            "arms": {f"arm {k}": {} for k in range(len(ARMS))},
            "control": "arm 0",
            "preference": {"outcome": 1},
            "tolerance": {"relative": 0.0, "absolute": self.tolerance},
            "model": {"kind": self.kind},
            "policy": POLICIES[policy],
            "users": {f"site {g}": {"plots": plots} for g in range(self.places)} if self.kind == FIELD else {},
        }
        if self.kind == PEOPLE:
            data["attributes"] = {"pattern": {"levels": [str(g) for g in range(self.places)]}}
        return TrialSpec.read({name: value for name, value in data.items() if value != {} or name == "users"})


WORLDS = {
    "people 2 %": World(0.02, 0.01),
    "people 10 %": World(0.1, 0.03),
    "people 30 %": World(0.3, 0.05),
    "people 50 %": World(0.5, 0.05),
    "people 98 %": World(0.98, 0.02),
    "sites 30 %": World(0.3, 0.05, FIELD),
    "sites 98 %": World(0.98, 0.02, FIELD),
    "counts .2": World(0.2, 0.05, outcome="count"),
    "counts .2, scattered": World(0.2, 0.05, outcome="count", scatter=1.0),
    "counts 5": World(5.0, 0.5, outcome="count"),
    "counts 5, scattered": World(5.0, 0.5, outcome="count", scatter=0.5),
    "counts 2, exposed": World(2.0, 0.2, outcome="count", exposed=True),
    "counts 2, exposed, scattered": World(2.0, 0.2, outcome="count", scatter=0.5, exposed=True),
    "scores 3": World(3.0, 0.5, outcome="score", scatter=0.2),
    "scores 9": World(9.0, 0.3, outcome="score", scatter=0.4),
    "scores 3, sites": World(3.0, 0.5, FIELD, outcome="score", scatter=0.2),
    "people 30 %, stressed": World(0.3, 0.05, stress=STRESS),
    "sites 30 %, stressed": World(0.3, 0.05, FIELD, stress=STRESS),
    "people, harsh": World(0.97, 0.1, others=0.6),
    "sites, harsh": World(0.97, 0.1, FIELD, others=0.6),
}


@dataclass(frozen=True)
class Result(Record):
    """Of each trial."""

    held: FloatArray  # (S, T, K - 1), whether 95 % ranges of effects on all places hold
    held_99: FloatArray  # (S, T, K - 1)
    width: FloatArray  # (S, T, K - 1), of those of 95 %
    held_at: FloatArray  # (S, T, G, K - 1), at each place
    held_always: FloatArray  # (S, T, K - 1), whether ranges at all times hold
    broken: FloatArray  # (S,), share of the decisions
    lost: FloatArray  # (S,), of a decision
    control: FloatArray  # (S,), its share


@dataclass(frozen=True, kw_only=True)
class Trials(Task[Result]):
    """Trials of one world under one policy."""

    world: World
    policy: str
    looks: int = LOOKS

    record_type: ClassVar[type[Record]] = Result
    block_size: ClassVar[int] = BLOCK

    def described(self) -> Any:
        return [asdict(self.world), self.policy, POLICIES[self.policy], self.looks, self.seeds]

    def run(self) -> Result:
        return played(self.world, self.policy, self.seeds, self.looks)


def played(world: World, policy_name: str, seeds: Sequence[int], looks_at: int = LOOKS) -> Result:
    """Whole trials side by side."""
    draft = Draft(Created(world.spec(policy_name).plain(), 0, np.__version__, "benchmark"))
    (created,) = chain([draft], seq=0, hash="", time="1970-01-01T00:00:00Z", actor="outcomes")
    state = TrialState.start(created)
    S, G, K = len(seeds), world.places, len(ARMS)
    place = streams.generator(0, "places").permutation(np.arange(world.decisions) % G)
    if world.kind == PEOPLE:
        names = [f"person {i}" for i in range(world.decisions)]
        state = state.with_users((n, User(attributes={"pattern": str(g)})) for n, g in zip(names, place, strict=True))
        typical = [names[int(np.flatnonzero(place == g)[0])] for g in range(G)]
        steps = [(0, np.arange(i, i + TOGETHER)) for i in range(0, world.decisions, TOGETHER)]
    else:
        per = G * world.each
        place = np.tile(np.repeat(np.arange(G), world.each), world.seasons)
        names, typical = [f"site {g}" for g in place], [f"site {g}" for g in range(G)]
        steps = [(season, np.arange(season * per, (season + 1) * per)) for season in range(world.seasons)]
    truths = [world.effects(seed) for seed in seeds]
    eta, by_season = (np.stack(parts) for parts in zip(*truths, strict=True))  # (S, G, K), (S, L, K)
    means = world.average(eta, seeds)
    policy, problem = state.policy, state.problem
    if policy_name in RIVALS:
        policy = rival(policy, policy_name, G)
    if not (isinstance(policy, Policy) and isinstance(policy.learner, (Field, Logistic))):
        raise TypeError("these worlds are for the mixed model")
    looked_at = offers_to(state, typical, S)
    learned, opened = policy.init(problem.shape, (S,)), -1
    width = policy.draws_needed(problem.shape)
    draws = np.stack([streams.uniforms(seed, "policy", 0, world.decisions, width) for seed in seeds])
    luck = [streams.generator(seed, "outcomes") for seed in seeds]
    expected, control = np.zeros((2, S, world.decisions))
    looks = list[Any]()
    looked = np.linspace(len(steps) - 1, int(np.ceil(EARLY * len(steps))) - 1, looks_at).round().astype(int)
    for number, (season, at) in enumerate(steps):
        offers = offers_to(state, [names[i] for i in at], S)
        if season > opened:
            learned, opened = policy.begin_episode(learned, offers), season
        learned = policy.settle(learned)
        draw = policy.decide(learned, offers, draws[:, at])
        learned = policy.commit(learned, offers, draw)
        now = world.mean(eta[:, place[at]] + by_season[:, season, None])  # (S, n, K)
        own = np.take_along_axis(now, draw.action[..., None], -1)[..., 0]
        size = np.ones(own.shape)
        if world.exposed:
            size = np.stack([np.exp(rng.uniform(np.log(0.1), np.log(10), len(at))) for rng in luck])
        y = np.stack([world.outcomes(*each) for each in zip(own, size, luck, strict=True)])
        outcome = Outcome(y, y[..., None], size=size[..., None] if world.exposed else None)
        learned = policy.observe(learned, offers, draw.action, outcome)
        expected[:, at] = np.vecdot(draw.probabilities[..., :K], means[:, place[at]])
        control[:, at] = draw.probabilities[..., 0]
        if number in looked:
            looks.append(look(policy.learner, policy.settle(learned).evidence, looked_at, means))
    held, held_99, widths, held_at, held_always = (np.stack(parts, 1) for parts in zip(*looks, strict=True))
    short = means[:, place, 0] - expected
    return Result(
        held=held, held_99=held_99, width=widths, held_at=held_at, held_always=held_always,
        broken=(short > world.tolerance + 1e-9).mean(-1),
        lost=(means[:, place].max(-1) - expected).mean(-1),
        control=control.mean(-1),
    )  # fmt: skip


def offers_to(state: TrialState, names: list[str], trials: int) -> Offer:
    none = [None] * len(names)
    return state.problem.offer([state.profile(name) for name in names], none, none).broadcast((trials, len(names)))


def rival(policy: Any, name: str, places: int) -> Policy:
    """A bandit of the literature on the same offers and outcomes."""
    optimistic = name == OFUGLB
    learner = Logistic(inner=policy.learner, places=places, optimistic=optimistic)
    return Policy(learner=learner, rule=Greedy() if optimistic else Thompson(), guard=Off())


def look(learner: Field | Logistic, evidence: Any, offers: Offer, means: FloatArray) -> tuple[FloatArray, ...]:
    """Whether ranges hold, and how wide they are; rivals have none."""
    if isinstance(learner, Logistic):
        S, G, K = means.shape
        none = np.full((S, K - 1), np.nan)
        return none, none, none, np.full((S, G, K - 1), np.nan), none
    model, truth = FittedModel.of(learner, evidence), means - means[..., :1]  # (S, G, K)
    together = effects_together(model, offers, np.ones(offers.control.shape, bool)).at((..., slice(1, len(ARMS)), 0))
    own = effects_of_users(model, offers).at((..., slice(1, len(ARMS)), 0))
    low, high = ends(together, 0.95)
    return (
        holds(together, truth[..., 1:].mean(1), 0.95),
        holds(together, truth[..., 1:].mean(1), 0.99),
        high - low,
        holds(own, truth[..., 1:], 0.95),
        within(together.at_all_times(), truth[..., 1:].mean(1)),
    )


def ends(effect: EffectPosterior, level: float) -> tuple[FloatArray, FloatArray]:
    half = effect.quantile(0.5 + level / 2)
    return effect.mean - half * effect.below, effect.mean + half * effect.above


def holds(effect: EffectPosterior, truth: FloatArray, level: float) -> FloatArray:
    return within(ends(effect, level), truth)


def within(ends: tuple[FloatArray, FloatArray], truth: FloatArray) -> FloatArray:
    low, high = ends
    return ((low <= truth) & (truth <= high)).astype(np.float64)


HEADINGS = (
    "world", "policy", "trials", "95 %", "99 %", "early", "always", "places", "better", "harmful", "width",
    "broken, of 10,000", "control", "lost x 1,000",
)  # fmt: skip


def row(result: Result) -> list[str]:
    """Cells: means over trials with standard errors."""

    def cell(values: FloatArray, scale: float = 100.0, digits: int = 3) -> str:
        v = scale * values.reshape(len(values), -1).mean(-1)
        error = v.std(ddof=1) / np.sqrt(len(v)) if len(v) > 1 else np.nan
        return f"{v.mean():.{digits}g} ± {error:.2g}"

    end = result.held[:, -1]
    return [
        cell(end), cell(result.held_99[:, -1]), cell(result.held[:, 0]),
        cell(result.held_always.min(1)), cell(result.held_at[:, -1]),
        cell(end[:, BETTER - 1]), cell(end[:, HARMFUL - 1]), cell(result.width[:, -1], 1.0),
        cell(result.broken, 1e4), cell(result.control, 1.0), cell(result.lost, 1e3, 4),
    ]  # fmt: skip


def blocks(options: argparse.Namespace) -> Iterator[tuple[str, str, Trials]]:
    """A block of every world and policy, then the next block of each."""
    for start in range(options.first, options.first + options.trials, BLOCK):
        seeds = tuple(range(start, min(start + BLOCK, options.first + options.trials)))
        for name in options.world:
            for policy in options.policy:
                yield name, policy, Trials(world=WORLDS[name], policy=policy, looks=options.looks, seeds=seeds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table: means over trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--first", type=int, default=120_000, help="seed of the first trial")
    parser.add_argument("--world", choices=WORLDS, nargs="*", default=list(WORLDS))
    parser.add_argument("--policy", choices=POLICIES, nargs="*", default=list(POLICIES)[:2])
    parser.add_argument("--looks", type=int, default=LOOKS, help="of each trial; with 1 only at its end")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no further trials are begun")
    parser.add_argument("--out", type=Path, default=Path("out/bench/outcomes"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    end, done = time.monotonic() + 60 * options.minutes, dict[tuple[str, str], list[Result]]()
    for name, policy, block in blocks(options):
        path = options.out / f"{block.key()}.npz"
        if not path.exists():
            if time.monotonic() > end:
                continue
            save(block.run(), path)
        done.setdefault((name, policy), []).append(load(Result, path))
    print(f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|")
    for (name, policy), results in done.items():
        whole = Result.concatenate(results)
        print(f"| {name} | {policy} | {len(whole.lost)} | {' | '.join(row(whole))} |")


if __name__ == "__main__":
    main()
