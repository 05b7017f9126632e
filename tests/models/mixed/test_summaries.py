"""What is reported of a field model, against the covariance of all outcomes and what is sought at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from drimed.models.mixed import effects, summaries
from drimed.models.mixed.effects import FittedModel
from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.mixed.observations import UNKNOWN, Rows, make_rows
from drimed.models.mixed.summaries import whitened_residuals
from drimed.models.mixed.terms import FACTORS, category
from drimed.models.offer import Offer, Outcome, Shape, Unit
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray
from tests.models.mixed.examples import METRICS, MODELS, data, offer_of, started, told


@dataclass(frozen=True)
class Case:
    name: str
    known: FittedModel
    offers: Offer

    @property
    def everybody(self) -> BoolArray:
        return np.ones((len(self.offers.control), 3), bool)


def offers_of(field: Field, metrics: int, *, groups: tuple[int, ...] = (0, 1, 2, 5)) -> Offer:
    """Users with different controls, preferences and covariates; nobody has seen group 5."""
    n = len(groups)
    rng = np.random.default_rng(9)
    unit = Unit(
        user=np.arange(n), group=np.array(groups), levels=np.arange(n)[:, None] % 2, covariates=rng.normal(size=(n, 2))
    )
    control = np.array([[1.0, 0, 0], [0, 1, 0], [0.5, 0.5, 0], [1, 0, 0]])[:n]
    return replace(offer_of(field, unit), control=control, preference=rng.normal(size=(n, metrics)), user=np.arange(n))


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    name = request.param
    field, evidence = started(name, replace(MODELS[name], discount=1.0))
    offers = offers_of(field, METRICS[name])
    return Case(name, effects.extend_to(field, told(field, evidence, data(name)), offers), offers)


def by_brute_force(
    known: FittedModel, on_theta: FloatArray, on_own: FloatArray | None = None, cluster: int = -1,
    without: BoolArray | None = None, nodes: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Mean and deviation, in standardised units, of rows (M, P) on theta and (M, q) on one cluster's effects."""
    structure, evidence = known.structure, known.evidence
    scale, layout, own = known.scale, known.layout, structure.own
    raw = data_of(known)
    n, M, c = len(raw.pattern), structure.metrics, structure.covariates
    standard = (raw.values - scale.centre) / scale.unit
    z, y = standard[:, :c], standard[:, c:]
    X, Z, who = layout.rows(raw.keys, z), own.rows(raw.keys, z), raw.keys[:, structure.cluster_place]
    there = ((raw.pattern[:, None] >> np.arange(M)) & 1).astype(bool)
    if without is not None:
        there = there & ~without[:, None]
    means, variances = [], []
    for x in evidence.fitted.nodes if nodes is None else nodes:
        v, R = structure.parameters.variances(x), structure.parameters.residual(x)
        C, k, prior = np.zeros((n, M, n, M)), np.zeros((n, M)), 0.0
        for m in range(M):
            C[:, m, :, m] = (X * v[m, layout.family]) @ X.T
            C[:, m, :, m] += (Z * v[m, own.family]) @ Z.T * (who[:, None] == who)
            k[:, m] = (X * v[m, layout.family]) @ on_theta[m]
            prior += float(on_theta[m] ** 2 @ v[m, layout.family])
            if on_own is not None:
                k[:, m] += (Z * v[m, own.family]) @ on_own[m] * (who == cluster)
                prior += float(on_own[m] ** 2 @ v[m, own.family])
        for i, g in enumerate(structure.noise.of(raw.keys)):
            C[i, :, i] += R[g]
        flat = there.ravel()
        C_seen = C.reshape(n * M, n * M)[np.ix_(flat, flat)]
        gain = np.linalg.solve(C_seen, k.ravel()[flat])
        means.append(gain @ y.ravel()[flat])
        variances.append(prior - gain @ k.ravel()[flat])
    return np.mean(means), np.sqrt(np.mean(variances) + np.var(means))


def data_of(known: FittedModel) -> Rows:
    """The outcomes one by one, as rows."""
    name = _name(known)
    cells = told(known.learner, started(name, known.learner)[1], data(name)).cells.live()  # nothing is merged yet
    return Rows(cells.keys, cells.pattern, cells.mean)


