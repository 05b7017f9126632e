"""Simulated trials in batch: the policy of the trial file, in many worlds side by side.

The functions that decide here are the ones that decide live: a trial with the seed and the outcomes of one of these
worlds takes the same decisions. A season is decided as a whole; its outcomes are told at its end, or so many seasons
later. Shapes: S trials, L seasons, n decisions of a season, H users, K arms.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drimed import streams
from drimed.environments.field import Response
from drimed.guards.guard import UNCHANGED, Draw
from drimed.learning.offer import Floor, Offer, Outcome
from drimed.linear import pmf
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.rehearsal.designs import CONTROL, FIXED, POLICY, UNIFORM, Design
from drimed.rehearsal.looks import Look, look
from drimed.rehearsal.rules import Watch
from drimed.rehearsal.scenarios import SimulatedTrials
from drimed.rules.floors import Floors
from drimed.trial.state import TrialState


@dataclass(frozen=True)
class Season:
    """What happened in one season of all trials."""

    number: int
    action: IntArray  # (S, n)
    probabilities: FloatArray  # (S, n, K)
    changed: FloatArray  # (S, n), whether the guard intervened
    means: FloatArray  # (S, n, K), the mean reward of each arm
    reward: FloatArray  # (S, n), as measured; NaN where it never came
    told: Response
    exact: bool  # whether the probabilities are those of the draw
    offers: Offer
    look: Look | None


def play(
    world: SimulatedTrials,
    design: Design,
    *,
    looks: Container[int] | None = None,
    watch: Watch | None = None,
) -> Iterator[Season]:
    """Season after season; the trials are looked at after those in `looks`, or (None) after all.

    `watch` is told of every look, and says for whom the floor has ended.
    """
    crowd = world.population
    state = crowd.state
    policy = state.policy
    learned = policy.init(state.problem.shape, (len(world.seeds),))
    draws = world.policy_draws(policy.draws_needed(state.problem.shape) if design.learns else 1)
    waiting: list[tuple[int, Offer, IntArray, Outcome]] = []
    first, L = 0, world.setting.seasons
    past: list[Season] = []  # kept for those who watch
    for season in range(L):
        offers = world.offers(season)
        opening = world.opening(season) if policy.needs_contexts_at_opening else offers
        learned = policy.begin_episode(learned, opening)
        means = world.means(season, offers)
        if design.allocation == POLICY:
            holds = None if watch is None else watch.floors(season)
            learned, decision = _decided(world, learned, offers, season, first, draws, holds)
        else:
            decision = _by_design(world, design, offers, season, draws[:, first:])
        told = world.respond(season, decision.action, means)
        waiting.append((season, offers, decision.action, _outcome(state, offers, told)))
        last = season == L - 1
        while waiting and (last or waiting[0][0] <= season - world.setting.delay):
            then, *_ = about = waiting.pop(0)
            learned = policy.observe(learned, *about[1:], season - then)
        first += decision.action.shape[1]
        taken = None
        if last or looks is None or season in looks:
            learned = policy.settle(learned)
            taken = look(policy, learned, world.typical)
        p = np.stack([q.preference for q in crowd.profiles(season)]) / state.problem.sizes  # (n, M)
        K = len(state.problem.arms)
        changed = np.asarray(decision.reason_code != UNCHANGED, np.float64)
        worth = np.where(told.observed, np.einsum("snm,nm->sn", told.y, p), np.nan)
        rewards = np.einsum("snkm,nm->snk", means, p)
        done = Season(
            number=season,
            action=decision.action,
            probabilities=decision.probabilities[..., :K],
            changed=changed,
            means=rewards,
            reward=worth,
            told=told,
            exact=decision.exact,
            offers=offers,
            look=taken,
        )
        if watch is not None:
            past.append(done)
            if taken is not None:
                watch.look(past, learned)
        yield done


def controls(world: SimulatedTrials, season: Season) -> FloatArray:
    """The control of each decision: (S, n, K)."""
    own = np.stack([p.control for p in world.population.profiles(season.number)])
    return np.broadcast_to(own, (*season.action.shape, own.shape[-1]))


def _decided(
    world: SimulatedTrials,
    learned: Any,
    offers: Offer,
    season: int,
    first: int,
    draws: FloatArray,
    holds: BoolArray | None,
) -> tuple[Any, Draw]:
    """A season as the trial's own policy decides it; where a guard keeps accounts, one plot of each user at a time."""
    state = world.population.state
    policy = state.policy
    n = len(world.population.seasons[season])
    user, before = world.population.user(season), _earlier(world, season)
    parts: list[tuple[IntArray, Draw]] = []
    done = 0
    for at in _waves(user) if state.remembers_users else [np.arange(n)]:
        some = offers if len(at) == n else offers.take(at)
        some = replace(some, floor=_floor(state, first + done, before[at], None if holds is None else holds[:, at]))
        learned = policy.settle(learned)
        decision = policy.decide(learned, some, draws[:, first + done : first + done + len(at)])
        learned = policy.commit(learned, some, decision)
        parts.append((at, decision))
        done += len(at)
    if len(parts) == 1:
        return learned, parts[0][1]
    order = np.argsort(np.concatenate([at for at, _ in parts]))
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(d, name) for _, d in parts], 1)[:, order]
        for name in ("action", "probabilities", "reason_code")
    }
    return learned, Draw(**joined, exact=parts[0][1].exact)


