"""Worlds of trials: sites, seasons, blocks and covariates have effects of their own, as in public field trials.

    y = level + trend + arm + site + site x arm + covariates + season + block + season x arm + noise

No draw depends on a decision, so all designs and policies meet the same worlds: everything comes from streams named by
seed and purpose. `TrialWorld` is the truth of every simulated trial; `FieldWorld` puts it behind the offers of a
benchmark, drimed.rehearsal.scenarios behind those of a trial file.
Shapes: S seeds, L seasons, n plots of a season, G sites, K arms, M metrics, c covariates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self, final

import numpy as np
from scipy.special import betaincinv, nbdtrik, ndtr, pdtrik

from drimed import streams
from drimed.models.offer import Floor, Offer, Outcome, Shape, Unit
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, check_settings, pick
from drimed.simulation.worlds import Scenario, Stage

RANGE = 100.0  # the range that a trialist would declare for a metric; learners are told outcomes in units of it
DEPARTURE = 0.5  # arms differ from each other by less than levels do from zero: half as much, before any data

HEALTH = ("homogeneous", "heterogeneous", "nonlinear")
THETA = (1.0, 0.5, -4.0)  # mobile health: effect of acting, constant, s1, s2
BASELINE = (2.0, -2.0, 3.0)
BUMPS, STEPS = 8, 4  # of the nonlinear baseline
WIDTH = 0.4  # of a bump
WEARS_OFF, WOBBLE = 6.0, 0.2
POISSON = 1.01  # Pearson's scale up to which a count follows Poisson's law
LEAST_COUNT = 1e-6  # mean of a count that would be negative
SURE, MOST_PHI = 1e-6, 0.9  # of a score: its mean's distance from the ends, as a share, and its scale


@final
@dataclass(frozen=True, kw_only=True)
class TrialSetting:
    """Sizes of all effects, in the units of the metrics."""

    seasons: int
    level: FloatArray  # (M,), of the control in the first season
    effects: FloatArray  # (K, M)
    spread: FloatArray  # (M,), standard deviation of arms' effects around those; so are the following
    noise: FloatArray
    site: FloatArray
    season: FloatArray
    block: FloatArray
    site_arm: FloatArray
    season_arm: FloatArray
    covariates: FloatArray  # of a covariate's slope on the level
    covariate_effects: FloatArray  # and on each arm's effect
    trend: FloatArray  # (M,), of the level, for each season
    fading: FloatArray  # (K, M), of arms' effects, for each season
    bounds: FloatArray  # (M, 2), of outcomes; infinite: none
    correlation: float  # between the noise of any two metrics of a plot
    drift: float = 0.0  # of contexts, for each season, in spreads
    delay: int = 0  # seasons until outcomes are told
    dropout: float = 0.0  # share of outcomes that never come
    kinds: tuple[str, ...] = ()  # of the metrics: number, yes/no, count, score; (): numbers


class Response(NamedTuple):
    """Outcomes of a season in the units of the metrics."""

    y: FloatArray  # (S, n, M)
    control: FloatArray  # (S, n, M), of a control plot beside each
    observed: BoolArray  # (S, n)
    size: FloatArray | None = None  # (s,), of metrics with sizes; None: 1 each


def quantile(kind: str, mean: FloatArray, share: FloatArray, phi: float | FloatArray = 1.0) -> FloatArray:
    """Of outcomes with these means, a score's as a share of its range; `phi` is Pearson's scale.

    >>> [float(quantile(kind, np.array(0.3), np.array(0.8))) for kind in ("yes/no", "count")]
    [1.0, 1.0]
    """
    if kind == "yes/no":
        return (share > 1 - mean).astype(np.float64)
    if kind == "score":
        weight, mean = 1 / np.minimum(phi, MOST_PHI) - 1, np.clip(mean, SURE, 1 - SURE)
        return np.asarray(betaincinv(weight * mean, weight * (1 - mean), share))
    mean = np.maximum(mean, LEAST_COUNT)
    found = nbdtrik(share, mean / (phi - 1), 1 / phi) if phi > POISSON else pdtrik(share, mean)
    return np.asarray(np.ceil(np.maximum(found, 0.0)))


@final
@dataclass(frozen=True, kw_only=True)
class TrialWorld:
    """The truth of one trial for each seed."""

    setting: TrialSetting
    seeds: Sequence[int]
    sites: Sequence[str]  # G names
    site: Sequence[IntArray]  # (n,) of each season, the plots' sites
    block: Sequence[IntArray]  # (n,) of each season, their blocks within the site; 0: none
    references: Sequence[int] = ()  # arms without random effects of their own: others differ from them
    on_level: BoolArray | None = None  # (c,), covariates with a slope on the level,
    on_effects: BoolArray | None = None  # (c,), and on arms' effects
    site_levels: Mapping[str, FloatArray] = field(default_factory=dict)  # (M,), of sites that are known; else drawn

    def means(self, season: int, covariates: FloatArray | None = None) -> FloatArray:
        """Mean outcome of each arm in each plot, in an average season like this one: (S, n, K, M)."""
        s = self.setting
        lasting = self.lasting[:, self.site[season]] + s.trend * season + s.fading * season
        means = lasting + self.of_covariates(covariates, lasting.shape[:-2])
        for m, kind in enumerate(s.kinds):  # no mean is impossible
            if kind != "number":
                ends = {"yes/no": (0.0, 1.0), "count": (0.0, np.inf)}.get(kind, s.bounds[m])
                means[..., m] = np.clip(means[..., m], *ends)
        return means

    def respond(self, season: int, action: IntArray, means: FloatArray, control: IntArray) -> Response:
        """Outcomes of these arms (S, n), and of control arms (n,) beside them."""
        own, beside = self.noise(season)
        mean = means + self._of_season(season)  # (S, n, K, M)
        plot = np.broadcast_to(control, action.shape)
        y, y0 = (np.take_along_axis(mean, a[..., None, None], -2)[..., 0, :] for a in (action, plot))
        low, high = self.setting.bounds.T
        observed = np.ones(action.shape, bool)
        if self.setting.dropout:
            n = action.shape[1]
            drawn = [streams.uniforms(int(i), f"dropout {season}", 0, n, 1)[:, 0] for i in self.seeds]
            observed = np.stack(drawn) >= self.setting.dropout
        y, y0 = (self._outcomes(mean, noise) for mean, noise in ((y, own), (y0, beside)))
        return Response(np.clip(y, low, high), np.clip(y0, low, high), observed)

    def _outcomes(self, mean: FloatArray, noise: FloatArray) -> FloatArray:
        """Outcomes with these means (..., M): of other kinds than numbers the noise only says how lucky they are."""
        y = mean + noise
        for m, kind in enumerate(self.setting.kinds):
            if kind != "number":
                low, high = self.setting.bounds[m] if kind == "score" else (0.0, 1.0)
                share, sd = (mean[..., m] - low) / (high - low), self.setting.noise[m]
                lucky, phi = ndtr(noise[..., m] / sd), (sd / (high - low)) ** 2 / np.maximum(share * (1 - share), SURE)
                y[..., m] = low + (high - low) * quantile(kind, share, lucky, phi if kind == "score" else 1.0)
        return y

    @cached_property
    def lasting(self) -> FloatArray:
        """Mean outcome of each arm at each site in the first season, without covariates: (S, G, K, M)."""
        s, (K, _), G = self.setting, self.setting.effects.shape, len(self.sites)
        arm = self._normal("arms", s.spread, K)
        site = self._normal("sites", s.site, G)[:, :, None, :]
        both = self._normal("sites and arms", s.site_arm, G, K)
        arm[:, list(self.references)] = 0.0
        both[:, :, list(self.references)] = 0.0
        for name, level in self.site_levels.items():
            site[:, [i for i, own in enumerate(self.sites) if own == name]] = level
        return s.level + s.effects + arm[:, None] + site + both

    @cached_property
    def season_effects(self) -> tuple[FloatArray, FloatArray]:
        """Of each season on all arms, and on each: (S, L, M), (S, L, K, M)."""
        s = self.setting
        level = self._normal("seasons", s.season, s.seasons)
        return level, self._normal("seasons and arms", s.season_arm, s.seasons, len(s.effects))

    @cached_property
    def block_effects(self) -> FloatArray:
        """Of each block of a site in each season; without blocks a site is one: (S, L, B, G, M)."""
        s = self.setting
        B = 1 + max(int(block.max()) for block in self.block)
        return self._normal("blocks", s.block, s.seasons, B, len(self.sites))

    @cached_property
    def slopes(self) -> tuple[FloatArray, FloatArray]:
        """Of each covariate on the level, and on each arm: (S, c, M), (S, c, K, M)."""
        on_level, on_effects = np.asarray(self.on_level), np.asarray(self.on_effects)
        c, K = len(on_level), len(self.setting.effects)
        level = self._normal("slopes", self.setting.covariates, c) * on_level[:, None]
        arm = self._normal("slopes of arms", self.setting.covariate_effects, c, K) * on_effects[:, None, None]
        arm[:, :, list(self.references)] = 0.0
        return level, arm

    def of_covariates(self, z: FloatArray | None, lead: tuple[int, ...]) -> FloatArray:
        """Contribution of standardised covariates (..., c): (S, n, K, M), or () without any."""
        if z is None:
            return np.zeros(())
        level, arm = self.slopes
        z = np.broadcast_to(z, (*lead, z.shape[-1]))
        return np.asarray(np.einsum("snc,scm->snm", z, level)[..., None, :] + np.einsum("snc,sckm->snkm", z, arm))

    def noise(self, season: int) -> tuple[FloatArray, FloatArray]:
        """Of each plot, and of a control plot beside it: (S, n, M) twice."""
        s, n, M = self.setting, len(self.site[season]), len(self.setting.noise)
        z = per_seed(self.seeds, f"noise {season}", lambda rng: rng.standard_normal((2, n, M + 1)))
        own, shared = (1.0, 0.0) if M == 1 else (np.sqrt(1 - s.correlation), np.sqrt(s.correlation))
        noise = s.noise * (own * z[..., :M] + shared * z[..., M:])
        return noise[:, 0], noise[:, 1]

    def _of_season(self, season: int) -> FloatArray:
        """Effects of a season in each plot: (S, n, K, M)."""
        at = self.site[season]
        level, arm = self.season_effects
        block = self.block_effects[:, season, self.block[season], at]
        return np.asarray(level[:, season, None, None, :] + block[..., None, :] + arm[:, season, None, :, :])

    def _normal(self, name: str, sd: FloatArray, *shape: int) -> FloatArray:
        if not sd.any():
            return np.zeros((len(self.seeds), *shape, len(sd)))
        return sd * per_seed(self.seeds, name, lambda rng: rng.standard_normal((*shape, len(sd))))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Deviations:
    """Standard deviations of each kind of effect; the default is a barley trial with a residual deviation of 10."""

    residual: float = 10.0
    block: float = 13.0
    season: float = 17.0
    site: float = 12.0
    arm: float = 8.0
    site_arm: float = 5.0
    season_arm: float = 5.0

    def __post_init__(self) -> None:
        check_settings(self, not_negative=tuple(f.name for f in fields(self)))


@final
@dataclass(frozen=True, kw_only=True)
class FieldSetting(Scenario):
    """The shape of a field; all metrics count alike."""

    arms: int = 5
    sites: int = 6
    plots: int = 2  # decisions of one site in one season
    seasons: int = 10
    metrics: int = 1
    level: float = 60.0
    deviations: Deviations = Deviations()
    correlation: float = 0.5  # between the noise of any two metrics of a plot
    advantage: float = 0.0  # added to the last arm everywhere
    shortfall: float = 0.0  # taken from every arm but the control everywhere
    floor: float = 0.0  # the least chance of the control in every decision

    def __post_init__(self) -> None:
        sizes = ("arms", "sites", "plots", "seasons", "metrics")
        check_settings(self, count=sizes, below_one=("correlation", "floor"))

    def lasting(self, episodes: int) -> Self:
        return replace(self, seasons=episodes)

    def world(self, seeds: Sequence[int]) -> FieldWorld:
        return FieldWorld(self, seeds)


def maps_by_name(arms: int, metrics: int) -> FloatArray:
    """Arms that nothing describes: a level that all share, and each arm's departure from it: (K, M, (1 + K) M)."""
    level_and_arm = np.concatenate([np.ones((arms, 1)), DEPARTURE * np.eye(arms)], -1)
    return np.kron(level_and_arm[:, None, :], np.eye(metrics))


