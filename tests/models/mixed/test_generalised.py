"""The generalised mixed model: against brute force, closed forms and simulated truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from drimed.models.mixed import generalised
from drimed.models.mixed.generalised import COUNT, DRAWS, SCORE, YES_NO, Problem, on_link_scale
from drimed.models.mixed.observations import Cells, Scale, make_rows
from drimed.models.mixed.terms import FACTORS, FIXED, Structure, Terms, field_families
from drimed.numerics.arrays import FloatArray

SEASON, GROUP, ARM = (FACTORS.index(name) for name in ("season", "group", "arm"))
PLAIN = Scale(np.zeros(1), np.ones(1), np.ones(()))
SITES, SEASONS, ARMS = 4, 5, 3


def structure(cluster: str, ends: tuple[float, float] = (0.0, 1.0)) -> Structure:
    """Sites and seasons without unseen values, so that both ways to eliminate have the same columns."""
    sizes = {"season": SEASONS, "block": 1, "group": SITES, "member": 1, "user": 1, "arm": ARMS, "noise": 1}
    families = on_link_scale(field_families(Terms(), sizes))
    named = sizes | {cluster: 1}
    return Structure(
        families=families,
        factors=FACTORS,
        sizes=tuple(named.values()),
        cluster=cluster,
        covariates=0,
        metrics=1,
        noise_groups=(1, 1),
        ranges=(ends,),
    )


def outcomes(seed: int, kind: str, n: int = 240) -> tuple[np.ndarray, FloatArray]:
    rng = np.random.default_rng(seed)
    keys = np.zeros((n, len(FACTORS)), np.intp)
    for place, size in ((SEASON, SEASONS), (GROUP, SITES), (ARM, ARMS)):
        keys[:, place] = rng.integers(0, size, n)
    eta = np.array([-0.8, 0.2, 0.5])[keys[:, ARM]] + rng.normal(0, 0.4, SITES)[keys[:, GROUP]]
    if kind == COUNT:
        return keys, rng.poisson(np.exp(eta)).astype(float)
    p = 1 / (1 + np.exp(-eta))
    return keys, (rng.random(n) < p).astype(float) if kind == YES_NO else rng.binomial(10, p).astype(float)


def table(cluster: str, kind: str = YES_NO, seed: int = 1) -> tuple[Structure, generalised.Table]:
    model = structure(cluster, (0.0, 10.0) if kind == SCORE else (0.0, 1.0))
    keys, y = outcomes(seed, kind)
    cells = Cells.empty(1).add(make_rows(keys, np.zeros((len(y), 0)), y[:, None], None, (len(FACTORS), 0, 1)))
    return model, generalised.make_table(model, cells.compact(model.cluster_place), PLAIN, 0, kind)


def log_joint(problem: Problem, t: generalised.Table, log_tau: FloatArray, flat: FloatArray) -> float:
    """Minus the log of likelihood times prior, written out."""
    (P, q), L = t.columns, t.clusters
    theta, v = flat[:P], flat[P:].reshape(L, q)
    eta = problem.offset + (theta[t.cols] * t.x).sum(-1) + (v[t.cluster[:, None], t.zcols] * t.z).sum(-1)
    potential = np.exp(eta) if t.kind == COUNT else np.log1p(np.exp(eta))
    variance = generalised.variances(problem.structure, log_tau)[0]
    prior = (theta**2 / variance[problem.family]).sum() + (v**2 / variance[problem.zfamily]).sum()
    return float(0.5 * prior - (t.total * eta - t.size * potential).sum() / problem.phi)


@pytest.mark.parametrize("kind", [YES_NO, COUNT, SCORE])
def test_the_mode_is_that_of_a_general_optimiser(kind: str) -> None:
    model, t = table("season", kind)
    problem = Problem(model, t)
    (P, q), L = t.columns, t.clusters
    log_tau = problem.centre[None]
    theta, v = problem.newton(log_tau, np.zeros((1, P)), np.zeros((1, L, q)), 20)
    best = minimize(
        lambda x: log_joint(problem, t, log_tau, x), np.zeros(P + L * q), method="BFGS", options={"gtol": 1e-5}
    )
    assert np.allclose(np.concatenate([theta.ravel(), v.ravel()]), best.x, atol=2e-4)


@pytest.mark.parametrize("kind", [YES_NO, COUNT])
def test_eliminating_seasons_or_sites_gives_the_same_marginal_likelihood_and_mean(kind: str) -> None:
    found = []
    for cluster in ("season", "group"):
        model, t = table(cluster, kind)
        problem = Problem(model, t)
        (P, q), L = t.columns, t.clusters
        log_tau = problem.centre[None]
        theta, v = problem.newton(log_tau, np.zeros((1, P)), np.zeros((1, L, q)), 20)
        fit = problem.laplace(log_tau, theta, v)
        gradient, information = problem.score(log_tau, fit)
        arms = [int(model.common.columns(np.eye(1, len(FACTORS), ARM, dtype=np.intp)[0] * k)[1]) for k in range(ARMS)]
        means = (fit.theta + fit.delta[0])[0, arms]
        found.append((fit.log_marginal[0], fit.edf[0], gradient, information, means))
    for one, other in zip(*found, strict=True):
        assert np.allclose(one, other, atol=1e-8)


@pytest.mark.parametrize("kind", [YES_NO, COUNT])
def test_the_score_is_the_derivative_of_the_marginal_likelihood(kind: str) -> None:
    model, t = table("season", kind)
    problem = Problem(model, t)
    (P, q), L = t.columns, t.clusters

    def value(log_tau: FloatArray) -> float:
        theta, v = problem.newton(log_tau, np.zeros((1, P)), np.zeros((1, L, q)), 25)
        fit = problem.laplace(log_tau, theta, v)
        return float((fit.log_marginal + problem.log_prior(log_tau))[0])

    at = problem.centre[None] + 0.2
    theta, v = problem.newton(at, np.zeros((1, P)), np.zeros((1, L, q)), 25)
    gradient, information = problem.score(at, problem.laplace(at, theta, v))
    step = 1e-4
    numeric = [
        (value(at + step * unit) - value(at - step * unit)) / (2 * step) for unit in np.eye(len(problem.learned))
    ]
    assert np.allclose(gradient, numeric, atol=1e-4)
    assert (np.linalg.eigvalsh(information) > 0).all()


def mean_draws(model: Structure, fitted: generalised.Generalised, kind: str) -> FloatArray:
    keys = np.zeros((SITES, ARMS, len(FACTORS)), np.intp)
    keys[..., GROUP], keys[..., ARM] = np.arange(SITES)[:, None], np.arange(ARMS)
    none = np.zeros((SITES, ARMS, 0))
    return generalised.mean_draws(model, fitted, kind, keys, none, own=None, averaged=("season",))


@pytest.mark.parametrize("kind", [YES_NO, COUNT, SCORE])
def test_draws_lie_in_the_possible_and_are_the_same_every_time(kind: str) -> None:
    model, t = table("season", kind)
    fitted = generalised.fit(model, t)
    draws = mean_draws(model, fitted, kind)
    assert draws.shape == (SITES, ARMS, DRAWS)
    assert (draws > 0).all()
    assert kind == COUNT or (draws < 1).all()
    assert np.array_equal(draws, mean_draws(model, generalised.fit(model, t), kind))


def test_a_warm_start_ends_where_a_cold_one_does() -> None:
    model, t = table("season")
    cold = generalised.fit(model, t)
    warm = generalised.fit(model, t, cold)
    assert np.allclose(warm.log_tau[0], cold.log_tau[0], atol=1e-3)
    assert np.allclose(mean_draws(model, warm, YES_NO), mean_draws(model, cold, YES_NO), atol=5e-3)


def test_own_effects_of_eliminated_sites_agree_with_those_of_sites_in_theta() -> None:
    means = []
    for cluster in ("season", "group"):
        model, t = table(cluster)
        fitted = generalised.fit(model, t)
        keys = np.zeros((SITES, ARMS, len(FACTORS)), np.intp)
        keys[..., GROUP], keys[..., ARM] = np.arange(SITES)[:, None], np.arange(ARMS)
        own = None if cluster == "season" else generalised.own_effects(model, t, fitted)
        none = np.zeros((SITES, ARMS, 0))
        draws = generalised.mean_draws(model, fitted, YES_NO, keys, none, own=own, averaged=("season",))
        means.append((draws.mean(-1), draws.std(-1)))
    assert np.allclose(means[0][0], means[1][0], atol=0.02)
    assert np.allclose(means[0][1], means[1][1], rtol=0.15)


def test_counts_that_scatter_more_than_poisson_have_wider_ranges() -> None:
    widths = {}
    for over in (0.0, 1.0):
        rng = np.random.default_rng(5)
        keys, _ = outcomes(2, COUNT, 400)
        y = rng.poisson(5.0 * (rng.gamma(1 / over, over, 400) if over else np.ones(400))).astype(float)
        model = structure("season")
        cells = Cells.empty(1).add(make_rows(keys, np.zeros((400, 0)), y[:, None], None, (len(FACTORS), 0, 1)))
        t = generalised.make_table(model, cells.compact(model.cluster_place), PLAIN, 0, COUNT)
        fitted = generalised.fit(model, t)
        widths[over] = (fitted.phi, mean_draws(model, fitted, COUNT)[:, 0].std(-1).mean())
    assert widths[0.0][0] < 1.3  # Poisson: 1
    assert 4 < widths[1.0][0] < 8  # variance over mean: 1 + 5
    assert widths[1.0][1] > 1.7 * widths[0.0][1]


def test_families_of_single_users_have_a_level_only() -> None:
    assert "arm" in FIXED
    families = on_link_scale(field_families(Terms(), {"member": 1, "block": 1}))
    assert {f.name: round(f.centre**0.5, 2) for f in families if f.variance is None} == {
        "arm": 0.6,
        "attribute": 0.6,
        "covariate": 0.4,
        "covariate x arm": 0.2,
        "group": 0.4,
        "group x arm": 0.2,
        "season": 0.3,
        "season x group": 0.2,
        "season x arm": 0.2,
    }


def long_chain(problem: Problem, t: generalised.Table, steps: int, chains: int) -> tuple[FloatArray, FloatArray]:
    """Draws of theta and own effects by elliptical slice sampling (Murray et al. 2010), deviations integrated over.

    In effects over their deviations and log tau over its spread the prior is standard normal.
    """
    rng, (P, q), L = np.random.default_rng(0), t.columns, t.clusters
    x = 0.3 * rng.standard_normal((chains, P + L * q + len(problem.learned)))

    def effects(x: FloatArray) -> tuple[FloatArray, FloatArray]:
        sd = np.sqrt(generalised.variances(problem.structure, problem.centre + problem.spread * x[:, P + L * q :]))
        return x[:, :P] * sd[:, problem.family], x[:, P : P + L * q].reshape(-1, L, q) * sd[:, None, problem.zfamily]

    def likelihood(x: FloatArray) -> FloatArray:
        eta = t.eta(problem.offset, *effects(x))
        potential = np.exp(eta) if t.kind == COUNT else np.log1p(np.exp(eta))
        return (t.total * eta - t.size * potential).sum(-1)

    kept, value = [], likelihood(x)
    for step in range(steps):
        other, least = rng.standard_normal(x.shape), value + np.log(rng.random(chains))
        angle = rng.uniform(0, 2 * np.pi, chains)
        low, high, waits = angle - 2 * np.pi, angle.copy(), np.ones(chains, bool)
        new = x.copy()
        while waits.any():
            proposal = x * np.cos(angle)[:, None] + other * np.sin(angle)[:, None]
            now = likelihood(proposal)
            ok = waits & (now > least)
            new[ok], value[ok] = proposal[ok], now[ok]
            waits &= ~ok
            low, high = np.where(waits & (angle < 0), angle, low), np.where(waits & (angle >= 0), angle, high)
            angle = np.where(waits, rng.uniform(low, high), angle)
        x = new
        if step >= steps // 4:
            kept.append(x)
    return effects(np.concatenate(kept))


@pytest.mark.parametrize("cluster", ["season", "group"])
@pytest.mark.parametrize("kind", [YES_NO, COUNT])
def test_draws_agree_with_a_long_markov_chain_where_events_are_rare(cluster: str, kind: str) -> None:
    """2 % of events, where mode and mean differ: means of sites within .15 deviations, deviations within 15 %."""
    model, rng = structure(cluster), np.random.default_rng(5)
    keys, _ = outcomes(5, YES_NO, 400)
    rate = 0.02 * np.exp(np.array([0, 0.6, -0.6])[keys[:, ARM]] + rng.normal(0, 0.4, SITES)[keys[:, GROUP]])
    y = (rng.random(400) < rate if kind == YES_NO else rng.poisson(rate)).astype(float)
    cells = Cells.empty(1).add(make_rows(keys, np.zeros((400, 0)), y[:, None], None, (len(FACTORS), 0, 1)))
    t = generalised.make_table(model, cells.compact(model.cluster_place), PLAIN, 0, kind)
    fitted = generalised.fit(model, t)
    problem = Problem(model, t)
    theta, v = long_chain(problem, t, 1200, 32)
    chain = generalised.Generalised(
        np.zeros((1, len(problem.learned))), theta[:1], theta, np.zeros(len(theta), np.intp), problem.offset, 1.0
    )
    at = np.zeros((SITES, ARMS, len(FACTORS)), np.intp)
    at[..., GROUP], at[..., ARM] = np.arange(SITES)[:, None], np.arange(ARMS)
    none, found = np.zeros((SITES, ARMS, 0)), []
    for one, own in ((fitted, generalised.own_effects(model, t, fitted)), (chain, np.swapaxes(v, 0, 1))):
        by_site = own[:, None] if cluster == "group" else None
        # In the first season's place: averages over seasons would need the chain's deviations.
        layouts = model.common, model.own
        rows = [layout.rows(at, none, average_season=True) for layout in layouts]
        eta = one.offset + rows[0] @ one.draws.T
        eta = eta if by_site is None else eta + np.einsum("...q,...sq->...s", rows[1], by_site)
        found.append((eta.mean(-1), eta.std(-1)))
    (mean, sd), (true, spread) = found
    assert np.abs(mean - true).max() < 0.15 * spread.min()
    assert np.allclose(sd, spread, rtol=0.15)


def test_the_predictor_of_one_cell_is_what_numerical_integration_says() -> None:
    """3 of 40 in one season, at one site, under one arm: its prior is a mixture of normals, integrated on a grid."""
    model, keys = structure("season"), np.zeros((40, len(FACTORS)), np.intp)
    y = (np.arange(40) < 3).astype(float)
    cells = Cells.empty(1).add(make_rows(keys, np.zeros((40, 0)), y[:, None], None, (len(FACTORS), 0, 1)))
    t = generalised.make_table(model, cells.compact(model.cluster_place), PLAIN, 0, YES_NO)
    problem, fitted = Problem(model, t), generalised.fit(model, t)
    rows = [layout.rows(keys[0], np.zeros(0)) for layout in (model.common, model.own)]
    draws = fitted.draws @ rows[0] + generalised.own_effects(model, t, fitted)[0] @ rows[1]
    tau = np.random.default_rng(0).lognormal(problem.centre, problem.spread, (4000, len(problem.learned)))
    sd = np.sqrt(generalised.LEVEL_SD**2 + (tau**2).sum(-1))[:, None]
    eta = np.linspace(-8, 4, 601)
    weight = (np.exp(-0.5 * (eta / sd) ** 2) / sd).mean(0) * np.exp(3 * eta - 40 * np.log1p(np.exp(eta)))
    mean = (weight * eta).sum() / weight.sum()
    deviation = np.sqrt((weight * (eta - mean) ** 2).sum() / weight.sum())
    assert abs(draws.mean() - mean) < 0.1 * deviation
    assert abs(draws.std() / deviation - 1) < 0.1
