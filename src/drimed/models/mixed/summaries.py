"""What a field model has found besides the effects: what varies and how much, levels of sites and seasons, covariates.

Shapes: H users, K arms, M metrics, P columns of theta, q of a cluster's own effects, B draws of the variances.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular

from drimed.errors import InputError
from drimed.models.mixed import cells as field_cells
from drimed.models.mixed import observations as field_design
from drimed.models.mixed import prediction as field_own
from drimed.models.mixed.cells import FACTORS, Rows
from drimed.models.mixed.effects import LIKELY, NORMAL, Found, Known, chunks, together
from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.mixed.likelihood import own, posterior
from drimed.models.mixed.observations import Scale
from drimed.models.mixed.variance_components import mixture
from drimed.models.offer import Offer, Unit
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray

# Standardised residuals of a field model: independent and standard normal if the model is right.

MOST = 2000  # values whose covariance is taken apart


def evenly(n: int, metrics: int) -> IntArray:
    """Which of n outcomes are looked at: all, or evenly spaced ones."""
    most = max(1, MOST // metrics)
    return np.arange(n) if n <= most else np.linspace(0, n - 1, most).round().astype(np.intp)


def residuals(learner: Field, evidence: FieldEvidence, rows: Rows) -> FloatArray:
    """Of single outcomes, in the order of the rows: (n, M). NaN where a metric is missing, or was never seen before."""
    evidence = learner.ready(evidence)
    structure, learned = learner.structure(evidence), evidence.learned
    n, c, M = len(rows.pattern), structure.covariates, structure.metrics
    if n * M > MOST:
        raise InputError(f"at most {MOST} values at a time, got {n * M}; take some, as `evenly` does")
    there = ((rows.pattern[:, None] >> np.arange(M)) & 1).astype(bool)
    if not n or not learned.scale.known.all():
        return np.full((n, M), np.nan)
    standard = (rows.values - learned.scale.centre) / learned.scale.unit
    z, y = standard[:, :c], standard[:, c:]
    x = learned.mode
    v, R = structure.parameters.variances(x), structure.parameters.residual(x)
    X, Z = structure.common.rows(rows.keys, z), structure.own.rows(rows.keys, z)
    cluster = rows.keys[:, structure.cluster_place]
    same = cluster[:, None] == cluster
    C = np.zeros((n, M, n, M))
    for m in range(M):
        C[:, m, :, m] = (X * v[m, structure.common.family]) @ X.T
        C[:, m, :, m] += same * ((Z * v[m, structure.own.family]) @ Z.T)
    at = np.arange(n)
    C[at, :, at, :] += R[structure.noise.of(rows.keys)]
    flat = there.ravel()
    L = np.linalg.cholesky(C.reshape(n * M, n * M)[np.ix_(flat, flat)])
    found = np.full((n, M), np.nan)
    found[there] = solve_triangular(L, y[there], lower=True)
    for m in range(M):  # the overall level is as good as unknown before its first outcome, which is no surprise then
        if there[:, m].any():
            found[there[:, m].argmax(), m] = np.nan
    return found


RESIDUAL = "residual"
NEGLIGIBLE = 0.1  # of the noise's deviation: a range that reaches below it begins at 0
MOST_PRIOR = 0.7  # of the prior's deviation: below it the outcomes say more about a variance than the prior does
ENOUGH = 2  # values of a factor from which on a family that varies with it can be told from others


@dataclass(frozen=True)
class Component:
    """How much the effects of a family vary, as standard deviations in the units of the metrics: (M,) each."""

    family: str  # by its name in the model, or RESIDUAL
    deviation: FloatArray  # the most plausible one
    low: FloatArray  # the range that holds it with 95 %; 0 where it may be that nothing varies
    high: FloatArray
    told: BoolArray  # whether the outcomes say more about it than the prior does


def components(known: Known) -> list[Component]:
    """Of every family that stands alone and that the data can tell from the others, and of the noise.

    The posterior of a log variance is taken as normal around its mode (Laplace).
    """
    learned, parameters, M = known.evidence.learned, known.structure.parameters, known.structure.metrics
    k = len(parameters.learned)
    prior = np.sqrt(np.diagonal(np.linalg.inv(parameters.precision)))  # (p,)
    told = learned.deviation < MOST_PRIOR * prior
    R = parameters.residual(learned.mode)  # (g, M, M), of which a parameter is the scale
    places = {RESIDUAL: M * k + np.arange(M)}
    scales = {RESIDUAL: np.sqrt(np.diagonal(R, axis1=-2, axis2=-1).mean(0) / np.exp(learned.mode[places[RESIDUAL]]))}
    for i, number in enumerate(parameters.learned):
        family = parameters.families[number]
        if family.slopes is None and all(_values(known, name) >= ENOUGH for name in family.by):
            places[family.name] = i + k * np.arange(M)
    noise = known.unit * scales[RESIDUAL] * np.exp(0.5 * learned.mode[places[RESIDUAL]])
    found = []
    for name, at in sorted(places.items(), key=lambda item: int(item[1][0])):
        unit, mode = known.unit * scales.get(name, 1.0), learned.mode[at]
        half = probability.normal(0.5 + LIKELY / 2) * learned.deviation[at]
        best, low, high = (unit * np.exp(0.5 * x) for x in (mode, mode - half, mode + half))
        low = np.where(low < NEGLIGIBLE * noise, 0.0, low)
        found.append(Component(name, best, low, high, told[at]))
    return found


def outcomes(known: Known, factor: str) -> FloatArray:
    """How many outcomes there are for each value of a factor and each arm: (n, K); no group has no number."""
    cells = known.evidence.cells.live()
    places = FACTORS.index(factor), FACTORS.index("arm")
    cells = cells.at(np.flatnonzero(cells.keys[:, places[0]] >= 0))
    value, arm = (cells.keys[:, place] for place in places)
    found = np.zeros((int(value.max(initial=-1)) + 1, known.structure.arms))
    np.add.at(found, (value, arm), cells.n)
    return found


def levels(known: Known, offers: Offer, members: Sequence[Sequence[int]]) -> Found:
    """The mean outcome of groups of users under their own controls in an average season: (groups, M)."""
    return _in_units(known, np.stack([_control_rows(known, offers.take(some)) for some in members]))


def season_levels(
    known: Known, offers: Offer, numbers: Sequence[int] = (), categories: Sequence[int] = ()
) -> tuple[IntArray, Found]:
    """The seasons with outcomes, and the mean outcome of all users under their own controls in each: (L,), (L, M).

    The covariates `numbers` and the `categories` are in each season as its outcomes had them, all others as offered.
    """
    cells = field_cells.compact(known.evidence.cells, known.structure.cluster_place)
    seasons = np.unique(cells.keys[cells.n > 0, FACTORS.index("season")])
    eliminated = known.structure.cluster == "season"
    seen = _seen(known, offers) if eliminated else offers
    met = [list(_met(cells, int(season), seen, numbers, categories)) for season in seasons]
    if eliminated:
        return seasons, _eliminated(known, met, cells, seasons)
    rows = [
        _mixed((share, _control_rows(known, part, season=int(season))) for share, part in parts)
        for season, parts in zip(seasons, met, strict=True)
    ]
    return seasons, _in_units(known, np.stack(rows))


def along(known: Known, offers: Offer, covariate: int, values: FloatArray, possible: BoolArray) -> Found:
    """Effects for these users together if a covariate had each of these values for all of them: (n, K, 1 + M)."""
    found = []
    unit = _unit(offers)
    for value in values:
        z = np.array(unit.covariates)
        z[..., covariate] = value
        found.append(together(known, replace(offers, unit=replace(unit, covariates=z)), possible))
    return Found.join(found, new_axis=True)


def by_level(known: Known, offers: Offer, number: int, count: int, possible: BoolArray) -> Found:
    """Effects for these users together at each of the first `count` levels of a category: (n, K, 1 + M)."""
    found = []
    unit = _unit(offers)
    for level in range(count):
        levels = np.array(unit.levels)
        levels[..., number] = level
        found.append(together(known, replace(offers, unit=replace(unit, levels=levels)), possible))
    return Found.join(found, new_axis=True)


def span(known: Known, covariate: int) -> tuple[float, float]:
    """From where to where outcomes have been seen of a covariate."""
    cells = known.evidence.cells.live()
    values = cells.mean[cells.n > 0, covariate]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def _unit(offers: Offer) -> Unit:
    if offers.unit is None:
        raise InputError("effects by a covariate need offers that say where they are made")
    return offers.unit


def _values(known: Known, factor: str) -> int:
    """How many values of a factor have outcomes."""
    cells = known.evidence.cells.live()
    return len(np.unique(cells.keys[cells.n > 0, known.structure.factors.index(factor)]))


def _control_rows(known: Known, offers: Offer, season: int | None = None) -> FloatArray:
    """The mean row of these users under their own controls, in an average season or a certain one: (P,)."""
    total = np.zeros(len(known.layout.family))
    for _, part in chunks(offers):
        keys, z = known.asked(part)
        if season is not None:
            keys[..., FACTORS.index("season")] = season
        X = known.rows(keys, z, without=() if season is not None else ("season",))
        total += np.einsum("hk,hkp->p", part.control, X)
    return total / len(offers.control)


def _in_units(known: Known, rows: FloatArray) -> Found:
    """Mean outcomes that rows (..., P) stand for, metric by metric: (..., M)."""
    M = known.structure.metrics
    wide = known.unit[:, None, None] * np.eye(M)[:, :, None] * rows[..., None, None, :]  # (..., M, M, P)
    found = known.of(wide)
    return found._replace(mean=known.centre + found.mean)


def _met(
    cells: field_cells.Cells, season: int, offers: Offer, numbers: Sequence[int], categories: Sequence[int]
) -> Iterator[tuple[float, Offer]]:
    """The offers in the contexts of a season's outcomes: numbers at their mean, levels with their shares."""
    if not numbers and not categories:
        yield 1.0, offers
        return
    theirs = cells.at(np.flatnonzero((cells.keys[:, FACTORS.index("season")] == season) & (cells.n > 0)))
    unit = _unit(offers)
    if numbers:
        z = np.array(unit.covariates)
        z[..., list(numbers)] = np.average(theirs.mean[:, list(numbers)], axis=0, weights=theirs.n)
        unit = replace(unit, covariates=z)
    if not categories:
        yield 1.0, replace(offers, unit=unit)
        return
    places = [len(FACTORS) + i for i in categories]
    seen, which = np.unique(theirs.keys[:, places], axis=0, return_inverse=True)
    for values, n in zip(seen, np.bincount(which.ravel(), theirs.n), strict=True):
        levels = np.array(unit.levels)
        levels[..., list(categories)] = values
        yield float(n / theirs.n.sum()), replace(offers, unit=replace(unit, levels=levels))


