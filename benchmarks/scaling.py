"""How a live step grows with the number of arms and of features, batch ().

In each cell all policies, and the plain step, take turns. A cell whose single step takes longer than the cap is not
timed, nor are the larger cells of that policy in the same sweep; the table says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from rich.table import Table

from benchmarks import layout, plain
from benchmarks.measure import MICRO, Spread, Tick
from benchmarks.stepping import LiveLoop, Scene
from drimed.models.offer import Shape
from drimed.policies.registry import make
from drimed.simulation.instances import draw_instance

ARMS = (5, 10, 30, 100, 300, 1000, 3000, 10000)
FEATURES = (4, 8, 16, 32, 64, 128)
FEATURES_OF_ARMS_SWEEP = 8
ARMS_OF_FEATURES_SWEEP = 20
METRICS = 4
USERS = 10
POLICIES = ("oful", "lin_med", "med", "dri_med", "published_dri_med")
PLAIN = "plain LinUCB"

# Okabe and Ito's palette, which stays apart for colour-blind readers; markers repeat the distinction.
_STYLES = {
    PLAIN: ("#000000", "x", "--"),
    "oful": ("#0072B2", "o", "-"),
    "lin_med": ("#E69F00", "s", "-"),
    "med": ("#009E73", "^", "-"),
    "dri_med": ("#D55E00", "D", "-"),
    "published_dri_med": ("#CC79A7", "v", "-"),
}
_WARM_UP_STEPS = 3  # the first compiles, the next touch fresh memory


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to run."""

    cap: float  # seconds that one policy may take in one cell
    slot: float  # seconds per turn, where steps are short
    turns: int

    @classmethod
    def sized(cls, quick: bool) -> Plan:
        """Seconds per cell, or a first look."""
        return cls(cap=0.3, slot=0.01, turns=3) if quick else cls(cap=2.0, slot=0.05, turns=7)

    @property
    def ticks(self) -> int:
        """How many pieces of work the run has."""
        return len(ARMS) + len(FEATURES)


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy at one size; no time where a single step would break the cap."""

    policy: str
    K: int
    d: int
    microseconds: Spread | None


@dataclass(frozen=True, slots=True)
class Result:
    """Both sweeps."""

    plan: Plan
    arms: list[Cell]
    features: list[Cell]


def run(plan: Plan, tick: Tick) -> Result:
    """The sweep over arms, then the one over features."""
    arms = _sweep(plan, ((K, FEATURES_OF_ARMS_SWEEP) for K in ARMS), tick)
    features = _sweep(plan, ((ARMS_OF_FEATURES_SWEEP, d) for d in FEATURES), tick)
    return Result(plan, arms, features)


def views(result: Result) -> list[Table]:
    """One table per sweep: medians, a row per size."""
    caption = (
        f"Medians of up to {result.plan.turns} turns. A cell where a single step of a policy takes longer than "
        f"{result.plan.cap:g} s is marked and not timed, nor are the larger ones."
    )
    found = []
    for title, axis, cells in (
        (f"µs per live step against the number of arms, d = {FEATURES_OF_ARMS_SWEEP}", "K", result.arms),
        (f"µs per live step against the number of features, K = {ARMS_OF_FEATURES_SWEEP}", "d", result.features),
    ):
        view = layout.table(title, caption, axis, *_STYLES)
        times = {(cell.policy, getattr(cell, axis)): cell.microseconds for cell in cells}
        for size in sorted({getattr(cell, axis) for cell in cells}):
            row = [times[name, size] for name in _STYLES]
            view.add_row(f"{size}", *(f"> {result.plan.cap:g} s" if t is None else f"{t.median:,.0f}" for t in row))
        found.append(view)
    return found


def figure(result: Result, folder: Path) -> list[Path]:
    """Both sweeps, log-log, side by side, as PNG and PDF."""
    fig = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = fig.subplots(1, 2, sharey=True)
    _draw(left, result.arms, "K", f"arms K (d = {FEATURES_OF_ARMS_SWEEP})", ARMS)
    _draw(right, result.features, "d", f"features d (K = {ARMS_OF_FEATURES_SWEEP})", FEATURES)
    left.set_ylabel("µs per decision and update")
    fig.suptitle("Cost of one live step: median, and range over the turns")
    fig.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(_STYLES), frameon=False)
    files = [folder / "scaling.png", folder / "scaling.pdf"]
    for file in files:
        fig.savefig(file, dpi=160)
    return files


def _sweep(plan: Plan, sizes: Iterable[tuple[int, int]], tick: Tick) -> list[Cell]:
    cells: list[Cell] = []
    over: set[str] = set()  # policies that broke the cap in a smaller cell
    for K, d in sizes:
        scene = Scene.of(draw_instance(0, Shape(d=d, K=K, M=METRICS, H=USERS)))
        timed: dict[str, Callable[[int], float]] = {PLAIN: partial(plain.step_seconds, d, K)}
        timed |= {name: LiveLoop(make(name), scene) for name in POLICIES if name not in over}
        turns: dict[str, tuple[int, int]] = {}  # number of turns, steps in each
        for name, loop in timed.items():
            for _ in range(_WARM_UP_STEPS):
                step = loop(1)
                if step > plan.cap:
                    break
            if step > plan.cap:
                over.add(name)
            else:
                turns[name] = max(1, min(plan.turns, int(plan.cap / step))), max(1, int(plan.slot / step))
        seconds: dict[str, list[float]] = {name: [] for name in turns}
        for turn in range(plan.turns):
            for name, (most, steps) in turns.items():
                if turn < most:
                    seconds[name].append(timed[name](steps))
        for name in _STYLES:
            spread = Spread.of([MICRO * s for s in seconds[name]]) if name in seconds else None
            cells.append(Cell(name, K, d, spread))
        tick()
    return cells


def _draw(axes: Axes, cells: list[Cell], axis: str, label: str, ticks: tuple[int, ...]) -> None:
    for name, (colour, marker, line) in _STYLES.items():
        seen = [
            (getattr(cell, axis), cell.microseconds)
            for cell in cells
            if cell.policy == name and cell.microseconds is not None
        ]
        sizes, medians = [size for size, _ in seen], [t.median for _, t in seen]
        axes.plot(sizes, medians, color=colour, marker=marker, linestyle=line, markersize=5, linewidth=1.4, label=name)
        axes.vlines(sizes, [t.low for _, t in seen], [t.high for _, t in seen], color=colour, linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
