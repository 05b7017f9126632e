"""One live decision of each policy: decide and update for one user, against one step of the plain loop of that size.

The offer is built beforehand; building and checking it (`make_offer`) is a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks import plain
from benchmarks.measure import Part, Size, compared, processor_seconds
from drimed import streams
from drimed.models.offer import Offer, Outcome, make_offer
from drimed.policies.protocol import AnyPolicy
from drimed.policies.registry import REGISTRY, make
from drimed.simulation.instances import Instance, authors_instance, quantile_control

MOST_PLAIN_STEPS = {"oful": 4.0, "med": 4.0, "dri_med": 4.0}  # that a live step may cost
WARM_UP = 300  # steps: compile, and leave the first rounds, where arms are unexplored, behind


class LiveLoop:
    """A policy in mid-trial. Calling it takes more decisions and returns the processor time of each."""

    def __init__(self, policy: AnyPolicy, instance: Instance) -> None:
        self._policy, self._instance, self._done = policy, instance, 0
        self._offer = offer_maker(instance)()
        noise = streams.generator(0, "noise").standard_normal(instance.maps.shape[:2])
        vectors = instance.maps @ instance.theta + noise  # (K, M)
        self._outcomes = [Outcome((instance.preferences[0] @ y)[None], y[None]) for y in vectors]
        everybody = make_offer(
            maps=instance.maps,
            preference=instance.preferences,
            covariance=instance.covariances,
            control=quantile_control(instance),
        )
        self._state = policy.begin_episode(policy.init(instance.shape), everybody)

    def __call__(self, steps: int) -> float:
        policy, state, offer, outcomes = self._policy, self._state, self._offer, self._outcomes
        draws = iter(streams.uniforms(0, "policy", self._done, steps, policy.draws_needed(self._instance.shape)))

        def step() -> None:
            nonlocal state
            draw = policy.decide(state, offer, next(draws)[None])
            state = policy.update(state, offer, draw, outcomes[int(draw.action[0])])

        elapsed = processor_seconds(step, steps)
        self._state, self._done = state, self._done + steps
        return elapsed


def offer_maker(instance: Instance) -> Callable[[], Offer]:
    """A function that makes, and checks, the offer of the instance's first user."""
    return partial(
        make_offer,
        maps=instance.maps,
        preference=instance.preferences[0],
        covariance=instance.covariances,
        control=quantile_control(instance)[0],
    )


def run(size: Size) -> Part:
    """Plain step and policies in turn."""
    steps, repeats = {"smallest": (2, 1), "quick": (50, 2), "full": (300, 7)}[size]
    instance = authors_instance()
    loops = {name: LiveLoop(make(name), instance) for name in REGISTRY}
    for loop in loops.values():
        loop(min(WARM_UP, steps))
    timed: dict[str, Callable[[], float]] = {name: partial(loop, steps) for name, loop in loops.items()}
    timed["make_offer"] = partial(processor_seconds, offer_maker(instance), steps)
    shape = instance.shape
    rows = compared(timed, lambda: plain.step_seconds(shape.d, shape.K, steps), repeats, scale=1e6)
    title = f"One live decision and update, K = {shape.K}, d = {shape.d}"
    part = Part(title, "µs", "Ratio: to a step of LinUCB in plain NumPy.")
    part.rows.extend(row.with_goal(at_most=MOST_PLAIN_STEPS.get(name)) for name, row in rows.items())
    return part
