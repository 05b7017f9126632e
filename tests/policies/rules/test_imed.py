from __future__ import annotations

import numpy as np
import pytest

from drimed.errors import ConfigError
from drimed.policies.rules.base import Ask
from drimed.policies.rules.imed import IMED
from tests.examples import E1, fit_of, r1_fit, r1_offer, unbatched


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


def test_twins_of_the_leader_have_its_index() -> None:
    offer = unbatched(features=[[0.3, 0.4], [0.3, 0.4], [0.1, 0.0]], control=E1)
    index = IMED().index(r1_fit(), offer, Ask())
    assert index[0] == index[1]


@pytest.mark.parametrize("w", [0.0, -1.0, np.nan])
def test_a_weight_out_of_range_is_refused(w: float) -> None:
    with pytest.raises(ConfigError, match=f"w must be positive, got {w}"):
        IMED(w=w)
