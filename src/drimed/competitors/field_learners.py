"""Learners that only benchmarks use: what others would do with the same information, and what cannot be beaten.

    ALONE    the paper's model, as in a live trial of its own for each site
    SITES    one regression on arms, sites and arms at sites, told the noise that it does not model
    KNOWN    the field model, told every variance of the fields of `drimed bench field`
    LATER    the same, told after the first season: before it, nobody knows the scale of outcomes
    NAMES    the paper's model, told the arms' names instead of their maps, as in a live trial of that kind
    OWN      a regression of its own for each person ("Standard" of Huch et al. 2024)
    BUMPS    the model of people, with bumps as covariates of the level

All of them learn from the same offers and outcomes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, final

import numpy as np

from drimed.errors import ConfigError, InputError
from drimed.models.linear_regression import AnyLearner, Evidence, Learner
from drimed.models.mixed import variance_components
from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.mixed.observations import make_design, measure
from drimed.models.mixed.prediction import Belief
from drimed.models.mixed.terms import Parameters
from drimed.models.offer import Offer, Outcome, Seen, Shape, Unit
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.simulation.trial_world import DEPARTURE, RANGE, Deviations, maps_by_name

# Regressions that share nothing: one for each site, or for each person.


@final
@dataclass(frozen=True)
class Apart:
    """A regression of its own for each user (or site); offers come for many users at once."""

    inner: Learner
    what: str

    keeps_features: ClassVar[bool] = False
    balances: ClassVar[bool] = False

    @property
    def feedback(self) -> str:
        """What it learns from."""
        return self.inner.feedback

    @property
    def weighting(self) -> str:
        """What it knows of the noise."""
        return self.inner.weighting

    @property
    def noise_bound(self) -> float:
        """R."""
        return self.inner.noise_bound

    @property
    def discount(self) -> float:
        """Per episode."""
        return self.inner.discount

    @property
    def about(self) -> str:
        """In a few words."""
        return f"{self.inner.about}, {self.what}"

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> Evidence:
        """The users are one more batch axis."""
        return self.inner.start(replace(shape, H=1), (*batch, shape.H), episodes)

    def age(self, evidence: Evidence) -> Evidence:
        """A new episode, for all."""
        return self.inner.age(evidence)

    def add(self, evidence: Evidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Evidence:
        """The first decision of each user, then the second, and so on."""
        users = np.asarray(offer.user)
        for at in _rounds(users):
            theirs, own = _at(evidence, users[at]), replace(offer.take(at).expand(), user=np.zeros(1, np.intp))
            reward, vector = (None if y is None else y[:, at, None] for y in (outcome.reward, outcome.vector))
            more = self.inner.add(theirs, own, action[:, at, None], Outcome(reward, vector), late)
            evidence = _put(evidence, users[at], more)
        return evidence

    def remove(self, evidence: Evidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Evidence:
        """Nothing is taken back in a simulation."""
        del evidence, offer, action, outcome, late
        raise ConfigError("a learner of benchmarks takes nothing back")

    def ready(self, evidence: Evidence) -> Evidence:
        """The evidence to decide on."""
        return self.inner.ready(evidence)

    def see(self, evidence: Evidence, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        """A fit for each user."""
        theirs = _at(evidence, np.asarray(offer.user))
        alone = self.inner.view(theirs, replace(offer, user=np.zeros(1, np.intp)).expand())
        sigma = None if alone.sigma is None else alone.sigma[..., 0, :]
        view = replace(offer, sigma=sigma, whitening=None, scale=None, unit=None, attributes=None)
        return Seen(self.inner.fit(theirs, pulls[..., None, :], round), view, view)

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """Whether such outcomes can be used."""
        return self.inner.usable(observed, preference)

    def lost_digits(self, before: Evidence, after: Evidence) -> bool:
        """Whether `remove` left round-off."""
        return self.inner.lost_digits(before, after)

    def theta(self, evidence: Evidence) -> FloatArray:
        """Of every user: (..., H, d)."""
        return self.inner.theta(evidence)

    def coefficients(self, shape: Shape) -> int:
        """The length of a fit's theta."""
        return self.inner.coefficients(shape)


def _rounds(users: IntArray) -> list[IntArray]:
    """The places of the first decision of each user, of the second, and so on."""
    order = np.argsort(users, kind="stable")
    ranked = users[order]
    turn = np.empty(len(users), np.intp)
    turn[order] = np.arange(len(users)) - np.searchsorted(ranked, ranked)
    return [np.flatnonzero(turn == t) for t in range(int(turn.max(initial=-1)) + 1)]


def _at(evidence: Any, users: IntArray) -> Any:
    """The evidence of some users, which are the second batch axis."""
    parts = {f.name: _part(getattr(evidence, f.name), users) for f in fields(evidence)}
    return replace(evidence, **parts)


def _part(value: Any, users: IntArray) -> Any:
    if is_dataclass(value):
        return _at(value, users)
    return value[:, users] if isinstance(value, np.ndarray) else value


