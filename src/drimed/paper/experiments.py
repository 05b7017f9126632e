"""Every experiment of the paper as data: which policies, on which worlds, with how many seeds.

Source: Das et al., section 5 and Appendix "Experimental Analysis". The last two experiments are ours: LinMED with its
own authors' weights, and the main comparison on random instances, because all seeds of the paper share one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from drimed.environments.world import Setting
from drimed.errors import ConfigError
from drimed.guards.margin import Tolerance
from drimed.published.readings import reading as check_reading
from drimed.simulation.task import Task

PARTS = ("main", "ablations", "allocation", "discount", "random")
DRIFTS = ("none", "gradual", "periodic", "abrupt")
QUANTILES = (0.25, 0.5, 0.75)
TOLERANCES = (0.05, 0.1, 0.2, 0.3, 0.5)
FULL_SEEDS = 128


@dataclass(frozen=True)
class Contender:
    """A policy as it appears in a figure."""

    key: str  # in results.json
    label: str
    policy: str  # in the registry
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one `drimed reproduce` measures."""

    seeds: int = FULL_SEEDS  # of the main comparison; the other parts scale with it
    reading: str = "code"
    parts: tuple[str, ...] = PARTS
    episodes: int = 1000

    def __post_init__(self) -> None:
        check_reading(self.reading)
        if self.seeds < 1:
            raise ConfigError(f"seeds must be at least 1, got {self.seeds}")
        if self.episodes < 1:
            raise ConfigError(f"episodes must be at least 1, got {self.episodes}")

    @property
    def baselines(self) -> list[Contender]:
        """The four stationary competitors, with the paper's settings."""
        return [
            Contender("oful", "OFUL", "oful"),
            Contender("lin_ts", "LinTS", "lin_ts"),
            Contender("lin_med", "LinMED", "lin_med_swapped"),
            Contender("lin_imed", "LinIMED", "lin_imed"),
        ]

    @property
    def published(self) -> list[Contender]:
        """The paper's two algorithms, in the chosen reading."""
        settings = {"reading": self.reading}
        return [
            Contender("published_dri_med", "Dri-MED", "published_dri_med", settings),
            Contender("published_dri_imed", "Dri-IMED", "published_dri_imed", settings),
        ]

    @property
    def own_weights(self) -> Contender:
        """LinMED as its authors run it (I-8)."""
        return Contender("lin_med_own_weights", "LinMED, its authors' weights", "lin_med")

    @property
    def random_contenders(self) -> list[Contender]:
        """Everything that is compared on random instances."""
        readings = [
            Contender(f"published_{step}_{reading}", f"{label} ({reading})", f"published_{step}", {"reading": reading})
            for reading in ("printed", "code")
            for step, label in (("dri_med", "Dri-MED"), ("dri_imed", "Dri-IMED"))
        ]
        ours = [
            Contender("w_oful", "OFUL, weighted", "w_oful"),
            Contender("dri_imed", "dri_imed of this package", "dri_imed"),
            Contender("dri_med", "dri_med of this package", "dri_med"),
        ]
        return [*self.baselines, self.own_weights, *readings, *ours]

    def share(self, full: int) -> int:
        """The seeds of a part that has `full` when the main comparison has 128."""
        return max(1, self.seeds * full // FULL_SEEDS)

    def setting(self, drift: str) -> Setting:
        """The paper's world. As printed, the abrupt drift keeps growing (I-25)."""
        shape = "abrupt_growing" if drift == "abrupt" and self.reading == "printed" else drift
        return Setting(episodes=self.episodes, drift=shape)

    def authors_task(
        self, contender: Contender, drift: str, seeds: int, *, quantile: float = 0.5, tolerance: float = 0.1
    ) -> Task:
        """A run on the authors' instance, with the control from their Dirichlet means (I-4)."""
        settings = dict(contender.settings)
        if contender.policy.startswith("published"):
            settings["tolerance"] = tolerance
        return Task(
            policy=contender.policy,
            settings=settings,
            quantile=quantile,
            judged_by="preference_means",
            setting=self.setting(drift),
            tolerance=Tolerance(relative=tolerance),
            seeds=tuple(range(seeds)),
        )

    def main(self) -> dict[tuple[str, str], Task]:
        """(drift, policy): the figures of regret and violations."""
        return {
            (drift, c.key): self.authors_task(c, drift, self.seeds)
            for drift in DRIFTS
            for c in [*self.baselines, *self.published, self.own_weights]
        }

    def ablations(self) -> dict[tuple[str, float, str], Task]:
        """("quantile" or "tolerance", value, policy): abrupt drift."""
        n = self.share(64)
        by_quantile = {
            ("quantile", q, c.key): self.authors_task(c, "abrupt", n, quantile=q)
            for q in QUANTILES
            for c in self.published
        }
        by_tolerance = {
            ("tolerance", e, c.key): self.authors_task(c, "abrupt", n, tolerance=e)
            for e in TOLERANCES
            for c in self.published
        }
        return by_quantile | by_tolerance

    def allocation(self) -> dict[str, Task]:
        """policy: who got which arm, abrupt drift."""
        chosen = [self.baselines[2], self.own_weights, self.published[0]]
        return {c.key: self.authors_task(c, "abrupt", self.share(32)) for c in chosen}

    def discount(self) -> dict[tuple[str, float], Task]:
        """(drift, discount): Dri-MED with and without forgetting."""
        dri_med = self.published[0]
        return {
            (drift, discount): self.authors_task(
                Contender(dri_med.key, dri_med.label, dri_med.policy, dri_med.settings | {"discount": discount}),
                drift,
                self.share(32),
            )
            for drift in DRIFTS
            for discount in (0.99, 1.0)
        }

    def random(self) -> dict[tuple[str, str], Task]:
        """(drift, policy): one random instance per seed, control at the median of each user's actual arms."""
        return {
            (drift, c.key): Task(
                policy=c.policy,
                settings=c.settings,
                instances="random",
                setting=self.setting(drift),
                seeds=tuple(range(1000, 1000 + self.share(64))),
            )
            for drift in DRIFTS
            for c in self.random_contenders
        }

    def tasks(self) -> dict[str, dict[Any, Task]]:
        """Every task of the chosen parts."""
        return {part: getattr(self, part)() for part in self.parts}
