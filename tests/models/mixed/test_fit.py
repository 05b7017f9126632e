"""The field model against closed forms, and what must not matter to it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError
from drimed.models.mixed import likelihood, variance_components
from drimed.models.mixed.learner import MOST_UPDATES, Field, FieldEvidence
from drimed.models.mixed.likelihood import posterior, posterior_at_nodes
from drimed.models.mixed.observations import make_design, measure
from drimed.models.mixed.prediction import as_fit
from drimed.models.mixed.terms import FACTORS, Family, Structure, factors_of
from drimed.models.mixed.variance_components import log_posterior, posterior_mode
from drimed.models.offer import Offer, Outcome, Shape, Unit
from drimed.numerics import ridge
from drimed.numerics.arrays import FloatArray
from tests.models.mixed.examples import (
    METRICS,
    MODELS,
    Data,
    asked,
    at_the_mode,
    by_brute_force,
    data,
    designed,
    offer_of,
    started,
    told,
)


class Case(NamedTuple):
    name: str
    field: Field
    evidence: FieldEvidence  # before any outcome
    data: Data

    @property
    def told(self) -> FieldEvidence:
        return told(self.field, self.evidence, self.data)


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param, *started(request.param), data(request.param))


def some_parameters(structure: Structure, seed: int = 1) -> FloatArray:
    p = structure.parameters
    return p.centre + 0.3 * np.random.default_rng(seed).normal(size=p.size)


def beliefs(field: Field, evidence: FieldEvidence) -> tuple[FloatArray, FloatArray]:
    found = asked(field, evidence)
    return found.mean, found.covariance


def test_elimination_agrees_with_the_covariance_of_all_outcomes(case: Case) -> None:
    field = replace(case.field, discount=1.0)
    structure, scale, design = designed(field, case.told)
    x = some_parameters(structure)
    v, R = structure.parameters.variances(x), structure.parameters.residual(x)
    found = posterior(design, v, R)
    value, theta, covariance = by_brute_force(structure, case.told, scale, v, R)
    assert float(found.value) == pytest.approx(value, abs=1e-8)
    np.testing.assert_allclose(found.theta, theta, atol=1e-8)
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-8)


def test_nodes_side_by_side_are_nodes_one_by_one(case: Case) -> None:
    structure, _, design = designed(case.field, case.told)
    x = np.stack([some_parameters(structure, seed) for seed in range(5)])
    v, R = structure.parameters.variances(x), structure.parameters.residual(x)
    v[2, :, 1:] = 0.0  # what is zero at one node is not at the others
    one_by_one = [posterior(design, *node) for node in zip(v, R, strict=True)]
    for found, single in zip(posterior_at_nodes(design, v, R), zip(*one_by_one, strict=True), strict=True):
        np.testing.assert_array_equal(found, single)


def test_a_variance_of_zero_leaves_its_family_out(case: Case) -> None:
    structure, _, design = designed(case.field, case.told)
    x = some_parameters(structure)
    v, R = structure.parameters.variances(x), structure.parameters.residual(x)
    v[..., 1:] = 0.0
    found, tiny = posterior(design, v, R), posterior(design, v + 1e-13 * (v == 0), R)
    assert float(found.value) == pytest.approx(float(tiny.value), abs=1e-8)
    np.testing.assert_allclose(found.theta, tiny.theta, atol=1e-8)
    assert not found.theta[:, 1:].any()


def test_the_search_ends_at_a_stationary_point(case: Case) -> None:
    structure, _, design = designed(case.field, case.told)
    mode, hessian = posterior_mode(structure.parameters, design, ())
    _, gradient = log_posterior(structure.parameters, design, mode)
    assert np.abs(gradient).max() < 1e-8
    assert np.linalg.eigvalsh(hessian).min() > 0


def test_the_order_of_outcomes_does_not_matter(case: Case) -> None:
    d = case.data
    other = d.part(np.random.default_rng(3).permutation(len(d.y)))
    a, b = (beliefs(case.field, case.field.ready(told(case.field, case.evidence, x))) for x in (d, other))
    np.testing.assert_allclose(a[0], b[0], rtol=1e-9)
    np.testing.assert_allclose(a[1], b[1], rtol=1e-7, atol=1e-9)


def test_a_forgotten_outcome_was_never_observed(case: Case) -> None:
    field, d = case.field, case.data
    kept, gone = d.part(np.arange(30)), d.part(np.arange(30, 40))
    evidence = told(field, field.ready(case.told), gone, forget=True)  # merged into cells, and fitted
    a = beliefs(field, field.ready(evidence, variances=True))
    b = beliefs(field, field.ready(told(field, case.evidence, kept)))
    np.testing.assert_allclose(a[0], b[0], rtol=1e-8)
    np.testing.assert_allclose(a[1], b[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("unit", "level"), [(1e-6, 0.0), (1e6, 0.0), (1.0, -1e5), (1e3, 1e7)])
def test_neither_unit_nor_level_matters(case: Case, unit: float, level: float) -> None:
    field, d = case.field, case.data
    mean, covariance = beliefs(field, field.ready(case.told))
    moved, scaled = beliefs(field, field.ready(told(field, case.evidence, replace(d, y=unit * d.y + level))))
    spread = np.sqrt(np.abs(covariance).max())
    np.testing.assert_allclose((moved - level) / unit, mean, atol=1e-5 * spread)
    np.testing.assert_allclose(scaled / unit**2, covariance, atol=1e-5 * spread**2)


def test_a_batch_is_its_members_side_by_side(case: Case) -> None:
    field, parts = case.field, [data(case.name, seed=s) for s in range(3)]
    together = field.start(Shape(d=3, K=3, M=METRICS[case.name], H=5), (3,), 6)
    for i in range(len(case.data.y)):
        rows = [p.part(slice(i, i + 1)) for p in parts]
        keys = np.stack([r.keys for r in rows])
        places = {name: keys[..., FACTORS.index(name)] for name in ("user", "group", "member", "block")}
        levels, z = np.stack([r.levels for r in rows]), np.stack([r.z for r in rows])
        unit = Unit(**places, levels=levels, covariates=z)
        outcome = Outcome(vector=np.stack([r.y for r in rows]), observed=np.stack([r.observed for r in rows]))
        together = field.add(together, offer_of(field, unit), keys[..., FACTORS.index("arm")], outcome, int(i % 6))
    together = field.ready(together)
    for j, d in enumerate(parts):
        seasons = d.keys.copy()
        seasons[:, 0] = 5 - np.arange(len(d.y)) % 6
        alone = field.ready(told(field, case.evidence, replace(d, keys=seasons)))
        np.testing.assert_allclose(together.fitted.theta[j], alone.fitted.theta, atol=1e-8)
        np.testing.assert_allclose(together.fitted.covariance[j], alone.fitted.covariance, atol=1e-8)


def test_those_who_join_change_nothing_for_the_others_and_need_no_new_fit(case: Case) -> None:
    """A group, user and level that nobody has seen is like one whose column nobody has touched."""
    field = replace(case.field, growth=10.0)
    known = field.ready(case.told)
    new = Unit(user=np.array([7]), group=np.array([6]), levels=np.array([[5]]), covariates=np.full((1, 2), 0.3))
    before = field.beliefs(known, offer_of(field, new))
    wider = replace(
        known, seen=np.maximum(known.seen, [1, 1, 7, 1, 8, 1, 1, *[6] * len(field.features.categories), 0]), included=-1
    )
    after = field.beliefs(field.ready(wider, variances=False), offer_of(field, new))
    np.testing.assert_allclose(before.mean, after.mean, rtol=1e-8)
    np.testing.assert_allclose(before.covariance, after.covariance, rtol=1e-6, atol=1e-7)
    a, b = beliefs(field, known), beliefs(field, field.ready(wider, variances=False))
    np.testing.assert_allclose(a[0], b[0], rtol=1e-8)
    np.testing.assert_allclose(a[1], b[1], rtol=1e-6, atol=1e-8)


def test_a_user_s_own_effects_are_those_of_a_model_that_keeps_them_in_theta() -> None:
    """Users as clusters, and users as groups that stay in theta, are one model where seasons do not matter."""
    people = Field(kind="people", seasons=False)
    sites = Field(seasons=False)
    shape = Shape(d=3, K=3, M=1, H=5)
    d = data("one metric")
    keys = d.keys.copy()
    keys[:, [FACTORS.index(name) for name in ("season", "block", "member")]] = 0
    keys[:, FACTORS.index("group")] = keys[:, FACTORS.index("user")]
    d = replace(d, keys=keys)
    mine, theirs = (asked(f, f.ready(told(f, f.start(shape, episodes=1), d)), (0, 1, 2, 3, 4)) for f in (people, sites))
    np.testing.assert_allclose(mine.mean, theirs.mean, rtol=1e-8)
    np.testing.assert_allclose(mine.covariance, theirs.covariance, rtol=1e-6)


def test_without_other_families_it_is_the_paper_s_ridge() -> None:
    """Arms alone, known variances: V = lambda I + sum x x' with whitened rows."""
    field, evidence = started("one metric")
    d = replace(data("one metric"), observed=np.ones((40, 1), bool))
    structure, scale, _ = designed(field, told(field, evidence, d))
    structure = replace(structure, families=(Family("arm", ("arm",), variance=4.0),))
    cells = told(field, evidence, d).cells.compact(0)
    design = make_design(structure, cells, scale)
    found = posterior(design, np.array([[4.0]]), np.array([[[0.7]]]))
    x = np.eye(3)[d.of("arm")] / np.sqrt(0.7)
    y = (d.y[:, 0] - scale.centre[0]) / scale.unit[0] / np.sqrt(0.7)
    state = ridge.observe(ridge.init(3, 0.25), x, y, 0.25)
    np.testing.assert_allclose(found.theta[0], state.theta, rtol=1e-9)
    np.testing.assert_allclose(found.covariance[0, :, 0], state.V_inv, rtol=1e-9)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_it_starts_without_data(case: Case, n: int) -> None:
    found = asked(case.field, case.field.ready(told(case.field, case.evidence, case.data.part(np.arange(n)))))
    assert np.isfinite(found.mean).all()
    assert np.isfinite(found.covariance).all()
    size = found.mean[0].size
    assert np.linalg.eigvalsh(found.covariance.reshape(-1, size, size)).min() > 0


