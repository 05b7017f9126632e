"""Yes-or-no outcomes beside numbers: the cost of a refit and of a decision, as ratios to the Gaussian model.

Five arms, every site 17 times in a season. A refit of either model estimates all variances anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.measure import Part, Size, compared, processor_seconds
from drimed import streams
from drimed.models.mixed.learner import Field
from drimed.models.offer import Offer, Outcome, Shape, Unit
from drimed.numerics.arrays import IntArray
from drimed.policies.policy import Policy, State
from drimed.policies.registry import make

ARMS, EACH = 5, 17
MOST_GROWTH = 10.0  # of a refit with 30 sites and 20 seasons, beside 6 and 10
MOST_FOR_OUTCOMES = 1.5  # of a refit with ten times as many outcomes in the same cells, or people who are alike
MOST_DECISION = 1.5  # of a decision from draws, beside the Gaussian model's


def run(size: Size) -> Part:
    """Refits, then decisions."""
    repeats, decisions = {"smallest": (1, 1), "quick": (3, 20), "full": (9, 100)}[size]
    few, many = ((2, 2), (3, 2)) if size == "smallest" else ((6, 10), (30, 20))
    part = Part("Yes-or-no outcomes", "ms", f"{ARMS} arms; sites x seasons")

    def beside(name: str, ours: Callable[[], float], plain: Callable[[], float], at_most: float | None) -> None:
        ours()
        plain()
        rows = compared({name: ours}, plain, repeats, scale=1000)
        part.rows.append(rows[name].with_goal(at_most=at_most))

    small, large, numbers = (played("yes/no", *few), played("yes/no", *many), played("number", *few))
    crowded = played("yes/no", *few, 10)
    text = "{} x {}".format
    beside(f"refit, {text(*few)}: yes/no / numbers", refit(*small), refit(*numbers), None)
    beside(f"refit, ten times the outcomes, {text(*few)}", refit(*crowded), refit(*small), MOST_FOR_OUTCOMES)
    crowd = [enrolled(n) for n in ((20, 10) if size == "smallest" else (1000, 100))]
    beside("refit, ten times the people", refit(*crowd[0]), refit(*crowd[1]), MOST_FOR_OUTCOMES)
    beside(f"refit, yes/no: {text(*many)} / {text(*few)}", refit(*large), refit(*small), MOST_GROWTH)
    for sizes, ours in ((few, small), (many, large)):
        theirs = numbers if sizes == few else played("number", *many)
        name = f"decision, {text(*sizes)}: yes/no / numbers"
        beside(name, decide(*ours, decisions), decide(*theirs, decisions), MOST_DECISION)
    return part


def played(kind: str, sites: int, seasons: int, times: int = 1) -> tuple[Policy, State]:
    """A policy after some seasons of even allocation."""
    policy = make("dri_field", kinds=(kind,), ranges=((0.0, 1.0),), relative=0.0, absolute=0.05)
    if not isinstance(policy, Policy):
        raise TypeError("dri_field is learner x rule x guard")
    rng, users = streams.generator(0, "benchmark"), np.repeat(np.arange(sites), EACH * times)
    rate = 0.3 + 0.1 * np.sin(np.arange(sites))[:, None] + 0.05 * rng.standard_normal(ARMS)
    state = policy.init(Shape(d=ARMS, K=ARMS, M=1, H=sites))
    for _ in range(seasons):
        action = rng.integers(0, ARMS, len(users))
        y = (rng.random(len(users)) < rate[users, action]).astype(np.float64)
        state = policy.begin_episode(state, offers(users))
        state = policy.observe(state, offers(users), action, Outcome(y, y[:, None]))
    return policy, policy.settle(state)


def enrolled(people: int) -> tuple[Policy, State]:
    """A policy after so many people who came once each."""
    policy = make("dri_people", kinds=("yes/no",), ranges=((0.0, 1.0),), relative=0.0, absolute=0.05)
    if not isinstance(policy, Policy):
        raise TypeError("dri_people is learner x rule x guard")
    users, action = np.arange(people), np.arange(people) % ARMS
    y = (streams.generator(0, "benchmark").random(people) < 0.3 + 0.1 * action).astype(np.float64)
    state = policy.begin_episode(policy.init(Shape(d=ARMS, K=ARMS, M=1, H=people)), offers(users))
    return policy, policy.settle(policy.observe(state, offers(users), action, Outcome(y, y[:, None])))


def offers(users: IntArray) -> Offer:
    n = len(users)
    return Offer(
        features=np.broadcast_to(np.eye(ARMS), (n, ARMS, ARMS)),
        control=np.broadcast_to(np.eye(ARMS)[0], (n, ARMS)),
        maps=np.broadcast_to(np.eye(ARMS)[:, None], (n, ARMS, 1, ARMS)),
        preference=np.ones((n, 1)),
        user=users,
        unit=Unit(user=users, group=users),
    )


def refit(policy: Policy, state: State) -> Callable[[], float]:
    """Processor time of one refit to all outcomes."""
    learner, evidence = policy.learner, replace(state.evidence, drawn_count=-1)
    if not isinstance(learner, Field):
        raise TypeError("refits are of the mixed model")
    return lambda: processor_seconds(lambda: learner.ready(evidence, variances=True))


def decide(policy: Policy, state: State, decisions: int) -> Callable[[], float]:
    """Processor time of each of some decisions for one site."""
    offer, draws = offers(np.array([1])), np.full((1, policy.draws_needed(Shape(d=ARMS, K=ARMS, M=1, H=1))), 0.3)
    return lambda: processor_seconds(lambda: policy.decide(state, offer, draws), decisions)
