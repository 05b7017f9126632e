"""What single outcomes tell of an effect, arm by arm and outcome by outcome."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.learning.field import single
from drimed.learning.field.contrasts import know
from drimed.linear.arrays import FloatArray
from tests.learning.field_models import METRICS, MODELS, data, started, told
from tests.learning.test_field_report import offers_of

H, K, M = 3, 4, 2


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def covariances(rng: np.random.Generator, *lead: int) -> FloatArray:
    A = rng.normal(size=(*lead, M, M))
    return A @ np.swapaxes(A, -1, -2)


def test_one_outcome_of_each_arm_of_a_contrast_is_counted_once(rng: np.random.Generator) -> None:
    """Controls are lotteries, arms have noise of their own, and there are two trials; on the reward and a metric."""
    noise, p, control = covariances(rng, 2, H, K), rng.normal(size=(H, M)), rng.dirichlet(np.ones(K), H)
    found = single.of_users(noise, p, control)
    for s, h, k in np.ndindex(2, H, K):
        contrast = np.eye(K)[k] - control[h]
        for on, weight in ((0, p[h]), (2, np.eye(M)[1])):
            variance = sum(contrast[j] ** 2 * weight @ noise[s, h, j] @ weight for j in range(K))
            assert found[s, h, k, on] == pytest.approx(np.sqrt(variance))


def test_of_users_together_it_is_that_of_their_mean_contrast(rng: np.random.Generator) -> None:
    noise, p, control = covariances(rng, H, K), rng.normal(size=(H, M)), rng.dirichlet(np.ones(K), H)
    weights = rng.dirichlet(np.ones(H), K).T
    found = single.together(noise, p, control, weights)
    for k in range(K):
        contrasts = weights[:, k, None] * (np.eye(K)[k] - control)  # (H, K)
        for on, weight in ((0, p), (1, np.tile(np.eye(M)[0], (H, 1)))):
            mean = contrasts.T @ weight  # (K, M)
            variance = sum(mean[j] @ noise[:, j].mean(0) @ mean[j] for j in range(K))
            assert found[k, on] == pytest.approx(np.sqrt(variance))


def test_who_is_not_in_an_effect_changes_nothing(rng: np.random.Generator) -> None:
    noise, p, control = covariances(rng, H, K), rng.normal(size=(H, M)), np.eye(K)[[0, 0, 0]]
    weights = np.full((H, K), 1 / H)
    weights[:, 2] = (0, 0.5, 0.5)
    before = single.together(noise, p, control, weights)
    p[0] *= 100
    after = single.together(noise, p, control, weights)
    np.testing.assert_allclose(after[2], before[2])
    assert (after[[1, 3], 0] > 2 * before[[1, 3], 0]).all()


def test_a_part_of_a_contrast_has_that_part_of_its_deviation() -> None:
    """Against a control that is the arm itself in one of ten decisions, and the other way round."""
    noise = np.ones((1, 2, 1, 1))
    found = single.of_users(noise, np.ones((1, 1)), np.array([[0.9, 0.1]]))[0, :, 0]
    np.testing.assert_allclose(found, np.sqrt(2) * np.array([0.1, 0.9]))


@pytest.mark.parametrize("name", MODELS)
def test_the_noise_is_that_of_what_is_believed(name: str) -> None:
    """By arm and by context where that is what scales it, in the metrics' units; of people it is not asked."""
    field, evidence = started(name)
    offers = offers_of(field, METRICS[name])
    known = know(field, told(field, evidence, data(name)), offers)
    noise = single.noise(field, known.evidence, offers)
    residual = field.beliefs(known.evidence, offers).residual
    np.testing.assert_allclose(noise, 0 * residual if field.kind == "people" else residual)
