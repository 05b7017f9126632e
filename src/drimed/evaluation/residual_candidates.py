"""The checks of levels, lines and spread that can be made, and the search forward through them.

Shapes: n rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from drimed.evaluation import residual_tests as tests
from drimed.evaluation.residual_tests import OwnLines, Space
from drimed.linear.arrays import FloatArray, IntArray

FEWEST_UNITS = 5  # seasons, groups or users: with fewer, a line cannot be told from levels


@dataclass(frozen=True)
class Candidate:
    """A test that can be made on what has been taken out so far."""

    name: str
    test: Callable[[FloatArray, Space], tuple[float, float]]
    adds: Space


def forward(
    candidates: list[Candidate], ys: Sequence[FloatArray], threshold: float, model: Space
) -> tuple[Space, dict[str, tuple[float, float]]]:
    """What was found step by step, and p-value and size of every test: at its turn, or after the last step.

    A test is made on each of `ys`, and the largest p-value counts: something is found where all of them show it. What a
    later finding explains is let go in the end: levels of seasons, where they are a trend.
    """
    base, taken, open_ = model, list[Candidate](), list(candidates)
    found = dict[str, tuple[float, float]]()
    while open_:
        now = {c.name: _agreed(c, ys, base) for c in open_}
        best = min(open_, key=lambda c: np.nan_to_num(now[c.name][0], nan=1.0))
        if not now[best.name][0] < threshold:
            found |= now
            break
        found[best.name] = now[best.name]
        base = base.and_(best.adds)
        taken.append(best)
        open_.remove(best)
    for each in list(taken):
        others = model
        for other in taken:
            others = others if other is each else others.and_(other.adds)
        again = _agreed(each, ys, others)
        if again[0] >= threshold:  # not where it cannot be told apart from the others
            found[each.name], base = again, others
            taken.remove(each)
    return base, found


def _agreed(candidate: Candidate, ys: Sequence[FloatArray], base: Space) -> tuple[float, float]:
    """The result with the largest p-value; NaN where one cannot tell."""
    return max((candidate.test(y, base) for y in ys), key=lambda found: np.nan_to_num(found[0], nan=np.inf))


def levels(factors: dict[str, IntArray]) -> list[Candidate]:
    """Levels of single factors, and of pairs beyond those of their two factors."""
    some = {name: v for name, v in factors.items() if v.max() > 0}
    if "group" in some and "user" in some and tests.nested(some["user"], some["group"]):
        some.pop("user")  # every user is a group
    made = [_by_level(name, Space((v,))) for name, v in some.items()]
    for a, b in (("season", "arm"), ("group", "arm"), ("user", "arm"), ("season", "group")):
        if a in some and b in some:
            made.append(_by_level(f"{a} x {b}", Space((tests.cells(some[a], some[b]),)), Space((some[a], some[b]))))
    return made


def _by_level(name: str, adds: Space, given: Space = Space()) -> Candidate:  # noqa: B008  frozen and empty
    return Candidate(name, lambda y, base: tests.explains(y, base.and_(given), adds), given.and_(adds))


def by_spread(name: str, adds: Space) -> Candidate:
    return _by_level(f"spread by {name}", adds)


def trend(factors: dict[str, IntArray], time: FloatArray) -> list[Candidate]:
    """A line over the seasons, or over time where there is one season."""
    if "season" in factors:
        return [_line("trend", factors["season"].astype(np.float64), factors)]
    return [_line("trend", time, factors)]


def lines(factors: dict[str, IntArray], covariates: dict[str, FloatArray]) -> list[Candidate]:
    """A line and a curve in each covariate, and lines of their own for the arms."""
    made = []
    for name, x in covariates.items():
        if np.ptp(x) == 0:
            continue
        straight = column(x)
        curve = straight**2
        made.append(_line(f"{name}: line", x, factors))
        if len(np.unique(x)) > 2:
            made.append(_curve(f"{name}: curve", straight, curve, factors))
        if "arm" in factors:
            arm = factors["arm"]
            own = Space((), (OwnLines(straight, arm),))
            made.append(_by_level(f"{name}: arms", own, Space((arm,), (straight,))))
    return made


def categories(factors: dict[str, IntArray], given: dict[str, IntArray]) -> list[Candidate]:
    """Levels of each category, and of its pairs with the arms; one that names users or groups is looked at as these."""
    made = []
    for name, v in given.items():
        if v.max() == 0 or any(tests.nested(factors[f], v) for f in ("group", "user") if f in factors):
            continue
        made.append(_by_level(f"{name}: levels", Space((v,))))
        if "arm" in factors:
            arm = factors["arm"]
            made.append(_by_level(f"{name}: arms", Space((tests.cells(v, arm),)), Space((v, arm))))
    return made


def _line(name: str, x: FloatArray, factors: dict[str, IntArray]) -> Candidate:
    return _bent(name, Space(), x, factors)


def _curve(name: str, straight: FloatArray, curve: FloatArray, factors: dict[str, IntArray]) -> Candidate:
    bent = curve[:, 0] - np.polyval(np.polyfit(straight[:, 0], curve[:, 0], 1), straight[:, 0])
    return _bent(name, Space((), (straight,)), bent, factors)


def _bent(name: str, given: Space, x: FloatArray, factors: dict[str, IntArray]) -> Candidate:
    """A line in x beyond what is given; where its units are found to have levels, against the scatter of these."""
    adds, unit = Space((), (column(x),)), _constant_within(x, factors)
    if unit is None:
        return _by_level(name, adds, given)

    def test(y: FloatArray, base: Space) -> tuple[float, float]:
        if int(unit.max()) + 1 < FEWEST_UNITS:
            return np.nan, np.nan
        if any(f is unit for f in base.factors):
            return tests.line_between(y, base.and_(given), x, unit)
        return tests.explains(y, base.and_(given), adds)

    return Candidate(name, test, given.and_(adds))


def _constant_within(x: FloatArray, factors: dict[str, IntArray]) -> IntArray | None:
    """The coarsest of seasons, groups and users within which x is always the same."""
    values = tests.codes(x)
    return next(
        (factors[f] for f in ("season", "group", "user") if f in factors and tests.nested(values, factors[f])), None
    )


def column(x: FloatArray) -> FloatArray:
    """Centred and of size one: (n, 1)."""
    off = x - x.mean()
    return np.asarray((off / np.sqrt((off**2).mean()))[:, None])
