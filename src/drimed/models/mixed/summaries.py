"""Summaries of a fitted mixed model: variance components, levels of sites and seasons, effects by covariate, residuals.

Shapes: n users, K arms, M metrics, O = 1 + M measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from drimed.errors import InputError
from drimed.models.mixed import posterior_draws
from drimed.models.mixed.effects import LIKELY, EffectPosterior, FittedModel, effects_together
from drimed.models.mixed.generalised import DRAWS
from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.mixed.observations import Cells, Rows
from drimed.models.mixed.prediction import Belief, parts_of
from drimed.models.mixed.terms import FACTORS, RESIDUAL_SD
from drimed.models.offer import Offer, Unit
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray

RESIDUAL = "residual"
NEGLIGIBLE = 0.1  # of the noise's deviation: a range that reaches below it begins at 0
MOST_PRIOR = 0.8  # of the prior's deviation: a log variance that is less uncertain is known from the outcomes
ENOUGH = 2  # values of a factor from which on a family that varies with it can be told from others
MOST = 2000  # values whose covariance is factorised
GROUPS_AT_ONCE = 64


@dataclass(frozen=True)
class Component:
    """Variance component of a family, as standard deviations in the units of the metrics: (M,) each."""

    family: str  # by its name in the model, or RESIDUAL
    deviation: FloatArray  # the most plausible one
    low: FloatArray  # the 95 % range; 0 where it may be negligible
    high: FloatArray
    told: BoolArray  # whether the outcomes tell it, beyond the prior


def components(model: FittedModel) -> list[Component]:
    """Of every intercept family whose factors have several values, and of the noise.

    The posterior of a log variance is taken as normal around its mode (Laplace).
    """
    fitted, parameters, M = model.evidence.fitted, model.structure.parameters, model.structure.metrics
    k = len(parameters.learned)
    spreads = [parameters.families[number].spread for number in parameters.learned] * M + [RESIDUAL_SD] * M
    told = fitted.deviation[: len(spreads)] < MOST_PRIOR * np.array(spreads)
    R = parameters.residual(fitted.mode)  # (g, M, M), of which a parameter is the scale
    places = {RESIDUAL: M * k + np.arange(M)}
    log_scale = np.log(np.diagonal(R, axis1=-2, axis2=-1).mean(0)) - fitted.mode[places[RESIDUAL]]
    noise = model.unit * np.exp(0.5 * (log_scale + fitted.mode[places[RESIDUAL]]))
    cells = model.evidence.cells.live()
    values = {f: len(np.unique(cells.keys[cells.n > 0, i])) for i, f in enumerate(model.structure.factors)}
    for i, number in enumerate(parameters.learned):
        family = parameters.families[number]
        shown = family.slopes is None or family.name.endswith(" x dose")
        if shown and all(values[name] >= ENOUGH for name in family.by):
            places[family.name] = i + k * np.arange(M)
    parts = []
    for name, at in sorted(places.items(), key=lambda item: int(item[1][0])):
        mode = fitted.mode[at] + (log_scale if name == RESIDUAL else 0.0)
        half = probability.student_quantile(0.5 + LIKELY / 2, np.inf) * fitted.deviation[at]
        best, low, high = (model.unit * np.exp(0.5 * x) for x in (mode, mode - half, mode + half))
        parts.append(Component(name, best, np.where(low < NEGLIGIBLE * noise, 0.0, low), high, told[at]))
    return parts


def outcomes(model: FittedModel, factor: str) -> FloatArray:
    """Number of outcomes for each value of a factor and each arm: (values, K)."""
    cells = model.evidence.cells.live()
    places = FACTORS.index(factor), FACTORS.index("arm")
    cells = cells.at(np.flatnonzero(cells.keys[:, places[0]] >= 0))
    value, arm = (cells.keys[:, place] for place in places)
    counts = np.zeros((int(value.max(initial=-1)) + 1, model.structure.arms))
    np.add.at(counts, (value, arm), cells.n)
    return counts


def span(model: FittedModel, covariate: int) -> tuple[float, float]:
    """The least and the largest value of a covariate among the outcomes."""
    cells = model.evidence.cells.live()
    values = cells.mean[cells.n > 0, covariate]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def effects_at(
    model: FittedModel, offers: Offer, field: str, number: int, values: Iterable[float], possible: BoolArray
) -> EffectPosterior:
    """Effects for these users together if a covariate or category had each of these values for all: (values, K, O).

    `field` is that of the unit, "covariates" or "levels", and `number` the place there.
    """
    unit, parts = _unit(offers), []
    for value in values:
        changed: dict[str, Any] = {field: _with(getattr(unit, field), number, value)}
        parts.append(effects_together(model, replace(offers, unit=replace(unit, **changed)), possible))
    return EffectPosterior.join(parts, new_axis=True)


def _with(values: Any, place: Any, value: Any) -> Any:
    """A copy with one column, or several, set to a value."""
    copy = np.array(values)
    copy[..., place] = value
    return copy


def _unit(offers: Offer) -> Unit:
    if offers.unit is None:
        raise InputError("effects by a covariate need offers with units")
    return offers.unit


def group_levels(model: FittedModel, offers: Offer, members: Sequence[Sequence[int]]) -> EffectPosterior:
    """The mean outcome of groups of users under their own controls in an average season: (groups, M)."""
    units = "average" if model.learner.promise == "alike" else "each"
    levels = []
    for first in range(0, len(members), GROUPS_AT_ONCE):
        some = members[first : first + GROUPS_AT_ONCE]
        theirs = offers.take([h for group in some for h in group])
        group = np.repeat(np.arange(len(some)), [len(group) for group in some])
        share = (group == np.arange(len(some))[:, None]) / np.bincount(group)[:, None]  # (groups, n)
        levels.append(_mean_outcomes(model, [(share, theirs)], units))
    return EffectPosterior.join(levels)


def season_levels(
    model: FittedModel, offers: Offer, numbers: Sequence[int] = (), categories: Sequence[int] = ()
) -> tuple[IntArray, EffectPosterior]:
    """The seasons with outcomes, and the mean outcome of users under their own controls in each: (L,), (L, M).

    For average sites: effects of single sites are averaged out. The covariates `numbers` and the `categories` are in
    each season as its outcomes had them, all others as offered.
    """
    if model.structure.cluster == "season":  # the same model, with sites eliminated instead
        evidence = replace(model.evidence, included=-1, drawn_count=-1)
        model = FittedModel.of(replace(model.learner, promise="alike"), evidence)
    cells = model.evidence.cells.live()
    seasons = np.unique(cells.keys[cells.n > 0, FACTORS.index("season")])
    everybody = np.full((1, len(offers.control)), 1 / len(offers.control))
    levels = []
    for season in seasons.tolist():
        parts = [(share * everybody, part) for share, part in _in_contexts(cells, season, offers, numbers, categories)]
        levels.append(_mean_outcomes(model, parts, "average", season))
    return seasons, EffectPosterior.join(levels)


def _mean_outcomes(
    model: FittedModel, parts: Sequence[tuple[FloatArray, Offer]], units: str, season: int | None = None
) -> EffectPosterior:
    """Mean outcomes under the users' own controls, for shares of users (sets, n): (sets, M)."""
    M, weighted = model.structure.metrics, []
    for share, offers in parts:
        weights = np.einsum("gh,hk,mo->gmhko", share, offers.control, np.eye(M))
        weighted.append((offers, weights.reshape(-1, *weights.shape[2:])))
    posterior = model.posterior(weighted, units, season)
    return EffectPosterior(*(np.broadcast_to(c, posterior.mean.shape).reshape(-1, M) for c in posterior))


