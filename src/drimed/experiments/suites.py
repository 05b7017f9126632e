"""The suites of `drimed bench`, as data with stable ids.

A suite is a family of scenarios. Each is run under every drift; `scaling` varies one size at a time instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from drimed.environments.drift import DRIFTS
from drimed.environments.instance import PAPER_SHAPE
from drimed.environments.world import Setting
from drimed.errors import ConfigError, UnknownNameError
from drimed.experiments.run import Run, Scenario
from drimed.guards.margin import Tolerance
from drimed.learning.offer import Shape
from drimed.policies.composing import PolicySpec

ALL_DRIFTS = tuple(DRIFTS)

# Every competitor without and with knowledge of the noise, and with the whole outcome vector where that makes sense.
REWARD_BOUND = (
    "oful,lin_ts,lin_med,lin_imed,spanner_igw,ids,solid,oplb,clucb:confidence=0.99,safe_lucb:confidence=0.99,"
    "d_lin_ucb,greedy"
)
REWARD_NOISE = (
    "w_oful,w_oful:width_squared=2,w_ts,w_lin_med,w_lin_imed,w_spanner_igw:eta=1000,w_ids:width_squared=2,w_solid,"
    "w_oplb:width_squared=6,w_clucb:confidence=0.99,w_safe_lucb:confidence=0.99,w_d_lin_ucb,w_greedy"
)
VECTOR = "v_oful:width_squared=2,v_ts,v_ids:width_squared=2,v_greedy"
PUBLISHED = "published_dri_med:reading=printed,published_dri_imed:reading=printed"
OURS = (
    "dri_med:guard=off,dri_med,dri_med:guard=certain,dri_med:guard=certain+confidence=anytime,dri_med:guard=budget,"
    "dri_imed,dri_med_reward:guard=off,dri_med_reward"
)
EVERYTHING = f"{REWARD_BOUND},{REWARD_NOISE},{VECTOR},{PUBLISHED},{OURS}"
UNKNOWN_NOISE = (
    "oful,lin_ts,lin_med,greedy,dri_med:weighting=none+guard=off,dri_med:weighting=learned+guard=off,dri_med:guard=off,"
    "dri_med:weighting=learned,dri_med,dri_med:weighting=learned+guard=certain,dri_med:guard=certain,"
    "dri_med_reward:weighting=none+guard=off,dri_med_reward:weighting=learned+guard=off,dri_med_reward:guard=off,"
    "dri_med_reward:weighting=learned,dri_med_reward,dri_med_reward:weighting=learned+guard=certain,"
    "dri_med_reward:guard=certain"
)
MEAN_DRIFT = (
    "w_oful,w_d_lin_ucb,w_d_lin_ucb:discount=0.95,v_oful,v_oful:discount=0.99,dri_med:guard=off,"
    "dri_med:guard=off+discount=0.99,dri_med:guard=off+discount=0.95,dri_med,dri_med:discount=0.99"
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One scenario of a suite, as it stands in tables: every policy is run in each."""

    label: str  # the drift, or what was varied
    scenario: Scenario
    axis: str = ""  # of `scaling`: what is varied,
    value: float = 0.0  # and to what


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A family of scenarios, with the policies to compare there."""

    id: str
    about: str
    instances: int = 64
    episodes: int = 1000
    drifts: tuple[str, ...] = ALL_DRIFTS
    policies: str = EVERYTHING
    scenario: Scenario = field(default_factory=lambda: Scenario(instances="random"))
    special: tuple[Cell, ...] = ()  # instead of one cell per drift

    def cells(self, drifts: tuple[str, ...], episodes: int) -> list[Cell]:
        """The scenarios under these drifts; where the number of episodes is varied, it stays as it is."""
        cells = self.special or [Cell(label=drift, scenario=self.scenario.under(drift)) for drift in drifts]
        return [
            c if c.axis == "L" else replace(c, scenario=_lasting(c.scenario, episodes))
            for c in cells
            if c.scenario.drift in drifts
        ]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What one `drimed bench` measures: policies on a suite."""

    suite: Suite
    specs: list[PolicySpec]
    drifts: tuple[str, ...]
    instances: int
    instance_seed: int
    episodes: int
    tolerance: Tolerance

    def __post_init__(self) -> None:
        for name in ("instances", "episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.instance_seed < 0:
            raise ConfigError(f"instance-seed must be at least 0, got {self.instance_seed}")
        for drift in self.drifts:
            if drift not in DRIFTS:
                raise UnknownNameError("drift", drift, DRIFTS)
        if not self.cells:
            raise ConfigError(f"suite {self.suite.id} has no cell under {', '.join(self.drifts)}")
        texts = [spec.text for spec in self.specs]
        for text in texts:
            if texts.count(text) > 1:
                raise ConfigError(f"policy {text!r} is listed twice")

    @property
    def cells(self) -> list[Cell]:
        """The scenarios."""
        return self.suite.cells(self.drifts, self.episodes)

    def plan(self) -> dict[tuple[str, str], Run]:
        """(cell label, policy): the run."""
        seeds = tuple(range(self.instance_seed, self.instance_seed + self.instances))
        return {
            (cell.label, spec.text): Run(
                policy=spec.text, scenario=cell.scenario, tolerance=self.tolerance, seeds=seeds
            )
            for cell in self.cells
            for spec in self.specs
        }


def _lasting(scenario: Scenario, episodes: int) -> Scenario:
    return replace(scenario, setting=replace(scenario.setting, episodes=episodes))


def _random(shape: Shape, **setting: Any) -> Scenario:
    return Scenario(instances="random", shape=shape, setting=Setting(**setting))


def _scaling() -> tuple[Cell, ...]:
    base = _random(Shape(d=4, K=5, M=1, H=10))
    varied: dict[str, dict[float, Scenario]] = {
        "L": {n: _lasting(base, n) for n in (250, 1000, 4000, 16000)},
        "d": {d: replace(base, shape=Shape(d=d, K=20, M=1, H=10)) for d in (2, 4, 8, 16, 32)},
        "drift": {m: replace(base, setting=Setting(magnitude=float(m))) for m in (1, 10, 100, 1000)},
        "gap": {g: replace(base, theta_norm=g) for g in (1.0, 0.5, 0.25, 0.125)},
    }
    return tuple(
        Cell(label=f"{axis} = {value:g}", scenario=scenario, axis=axis, value=value)
        for axis, found in varied.items()
        for value, scenario in found.items()
    )


_SUITES = [
    Suite(
        id="paper-instance",
        about="the authors' one instance; seeds differ in noise only",
        scenario=Scenario(instances="authors", judged_by="preference_means"),
    ),
    Suite(id="paper-random", about="random instances of the paper's generator: d = 4, M = 4, K = 5, ten users"),
    Suite(
        id="hard",
        about="one outcome shows little of what there is to learn: d = 16, M = 2, K = 30",
        instances=32,
        episodes=500,
        scenario=_random(Shape(d=16, K=30, M=2, H=10)),
    ),
    Suite(
        id="large-k",
        about="many arms: K = 1000, d = 8, M = 3",
        instances=8,
        episodes=100,
        scenario=_random(Shape(d=8, K=1000, M=3, H=10)),
    ),
    Suite(id="one-metric", about="only the reward is observed: M = 1", scenario=_random(Shape(d=4, K=5, M=1, H=10))),
    Suite(
        id="lonely",
        about="one user, arms e1, e2 and (1 - x, 2x): greedy fails, and no other user explores for it",
        episodes=2000,
        scenario=Scenario(instances="lonely", setting=Setting(reward_noise=1.0, magnitude=1.0)),
    ),
    Suite(
        id="mixed-control",
        about="the control is a lottery over all arms",
        scenario=Scenario(instances="random", control="mixed"),
    ),
    Suite(
        id="unknown-noise",
        about="unknown covariance, ignored or learned; the known case for comparison",
        policies=UNKNOWN_NOISE,
    ),
    Suite(
        id="mean-drift",
        about="theta turns by a right angle: the paper's assumption fails, and forgetting may pay",
        policies=MEAN_DRIFT,
        scenario=_random(PAPER_SHAPE, rotation=float(np.pi / 2)),
    ),
    Suite(
        id="heavy-tails",
        about="Student noise, three degrees of freedom, same covariance",
        scenario=_random(PAPER_SHAPE, tails=3.0),
    ),
    Suite(
        id="scaling",
        about="growth of regret with the horizon, the dimension, the drift and the inverse gap, M = 1",
        instances=16,
        drifts=("gradual",),
        policies="oful,lin_ts,lin_med,w_oful,w_ts,w_ids,w_solid,published_dri_med:reading=printed,dri_med:guard=off,dri_med",
        special=_scaling(),
    ),
]

SUITES: dict[str, Suite] = {suite.id: suite for suite in _SUITES}


def suite(name: str) -> Suite:
    """The suite of that id."""
    if name not in SUITES:
        raise UnknownNameError("suite", name, SUITES)
    return SUITES[name]
