"""The stopping rules of a trial in sentences: as fixed before the first decision, met at looks, and changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drimed.formatting import counted, percent, short
from drimed.records import Event, Look
from drimed.trial import events as kinds
from drimed.trial.look_history import ALL_USERS
from drimed.trial.seasons import calendar
from drimed.trial.spec import Stopping, StoppingRule, TrialSpec
from drimed.trial.state import TrialState
from drimed.trial.stopping import looks, rule_changes
from drimed.trial.store import Ledger

EVIDENCE = {
    "propensities": "the propensities alone",
    "exact": "the propensities alone, exactly as far as outcomes stay in their ranges",
    "model": "the model",
}
THEN = {"advise": "looks and reports say so", "pause": "the trial pauses", "stop": "the trial stops"}
SHOWN = {
    "superiority": "the arm is shown to be better than the control",
    "non_inferiority": "the arm is shown to be not worse than the control by the margin",
    "equivalence": "the arm is shown to differ from the control by less than the margin",
    "futility": "the arm is shown to be no better than the control by the margin",
    "harm": "the arm is shown to be worse than the control",
}


def until(kind: str, then: str) -> str:
    """The event that a rule of this kind waits for.

    >>> until("harm", "stop")
    'the arm is shown to be worse than the control and the trial stops'
    """
    return SHOWN[kind] + ("" if then == "advise" else f" and {THEN[then]}")


def then_of(spec: TrialSpec, rule: str) -> str:
    """The consequence of a rule; one that is not in the file any more only advised."""
    current = None if spec.stopping is None else spec.stopping.rules.get(rule)
    return "advise" if current is None else current.then


@dataclass(frozen=True)
class Amendment:
    """A change of the rules."""

    time: str
    actor: str
    reason: str
    after_decisions: bool
    removed: list[str]  # rules as sentences
    added: list[str]


@dataclass(frozen=True)
class StoppingHistory:
    """The rules of one trial, its looks, and amendments."""

    state: TrialState
    looks: list[Look]
    amendments: list[Amendment]

    @property
    def rules(self) -> list[str]:
        """The present rules as sentences."""
        return describe_rules(self.state.spec.stopping)

    def describe(self, *, withdrawn: bool = False) -> list[str]:
        """Events in order; `withdrawn`: the model is wrong by now, and what it showed before shows nothing."""
        text = [f"{counted(len(self.looks), 'look')} so far." if self.looks else "No look was taken yet."]
        called = calendar(self.state)
        first: dict[tuple[str, str, str], Look] = {}
        for look in self.looks:
            for claim in look.claims:
                if claim.met:
                    arm = "all arms" if claim.all_arms else claim.arm
                    first.setdefault((claim.rule, arm, claim.who), look)
        for (rule, arm, who), look in first.items():
            when = f"in {called.said(look.episode)} after {counted(look.decisions, 'decision')}"
            text.append(f"{rule} was met for {arm}, {who}, {when}.")
        if self.looks and not first:
            text.append("No rule was met.")
        last = self.looks[-1].claims if self.looks else []
        for rule, why in {c.rule: c.waits for c in last if c.withdrawn}.items():
            text.append(f"At the last look {rule} was not met: {why}.")
        rules = {} if self.state.spec.stopping is None else self.state.spec.stopping.rules
        for rule in dict.fromkeys(rule for rule, _, _ in first) if withdrawn else ():
            if rule in rules and rules[rule].evidence == "model":
                text.append(f"{rule} rests on the model, which is wrong by what is known now: its claim does not hold.")
        for look in self.looks:
            text += [f"The floor ended for {who} after {called.said(look.episode)}." for who in look.floor_ends]
            if look.demands is not None:
                text.append(f"The trial was {look.demands} after {called.said(look.episode)}: {look.reason}.")
        return text


def stopping_history(ledger: Ledger, state: TrialState) -> StoppingHistory | None:
    """All looks and changes up to a state; None for a trial that never had rules."""
    changes = rule_changes(ledger, until=state.seq)
    if state.spec.stopping is None and not changes:
        return None
    decided = next(ledger.events(kinds=[kinds.DECISION], until=state.seq, limit=1), None)
    first_decision = state.seq + 1 if decided is None else decided.seq
    amendments = [_amendment(event, first_decision) for event in changes]
    return StoppingHistory(state, list(looks(ledger, until=state.seq)), amendments)


def describe_rules(stopping: Stopping | None) -> list[str]:
    """Rules and limits, one sentence each."""
    if stopping is None:
        return []
    text = [_describe_rule(name, rule) for name, rule in stopping.rules.items()]
    for most, unit in ((stopping.seasons, "season"), (stopping.decisions, "decision")):
        text += [] if most is None else [f"The trial stops after {counted(most, unit)}."]
    if stopping.rules:
        times = {"season": "before each season", "by hand": "on request"}
        when = times.get(str(stopping.looks), f"after every {stopping.looks} decisions")
        text.append(f"A look is taken {when}. Ranges hold at all times at once, so any number of looks is allowed.")
    return text


def _describe_rule(name: str, rule: StoppingRule) -> str:
    whom = rule.group or rule.user or (f"each {rule.each}" if rule.each else ALL_USERS)
    margin = short(rule.margin)
    more = f" by more than {margin}" if rule.margin else ""
    arm = rule.arm or "an arm"
    claim = {
        "superiority": f"{arm} is better than the control{more}",
        "non_inferiority": f"{arm} is not worse than the control by {margin}",
        "equivalence": f"{rule.arm or 'every arm'} differs from the control by less than {margin}",
        "futility": f"{rule.arm or 'no arm'} {'cannot' if rule.arm else 'can'} be better than the control by {margin}",
        "harm": f"{arm} is worse than the control{more}",
    }[rule.kind]
    return (
        f"{name}: {claim}, on {rule.metric or 'the reward'}, for {whom}; shown by {EVIDENCE[rule.evidence]}, at a "
        f"confidence of {percent(rule.confidence)}. Then {THEN[rule.then]}."
    )


def _amendment(event: Event, first_decision: int) -> Amendment:
    body: Mapping[str, Any] = event.body
    old = describe_rules(None if body["was"] is None else Stopping.model_validate(body["was"]))
    new = describe_rules(Stopping.model_validate(body["stopping"]))
    removed, added = [one for one in old if one not in new], [one for one in new if one not in old]
    return Amendment(event.time, event.actor, body["reason"], event.seq > first_decision, removed, added)
