from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.competitors import solid
from drimed.competitors.solid import SOLID, Allocation
from drimed.models.offer import Fit, Offer, Shape
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.policies.registry import make
from drimed.policies.rules.base import Ask
from tests.examples import ARMS, E1, fit_of, r1_fit, r1_offer, unbatched, with_users
from tests.worlds import steps, world

R1 = Shape(d=2, K=3, M=1, H=1)
ALL_ARMS = np.ones((1, 3), bool)
PLAYED = np.asarray(0)


def propose(rule: SOLID, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
    """For one user."""
    mask = None if ask.mask is None else ask.mask[..., None, :]
    penalty = None if ask.penalty is None else ask.penalty[..., None, :]
    return rule.propose(with_users(fit), offer.expand(), replace(ask, mask=mask, penalty=penalty))[..., 0, :]


def commit(rule: SOLID, memory: Allocation, fit: Fit, offer: Offer, action: IntArray) -> Allocation:
    """For one user."""
    return rule.commit(memory, with_users(fit), offer.expand(), action[..., None])


def sure(round: int = 1000) -> Fit:
    """The estimate of R1 after a thousand times its evidence."""
    return fit_of(np.diag([3000.0, 2000.0]), np.array([0.5, 0.1]), K=3, round=round)


def random_memory(seed: int, H: int = 3, K: int = 4, d: int = 2) -> tuple[Allocation, Fit]:
    """Users with arms, noise and an allocation of their own; the last one was never offered."""
    rng = np.random.default_rng(seed)
    memory = SOLID().init(Shape(d=d, K=K, M=1, H=H), ())
    omega = rng.dirichlet(np.ones(K), size=H)
    allowed = np.ones((H, K), bool)
    allowed[-1] = False
    allowed[0, 0] = False
    Z = rng.standard_normal((9, d))
    fit = fit_of(np.eye(d) + Z.T @ Z, rng.standard_normal(d), K=K, round=20)
    return replace(
        memory,
        log_omega=np.log(omega),
        multiplier=np.asarray(0.7),
        features=rng.standard_normal((H, K, d)),
        sigma=rng.uniform(0.5, 2, (H, K)),
        allowed=allowed,
    ), fit


def test_the_test_value_of_the_running_example() -> None:
    fit = r1_fit()
    ratio, shift = solid.nearest_alternative(ARMS[None], ALL_ARMS, fit.theta, fit.V_inv, fit.V_inv)
    assert float(ratio) == pytest.approx(0.038571, abs=5e-7)
    other = fit.theta - shift
    np.testing.assert_allclose(other, [0.457143, 0.228571], atol=5e-7)
    assert other @ (ARMS[0] - ARMS[2]) == pytest.approx(0.0, abs=1e-15)
    assert shift @ np.diag([3.0, 2.0]) @ shift == pytest.approx(float(ratio))


def test_no_parameter_nearer_changes_the_best_arm() -> None:
    rng = np.random.default_rng(0)
    for seed in range(20):
        memory, fit = random_memory(seed)
        V = np.linalg.inv(fit.V_inv)
        ratio, _ = solid.nearest_alternative(memory.features, memory.allowed, fit.theta, fit.V_inv, fit.V_inv)
        step = rng.standard_normal((2000, 2))
        step *= 0.999 * np.sqrt(float(ratio) / np.einsum("ni,ij,nj->n", step, V, step))[:, None]
        for h in range(2):
            means = np.where(memory.allowed[h], (fit.theta + step) @ memory.features[h].T, -np.inf)
            now = np.where(memory.allowed[h], memory.features[h] @ fit.theta, -np.inf)
            assert (means.argmax(-1) == now.argmax()).all()


def by_hand(memory: Allocation, fit: Fit, wide: float, B: float) -> tuple[FloatArray, float]:
    """q and the left side of the constraint, straight from their definitions."""
    known = [h for h in range(len(memory.features)) if memory.allowed[h].any()]
    x, sigma = memory.features, memory.sigma
    omega = np.where(memory.allowed, np.exp(memory.log_omega), 0.0)
    omega[known] /= omega[known].sum(-1, keepdims=True)
    d = x.shape[-1]
    V = sum(np.einsum("k,ki,kj->ij", omega[h] / sigma[h] ** 2, x[h], x[h]) for h in known) / len(known)
    V = V + 1e-6 * np.trace(V) / d * np.eye(d)
    nearest, shift = np.inf, np.zeros(d)
    for h in known:
        means = np.where(memory.allowed[h], x[h] @ fit.theta, -np.inf)
        best = int(means.argmax())
        for k in np.flatnonzero(memory.allowed[h]):
            D = x[h, best] - x[h, k]
            if k != best and (D @ fit.theta) ** 2 / (D @ np.linalg.solve(V, D)) < nearest:
                nearest = (D @ fit.theta) ** 2 / (D @ np.linalg.solve(V, D))
                shift = (D @ fit.theta) / (D @ np.linalg.solve(V, D)) * np.linalg.solve(V, D)
    L = np.sqrt((x[known] ** 2).sum(-1)).max()
    width = wide * np.sqrt(np.einsum("hki,ij,hkj->hk", x, fit.V_inv, x))
    hope = 2 * B * L / sigma**2 * width
    q = x @ fit.theta + width + float(memory.multiplier) * ((x @ shift) ** 2 / (2 * sigma**2) + hope)
    return q[known], float(nearest / 2 + (omega * hope)[known].sum() / len(known))


def test_gradients_are_those_of_the_definition() -> None:
    for seed in range(10):
        memory, fit = random_memory(seed)
        q, constraint = solid.lagrangian(memory, fit.theta, fit.V_inv, np.asarray(0.3), 1.5)
        want_q, want = by_hand(memory, fit, 0.3, 1.5)
        np.testing.assert_allclose(q[:2], want_q, rtol=1e-8)
        assert not q[2].any()
        assert float(constraint) == pytest.approx(want, rel=1e-8)


def test_a_commit_takes_both_steps_from_the_present_values() -> None:
    memory, fit = random_memory(3)
    rule = SOLID()
    offer = unbatched(features=memory.features[1], sigma=memory.sigma[1], control=np.eye(4)[0])
    offer = replace(offer, user=np.asarray(1))
    assert rule.explores(memory, with_users(fit))
    after = commit(rule, memory, fit, offer, PLAYED)
    q, constraint = by_hand(memory, fit, 0.0, 1.0)  # gamma_1 = log 1 = 0
    want = memory.log_omega[:2] + 0.5 * q
    want -= np.log(np.exp(want).sum(-1, keepdims=True))
    np.testing.assert_allclose(after.log_omega[:2], want, rtol=1e-8)
    np.testing.assert_allclose(after.log_omega[2], memory.log_omega[2], rtol=1e-14)
    assert float(after.multiplier) == pytest.approx(0.7 - 0.1 * (constraint - 1 / 100), rel=1e-9)
    assert (float(after.explored), float(after.in_phase), float(after.phase)) == (1.0, 1.0, 0.0)


def test_while_exploring_it_plays_its_allocation() -> None:
    memory, fit = random_memory(3)
    for user in (0, 1):
        offer = replace(
            unbatched(features=memory.features[user], sigma=memory.sigma[user], control=np.eye(4)[0]), user=user
        )
        p = propose(SOLID(), fit, offer, Ask(memory=memory))
        np.testing.assert_allclose(p, np.exp(memory.log_omega[user]))
        penalty = np.array([0.0, 1.0, 2.0, 0.0])
        p = propose(SOLID(), fit, offer, Ask(penalty=penalty, memory=memory))
        want = np.exp(memory.log_omega[user] - penalty)
        np.testing.assert_allclose(p, want / want.sum())


def test_when_nothing_is_in_doubt_it_is_greedy_and_stands_still() -> None:
    """The test value is 1000 times .038571; log 1000 + 2 log log 1000 is 10.8."""
    rule, offer = SOLID(), r1_offer()
    memory = rule.init(R1, ())
    assert propose(rule, sure(), offer, Ask(memory=memory)).tolist() == E1.tolist()
    after = commit(rule, memory, sure(), offer, PLAYED)
    assert np.array_equal(after.features[0], ARMS)
    assert after.allowed.all()
    for name in ("log_omega", "multiplier", "phase", "in_phase", "explored"):
        assert np.array_equal(getattr(after, name), getattr(memory, name))


def test_the_threshold_is_the_schedule_or_the_radius() -> None:
    at = Ask(memory=SOLID().init(R1, ()))
    # 38.571 against log t + 2 log log t: exceeded up to t of about e^31.
    assert propose(SOLID(), sure(round=10**6), r1_offer(), at).max() == 1.0
    assert propose(SOLID(), sure(round=10**14), r1_offer(), at).max() < 0.5
    for radius, greedy in ((6.2, True), (6.3, False)):  # squares 38.4 and 39.7
        fit = replace(sure(), radius=np.asarray(radius))
        assert bool(propose(SOLID(radius="learner"), fit, r1_offer(), at).max() == 1.0) is greedy


def test_doubt_about_one_user_makes_it_explore_for_all() -> None:
    rule = SOLID()
    memory = rule.init(replace(R1, H=2), ())
    clear, close = r1_offer(), unbatched(features=[[1.0, 0.0], [0.99, 0.049], [0.0, 1.0]], control=E1)
    assert propose(rule, sure(), clear, Ask(memory=memory)).max() == 1.0
    memory = commit(rule, memory, sure(), replace(close, user=np.asarray(1)), PLAYED)
    assert propose(rule, sure(), clear, Ask(memory=memory)).max() < 1.0


def test_it_stops_exploring_an_easy_problem() -> None:
    policy = make("w_solid")
    it = world(seeds=range(4), episodes=150, drift="none", reward_noise=1e-4)
    early, late = 0.0, 0.0
    for step in steps(policy, it):
        exploring = (step.decision.probabilities.max(-1) < 1).mean()
        if step.number < 9:
            early += float(exploring)
        elif step.number >= 441:
            late += float(exploring)
    assert early > 4
    assert late == 0
