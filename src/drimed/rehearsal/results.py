"""What simulated trials show, each number with its Monte Carlo error.

A claim is that an arm is better than the control for all users together. It is made by the likely range (95 %) at the
last look, or at any look so far by a range that holds at all times: the model's, or the one from the propensities. As
on a page, the model claims nothing of an arm that one season alone has told of.
Shapes: S trials, L seasons, T looks, H users who are looked at, K arms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from drimed.formatting import measured
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.rehearsal.designs import Design
from drimed.rehearsal.play import Season, Watch, controls, play, propensities, weights
from drimed.rehearsal.scenarios import SimulatedTrials
from drimed.trial.spec import Tolerance

# What is kept of a block of simulated trials: numbers for each trial, from which every measure is computed.

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


LIKELY, ALL_TIMES, PROPENSITIES = "likely", "at all times", "from propensities"
CLAIMS = (LIKELY, ALL_TIMES, PROPENSITIES)
CALLED = {LIKELY: "likely, 95 %", PROPENSITIES: "by a range from the propensities"}
REWARDS = ("gain ", "regret", "expected loss", "bias of effects", "error of effects")  # begin what is in its unit
FROZEN = 0.99  # share of control beyond which a trial stands on it


@dataclass(frozen=True)
class Number:
    """An expectation over trials, and the standard error of its estimate."""

    value: float
    error: float

    @staticmethod
    def of(values: FloatArray | BoolArray, *, share: bool = False) -> Number:
        """The mean of one number for each trial: (S,). A share of 0 or 1 has the error of one trial more or less."""
        x = np.asarray(values, np.float64)
        n = len(x)
        error = float(x.std(ddof=1)) / n**0.5 if n > 1 else float("nan")
        if error == 0.0 and (share or np.asarray(values).dtype == bool) and x[0] in (0.0, 1.0):
            error = 1.0 / (n + 1)
        return Number(float(x.mean()), error)

    @staticmethod
    def ratio(top: FloatArray, bottom: FloatArray, times: float = 1.0) -> Number | None:
        """Of two expectations: (S,) each; None where there is nothing to divide by."""
        b = float(bottom.mean())
        if not abs(b) > 0:
            return None
        r = float(top.mean()) / b
        off = (top - r * bottom) / b
        return Number(times * r, times * float(off.std(ddof=1)) / len(off) ** 0.5 if len(off) > 1 else float("nan"))


Measured = dict[str, Number | None]


def called(name: str, unit: str) -> str:
    """A measure with its unit, if it is an amount of the reward.

    >>> called("regret against the best arm", "EUR"), called("share of control", "EUR")
    ('regret against the best arm (EUR)', 'share of control')
    """
    return measured(name, unit) if name.startswith(REWARDS) else name


def first_claim(m: Measured) -> str:
    """The claim that is told first: by the likely range, or by propensities where no effect is estimated."""
    return LIKELY if f"false claims, {LIKELY}" in m else PROPENSITIES


def of_rules(record: Record, rules: Sequence[str]) -> Measured:
    """How often each stopping rule is met and how often falsely, and after how many seasons at the latest."""
    found: Measured = {}
    for r, name in enumerate(rules):
        met = record.met[..., r]
        first = np.where(met.any(1), record.looks[met.argmax(1)], record.looks[-1]) + 1.0
        found[f"rule {name} met"] = Number.of(met[:, -1])
        found[f"rule {name} met by a false claim"] = Number.of(record.wrong[:, -1, r])
        found[f"seasons until rule {name}, or the end"] = Number.of(first)
    return found


def measures(record: Record, rules: Sequence[str] = ()) -> Measured:
    """Everything that is one number of a design in a scenario; `rules` are the names of its stopping rules."""
    r, last = record, int(record.looks[-1])
    found: Measured = {
        "seasons": Number.of(r.played.astype(np.float64)),
        "share of control": Number.of(np.nanmean(r.control, 1)),
        "share of control in the last season": Number.of(r.control[np.arange(r.trials), r.played - 1]),
        "trials that stand on the control": Number.of(np.asarray(np.nanmin(r.control, 1) >= FROZEN)),
        "decisions that the guard changed": Number.of(np.nanmean(r.changed, 1)),
        "gain against the control": Number.of(np.nanmean(_off(r.given, r.controls), 1)),
        "gain against uniform allocation": Number.of(np.nanmean(_off(r.given, r.uniform), 1)),
        "regret against the best arm": Number.of(np.nanmean(_off(r.best, r.given), 1)),
        "decisions harmful beyond the tolerance": Number.of(np.nanmean(r.violations, 1), share=True),
        "users harmed beyond the tolerance": Number.of((r.loss > r.tolerated * (1 + NEGLIGIBLE)).mean(1), share=True),
        "expected loss of the worst user": Number.of(r.loss.max(1)),
        "best arm found for a user": Number.of(_found(r.truth, r.estimate[:, -1]).mean(-1))
        if _differs(r) and r.estimates
        else None,
        "ideal design percentage": ideal(record),
    }
    for claim in CLAIMS if r.estimates else (PROPENSITIES,):
        right, wrong = claimed(record, claim)
        found[f"power, {claim}"] = Number.of(right[:, -1]) if (r.meant > 0).any() else None
        found[f"harm found, {claim}"] = Number.of(harm_found(record, claim)[:, -1]) if (r.meant < 0).any() else None
        found[f"false claims, {claim}"] = Number.of(wrong[:, -1])
        first = np.where((right | wrong).any(1), r.looks[(right | wrong).argmax(1)], last) + 1.0
        if claim != LIKELY:
            found[f"seasons until a claim, {claim}"] = Number.of(first)
    if not r.estimates:
        return found | of_rules(record, rules)
    off = r.mean[:, -1, :] - r.truth_all
    arms = np.abs(r.truth_all).max(0) > 0
    known = r.half[:, -1] < np.inf
    if arms.any():
        found["bias of effects"] = Number.of(off[:, arms].mean(-1))
        found["error of effects"] = Number.of(np.sqrt((off[:, arms] ** 2).mean(-1)))
    inside = np.abs(r.estimate[:, -1] - r.truth) <= r.half[:, -1]
    own = (r.half[:, -1] > 0) & known
    found["likely ranges that hold"] = Number.ratio((inside & own).mean((1, 2)), own.mean((1, 2)))
    held = np.asarray(((r.low <= r.truth_all[:, None]) & (r.truth_all[:, None] <= r.high)).all((1, 2)))
    found["trials whose ranges at all times hold"] = Number.of(held)
    return found | of_rules(record, rules)


def claimed(record: Record, claim: str) -> tuple[BoolArray, BoolArray]:
    """Whether an arm that is meant to be better and is, or one that is not, is called better by each look: (S, T)."""
    low = {LIKELY: record.mean - record.likely, ALL_TIMES: record.low, PROPENSITIES: record.free_low}[claim]
    said, better = _so_far(record, low > 0, claim), record.truth_all[:, None, :] > 0
    right = said & better & (record.meant > 0)[:, None, :]
    return np.asarray(right.any(-1)), np.asarray((said & ~better).any(-1))


def harm_found(record: Record, claim: str) -> BoolArray:
    """Whether an arm that is meant to be worse and is, is called worse by each look: (S, T)."""
    high = {LIKELY: record.mean + record.likely, ALL_TIMES: record.high, PROPENSITIES: record.free_high}[claim]
    worse = (record.truth_all < 0) & (record.meant < 0)
    return np.asarray((_so_far(record, high < 0, claim) & worse[:, None, :]).any(-1))


def _so_far(record: Record, shown: BoolArray, claim: str) -> BoolArray:
    """What is said of each arm by each look; what ranges at all times have shown once stays said: (S, T, K)."""
    said = shown if claim == PROPENSITIES else shown & record.confirmed
    return said & record.stands if claim == LIKELY else np.logical_or.accumulate(said, 1)


def power_by_season(record: Record, claim: str) -> list[Number]:
    """The chance of a right claim after each look: (T,)."""
    right, _ = claimed(record, claim)
    return [Number.of(right[:, t]) for t in range(right.shape[1])]


def ideal(record: Record) -> Number | None:
    """100 (value of the arm that would be selected - worst) / (best - worst): adaptr's ideal design percentage.

    The arm with the largest estimated effect for all users together is selected at the end.
    """
    if not record.estimates:
        return None
    chosen = record.mean[:, -1].argmax(-1)
    value = np.take_along_axis(record.truth_all, chosen[:, None], -1)[:, 0]
    worst, best = record.truth_all.min(-1), record.truth_all.max(-1)
    return Number.ratio(value - worst, best - worst, 100.0)


def best_by_user(record: Record, users: Sequence[str], groups: Mapping[str, Sequence[int]]) -> dict[str, Number]:
    """The chance that the arm with the largest estimate is the best one, for each user and each group."""
    if not record.estimates:
        return {}
    truth, estimate = record.truth, record.estimate[:, -1]
    found = {user: Number.of(_found(truth, estimate)[:, h]) for h, user in enumerate(users)}
    for group, members in groups.items():
        some = list(members)
        found[group] = Number.of(_found(truth[:, some].mean(1), estimate[:, some].mean(1)))
    return found


def harm_by_user(record: Record) -> tuple[FloatArray, FloatArray]:
    """The 5, 50 and 95 % points of each user's expected loss, and the loss that is tolerated: (3, U), (U,)."""
    return np.quantile(record.loss, [0.05, 0.5, 0.95], axis=0), record.tolerated.mean(0)


def _off(one: FloatArray, other: FloatArray) -> FloatArray:
    """The difference of rewards; round-off is none."""
    off = one - other
    return np.where(np.abs(off) <= NEGLIGIBLE * (np.abs(one) + np.abs(other)), 0.0, off)


def _found(truth: FloatArray, estimate: FloatArray) -> BoolArray:
    best = truth.max(-1)
    value = np.take_along_axis(truth, estimate.argmax(-1)[..., None], -1)[..., 0]
    return np.asarray(value >= best - NEGLIGIBLE * np.abs(truth).max(initial=0.0))


def _differs(record: Record) -> bool:
    return bool(np.ptp(record.truth, axis=-1).max() > 0)
