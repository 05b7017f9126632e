"""Minimum empirical divergence, in its own form and in LinMED's, and ties."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.models.offer import Offer, Shape
from drimed.numerics import optimal_design, ridge
from drimed.numerics.arrays import FloatArray
from drimed.policies.registry import make
from drimed.policies.rules.base import Ask, Rule
from drimed.policies.rules.med import IMED, MED, LinIMED
from drimed.policies.rules.simple import Greedy
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.examples import ARMS, E1, fit_of, r1_fit, r1_offer, unbatched
from tests.strategies import arms, fits, masks
from tests.trial.trials import SMALL

PLAIN = MED(saturation="off")
RULES = [
    PLAIN,
    MED(),
    MED(saturation="every arm"),
    MED(temperature="radius", empirical=0.005, optimal=0.99),
    MED(empirical=0.5, optimal=0.25, saturation="off"),
]
# Leverages of R1 with noise: 1/3, 1/2, .44 over sigma^2.
ONE_UNEXPLORED = [1.0, 0.5, 1.0]  # levels 1/3, 2, .44
TWO_UNEXPLORED = [0.5, 0.5, 1.0]  # levels 4/3, 2, .44


def weights(temperature: float) -> FloatArray:
    return np.exp(-np.array([0.0, 0.4**2 / 0.833333, 0.12**2 / 0.373333]) / temperature)


def test_the_running_example_has_its_formula() -> None:
    """Temperature 2, .9 on the empirical best: q = (.9 + 1/30, 1/30, 1/30), f = exp(-gap^2 / (2 D))."""
    q = np.array([0.9, 0.0, 0.0]) + 0.1 / 3
    want = q * weights(2.0)
    np.testing.assert_allclose(PLAIN.propose(r1_fit(), r1_offer(), Ask()), want / want.sum(), atol=1e-6)
    # No direction is unexplored (every leverage is below 1), so the saturation step does nothing.
    assert np.array_equal(MED().propose(r1_fit(), r1_offer(), Ask()), PLAIN.propose(r1_fit(), r1_offer(), Ask()))


def test_saturation_gives_half_the_mass_to_the_least_explored_arm() -> None:
    offer = r1_offer(sigma=TWO_UNEXPLORED)
    p = PLAIN.propose(r1_fit(), offer, Ask())
    np.testing.assert_allclose(MED().propose(r1_fit(), offer, Ask()), 0.5 * p + [0.0, 0.5, 0.0], atol=1e-15)


def test_saturation_over_every_arm_is_normalised() -> None:
    offer = r1_offer(sigma=TWO_UNEXPLORED)
    p = PLAIN.propose(r1_fit(), offer, Ask())
    both = MED(saturation="every arm").propose(r1_fit(), offer, Ask())
    np.testing.assert_allclose(both, 0.5 * p + [0.25, 0.25, 0.0], atol=1e-15)
    assert both.sum() == pytest.approx(1.0)
    one = MED(saturation="every arm").propose(r1_fit(), r1_offer(sigma=ONE_UNEXPLORED), Ask())
    np.testing.assert_allclose(one, 0.5 * p + [0.0, 0.5, 0.0], atol=1e-15)


def test_a_cold_temperature_is_greedy_and_a_hot_one_plays_the_mixture() -> None:
    cold = MED(temperature=1e-9, empirical=0.0, saturation="off").propose(r1_fit(), r1_offer(), Ask())
    hot = MED(temperature=1e12, saturation="off").propose(r1_fit(), r1_offer(), Ask())
    np.testing.assert_allclose(cold, E1, atol=1e-12)
    np.testing.assert_allclose(hot, [0.9 + 0.1 / 3, 0.1 / 3, 0.1 / 3], atol=1e-9)


def test_the_design_is_of_the_arms_scaled_by_weight_and_noise() -> None:
    rng = np.random.default_rng(0)
    x, sigma = rng.standard_normal((9, 2)), rng.uniform(0.5, 2.0, 9)
    fit = fit_of(np.diag([30.0, 20.0]), np.array([0.05, 0.01]), K=9)
    offer = unbatched(features=x, control=np.eye(9)[0], sigma=sigma)
    rule = MED(empirical=0.3, optimal=0.5, saturation="off")
    leader, gap, distance = fit.behind_leader(x, None)
    f = np.exp(-(gap**2) / (2 * distance))
    q = 0.3 * np.eye(9)[int(leader)] + 0.5 * optimal_design.approx((np.sqrt(f) / sigma)[:, None] * x) + 0.2 / 9
    np.testing.assert_allclose(rule.propose(fit, offer, Ask()), q * f / (q * f).sum(), atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_adding_a_constant_to_every_penalty_changes_nothing(rule: MED) -> None:
    penalty = np.array([0.3, 0.0, 2.0])
    base = rule.propose(r1_fit(), r1_offer(), Ask(penalty=penalty))
    for shift in (1.0, 100.0, 1e4):
        moved = rule.propose(r1_fit(), r1_offer(), Ask(penalty=penalty + shift))
        np.testing.assert_allclose(moved, base, atol=1e-11)


def test_rewards_in_another_unit_change_nothing() -> None:
    """x, r and sigma by c: the weighted regression is the same, gaps and distances and noise scale together."""
    sigma = np.array([0.5, 0.5, 2.0])
    base = MED().propose(r1_fit(), r1_offer(sigma=sigma.tolist()), Ask())
    for c in (1e-6, 10.0, 1e6):
        offer = unbatched(features=c * ARMS, control=E1, sigma=c * sigma)
        np.testing.assert_allclose(MED().propose(r1_fit(), offer, Ask()), base, rtol=1e-9)


def lin_med(empirical: float, optimal: float) -> MED:
    return MED(temperature="radius", empirical=empirical, optimal=optimal, saturation="off", opening=True)


@pytest.mark.parametrize(
    ("empirical", "optimal", "want"),
    [
        (0.99, 0.005, [0.993374, 0.003299, 0.003327]),
        (0.005, 0.99, [0.338048, 0.329614, 0.332339]),
    ],
)
def test_lin_med_has_its_worked_probabilities(empirical: float, optimal: float, want: list[float]) -> None:
    p = lin_med(empirical, optimal).propose(r1_fit(), r1_offer(), Ask())
    np.testing.assert_allclose(p, want, atol=5e-7)


def test_the_first_round_has_no_leader() -> None:
    """p = alpha_opt q_opt + (1 - alpha_opt) / K, without weights."""
    x = np.random.default_rng(7).standard_normal((12, 2))
    offer = unbatched(features=x, control=np.eye(12)[0])
    p = lin_med(0.1, 0.6).propose(r1_fit(round=1), offer, Ask())
    np.testing.assert_allclose(p, 0.6 * optimal_design.approx(x) + 0.4 / 12)


SHARING: list[Rule] = [
    MED(ties="shared"),
    MED(ties="shared", saturation="off", temperature="radius"),
    MED(ties="shared", saturation="every arm", empirical=0.5),
    MED(ties="shared", temperature="radius", empirical=0.99, opening=True),
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
    offer = unbatched(features=np.eye(4), control=np.eye(4)[0]).expand()
    np.testing.assert_allclose(policy.decide(state, offer, np.array([[0.3]])).probabilities, 0.25, atol=1e-12)


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


LONGEST = 6.0  # seconds of computing


@pytest.mark.parametrize(("kind", "arms"), [("field", 400), ("paper", 1200)])
def test_many_arms_that_tie_are_decided_on_quickly(kind: str, arms: int) -> None:
    def trial_of(n: int) -> Trial:
        arms: dict[str, Any] = {"old": {}} | {f"arm {i}": {} for i in range(n - 1)}
        return Trial.create(SMALL | {"arms": arms, "model": {"kind": kind}}, MemoryStore())

    trial_of(40).ask("north")  # kernels are compiled
    trial = trial_of(arms)
    start = time.thread_time()
    decision = trial.ask("north")
    assert time.thread_time() - start < LONGEST
    assert sum(decision.probabilities.values()) == pytest.approx(1.0)


def test_the_running_example_has_its_worked_indices() -> None:
    index = IMED().index(r1_fit(), r1_offer(sigma=[1.0, 1.0, 1.0]), Ask())
    np.testing.assert_allclose(index, [1.386294, 1.290612, 1.224195], atol=5e-7)
    assert IMED().propose(r1_fit(), r1_offer(), Ask()).tolist() == [0.0, 0.0, 1.0]


def test_a_noisier_arm_counts_as_pulled_more_often() -> None:
    # sigma^2 / lev is the effective number of pulls of the arm's own direction.
    quiet, loud = (IMED().index(r1_fit(), r1_offer(sigma=s), Ask()) for s in ([1, 1, 1], [1, 1, 3]))
    assert loud[2] - quiet[2] == pytest.approx(np.log1p(9 / 0.44) - np.log1p(1 / 0.44))
    np.testing.assert_allclose(loud[:2], quiet[:2])


def test_an_arm_never_seen_counts_nothing() -> None:
    fit = fit_of(np.diag([1e12, 1e-12]), np.zeros(2), K=2)
    index = IMED().index(fit, unbatched(features=np.eye(2), control=[1.0, 0.0]), Ask())
    assert index[1] == pytest.approx(0.0, abs=1e-11)
    assert index[0] == pytest.approx(np.log(1e12), rel=1e-6)


VERSIONS = [LinIMED(version=1), LinIMED(version=2, horizon=1000), LinIMED(version=3)]


@pytest.mark.parametrize(
    ("rule", "want"),
    [
        (LinIMED(version=1), [-1.826482, -2.214776, -2.102358]),
        (LinIMED(version=2, horizon=1000), [-1.826482, -2.214776, -2.102358]),  # log T = 6.9 does not bind
        (LinIMED(version=3), [-1.816328, -2.231058, -2.104114]),
    ],
)
def test_lin_imed_has_its_worked_indices(rule: LinIMED, want: list[float]) -> None:
    np.testing.assert_allclose(rule.index(r1_fit(), r1_offer(), Ask()), want, atol=5e-7)
    assert rule.propose(r1_fit(), r1_offer(), Ask()).tolist() == [0.0, 1.0, 0.0]


def test_the_caps_bind_where_the_leader_is_well_explored() -> None:
    """V = 1e8 I makes -log w = 18.4 - log beta, above log T = 2.3 and log(C / widest^2) = log(2 / 1)."""
    fit = fit_of(1e8 * np.eye(2), np.array([1.0, 0.0]), K=2)
    offer = unbatched(features=np.eye(2), control=[1.0, 0.0])
    explored = -np.log(1e-8)
    assert float(LinIMED(version=1).index(fit, offer, Ask())[0]) == pytest.approx(explored)
    assert float(LinIMED(version=2, horizon=10).index(fit, offer, Ask())[0]) == pytest.approx(np.log(10))
    assert float(LinIMED(version=3, cap=2.0).index(fit, offer, Ask())[0]) == pytest.approx(np.log(2.0))


def test_the_experiments_radius_replaces_the_learners() -> None:
    rule = LinIMED(version=1, radius="experiments")
    beta = float(ridge.lin_imed_radius(4, 2, noise=1.0)) ** 2
    w = beta * np.array([1 / 3, 1 / 2, 0.44])
    want = np.array([0.0, 0.4, 0.12]) ** 2 / w - np.log(w)
    np.testing.assert_allclose(rule.index(r1_fit(), r1_offer(), Ask()), want, atol=1e-12)


def test_an_arm_without_features_beside_large_rewards_is_no_overflow() -> None:
    """No treatment is often coded as zero features: its width is zero, and its gap may be of any size."""
    fit = fit_of(np.eye(1), np.array([1.0]), radius=5.0, K=2)
    offer = unbatched(features=[[0.0], [1e6]], control=[1.0, 0.0])
    for rule in VERSIONS:
        assert rule.propose(fit, offer, Ask()).tolist() == [0.0, 1.0]
