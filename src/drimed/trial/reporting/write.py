"""Write the report: one self-contained page, the figures as files, the tables as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from drimed.errors import InputError
from drimed.report.figure import save_all, style
from drimed.report.page import inline, render, short
from drimed.trial import sheets
from drimed.trial.analysis.analyse import Analysis, analyse, share_of_arms
from drimed.trial.analysis.checks import ALPHA
from drimed.trial.analysis.effects import EVERYBODY
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
    s, course = analysis.status, analysis.course
    said = [
        f"The trial is {s.status}, in episode {s.episode}, with {s.users} users and {len(s.arms)} arms: {s.decisions} "
        f"decisions, {s.answered} with an outcome, {s.awaited} awaited."
    ]
    if s.decisions:
        shares = ", ".join(f"{arm} {100 * share:.0f} %" for arm, share in share_of_arms(analysis) if share > 0)
        said.append(f"So far given: {shares}.")
    sure = [x for x in analysis.advice if x.effect_low > 0 and x.arm != x.control]
    if sure:
        arms = sorted({x.arm for x in sure})
        said.append(f"For {len(sure)} of {s.users} users an arm is certainly better than control: {', '.join(arms)}.")
    likely = [x for x in analysis.advice if x.likely_low > 0 >= x.effect_low and x.arm != x.control]
    if likely:
        arms = sorted({x.arm for x in likely})
        said.append(f"For {len(likely)} of {s.users} users an arm is likely better than control: {', '.join(arms)}.")
    if s.answered and not sure and not likely:
        said.append("For no user an arm is likely better than control yet.")
    if s.answered and len(course.gain):
        gain, low, high = course.gain[-1], course.gain_low[-1], course.gain_high[-1]
        side = "more" if gain >= 0 else "less"
        said.append(
            f"In all, users earned {short(abs(gain))} {side} than the control is estimated to have earned "
            f"(guaranteed: {short(low)} to {short(high)})."
        )
    if not analysis.checks.alarms:
        said.append("No check of the assumptions has raised an alarm.")
    return said


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
