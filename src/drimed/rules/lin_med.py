"""LinMED: minimum empirical divergence with the confidence radius as temperature and a G-optimal design.

Source: Balagopalan and Jun (2024). Their weights put .99 on the empirical best arm and .005 on the design; the
Dri-MED paper's comparison swaps the two (docs/paper.md, I-8).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

from drimed.learning.offer import Fit, Offer
from drimed.linear import pmf
from drimed.linear.arrays import FloatArray
from drimed.linear.design import design
from drimed.rules.med import MED
from drimed.rules.rule import Ask, Randomisation, every_arm


@final
@dataclass(frozen=True, kw_only=True)
class LinMED:
    """MED with temperature beta and mixture (empirical, optimal, rest).

    V = diag(3, 2), theta_hat = (.5, .1), arms e1, e2, (.6, .8): p = (.993374, .003299, .003327).

    >>> LinMED().empirical, LinMED().optimal
    (0.99, 0.005)
    """

    empirical: float = 0.99
    optimal: float = 0.005
    design: str = "approx"
    saturation: str = "off"  # the authors' paper has "one arm", their code never runs it

    reference: ClassVar[str] = "Balagopalan and Jun 2024"
    randomisation: ClassVar[Randomisation] = "closed form"
    normal_draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.step  # noqa: B018  building the step checks the settings

    @cached_property
    def step(self) -> MED:
        """The same weights, design and saturation as any MED."""
        return MED(
            temperature="radius",
            empirical=self.empirical,
            optimal=self.optimal,
            design=self.design,
            saturation=self.saturation,
        )

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        if fit.round > 1:
            return self.step.propose(fit, offer, ask)
        # No data, no leader: the first round mixes the design with uniform.
        x = offer.features
        p = (1 - self.optimal) * pmf.uniform(every_arm(fit, offer), ask.mask)
        return p + self.optimal * design(x, self.design, ask.mask) if self.optimal else p
