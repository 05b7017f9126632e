"""People of whom some are in a group and others in none.

The statistical tests have a fixed seed. The share of a run's ranges that hold has a deviation of 0.05 between runs, and
of 0.16 for the two effects of a single newcomer. The tolerances are the one point that learned variances may cost plus
three standard errors over 100 runs: a false alarm in about 0.3 % of choices of seeds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.mixed.terms import FACTORS
from drimed.models.offer import Offer, Outcome, Shape, Unit
from drimed.numerics.arrays import FloatArray
from tests.models.mixed.examples import METRICS, MODELS, SIZES, Data, asked, data, told

GROUP, USER = FACTORS.index("group"), FACTORS.index("user")
PEOPLE = ("users", "some in no group")
RUNS, ARMS = 100, 3


def mixed(name: str, n: int = 60) -> Data:
    """Outcomes of twelve people: five in two groups, the others in none."""
    d = data(name, n)
    keys = d.keys.copy()
    keys[:, USER] = np.arange(n) % 12
    keys[:, GROUP] = np.where(keys[:, USER] < 5, keys[:, USER] % 2, -1)
    return replace(d, keys=keys)


def of_one(d: Data) -> Data:
    """The same with everybody who is in no group as a group of their own."""
    keys = d.keys.copy()
    keys[:, GROUP] = np.where(keys[:, GROUP] < 0, keys[:, USER] - 3, keys[:, GROUP])
    return replace(d, keys=keys)


def learned(name: str, field: Field, d: Data) -> FieldEvidence:
    shape = Shape(d=3, K=3, M=METRICS[name], H=12)
    return field.ready(told(field, field.start(shape, episodes=SIZES["season"]), d))


@pytest.mark.parametrize("name", PEOPLE)
def test_whoever_is_in_no_group_is_known_as_a_group_of_one_would_be(name: str) -> None:
    """Level, effects and variances are the same: only where they are computed is another. So ranges are no narrower."""
    field = MODELS[name]
    alone, groups = (learned(name, field, d) for d in (mixed(name), of_one(mixed(name))))
    assert field.structure(alone).ungrouped
    assert not field.structure(groups).ungrouped
    np.testing.assert_allclose(alone.fitted.mode, groups.fitted.mode, atol=1e-7)
    grouped = (0, 1, 0, 1, 0)
    found = asked(field, alone, (*grouped, *[-1] * 8)), asked(field, groups, (*grouped, *range(2, 10)))  # the last: new
    for part in ("mean", "covariance", "prior", "residual", "freedom"):
        a, b = (getattr(belief, part) for belief in found)
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7, err_msg=part)


@pytest.mark.parametrize("name", PEOPLE)
def test_more_people_in_no_group_are_no_more_columns_and_each_of_their_outcomes_is_a_step(name: str) -> None:
    field = replace(MODELS[name], seasons=False, growth=10.0)
    first = learned(name, field, mixed(name))
    more = data(name, 40, seed=1)
    keys = more.keys.copy()
    keys[:, USER], keys[:, GROUP] = 12 + np.arange(40), -1
    evidence = field.ready(told(field, first, replace(more, keys=keys)))
    assert field.structure(evidence) is field.structure(first)
    assert evidence.fitted.theta.shape == first.fitted.theta.shape
    anew = field.ready(replace(evidence, included=-1))
    np.testing.assert_allclose(evidence.fitted.theta, anew.fitted.theta, atol=1e-7)


def test_where_nobody_is_in_a_group_the_model_is_the_one_of_groups_of_one_to_the_last_bit() -> None:
    field, d = MODELS["users"], mixed("users")
    found = []
    for group in (np.full(len(d.keys), -1), d.of("user")):
        keys = d.keys.copy()
        keys[:, GROUP] = group
        found.append(learned("users", field, replace(d, keys=keys)))
    assert field.structure(found[0]) is field.structure(found[1])
    np.testing.assert_array_equal(found[0].fitted.covariance, found[1].fitted.covariance)


def holds(groups: int, alone: int, *, vary: float) -> dict[str, FloatArray]:
    """Whether likely ranges of effects hold, (runs, people, 2), where so many groups have eight people each.

    `vary`: how much those in no group differ by what differs between groups, relative to the groups.
    """
    rng, n = np.random.default_rng(1), 8 * groups + alone
    group = np.where(np.arange(n + 1) < 8 * groups, np.arange(n + 1) % groups, -1)  # the last one is a newcomer
    sizes = (RUNS, n + 1, ARMS)
    of_group = rng.normal(0, 0.7, (RUNS, groups, ARMS))[:, group]
    of_group = np.where(group[:, None] < 0, vary * rng.normal(0, 0.7, sizes), of_group)
    mean = rng.normal(0, 1, (RUNS, 1, ARMS)) + rng.normal(0, 0.7, (RUNS, n + 1, 1)) + rng.normal(0, 0.5, sizes)
    mean = mean + of_group
    field = Field(kind="people", seasons=False)
    evidence = field.start(Shape(d=ARMS, K=ARMS, M=1, H=n), (RUNS,), episodes=1)
    offers = Offer(features=np.eye(ARMS), control=np.eye(ARMS)[0], unit=Unit(user=np.arange(n), group=group[:n]))
    for _ in range(2):
        arm = rng.integers(0, ARMS, (RUNS, n))
        y = np.take_along_axis(mean[:, :n], arm[..., None], -1)[..., 0] + rng.normal(0, 1, (RUNS, n))
        evidence = field.add(evidence, offers, arm, Outcome(reward=y))
    evidence = field.ready(evidence, variances=True)
    everybody = replace(offers, unit=Unit(user=np.arange(n + 1), group=group))
    belief = field.beliefs(evidence, everybody)
    against = np.array([[-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0]])
    off = (belief.mean[..., 0] - mean) @ against.T
    variance = np.einsum("ka,shab,kb->shk", against, belief.covariance[..., 0, :, 0], against)
    inside = np.abs(off) < 1.96 * np.sqrt(variance)
    return {"grouped": inside[:, : 8 * groups], "alone": inside[:, 8 * groups : n], "new": inside[:, n:]}


@pytest.mark.parametrize("groups", [4, 1])
def test_ranges_hold_for_those_in_a_group_and_in_none_and_for_somebody_new(groups: int) -> None:
    found = holds(groups, 24, vary=1.0)
    for who in ("grouped", "alone"):
        assert found[who].mean() == pytest.approx(0.95, abs=0.025), who
    assert found["new"].mean() == pytest.approx(0.95, abs=0.058)
