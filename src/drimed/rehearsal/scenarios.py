"""Scenarios of a rehearsal, written or estimated from the past, and the worlds of simulated trials that they describe.

Defaults come from the trial file: a range of plausible values is three standard deviations of single outcomes to either
side, which sites, seasons, blocks and single plots share as in public field trials (docs/rehearse.md).
Shapes: S trials, n decisions of a season, H users, G sites, K arms, M metrics, D context fields.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from drimed import streams
from drimed.errors import InputError, SpecError, UnknownNameError
from drimed.formatting import amount, percent
from drimed.models.offer import Offer
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.records import Fault
from drimed.simulation.trial_world import Response, TrialSetting, TrialWorld, per_seed
from drimed.trial import spec as trial_file
from drimed.trial.ask import Place, places
from drimed.trial.dataset import Dataset
from drimed.trial.events import Calibration, Created, Draft, HistoryRead, PastUnit, chain
from drimed.trial.problem import Profile, block_key
from drimed.trial.spec import Cohort, Metric, Name, TrialSpec, User
from drimed.trial.spec_faults import pydantic_faults
from drimed.trial.state import TrialState

SEASONS = 6  # where nothing says how many
PEOPLE = 20  # who come in each season, where people join and nothing says how many
ROUND_OFF = 1e-9  # of everything else: what is left where nothing was repeated
DEVIATIONS = 6.0  # standard deviations of single outcomes in a range of plausible values
# Kinds of variation relative to that of single plots: the middle of public variety trials.
SHARES = {"site": 0.6, "season": 0.6, "block": 0.8, "site_arm": 0.25, "season_arm": 0.25}
COVARIATES = 0.3  # the same, of what one spread of a covariate does to the level
TREND = 0.5  # by which a level rises from season to season in the scenario of a trend, relative to single plots
HARM = 2.0  # differences that matter by which a harmful arm is worse
NOISY = 2.0  # times the usual variation in the scenario of pessimistic noise
SCORE_SHARE = 0.25  # of the range of a score: the deviation of single ones
LINK_SHARE = 0.3  # the deviation between places relative to single outcomes, where they are not numbers
NAME = "scenarios"  # of the table in a file
SWEEPS = 200  # of the fit of a table of the past by site and season plus arm: far more than it needs
FEWEST_REPEATS = 5  # degrees of freedom from plots of one arm at one site in one season, to estimate their noise

ByMetric = dict[Name, trial_file.Finite]
Deviations = dict[Name, trial_file.NotNegative]


class Scenario(trial_file.Part):
    """One world; everything is in the units of the metrics, and anything may be left out."""

    about: trial_file.Text = ""
    seasons: Annotated[int, Field(ge=1, le=1000)] | None = None
    users: Annotated[int, Field(ge=1, le=100_000)] | None = None  # who come in each season, where people join
    level: ByMetric | None = None  # of the control in the first season
    effects: dict[Name, ByMetric] = Field(default_factory=dict)  # of arms, added to the control's level
    spread: Deviations = Field(default_factory=dict)  # of arms' effects around those, drawn for each trial
    noise: Deviations | None = None  # standard deviation of single plots
    correlation: Annotated[float, Field(ge=0, lt=1)] = 0.3  # between the noise of any two metrics of a plot
    site: Deviations | None = None
    season: Deviations | None = None
    block: Deviations | None = None
    site_arm: Deviations | None = None
    season_arm: Deviations | None = None
    covariates: Deviations | None = None  # of what one spread of a covariate does to the level
    covariate_effects: Deviations = Field(default_factory=dict)  # and to the effect of each arm
    trend: ByMetric = Field(default_factory=dict)  # of the level, for each season
    fading: dict[Name, ByMetric] = Field(default_factory=dict)  # what arms' effects gain or lose with each season
    drift: trial_file.Finite = 0.0  # of contexts, for each season, in spreads
    delay: Annotated[int, Field(ge=0, le=100)] = 0  # seasons until outcomes are told
    dropout: trial_file.Share = 0.0  # of outcomes that never come


def load(path: Path, scenario_file: Path | None = None) -> tuple[TrialSpec, dict[str, Scenario]]:
    """A trial file with its scenarios, or those of a file of their own; faults of both are told at once."""
    text, data = trial_file.read_file(path)
    spec, scenarios, faults = None, {}, list[Fault]()
    try:
        spec = TrialSpec.read(data, text)
    except SpecError as error:
        faults += error.faults
    try:
        scenarios = read(spec, data.get(NAME, {}) if isinstance(data, dict) else {}, text)
    except SpecError as error:
        faults += error.faults
    if spec is None or faults:
        raise SpecError(faults)
    if scenario_file is None:
        return spec, scenarios
    text, data = trial_file.read_file(scenario_file)
    if not isinstance(data, dict) or set(data) != {NAME}:
        raise InputError(f"{scenario_file.name} must have tables [scenarios.NAME] and nothing else")
    return spec, read(spec, data[NAME], text)


def read(spec: TrialSpec | None, data: Any, text: str = "") -> dict[str, Scenario]:
    """Scenarios from plain data, checked against the trial where there is one; faults have the lines of `text`."""
    if not isinstance(data, Mapping):
        raise SpecError([Fault((NAME,), "must be tables, one for each scenario: [scenarios.NAME]")])
    scenarios, faults = {}, []
    for name, table in data.items():
        try:
            scenarios[name] = Scenario.model_validate(table)
            own: Iterable[Fault] = () if spec is None else contradictions(spec, scenarios[name])
        except ValidationError as error:
            own = pydantic_faults(error, Scenario)
        faults += [Fault((NAME, name, *f.path), f.message) for f in own]
    if faults:
        raise SpecError(trial_file.with_lines(text, faults) if text else faults)
    return scenarios


def contradictions(spec: TrialSpec, scenario: Scenario) -> Iterator[Fault]:
    """Faults of a scenario of arms, metrics or users that the trial does not have."""
    metrics, arms, controls = list(spec.metrics), list(spec.arms), control_arms(spec)
    tables: dict[tuple[str, ...], Mapping[str, float] | None] = {
        (name,): getattr(scenario, name)
        for name in ("noise", *SHARES, "level", "spread", "covariates", "covariate_effects", "trend")
    }
    for field in ("effects", "fading"):
        for arm, own in getattr(scenario, field).items():
            tables[field, arm] = own
            if arm not in arms:
                yield Fault((field, arm), str(UnknownNameError("arm", arm, arms)))
            elif arm in controls and any(own.values()):
                yield Fault(
                    (field, arm), f"{arm!r} is the control, which effects are against: give its `level` instead"
                )
    for path, table in tables.items():
        for metric in table or ():
            if metric not in metrics:
                yield Fault((*path, metric), str(UnknownNameError("metric", metric, metrics)))
    if scenario.users is not None and not spec.enrols:
        yield Fault(("users",), "the users of the trial are in its file, and none join later; leave this out")
    if scenario.drift and not spec.context:
        yield Fault(("drift",), "the trial has no context that could drift")
    if scenario.dropout and spec.kind == "paper":
        yield Fault(("dropout",), "outcomes that never come can be rehearsed with the field model only; leave this out")


def usual(spec: TrialSpec, seasons: int | None = None) -> dict[str, Scenario]:
    sd, pull = residuals(spec, Scenario()), difference(spec)
    arms = [a for a in spec.arms if a not in control_arms(spec)]
    if not arms:
        raise InputError("every arm of the trial is the control of a user: give scenarios with the effects of arms")
    first, last, lose = arms[0], arms[-1], "the tolerance lets a decision lose"
    better, before = Scenario(seasons=seasons, effects={first: pull}), f"{first} is better as before, and"
    harm, rise, noise = ({m: size * v for m, v in of.items()} for size, of in ((-HARM, pull), (TREND, sd), (NOISY, sd)))
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        "no difference": ("all arms do the same", {"effects": {}, "site_arm": dict.fromkeys(spec.metrics, 0.0)}),
        "a difference that matters": (f"{first} is better by as much as {lose}", {}),
        "a harmful arm": (f"{last} is worse by twice what {lose}", {"effects": {last: harm}}),
        "a trend": (f"{before} everything rises from season to season", {"trend": rise}),
        "pessimistic noise": (f"{before} outcomes scatter twice as much", {"noise": noise}),
    }
    return {name: better.model_copy(update={"about": about} | own) for name, (about, own) in changes.items()}


def of_past(spec: TrialSpec, past: HistoryRead, seasons: int | None = None) -> dict[str, Scenario]:
    """Scenarios with differences and variation as estimated from the past; none where it does not have the control."""
    estimated, controls, metrics = Estimates.of(spec, past), control_arms(spec), list(spec.metrics)
    usual = dict(zip(estimated.arms, estimated.usual, strict=True))  # (M,) each
    if not (known := controls.intersection(usual)):
        return {}
    grown = dict(zip(estimated.arms, np.asarray(estimated.measured.any((0, 1))), strict=True))
    control = min(known)

    def by_metric(values: FloatArray, of: str = control) -> dict[str, float]:
        return {m: v for m, v, has in zip(metrics, values.tolist(), grown[of] & grown[control], strict=True) if has}

    sd: dict[str, Any] = {kind: by_metric(values) for kind, values in estimated.components.items()}
    common = sd | {"seasons": seasons, "level": by_metric(usual[control])}
    effects = {a: by_metric(usual[a] - usual[control], a) for a in spec.arms if a in usual and a not in controls}
    none = {"about": "all arms do the same; variation as in the past", "site_arm": dict.fromkeys(metrics, 0.0)}
    return {
        "as estimated from the past": Scenario(
            about="differences and variation as estimated from the past", effects=effects, **common
        ),
        "no difference": Scenario(**common | none),
    }


@dataclass(frozen=True)
class Estimates:
    """Means and components of variance of Y earlier seasons: random effects, by expected mean squares.

    Where an arm was not grown at a site in a season, its mean is that of the site and season, plus the arm's usual
    difference, plus one of the residuals from elsewhere.
    """

    sites: list[str]
    arms: list[str]
    mean: FloatArray  # (Y, G, K, M)
    measured: BoolArray  # (Y, G, K, M)
    within: FloatArray  # (M,), sum of squares of plots of one arm at one site in one season around their mean,
    freedom: FloatArray  # (M,), and its degrees of freedom

    @staticmethod
    def of(spec: TrialSpec, past: HistoryRead) -> Estimates:
        nothing = [None] * len(past.arm)
        y = np.array([past.metrics.get(m, nothing) for m in spec.metrics], np.float64).T  # (n, M)

        def site(unit: PastUnit) -> str:  # the group of a unit, or the unit itself where it has none
            name = unit["name"]
            return (spec.resolved(spec.users[name]).group if name in spec.users else unit["group"]) or name

        by_unit = [site(unit) for unit in past.units]
        sites = list(dict.fromkeys(by_unit))
        at = np.array(past.season), np.array([sites.index(by_unit[u]) for u in past.unit]), np.array(past.arm)
        total, count = np.zeros((2, len(past.seasons), len(sites), len(past.arms), len(spec.metrics)))
        np.add.at(total, at, np.where(np.isfinite(y), y, 0.0))
        np.add.at(count, at, np.isfinite(y))
        mean, measured = total / np.maximum(count, 1), count > 0
        within = np.where(np.isfinite(y), (y - mean[at]) ** 2, 0.0).sum(0)
        for m in np.flatnonzero(measured.any((0, 1, 2))).tolist():
            mean[..., m] = _fill_in(mean[..., m], measured[..., m], m)
        return Estimates(sites, past.arms, mean, measured, within, np.maximum(count - 1, 0).sum((0, 1, 2)))

    @cached_property
    def components(self) -> dict[str, FloatArray]:
        """Standard deviations by kind, named as in a scenario: (M,) each."""
        x = self.mean
        Y, G, K, _ = x.shape
        y, g, a, grand = (x.mean(axes, keepdims=True) for axes in ((1, 2), (0, 2), (0, 1), (0, 1, 2)))
        yg, ya, ga = (x.mean(axis, keepdims=True) for axis in (2, 1, 0))

        def square(effect: FloatArray, plots: int, freedom: int) -> FloatArray:
            return np.asarray((effect**2).sum((0, 1, 2)) * plots / max(freedom, 1))

        e = square(x - yg - ya - ga + y + g + a - grand, 1, (Y - 1) * (G - 1) * (K - 1))
        s_yg = square(yg - y - g + grand, K, (Y - 1) * (G - 1))
        s_ya = square(ya - y - a + grand, G, (Y - 1) * (K - 1))
        s_ga = square(ga - g - a + grand, Y, (G - 1) * (K - 1))
        s_y, s_g = square(y - grand, G * K, Y - 1), square(g - grand, Y * K, G - 1)
        variances = {
            "noise": np.where(self.freedom >= FEWEST_REPEATS, self.within / np.maximum(self.freedom, 1), e),
            "site": (s_g - s_yg - s_ga + e) / (Y * K) * (G > 1),
            "season": (s_y - s_yg - s_ya + e) / (G * K) * (Y > 1),
            "block": (s_yg - e) / K * (Y > 1 and G > 1),
            "site_arm": (s_ga - e) / Y * (G > 1),
            "season_arm": (s_ya - e) / G * (Y > 1),
        }
        return {kind: np.sqrt(np.maximum(v, 0.0)) for kind, v in variances.items()}

    @property
    def usual(self) -> FloatArray:
        """The mean of each arm over sites, each over the seasons in which it was there: (K, M)."""
        return np.asarray(((self.mean * self._present[..., None, :]).sum(0) / self._present.sum(0)[:, None]).mean(0))

    @property
    def site_levels(self) -> dict[str, FloatArray]:
        """Of each site against the others of its seasons, by name: (M,) each."""
        level, here = self.mean.mean(2), self._present  # (Y, G, M) and (Y, G, 1)
        season = (level * here).sum(1, keepdims=True) / here.sum(1, keepdims=True)
        return dict(zip(self.sites, ((level - season) * here).sum(0) / here.sum(0), strict=True))

    @cached_property
    def _present(self) -> BoolArray:
        """Whether anything was measured at a site in a season: (Y, G, 1)."""
        return np.asarray(self.measured.any((-2, -1)))[..., None]


def _fill_in(y: FloatArray, measured: BoolArray, stream: int) -> FloatArray:
    """Fill in (Y, G, K) by site and season plus arm, with a residual from elsewhere."""
    arm, overall = np.zeros(y.shape[-1]), float(y[measured].mean())
    in_season, of_arm = measured.sum(-1), np.maximum(measured.sum((0, 1)), 1)
    level = np.full(y.shape[:2], overall)
    for _ in range(SWEEPS):
        sums = np.where(measured, y - arm, 0.0).sum(-1)
        level = np.where(in_season > 0, sums / np.maximum(in_season, 1), overall)
        arm = np.where(measured, y - level[..., None], 0.0).sum((0, 1)) / of_arm
        arm -= arm.mean()
    fitted = level[..., None] + arm
    residuals = streams.generator(stream, "filled in").choice((y - fitted)[measured], y.shape)
    return np.where(measured, y, fitted + residuals)


def residuals(spec: TrialSpec, scenario: Scenario) -> dict[str, float]:
    """The standard deviation of single plots, by metric."""
    return {metric: sd for metric, (sd, _) in residuals_with_source(spec, scenario).items()}


def residuals_with_source(spec: TrialSpec, scenario: Scenario) -> dict[str, tuple[float, str]]:
    """The same with the source of each: the scenario, a declared spread, or what the range makes plausible."""
    share = 1 / float(np.linalg.norm((1.0, *SHARES.values())))
    level, deviations = levels(spec, scenario), {}
    for name, metric in spec.metrics.items():
        tables = [scenario.level, *(getattr(scenario, kind) for kind in SHARES)]
        scale = max(abs((table or {}).get(name, 0.0)) for table in tables)
        stated, declared = (scenario.noise or {}).get(name, 0.0), metric.spread or (spec.noise.sd or {}).get(name)
        if stated > ROUND_OFF * scale:
            deviations[name] = stated, "as the scenario says"
        elif declared:
            deviations[name] = declared, "as declared"
        elif metric.kind != "number":
            deviations[name] = deviation_of_kind(metric, level[name]), f"as {metric.kind} outcomes scatter"
        elif metric.range is None:
            nothing = f"{stated:.0e} beside {scale:.3g} is round-off, and " if stated else ""
            raise InputError(
                f"{nothing}nothing says how much metric {name!r} scatters: give it a spread or a range in the trial "
                "file, or scenarios with `noise`"
            )
        else:
            sd = share * float(np.ptp(metric.range)) / DEVIATIONS
            deviations[name] = sd, "its range is taken as six deviations of all outcomes; better declare a spread"
    return deviations


def levels(spec: TrialSpec, scenario: Scenario) -> dict[str, float]:
    """The control's level by metric: that of the scenario, or the middle of the range."""
    middles = {m: float(np.mean(part.ends)) if part.ends else 0.0 for m, part in spec.metrics.items()}
    middles |= {m: 1.0 for m, part in spec.metrics.items() if part.kind == "count"}
    typical = {m: part.typical for m, part in spec.metrics.items() if part.typical is not None}
    return middles | typical | (scenario.level or {})


