"""Bounds of calibrated stopping rules, from rehearsals of the trial itself in which every claim would be just false.

A rule with `evidence = "calibrated"` claims what an estimate shows that is so many deviations beyond its margin. How
many: the trial is rehearsed with all arms at the margin, which is no difference where there is none. Each simulated
trial has a largest estimate, in deviations from the truth, over all planned looks, arms and groups. The bound is the
quantile of that over trials, in the worst of the scenarios, with its Monte Carlo error. Rules do not act in these
rehearsals, except those that drop arms: they are calibrated first, and act while the others are.

Shapes: S trials, T planned looks, K arms, R rules.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.special import bdtr

from drimed.errors import ConfigError, InputError
from drimed.evaluation.stopping_rules import bound_shape
from drimed.formatting import counted, listed
from drimed.models.mixed import effects
from drimed.models.mixed.learner import Field
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.guards.base import Off
from drimed.policies.policy import Policy
from drimed.policies.rules.simple import Uniform
from drimed.records import ENOUGH_SEASONS
from drimed.rehearsal import scenarios
from drimed.rehearsal.play import POLICY, UNIFORM, Design, Season, play, true_effects
from drimed.rehearsal.scenarios import Scenario, SimulatedTrials
from drimed.simulation import sweep
from drimed.trial.estimates import effect_moments, may_get, offers_now
from drimed.trial.events import Calibration, HistoryRead
from drimed.trial.look_history import deviations, rule_scopes
from drimed.trial.spec import Stopping, StoppingRule, TrialSpec

TRIALS = 1000  # rehearsed in each scenario
SURE = 0.9  # probability that Monte Carlo error does not make a bound too low
BLOCK = 50
FIRST_SEED = 10_000_000  # not those of other rehearsals, which check the bounds


def calibrate(
    spec: TrialSpec,
    worlds: Mapping[str, Scenario] | None = None,
    *,
    trials: int | None = None,
    history: HistoryRead | None = None,
    store: Path | None = None,
    **how: Any,
) -> Calibration | None:
    """The bounds of all calibrated rules, from so many `trials` in each scenario; None: there are none.

    `worlds` are the scenarios of the file; `history` has some of its own. Finished blocks are kept in `store`; `how` is
    that of `sweep`.
    """
    if not spec.calibrated:
        return None
    plain, trials = nuisances(spec, worlds, history), trials or TRIALS
    dropping = {name for name, rule in spec.calibrated.items() if rule.then == "drop"}
    thresholds, worst, keys = dict[str, float](), dict[str, str](), list[str]()
    for names in filter(None, (dropping, spec.calibrated.keys() - dropping)):
        new: dict[str, float] = {}
        seeds = tuple(range(FIRST_SEED, FIRST_SEED + trials))
        tasks = {
            (name, world): PlannedTrials(
                spec=spec, scenario=at_margin(spec, name, s), seeds=seeds, thresholds=dict(thresholds), history=history
            )
            for name in spec.calibrated
            if name in names
            for world, s in plain.items()
        }
        keys += [block.key() for task in tasks.values() for block in task.blocks()]
        for (name, world), record in sweep.sweep(tasks, store, **how).items():
            bound = record.bound(spec, name)
            if bound > new.get(name, 0.0):
                new[name], worst[name] = bound, world
        thresholds |= new
    thresholds, worst = {n: thresholds[n] for n in spec.calibrated}, {n: worst[n] for n in spec.calibrated}
    text = json.dumps([keys, thresholds], sort_keys=True)
    return Calibration(
        hash=hashlib.sha256(text.encode()).hexdigest(), trials=trials, thresholds=thresholds, worst=worst
    )


def announced(
    spec: TrialSpec, worlds: Mapping[str, Scenario] | None, history: HistoryRead | None, *, timed: bool
) -> str:
    """How many rehearsals `calibrate` takes and, after one block of them, how long on this machine."""
    plain = nuisances(spec, worlds, history)
    count = TRIALS * len(plain) * len(spec.calibrated)
    text = f"{listed(list(spec.calibrated))}: the bounds come from {count:,} rehearsals ({TRIALS:,} of each calibrated "
    text += f"rule in {counted(len(plain), 'scenario')}: {listed(list(plain))}"
    text += ")" if any(any(world.trend.values()) for world in plain.values()) else "; none has a trend)"
    if timed:
        seeds, start = tuple(range(min(BLOCK, TRIALS))), time.perf_counter()
        PlannedTrials(spec=spec, scenario=next(iter(plain.values())), seeds=seeds, thresholds={}, history=history).run()
        minutes = count / len(seeds) * (time.perf_counter() - start) / (os.cpu_count() or 1) / 60
        text += f", about {max(1, round(minutes)):,} min on this machine"
    return text


def nuisances(
    spec: TrialSpec, worlds: Mapping[str, Scenario] | None = None, history: HistoryRead | None = None
) -> dict[str, Scenario]:
    """Scenarios without differences between arms: these and those of the history, or the usual ones, each once.

    A usual trend rises as much over the trial as over the seasons of a usual rehearsal, and by less where outcomes have
    ends.
    """
    worlds = ({} if history is None else scenarios.of_past(spec, history)) | dict(worlds or {})
    stopping = spec.stopping or Stopping()
    planned, looks = stopping.planned(), stopping.looks
    sizes: dict[str, Any] = {"seasons": planned[-1]}
    if isinstance(looks, int):  # a season passes between two looks
        sizes = {"seasons": planned[-1] // looks, "users": looks}
    none: dict[str, Any] = {"effects": {}, "spread": {}, "fading": {}}
    chosen: dict[str, Scenario] = {}
    for name, world in (worlds or scenarios.usual(spec)).items():
        changed = world.model_copy(update=none | sizes)
        if not worlds:
            share = {m: scenarios.LINK_SHARE if part.kind != "number" else 1.0 for m, part in spec.metrics.items()}
            pace = scenarios.SEASONS / sizes["seasons"]
            changed = changed.model_copy(
                update={"site_arm": dict.fromkeys(spec.metrics, 0.0)}
                | {"trend": {m: rise * share[m] * pace for m, rise in world.trend.items()}}
            )
        plain = changed.model_copy(update={"about": ""})
        if plain not in [other.model_copy(update={"about": ""}) for other in chosen.values()]:
            chosen[name] = changed
    return chosen


def at_margin(spec: TrialSpec, name: str, scenario: Scenario) -> Scenario:
    """The scenario with the effect of every arm at the margin of a rule, where its claims are just false."""
    rule, scopes = spec.rules[name], rule_scopes(spec, spec.users)
    amount = rule.margin * (-1.0 if rule.kind in ("non_inferiority", "harm") else 1.0)
    if not amount:
        return scenario
    if rule.metric is not None:
        effect = {rule.metric: amount if scopes[name].better == "higher" else -amount}
    else:
        effect = scenarios.difference(spec, amount)
    arms = [arm for arm in spec.arms if arm not in scenarios.control_arms(spec)]
    return scenario.model_copy(update={"effects": dict.fromkeys(arms, effect)})


@dataclass(frozen=True)
class PlannedRecord(sweep.Record):
    """What the planned looks of a block of trials have found."""

    largest: FloatArray  # (S, R), errors in deviations, relative to the shape of the bound
    met: BoolArray  # (S, T, R), by this look
    wrong: BoolArray  # (S, T, R), by a false claim
    left: IntArray  # (S, T), arms besides the control that were not dropped, after this look

    def bound(self, spec: TrialSpec, name: str) -> float:
        """The least bound of a rule that holds its error rate in this scenario."""
        planned = [own for own, rule in spec.rules.items() if rule.is_planned]
        return upper_quantile(self.largest[:, planned.index(name)], 1 - spec.rules[name].confidence)


def upper_quantile(values: FloatArray, alpha: float, sure: float = SURE) -> float:
    """A number that a new value exceeds with probability alpha at most, but for Monte Carlo error: (S,).

    The order statistic of which that is `sure`; it rests on nothing but independent values.

    >>> upper_quantile(np.arange(1000.0), 0.05)
    959.0
    """
    n = len(values)
    rank = np.arange(1, n + 1)
    enough = np.flatnonzero(bdtr(rank - 1, n, 1 - alpha) >= sure)  # of fewer than so many below the quantile
    if not len(enough):
        raise ConfigError(f"{n} rehearsals are too few for an error rate of {alpha:g}: take more")
    return float(np.sort(values)[enough[0]])


@dataclass(frozen=True, kw_only=True)
class PlannedTrials(sweep.Task[PlannedRecord]):
    """Simulated trials in one scenario that are looked at as planned; rules with a bound drop arms."""

    spec: TrialSpec
    scenario: Scenario
    thresholds: dict[str, float]
    history: HistoryRead | None = None

    record_type: ClassVar[type[sweep.Record]] = PlannedRecord
    block_size: ClassVar[int] = BLOCK

    @property
    def label(self) -> str:
        return "calibration"

    def described(self) -> Any:
        past = None if self.history is None else self.history.hash
        return ["planned", self.spec.plain(), self.scenario.model_dump(mode="json"), self.thresholds, self.seeds, past]

    def run(self) -> PlannedRecord:
        calibration = Calibration(hash="0" * 64, trials=1, thresholds=self.thresholds, worst={})
        trials = SimulatedTrials.of(self.spec, self.scenario, self.seeds, None, self.history, calibration=calibration)
        monitor = PlannedLooks(trials)
        for _ in play(trials, _design(trials), looks=monitor.seasons, monitor=monitor, estimates=False):
            pass
        met, wrong, left = np.stack(monitor.met[1:], 1), np.stack(monitor.wrong[1:], 1), np.stack(monitor.left, 1)
        return PlannedRecord(monitor.largest, met, wrong, left)


def _design(trials: SimulatedTrials) -> Design:
    """The trial's own; a plain randomised trial needs no belief to decide."""
    spec, policy = trials.state.spec, trials.state.policy
    plain = isinstance(policy, Policy) and isinstance(policy.rule, Uniform) and isinstance(policy.guard, Off)
    plain = plain and spec.floors is None and spec.holdout is None and not trials.state.balances
    return Design("calibration", spec, UNIFORM if plain else POLICY)


