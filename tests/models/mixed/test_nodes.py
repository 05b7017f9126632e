"""Positions at which estimates are averaged over uncertain variances."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.models.mixed.variance_components import WIDE, designed_nodes
from drimed.numerics.arrays import FloatArray


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


def test_metrics_do_not_move_together() -> None:
    points = designed_nodes(2, 6)
    between = points[:, :6].T @ points[:, 6:12] / len(points)
    assert np.abs(np.diagonal(between)).max() < 0.75
