"""One policy in one batch of worlds, as plain data: it can be named, stored, sent to any worker and run again."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import drimed
from drimed.environments.control import mixed_control, quantile_control
from drimed.environments.instance import PAPER_SHAPE, authors_instance, draw_instance, end_of_optimism
from drimed.environments.world import Setting, World
from drimed.errors import ConfigError, InputError
from drimed.guards.margin import Tolerance
from drimed.learning.offer import Shape
from drimed.linear.arrays import FloatArray
from drimed.policies.registry import make
from drimed.simulation.run import simulate

# What decides a result. Pages, figures and the command line do not.
NUMERICAL_PARTS = ("linear", "learning", "rules", "guards", "policies", "published", "environments", "simulation")
FAMILIES = ("authors", "random", "lonely")


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that a result depends on, besides the code."""

    policy: str
    settings: dict[str, Any] = field(default_factory=dict)
    # authors: their one instance for all seeds; random: one of the paper's generator for each seed; lonely: one of the
    # end-of-optimism family for each seed
    instances: str = "authors"
    shape: Shape = PAPER_SHAPE  # of random instances
    theta_norm: float = 1.0  # of random instances
    control: str = "quantile"  # or "mixed": a lottery over all arms
    quantile: float = 0.5  # of the control's arm among each user's arms
    judged_by: str = "preferences"
    together: bool = False  # decide a whole episode from one state
    setting: Setting = field(default_factory=Setting)
    tolerance: Tolerance = field(default_factory=Tolerance)
    seeds: tuple[int, ...] = (0,)
    points: int = 100  # of each stored curve

    def __post_init__(self) -> None:
        if self.instances not in FAMILIES:
            raise ConfigError(f"instances must be one of {FAMILIES}, got {self.instances!r}")
        if self.control not in ("quantile", "mixed"):
            raise ConfigError(f"control must be 'quantile' or 'mixed', got {self.control!r}")
        if not isinstance(self.setting.drift, str):
            raise ConfigError("a task is plain data: name its drift; pass a function to World instead")

    def world(self) -> World:
        """The batch of worlds."""
        if self.instances == "authors":
            instances = [authors_instance()]
        elif self.instances == "lonely":
            instances = [end_of_optimism(s) for s in self.seeds]
        else:
            instances = [draw_instance(s, self.shape, theta_norm=self.theta_norm) for s in self.seeds]
        if self.control == "mixed":
            controls = [mixed_control(i, s) for i, s in zip(instances, self.seeds, strict=False)]
        else:
            controls = [quantile_control(i, self.quantile, judged_by=self.judged_by) for i in instances]
        return World(instances=instances, seeds=self.seeds, controls=controls, setting=self.setting)

    def key(self) -> str:
        """The same for the same task and the same numerical code, and for nothing else."""
        described = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(f"{code_digest()} {described}".encode()).hexdigest()[:32]

    def run(self) -> Summary:
        """Simulate and summarise."""
        result = simulate(
            make(self.policy, **self.settings), self.world(), tolerance=self.tolerance, together=self.together
        )
        L = self.setting.episodes
        episodes = np.unique(np.linspace(0, L, min(self.points, L) + 1).astype(int)[1:])
        curves = {
            name: (values if name == "parameter_error" else values.cumsum(-1))[:, episodes - 1]
            for name, values in result.series.items()
        }
        return Summary(curves, episodes, result.allocation, result.decisions, result.seconds)


@dataclass(frozen=True)
class Summary:
    """What is kept of a run: each metric at some episodes, cumulated (parameter_error: as it is)."""

    curves: dict[str, FloatArray]  # (S, T)
    episodes: Any  # (T,), numbers of finished episodes
    allocation: FloatArray  # (S, H, K)
    decisions: int  # per seed
    seconds: float

    def total(self, name: str) -> FloatArray:
        """A metric over the whole run: (S,)."""
        return self.curves[name][:, -1]

    def rate(self, name: str) -> float:
        """A count per decision, over all seeds."""
        return float(self.total(name).mean()) / self.decisions

    def windows(self, name: str) -> FloatArray:
        """A count per decision between one stored episode and the next: (S, T)."""
        users = self.decisions / self.episodes[-1]
        return np.diff(self.curves[name], axis=-1, prepend=0.0) / (np.diff(self.episodes, prepend=0) * users)

    @property
    def microseconds_per_decision(self) -> float:
        """Wall time of one decision, environment included, averaged over the batch."""
        return 1e6 * self.seconds / (self.decisions * len(self.allocation))

    def save(self, path: Path) -> None:
        """Write atomically: a reader finds the whole file or none."""
        arrays: dict[str, Any] = {f"curve.{name}": values for name, values in self.curves.items()}
        for name in ("episodes", "allocation", "decisions", "seconds"):
            arrays[name] = getattr(self, name)
        part = path.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as f:
            np.savez_compressed(f, allow_pickle=False, **arrays)
        part.replace(path)

    @staticmethod
    def load(path: Path) -> Summary:
        """Read what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as f:
                curves = {k.removeprefix("curve."): f[k] for k in f.files if k.startswith("curve.")}
                return Summary(curves, f["episodes"], f["allocation"], int(f["decisions"]), float(f["seconds"]))
        except (OSError, KeyError, ValueError, EOFError) as error:
            raise InputError(f"{path} is not a stored result ({error}); delete it and run again") from error


@cache
def code_digest() -> str:
    """A fingerprint of the code that decides results: a stored result of other code is not used."""
    root = Path(drimed.__file__).parent
    digest = hashlib.sha256()
    for part in NUMERICAL_PARTS:
        for path in sorted((root / part).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    digest.update((root / "streams.py").read_bytes())
    return digest.hexdigest()[:16]