def _name(known: FittedModel) -> str:
    return next(name for name, field in MODELS.items() if replace(field, discount=1.0) == known.learner)


def test_effects_of_several_users_are_the_mean_of_their_rows(case: Case) -> None:
    """Against each one's own control, with users of a group that nobody has seen, on the reward and a metric."""
    known, offers = case.known, case.offers
    found = effects.effects_together(known, offers, case.everybody)
    X = known.effect_rows(offers)  # (H, K, P)
    assert offers.preference is not None
    on_reward = np.einsum("hm,hkp->kmp", offers.preference * known.unit, X) / len(X)
    M = known.structure.metrics
    for k in range(3):
        for on in range(1 + M):
            rows = on_reward[k] if on == 0 else np.eye(M)[on - 1, :, None] * known.unit[on - 1] * X[:, k].mean(0)
            mean, deviation = by_brute_force(known, rows)
            assert found.mean[k, on] == pytest.approx(mean, abs=1e-4)
            assert found.deviation[k, on] == pytest.approx(deviation, rel=1e-4, abs=1e-5)


def test_effects_of_one_user_are_those_of_the_offer(case: Case) -> None:
    """With all that is its own: for people that is more than what is common to all."""
    known, offers = case.known, case.offers
    found = effects.effects_of_users(known, offers)
    keys, z = known.prediction_rows(offers)
    people = known.structure.cluster == "user"
    assert offers.preference is not None
    for h in range(4):
        standard = (z[h] - known.scale.centre[: z.shape[-1]]) / known.scale.unit[: z.shape[-1]]
        X, Z = known.layout.rows(keys[h], standard), known.structure.own.rows(keys[h], standard)
        for k in range(3):
            weight = (offers.preference[h] * known.unit)[:, None]
            rows, own = (weight * (A[k] - offers.control[h] @ A) for A in (X, Z))
            mean, deviation = by_brute_force(known, rows, own if people else None, h)
            assert found.mean[h, k, 0] == pytest.approx(mean, abs=1e-4)
            assert found.deviation[h, k, 0] == pytest.approx(deviation, rel=1e-4, abs=1e-5)


def test_an_arm_counts_for_those_who_can_get_it(case: Case) -> None:
    known, offers = case.known, case.offers
    possible = case.everybody
    possible[1:, 2] = False
    found = effects.effects_together(known, offers, possible)
    alone = effects.effects_together(known, offers.take([0]), case.everybody[:1])
    whole = effects.effects_together(known, offers, case.everybody)
    np.testing.assert_allclose(found.mean[2], alone.mean[2])
    np.testing.assert_allclose(found.deviation[:2], whole.deviation[:2])


def test_ranges_are_the_posteriors_and_those_of_all_times(case: Case) -> None:
    found = effects.effects_of_users(case.known, case.offers)
    low, high = found.likely
    np.testing.assert_allclose(high - low, 2 * probability.student_quantile(0.975, found.freedom) * found.deviation)
    first, last = found.at_all_times(0.05)
    open_ = found.deviation > 0
    wanted = effects.anytime_range(found.mean[open_], found.deviation[open_] ** 2, found.prior[open_] ** 2, 0.05)
    np.testing.assert_allclose(first[open_], np.maximum(wanted[0], -UNKNOWN))
    np.testing.assert_allclose(last[open_], np.minimum(wanted[1], UNKNOWN))
    assert (first[~open_] == 0).all()
    assert (last[~open_] == 0).all()
    assert (~open_).any(), "the control against itself"


def test_before_any_outcome_nothing_is_known() -> None:
    field, evidence = started("one metric")
    offers = offers_of(field, 1)
    known = effects.extend_to(field, evidence, offers)
    for found in (
        effects.effects_together(known, offers, np.ones((4, 3), bool)),
        effects.effects_of_users(known, offers),
    ):
        low, high = found.at_all_times()
        assert low.min() == -UNKNOWN
        assert high.max() == UNKNOWN
        assert np.isfinite(low).all()


