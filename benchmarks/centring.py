"""What centring on the propensities gives where people's outcomes run a course of their own, and what it does not.

python -m benchmarks.centring [--runs 400] [--course trend|walk|jump]

People with a level of their own (deviation 2), a course (of size 4) that no model knows, and noise of deviation 2.
"follow": the chances are 0.8 or 0.2, by whether somebody is above or below the usual level; "learned": people_med
decides; "drawn again": the chances that people_med had, with arms drawn anew and the outcomes of another run, so that
no chance has seen an outcome. Printed are the mean error of the average person's effect (± its standard error) with
the model centred and not, by propensities alone, and the share of the model's 95 % ranges that hold it.
Shapes: S runs, T times, U people, K = 2 arms.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from drimed.learning.field import contrasts
from drimed.learning.field.learner import Field
from drimed.learning.offer import Offer, Outcome, Shape, Unit
from drimed.linear.arrays import FloatArray, IntArray
from drimed.policies import balanced
from drimed.policies.policy import Policy
from drimed.policies.registry import make

LEVEL, DEVIATION, SIZE, ARMS = 20.0, 2.0, 4.0, np.eye(2)


@dataclass(frozen=True)
class Setting:
    """Who decides for how many people how often, and what arm 1 does: on average, and from person to person."""

    chances: str
    people: int
    times: int
    effect: float = 0.0
    differ: float = 0.0
    balanced: bool = False


class Played(NamedTuple):
    """What was done and came of it."""

    arm: IntArray  # (S, T, U)
    p: FloatArray  # (S, T, U, 2)
    y: FloatArray  # (S, T, U)
    own: FloatArray  # (S, 1, U), what arm 1 does to each


SETTINGS = (
    Setting("follow", 8, 10),
    Setting("follow", 8, 10, balanced=True),
    Setting("follow", 400, 10),
    Setting("follow", 400, 10, differ=2.0),
    Setting("learned", 8, 10),
    Setting("learned", 8, 10, effect=1.0),
    Setting("learned", 8, 10, effect=1.0, balanced=True),
    Setting("learned", 8, 40, effect=1.0),
    Setting("learned", 40, 10, effect=1.0),
    Setting("drawn again", 8, 40, effect=1.0),
    Setting("drawn again", 40, 10, effect=1.0),
)


def main() -> None:
    """A line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--course", default="trend", choices=("trend", "walk", "jump"))
    asked = parser.parse_args()
    print("| chances | people x times | effect | differ | balanced", end=" | ")
    print("centred | holds | not centred | holds | propensities |")
    for s in SETTINGS:
        # Ten decisions of four hundred people tell as much as those of many runs of few.
        played = play(s, asked.course, max(asked.runs * 8 // max(s.people, 8), 40))
        told = []
        for centred in (True, False):
            low, mean, high = np.array([found(played, run, centred) for run in range(len(played.y))]).T
            told += [_said(mean - s.effect), f"{np.mean((low <= s.effect) & (s.effect <= high)):.2f}"]
        told.append(_said(weighted(played) - s.effect))
        about = (s.chances, f"{s.people} x {s.times}", f"{s.effect:g}", f"{s.differ:g}", "yes" if s.balanced else "no")
        print("|", " | ".join((*about, *told)), "|", flush=True)


def play(s: Setting, course: str, runs: int, seed: int = 0) -> Played:
    """So many runs."""
    rng, lead = np.random.default_rng(seed), (runs, s.times, s.people)
    base = LEVEL + DEVIATION * rng.normal(size=(runs, 1, s.people)) + _course(course, lead, rng)
    own = s.effect + s.differ * rng.normal(size=(runs, 1, s.people))
    base, offers = base + DEVIATION * rng.normal(size=lead), _offers(runs, s.people)
    policy = make("people_med", guard="off", ties="shared", seasons=False, centred=True, balanced=s.balanced)
    assert isinstance(policy, Policy)
    shape = Shape(d=2, K=2, M=1, H=s.people)
    state, need = policy.init(shape, (runs,)), policy.draws_needed(shape)
    arm, p = np.empty(lead, np.intp), np.empty((*lead, 2))
    for t in range(s.times):
        draws = rng.random((runs, s.people, need))
        if s.chances == "follow":
            up = np.where(base[:, t] > LEVEL, 0.8, 0.2)  # the noise is known before as well: nothing is harder
            p[:, t] = np.stack([1 - up, up], -1)
            lie = balanced.evenly(draws, np.arange(s.people), 0) if s.balanced else draws[..., 0]
            arm[:, t] = lie > 1 - up
            continue
        state = policy.settle(policy.begin_episode(state, offers))
        decided = policy.decide(state, offers, draws)
        arm[:, t], p[:, t] = decided.action, decided.probabilities
        outcome = Outcome(vector=(base[:, t] + own[:, 0] * arm[:, t])[..., None], probabilities=p[:, t])
        state = policy.observe(policy.commit(state, offers, decided), offers, arm[:, t], outcome)
    if s.chances == "drawn again":
        arm = (rng.random(lead) > p[..., 0]).astype(np.intp)
        base, own = np.roll(base, 1, 0), np.roll(own, 1, 0)
    return Played(arm, p, base + own * arm, own)


def found(played: Played, run: int, centred: bool) -> tuple[float, float, float]:
    """The average person's effect by the model and its likely range: low end, mean, high end."""
    T, U = played.y.shape[1:]
    who = np.tile(np.arange(U), T)
    offers = Offer(features=ARMS, control=ARMS[0], unit=Unit(user=who, group=who))
    field = Field(kind="people", seasons=False, centred=centred)
    outcome = Outcome(vector=played.y[run].reshape(-1, 1), probabilities=played.p[run].reshape(-1, 2))
    known = field.add(field.start(Shape(d=2, K=2, M=1, H=U), episodes=1), offers, played.arm[run].ravel(), outcome)
    one = replace(offers, control=ARMS[:1], preference=np.ones((1, 1)), unit=Unit(user=who[:1], group=who[:1]))
    effect = contrasts.together(contrasts.know(field, known, one), one, np.ones((1, 2), bool))
    low, high = effect.likely
    return float(low[1, 0]), float(effect.mean[1, 0]), float(high[1, 0])


def weighted(played: Played) -> FloatArray:
    """By propensities, against everybody's own mean before: (S,)."""
    T = played.y.shape[1]
    before = (np.cumsum(played.y, 1) - played.y) / np.maximum(np.arange(T), 1)[:, None]
    rest = played.y - np.where(np.arange(T)[:, None] > 0, before, LEVEL)
    taken = np.take_along_axis(played.p, played.arm[..., None], -1)[..., 0]
    return np.asarray((np.where(played.arm == 1, 1, -1) * rest / taken).mean((1, 2)))


def _course(name: str, lead: tuple[int, int, int], rng: np.random.Generator) -> FloatArray:
    S, T, U = lead
    if name == "walk":
        return SIZE / np.sqrt(T) * rng.normal(size=lead).cumsum(1)
    slope = SIZE * rng.normal(size=(S, 1, U))
    if name == "jump":
        return np.asarray(2 * slope * (np.arange(T)[:, None] >= rng.integers(1, T, size=(S, 1, U))))
    return np.asarray(slope * np.linspace(-1, 1, T)[:, None])


def _offers(runs: int, people: int) -> Offer:
    who, wide = np.arange(people), (runs, people, 2)
    return Offer(
        features=np.broadcast_to(ARMS, (*wide, 2)),
        control=np.broadcast_to(ARMS[0], wide),
        user=who,
        unit=Unit(user=who, group=who),
    )


def _said(errors: FloatArray) -> str:
    return f"{errors.mean():+.2f} ± {errors.std(ddof=1) / np.sqrt(len(errors)):.2f}"


if __name__ == "__main__":
    main()