def level_text(metric: Metric, level: float) -> str:
    """A mean outcome in words: a rate for yes or no.

    >>> level_text(Metric(kind="yes/no"), 0.3), level_text(Metric(unit="t/ha"), 8.0)
    ('30 % yes', '8 t/ha')
    """
    return f"{percent(level)} yes" if metric.kind == "yes/no" else amount(level, metric.unit)


def deviation_of_kind(metric: Metric, level: float) -> float:
    """The standard deviation of single outcomes of a metric that is not a plain number, at this mean."""
    if metric.kind == "score" and metric.range is not None:
        return SCORE_SHARE * float(np.ptp(metric.range))
    variance = level if metric.kind == "count" else level * (1 - level)
    if not variance > 0:
        text = f"outcomes that are {metric.kind!r} do not vary at a mean of {level:g}"
        raise InputError(f"{text}; give the metric another `typical`")
    return float(np.sqrt(variance))


def difference(spec: TrialSpec, worth: float | None = None) -> dict[str, float]:
    """Effects by metric that are worth so much to a typical user; None: as much as the tolerance allows to lose.

    Each metric moves in its good direction by the same share of its standard deviation.
    """
    sd, level = residuals(spec, Scenario()), levels(spec, Scenario())
    users: list[Cohort] = [*spec.users.values()] or [*spec.cohorts.values()] or [User()]
    resolved = [spec.resolved(u if isinstance(u, User) else User(**u.model_dump())).preference for u in users]
    preferences = [p for p in resolved if p is not None]
    if not preferences:
        raise InputError("people who enrol have no preference to rehearse with: give one for all, `preference`")
    p = {m: float(np.mean([each.get(m, 0.0) for each in preferences])) for m in spec.metrics}
    scatter = sum(abs(p[m]) * sd[m] for m in spec.metrics)
    allowed = spec.tolerance.relative * abs(sum(p[m] * level[m] for m in spec.metrics)) + spec.tolerance.absolute
    allowed = allowed if worth is None else worth
    share = allowed / scatter if allowed and scatter > 0 else 0.5
    return {m: share * sd[m] * float(np.sign(p[m])) for m in spec.metrics}


