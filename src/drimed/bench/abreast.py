"""One policy under several drifts at once, as one batch: the same numbers, in less time.

A step of a batch costs about as much Python for 64 members as for 600, and each member is computed alone: what it
meets and decides depends on its own seed and drift only. So tasks that differ in nothing but their drift run abreast,
and what comes out is cut into the summaries that they would have had apart, to the last bit. Only the time of a
decision is shared: each of them is told the mean of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, final

import numpy as np

from drimed.environments.world import BLOCK_NUMBERS, Block, World
from drimed.linear.arrays import FloatArray
from drimed.simulation.task import Summary, Task

MOST_FEATURES = (
    100_000  # numbers of one user in all worlds: with more, a batch falls out of the cache and gains nothing
)


@final
@dataclass(frozen=True, kw_only=True)
class Abreast(Task):
    """The task under each of `drifts`; its own drift is the first of them."""

    drifts: tuple[str, ...]

    def world(self) -> World:
        """All drifts side by side, the first one's worlds first."""
        parts = tuple(task.world() for task in self.apart())
        return _SideBySide(
            instances=list(parts[0].instances) * (1 if len(parts[0].instances) == 1 else len(parts)),
            seeds=self.seeds * len(parts),
            controls=list(parts[0].controls) * (1 if len(parts[0].instances) == 1 else len(parts)),
            setting=self.setting,
            parts=parts,
        )

    def apart(self) -> list[Task]:
        """One task for each drift."""
        shared = {f.name: getattr(self, f.name) for f in fields(Task)}
        return [Task(**shared | {"setting": replace(self.setting, drift=drift)}) for drift in self.drifts]

    def cut(self, summary: Summary) -> dict[str, Summary]:
        """A summary of all drifts as one of each: key of the task apart -> its own."""
        n = len(self.seeds)
        return {
            task.key(): Summary(
                {name: values[i * n : (i + 1) * n] for name, values in summary.curves.items()},
                summary.episodes,
                summary.allocation[i * n : (i + 1) * n],
                summary.decisions,
                summary.seconds / len(self.drifts),
            )
            for i, task in enumerate(self.apart())
        }


@final
@dataclass(frozen=True, kw_only=True)
class _SideBySide(World):
    """Worlds that differ in their drift, as one batch."""

    parts: tuple[World, ...]

    def blocks(self, episodes_per_block: int | None = None) -> Iterator[Block]:
        """The blocks of the parts, joined along the seeds."""
        per_episode = self.batch * self.shape.H * max(self.shape.K, self.shape.M)
        if self.setting.preferences == "per episode":
            per_episode *= self.shape.d
        n = episodes_per_block or max(1, min(self.setting.episodes, BLOCK_NUMBERS // per_episode))
        for pieces in zip(*(part.blocks(n) for part in self.parts), strict=True):
            yield self._joined(pieces)

    def _joined(self, pieces: tuple[Block, ...]) -> Block:
        joined: dict[str, Any] = {
            f.name: _join([getattr(p, f.name) for p in pieces], axis=1 if f.name == "theta" else 2)
            for f in fields(Block)
            if f.name not in ("start", "episodes", "world")
        }
        return replace(pieces[0], world=self, **joined)


def _join(arrays: list[FloatArray], axis: int) -> FloatArray:
    """Concatenated; what is the same in every episode is kept once, as it was."""
    if arrays[0].strides[0] == 0 and len(arrays[0]) > 1:
        once = np.concatenate([a[:1] for a in arrays], axis)
        return np.broadcast_to(once, (len(arrays[0]), *once.shape[1:]))
    return np.concatenate(arrays, axis)


def abreast(tasks: list[Task], fewest: int) -> list[Task]:
    """The same work in fewer tasks, yet no fewer than `fewest`: those that differ in their drift alone go together."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(_but_for_drift(task), []).append(task)
    out: list[Task] = []
    for group in groups.values():
        first = group[0]
        fit = MOST_FEATURES // (len(first.seeds) * first.shape.K * first.shape.d)
        parts = -(-len(group) // max(1, min(fit, len(tasks) // fewest)))  # the fewest parts that are small enough,
        for i in range(parts):  # and as equal as can be
            some = group[len(group) * i // parts : len(group) * (i + 1) // parts]
            out.append(_together(some) if len(some) > 1 else some[0])
    return out


def _together(tasks: list[Task]) -> Abreast:
    shared = {f.name: getattr(tasks[0], f.name) for f in fields(Task)}
    return Abreast(**shared, drifts=tuple(str(task.setting.drift) for task in tasks))


def _but_for_drift(task: Task) -> str:
    return replace(task, setting=replace(task.setting, drift="none")).key()
