"""A run: one policy in one scenario, as plain data. It can be named, stored, sent to any worker and repeated."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

from drimed.environments.world import World, side_by_side
from drimed.experiments.scenarios import AnyScenario, Scenario
from drimed.experiments.simulate import RunRecord, simulate
from drimed.experiments.sweep import code_digest
from drimed.guards.margin import Tolerance
from drimed.policies.composing import PolicySpec
from drimed.policies.registry import find

CURVE_POINTS = 100  # of each stored curve
MOST_FEATURES = 100_000  # numbers of one user in all worlds: a larger batch falls out of the cache and gains nothing


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a result depends on, besides the code."""

    policy: str  # as on the command line: dri_med:guard=certain+confidence=anytime
    scenario: AnyScenario = field(default_factory=Scenario)
    tolerance: Tolerance = field(default_factory=Tolerance)  # what counts as a violation
    seeds: tuple[int, ...] = (0,)

    def key(self) -> str:
        """The same for the same run and the same numerical code, and for nothing else."""
        described = json.dumps([type(self.scenario).__name__, asdict(self)], sort_keys=True)
        return hashlib.sha256(f"{policy_digest(self.policy)} {described}".encode()).hexdigest()[:32]

    @property
    def label(self) -> str:
        """Beside a progress bar."""
        return f"{self.policy}, {self.scenario.drift}"

    @property
    def record_type(self) -> type[RunRecord]:
        """Of its result."""
        return RunRecord

    def blocks(self) -> list[Run]:
        """The run in blocks of seeds: each can be computed, stored and repeated alone."""
        n = self.scenario.seeds_per_block
        return [replace(self, seeds=self.seeds[i : i + n]) for i in range(0, len(self.seeds), n)]

    def group(self) -> tuple[str, int]:
        """Runs that differ in nothing but their drift are computed together, as many as fit into the cache."""
        same = replace(self, scenario=self.scenario.under("none")).key()
        return same, max(1, MOST_FEATURES // (len(self.seeds) * self.scenario.numbers))

    def run_with(self, others: Sequence[Run] = ()) -> list[RunRecord]:
        """The records of this run and of others of its group, computed as one batch.

        A step of a batch costs about as much Python for 64 members as for 600, and each member is computed alone, so
        the numbers are the same to the last bit as of runs on their own. Time is shared: each gets the mean.
        """
        world = self.scenario.world(self.seeds)
        if others and isinstance(world, World):
            world = side_by_side(world, [run.scenario.drift for run in (self, *others)])
        policy = PolicySpec.parse(self.policy).build()
        record = simulate(policy, world, tolerance=self.tolerance, points=CURVE_POINTS)
        return record.split(1 + len(others))


@cache
def policy_digest(text: str) -> str:
    """The same with the files in which a policy's own learner, rule or guard is written, if they are not drimed's."""
    spec = PolicySpec.parse(text)
    policy, source = spec.build(), find(spec.name).source
    parts = [getattr(policy, name) for name in getattr(policy, "__dataclass_fields__", ())]
    modules = {type(part).__module__ for part in (policy, *parts)} | {getattr(source, "__module__", "drimed")}
    files = {getattr(sys.modules[m], "__file__", None) for m in modules if m.partition(".")[0] != "drimed"}
    written = [Path(file).read_bytes() for file in sorted(filter(None, files))]
    if not written:
        return code_digest()
    return hashlib.sha256(b"".join([code_digest().encode(), *written])).hexdigest()[:16]
