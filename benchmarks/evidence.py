"""Evidence without a model: what floors cost and tell, false claims over all looks, coverage, and a peer.

Every number that docs/evaluation.md gives on this comes from here. Trials have 40 seasons of 12 users and three arms,
of which the first is the control, and are looked at after every season; `dri_med` is as a trial file makes it. Regret
is in residual deviations of an outcome. Shapes: S trials, n decisions, K arms.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import evidence_peer, layout
from benchmarks.evidence_play import (
    ALPHA,
    RESIDUAL,
    Played,
    World,
    dri_med,
    effect_band,
    effect_scores,
    play,
    present,
    truth,
)
from benchmarks.measure import Goal, Spread, Tick
from drimed.evaluation.scores import effect_band as band_of
from drimed.evaluation.sequences import Band
from drimed.evaluation.stopping import OF_ALL_ARMS, Rule, share_of
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.rules.floors import Floors

EFFECT, MARGIN = 0.8, 0.4  # residual deviations
DETECTED, DEARER, NOMINAL = 0.90, 2.0, 1 - ALPHA
AT_ONCE = 100  # trials that are played together

BETTER = World(effects=(0.0, EFFECT, 0.0))
NULL = World(effects=(0.0, 0.0, 0.0))
AT_MARGIN = World(effects=(0.0, MARGIN, -MARGIN))
MIXTURE = Floors(arms=0.999 / 3, shrink=0.24)  # the mixture adaptive design of Liang and Bojinov


@dataclass(frozen=True)
class Design:
    """A floor, and whether it ends when some arm is known to differ from the control."""

    name: str
    floors: Floors | None = None
    ends: bool = False


NO_FLOOR = Design("none")
CHOSEN = Design("control .20, ends", Floors(control=0.20), ends=True)
BOTH = Design("control .20 and arms .05, end", Floors(control=0.20, arms=0.05), ends=True)
CONSTANT = Design("control .20", Floors(control=0.2))
DESIGNS = (
    NO_FLOOR,
    CHOSEN,
    BOTH,
    CONSTANT,
    Design("control .05", Floors(control=0.05)),
    Design("control .10, ends", Floors(control=0.10), ends=True),
    Design("control .15, ends", Floors(control=0.15), ends=True),
    Design("control .30, ends", Floors(control=0.30), ends=True),
    Design("control .50 t^-.24, ends", Floors(control=0.5, shrink=0.24), ends=True),
    Design("mixture adaptive design", MIXTURE),
    Design("mixture adaptive design, ends", MIXTURE, ends=True),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How many trials of each kind."""

    power: int
    scan: int  # of the floors beside the recommended one
    null: int
    coverage: int
    late: int
    peer: int

    @classmethod
    def sized(cls, quick: bool) -> Plan:
        """About half an hour on one core, or a first look."""
        return cls(20, 10, 20, 20, 10, 2) if quick else cls(500, 100, 1000, 200, 60, 20)

    @property
    def ticks(self) -> int:
        """How many pieces of work the run has."""
        floors = 3 * _pieces(self.power) + (len(DESIGNS) - 3) * _pieces(self.scan)
        return floors + 2 * _pieces(self.null) + 3 * _pieces(self.coverage) + 2


@dataclass(frozen=True, slots=True)
class Power:
    """What a floor tells and costs. Claims are about any arm, with Bonferroni's correction."""

    design: str
    regret: float
    ratio: float  # to no floor
    detected: float
    season: float  # median, of the claim; infinite where fewer than half have one
    wrong: float  # trials in which the range of any arm ever left the truth out
    trials: int


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something happened that should be rare, or held that should hold."""

    name: str
    rate: float
    trials: int


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that was measured."""

    plan: Plan
    power: list[Power]
    claims: list[Rate]
    coverage: list[Rate]
    peer: list[evidence_peer.Peer]
    seconds: float


def run(plan: Plan, tick: Tick) -> Result:
    """Everything."""
    start = time.perf_counter()
    power = measure_power(plan, tick)
    claims = measure_claims(plan.null, tick)
    coverage = [*measure_coverage(plan.coverage, tick), *measure_late(plan.late)]
    tick()
    peer = evidence_peer.run(BETTER, plan.peer)
    tick()
    return Result(plan, power, claims, coverage, peer, time.perf_counter() - start)


