"""The field model against closed forms, and what must not matter to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.learning.field.cells import FACTORS
from drimed.learning.field.likelihood import evaluate
from drimed.learning.field.model import Field, FieldState
from drimed.learning.field.terms import Family, Sizes, field_families, people_families
from drimed.learning.field.variances import learn, log_posterior
from drimed.linear import ridge
from tests.learning.field_models import MODELS, SIZES, Data, by_brute_force, data, designed, model, told


@pytest.fixture(params=MODELS)
def field(request: pytest.FixtureRequest) -> Field:
    return model(request.param)


def some_parameters(field: Field, seed: int = 1) -> np.ndarray:
    p = field.parameters
    return p.centre + 0.3 * np.random.default_rng(seed).normal(size=p.size)


def beliefs(field: Field, state: FieldState) -> tuple[np.ndarray, np.ndarray]:
    z = np.full(field.covariates, 0.3)
    if field.cluster == "user":
        b = field.own_belief(state, np.arange(4), np.broadcast_to(z, (4, field.covariates)))
    else:
        b = field.belief(state, 1, z)
    return b.mean, b.covariance


def test_elimination_agrees_with_the_covariance_of_all_outcomes(field: Field) -> None:
    d = data(field)
    _, scale, design = designed(field, told(field, d))
    x = some_parameters(field)
    v, R = field.parameters.variances(x), field.parameters.residual(x)
    found = evaluate(design, v, R)
    value, theta, covariance = by_brute_force(field, d, scale, v, R)
    assert float(found.value) == pytest.approx(value, abs=1e-8)
    np.testing.assert_allclose(found.theta, theta, atol=1e-8)
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-8)


def test_the_gradient_is_that_of_the_value(field: Field) -> None:
    _, _, design = designed(field, told(field, data(field)))
    x = some_parameters(field)
    _, gradient = log_posterior(field.parameters, design, x)
    steps = 1e-5 * np.eye(len(x))
    values = [[log_posterior(field.parameters, design, x + s * e)[0] for s in (1, -1)] for e in steps]
    np.testing.assert_allclose(gradient, [(up - down) / 2e-5 for up, down in values], atol=1e-6)


def test_a_variance_of_zero_leaves_its_family_out(field: Field) -> None:
    d = data(field)
    _, _, design = designed(field, told(field, d))
    x = some_parameters(field)
    v, R = field.parameters.variances(x), field.parameters.residual(x)
    v[..., 1:] = 0.0
    found, tiny = evaluate(design, v, R), evaluate(design, v + 1e-13 * (v == 0), R)
    assert float(found.value) == pytest.approx(float(tiny.value), abs=1e-8)
    np.testing.assert_allclose(found.theta, tiny.theta, atol=1e-8)
    assert not found.theta[:, 1:].any()


def test_the_search_ends_at_a_stationary_point(field: Field) -> None:
    _, _, design = designed(field, told(field, data(field)))
    found = learn(field.parameters, design, ())
    _, gradient = log_posterior(field.parameters, design, found.x)
    assert np.abs(gradient).max() < 1e-8
    assert np.linalg.eigvalsh(found.hessian).min() > 0


def test_the_order_of_outcomes_does_not_matter(field: Field) -> None:
    d = data(field)
    other = d.part(np.random.default_rng(3).permutation(len(d.y)))
    a, b = (beliefs(field, field.settle(told(field, x))) for x in (d, other))
    np.testing.assert_allclose(a[0], b[0], rtol=1e-9)
    np.testing.assert_allclose(a[1], b[1], rtol=1e-7, atol=1e-9)


def test_a_forgotten_outcome_was_never_observed(field: Field) -> None:
    d = data(field)
    kept, gone = d.part(np.arange(30)), d.part(np.arange(30, 40))
    state = field.settle(told(field, d))  # merged into cells, and fitted
    state = field.forget(state, field.rows(gone.keys, gone.y, gone.z, gone.observed))
    a = beliefs(field, field.settle(state, variances=True))
    b = beliefs(field, field.settle(told(field, kept)))
    np.testing.assert_allclose(a[0], b[0], rtol=1e-8)
    np.testing.assert_allclose(a[1], b[1], rtol=1e-6, atol=1e-8)


def test_an_outcome_that_never_came_cannot_be_forgotten(field: Field) -> None:
    d = data(field)
    state = told(field, d)
    with pytest.raises(InputError, match="only if it was counted in"):
        field.forget(state, field.rows(d.keys[:1], d.y[:1] + 1, d.z[:1], d.observed[:1]))


@pytest.mark.parametrize(("unit", "level"), [(1e-6, 0.0), (1e6, 0.0), (1.0, -1e5), (1e3, 1e7)])
def test_neither_unit_nor_level_matters(field: Field, unit: float, level: float) -> None:
    d = data(field)
    mean, covariance = beliefs(field, field.settle(told(field, d)))
    moved, scaled = beliefs(field, field.settle(told(field, Data(d.keys, unit * d.y + level, d.z, d.observed))))
    spread = np.sqrt(np.abs(covariance).max())
    np.testing.assert_allclose((moved - level) / unit, mean, atol=1e-5 * spread)
    np.testing.assert_allclose(scaled / unit**2, covariance, atol=1e-5 * spread**2)


def test_the_units_of_covariates_do_not_matter() -> None:
    field = model("two metrics, one covariate, noise by arm")
    d = data(field)
    a = field.settle(told(field, d))
    b = field.settle(told(field, Data(d.keys, d.y, 1e3 * d.z - 7, d.observed)))
    one, other = field.belief(a, 2, np.array([0.5])), field.belief(b, 2, np.array([1e3 * 0.5 - 7]))
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-7)
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-5, atol=1e-8)


def test_a_batch_is_its_members_side_by_side(field: Field) -> None:
    parts = [data(field, seed=s) for s in range(3)]
    rows = [field.rows(d.keys, d.y, d.z, d.observed) for d in parts]
    together = replace(rows[0], **{k: np.stack([getattr(r, k) for r in rows]) for k in ("keys", "pattern", "values")})
    state = field.settle(field.observe(field.init((3,)), together))
    assert state.learned is not None
    for i, d in enumerate(parts):
        alone = field.settle(told(field, d)).learned
        assert alone is not None
        np.testing.assert_allclose(state.learned.theta[i], alone.theta, atol=1e-8)
        np.testing.assert_allclose(state.learned.covariance[i], alone.covariance, atol=1e-8)


def test_those_who_join_change_nothing_for_the_others(field: Field) -> None:
    d = data(field)
    larger = replace(field, sizes=Sizes(season=9, block=4, group=7, user=9, arm=3))
    a, b = (beliefs(f, f.settle(told(f, d))) for f in (field, larger))
    np.testing.assert_allclose(a[0], b[0], rtol=1e-8)
    np.testing.assert_allclose(a[1], b[1], rtol=1e-6, atol=1e-8)


def test_a_user_s_own_effects_are_those_of_a_model_that_keeps_them_in_theta() -> None:
    """Users as clusters, and users as groups that stay in theta, are one model."""
    z = range(2)
    own = people_families(z, z)
    renamed = {"user": "group", "user x arm": "group x arm", "user x arm x covariate": "group x arm x covariate"}
    kept = tuple(
        replace(f, name=renamed.get(f.name, f.name), by=tuple("group" if b == "user" else b for b in f.by)) for f in own
    )
    eliminated = Field(sizes=SIZES, covariates=2, families=own, cluster="user", pairs=2)
    whole = Field(sizes=replace(SIZES, group=5), covariates=2, families=kept, cluster="season", pairs=2)
    d = data(eliminated)
    keys = d.keys.copy()
    keys[:, FACTORS.index("group")] = keys[:, FACTORS.index("user")]
    keys[:, FACTORS.index("block")] = 0
    keys[:, FACTORS.index("season")] = 0
    told_keys = replace(d, keys=keys)
    a, b = (f.settle(told(f, told_keys)) for f in (eliminated, whole))
    at = np.array([0.2, -0.4])
    mine = eliminated.own_belief(a, np.arange(5), np.broadcast_to(at, (5, 2)))
    for u in range(5):
        theirs = whole.belief(b, u, at)
        np.testing.assert_allclose(mine.mean[u], theirs.mean, rtol=1e-8)
        np.testing.assert_allclose(mine.covariance[u], theirs.covariance, rtol=1e-6)


def test_without_other_families_it_is_the_paper_s_ridge() -> None:
    """Arms alone, known variances: V = lambda I + sum x x' with whitened rows."""
    families = (Family("arm", ("arm",), variance=4.0),)
    field = Field(sizes=SIZES, families=families)
    d = replace(data(field), observed=np.ones((40, 1), bool))
    cells, scale, design = designed(field, told(field, d))
    del cells
    R = np.array([[[0.7]]])
    found = evaluate(design, np.array([[4.0]]), R)
    x = np.eye(3)[d.keys[:, -1]] / np.sqrt(0.7)
    y = (d.y[:, 0] - scale.centre[0]) / scale.unit[0] / np.sqrt(0.7)
    state = ridge.observe(ridge.init(3, 0.25), x, y, 0.25)
    np.testing.assert_allclose(found.theta[0], state.theta, rtol=1e-9)
    np.testing.assert_allclose(found.covariance[0, :, 0], state.V_inv, rtol=1e-9)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_it_starts_without_data(field: Field, n: int) -> None:
    d = data(field).part(np.arange(n))
    mean, covariance = beliefs(field, field.settle(told(field, d)))
    assert np.isfinite(mean).all()
    assert np.isfinite(covariance).all()
    size = int(np.sqrt(covariance[0].size)) if field.cluster == "user" else int(np.sqrt(covariance.size))
    assert np.linalg.eigvalsh(covariance.reshape(-1, size, size)).min() > 0