def test_before_any_data_it_is_the_fit_of_no_data(case: Case) -> None:
    structure = case.field.structure(case.evidence)
    cells = case.evidence.cells.compact(structure.cluster_place)
    scale = measure(cells, structure)
    design = make_design(structure, cells, scale)
    found = variance_components.fit(structure, design, scale, (), np.zeros(1))
    np.testing.assert_allclose(case.evidence.fitted.nodes, found.nodes, atol=1e-6)
    np.testing.assert_allclose(case.evidence.fitted.theta, found.theta, atol=1e-6)
    np.testing.assert_allclose(case.evidence.fitted.covariance, found.covariance, rtol=1e-6, atol=1e-6)


def test_a_few_constant_outcomes_say_nothing_about_the_noise() -> None:
    field, evidence = started("one metric")
    d = replace(data("one metric"), y=np.full((40, 1), 1e7 / 3)).part(np.arange(7))
    _, covariance = beliefs(field, field.ready(told(field, evidence, d)))
    assert np.diagonal(covariance[0, :, 0, :, 0]).min() > 1e90


def test_variances_stand_still_until_they_are_due() -> None:
    field, evidence = started("one metric")
    d = data("one metric")
    first = field.ready(told(field, evidence, d.part(np.arange(38))))
    more = field.ready(told(field, first, d.part(np.arange(38, 40))))
    np.testing.assert_array_equal(first.fitted.nodes, more.fitted.nodes)
    assert more.fitted_count == 38
    assert field.ready(more) is more