@final
@dataclass(frozen=True)
class FieldWorld:
    """A trial world for each seed behind the offers of the paper's model; the first arm is the control.

    All plots of a season are decided at once, and offers say at which site each plot is.
    """

    setting: FieldSetting
    seeds: Sequence[int]

    at_once: ClassVar[bool] = True

    @cached_property
    def truth(self) -> TrialWorld:
        """Effects and outcomes; the control has random effects as any other arm."""
        s, sd = self.setting, self.setting.deviations
        sizes: dict[str, Any] = {
            "level": s.level, "spread": sd.arm, "noise": sd.residual, "site": sd.site, "season": sd.season,
            "block": sd.block, "site_arm": sd.site_arm, "season_arm": sd.season_arm, "trend": 0.0,
            "covariates": 0.0, "covariate_effects": 0.0,
        }  # fmt: skip
        effects = np.zeros((s.arms, s.metrics))
        effects[-1] += s.advantage
        effects[1:] -= s.shortfall
        setting = TrialSetting(
            seasons=s.seasons, effects=effects, fading=np.zeros(effects.shape), correlation=s.correlation,
            bounds=np.tile([-np.inf, np.inf], (s.metrics, 1)),
            **{name: np.full(s.metrics, size) for name, size in sizes.items()},  # type: ignore[arg-type]
        )  # fmt: skip
        site = np.repeat(np.arange(s.sites), s.plots)
        return TrialWorld(
            setting=setting, seeds=self.seeds, sites=[str(i) for i in range(s.sites)],
            site=[site] * s.seasons, block=[np.zeros_like(site)] * s.seasons,
        )  # fmt: skip

    @property
    def shape(self) -> Shape:
        """A level that all arms share and each arm's departure from it, for each metric; users are sites."""
        s = self.setting
        return Shape(d=(1 + s.arms) * s.metrics, K=s.arms, M=s.metrics, H=s.sites)

    @property
    def episodes(self) -> int:
        return self.setting.seasons

    @property
    def rewards(self) -> FloatArray:
        """Mean reward of each arm at each site, in an average season without trend: (S, G, K)."""
        return np.asarray(self.truth.lasting.mean(-1))

    def blocks(self) -> Iterator[Stage]:
        s = self.setting
        plots = s.sites * s.plots
        offers = self.offers(np.repeat(np.arange(s.sites), s.plots))
        means = np.repeat(self.rewards, s.plots, 1).swapaxes(0, 1)[None]

        for season in range(s.seasons):

            def outcomes(action: IntArray, season: int = season) -> Outcome:
                y = self.respond(season, action)
                return Outcome(y.mean(-1), y / RANGE)

            yield Stage(season * plots, offers, means, outcomes, self)

    def respond(self, season: int, action: IntArray) -> FloatArray:
        """Outcomes of a season: action (S, n) -> (S, n, M)."""
        control = np.zeros(action.shape[-1], np.intp)
        return self.truth.respond(season, action, self.truth.means(season), control).y

    def offers(self, sites: IntArray) -> Offer:
        """Offers to plots at these sites (n,): batch (S, n)."""
        s, lead = self.setting, (len(self.seeds), len(sites))
        maps = maps_by_name(s.arms, s.metrics)
        preference = np.full(s.metrics, RANGE / s.metrics)
        features = np.matvec(np.swapaxes(maps, -1, -2), preference)
        alike: dict[str, Any] = {"features": features, "control": np.eye(s.arms)[0], "maps": maps,
                                 "preference": preference}  # fmt: skip
        alike = {name: np.broadcast_to(array, (*lead, *array.shape)) for name, array in alike.items()}
        floor = Floor(control=np.full(lead, s.floor), arms=np.zeros(lead)) if s.floor else None
        return Offer(**alike, user=sites, unit=Unit(user=sites, group=sites), floor=floor)


