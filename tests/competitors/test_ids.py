from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.competitors.ids import IDS, best_ratio
from drimed.numerics.arrays import FloatArray
from drimed.policies.rules.base import Ask
from tests.examples import E1, E2, fit_of, r1_fit, r1_offer, unbatched

NOISE = [0.5, 1.0, 2.0]


def ratio(p: FloatArray, gap: FloatArray, information: FloatArray) -> float:
    paid, bought = float(p @ gap), float(p @ information)
    return 0.0 if paid == 0 else paid**2 / bought if bought > 0 else np.inf


def by_pairs(gap: FloatArray, information: FloatArray) -> float:
    """The smallest ratio over all single arms and all pairs, each with its closed form."""
    K = len(gap)
    found = [ratio(np.eye(K)[k], gap, information) for k in range(K)]
    for i, j in itertools.permutations(range(K), 2):
        if gap[j] > gap[i] and information[j] > information[i]:
            share = gap[i] / (gap[j] - gap[i]) - 2 * information[i] / (information[j] - information[i])
            share = min(max(share, 0.0), 1.0)
            found.append(ratio((1 - share) * np.eye(K)[i] + share * np.eye(K)[j], gap, information))
    return min(found)


def test_two_arms_are_mixed_as_worked_out() -> None:
    gap, information = np.array([1.0, 2.0]), np.array([1.0, 4.0])
    p = best_ratio(gap, information)
    np.testing.assert_allclose(p, [2 / 3, 1 / 3], atol=1e-15)
    assert ratio(p, gap, information) == pytest.approx(8 / 9)
    assert ratio(E1[:2], gap, information) == ratio(E2[:2], gap, information) == 1.0


def test_the_running_example_has_its_worked_gaps_and_information() -> None:
    offer = r1_offer(sigma=NOISE)
    gap, about_all = IDS(variant="f").trade_off(r1_fit(), offer, None)
    _, about_best = IDS(variant="ucb").trade_off(r1_fit(), offer, None)
    np.testing.assert_allclose(gap, [5.235922, 6.196073, 5.727070], atol=5e-7)
    np.testing.assert_allclose(about_all, [0.847298, 0.405465, 0.104360], atol=5e-7)
    np.testing.assert_allclose(about_best, [0.169418, 0.277632, 0.104360], atol=5e-7)
    assert gap[0] ** 2 / about_all[0] == pytest.approx(32.3557, abs=5e-5)
    assert gap[1] ** 2 / about_best[1] == pytest.approx(138.2815, abs=5e-5)
    for variant, arm in (("f", E1), ("ucb", E2)):
        assert IDS(variant=variant).propose(r1_fit(), offer, Ask()).tolist() == arm.tolist()
        assert IDS(variant=variant, deterministic=True).propose(r1_fit(), offer, Ask()).tolist() == arm.tolist()


def test_information_is_what_the_regression_would_gain() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        d, K = int(rng.integers(1, 6)), 4
        Z = rng.standard_normal((8, d))
        V = np.eye(d) + Z.T @ Z
        fit, sigma = fit_of(V, rng.standard_normal(d), K=K), rng.uniform(0.5, 2.0, K)
        offer = unbatched(features=rng.standard_normal((K, d)), sigma=sigma, control=np.eye(K)[0])
        best = offer.features[int((fit.mean(offer.features) + fit.width(offer.features)).argmax())]
        after = [V + np.outer(z, z) for z in offer.features / sigma[:, None]]
        want_f = [np.linalg.slogdet(W)[1] - np.linalg.slogdet(V)[1] for W in after]
        want_ucb = [np.log((best @ np.linalg.solve(V, best)) / (best @ np.linalg.solve(W, best))) for W in after]
        _, f = IDS(variant="f").trade_off(fit, offer, None)
        _, ucb = IDS(variant="ucb").trade_off(fit, offer, None)
        np.testing.assert_allclose(f, want_f, rtol=1e-9)
        np.testing.assert_allclose(ucb, want_ucb, rtol=1e-7, atol=1e-12)


def test_exact_outcomes_inform_finitely() -> None:
    for variant in ("ucb", "f"):
        _, information = IDS(variant=variant).trade_off(r1_fit(), r1_offer(sigma=[1e-12, 1.0, 1.0]), None)
        assert np.isfinite(information).all()
    assert information[0] == pytest.approx(np.log(1e24 / 3))
    # The arm of largest bound is known exactly after one look: all of its uncertainty but the last bit is gone.
    _, information = IDS().trade_off(r1_fit(), r1_offer(sigma=[1.0, 1.0, 1e-12]), None)
    assert 30 < information[2] < np.inf


@given(data=st.data())
def test_no_distribution_has_a_smaller_ratio(data: st.DataObject) -> None:
    K = data.draw(st.integers(1, 7))
    numbers = st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(0.0, 10.0)
    gap = np.array(data.draw(st.lists(numbers, min_size=K, max_size=K)))
    information = np.array(data.draw(st.lists(numbers, min_size=K, max_size=K)))
    gap[gap < 1e-9], information[information < 1e-9] = 0.0, 0.0
    p = best_ratio(gap, information)
    assert (p >= 0).all()
    assert p.sum() == pytest.approx(1.0, abs=1e-15)
    assert (p > 0).sum() <= 2
    best = by_pairs(gap, information)
    got = ratio(p, gap, information)
    assert got == best or got == pytest.approx(best, rel=1e-9)
    one = best_ratio(gap, information, deterministic=True)
    assert sorted(one.tolist()) == [0.0] * (K - 1) + [1.0]
    best_arm = min(ratio(np.eye(K)[k], gap, information) for k in range(K))
    got = ratio(one, gap, information)
    assert got == best_arm or got == pytest.approx(best_arm, rel=1e-12)


def test_without_information_the_smallest_gap_is_played() -> None:
    gap = np.array([2.0, 1.0, 1.0])
    for deterministic in (False, True):
        assert best_ratio(gap, np.zeros(3), deterministic=deterministic).tolist() == E2.tolist()
    offer = unbatched(features=np.zeros((3, 2)), control=E1)
    assert IDS().propose(r1_fit(), offer, Ask()).tolist() == E1.tolist()
