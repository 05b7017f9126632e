"""A trial's decisions with their outcomes, for other programs: CSV, .xlsx, JSON or Parquet.

Columns are named as `drimed evaluate` expects them. Exports are read some decisions at a time, as the trial stood when
the export began: the log only grows, so no transaction stays open between two chunks.
"""

from __future__ import annotations

import io
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from drimed.errors import InputError, StoreError
from drimed.evaluation.decision_log import polars
from drimed.outputs import replacing
from drimed.records import Decision
from drimed.trial import queries
from drimed.trial.problem import below_key, size_key
from drimed.trial.seasons import COLUMNS, UNNAMED
from drimed.trial.spec import Attribute, ContextField, Metric, control_plot
from drimed.trial.state import TrialState
from drimed.trial.tables import SHARES, SUFFIX, csv_lines, csv_text, save_workbook
from drimed.trial.trial import Trial

AT_ONCE = 250  # decisions that are read together, and sent as one piece
JSON, PARQUET = ".json", ".parquet"
FORMS = (".csv", SUFFIX, JSON, PARQUET)


@dataclass(frozen=True)
class Export:
    """A trial's decisions at one moment."""

    trial: Trial
    state: TrialState
    effects: bool  # whether the policy estimates effects of the arms
    whole: bool  # whether only decisions whose reward is known are exported

    @staticmethod
    def of(trial: Trial, *, whole: bool = False) -> Export:
        with trial.reading() as (ledger, state):
            ends = {1, max(1, state.counts.decisions)}
            return Export(trial, state, any(d.effects for d in queries.decisions(ledger, state, ends)), whole)

    def chunks(self) -> Iterator[list[dict[str, Any]]]:
        """Records in the order of the decisions, some at a time."""
        last = self.state.counts.decisions
        for first in range(1, last + 1, AT_ONCE):
            with self.trial.store.reading(self.trial.name) as ledger:
                if ledger.seq < self.state.seq:
                    raise StoreError(f"trial {self.trial.name!r} was set back while it was being exported; try again")
                wanted = range(first, min(first + AT_ONCE, last + 1))
                decisions = list(queries.decisions(ledger, self.state, wanted))
            yield [self._record(d) for d in decisions if not self.whole or d.reward is not None]

    @cached_property
    def columns(self) -> dict[str, type]:
        """Every column and its type; the same for all trials of one design, whatever has happened in them."""
        problem, spec = self.state.problem, self.state.spec
        return {
            "decision": int,
            "episode": int,
            **(dict.fromkeys(COLUMNS, str) if self.state.seasons else {}),
            **dict.fromkeys(("user", "group", "plot", "block", "time"), str),
            **{f"attribute_{n}": float if c.levels is None else str for n, c in problem.covariates.attributes.items()},
            **{f"context_{n}": float if f.levels is None else str for n, f in spec.context.items()},
            "action": str,
            "given": str,
            "propensity": float,
            **{f"probability_{arm}": float for arm in problem.arms},
            **({"held_out": float} if spec.holdout else {}),
            "reason": str,
            **({f"effect_{arm}": float for arm in problem.arms} if self.effects else {}),
            "state": str,
            **{f"metric_{key}": float for key in self.outcome_keys},
            **({control_plot(metric): float for metric in problem.metrics} if spec.feedback == "difference" else {}),
            "reward": float,
            "amendments": int,
        }

    @property
    def outcome_keys(self) -> list[str]:
        """The metrics, and the sizes and limits of detection of those that have them."""
        metrics = self.state.spec.metrics.items()
        parts = ((n, size_key(n) if m.of else None, below_key(n) if m.detection else None) for n, m in metrics)
        return [key for keys in parts for key in keys if key is not None]

    def _record(self, d: Decision) -> dict[str, Any]:
        profile, season = self.state.profile(d.user), self.state.seasons.get(d.episode, UNNAMED)
        same = ("episode", "user", "plot", "block", "time", "propensity", "reason", "state", "reward", "amendments")
        values: dict[str, Any] = {name: getattr(d, name) for name in (*same, "held_out")}
        values |= {"decision": d.id, "season": season.name, "date": season.date}
        values |= {"action": d.arm, "given": d.given or d.arm}
        values["group"] = d.user if profile.group is None else profile.group
        tables: dict[str, Mapping[str, Any] | None] = {
            "attribute_": profile.definition.attributes,
            "context_": d.context,
            "probability_": d.probabilities,
            "effect_": {arm: effect.estimate for arm, effect in (d.effects or {}).items()},
            "metric_": d.outcome,
            "control.": d.control,
        }
        for prefix, table in tables.items():
            values |= {f"{prefix}{name}": value for name, value in (table or {}).items()}
        return {name: values.get(name) for name in self.columns}

    def pieces(self, form: str) -> Iterator[tuple[bytes, int]]:
        """CSV, or (JSON) a list of records, in pieces, each with the number of its decisions."""
        names, before = list(self.columns), "\n "
        yield b"[" if form == JSON else csv_lines([names]).encode(), 0
        for rows in filter(None, self.chunks()):
            if form == JSON:
                yield (before + ",\n ".join(json.dumps(row, ensure_ascii=False) for row in rows)).encode(), len(rows)
                before = ",\n "
            else:
                yield csv_lines(map(row.get, names) for row in rows).encode(), len(rows)
        if form == JSON:
            yield b"\n]\n", 0

    def workbook(self, out: IO[bytes]) -> int:
        """Write a workbook; return the number of its decisions."""
        names, rows = list(self.columns), (row for rows in self.chunks() for row in rows)
        shares = [name for name in names if name in SHARES or name.startswith("probability_")]
        return save_workbook(names, rows, out, shares=shares)

    def parquet(self, path: Path) -> int:
        """Write a Parquet file; return the number of its decisions."""
        pl = polars()
        types = {int: pl.Int64, float: pl.Float64, str: pl.String}
        schema = {name: types[kind] for name, kind in self.columns.items()}
        chunks = (pl.DataFrame(rows, schema=schema, strict=False) for rows in self.chunks() if rows)
        frame = pl.concat([pl.DataFrame(schema=schema), *chunks])
        frame.write_parquet(path)
        return int(frame.height)