@final
@dataclass(frozen=True, kw_only=True)
class HealthSetting(Scenario):
    """Mobile health: people who join one by one and decide again and again."""

    kind: str = "homogeneous"
    stages: int = 200

    seeds_per_block: ClassVar[int] = 5  # every outcome of every person is kept

    def __post_init__(self) -> None:
        check_settings(self, {"kind": HEALTH}, count=("stages",))

    def lasting(self, episodes: int) -> Self:
        return replace(self, stages=episodes)

    def world(self, seeds: Sequence[int]) -> MobileHealth:
        return MobileHealth(self, seeds)


@final
@dataclass(frozen=True)
class MobileHealth:
    """The settings of Huch et al. (2024), appendix A.1, one study for each seed; n users decide at stage n.

        reward = g(s) + a (1, s1, s2) . theta_user + N(0, 1),   s uniform on [-1, 1]^2,   a = 0 or 1

    Homogeneous: one theta for all. Heterogeneous: each user's theta has N(0, I) added. Nonlinear: a baseline of bumps
    and steps besides, drawn for each seed, and an effect that wears off with the time since joining. The control is
    not to act. Features are each arm's own constant and slopes; s are covariates of the user.
    """

    setting: HealthSetting
    seeds: Sequence[int]

    at_once: ClassVar[bool] = True

    @property
    def shape(self) -> Shape:
        """Two arms with a constant and two slopes each; as many users as stages."""
        return Shape(d=6, K=2, M=1, H=self.episodes)

    @property
    def episodes(self) -> int:
        return self.setting.stages

    def blocks(self) -> Iterator[Stage]:
        for stage in range(self.episodes):
            states = self.states(stage)
            effect = self.effects(stage, states)
            means = self._baseline(states)[..., None] + effect[..., None] * np.arange(2.0)
            drawn = (streams.generator(int(s), f"noise {stage}").standard_normal(stage + 1) for s in self.seeds)
            noise = np.stack(list(drawn))

            def outcomes(action: IntArray, means: FloatArray = means, noise: FloatArray = noise) -> Outcome:
                reward = pick(means, action) + noise
                return Outcome(reward, reward[..., None])

            yield Stage(stage * (stage + 1) // 2, self._offers(states), means.swapaxes(0, 1)[None], outcomes, self)

    @cached_property
    def theta(self) -> FloatArray:
        """Effects by user: (S, users, 3)."""
        own = per_seed(self.seeds, "users", lambda rng: rng.standard_normal((self.episodes, 3)))
        return np.asarray(THETA + (0.0 if self.setting.kind == "homogeneous" else 1.0) * own)

    @cached_property
    def wearing(self) -> FloatArray:
        """Additions to theta, by stages since joining: (S, stages, 3)."""
        L = self.episodes
        if self.setting.kind != "nonlinear":
            return np.zeros((len(self.seeds), L, 3))
        decay = 1 / (1 + WEARS_OFF * np.arange(L)[:, None] / L)

        def draw(rng: np.random.Generator) -> FloatArray:
            return decay * rng.standard_normal(3) + WOBBLE * rng.standard_normal((L, 3))

        return np.asarray(per_seed(self.seeds, "wearing off", draw))

    def states(self, stage: int) -> FloatArray:
        """s of the users who decide at stage `stage` (from 0): (S, stage + 1, 2)."""
        return 2 * np.stack([streams.uniforms(int(s), f"states {stage}", 0, stage + 1, 2) for s in self.seeds]) - 1

    def effects(self, stage: int, states: FloatArray) -> FloatArray:
        """The mean difference that acting makes: (S, stage + 1)."""
        users = np.arange(stage + 1)
        theta = self.theta[:, users] + self.wearing[:, stage - users]
        return theta[..., 0] + np.vecdot(states, theta[..., 1:])

    def _baseline(self, states: FloatArray) -> FloatArray:
        mean = BASELINE[0] + states @ np.asarray(BASELINE[1:])
        for i, seed in enumerate(self.seeds if self.setting.kind == "nonlinear" else ()):
            g = streams.generator(int(seed), "baseline")
            centres, heights = g.uniform(-1, 1, (BUMPS, 2)), 3 * g.standard_normal(BUMPS)
            cuts, rises = g.uniform(-1, 1, STEPS), g.standard_normal(STEPS)
            distance = ((states[i, :, None, :] - centres) ** 2).sum(-1)
            mean[i] += np.exp(-distance / (2 * WIDTH**2)) @ heights + (states[i, :, :1] > cuts) @ rises
        return np.asarray(mean)

    def _offers(self, states: FloatArray) -> Offer:
        """Offers to the users of a stage in states (S, n, 2): batch (S, n)."""
        lead, users = states.shape[:-1], np.arange(states.shape[-2])
        features = np.zeros((*lead, 2, 6))
        features[..., 0, 0] = features[..., 1, 3] = 1.0
        features[..., 0, 1:3] = features[..., 1, 4:] = states
        return Offer(
            features=features, control=np.broadcast_to([1.0, 0.0], (*lead, 2)), maps=features[..., None, :],
            preference=np.ones((*lead, 1)), user=users, unit=Unit(user=users, group=users, covariates=states),
        )  # fmt: skip


def per_seed(seeds: Sequence[int], name: str, draw: Callable[[np.random.Generator], Any]) -> Any:
    """A draw from the stream of that name of each seed: (S, ...)."""
    return np.stack([draw(streams.generator(int(seed), name)) for seed in seeds])
