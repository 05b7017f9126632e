"""The field model beside the paper's: what a decision costs in a trial with many sites, seasons or people.

A pair is a decision and its outcome. Policies are timed by themselves (settle, decide, commit, observe) and in a live
trial (ask and tell, on a store that does not wait for the disk). What is built before is not timed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import layout
from benchmarks.measure import Comparison, Goal, Spread, Tick, in_turn
from benchmarks.trial import without_sync
from drimed import streams
from drimed.models.offer import Offer, Outcome, Shape, Unit
from drimed.numerics.arrays import IntArray
from drimed.policies.protocol import AnyPolicy
from drimed.policies.registry import make
from drimed.records import Decision, Report
from drimed.trial.store import open_store
from drimed.trial.transaction import SNAPSHOT_EVERY
from drimed.trial.trial import Trial

MOST_PAPER_PAIRS = 2.0  # pairs of the paper's model that a pair of the field model may cost
MOST_GROWTH = 2.0  # that a pair may cost with many people, beside few
MOST_SECONDS = 1.0  # to open a trial
ARMS, SITES = 8, 20
PER_PERSON = 2  # outcomes of each person so far
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to run."""

    decisions: int  # that a trial has had
    few: int  # people
    many: int
    pairs: int  # per repeat
    repeats: int

    @classmethod
    def sized(cls, quick: bool) -> Plan:
        """Some minutes, or a first look."""
        return cls(2_000, 100, 10_000, 20, 3) if quick else cls(10_000, 100, 100_000, 50, 5)

    @property
    def ticks(self) -> int:
        """How many pieces of work the run has."""
        return 3 * self.repeats + 2 * (self.decisions // SITES)


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that was measured."""

    plan: Plan
    rows: list[Comparison]
    open_seconds: Spread  # just before the next snapshot
    fit_seconds: Spread  # of its variances: opening repeats a fit that is at most some fifty events old


def run(plan: Plan, tick: Tick) -> Result:
    """Sites, then people, then live trials."""
    field = Pairs(make("field_med", ties="shared", simultaneous=True, relative=0.0, absolute=1.0), SITES)
    paper = Pairs(make("dri_med", weighting="learned", refits="converged", relative=0.0, absolute=1.0), SITES)
    for loop in (field, paper):
        loop.grow(plan.decisions // SITES)
    rows = [_compared("sites: field / paper, policy alone", field, paper, plan, tick)]
    many, few = (Pairs(make("people_med", relative=0.0, absolute=1.0), n) for n in (plan.many, plan.few))
    for loop in (many, few):
        loop.grow(PER_PERSON)
    rows.append(_compared(f"people: {plan.many:,} / {plan.few}, policy alone", many, few, plan, tick))
    with tempfile.TemporaryDirectory(prefix="drimed-bench-") as folder:
        ours, theirs = (_trial(Path(folder) / f"{kind}.db", kind, plan, tick) for kind in ("field", "paper"))
        rows.append(_compared("sites: field / paper, ask + tell", ours, theirs, plan, tick))
        fits = [_until_the_next_snapshot(Path(folder) / "field.db") for _ in range(plan.repeats)]
        seconds = [_opening(Path(folder) / "field.db") for _ in range(plan.repeats)]
    return Result(plan, rows, Spread.of(seconds), Spread.of(fits))


def table(result: Result) -> Table:
    """Milliseconds and ratios."""
    plan = result.plan
    view = layout.table(
        "The field model",
        f"{ARMS} arms, {SITES} sites, {plan.decisions:,} decisions; {plan.repeats} repeats of {plan.pairs} pairs.",
        "a decision and its outcome",
        *("ms", "beside", "ratio", "range"),
    )
    for row in result.rows:
        ms, beside = row.microseconds.median / 1000, row.plain_microseconds.median / 1000
        view.add_row(row.name, f"{ms:.2f}", f"{beside:.2f}", f"{row.ratio.median:.2f}", row.ratio.range(2))
    view.add_row("opening the field trial", f"{1000 * result.open_seconds.median:.0f}", "", "", "")
    view.add_row("and fitting its variances again", f"{1000 * result.fit_seconds.median:.0f}", "", "", "")
    return view


def goals(result: Result) -> list[Goal]:
    """Of live trials, and of people; what a policy costs alone is shown beside them."""
    _, people, trial = result.rows
    return [
        Goal(trial.name, trial.ratio, MOST_PAPER_PAIRS, at_least=False),
        Goal(people.name, people.ratio, MOST_GROWTH, at_least=False),
        Goal("field trial: seconds to open", result.open_seconds, MOST_SECONDS, at_least=False),
    ]


class Pairs:
    """A policy in mid-trial. Calling it takes more pairs and tells the seconds of processor time that each took."""

    def __init__(self, policy: AnyPolicy, users: int) -> None:
        self._policy, self._users, self._done = policy, users, 0
        self._shape = Shape(d=ARMS, K=ARMS, M=1, H=users)
        self._rng = streams.generator(0, "benchmark")
        self._state = policy.init(self._shape)

    def grow(self, seasons: int) -> None:
        """Some seasons in which everybody gets any arm."""
        everybody = np.arange(self._users)
        offers, policy = _offers(everybody), self._policy
        for season in range(seasons):
            action = self._rng.integers(0, ARMS, self._users)
            self._state = policy.begin_episode(self._state, offers)
            self._state = policy.observe(self._state, offers, action, self._outcome(everybody, action, season))
        self._state = policy.settle(policy.begin_episode(self._state, offers))

    def __call__(self, pairs: int) -> float:
        policy, state = self._policy, self._state
        draws = streams.uniforms(0, "policy", self._done, pairs, policy.draws_needed(self._shape))
        users = self._rng.integers(0, self._users, pairs)
        start = time.process_time()
        for u, user in zip(draws, users.tolist(), strict=True):
            one = np.array([user])
            offer, state = _offers(one), policy.settle(state)
            draw = policy.decide(state, offer, u[None])
            state = policy.update(state, offer, draw, self._outcome(one, draw.action, 0))
        elapsed = time.process_time() - start
        self._state, self._done = state, self._done + pairs
        return elapsed / pairs

    def _outcome(self, users: IntArray, action: IntArray, season: int) -> Outcome:
        level = 50 + 3 * np.sin(users) + 5 * np.cos(season) + np.sqrt(action)
        y = level + 2 * self._rng.standard_normal(len(users))
        return Outcome(y, y[..., None])


def _offers(users: IntArray) -> Offer:
    n = len(users)
    return Offer(
        features=np.broadcast_to(np.eye(ARMS), (n, ARMS, ARMS)),
        control=np.broadcast_to(np.eye(ARMS)[0], (n, ARMS)),
        maps=np.broadcast_to(np.eye(ARMS)[:, None], (n, ARMS, 1, ARMS)),
        preference=np.ones((n, 1)),
        user=users,
        unit=Unit(user=users, group=users),
    )


def _compared(
    name: str, ours: Callable[[int], float], plain: Callable[[int], float], plan: Plan, tick: Tick
) -> Comparison:
    for loop in (ours, plain):
        loop(_WARM_UP)
    found = in_turn({name: lambda: ours(plan.pairs)}, lambda: plain(plan.pairs), plan.repeats, tick)
    return Comparison.of(name, found[name], lambda pair: pair.seconds / pair.plain)


def _trial(path: Path, kind: str, plan: Plan, tick: Tick) -> Callable[[int], float]:
    """A live trial of that kind in its last season, as a loop of pairs."""
    store = open_store(f"sqlite:///{path}")
    without_sync(store)
    trial = Trial.create(_spec(kind), store)
    rng = streams.generator(1, "benchmark")
    for _ in range(plan.decisions // SITES):
        trial.open_episode()
        trial.tell_many([Report(d.id, _harvest(d, rng)) for d in trial.ask_many()])
        tick()
    trial.open_episode()
    sites = list(trial.state().users)

    def pairs(n: int) -> float:
        start = time.process_time()
        for i in range(n):
            decision = trial.ask(sites[i % SITES])
            trial.tell(decision.id, _harvest(decision, rng))
        return (time.process_time() - start) / n

    return pairs


def _until_the_next_snapshot(path: Path) -> float:
    """Ask and tell until two events more would bring one, and fit the variances: the seconds of processor time."""
    store = open_store(f"sqlite:///{path}")
    without_sync(store)
    trial, rng = Trial.open("sites", store), streams.generator(2, "benchmark")
    with store.reading("sites") as ledger:
        due = ledger.snapshot_seq() + SNAPSHOT_EVERY
    sites = list(trial.state().users)
    while trial.state().seq + 2 < due:
        decision = trial.ask(sites[trial.state().seq % SITES])
        trial.tell(decision.id, _harvest(decision, rng))
    state = trial.state()
    policy: Any = state.policy  # with the field model as its learner
    evidence = state.settled().evidence
    start = time.process_time()
    policy.learner.ready(evidence, variances=True)
    took = time.process_time() - start
    store.close()
    return took


def _opening(path: Path) -> float:
    start = time.process_time()
    store = open_store(f"sqlite:///{path}")
    Trial.open("sites", store).status()
    took = time.process_time() - start
    store.close()
    return took


def _spec(kind: str) -> dict[str, Any]:
    return {
        "name": "sites",
        "seed": 1,
        "decisions": "any number",
        "model": {"kind": kind},
        "metrics": {"yield": {"range": [0.0, 100.0]}},
        "arms": {f"arm {a}": {} for a in range(ARMS)},
        "control": "arm 0",
        "preference": {"yield": 1.0},
        "users": {f"site {i}": {} for i in range(SITES)},
        "tolerance": {"absolute": 1.0},
    }


def _harvest(decision: Decision, rng: np.random.Generator) -> dict[str, float]:
    site, arm = int(decision.user.split()[1]), int(decision.arm.split()[1])
    level = 50 + 3 * np.sin(site) + 5 * np.cos(decision.episode) + np.sqrt(arm)
    return {"yield": float(level + 2 * rng.standard_normal())}
