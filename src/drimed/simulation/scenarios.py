"""Where a policy is put to the test, as plain data: the paper's worlds, fields, and mobile health."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from drimed.errors import ConfigError
from drimed.models.offer import Shape
from drimed.simulation.instances import (
    PAPER_SHAPE,
    authors_instance,
    draw_instance,
    end_of_optimism,
    mixed_control,
    quantile_control,
)
from drimed.simulation.mhealth import MobileHealth
from drimed.simulation.trial_world import FieldSetting, FieldWorld
from drimed.simulation.worlds import AnyWorld, Setting, World

FAMILIES = ("authors", "random", "lonely")
NO_DRIFT = "none"
SEEDS_PER_BLOCK = 64
FEW_SEEDS = 5  # where every outcome of every person is kept


class AnyScenario(Protocol):
    """What a sweep needs of a scenario; it is a frozen dataclass."""

    @property
    def drift(self) -> str:
        """The name of the drift."""

    @property
    def seeds_per_block(self) -> int:
        """How many seeds are computed and stored together: fixed, so that no result depends on who ran it."""

    @property
    def numbers(self) -> int:
        """Of one user in one world: large worlds run in small batches."""

    def under(self, drift: str) -> AnyScenario:
        """The same with another drift, where there are any."""

    def lasting(self, episodes: int) -> AnyScenario:
        """The same for so many episodes."""

    def world(self, seeds: Sequence[int]) -> AnyWorld:
        """A world for each seed."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The paper's world: instances, their control, and how contexts and noise behave."""

    # authors: their one instance for all seeds; random: one of the paper's generator for each seed; lonely: one of the
    # end-of-optimism family for each seed
    instances: str = "authors"
    shape: Shape = PAPER_SHAPE  # of random instances
    theta_norm: float = 1.0  # of random instances
    control: str = "quantile"  # or "mixed": a lottery over all arms
    quantile: float = 0.5  # of the control's arm among each user's arms
    judged_by: str = "preferences"
    setting: Setting = field(default_factory=Setting)

    def __post_init__(self) -> None:
        if self.instances not in FAMILIES:
            raise ConfigError(f"instances must be one of {FAMILIES}, got {self.instances!r}")
        if self.control not in ("quantile", "mixed"):
            raise ConfigError(f"control must be 'quantile' or 'mixed', got {self.control!r}")
        if not isinstance(self.setting.drift, str):
            raise ConfigError("a scenario is plain data: name its drift; pass a function to World instead")

    @property
    def drift(self) -> str:
        """The name of the drift."""
        return str(self.setting.drift)

    @property
    def seeds_per_block(self) -> int:
        """Enough to be fast."""
        return SEEDS_PER_BLOCK

    @property
    def numbers(self) -> int:
        """The features of one user."""
        return self.shape.K * self.shape.d

    def under(self, drift: str) -> Scenario:
        """The same with another drift."""
        return replace(self, setting=replace(self.setting, drift=drift))

    def lasting(self, episodes: int) -> Scenario:
        """The same for so many episodes."""
        return replace(self, setting=replace(self.setting, episodes=episodes))

    def world(self, seeds: Sequence[int]) -> World:
        """A world for each seed."""
        if self.instances == "authors":
            instances = [authors_instance()]
        elif self.instances == "lonely":
            instances = [end_of_optimism(s) for s in seeds]
        else:
            instances = [draw_instance(s, self.shape, theta_norm=self.theta_norm) for s in seeds]
        if self.control == "mixed":
            controls = [mixed_control(i, s) for i, s in zip(instances, seeds, strict=False)]
        else:
            controls = [quantile_control(i, self.quantile, judged_by=self.judged_by) for i in instances]
        return World(instances=instances, seeds=seeds, controls=controls, setting=self.setting)


@dataclass(frozen=True, kw_only=True)
class FieldScenario:
    """Sites, season after season."""

    setting: FieldSetting = field(default_factory=FieldSetting)

    @property
    def drift(self) -> str:
        """Fields have none."""
        return NO_DRIFT

    @property
    def seeds_per_block(self) -> int:
        """Enough to be fast."""
        return SEEDS_PER_BLOCK

    @property
    def numbers(self) -> int:
        """The means of one site."""
        return self.setting.arms * self.setting.metrics

    def under(self, drift: str) -> FieldScenario:
        """The same."""
        del drift
        return self

    def lasting(self, episodes: int) -> FieldScenario:
        """The same for so many seasons."""
        return replace(self, setting=replace(self.setting, seasons=episodes))

    def having(self, **changes: Any) -> FieldScenario:
        """The same with another number of sites, or another floor."""
        return replace(self, setting=replace(self.setting, **changes))

    def world(self, seeds: Sequence[int]) -> FieldWorld:
        """A field for each seed."""
        return FieldWorld(self.setting, seeds)


@dataclass(frozen=True, kw_only=True)
class HealthScenario:
    """People who join one by one and decide again and again."""

    setting: str = "homogeneous"
    stages: int = 200

    @property
    def drift(self) -> str:
        """Has none."""
        return NO_DRIFT

    @property
    def seeds_per_block(self) -> int:
        """Few."""
        return FEW_SEEDS

    @property
    def numbers(self) -> int:
        """The features of one user."""
        return 12

    def under(self, drift: str) -> HealthScenario:
        """The same."""
        del drift
        return self

    def lasting(self, episodes: int) -> HealthScenario:
        """The same for so many stages."""
        return replace(self, stages=episodes)

    def world(self, seeds: Sequence[int]) -> MobileHealth:
        """A study for each seed."""
        return MobileHealth(self.setting, seeds, self.stages)
