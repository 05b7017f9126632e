"""Regressions that share nothing: one for each site, or for each person."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, final

import numpy as np

from drimed.errors import ConfigError
from drimed.learning.learner import Evidence, Learner
from drimed.learning.offer import Offer, Outcome, Seen, Shape
from drimed.linear.arrays import BoolArray, FloatArray, IntArray


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
        view = self.inner.view(replace(offer, user=np.zeros(1, np.intp)), theirs.noise)
        return Seen(self.inner.fit(theirs.ridge, theirs.noise, pulls[..., None, :], round), view, view)

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
