"""The columns and parameters of a field model for the groups, users, blocks and levels that were seen so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from drimed.errors import ConfigError
from drimed.learning.field.cells import FACTORS
from drimed.learning.field.design import NoiseGroups
from drimed.learning.field.terms import Family, Layout
from drimed.learning.field.variances import Parameters

CLUSTERS = ("season", "user")


@final
@dataclass(frozen=True)
class Structure:
    """How outcomes become columns; everything a fit needs besides the data."""

    families: tuple[Family, ...]
    factors: tuple[str, ...]
    sizes: tuple[int, ...]  # of the factors
    cluster: str  # what is many and is eliminated: seasons or users
    covariates: int
    noise: NoiseGroups
    plain: int = 0  # how many of the covariates, from the back, are used as they are
    reference: int | None = None  # an arm that the effects of the others are measured against; None: all alike
    still: tuple[float, ...] | None = None  # what each metric is taken to vary by while it does not; see `measure`
    curvature: str = "exact"  # of the variances' posterior; see `variances.learn`
    ranges: tuple[tuple[float, float], ...] | None = None  # of the metrics; None: as if outcomes were never alike
    alone: bool = False  # some users are in a group, and others in none

    def __post_init__(self) -> None:
        if self.cluster not in CLUSTERS:
            raise ConfigError(f"cluster must be one of {CLUSTERS}, got {self.cluster!r}")
        most = max((c for f in self.families for c in f.slopes or ()), default=-1)
        if most >= self.covariates:
            raise ConfigError(f"a family uses covariate {most}; there are {self.covariates}, numbered from 0")
        both = [f.name for f in self.families if {"season", "user"} <= set(f.by)]
        if both:
            raise ConfigError(f"family {both[0]!r} crosses seasons with users; only one of them can be eliminated")

    @property
    def metrics(self) -> int:
        """M."""
        return self.noise.metrics

    @property
    def arms(self) -> int:
        """K."""
        return self.sizes[FACTORS.index("arm")]

    @property
    def cluster_place(self) -> int:
        """The number of the cluster's factor."""
        return self.factors.index(self.cluster)

    @cached_property
    def common(self) -> Layout:
        """The columns of theta."""
        return self._layout(own=False)

    @cached_property
    def own(self) -> Layout:
        """The columns of a cluster's own effects."""
        return self._layout(own=True)

    @cached_property
    def parameters(self) -> Parameters:
        """What is learned besides theta."""
        used = set(self.common.members) | set(self.own.members)
        families = tuple(
            f if k in used or f.variance is not None else replace(f, variance=0.0) for k, f in enumerate(self.families)
        )
        return Parameters(families, self.metrics, self.noise.count)

    def _layout(self, *, own: bool) -> Layout:
        return Layout(self.families, self.factors, self.cluster, self.sizes, self.reference, own, self.alone)
