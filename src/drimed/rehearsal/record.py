"""What is kept of a block of simulated trials: numbers for each trial, from which every measure is computed.

Shapes: S trials, L seasons, T looks, H users who are looked at, U users of the whole trial, K arms.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from drimed.errors import InputError
from drimed.evaluation import scores
from drimed.learning.field.contrasts import ALPHA
from drimed.linear.arrays import FloatArray, IntArray
from drimed.rehearsal.designs import Design
from drimed.rehearsal.looks import Look
from drimed.rehearsal.play import Season, play
from drimed.rehearsal.world import World
from drimed.trial.parts import Tolerance

NEGLIGIBLE = 1e-9  # of the largest effect: round-off
MOST_LOOKS = 6  # of a design beside the trial's own: it needs no fit to decide, and each look costs one


@dataclass(frozen=True)
class Record:
    """A block of trials of one design in one scenario."""

    looks: IntArray  # (T,), seasons after which there was a look, from 0
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
    free_low: FloatArray  # (S, T, K), of the range from the propensities, at all times
    free_high: FloatArray  # (S, T, K)

    @property
    def trials(self) -> int:
        """S."""
        return len(self.control)

    @staticmethod
    def joined(records: Sequence[Record]) -> Record:
        """One record of all trials."""
        found = {
            f.name: np.concatenate([getattr(r, f.name) for r in records]) for f in fields(Record) if f.name != "looks"
        }
        return Record(looks=records[0].looks, **found)

    def save(self, path: Path) -> None:
        """Write atomically: a reader finds the whole file or none."""
        part = path.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as f:
            np.savez_compressed(f, allow_pickle=False, **{f.name: getattr(self, f.name) for f in fields(Record)})
        part.replace(path)

    @staticmethod
    def load(path: Path) -> Record:
        """Read what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as f:
                return Record(**{field.name: f[field.name] for field in fields(Record)})
        except (OSError, KeyError, ValueError, EOFError) as error:
            raise InputError(f"{path} is not a stored rehearsal ({error}); delete it and run again") from error


