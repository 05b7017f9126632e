"""Simulated decisions per second, environment included: every named policy against the plain loop.

The paper's world (five arms, four features, ten users, gradual drift, control by quantile) with 128 seeds side by
side, on one core. The plain loop plays the same world one decision at a time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from rich.table import Table

from benchmarks import layout, plain
from benchmarks.candidates import candidates, in_reading
from benchmarks.measure import MICRO, Comparison, Goal, Spread, Tick, in_turn
from drimed.policies.protocol import AnyPolicy
from drimed.policies.published import READINGS
from drimed.simulation.instances import Instance, authors_instance, quantile_control
from drimed.simulation.runner import simulate
from drimed.simulation.worlds import Setting, World

SEEDS = 128
PUBLISHED_FASTER = 4.0  # times, per decision, in either reading
OFUL_FASTER = 12.0
_WARM_UP_EPISODES = 2  # compiles every kernel that a policy uses


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to run."""

    episodes: int  # per candidate and repeat; the start-up of the worlds is part of the time
    plain_episodes: int
    repeats: int

    @classmethod
    def sized(cls, quick: bool) -> Plan:
        """A few minutes, or a first look."""
        return cls(40, 40, 3) if quick else cls(150, 100, 5)

    @property
    def ticks(self) -> int:
        """How many pieces of work the run has."""
        return self.repeats * len(candidates())


@dataclass(frozen=True, slots=True)
class Result:
    """Per policy: microseconds per decision, and how many times faster than the plain loop."""

    plan: Plan
    seeds: int
    plain_microseconds: Spread
    rows: list[Comparison]


def run(plan: Plan, tick: Tick) -> Result:
    """Plain loop and candidates in turn."""
    instance, policies = authors_instance(), candidates()
    for policy in policies.values():
        _simulated(policy, instance, _WARM_UP_EPISODES)
    pairs = in_turn(
        {name: partial(_simulated, policy, instance, plan.episodes) for name, policy in policies.items()},
        lambda: plain.play(instance, seed=0, episodes=plan.plain_episodes)[0],
        plan.repeats,
        tick,
    )
    rows = [Comparison.of(name, found, lambda pair: pair.plain / pair.seconds) for name, found in pairs.items()]
    return Result(plan, SEEDS, Spread.of([MICRO * p.plain for found in pairs.values() for p in found]), rows)


def table(result: Result) -> Table:
    """Decisions per second and the ratio to the plain loop."""
    plan, loop = result.plan, result.plain_microseconds
    view = layout.table(
        f"Simulated decisions, {result.seeds} seeds side by side, environment included",
        f"{plan.episodes} episodes, {plan.repeats} repeats. "
        f"The plain loop took {loop.median:.1f} µs ({loop.range(1)}) per decision.",
        "policy",
        *("decisions/s", "µs", "times faster", "range"),
    )
    for row in result.rows:
        micro = row.microseconds.median
        view.add_row(row.name, f"{MICRO / micro:,.0f}", f"{micro:.2f}", f"{row.ratio.median:.1f}", row.ratio.range(1))
    return view


def goals(result: Result) -> list[Goal]:
    """Published Dri-MED in each reading, and OFUL."""
    wanted = {in_reading("published_dri_med", reading): PUBLISHED_FASTER for reading in READINGS}
    wanted["oful"] = OFUL_FASTER
    ratios = {row.name: row.ratio for row in result.rows}
    return [Goal(f"simulated {name}", ratios[name], bound, at_least=True) for name, bound in wanted.items()]


def _simulated(policy: AnyPolicy, instance: Instance, episodes: int) -> float:
    """Seconds of processor time per decision of a fresh run."""
    world = World(
        instances=[instance],
        seeds=range(SEEDS),
        controls=[quantile_control(instance)],
        setting=Setting(episodes=episodes, drift="gradual"),
    )
    start = time.process_time()
    result = simulate(policy, world)
    return (time.process_time() - start) / (result.decisions * SEEDS)