def control_arms(spec: TrialSpec) -> set[str]:
    """Arms that are the whole control of any user."""
    users = [*spec.users.values(), *spec.cohorts.values(), Cohort(control=spec.control)]
    return {c.control for c in users if isinstance(c.control, str)}


def setting(spec: TrialSpec, scenario: Scenario, seasons: int | None = None) -> TrialSetting:
    """A scenario in numbers; `seasons` takes precedence over the scenario's, and the file's limit over both."""
    noise, paper = residuals(spec, scenario), spec.kind == "paper"  # which believes that nothing else varies
    defaults = {kind: 0.0 if paper else share for kind, share in SHARES.items()}
    if not spec.model.seasons:
        defaults["season"] = 0.0

    # On a logit or log scale places and seasons differ by less than single outcomes: by a share of their variance.
    varies = {m: noise[m] if part.kind == "number" else LINK_SHARE * noise[m] for m, part in spec.metrics.items()}

    def by_metric(table: Mapping[str, float] | None, default: float = 0.0) -> FloatArray:
        return np.array([(table or {}).get(m, default * varies[m]) for m in spec.metrics])

    most = None if spec.stopping is None else spec.stopping.seasons
    rules = () if spec.stopping is None else spec.stopping.rules.values()
    # A rule on exact ranges takes the file's ranges at their word, and so does the world in which it is tried.
    exact, endless = any(rule.evidence == "exact" for rule in rules), (-np.inf, np.inf)
    return TrialSetting(
        seasons=min(seasons or scenario.seasons or SEASONS, most or sys.maxsize),
        level=by_metric(levels(spec, scenario)),
        effects=np.array([by_metric(scenario.effects.get(a)) for a in spec.arms]),
        noise=by_metric(noise), trend=by_metric(scenario.trend), spread=by_metric(scenario.spread),
        fading=np.array([by_metric(scenario.fading.get(a)) for a in spec.arms]),
        bounds=np.array([((exact or m.kind == "score") and m.ends) or endless for m in spec.metrics.values()]),
        kinds=tuple(metric.kind for metric in spec.metrics.values()),
        covariates=by_metric(scenario.covariates, 0.0 if paper else COVARIATES),
        covariate_effects=by_metric(scenario.covariate_effects), correlation=scenario.correlation,
        drift=scenario.drift, delay=scenario.delay, dropout=scenario.dropout,
        **{kind: by_metric(getattr(scenario, kind), share) for kind, share in defaults.items()},
    )  # fmt: skip