def _in_contexts(
    cells: Cells, season: int, offers: Offer, numbers: Sequence[int], categories: Sequence[int]
) -> Iterator[tuple[float, Offer]]:
    """The offers in the contexts of a season's outcomes: numbers at their mean, levels with their shares."""
    theirs = cells.at(np.flatnonzero((cells.keys[:, FACTORS.index("season")] == season) & (cells.n > 0)))
    if numbers:
        mean = np.average(theirs.mean[:, list(numbers)], axis=0, weights=theirs.n)
        z = _with(_unit(offers).covariates, list(numbers), mean)
        offers = replace(offers, unit=replace(_unit(offers), covariates=z))
    if not categories:
        yield 1.0, offers
        return
    places = [len(FACTORS) + i for i in categories]
    combinations, which = np.unique(theirs.keys[:, places], axis=0, return_inverse=True)
    for values, n in zip(combinations, np.bincount(which.ravel(), theirs.n), strict=True):
        levels = _with(_unit(offers).levels, list(categories), values)
        yield float(n / theirs.n.sum()), replace(offers, unit=replace(_unit(offers), levels=levels))


def responses(model: FittedModel, offers: Offer) -> tuple[FloatArray, FloatArray]:
    """Mean reward of these users under each arm in an average season with likely ranges, (3, K), and draws, (S, K).

    Numbers have ranges and draws around the mean of all arms: the level, which seasons and places share, is left out.
    """
    units = "average" if model.learner.promise == "alike" else "each"
    (n, K), preference = offers.control.shape, model.preferences(offers)

    def sums(arms: FloatArray) -> list[tuple[Offer, FloatArray]]:
        return [(offers, np.einsum("jk,nm->jnkm", arms, preference) / n)]

    posterior = model.posterior(sums(np.eye(K)), units)
    if model.learner.has_draws:
        draws, _ = model.draws(sums(np.eye(K)), units, None)
        return np.stack([posterior.mean, *posterior.likely]), draws.T
    each = np.eye(K) - 1 / K
    around = model.posterior(sums(each), units)
    first, second = np.triu_indices(K, 1)
    covariance = np.diag(around.deviation**2)  # of two arms from the variance of their sum
    both = model.posterior(sums(each[first] + each[second]), units).deviation ** 2
    covariance[first, second] = 0.5 * (both - covariance[first, first] - covariance[second, second])
    covariance[second, first] = covariance[first, second]
    table = covariance[:, None, :, None]
    belief = Belief(posterior.mean[:, None], table, table, table, np.min(around.freedom, keepdims=True)[0])
    ends = [posterior.mean + end - around.mean for end in around.likely]
    return np.stack([posterior.mean, *ends]), posterior_draws.draws_of_numbers(belief, [0])[..., 0]


