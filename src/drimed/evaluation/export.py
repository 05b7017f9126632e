"""A log for others: as columns, as a Parquet or CSV file with a data dictionary, or for the Open Bandit Pipeline.

Columns are named as `readers.Columns` expects them, so that what was written can be read again.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drimed.errors import InputError
from drimed.evaluation import sources
from drimed.evaluation.log import Log
from drimed.evaluation.readers import Columns

MEANING = {
    "action": "name of the arm that was played",
    "reward": "what the decision earned, in the user's own unit",
    "propensity": "probability that this arm had when it was drawn; empty: unknown",
    "user": "the user that the decision was for",
    "episode": "number of the episode, from 0",
    "probabilities": "probability that arm {name} had when the arm was drawn",
    "predictions": "mean reward of arm {name} as the model predicted it before the outcome",
    "available": "1 if arm {name} could be played, else 0",
    "metrics": "outcome of metric {name}",
}


def columns(log: Log, *, metrics: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """One array for each column.

    >>> from drimed.evaluation.log import make_log
    >>> list(columns(make_log(action=[0], reward=[1.0], propensity=[0.5], arms=["old", "new"])))
    ['action', 'reward', 'propensity']
    """
    names = Columns()
    found: dict[str, NDArray[Any]] = {
        names.action: np.array(log.arms)[log.action],
        names.reward: log.reward,
        names.propensity: log.propensity,
    }
    found |= {n: v for n, v in ((names.user, log.user), (names.episode, log.episode)) if v is not None}
    for _, prefix, labels, values in _wide(log, metrics):
        found |= {f"{prefix}{label}": values[:, k] for k, label in enumerate(labels)}
    return found


def dictionary(log: Log, *, metrics: Sequence[str] | None = None) -> dict[str, str]:
    """What each column means."""
    names = Columns()
    told = {
        getattr(names, kind): MEANING[kind]
        for kind in ("action", "reward", "propensity", "user", "episode")
        if kind in ("action", "reward", "propensity") or getattr(log, kind) is not None
    }
    for kind, prefix, labels, _ in _wide(log, metrics):
        told |= {f"{prefix}{label}": MEANING[kind].format(name=label) for label in labels}
    return told


def write(log: Log, path: str | Path, *, metrics: Sequence[str] | None = None) -> list[Path]:
    """Write a Parquet or CSV file, and beside it NAME.dictionary.csv; both paths are returned."""
    target = Path(path)
    if target.suffix not in (".parquet", ".csv"):
        raise InputError(f"a log is written as .parquet or .csv, got {target.name}")
    arrow, part = sources.pyarrow("parquet" if target.suffix == ".parquet" else "csv")
    table = arrow.table(columns(log, metrics=metrics))
    if target.suffix == ".parquet":
        part.write_table(table, target)
    else:
        unknown = arrow.array(log.propensity, from_pandas=True)  # NaN becomes an empty cell
        part.write_csv(table.set_column(2, Columns().propensity, unknown), target)
    beside = target.with_suffix(".dictionary.csv")
    with beside.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["column", "meaning"])
        rows.writerows(dictionary(log, metrics=metrics).items())
    return [target, beside]


def open_bandit(log: Log, *, context: NDArray[Any] | None = None) -> dict[str, Any]:
    """The log as `bandit_feedback` of the Open Bandit Pipeline; it knows no missing propensities."""
    if np.isnan(log.propensity).any():
        raise InputError("the Open Bandit Pipeline needs every propensity, and some of this log are unknown (NaN)")
    return {
        "n_rounds": len(log),
        "n_actions": log.K,
        "context": context,
        "action_context": np.eye(log.K),
        "action": log.action,
        "position": None,
        "reward": log.reward,
        "pscore": log.propensity,
        "pi_b": None if log.probabilities is None else log.probabilities[:, :, None],
    }


def _wide(log: Log, metrics: Sequence[str] | None) -> list[tuple[str, str, Sequence[str], NDArray[Any]]]:
    """kind, prefix, labels and values of every table that the log has."""
    names = Columns()
    labels: Sequence[str] = metrics or [str(m) for m in range(0 if log.metrics is None else log.metrics.shape[1])]
    if log.metrics is not None and len(labels) != log.metrics.shape[1]:
        raise InputError(f"give a name for each of {log.metrics.shape[1]} metrics, got {list(labels)}")
    tables = (
        ("probabilities", names.probabilities, log.arms, log.probabilities),
        ("predictions", names.predictions, log.arms, log.predictions),
        ("available", names.available, log.arms, None if log.available is None else log.available.astype(np.int8)),
        ("metrics", names.metrics, labels, log.metrics),
    )
    return [(kind, prefix, named, values) for kind, prefix, named, values in tables if values is not None]