def in_workbook(trial: Trial) -> bytes:
    out = io.BytesIO()
    Export.of(trial).workbook(out)
    return out.getvalue()


def write(trial: Trial, path: Path, *, whole: bool = False, force: bool = False) -> int:
    """Write a file by its suffix, and the data dictionary beside it; return the number of decisions in it."""
    form = path.suffix.lower()
    if form not in FORMS:
        raise InputError(f"an export is written as {', '.join(FORMS)}, got {path.name!r}")
    export, count = Export.of(trial, whole=whole), 0
    meanings = path.with_suffix(".dictionary.csv")
    with replacing(path, force=force) as beside, replacing(meanings, force=force) as dictionary:
        if form == PARQUET:
            count = export.parquet(beside)
        else:
            with beside.open("wb") as out:
                if form == SUFFIX:
                    count = export.workbook(out)
                for piece, rows in () if form == SUFFIX else export.pieces(form):
                    out.write(piece)
                    count += rows
        dictionary.write_text(data_dictionary(export.state), encoding="utf-8")
    return count


def meanings() -> dict[str, str]:
    """The meaning of each column; a star stands for a name of the trial."""
    return tomllib.loads(Path(__file__).with_name("columns.toml").read_text(encoding="utf-8"))


def data_dictionary(state: TrialState) -> str:
    """The meaning of each column, as a sheet."""
    spec, rows = state.spec, []
    declared: dict[str, Mapping[str, Attribute | ContextField | Metric]] = {
        "attribute_*": spec.attributes,
        "context_*": spec.context,
        "metric_*": spec.metrics,
        "control.*": spec.metrics if spec.feedback == "difference" else {},
    }
    for column, meaning in meanings().items():
        unit = spec.reward.unit if column in ("reward", "effect_*") else ""
        rows.append({"column": column, "meaning": f"{meaning}; in {unit}" if unit else meaning})
        for name, part in declared.get(column, {}).items():
            if part.unit:
                rows.append({"column": f"{column[:-1]}{name}", "meaning": f"{name}, in {part.unit}"})
    proof = f"all of trial {spec.name} up to event {state.seq}, whose hash is {state.hash}"
    return csv_text([*rows, {"column": "(the log)", "meaning": proof}])
