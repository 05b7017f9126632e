"""The guard `expected`: worked numbers of the largest share, and what it promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError
from drimed.models.offer import Fit
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.policies.guards import margin
from drimed.policies.guards.base import MIXED, RESTRICTED, UNCHANGED, AskRule, Guardrail
from drimed.policies.guards.certified import Expected
from drimed.policies.guards.margin import Tolerance
from tests.examples import ARMS, fit_of, r1_fit, r1_offer, unbatched


def at_radius(r: float) -> Fit:
    return replace(r1_fit(), radius=np.asarray(r))


def share(p: list[float], safe: list[float], x0: FloatArray, rel: float, absolute: float, r: float) -> float:
    fit = at_radius(r)
    return float(
        margin.largest_share(fit, np.array(safe) @ ARMS - x0, np.array(p) @ ARMS - x0, x0, rel, absolute, np.asarray(r))
    )


def largest_by_bisection(
    fit: Fit, wish: FloatArray, safe: FloatArray, x0: FloatArray, tolerance: Tolerance, r: FloatArray
) -> float:
    def holds(rho: float) -> bool:
        mixed = rho * wish + (1 - rho) * safe
        return bool(margin.certified(fit, mixed[None], x0, tolerance, r)[0] >= 0)

    if holds(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def answers(*asked: list[float]) -> AskRule:
    """A rule that gives these distributions, one after the other."""
    left = [np.array(a) for a in asked]

    def ask(mask: BoolArray | None, penalty: FloatArray | None) -> FloatArray:
        assert penalty is None
        p = left.pop(0)
        assert mask is None or not (p[~mask] > 0).any()
        return p

    return ask


@pytest.mark.parametrize(
    ("p", "safe", "rel", "absolute", "r", "rho"),
    [
        ([0.2, 0.7, 0.1], [2 / 3, 0, 1 / 3], 0.1, 0.0, 0.2, 0.280380),  # G1, the control's sign is certain
        ([0.7, 0.2, 0.1], [0, 0, 1], 0.1, 0.0, 1.0, 0.0),  # G2, it is not: no slack, whatever the tolerance
        ([0.7, 0.2, 0.1], [0, 0, 1], 0.5, 0.0, 1.0, 0.0),
        ([0.7, 0.2, 0.1], [0, 0, 1], 0.0, 0.05, 1.0, 0.142401),  # G3
        ([0.7, 0.2, 0.1], [0, 0, 1], 0.1, 0.05, 1.0, 0.347946),  # G4
        ([0.2, 0.7, 0.1], [0, 0, 1], 0.5, 0.05, 1.0, 0.210506),  # G5, t strictly between -1 and 1
        ([0.2, 0.7, 0.1], [0, 0, 1], 0.3, 0.05, 1.0, 0.210506),
    ],
)
def test_worked_shares(p: list[float], safe: list[float], rel: float, absolute: float, r: float, rho: float) -> None:
    assert share(p, safe, ARMS[2], rel, absolute, r) == pytest.approx(rho, abs=5e-7)


def test_the_share_equals_bisection_on_random_states() -> None:
    """4,000 states, d from 2 to 6, one-hot and mixed controls; the certificate is concave along the segment."""
    rng = np.random.default_rng(3)
    for _ in range(4000):
        d, K = int(rng.integers(2, 7)), int(rng.integers(2, 8))
        root = rng.standard_normal((d, d + 3))
        fit = fit_of(root @ root.T + 0.1 * np.eye(d), rng.standard_normal(d), K=K)
        x = rng.standard_normal((K, d))
        pi0 = rng.dirichlet(np.ones(K)) if rng.random() < 0.5 else np.eye(K)[rng.integers(K)]
        x0 = pi0 @ x
        tolerance = Tolerance(relative=float(rng.choice([0, 0.1, 0.5])), absolute=float(rng.choice([0, 0.05, 0.5])))
        r = np.asarray(rng.exponential())
        ok = margin.certified(fit, x, x0, tolerance, r) >= 0
        safe = ok / ok.sum() if ok.any() else pi0
        p = rng.dirichlet(np.full(K, 0.5))

        bisected = largest_by_bisection(fit, p @ x, safe @ x, x0, tolerance, r)
        found = margin.largest_share(fit, safe @ x - x0, p @ x - x0, x0, tolerance.relative, tolerance.absolute, r)
        assert float(found) == pytest.approx(bisected, abs=1e-6)


def test_a_certified_wish_goes_through_untouched() -> None:
    guard = Expected(tolerance=Tolerance(relative=0.1, absolute=1.0))
    guarded = guard.apply(None, r1_fit(), r1_offer(), answers([0.2, 0.1, 0.7]))
    assert guarded.probabilities.tolist() == [0.2, 0.1, 0.7]
    assert int(guarded.reason) == UNCHANGED
    assert guarded.share is not None
    assert float(guarded.share) == 1.0


def test_an_uncertified_wish_is_mixed_with_the_rule_asked_again() -> None:
    """G1 by way of the guard: level .57926 is the normal quantile .2."""
    guard = Expected(tolerance=Tolerance(relative=0.1), confidence=0.5792597094391030)
    guarded = guard.apply(None, r1_fit(), r1_offer(), answers([0.2, 0.7, 0.1], [2 / 3, 0.0, 1 / 3]))
    np.testing.assert_allclose(guarded.probabilities, [0.535823, 0.196266, 0.267911], atol=5e-7)
    assert int(guarded.reason) == MIXED
    assert guarded.certified is not None
    assert int(guarded.certified) == 2


def test_a_mixed_control_without_certified_arms_is_played_as_a_lottery() -> None:
    pi0 = np.array([0.3, 0.3, 0.4])
    guard = Expected(tolerance=Tolerance(relative=0.0, absolute=0.0), confidence="anytime")
    guarded = guard.apply(None, r1_fit(), r1_offer(control=pi0), answers([0.0, 1.0, 0.0]))
    np.testing.assert_allclose(guarded.probabilities, pi0)


def test_the_promise_holds_for_the_mixture_that_is_played() -> None:
    rng = np.random.default_rng(5)
    tolerance = Tolerance(relative=0.1, absolute=0.02)
    guard = Expected(tolerance=tolerance, confidence=0.9)
    for _ in range(500):
        root = rng.standard_normal((3, 6))
        fit = fit_of(root @ root.T, rng.standard_normal(3), K=5)
        offer = unbatched(features=rng.standard_normal((5, 3)), control=np.eye(5)[0])

        def ask(mask: BoolArray | None, penalty: FloatArray | None) -> FloatArray:
            del penalty
            p = rng.dirichlet(np.ones(5)) * (np.ones(5) if mask is None else mask)
            return p / p.sum()

        p = guard.apply(None, fit, offer, ask).probabilities
        assert p.sum() == pytest.approx(1)
        r = np.asarray(1.2815515655446004)
        F = margin.certified(fit, (p @ offer.features)[None], offer.control_features, tolerance, r)
        assert float(F[0]) >= -1e-7


def test_a_guardrail_binds_where_the_reward_does_not() -> None:
    """Reward is the first metric; the second falls under arm 2, and a guardrail on it keeps arm 2 away."""
    maps = np.array([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 0.2]]])
    offer = unbatched(maps=maps, preference=[1.0, 0.0], control=[1.0, 0.0])
    fit = fit_of(1e6 * np.eye(2), np.array([1.0, 1.0]), K=2)
    wish = answers([0.0, 1.0])
    assert Expected().apply(None, fit, offer, wish).probabilities.tolist() == [0, 1]
    railed = Expected(guardrails=(Guardrail(metric=1, relative=0.05),))
    p = railed.apply(None, fit, offer, answers([0.0, 1.0], [1.0, 0.0])).probabilities
    assert p[1] == pytest.approx(0.05 / 0.8, abs=0.01)
    cost = Expected(guardrails=(Guardrail(metric=1, relative=0.05, better="lower"),))
    assert cost.apply(None, fit, offer, answers([0.0, 1.0])).probabilities.tolist() == [0, 1]


def test_a_guardrail_needs_the_metric_it_names() -> None:
    guard = Expected(guardrails=(Guardrail(metric=3),))
    offer = unbatched(maps=np.ones((2, 2, 2)), preference=[1.0, 0.0], control=[1.0, 0.0])
    with pytest.raises(InputError, match=r"guardrail on metric 3 needs .* it has 2 metrics"):
        guard.apply(None, fit_of(np.eye(2), np.ones(2), K=2), offer, answers([1.0, 0.0]))


@pytest.mark.parametrize("confidence", [0.5, 1.0, 0.2, "always"])
def test_a_senseless_confidence_is_refused(confidence: float | str) -> None:
    with pytest.raises(ConfigError, match=r"confidence must be a level between 0\.5 and 1, or 'anytime'"):
        Expected(confidence=confidence)


def test_restricted_is_said_where_nothing_of_the_wish_is_left_but_arms_are_certified() -> None:
    fit = fit_of(100 * np.eye(2), np.array([1.0, 1.0]), K=3)
    offer = unbatched(features=[[1.0, 0.0], [1.5, 0.0], [-50.0, 0.0]], control=[1.0, 0.0, 0.0])
    guard = Expected(tolerance=Tolerance(relative=0.0, absolute=0.0), confidence="anytime")
    guarded = guard.apply(None, fit, offer, answers([0.0, 0.0, 1.0], [1.0, 0.0, 0.0]))
    assert int(guarded.reason) in (RESTRICTED, MIXED)
    assert guarded.probabilities[2] < 0.01
