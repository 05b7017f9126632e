from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.models.offer import Fit
from drimed.numerics.arrays import FloatArray
from drimed.policies.guards import margin
from drimed.policies.guards.margin import Tolerance
from tests.examples import ARMS, E3, fit_of, r1_fit
from tests.strategies import arms, fits

RELATIVE = Tolerance(relative=0.1)
RADII = st.sampled_from([0.0, 0.1, 1.0, 5.0]) | st.floats(1e-6, 100.0)


def F(fit: Fit, x: FloatArray, x0: FloatArray, tolerance: Tolerance, radius: float | FloatArray) -> FloatArray:
    w = x - x0[..., None, :]
    value, _ = margin.worst_case(w, x0, fit.theta, fit.metric, radius, tolerance.relative, tolerance.absolute)
    return np.asarray(value)


def by_grid(fit: Fit, x: FloatArray, x0: FloatArray, tolerance: Tolerance, radius: float) -> FloatArray:
    """max over |t| <= 1 by trying: never above the true value, and below it only by the resolution."""
    t = np.linspace(-1, 1, 20_001)[:, None, None]
    v = (x - x0) + t * tolerance.relative * x0  # (grid, K, d)
    length = np.sqrt(np.maximum(np.einsum("tki,ij,tkj->tk", v, fit.metric, v), 0))
    return (v @ fit.theta - radius * length).max(0) + tolerance.absolute


def round_off(fit: Fit, x: FloatArray, x0: FloatArray, radius: float) -> float:
    """Inner products lose half the digits where w and x_0 are parallel."""
    size = np.sqrt(max(float(np.einsum("ki,ij,kj->k", x, fit.metric, x).max()), float(x0 @ fit.metric @ x0), 0.0))
    means = max(float(np.abs(x @ fit.theta).max()), abs(float(x0 @ fit.theta)))
    return 1e-7 * radius * size + 1e-12 * means + 1e-14


