"""Learners that only benchmarks use: what others would do with the same information, and what cannot be beaten.

    ALONE    the paper's model, as in a live trial of its own for each site
    SITES    one regression on arms, sites and arms at sites, told the noise that it does not model
    KNOWN    the field model, told every variance of the fields of `drimed bench field`
    OWN      a regression of its own for each person ("Standard" of Huch et al. 2024)
    BUMPS    the model of people, with bumps as covariates of the level

All of them learn from the same offers and outcomes. Each wraps a learner and changes some of its methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, final

import numpy as np

from drimed.errors import ConfigError, InputError
from drimed.models.linear_regression import Evidence, Learner
from drimed.models.mixed import variance_components
from drimed.models.mixed.learner import PEOPLE, Field, FieldEvidence
from drimed.models.mixed.observations import make_design, measure
from drimed.models.mixed.prediction import Belief
from drimed.models.mixed.terms import Parameters
from drimed.models.offer import Offer, Outcome, Seen, Shape, Unit
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.simulation.trial_world import DEPARTURE, RANGE, Deviations

GRID, BUMP_WIDTH = 5, 0.4  # bumps along each axis of the square, and how wide they are
PLOT_NOISE = 24.0  # of a plot around its site's mean: residual, block and season together, as the fields have it
LEVELS = 3.0  # bound on all coefficients together
PRIOR = 0.5  # deviation of a coefficient before any data, in units of the range: as in a live trial
LEAST_VARIANCE = 1e-12  # relative to the residual's: a family of variance 0 on a log scale

# Names of a field's deviations, by the family of the model that has them.
DEVIATIONS = {
    "arm": "arm",
    "group": "site",
    "group x arm": "site_arm",
    "season": "season",
    "season x group": "block",
    "season x arm": "season_arm",
}


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """A learner that passes everything on to the one inside, but for what it changes."""

    inner: Any  # AnyLearner
    what: str

    keeps_features: ClassVar[bool] = False
    balances: ClassVar[bool] = False

    @property
    def about(self) -> str:
        return f"{self.inner.about}, {self.what}"

    def remove(self, evidence: Any, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Any:
        del evidence, offer, action, outcome, late
        raise ConfigError("learners of benchmarks take no outcome back; use them in simulations only")

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "inner"), name)


@final
@dataclass(frozen=True, kw_only=True)
class Apart(Wrapper):
    """A regression of its own for each user (or site): users are one more batch axis of the evidence."""

    inner: Learner

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> Evidence:
        return self.inner.start(replace(shape, H=1), (*batch, shape.H), episodes)

    def add(self, evidence: Evidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Evidence:
        """The first decision of each user, then the second, and so on."""
        users = np.asarray(offer.user)
        order = np.argsort(users, kind="stable")
        ranked = users[order]
        turn = np.empty(len(users), np.intp)
        turn[order] = np.arange(len(users)) - np.searchsorted(ranked, ranked)
        for t in range(int(turn.max(initial=-1)) + 1):
            at = np.flatnonzero(turn == t)
            own = replace(offer.take(at).expand(), user=np.zeros(1, np.intp))
            reward, vector = (None if y is None else y[:, at, None] for y in (outcome.reward, outcome.vector))
            theirs = _mapped(itemgetter((slice(None), users[at])), evidence)
            more = self.inner.add(theirs, own, action[:, at, None], Outcome(reward, vector), late)
            evidence = _mapped(partial(_with_columns, users[at]), evidence, more)
        return evidence

    def see(self, evidence: Evidence, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        theirs = _mapped(itemgetter((slice(None), np.asarray(offer.user))), evidence)
        alone = self.inner.view(theirs, replace(offer, user=np.zeros(1, np.intp)).expand())
        sigma = None if alone.sigma is None else alone.sigma[..., 0, :]
        view = replace(offer, sigma=sigma, whitening=None, scale=None, unit=None, attributes=None)
        return Seen(self.inner.fit(theirs, pulls[..., None, :], round), view, view)


def _mapped(change: Callable[..., Any], *evidence: Any) -> Any:
    """Evidence with each array changed, given the arrays in this place of all of `evidence`; else as the last one."""
    if not is_dataclass(evidence[-1]):
        return change(*evidence) if isinstance(evidence[-1], np.ndarray) else evidence[-1]
    made: Any = type(evidence[-1])
    return made(**{f.name: _mapped(change, *(getattr(e, f.name) for e in evidence)) for f in fields(made)})


def _with_columns(columns: IntArray, old: FloatArray, new: FloatArray) -> FloatArray:
    changed = old.copy()
    changed[:, columns] = new
    return changed


@final
@dataclass(frozen=True, kw_only=True)
class Described(Wrapper):
    """A learner that is told of offers in other words: other features, more covariates."""

    words: Callable[[Offer, int], Offer]  # of an offer, for a regression on so many features
    size: Callable[[Shape], int]  # the number of features

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> Any:
        return self.inner.start(replace(shape, d=self.size(shape)), batch, episodes)

    def add(self, evidence: Any, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Any:
        return self.inner.add(evidence, self._described(evidence, offer), action, outcome, late)

    def see(self, evidence: Any, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        return self.inner.see(evidence, self._described(evidence, offer), pulls, round)

    def coefficients(self, shape: Shape) -> int:
        return self.inner.coefficients(replace(shape, d=self.size(shape)))

    def _described(self, evidence: Any, offer: Offer) -> Offer:
        return self.words(offer, evidence.ridge.theta.shape[-1] if isinstance(evidence, Evidence) else 0)


def by_site(offer: Offer, d: int) -> Offer:
    """A level, levels of sites, arms, and arms at sites as features, in units of the metrics' range."""
    K = offer.control.shape[-1]
    place = np.eye(d // (1 + K))
    where = place[0] + place[1 + np.asarray(_unit(offer).group)]  # (n, 1 + I)
    arms = np.concatenate([np.ones((K, 1)), DEPARTURE * np.eye(K)], -1)  # (K, 1 + K)
    x = RANGE * arms[:, :, None] * where[..., None, None, :]  # (n, K, 1 + K, 1 + I)
    features = np.broadcast_to(x.reshape(*x.shape[:-2], d), (*offer.control.shape, d))
    return replace(offer, features=features, maps=None, preference=None)


def _unit(offer: Offer) -> Unit:
    if offer.unit is None:
        raise InputError("offers of a benchmark say where they are made; this one has no unit")
    return offer.unit


def with_bumps(offer: Offer, _: int) -> Offer:
    """A grid of bumps over the square beside its two covariates."""
    unit = _unit(offer)
    s = np.zeros((*offer.control.shape[:-1], 2)) if unit.covariates is None else unit.covariates
    grid = np.linspace(-1, 1, GRID)
    centres = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
    bumps = np.exp(-((s[..., None, :] - centres) ** 2).sum(-1) / (2 * BUMP_WIDTH**2))
    return replace(offer, unit=Unit(user=unit.user, group=unit.group, covariates=np.concatenate([s, bumps], -1)))


@final
@dataclass(frozen=True, kw_only=True)
class Known(Wrapper):
    """The field model told every variance: what learning them costs is measured against it."""

    inner: Field = field(default_factory=Field)
    what: str = "known variances"
    deviations: Deviations = field(default_factory=Deviations)
    correlation: float = 0.5  # of the noise of two metrics
    from_start: bool = True  # or only after the first outcomes, before which no learner can know their scale

    balances: ClassVar[bool] = True

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> FieldEvidence:
        return self._fitted(self.inner.start(shape, batch, episodes))

    def ready(self, evidence: FieldEvidence) -> FieldEvidence:
        return evidence if evidence.included == evidence.cells.used else self._fitted(evidence)

    def see(self, evidence: FieldEvidence, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        return self.inner.see(self.ready(evidence), offer, pulls, round)

    def theta(self, evidence: FieldEvidence) -> FloatArray:
        return self.inner.theta(self.ready(evidence))

    def beliefs(self, evidence: FieldEvidence, offer: Offer) -> Belief:
        """Mean outcomes for the users of an offer."""
        return self.inner.beliefs(self.ready(evidence), offer)

    def _fitted(self, evidence: FieldEvidence) -> FieldEvidence:
        structure = self.inner.structure(replace(evidence, sizes=evidence.seen))
        held = evidence.cells.compact(structure.cluster_place)
        scale = measure(held, structure)
        unit = np.full(scale.unit.shape, self.deviations.residual / RANGE)
        told_now = np.ones(scale.known.shape) if self.from_start or held.used else scale.known
        scale = replace(scale, unit=unit, known=told_now)
        known = structure.parameters
        x = np.broadcast_to(self.parameters(known), (*held.batch, known.size))
        laplace = x, np.zeros(x.shape), x[..., None, :]
        fitted = variance_components.integrate(structure, make_design(structure, held, scale), scale, laplace)
        n = held.used
        return replace(evidence, cells=held, fitted=fitted, sizes=evidence.seen, fitted_count=n, included=n)

    def parameters(self, parameters: Parameters) -> FloatArray:
        """The true variances as the model's parameters: (p,)."""
        d, M = self.deviations, parameters.metrics
        known = {family: getattr(d, name) for family, name in DEVIATIONS.items()}
        shares = [(known[parameters.families[k].name] / d.residual) ** 2 for k in parameters.learned]
        root = np.linalg.cholesky(np.eye(M) * (1 - self.correlation) + self.correlation)
        sds, below = np.diagonal(root), np.tril_indices(M, -1)
        logs = np.log(np.maximum(shares, LEAST_VARIANCE))
        return np.concatenate([*[logs] * M, 2 * np.log(sds), root[below] / sds[below[0]]])


SITES = Described(
    inner=Learner(
        weighting="none", feedback="reward", noise_bound=PLOT_NOISE, regularisation=(PLOT_NOISE / PRIOR) ** 2
    ),
    what="by site", words=by_site, size=lambda shape: (1 + shape.K) * (1 + shape.H),
)  # fmt: skip
BUMPS = Described(
    inner=replace(PEOPLE, covariates=("level effects",) * 2 + ("level",) * GRID**2, seasons=False, reference=0),
    what="bumps", words=with_bumps, size=lambda shape: shape.d,
)  # fmt: skip
ALONE = Apart(inner=Learner(weighting="learned", norm_bound=LEVELS, regularisation=PRIOR**-2), what="each site alone")
OWN = Apart(
    inner=Learner(weighting="none", feedback="reward", noise_bound=1.0, regularisation=0.1), what="each person alone"
)
KNOWN = Known()