def test_components_are_of_all_families_that_stand_alone(case: Case) -> None:
    found = {c.family: c for c in summaries.components(case.known)}
    parameters = case.known.structure.parameters
    names = [parameters.families[number].name for number in parameters.learned]
    assert list(found) == [n for n in names if "covariate" not in n and n not in ("attribute", "chance")] + [
        summaries.RESIDUAL
    ]
    for c in found.values():
        assert c.deviation.shape == c.low.shape == c.high.shape == c.told.shape == (parameters.metrics,)
        assert (c.low < c.high).all()
        assert (c.deviation < c.high).all()


def test_levels_of_groups_agree_with_brute_force(case: Case) -> None:
    known, offers = case.known, case.offers
    found = summaries.group_levels(known, offers, [[0, 1], [3]])
    keys, z = known.prediction_rows(offers)
    X = np.einsum("hk,hkp->hp", offers.control, known.rows(keys, z, without=("season",)))
    for i, some in enumerate(([0, 1], [3])):
        for m in range(known.structure.metrics):
            rows = np.eye(known.structure.metrics)[m, :, None] * known.unit[m] * X[some].mean(0)
            mean, deviation = by_brute_force(known, rows)
            assert found.mean[i, m] == pytest.approx(known.centre[m] + mean, abs=1e-3)
            assert found.deviation[i, m] == pytest.approx(deviation, rel=1e-3)


def test_levels_of_seasons_agree_with_brute_force(case: Case) -> None:
    known = case.known
    offers = offers_of(known.learner, known.structure.metrics, groups=(0, 1, 2, 3))
    seasons, found = summaries.season_levels(known, offers)
    assert seasons.tolist() == list(range(6))
    keys, z = known.prediction_rows(offers)
    standard = (z - known.scale.centre[: z.shape[-1]]) / known.scale.unit[: z.shape[-1]]
    M = known.structure.metrics
    for season in (0, 4):
        keys[..., 0] = season
        X = np.einsum("hk,hkp->p", offers.control, known.layout.rows(keys, standard)) / 4
        Z = np.einsum("hk,hkq->q", offers.control, known.structure.own.rows(keys, standard)) / 4
        blocks = [k for k, f in enumerate(known.structure.families) if f.name == "block"]
        Z[np.isin(known.structure.own.family, blocks)] = 0
        for m in range(M):
            weight = np.eye(M)[m, :, None] * known.unit[m]
            own = weight * Z if known.structure.cluster == "season" else None
            mean, deviation = by_brute_force(known, weight * X, own, season)
            assert found.mean[season, m] == pytest.approx(known.centre[m] + mean, abs=1e-3)
            assert found.deviation[season, m] == pytest.approx(deviation, rel=1e-3)


def test_a_season_is_shown_as_its_outcomes_met_it(case: Case) -> None:
    """A covariate and a category as each of its outcomes had them: the mean over these, for all users alike."""
    known, d = case.known, data(case.name)
    offers = offers_of(known.learner, known.structure.metrics, groups=(0, 1, 2, 3))
    reading = known.learner.features
    numbers, categories = [0][: len(reading.covariates)], [0][: len(reading.categories)]
    seasons, found = summaries.season_levels(known, offers, numbers, categories)
    assert offers.unit is not None
    for season in (0, 4):
        wanted = []
        for i in np.flatnonzero(d.of("season") == season):
            unit = offers.unit
            if numbers:
                assert unit.covariates is not None
                z = unit.covariates.copy()
                z[:, 0] = d.z[i, 0]
                unit = replace(unit, covariates=z)
            if categories:
                unit = replace(unit, levels=np.full((4, 1), d.levels[i]))
            wanted.append(summaries.season_levels(known, replace(offers, unit=unit))[1].mean[season])
        np.testing.assert_allclose(found.mean[season], np.mean(wanted, 0), rtol=1e-9)
    assert seasons.tolist() == list(range(6))
    plain = summaries.season_levels(known, offers)[1].mean
    assert np.allclose(plain, found.mean) == (not numbers and not categories)