@dataclass(frozen=True)
class Estimates:
    """Of the effects of some arms in each trial: (S, k)."""

    mean: FloatArray
    deviation: FloatArray
    truth: FloatArray
    open: BoolArray  # whether the look counts for the arm
    arms: IntArray  # (k,)


class PlannedLooks:
    """Planned looks at all trials of a batch at once, by the estimates that rules take in a live trial."""

    def __init__(self, trials: SimulatedTrials) -> None:
        spec, policy, S = trials.state.spec, trials.state.policy, len(trials.seeds)
        if not isinstance(policy, Policy) or not isinstance(policy.learner, Field):
            raise InputError("only mixed models have calibrated rules")
        planned = np.array((spec.stopping or Stopping()).planned())
        done = np.cumsum([len(places) for places in trials.places])
        if spec.stopping is not None and spec.stopping.looks == "season":
            done = np.arange(1, len(done) + 1)
        if planned[-1] > done[-1]:
            raise InputError(f"the rehearsal ends after {done[-1]}, before its last planned look at {planned[-1]}")
        self.trials, self.learner = trials, policy.learner
        self.controls = np.array([arm in scenarios.control_arms(spec) for arm in spec.arms])
        self.number = {int(np.searchsorted(done, at)): look for look, at in enumerate(planned, 1)}  # season -> look
        self.seasons = set(self.number)
        self.information = planned / planned[-1]
        self.rules = {name: rule for name, rule in spec.rules.items() if rule.is_planned}
        self.dropped = np.zeros((S, len(trials.state.problem.arms)), bool)
        self.largest = np.full((S, len(self.rules)), -np.inf)
        self.met, self.wrong, self.left = list[BoolArray](), list[BoolArray](), list[IntArray]()

    def floors(self, season: int) -> None:
        """Floors that end with a rule are kept: a bound must hold with them too."""

    def look(self, seasons: Sequence[Season], learned: Any) -> None:
        """After the last of these seasons."""
        look, S = self.number.get(seasons[-1].number), len(self.trials.seeds)
        if look is None:
            return
        if not self.met:
            self.met, self.wrong = [np.zeros((S, len(self.rules)), bool)], [np.zeros((S, len(self.rules)), bool)]
        met, wrong, gone = self.met[-1].copy(), self.wrong[-1].copy(), self.dropped.copy()
        for r, (name, rule) in enumerate(self.rules.items()):
            for found in self._estimates(seasons[-1].number, name, rule, learned):
                self.largest[:, r] = np.maximum(self.largest[:, r], self._error(name, rule, look, found))
                shown, false = self._claims(name, rule, look, found)
                met[:, r] |= shown.any(-1)
                wrong[:, r] |= (shown & false).any(-1)
                if rule.then == "drop":
                    gone[:, found.arms] |= shown
        self.dropped = gone
        self.met.append(met)
        self.wrong.append(wrong)
        self.left.append((~gone[:, ~self.controls]).sum(1))

    def _estimates(self, season: int, name: str, rule: StoppingRule, learned: Any) -> Iterator[Estimates]:
        """Of each group or user of a rule."""
        trials, state = self.trials, self.trials.states[season]
        scope, problem = trials.state.looked.scopes[name], state.problem
        on = 0 if rule.metric is None else 1 + problem.metrics.index(rule.metric)
        arms, offers = np.array([problem.arm(arm) for arm in scope.arms]), offers_now(state)
        possible = may_get(state, list(state.users))
        count = effects.seasons_with_both_arms(self.learner, learned.evidence, offers)
        groups = [state.profile(user).group for user in state.users]
        for who in scope.names:
            own = groups if scope.by == "group" else [user if scope.by == "user" else who for user in state.users]
            some = [h for h, place in enumerate(own) if place == who]
            if not some:
                continue
            mean, deviation = (
                x[..., arms, on] for x in effect_moments(self.learner, learned.evidence, offers, some, possible)
            )
            open_ = ~self.dropped[:, arms] & (deviation > 0)
            if count is not None:
                open_ &= count[..., on][..., some, :].min(-2)[..., arms] >= ENOUGH_SEASONS
            yield Estimates(mean, deviation, true_effects(trials, scope.by, who, on)[:, arms], open_, arms)

    def _error(self, name: str, rule: StoppingRule, look: int, found: Estimates) -> FloatArray:
        """The largest error by which the rule would claim something false, relative to its bound's shape: (S,)."""
        up = 1.0 if self.trials.state.looked.scopes[name].better == "higher" else -1.0
        error = up * (found.mean - found.truth) / np.where(found.open, found.deviation, 1.0)
        error = {"futility": -error, "harm": -error, "equivalence": np.abs(error)}.get(rule.kind, error)
        error = error / bound_shape(rule.shape or "pocock", self.information)[look - 1]
        return np.asarray(np.where(found.open, error, -np.inf).max(-1))

    def _claims(self, name: str, rule: StoppingRule, look: int, found: Estimates) -> tuple[BoolArray, BoolArray]:
        """What the rule claims at this look of each arm, and what of it would be false: (S, k)."""
        question = self.trials.state.looked.scopes[name].question(rule)
        false = question.distance(found.truth, found.truth) >= 0
        bound = deviations(self.trials.state, name, look)
        if bound == np.inf:
            return np.zeros_like(found.open), false
        half = bound * found.deviation
        shown = (question.distance(found.mean - half, found.mean + half) < 0) & found.open
        if rule.of_all_arms:
            gone = self.dropped[:, found.arms]
            shown = ~gone & (shown | gone).all(-1, keepdims=True)
        return shown, false
