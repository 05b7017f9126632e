"""Outcomes as they are reported: late, in parts, twice, corrected, or never.

Shapes do not matter here: an outcome is a table of metrics, and, where differences are learned from, another one of
the site's control plot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drimed.errors import ConflictError, InputError, UnknownNameError
from drimed.trial import events as kinds
from drimed.trial.events import Event
from drimed.trial.memory import Memory
from drimed.trial.problem import number
from drimed.trial.records import Told

Values = Mapping[str, float | None]


@dataclass(frozen=True)
class Report:
    """An outcome as somebody reports it."""

    decision: int
    outcome: Values
    control: Values | None = None  # of the site's control plot, where the trial's feedback is `difference`


@dataclass(frozen=True)
class Story:
    """A decision with its outcome as it stands."""

    event: Event
    outcome: dict[str, Any] | None  # {"metrics": ..., "control": ...}
    missing: bool
    amendments: int

    @staticmethod
    def of(events: Sequence[Event]) -> Story:
        """From everything that is recorded about the decision."""
        told = [e for e in events if e.kind in (kinds.OUTCOME, kinds.AMENDMENT)]
        return Story(
            events[0],
            told[-1].body["outcome"] if told else None,
            any(e.kind == kinds.MISSING for e in events),
            sum(e.kind == kinds.AMENDMENT for e in events),
        )

    @property
    def decision(self) -> int:
        """Its number."""
        return int(self.event.decision or 0)


def merged(memory: Memory, story: Story, report: Report) -> dict[str, Any]:
    """What is known of an outcome after a report; a different second value is refused."""
    new = _present(_checked(memory, report.outcome, "metric"))
    if not new and not report.control:
        raise InputError(f"decision {story.decision}: an outcome needs at least one value; or mark it missing")
    old = story.outcome or {"metrics": {}, "control": None}
    _agree(story.decision, old["metrics"], new)
    control = None
    if _has_control_plots(memory, report.control):
        before, more = old["control"] or {}, _present(_checked(memory, report.control or {}, "control metric"))
        if not before and not more:
            raise InputError(f"decision {story.decision}: feedback 'difference' needs the control plot's values too")
        _agree(story.decision, before, more)
        control = _ordered(memory, before | more)
    return {"metrics": _ordered(memory, old["metrics"] | new), "control": control}


def amended(memory: Memory, story: Story, report: Report) -> dict[str, Any]:
    """What is known of an outcome after a correction; None takes a value back."""
    if story.outcome is None:
        raise ConflictError(f"decision {story.decision} has no outcome to amend; tell it first")
    metrics = _present(story.outcome["metrics"] | _checked(memory, report.outcome, "metric"))
    if not metrics:
        raise InputError("an amendment cannot take back every metric; correct them, or leave them")
    control = None
    if _has_control_plots(memory, report.control):
        new = _checked(memory, report.control or {}, "control metric")
        control = _ordered(memory, _present((story.outcome["control"] or {}) | new))
    return {"metrics": _ordered(memory, metrics), "control": control}


def told(memory: Memory, story: Story, state: str, outcome: dict[str, Any] | None) -> Told:
    """The answer to a report: what is known now, and what the policy still waits for."""
    if outcome is None:
        return Told(story.decision, state, None, None, [])
    metrics, control = outcome["metrics"], outcome["control"]
    waits: list[str] = []
    if memory.usable(memory.profiles[story.event.body["profile"]], outcome) is None:
        there = set(metrics) if control is None else set(metrics) & set(control)
        waits = [m for m in memory.problem.metrics if m not in there]
    return Told(story.decision, state, metrics, control, waits)


def _has_control_plots(memory: Memory, values: Values | None) -> bool:
    if memory.spec.feedback == "difference":
        return True
    if values is not None:
        raise InputError("this trial's feedback is absolute: it takes no values of a control plot")
    return False


def _checked(memory: Memory, values: Values, what: str) -> dict[str, float | None]:
    """Known metrics and finite numbers, or None."""
    if not isinstance(values, Mapping):
        raise InputError(f"an outcome must be a table of metrics and values, got {values!r}")
    checked: dict[str, float | None] = {}
    for name, value in values.items():
        if name not in memory.problem.metrics:
            raise UnknownNameError("metric", name, memory.problem.metrics)
        checked[name] = None if value is None else number(f"{what} {name!r}", value)
    return checked


def _agree(decision: int, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for name, value in new.items():
        if name in old and old[name] != value:
            raise ConflictError(
                f"decision {decision} already has {name} = {old[name]!r}, and {value!r} is another value; if the first "
                f"was wrong, amend it with `drimed trial amend ... --decision {decision}`"
            )


def _ordered(memory: Memory, values: dict[str, Any]) -> dict[str, Any]:
    return {m: values[m] for m in memory.problem.metrics if m in values}


def _present(values: Values) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