def measure_power(plan: Plan, tick: Tick) -> list[Power]:
    """Each design on the same trials; those that only show the way on fewer of them."""
    rows: list[Power] = []
    none = np.zeros(0)
    for design in DESIGNS:
        trials = plan.power if design in (NO_FLOOR, CHOSEN, BOTH) else plan.scan
        found = [(p.regret, _claim(p), _ever_wrong(p)) for p in _played(BETTER, design, trials, tick, coarse=False)]
        regret, season, wrong = (np.concatenate(part) for part in zip(*found, strict=True))
        none = regret if design is NO_FLOOR else none
        ratio, detected = float(regret.mean() / none[:trials].mean()), float(np.isfinite(season).mean())
        said = float(np.median(season)), float(wrong.mean()), trials
        rows.append(Power(design.name, float(regret.mean()), ratio, detected, *said))
    return rows


def measure_claims(trials: int, tick: Tick) -> list[Rate]:
    """False claims at any look: where nothing differs, and where the truth is exactly at the margin."""
    margin = MARGIN * RESIDUAL
    cases: tuple[tuple[World, Design, tuple[Rule, ...]], ...] = (
        (NULL, CHOSEN, (Rule(kind="superiority"), Rule(kind="harm"))),
        (
            AT_MARGIN,
            CONSTANT,
            (
                Rule(kind="superiority", margin=margin),
                Rule(kind="harm", margin=margin),
                Rule(kind="non_inferiority", margin=margin),
                Rule(kind="equivalence", margin=margin),
                Rule(kind="futility", margin=margin),
            ),
        ),
    )
    rates = []
    for world, design, rules in cases:
        claims: dict[Rule, list[BoolArray]] = {rule: [] for rule in rules}
        for played in _played(world, design, trials, tick):
            for rule in rules:
                claims[rule].append(_false_claim(played, rule))
        for rule, found in claims.items():
            name = f"{rule.kind.replace('_', '-')}, {'no effect' if world is NULL else 'effects at the margin'}"
            rates.append(Rate(f"{name}, floor {design.name}", float(np.concatenate(found).mean()), trials))
    return rates


def measure_coverage(trials: int, tick: Tick) -> list[Rate]:
    """Every arm, for all users and by group, at all times: users with different controls, effects that differ."""
    mixed: dict[str, Any] = {"season_arm": 5.0, "site_arm": 5.0, "controls": (0, 1)}
    floors = Design("", Floors(control=0.1, arms=0.05))
    worlds = {
        "different controls": World(effects=BETTER.effects, **mixed),
        "different controls, 20 % missing": World(effects=BETTER.effects, missing=0.2, **mixed),
        "coins": World(effects=BETTER.effects, kind="coins", **mixed),
    }
    half, one = np.arange(6), np.array([3])
    groups: dict[str, IntArray | None] = {"all users": None, "half of the users": half, "one user": one}
    wrong: dict[str, list[BoolArray]] = {}
    for name, world in worlds.items():
        for played in _played(world, floors, trials, tick):
            for p in _whole(played) if world.missing else [played]:
                for (who, users), exact in product(groups.items(), (False, True) if name == "coins" else (False,)):
                    off = np.stack([_outside(p, arm, users, exact) for arm in range(world.arms)], -1)
                    wrong.setdefault(f"{name}{', exact' if exact else ''}: {who}", []).append(off)
    return [_least(name, np.concatenate(off)) for name, off in wrong.items()]


def measure_late(trials: int) -> list[Rate]:
    """Outcomes come up to two seasons late; each look has what is there by then, and predicts from that."""
    world = World(effects=BETTER.effects, season_arm=5.0, site_arm=5.0, controls=(0, 1), missing=0.1, latest=2)
    wrong = []
    for played in _played(world, Design("", Floors(control=0.1, arms=0.05)), trials, lambda: None):
        for s in range(len(played.action)):
            looks = (present(played, s, season) for season in range(world.seasons))
            off = [[_outside(p, arm, None, False, last=True)[0] for arm in range(world.arms)] for p in looks]
            wrong.append(np.any(off, 0))
    return [_least("outcomes late, 10 % missing: all users", np.stack(wrong))]