def mean_draws_of_arms(model: FittedModel, offers: Offer) -> FloatArray:
    """Posterior draws of the mean outcome of these users under each arm, in an average season: (S, K, M).

    Only where some metric is not a plain number.
    """
    n, alike = offers.batch[-1], model.learner.promise == "alike"
    total: Any = 0.0
    for some in parts_of(n, DRAWS * offers.control.shape[-1] * model.structure.metrics):
        total = total + model.learner.means(model.evidence, offers.take(some), alike=alike).draws.sum(0)
    return np.asarray(total / n)


# Residuals


def evenly_spaced(n: int, metrics: int) -> IntArray:
    """All of n outcomes, or evenly spaced ones of more than can be factorised."""
    most = max(1, MOST // metrics)
    return np.arange(n) if n <= most else np.linspace(0, n - 1, most).round().astype(np.intp)


def whitened_residuals(learner: Field, evidence: FieldEvidence, rows: Rows) -> FloatArray:
    """Residuals of single outcomes, independent and standard normal if the model is right: (n, M).

    All outcomes together are normal with a covariance that the model knows, theta integrated out. Its Cholesky factor
    takes out of each outcome its expectation given those before it, and divides by the deviation that is left. The
    variances are the most plausible ones, from the same outcomes. A discount makes old outcomes count less in a fit,
    but they do not scatter more: here they count in full. NaN where a metric is missing, and for its first outcome.
    """
    evidence = learner.ready(evidence, complete=True)
    structure, fitted = learner.structure(evidence), evidence.fitted
    n, c, M = len(rows.pattern), structure.covariates, structure.metrics
    if n * M > MOST:
        raise InputError(f"at most {MOST} values at a time, got {n * M}; take some, as `evenly_spaced` does")
    residuals = np.full((n, M), np.nan)
    if not n or not fitted.scale.known.all():
        return residuals
    observed = ((rows.pattern[:, None] >> np.arange(M)) & 1).astype(bool)
    standard = fitted.scale.standardise(rows.values)
    z, y = standard[:, :c], standard[:, c:]
    v, R = structure.parameters.variances(fitted.mode), structure.parameters.residual(fitted.mode)
    X, Z = structure.common.rows(rows.keys, z), structure.own.rows(rows.keys, z)
    cluster = rows.keys[:, structure.cluster_place]
    C = np.zeros((n, M, n, M))
    for m in range(M):
        C[:, m, :, m] = (X * v[m, structure.common.family]) @ X.T
        C[:, m, :, m] += (cluster[:, None] == cluster) * ((Z * v[m, structure.own.family]) @ Z.T)
    at, flat = np.arange(n), observed.ravel()
    C[at, :, at, :] += R[structure.noise_group(rows.keys)]
    L = np.linalg.cholesky(C.reshape(n * M, n * M)[np.ix_(flat, flat)])
    residuals[observed] = solve_triangular(L, y[observed], lower=True)
    for m in range(M):  # the overall level is as good as unknown before its first outcome
        if observed[:, m].any():
            residuals[observed[:, m].argmax(), m] = np.nan
    return residuals
