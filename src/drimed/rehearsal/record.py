"""What is kept of a block of simulated trials: numbers for each trial, from which every measure is computed.

Shapes: S trials, L seasons, T looks, H users who are looked at, U users of the whole trial, K arms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.rehearsal.designs import Design
from drimed.rehearsal.looks import weights
from drimed.rehearsal.play import Season, controls, play
from drimed.rehearsal.propensities import propensities
from drimed.rehearsal.rules import Watch
from drimed.rehearsal.scenarios import SimulatedTrials
from drimed.trial.parts import Tolerance

NEGLIGIBLE = 1e-9  # of the largest effect: round-off
BY_SEASON = ("allocation", "control", "given", "controls", "best", "uniform", "violations", "changed")
BY_LOOK = (
    "estimate",
    "half",
    "mean",
    "likely",
    "low",
    "high",
    "stands",
    "confirmed",
    "free_low",
    "free_high",
    "met",
    "wrong",
)
MOST_LOOKS = 6  # of a design beside the trial's own: it needs no fit to decide, and each look costs one


@dataclass(frozen=True)
class Record:
    """A block of trials of one design in one scenario."""

    looks: IntArray  # (T,), seasons after which there was a look, from 0
    played: IntArray  # (S,), seasons before a rule stopped the trial, or it ended; later ones are NaN below
    allocation: FloatArray  # (S, L, K), shares of decisions
    control: FloatArray  # (S, L), share of decisions for the user's own control
    given: FloatArray  # (S, L), mean expected reward of what was given
    controls: FloatArray  # (S, L), of the control
    best: FloatArray  # (S, L), of the best arm for each user
    uniform: FloatArray  # (S, L), of an arm that is drawn at random
    violations: FloatArray  # (S, L), share of decisions that are worse than the control by more than the tolerance
    changed: FloatArray  # (S, L), share of decisions in which the guard intervened
    loss: FloatArray  # (S, U), mean expected loss of each user against the control; negative: a gain
    tolerated: FloatArray  # (S, U), mean loss that the tolerance allows
    truth: FloatArray  # (S, H, K), effects on the reward
    estimate: FloatArray  # (S, T, H, K)
    half: FloatArray  # (S, T, H, K), of the likely range
    truth_all: FloatArray  # (S, K), of all who are looked at together
    meant: FloatArray  # (S, K), 1 for arms that the scenario makes better, -1 for those it makes worse, else 0
    mean: FloatArray  # (S, T, K)
    likely: FloatArray  # (S, T, K), half of the likely range
    low: FloatArray  # (S, T, K), of the range at all times
    high: FloatArray  # (S, T, K)
    stands: BoolArray  # (S, T, K), whether the likely range says the same allowing for the number of arms
    confirmed: BoolArray  # (S, T, K), whether enough seasons have told of an arm for the model to say anything
    free_low: FloatArray  # (S, T, K), of the range from the propensities, at all times
    free_high: FloatArray  # (S, T, K)
    met: BoolArray  # (S, T, R), stopping rules that are met for the first time by now
    wrong: BoolArray  # (S, T, R), of these, with a claim that is false

    @property
    def trials(self) -> int:
        """S."""
        return len(self.control)

    @property
    def estimates(self) -> bool:
        """Whether the policy estimates effects: the published algorithms do not."""
        return not bool(np.isnan(self.estimate).any())

    @property
    def shares(self) -> FloatArray:
        """Of the arms in each season that any trial has, NaN in those that have stopped: (S, up to L, K)."""
        return self.allocation[:, : int(self.played.max())]

    @classmethod
    def concatenate(cls, records: Sequence[Self]) -> Self:
        """One record of all trials."""
        names = [f.name for f in fields(cls) if f.name != "looks"]
        return replace(records[0], **{name: np.concatenate([getattr(r, name) for r in records]) for name in names})

    def arrays(self) -> dict[str, Any]:
        """Everything, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Inverse of `arrays`."""
        return cls(**arrays)


def played(world: SimulatedTrials, design: Design, tolerance: Tolerance) -> Record:
    """Simulated trials of a design, looked at after every season, or a few times where nothing is learned.

    What counts as harm is beyond this tolerance, whatever that of the design is.
    """
    L = world.setting.seasons
    every = design.learns or L <= MOST_LOOKS
    wanted = set(range(L)) if every else {round(x) for x in np.linspace(0, L - 1, MOST_LOOKS)}
    watch = Watch(world)
    seasons = list(play(world, design, looks=wanted, watch=watch))
    at = [s.number for s in seasons if s.look is not None]
    looks = [s.look for s in seasons if s.look is not None]
    truth = world.effects[..., 0]
    truth_all = np.einsum("hk,shk->sk", weights(world.typical), truth)
    free = propensities(world, seasons, at)  # (S, T, K, 2)
    losses, tolerated = _losses(world, seasons, tolerance, watch.played)
    rewards = [_rewards(world, s, tolerance) for s in seasons]

    def looked(name: str) -> Any:
        return np.stack([getattr(one, name) for one in looks], 1)

    return _stopped(Record(
        looks=np.array(at),
        played=watch.played,
        allocation=np.stack([_shares(s) for s in seasons], 1),
        control=np.stack([np.take_along_axis(controls(world, s), s.action[..., None], -1).mean((1, 2))
                          for s in seasons], 1),
        given=np.stack([r[0] for r in rewards], 1),
        controls=np.stack([r[1] for r in rewards], 1),
        best=np.stack([r[2] for r in rewards], 1),
        uniform=np.stack([r[3] for r in rewards], 1),
        violations=np.stack([r[4] for r in rewards], 1),
        changed=np.stack([s.changed.mean(1) for s in seasons], 1),
        loss=losses,
        tolerated=tolerated,
        truth=truth,
        estimate=looked("estimate"),
        half=looked("half"),
        truth_all=truth_all,
        meant=np.broadcast_to(_meant(world), (len(world.seeds), truth.shape[-1])),
        mean=looked("mean"),
        likely=looked("likely"),
        low=looked("low"),
        high=looked("high"),
        stands=looked("stands"),
        confirmed=looked("confirmed"),
        free_low=free[..., 0],
        free_high=free[..., 1],
        met=np.stack(watch.met, 1),
        wrong=np.stack(watch.wrong, 1),
    ))  # fmt: skip


def _stopped(record: Record) -> Record:
    """What comes after a stop is not there (NaN), and looks after it see what the last one saw."""
    over = np.arange(record.control.shape[1]) >= record.played[:, None]  # (S, L)
    if not over.any():
        return record
    T = len(record.looks)
    last = np.maximum((record.looks < record.played[:, None]).sum(1) - 1, 0)  # (S,)
    held = np.minimum(np.arange(T), last[:, None])  # (S, T)
    changed: dict[str, Any] = {
        name: np.where(over.reshape(*over.shape, *(1,) * (np.ndim(values) - 2)), np.nan, values)
        for name in BY_SEASON
        if (values := getattr(record, name)) is not None
    } | {name: getattr(record, name)[np.arange(record.trials)[:, None], held] for name in BY_LOOK}
    return replace(record, **changed)


def _meant(world: SimulatedTrials) -> FloatArray:
    """The sign of each arm's effect in the scenario; where effects are drawn, every arm is meant to be found: (K,)."""
    problem, s = world.population.state.problem, world.setting
    p = np.mean([q.preference for q in world.population.looked_at], axis=0) / problem.sizes
    control = np.mean([q.control for q in world.population.looked_at], axis=0)
    effects = world.past.lasting.mean(0) if world.past is not None else s.effects
    if s.spread.any() and world.past is None:
        return 1.0 - (control == 1.0)
    worth = effects @ p
    off = worth - control @ worth
    return np.asarray(np.sign(np.where(np.abs(off) > NEGLIGIBLE * np.abs(off).max(), off, 0.0)))


