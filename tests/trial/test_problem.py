"""From a trial's words to offers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from drimed.models.offer import Offer
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.trial.problem import DEPARTURE, Problem, Profile
from drimed.trial.spec import TrialSpec, User

COVARIANCE = [[4.0, 3.0], [3.0, 9.0]]


def spec_of(**changes: Any) -> TrialSpec:
    return TrialSpec.read(
        {
            "name": "t",
            "model": {"kind": "paper"},
            "metrics": {"yield": {}, "cost": {}},
            "arms": {"old": {}, "new": {}, "third": {}},
            "preference": {"yield": 1.0, "cost": -0.5},
            "control": "old",
            "users": {"north": {}, "south": {"preference": {"cost": 2.0}, "control": {"old": 0.25, "new": 0.75}}},
        }
        | changes
    )


def known(**changes: Any) -> dict[str, Any]:
    return {"kind": "known", "covariance": COVARIANCE} | changes


def profile_of(problem: Problem, user: str = "north") -> Profile:
    return problem.profile(user, problem.spec.users[user], list(problem.spec.users).index(user))


def offer_to(
    problem: Problem, profile: Profile, context: FloatArray | None = None, available: BoolArray | None = None
) -> Any:
    """The offer to one user, without its users' axis: all of its arrays are there."""
    offer = problem.offer([profile], [context], [available])
    arrays: dict[str, Any] = {f.name: getattr(offer, f.name) for f in fields(offer)}
    return Offer(**{name: a[0] if isinstance(a, np.ndarray) else a for name, a in arrays.items()})


def offered(spec: TrialSpec, user: str = "north", context: FloatArray | None = None) -> Any:
    problem = Problem(spec)
    return offer_to(problem, profile_of(problem, user), context)


def test_arms_with_their_own_effects_share_a_level_and_depart_from_it() -> None:
    maps = offered(spec_of()).maps
    assert maps.shape == (3, 2, 8)
    theta = np.array([1.0, 2.0, 10, 20, 30, 40, 50, 60])
    for arm in range(3):
        np.testing.assert_array_equal(maps[arm] @ theta, [1.0, 2.0] + DEPARTURE * theta[2 + 2 * arm : 4 + 2 * arm])


def test_attributes_have_coefficients_for_each_metric_and_an_intercept() -> None:
    arms = {"old": {"attributes": {"dose": 0.0, "water": -4.0}}, "new": {"attributes": {"dose": 50.0, "water": 2.0}}}
    maps = offered(spec_of(arms=arms, users={"north": {}})).maps
    assert maps.shape == (2, 2, 6)
    # In units of the largest: dose 0 and 1, water -1 and 1/2.
    np.testing.assert_array_equal(maps[0], [[1, 0, -1, 0, 0, 0], [0, 0, 0, 1, 0, -1]])
    np.testing.assert_array_equal(maps[1], [[1, 1, 0.5, 0, 0, 0], [0, 0, 0, 1, 1, 0.5]])


def test_ranges_scale_the_learner_and_leave_rewards_in_the_users_unit() -> None:
    ranged = {"yield": {"range": [0, 12]}, "cost": {"range": [-300, 100]}}
    problem = Problem(spec_of(metrics=ranged, noise=known()))
    profile = profile_of(problem)
    np.testing.assert_array_equal(profile.preference, [12.0, -150.0])
    y, there = problem.outcome({"yield": 6.0, "cost": 30.0})
    np.testing.assert_array_equal(y, [0.5, 0.1])
    assert there.all()
    assert float(profile.preference @ y) == pytest.approx(6.0 - 0.5 * 30.0)
    scaled = offer_to(problem, profile)
    plain = offered(spec_of(noise=known()))
    np.testing.assert_allclose(scaled.sigma, plain.sigma)  # of the reward, which has the same unit


def test_the_context_is_seen_as_departures_from_the_typical_and_kept_as_given() -> None:
    spec = spec_of(context={"rain": {"typical": 400, "spread": 200}, "heat": {"typical": -5}})
    problem = Problem(spec)
    raw = problem.covariates.context({"heat": 20, "rain": 500.0})
    assert raw is not None
    np.testing.assert_array_equal(raw, [500.0, 20.0])
    seen = offer_to(problem, profile_of(problem), raw).context
    np.testing.assert_array_equal(seen, [0.5, 25.0])


@pytest.mark.parametrize(
    ("noise", "factor"),
    [
        ({}, 1.0),
        ({"level": 0.25}, 0.25),
        ({"scale": "norm"}, 1 + np.hypot(0.5, 3.0)),
        ({"scale": "norm", "level": 0.1}, 0.1 * (1 + np.hypot(0.5, 3.0))),
        ({"scale": "rain"}, 500.0),  # the field's own value, not its departure from the typical
        ({"scale": "heat", "level": 2.0}, 6.0),
    ],
)
def test_the_noise_is_scaled_as_the_file_says(noise: dict[str, Any], factor: float) -> None:
    context = {"rain": {"typical": 400, "spread": 200}, "heat": {}}
    plain = offered(spec_of(noise=known()))
    mine = offered(spec_of(noise=known(**noise), context=context), context=np.array([500.0, 3.0]))
    assert float(mine.scale) == pytest.approx(factor)
    np.testing.assert_allclose(mine.sigma, np.sqrt(factor) * plain.sigma)


def test_an_arms_own_noise_comes_before_that_of_all() -> None:
    spec = spec_of(
        noise={"kind": "known", "sd": {"yield": 1.0, "cost": 1.0}, "arms": {"new": {"covariance": COVARIANCE}}}
    )
    problem = Problem(spec)
    profile = problem.profile("north", User(preference={"yield": 1.0}), 0)
    assert offer_to(problem, profile).sigma == pytest.approx([1.0, 2.0, 1.0])


def test_arms_are_available_unless_the_user_the_call_or_the_calendar_says_no() -> None:
    spec = spec_of(users={"north": {"arms": ["old", "third"]}, "south": {}})
    problem = Problem(spec)
    north, south = profile_of(problem), profile_of(problem, "south")
    assert problem.available(south, []) is None
    roomy = Problem(spec, room=5)
    for mask, expected in (
        (problem.available(north, []), [True, False, True]),
        (problem.available(north, ["third"]), [True, False, False]),
        (problem.available(south, ["new"]), [True, False, True]),
        (roomy.available(profile_of(roomy, "south"), []), [True, True, True, False, False]),
    ):
        assert mask is not None
        assert mask.tolist() == expected
