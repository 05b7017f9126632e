"""Smooth responses to doses: the spline in closed form, its limits, doses never given, and both beliefs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.interpolate import CubicSpline

from drimed.models.mixed import learner as module
from drimed.models.mixed.generalised import YES_NO, on_link_scale
from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.mixed.terms import DOSE_ARMS, MOST_KNOTS, Terms, dose_columns, field_families, people_families
from drimed.models.offer import Offer, Outcome, Shape
from drimed.numerics.arrays import FloatArray

DOSES = np.array([0.0, 20.0, 60.0, 80.0, 140.0])


def penalty(x: FloatArray, f: FloatArray) -> float:
    """The integral of the squared second derivative of the natural spline through these points."""
    spline = CubicSpline(x, f, bc_type="natural")
    return sum(quad(lambda t: float(spline(t, 2)) ** 2, *ends)[0] for ends in pairwise(x))


def test_the_penalty_of_a_bend_is_the_sum_of_its_squared_coefficients() -> None:
    columns = dose_columns(DOSES, DOSES)
    x, bends = columns[:, 0], columns[:, 1:]
    u = np.random.default_rng(0).standard_normal((bends.shape[1], 1))[:, 0]
    unit = penalty(x, bends[:, 0])
    assert penalty(x, bends @ u) == pytest.approx(unit * (u @ u), rel=1e-8)
    np.testing.assert_allclose(np.matmul(np.stack([np.ones(5), x]), bends), 0.0, atol=1e-12)  # neither level nor slope


def test_a_response_between_and_beyond_its_knots_is_a_natural_spline() -> None:
    columns = dose_columns(DOSES, DOSES)
    at = np.array([30.0, 100.0, 170.0, 200.0])
    between = dose_columns(at, DOSES)[:, 1:]
    spline = CubicSpline(DOSES, columns[:, 1:], bc_type="natural")
    np.testing.assert_allclose(between[:2], spline(at[:2]), atol=1e-12)
    np.testing.assert_allclose(between[3] - between[2], 30.0 * spline(140.0, 1), atol=1e-12)  # straight beyond the last


def test_there_are_at_most_eight_knots_and_two_doses_have_no_bend() -> None:
    many = np.arange(30.0)
    assert dose_columns(many, many).shape == (30, MOST_KNOTS - 1)
    np.testing.assert_allclose(dose_columns(np.array([0.0, 150.0]), np.array([0.0, 100.0]))[:, 0], [-1.0, 2.0])


def test_doses_have_families_of_their_own_beside_smaller_ones_of_arms() -> None:
    terms, sizes = Terms(attributes=(0,), bends=(1, 2), doses=(0, 1, 2)), {"member": 1, "block": 1}
    plain, smooth = (
        {f.name: f for f in field_families(t, sizes)} for t in (Terms(attributes=(0,)), terms)
    )  # fmt: skip
    assert set(smooth) - set(plain) == {"bend", "group x dose", "season x dose"}
    for name in ("arm", "group x arm", "season x arm"):
        assert smooth[name].centre == pytest.approx(DOSE_ARMS * plain[name].centre)
    linked = {f.name: f.centre for f in on_link_scale(tuple(smooth.values()))}
    assert linked["group x dose"] == linked["season x dose"] == pytest.approx(0.2**2)
    grouped = people_families(terms, {"group": 2, "user": 9, "season": 1})
    assert [f.name for f in grouped if f.name.endswith("x dose")] == ["group x dose"]


def learned(learner: Field, columns: FloatArray, arms: list[int], y: FloatArray) -> tuple[FieldEvidence, Offer]:
    """After outcomes of one site in one season."""
    K = len(columns)
    offer = Offer(features=np.eye(K)[None], control=np.eye(K)[:1], preference=np.ones((1, 1)), attributes=columns)
    evidence = learner.age(learner.start(Shape(d=K, K=K, M=1, H=1)))
    for arm, value in zip(arms, y, strict=True):
        evidence = learner.add(evidence, offer, np.array([arm]), Outcome(None, np.array([[value]])))
    return learner.ready(evidence, variances=True), offer


def test_columns_of_doses_are_not_standardised() -> None:
    """Else a prior would depend on which doses were given."""
    columns = dose_columns(DOSES, DOSES)
    evidence, _ = learned(Field(attributes=4, doses=(4,), seasons=False), columns, [0, 1, 1], np.array([1.0, 2.0, 4.0]))
    np.testing.assert_array_equal(evidence.fitted.scale.centre[:4], 0.0)
    np.testing.assert_array_equal(evidence.fitted.scale.unit[:4], 1.0)


def test_an_arm_of_the_past_has_an_average_dose() -> None:
    columns = dose_columns(DOSES, DOSES)
    learner = Field(attributes=4, doses=(4,), seasons=False, past=(1, 1))
    evidence, _ = learned(learner, columns, [0, 5], np.array([1.0, 2.0]))
    given = evidence.cells.live().mean[:, :4]
    assert sorted(given[:, 0]) == pytest.approx([columns[0, 0], 0.0])


def test_a_bend_without_variance_leaves_the_straight_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ridge regression on the line, in closed form."""

    def known(terms: Terms, sizes: dict[str, int], *, seasons: bool = True) -> tuple[object, ...]:
        variance = {"level": 1e6, "attribute": 1e6, "bend": 0.0}
        return tuple(
            replace(f, variance=variance.get(f.name, 0.0)) for f in field_families(terms, sizes, seasons=seasons)
        )

    monkeypatch.setattr(module, "field_families", known)
    columns, arms = dose_columns(DOSES, DOSES), [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    y = np.random.default_rng(1).normal(size=10) + columns[arms, 0]
    learner = Field(attributes=4, doses=(4,), seasons=False, delta=0.02)  # of no other test: structures are kept
    mean = learner.beliefs(*learned(learner, columns, arms, y)).mean[0, :, 0]
    slope, level = np.polyfit(columns[arms, 0], y, 1)
    np.testing.assert_allclose(mean, level + slope * columns[:, 0], atol=1e-4)


@pytest.mark.parametrize("kinds", [(), (YES_NO,)])
def test_a_dose_never_given_is_estimated_from_its_neighbours_with_a_wider_range(kinds: tuple[str, ...]) -> None:
    doses = np.arange(0.0, 120.0, 20.0)
    columns, rng = dose_columns(doses, doses), np.random.default_rng(2)
    true, q = 0.2 + 0.6 * doses / 100, columns.shape[1]
    learner = Field(attributes=q, doses=(q,), kinds=kinds, seasons=False, promise="alike")
    deviations = []
    for given in ((0, 1, 2, 4, 5), range(6)):
        arms = [k for k in given for _ in range(40)]
        y = true[arms] + 0.2 * rng.standard_normal(len(arms))
        if kinds:
            y = (rng.random(len(arms)) < true[arms]).astype(np.float64)
        evidence, offer = learned(learner, columns, arms, y)
        belief = learner.beliefs(evidence, offer)
        mean, variance = belief.mean[0, 3, 0], belief.covariance[0, 3, 0, 3, 0]
        if kinds:
            draws = learner.means(evidence, offer, belief).draws[0, :, 3, 0]
            mean, variance = draws.mean(), draws.var()
        assert abs(mean - true[3]) < 4 * variance**0.5
        deviations.append(variance**0.5)
    assert deviations[0] < 0.25 * (true[-1] - true[0])  # much less than nothing known
    assert deviations[0] > 1.1 * deviations[1]
