"""The mixed model beside the paper's: cost of a decision and its outcome with many sites, seasons or people.

Policies are timed by themselves (settle, decide, commit, observe) and in a live trial (ask and tell, on a store that
does not wait for the disk). The evidence before is not timed.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Part, Row, Size, Spread, compared, processor_seconds
from benchmarks.trial import without_sync
from drimed import streams
from drimed.models.offer import Offer, Outcome, Shape, Unit
from drimed.numerics.arrays import IntArray
from drimed.policies.protocol import AnyPolicy
from drimed.policies.registry import make
from drimed.records import Decision, Report
from drimed.trial.store import open_store
from drimed.trial.trial import Trial

MOST_PAPER_PAIRS = 2.0  # pairs of the paper's model that a pair of the mixed model may cost
MOST_GROWTH = 2.0  # that a pair may cost with many sites, people or decisions of one person, beside few
MOST_FOR_ARMS = 100.0  # that a pair may cost with many arms, beside ARMS
MOST_OF_SEASON = 0.5  # of a pair: a decision of many that are asked for together
MOST_SECONDS = 1.0  # to open a trial
MOST_SEASON_SECONDS, MOST_SEASON_MEMORY = 15.0, 2.0  # to ask for all sites with FEW_ARMS, in a process of its own: GB
ARMS, FEW_ARMS, SITES = 8, 5, 20
PER_PERSON = 2  # outcomes of each person so far
WARM_UP = 3


def run(size: Size) -> Part:
    """Sites, then people, then live trials."""
    decisions, few, many, visits, arms, pairs, repeats = {
        "smallest": (40, 5, 10, 10, 9, 1, 1),
        "quick": (400, 10, 1_000, 1_000, 200, 5, 2),
        "full": (10_000, 10, 10_000, 15_000, 200, 50, 5),
    }[size]
    part = Part("The mixed model", "ms", f"{ARMS} arms, {SITES} sites, {decisions:,} decisions. A pair: ask and tell.")

    def beside(name: str, ours: Callable[[int], float], plain: Callable[[int], float], at_most: float | None) -> None:
        ours(WARM_UP)
        plain(WARM_UP)
        rows = compared({name: lambda: ours(pairs)}, lambda: plain(pairs), repeats, scale=1000)
        part.rows.append(rows[name].with_goal(at_most=at_most))

    mixed, paper = (
        PolicyPairs(make("dri_field", relative=0.0, absolute=1.0), SITES, decisions // SITES),
        PolicyPairs(make("dri_med", weighting="learned", relative=0.0, absolute=1.0), SITES, decisions // SITES),
    )
    beside("sites: mixed / paper, policy alone", mixed, paper, None)
    for word, name in (("sites", "dri_field"), ("people", "dri_people")):
        crowd, group = (PolicyPairs(make(name, relative=0.0, absolute=1.0), n, PER_PERSON) for n in (many, few))
        beside(f"{word}: {many:,} / {few}, policy alone", crowd, group, MOST_GROWTH)
    patient, varied = (
        PolicyPairs(make("dri_people", relative=0.0, absolute=1.0), 1, PER_PERSON),
        PolicyPairs(make("dri_people", relative=0.0, absolute=1.0), min(many, 1_000), PER_PERSON, arms),
    )
    patient(visits)
    beside(f"one person: {visits:,} decisions / {few} people", patient, group, MOST_GROWTH)
    beside(f"people: {arms} arms / {ARMS}, policy alone", varied, group, MOST_FOR_ARMS)
    with tempfile.TemporaryDirectory(prefix="drimed-bench-") as folder:
        addresses = {kind: f"sqlite:///{Path(folder) / kind}.db" for kind in ("field", "paper")}
        ours, theirs = (trial_pairs(address, kind, decisions // SITES) for kind, address in addresses.items())
        beside("sites: mixed / paper, ask + tell", ours, theirs, MOST_PAPER_PAIRS)
        season = trial_seasons(f"sqlite:///{Path(folder) / 'season'}.db", many)
        beside(f"sites: a season of {many:,}, each / ask + tell", season, ours, MOST_OF_SEASON)
        seconds = [processor_seconds(lambda: _open(addresses["field"])) for _ in range(repeats)]
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            asked, memory = alone.submit(whole_season, f"sqlite:///{Path(folder) / 'whole'}.db", many).result()
    name = f"the third season of {many:,} sites, {FEW_ARMS} arms, asked for"
    part.rows.append(Row(f"{name} (s)", Spread.of([asked]), at_most=MOST_SEASON_SECONDS))
    part.rows.append(Row(f"{name}: peak memory (GB)", Spread.of([memory]), at_most=MOST_SEASON_MEMORY))
    part.rows.append(Row("opening the trial of the mixed model (s)", Spread.of(seconds), at_most=MOST_SECONDS))
    return part


class PolicyPairs:
    """A policy after some seasons. Calling it takes more pairs and returns the processor time of each."""

    def __init__(self, policy: AnyPolicy, users: int, seasons: int, arms: int = ARMS) -> None:
        self._policy, self._users, self._done = policy, users, 0
        self._shape = Shape(d=arms, K=arms, M=1, H=users)
        self._rng = streams.generator(0, "benchmark")
        everybody, state = np.arange(users), policy.init(self._shape)
        offers = _offers(everybody, arms)
        for season in range(seasons):
            action = self._rng.integers(0, arms, users)
            state = policy.begin_episode(state, offers)
            state = policy.observe(state, offers, action, self._outcome(everybody, action, season))
        self._state = policy.settle(policy.begin_episode(state, offers))

    def __call__(self, pairs: int) -> float:
        policy, state = self._policy, self._state
        draws = iter(streams.uniforms(0, "policy", self._done, pairs, policy.draws_needed(self._shape)))
        users = iter(self._rng.integers(0, self._users, pairs).tolist())

        def pair() -> None:
            nonlocal state
            one = np.array([next(users)])
            offer, state = _offers(one, self._shape.K), policy.settle(state)
            draw = policy.decide(state, offer, next(draws)[None])
            state = policy.update(state, offer, draw, self._outcome(one, draw.action, 0))

        elapsed = processor_seconds(pair, pairs)
        self._state, self._done = state, self._done + pairs
        return elapsed

    def _outcome(self, users: IntArray, action: IntArray, season: int) -> Outcome:
        level = 50 + 3 * np.sin(users) + 5 * np.cos(season) + np.sqrt(action)
        y = level + 2 * self._rng.standard_normal(len(users))
        return Outcome(y, y[..., None])


def _offers(users: IntArray, arms: int) -> Offer:
    n = len(users)
    return Offer(
        features=np.broadcast_to(np.eye(arms), (n, arms, arms)),
        control=np.broadcast_to(np.eye(arms)[0], (n, arms)),
        maps=np.broadcast_to(np.eye(arms)[:, None], (n, arms, 1, arms)),
        preference=np.ones((n, 1)),
        user=users,
        unit=Unit(user=users, group=users),
    )


def whole_season(address: str, sites: int) -> tuple[float, float]:
    """Processor time to ask for all sites in the third season, and the most memory that the process ever had, in GB."""
    season = trial_seasons(address, sites, FEW_ARMS)
    seconds = [season(1) * sites for _ in range(3)]
    return seconds[-1], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def trial_seasons(address: str, sites: int, arms: int = ARMS) -> Callable[[int], float]:
    """A live trial with so many sites, as a loop of seasons; the processor time of each decision when asked for all."""
    store = open_store(address)
    without_sync(store)
    trial = Trial.create(_spec("field", sites, arms) | {"decisions": "one per episode"}, store)
    rng = streams.generator(1, "benchmark")

    def season(_: int) -> float:
        trial.open_episode()
        elapsed = processor_seconds(lambda: asked.extend(trial.ask_many()))
        trial.tell_many([Report(d.id, _harvest(d, rng)) for d in asked])
        asked.clear()
        return elapsed / sites

    asked: list[Decision] = []
    return season


def trial_pairs(address: str, kind: str, seasons: int) -> Callable[[int], float]:
    """A live trial of that kind after some seasons, as a loop of pairs."""
    store = open_store(address)
    without_sync(store)
    trial = Trial.create(_spec(kind, SITES), store)
    rng = streams.generator(1, "benchmark")
    for _ in range(seasons):
        trial.open_episode()
        trial.tell_many([Report(d.id, _harvest(d, rng)) for d in trial.ask_many()])
    trial.open_episode()
    sites = list(trial.state().users)

    def pairs(n: int) -> float:
        numbers = iter(range(n))

        def pair() -> None:
            decision = trial.ask(sites[next(numbers) % SITES])
            trial.tell(decision.id, _harvest(decision, rng))

        return processor_seconds(pair, n)

    return pairs


def _open(address: str) -> None:
    store = open_store(address)
    Trial.open("sites", store).status()
    store.close()


def _spec(kind: str, sites: int, arms: int = ARMS) -> dict[str, Any]:
    return {
        "name": "sites",
        "seed": 1,
        "decisions": "any number",
        "model": {"kind": kind},
        "metrics": {"yield": {"range": [0.0, 100.0]}},
        "arms": {f"arm {a}": {} for a in range(arms)},
        "control": "arm 0",
        "preference": {"yield": 1.0},
        "users": {f"site {i}": {} for i in range(sites)},
        "tolerance": {"absolute": 1.0},
    }


def _harvest(decision: Decision, rng: np.random.Generator) -> dict[str, float]:
    site, arm = int(decision.user.split()[1]), int(decision.arm.split()[1])
    level = 50 + 3 * np.sin(site) + 5 * np.cos(decision.episode) + np.sqrt(arm)
    return {"yield": float(level + 2 * rng.standard_normal())}
