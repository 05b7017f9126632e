"""What the floors of a trial cost, against what would have been played without them at each decision.

Every decision under a floor has recorded the lottery that would have been drawn from otherwise. The cost is the sum of
the differences in expected reward, by the arms' means as they are estimated now; what the policy learned from the plays
that the floors brought is not counted against it. Shapes: n decisions, K arms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.findings.course import summed
from drimed.findings.inference import Inference
from drimed.formatting import amount, counted, percent, short, span
from drimed.linear.arrays import BoolArray, FloatArray
from drimed.rules.floors import KEPT
from drimed.trial.gather import Gathered
from drimed.trial.seasons import NUMBERED, Calendar

NOTHING = 1e-9  # of reward in a decision, or of a chance: round-off, or what no draw will ever show


@dataclass(frozen=True)
class FloorCost:
    """Of all decisions so far."""

    decisions: int  # that had a floor
    episodes: int  # in which there were such
    last: int  # the last of these
    running: bool  # whether the last decision had one
    loss: float  # in the unit of the reward
    low: float  # as sums over decisions have it
    high: float
    control: float  # decisions that the control got in expectation, beyond what it would have had
    below: dict[str, int]  # decisions in which the guard certified less than its floor for this arm
    possible: dict[str, int]  # decisions in which it was available under a floor
    unit: str = ""  # of the reward

    def says(self, promise: str, called: Calendar = NUMBERED) -> list[str]:
        """In words; `promise` is what the long ranges are called, and `called` what the seasons are."""
        under = f"{counted(self.decisions, 'decision')} in {counted(self.episodes, called.word)}"
        until = "" if self.running else f", the last in {called.said(self.last)}"
        if max(abs(self.loss), abs(self.low), abs(self.high)) < NOTHING * self.decisions:
            said = [f"Floors were in force for {under}{until}. They changed nothing that counts, and cost nothing."]
            return [*said, *self._held()]
        worth = "cost" if self.loss >= 0 else "brought"
        ends = sorted((self.low, self.high) if self.loss >= 0 else (-self.low, -self.high))
        said = [
            f"Floors were in force for {under}{until}. Against what would have been played without them they are "
            f"estimated to have {worth} {amount(abs(self.loss), self.unit)} of reward in all ({promise}: "
            f"{span(*ends)}), {amount(abs(self.loss) / self.decisions, self.unit)} in each of "
            "these decisions."
        ]
        more = "more" if self.control >= 0 else "fewer"
        said.append(f"They gave the control in {short(abs(self.control))} {more} decisions, on average over the draws.")
        return [*said, *self._held()]

    def _held(self) -> list[str]:
        """Which floors the guard could not certify."""
        held = [(arm, n, self.possible[arm]) for arm, n in self.below.items() if n]
        shares = ", ".join(f"{arm} in {percent(n / of)} of them" for arm, n, of in held)
        return [f"The guard could not certify the whole floor of every arm: {shares}."] if held else []


def floor_cost(seen: Gathered, fit: Inference) -> FloorCost | None:
    """What floors have cost so far; None where no decision had one."""
    floored: BoolArray = np.asarray([] if seen.floor is None else (seen.floor > 0).any(-1), bool)
    if seen.floor is None or seen.without is None or seen.offered is None or not floored.any():
        return None
    p = seen.probabilities / seen.total[:, None]
    other = seen.without / np.maximum(seen.without.sum(-1, keepdims=True), KEPT)
    weights = np.where(floored[:, None], other - p, 0.0)
    changed = bool((np.abs(weights) > NOTHING).any())
    found = summed(seen, fit, weights) if changed else None  # nothing times what is not known yet is nothing
    mine = _controls(seen)
    arms = seen.state.problem.arms
    least, available = seen.floor[:, 1:], seen.offered & (seen.floor[:, 1:] > 0)
    below = available & (p < KEPT * least)
    episodes = np.unique(seen.episode[floored])
    return FloorCost(
        decisions=int(floored.sum()),
        episodes=len(episodes),
        last=int(episodes[-1]),
        running=bool(floored[-1]),
        loss=0.0 if found is None else float(found.value[-1]),
        low=0.0 if found is None else float(found.low[-1]),
        high=0.0 if found is None else float(found.high[-1]),
        control=float(-(weights * mine).sum()),
        below=dict(zip(arms, below.sum(0).tolist(), strict=True)),
        possible=dict(zip(arms, available.sum(0).tolist(), strict=True)),
        unit=seen.state.spec.reward.unit,
    )


def _controls(seen: Gathered) -> FloatArray:
    """1 for the arms of each decision's control: (n, K)."""
    state, K = seen.state, len(seen.state.problem.arms)
    control = np.array([state.profiles[s].control[:K] for s in range(len(state.profiles))]).reshape(-1, K)
    return np.asarray(control[seen.slot] > 0, np.float64)
