"""Tails of effects under uncertain variances, against the mixture of normals that they stand for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import t

from drimed.models.mixed import effects, prediction
from drimed.models.mixed.effects import FittedModel
from drimed.models.mixed.learner import Field
from drimed.models.mixed.observations import make_design
from drimed.models.mixed.variance_components import integrate
from drimed.models.offer import Offer
from drimed.numerics import probability
from drimed.numerics.arrays import FloatArray
from tests.models.mixed.examples import at_the_mode, data, started, told
from tests.models.mixed.test_summaries import offers_of

LEVEL = 0.99


def known_of(field: Field, name: str, n: int, seed: int = 0) -> FittedModel:
    field, evidence = started(name, field)
    return FittedModel.of(field, told(field, evidence, data(name, n, seed)))


def at_nodes(known: FittedModel, parts: list[tuple[Offer, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    """Means and deviations of sums, fitted at each node by itself: (B, T) twice."""
    learned = known.evidence.fitted
    found = []
    for node in learned.nodes:
        cells = known.evidence.cells.compact(known.structure.cluster_place)
        laplace = learned.mode, learned.deviation, node[None]
        fitted = integrate(known.structure, make_design(known.structure, cells, learned.scale), learned.scale, laplace)
        evidence = replace(known.evidence, cells=cells, fitted=fitted, included=cells.used)
        found.append(FittedModel.of(known.learner, evidence).posterior(parts, "each")[:2])
    means, deviations = zip(*found, strict=True)
    return np.stack(means), np.stack(deviations)


def reached(mean: FloatArray, deviation: FloatArray) -> float:
    """Where an even mixture of normals reaches the level."""
    span = mean.min() - 9 * deviation.max(), mean.max() + 9 * deviation.max()
    return float(brentq(lambda x: ndtr((x - mean) / deviation).mean() - LEVEL, *span, xtol=1e-10))


@pytest.mark.parametrize("n", [8, 20, 60])
def test_the_range_of_an_effect_reaches_as_far_as_the_mixture(n: int) -> None:
    """A normal of the same variance falls short by more, wherever it falls short by much."""
    logs = []
    for seed in range(6):
        known = known_of(Field(), "one metric", n, seed)
        offers = offers_of(known.learner, 1)
        weights = np.zeros((6, 4, 3, 1))
        for h, k in np.ndindex(3, 2):
            weights[2 * h + k, h, :, 0] = np.eye(3)[1 + k] - offers.control[h]
        parts = [(offers, weights[np.abs(weights).max((1, 2, 3)) > 0])]
        found = known.posterior(parts, "each")
        means, deviations = at_nodes(known, parts)
        exact = np.array([reached(m, s) for m, s in zip(means.T, deviations.T, strict=True)]) - found.mean
        quantiles = probability.student_quantile(LEVEL, found.freedom), ndtri(LEVEL)
        logs.append([np.log(quantile * found.deviation / exact) for quantile in quantiles])
    by_student, by_normal = np.moveaxis(np.array(logs), 1, 0)
    assert np.abs(by_student).mean() < np.abs(by_normal).mean()
    assert by_student.min() > by_normal.min()
    assert by_normal.mean() < by_student.mean() < 0.0
    assert np.quantile(by_student, 0.9) < 0.05


def test_what_the_data_told_shortens_the_tails_down_to_a_normals() -> None:
    variance = np.array([[0.5, 1.0, 2.0, 4.5]])
    shares = np.array([1.0, 0.5, 0.1, 0.01])
    found = [float(prediction.degrees_of_freedom(variance, np.array([2 * share]))) for share in shares]
    assert (np.diff(found) > 0).all()
    assert found[-1] > 1000
    assert prediction.degrees_of_freedom(variance, np.array([1e-9])) == np.inf


def test_known_variances_leave_a_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    at_the_mode(monkeypatch)
    known = known_of(Field(), "one metric", 20)
    assert (effects.effects_of_users(known, offers_of(known.learner, 1)).freedom == np.inf).all()


def test_arms_are_compared_with_the_mean_of_all_arms() -> None:
    rng = np.random.default_rng(3)
    root, D = rng.normal(size=(4, 6)), np.eye(4) - 1 / 4
    covariance = root @ root.T
    found = prediction.centred_variance(covariance.reshape(4, 1, 4, 1))
    np.testing.assert_allclose(found[0], np.diagonal(D @ covariance @ D))


@pytest.mark.parametrize("level", [0.6, 0.975, 0.99, 0.999])
def test_quantiles_are_students_at_a_variance_of_one(level: float) -> None:
    nu = np.array([2.5, 4.0, 7.0, 100.0, np.inf])
    wanted = [*(t.ppf(level, nu[:-1]) * np.sqrt((nu[:-1] - 2) / nu[:-1])), ndtri(level)]
    np.testing.assert_allclose(probability.student_quantile(level, nu), wanted)
    assert probability.student_quantile(level, float(nu[2])) == pytest.approx(wanted[2])
    assert probability.student_quantile(level, np.inf) == pytest.approx(ndtri(level), rel=1e-15)
