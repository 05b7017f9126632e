"""Many comparisons: Dunnett's bound, what speaks for a difference, and what stands among all arms and users."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

from drimed.models.mixed import effects
from drimed.models.mixed.effects import EffectPosterior


def found(*mean: float, single: float = 0.0) -> EffectPosterior:
    """Effects with a deviation of 1 and normal tails; Dunnett's bound alone, unless single outcomes tell something."""
    shape = (len(mean),)
    return EffectPosterior(np.array(mean), np.ones(shape), np.full(shape, 9.0), single=np.array(single))


def test_the_bounds_are_those_of_dunnetts_table() -> None:
    """One-sided, 5 %, correlation one half, any number of outcomes (Dunnett 1955, table 1a)."""
    bounds = [effects.dunnett_bound(arms) for arms in range(1, 10)]
    np.testing.assert_allclose(bounds, [1.64, 1.92, 2.06, 2.16, 2.23, 2.29, 2.34, 2.38, 2.42], atol=0.006)


@pytest.mark.parametrize(("arms", "users"), [(1, 1), (4, 1), (4, 6), (7, 100_000)])
def test_any_of_them_is_beyond_it_as_often_as_it_says(arms: int, users: int) -> None:
    """By the integral over the control on a fine grid, and never more often than counted one by one."""
    bound = effects.dunnett_bound(arms, users)
    z = np.linspace(-12, 12, 200_001)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    any_beyond = float(np.trapezoid(density * (1 - ndtr(np.sqrt(2) * bound + z) ** arms), z))
    assert any_beyond == pytest.approx(effects.ALPHA / users, rel=1e-6)
    assert ndtr(-bound) >= effects.ALPHA / (arms * users) * (1 - 1e-6)


def test_arms_that_are_somebodys_only_control_count_where_others_have_another() -> None:
    old, new, drawn = np.eye(4)[0], np.eye(4)[1], np.array([0.5, 0.0, 0.5, 0.0])
    assert effects.compared_arms(np.array([old, old, old])) == 3
    assert effects.compared_arms(np.array([old, new])) == 4
    assert effects.compared_arms(np.array([drawn])) == 4, (
        "half of the time the other arm: each of the two may be better"
    )
    may = np.array([[True, True, True, True], [False, True, True, True]])
    assert effects.compared_arms(np.array([old, new]), may) == 3, "whoever has another control cannot get the old arm"
    assert effects.compared_arms(np.broadcast_to(np.array([old, new]), (5, 2, 4)), np.array([may] * 5)) == 3
    assert effects.compared_arms(np.ones((2, 1))) == 1, "one arm alone"


@pytest.mark.parametrize("known", [0.3, 8.0, 1000.0])
@pytest.mark.parametrize("comparisons", [1, 4, 24])
def test_at_the_bound_no_difference_is_less_plausible_by_as_much_as_there_are_comparisons(
    known: float, comparisons: int
) -> None:
    """The density of an effect at 0 if one outcome of each arm were all that is known, and as it is."""
    z = float(effects.density_bound(np.array(known), comparisons))
    assert norm.pdf(0, scale=np.sqrt(1 + known)) / norm.pdf(0, loc=z) == pytest.approx(comparisons, rel=1e-9)


def test_the_more_is_known_the_more_deviations_are_needed() -> None:
    """Outcomes that differ by a tenth of what is open ask for Dunnett's bound, by ten times as much for more."""
    assert effects.is_significant(found(2.2, single=0.1), None, 4, 1).all()
    assert not effects.is_significant(found(2.2, 2.7, single=10.0), None, 4, 1).any()
    assert effects.is_significant(found(2.75, single=10.0), None, 4, 1).all(), "the root of 2 log 4 + log 101 is 2.72"
    assert effects.is_significant(found(1.0), found(2.2, single=0.1), 4, 6).all()
    assert not effects.is_significant(found(1.0), found(2.2, single=10.0), 4, 6).any()


def test_a_user_stands_with_all_users_on_the_same_side_or_alone() -> None:
    own = found(1.0, -1.0, 2.5, -2.5, 3.5, -3.5)
    for together, expected in (
        (2.3, [True, False, True, False, True, True]),
        (-2.3, [False, True, False, True, True, True]),
        (2.0, [False, False, False, False, True, True]),
    ):
        assert effects.is_significant(own, found(together), 4, 6).tolist() == expected
    assert effects.is_significant(own, None, 4, 6).tolist() == [False, False, False, False, True, True]
