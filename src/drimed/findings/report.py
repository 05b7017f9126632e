"""The report: the overview page, frozen into one file, and its tables as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from drimed.errors import InputError
from drimed.findings.analyse import Analysis, analyse
from drimed.findings.effects import EVERYBODY, REWARD, Recommendation, groups
from drimed.findings.page import GROUPED, View, environment, shown, style
from drimed.trial import sheets
from drimed.trial.trial import Trial

MOST_USERS = 1000  # in the tables of the page; the CSV files have all
MOST_ROWS = 40  # of a chart with groups; with more, all users together are shown


def write_report(trial: Trial, out: Path) -> Path:
    """Everything about a trial, into a folder; returns the page."""
    analysis = analyse(trial)
    try:
        out.mkdir(parents=True, exist_ok=True)
        _table(out / "effects.csv", [x.plain() for x in analysis.effects])
        _table(out / "recommendations.csv", [_flat(r) for r in analysis.recommendations])
        _table(out / "allocation.csv", _allocation(analysis))
        page = out / "index.html"
        page.write_text(report(analysis), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error}") from None
    return page


def report(analysis: Analysis) -> str:
    """The page."""
    state = analysis.seen.state
    who = GROUPED if 1 < len(groups(state)) <= MOST_ROWS // len(state.problem.arms) else EVERYBODY
    measures = [REWARD, *(m for m in state.problem.metrics if m != REWARD)]
    view = View(who, measures, list(state.users)[:MOST_USERS])
    return (
        environment()
        .get_template("report.html")
        .render(
            s=analysis.status,
            live=False,
            style=style(),
            written=datetime.now(UTC).isoformat(),
            version=version("drimed"),
            left_out=max(0, len(state.users) - MOST_USERS),
            **shown(analysis, view),
        )
    )


def _flat(r: Recommendation) -> dict[str, Any]:
    e = r.effect
    return {
        "user": r.user,
        "arm": e.arm,
        "control": r.control,
        "effect": e.estimate,
        "effect_low": e.low,
        "effect_high": e.high,
        "likely_low": e.likely_low,
        "likely_high": e.likely_high,
        "lead": r.lead,
        "runner_up": r.runner_up,
        "p_best": r.p_best,
    }


def _allocation(analysis: Analysis) -> list[dict[str, Any]]:
    arms, course = analysis.seen.state.problem.arms, analysis.course
    return [
        {"episode": int(e), **{arm: int(n) for arm, n in zip(arms, row, strict=True)}}
        for e, row in zip(course.episode, course.allocation, strict=True)
    ]


def _table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text(sheets.write(rows), encoding="utf-8")
