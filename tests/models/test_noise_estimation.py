"""Learned noise: the sums, the fit, the view of rules and guards, and how honest its intervals are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError
from drimed.models import noise_estimation
from drimed.models.linear_regression import Evidence, Learner
from drimed.models.noise_estimation import NoiseModel
from drimed.models.offer import Offer, Outcome, Shape
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.policies.protocol import to_arrays
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.examples import same

SHAPE = Shape(d=2, K=3, M=3, H=2)
LEARNER = Learner(weighting="learned")


@dataclass(frozen=True)
class Seen:
    """One observation."""

    offer: Offer
    action: IntArray
    outcome: Outcome


def problem(seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Maps (K, M, d) and covariances (K, M, M) at context 0."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((SHAPE.K, SHAPE.M, SHAPE.M))
    return rng.standard_normal((SHAPE.K, SHAPE.M, SHAPE.d)), 0.1 * root @ np.swapaxes(root, -1, -2)


def data(n: int, seed: int = 1, *, loud: float = 20.0, slope: float = 1.0) -> list[Seen]:
    """Outcomes whose variance is (1 + |context|)^slope times the arm's; preferences differ every time."""
    maps, covariance = problem()
    root = np.linalg.cholesky(covariance)
    rng = np.random.default_rng(seed)
    theta = np.array([0.6, -0.5])
    seen = []
    for i in range(n):
        arm, context = int(rng.integers(SHAPE.K)), loud * rng.random() * rng.standard_normal(2)
        p = rng.dirichlet(np.ones(SHAPE.M))
        scale = (1 + np.linalg.norm(context)) ** slope
        y = maps[arm] @ theta + np.sqrt(scale) * root[arm] @ rng.standard_normal(SHAPE.M)
        offer = Offer(
            features=(np.swapaxes(maps, -1, -2) @ p)[None],
            control=np.eye(SHAPE.K)[:1],
            maps=maps[None],
            preference=p[None],
            context=context[None],
            user=np.array([i % SHAPE.H]),
        )
        seen.append(Seen(offer, np.array([arm]), Outcome(np.array([p @ y]), y[None])))
    return seen


def start(learner: Learner, batch: tuple[int, ...] = ()) -> Evidence:
    return learner.start(SHAPE, batch)


def after(learner: Learner, seen: list[Seen], known: Evidence | None = None) -> Evidence:
    evidence = known or start(learner)
    for one in seen:
        evidence = learner.add(evidence, one.offer, one.action, one.outcome)
    return learner.ready(evidence)


def noise_of(evidence: Evidence) -> NoiseModel:
    assert evidence.noise is not None
    return evidence.noise


def precisions(model: NoiseModel) -> FloatArray:
    return np.matmul(np.swapaxes(model.whitening, -1, -2), model.whitening)


Precisions = list[FloatArray]  # of each arm


