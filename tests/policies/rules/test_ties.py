"""Arms that tie share what the first of them would get: the order of arms does not matter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.errors import ConfigError
from drimed.models.offer import Offer, Shape
from drimed.numerics.arrays import FloatArray
from drimed.policies.registry import make
from drimed.policies.rules.base import Ask, Rule
from drimed.policies.rules.imed import IMED
from drimed.policies.rules.med import MED, LinMED
from drimed.policies.rules.simple import Greedy
from tests.examples import fit_of, r1_fit, r1_offer, unbatched
from tests.strategies import arms, fits, masks

SHARING: list[Rule] = [
    MED(ties="shared"),
    MED(ties="shared", saturation="off", temperature="radius"),
    MED(ties="shared", saturation="every arm", empirical=0.5, optimal=0.25, design="uniform"),
    LinMED(ties="shared", optimal=0.0, design="none", saturation="one arm"),
    IMED(ties="shared"),
    Greedy(ties="shared"),
]
NAMES = [f"{type(rule).__name__} {n}" for n, rule in enumerate(SHARING)]


def permuted(offer: Offer, ask: Ask, order: list[int]) -> tuple[Offer, Ask]:
    sigma = None if offer.sigma is None else offer.sigma[order]
    moved = replace(offer, features=offer.features[order], control=offer.control[order], sigma=sigma)
    return moved, Ask(
        mask=None if ask.mask is None else ask.mask[order], penalty=None if ask.penalty is None else ask.penalty[order]
    )


@pytest.mark.parametrize("rule", SHARING, ids=NAMES)
@given(data=st.data())
def test_permuting_the_arms_permutes_the_probabilities(rule: Rule, data: st.DataObject) -> None:
    """Copies, multiples and zero arms: many tie exactly, with no data and with a few rows."""
    x = data.draw(arms())
    K = len(x)
    fit, mask = data.draw(fits(x.shape[1], K, scale=2.0)), data.draw(masks(K))
    if data.draw(st.booleans()):
        fit = replace(fit, theta=np.zeros_like(fit.theta))
    penalty = np.array(data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=K, max_size=K)))
    offer, ask = unbatched(features=x, control=np.eye(K)[0]), Ask(mask=mask, penalty=penalty)
    order = data.draw(st.permutations(range(K)))
    p = rule.propose(fit, offer, ask)
    assert p.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(rule.propose(fit, *permuted(offer, ask, order)), p[order], atol=1e-9)


@pytest.mark.parametrize("rule", SHARING, ids=NAMES)
def test_before_any_data_arms_that_look_alike_get_the_same(rule: Rule) -> None:
    policy = make("med", rule=rule, weighting="none")
    state = policy.init(Shape(d=4, K=4, M=1, H=1))
    offer = unbatched(features=np.eye(4), control=np.eye(4)[0])
    np.testing.assert_allclose(policy.decide(state, offer, np.array([0.3])).probabilities, 0.25, atol=1e-12)


def test_two_leaders_share_the_lead_and_the_third_is_behind_the_mean_of_both() -> None:
    """Means 1, 1, 0; distances of the third: 2 to the first leader, 5 to the second."""
    fit = fit_of(np.diag([1.0, 0.25, 1.0]), np.array([1.0, 1.0, 0.0]), K=3)
    offer = unbatched(features=np.eye(3), control=np.eye(3)[2])
    p = MED(ties="shared", saturation="off").propose(fit, offer, Ask())

    def led_by(leader: FloatArray, distance: float) -> FloatArray:
        weight = (0.9 * leader + 0.1 / 3) * np.exp([0.0, 0.0, -1 / (2 * distance)])
        return np.asarray(weight / weight.sum())

    np.testing.assert_allclose(p, 0.5 * led_by(np.eye(3)[0], 2.0) + 0.5 * led_by(np.eye(3)[1], 5.0), atol=1e-12)


def test_round_off_does_not_break_a_tie_and_a_real_difference_does() -> None:
    def leads(difference: float) -> FloatArray:
        fit = fit_of(1e4 * np.eye(2), np.array([1.0, 1.0 + difference]), K=2)
        return Greedy(ties="shared").propose(fit, unbatched(features=np.eye(2), control=[1.0, 0.0]), Ask())

    assert leads(1e-13).tolist() == [0.5, 0.5]
    assert leads(1e-6).tolist() == [0.0, 1.0]
    # Means that are round-off around zero tie too: they are nothing beside their uncertainty.
    fit = fit_of(np.eye(2), np.array([1e-17, -2e-17]), K=2)
    offer = unbatched(features=np.eye(2), control=[1.0, 0.0])
    np.testing.assert_allclose(MED(ties="shared").propose(fit, offer, Ask()), 0.5)


@pytest.mark.parametrize("kind", [MED, IMED, Greedy])
def test_without_ties_nothing_changes(kind: Any) -> None:
    for sigma in (None, [0.5, 0.5, 1.0]):
        offer = r1_offer(sigma=sigma)
        first, shared = (kind(ties=ties).propose(r1_fit(), offer, Ask()) for ties in ("first", "shared"))
        assert np.array_equal(first, shared)


@pytest.mark.parametrize("kind", [MED, LinMED, IMED, Greedy])
def test_an_unknown_way_to_break_ties_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"ties must be one of \('first', 'shared'\), got 'last'"):
        kind(ties="last")