def _shares(season: Season) -> FloatArray:
    K = season.means.shape[-1]
    return np.stack([(season.action == k).mean(-1) for k in range(K)], -1)


def _expected(
    world: SimulatedTrials, season: Season, tolerance: Tolerance
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The expected reward of what was given and of the control, and what the tolerance allows: (S, n) each."""
    given = np.take_along_axis(season.means, season.action[..., None], -1)[..., 0]
    control = np.vecdot(controls(world, season), season.means)
    return given, control, tolerance.relative * np.abs(control) + tolerance.absolute


def _rewards(world: SimulatedTrials, season: Season, tolerance: Tolerance) -> tuple[FloatArray, ...]:
    """Of what was given, of the control, of the best arm, of any arm, and the share below the tolerance: (S,) each."""
    given, control, allowed = _expected(world, season, tolerance)
    can = season.offers.available
    can = np.ones(season.means.shape, bool) if can is None else can
    best = np.where(can, season.means, -np.inf).max(-1)
    uniform = (can * season.means).sum(-1) / can.sum(-1)
    below = control - given > allowed * (1 + 1e-9)
    return tuple(x.mean(-1) for x in (given, control, best, uniform, below.astype(np.float64)))


def _losses(
    world: SimulatedTrials, seasons: Sequence[Season], tolerance: Tolerance, played: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Of each user over all of its decisions, and what the tolerance allows: (S, U) twice."""
    U, S = len(world.population.users), len(world.seeds)
    loss, allowed, count = (np.zeros((S, U)) for _ in range(3))
    whose = np.eye(U)
    for season in seasons:
        user = world.population.user(season.number)
        given, control, tolerated = _expected(world, season, tolerance)
        running = (played > season.number)[:, None]
        loss += running * ((control - given) @ whose[user])
        allowed += running * (tolerated @ whose[user])
        count += running * whose[user].sum(0)
    return loss / np.maximum(count, 1), allowed / np.maximum(count, 1)
