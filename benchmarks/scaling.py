"""Growth of a live step with the number of arms and of features."""

from __future__ import annotations

from functools import partial

from benchmarks import plain
from benchmarks.live import LiveLoop
from benchmarks.measure import Part, Size, compared
from drimed.models.offer import Shape
from drimed.policies.registry import make
from drimed.simulation.instances import draw_instance

POLICIES = ("oful", "med", "dri_med")
SIZES = ((5, 8), (100, 8), (1000, 8), (20, 4), (20, 32), (20, 128))  # arms K, features d
MOST_PLAIN_STEPS = 5.0


def run(size: Size) -> Part:
    """Each policy at each size, beside the plain step of that size."""
    steps, repeats = {"smallest": (1, 1), "quick": (10, 3), "full": (100, 7)}[size]
    part = Part("Live step by size", "µs", "Ratio: to a step of LinUCB in plain NumPy of the same size.")
    for K, d in SIZES[:1] if size == "smallest" else SIZES:
        instance = draw_instance(0, Shape(d=d, K=K, M=4, H=10))
        loops = {f"{name}, K = {K}, d = {d}": LiveLoop(make(name), instance) for name in POLICIES}
        for loop in loops.values():
            loop(3)  # the first compiles, the next touch fresh memory
        timed = {name: partial(loop, steps) for name, loop in loops.items()}
        rows = compared(timed, partial(plain.step_seconds, d, K, steps), repeats, scale=1e6)
        part.rows.extend(row.with_goal(at_most=MOST_PLAIN_STEPS) for row in rows.values())
    return part
