"""The Lagrangian penalty of Dri-MED: arms that may fall short of the control weigh less, by a dual variable.

Source: Das et al., Alg. 2 and 3, in the consistent reading: a margin per user instead of one threshold for all
(docs/paper.md, I-3, I-13, I-14). It discourages violations; it does not exclude any.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from drimed.errors import ConfigError
from drimed.guards import margin
from drimed.guards.guard import PENALISED, UNCHANGED, AskRule, Draw, Guarded, Protects
from drimed.guards.margin import Tolerance
from drimed.learning.offer import Fit, Offer, Shape
from drimed.linear.arrays import FloatArray, pick

UPDATES = ("margin", "indicator")


@dataclass(frozen=True, slots=True)
class Duals:
    """One dual variable per user."""

    nu: FloatArray  # (..., H)


@final
@dataclass(frozen=True, kw_only=True)
class Penalty:
    """Each arm loses nu_h max(0, -F_a) of its log weight, where F_a is its certified margin.

    After each decision nu_h <- [nu_h - step m_A / sqrt(t)]_+ with m_A the estimated margin ("margin"), or
    [nu_h + step (1{m_A < 0} - rate) / sqrt(t)]_+ ("indicator").

    >>> Penalty().update
    'margin'
    """

    tolerance: Tolerance = field(default_factory=Tolerance)
    update: str = "margin"
    step: float = 1.0  # eta_0
    rate: float = 0.0  # rho, the share of estimated violations that the indicator update settles at
    initial: float = 0.0  # nu_0

    protects: ClassVar[Protects] = "discourages"
    promise: ClassVar[str] = "violations are discouraged; none is excluded"

    def __post_init__(self) -> None:
        if self.update not in UPDATES:
            raise ConfigError(f"update must be one of {UPDATES}, got {self.update!r}")
        if not 0 < self.step < np.inf:
            raise ConfigError(f"step must be positive and finite, got {self.step}")
        if not 0 <= self.rate < 1:
            raise ConfigError(f"rate must be in [0, 1), got {self.rate}")
        if not 0 <= self.initial < np.inf:
            raise ConfigError(f"initial must be at least 0 and finite, got {self.initial}")

    def init(self, shape: Shape, batch: tuple[int, ...]) -> Duals:
        return Duals(np.full((*batch, shape.H), self.initial))

    def apply(self, state: Duals, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        penalty = state.nu[..., offer.user][..., None] * self.shortfall(fit, offer)
        p = ask(offer.available, penalty)
        return Guarded(p, np.where((penalty > 0).any(-1), PENALISED, UNCHANGED))

    def shortfall(self, fit: Fit, offer: Offer) -> FloatArray:
        """How far each arm's certified margin is below zero: (..., K)."""
        x0 = offer.control_features
        return np.maximum(-margin.certified(fit, offer.features, x0, self.tolerance, fit.radius), 0.0)

    def commit(self, state: Duals, fit: Fit, offer: Offer, draw: Draw) -> Duals:
        margins = margin.estimated(fit, offer.features, offer.control_features, self.tolerance)
        m = pick(margins, draw.action)
        push = -m if self.update == "margin" else (m < 0) - self.rate
        nu = np.array(state.nu)
        nu[..., offer.user] = np.maximum(nu[..., offer.user] + self.step / np.sqrt(fit.round) * push, 0.0)
        return Duals(nu)
