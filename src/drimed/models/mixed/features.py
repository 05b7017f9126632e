"""From offers and outcomes to factors and covariates: what the field model reads of a decision.

Covariates of the unit stand before the attributes of the arm.
Shapes: leading `...` is any batch; H decisions at a time, K arms, F factors, c covariates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from drimed.errors import InputError
from drimed.models.mixed.cells import FACTORS
from drimed.models.mixed.terms import Terms, factors_of
from drimed.models.offer import Offer, Outcome, Unit
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray

Roles = tuple[frozenset[str], ...]


class Told(NamedTuple):
    """Outcomes of decisions, an axis of decisions before the factors, covariates and metrics."""

    keys: IntArray  # (..., H, F)
    covariates: FloatArray  # (..., H, c)
    y: FloatArray  # (..., H, M)
    observed: BoolArray | None  # (..., H, M)


@final
@dataclass(frozen=True)
class Reading:
    """What the covariates and categories of a unit are for."""

    covariates: Roles
    categories: Roles
    attributes: int

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """Of every decision."""
        return factors_of(len(self.categories))

    @cached_property
    def noisy(self) -> tuple[int, ...]:
        """The covariates that scale the noise: each splits it at its typical value."""
        return _with_role("noise", self.covariates)

    @cached_property
    def terms(self) -> Terms:
        """By the numbers of covariates and categories."""
        c = len(self.covariates)
        return Terms(
            level=_with_role("level", self.covariates),
            effects=_with_role("effects", self.covariates),
            attributes=tuple(range(c, c + self.attributes)),
            categories=_with_role("level", self.categories),
            category_effects=_with_role("effects", self.categories),
        )

    @property
    def width(self) -> int:
        """c."""
        return len(self.covariates) + self.attributes

    def asked(self, offer: Offer, season: int, arms: int) -> tuple[IntArray, FloatArray]:
        """The factors and covariates of all arms of each offer: (..., H, K, F) and (..., H, K, c)."""
        unit = offer.unit or Unit(user=offer.user, group=offer.user)
        parts = [a.shape[:-1] for a in (unit.levels, unit.covariates) if a is not None]
        if offer.attributes is not None:
            parts.append(offer.attributes.shape[:-2])
        lead = np.broadcast_shapes(np.shape(unit.user), np.shape(unit.group), np.shape(unit.block), *parts)
        keys, z = self._of_unit(unit, season, np.zeros(lead, np.intp))
        keys, z = np.repeat(keys[..., None, :], arms, -2), np.repeat(z[..., None, :], arms, -2)
        keys[..., FACTORS.index("arm")] = np.arange(arms)
        if self.attributes:
            z[..., len(self.covariates) :] = self._attributes(offer)
        return keys, z

    def told(self, offer: Offer, action: IntArray, outcome: Outcome, season: int) -> list[Told]:
        """The outcomes of decisions; a control plot is one more decision, for the control."""
        unit = offer.unit or Unit(user=offer.user, group=offer.user)
        y = outcome.vector if outcome.vector is not None else np.asarray(outcome.reward)[..., None]
        found: list[tuple[Any, ...]] = [(action, y, outcome.observed)]
        if outcome.control is not None:
            plot = np.broadcast_to(offer.control.argmax(-1), action.shape)
            found.append((plot, outcome.control, outcome.control_observed))
        return [self._one(offer, unit, season, *parts) for parts in found if parts[2] is None or parts[2].any()]

    def _one(
        self, offer: Offer, unit: Unit, season: int, arm: IntArray, y: FloatArray, observed: BoolArray | None
    ) -> Told:
        keys, z = self._of_unit(unit, season, arm)
        if self.attributes:
            own = self._attributes(offer)
            own = np.broadcast_to(own, (*arm.shape, *own.shape[-2:]))
            z[..., len(self.covariates) :] = np.take_along_axis(own, arm[..., None, None], -2)[..., 0, :]
        return Told(keys, z, y, observed)

    def _of_unit(self, unit: Unit, season: int, arm: IntArray) -> tuple[IntArray, FloatArray]:
        """Factors and covariates of decisions for these arms (..., H); covariates of the arms are left at 0."""
        keys = np.zeros((*arm.shape, len(self.factors)), np.intp)
        z = np.zeros((*arm.shape, len(self.covariates) + self.attributes))
        named = {"season": season, "block": unit.block, "group": unit.group, "user": unit.user, "arm": arm}
        for name, value in named.items():
            keys[..., FACTORS.index(name)] = value
        if self.categories:
            keys[..., len(FACTORS) :] = _needed("categories", unit.levels, len(self.categories))
        if self.covariates:
            z[..., : len(self.covariates)] = _needed("covariates", unit.covariates, len(self.covariates))
            for bit, i in enumerate(self.noisy):
                keys[..., FACTORS.index("noise")] += (z[..., i] > 0).astype(np.intp) << bit
        return keys, z

    def _attributes(self, offer: Offer) -> FloatArray:
        if offer.attributes is None or offer.attributes.shape[-1] != self.attributes:
            came = "none" if offer.attributes is None else str(offer.attributes.shape[-1])
            raise InputError(
                f"the model describes arms by {self.attributes} numbers: give them as offer.attributes, got {came}"
            )
        return offer.attributes


def _needed(name: str, values: IntArray | FloatArray | None, n: int) -> IntArray | FloatArray:
    if values is None or values.shape[-1] != n:
        came = "none" if values is None else str(values.shape[-1])
        raise InputError(f"the model uses {n} {name}: give the offer a unit with them, got {came}")
    return values


def _with_role(role: str, roles: Roles) -> tuple[int, ...]:
    return tuple(i for i, words in enumerate(roles) if role in words)
