"""A learner that is told of offers in other words: other features, more covariates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np

from drimed.environments.field import DEPARTURE, RANGE, maps_by_name
from drimed.errors import InputError
from drimed.learning.learner import AnyLearner, Evidence
from drimed.learning.offer import Offer, Outcome, Seen, Shape, Unit
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

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