def _put(evidence: Any, users: IntArray, theirs: Any) -> Any:
    """The evidence with that of some users replaced."""
    parts = {}
    for f in fields(evidence):
        old, new = getattr(evidence, f.name), getattr(theirs, f.name)
        if is_dataclass(old):
            parts[f.name] = _put(old, users, new)
        elif isinstance(old, np.ndarray):
            parts[f.name] = old.copy()
            parts[f.name][:, users] = new
        else:
            parts[f.name] = new
    return replace(evidence, **parts)


# A learner that is told of offers in other words: other features, more covariates.

GRID, BUMP_WIDTH = 5, 0.4  # bumps along each axis of the square, and how wide they are


@final
@dataclass(frozen=True)
class Described:
    """A learner that is told of offers in other words."""

    inner: AnyLearner
    words: Callable[[Offer, int], Offer]  # of an offer, for a regression on so many features
    size: Callable[[Shape], int]  # how many features that are
    what: str

    keeps_features: ClassVar[bool] = False
    balances: ClassVar[bool] = False

    @property
    def feedback(self) -> str:
        """What it learns from."""
        return self.inner.feedback

    @property
    def weighting(self) -> str:
        """What it knows of the noise."""
        return self.inner.weighting

    @property
    def noise_bound(self) -> float:
        """R."""
        return self.inner.noise_bound

    @property
    def discount(self) -> float:
        """Per episode."""
        return self.inner.discount

    @property
    def about(self) -> str:
        """In a few words."""
        return f"{self.inner.about}, {self.what}"

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> Any:
        """No evidence."""
        return self.inner.start(replace(shape, d=self.size(shape)), batch, episodes)

    def age(self, evidence: Any) -> Any:
        """A new episode."""
        return self.inner.age(evidence)

    def add(self, evidence: Any, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Any:
        """Learn."""
        return self.inner.add(evidence, self._told(evidence, offer), action, outcome, late)

    def remove(self, evidence: Any, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Any:
        """Take back."""
        return self.inner.remove(evidence, self._told(evidence, offer), action, outcome, late)

    def ready(self, evidence: Any) -> Any:
        """The evidence to decide on."""
        return self.inner.ready(evidence)

    def see(self, evidence: Any, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        """What rule and guard see."""
        return self.inner.see(evidence, self._told(evidence, offer), pulls, round)

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """Whether such outcomes can be used."""
        return self.inner.usable(observed, preference)

    def lost_digits(self, before: Any, after: Any) -> bool:
        """Whether `remove` left round-off."""
        return self.inner.lost_digits(before, after)

    def theta(self, evidence: Any) -> FloatArray:
        """The estimate."""
        return self.inner.theta(evidence)

    def coefficients(self, shape: Shape) -> int:
        """The length of a fit's theta."""
        return self.inner.coefficients(replace(shape, d=self.size(shape)))

    def _told(self, evidence: Any, offer: Offer) -> Offer:
        return self.words(offer, evidence.ridge.theta.shape[-1] if isinstance(evidence, Evidence) else 0)


def by_site(offer: Offer, d: int) -> Offer:
    """A level, levels of sites, arms, and arms at sites as features, in units of the metrics' range."""
    K = offer.control.shape[-1]
    sites = d // (1 + K) - 1
    site = np.asarray(_unit(offer).group)
    where = np.eye(1 + sites)[0] + np.eye(1 + sites)[1 + site]  # (n, 1 + I)
    arms = np.concatenate([np.ones((K, 1)), DEPARTURE * np.eye(K)], -1)  # (K, 1 + K)
    x = RANGE * arms[:, :, None] * where[..., None, None, :]  # (n, K, 1 + K, 1 + I)
    features = np.broadcast_to(x.reshape(*x.shape[:-2], d), (*offer.control.shape, d))
    return replace(offer, features=features, maps=None, preference=None)


def by_name(offer: Offer, d: int) -> Offer:
    """A level and each arm's departure from it, for every metric, instead of the maps that describe the arms."""
    if offer.maps is None or offer.preference is None:
        raise InputError("arms are known by name in worlds with several metrics; this offer has no maps")
    K, M = offer.maps.shape[-3:-1]
    maps = maps_by_name(K, M)
    features = np.matvec(np.swapaxes(maps, -1, -2), offer.preference[..., None, :])
    return replace(offer, features=features, maps=np.broadcast_to(maps, (*offer.maps.shape[:-1], d)))


def with_bumps(offer: Offer, d: int) -> Offer:
    """A grid of bumps over the square beside the two covariates there are."""
    del d
    asked = _unit(offer)
    s = np.zeros((*offer.control.shape[:-1], 2)) if asked.covariates is None else asked.covariates
    grid = np.linspace(-1, 1, GRID)
    centres = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
    bumps = np.exp(-((s[..., None, :] - centres) ** 2).sum(-1) / (2 * BUMP_WIDTH**2))
    unit = Unit(user=asked.user, group=asked.group, covariates=np.concatenate([s, bumps], -1))
    return replace(offer, unit=unit)


def _unit(offer: Offer) -> Unit:
    if offer.unit is None:
        raise InputError("offers of a benchmark say where they are made; this one has no unit")
    return offer.unit


# The field model told every variance: what learning them costs is measured against it.

LEAST_VARIANCE = 1e-12  # relative to the residual's: a family of variance 0 on a log scale

# What the deviations of a field are called there, by the family of the model that has them.
DEVIATIONS = {
    "arm": "arm",
    "group": "site",
    "group x arm": "site_arm",
    "season": "season",
    "season x group": "block",
    "season x arm": "season_arm",
}


@final
@dataclass(frozen=True)
class Known:
    """The field model with variances that nobody has to learn."""

    deviations: Deviations
    correlation: float  # of the noise of two metrics
    from_start: bool = True  # or only after the first outcomes, before which no learner can know their scale
    inner: Field = field(default_factory=Field)

    feedback: ClassVar[str] = Field.feedback
    weighting: ClassVar[str] = Field.weighting
    noise_bound: ClassVar[float] = Field.noise_bound
    keeps_features: ClassVar[bool] = False
    balances: ClassVar[bool] = True
    discount: ClassVar[float] = 1.0
    about: ClassVar[str] = "field model, known variances"

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> FieldEvidence:
        """No outcomes."""
        return self._fitted(self.inner.start(shape, batch, episodes))

    def age(self, evidence: FieldEvidence) -> FieldEvidence:
        """A new season."""
        return self.inner.age(evidence)

    def add(
        self, evidence: FieldEvidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> FieldEvidence:
        """Learn."""
        return self.inner.add(evidence, offer, action, outcome, late)

    def remove(
        self, evidence: FieldEvidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> FieldEvidence:
        """Take back."""
        return self.inner.remove(evidence, offer, action, outcome, late)

    def ready(self, evidence: FieldEvidence) -> FieldEvidence:
        """All outcomes so far."""
        return evidence if evidence.included == evidence.cells.used else self._fitted(evidence)

    def see(self, evidence: FieldEvidence, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        """What rule and guard see."""
        return self.inner.see(self.ready(evidence), offer, pulls, round)

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """Whether such outcomes can be used."""
        return self.inner.usable(observed, preference)

    def lost_digits(self, before: FieldEvidence, after: FieldEvidence) -> bool:
        """Whether `remove` left round-off."""
        return self.inner.lost_digits(before, after)

    def theta(self, evidence: FieldEvidence) -> FloatArray:
        """What is common to all."""
        return self.inner.theta(self.ready(evidence))

    def coefficients(self, shape: Shape) -> int:
        """The length of a fit's theta."""
        return self.inner.coefficients(shape)

    def beliefs(self, evidence: FieldEvidence, offer: Offer) -> Belief:
        """Mean outcomes for the users of an offer."""
        return self.inner.beliefs(self.ready(evidence), offer)

    def _fitted(self, evidence: FieldEvidence) -> FieldEvidence:
        structure = self.inner.structure(replace(evidence, sizes=evidence.seen))
        held = evidence.cells.compact(structure.cluster_place)
        scale = measure(held, structure.covariates, structure.ranges)
        unit = np.full(scale.unit.shape, self.deviations.residual / RANGE)
        told_now = np.ones(scale.known.shape) if self.from_start or held.used else scale.known
        scale = replace(scale, unit=unit, known=told_now)
        known = structure.parameters
        x = np.broadcast_to(self.parameters(known), (*held.batch, known.size))
        laplace = variance_components.Laplace(x, np.zeros(x.shape), x[..., None, :])
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


PLOT_NOISE = 24.0  # of a plot around its site's mean: residual, block and season together, as the fields have it
LEVELS = 3.0  # bound on all coefficients together
PRIOR = 0.5  # deviation of a coefficient before any data, in units of the range: as in a live trial

SITES = Described(
    Learner(
        weighting="none", feedback="reward", noise_bound=PLOT_NOISE, regularisation=(PLOT_NOISE / PRIOR) ** 2
    ),
    by_site,
    lambda shape: (1 + shape.K) * (1 + shape.H),
    "by site",
)  # fmt: skip
ALONE = Apart(
    Learner(weighting="learned", norm_bound=LEVELS, regularisation=PRIOR**-2, refits="converged"), "each site alone"
)
NAMES = Described(
    Learner(weighting="learned", norm_bound=24**0.5, regularisation=PRIOR**-2),
    by_name,
    lambda shape: (1 + shape.K) * shape.M,
    "arms by name",
)
KNOWN = Known(Deviations(), 0.5)
LATER = Known(Deviations(), 0.5, from_start=False)
OWN = Apart(Learner(weighting="none", feedback="reward", noise_bound=1.0, regularisation=0.1), "each person alone")
BUMPS = Described(
    Field(kind="people", covariates=("level effects",) * 2 + ("level",) * GRID**2, seasons=False, reference=0),
    with_bumps,
    lambda shape: shape.d,
    "bumps",
)
