"""Results of simulated trials: arrays kept of each block of trials, and measures with their Monte Carlo errors.

A claim is that an arm is better than the control for all users together, by the likely range (95 %) at the last look,
or at any look so far by a range that holds at all times: the model's, or the one from the propensities.
Shapes: S trials, L seasons, T looks, H users who are looked at, U users of the whole trial, K arms, R stopping rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from drimed.formatting import counted, measured, percent, short
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, pick
from drimed.simulation import sweep
from drimed.trial.problem import Profile
from drimed.trial.queries import STANDS, ways_off_the_control
from drimed.trial.spec import TrialSpec

LIKELY, ALL_TIMES, PROPENSITIES = "likely", "at all times", "from propensities"
CLAIMS = (LIKELY, ALL_TIMES, PROPENSITIES)
NEGLIGIBLE = 1e-9  # of the largest effect: round-off
SHARE, REWARD, PLAIN = "share", "reward", "plain"  # kinds of numbers
SURE = 2.0  # standard errors
FROZEN = 0.99  # share of control beyond which a trial stands on it
WEAK = 0.5  # power below which a trial more often finds nothing than something
OFTEN = 0.1  # share of false claims beyond which something is wrong with the design
HARMED = 0.05  # share of users beyond which it is a warning
AT_THE_END = "share of control in the last season"
HARMED_USERS = "users harmed beyond the tolerance"
CLAIM_TEXT = {LIKELY: "likely, 95 %", PROPENSITIES: "by a range from the propensities"}


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
    changed: FloatArray  # (S, L), share of decisions in which the guard intervened
    violations: FloatArray  # (S, L), share of decisions that are worse than the control by more than the tolerance
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

    def called(self, claim: str, side: int) -> BoolArray:
        """Whether each arm is called better (1) or worse (-1) by each look: (S, T, K). A claim at all times stays."""
        low, high = {
            LIKELY: (self.mean - self.likely, self.mean + self.likely),
            ALL_TIMES: (self.low, self.high),
            PROPENSITIES: (self.free_low, self.free_high),
        }[claim]
        shown = low > 0 if side > 0 else high < 0
        shown = shown if claim == PROPENSITIES else shown & self.confirmed
        return shown & self.significant if claim == LIKELY else np.logical_or.accumulate(shown, 1)

    def found(self, claim: str, side: int = 1) -> BoolArray:
        """Whether an arm that is meant to be better (1) or worse (-1), and is, is called so by each look: (S, T)."""
        truly = (side * self.truth_all > 0) & (side * self.meant > 0)
        return np.asarray((self.called(claim, side) & truly[:, None, :]).any(-1))

    def false_claims(self, claim: str) -> BoolArray:
        """Whether an arm that is not better is called better by each look: (S, T)."""
        return np.asarray((self.called(claim, 1) & ~(self.truth_all > 0)[:, None, :]).any(-1))

    def power_by_look(self, claim: str) -> list[Number]:
        """The chance of a right claim after each look: (T,)."""
        return [Number.of(right) for right in self.found(claim).T]


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
        error = _standard_error(x)
        if error == 0.0 and kind == SHARE and x[0] in (0.0, 1.0):
            error = 1.0 / (len(x) + 1)
        return Number(float(x.mean()), error, kind)

    @staticmethod
    def ratio(top: FloatArray, bottom: FloatArray) -> Number | None:
        """Of two expectations: (S,) each; None where the second is zero."""
        b = float(bottom.mean())
        r = float(top.mean()) / b if b else 0.0
        return Number(r, _standard_error((top - r * bottom) / b)) if b else None

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


def _standard_error(x: FloatArray) -> float:
    return float(x.std(ddof=1)) / len(x) ** 0.5 if len(x) > 1 else float("nan")


Measures = dict[str, Number | None]


def with_unit(name: str, number: Number | None, unit: str) -> str:
    """The name of a measure, with the unit of the reward if it is an amount of it."""
    return measured(name, unit) if number is not None and number.kind == REWARD else name


def measures(r: Record, rules: Sequence[str] = ()) -> Measures:
    """All measures of a design in a scenario; `rules` are the names of its stopping rules."""
    out: Measures = {
        "seasons": Number.of(r.played, PLAIN),
        "share of control": Number.of(np.nanmean(r.control, 1)),
        AT_THE_END: Number.of(np.take_along_axis(r.control, r.played[:, None] - 1, 1)[:, 0]),
        "trials that stand on the control": Number.of(np.nanmin(r.control, 1) >= FROZEN),
        "decisions that the guard changed": Number.of(np.nanmean(r.changed, 1)),
        "gain against the control": Number.of(np.nanmean(_difference(r.given, r.controls), 1), REWARD),
        "gain against uniform allocation": Number.of(np.nanmean(_difference(r.given, r.uniform), 1), REWARD),
        "regret against the best arm": Number.of(np.nanmean(_difference(r.best, r.given), 1), REWARD),
        "decisions harmful beyond the tolerance": Number.of(np.nanmean(r.violations, 1)),
        HARMED_USERS: Number.of((r.loss > r.tolerated * (1 + NEGLIGIBLE)).mean(1)),
        "expected loss of the worst user": Number.of(r.loss.max(1), REWARD),
        "best arm found for a user": None,
        "ideal design percentage": None,
    }
    if r.estimates:
        arm = r.mean[:, -1].argmax(-1)  # that would be selected at the end, as adaptr defines the percentage
        worst, best = r.truth_all.min(-1), r.truth_all.max(-1)
        out["ideal design percentage"] = Number.ratio(pick(r.truth_all, arm) - worst, best - worst)
        if np.ptp(r.truth, axis=-1).max() > 0:
            out["best arm found for a user"] = Number.of(_finds_best(r.truth, r.estimate[:, -1]).mean(-1))
    for claim in CLAIMS if r.estimates else (PROPENSITIES,):
        right, wrong = r.found(claim), r.false_claims(claim)
        out[f"power, {claim}"] = Number.of(right[:, -1]) if (r.meant > 0).any() else None
        out[f"harm found, {claim}"] = Number.of(r.found(claim, -1)[:, -1]) if (r.meant < 0).any() else None
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


class Sentence(NamedTuple):
    text: str
    warns: bool = False


def describe(record: Record, m: Measures, rules: Sequence[str], seasons: int, spec: TrialSpec) -> list[Sentence]:
    """The results of a design of a trial in a scenario of so many seasons."""
    claim, unit, sentences = record.first_claim, spec.reward.unit, list[Sentence]()

    def say(text: str, warns: bool = False) -> None:
        sentences.append(Sentence(text, warns))

    def number(name: str) -> Number:
        return m[name] or Number(0.0, 0.0)

    def side(number: Number, more: str, less: str) -> str:
        return f"{replace(number, value=abs(number.value)).text(unit)} {less if number.value < 0 else more}"

    power, harm, false = m[f"power, {claim}"], m[f"harm found, {claim}"], number(f"false claims, {claim}")
    control, frozen = number("share of control"), number("trials that stand on the control")
    say(f"{control.text()} of decisions are for the control.")
    late = number(AT_THE_END)
    if power is not None and late.value > STANDS:  # where no arm is better, the control is where it should be
        never = f"{percent(frozen.value)} of simulated trials never leave it"
        say(
            f"The trial stays on the control: in the last season {late.text()} of decisions are still for it, and "
            f"{never}. It would be freed by {ways_off_the_control(spec)}.", True,
        )  # fmt: skip
    if power is not None:
        at_all_times = m.get(f"power, {ALL_TIMES}")
        more = "" if at_all_times is None else f", in {at_all_times.text()} by ranges that hold at all times"
        after = counted(seasons, "season")
        few = f" More than {after} are needed to count on an answer." if power.value < WEAK else ""
        text = f"After {after} a better arm is called better in {power.text()} of trials"
        say(f"{text} ({CLAIM_TEXT[claim]}){more}.{few}", power.value < WEAK)
    if harm is not None:
        beyond = number("decisions harmful beyond the tolerance").text()
        costs = f"{beyond} of decisions give an arm that costs its user more than the tolerance"
        say(f"A harmful arm is called worse in {harm.text()} of trials; {costs}.")
    say(f"An arm that is not better is called better in {false.text()} of trials.", false.value > OFTEN)
    for rule in rules:
        met, wrong = number(f"rule {rule} met"), number(f"rule {rule} met by a false claim")
        text = f"Stopping rule {rule!r} is met in {met.text()} of trials, by a false claim in {wrong.text()}."
        say(text, wrong.value > OFTEN)
    if number("seasons").value < seasons:
        say(f"A trial ends after {number('seasons').text()} of {seasons} seasons on average.")
    gain, regret = number("gain against the control"), number("regret against the best arm")
    if gain.value == regret.value == 0:
        say("A decision brings what the control would: all arms do the same.")
    else:
        brings, least = side(gain, "more", "less"), regret.text(unit)
        say(f"A decision brings {brings} than the control would, and {least} less than the best arm for each user.")
    harmed, worst = number(HARMED_USERS), side(number("expected loss of the worst user"), "below", "above")
    lose = f"{harmed.text()} of users lose more than the tolerance over the trial"
    say(f"{lose}; the worst one is expected to end {worst} the control with a decision.", harmed.value > HARMED)
    return sentences


def best_by_user(record: Record, looked_at: Sequence[Profile]) -> dict[str, Number]:
    """The chance that the arm with the largest estimate is the best one, for each user and each group."""
    members = {profile.user: [h] for h, profile in enumerate(looked_at)} if record.estimates else {}
    for h, profile in enumerate(looked_at if members else ()):
        if profile.group is not None:
            members.setdefault(f"group {profile.group}", []).append(h)
    means = {who: [x[:, at].mean(1) for x in (record.truth, record.estimate[:, -1])] for who, at in members.items()}
    return {who: Number.of(_finds_best(truth, estimate)) for who, (truth, estimate) in means.items()}


def _finds_best(truth: FloatArray, estimate: FloatArray) -> BoolArray:
    return pick(truth, estimate.argmax(-1)) >= truth.max(-1) - NEGLIGIBLE * np.abs(truth).max(initial=0.0)


def _first_season(record: Record, shown: BoolArray) -> FloatArray:
    """The season of the first look at which something is shown, or the last one: (S,)."""
    return np.where(shown.any(1), record.looks[shown.argmax(1)], record.looks[-1]) + 1.0


def _difference(one: FloatArray, other: FloatArray) -> FloatArray:
    off = one - other
    return np.where(np.abs(off) <= NEGLIGIBLE * (np.abs(one) + np.abs(other)), 0.0, off)
