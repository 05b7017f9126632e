"""Indexed rules."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.numerics import ridge
from drimed.policies.rules.base import Ask
from drimed.policies.rules.imed import IMED, LinIMED
from tests.examples import fit_of, r1_fit, r1_offer, unbatched


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