@dataclass
class Direct:
    """The same fit from the list of observations, one by one."""

    seen: list[Seen]

    def __post_init__(self) -> None:
        self.rows: list[tuple[int, FloatArray, FloatArray]] = []
        for one in self.seen:
            arm, o = int(one.action[0]), one.offer
            assert o.maps is not None
            assert one.outcome.vector is not None
            self.rows.append((arm, o.maps[0, arm], one.outcome.vector[0]))
        f = np.log1p([np.linalg.norm(np.asarray(one.offer.context)) for one in self.seen])
        self.bins = np.minimum((f / noise_estimation.BIN_WIDTH).astype(int), noise_estimation.BINS - 1)
        self.f = np.array([f[self.bins == j].mean() for j in self.bins]) - f.mean()
        self.n = len(self.rows)

    @property
    def guessed(self) -> FloatArray:
        return np.mean([(Z**2).sum(-1) for Z in {k: Z for k, Z, _ in self.rows}.values()], axis=0)

    def regression(self, Om: Precisions, slope: float) -> tuple[FloatArray, FloatArray]:
        V, b = np.eye(SHAPE.d), np.zeros(SHAPE.d)
        for (k, Z, y), f in zip(self.rows, self.f, strict=True):
            V = V + np.exp(-slope * f) * Z.T @ Om[k] @ Z
            b = b + np.exp(-slope * f) * Z.T @ Om[k] @ y
        return V, b

    def one_pass(self, Om: Precisions, slope: float) -> tuple[Precisions, float]:
        V, b = self.regression(Om, slope)
        V_inv, d, M = np.linalg.inv(V), SHAPE.d, SHAPE.M
        theta = V_inv @ b
        squares = [np.outer(y - Z @ theta, y - Z @ theta) + Z @ V_inv @ Z.T for _, Z, y in self.rows]
        R, N = np.zeros((SHAPE.K, M, M)), np.zeros(SHAPE.K)
        for (k, _, _), f, square in zip(self.rows, self.f, squares, strict=True):
            R[k] += np.exp(-slope * f) * square
            N[k] += 1
        trust = 0.5 * d / (d + M * self.n)
        pooled = (np.diagonal(R.sum(0)) + trust * self.guessed) / (self.n + trust)
        new = [(N[k] + 1) * np.asarray(np.linalg.inv(np.diag(pooled) + R[k]), np.float64) for k in range(SHAPE.K)]
        traces = [np.trace(new[k] @ square) for (k, _, _), square in zip(self.rows, squares, strict=True)]
        r = np.exp(-slope * self.f) * traces
        score = 0.5 * M * np.sum((r * self.n / r.sum() - 1) * self.f) - slope
        step = score / (0.5 * M * np.sum(self.f**2) + 1)
        return new, slope + float(np.clip(step, -1, 1))


@pytest.mark.parametrize("n", [1, 4, 25])
def test_a_fit_is_where_the_documented_passes_over_all_observations_end(n: int) -> None:
    """Slopes, precisions, V and b against sums over the observations themselves."""
    direct, slope = Direct(data(n)), 0.0
    Om = [np.diag(1 / direct.guessed)] * SHAPE.K
    for _ in range(400):
        Om, slope = direct.one_pass(Om, slope)
    known = after(LEARNER, data(n))
    V, b = direct.regression(Om, slope)
    np.testing.assert_allclose(precisions(noise_of(known)), Om, rtol=1e-5, atol=1e-6)
    assert float(noise_of(known).slope) == pytest.approx(slope, rel=1e-5, abs=1e-7)
    np.testing.assert_allclose(known.ridge.V, V, rtol=1e-5)
    np.testing.assert_allclose(known.ridge.b, b, rtol=1e-5)
    np.testing.assert_allclose(known.ridge.theta, np.linalg.solve(V, b), rtol=1e-5)


@pytest.mark.parametrize("c", [1e-3, 7.0, 1e3])
def test_outcomes_in_another_unit_are_the_same_evidence(c: float) -> None:
    """y -> c y with |theta| <= c: theta_hat follows, V is divided by c^2, the slope stays."""
    seen = data(40)
    scaled = []
    for s in seen:
        assert s.outcome.reward is not None
        assert s.outcome.vector is not None
        scaled.append(replace(s, outcome=Outcome(c * s.outcome.reward, c * s.outcome.vector)))
    plain = after(LEARNER, seen)
    changed = after(Learner(weighting="learned", norm_bound=c), scaled)
    one, model, other, scaled_model = plain.ridge, noise_of(plain), changed.ridge, noise_of(changed)
    np.testing.assert_allclose(other.theta, c * one.theta, rtol=1e-9)
    np.testing.assert_allclose(other.V, one.V / c**2, rtol=1e-9)
    np.testing.assert_allclose(scaled_model.slope, model.slope, rtol=1e-9)
    np.testing.assert_allclose(scaled_model.inflation, model.inflation, rtol=1e-9)


def remeasured(seen: list[Seen], Q: FloatArray) -> list[Seen]:
    """Metrics Q y instead of y; users value the same things."""
    new = []
    for s in seen:
        o = s.offer
        assert o.maps is not None
        assert s.outcome.vector is not None
        offer = replace(o, maps=Q @ o.maps, preference=np.linalg.solve(Q.T, np.asarray(o.preference)[0])[None])
        new.append(Seen(offer, s.action, Outcome(s.outcome.reward, (Q @ s.outcome.vector[0])[None])))
    return new


