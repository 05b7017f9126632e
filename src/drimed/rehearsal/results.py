"""Results of simulated trials: arrays kept of each block of trials, and measures with their Monte Carlo errors.

A claim is that an arm is better than the control for all users together. It is made by the likely range (95 %) at the
last look, or at any look so far by a range that holds at all times: the model's, or the one from the propensities. As
in a report, the model claims nothing of an arm that one season alone has told of.
Shapes: S trials, L seasons, T looks, H users who are looked at, U users of the whole trial, K arms, R stopping rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from drimed.formatting import measured, percent, short
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.simulation import sweep
from drimed.trial.problem import Profile

LIKELY, ALL_TIMES, PROPENSITIES = "likely", "at all times", "from propensities"
CLAIMS = (LIKELY, ALL_TIMES, PROPENSITIES)
NEGLIGIBLE = 1e-9  # of the largest effect: round-off
SHARE, REWARD, PLAIN = "share", "reward", "plain"  # kinds of numbers
SURE = 2.0  # standard errors
FROZEN = 0.99  # share of control beyond which a trial stands on it
BY_SEASON = ("allocation", "control", "given", "controls", "best", "uniform", "violations", "changed")
BY_LOOK = (
    "estimate", "half", "mean", "likely", "low", "high", "significant", "confirmed", "free_low", "free_high", "met",
    "wrong",
)  # fmt: skip


@dataclass(frozen=True)
class Record(sweep.Record):
    """A block of trials of one design in one scenario."""

    looks: IntArray  # (T,), seasons after which there was a look, from 0
    played: IntArray  # (S,), seasons before a rule stopped the trial, or it ended; later ones are NaN below
    allocation: FloatArray  # (S, L, K), shares of decisions
    control: FloatArray  # (S, L), share of decisions for the user's own control
    given: FloatArray  # (S, L), mean expected reward of the arms given
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
    mean: FloatArray  # (S, T, K), estimated for all of them together
    likely: FloatArray  # (S, T, K), half of the likely range
    low: FloatArray  # (S, T, K), of the range at all times
    high: FloatArray  # (S, T, K)
    significant: BoolArray  # (S, T, K), whether the likely range says the same allowing for the number of arms
    confirmed: BoolArray  # (S, T, K), whether enough seasons have told of an arm for the model to claim anything
    free_low: FloatArray  # (S, T, K), of the range from the propensities, at all times
    free_high: FloatArray  # (S, T, K)
    met: BoolArray  # (S, T, R), stopping rules that are met for the first time by now
    wrong: BoolArray  # (S, T, R), of these, with a claim that is false

    shared: ClassVar[tuple[str, ...]] = ("looks",)

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

    @property
    def first_claim(self) -> str:
        """The claim that is reported first: by the likely range, or by propensities where no effect is estimated."""
        return LIKELY if self.estimates else PROPENSITIES

    def until_stopped(self) -> Record:
        """NaN after the stop of a trial; looks after it repeat the last one."""
        over = np.arange(self.control.shape[1]) >= self.played[:, None]  # (S, L)
        if not over.any():
            return self
        last = np.maximum((self.looks < self.played[:, None]).sum(1) - 1, 0)  # (S,)
        held = np.minimum(np.arange(len(self.looks)), last[:, None])  # (S, T)
        by_season = {name: getattr(self, name).copy() for name in BY_SEASON}
        for values in by_season.values():
            values[over] = np.nan
        by_look = {name: getattr(self, name)[np.arange(self.trials)[:, None], held] for name in BY_LOOK}
        return replace(self, **by_season, **by_look)

    def claimed(self, claim: str) -> tuple[BoolArray, BoolArray]:
        """Whether an arm meant to be better that is so, and one that is not, is called better by each look: (S, T)."""
        low = {LIKELY: self.mean - self.likely, ALL_TIMES: self.low, PROPENSITIES: self.free_low}[claim]
        called, better = self._called(low > 0, claim), self.truth_all[:, None, :] > 0
        right = called & better & (self.meant > 0)[:, None, :]
        return np.asarray(right.any(-1)), np.asarray((called & ~better).any(-1))

    def harm_found(self, claim: str) -> BoolArray:
        """Whether an arm meant to be worse that is so is called worse by each look: (S, T)."""
        high = {LIKELY: self.mean + self.likely, ALL_TIMES: self.high, PROPENSITIES: self.free_high}[claim]
        worse = (self.truth_all < 0) & (self.meant < 0)
        return np.asarray((self._called(high < 0, claim) & worse[:, None, :]).any(-1))

    def _called(self, shown: BoolArray, claim: str) -> BoolArray:
        """Claims about each arm by each look; a claim by ranges at all times stays: (S, T, K)."""
        called = shown if claim == PROPENSITIES else shown & self.confirmed
        return called & self.significant if claim == LIKELY else np.logical_or.accumulate(called, 1)

    def power_by_look(self, claim: str) -> list[Number]:
        """The chance of a right claim after each look: (T,)."""
        right, _ = self.claimed(claim)
        return [Number.of(right[:, t]) for t in range(right.shape[1])]


@dataclass(frozen=True)
class Number:
    """An expectation over trials, and the standard error of its estimate."""

    value: float
    error: float
    kind: str = SHARE  # an amount of the reward has its unit

    @staticmethod
    def of(values: Any, kind: str = SHARE) -> Number:
        """The mean of one number for each trial: (S,). A share of 0 or 1 has the error of one trial more or less."""
        x = np.asarray(values, np.float64)
        error = float(x.std(ddof=1)) / len(x) ** 0.5 if len(x) > 1 else float("nan")
        if error == 0.0 and kind == SHARE and x[0] in (0.0, 1.0):
            error = 1.0 / (len(x) + 1)
        return Number(float(x.mean()), error, kind)

    @staticmethod
    def ratio(top: FloatArray, bottom: FloatArray) -> Number | None:
        """Of two expectations: (S,) each; None where the second is zero."""
        b = float(bottom.mean())
        if not abs(b) > 0:
            return None
        r = float(top.mean()) / b
        off = (top - r * bottom) / b
        return Number(r, float(off.std(ddof=1)) / len(off) ** 0.5 if len(off) > 1 else float("nan"))

    @property
    def ends(self) -> tuple[float, float]:
        """Two standard errors to either side; a share stays one."""
        low, high = self.value - SURE * self.error, self.value + SURE * self.error
        return (max(low, 0.0), min(high, 1.0)) if self.kind == SHARE else (low, high)

    def text(self, unit: str = "") -> str:
        """The number with its error, and the unit if it is an amount of the reward.

        >>> Number(0.4212, 0.0156).text("EUR"), Number(-12.34, 0.5, REWARD).text("EUR")
        ('42 % (± 2)', '−12.3 (± 0.5) EUR')
        """
        share = self.kind == SHARE
        error = f"{float(f'{self.error * (100 if share else 1):.1g}'):,.10g}"  # one figure, without an exponent
        value = percent(self.value) if share else short(self.value)
        return f"{value} (± {error})" + (f" {unit}" if unit and self.kind == REWARD else "")


Measures = dict[str, Number | None]


def with_unit(name: str, number: Number | None, unit: str) -> str:
    """The name of a measure, with the unit of the reward if it is an amount of it."""
    return measured(name, unit) if number is not None and number.kind == REWARD else name


def measures(r: Record, rules: Sequence[str] = ()) -> Measures:
    """All measures of a design in a scenario; `rules` are the names of its stopping rules."""
    differs = bool(np.ptp(r.truth, axis=-1).max() > 0)
    out: Measures = {
        "seasons": Number.of(r.played, PLAIN),
        "share of control": Number.of(np.nanmean(r.control, 1)),
        "share of control in the last season": Number.of(r.control[np.arange(r.trials), r.played - 1]),
        "trials that stand on the control": Number.of(np.nanmin(r.control, 1) >= FROZEN),
        "decisions that the guard changed": Number.of(np.nanmean(r.changed, 1)),
        "gain against the control": Number.of(np.nanmean(_difference(r.given, r.controls), 1), REWARD),
        "gain against uniform allocation": Number.of(np.nanmean(_difference(r.given, r.uniform), 1), REWARD),
        "regret against the best arm": Number.of(np.nanmean(_difference(r.best, r.given), 1), REWARD),
        "decisions harmful beyond the tolerance": Number.of(np.nanmean(r.violations, 1)),
        "users harmed beyond the tolerance": Number.of((r.loss > r.tolerated * (1 + NEGLIGIBLE)).mean(1)),
        "expected loss of the worst user": Number.of(r.loss.max(1), REWARD),
        "best arm found for a user": None,
        "ideal design percentage": ideal_design_percentage(r),
    }
    if differs and r.estimates:
        out["best arm found for a user"] = Number.of(_finds_best(r.truth, r.estimate[:, -1]).mean(-1))
    for claim in CLAIMS if r.estimates else (PROPENSITIES,):
        right, wrong = r.claimed(claim)
        out[f"power, {claim}"] = Number.of(right[:, -1]) if (r.meant > 0).any() else None
        out[f"harm found, {claim}"] = Number.of(r.harm_found(claim)[:, -1]) if (r.meant < 0).any() else None
        out[f"false claims, {claim}"] = Number.of(wrong[:, -1])
        if claim != LIKELY:
            out[f"seasons until a claim, {claim}"] = Number.of(_first_season(r, right | wrong), PLAIN)
    if r.estimates:
        off, arms = r.mean[:, -1, :] - r.truth_all, np.abs(r.truth_all).max(0) > 0
        if arms.any():
            out["bias of effects"] = Number.of(off[:, arms].mean(-1), REWARD)
            out["error of effects"] = Number.of(np.sqrt((off[:, arms] ** 2).mean(-1)), REWARD)
        half = r.half[:, -1]
        inside, estimated = np.abs(r.estimate[:, -1] - r.truth) <= half, (half > 0) & (half < np.inf)
        out["likely ranges that hold"] = Number.ratio((inside & estimated).mean((1, 2)), estimated.mean((1, 2)))
        held = (r.low <= r.truth_all[:, None]) & (r.truth_all[:, None] <= r.high)
        out["trials whose ranges at all times hold"] = Number.of(held.all((1, 2)))
    for i, name in enumerate(rules):
        out[f"rule {name} met"] = Number.of(r.met[:, -1, i])
        out[f"rule {name} met by a false claim"] = Number.of(r.wrong[:, -1, i])
        out[f"seasons until rule {name}, or the end"] = Number.of(_first_season(r, r.met[..., i]), PLAIN)
    return out


def ideal_design_percentage(record: Record) -> Number | None:
    """(Value of the arm that would be selected - worst) / (best - worst), as adaptr defines it.

    The arm with the largest estimated effect for all users together is selected at the end.
    """
    if not record.estimates:
        return None
    chosen = record.mean[:, -1].argmax(-1)
    value = np.take_along_axis(record.truth_all, chosen[:, None], -1)[:, 0]
    worst, best = record.truth_all.min(-1), record.truth_all.max(-1)
    return Number.ratio(value - worst, best - worst)


def best_by_user(record: Record, looked_at: Sequence[Profile]) -> dict[str, Number]:
    """The chance that the arm with the largest estimate is the best one, for each user and each group."""
    if not record.estimates:
        return {}
    members = {profile.user: [h] for h, profile in enumerate(looked_at)}
    for h, profile in enumerate(looked_at):
        if profile.group is not None:
            members.setdefault(f"group {profile.group}", []).append(h)
    truth, estimate = record.truth, record.estimate[:, -1]
    return {
        who: Number.of(_finds_best(truth[:, some].mean(1), estimate[:, some].mean(1))) for who, some in members.items()
    }


def _first_season(record: Record, shown: BoolArray) -> FloatArray:
    """The season of the first look at which something is shown, or the last one: (S,)."""
    return np.where(shown.any(1), record.looks[shown.argmax(1)], record.looks[-1]) + 1.0


def _difference(one: FloatArray, other: FloatArray) -> FloatArray:
    off = one - other
    return np.where(np.abs(off) <= NEGLIGIBLE * (np.abs(one) + np.abs(other)), 0.0, off)


def _finds_best(truth: FloatArray, estimate: FloatArray) -> BoolArray:
    best = truth.max(-1)
    value = np.take_along_axis(truth, estimate.argmax(-1)[..., None], -1)[..., 0]
    return np.asarray(value >= best - NEGLIGIBLE * np.abs(truth).max(initial=0.0))
