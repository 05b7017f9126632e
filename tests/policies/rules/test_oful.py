from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.errors import ConfigError
from drimed.policies.registry import make
from drimed.policies.rules.base import Ask
from drimed.policies.rules.simple import OFUL
from tests.examples import ARMS, E1, r1_fit, r1_offer
from tests.worlds import played, world


def test_the_running_example_has_its_worked_bounds() -> None:
    fit = r1_fit()
    np.testing.assert_allclose(OFUL().index(fit, r1_offer()), [2.992387, 3.152538, 3.243535], atol=5e-7)
    np.testing.assert_allclose(fit.mean(ARMS), [0.5, 0.1, 0.38], atol=1e-12)
    np.testing.assert_allclose(fit.mean(ARMS) - fit.width(ARMS), [-1.992387, -2.952538, -2.483535], atol=5e-7)
    assert OFUL().propose(fit, r1_offer(), Ask()).tolist() == [0.0, 0.0, 1.0]


def test_a_fixed_width_replaces_the_radius() -> None:
    index = OFUL(width_squared=2.0).index(r1_fit(), r1_offer())
    np.testing.assert_allclose(index, np.array([0.5, 0.1, 0.38]) + np.sqrt(2 * np.array([1 / 3, 1 / 2, 0.44])))
    assert OFUL(width_squared=0.0).propose(r1_fit(), r1_offer(), Ask()).tolist() == E1.tolist()


def test_while_discounting_the_width_is_in_the_spread() -> None:
    fit = r1_fit()
    narrow = replace(fit, spread=0.25 * fit.V_inv)
    np.testing.assert_allclose(narrow.width(ARMS), 0.5 * fit.width(ARMS))
    assert OFUL().index(narrow, r1_offer())[2] == pytest.approx(0.38 + 0.5 * (3.243535 - 0.38), abs=1e-6)


@pytest.mark.parametrize("c", [0.5, 3.0])
def test_equal_noise_makes_weighted_optimism_plain_optimism(c: float) -> None:
    """All sigma = c: weights with lambda equal no weights with R = c and lambda c^2, arm by arm."""
    it = world(episodes=25, seeds=range(6))
    weighted = played(make("w_oful", regularisation=0.8), it, sigma=c)
    plain = played(make("oful", noise_bound=c, regularisation=0.8 * c * c), it, sigma=c)
    assert np.array_equal(weighted, plain)
    assert len(np.unique(weighted)) > 1


@pytest.mark.parametrize("width", [-1.0, np.nan])
def test_a_width_out_of_range_is_refused(width: float) -> None:
    with pytest.raises(ConfigError, match=f"width_squared must be at least 0 and finite, got {width}"):
        OFUL(width_squared=width)
