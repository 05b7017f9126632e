"""One number for each rule over many suites: its regret over the best rule's that knew as much, as a geometric mean.

Rows of results.json are compared within a cell (suite and drift) and a learner (feedback, and what is known of the
noise): all of them face the same worlds with the same information, and only the rule differs. Guarded, published and
forgetting policies are left out: they solve other problems. So is a rule that did not run in every cell, and a cell
with one rule. With one metric a vector is a reward: run the rules with one of the two learners there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from drimed.bench.numbers import SMALLEST_REGRET

LEARNERS = ("vector, known noise", "reward, known noise")
NOT_THE_RULES = ("guard", "confidence", "relative", "absolute", "weighting", "feedback")


def overall(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each rule that ran in every cell: the geometric mean and the worst of its ratios, best first.

    >>> rows = [{"suite": "s", "cell": "none", "learner": LEARNERS[0], "guard": "off", "rule": rule, "policy": rule,
    ...          "regret_mean": regret} for rule, regret in [("MED", 2.0), ("OFUL", 3.0)]]
    >>> [(r["rule"], r["geometric_mean"]) for r in overall([{"rows": rows}])]
    [('MED', 1.0), ('OFUL', 1.5)]
    """
    cells: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in (row for each in results for row in each["rows"]):
        if row["learner"] in LEARNERS and row["guard"] == "off":
            cell = cells.setdefault((row["suite"], row["cell"], row["learner"]), {})
            cell[rule_name(row)] = max(row["regret_mean"], SMALLEST_REGRET)
    cells = {key: cell for key, cell in cells.items() if len(cell) > 1}
    everywhere = set.intersection(*(set(cell) for cell in cells.values())) if cells else set()
    out = []
    for rule in everywhere:
        ratios = {key: cell[rule] / min(cell[r] for r in everywhere) for key, cell in cells.items()}
        worst = max(ratios, key=lambda key: ratios[key])
        out.append(
            {
                "rule": rule,
                "geometric_mean": float(np.exp(np.log(list(ratios.values())).mean())),
                "worst": ratios[worst],
                "worst_cell": ", ".join(worst),
                "by_suite": _by(ratios, lambda key: f"{key[0]}, {key[2].split(',')[0]}"),
                "cells": len(ratios),
            }
        )
    return sorted(out, key=lambda r: float(str(r["geometric_mean"])))


def rule_name(row: dict[str, Any]) -> str:
    """The rule and its own settings, whatever learner feeds it.

    >>> rule_name({"rule": "OFUL", "policy": "v_oful:width_squared=2+guard=off"})
    'OFUL width_squared=2'
    """
    settings = str(row["policy"]).partition(":")[2].split("+")
    mine = [s for s in settings if s and s.partition("=")[0] not in NOT_THE_RULES]
    return " ".join([row["rule"], *mine])


def _by(ratios: dict[tuple[str, str, str], float], name: Any) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for key, ratio in ratios.items():
        groups.setdefault(name(key), []).append(ratio)
    return {group: float(np.exp(np.log(found).mean())) for group, found in groups.items()}
