"""The story of a trial's stopping rules: what was fixed before the first decision, what looks found, what changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drimed.formatting import counted, percent, short
from drimed.records import Event, Look
from drimed.trial import events as kinds
from drimed.trial.looked import looks, rule_changes
from drimed.trial.parts import Stopping, StoppingRule
from drimed.trial.seasons import calendar
from drimed.trial.spec import TrialSpec
from drimed.trial.state import TrialState
from drimed.trial.stopping import EVERYBODY
from drimed.trial.stores.store import Ledger

SHOWN = {
    "propensities": "the propensities alone",
    "exact": "the propensities alone, exactly as far as outcomes stay in their ranges",
    "model": "the model",
}
DOES = {"advise": "looks and reports say so", "pause": "the trial pauses", "stop": "the trial stops"}
ASKED = {
    "superiority": "the arm is shown to be better than the control",
    "non_inferiority": "the arm is shown to be not worse than the control by the margin",
    "equivalence": "the arm is shown to differ from the control by less than the margin",
    "futility": "the arm is shown to be no better than the control by the margin",
    "harm": "the arm is shown to be worse than the control",
}
ENDS = {"advise": "", "pause": " and the trial pauses", "stop": " and the trial stops"}


def until(kind: str, then: str) -> str:
    """What happens when a rule of this kind is met.

    >>> until("harm", "stop")
    'the arm is shown to be worse than the control and the trial stops'
    """
    return ASKED[kind] + ENDS[then]


def then_of(spec: TrialSpec, rule: str) -> str:
    """What a rule does when it is met; one that is not in the file any more only advised."""
    found = None if spec.stopping is None else spec.stopping.rules.get(rule)
    return "advise" if found is None else found.then


@dataclass(frozen=True)
class Amendment:
    """A change of the rules."""

    time: str
    actor: str
    reason: str
    decisions: bool  # whether decisions had been taken by then
    was: list[str]  # the rules that are no more, in words
    now: list[str]  # the rules that are new


@dataclass(frozen=True)
class Stopped:
    """All about the rules of one trial."""

    state: TrialState
    looks: list[Look]
    amendments: list[Amendment]
    first: list[str]  # the rules at the start, in words

    @property
    def rules(self) -> list[str]:
        """The rules as they stand, in words."""
        return words(self.state.spec.stopping)


def stopped(ledger: Ledger, state: TrialState) -> Stopped | None:
    """What a report tells; None for a trial that has no rules and never had any."""
    start = state.created.body["spec"].get("stopping")
    changes = rule_changes(ledger, until=state.seq)
    if state.spec.stopping is None and not changes:
        return None
    decided = next(ledger.events(kinds=[kinds.DECISION], until=state.seq, limit=1), None)
    since = state.seq + 1 if decided is None else decided.seq
    return Stopped(
        state,
        list(looks(ledger, until=state.seq)),
        [_amendment(event, since) for event in changes],
        words(None if start is None else Stopping.model_validate(start)),
    )


def words(stopping: Stopping | None) -> list[str]:
    """Rules and limits, one sentence each."""
    if stopping is None:
        return []
    said = [_rule_words(name, rule) for name, rule in stopping.rules.items()]
    said += [
        f"The trial stops after {counted(most, unit)}."
        for most, unit in ((stopping.seasons, "season"), (stopping.decisions, "decision"))
        if most is not None
    ]
    if stopping.rules:
        looked = {"season": "before each season", "by hand": "when somebody asks for it"}
        when = looked.get(str(stopping.looks), f"after every {stopping.looks} decisions")
        said.append(f"A look is taken {when}. Ranges hold at all times at once, so any number of looks is allowed.")
    return said


def story(found: Stopped, *, withdrawn: bool = False) -> list[str]:
    """What happened, in words; `withdrawn`: the model is wrong by now, and what it showed before shows nothing."""
    said = [f"{counted(len(found.looks), 'look')} so far."] if found.looks else ["No look was taken yet."]
    first: dict[tuple[str, str, str], Look] = {}
    called = calendar(found.state)
    for look in found.looks:
        for claim in look.claims:
            if claim.met:
                arm = "all arms" if claim.all_arms else claim.arm
                first.setdefault((claim.rule, arm, claim.who), look)
    said += [
        f"{rule} was met for {arm}, {who}, in {called.said(look.episode)} after {counted(look.decisions, 'decision')}."
        for (rule, arm, who), look in first.items()
    ]
    if found.looks and not first:
        said.append("No rule was met.")
    last = found.looks[-1].claims if found.looks else []
    said += [
        f"At the last look {rule} was not met: {why}."
        for rule, why in {c.rule: c.waits for c in last if c.withdrawn}.items()
    ]
    rules = {} if found.state.spec.stopping is None else found.state.spec.stopping.rules
    for rule in dict.fromkeys(rule for rule, _, _ in first) if withdrawn else ():
        if rule in rules and rules[rule].evidence == "model":
            said.append(f"{rule} rests on the model, which is wrong by what is known now: its claim does not hold.")
    for look in found.looks:
        said += [f"The floor ended for {who} after {called.said(look.episode)}." for who in look.floor_ends]
        if look.demands is not None:
            said.append(f"The trial was {look.demands} after {called.said(look.episode)}: {look.reason}.")
    return said


def _rule_words(name: str, rule: StoppingRule) -> str:
    whom = rule.group or rule.user or (f"each {rule.each}" if rule.each else EVERYBODY)
    far = short(rule.margin)
    more = f" by more than {far}" if rule.margin else ""
    arm = rule.arm or "an arm"
    asks = {
        "superiority": f"{arm} is better than the control{more}",
        "non_inferiority": f"{arm} is not worse than the control by {far}",
        "equivalence": f"{rule.arm or 'every arm'} differs from the control by less than {far}",
        "futility": f"{rule.arm or 'no arm'} {'cannot' if rule.arm else 'can'} be better than the control by {far}",
        "harm": f"{arm} is worse than the control{more}",
    }[rule.kind]
    evidence = SHOWN[rule.evidence]
    return (
        f"{name}: {asks}, on {rule.metric or 'the reward'}, for {whom}; shown by {evidence}, at a confidence of "
        f"{percent(rule.confidence)}. Then {DOES[rule.then]}."
    )


def _amendment(event: Event, since: int) -> Amendment:
    body: Mapping[str, Any] = event.body
    was = None if body["was"] is None else Stopping.model_validate(body["was"])
    old, new = words(was), words(Stopping.model_validate(body["stopping"]))
    gone, come = [one for one in old if one not in new], [one for one in new if one not in old]
    return Amendment(event.time, event.actor, body["reason"], event.seq > since, gone, come)