def test_a_line_along_a_covariate_is_the_effect_at_each_value() -> None:
    name = "two metrics, one covariate, noise by arm"
    field, evidence = started(name)
    offers = offers_of(field, 2)
    known = effects.extend_to(field, told(field, evidence, data(name)), offers)
    everybody = np.ones((4, 3), bool)
    values = np.array([-1.0, 0.5, 2.0])
    found = summaries.effects_along(known, offers, 0, values, everybody)
    assert offers.unit is not None
    for i, value in enumerate(values):
        there = replace(offers, unit=replace(offers.unit, covariates=np.full((4, 1), value)))
        wanted = effects.effects_together(known, there, everybody)
        np.testing.assert_allclose(found.mean[i], wanted.mean)
        np.testing.assert_allclose(found.deviation[i], wanted.deviation)
    slopes = np.diff(found.mean[:, 1, 0]) / np.diff(values)
    assert slopes[0] == pytest.approx(slopes[1])
    assert slopes[0] != pytest.approx(0.0)


def test_levels_of_a_category_have_effects_of_their_own() -> None:
    field, evidence = started("everything")
    offers = offers_of(field, 1)
    known = effects.extend_to(field, told(field, evidence, data("everything")), offers)
    everybody = np.ones((4, 3), bool)
    found = summaries.effects_by_level(known, offers, 0, 3, everybody)
    assert offers.unit is not None
    for level in range(3):
        there = replace(offers, unit=replace(offers.unit, levels=np.full((4, 1), level)))
        np.testing.assert_allclose(found.mean[level], effects.effects_together(known, there, everybody).mean)
    assert category(0) in known.structure.factors


def test_residuals_are_one_step_ahead(case: Case) -> None:
    """Each outcome minus its expectation given those before it, over the deviation that is left."""
    known = case.known
    rows = data_of(known)
    found = whitened_residuals(known.learner, known.evidence, rows)
    M, c = known.structure.metrics, known.structure.covariates
    there = ((rows.pattern[:, None] >> np.arange(M)) & 1).astype(bool)
    assert (np.isnan(found) == ~there).sum() == found.size - M, "all but the first of each metric"
    x = known.evidence.fitted.mode[None]
    standard = (rows.values - known.scale.centre) / known.scale.unit
    X = known.layout.rows(rows.keys, standard[:, :c])
    Z = known.structure.own.rows(rows.keys, standard[:, :c])
    R = known.structure.parameters.residual(x[0])[known.structure.noise.of(rows.keys)]
    for i in (7, 23, 39):
        later = np.arange(len(rows.pattern)) >= i
        row = np.eye(M)[0, :, None] * X[i], np.eye(M)[0, :, None] * Z[i]
        cluster = int(rows.keys[i, known.structure.cluster_place])
        mean, deviation = by_brute_force(known, *row, cluster, without=later, nodes=x)
        if there[i, 0]:
            wanted = (standard[i, c] - mean) / np.sqrt(deviation**2 + R[i, 0, 0])
            assert found[i, 0] == pytest.approx(wanted, abs=1e-5)


def test_residuals_of_a_right_model_are_standard_normal() -> None:
    """Sites and seasons, 6 x 2 outcomes in each of 20 seasons. At this seed; by chance 1 in 10,000 would fail."""
    rng = np.random.default_rng(2)
    field, L, S = Field(), 20, 6
    evidence: FieldEvidence = field.start(Shape(d=3, K=3, M=1, H=S))
    site, season, effect = 12 * rng.normal(size=S), 17 * rng.normal(size=L), 5 * rng.normal(size=(S, 3))
    keys, y = np.zeros((0, len(FACTORS)), np.intp), []
    for now in range(L):
        evidence = field.age(evidence)
        for h in np.tile(np.arange(S), 2):
            a = int(rng.integers(3))
            value = 60 + site[h] + season[now] + effect[h, a] + 10 * rng.normal()
            offer = Offer(features=np.eye(3), control=np.eye(3)[0], unit=Unit(user=np.array([h]), group=np.array([h])))
            evidence = field.add(evidence, offer, np.array([a]), Outcome(vector=np.array([[value]])))
            keys = np.vstack([keys, [now, 0, h, h, a, 0]])
            y.append([value])
    evidence = field.ready(evidence)
    rows = make_rows(keys, np.zeros((len(y), 0)), np.array(y), None, (len(FACTORS), 0, 1))
    found = whitened_residuals(field, evidence, rows)[1:, 0]
    n = len(found)
    assert abs((found**2).mean() - 1) < 3.9 * np.sqrt(2 / n)
    assert abs(found.mean()) < 3.9 / np.sqrt(n)
    assert abs((found[1:] * found[:-1]).mean()) < 3.9 / np.sqrt(n)
