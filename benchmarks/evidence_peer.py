"""The mixture adaptive design beside our ranges, on the same trials.

`pyssed` is the package of Molitor and Gold for the design of Liang and Bojinov (2023) and its covariate version (2025).
It mixes the lottery of `dri_med` with a uniform one, in shares t^-.24 as its authors do, draws, and gives its
confidence sequences (with Bonferroni's correction, tightest at the end of the trial); ours are computed from the same
decisions.
Its mixing comes after the guard, so that nothing is certified. Where the package is missing, nothing is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import layout
from benchmarks.evidence_play import ALPHA, RESIDUAL, World, dri_med
from drimed import streams
from drimed.environments.field import RANGE, FieldSetting, FieldWorld
from drimed.evaluation import scores
from drimed.learning.offer import Outcome
from drimed.linear.arrays import FloatArray

PACKAGE = "pyssed"
SHRINK = 0.24


@dataclass(frozen=True, slots=True)
class Peer:
    """How one kind of range did."""

    name: str
    trials: int
    detected: float
    season: float  # median, of the claim; infinite where fewer than half have one
    half: float  # median half width at the end, of the better arm, in residual deviations
    wrong: float  # trials in which the range of any arm left the truth out after any season
    regret: float


def run(world: World, trials: int) -> list[Peer]:
    """Each kind of range on the same decisions; none where the package is not installed."""
    if find_spec(PACKAGE) is None:
        return []
    found: dict[str, list[tuple[FloatArray, float]]] = {}
    for covariates in (False, True):
        for seed in range(trials):
            theirs, ours, regret = _trial(world, seed, covariates=covariates)
            found.setdefault(f"{PACKAGE}, {'with sites as covariates' if covariates else 'as it is'}", []).append(
                (theirs, regret)
            )
            if not covariates:
                found.setdefault("scores with running predictions", []).append((ours, regret))
    return [_summary(name, rows, world) for name, rows in found.items()]


def table(peers: list[Peer]) -> Table:
    """One row for each kind of range."""
    said = f"{peers[0].trials} trials." if peers else f"{PACKAGE} is not installed: nothing was measured."
    columns = ("detected", "median season", "half width", "ever wrong", "regret")
    view = layout.table("The mixture adaptive design", said, "ranges", *columns)
    for p in peers:
        season = "-" if np.isinf(p.season) else f"{p.season:.0f}"
        shares = f"{100 * p.detected:.0f} %", season, f"{p.half:.2f}", f"{100 * p.wrong:.0f} %"
        view.add_row(p.name, *shares, f"{p.regret:.0f}")
    return view


def _summary(name: str, rows: list[tuple[FloatArray, float]], world: World) -> Peer:
    bands = np.stack([bands for bands, _ in rows])  # (S, L, arms but the control, 2)
    truth = RESIDUAL * np.array(world.effects[1:])
    said = bands[:, :, 0, 0] > 0
    wrong = ((bands[..., 0] > truth) | (bands[..., 1] < truth)).any((1, 2))
    half = (bands[:, -1, 0, 1] - bands[:, -1, 0, 0]) / 2 / RESIDUAL
    season = np.where(said.any(-1), said.argmax(-1) + 1.0, np.inf)
    regret = float(np.mean([r for _, r in rows]))
    return Peer(
        name, len(rows), float(said.any(-1).mean()), float(np.median(season)), float(np.median(half)),
        float(wrong.mean()), regret,
    )  # fmt: skip


def _trial(world: World, seed: int, *, covariates: bool) -> tuple[FloatArray, FloatArray, float]:
    """Their ranges and ours after each season, (L, arms but the control, 2), and the regret."""
    mad: Any = import_module(f"{PACKAGE}.mad")
    model = import_module(f"{PACKAGE}.model")
    mad.generator = streams.generator(seed, "their draws")
    bandit = _bandit(world, seed, covariates)
    L, H, K = world.seasons, world.users, world.arms
    more = {"model": model.FastOLSModel, "n_warmup": H} if covariates else {}
    design = mad.MAD(bandit=bandit, alpha=ALPHA, delta=lambda t: t**-SHRINK, t_star=L * H, **more)
    theirs = np.zeros((L, K - 1, 2))
    for t in range(L):
        for _ in range(H):
            design.pull(early_stopping=False)
        now = design.estimates()
        theirs[t] = np.nan_to_num(now[["lb", "ub"]].to_numpy(float), nan=np.inf)
        theirs[t, :, 0] = np.where(np.isinf(theirs[t, :, 1]), -np.inf, theirs[t, :, 0])
    return theirs, bandit.ranges(), bandit.regret


def _bandit(world: World, seed: int, covariates: bool) -> Any:
    """`dri_med` in one trial, as their package asks for it."""
    base, reward = import_module(f"{PACKAGE}.bandit").Bandit, import_module(f"{PACKAGE}.bandit").Reward
    frame = import_module("pandas").DataFrame
    L, H, K = world.seasons, world.users, world.arms
    policy = dri_med(world)
    field = FieldWorld(FieldSetting(arms=K, sites=H, plots=1, seasons=L), [seed])
    offers = replace(field.offers(np.arange(H)), control=np.broadcast_to(np.eye(K)[world.control()], (1, H, K)))
    means = world.means(range(seed, seed + 1))[0]
    luck = streams.generator(seed, "noise").standard_normal((L, H))

    class DriMed(base):  # type: ignore[misc, valid-type]
        """Decides for a season at once; its package asks user by user."""

        def __init__(self) -> None:
            self._active_arms = list(range(K))
            self.state, self.at = policy.init(field.shape, (1,)), -1
            self.season: Any = None
            self.actions, self.rewards = np.zeros((L, H), np.intp), np.zeros((L, H))
            self.chances = np.zeros((L, H, K))

        def control(self) -> int:
            return 0

        def k(self) -> int:
            return K

        def t(self) -> int:
            self.at += 1
            return self.at + 1

        def probabilities(self) -> dict[int, float]:
            t, h = divmod(self.at, H)
            if h == 0:
                self.state = policy.settle(policy.begin_episode(self.state, offers))
                self.season = policy.decide(self.state, offers, np.zeros((1, H, 1)))
            own = self.season.probabilities[0, h]
            share = (self.at + 1.0) ** -SHRINK
            self.chances[t, h] = share / K + (1 - share) * own
            return dict(enumerate(own.tolist()))

        def reward(self, arm: int) -> Any:
            t, h = divmod(self.at, H)
            y = means[t, h, arm] + RESIDUAL * luck[t, h]
            self.actions[t, h], self.rewards[t, h] = arm, y
            if h == H - 1:
                given = replace(self.season, action=self.actions[t][None])
                self.state = policy.commit(self.state, offers, given)
                outcome = Outcome(self.rewards[t][None], self.rewards[t][None, :, None] / RANGE)
                self.state = policy.observe(self.state, offers, self.actions[t][None], outcome)
            sites = frame([np.eye(H)[h, 1:]], columns=[f"site {i}" for i in range(1, H)]) if covariates else None
            return reward(outcome=y, covariates=sites)

        @property
        def regret(self) -> float:
            got = np.take_along_axis(means, self.actions[..., None], -1)[..., 0]
            return float((means.max(-1) - got).sum() / RESIDUAL)

        def ranges(self) -> FloatArray:
            action, got = self.actions.reshape(-1), self.rewards.reshape(-1)
            where = {"user": np.tile(np.arange(H), L), "season": np.repeat(np.arange(L), H)}
            q = scores.running_predictions(action, got, K, **where)
            at = np.arange(1, L + 1) * H - 2
            found = np.zeros((L, K - 1, 2))
            for arm in range(1, K):
                some: dict[str, Any] = {"action": action[1:], "reward": got[1:], "predictions": q[1:]}
                chance = self.chances.reshape(-1, K)[1:]
                s = scores.effect_scores(**some, probabilities=chance, contrast=scores.contrast(arm, 0, K))
                band = scores.effect_band(s, ALPHA / (K - 1))
                found[:, arm - 1] = np.stack([band.low[at], band.high[at]], -1)
            return found

    return DriMed()
