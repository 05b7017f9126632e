"""A trial's decisions with their outcomes, for other programs: CSV, JSON, Parquet, or the Open Bandit Pipeline.

Columns are named as `drimed evaluate` expects them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from drimed.errors import InputError
from drimed.evaluation.log import make_log
from drimed.evaluation.tables import open_bandit, pyarrow
from drimed.outputs import replacing
from drimed.records import Decision
from drimed.trial import earlier, lme4, queries
from drimed.trial.problem import Profile
from drimed.trial.state import TrialState
from drimed.trial.tables.writing import csv_line, csv_text
from drimed.trial.trial import Trial

IN_MEMORY = 1024 * 1024  # bytes; larger files go to the disk
FORMS = (".csv", ".json", ".parquet", ".npz")
MEANING = {
    "decision": "number of the decision, from 1",
    "episode": "its season or other episode, from 1",
    "user": "who it was for",
    "group": "the user's site, clinic or other group; a user that has none is a group of its own",
    "plot": "the plot it was for, where the user has several; names are unique within a user",
    "block": "the block of that plot; names are unique within a user",
    "time": "when it was taken (UTC)",
    "attribute_*": "what is known about the user: a number in the unit of the trial file, or a level",
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
    with trial.reading() as (ledger, state):
        metrics, attributes = list(state.spec.metrics), list(state.problem.covariates.attributes)
        found = (d for d in queries.decisions(ledger, state) if not whole or d.reward is not None)
        yield from (_record(d, state.profile(d.user), metrics, attributes) for d in found)


def _record(d: Decision, profile: Profile, metrics: Sequence[str], attributes: Sequence[str]) -> dict[str, Any]:
    known = profile.definition.attributes or {}
    return {
        "decision": d.id,
        "episode": d.episode,
        "user": d.user,
        "group": d.user if profile.group is None else profile.group,
        **({} if d.plot is None else {"plot": d.plot, "block": d.block}),
        "time": d.time,
        **{f"attribute_{name}": known.get(name) for name in attributes},
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


def dictionary(state: TrialState) -> str:
    """What each column means, as a sheet; and how to fit the trial's model to them in R."""
    rows = [{"column": name, "meaning": meaning} for name, meaning in MEANING.items()]
    lines = {metric: lme4.line(state, metric) for metric in state.problem.metrics}
    rows += [{"column": f"the model of {m} in R", "meaning": line} for m, line in lines.items() if line is not None]
    return csv_text(rows)


def write(trial: Trial, path: Path, *, whole: bool = False) -> int:
    """Write a file by its suffix, and the data dictionary beside it; returns the number of decisions in it."""
    form = path.suffix.lower()
    if form not in FORMS:
        raise InputError(f"an export is written as {', '.join(FORMS)}, got {path.name!r}")
    with (
        replacing(path, earlier.EXPORTS.get(form, _is_parquet), "an export") as beside,
        replacing(path.with_suffix(".dictionary.csv"), earlier.DICTIONARY, "a data dictionary") as words,
    ):
        count = _npz(trial, beside) if form == ".npz" else _table(trial, beside, form, whole=whole)
        words.write_text(dictionary(trial.state()), encoding="utf-8")
    return count


def spooled(trial: Trial, form: str) -> IO[bytes]:
    """All decisions as a temporary file, csv or json, at its beginning; the caller closes it.

    It is made at once, so that a slow reader holds no transaction open.
    """
    out: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115  # it is handed on
    try:
        (_json if form == "json" else _csv)(records(trial), out)
        out.seek(0)
    except BaseException:
        out.close()
        raise
    return out


def _table(trial: Trial, path: Path, form: str, *, whole: bool) -> int:
    rows = records(trial, whole=whole)
    if form == ".parquet":
        return _parquet(list(rows), path)
    with path.open("wb") as out:
        return (_json if form == ".json" else _csv)(rows, out)


def _json(rows: Iterable[dict[str, Any]], out: IO[bytes]) -> int:
    n = 0
    out.write(b"[")
    for n, row in enumerate(rows, 1):  # the last n is their number
        out.write(b",\n " if n > 1 else b"\n ")
        out.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode())
    out.write(b"\n]\n")
    return n


def _csv(rows: Iterable[dict[str, Any]], out: IO[bytes]) -> int:
    """Twice over the rows: an arm that was added late has columns that the first row does not know."""
    names: dict[str, None] = {}
    n = 0
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as kept:
        for row in rows:
            n, names = n + 1, names | dict.fromkeys(row)
            kept.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        kept.seek(0)
        columns = list(names)
        out.write(csv_line(columns).encode())
        for line in kept:
            data: dict[str, Any] = json.loads(line)
            out.write(csv_line(data.get(name) for name in columns).encode())
    return n


def _parquet(rows: list[dict[str, Any]], path: Path) -> int:
    arrow, parquet = pyarrow("parquet")
    names = list(dict.fromkeys(name for row in rows for name in row))
    parquet.write_table(arrow.table({name: [row.get(name) for row in rows] for name in names}), path)
    return len(rows)


def _is_parquet(path: Path) -> bool:
    arrow, parquet = pyarrow("parquet")
    try:
        return list(parquet.read_schema(path).names[:3]) in (["decision", "episode", "user"], [])
    except arrow.ArrowException:
        return False


def _npz(trial: Trial, path: Path) -> int:
    """The arrays of the Open Bandit Pipeline's `bandit_feedback`: decisions whose reward and propensity are known."""
    done = [d for d in trial.decisions() if d.reward is not None]
    if not done:
        raise InputError("no decision has a whole outcome yet: there is nothing to export")
    problem = trial.state().problem
    covariates = problem.covariates
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
    contexts = [covariates.context(d.context) for d in done]  # a category by the number of its level
    feedback = open_bandit(log, context=np.array([[0.0] if c is None else c for c in contexts]))
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in feedback.items() if value is not None}
    np.savez(path, **arrays)
    return int(feedback["n_rounds"])
