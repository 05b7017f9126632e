"""Effects against control, for each user, each group and all users: from the regression, and free of a model.

Three ranges stand side by side. The guaranteed one of the regression holds at all times at once if means are linear in
the arms' description and the noise is as said or learned. The likely one is the posterior's 95 %: what to believe under
the same model and its prior, whatever the policy did, without a promise for repeated looks. That of the propensities
needs no model of the mean at all, only that the logged probabilities are true; it is asymptotic.
Shapes: H users, K arms, M metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from drimed.errors import InputError
from drimed.evaluation import effects as linear
from drimed.evaluation import scores
from drimed.learning.fit import Fit
from drimed.learning.offer import Offer
from drimed.linear.arrays import FloatArray
from drimed.trial.analysis.gather import Gathered, offers_now

EVERYBODY = "all users"
FEWEST = 20  # decisions below which propensities alone tell nothing
POSTERIOR_DRAWS = 4000
MODEL_FREE_LEVEL = 0.95
LIKELY = 0.95


@dataclass(frozen=True)
class Line:
    """One effect: a line of a forest plot."""

    who: str  # a user, a group, or everybody
    arm: str
    on: str  # "reward" or a metric
    estimate: float
    low: float
    high: float
    likely_low: float
    likely_high: float
    kind: str  # regression or propensity

    @property
    def verdict(self) -> str:
        """In one word."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "open"


@dataclass(frozen=True)
class Advice:
    """What one user should get, as things stand."""

    user: str
    arm: str
    control: str
    effect: float  # against the control
    effect_low: float
    effect_high: float
    likely_low: float
    likely_high: float
    lead: float  # over the next best arm
    runner_up: str
    p_best: float

    @property
    def certain(self) -> bool:
        """Whether it is certainly no worse than the control."""
        return self.effect_low >= 0


def lines(seen: Gathered, fit: Fit) -> list[Line]:
    """Every arm against control: everybody and groups on the reward and on each metric, single users on the reward."""
    memory = seen.memory
    names, offers = offers_now(memory)
    arms, metrics = memory.problem.arms, memory.problem.metrics
    members = _groups(seen, names)
    shrink = _likely(fit)
    found: list[Line] = []
    everyone = members | {name: [h] for h, name in enumerate(names)}
    for who, effect in linear.group_effects(fit, offers, everyone).items():
        found += _lines(who, arms, "reward", effect, shrink)
    for m, metric in enumerate(metrics):
        on = _metric_offer(offers, m)
        size = float(memory.problem.sizes[m])
        for who, effect in linear.group_effects(fit, on, members).items():
            found += _lines(who, arms, metric, effect, shrink, size)
    return found + [line for who, users in members.items() for line in model_free(seen, who, [names[h] for h in users])]


def advice(seen: Gathered, fit: Fit) -> list[Advice]:
    """A recommendation for each user."""
    memory = seen.memory
    names, offers = offers_now(memory)
    arms = memory.problem.arms
    best = linear.recommend(fit, offers, seed=memory.seed, draws=POSTERIOR_DRAWS)
    effect = linear.reward_effects(fit, offers)
    said = []
    for h, name in enumerate(names):
        k = int(best.arm[h])
        shares = offers.control[h]
        control = " / ".join(arms[a] for a in np.flatnonzero(shares[: len(arms)]))
        said.append(
            Advice(
                name,
                arms[k],
                control,
                float(effect.estimate[h, k]),
                float(effect.low[h, k]),
                float(effect.high[h, k]),
                *_likely_range(effect.estimate[h, k], effect.low[h, k], _likely(fit)),
                float(best.margin[h]),
                arms[int(best.runner_up[h])],
                float(best.best[h]),
            )
        )
    return said


def model_free(seen: Gathered, who: str, users: list[str]) -> list[Line]:
    """Effects on the reward from propensities alone, for some users together."""
    memory = seen.memory
    arms = memory.problem.arms
    chosen = np.isin(np.array(seen.users), users) & ~np.isnan(seen.reward) & ~np.isnan(seen.propensity)
    if chosen.sum() < FEWEST:
        return []
    controls = np.array([memory.profiles[s].control[: len(arms)] for s in seen.slot[chosen]])
    found = []
    for k, arm in enumerate(arms):
        contrast = np.eye(len(arms))[k] - controls  # (n, K)
        if not contrast.any():
            continue
        s = scores.effect_scores(
            action=seen.arm[chosen],
            reward=seen.reward[chosen],
            probabilities=_clean(seen.probabilities[chosen]),
            contrast=contrast,
        )
        if s.used.sum() < FEWEST:
            continue
        band = scores.effect_band(s, 1 - MODEL_FREE_LEVEL, method="asymptotic")
        low, high = float(band.low[-1]), float(band.high[-1])
        if np.isfinite(low) and np.isfinite(high):
            found.append(Line(who, arm, "reward", (low + high) / 2, low, high, low, high, "propensity"))
    return found


def _lines(who: str, arms: list[str], on: str, effect: linear.Effects, shrink: float, size: float = 1.0) -> list[Line]:
    found = []
    for k, arm in enumerate(arms):
        middle, low, high = (size * float(part[k]) for part in (effect.estimate, effect.low, effect.high))
        found.append(Line(who, arm, on, middle, low, high, *_likely_range(middle, low, shrink), "regression"))
    return found


def _likely(fit: Fit) -> float:
    """The posterior's range as a share of the guaranteed one."""
    return float(ndtri(0.5 + LIKELY / 2) * fit.noise_bound / fit.radius)


def _likely_range(middle: float, low: float, shrink: float) -> tuple[float, float]:
    half = float(shrink * (middle - low))
    return float(middle) - half, float(middle) + half


def _groups(seen: Gathered, names: list[str]) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {EVERYBODY: list(range(len(names)))}
    for h, name in enumerate(names):
        group = seen.memory.profile(name).group
        if group is not None:
            members.setdefault(group, []).append(h)
    return members


def _metric_offer(offers: Offer, m: int) -> Offer:
    """The same users, as if one metric were the reward."""
    maps = offers.maps
    if maps is None:
        raise InputError("effects on metrics need the arms' maps Phi")
    features = np.broadcast_to(maps[..., m, :], offers.features.shape)
    return Offer(features=features, control=offers.control)


def _clean(p: FloatArray) -> FloatArray:
    """Rows that sum to one exactly: decimals that were written and read again keep their digits, sums may not."""
    return p / p.sum(-1, keepdims=True)
