"""Small worlds, and a plain loop that plays a policy in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from drimed.models.offer import Offer, Outcome, Shape
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.policies.guards.base import Draw
from drimed.policies.protocol import AnyPolicy
from drimed.simulation import runner
from drimed.simulation.instances import Instance, draw_instance, quantile_control
from drimed.simulation.worlds import Setting, World

SMALL = Shape(d=3, K=4, M=3, H=3)
T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """One decision of a run: what was known before, what was asked, and what came of it."""

    number: int  # from 0
    before: Any  # the state that decided
    offers: Offer | None  # all users of the episode, where this decision is the first of it
    offer: Offer
    draws: FloatArray
    decision: Draw
    outcome: Outcome
    after: Any


def policy_draws(it: World, start: int, n: int, width: int) -> FloatArray:
    """The uniforms of n episodes: (n, H, S, width)."""
    return runner.policy_draws(it.seeds, start * it.shape.H, n, it.shape.H, width)


def world(
    *,
    episodes: int = 4,
    seeds: Sequence[int] = (0,),
    shape: Shape = SMALL,
    instances: Sequence[Instance] | None = None,
    **setting: Any,
) -> World:
    """One instance for all seeds unless given; the control is each user's median arm."""
    held = [draw_instance(11, shape)] if instances is None else list(instances)
    return World(
        instances=held,
        seeds=seeds,
        controls=[quantile_control(i) for i in held],
        setting=Setting(episodes=episodes, **setting),
    )


def one(user: int) -> slice:
    """One user of an episode, as a users' axis of length 1."""
    return slice(user, user + 1)


def steps(policy: AnyPolicy, it: World, *, masks: FloatArray | None = None) -> Iterator[Step]:
    """Every decision of a run; `masks` (decisions, S, K) says which arms are available."""
    state: Any = policy.init(it.shape, (it.batch,))
    number = 0
    for block in it.blocks():
        draws = policy_draws(it, block.start, block.episodes, policy.draws_needed(it.shape))
        for episode in range(block.episodes):
            offers = block.offers(episode)
            state = policy.begin_episode(state, offers)
            for user in range(it.shape.H):
                offer, uniforms = block.offers(episode, one(user)), draws[episode, user][:, None]
                if masks is not None:
                    offer = replace(offer, available=masks[number][:, None] > 0)
                decision = policy.decide(state, offer, uniforms)
                outcome = block.respond(episode, decision.action, one(user))
                after = policy.update(state, offer, decision, outcome)
                yield Step(number, state, offers if user == 0 else None, offer, uniforms, decision, outcome, after)
                state, number = after, number + 1


def played(policy: AnyPolicy, it: World, *, sigma: float) -> IntArray:
    """The arms that `policy` plays, (decisions, S), where every arm's noise is said to be, and is, `sigma`."""
    state: Any = policy.init(it.shape, (it.batch,))
    arms = []
    for block in it.blocks():
        draws = policy_draws(it, block.start, block.episodes, policy.draws_needed(it.shape))
        for episode in range(block.episodes):
            state = policy.begin_episode(state, block.offers(episode))
            for user in range(it.shape.H):
                offer = block.offers(episode, one(user))
                offer = replace(offer, sigma=np.full_like(np.asarray(offer.sigma), sigma))
                decision = policy.decide(state, offer, draws[episode, user][:, None])
                mean = np.take_along_axis(block.means[episode, user], decision.action, -1)
                outcome = Outcome(mean + sigma * block.noise[episode, user, :, :1])
                state = policy.update(state, offer, decision, outcome)
                arms.append(decision.action[:, 0])
    return np.array(arms)


def member(value: T, s: int) -> T:
    """Member s of a batched offer or outcome, without its batch axis; `user` has none."""
    cut = {f.name: getattr(value, f.name) for f in fields(value)}  # type: ignore[arg-type]  # T is a dataclass of arrays
    return type(value)(**{k: v[s] if isinstance(v, np.ndarray) and k != "user" else v for k, v in cut.items()})
