"""Small trials with known truth, and their analyses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from drimed.records import Effect, Report
from drimed.reports.analysis import Analysis, analyse
from drimed.reports.effects import EVERYBODY, MODEL, REWARD
from drimed.reports.wording import answers, words_of
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial

PAPER: dict[str, Any] = {
    "name": "t",
    "seed": 5,
    "model": {"kind": "paper"},
    "metrics": {"yield": {"range": [0.0, 10.0]}, "cost": {"range": [0.0, 100.0], "better": "lower"}},
    "arms": {"old": {}, "good": {}, "bad": {}},
    "control": "old",
    "preference": {"yield": 2.0, "cost": -0.1},
    "users": {f"u{i}": {"group": "even" if i % 2 == 0 else "odd"} for i in range(6)},
    "tolerance": {"absolute": 4.0},
    "noise": {"kind": "known", "sd": {"yield": 0.5, "cost": 3.0}},
    "context": {"rain": {"typical": 5.0, "spread": 2.0}},
}
YIELD = {"old": 5.0, "good": 6.0, "bad": 4.0}
COST = {"old": 30.0, "good": 30.0, "bad": 20.0}
PAPER_EFFECT = {"old": 0.0, "good": 2.0, "bad": -1.0}  # 2 dyield - 0.1 dcost

ARMS = ("old", "good", "bad")
EFFECT = {"old": 0.0, "good": 12.0, "bad": -8.0}
FIELD: dict[str, Any] = {
    "name": "t",
    "seed": 5,
    "metrics": {"yield": {"unit": "dt"}, "cost": {"better": "lower"}},
    "arms": {arm: {} for arm in ARMS},
    "control": "old",
    "preference": {"yield": 1.0, "cost": -0.5},
    "tolerance": {"absolute": 30.0},
    "context": {"rain": {"typical": 300.0, "spread": 60.0, "unit": "mm"}},
    "users": {
        f"s{i}": {"plots": ["a", "b"], "attributes": {"soil": "sand" if i % 2 else "loam"}} for i in range(6)
    },
}  # fmt: skip
PEOPLE: dict[str, Any] = {
    "name": "p",
    "seed": 3,
    "model": {"kind": "people"},
    "metrics": {"steps": {}},
    "arms": {arm: {} for arm in ARMS},
    "control": "old",
    "preference": {"steps": 1.0},
    "tolerance": {"absolute": 30.0},
    "users": {f"p{i}": {} for i in range(20)},
}
# Sites with six plots, each arm by chance, and effects of 60 and -40 where the noise is 6.
CLEAR: dict[str, Any] = {k: v for k, v in FIELD.items() if k != "context"} | {
    "policy": {"name": "uniform"},
    "users": {f"s{i}": {"plots": [str(p) for p in range(6)], "group": "ab"[i % 2]} for i in range(4)},
}
TIMES = 5.0
WHY = "compared with the control in one season only: another must confirm it"
JUDGED = r">certainly<|>likely</td>|(more|less)( \(\w+\))?, (certainly|likely)"  # of an arm, in tables and charts


def play(spec: dict[str, Any], episodes: int, *, seed: int = 3, shift: int | None = None) -> Trial:
    """A trial of the paper's kind; from episode `shift` on the good arm is bad."""
    rng = np.random.default_rng(seed)
    trial = Trial.create(spec, MemoryStore())
    for episode in range(1, episodes + 1):
        rain = {u: {"rain": 5 + 2 * rng.standard_normal()} for u in spec["users"]}
        trial.open_episode(rain if spec.get("context") else None, confirm=True)
        reports = []
        for g in trial.ask_many():
            moved = shift is not None and episode >= shift and g.arm != "old"
            y = YIELD[g.arm] + (-4.0 if moved else 0.0) + 0.5 * rng.standard_normal()
            reports.append(Report(g.id, {"yield": y, "cost": COST[g.arm] + 3 * rng.standard_normal()}))
        trial.tell_many(reports, confirm=True)
    return trial


def grown(
    spec: dict[str, Any],
    seasons: int,
    *,
    seed: int = 1,
    slope: float = 0.0,
    untold: str = "",
    times: float = 1.0,
    rains: Sequence[float] = (),
) -> Trial:
    """Levels of users and seasons 9 apart, noise 6; `slope`: what the good arm gains with a spread of rain.

    Effects are so many `times` as large as `EFFECT` says. `rains` are those of the seasons, which all users share.
    """
    rng = np.random.default_rng(seed)
    trial = Trial.create(spec, MemoryStore())
    level = dict(zip(spec["users"], drawn("level", seasons, seed, len(spec["users"])), strict=True))
    for n, year in enumerate(drawn("year", seasons, seed)):
        rain = {user: {"rain": 300 + 60 * rng.standard_normal()} for user in spec["users"]}
        rain = {user: {"rain": rains[n]} for user in rain} if rains else rain
        trial.open_episode(rain if spec.get("context") else None)
        reports = []
        for given in trial.ask_many():
            wet = (rain[given.user]["rain"] - 300) / 60
            y = 60 + level[given.user] + year + times * EFFECT.get(given.arm, 0.0) + 6 * rng.standard_normal()
            y += slope * wet * (given.arm == "good")
            values = {"yield": y, "cost": 20 + rng.standard_normal(), "steps": y}
            if given.user != untold:
                reports.append(Report(given.id, {m: values[m] for m in spec["metrics"]}))
        trial.tell_many(reports, confirm=True)
    return trial


def drawn(what: str, seasons: int, seed: int = 1, users: int = 6) -> list[float]:
    """The levels of users, or of seasons, of such a trial."""
    n = users if what == "level" else seasons
    return (9 * np.random.default_rng([seed, n, what == "year"]).standard_normal(n)).tolist()


@cache
def paper() -> Analysis:
    """A trial of the paper's kind after 40 seasons."""
    return analyse(play(PAPER, 40))


@cache
def field() -> Analysis:
    """A field trial after eight seasons, with a covariate that changes an effect."""
    return analyse(grown(FIELD, 8, slope=8.0))


@cache
def people() -> Analysis:
    """A trial with people after eight seasons."""
    return analyse(grown(PEOPLE, 8))


@cache
def one_season() -> Analysis:
    """Clear effects after one season."""
    return analyse(grown(CLEAR, 1, times=TIMES))


@cache
def two_seasons() -> Analysis:
    """Clear effects after two seasons."""
    return analyse(grown(CLEAR, 2, times=TIMES))


def everybody(a: Analysis, arm: str, on: str = REWARD, source: str = MODEL) -> Effect:
    """The effect of an arm for all users together."""
    return next(x for x in a.effects if (x.who, x.arm, x.on, x.source) == (EVERYBODY, arm, on, source))


def summary(a: Analysis) -> list[str]:
    """The sentences of the first screen, in order."""
    return [sentence for sentences in answers(a, words_of(a)).values() for sentence in sentences]