def _by_design(world: SimulatedTrials, design: Design, offers: Offer, season: int, draws: FloatArray) -> Draw:
    """A season that is decided without learning."""
    S, n = len(world.seeds), len(world.population.seasons[season])
    K = offers.features.shape[-2]
    can = np.ones((n, K), bool) if offers.available is None else offers.available[0]
    if design.allocation == CONTROL:
        p = offers.control
    else:
        p = np.broadcast_to(can / can.sum(-1, keepdims=True), (S, n, K))
    if design.allocation in (CONTROL, UNIFORM):
        action = pmf.sample(p, draws[:, :n, 0])
    elif design.allocation == FIXED:
        action = np.stack([_balanced(can, streams.generator(int(seed), f"plan {season}")) for seed in world.seeds])
    return Draw(action, p, np.full((S, n), UNCHANGED))


def _balanced(can: Any, rng: np.random.Generator) -> IntArray:
    """Each decision gets the arm that it can get and that was given least, in random order: (n,)."""
    n, K = can.shape
    given, action = rng.random(K) * 0.5, np.zeros(n, np.intp)
    for i in rng.permutation(n):
        action[i] = int(np.argmin(np.where(can[i], given, np.inf)))
        given[action[i]] += 1.0
    return action


def _outcome(state: TrialState, offers: Offer, told: Response) -> Outcome:
    """Outcomes as the policy learns from them."""
    sizes = state.problem.sizes
    y, y0 = told.y / sizes, told.control / sizes
    there = None if told.observed.all() else np.broadcast_to(told.observed[..., None], y.shape)
    if state.spec.feedback == "difference" and state.spec.kind != "paper":
        return Outcome(None, y, there, y0, there)
    if state.spec.feedback == "difference":
        y = y - y0
    reward = np.vecdot(np.asarray(offers.preference), y)
    return Outcome(np.asarray(reward), y, there)


def _floor(state: TrialState, decisions: int, own: IntArray, holds: BoolArray | None) -> Floor | None:
    if state.spec.floors is None:
        return None
    floors = Floors(**state.spec.floors.heights())
    found = floors.after(own if floors.count == "user" else np.full(len(own), decisions))
    if state.spec.floors.until is None or holds is None:
        return found
    return Floor(control=found.control * holds, arms=found.arms * holds)


def _earlier(world: SimulatedTrials, season: int) -> IntArray:
    """How many decisions each user of this season's had in earlier ones: (n,)."""
    crowd = world.population
    count = np.zeros(len(crowd.users), np.intp)
    for before in range(season):
        np.add.at(count, crowd.user(before), 1)
    return np.asarray(count[crowd.user(season)])


def _waves(user: IntArray) -> list[IntArray]:
    """The first plot of every user, then the second, and so on."""
    turn = np.array([np.count_nonzero(user[:i] == u) for i, u in enumerate(user)])
    return [np.flatnonzero(turn == t) for t in range(int(turn.max()) + 1)]