@dataclass(frozen=True)
class SimulatedTrials:
    """A batch of simulated trials: users and offers from the trial file, outcomes from a world for each seed."""

    state: TrialState  # with all users
    states: Sequence[TrialState]  # with the users who have joined by each season
    places: Sequence[Sequence[Place]]  # n plots of each season
    setting: TrialSetting
    seeds: Sequence[int]
    recorded: Dataset | None = None  # decisions before the first season, of a trial that is running

    @staticmethod
    def of(
        spec: TrialSpec, scenario: Scenario, seeds: Sequence[int], seasons: int | None = None,
        past: HistoryRead | None = None, design: TrialSpec | None = None, calibration: Calibration | None = None,
    ) -> SimulatedTrials:  # fmt: skip
        """Trials in a scenario of `spec`, run by its own file or by that of another design, that begin with its `past`.

        The users of the file are there in every season and, where people join, so many more come in each.
        """
        if not spec.users and not spec.enrols:
            raise InputError("the trial file has no users: a rehearsal needs those that the trial will have")
        sizes, own = setting(spec, scenario, seasons), design or spec
        arriving = (scenario.users or PEOPLE) if spec.enrols else 0
        draft = Draft(Created(own.plain(), 0, version("numpy"), version("drimed"), calibration=calibration))
        (created,) = chain([draft], seq=0, hash="", time="1970-01-01T00:00:00Z", actor="rehearsal")
        state = TrialState.start(created)
        state = state if past is None else state.with_history(past)
        plots, states = list[list[Place]](), list[TrialState]()
        rng = streams.generator(0, "people who join")  # the same in all simulated trials
        for season in range(sizes.seasons):
            new = people(own, arriving, season * arriving, rng)
            state = state.with_users(list(new.items()))
            plots.append([place for user in (*own.users, *new) for place in places(state, user)])
            states.append(state)
        named = (block_key(p.user, p.block) for season in plots for p in season if p.block is not None)
        state = replace(state, numbers=state.numbers.with_blocks(named))
        return SimulatedTrials(state, states, plots, sizes, seeds)

    @property
    def episodes(self) -> Sequence[int]:
        """The number of the episode in which each simulated season is decided, from 1."""
        return range(1, self.setting.seasons + 1)

    def start(self) -> Any:
        """The policy's state before the first of them."""
        empty = self.state.policy.init(self.state.problem.shape, (len(self.seeds),))
        return empty if self.state.history is None else batched(self.state.settled, empty, len(self.seeds))

    def earlier(self) -> IntArray:
        """Decisions before the first of them, by the number of the user."""
        counts = np.zeros(len(self.state.profiles), np.intp)
        for user, by_arm in self.state.pulls.items():
            counts[self.state.users[user]] = sum(by_arm)
        return counts

    @property
    def users(self) -> list[str]:
        """H names, in the order of their slots."""
        return list(self.state.users)

    def profiles(self, season: int) -> list[Profile]:
        """Of the decisions of a season: (n,)."""
        return [self.state.profile(p.user) for p in self.places[season]]

    def user(self, season: int) -> IntArray:
        """The number of the user of each decision: (n,)."""
        return np.array([self.state.users[p.user] for p in self.places[season]])

    def block(self, season: int) -> IntArray:
        """The number of the block of each decision, 0 for none: (n,)."""
        return np.array([self.state.numbers.block(p.user, p.block) for p in self.places[season]])

    @cached_property
    def looked_at(self) -> list[Profile]:
        """Users whose effects are estimated: those of the file, or a typical person of each cohort."""
        spec, problem = self.state.spec, self.state.problem
        typical = enumerate([*spec.cohorts] or [None])
        return [self.state.profile(u) for u in spec.users] or [
            problem.profile(c or "a typical person", User(cohort=c), h) for h, c in typical
        ]

    @cached_property
    def sites(self) -> dict[tuple[bool, str], int]:
        """Numbers of groups, and of users without one, who are sites of their own."""
        keys = dict.fromkeys(_site(p) for p in self.state.profiles.values())
        return {key: number for number, key in enumerate(keys)}

    @cached_property
    def world(self) -> TrialWorld:
        L, (covariates, _) = range(self.setting.seasons), self.state.problem.covariates.counted
        whole, past = (p.control for p in self.state.profiles.values()), self.state.history
        return TrialWorld(
            setting=self.setting, seeds=self.seeds, sites=[name for _, name in self.sites],
            site=[np.array([self.sites[_site(p)] for p in self.profiles(season)]) for season in L],
            block=[self.block(season) for season in L],
            references=sorted({int(c.argmax()) for c in whole if c.max() == 1.0}),
            on_level=np.array(["level" in v.roles for v in covariates], bool),
            on_effects=np.array(["effects" in v.roles for v in covariates], bool),
            site_levels={} if past is None else Estimates.of(self.state.spec, past).site_levels,
        )  # fmt: skip

    def contexts(self, season: int, user: IntArray | None = None) -> list[FloatArray | None]:
        """The context of each decision, or each of these users, in each trial: n of (S, D); a user's plots share it."""
        user = self.user(season) if user is None else user
        if self._contexts is None:
            return [None] * len(user)
        return list(np.swapaxes(self._contexts[:, season, user], 0, 1))

    @cached_property
    def _contexts(self) -> FloatArray | None:
        """Normal numbers around the typical ones, or levels: (S, L, H, D)."""
        fields = self.state.problem.covariates.fields.values()
        if not fields:
            return None
        typical, spread = np.array([(f.typical, f.spread) for f in fields]).T
        levels, L = np.array([len(f.levels or ()) for f in fields]), self.setting.seasons
        shape, drift = (L, len(self.state.profiles), len(fields)), self.setting.drift * np.arange(L)[:, None, None]

        def draw(rng: np.random.Generator) -> FloatArray:
            z, u = rng.standard_normal(shape), rng.random(shape)
            return np.where(levels > 0, np.floor(u * levels), typical + spread * (z + drift))

        return np.asarray(per_seed(self.seeds, "contexts", draw))

    def offers(self, season: int) -> Offer:
        """Offers of a season: (S, n)."""
        return self._offer(self.profiles(season), self.contexts(season), self.block(season).tolist())

    def held_out(self, season: int) -> BoolArray | None:
        """Whether the user of each decision is held out, by each trial's own draws: (S, n); None: no one is."""
        holdout, H = self.state.spec.holdout, len(self.state.profiles)
        if holdout is None:
            return None
        draws = np.stack([streams.uniforms(int(seed), "holdout", 0, H, 1)[:, 0] for seed in self.seeds])
        return np.asarray(draws < holdout.share)[:, self.user(season)]

    def opening(self, season: int) -> Offer:
        """Offers of all arms to all users who have joined, when a season opens: (S, users)."""
        profiles = [self.state.profile(user) for user in self.states[season].users]
        return self._offer(profiles, self.contexts(season, np.arange(len(profiles))), every_arm=True)

    @cached_property
    def typical(self) -> Offer:
        """To the users who are looked at, in a typical context: (S, H)."""
        return self._offer(self.looked_at, [self.state.problem.covariates.typical] * len(self.looked_at))

    def _offer(
        self, profiles: list[Profile], contexts: Sequence[FloatArray | None], blocks: list[int] | None = None, *,
        every_arm: bool = False,
    ) -> Offer:  # fmt: skip
        problem = self.state.problem
        masks = [None if every_arm else problem.available(p, self.state.retired) for p in profiles]
        return problem.offer(profiles, contexts, masks, blocks).broadcast((len(self.seeds), len(profiles)))

    def means(self, season: int, offers: Offer) -> FloatArray:
        """Mean outcome of each arm for each decision, in an average season like this one: (S, n, K, M)."""
        return self.world.means(season, _covariates(offers))

    def respond(self, season: int, action: IntArray, means: FloatArray) -> Response:
        """Outcomes where these arms are given: (S, n)."""
        control = np.stack([p.control[: means.shape[-2]] for p in self.profiles(season)]).argmax(-1)
        return self.world.respond(season, action, means, control)

    @cached_property
    def effects(self) -> FloatArray:
        """Of each arm for the users who are looked at, at the end, on the reward and each metric: (S, H, K, 1 + M)."""
        s, looked = self.setting, self.looked_at
        site = np.array([-1 if p.unit.number < 0 else self.sites[_site(p)] for p in looked])
        means = self.world.lasting[:, np.maximum(site, 0)]
        if (site < 0).any():  # a typical person has no effects of a site
            means = np.where((site < 0)[:, None, None], s.level + s.effects, means)
        z = _covariates(self.typical)
        means = means + s.fading * (s.seasons - 1) + self.world.of_covariates(z, means.shape[:-2])
        sizes = self.state.problem.sizes
        reward = np.einsum("shkm,hm->shk", means, np.stack([p.preference for p in looked]) / sizes)
        control = np.stack([p.control[: means.shape[-2]] for p in looked])
        both = np.concatenate([reward[..., None], means], -1)
        return np.asarray(both - np.einsum("shko,hk->sho", both, control)[:, :, None, :])

    def policy_draws(self, width: int) -> FloatArray:
        """Uniforms of all decisions of the trial: (S, n of all seasons, width)."""
        n = sum(map(len, self.places))
        return np.stack([streams.uniforms(int(seed), "policy", 0, n, width) for seed in self.seeds])


