"""Stopping rules against worked numbers, and how often they claim something false."""

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.evaluation.confidence_sequences import asymptotic
from drimed.evaluation.stopping_rules import (
    KINDS,
    OF_ALL_ARMS,
    Better,
    Kind,
    Rule,
    Shape,
    bound_shape,
    sequential_bound,
    share_of,
)

INF = np.inf

# kind, margin, low, high, how far it is from being met: an end exactly at its margin shows nothing yet
WORKED = [
    ("superiority", 0.5, 0.75, 2.0, -0.25),
    ("superiority", 0.5, 0.25, 2.0, 0.25),
    ("non_inferiority", 0.5, -0.25, 0.1, -0.25),
    ("non_inferiority", 0.5, -0.75, 3.0, 0.25),
    ("equivalence", 0.5, -0.25, 0.125, -0.25),
    ("equivalence", 0.5, -0.25, 1.5, 1.0),
    ("futility", 0.5, -3.0, 0.25, -0.25),
    ("futility", 0.5, -3.0, 0.75, 0.25),
    ("harm", 0.5, -2.0, -0.75, -0.25),
    ("harm", 0.5, -2.0, -0.25, 0.25),
    ("superiority", 0.5, 0.5, 2.0, 0.0),
    ("non_inferiority", 0.5, -0.5, 2.0, 0.0),
    ("equivalence", 0.5, -0.25, 0.5, 0.0),
    ("futility", 0.5, -1.0, 0.5, 0.0),
    ("harm", 0.5, -1.0, -0.5, 0.0),
]


@pytest.mark.parametrize(("kind", "margin", "low", "high", "distance"), WORKED)
def test_worked_numbers_also_mirrored_where_lower_is_better(
    kind: Kind, margin: float, low: float, high: float, distance: float
) -> None:
    assert Rule(kind=kind, margin=margin).distance(low, high).item() == distance
    assert Rule(kind=kind, margin=margin, better="lower").distance(-high, -low).item() == distance


@pytest.mark.parametrize("kind", KINDS)
def test_a_range_that_is_open_meets_nothing(kind: Kind) -> None:
    assert Rule(kind=kind, margin=1.0).distance(-INF, INF).item() == INF


def test_one_open_end_does_not_matter_where_the_other_one_counts() -> None:
    assert Rule(kind="superiority").distance(0.5, INF) < 0
    assert Rule(kind="harm").distance(-INF, -0.5) < 0
    assert Rule(kind="superiority", better="lower").distance(-INF, -0.5) < 0
    assert Rule(kind="equivalence", margin=1.0).distance(-0.5, INF) == INF


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("better", ["higher", "lower"])
def test_a_batch_is_judged_as_each_alone(kind: Kind, better: Better) -> None:
    rule = Rule(kind=kind, margin=0.5, better=better)
    low = np.random.default_rng(3).normal(size=(2, 3, 4))
    high = low + np.random.default_rng(4).exponential(size=(3, 4))
    found = rule.distance(low, high)
    alone = [rule.distance(a, b).item() for a, b in zip(low.ravel(), high.ravel(), strict=True)]
    assert found.shape == (2, 3, 4)
    assert found.ravel().tolist() == alone


def test_a_claim_about_all_arms_is_as_far_as_the_arm_that_is_farthest() -> None:
    rule = Rule(kind="futility", margin=1.0)
    found = rule.distance_all([[-1.0, 0.0], [-1.0, 0.0]], [[0.5, 0.75], [0.5, 1.25]])
    assert found.tolist() == [-0.25, 0.25]
    with pytest.raises(ShapeError, match="at least one"):
        rule.distance_all(np.zeros((2, 0)), np.zeros((2, 0)))


