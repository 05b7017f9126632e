"""One policy deciding live: one offer to one user, decide and update in a plain Python loop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from drimed import streams
from drimed.models.offer import Offer, Outcome, Shape, make_offer
from drimed.policies.protocol import AnyPolicy
from drimed.simulation.instances import Instance, quantile_control


@dataclass(frozen=True, slots=True)
class Scene:
    """What a live policy meets: the first user's offer, all users' offers, and an outcome for each arm."""

    shape: Shape
    offer: Offer
    offers: Offer  # batch (H,)
    outcomes: list[Outcome]

    @classmethod
    def of(cls, instance: Instance) -> Scene:
        """Offers as a live trial builds them; the outcomes carry one draw of unit noise."""
        offers = make_offer(
            maps=instance.maps,
            preference=instance.preferences,
            covariance=instance.covariances,
            control=quantile_control(instance),
        )
        noise = streams.generator(0, "noise").standard_normal(instance.maps.shape[:2])
        vectors = instance.maps @ instance.theta + noise  # (K, M)
        outcomes = [Outcome((instance.preferences[0] @ y)[None], y[None]) for y in vectors]
        return cls(instance.shape, offer_maker(instance)(), offers, outcomes)


def offer_maker(instance: Instance) -> partial[Offer]:
    """What makes, and checks, the offer of the instance's first user."""
    return partial(
        make_offer,
        maps=instance.maps,
        preference=instance.preferences[0],
        covariance=instance.covariances,
        control=quantile_control(instance)[0],
    )


class LiveLoop:
    """A policy in mid-trial. Calling it takes more decisions and tells the seconds of processor time that each took."""

    def __init__(self, policy: AnyPolicy, scene: Scene) -> None:
        self._policy, self._scene, self._done = policy, scene, 0
        self._state = policy.begin_episode(policy.init(scene.shape), scene.offers)

    def __call__(self, steps: int) -> float:
        policy, state, offer, outcomes = self._policy, self._state, self._scene.offer, self._scene.outcomes
        draws = streams.uniforms(0, "policy", self._done, steps, policy.draws_needed(self._scene.shape))
        start = time.process_time()
        for u in draws:
            draw = policy.decide(state, offer, u[None])
            state = policy.update(state, offer, draw, outcomes[int(draw.action[0])])
        elapsed = time.process_time() - start
        self._state, self._done = state, self._done + steps
        return elapsed / steps
