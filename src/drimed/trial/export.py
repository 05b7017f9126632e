"""A trial's decisions with their outcomes, for other programs: CSV, .xlsx, JSON, or Parquet.

Columns are named as `drimed evaluate` expects them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from drimed.errors import InputError, StoreError
from drimed.evaluation.decision_log import polars
from drimed.outputs import replacing
from drimed.policies.guards.base import reason_text
from drimed.trial import queries, snapshots, tables
from drimed.trial.columns import control_plot
from drimed.trial.events import DECISION
from drimed.trial.queries import Story
from drimed.trial.seasons import COLUMNS
from drimed.trial.spec import LARGEST
from drimed.trial.state import OutgrownError, TrialState
from drimed.trial.tables import csv_line, csv_lines, csv_text
from drimed.trial.trial import Trial

AT_ONCE = 250  # decisions that are read together, and sent as one piece
FORMS = (".csv", ".xlsx", ".json", ".parquet")
MEANING = {
    "decision": "number of the decision, from 1",
    "episode": "number of its season, from 1",
    "season": "what the season is called; empty: it has no name",
    "date": "when the season began, as given; empty: it was not",
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
    "effect_*": "each arm's reward against this user's control, as estimated at that moment; empty: nothing was known",
    "state": "pending, partial, complete or missing",
    "metric_*": "outcome; empty: not there",
    "control.*": "outcome of the control plot, where there is one",
    "reward": "what the outcome was worth to the user, with the preference of that moment; empty: not known in full",
    "amendments": "how often the outcome was amended",
}


def records(trial: Trial, *, whole: bool = False) -> Iterator[dict[str, Any]]:
    """One flat record for each decision, or (whole) for those whose reward is known."""
    return (row for rows in Export.of(trial).chunks(whole=whole) for row in rows)


@dataclass(frozen=True)
class Export:
    """A trial's decisions as it stood at one moment, read some at a time.

    The log only grows, so what was known at that moment can be read later: no transaction stays open between two
    chunks, however slowly they are taken.
    """

    trial: Trial
    state: TrialState
    effects: bool  # whether the policy says what it expects of the arms

    @staticmethod
    def of(trial: Trial) -> Export:
        """The trial as it stands now."""
        with trial.reading() as (ledger, state):
            ends = {1, max(1, state.counts.decisions)}
            return Export(trial, state, any(s.event.body["estimate"] for s in queries.stories(ledger, state, ends)))

    def chunks(self, *, whole: bool = False) -> Iterator[list[dict[str, Any]]]:
        """Records in the order of the decisions."""
        return ([_record(self.state, story) for story in some] for some in self.stories(whole=whole))

    def stories(self, *, whole: bool = False) -> Iterator[list[Story]]:
        """Decisions with their outcomes, some at a time."""
        last = self.state.counts.decisions
        for first in range(1, last + 1, AT_ONCE):
            with self.trial.store.reading(self.trial.name) as ledger:
                if ledger.seq < self.state.seq:
                    raise StoreError(f"trial {self.trial.name!r} was set back while it was being exported; try again")
                wanted = range(first, min(first + AT_ONCE, last + 1))
                found = list(queries.stories(ledger, self.state, wanted))
            yield [s for s in found if not whole or _reward(self.state, s) is not None]

    @cached_property
    def columns(self) -> dict[str, type]:
        """Every column and what is in it; the same for all trials of one design, whatever has happened in them."""
        problem, spec = self.state.problem, self.state.spec
        known, fields = problem.covariates.attributes, spec.context
        plots = {"plot": str, "block": str}
        return {
            "decision": int,
            "episode": int,
            **(dict.fromkeys(COLUMNS, str) if self.state.seasons else {}),
            "user": str,
            "group": str,
            **plots,
            "time": str,
            **{f"attribute_{name}": float if c.levels is None else str for name, c in known.items()},
            **{f"context_{name}": float if f.levels is None else str for name, f in fields.items()},
            "action": str,
            "propensity": float,
            **{f"probability_{arm}": float for arm in problem.arms},
            "reason": str,
            **({f"effect_{arm}": float for arm in problem.arms} if self.effects else {}),
            "state": str,
            **{f"metric_{metric}": float for metric in problem.metrics},
            **({control_plot(metric): float for metric in problem.metrics} if spec.feedback == "difference" else {}),
            "reward": float,
            "amendments": int,
        }

    def csv(self, *, whole: bool = False) -> Iterator[tuple[bytes, int]]:
        """The lines of a sheet in pieces, each with the number of its decisions; the first one is the header."""
        names = list(self.columns)
        yield csv_line(names).encode(), 0
        for rows in self.chunks(whole=whole):
            yield csv_lines(map(row.get, names) for row in rows).encode(), len(rows)

    def json(self, *, whole: bool = False) -> Iterator[tuple[bytes, int]]:
        """A list of records in pieces, each with the number of its decisions; the first one has none."""
        yield b"[", 0
        before = "\n "
        for rows in self.chunks(whole=whole):
            if rows:
                texts = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows]
                yield (before + ",\n ".join(texts)).encode(), len(rows)
                before = ",\n "
        yield b"\n]\n", 0

    def workbook(self, out: IO[bytes], *, whole: bool = False) -> int:
        """The same as a workbook; returns the number of its decisions."""
        rows = (row for some in self.chunks(whole=whole) for row in some)
        return tables.save(list(self.columns), rows, out)


def in_workbook(trial: Trial) -> bytes:
    """All decisions as a workbook, which is whole or nothing."""
    out = io.BytesIO()
    Export.of(trial).workbook(out)
    return out.getvalue()


def stream(trial: Trial, form: str) -> Iterator[tuple[bytes, int]]:
    """A sheet or (form "json") a list in pieces, as from an `Export`; the first of them does not wait for the state.

    A trial that is not open yet may have a long log to read: the header follows from its outline alone.
    """
    return _streamed(trial, None if form == "json" else _heading(trial))


def _streamed(trial: Trial, names: list[str] | None) -> Iterator[tuple[bytes, int]]:
    yield (b"[" if names is None else csv_line(names).encode()), 0
    made = Export.of(trial)
    if names is not None and list(made.columns) != names:
        raise StoreError(f"the arms of trial {trial.name!r} were changed while its export began; try again")
    pieces = made.json() if names is None else made.csv()
    next(pieces)
    yield from pieces


def _heading(trial: Trial) -> list[str]:
    if trial.is_open:
        return list(Export.of(trial).columns)
    with trial.store.reading(trial.name) as ledger:
        try:
            state = snapshots.outline(ledger)
        except OutgrownError:  # an arm for which the arrays are too small has joined since the last snapshot
            return list(Export.of(trial).columns)
        newest = ledger.events(kinds=[DECISION], limit=1, newest_first=True)
        ends = [e for events in ledger.of_decisions([1]).values() for e in events[:1]] + list(newest)
        return list(Export(trial, state, any(e.body["estimate"] for e in ends)).columns)


def _record(state: TrialState, story: Story) -> dict[str, Any]:
    event, body, arms = story.event, story.event.body, state.problem.arms
    profile, outcome = state.profile(str(event.user)), story.outcome or {"metrics": {}, "control": None}
    known, season = profile.definition.attributes or {}, state.seasons.get(body["episode"])
    context = None if body["context"] is None else queries.context_of(state, body["context"])
    effects = zip(arms, body["estimate"] or (), body["half"] or (), strict=False)
    return {
        "decision": story.decision,
        "episode": body["episode"],
        **({"season": season.name, "date": season.date} if season is not None else {}),
        "user": event.user,
        "group": event.user if profile.group is None else profile.group,
        **({"plot": body["plot"], "block": body.get("block")} if body.get("plot") is not None else {}),
        "time": event.time,
        **{f"attribute_{name}": known.get(name) for name in state.problem.covariates.attributes},
        **{f"context_{name}": value for name, value in (context or {}).items()},
        "action": body["arm"],
        "propensity": body["propensity"],
        **{f"probability_{arm}": p for arm, p in zip(arms, body["probabilities"], strict=False)},
        "reason": reason_text(body["reason"], body["share"]),
        **{f"effect_{arm}": e if h <= LARGEST else None for arm, e, h in effects},
        "state": story.state,
        **{f"metric_{metric}": outcome["metrics"].get(metric) for metric in state.problem.metrics},
        **{control_plot(metric): value for metric, value in (outcome["control"] or {}).items()},
        "reward": _reward(state, story),
        "amendments": story.amendments,
    }


def _reward(state: TrialState, story: Story) -> float | None:
    return None if story.outcome is None else state.reward(state.profiles[story.event.body["profile"]], story.outcome)


def dictionary(state: TrialState) -> str:
    """The meaning of each column, as a sheet."""
    units = _units(state)
    rows = []
    for name, meaning in MEANING.items():
        own = {c: u for c, u in units.items() if name.endswith("*") and c.startswith(name[:-1])}
        of_reward = units["reward"] if name in ("reward", "effect_*") else ""
        rows.append({"column": name, "meaning": f"{meaning}; in {of_reward}" if of_reward else meaning})
        rows += [{"column": c, "meaning": f"{c[len(name) - 1 :]}, in {unit}"} for c, unit in own.items() if unit]
    proof = f"all of trial {state.spec.name} up to event {state.seq}, whose hash is {state.hash}"
    rows.append({"column": "(the log)", "meaning": proof})
    return csv_text(rows)


def _units(state: TrialState) -> dict[str, str]:
    """Of the columns that have one in the trial file, and of the reward; empty: none is named."""
    spec = state.spec
    known = {f"attribute_{name}": a.unit for name, a in spec.attributes.items()}
    known |= {f"context_{name}": c.unit for name, c in spec.context.items()}
    metrics = {f"metric_{name}": metric.unit for name, metric in spec.metrics.items()}
    plots = {control_plot(name): m.unit for name, m in spec.metrics.items()} if spec.feedback == "difference" else {}
    return known | metrics | plots | {"reward": spec.reward.unit}


def write(trial: Trial, path: Path, *, whole: bool = False, force: bool = False) -> int:
    """Write a file by its suffix, and the data dictionary beside it; returns the number of decisions in it."""
    form = path.suffix.lower()
    if form not in FORMS:
        raise InputError(f"an export is written as {', '.join(FORMS)}, got {path.name!r}")
    state = trial.state()  # the file has all of this, and maybe what came while it was written
    with (
        replacing(path, force=force) as beside,
        replacing(path.with_suffix(".dictionary.csv"), force=force) as words,
    ):
        count = _table(trial, beside, form, whole=whole)
        words.write_text(dictionary(state), encoding="utf-8")
    return count


def _table(trial: Trial, path: Path, form: str, *, whole: bool) -> int:
    made = Export.of(trial)
    if form == ".parquet":
        return _parquet(made, path, whole=whole)
    count = 0
    with path.open("wb") as out:
        if form == tables.SUFFIX:
            return made.workbook(out, whole=whole)
        for piece, rows in (made.json if form == ".json" else made.csv)(whole=whole):
            out.write(piece)
            count += rows
    return count


def _parquet(made: Export, path: Path, *, whole: bool) -> int:
    pl = polars()
    kinds = {int: pl.Int64, float: pl.Float64, str: pl.String}
    schema = {name: kinds[kind] for name, kind in made.columns.items()}
    frames = [pl.DataFrame(schema=schema)]
    for rows in made.chunks(whole=whole):
        values = {name: [_as(kind, row.get(name)) for row in rows] for name, kind in made.columns.items()}
        frames.append(pl.DataFrame(values, schema=schema))
    frame = pl.concat(frames)
    frame.write_parquet(path)
    return int(frame.height)


def _as(kind: type, value: Any) -> Any:
    return None if value is None else kind(value)