@pytest.mark.parametrize(
    "Q",
    [np.diag([1.0, 1e-3, 1e4]), np.eye(3)[[2, 0, 1]], np.diag([1.0, -1.0, 1.0])],
    ids=["units", "order", "signs"],
)
def test_units_order_and_signs_of_the_metrics_do_not_matter(Q: FloatArray) -> None:
    seen = data(40)
    plain, changed = after(LEARNER, seen), after(LEARNER, remeasured(seen, Q))
    one, model, other, same_model = plain.ridge, noise_of(plain), changed.ridge, noise_of(changed)
    np.testing.assert_allclose(other.V, one.V, rtol=1e-8)
    np.testing.assert_allclose(other.theta, one.theta, rtol=1e-7)
    np.testing.assert_allclose(same_model.slope, model.slope, rtol=1e-8)
    np.testing.assert_allclose(
        noise_estimation.reward_noise(same_model, remeasured(seen, Q)[0].offer),
        noise_estimation.reward_noise(model, seen[0].offer),
        rtol=1e-8,
    )


def test_the_regression_is_finite_and_never_below_its_penalty_from_the_first_observation() -> None:
    for n in range(6):
        known = after(LEARNER, data(n))
        state, model = known.ridge, noise_of(known)
        assert (np.linalg.eigvalsh(state.V) >= LEARNER.ridge_penalty * (1 - 1e-12)).all()
        for name, array in to_arrays(model).items():
            assert np.isfinite(array).all(), name
        assert float(model.inflation) >= 1.0


def test_slope_and_covariances_are_recovered() -> None:
    """Bounds of six standard errors, in 1 + 3 * 6 numbers: a false alarm once in 10^7 choices of the seed.

    The slope's standard error is sqrt(2 / (M n Var f)); that of an entry of the whitened covariance is sqrt(2 / N).
    """
    n = 6000
    model = noise_of(after(LEARNER, data(n, slope=1.5)))
    f = np.log1p([np.linalg.norm(np.asarray(s.offer.context)) for s in data(n)])
    assert abs(float(model.slope) - 1.5) < 6 * np.sqrt(2 / (SHAPE.M * n * f.var()))
    level = np.exp(1.5 * float(model.centre))
    for k in range(SHAPE.K):
        W = model.whitening[k] * np.sqrt(level)
        N = float(model.n[k].sum())
        assert np.abs(W @ problem()[1][k] @ W.T - np.eye(3)).max() < 6 * np.sqrt(2 / N)


def test_the_offer_is_seen_with_the_estimated_noise() -> None:
    known = after(LEARNER, data(50))
    model, offer = noise_of(known), data(1, seed=9)[0].offer
    p, f = np.asarray(offer.preference)[0], np.log1p(np.linalg.norm(np.asarray(offer.context)))
    Sigma = np.linalg.inv(precisions(model))
    scale = np.exp(float(model.slope) * (f - float(model.centre)))
    seen = LEARNER.view(known, offer)
    assert seen.sigma is not None
    np.testing.assert_allclose(seen.sigma[0], np.sqrt(np.einsum("m,kmn,n->k", p, Sigma, p) * scale), rtol=1e-10)
    assert same(replace(seen, sigma=None), offer)


def test_an_arm_keeps_its_map() -> None:
    seen = data(10)
    arm = int(seen[3].action[0])
    maps = np.array(seen[3].offer.maps)
    maps[0, arm, 0, 0] += 0.1
    moved = replace(seen[3], offer=replace(seen[3].offer, maps=maps))
    with pytest.raises(InputError, match=rf"one map Phi\(a\) per arm, .* number {arm} of these had another"):
        after(LEARNER, [moved], after(LEARNER, seen))
    maps[0, arm, 0, 0] -= 0.1 * (1 - 1e-13)  # as good as equal
    after(LEARNER, [replace(moved, offer=replace(moved.offer, maps=maps))], after(LEARNER, seen))


