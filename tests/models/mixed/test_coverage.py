"""Statistical: ranges of effects by site hold as often as they say, with learned variances, under adaptive choices.

Fixed seeds. A run is one field with its own effects, so the tolerance counts runs, not ranges: ranges of one run are
correlated. The share of a run's ranges that hold has a deviation of 0.07 between runs (95 % ranges) and 0.03 (99 %).
The tolerance is the one point that learned variances may cost plus three standard errors over 60 runs: a false alarm in
about 0.3 % of choices of seeds.
"""

from __future__ import annotations

import numpy as np
import pytest

from drimed import streams
from drimed.models.mixed.effects import anytime_range
from drimed.models.mixed.learner import Field
from drimed.models.offer import Offer, Outcome, Shape
from drimed.numerics.arrays import FloatArray
from drimed.policies.guards.certified import Expected
from drimed.policies.guards.margin import Tolerance
from drimed.policies.policy import Policy
from drimed.policies.rules.med import MED
from drimed.simulation.trial_world import Deviations, FieldSetting, FieldWorld

RUNS, SITES, ARMS = 60, 6, 5
POLICY = Policy(learner=Field(), rule=MED(), guard=Expected(tolerance=Tolerance(relative=0.0, absolute=6.0)))


def offers() -> Offer:
    """All plots of a season: two at each site."""
    control = np.broadcast_to(np.eye(ARMS)[0], (RUNS, 2 * SITES, ARMS))
    features = np.broadcast_to(np.eye(ARMS), (RUNS, 2 * SITES, ARMS, ARMS))
    return Offer(features=features, control=control, user=np.repeat(np.arange(SITES), 2))


def effects(
    setting: FieldSetting, looks: tuple[int, ...]
) -> tuple[dict[int, tuple[FloatArray, FloatArray]], FloatArray]:
    """Estimated effects by site and their deviations after some seasons, (S, I, K - 1), and the true ones."""
    world = FieldWorld(setting, range(RUNS))
    true = world.rewards
    state = POLICY.init(Shape(d=ARMS, K=ARMS, M=1, H=SITES), (RUNS,))
    found = {}
    for season in range(max(looks) + 1):
        state = POLICY.begin_episode(state, offers())
        state = POLICY.settle(state)
        if season in looks:
            sites = Offer(features=np.eye(ARMS), control=np.eye(ARMS)[0], user=np.arange(SITES))
            belief = Field().beliefs(state.evidence, sites)
            mean, cov = belief.mean[..., 0], belief.covariance[..., 0, :, 0]
            own = np.diagonal(cov, axis1=-2, axis2=-1)
            variance = own[..., 1:] + own[..., :1] - 2 * cov[..., 1:, 0]
            found[season] = (mean[..., 1:] - mean[..., :1], np.sqrt(variance))
        if season < max(looks):
            draws = np.stack([streams.uniforms(s, "policy", 12 * season, 12, 2) for s in range(RUNS)])
            decision = POLICY.decide(state, offers(), draws)
            y = world.respond(season, decision.action)[..., 0]
            state = POLICY.commit(state, offers(), decision)
            state = POLICY.observe(state, offers(), decision.action, Outcome(reward=y))
    return found, true[..., 1:] - true[..., :1]


@pytest.fixture(scope="module")
def barley() -> tuple[dict[int, tuple[FloatArray, FloatArray]], FloatArray]:
    return effects(FieldSetting(seasons=6), (3, 6))


@pytest.mark.parametrize("seasons", [3, 6])
def test_ranges_hold(barley: tuple[dict[int, tuple[FloatArray, FloatArray]], FloatArray], seasons: int) -> None:
    (mean, sd), true = barley[0][seasons], barley[1]
    z = np.abs(mean - true) / sd
    assert (z < 1.96).mean() == pytest.approx(0.95, abs=0.038)
    assert (z < 2.576).mean() == pytest.approx(0.99, abs=0.022)


def test_ranges_that_hold_at_all_times_are_wider_than_likely_ones_but_not_useless(
    barley: tuple[dict[int, tuple[FloatArray, FloatArray]], FloatArray],
) -> None:
    (mean, sd), true = barley[0][6], barley[1]
    prior = np.full(sd.shape, 2 * (64.0 + 25.0))  # of an effect at a site, as the world has it
    low, high = anytime_range(mean, np.minimum(sd**2, 0.99 * prior), prior, 0.05)
    assert ((low <= true) & (true <= high)).mean() > 0.95
    told = sd**2 < prior / 4
    assert np.median((high - low)[told] / (2 * 1.96 * sd[told])) < 2.2


def test_without_any_difference_nothing_is_called_better() -> None:
    """At most 5 % of trials; 8 of 60 would be exceeded with probability 1 % at exactly 5 %."""
    setting = FieldSetting(seasons=5, deviations=Deviations(arm=0.0, site_arm=0.0))
    found, _ = effects(setting, (5,))
    mean, sd = found[5]
    assert (mean / sd > 1.96).any((-2, -1)).sum() <= 8
