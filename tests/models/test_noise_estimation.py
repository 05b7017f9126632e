"""Learned noise: the sums, the fit, the view of rules and guards, and how honest its intervals are."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError
from drimed.models import noise_estimation
from drimed.models.linear_regression import Evidence, Learner
from drimed.models.noise_estimation import NoiseModel
from drimed.models.offer import Offer, Outcome, Shape
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.policies.policy import Policy
from drimed.policies.protocol import from_arrays, to_arrays
from drimed.policies.registry import make
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.examples import same

SHAPE = Shape(d=2, K=3, M=3, H=2)
FEEDBACKS = ("vector", "reward")
BOTH = pytest.mark.parametrize("feedback", FEEDBACKS)


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
    return evidence


def noise_of(evidence: Evidence) -> NoiseModel:
    assert evidence.noise is not None
    return noise_estimation.absorb(evidence.noise)


def precisions(model: NoiseModel) -> FloatArray:
    return np.matmul(np.swapaxes(model.whitening, -1, -2), model.whitening)


@dataclass
class Direct:
    """The same fit from the list of observations, one by one."""

    feedback: str
    seen: list[Seen]
    penalty: float = 1.0
    guess: float = 1.0

    def __post_init__(self) -> None:
        self.rows: list[tuple[tuple[int, int], FloatArray, FloatArray]] = []
        for one in self.seen:
            arm, o = int(one.action[0]), one.offer
            assert o.maps is not None
            assert one.outcome.vector is not None
            assert one.outcome.reward is not None
            if self.feedback == "vector":
                self.rows.append(((0, arm), o.maps[0, arm], one.outcome.vector[0]))
            else:
                self.rows.append(((int(np.asarray(o.user)[0]), arm), o.features[0, arm][None], one.outcome.reward))
        f = np.log1p([np.linalg.norm(np.asarray(one.offer.context)) for one in self.seen])
        self.bins = np.minimum((f / noise_estimation.BIN_WIDTH).astype(int), noise_estimation.BINS - 1)
        self.f = np.array([f[self.bins == j].mean() for j in self.bins]) - f.mean()
        self.m, self.n = len(self.rows[0][2]), len(self.rows)

    @property
    def guessed(self) -> FloatArray:
        if self.feedback == "reward":
            return self.guess * np.array([np.mean([np.sum(Z**2) for _, Z, _ in self.rows])])
        arms = {g: Z for g, Z, _ in self.rows}
        return self.guess * np.mean([(Z**2).sum(-1) for Z in arms.values()], axis=0)

    def regression(self, Om: dict[tuple[int, int], FloatArray], slope: float) -> tuple[FloatArray, FloatArray]:
        d = self.rows[0][1].shape[-1]
        V, b = self.penalty * np.eye(d), np.zeros(d)
        for (g, Z, y), f in zip(self.rows, self.f, strict=True):
            V = V + np.exp(-slope * f) * Z.T @ Om[g] @ Z
            b = b + np.exp(-slope * f) * Z.T @ Om[g] @ y
        return V, b

    def one_pass(
        self, Om: dict[tuple[int, int], FloatArray], slope: float, cells: list[tuple[int, int]]
    ) -> tuple[dict[tuple[int, int], FloatArray], float]:
        V, b = self.regression(Om, slope)
        V_inv, d = np.linalg.inv(V), len(b)
        theta = V_inv @ b
        squares = [np.outer(y - Z @ theta, y - Z @ theta) + Z @ V_inv @ Z.T for _, Z, y in self.rows]
        R = {g: np.zeros((self.m, self.m)) for g in cells}
        N = dict.fromkeys(cells, 0)
        for (g, _, _), f, square in zip(self.rows, self.f, squares, strict=True):
            R[g] = R[g] + np.exp(-slope * f) * square
            N[g] += 1
        trust = 0.5 * d / (d + self.m * self.n)
        pooled = (np.diagonal(sum(R.values(), np.zeros((self.m, self.m)))) + trust * self.guessed) / (self.n + trust)
        new: dict[tuple[int, int], FloatArray] = {}
        for g in cells:
            if self.feedback == "vector":
                new[g] = np.asarray((N[g] + 1) * np.linalg.inv(np.diag(pooled) + R[g]), np.float64)
            else:
                arm = [h for h in cells if h[1] == g[1]]
                level = (4 * pooled[0] + sum(float(R[h][0, 0]) for h in arm)) / (4 + sum(N[h] for h in arm))
                new[g] = (4 + N[g]) / (4 * level + R[g])
        r = np.array(
            [
                np.exp(-slope * f) * np.trace(new[g] @ s)
                for (g, _, _), f, s in zip(self.rows, self.f, squares, strict=True)
            ]
        )
        score = 0.5 * self.m * np.sum((r * self.n / r.sum() - 1) * self.f) - slope
        step = score / (0.5 * self.m * np.sum(self.f**2) + 1)
        return new, slope + float(np.clip(step, -1, 1))


def cells(model: NoiseModel) -> list[tuple[int, int]]:
    E, K = model.n.shape[-3:-1]
    return [(e, k) for e in range(E) for k in range(K)]


@BOTH
def test_every_refit_is_the_documented_pass_over_all_observations(feedback: str) -> None:
    """Slopes, precisions, V and b against sums over the observations themselves; reward features differ every time."""
    learner = Learner(weighting="learned", feedback=feedback)
    known = start(learner)
    seen = data(25)
    slope = 0.0
    first = Direct(feedback, seen[:1]).guessed
    Om = dict.fromkeys(cells(noise_of(known)), np.diag(1 / first))
    for n in range(1, 26):
        known = after(learner, seen[n - 1 : n], known)
        state, model = known.ridge, noise_of(known)
        direct = Direct(feedback, seen[:n])
        Om, slope = direct.one_pass(Om, slope, cells(model))
        V, b = direct.regression(Om, slope)
        np.testing.assert_allclose(
            precisions(model), [[Om[e, k] for k in range(3)] for e in range(model.n.shape[0])], rtol=1e-8
        )
        assert float(model.slope) == pytest.approx(slope, rel=1e-8, abs=1e-12)
        np.testing.assert_allclose(state.V, V, rtol=1e-9)
        np.testing.assert_allclose(state.b, b, rtol=1e-9)
        np.testing.assert_allclose(state.theta, np.linalg.solve(V, b), rtol=1e-8)


@BOTH
def test_between_refits_a_row_is_added_with_the_weights_of_the_last_one(
    feedback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_estimation, "EVERY_TIME", 60)
    learner = Learner(weighting="learned", feedback=feedback)
    seen = data(61)
    known = after(learner, seen[:60])
    before, model, later = known.ridge, noise_of(known), after(learner, seen[60:], known)
    state = later.ridge
    assert noise_of(later).refitted == 60
    one = Direct(feedback, seen[60:])
    (g, Z, y), f = one.rows[0], np.log1p(np.linalg.norm(np.asarray(seen[60].offer.context)))
    weight = np.exp(-float(model.slope) * (f - float(model.centre)))
    np.testing.assert_allclose(state.V, before.V + weight * Z.T @ precisions(model)[g] @ Z, rtol=1e-12)
    np.testing.assert_allclose(state.b, before.b + weight * Z.T @ precisions(model)[g] @ y, rtol=1e-12)


def test_refits_come_with_every_observation_and_then_with_every_fiftieth_part_more() -> None:
    learner = Learner(weighting="learned", feedback="reward")
    known, at = start(learner), []
    for i, one in enumerate(data(330), start=1):
        known = after(learner, [one], known)
        if noise_of(known).refitted == i:
            at.append(i)
    assert at[:200] == list(range(1, 201))
    assert at[200:206] == [204, 209, 214, 219, 224, 229]  # the first number that is 1.02 times the last one
    assert noise_of(known).seen == 330


@BOTH
@pytest.mark.parametrize("n", [3, 30, 250])
def test_a_converged_fit_does_not_depend_on_the_order(feedback: str, n: int) -> None:
    learner = Learner(weighting="learned", feedback=feedback)
    seen = data(n)
    ends = [learner.refit(after(learner, part), passes=None) for part in (seen, seen[::-1])]
    for name in ("V", "b", "theta"):
        np.testing.assert_allclose(getattr(ends[0].ridge, name), getattr(ends[1].ridge, name), rtol=1e-5)
    np.testing.assert_allclose(noise_of(ends[0]).slope, noise_of(ends[1]).slope, rtol=1e-5)
    np.testing.assert_allclose(noise_of(ends[0]).inflation, noise_of(ends[1]).inflation, rtol=1e-5)


@BOTH
@pytest.mark.parametrize("c", [1e-3, 7.0, 1e3])
def test_outcomes_in_another_unit_are_the_same_evidence(feedback: str, c: float) -> None:
    """y -> c y with |theta| <= c: theta_hat follows, V is divided by c^2, the slope stays."""
    seen = data(40)
    scaled = []
    for s in seen:
        assert s.outcome.reward is not None
        assert s.outcome.vector is not None
        scaled.append(replace(s, outcome=Outcome(c * s.outcome.reward, c * s.outcome.vector)))
    plain = after(Learner(weighting="learned", feedback=feedback), seen)
    changed = after(Learner(weighting="learned", feedback=feedback, norm_bound=c), scaled)
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
    learner = Learner(weighting="learned", feedback="vector")
    seen = data(40)
    plain, changed = after(learner, seen), after(learner, remeasured(seen, Q))
    one, model, other, same_model = plain.ridge, noise_of(plain), changed.ridge, noise_of(changed)
    np.testing.assert_allclose(other.V, one.V, rtol=1e-8)
    np.testing.assert_allclose(other.theta, one.theta, rtol=1e-7)
    np.testing.assert_allclose(same_model.slope, model.slope, rtol=1e-8)
    np.testing.assert_allclose(
        noise_estimation.reward_noise(same_model, remeasured(seen, Q)[0].offer),
        noise_estimation.reward_noise(model, seen[0].offer),
        rtol=1e-8,
    )


@BOTH
def test_the_regression_is_finite_and_never_below_its_penalty_from_the_first_observation(feedback: str) -> None:
    learner = Learner(weighting="learned", feedback=feedback)
    for n in range(6):
        known = after(learner, data(n))
        state, model = known.ridge, noise_of(known)
        assert (np.linalg.eigvalsh(state.V) >= learner.ridge_penalty * (1 - 1e-12)).all()
        for name, array in to_arrays(model).items():
            assert np.isfinite(array).all(), name
        assert float(model.inflation) >= 1.0


def test_slope_and_covariances_are_recovered() -> None:
    """Bounds of six standard errors, in 1 + 3 * 6 numbers: a false alarm once in 10^7 choices of the seed.

    The slope's standard error is sqrt(2 / (M n Var f)); that of an entry of the whitened covariance is sqrt(2 / N).
    """
    n = 6000
    model = noise_of(after(Learner(weighting="learned", feedback="vector"), data(n, slope=1.5)))
    f = np.log1p([np.linalg.norm(np.asarray(s.offer.context)) for s in data(n)])
    assert abs(float(model.slope) - 1.5) < 6 * np.sqrt(2 / (SHAPE.M * n * f.var()))
    level = np.exp(1.5 * float(model.centre))
    for k in range(SHAPE.K):
        W = model.whitening[0, k] * np.sqrt(level)
        N = float(model.n[0, k].sum())
        assert np.abs(W @ problem()[1][k] @ W.T - np.eye(3)).max() < 6 * np.sqrt(2 / N)


def test_the_offer_is_seen_with_the_estimated_noise() -> None:
    learner = Learner(weighting="learned", feedback="vector")
    known = after(learner, data(50))
    model, offer = noise_of(known), data(1, seed=9)[0].offer
    p, f = np.asarray(offer.preference)[0], np.log1p(np.linalg.norm(np.asarray(offer.context)))
    Sigma = np.linalg.inv(precisions(model)[0])
    scale = np.exp(float(model.slope) * (f - float(model.centre)))
    seen = learner.view(known, offer)
    assert seen.sigma is not None
    np.testing.assert_allclose(seen.sigma[0], np.sqrt(np.einsum("m,kmn,n->k", p, Sigma, p) * scale), rtol=1e-10)
    assert same(replace(seen, sigma=None), offer)


def members(shape: tuple[int, ...], value: Any) -> Any:
    """Stacked singles as a batch."""
    cut = {f.name: [getattr(v, f.name) for v in value] for f in fields(value[0])}
    return type(value[0])(
        **{
            k: v[0] if isinstance(v[0], int) or v[0] is None else np.stack(v).reshape(*shape, *v[0].shape)
            for k, v in cut.items()
        }
    )


@BOTH
def test_a_batch_is_its_members_bit_for_bit_whether_refitted_or_not(
    feedback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_estimation, "EVERY_TIME", 10)
    monkeypatch.setattr(noise_estimation, "GROWTH", 1.3)
    monkeypatch.setattr(noise_estimation, "FEWEST_RECENT", 4)
    monkeypatch.setattr("math.isqrt", lambda _: 4)
    learner = Learner(weighting="learned", feedback=feedback)
    streams = [data(50, seed=s) for s in range(6)]
    alone = [after(learner, seen) for seen in streams]
    together = start(learner, (2, 3))
    for now in zip(*streams, strict=True):
        users = np.stack([np.asarray(s.offer.user) for s in now]).reshape(2, 3, 1)
        plain = members((2, 3), [replace(s.offer, user=0) for s in now])
        offer, action = replace(plain, user=users), np.stack([s.action for s in now]).reshape(2, 3, 1)
        together = learner.add(together, offer, action, members((2, 3), [s.outcome for s in now]))
        sigma = np.asarray(learner.view(together, offer).sigma)
    assert together.noise is not None
    assert 0 < together.noise.waiting < 4
    assert together.noise.refitted < together.noise.seen
    for i, mine in enumerate(alone):
        where = np.unravel_index(i, (2, 3))
        arrays = to_arrays(together)
        for name, array in to_arrays(mine).items():
            theirs = arrays[name] if arrays[name].ndim == 0 else arrays[name][where]
            assert np.array_equal(array, theirs), name
        assert np.array_equal(np.asarray(learner.view(mine, streams[i][-1].offer).sigma), sigma[where])


@BOTH
def test_a_stored_state_goes_on_as_before(feedback: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_estimation, "EVERY_TIME", 10)
    learner = Learner(weighting="learned", feedback=feedback)
    policy = make("dri_med" if feedback == "vector" else "dri_med_reward", weighting="learned")
    assert isinstance(policy, Policy)
    seen = data(60)
    for cut in (0, 7, 45):
        known = after(learner, seen[:cut])
        whole = replace(policy.init(SHAPE), evidence=known)
        loaded = from_arrays(policy.init(SHAPE), {k: v.copy() for k, v in to_arrays(whole).items()})
        assert same(loaded.evidence, known)
        assert same(*(after(learner, seen[cut:], at) for at in (known, loaded.evidence)))


@BOTH
def test_an_outcome_that_is_taken_out_again_leaves_nothing_behind(feedback: str) -> None:
    learner = Learner(weighting="learned", feedback=feedback)
    seen = data(40)
    wrong = data(1, seed=5)[0]
    never = noise_of(after(learner, seen))
    known = after(learner, [*seen[:20], wrong, *seen[20:]])
    known = learner.remove(known, wrong.offer, wrong.action, wrong.outcome)
    model = noise_of(known)
    assert model.seen == never.seen
    assert np.array_equal(model.n, never.n)
    np.testing.assert_allclose(model.moments, never.moments, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(model.sf, never.sf, rtol=1e-12, atol=1e-12)
    amended, plain = (learner.refit(k, passes=None).ridge for k in (known, after(learner, seen)))
    np.testing.assert_allclose(amended.theta, plain.theta, rtol=1e-5)
    np.testing.assert_allclose(amended.V, plain.V, rtol=1e-5)


def test_with_vector_feedback_an_arm_keeps_its_map() -> None:
    learner = Learner(weighting="learned", feedback="vector")
    seen = data(10)
    arm = int(seen[3].action[0])
    maps = np.array(seen[3].offer.maps)
    maps[0, arm, 0, 0] += 0.1
    moved = replace(seen[3], offer=replace(seen[3].offer, maps=maps))
    with pytest.raises(InputError, match=rf"one map Phi\(a\) per arm; arm {arm} had another one before"):
        after(learner, [moved], after(learner, seen))
    maps[0, arm, 0, 0] -= 0.1 * (1 - 1e-13)  # as good as equal
    after(learner, [replace(moved, offer=replace(moved.offer, maps=maps))], after(learner, seen))
    after(Learner(weighting="learned", feedback="reward"), [*seen, moved])


def fails(n: int, feedback: str, *, runs: int = 2000, loud: float = 5.0) -> tuple[float, float, float]:
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
    learner = Learner(weighting="learned", feedback=feedback)
    known = learner.start(Shape(d=d, K=K, M=M, H=H), (runs,))
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
        known = learner.add(known, offer, arm[:, None], Outcome(np.vecdot(p[:, h], y)[:, None], y[:, None]))
    state, model = known.ridge, noise_of(known)
    w = np.matvec(np.swapaxes(maps[:, 1] - maps[:, 0], -1, -2), p[:, 0])
    z = np.vecdot(w, state.theta - theta) / np.sqrt(np.vecdot(w, np.matvec(state.V_inv, w)))
    return (
        float((z > 2.326 * np.sqrt(model.inflation)).mean()),
        float((z > 2.326).mean()),
        float(model.inflation.mean()),
    )


@pytest.mark.parametrize(("feedback", "n"), [("vector", 30), ("reward", 60)])
def test_inflated_intervals_fail_about_as_often_as_they_say(feedback: str, n: int) -> None:
    """Nominal 1 %. A true rate of 1.2 % is flagged for less than one seed in 10^4; so rarely is one of 4 % let by."""
    inflated, plain, inflation = fails(n, feedback)
    assert inflated <= 0.0225
    assert inflated <= plain
    assert 1.0 < inflation < 2.5


def test_evidence_that_cannot_be_used_is_refused() -> None:
    seen = data(1)[0]
    vector, reward = (Learner(weighting="learned", feedback=f) for f in FEEDBACKS)
    with pytest.raises(InputError, match="needs the offer's preference"):
        vector.view(start(vector), replace(seen.offer, preference=None))
    with pytest.raises(InputError, match="kept for 2 users, numbered from 0; got user 2"):
        reward.view(start(reward), replace(seen.offer, user=np.array([2])))
    with pytest.raises(InputError, match="kept for 2 users, numbered from 0; got user 5"):
        after(reward, [replace(seen, offer=replace(seen.offer, user=np.array([5])))])
    for bad in (
        replace(seen, outcome=Outcome(np.full(1, np.nan), np.full((1, 3), np.nan))),
        replace(seen, offer=replace(seen.offer, context=np.array([[np.inf, 0.0]]))),
    ):
        for learner in (vector, reward):
            with pytest.raises(InputError, match="must be finite"):
                after(learner, [bad])


@BOTH
def test_with_a_discount_older_outcomes_count_less(feedback: str) -> None:
    """Three episodes at discount 0.5 are the sums of each with the weights 1/4, 1/2 and 1."""
    learner = Learner(weighting="learned", feedback=feedback, discount=0.5, refits="converged")
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
    estimate, half = effects
    missed = np.abs(estimate - (rates[1] - rates[0])) > half
    assert missed[:, 0, 1].mean() < 0.03


def test_a_pair_is_counted_where_every_outcome_is_an_end_of_its_range() -> None:
    learner = Learner(weighting="learned", refits="converged", ranges=((0.0, 1.0), (-2.0, 2.0), (-np.inf, np.inf)))
    one = data(1)[0]
    for vector, pairs in (((1.0, 2.0, 0.0), (0.5, 8.0, 0.0)), ((0.5, -2.0, 1.0), (0.0, 8.0, 0.0))):
        evidence = after(learner, [replace(one, outcome=Outcome(one.outcome.reward, np.array([vector])))] * 3)
        np.testing.assert_allclose(noise_estimation.binary_pairs(noise_of(evidence), learner.ranges), pairs)
    with pytest.raises(ConfigError, match="ranges must have two ends"):
        start(replace(learner, ranges=((0.0, 1.0),)))
