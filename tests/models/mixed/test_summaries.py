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
from tests.models.mixed.examples import METRICS, MODELS, at_the_mode, data, offer_of, started, told


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
    return Case(name, FittedModel.of(field, told(field, evidence, data(name))), offers)


def by_brute_force(
    known: FittedModel, offers: Offer, weights: FloatArray, units: str = "each", season: int | None = None,
    later: BoolArray | None = None, nodes: FloatArray | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Mean and deviation of a weighted sum (n, K, M) of mean outcomes, from the covariance of all outcomes at once."""
    structure, scale = known.structure, known.scale
    common, own, raw = structure.common, structure.own, data_of(known)
    n, M, c = len(raw.pattern), structure.metrics, structure.covariates
    standard = (raw.values - scale.centre) / scale.unit
    z, y, who = standard[:, :c], standard[:, c:], raw.keys[:, structure.cluster_place]
    there = ((raw.pattern[:, None] >> np.arange(M)) & 1).astype(bool)
    if later is not None:
        there = there & ~later[:, None]
    keys, covariates = known.learner.features.prediction_rows(offers, 0 if season is None else season)
    common = replace(common, sizes=tuple(np.maximum(common.sizes, 1 + keys.max((0, 1))).tolist()))
    X, Z = common.rows(raw.keys, z), own.rows(raw.keys, z)
    zs, w = scale.standardise(covariates), weights * known.unit
    x = np.einsum("hkm,hkp->mp", w, common.rows(keys, zs, average_season=season is None))
    theirs = own.rows(structure.with_unseen(keys), zs, average_season=season is None)
    if structure.cluster == "season":
        theirs = 0.0 * theirs
    by_cluster: dict[int, FloatArray] = {
        int(i): np.zeros((M, len(own.family))) for i in keys[:, 0, structure.cluster_place]
    }
    for h, i in enumerate(keys[:, 0, structure.cluster_place].tolist()):
        by_cluster[i] = by_cluster[i] + np.einsum("km,kq->mq", w[h], theirs[h]) * (units != "average")
    means, variances = [], []
    for node in known.evidence.fitted.nodes if nodes is None else nodes:
        v, R = structure.parameters.variances(node), structure.parameters.residual(node)

        def posterior(of_theta: float, v: FloatArray = v, R: FloatArray = R) -> tuple[float, float]:
            C, k, prior = np.zeros((n, M, n, M)), np.zeros((n, M)), 0.0
            for m in range(M):
                vx, vz = of_theta * v[m, common.family], v[m, own.family]
                C[:, m, :, m] = (X * vx) @ X.T + (Z * vz) @ Z.T * (who[:, None] == who)
                k[:, m] = (X * vx) @ x[m]
                prior += float(x[m] ** 2 @ vx)
                for i, u in by_cluster.items():
                    k[:, m] += (Z * vz) @ u[m] * (who == i)
                    prior += float(u[m] ** 2 @ vz)
            for i, g in enumerate(structure.noise_group(raw.keys)):
                C[i, :, i] += R[g]
            flat = there.ravel()
            gain = np.linalg.solve(C.reshape(n * M, n * M)[np.ix_(flat, flat)], k.ravel()[flat])
            return float(gain @ y.ravel()[flat]), prior - float(gain @ k.ravel()[flat])

        mean, variance = posterior(1.0)
        means.append(mean)
        variances.append(variance - (posterior(0.0)[1] if units == "alike" else 0.0))  # of own effects, given theta
    offset = float((weights * known.centre).sum())
    total = float(np.mean(variances) + np.var(means))
    return offset + float(np.mean(means)), float(np.sqrt(max(total, 0.0)))


def data_of(known: FittedModel) -> Rows:
    """The outcomes one by one, as rows."""
    name = _name(known)
    cells = told(known.learner, started(name, known.learner)[1], data(name)).cells.live()  # nothing is merged yet
    return Rows(cells.keys, cells.pattern, cells.mean)


def _name(known: FittedModel) -> str:
    return next(name for name, field in MODELS.items() if replace(field, discount=1.0) == known.learner)


def contrast(case: Case, h: int, k: int, on: int) -> FloatArray:
    """Weights of one user's effect of an arm on the reward (0) or on a metric: (n, K, M)."""
    offers, M = case.offers, case.known.structure.metrics
    assert offers.preference is not None
    weights = np.zeros((len(offers.control), 3, M))
    measure = offers.preference[h] if on == 0 else np.eye(M)[on - 1]
    weights[h] = (np.eye(3)[k] - offers.control[h])[:, None] * measure
    return weights


def test_effects_of_several_users_are_the_mean_of_theirs(case: Case) -> None:
    """Against each one's own control, with users of a group that nobody has seen, on the reward and a metric."""
    known, offers = case.known, case.offers
    found = effects.effects_together(known, offers, case.everybody)
    units = "average" if known.learner.promise == "alike" else "each"
    for k in range(3):
        for on in range(1 + known.structure.metrics):
            weights = np.mean([contrast(case, h, k, on) for h in range(4)], axis=0)
            mean, deviation = by_brute_force(known, offers, weights, units)
            assert found.mean[k, on] == pytest.approx(mean, abs=1e-4)
            assert found.deviation[k, on] == pytest.approx(deviation, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("units", ["each", "alike", "average"])
def test_a_sum_is_of_units_themselves_of_units_alike_or_of_average_units(case: Case, units: str) -> None:
    known, offers = case.known, case.offers
    if known.structure.cluster == "season" and units == "alike":
        pytest.skip("units alike need units as clusters")
    weights = np.stack([contrast(case, 0, 1, 0) + contrast(case, 3, 2, 0), 0.3 + contrast(case, 1, 0, 1)])
    found = known.posterior([(offers, weights)], units)
    split = [(offers.take([h]), weights[:, h : h + 1]) for h in range(4)]
    np.testing.assert_allclose(known.posterior(split, units).deviation, found.deviation, rtol=1e-8)
    for i in range(2):
        mean, deviation = by_brute_force(known, offers, weights[i], units)
        assert found.mean[i] == pytest.approx(mean, abs=1e-3)
        assert found.deviation[i] == pytest.approx(deviation, rel=1e-4, abs=1e-5)


def test_either_factor_may_be_eliminated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seasons or sites: one model, at the same variances."""
    at_the_mode(monkeypatch)
    field, evidence = started("one metric", Field(covariates=1))
    offers = offers_of(field, 1)
    seasons = FittedModel.of(field, told(field, evidence, data("one metric")))
    sites = FittedModel.of(replace(field, promise="alike"), replace(seasons.evidence, included=-1))
    assert (seasons.structure.cluster, sites.structure.cluster) == ("season", "group")
    weights = np.random.default_rng(0).normal(size=(5, 4, 3, 1))
    one, other = (model.posterior([(offers, weights)], "each") for model in (seasons, sites))
    for name in ("mean", "deviation", "prior"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-6, atol=1e-6, err_msg=name)


def test_effects_of_one_user_are_those_of_the_offer(case: Case) -> None:
    """With all that is its own: for units that are clusters that is more than what is common to all."""
    known, offers = case.known, case.offers
    found = effects.effects_of_users(known, offers)
    for h in range(4):
        for k in range(3):
            mean, deviation = by_brute_force(known, offers, contrast(case, h, k, 0), known.learner.promise)
            assert found.mean[h, k, 0] == pytest.approx(mean, abs=1e-4)
            assert found.deviation[h, k, 0] == pytest.approx(deviation, rel=1e-4, abs=1e-5)


def test_effects_in_parts_are_those_of_the_whole(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many arms and users, some are computed at a time."""
    known, offers = case.known, case.offers

    def computed() -> list[FloatArray]:
        together = effects.effects_together(known, offers, case.everybody)
        return [
            *known.learner.beliefs(known.evidence, offers).covariance,
            *effects.effects_of_users(known, offers),
            *together,
        ]

    whole = computed()
    monkeypatch.setattr("drimed.models.mixed.prediction.NUMBERS_AT_ONCE", 1)
    for one, other in zip(computed(), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)


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
    known = FittedModel.of(field, evidence)
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


def test_levels_of_groups_and_seasons_agree_with_brute_force(case: Case) -> None:
    known, offers, M = case.known, case.offers, case.known.structure.metrics
    units = "average" if known.learner.promise == "alike" else "each"
    found = summaries.group_levels(known, offers, [[0, 1], [3]])
    for i, some in enumerate(([0, 1], [3])):
        for m in range(M):
            weights = np.zeros((4, 3, M))
            weights[some, :, m] = offers.control[some] / len(some)
            mean, deviation = by_brute_force(known, offers, weights, units)
            assert found.mean[i, m] == pytest.approx(mean, abs=1e-3)
            assert found.deviation[i, m] == pytest.approx(deviation, rel=1e-3)
    seasons, levels = summaries.season_levels(known, offers)
    assert seasons.tolist() == list(range(6))
    if known.structure.cluster != "season":
        weights = np.zeros((4, 3, M))
        weights[..., 0] = offers.control / 4
        mean, deviation = by_brute_force(known, offers, weights, "average", season=4)
        assert levels.mean[4, 0] == pytest.approx(mean, abs=1e-3)
        assert levels.deviation[4, 0] == pytest.approx(deviation, rel=1e-3)


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
    known = FittedModel.of(field, told(field, evidence, data(name)))
    everybody = np.ones((4, 3), bool)
    values = np.array([-1.0, 0.5, 2.0])
    found = summaries.effects_at(known, offers, "covariates", 0, values, everybody)
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
    known = FittedModel.of(field, told(field, evidence, data("everything")))
    everybody = np.ones((4, 3), bool)
    found = summaries.effects_at(known, offers, "levels", 0, range(3), everybody)
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
    v, R = (f(x[0]) for f in (known.structure.parameters.variances, known.structure.parameters.residual))
    X, Z = (layout.rows(rows.keys, standard[:, :c]) for layout in (known.structure.common, known.structure.own))
    who, flat = rows.keys[:, known.structure.cluster_place], there.ravel()
    C = np.zeros((len(found), M, len(found), M))
    for m in range(M):
        C[:, m, :, m] = (X * v[m, known.structure.common.family]) @ X.T
        C[:, m, :, m] += (Z * v[m, known.structure.own.family]) @ Z.T * (who[:, None] == who)
    for i, g in enumerate(known.structure.noise_group(rows.keys)):
        C[i, :, i] += R[g]
    C, y = C.reshape(len(flat), -1)[np.ix_(flat, flat)], standard[:, c:].ravel()[flat]
    for i in (7, 23, len(y) - 1):
        gain = np.linalg.solve(C[:i, :i], C[:i, i])
        wanted = (y[i] - gain @ y[:i]) / np.sqrt(C[i, i] - gain @ C[:i, i])
        assert found.ravel()[flat][i] == pytest.approx(wanted, abs=1e-5)


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
            keys = np.vstack([keys, [now, 0, h, 0, h, a, 0]])
            y.append([value])
    evidence = field.ready(evidence)
    rows = make_rows(keys, np.zeros((len(y), 0)), np.array(y), None, (len(FACTORS), 0, 1))
    found = whitened_residuals(field, evidence, rows)[1:, 0]
    n = len(found)
    assert abs((found**2).mean() - 1) < 3.9 * np.sqrt(2 / n)
    assert abs(found.mean()) < 3.9 / np.sqrt(n)
    assert abs((found[1:] * found[:-1]).mean()) < 3.9 / np.sqrt(n)
