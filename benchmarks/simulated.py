"""Simulated decisions, environment included: policies against the plain loop, seeds side by side on one core.

The paper's world: five arms, four features, ten users, gradual drift, control by quantile. The plain loop plays the
same world one decision at a time. Policies of the mixed model refit its variances after each episode and are not made
for streams of single decisions: `field` and `rehearsal` measure them.
"""

from __future__ import annotations

from functools import partial

from benchmarks import plain
from benchmarks.measure import Part, Size, compared, processor_seconds
from drimed.policies.protocol import AnyPolicy
from drimed.policies.registry import REGISTRY, make
from drimed.simulation.instances import Instance, authors_instance, quantile_control
from drimed.simulation.runner import simulate
from drimed.simulation.worlds import Setting, World

LEFT_OUT = ("dri_field", "dri_people", "rebandit")
FASTER = {"published_dri_med": 8.0, "dri_med": 8.0, "oful": 18.0}  # times, for each decision


def run(size: Size) -> Part:
    """Plain loop and policies in turn."""
    seeds, episodes, repeats = {"smallest": (2, 2, 1), "quick": (128, 20, 1), "full": (128, 150, 5)}[size]
    instance = authors_instance()
    policies = {name: make(name) for name in REGISTRY if not name.startswith(LEFT_OUT)}
    for policy in policies.values():
        _simulated(policy, instance, seeds, 2)  # compiles
    rows = compared(
        {name: partial(_simulated, policy, instance, seeds, episodes) for name, policy in policies.items()},
        lambda: plain.play(instance, seed=0, episodes=episodes)[0],
        repeats,
        scale=1e6,
        faster=True,
    )
    part = Part(f"Simulated decisions, {seeds} seeds side by side", "µs", "Ratio: times faster than the plain loop.")
    part.rows.extend(row.with_goal(at_least=FASTER.get(name)) for name, row in rows.items())
    return part


def _simulated(policy: AnyPolicy, instance: Instance, seeds: int, episodes: int) -> float:
    """Processor time of each decision of a fresh run."""
    world = World(
        instances=[instance],
        seeds=range(seeds),
        controls=[quantile_control(instance)],
        setting=Setting(episodes=episodes, drift="gradual"),
    )
    return processor_seconds(lambda: simulate(policy, world)) / (episodes * instance.shape.H * seeds)