def fails(n: int, *, runs: int = 2000, loud: float = 5.0) -> tuple[float, float, float]:
    """How often a margin lies beyond its one-sided 99 % bound, with and without inflation, and the mean inflation.

    Each run has its own instance of the paper's size, arms are pulled at random, one margin per run is looked at.
    """
    K, M, d, H = 5, 4, 4, 5
    rng = np.random.default_rng(n)
    theta = rng.standard_normal((runs, d))
    theta /= np.linalg.norm(theta, axis=-1, keepdims=True)
    maps = rng.standard_normal((runs, K, M, d))
    maps /= np.linalg.norm(maps, axis=-1, keepdims=True)
    root = rng.standard_normal((runs, K, M, M)) / np.sqrt(M)
    p = rng.dirichlet(np.full(M, 0.5), (runs, H))
    known = LEARNER.start(Shape(d=d, K=K, M=M, H=H), (runs,))
    every = np.arange(runs)
    for i in range(n):
        h = i % H
        arm = rng.integers(K, size=runs)
        context = loud * rng.random((runs, 1)) * rng.standard_normal((runs, 2))
        scale = 0.1 * (1 + np.linalg.norm(context, axis=-1))
        noise = np.matvec(root[every, arm], rng.standard_normal((runs, M)))
        y = np.matvec(maps[every, arm], theta) + np.sqrt(scale)[:, None] * noise
        x = np.matvec(np.swapaxes(maps, -1, -2), p[:, h, None, :])
        offer = Offer(
            features=x[:, None], control=np.eye(K)[:1], maps=maps[:, None], preference=p[:, h, None],
            context=context[:, None], user=np.array([h]),
        )  # fmt: skip
        known = LEARNER.add(known, offer, arm[:, None], Outcome(np.vecdot(p[:, h], y)[:, None], y[:, None]))
    known = LEARNER.ready(known)
    state, model = known.ridge, noise_of(known)
    w = np.matvec(np.swapaxes(maps[:, 1] - maps[:, 0], -1, -2), p[:, 0])
    z = np.vecdot(w, state.theta - theta) / np.sqrt(np.vecdot(w, np.matvec(state.V_inv, w)))
    inflated = float((z > 2.326 * np.sqrt(model.inflation)).mean())
    return inflated, float((z > 2.326).mean()), float(model.inflation.mean())


def test_inflated_intervals_fail_about_as_often_as_they_say() -> None:
    """Nominal 1 %. A true rate of 1.2 % is flagged for less than one seed in 10^4; so rarely is one of 4 % let by."""
    inflated, plain, inflation = fails(30)
    assert inflated <= 0.0225
    assert inflated <= plain
    assert 1.0 < inflation < 2.5


def test_evidence_that_cannot_be_used_is_refused() -> None:
    seen = data(1)[0]
    with pytest.raises(InputError, match="needs the offer's preference"):
        LEARNER.view(start(LEARNER), replace(seen.offer, preference=None))
    for bad in (
        replace(seen, outcome=Outcome(np.full(1, np.nan), np.full((1, 3), np.nan))),
        replace(seen, offer=replace(seen.offer, context=np.array([[np.inf, 0.0]]))),
    ):
        with pytest.raises(InputError, match="must be finite"):
            after(LEARNER, [bad])
    learner = Learner(weighting="learned", feedback="reward")
    with pytest.raises(InputError, match="kept for 2 users, numbered from 0; got user 2"):
        after(learner, [replace(seen, offer=replace(seen.offer, user=np.array([2])))])


def test_of_rewards_alone_each_user_and_arm_has_a_noise_of_its_own() -> None:
    """As if each pair were an arm, and its reward the only metric."""
    p, K, d = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]), SHAPE.K, SHAPE.d
    features = np.swapaxes(problem()[0], -1, -2)[None] @ p[:, None, :, None]  # (H, K, d, 1)
    reward, pairs = Learner(weighting="learned", feedback="reward", noise_guess=0.5), []
    rewards = []
    for one in data(60):
        h, y = int(np.asarray(one.offer.user)[0]), np.asarray(one.outcome.vector)[0]
        offer = replace(one.offer, preference=p[h][None], features=features[h, :, :, 0][None])
        rewards.append(replace(one, offer=offer, outcome=Outcome(np.array([p[h] @ y]))))
        maps = np.swapaxes(features, -1, -2).reshape(1, 2 * K, 1, d)
        wide = replace(offer, features=maps[:, :, 0], maps=maps, preference=np.ones((1, 1)), control=np.eye(2 * K)[:1])
        told = Outcome(np.array([p[h] @ y]), np.array([[p[h] @ y]]))
        pairs.append(Seen(wide, one.action + h * K, told))
    vector = replace(reward, feedback="vector")
    known = after(reward, rewards)
    want = after(vector, pairs, vector.start(Shape(d=d, K=2 * K, M=1, H=2)))
    np.testing.assert_allclose(known.ridge.theta, want.ridge.theta, rtol=1e-9)
    of_pairs = np.asarray(vector.view(want, pairs[0].offer).sigma)
    for h, one in enumerate(rewards[:2]):
        sigma = np.asarray(reward.view(known, replace(one.offer, context=pairs[0].offer.context)).sigma)
        np.testing.assert_allclose(sigma, of_pairs[:, h * K : (h + 1) * K], rtol=1e-9)
    assert np.ptp(of_pairs) > 0


