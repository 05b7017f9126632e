"""Outcomes: reported once, completed later, amended with a reason, or marked as missing.

An outcome is a table of metrics and, where there are control plots, another one of the site's control plot. Unlikely
values must be confirmed before anything is recorded. The arm given may be another than the one drawn: the log has both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from drimed.errors import BatchError, ConflictError, InputError, UnknownDecisionError, UnknownNameError
from drimed.records import MISSING, Fault, Path, Receipt, Report
from drimed.trial import blinding, event_checks, queries
from drimed.trial.events import ArmGiven, Draft, EventBody, OutcomeAmended, OutcomeMissing, OutcomeTold, Values
from drimed.trial.problem import below_key, keys_of, number, read_outcome, size_key
from drimed.trial.spec import control_plot, first_twice
from drimed.trial.state import RecordedDecision, TrialState, decision_number, recorded_decisions
from drimed.trial.transaction import Transaction

MOST_FAULTS = 1000  # of one call; others are looked for when these are mended


def tell(
    tx: Transaction,
    reports: Sequence[Report],
    doubts: Sequence[Fault] = (),
    *,
    confirm: bool = False,
    blinded: bool = False,
) -> list[Receipt]:
    """Record all of the outcomes or, if one is refused, none; unlikely values and `doubts` must be confirmed."""
    state, numbers = tx.state, [decision_number(r.decision) for r in reports]
    if (twice := first_twice(numbers)) is not None:
        raise InputError(f"decision {twice} is reported twice in one call; report each once", ("reports",))
    known = {one.decision: one for one in recorded_decisions(tx.ledger, state, numbers)}
    bodies: dict[int, OutcomeTold] = {}  # of decisions that something new was reported of
    statements: dict[int, ArmGiven] = {}  # of what was given
    faults, unlikely = list[Fault](), list[Fault]()
    for i, (n, report) in enumerate(zip(numbers, reports, strict=True)):
        try:
            if n not in known:
                raise UnknownDecisionError(tx.ledger.name, n)
            if (statement := _given(tx, known[n], report, blinded=blinded)) is not None:
                statements[n] = statement
            if report.given is not None and not (report.outcome or report.control):
                continue
            outcome = _merged(state, known[n], report, amends=False)
            if outcome != known[n].outcome:
                bodies[n] = OutcomeTold(outcome, known[n].outcome)
                event_checks.check_outcome(state, known[n], bodies[n])
        except InputError as error:
            at: Path = ("reports", i)
            own = [replace(fault, path=(*at, *fault.path)) for fault in error.faults] or [Fault(at, str(error))]
            if len(numbers) == len(own) == 1:
                error.field = (*at, *error.field)
                raise
            faults += own
            if len(faults) >= MOST_FAULTS:
                break
        else:
            unlikely += unlikely_values(state, known[n], report, ("reports", i))
    if faults:
        raise BatchError(faults)
    event_checks.require_confirmation([*unlikely, *doubts], confirm=confirm)
    before = dict(known)
    for drafts in (statements, bodies):
        for e in tx.append([Draft(body, n, known[n].event.user) for n, body in drafts.items()], known):
            known[int(e.decision or 0)] = known[int(e.decision or 0)].after(tx.state, e)
    results = {n: "completed" if n in bodies and before[n].outcome else "recorded" for n in (*statements, *bodies)}
    return [_receipt(tx.state, known[n], results.get(n, "already recorded")) for n in numbers]


def amend(
    tx: Transaction,
    report: Report,
    *,
    reason: str,
    saw: Report | None = None,
    confirm: bool = False,
    blinded: bool = False,
) -> Receipt:
    """Correct an outcome; the old one stays in the log. None takes a value back; without any, the decision is pending.

    With `given` alone, only that is corrected; the arm that was drawn takes a deviation back. The correction is refused
    if one of the values that the caller `saw` has changed since.
    """
    event_checks.need_reason(reason)
    recorded = _recorded(tx, report.decision)
    statement = _given(tx, recorded, replace(report, reason=reason), blinded=blinded, amends=True)
    bodies: list[EventBody] = [] if statement is None else [statement]
    if report.given is None or report.outcome or report.control:
        if recorded.outcome is None:
            raise ConflictError(f"decision {recorded.decision} has no outcome to amend; tell it first")
        outcome = _merged(tx.state, recorded, report, amends=True)
        if outcome != recorded.outcome:
            if saw is not None:
                _check_unchanged(tx.state, recorded, saw)
            event_checks.require_confirmation(unlikely_values(tx.state, recorded, report), confirm=confirm)
            # A corrected value does not say that a missing rest will come.
            missing = recorded.marked_missing and tx.state.state_of(recorded, outcome, missing=True) == MISSING
            bodies.append(OutcomeAmended(outcome, recorded.outcome, reason, missing))
    for body in bodies:
        recorded = _recorded_after(tx, recorded, body)
    return _receipt(tx.state, recorded, "amended" if bodies else "already recorded")


def mark_missing(tx: Transaction, decision: int, reason: str) -> Receipt:
    """Mark what is not there of an outcome as missing; it may still be told if it comes after all."""
    event_checks.need_reason(reason)
    recorded = _recorded(tx, decision)
    if recorded.state == MISSING:
        return _receipt(tx.state, recorded, "already recorded")
    after = _recorded_after(tx, recorded, OutcomeMissing(reason, recorded.outcome))
    return _receipt(tx.state, after, "missing")


def unlikely_values(state: TrialState, recorded: RecordedDecision, report: Report, at: Path = ()) -> list[Fault]:
    doubts, usual = [], dict(zip(state.problem.metrics, state.usual, strict=True))
    for part, values, known in _parts(report, recorded):
        for name, value in values.items():
            if value is None or name not in usual or known.get(name) == value:
                continue
            if state.spec.metrics[name].kind not in ("number", "count") or not isinstance(value, int | float):
                continue  # a wrong one is refused
            known_of = state.spec.metrics[name], usual[name], value, _scale(state, recorded, name)
            if (reason := event_checks.why_unlikely_outcome(*known_of)) is not None:
                what = control_plot(name) if part == "control" else name
                message = f"decision {report.decision}: {what} {value:.12g} {reason}"
                doubts.append(Fault((*at, part, name), message, severity="unlikely"))
    return doubts


def _scale(state: TrialState, recorded: RecordedDecision, name: str) -> float:
    """The size of differences of a metric by the file: the largest of its spread and the tolerances, or 0."""
    spec, m = state.spec, state.problem.metrics.index(name)
    weight = abs(float(state.profiles[recorded.body.profile].preference[m] / state.problem.sizes[m]))
    tolerances = [rail.absolute for rail in spec.guardrails if rail.metric == name]
    return max(spec.metrics[name].spread or 0.0, *tolerances, spec.tolerance.absolute / weight if weight else 0.0)


def _parts(report: Report, recorded: RecordedDecision) -> list[tuple[str, Any, dict[str, float]]]:
    """The parts of a report, "outcome" and "control", with their reported and their recorded values."""
    outcome = recorded.outcome or {}
    return [
        ("outcome", report.outcome, outcome.get("metrics") or {}),
        ("control", {} if report.control is None else report.control, outcome.get("control") or {}),
    ]


def _recorded(tx: Transaction, decision: int) -> RecordedDecision:
    return RecordedDecision.of(tx.state, queries.history(tx.ledger, tx.state, decision))


def _recorded_after(tx: Transaction, recorded: RecordedDecision, body: EventBody) -> RecordedDecision:
    """The decision after an event about it, which is appended."""
    draft = Draft(body, recorded.decision, recorded.event.user)
    (event,) = tx.append([draft], {recorded.decision: recorded})
    return recorded.after(tx.state, event)


def _given(
    tx: Transaction, recorded: RecordedDecision, report: Report, *, blinded: bool, amends: bool = False
) -> ArmGiven | None:
    """The statement of what was given, to be recorded; None: it is known. A refusal tells the blinded nothing new."""
    if report.given is None:
        return None
    given, package = blinding.arm_given(tx.ledger, tx.state, report.given, blinded=blinded)
    if event_checks.is_known_given(recorded, given, package):
        return None
    if recorded.given is not None and not amends:
        remedy = f"if that was wrong, amend it with `drimed trial amend ... --decision {recorded.decision} --given`"
        raise ConflictError(f"decision {recorded.decision} has what was given recorded already; {remedy}", ("given",))
    event_checks.need_reason(report.reason or "")
    return ArmGiven(given, recorded.given, str(report.reason), package)


def _merged(state: TrialState, recorded: RecordedDecision, report: Report, *, amends: bool) -> Values:
    """The recorded outcome with the values of a report in their place; a value of None is not there."""
    has_control = state.spec.feedback == "difference"
    if not has_control and report.control is not None:
        raise InputError("this trial's feedback is absolute: it takes no values of a control plot", ("control",))
    merged, news = [], amends
    for part, values, old in _parts(report, recorded):
        new = {name: v for name, v in _checked(state, values, part).items() if amends or v is not None}
        news = news or bool(new)
        for name in (name for name, value in new.items() if value is not None):
            if name in keys_of(recorded.body.unmeasured or ()):
                text = f"{name} is not measured for user {recorded.event.user!r} by the trial file; leave it empty"
                raise InputError(text, (part, name))
        both: dict[str, Any] = {**old, **new}
        merged.append({n: both[n] for n in keys_of(state.problem.metrics) if both.get(n) is not None})
    if not news:
        message = f"decision {recorded.decision}: an outcome needs at least one value; or mark it missing"
        raise InputError(message, ("outcome",))
    return {"metrics": merged[0], "control": merged[1] if has_control else None}


def _checked(state: TrialState, values: Any, part: str) -> dict[str, float | None]:
    if not isinstance(values, Mapping):
        raise InputError(f"an outcome must be a table of metrics and values, got {values!r}", (part,))
    what, checked = "control metric" if part == "control" else "metric", dict[str, float | None]()
    sizes, limits = ({key(m) for m in state.problem.metrics} for key in (size_key, below_key))
    errors = list[InputError]()
    for name, value in values.items():
        if name in sizes:  # of a recorded outcome that was read before
            continue
        if name in limits:
            checked[name] = None if value is None else number(name, value, (part, name))
            continue
        if name not in state.problem.metrics:
            raise UnknownNameError("metric", name, state.problem.metrics, (part, name))
        metric = state.spec.metrics[name]
        try:
            if metric.detection is not None:
                read = read_outcome(name, metric, value, (part, name))
                checked = {below_key(name): None, **checked, **read}
            elif metric.kind == "number":
                checked[name] = None if value is None else number(f"{what} {name!r}", value, (part, name))
            elif metric.of is not None and isinstance(value, float) and size_key(name) in values:  # as it was recorded
                checked |= {name: value, size_key(name): values[size_key(name)]}
            else:
                read = read_outcome(name, metric, value, (part, name))
                checked |= {size_key(name): None, **read} if metric.of is not None else read
        except InputError as error:
            errors.append(error)
    if len(errors) > 1:
        raise BatchError(Fault(error.field, str(error)) for error in errors)
    if errors:
        raise errors[0]
    return checked


def _check_unchanged(state: TrialState, recorded: RecordedDecision, saw: Report) -> None:
    """Refuse a correction of values that are no longer what the caller saw."""
    for part, values, now in _parts(saw, recorded):
        for name, value in _checked(state, values, part).items():
            if now.get(name) != value:
                what = control_plot(name) if part == "control" else name
                is_now, was = ("not recorded" if v is None else repr(v) for v in (now.get(name), value))
                raise ConflictError(
                    f"decision {recorded.decision} was changed meanwhile: {what} is {is_now} now, and you saw {was}; "
                    "look at it again, and correct it if it is still wrong",
                    ("saw" if part == "outcome" else "saw_control", name),
                )


def _receipt(state: TrialState, recorded: RecordedDecision, result: str) -> Receipt:
    """The recorded outcome, and metrics that the policy still waits for."""
    outcome = recorded.outcome
    if outcome is None:
        return Receipt(recorded.decision, result, recorded.state, None, None, [])
    metrics, control = outcome["metrics"] or {}, outcome["control"]
    waits: list[str] = []
    if recorded.state != MISSING and state.usable(state.profiles[recorded.body.profile], outcome) is None:
        there = set(metrics) if control is None else set(metrics) & set(control)
        there.update(recorded.body.unmeasured or ())
        waits = [m for m in state.problem.metrics if not there & {m, below_key(m)}]
    return Receipt(recorded.decision, result, recorded.state, metrics, control, waits)
