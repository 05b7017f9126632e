"""One live decision: decide and update with batch (), against one step of the plain loop of the same size.

The offer is built beforehand; what building and checking it costs (`make_offer`) is a row of its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from timeit import timeit

from rich.table import Table

from benchmarks import layout, plain
from benchmarks.candidates import candidates
from benchmarks.measure import MICRO, Comparison, Goal, Spread, Tick, in_turn
from benchmarks.stepping import LiveLoop, Scene, offer_maker
from drimed.simulation.instances import authors_instance

MOST_PLAIN_STEPS = 5.0  # that a live step may cost
BOUND_POLICIES = ("oful", "med", "dri_med")
_OFFER = "make_offer"
_WARM_UP_STEPS = 300  # compiles, and leaves the first rounds, where arms are unexplored, behind


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to run."""

    steps: int  # per candidate and repeat
    repeats: int

    @classmethod
    def sized(cls, quick: bool) -> Plan:
        """A dozen seconds, or a first look."""
        return cls(300, 5) if quick else cls(1000, 9)

    @property
    def ticks(self) -> int:
        """How many pieces of work the run has."""
        return self.repeats * (len(candidates()) + 1)


@dataclass(frozen=True, slots=True)
class Result:
    """Per policy, and for making an offer: microseconds, and how many plain steps that is."""

    plan: Plan
    K: int
    d: int
    plain_microseconds: Spread
    rows: list[Comparison]
    offer: Comparison


def run(plan: Plan, tick: Tick) -> Result:
    """Plain step and candidates in turn."""
    instance = authors_instance()
    shape, scene = instance.shape, Scene.of(instance)
    loops = {name: LiveLoop(policy, scene) for name, policy in candidates().items()}
    for loop in loops.values():
        loop(_WARM_UP_STEPS)
    make = offer_maker(instance)
    pairs = in_turn(
        {name: partial(loop, plan.steps) for name, loop in loops.items()}
        | {_OFFER: lambda: timeit(make, number=plan.steps, timer=time.process_time) / plan.steps},
        lambda: plain.step_seconds(shape.d, shape.K, plan.steps),
        plan.repeats,
        tick,
    )
    step = Spread.of([MICRO * p.plain for found in pairs.values() for p in found])
    rows = {name: Comparison.of(name, found, lambda pair: pair.seconds / pair.plain) for name, found in pairs.items()}
    offer = rows.pop(_OFFER)
    return Result(plan, shape.K, shape.d, step, list(rows.values()), offer)


def table(result: Result) -> Table:
    """Microseconds per step and the ratio to the plain step."""
    plan, step = result.plan, result.plain_microseconds
    view = layout.table(
        f"One live decision and update, K = {result.K}, d = {result.d}",
        f"{plan.steps} steps, {plan.repeats} repeats. The plain step took {step.median:.1f} µs ({step.range(1)}).",
        "policy",
        *("µs", "plain steps", "range"),
    )
    for row in (*result.rows, result.offer):
        view.add_row(
            row.name,
            f"{row.microseconds.median:.1f}",
            f"{row.ratio.median:.2f}",
            row.ratio.range(2),
            end_section=row is result.rows[-1],
        )
    return view


def goals(result: Result) -> list[Goal]:
    """The policies that a live trial is most likely to run."""
    ratios = {row.name: row.ratio for row in result.rows}
    return [Goal(f"live {name}", ratios[name], MOST_PLAIN_STEPS, at_least=False) for name in BOUND_POLICIES]