def test_nothing_is_certified_while_the_noise_is_unknown() -> None:
    field = model("one metric")
    _, covariance = beliefs(field, field.settle(field.init()))
    assert np.diagonal(covariance[:, 0, :, 0]).min() > 1e90


def test_constant_outcomes_say_nothing_about_the_noise() -> None:
    field = model("one metric")
    d = replace(data(field), y=np.full((40, 1), 1e7 / 3))
    _, covariance = beliefs(field, field.settle(told(field, d)))
    assert np.diagonal(covariance[:, 0, :, 0]).min() > 1e90


def test_variances_stand_still_until_they_are_due() -> None:
    field = model("one metric")
    d = data(field)
    first = field.settle(told(field, d.part(np.arange(38))))
    rest = d.part(np.arange(38, 40))
    more = field.settle(field.observe(first, field.rows(rest.keys, rest.y, rest.z, rest.observed)))
    assert first.learned is not None
    assert more.learned is not None
    np.testing.assert_array_equal(first.learned.nodes, more.learned.nodes)
    assert more.fitted == 38
    assert field.settle(more) is more


def test_steps_between_fits_agree_with_adding_up_anew(field: Field) -> None:
    """Without averaging a step is exact: any cluster, old or new, in any order, with metrics missing."""
    field = replace(field, pairs=0, growth=10.0)
    d = data(field)
    first, rest = d.part(np.arange(30)), d.part(np.arange(30, 40))
    state = field.observe(field.settle(told(field, first)), field.rows(rest.keys, rest.y, rest.z, rest.observed))
    stepped = field.settle(state)
    anew = field.settle(replace(state, stepped=-1))
    assert stepped.cells is state.cells
    for a, b in zip(beliefs(field, stepped), beliefs(field, anew), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_data_never_widen_a_belief_beyond_its_prior(field: Field) -> None:
    """With variances that stand still; the radius at all times grows with what was gained."""
    field = replace(field, pairs=0)
    state = field.settle(told(field, data(field)))
    z = np.full(field.covariates, 0.3)
    if field.cluster == "user":
        b = field.own_belief(state, np.arange(1), z[None])
    else:
        b = field.belief(state, 1, z)
    size = 3 * field.metrics
    prior, now = (a.reshape(-1, size, size)[0] for a in (b.prior, b.covariance))
    assert np.linalg.eigvalsh(prior - now).min() > -1e-6
    fit = field.fit(b)
    gained = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(now)[1]
    assert float(fit.radius.ravel()[0]) ** 2 > gained > 0
    np.testing.assert_allclose(fit.theta.ravel(), b.mean.ravel())


def test_wrong_input_is_refused() -> None:
    field = model("one metric")
    key = np.zeros((1, 5), int)
    with pytest.raises(ShapeError, match="1 metrics"):
        field.rows(key, np.zeros((1, 2)))
    with pytest.raises(InputError, match="finite"):
        field.rows(key, np.full((1, 1), np.nan))
    with pytest.raises(InputError, match="group must be a number from 0 to 3"):
        field.rows(np.array([[0, 0, 4, 0, 0]]), np.zeros((1, 1)))
    with pytest.raises(InputError, match="call `settle`"):
        field.belief(field.init())
    with pytest.raises(ConfigError, match="crosses seasons with users"):
        Field(sizes=SIZES, families=(*field_families(), Family("both", ("season", "user"))))
    with pytest.raises(ConfigError, match="uses covariate 0; there are 0"):
        Field(sizes=SIZES, families=field_families((0,)))
