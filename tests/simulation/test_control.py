from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, DrimedError, InputError, ShapeError
from drimed.simulation.instances import authors_instance, draw_instance, given_control, quantile_control

INSTANCE = authors_instance()


@pytest.mark.parametrize("quantile", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_the_control_is_the_arm_nearest_the_quantile_of_each_users_means(quantile: float) -> None:
    control = quantile_control(INSTANCE, quantile)
    means = INSTANCE.means(INSTANCE.preferences)
    assert control.shape == (10, 5)
    for h in range(10):
        arm = int(control[h].argmax())
        assert control[h].tolist() == np.eye(5)[arm].tolist()
        rank = sorted(means[h]).index(means[h, arm])
        assert rank == round(4 * quantile)  # five arms: these quantiles are arms


def test_two_users_of_the_authors_have_a_control_of_negative_mean() -> None:
    """The sixth and the tenth: there (1 - eps) mu_0 lies above mu_0."""
    mu0 = (quantile_control(INSTANCE, judged_by="preference_means") * INSTANCE.means(INSTANCE.preferences)).sum(-1)
    assert [h + 1 for h in range(10) if mu0[h] < 0] == [6, 10]


def test_judged_by_the_means_the_control_is_not_the_median_of_what_users_really_get() -> None:
    theirs = quantile_control(INSTANCE, judged_by="preference_means")
    means = INSTANCE.means(INSTANCE.preferences)
    ranks = {5 - sorted(means[h]).index(means[h, int(theirs[h].argmax())]) for h in range(10)}
    assert ranks == {2, 3, 4}


def test_a_given_control_serves_all_users_or_each() -> None:
    mixed = [0.2, 0.3, 0.5, 0.0, 0.0]
    assert given_control(mixed, INSTANCE).tolist() == [mixed] * 10
    each = np.random.default_rng(0).dirichlet(np.ones(5), size=10)
    assert given_control(each, INSTANCE).tolist() == each.tolist()


def test_a_given_control_is_a_copy() -> None:
    each = np.eye(5)[np.zeros(10, int)]
    given_control(each, INSTANCE)[0, 0] = 9.0
    assert each[0, 0] == 1.0


BAD: list[tuple[Any, type[DrimedError], str]] = [
    ([0.5, 0.6, 0.0, 0.0, 0.0], InputError, "control must sum to 1 over the arms, got a sum of 1.1"),
    ([1.5, -0.5, 0.0, 0.0, 0.0], InputError, "control must be probabilities, got a negative one"),
    ([np.nan, 1.0, 0.0, 0.0, 0.0], InputError, "control must be finite, got nan"),
    ([1.0], ShapeError, r"control must have shape \(\.\.\., 5\), got \(1,\)"),
    (np.full((3, 5), 0.2), ShapeError, r"control .*\(3, 5\)"),
]


@pytest.mark.parametrize(("control", "error", "message"), BAD)
def test_a_bad_control_is_refused(control: Any, error: type[DrimedError], message: str) -> None:
    with pytest.raises(error, match=message):
        given_control(control, INSTANCE)


@pytest.mark.parametrize("quantile", [-0.1, 1.1, np.nan])
def test_a_quantile_out_of_range_is_refused(quantile: float) -> None:
    with pytest.raises(ConfigError, match=rf"quantile must be in \[0, 1\], got {quantile}"):
        quantile_control(draw_instance(0), quantile)


def test_an_unknown_judgement_is_refused() -> None:
    with pytest.raises(ConfigError, match="judged_by must be 'preferences' or 'preference_means', got 'rewards'"):
        quantile_control(draw_instance(0), judged_by="rewards")