def played(world: World, design: Design, tolerance: Tolerance) -> Record:
    """Simulated trials of a design, looked at after every season, or a few times where nothing is learned.

    What counts as harm is beyond this tolerance, whatever that of the design is.
    """
    L = world.setting.seasons
    every = design.learns or L <= MOST_LOOKS
    wanted = set(range(L)) if every else {round(x) for x in np.linspace(0, L - 1, MOST_LOOKS)}
    seasons = list(play(world, design, looks=wanted))
    at = [s.number for s in seasons if s.look is not None]
    looks = [s.look for s in seasons if s.look is not None]
    free = np.stack([_propensities(world, seasons, season) for season in at], 1)  # (S, T, K, 2)
    losses, tolerated = _losses(world, seasons, tolerance)
    truth = world.truth(seasons[-1].typical)
    rewards = [_rewards(world, s, tolerance) for s in seasons]

    def looked(name: str) -> FloatArray:
        return np.stack([getattr(one, name) for one in looks], 1)

    return Record(
        looks=np.array(at),
        allocation=np.stack([_shares(s) for s in seasons], 1),
        control=np.stack([np.take_along_axis(_control(world, s), s.action[..., None], -1).mean((1, 2))
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
        truth_all=np.einsum("hk,shk->sk", Look.weights(seasons[-1].typical), truth),
        meant=np.broadcast_to(_meant(world), (len(world.seeds), truth.shape[-1])),
        mean=looked("mean"),
        likely=looked("likely"),
        low=looked("low"),
        high=looked("high"),
        free_low=free[..., 0],
        free_high=free[..., 1],
    )  # fmt: skip


def _meant(world: World) -> FloatArray:
    """The sign of each arm's effect in the scenario; where effects are drawn, every arm is meant to be found: (K,)."""
    problem, s = world.crowd.state.problem, world.setting
    p = np.mean([q.preference for q in world.crowd.looked_at], axis=0) / problem.sizes
    control = np.mean([q.control for q in world.crowd.looked_at], axis=0)
    effects = world.past.lasting.mean(0) if world.past is not None else s.effects
    if s.spread.any() and world.past is None:
        return 1.0 - (control == 1.0)
    worth = effects @ p
    off = worth - control @ worth
    return np.asarray(np.sign(np.where(np.abs(off) > NEGLIGIBLE * np.abs(off).max(), off, 0.0)))


def _shares(season: Season) -> FloatArray:
    K = season.means.shape[-1]
    return np.stack([(season.action == k).mean(-1) for k in range(K)], -1)


def _control(world: World, season: Season) -> FloatArray:
    """The control of each decision: (S, n, K)."""
    own = np.stack([p.control for p in world.crowd.profiles(season.number)])
    return np.broadcast_to(own, (*season.action.shape, own.shape[-1]))


def _expected(world: World, season: Season, tolerance: Tolerance) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The expected reward of what was given and of the control, and what the tolerance allows: (S, n) each."""
    given = np.take_along_axis(season.means, season.action[..., None], -1)[..., 0]
    control = np.vecdot(_control(world, season), season.means)
    return given, control, tolerance.relative * np.abs(control) + tolerance.absolute


def _rewards(world: World, season: Season, tolerance: Tolerance) -> tuple[FloatArray, ...]:
    """Of what was given, of the control, of the best arm, of any arm, and the share below the tolerance: (S,) each."""
    given, control, allowed = _expected(world, season, tolerance)
    can = season.offers.available
    can = np.ones(season.means.shape, bool) if can is None else can
    best = np.where(can, season.means, -np.inf).max(-1)
    uniform = (can * season.means).sum(-1) / can.sum(-1)
    below = control - given > allowed * (1 + 1e-9)
    return tuple(x.mean(-1) for x in (given, control, best, uniform, below.astype(np.float64)))


def _losses(world: World, seasons: Sequence[Season], tolerance: Tolerance) -> tuple[FloatArray, FloatArray]:
    """Of each user over all of its decisions, and what the tolerance allows: (S, U) twice."""
    U, S = len(world.crowd.users), len(world.seeds)
    loss, allowed, count = np.zeros((S, U)), np.zeros((S, U)), np.zeros(U)
    whose = np.eye(U)
    for season in seasons:
        user = world.crowd.user(season.number)
        given, control, tolerated = _expected(world, season, tolerance)
        loss += (control - given) @ whose[user]
        allowed += tolerated @ whose[user]
        count += whose[user].sum(0)
    return loss / count, allowed / count


def _propensities(world: World, seasons: Sequence[Season], now: int) -> FloatArray:
    """The range of each arm's effect on the reward of all users, from what was told by now: (S, K, 2)."""
    last = len(seasons) - 1
    seen = [s for s in seasons if s.number <= (now if now == last else now - world.setting.delay)]
    S, K = len(world.seeds), seasons[0].means.shape[-1]
    found = np.stack([np.full((S, K), -np.inf), np.full((S, K), np.inf)], -1)
    if not seen or not seen[0].exact:
        return found
    action, reward = (np.concatenate([getattr(s, name) for s in seen], 1) for name in ("action", "reward"))
    e = np.concatenate([s.probabilities for s in seen], 1)
    control = np.concatenate([_control(world, s) for s in seen], 1)[0]
    user = np.concatenate([world.crowd.user(s.number) for s in seen])
    season = np.concatenate([np.full(s.action.shape[1], s.number) for s in seen])
    whole = np.isfinite(reward).all()
    for some in [slice(None)] if whole else [slice(s, s + 1) for s in range(S)]:
        at = np.flatnonzero(np.isfinite(reward[some]).all(0))
        if len(at) < 2:
            continue
        a, r, p = action[some][:, at], reward[some][:, at], e[some][:, at]
        q = scores.running_predictions(a, r, K, user=user[at], season=season[at])
        for k in range(K):
            g = np.eye(K)[k] - control[at]
            if not g.any():
                continue
            found[some, k] = np.stack(_band(a, r, p, g, q), -1)
    return found


def _band(a: IntArray, r: FloatArray, p: FloatArray, g: FloatArray, q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """At all times, after the last decision; nothing predicted the first decision of all, so it is left out."""
    told = scores.effect_scores(
        action=a[:, 1:], reward=r[:, 1:], probabilities=p[:, 1:], contrast=g[1:], predictions=q[:, 1:]
    )
    band = scores.effect_band(told, ALPHA)
    return band.low[:, -1], band.high[:, -1]