def batched(one: Any, like: Any, size: int) -> Any:
    """A policy's state for so many simulated trials; `like` is such a batch, which tells what all of them share."""
    if is_dataclass(one) and not isinstance(one, type):
        parts = {f.name: batched(getattr(one, f.name), getattr(like, f.name), size) for f in fields(one)}
        return type(one)(**parts)
    shared = not isinstance(one, np.ndarray) or (isinstance(like, np.ndarray) and like.ndim == one.ndim)
    return one if shared else np.repeat(one[None], size, 0)


def _covariates(offers: Offer) -> FloatArray | None:
    return None if offers.unit is None else offers.unit.covariates


def _site(profile: Profile) -> tuple[bool, str]:
    """A group and its name, or a user who is in none."""
    return profile.group is not None, profile.group or profile.user


def people(spec: TrialSpec, count: int, before: int, rng: np.random.Generator) -> dict[str, User]:
    """So many people who join after others, from all cohorts in turn."""
    cohorts: Sequence[str | None] = [*spec.cohorts] or [None]
    joining = {}
    for i in range(count):
        attributes: dict[str, float | str] = {  # numbers around the typical value, any of the levels of a category
            name: a.levels[int(rng.integers(len(a.levels)))]
            if a.levels
            else (a.typical or 0.0) + (a.spread or 1.0) * float(rng.standard_normal())
            for name, a in spec.attributes.items()
        }
        joining[f"person {before + i + 1}"] = User(cohort=cohorts[i % len(cohorts)], attributes=attributes or None)
    return joining