def test_with_a_discount_older_outcomes_count_less() -> None:
    """Three episodes at discount 0.5 are the sums of each with the weights 1/4, 1/2 and 1."""
    learner = Learner(weighting="learned", discount=0.5)
    seen = data(30)
    known = learner.start(SHAPE)
    for episode in range(3):
        known = learner.age(known)
        for one in seen[10 * episode : 10 * (episode + 1)]:
            known = learner.add(known, one.offer, one.action, one.outcome)
    late = learner.start(SHAPE)
    for i, one in enumerate(seen):
        late = learner.add(late, one.offer, one.action, one.outcome, 2 - i // 10)
    mine, its = noise_of(known), noise_of(late)
    np.testing.assert_allclose(mine.n, its.n, rtol=1e-12)
    assert float(mine.n.sum()) == pytest.approx(10 * (1 + 0.5 + 0.25))
    np.testing.assert_allclose(mine.moments, its.moments, rtol=1e-10, atol=1e-12)
    a, b = (learner.ready(e) for e in (known, late))
    np.testing.assert_allclose(a.ridge.theta, b.ridge.theta, rtol=1e-6)


PAPER = {
    "name": "website",
    "metrics": {"bought": {"range": [0, 1]}},
    "arms": {"usual": {}, "new": {}},
    "users": {"all": {}},
    "control": "usual",
    "preference": {"bought": 1},
    "tolerance": {"absolute": 0.03},
    "model": {"kind": "paper"},
}


def test_ranges_of_yes_or_no_outcomes_hold_where_an_arm_had_few() -> None:
    """The new arm had eight outcomes, in a third of the trials no success: its noise is not nothing."""
    trials, rates, counts = 300, (0.10, 0.13), (100, 8)
    state = Trial.create(PAPER, MemoryStore()).state()
    policy, learned = state.policy, state.policy.init(state.problem.shape, (trials,))
    offer = state.problem.offer([state.profile("all")], [None], [None]).broadcast((trials, 1))
    rng = np.random.default_rng(0)
    for arm, (rate, n) in enumerate(zip(rates, counts, strict=True)):
        for _ in range(n):
            y = (rng.random((trials, 1, 1)) < rate).astype(float)
            learned = policy.observe(learned, offer, np.full((trials, 1), arm), Outcome(y[..., 0], y))
    effects = policy.effects(policy.settle(learned), offer, 0.99)
    assert effects is not None
    estimate, half, _ = effects
    missed = np.abs(estimate - (rates[1] - rates[0])) > half
    assert missed[:, 0, 1].mean() < 0.03


def test_a_pair_is_counted_where_every_outcome_is_an_end_of_its_range() -> None:
    learner = Learner(weighting="learned", ranges=((0.0, 1.0), (-2.0, 2.0), (-np.inf, np.inf)))
    one = data(1)[0]
    for vector, pairs in (((1.0, 2.0, 0.0), (0.5, 8.0, 0.0)), ((0.5, -2.0, 1.0), (0.0, 8.0, 0.0))):
        evidence = after(learner, [replace(one, outcome=Outcome(one.outcome.reward, np.array([vector])))] * 3)
        np.testing.assert_allclose(noise_estimation.binary_pairs(noise_of(evidence), learner.ranges), pairs)
    with pytest.raises(ConfigError, match="ranges must have two ends"):
        start(replace(learner, ranges=((0.0, 1.0),)))