def _mixed(rows: Iterable[tuple[float, FloatArray]]) -> FloatArray:
    """Rows with their shares as one."""
    return np.sum([share * row for share, row in rows], axis=0)


def _eliminated(
    known: Known, met: Sequence[Sequence[tuple[float, Offer]]], cells: field_cells.Cells, seasons: IntArray
) -> Found:
    """Levels of seasons whose effects are not in theta: each from its own cells, given theta, at every draw."""
    structure, learned, scale = known.structure, known.evidence.learned, known.scale
    noise = structure.noise
    newest = seasons.max(initial=0)
    weight = known.learner.discount ** (newest - cells.keys[:, FACTORS.index("season")]).astype(float)
    whole = field_design.build(cells, scale, structure.common, structure.own, noise=noise, weight=weight)
    v, R = learned.variance, learned.residual  # (B, ...)
    _, theta, covariance = posterior(whole, v, R)
    theirs = field_own.of_clusters(cells, structure.cluster_place, seasons)
    each = field_design.build(theirs, _widened(scale), structure.common, structure.own, noise=noise)
    lasting = replace(known, layout=structure.common)
    X = np.stack([_mixed((share, _control_rows(lasting, part)) for share, part in parts) for parts in met])  # (L, P)
    Z = np.stack([_mixed((share, _own_rows(known, part)) for share, part in parts) for parts in met])  # (L, q)
    effects = own(each, v[None], R[None])
    found = field_own.belief(effects, X[:, None, None], Z[:, None, None], theta[None], covariance[None])
    mean, cov = mixture(*found, 2)  # (L, 1, M), (L, 1, M, 1, M)
    variance = np.diagonal(cov[:, 0, :, 0, :], axis1=-2, axis2=-1)
    nodes = v.mean(0)
    prior = (X**2) @ nodes[:, structure.common.family].T + (Z**2) @ nodes[:, structure.own.family].T  # (L, M)
    deviation, before = known.unit * np.sqrt(np.maximum(variance, 0.0)), known.unit * np.sqrt(prior)
    return Found(known.centre + known.unit * mean[:, 0], deviation, before, NORMAL)


def _seen(known: Known, offers: Offer) -> Offer:
    """The users whose group and user number the model has columns for; all where there are none."""
    keys, _ = known.asked(offers)
    sizes = np.array(known.structure.sizes)
    used = [FACTORS.index("group"), FACTORS.index("user")]
    inside = (keys[:, 0, used] < sizes[used]).all(-1)
    return offers.take(np.flatnonzero(inside)) if inside.any() else offers


def _own_rows(known: Known, offers: Offer) -> FloatArray:
    """The mean row of these users under their own controls on a season's effects, blocks averaged out: (q,)."""
    structure = known.structure
    keys, z = known.asked(offers)
    rows = np.einsum("hk,hkq->q", offers.control, structure.own.rows(keys, z)) / len(offers.control)
    blocks = [k for k, f in enumerate(structure.families) if "block" in f.by]
    return np.where(np.isin(structure.own.family, blocks), 0.0, rows)


def _widened(scale: Scale) -> Scale:
    """With an axis for the clusters."""
    return replace(scale, centre=scale.centre[None], unit=scale.unit[None], known=scale.known[None])
