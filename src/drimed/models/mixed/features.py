"""Factors and covariates of decisions, from offers and outcomes.

Covariates of the unit stand before the attributes of the arm.
Shapes: leading `...` is any batch; n users, K arms, F factors, c covariates, M metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from drimed.errors import InputError
from drimed.models.mixed.observations import Rows, make_rows
from drimed.models.mixed.terms import FACTORS, Terms, factors_of
from drimed.models.offer import Offer, Outcome, Unit
from drimed.numerics.arrays import FloatArray, IntArray

Roles = tuple[frozenset[str], ...]
PLACES = ("block", "group", "member", "user")  # factors that a unit has


@final
@dataclass(frozen=True)
class Features:
    """Roles of the covariates and categories of a unit."""

    covariates: Roles
    categories: Roles
    attributes: int  # numbers that describe an arm

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """Of every decision."""
        return factors_of(len(self.categories))

    @cached_property
    def noisy(self) -> tuple[int, ...]:
        """The covariates that scale the noise: each splits it at its typical value."""
        return _with_role("noise", self.covariates)

    @cached_property
    def width(self) -> int:
        """c."""
        return len(self.covariates) + self.attributes

    @cached_property
    def terms(self) -> Terms:
        """By the numbers of covariates and categories."""
        return Terms(
            level=_with_role("level", self.covariates),
            effects=_with_role("effects", self.covariates),
            attributes=tuple(range(len(self.covariates), self.width)),
            categories=_with_role("level", self.categories),
            category_effects=_with_role("effects", self.categories),
        )

    def prediction_rows(self, offer: Offer, season: int) -> tuple[IntArray, FloatArray]:
        """The factors and covariates of all arms of each offer: (..., n, K, F) and (..., n, K, c)."""
        unit, arms = offer.unit or Unit(user=offer.user, group=offer.user), offer.control.shape[-1]
        parts = [a.shape[:-1] for a in (unit.levels, unit.covariates) if a is not None]
        if offer.attributes is not None:
            parts.append(offer.attributes.shape[:-2])
        lead = np.broadcast_shapes(*parts, *(np.shape(getattr(unit, name)) for name in PLACES))
        keys, z = self._of_unit(unit, max(season, 0), np.zeros(lead, np.intp))
        keys, z = np.repeat(keys[..., None, :], arms, -2), np.repeat(z[..., None, :], arms, -2)
        keys[..., FACTORS.index("arm")] = np.arange(arms)
        if self.attributes:
            z[..., len(self.covariates) :] = self._attributes(offer)
        return keys, z

    def outcome_rows(self, offer: Offer, action: IntArray, outcome: Outcome, season: int, metrics: int) -> list[Rows]:
        """The outcomes of decisions, and those of control plots as decisions for the control."""
        unit = offer.unit or Unit(user=offer.user, group=offer.user)
        y = outcome.vector if outcome.vector is not None else np.asarray(outcome.reward)[..., None]
        parts = [(action, y, outcome.observed)]
        if outcome.control is not None:
            plot = np.broadcast_to(offer.control.argmax(-1), action.shape)
            parts.append((plot, outcome.control, outcome.control_observed))
        rows = []
        for arm, values, observed in parts:
            if observed is not None and not observed.any():
                continue
            keys, z = self._of_unit(unit, season, arm)
            if self.attributes:
                all_arms = self._attributes(offer)
                all_arms = np.broadcast_to(all_arms, (*arm.shape, *all_arms.shape[-2:]))
                own = np.take_along_axis(all_arms, arm[..., None, None], -2)[..., 0, :]
                z[..., len(self.covariates) :] = own
            rows.append(make_rows(keys, z, values, observed, (len(self.factors), self.width, metrics)))
        return rows

    def _of_unit(self, unit: Unit, season: int, arm: IntArray) -> tuple[IntArray, FloatArray]:
        """Factors and covariates of decisions for these arms (..., n); attributes of the arms are left at 0."""
        needed = (
            ("categories", unit.levels, len(self.categories)),
            ("covariates", unit.covariates, len(self.covariates)),
        )
        for name, given, n in needed:
            if n and (given is None or given.shape[-1] != n):
                got = "none" if given is None else str(given.shape[-1])
                raise InputError(f"the model uses {n} {name}: give the offer a unit with them, got {got}")
        keys = np.zeros((*arm.shape, len(self.factors)), np.intp)
        z = np.zeros((*arm.shape, self.width))
        for name in PLACES:
            keys[..., FACTORS.index(name)] = getattr(unit, name)
        keys[..., FACTORS.index("season")], keys[..., FACTORS.index("arm")] = season, arm
        if self.categories:
            keys[..., len(FACTORS) :] = unit.levels
        if self.covariates:
            z[..., : len(self.covariates)] = unit.covariates
            for bit, i in enumerate(self.noisy):
                keys[..., FACTORS.index("noise")] += (z[..., i] > 0).astype(np.intp) << bit
        return keys, z

    def _attributes(self, offer: Offer) -> FloatArray:
        if offer.attributes is None or offer.attributes.shape[-1] != self.attributes:
            got = "none" if offer.attributes is None else str(offer.attributes.shape[-1])
            raise InputError(
                f"the model describes arms by {self.attributes} numbers: give them as offer.attributes, got {got}"
            )
        return offer.attributes


def _with_role(role: str, roles: Roles) -> tuple[int, ...]:
    return tuple(i for i, words in enumerate(roles) if role in words)