def tables(result: Result) -> Iterator[Table]:
    """One for each question."""
    view = layout.table(
        "What a floor costs and tells",
        f"Trials of 480 decisions, an effect of {EFFECT} residual deviations; ranges at 95 %.",
        "floor",
        *("regret", "ratio", "detected", "median season", "ever wrong", "trials"),
    )
    for row in result.power:
        season = "-" if np.isinf(row.season) else f"{row.season:.0f}"
        rest = season, f"{100 * row.wrong:.1f} %", str(row.trials)
        view.add_row(row.design, f"{row.regret:.1f}", f"{row.ratio:.2f}", f"{100 * row.detected:.1f} %", *rest)
    yield view
    for title, rates in (("False claims at any look", result.claims), ("Held at all times", result.coverage)):
        view = layout.table(title, f"Nominal: {'at most 5 %' if rates is result.claims else 'at least 95 %'}.", "what",
                            *("rate", "trials"))  # fmt: skip
        for rate in rates:
            view.add_row(rate.name, f"{100 * rate.rate:.1f} %", str(rate.trials))
        yield view
    yield evidence_peer.table(result.peer)


def goals(result: Result) -> list[Goal]:
    """The design that is recommended; every false claim; every range."""

    def goal(name: str, value: float, bound: float, *, at_least: bool) -> Goal:
        return Goal(name, Spread(value, value, value), bound, at_least=at_least)

    chosen = next(row for row in result.power if row.design == CHOSEN.name)
    return [
        goal(f"evidence: detected with {CHOSEN.name}", chosen.detected, DETECTED, at_least=True),
        goal("evidence: regret beside no floor", chosen.ratio, DEARER, at_least=False),
        goal("evidence: false claims, the most", max(r.rate for r in result.claims), ALPHA, at_least=False),
        goal("evidence: held at all times, the least", min(r.rate for r in result.coverage), NOMINAL, at_least=True),
    ]


# Parts


def _least(name: str, wrong: BoolArray) -> Rate:
    """How often the range of an arm held, of the arm for which it did least often: wrong is (S, K)."""
    return Rate(name, 1 - float(wrong.mean(0).max()), len(wrong))


def _pieces(trials: int) -> int:
    return -(-trials // AT_ONCE)


def _played(world: World, design: Design, trials: int, tick: Tick, *, coarse: bool = True) -> Iterator[Played]:
    """Some trials at a time."""
    policy = dri_med(world, coarse=coarse)
    for start in range(0, trials, AT_ONCE):
        seeds = range(start, min(start + AT_ONCE, trials))
        yield play(world, policy, seeds, design.floors, ends=design.ends)
        tick()


def _bands(played: Played, alpha: float) -> list[Band]:
    """Of every arm but the control, after each season: (S, L)."""
    at = np.arange(1, played.world.seasons + 1) * played.world.users - 2  # the first decision has no score
    found = []
    for arm in range(1, played.world.arms):
        band = effect_band(played, arm, alpha)
        found.append(Band(band.low[:, at], band.high[:, at]))
    return found


def _false_claim(played: Played, rule: Rule) -> BoolArray:
    """Whether a rule ever claims what is not so: of all arms, or of the arms of which it is not so: (S,)."""
    bands = _bands(played, share_of(ALPHA, rule.kind, arms=played.world.arms - 1))
    low, high = np.stack([b.low for b in bands], -1), np.stack([b.high for b in bands], -1)  # (S, L, arms)
    if rule.kind in OF_ALL_ARMS:
        return np.asarray(rule.judge_all(low, high).met.any(-1))
    true = RESIDUAL * np.array(played.world.effects[1:])
    wrong = ~rule.judge(true, true).met
    return np.asarray((rule.judge(low, high).met & wrong).any((-1, -2)))


def _claim(played: Played) -> FloatArray:
    """The season in which the better arm is first said to be so: (S,), infinite for never."""
    said = _bands(played, ALPHA / (played.world.arms - 1))[0].low > 0
    return np.where(said.any(-1), said.argmax(-1) + 1.0, np.inf)


def _ever_wrong(played: Played) -> BoolArray:
    return np.logical_or.reduce([_outside(played, arm, None, False) for arm in range(1, played.world.arms)])


def _outside(played: Played, arm: int, users: IntArray | None, exact: bool, *, last: bool = False) -> BoolArray:
    """Whether the range of one arm at 95 % ever left the truth out, or does now: (S,)."""
    found = effect_scores(played, arm, users=users, exact=exact)
    band = band_of(found, ALPHA, method="exact" if exact else "asymptotic")
    true = truth(played, arm, found, users=users)
    off = (band.low > true + 1e-9) | (band.high < true - 1e-9)
    return np.asarray(off[:, -1:].any(-1) if last else off.any(-1))


def _whole(played: Played) -> Iterator[Played]:
    """Each trial by itself, with the decisions whose outcome has come."""
    for s in range(len(played.action)):
        yield present(played, s, played.world.seasons - 1)