def test_what_cannot_be_judged_is_refused() -> None:
    for low, high in [(1.0, 0.0), (np.nan, 1.0), (0.0, np.nan)]:
        with pytest.raises(InputError, match="from low to high"):
            Rule(kind="superiority").distance(low, high)
    with pytest.raises(ConfigError, match="one of superiority"):
        Rule(kind="better")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not negative"):
        Rule(kind="superiority", margin=-0.1)
    with pytest.raises(ConfigError, match="above zero"):
        Rule(kind="equivalence")
    with pytest.raises(ConfigError, match="'higher' or 'lower'"):
        Rule(kind="harm", better="more")  # type: ignore[arg-type]


def test_alpha_is_divided_where_any_claim_may_be_the_false_one() -> None:
    assert share_of(0.05, arms=1) == 0.05
    for together in (False, True):
        assert share_of(0.06, arms=3, groups=2, together=together) == pytest.approx(0.03 if together else 0.01)
    with pytest.raises(ConfigError, match="at least one arm"):
        share_of(0.05, arms=0)
    with pytest.raises(ConfigError, match="alpha"):
        share_of(1.0, arms=1)


# One minus the error rate is two-sided; Jennison and Turnbull (2000), tables 2.1, 2.3 and 2.9.
PUBLISHED: dict[Shape, dict[int, float]] = {
    "pocock": {1: 1.960, 2: 2.178, 5: 2.413, 10: 2.555},
    "obrien-fleming": {1: 1.960, 2: 1.977, 5: 2.040, 10: 2.087},
    "wang-tsiatis": {2: 2.038, 5: 2.136, 10: 2.199},
}


@pytest.mark.parametrize("shape", PUBLISHED)
def test_group_sequential_bounds_are_the_published_ones(shape: Shape) -> None:
    for looks, bound in PUBLISHED[shape].items():
        information = tuple((np.arange(looks) + 1) / looks)
        # The published ones are for two sides: hardly a path crosses both.
        assert sequential_bound(0.025, information, shape) == pytest.approx(bound, abs=6e-4)


def test_a_brownian_motion_crosses_a_bound_at_uneven_looks_as_often_as_it_says() -> None:
    """200,000 paths; the tolerance is four standard errors."""
    information = (0.15, 0.2, 0.5, 0.9, 1.0)
    bound, alpha = sequential_bound(0.1, information, "wang-tsiatis"), 0.1
    steps = np.sqrt(np.diff(information, prepend=0.0)) * np.random.default_rng(3).normal(size=(200_000, 5))
    z = np.cumsum(steps, -1) / np.sqrt(information)
    crossed = (z > bound * bound_shape("wang-tsiatis", information)).any(-1).mean()
    assert crossed == pytest.approx(alpha, abs=4 * np.sqrt(alpha * (1 - alpha) / 200_000))


@pytest.mark.parametrize("kind", KINDS)
def test_false_claims_over_all_looks_are_rarer_than_alpha(kind: Kind) -> None:
    """Three arms whose truth is just not what the rule claims, 2,000 runs of 400 looks.

    The limit is 0.05 and three standard errors: a rule that keeps it exactly would fail here once in 700 times.
    """
    runs, n, arms, alpha, margin = 2000, 400, 3, 0.05, 0.3
    near = -margin if kind in ("non_inferiority", "harm") else margin
    truth = np.array([[near], [0.0], [0.0]]) if kind in OF_ALL_ARMS else near  # one arm alone belies a claim about all
    rule = Rule(kind=kind, margin=margin)
    x = truth + np.random.default_rng(14).normal(size=(runs, arms, n))
    count = np.arange(1.0, n + 1)
    share = share_of(alpha, arms=arms, together=kind in OF_ALL_ARMS)
    band = asymptotic(np.cumsum(x, -1), np.broadcast_to(count, x.shape), np.broadcast_to(count, x.shape),
                      np.broadcast_to(count >= 10, x.shape), share)  # fmt: skip
    if kind in OF_ALL_ARMS:
        ever = (rule.distance_all(np.moveaxis(band.low, 1, -1), np.moveaxis(band.high, 1, -1)) < 0).any(-1)
    else:
        ever = (rule.distance(band.low, band.high) < 0).any((-2, -1))
    false = ever.mean()
    assert false <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / runs)
