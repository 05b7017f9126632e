"""A trial's decisions with their outcomes, for other programs: CSV, JSON, Parquet, or the Open Bandit Pipeline.

Columns are named as `drimed evaluate` expects them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from drimed.errors import InputError
from drimed.evaluation import export as logs
from drimed.evaluation import sources
from drimed.evaluation.log import make_log
from drimed.trial import sheets
from drimed.trial.trial import Trial

FORMS = (".csv", ".json", ".parquet", ".npz")
MEANING = {
    "decision": "number of the decision, from 1",
    "episode": "its episode, from 1",
    "user": "who it was for",
    "time": "when it was taken (UTC)",
    "context_*": "the context it was taken in, in the unit of the trial file",
    "action": "the arm that was given",
    "propensity": "probability that this arm had when it was drawn; empty: the policy's draw has no closed form",
    "probability_*": "probability of each arm",
    "reason": "whether the guard changed the policy's proposal, and why",
    "effect_*": "each arm's reward against this user's control, as estimated at that moment",
    "state": "pending, partial, complete or missing",
    "metric_*": "outcome; empty: not there",
    "control_*": "outcome of the control plot, where there is one",
    "reward": "what the outcome was worth to the user, with the preference of that moment; empty: not known in full",
    "amendments": "how often the outcome was amended",
}


def records(trial: Trial, *, whole: bool = False) -> Iterator[dict[str, Any]]:
    """One flat record for each decision, or (whole) for those whose reward is known."""
    metrics = list(trial.state().spec.metrics)
    for d in trial.decisions():
        if whole and d.reward is None:
            continue
        yield {
            "decision": d.id,
            "episode": d.episode,
            "user": d.user,
            "time": d.time,
            **{f"context_{name}": value for name, value in (d.context or {}).items()},
            "action": d.arm,
            "propensity": d.propensity,
            **{f"probability_{arm}": p for arm, p in d.probabilities.items()},
            "reason": d.reason,
            **{f"effect_{arm}": e.estimate for arm, e in (d.effects or {}).items()},
            "state": d.state,
            **{f"metric_{metric}": (d.outcome or {}).get(metric) for metric in metrics},
            **{f"control_{metric}": value for metric, value in (d.control or {}).items()},
            "reward": d.reward,
            "amendments": d.amendments,
        }


def dictionary() -> str:
    """What each column means, as a sheet."""
    return sheets.write([{"column": name, "meaning": meaning} for name, meaning in MEANING.items()])


def write(trial: Trial, path: Path, *, whole: bool = False) -> int:
    """Write a file by its suffix, and the data dictionary beside it; returns the number of decisions in it."""
    form = path.suffix.lower()
    if form not in FORMS:
        raise InputError(f"an export is written as {', '.join(FORMS)}, got {path.name!r}")
    try:
        count = _npz(trial, path) if form == ".npz" else _table(trial, path, form, whole=whole)
        path.with_suffix(".dictionary.csv").write_text(dictionary(), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error}") from None
    return count


def _table(trial: Trial, path: Path, form: str, *, whole: bool) -> int:
    rows = list(records(trial, whole=whole))
    if form == ".json":
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    elif form == ".csv":
        path.write_text(sheets.write(rows), encoding="utf-8")
    else:
        arrow, parquet = sources.pyarrow("parquet")
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = arrow.table({name: [row.get(name) for row in rows] for name in names})
        parquet.write_table(table, path)
    return len(rows)


def _npz(trial: Trial, path: Path) -> int:
    """The arrays of the Open Bandit Pipeline's `bandit_feedback`: decisions whose reward and propensity are known."""
    done = [d for d in trial.decisions() if d.reward is not None]
    if not done:
        raise InputError("no decision has a whole outcome yet: there is nothing to export")
    problem = trial.state().problem
    known = all(d.propensity is not None for d in done)
    log = make_log(
        arms=problem.arms,
        action=[problem.arm(d.arm) for d in done],
        reward=[d.reward for d in done],
        propensity=[np.nan if d.propensity is None else d.propensity for d in done],
        probabilities=[[d.probabilities.get(arm, 0.0) for arm in problem.arms] for d in done] if known else None,
        user=[d.user for d in done],
        episode=[d.episode for d in done],
    )
    context = [[(d.context or {})[f] for f in problem.fields] or [0.0] for d in done]
    feedback = logs.open_bandit(log, context=np.array(context))
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in feedback.items() if value is not None}
    np.savez(path, **arrays)
    return int(feedback["n_rounds"])
