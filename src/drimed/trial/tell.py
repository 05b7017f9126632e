"""Outcomes: reported once, completed later, amended with a reason, or marked as missing.

An outcome is a table of metrics and, where there are control plots, another one of the site's control plot. Values
outside the range that the trial file declares, or far from all others, must be confirmed; until then nothing is
recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from drimed.errors import (
    BatchError,
    ConflictError,
    InputError,
    UnconfirmedError,
    UnknownDecisionError,
    UnknownNameError,
)
from drimed.records import MISSING, AmendRequest, Fault, Path, Receipt, Report, TellRequest
from drimed.trial import allowed
from drimed.trial import events as kinds
from drimed.trial.covariates import number
from drimed.trial.events import Draft
from drimed.trial.names import control_plot, first_twice
from drimed.trial.queries import Story, whole
from drimed.trial.state import TrialState
from drimed.trial.transaction import Transaction
from drimed.trial.unlikely import why

Values = Mapping[str, float | None]
PARTS = {"outcome": "metrics", "control": "control"}  # of a report -> of what is recorded


def tell(tx: Transaction, request: TellRequest, *, doubts: Sequence[Fault] = ()) -> list[Receipt]:
    """Record all of the outcomes or, if one is refused, none; `doubts` about them must be confirmed too."""
    reports = [replace(r, decision=whole(r.decision)) for r in request.reports]
    if (twice := first_twice([r.decision for r in reports])) is not None:
        raise InputError(f"decision {twice} is reported twice in one call; report each once", ("reports",))
    known = _stories(tx, [r.decision for r in reports])
    outcomes = _merged(tx, known, reports)
    if not request.confirm:
        _refuse_unlikely(tx.state, known, reports, doubts)
    drafts, receipts = [], []
    for report, outcome in zip(reports, outcomes, strict=True):
        story = known[report.decision]
        if outcome == story.outcome:
            receipts.append(_receipt(tx.state, story, "already recorded", outcome))
            continue
        body = {"outcome": outcome, "was": story.outcome, "late": story.given_up}
        drafts.append(Draft(kinds.OUTCOME, body, report.decision, story.event.user))
        result = "recorded" if story.outcome is None else "completed"
        receipts.append(_receipt(tx.state, story, result, outcome))
    tx.append(drafts, known)
    return receipts


def amend(tx: Transaction, request: AmendRequest) -> Receipt:
    """Correct an outcome; the old one stays in the log. None takes a value back; without any, the decision is pending.

    `saw` has the values that the correction is about, as they were read: if one of them has changed since, it is
    refused.
    """
    reason, saw = request.reason, request.saw
    allowed.need_reason(reason)
    report = replace(request.report, decision=whole(request.report.decision))
    story = _story(tx, report.decision)
    new = _amended(tx.state, story, report)
    if new == story.outcome:
        return _receipt(tx.state, story, "already recorded", new)
    if saw is not None:
        _unchanged(tx.state, story, saw)
    if not request.confirm:
        faults = unlikely(tx.state, story, report)
        if faults:
            raise UnconfirmedError(faults)
    # What was given up stays so: a corrected value does not say that the rest will come.
    given_up = story.given_up and tx.state.state_of(new, missing=True) == MISSING
    body = {"outcome": new, "was": story.outcome, "late": story.given_up, "reason": reason}
    body |= {"missing": True} if given_up else {}
    tx.append([Draft(kinds.AMENDMENT, body, story.decision, story.event.user)], {story.decision: story})
    return _receipt(tx.state, story, "amended", new, given_up=given_up)


def mark_missing(tx: Transaction, decision: int, reason: str) -> Receipt:
    """Give up what is not there of an outcome; it may still be told if it comes after all."""
    allowed.need_reason(reason)
    story = _story(tx, decision)
    allowed.incomplete(tx.state, story)
    if story.given_up:
        return _receipt(tx.state, story, "already recorded", story.outcome, given_up=True)
    draft = Draft(kinds.MISSING, {"reason": reason, "was": story.outcome}, story.decision, story.event.user)
    tx.append([draft], {story.decision: story})
    return _receipt(tx.state, story, "missing", story.outcome, given_up=True)


def unlikely(state: TrialState, story: Story, report: Report, at: Path = ()) -> list[Fault]:
    """New values that must be confirmed."""
    faults = []
    usual = dict(zip(state.problem.metrics, state.usual, strict=True))
    for part, recorded in PARTS.items():
        known = (story.outcome or {}).get(recorded) or {}
        for name, value in (getattr(report, part) or {}).items():
            metric = state.spec.metrics.get(name)
            if value is None or metric is None or known.get(name) == value:
                continue
            if (reason := why(metric, usual[name], value)) is not None:
                what = control_plot(name) if part == "control" else name
                message = f"decision {report.decision}: {what} {value:.12g} {reason}"
                faults.append(Fault((*at, part, name), message, severity="unlikely"))
    return faults


def _stories(tx: Transaction, numbers: Sequence[int]) -> dict[int, Story]:
    return {n: Story.of(tx.state, events) for n, events in tx.ledger.of_decisions(numbers).items()}


def _story(tx: Transaction, decision: int) -> Story:
    number = whole(decision)
    found = _stories(tx, [number])
    if number not in found:
        raise UnknownDecisionError(tx.ledger.name, number)
    return found[number]


def _merged(tx: Transaction, known: Mapping[int, Story], reports: Sequence[Report]) -> list[dict[str, Any]]:
    """What is known of each outcome after its report; a different second value is refused."""
    merged: list[dict[str, Any]] = []
    faults: list[Fault] = []
    for i, report in enumerate(reports):
        try:
            if report.decision not in known:
                raise UnknownDecisionError(tx.ledger.name, report.decision)
            merged.append(_completed(tx.state, known[report.decision], report))
        except InputError as error:
            error.field = ("reports", i, *error.field)
            if len(reports) == 1:
                raise
            faults.append(Fault(error.field, str(error)))
    if faults:
        raise BatchError(faults)
    return merged


def _refuse_unlikely(
    state: TrialState, known: Mapping[int, Story], reports: Sequence[Report], doubts: Sequence[Fault]
) -> None:
    faults = [f for i, r in enumerate(reports) for f in unlikely(state, known[r.decision], r, ("reports", i))]
    if faults or doubts:
        raise UnconfirmedError([*faults, *doubts])


def _completed(state: TrialState, story: Story, report: Report) -> dict[str, Any]:
    new = _present(_checked(state, report.outcome, "outcome"))
    allowed.some_value(story.decision, new, report.control)
    old = story.outcome or {"metrics": {}, "control": None}
    allowed.agrees(story.decision, old["metrics"], new, "outcome")
    control = None
    if _has_control_plots(state, report.control):
        before, more = old["control"] or {}, _present(_checked(state, report.control or {}, "control"))
        allowed.agrees(story.decision, before, more, "control")
        control = _ordered(state, before | more)
    return {"metrics": _ordered(state, old["metrics"] | new), "control": control}


def _amended(state: TrialState, story: Story, report: Report) -> dict[str, Any]:
    before = allowed.amendable(story)
    metrics = _present(before["metrics"] | _checked(state, report.outcome, "outcome"))
    control = None
    if _has_control_plots(state, report.control):
        new = _checked(state, report.control or {}, "control")
        control = _ordered(state, _present((before["control"] or {}) | new))
    return {"metrics": _ordered(state, metrics), "control": control}


def _unchanged(state: TrialState, story: Story, saw: Report) -> None:
    """Refuse a correction of values that are no longer what was seen."""
    for part, recorded in PARTS.items():
        there = (story.outcome or {}).get(recorded) or {}
        for name, value in _checked(state, getattr(saw, part) or {}, part).items():
            if there.get(name) != value:
                what = control_plot(name) if part == "control" else name
                field = "saw" if part == "outcome" else "saw_control"
                raise ConflictError(
                    f"decision {story.decision} was changed meanwhile: {what} is {_said(there.get(name))} now, and you "
                    f"saw {_said(value)}; look at it again, and correct it if it is still wrong",
                    (field, name),
                )


def _said(value: float | None) -> str:
    return "not recorded" if value is None else repr(value)


def _receipt(
    state: TrialState, story: Story, result: str, outcome: dict[str, Any] | None, *, given_up: bool = False
) -> Receipt:
    """What is known now, and what the policy still waits for."""
    now = state.state_of(outcome, missing=given_up or (result == "already recorded" and story.given_up))
    if outcome is None or not any(outcome.values()):
        return Receipt(story.decision, result, now, None, None, [])
    metrics, control = outcome["metrics"], outcome["control"]
    waits: list[str] = []
    if now != MISSING and state.usable(state.profiles[story.event.body["profile"]], outcome) is None:
        there = set(metrics) if control is None else set(metrics) & set(control)
        waits = [m for m in state.problem.metrics if m not in there]
    return Receipt(story.decision, result, now, metrics, control, waits)


def _has_control_plots(state: TrialState, values: Values | None) -> bool:
    if state.spec.feedback == "difference":
        return True
    if values is not None:
        raise InputError("this trial's feedback is absolute: it takes no values of a control plot", ("control",))
    return False


def _checked(state: TrialState, values: Values, part: str) -> dict[str, float | None]:
    """Known metrics and finite numbers, or None."""
    if not isinstance(values, Mapping):
        raise InputError(f"an outcome must be a table of metrics and values, got {values!r}", (part,))
    return dict(_numbers(state, values, part))


def _numbers(state: TrialState, values: Values, part: str) -> Iterator[tuple[str, float | None]]:
    what = "control metric" if part == "control" else "metric"
    for name, value in values.items():
        if name not in state.problem.metrics:
            raise UnknownNameError("metric", name, state.problem.metrics, (part, name))
        yield name, None if value is None else number(f"{what} {name!r}", value, (part, name))


def _ordered(state: TrialState, values: dict[str, Any]) -> dict[str, Any]:
    return {m: values[m] for m in state.problem.metrics if m in values}


def _present(values: Values) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
