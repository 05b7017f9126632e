"""Write the report: one self-contained page, the figures as files, the tables as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from drimed.errors import InputError
from drimed.experiments.page import inline, render, save_all, style
from drimed.trial import sheets
from drimed.trial.analysis.analyse import Analysis, analyse
from drimed.trial.analysis.checks import ALPHA
from drimed.trial.analysis.effects import EVERYBODY
from drimed.trial.analysis.sentences import sentences
from drimed.trial.reporting.figures import all_figures
from drimed.trial.trial import Trial


def write_report(trial: Trial, out: Path) -> Path:
    """Everything about a trial, into a folder; returns the page."""
    analysis = analyse(trial)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error}") from None
    with style():
        pictures = {name: inline(path) for name, path in save_all(all_figures(analysis), out).items()}
    _table(out / "effects.csv", [asdict(x) for x in analysis.lines])
    _table(out / "recommendations.csv", [asdict(x) for x in analysis.advice])
    _table(out / "allocation.csv", _allocation(analysis))
    users = set(analysis.seen.memory.users)
    page = out / "index.html"
    render(
        "drimed.trial.reporting",
        "page.html",
        page,
        a=analysis,
        s=analysis.status,
        summary=summary(analysis),
        grouped=[x for x in analysis.lines if x.who == EVERYBODY or x.who not in users],
        pictures={name: pictures.get(name) for name in ("allocation", "effects", "reward", "drift")},
        level=_level(analysis),
        alpha=ALPHA,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        version=version("drimed"),
    )
    return page


def summary(analysis: Analysis) -> list[str]:
    """The trial in a few sentences that need no statistics."""
    s = analysis.status
    return [
        f"The trial is {s.status}, in episode {s.episode}, with {s.users} users and {len(s.arms)} arms: {s.decisions} "
        f"decisions, {s.answered} with an outcome, {s.awaited} awaited.",
        *sentences(analysis),
    ]


def _level(analysis: Analysis) -> str:
    return f"{100 * (1 - analysis.seen.memory.spec.delta):g} %, {_holds(analysis)}"


def _holds(analysis: Analysis) -> str:
    if analysis.fit.spread is not None:
        return "in each episode"
    learned = analysis.seen.memory.spec.noise.kind == "learned"
    return "approximately, because the noise is estimated too" if learned else "if the noise is as said"


def _allocation(analysis: Analysis) -> list[dict[str, Any]]:
    arms = analysis.seen.memory.problem.arms
    return [
        {"episode": int(e), **{arm: int(n) for arm, n in zip(arms, row, strict=True)}}
        for e, row in zip(analysis.course.episode, analysis.course.allocation, strict=True)
    ]


def _table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text(sheets.write(rows), encoding="utf-8")
