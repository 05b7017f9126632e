"""How the variances of a field model are learned: exact curvature, and a mode that does not depend on the way there."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.models.mixed.learner import Field
from drimed.models.mixed.likelihood import Design, posterior
from drimed.models.mixed.terms import Structure
from drimed.models.mixed.variance_components import (
    WIDE,
    designed_nodes,
    log_posterior,
    minimise,
    newton_step,
    posterior_mode,
)
from drimed.models.offer import Offer, Outcome, Shape, Unit
from drimed.numerics.arrays import FloatArray, IntArray
from tests.models.mixed.examples import METRICS, MODELS, data, designed, started, told

SIGNS = ((1, 1), (1, -1), (-1, 1), (-1, -1))


def made(name: str) -> tuple[Structure, Design]:
    if name == "a crowd":  # each family of the users has more rows than theta has columns
        rng = np.random.default_rng(2)
        field, users = Field(kind="people", covariates=1), np.repeat(np.arange(60), 2)
        unit = Unit(user=users, group=np.zeros(120, int), covariates=rng.normal(size=(120, 1)))
        offer = Offer(features=np.eye(3), control=np.eye(3)[0], unit=unit)
        y = np.sin(users)[:, None] + rng.normal(size=(120, 1))
        start = field.start(Shape(d=3, K=3, M=1, H=60), episodes=1)
        evidence = field.add(start, offer, rng.integers(0, 3, 120), Outcome(vector=y))
        structure, _, design = designed(field, evidence)
        assert design.family.size < 60
        return structure, design
    field, start = started(name)
    structure, _, design = designed(field, told(field, start, data(name)))
    return structure, design


@pytest.fixture(params=[*MODELS, "a crowd"], scope="module")
def model(request: pytest.FixtureRequest) -> tuple[Structure, Design]:
    return made(request.param)


def somewhere(structure: Structure, seed: int = 1) -> FloatArray:
    p = structure.parameters
    return p.centre + 0.3 * np.random.default_rng(seed).normal(size=p.size)


def test_the_curvature_is_that_of_the_value(model: tuple[Structure, Design]) -> None:
    """By second differences of the value alone, which have six digits; the prior is in both."""
    structure, design = model
    x, h = somewhere(structure), 1e-3
    value, gradient, H = log_posterior(structure.parameters, design, x, curvature=True)
    np.testing.assert_array_equal(value, log_posterior(structure.parameters, design, x)[0])
    np.testing.assert_allclose(gradient, log_posterior(structure.parameters, design, x)[1], atol=1e-12)
    a, b = np.triu_indices(len(x))
    axes = h * np.eye(len(x))
    corners = [log_posterior(structure.parameters, design, x + s * axes[a] + t * axes[b])[0] for s, t in SIGNS]
    differences = (corners[0] - corners[1] - corners[2] + corners[3]) / (4 * h**2)
    np.testing.assert_allclose(H[a, b], differences, atol=2e-4)
    np.testing.assert_allclose(H[b, a], differences, atol=2e-4)


def test_the_prior_has_the_slope_of_its_value_and_a_variance_far_above_it_is_pulled_no_harder() -> None:
    p = made("a crowd")[0].parameters
    near, far, farther = (p.centre + np.eye(p.size)[0] * spread for spread in (1.0, 8.0, 12.0))
    for x in (near, far):
        slopes = [(p.log_prior(x + e)[0] - p.log_prior(x - e)[0]) / 2e-4 for e in 1e-4 * np.eye(p.size)]
        np.testing.assert_allclose(p.log_prior(x)[1], slopes, atol=1e-6)
    assert p.log_prior(far)[1][0] > p.log_prior(near)[1][0] > 0
    np.testing.assert_array_equal(p.log_prior(farther)[1], p.log_prior(far)[1])


def test_a_column_that_no_cell_has_keeps_its_prior_and_changes_nothing(model: tuple[Structure, Design]) -> None:
    structure, design = model
    p = structure.parameters
    x = somewhere(structure)
    v, R = p.variances(x), p.residual(x)
    wider = design._replace(family=np.append(design.family, design.family[-1]))
    narrow, wide = posterior(design, v, R), posterior(wider, v, R)
    np.testing.assert_array_equal(wide.theta[:, :-1], narrow.theta)
    np.testing.assert_array_equal(wide.covariance[:, :-1, :, :-1], narrow.covariance)
    assert not wide.theta[:, -1].any()
    np.testing.assert_array_equal(wide.covariance[:, -1, :, -1], np.diag(v[:, design.family[-1]]))
    assert not wide.covariance[:, -1, :, :-1].any()


def test_members_of_a_batch_do_not_wait_for_each_other() -> None:
    """Each ends where it ends alone, whatever the others need."""
    name = "two metrics, one covariate, noise by arm"
    field, start = started(name)
    structure, _, first = designed(field, told(field, start, data(name)))
    scales = np.array([1.0, 0.01, 30.0])  # of outcomes: far from the centre, and near it
    slots = np.ones(first.T.shape[-1])
    members = []
    for scale in scales:
        slots[-METRICS[name] :] = scale
        members.append(first._replace(T=first.T * slots[:, None] * slots))
    shared = {"slot", "zslot", "family", "zfamily", "touched"}
    parts = {k: a if k in shared else np.stack([getattr(m, k) for m in members]) for k, a in first._asdict().items()}
    together = posterior_mode(structure.parameters, Design(**parts), (3,))
    for i, member in enumerate(members):
        alone = posterior_mode(structure.parameters, member, ())
        np.testing.assert_allclose(together[0][i], alone[0], rtol=0, atol=1e-11)
        np.testing.assert_allclose(together[1][i], alone[1], rtol=0, atol=1e-7)


def test_a_step_goes_downhill_where_the_curvature_is_negative() -> None:
    H = np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.5], [0.0, 0.5, -3.0]])
    g = np.array([0.3, -1.0, 0.2])
    assert np.linalg.eigvalsh(H).min() < 0
    assert g @ newton_step(H, g) < 0
    np.testing.assert_allclose(newton_step(H @ H, g), -np.linalg.solve(H @ H, g), rtol=1e-12)


def test_the_search_finds_the_least_value_inside_and_at_a_bound() -> None:
    """exp(x) - x has its least value at 0; the second coordinate may not go below 0.5."""

    def objective(x: FloatArray, _: IntArray) -> tuple[FloatArray, ...]:
        return (np.exp(x) - x).sum(-1), np.exp(x) - 1, np.exp(x)[..., None] * np.eye(2)

    start = np.array([[3.0, 2.0], [-2.0, 0.7]])
    bounds = np.array([-9.0, 0.5]), np.array([9.0, 9.0])
    x, found = minimise(objective, start, bounds, 1e-6)
    np.testing.assert_allclose(x[:, 1], 0.5)
    np.testing.assert_allclose(x[:, 0], 0.0, atol=1e-4)
    np.testing.assert_allclose(found[1], np.exp(x) - 1)


def means_of_variances(points: FloatArray) -> FloatArray:
    """Of each variance, relative to that of a lognormal."""
    return np.exp(WIDE * points).mean(0) / np.exp(WIDE**2 / 2)


@pytest.mark.parametrize("metrics", [1, 2, 3])
@pytest.mark.parametrize("each", [1, 3, 6, 9, 14])
def test_a_design_has_the_spread_of_a_normal_in_every_direction_of_a_metric(metrics: int, each: int) -> None:
    points = designed_nodes(metrics, each)
    assert points.shape[-1] == metrics * (each + 1)
    for m in range(metrics):
        own = [*range(m * each, (m + 1) * each), metrics * each + m]
        of_metric = points[:, own]
        np.testing.assert_allclose(of_metric.T @ of_metric / len(points), np.eye(each + 1), atol=1e-12)
    np.testing.assert_allclose(points.mean(0), 0.0, atol=1e-12)


@pytest.mark.parametrize("each", range(1, 16))
def test_a_design_gives_the_means_of_variances_within_a_tenth(each: int) -> None:
    assert np.abs(means_of_variances(designed_nodes(1, each)) - 1).max() < 0.1
