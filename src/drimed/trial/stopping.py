"""Looks at the stopping rules: interim analyses that are recorded, with the events that they demand.

A look is a pure function of the log, recorded with the hash of all that it says; `verify` repeats it. Ranges hold at
all times at once, so any number of looks may be taken; rules that hold at planned looks only are met at no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from drimed.errors import HaltedError, InputError, NumericalError
from drimed.numerics.arrays import computing
from drimed.records import Claim, Event, Limit, Look
from drimed.trial import estimates, look_history
from drimed.trial import events as kinds
from drimed.trial.dataset import Dataset, load_dataset
from drimed.trial.events import BODIES, STATUS_CHANGES, Draft, LookTaken
from drimed.trial.look_history import BY_HAND, SEASON, RuleScope, claim_key, due, scope_key
from drimed.trial.spec import Stopping, StoppingRule
from drimed.trial.state import TrialState
from drimed.trial.store import Ledger
from drimed.trial.transaction import Transaction

EVENTS = {"stop": kinds.STOPPED, "pause": kinds.PAUSED}  # that a rule demands


def record_look(tx: Transaction, cause: str = BY_HAND, *, preview: bool = False) -> Look:
    """Look now, and do what the rules demand; a preview records nothing."""
    if tx.state.spec.stopping in (None, Stopping()):
        raise InputError(
            f"trial {tx.state.spec.name!r} has no stopping rules and no limits; add them under [stopping] in the "
            "trial file, or later with `drimed trial rules`"
        )
    body, tx.memory.data = look(tx.ledger, tx.state, cause, tx.memory.data)
    if preview:
        return look_record(body)
    (event,) = tx.append([Draft(LookTaken(**body))])
    for demand in body["demands"]:
        tx.append([Draft(BODIES[demand["kind"]](**{k: v for k, v in demand.items() if k != "kind"}))])
    return look_record(body, None if tx.dry_run else event)


def look_before_deciding(tx: Transaction, *, opens: bool) -> None:
    """Take the look that is due before decisions, or (`opens`) before an episode; HaltedError if it ends the trial."""
    causes = list[str]()
    while (cause := due(tx.state, opens=opens)) and cause not in causes and not look_history.is_fresh(tx.state, cause):
        causes.append(cause)
        taken = record_look(tx, cause)
        if taken.demands is not None:
            name = tx.state.spec.name
            raise HaltedError(f"trial {name!r} is {taken.demands} and decides nothing: {taken.reason}")


def look(
    ledger: Ledger, state: TrialState, cause: str, before: Dataset | None = None
) -> tuple[dict[str, Any], Dataset | None]:
    """A look as it is recorded, and the dataset that it has loaded; `before` is that of an earlier one."""
    before = before if before is not None and before.state.seq <= state.seq else None
    load = cache(lambda: load_dataset(ledger, state, before))
    body = evaluate(state, cause, load)
    return body | {"hash": look_history.look_hash(body)}, load() if load.cache_info().currsize else before


def evaluate(state: TrialState, cause: str, load: Callable[[], Dataset]) -> dict[str, Any]:
    """Every rule and limit at a state, with the check of the model; data is loaded where one of these needs it."""
    rules, planned = state.spec.rules, look_history.planned_look(state, cause)
    claims = [claim for name, rule in rules.items() for claim in _claims(state, load, name, rule, planned)]
    by_model = {name for name, rule in rules.items() if rule.on_model}
    # The check of the model is worth its time only if a rule that rests on it is met.
    if any(claim.met for claim in claims if claim.rule in by_model) and (wrong := estimates.model_fault(load())):
        claims = [replace(c, met=False, withdrawn=wrong) if c.rule in by_model else c for c in claims]
    limits = _limits(state, cause)
    until = None if state.spec.floors is None else state.spec.floors.until
    ends = dict.fromkeys(scope_key(claim.by, claim.who) for claim in claims if claim.met and claim.rule == until)
    return {
        "after": state.seq,
        "cause": cause,
        "planned": planned,
        "episode": state.episode.number,
        "decisions": state.counts.decisions,
        "outcomes": state.counts.complete,
        "claims": [vars(claim) for claim in claims],
        "limits": [vars(limit) for limit in limits],
        "ends": [key for key in ends if key not in state.looked.ended],
        "demands": _demands(state, claims, limits),
    }


def _claims(
    state: TrialState, load: Callable[[], Dataset], name: str, rule: StoppingRule, planned: int
) -> Iterator[Claim]:
    """The claims of one rule: for each group or user of its scope, of each arm; some kinds are of all arms together."""
    scope = state.looked.scopes[name]
    members = {who: _members(state, scope, who) for who in scope.names}
    alpha, wrong = scope.alpha(rule), None
    how: dict[str, Any] = {"alpha": alpha, "metric": rule.metric}
    if rule.on_model:
        how["own"] = scope.by == "user"
        if rule.is_planned:
            how["deviations"] = look_history.deviations(state, name, planned or state.looked.planned)
        try:
            with computing():
                effects = estimates.model_effects(state, members, scope.arms, **how)
        except NumericalError as error:  # the trial goes on, and the claim waits
            effects, wrong = estimates.unknown_effects(members, scope.arms, rule.metric), str(error)
    else:
        effects = estimates.model_free_effects(load(), members, scope.arms, **how, exact=rule.evidence == "exact")
    possible, of_all = estimates.may_get(state, list(state.users)), rule.of_all_arms
    for who, some in members.items():
        # Of an arm that none of these users may still get nothing can be learned, and nothing is claimed.
        is_open = {arm: not some or possible[some, state.problem.arm(arm)].any() for arm in scope.arms}
        left = [arm for arm in scope.arms if rule.arm is not None or (arm not in state.retired and is_open[arm])]
        together = [effects[who, arm] for arm in left]
        for judged in filter(None, [together] if of_all else [[effects[who, arm]] for arm in scope.arms]):
            low, high = np.array([effect.ends for effect in judged]).T
            distance = float(scope.question(rule).distance_all(low, high))
            met = distance < 0 and all(effect.confirmed for effect in judged)  # never from one season alone
            if rule.is_planned:  # of an arm that is not given any more nothing more is claimed
                met = met and planned > 0 and not any(effect.arm in state.retired for effect in judged)
            for effect in judged:
                of_effect = {end: getattr(effect, end) for end in ("on", "who", "arm", "low", "high", "seasons")}
                yield Claim(
                    **of_effect,
                    rule=name,
                    kind=rule.kind,
                    by=scope.by,
                    alpha=alpha,
                    margin=rule.margin,
                    distance=distance if abs(distance) < np.inf else None,
                    met=met,
                    all_arms=of_all and rule.arm is None,
                    withdrawn=wrong,
                    planned=planned > 0 or not rule.is_planned,
                )


def _members(state: TrialState, scope: RuleScope, who: str) -> list[int]:
    """The places of the users of a claim."""
    if scope.by == "group":
        return [h for h, name in enumerate(state.users) if state.profile(name).group == who]
    return [h for h, name in enumerate(state.users) if scope.by == "all" or name == who]


def _limits(state: TrialState, cause: str) -> list[Limit]:
    """The largest numbers, how much of them is reached, and whether that is all."""
    stopping, n, seasons = state.spec.stopping or Stopping(), state.counts.decisions, state.episode.number
    limits = []
    if (most := stopping.seasons) is not None:  # the last season is over when another would begin
        limits.append(Limit("seasons", most, seasons, cause == SEASON and seasons >= most))
    if (most := stopping.decisions) is not None:
        limits.append(Limit("decisions", most, n, n >= most))
    return limits


def _demands(state: TrialState, claims: Sequence[Claim], limits: Sequence[Limit]) -> list[dict[str, str]]:
    """The events that must follow: limits stop a trial, rules act when they are met first; no control is dropped."""
    if state.status == "stopped":
        return []
    reasons: dict[str, list[str]] = {"stop": [], "pause": []}
    dropped: dict[str, str] = {}
    arms, profiles = state.problem.arms, map(state.profile, state.users)
    controls = {arm for p in profiles for arm, share in zip(arms, p.control, strict=False) if share > 0}
    reasons["stop"] += [f"the largest number of {one.limit}, {one.of}, is reached" for one in limits if one.met]
    for name, rule in state.spec.rules.items():
        before = state.looked.met.get(name, {})
        new = [claim for claim in claims if claim.rule == name and claim.met and claim_key(claim) not in before]
        if new and rule.then in reasons:
            shown = dict.fromkeys(f"{'all arms' if c.all_arms else c.arm} for {c.who}" for c in new)
            reasons[rule.then].append(f"stopping rule {name!r} is met: {'; '.join(shown)}")
        for claim in new if rule.then == "drop" else ():
            if claim.arm not in {*controls, *state.retired}:
                dropped.setdefault(claim.arm, f"stopping rule {name!r} is met: {claim.arm} for {claim.who}")
    demands = [{"kind": kinds.RETIRED, "arm": arm, "reason": reason} for arm, reason in dropped.items()]
    if dropped and controls.issuperset(set(arms) - dropped.keys() - set(state.retired)):
        reasons["stop"].append("no arm but the control is left")
    for action, texts in reasons.items():
        if texts and (action == "stop" or state.status == "running"):
            return [*demands, {"kind": EVENTS[action], "reason": ". ".join(texts)}]
    return demands


def look_record(body: Mapping[str, Any], event: Event | None = None) -> Look:
    """A look as a record; without its event it was not recorded."""
    halts = next((d["kind"] for d in body["demands"] if d["kind"] in STATUS_CHANGES), None)
    place = (0, "", "") if event is None else (event.seq, event.time, event.actor)
    return Look(
        *place,
        **{name: body[name] for name in ("cause", "planned", "episode", "decisions", "outcomes", "hash")},
        claims=[Claim(**claim) for claim in body["claims"]],
        limits=[Limit(**limit) for limit in body["limits"]],
        floor_ends=[key.partition(":")[2] for key in body["ends"]],
        demands=halts,
        dropped=[demand["arm"] for demand in body["demands"] if demand["kind"] == kinds.RETIRED],
        reason=". ".join(dict.fromkeys(demand["reason"] for demand in body["demands"])),
    )


def looks(ledger: Ledger, *, until: int | None = None) -> Iterator[Look]:
    return (look_record(e.body, e) for e in ledger.events(kinds=[kinds.LOOK], until=until))
