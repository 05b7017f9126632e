"""Learners and policies whose beliefs are draws: metrics of several kinds in one trial."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError
from drimed.models.mixed import generalised
from drimed.models.mixed.generalised import Table, make_table
from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.offer import Offer, Outcome, Shape, Unit
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.policies.guards import certified as by_draws
from drimed.policies.guards.base import constraints
from drimed.policies.guards.certified import Certain, Expected
from drimed.policies.guards.margin import Tolerance
from drimed.policies.policy import Policy, State
from drimed.policies.protocol import from_arrays, to_arrays
from drimed.policies.rules.thompson import Thompson

ARMS, KINDS = 3, ("yes/no", "number", "count", "score")
RANGES = ((0.0, 1.0), (-np.inf, np.inf), (0.0, np.inf), (0.0, 10.0))
SHAPE = Shape(d=ARMS * 4, K=ARMS, M=4, H=50)
WEIGHTS = np.array([1.0, 0.2, -0.1, 0.05])


def policy(tolerance: float = 0.1, guard: type = Expected, **settings: object) -> Policy:
    made = {"kind": "people", "promise": "alike", "kinds": KINDS, "ranges": RANGES} | settings
    return Policy(
        learner=Field(**made),  # type: ignore[arg-type]
        rule=Thompson(),
        guard=guard(tolerance=Tolerance(relative=0.0, absolute=tolerance)),
    )


def offer(user: int, metrics: int = 4) -> Offer:
    d = ARMS * metrics
    return Offer(
        features=np.zeros((1, ARMS, d)),
        control=np.eye(ARMS)[:1],
        maps=np.zeros((ARMS, metrics, d)),
        preference=WEIGHTS[None, :metrics],
        user=np.array([user]),
        unit=Unit(user=np.array([user]), group=np.array([-1])),
    )


def outcome(rng: np.random.Generator, arm: int) -> FloatArray:
    rate = (0.3, 0.5, 0.2)[arm]
    return np.array(
        [[float(rng.random() < rate), rng.normal(arm, 1.0), float(rng.poisson(2.0)), float(rng.integers(0, 11))]]
    )


def played(made: Policy, n: int, seed: int = 0) -> State:
    rng = np.random.default_rng(seed)
    state = made.begin_episode(made.init(SHAPE), offer(0))
    for i in range(n):
        y = outcome(rng, i % ARMS)
        state = made.observe(state, offer(i), np.array([i % ARMS]), Outcome(vector=y))
    return made.settle(state)


def test_metrics_of_all_kinds_have_draws_of_possible_means() -> None:
    made = policy()
    state = played(made, 60)
    fit = made.see(state, offer(99)).fit
    assert fit.draws is not None
    table = fit.draws[0].reshape(-1, ARMS, 4)
    assert ((table[..., 0] > 0) & (table[..., 0] < 1)).all()
    assert (table[..., 2] > 0).all()
    assert ((table[..., 3] > 0) & (table[..., 3] < 10)).all()
    assert np.allclose(table.mean(0)[:, 0], [0.3, 0.5, 0.2], atol=0.25)
    assert np.allclose(table.mean(0)[:, 1], [0, 1, 2], atol=0.8)


def test_probabilities_are_the_same_when_the_state_was_stored() -> None:
    made = policy()
    state = played(made, 30)
    again = from_arrays(made.init(SHAPE), to_arrays(state))
    draws = np.full((1, made.draws_needed(SHAPE)), 0.4)
    one, other = (made.decide(s, offer(99), draws).probabilities for s in (state, again))
    assert np.array_equal(one, other)
    assert abs(one.sum() - 1) < 1e-12


def test_outcomes_in_another_order_and_one_taken_back_lead_to_the_same_belief() -> None:
    made, rng = policy(), np.random.default_rng(3)
    reports = [(offer(i), np.array([i % ARMS]), Outcome(vector=outcome(rng, i % ARMS))) for i in range(20)]
    start = made.begin_episode(made.init(SHAPE), offer(0))
    states = []
    for order in (reports, reports[::-1]):
        state = start
        for report in order:
            state = made.observe(state, *report)
        states.append(state)
    extra = (offer(40), np.array([1]), Outcome(vector=outcome(rng, 1)))
    states.append(made.forget(made.observe(states[0], *extra), *extra))
    fits = [made.see(made.settle(state), offer(99)).fit for state in states]
    for other in fits[1:]:
        assert np.allclose(fits[0].draws, other.draws, atol=1e-6)  # type: ignore[arg-type]


def test_a_batch_is_as_its_members_alone() -> None:
    made = policy(kinds=("yes/no",), ranges=((0.0, 1.0),))
    shape, rng = Shape(d=ARMS, K=ARMS, M=1, H=50), np.random.default_rng(1)
    y = (rng.random((2, 12, 1)) < 0.4).astype(float)
    user = np.arange(12)
    many = Offer(
        features=np.zeros((12, ARMS, ARMS)),
        control=np.repeat(np.eye(ARMS)[:1], 12, 0),
        maps=np.zeros((ARMS, 1, ARMS)),
        preference=np.ones((12, 1)),
        user=user,
        unit=Unit(user=user, group=np.full(12, -1)),
    )
    arms = user % ARMS
    both = made.observe(
        made.begin_episode(made.init(shape, (2,)), many), many, np.stack([arms, arms]), Outcome(vector=y)
    )
    draws = np.full((2, 12, made.draws_needed(shape)), 0.5)
    together = made.decide(made.settle(both), many, draws).probabilities
    for i in range(2):
        alone = made.observe(made.begin_episode(made.init(shape), many), many, arms, Outcome(vector=y[i]))
        assert np.allclose(made.decide(made.settle(alone), many, draws[i]).probabilities, together[i], atol=1e-12)


def test_the_certified_share_is_the_largest_that_enough_draws_allow() -> None:
    made = policy(0.05, kinds=("yes/no",), ranges=((0.0, 1.0),))
    state, rng = made.begin_episode(made.init(Shape(d=ARMS, K=ARMS, M=1, H=60)), offer(0, 1)), np.random.default_rng(4)
    for i in range(60):
        y = outcome(rng, i % ARMS)[:, :1]
        state = made.observe(state, offer(i, 1), np.array([i % ARMS]), Outcome(vector=y))
    seen = made.see(made.settle(state), offer(99, 1))
    wish = np.array([[0.1, 0.2, 0.7]])
    guarded = Expected(tolerance=Tolerance(relative=0.0, absolute=0.05)).apply(
        None, seen.fit, seen.offer, lambda mask: wish if mask is None else np.eye(ARMS)[:1]
    )
    (required,) = constraints(seen.offer, Tolerance(relative=0.0, absolute=0.05))

    def failures(p: FloatArray) -> int:
        return int((by_draws.margins_in_draws(seen.fit, required, np.vecmat(p, required.w)[..., None, :]) < 0).sum())

    most = by_draws.allowed_failures(seen.fit, 0.99)
    assert guarded.share is not None
    share = float(guarded.share[0])
    assert 0 < share < 1
    control = np.eye(ARMS)[:1]
    assert failures((share - 1e-9) * wish + (1 - share + 1e-9) * control) <= most
    assert failures(min(1, share + 1e-3) * wish + (1 - share - 1e-3) * control) > most


def test_arms_with_hardly_any_outcomes_get_what_the_worst_possible_mean_allows() -> None:
    """The chance of an arm that nobody had is at most tolerance / Q.99(control), whatever the model thinks of it."""
    made = policy(0.1, kinds=("yes/no",), ranges=((0.0, 1.0),))
    shape, rng = Shape(d=ARMS, K=ARMS, M=1, H=500), np.random.default_rng(1)
    state = made.begin_episode(made.init(shape), offer(0, 1))
    for i in range(200):
        y = np.array([[float(rng.random() < 0.97)]])
        state = made.observe(state, offer(i, 1), np.array([0]), Outcome(vector=y))
    draw = made.decide(made.settle(state), offer(400, 1), np.full((1, made.draws_needed(shape)), 0.5))
    others = 1 - draw.probabilities[0, 0]
    assert 0.05 < others <= 0.1 / 0.95


def test_certain_plays_arms_that_enough_draws_certify() -> None:
    made = policy(0.05, guard=Certain, kinds=("yes/no",), ranges=((0.0, 1.0),))
    shape, rng = Shape(d=ARMS, K=ARMS, M=1, H=900), np.random.default_rng(2)
    state = made.begin_episode(made.init(shape), offer(0, 1))
    for i in range(900):
        y = np.array([[float(rng.random() < (0.3, 0.6, 0.1)[i % ARMS])]])
        state = made.observe(state, offer(i, 1), np.array([i % ARMS]), Outcome(vector=y))
    p = made.decide(made.settle(state), offer(1, 1), np.full((1, made.draws_needed(shape)), 0.5)).probabilities[0]
    assert p[1] > 0.9
    assert p[2] == 0


def test_a_promise_at_all_times_needs_numbers() -> None:
    made = policy()
    state = played(made, 10)
    guard = Expected(tolerance=Tolerance(relative=0.0, absolute=0.1), confidence="anytime")
    seen = made.see(state, offer(99))
    with pytest.raises(ConfigError, match="anytime"):
        guard.apply(None, seen.fit, seen.offer, lambda _: np.full((1, ARMS), 1 / ARMS))


def test_sizes_count_as_so_many_outcomes() -> None:
    """7 of 20 is 7 times yes and 13 times no."""
    made = policy(kinds=("yes/no",), ranges=((0.0, 1.0),))
    shape = Shape(d=ARMS, K=ARMS, M=1, H=99)
    start = made.begin_episode(made.init(shape), offer(0, 1))
    state = made.observe(start, offer(0, 1), np.array([1]), Outcome(vector=np.array([[0.35]]), size=np.array([[20.0]])))
    fit = made.see(made.settle(state), offer(50, 1)).fit
    single = start
    for i in range(20):
        single = made.observe(single, offer(i, 1), np.array([1]), Outcome(vector=np.array([[float(i < 7)]])))
    other = made.see(made.settle(single), offer(50, 1)).fit
    assert np.allclose(fit.theta, other.theta, atol=0.02)


def people(n: int, group: IntArray | None = None) -> Offer:
    """Decisions between two arms for people who come once."""
    user, eye = np.arange(n), np.eye(2)
    groups = np.full(n, -1) if group is None else group
    return Offer(
        features=np.zeros((n, 2, 2)),
        control=np.repeat(eye[:1], n, 0),
        maps=np.zeros((n, 2, 1, 2)),
        preference=np.ones((n, 1)),
        user=user,
        unit=Unit(user=user, group=groups, member=user),
    )


def evidence_of(learner: Field, offers: Offer, y: FloatArray, size: FloatArray | None = None) -> FieldEvidence:
    start = learner.age(learner.start(Shape(d=2, K=2, M=1, H=len(y))))
    action = np.arange(len(y)) % 2
    sizes = None if size is None else size[:, None]
    return learner.ready(learner.add(start, offers, action, Outcome(vector=y[:, None], size=sizes)), complete=True)


@pytest.mark.parametrize("groups", [1, 3])
def test_people_alike_share_cells_so_that_a_refit_costs_the_same(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[Table] = []

    def noted(*given: Any) -> Table:
        tables.append(make_table(*given))
        return tables[-1]

    monkeypatch.setattr(generalised, "make_table", noted)
    learner = Field(kind="people", promise="alike", kinds=("yes/no",), ranges=((0.0, 1.0),))
    y = np.random.default_rng(0).integers(0, 2, 200).astype(float)
    evidence_of(learner, people(200, np.arange(200) // 2 % groups), y)
    assert len(tables[-1].size) == 2 * groups


@pytest.mark.parametrize(("scatter", "phi"), [(0.0, 1.0), (0.5, 6.05)])
def test_pearsons_scale_is_right_where_exposures_differ(scatter: float, phi: float) -> None:
    """With mean 2 and exposures s it is 1 + 2 scatter E[s^2] / E[s], which is 5.05 here: what a sum of them has."""
    rng = np.random.default_rng(1)
    size = np.exp(rng.uniform(np.log(0.1), np.log(10), 10_000))
    rate = 2.0 * (rng.gamma(1 / scatter, scatter, 10_000) if scatter else 1.0)
    learner = Field(kind="people", promise="alike", kinds=("count",), ranges=((0.0, np.inf),))
    drawn = evidence_of(learner, people(10_000), rng.poisson(rate * size) / size, size).drawn
    assert drawn is not None
    assert float(drawn.phi[0]) == pytest.approx(phi, rel=0.1)


def test_people_in_no_group_are_told_from_their_own_outcomes_where_others_have_groups() -> None:
    """They once had the mean of all groups, and the uncertainty of a group that nobody has seen."""
    rng = np.random.default_rng(0)
    group = np.where(rng.random(600) < 0.5, -1, rng.integers(0, 3, 600))
    y = (rng.random(600) < np.where(group < 0, 0.6, 0.2)).astype(float)
    learner = Field(kind="people", promise="alike", kinds=("yes/no",), ranges=((0.0, 1.0),))
    offers = people(600, group)
    draws = learner.means(evidence_of(learner, offers, y), offers).draws[int(np.flatnonzero(group < 0)[0]), ..., 0]
    assert np.allclose(draws.mean(0), 0.6, atol=0.06)
    assert (draws.std(0) < 0.06).all()


def test_outcomes_that_share_a_cell_can_all_be_taken_out_again() -> None:
    """The last of them had lost digits, and was not found."""
    learner, offers = Field(kind="people", promise="alike"), people(6, np.zeros(6, int))
    y, action = np.array([0.1, 0.3, 0.7, 0.1, 0.2, 0.4]), np.zeros(6, int)
    shape = Shape(d=2, K=2, M=1, H=6)
    one = replace(offers, unit=Unit(user=action, group=action))
    evidence = learner.ready(learner.add(learner.age(learner.start(shape)), one, action, Outcome(vector=y[:, None])))
    for i in (0, 2, 1, 4, 5):
        outcome = Outcome(vector=y[i : i + 1, None])
        evidence = learner.remove(evidence, one.take(slice(0, 1)), action[:1], outcome)
    assert evidence.cells.count == 1
    assert np.allclose(evidence.cells.mean[0, 0], 0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"kinds": ("binary",)}, "a kind of metric is"), ({"kinds": ("score",), "ranges": ()}, "a score needs a range")],
)
def test_wrong_kinds_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy(**settings)


@pytest.mark.parametrize("kind", ["field", "people"])
def test_a_place_that_no_outcome_came_from_before_is_fitted_at_once(kind: str) -> None:
    """Draws of its effects are needed with the first outcome, however few others have come since the last fit."""

    def at(user: int, group: int) -> Offer:
        unit = Unit(user=np.array([user]), group=np.array([group]))
        return replace(offer(user, 1), unit=unit)

    promise = "alike" if kind == "people" else "each"
    made = policy(kind=kind, promise=promise, kinds=("yes/no",), ranges=((0.0, 1.0),))
    state, rng = made.begin_episode(made.init(Shape(d=ARMS, K=ARMS, M=1, H=99)), at(0, 0)), np.random.default_rng(0)
    for i in range(80):
        state = made.observe(state, at(i, i % 3), np.array([i % ARMS]), Outcome(vector=outcome(rng, i % ARMS)[:, :1]))
    state = made.settle(state)
    state = made.settle(made.observe(state, at(80, 3), np.array([1]), Outcome(vector=np.ones((1, 1)))))
    draws = np.full((1, made.draws_needed(SHAPE)), 0.4)
    assert made.decide(state, at(81, 3), draws).probabilities.sum() == pytest.approx(1)
