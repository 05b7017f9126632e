"""Regret of deciding from a state that is some time old: outcomes and decisions are learned from in batches.

A thousand decisions a second, each with its outcome; the state is renewed after so many milliseconds. A batch is
decided from one state, exactly as questions that wait together are. These are the first ten seconds of a trial.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.measure import Part, Row, Size, Spread
from drimed import streams
from drimed.models.offer import Offer, Outcome, make_offer
from drimed.policies.registry import make
from drimed.simulation.instances import Instance, authors_instance, quantile_control

RATE = 1000  # decisions a second
AGES = (0.001, 0.01, 0.1, 1.0, 10.0)  # seconds
POLICIES = ("med", "dri_med")


def run(size: Size) -> Part:
    """Regret, and its ratio to that of a state that is hardly ever old."""
    decisions, seeds = {"smallest": (40, 1), "quick": (4_000, 2), "full": (10_000, 3)}[size]
    about = f"{decisions:,} decisions, {RATE:,} a second; in decisions for the worst arm. Ratio: to a state 1 ms old."
    part = Part("Deciding from an old state", "regret", about)
    for name in POLICIES:
        regrets = {age: [regret(name, seed, age, decisions) for seed in range(seeds)] for age in AGES}
        for age, values in regrets.items():
            ratios = [a / b for a, b in zip(values, regrets[AGES[0]], strict=True)]
            part.rows.append(Row(f"{name}, {1000 * age:,.0f} ms old", Spread.of(values), Spread.of(ratios)))
    return part


def regret(name: str, seed: int, age: float, decisions: int) -> float:
    """Loss against the best arm, as many times what the worst arm loses in one decision."""
    instance, policy = authors_instance(), make(name)
    means = instance.maps @ instance.theta @ instance.preferences[0]  # (K,)
    noise, roots = streams.generator(seed, "noise"), np.linalg.cholesky(instance.covariances)
    state = policy.begin_episode(policy.init(instance.shape), _offer(instance, 1))
    size, lost, done = max(1, round(RATE * age)), 0.0, 0
    draws = partial(streams.uniforms, seed, "policy")
    while done < decisions:
        n = min(size, decisions - done)
        offer = _offer(instance, n)
        draw = policy.decide(state, offer, draws(done, n, policy.draws_needed(instance.shape)))
        vectors = (instance.maps @ instance.theta)[draw.action]  # (n, M)
        vectors = vectors + np.matvec(roots[draw.action], noise.standard_normal(vectors.shape))
        outcome = Outcome(vectors @ instance.preferences[0], vectors)
        state = policy.update(state, offer, draw, outcome)
        lost += float((means.max() - means[draw.action]).sum())
        done += n
    return lost / float(np.ptp(means))


def _offer(instance: Instance, n: int) -> Offer:
    """The offer to n users like the first one."""
    return make_offer(
        maps=instance.maps,
        preference=np.repeat(instance.preferences[:1], n, axis=0),
        covariance=instance.covariances,
        control=np.repeat(quantile_control(instance)[:1], n, axis=0),
    )
