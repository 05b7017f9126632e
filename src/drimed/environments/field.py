"""Fields: sites, seasons and blocks with effects of their own, as public variety trials have them.

    y = level + arm + site + site x arm + season + block (site in season) + season x arm + noise

Levels that all arms share are larger than what is sought. The first arm is the control, and all metrics count alike.
All plots of a season are decided at once. Offers describe the arms as a live trial of the paper's model does, and say
at which site each plot is. Shapes: S seeds, I sites, J plots of a site, L seasons, K arms, M metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from drimed import streams
from drimed.environments.stage import Stage
from drimed.errors import ConfigError
from drimed.learning.offer import Floor, Offer, Outcome, Shape, Unit
from drimed.linear.arrays import FloatArray, IntArray

RANGE = 100.0  # the range that a trialist would declare for a metric; learners are told outcomes in units of it
DEPARTURE = 0.5  # arms differ from each other by less than levels do from zero: half as much, before any data


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Deviations:
    """Standard deviations of each kind of effect; the default is a barley trial with a residual deviation of 10."""

    residual: float = 10.0
    block: float = 13.0
    season: float = 17.0
    site: float = 12.0
    arm: float = 8.0
    site_arm: float = 5.0
    season_arm: float = 5.0

    def __post_init__(self) -> None:
        for f in fields(self):
            if not 0 <= getattr(self, f.name) < np.inf:
                raise ConfigError(f"{f.name} must be a standard deviation, got {getattr(self, f.name)}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSetting:
    """The shape of a field.

    >>> FieldSetting(seasons=3).plots
    2
    """

    arms: int = 5
    sites: int = 6
    plots: int = 2  # decisions of one site in one season
    seasons: int = 10
    metrics: int = 1
    level: float = 60.0
    deviations: Deviations = Deviations()
    correlation: float = 0.5  # between the noise of any two metrics of a plot
    advantage: float = 0.0  # added to the last arm everywhere
    shortfall: float = 0.0  # taken from every arm but the control everywhere
    trend: float = 0.0  # by which the level rises from season to season
    floor: float = 0.0  # the least chance of the control in every decision

    def __post_init__(self) -> None:
        for name in ("arms", "sites", "plots", "seasons", "metrics"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.correlation < 1:
            raise ConfigError(f"correlation must be in [0, 1), got {self.correlation}")
        if not 0 <= self.floor < 1:
            raise ConfigError(f"floor must be in [0, 1), got {self.floor}")


def maps_by_name(arms: int, metrics: int) -> FloatArray:
    """Arms that nothing describes: a level that all share, and each arm's departure from it: (K, M, (1 + K) M)."""
    level_and_arm = np.concatenate([np.ones((arms, 1)), DEPARTURE * np.eye(arms)], -1)
    return np.kron(level_and_arm[:, None, :], np.eye(metrics))


@final
@dataclass(frozen=True)
class FieldWorld:
    """One field for each seed."""

    setting: FieldSetting
    seeds: Sequence[int]

    at_once: ClassVar[bool] = True

    @property
    def shape(self) -> Shape:
        """A level that all arms share and each arm's departure from it, for each metric; users are sites."""
        s = self.setting
        return Shape(d=(1 + s.arms) * s.metrics, K=s.arms, M=s.metrics, H=s.sites)

    @property
    def episodes(self) -> int:
        """L."""
        return self.setting.seasons

    def blocks(self) -> Iterator[Stage]:
        """Season by season."""
        s = self.setting
        plots = s.sites * s.plots
        offers = self.offers(np.repeat(np.arange(s.sites), s.plots))
        means = np.repeat(self.rewards, s.plots, 1)

        for season in range(s.seasons):

            def outcomes(action: IntArray, season: int = season) -> Outcome:
                y = self.respond(season, action.reshape(-1, s.sites, s.plots)).reshape(-1, plots, s.metrics)
                return Outcome(y.mean(-1), y / RANGE)

            yield Stage(season, season * plots, offers, means, outcomes, self)

    def offers(self, sites: IntArray) -> Offer:
        """What plots at these sites are offered, (n,): batch (S, n)."""
        s, lead = self.setting, (len(self.seeds), len(sites))
        maps = maps_by_name(s.arms, s.metrics)
        preference = np.full(s.metrics, RANGE / s.metrics)
        features = np.matvec(np.swapaxes(maps, -1, -2), preference)
        return Offer(
            features=np.broadcast_to(features, (*lead, *features.shape)),
            control=np.broadcast_to(np.eye(s.arms)[0], (*lead, s.arms)),
            maps=np.broadcast_to(maps, (*lead, *maps.shape)),
            preference=np.broadcast_to(preference, (*lead, s.metrics)),
            user=sites,
            unit=Unit(user=sites, group=sites),
            floor=Floor(control=np.full(lead, s.floor), arms=np.zeros(lead)) if s.floor else None,
        )

    @property
    def rewards(self) -> FloatArray:
        """The mean reward of each arm at each site, in an average season: (S, I, K)."""
        return np.asarray(self.means.mean(-1))

    @cached_property
    def means(self) -> FloatArray:
        """The mean outcome of each arm at each site, in an average season: (S, I, K, M)."""
        s, sd = self.setting, self.setting.deviations
        arm = self._draw("arms", sd.arm, 1, s.arms)
        site = self._draw("sites", sd.site, s.sites, 1)
        both = self._draw("sites and arms", sd.site_arm, s.sites, s.arms)
        means = s.level + arm + site + both
        means[..., -1, :] += s.advantage
        means[..., 1:, :] -= s.shortfall
        return means

    @cached_property
    def seasons(self) -> FloatArray:
        """What each season adds to each arm at each site: (S, L, I, K, M)."""
        s, sd = self.setting, self.setting.deviations
        level = self._draw("seasons", sd.season, s.seasons, 1, 1)
        block = self._draw("blocks", sd.block, s.seasons, s.sites, 1)
        arm = self._draw("seasons and arms", sd.season_arm, s.seasons, 1, s.arms)
        trend = s.trend * np.arange(s.seasons)[:, None, None, None]
        return level + block + arm + trend

    @cached_property
    def noise(self) -> FloatArray:
        """(S, L, I, J, M)."""
        s = self.setting
        z = self._draw("noise", 1.0, s.seasons, s.sites, s.plots)
        shared = np.stack([streams.generator(int(seed), "shared noise").standard_normal(z.shape[1:-1])
                           for seed in self.seeds])  # fmt: skip
        own = np.sqrt(1 - s.correlation) if s.metrics > 1 else 1.0
        common = np.sqrt(s.correlation) if s.metrics > 1 else 0.0
        return s.deviations.residual * (own * z + common * shared[..., None])

    def respond(self, season: int, action: IntArray) -> FloatArray:
        """The outcomes of a season: action (S, I, J) -> (S, I, J, M)."""
        mean = self.means + self.seasons[:, season]  # (S, I, K, M)
        return np.take_along_axis(mean, action[..., None], axis=-2) + self.noise[:, season]

    def _draw(self, name: str, sd: float, *shape: int) -> FloatArray:
        draws = [streams.generator(int(s), name).standard_normal((*shape, self.setting.metrics)) for s in self.seeds]
        return sd * np.stack(draws)
