"""Other clusters, and one metric at a time: the same likelihood and the same ranges of variances, for less work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.learning.field import cells as field_cells
from drimed.learning.field import profile as field_profile
from drimed.learning.field.learner import Field
from drimed.learning.field.likelihood import counts, slopes
from drimed.learning.field.model import design_of
from drimed.learning.field.profile import Profile, profile
from drimed.learning.field.regrouped import by_label, regrouped, work
from tests.learning.field_models import METRICS, MODELS, by_brute_force, data, designed, started, told
from tests.learning.test_field_profile import known_of
from tests.learning.test_field_variances import somewhere

# The upper ends of the last metric's variances, before anything was regrouped.
ENDS = {
    "one metric": [
        3.66710511, 0.78178395, 0.16617063, 1.27267603, 1.3245826, 0.87545614, -0.04184374, 0.52732469, 0.32899774,
        1.45607976,
    ],
    "two metrics, one covariate, noise by arm": [
        2.3165394, 4.38503667, 1.92843495, 1.83102681, 0.23666813, 1.28424146, -0.27795852, 1.71115485, 2.24392337,
        -0.55691173, 0.61225884, -0.59784766,
    ],
    "users": [
        3.82997738, 1.69886626, 0.8990954, 1.45599489, 1.3208303, 1.00956545, 0.77869692, 1.30747993, -0.29394986,
        1.47367258,
    ],
    "centred": [
        3.6932094, 2.44599462, 0.16084382, 0.61753481, 0.74976054, 0.85798578, 1.56582809, 0.78497776, -0.20038892,
        1.4666712,
    ],
    "some in no group": [  # as groups of one, which they were
        1.79833368, 0.41349062, -1.91376536, -0.54451357, -0.84156356, -0.90894913, -0.42520378, -1.03762338,
        -1.91809569, -0.50655336,
    ],
    "everything": [
        2.71176749, 5.48231277, 2.40034885, 0.8189036, 0.15762995, 0.89079837, 0.28972309, 1.12628005, 0.45431154,
        0.5941198, 0.06165115, -0.03545541, 0.0472744, 1.56443185,
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_whatever_the_clusters_are_the_likelihood_is_that_of_all_outcomes_at_once(name: str) -> None:
    field, evidence = started(name)
    evidence = told(field, evidence, data(name))
    field = replace(field, discount=1.0)  # brute force knows no weights
    structure, scale, design, _ = designed(name, field, evidence)
    x = somewhere(structure)
    v, R = structure.parameters.variances(x), structure.parameters.residual(x)
    before, value = slopes(design, v, R, curvature=True), by_brute_force(structure, evidence, scale, v, R)[0]
    tried = 0
    for label in design.cols.T:
        if len(np.unique(label)) > 1:
            tried += 1
            found = slopes(by_label(design, label), v, R, curvature=True)
            assert found.value == pytest.approx(value, rel=1e-9)
            for new, old in zip(found, before, strict=True):
                np.testing.assert_allclose(new, old, rtol=1e-7, atol=1e-8)
    assert tried > 1


@pytest.mark.parametrize("name", MODELS)
def test_one_metric_s_slopes_are_its_part_of_all_slopes(name: str) -> None:
    field, evidence = started(name)
    structure, _, design, _ = designed(name, field, told(field, evidence, data(name)))
    parameters, x, M = structure.parameters, somewhere(structure), METRICS[name]
    v, R = parameters.variances(x), parameters.residual(x)
    whole = slopes(design, v, R, curvature=True)
    each = np.repeat(v[None], M, 0), np.repeat(R[None], M, 0)
    some = slopes(design, *each, curvature=True, metric=np.arange(M))
    gradient, H = parameters.gradient(x, whole)[: parameters.uncertain], parameters.curvature(whole)
    by_unit, bent = parameters.gradient_by_unit(some, counts(design, M)), parameters.curvature(some)
    learned = len(parameters.learned)
    for m in range(M):
        own = np.append(np.arange(m * learned, (m + 1) * learned), M * learned + m)
        np.testing.assert_array_equal(some.value[m], whole.value)
        np.testing.assert_allclose(by_unit[m], gradient, atol=1e-9)
        np.testing.assert_allclose(bent[m][np.ix_(own, own)], H[np.ix_(own, own)], atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_ends_of_ranges_are_what_they_were(name: str) -> None:
    field, evidence = started(name, replace(MODELS[name], chances=False))
    structure, _, design, _ = designed(name, field, told(field, evidence, data(name)))
    found = profile(structure.parameters, design, structure.parameters.centre, 0.95)
    np.testing.assert_allclose(found.high[-1], ENDS[name], atol=1e-6)
    some = profile(structure.parameters, design, structure.parameters.centre, 0.95, asked=[1, len(ENDS[name]) - 1])
    for part, whole in zip(some, found, strict=True):
        np.testing.assert_array_equal(part, whole[:, [1, -1]])


@pytest.mark.parametrize("metrics", [1, 2])
def test_many_sites_are_the_clusters_and_the_ranges_stay(metrics: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    season, user = (a.ravel() for a in np.meshgrid(np.arange(4), np.repeat(np.arange(20), 2), indexing="ij"))
    arm = rng.integers(0, 3, len(user))
    level = rng.normal(size=(20, metrics))[user] + 2 * rng.normal(size=(4, metrics))[season]
    known = known_of(Field(), user, season, arm, 60 + level + arm[:, None] + rng.normal(size=(len(user), metrics)))
    structure = known.structure
    cells = field_cells.compact(known.evidence.cells, structure.cluster_place)
    design = design_of(structure, cells, known.scale, 1.0)
    by_site = regrouped(design)
    assert (len(design.start) - 1, len(by_site.start) - 1) == (4, 20)
    assert work(by_site) < 0.5 * work(design)

    def ranges() -> Profile:
        return profile(structure.parameters, design, known.evidence.learned.mode, 0.95)

    found = ranges()
    monkeypatch.setattr(field_profile, "regrouped", lambda design: design)
    before = ranges()
    np.testing.assert_array_equal(found.told, before.told)
    for new, old in ((found.best, before.best), (found.low, before.low), (found.high, before.high)):
        np.testing.assert_allclose(new, old, atol=1e-8)


def test_a_trial_without_choice_stays_as_it_is() -> None:
    field, evidence = started("one metric")
    _, _, design, _ = designed("one metric", field, told(field, evidence, data("one metric").part(slice(1))))
    assert regrouped(design) is design