def test_steps_between_fits_agree_with_adding_up_anew(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without averaging a step is exact: any cluster, old or new, in any order, with metrics missing."""
    at_the_mode(monkeypatch)
    field = replace(case.field, growth=10.0, discount=1.0)
    d = case.data
    evidence = field.start(Shape(d=3, K=3, M=METRICS[case.name], H=5), episodes=6)
    first = field.ready(told(field, evidence, d.part(np.arange(30))))
    more = told(field, first, d.part(np.arange(30, 40)))
    quick = field.ready(more)
    anew = field.ready(replace(more, included=-1))
    assert quick.included == more.cells.used
    np.testing.assert_allclose(quick.fitted.theta, anew.fitted.theta, atol=1e-8)
    np.testing.assert_allclose(quick.fitted.covariance, anew.fitted.covariance, atol=1e-8)


@pytest.mark.parametrize(("first", "integrated"), [(40, True), (38, False), (5, False)])
def test_of_very_many_columns_those_without_outcomes_may_be_left_out(
    case: Case, first: int, integrated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether outcomes come at once, are added one by one, or bring columns that none had before."""
    if not integrated:
        at_the_mode(monkeypatch)
    field = replace(case.field, growth=10.0, discount=1.0)
    start = field.start(Shape(d=3, K=3, M=METRICS[case.name], H=5), episodes=6)

    def learned() -> tuple[int, tuple[FloatArray, FloatArray]]:
        evidence = field.ready(told(field, start, case.data.part(np.arange(first))))
        evidence = field.ready(told(field, evidence, case.data.part(np.arange(first, 40))))
        return evidence.fitted.theta.shape[-1], beliefs(field, evidence)

    whole, (mean, covariance) = learned()
    assert whole <= likelihood.MANY_COLUMNS
    monkeypatch.setattr(likelihood, "MANY_COLUMNS", 1)
    part, (again, spread) = learned()
    assert part < whole
    np.testing.assert_allclose(again, mean, atol=1e-6)
    np.testing.assert_allclose(spread, covariance, atol=1e-6 * np.abs(covariance).max())


def test_an_outcome_of_a_new_user_is_a_step_like_any_other() -> None:
    """A user in no group has no columns in theta."""
    shape, d = Shape(d=3, K=3, M=2, H=40), data("users")
    keys = d.keys.copy()
    keys[:, [FACTORS.index("group"), FACTORS.index("user")]] = np.arange(len(keys))[:, None]
    d = replace(d, keys=keys)
    field = replace(MODELS["users"], seasons=False, growth=10.0)
    first = field.ready(told(field, field.start(shape, episodes=6), d.part(np.arange(30))))
    more = told(field, first, d.part(np.arange(30, 40)))
    quick, anew = field.ready(more), field.ready(replace(more, included=-1))
    assert field.structure(quick) is field.structure(first), "no new columns"
    for name in ("theta", "covariance", "each_theta", "each_covariance"):
        np.testing.assert_allclose(getattr(quick.fitted, name), getattr(anew.fitted, name), atol=1e-8, err_msg=name)


def test_outcomes_of_one_person_are_merged_as_they_come() -> None:
    """A long history is a few cells, so that a decision costs no more, and says what all its outcomes say."""
    field = Field(kind="people", promise="alike", seasons=False, growth=10.0)
    evidence, rng = field.start(Shape(d=3, K=3, M=1, H=2), episodes=1), np.random.default_rng(0)
    for i in range(200):
        one = np.array([int(i < 10) * (i % 2)])
        vector = rng.normal(size=(1, 1)) + i % 3
        offer = offer_of(field, Unit(user=one, group=one))
        evidence = field.ready(field.add(evidence, offer, np.array([i % 3]), Outcome(vector=vector)))
    assert evidence.cells.count == 200
    assert evidence.cells.used < 6 + MOST_UPDATES
    anew = field.ready(replace(evidence, included=-1))
    assert anew.fitted_count == evidence.fitted_count, "at the same variances"
    for name in ("each_theta", "each_covariance"):
        np.testing.assert_allclose(getattr(evidence.fitted, name), getattr(anew.fitted, name), atol=1e-8, err_msg=name)


def test_two_futures_of_one_state_do_not_disturb_each_other() -> None:
    """Cells share their arrays with the state they came from."""
    field, evidence = started("one metric")
    d = data("one metric")
    first = told(field, evidence, d.part(np.arange(20)))
    one = told(field, first, d.part(np.arange(20, 30)))
    other = told(field, first, d.part(np.arange(30, 40)))
    alone = told(field, evidence, d.part(np.arange(30)))
    np.testing.assert_array_equal(one.cells.live().mean, alone.cells.live().mean)
    assert other.cells.used == one.cells.used
    assert first.cells.used == 20
    assert (other.cells.live().mean[20:] != one.cells.live().mean[20:]).any()


def test_control_plots_are_outcomes_of_the_control() -> None:
    field, evidence = started("one metric")
    offer = offer_of(field, Unit(user=np.zeros(1, np.intp), group=np.zeros(1, np.intp)))
    both = field.add(evidence, offer, np.array([2]), Outcome(vector=np.array([[5.0]]), control=np.array([[3.0]])))
    apart = field.add(evidence, offer, np.array([2]), Outcome(vector=np.array([[5.0]])))
    apart = field.add(apart, offer, np.array([0]), Outcome(vector=np.array([[3.0]])))
    np.testing.assert_array_equal(both.cells.live().keys, apart.cells.live().keys)
    np.testing.assert_array_equal(both.cells.live().mean, apart.cells.live().mean)


def test_a_discount_is_older_outcomes_that_count_less() -> None:
    field, evidence = started("everything")
    evidence = told(field, evidence, data("everything"))
    structure, _, design = designed(field, evidence)
    x = some_parameters(structure)
    found = posterior(design, structure.parameters.variances(x), structure.parameters.residual(x))
    none = posterior(
        designed(replace(field, discount=1.0), evidence)[2],
        structure.parameters.variances(x),
        structure.parameters.residual(x),
    )
    spread, full = (np.diagonal(f.covariance[0, :, 0]) for f in (found, none))
    assert (spread >= full - 1e-9).all()


def test_a_radius_for_all_times_grows_with_what_was_learned(case: Case) -> None:
    found = asked(case.field, case.field.ready(case.told), (0,))
    size = 3 * METRICS[case.name]
    prior, now = found.prior.reshape(size, size), found.covariance.reshape(size, size)
    assert np.linalg.eigvalsh(prior - now).min() > -1e-6
    fit = as_fit(found, np.zeros((1, 3)), 1, 0.01)
    gained = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(now)[1]
    assert float(fit.radius[0]) ** 2 > gained > 0
    np.testing.assert_allclose(fit.theta[0], found.mean.ravel())


def test_wrong_input_is_refused() -> None:
    field, evidence = started("two metrics, one covariate, noise by arm")
    plain = Offer(features=np.eye(3), control=np.eye(3)[0], user=np.array([1]))
    with pytest.raises(InputError, match="uses 1 covariates: give the offer a unit"):
        field.add(evidence, plain, np.zeros(1, np.intp), Outcome(vector=np.zeros((1, 2))))
    unit = Unit(user=np.zeros(1, np.intp), group=np.zeros(1, np.intp), covariates=np.array([[np.nan]]))
    with pytest.raises(InputError, match="finite"):
        field.add(evidence, offer_of(field, unit), np.zeros(1, np.intp), Outcome(vector=np.zeros((1, 2))))
    with pytest.raises(InputError, match=r"give them as offer\.attributes"):
        Field(attributes=2).add(
            Field(attributes=2).start(Shape(d=3, K=3, M=1, H=1)),
            plain,
            np.zeros(1, np.intp),
            Outcome(vector=np.zeros((1, 1))),
        )
    for settings, words in (
        ({"kind": "forest"}, "kind must be 'field' or 'people'"),
        ({"covariates": ("mood",)}, "a number affects level or effects or noise, got 'mood'"),
        ({"categories": ("noise",)}, "a category affects level or effects, got 'noise'"),
        ({"discount": 0.0}, "discount must be in"),
    ):
        with pytest.raises(ConfigError, match=words):
            Field(**settings)
    assert factors_of(1)[-1] == "category 0"