def random_problem(seed: int) -> tuple[Fit, FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    d, K = int(rng.integers(1, 7)), int(rng.integers(2, 8))
    Z, x = rng.standard_normal((10, d)), rng.standard_normal((K, d))
    control = rng.dirichlet(np.ones(K)) if seed % 2 else np.eye(K)[0]
    return fit_of(np.eye(d) + Z.T @ Z, rng.standard_normal(d)), x, control @ x


@pytest.mark.parametrize(
    ("choices", "radius", "want"),
    [
        (np.eye(3), 0.2, [0.043155, -0.315865, 0.024734]),  # G1: control (.6, .8), whose sign is certain
        (np.eye(3), 1.0, [-0.416224, -0.611324, 0.0]),  # G2: with the sign of the estimate (-.491010, -.654166, 0)
        ([[0.2, 0.7, 0.1], [2 / 3, 0.0, 1 / 3]], 0.2, [-0.167427, 0.043616]),  # mixtures
    ],
)
def test_certificates_of_the_running_example(choices: FloatArray, radius: float, want: list[float]) -> None:
    x = np.asarray(choices) @ ARMS
    np.testing.assert_allclose(F(r1_fit(), x, ARMS[2], RELATIVE, radius), want, atol=5e-7)


def test_certificates_for_a_mixed_control() -> None:
    # G6: pi_0 = (1/2, 1/2, 0), relative .1, absolute .05, radius 1/2.
    fit, pi0 = r1_fit(), np.array([0.5, 0.5, 0.0])
    x0, tolerance = pi0 @ ARMS, Tolerance(relative=0.1, absolute=0.05)
    np.testing.assert_allclose(F(fit, ARMS, x0, tolerance, 0.5), [0.055232, -0.353854, 0.028899], atol=5e-7)
    mixtures = np.array([pi0, [0.2, 0.1, 0.7]]) @ ARMS
    np.testing.assert_allclose(F(fit, mixtures, x0, tolerance, 0.5), [0.057178, 0.067001], atol=5e-7)


def share_of(
    fit: Fit, wish: FloatArray, safe: FloatArray, x0: FloatArray, tolerance: Tolerance, radius: float
) -> float:
    """The largest certified share of the mean feature `wish` in a mixture with `safe`."""
    rho = margin.largest_share(
        safe - x0, wish - x0, x0, fit.theta, fit.metric, np.asarray(radius), tolerance.relative, tolerance.absolute
    )
    return float(rho)


def test_the_largest_share_falls_in_the_radius_and_rises_in_the_tolerance() -> None:
    for seed in range(100):
        fit, x, x0 = random_problem(seed)
        wish = np.random.default_rng(seed).dirichlet(np.ones(len(x))) @ x
        base = share_of(fit, wish, x0, x0, Tolerance(relative=0.2, absolute=0.1), 1.0)
        assert share_of(fit, wish, x0, x0, Tolerance(relative=0.2, absolute=0.1), 1.5) <= base + 1e-7
        assert share_of(fit, wish, x0, x0, Tolerance(relative=0.2, absolute=0.2), 1.0) >= base - 1e-7


def test_the_largest_share_is_where_the_certificate_ends() -> None:
    shares = np.linspace(0, 1, 2001)
    for seed in range(40):
        fit, x, x0 = random_problem(seed)
        tolerance = Tolerance(relative=0.2, absolute=0.05)
        wish = x[np.random.default_rng(seed).integers(len(x))]
        values = F(fit, x0 + shares[:, None] * (wish - x0), x0, tolerance, 1.0)
        rho = share_of(fit, wish, x0, x0, tolerance, 1.0)
        assert rho == pytest.approx(shares[values >= 0].max(), abs=1e-3)


def test_a_loss_that_is_known_for_certain_is_mixed_in_as_far_as_it_is_allowed() -> None:
    certain = replace(r1_fit(), V_inv=np.zeros_like(r1_fit().V_inv), spread=None)
    x0 = certain.theta / float(certain.theta @ certain.theta)  # of mean 1
    assert share_of(certain, -x0, x0, x0, Tolerance(relative=0.0, absolute=0.5), 2.0) == pytest.approx(0.25)


def test_a_relative_tolerance_gives_no_slack_to_an_uncertain_control() -> None:
    for relative in (0.1, 0.5, 0.9):
        tolerance = Tolerance(relative=relative)
        value = F(r1_fit(), (0.001 * np.array([0.7, 0.2, 0.1]) + 0.999 * E3)[None] @ ARMS, ARMS[2], tolerance, 1.0)
        assert float(value[0]) < 0


def test_the_certificate_at_radius_zero_is_the_estimated_margin() -> None:
    for seed in range(50):
        fit, x, x0 = random_problem(seed)
        tolerance = Tolerance(relative=0.3, absolute=0.02)
        mu0 = float(x0 @ fit.theta)
        want = x @ fit.theta - mu0 + 0.3 * abs(mu0) + 0.02
        np.testing.assert_allclose(F(fit, x, x0, tolerance, 0.0), want, atol=1e-12)


def test_the_certificate_is_the_least_margin_over_the_confidence_set() -> None:
    """Sound: no sampled theta does worse. Tight: the worst sampled one comes within a hundredth of the range."""
    rng = np.random.default_rng(0)
    for seed in range(40):
        fit, x, x0 = random_problem(seed)
        d = len(fit.theta)
        if d > 3:
            continue  # sampling does not reach the worst corner of a high-dimensional ball
        radius, tolerance = float(rng.uniform(0.1, 3.0)), Tolerance(relative=float(rng.uniform(0, 0.9)))
        ball = rng.standard_normal((40_000, d))
        ball *= (rng.random((40_000, 1)) ** (1 / (4 * d))) / np.linalg.norm(ball, axis=-1, keepdims=True)
        theta = fit.theta + radius * ball @ np.linalg.cholesky(fit.V_inv).T
        mu0 = theta @ x0
        sampled = (theta @ x.T - mu0[:, None] + tolerance.relative * np.abs(mu0)[:, None]).min(0)
        value = F(fit, x, x0, tolerance, radius)
        reach = 2 * radius * np.sqrt(np.einsum("ki,ij,kj->k", x - x0, fit.V_inv, x - x0)) + 1e-9
        assert (sampled >= value - 1e-9).all()
        assert (sampled - value <= 0.02 * reach + 1e-3).all()


@given(data=st.data())
def test_the_closed_form_is_the_maximum_over_t(data: st.DataObject) -> None:
    x = data.draw(arms(most_arms=4, most_features=3))
    fit = data.draw(fits(x.shape[1], len(x)))
    x0 = x[0] if data.draw(st.booleans()) else x.mean(0)
    relative = data.draw(st.sampled_from([0.0, 0.1, 0.5, 0.999]) | st.floats(0.0, 0.99))
    tolerance = Tolerance(relative=relative, absolute=data.draw(st.floats(0.0, 1.0)))
    radius = data.draw(RADII)
    value, grid = F(fit, x, x0, tolerance, radius), by_grid(fit, x, x0, tolerance, radius)
    num = round_off(fit, x, x0, radius)
    assert np.isfinite(value).all()
    assert (value >= grid - num).all()
    # Between grid points the concave function rises by at most its slope times half a step.
    slope = relative * (abs(float(x0 @ fit.theta)) + radius * np.sqrt(max(float(x0 @ fit.metric @ x0), 0.0)))
    assert (value <= grid + 1e-4 * slope + num).all()


@given(data=st.data())
def test_the_control_is_always_certified(data: st.DataObject) -> None:
    x = data.draw(arms())
    fit = data.draw(fits(x.shape[1], len(x)))
    x0 = x[0] if data.draw(st.booleans()) else x.mean(0)
    tolerance = Tolerance(relative=data.draw(st.floats(0.0, 0.99)), absolute=data.draw(st.floats(0.0, 1.0)))
    radius = data.draw(RADII)
    value = float(F(fit, x0[None], x0, tolerance, radius)[0])
    mu0, length = abs(float(x0 @ fit.theta)), np.sqrt(max(float(x0 @ fit.metric @ x0), 0.0))
    want = tolerance.relative * max(mu0 - radius * length, 0.0) + tolerance.absolute
    assert value >= -1e-12 * mu0
    assert value == pytest.approx(want, abs=1e-12 * (mu0 + 1) + round_off(fit, x0[None], x0, radius))


@given(data=st.data())
def test_mixtures_of_certified_choices_are_certified(data: st.DataObject) -> None:
    x = data.draw(arms(most_features=3))
    fit = data.draw(fits(x.shape[1], len(x), scale=3.0))
    x0 = x[0]
    tolerance = Tolerance(relative=data.draw(st.floats(0.0, 0.99)), absolute=data.draw(st.floats(0.0, 0.2)))
    weights = np.array(data.draw(st.lists(st.floats(0.01, 1.0), min_size=len(x), max_size=len(x))))
    weights /= weights.sum()
    radius = data.draw(RADII)
    value = F(fit, x, x0, tolerance, radius)
    mixed = float(F(fit, (weights @ x)[None], x0, tolerance, radius)[0])
    # Concavity, which implies the claim: the mixture is certified by at least the mean of the certificates.
    assert mixed >= weights @ value - 2 * round_off(fit, x, x0, radius)
    certified = value >= 0
    p = np.where(certified, weights, 0.0)
    p /= p.sum()  # the control is always certified, so there is mass
    safe = float(F(fit, (p @ x)[None], x0, tolerance, radius)[0])
    assert safe >= -2 * round_off(fit, x, x0, radius)


def test_the_certificate_scales_with_the_unit_of_reward() -> None:
    for seed in range(50):
        fit, x, x0 = random_problem(seed)
        base = F(fit, x, x0, Tolerance(relative=0.2, absolute=0.1), 1.0)
        for c in (1e-6, 3.0, 1e6):
            # Rewards in another unit: theta_hat and |theta - theta_hat| by c.
            scaled = replace(fit, theta=c * fit.theta)
            np.testing.assert_allclose(
                F(scaled, x, x0, Tolerance(relative=0.2, absolute=0.1 * c), c), c * base, rtol=1e-9, atol=1e-9 * c
            )
            # Features in another unit, at the same estimate.
            np.testing.assert_allclose(
                F(fit, c * x, c * x0, Tolerance(relative=0.2, absolute=0.1 * c), 1.0),
                c * base,
                rtol=1e-9,
                atol=1e-9 * c,
            )


def test_while_discounting_the_spread_is_the_metric() -> None:
    fit, x, x0 = random_problem(2)
    spread = 0.25 * fit.V_inv
    discounted = replace(fit, spread=spread)
    np.testing.assert_allclose(
        F(discounted, x, x0, RELATIVE, 1.0), F(replace(fit, V_inv=spread), x, x0, RELATIVE, 1.0), atol=1e-12
    )
