"""The guards `certain` and `expected`, and the fallbacks they share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.errors import InputError
from drimed.models.offer import Fit, Shape
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.policies.guards import margin
from drimed.policies.guards.base import CONTROL_ONLY, MIXED, RESTRICTED, UNCHANGED, AskRule, Draw, Guardrail, explained
from drimed.policies.guards.certified import Certain, Expected
from drimed.policies.guards.margin import Tolerance
from drimed.policies.guards.penalty import Budget
from drimed.policies.registry import make
from drimed.simulation.instances import draw_instance, quantile_control
from drimed.simulation.runner import simulate
from drimed.simulation.worlds import Setting, World
from tests.examples import ARMS, fit_of, r1_fit, r1_offer, unbatched
from tests.policies.guards.test_margin import F
from tests.worlds import steps


def at_radius(r: float) -> Fit:
    return replace(r1_fit(), radius=np.asarray(r))


def share(p: list[float], safe: list[float], x0: FloatArray, rel: float, absolute: float, r: float) -> float:
    fit = at_radius(r)
    return float(
        margin.largest_share(
            np.array(safe) @ ARMS - x0, np.array(p) @ ARMS - x0, x0, fit.theta, fit.metric, np.asarray(r), rel, absolute
        )
    )


def largest_by_bisection(
    fit: Fit, wish: FloatArray, safe: FloatArray, x0: FloatArray, tolerance: Tolerance, r: FloatArray
) -> float:
    def holds(rho: float) -> bool:
        mixed = rho * wish + (1 - rho) * safe
        return bool(F(fit, mixed[None], x0, tolerance, r)[0] >= 0)

    if holds(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def answers(*asked: list[float]) -> AskRule:
    """A rule that gives these distributions, one after the other."""
    left = [np.array(a) for a in asked]

    def ask(mask: BoolArray | None) -> FloatArray:
        p = left.pop(0)
        assert mask is None or not (p[~mask] > 0).any()
        return p

    return ask


@pytest.mark.parametrize(
    ("p", "safe", "rel", "absolute", "r", "rho"),
    [
        ([0.2, 0.7, 0.1], [2 / 3, 0, 1 / 3], 0.1, 0.0, 0.2, 0.280380),  # G1, the control's sign is certain
        ([0.7, 0.2, 0.1], [0, 0, 1], 0.1, 0.0, 1.0, 0.0),  # G2, it is not: no slack, whatever the tolerance
        ([0.7, 0.2, 0.1], [0, 0, 1], 0.5, 0.0, 1.0, 0.0),
        ([0.7, 0.2, 0.1], [0, 0, 1], 0.0, 0.05, 1.0, 0.142401),  # G3
        ([0.7, 0.2, 0.1], [0, 0, 1], 0.1, 0.05, 1.0, 0.347946),  # G4
        ([0.2, 0.7, 0.1], [0, 0, 1], 0.5, 0.05, 1.0, 0.210506),  # G5, t strictly between -1 and 1
        ([0.2, 0.7, 0.1], [0, 0, 1], 0.3, 0.05, 1.0, 0.210506),
    ],
)
def test_worked_shares(p: list[float], safe: list[float], rel: float, absolute: float, r: float, rho: float) -> None:
    assert share(p, safe, ARMS[2], rel, absolute, r) == pytest.approx(rho, abs=5e-7)


def test_the_share_equals_bisection_on_random_states() -> None:
    """4,000 states, d from 2 to 6, one-hot and mixed controls; the certificate is concave along the segment."""
    rng = np.random.default_rng(3)
    for _ in range(4000):
        d, K = int(rng.integers(2, 7)), int(rng.integers(2, 8))
        root = rng.standard_normal((d, d + 3))
        fit = fit_of(root @ root.T + 0.1 * np.eye(d), rng.standard_normal(d), K=K)
        x = rng.standard_normal((K, d))
        pi0 = rng.dirichlet(np.ones(K)) if rng.random() < 0.5 else np.eye(K)[rng.integers(K)]
        x0 = pi0 @ x
        tolerance = Tolerance(relative=float(rng.choice([0, 0.1, 0.5])), absolute=float(rng.choice([0, 0.05, 0.5])))
        r = np.asarray(rng.exponential())
        ok = F(fit, x, x0, tolerance, r) >= 0
        safe = ok / ok.sum() if ok.any() else pi0
        p = rng.dirichlet(np.full(K, 0.5))

        bisected = largest_by_bisection(fit, p @ x, safe @ x, x0, tolerance, r)
        found = margin.largest_share(
            safe @ x - x0, p @ x - x0, x0, fit.theta, fit.metric, r, tolerance.relative, tolerance.absolute
        )
        assert float(found) == pytest.approx(bisected, abs=1e-6)


def test_a_certified_wish_goes_through_untouched() -> None:
    guard = Expected(tolerance=Tolerance(relative=0.1, absolute=1.0))
    guarded = guard.apply(None, r1_fit(), r1_offer(), answers([0.2, 0.1, 0.7]))
    assert guarded.probabilities.tolist() == [0.2, 0.1, 0.7]
    assert int(guarded.reason) == UNCHANGED
    assert guarded.share is not None
    assert float(guarded.share) == 1.0


def test_an_uncertified_wish_is_mixed_with_the_rule_asked_again() -> None:
    """G1 by way of the guard: level .57926 is the normal quantile .2."""
    guard = Expected(tolerance=Tolerance(relative=0.1), confidence=0.5792597094391030)
    guarded = guard.apply(None, r1_fit(), r1_offer(), answers([0.2, 0.7, 0.1], [2 / 3, 0.0, 1 / 3]))
    np.testing.assert_allclose(guarded.probabilities, [0.535823, 0.196266, 0.267911], atol=5e-7)
    assert int(guarded.reason) == MIXED
    assert guarded.certified is not None
    assert int(guarded.certified) == 2


def test_the_promise_holds_for_the_mixture_that_is_played() -> None:
    rng = np.random.default_rng(5)
    tolerance = Tolerance(relative=0.1, absolute=0.02)
    guard = Expected(tolerance=tolerance, confidence=0.9)
    for _ in range(500):
        root = rng.standard_normal((3, 6))
        fit = fit_of(root @ root.T, rng.standard_normal(3), K=5)
        offer = unbatched(features=rng.standard_normal((5, 3)), control=np.eye(5)[0])

        def ask(mask: BoolArray | None) -> FloatArray:
            p = rng.dirichlet(np.ones(5)) * (np.ones(5) if mask is None else mask)
            return p / p.sum()

        p = guard.apply(None, fit, offer, ask).probabilities
        assert p.sum() == pytest.approx(1)
        r = np.asarray(1.2815515655446004)
        value = F(fit, (p @ offer.features)[None], offer.control_features, tolerance, r)
        assert float(value[0]) >= -1e-7


def test_a_guardrail_binds_where_the_reward_does_not() -> None:
    """Reward is the first metric; the second falls under arm 2, and a guardrail on it keeps arm 2 away."""
    maps = np.array([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 0.2]]])
    offer = unbatched(maps=maps, preference=[1.0, 0.0], control=[1.0, 0.0])
    fit = fit_of(1e6 * np.eye(2), np.array([1.0, 1.0]), K=2)
    wish = answers([0.0, 1.0])
    assert Expected().apply(None, fit, offer, wish).probabilities.tolist() == [0, 1]
    railed = Expected(guardrails=(Guardrail(metric=1, relative=0.05),))
    p = railed.apply(None, fit, offer, answers([0.0, 1.0], [1.0, 0.0])).probabilities
    assert p[1] == pytest.approx(0.05 / 0.8, abs=0.01)
    cost = Expected(guardrails=(Guardrail(metric=1, relative=0.05, better="lower"),))
    assert cost.apply(None, fit, offer, answers([0.0, 1.0])).probabilities.tolist() == [0, 1]


def test_a_guardrail_needs_the_metric_it_names() -> None:
    guard = Expected(guardrails=(Guardrail(metric=3),))
    offer = unbatched(maps=np.ones((2, 2, 2)), preference=[1.0, 0.0], control=[1.0, 0.0])
    with pytest.raises(InputError, match=r"guardrail on metric 3 needs .* it has 2 metrics"):
        guard.apply(None, fit_of(np.eye(2), np.ones(2), K=2), offer, answers([1.0, 0.0]))


LOTTERY, SINGLE = [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("control", "certified", "played", "share", "reason"),
    [
        (LOTTERY, [True, False, False], [1.0, 0.0, 0.0], 0.0, RESTRICTED),  # one arm of it is not the control
        (LOTTERY, [False, False, False], LOTTERY, 0.0, CONTROL_ONLY),
        (LOTTERY, [True, True, True], LOTTERY, 0.0, RESTRICTED),  # all are certified: the rule chose so
        (SINGLE, [True, False, False], SINGLE, 0.0, CONTROL_ONLY),
        (SINGLE, [True, False, True], [0.2, 0.0, 0.8], 0.0, RESTRICTED),
        (SINGLE, [True, False, False], [0.8, 0.1, 0.1], 0.2, MIXED),
        (SINGLE, [True, True, True], [0.0, 1.0, 0.0], 1.0, UNCHANGED),
    ],
)
def test_only_the_control_itself_is_called_the_control(
    control: list[float], certified: list[bool], played: list[float], share: float, reason: int
) -> None:
    offer = unbatched(features=np.eye(3), sigma=np.ones(3), control=control)
    found = explained(np.array(played), np.array(share), np.array(certified), offer)
    assert found.reason == reason


def uniform(mask: BoolArray | None) -> FloatArray:
    p = np.ones(3) if mask is None else mask.astype(np.float64)
    return p / p.sum()


def test_certain_asks_only_about_certified_arms() -> None:
    """At radius .2 and ten percent, arms 1 and 3 are certified and arm 2 is not."""
    guard = Certain(tolerance=Tolerance(relative=0.1), confidence=0.5792597094391030)
    guarded = guard.apply(None, r1_fit(), r1_offer(), uniform)
    assert guarded.probabilities.tolist() == [0.5, 0.0, 0.5]
    assert guarded.certified is not None
    assert int(guarded.certified) == 2


@pytest.mark.parametrize("kind", [Certain, Expected])
def test_a_mixed_control_is_played_as_a_lottery_where_nothing_is_certified(kind: type[Certain | Expected]) -> None:
    pi0 = np.array([0.2, 0.3, 0.5])
    guard = kind(tolerance=Tolerance(relative=0.0, absolute=0.0), confidence="anytime")
    guarded = guard.apply(None, r1_fit(), r1_offer(control=pi0), uniform)
    np.testing.assert_allclose(guarded.probabilities, pi0)
    assert int(guarded.reason) == CONTROL_ONLY


@pytest.mark.parametrize("family", ["paper", "one metric", "mixed control", "reward feedback"])
def test_with_anytime_confidence_no_decision_at_all_falls_short(family: str) -> None:
    """delta = .05, 200 runs: the share of runs with any violation is at most delta. More than 17 of 200 would happen
    by chance with probability below .005 if the rate were exactly .05."""
    shape = Shape(d=4, K=5, M=1 if family == "one metric" else 4, H=5)
    instances = [draw_instance(500 + s, shape) for s in range(200)]
    mixed = family == "mixed control"
    lotteries = np.random.default_rng(0).dirichlet(np.ones(shape.K), (200, shape.H))
    controls = [lotteries[s] if mixed else quantile_control(i) for s, i in enumerate(instances)]
    world = World(instances=instances, seeds=range(200), controls=controls, setting=Setting(episodes=150, drift="none"))
    name = "dri_med_reward" if family == "reward feedback" else "dri_med"
    policy = make(name, guard="certain", confidence="anytime", delta=0.05)
    result = simulate(policy, world, tolerance=Tolerance(relative=0.1, absolute=0.05))
    # A lottery's own draw is the control, not a choice: there the promise is about the distribution that is played.
    count = "expected" if mixed else "realised"
    assert (result.total(f"violations.safe.{count}") > 0).sum() <= 17
    if family == "paper":  # it is not safe by standing still
        assert result.total("regret").mean() < 0.2 * simulate(make("control"), world).total("regret").mean()


def test_budget_lets_a_user_spend_the_endowment_and_no_more() -> None:
    """One user, theta known: a rule that always wants an arm .1 below the control gets it 5 times with .5 to spend."""
    fit = fit_of(1e12 * np.eye(1), np.array([1.0]), K=2, radius=1e-6)
    offer = unbatched(features=[[1.0], [0.9]], control=[1.0, 0.0])
    guard = Budget(tolerance=Tolerance(relative=0.0, absolute=0.0), endowment=0.5, confidence="anytime")
    state = guard.init(Shape(d=1, K=2, M=1, H=1), ())

    def greedy_for_the_worse(mask: BoolArray | None) -> FloatArray:
        return np.array([0.0, 1.0]) if mask is None or mask[1] else np.array([1.0, 0.0])

    spent = []
    for _ in range(10):
        guarded = guard.apply(state, fit, offer, greedy_for_the_worse)
        spent.append(0.1 * guarded.probabilities[1])
        decision = Draw(np.asarray(1), guarded.probabilities, guarded.reason)
        state = guard.commit(state, fit, offer, decision)
    assert sum(spent) == pytest.approx(0.5, abs=1e-3)
    assert spent[0] == pytest.approx(0.1)
    assert spent[-1] == pytest.approx(0.0, abs=1e-3)


def test_the_summed_expected_shortfall_stays_within_the_endowment_in_simulation() -> None:
    """Confidence anytime: per user and run, sum of (control - expected) <= .1 sum |control| + endowment, always."""
    instances = [draw_instance(700 + s) for s in range(60)]
    world = World(
        instances=instances,
        seeds=range(60),
        controls=[quantile_control(i) for i in instances],
        setting=Setting(episodes=100, drift="none"),
    )
    policy = make("dri_med", guard="budget", confidence="anytime", endowment=0.5, relative=0.1, absolute=0.0)
    (block,) = world.blocks()
    account, failed = np.zeros((60, world.shape.H)), np.zeros(60, bool)
    for step in steps(policy, world):
        episode, user = divmod(step.number, world.shape.H)
        means = block.means[episode, user]
        mu0 = (means * step.offer.control[:, 0]).sum(-1)
        account[:, user] += (means * step.decision.probabilities[:, 0]).sum(-1) - mu0 + 0.1 * np.abs(mu0)
        failed |= account[:, user] < -0.5 - 1e-9
    assert failed.sum() <= 4  # delta = .01: more than 4 of 60 has probability below .0005
