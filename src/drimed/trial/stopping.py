"""Looks at the stopping rules: interim analyses that are recorded, with the pause or the stop that they demand.

A look is a pure function of the log. Its ranges hold at all times at once, so any number of looks may be taken. It is
recorded with the hash of all that it says, and `verify` repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from drimed.errors import HaltedError, InputError
from drimed.evaluation.stopping_rules import OF_ALL_ARMS
from drimed.records import Claim, Effect, Event, Limit, Look
from drimed.trial import estimates
from drimed.trial import events as kinds
from drimed.trial.dataset import Dataset, load_dataset
from drimed.trial.events import STATUS_CHANGES, Draft, LookTaken
from drimed.trial.look_history import (
    BY_HAND,
    SEASON,
    RuleScope,
    claim_key,
    due,
    is_fresh,
    look_hash,
    scope_key,
    scope_label,
)
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
    if body["demands"] is not None:
        tx.append([Draft(STATUS_CHANGES[body["demands"]["kind"]](body["demands"]["reason"]))])
    return look_record(body, None if tx.dry_run else event)


def look_before_deciding(tx: Transaction, *, opens: bool) -> None:
    """Take the look that is due before decisions, or (`opens`) before an episode; HaltedError if it ends the trial."""
    causes: set[str] = set()
    while (cause := due(tx.state, opens=opens)) is not None and cause not in causes and not is_fresh(tx.state, cause):
        causes.add(cause)
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
    return body | {"hash": look_hash(body)}, load() if load.cache_info().currsize else before


def evaluate(state: TrialState, cause: str, load: Callable[[], Dataset]) -> dict[str, Any]:
    """Every rule and limit at a state, with the check of the model; data is loaded where one of these needs it."""
    results = [_evaluate_rule(state, load, name, rule) for name, rule in state.spec.rules.items()]
    by_model = [one for one in results if one["evidence"] == "model"]
    # The check of the model is worth its time only if a rule that rests on it is met.
    if any(claim["met"] for one in by_model for claim in one["claims"]):
        wrong = estimates.model_fault(load())
        for one in by_model if wrong is not None else ():
            one |= {"withdrawn": wrong, "claims": [claim | {"met": False} for claim in one["claims"]]}
    limits = _limits(state, cause)
    until = None if state.spec.floors is None else state.spec.floors.until
    met = [claim for one in results if one["rule"] == until for claim in one["claims"] if claim["met"]]
    ends = dict.fromkeys(scope_key(claim["by"], claim["who"]) for claim in met)
    return {
        "after": state.seq,
        "cause": cause,
        "episode": state.episode.number,
        "decisions": state.counts.decisions,
        "outcomes": state.counts.complete,
        "rules": results,
        "limits": limits,
        "ends": [key for key in ends if key not in state.looked.ended],
        "demands": _demands(state, results, limits),
    }


def _evaluate_rule(state: TrialState, load: Callable[[], Dataset], name: str, rule: StoppingRule) -> dict[str, Any]:
    """The claims of one rule: for each group or user of its scope, of each arm or of all of them together."""
    scope = state.looked.scopes[name]
    members = {who: _members(state, scope, who) for who in scope.names}
    alpha = scope.alpha(rule)
    if rule.evidence == "model":
        own = scope.by == "user"
        effects = estimates.model_effects(state, members, scope.arms, alpha=alpha, metric=rule.metric, own=own)
    else:
        exact = rule.evidence == "exact"
        effects = estimates.model_free_effects(
            load(), members, scope.arms, alpha=alpha, metric=rule.metric, exact=exact
        )
    possible = estimates.may_get(state, list(state.users))
    claims = []
    for who, some in members.items():
        if rule.kind not in OF_ALL_ARMS:
            claims += [_claim(rule, scope, who, arm, [effects[who, arm]]) for arm in scope.arms]
            continue
        # Of an arm that none of these users may still get nothing can be learned, and nothing is claimed.
        is_open = {arm: not some or possible[some, state.problem.arm(arm)].any() for arm in scope.arms}
        arms = [arm for arm in scope.arms if rule.arm is not None or (arm not in state.retired and is_open[arm])]
        claims.append(_claim(rule, scope, who, rule.arm, [effects[who, arm] for arm in arms]))
    return {
        "rule": name,
        "kind": rule.kind,
        "on": estimates.REWARD if rule.metric is None else rule.metric,
        "margin": rule.margin,
        "better": scope.better,
        "evidence": rule.evidence,
        "alpha": alpha,
        "claims": claims,
    }


def _members(state: TrialState, scope: RuleScope, who: str) -> list[int]:
    """The places of the users of a claim."""
    if scope.by == "group":
        return [h for h, name in enumerate(state.users) if state.profile(name).group == who]
    return [h for h, name in enumerate(state.users) if scope.by == "all" or name == who]


def _claim(
    rule: StoppingRule, scope: RuleScope, who: str, arm: str | None, effects: Sequence[Effect]
) -> dict[str, Any]:
    """A claim about one arm, or (None) about all arms together; never from one season alone."""
    distance = np.inf
    if effects:
        low, high = np.array([effect.ends for effect in effects]).T
        distance = float(scope.question(rule).distance_all(low, high))
    return {
        "by": scope.by,
        "who": who,
        "arm": arm,
        "met": distance < 0 and all(effect.confirmed for effect in effects),
        "distance": distance if abs(distance) < np.inf else None,
        "ranges": [
            {"arm": e.arm, "low": e.low, "high": e.high} | ({} if e.seasons is None else {"seasons": e.seasons})
            for e in effects
        ],
    }


def _limits(state: TrialState, cause: str) -> list[dict[str, Any]]:
    """The largest numbers, how much of them is reached, and whether that is all."""
    stopping, n, seasons = state.spec.stopping, state.counts.decisions, state.episode.number
    limits: list[dict[str, Any]] = []
    if stopping is not None and stopping.seasons is not None:
        over = cause == SEASON and seasons >= stopping.seasons  # the last season is over when another would begin
        limits.append({"limit": "seasons", "of": stopping.seasons, "reached": seasons, "met": over})
    if stopping is not None and stopping.decisions is not None:
        limits.append({"limit": "decisions", "of": stopping.decisions, "reached": n, "met": n >= stopping.decisions})
    return limits


def _demands(state: TrialState, results: list[dict[str, Any]], limits: list[dict[str, Any]]) -> dict[str, str] | None:
    """The event that must follow: limits stop a trial, and rules act when they are met for the first time."""
    if state.status == "stopped":
        return None
    reasons: dict[str, list[str]] = {"stop": [], "pause": []}
    for limit in limits:
        if limit["met"]:
            reasons["stop"].append(f"the largest number of {limit['limit']}, {limit['of']}, is reached")
    for one in results:
        name, before = one["rule"], state.looked.met.get(one["rule"], {})
        new = [claim for claim in one["claims"] if claim["met"] and claim_key(claim) not in before]
        then = state.spec.rules[name].then
        if new and then in reasons:
            claims = (f"{c['arm'] or 'all arms'} for {scope_label(c['by'], c['who'])}" for c in new)
            reasons[then].append(f"stopping rule {name!r} is met: {'; '.join(claims)}")
    for action, texts in reasons.items():
        if texts and (action == "stop" or state.status == "running"):
            return {"kind": EVENTS[action], "reason": ". ".join(texts)}
    return None


# Recorded looks


def look_record(body: Mapping[str, Any], event: Event | None = None) -> Look:
    """A look as a record; without its event it was not recorded."""
    claims = [
        Claim(
            **{name: result[name] for name in ("rule", "kind", "on", "margin")},
            **{name: claim[name] for name in ("distance", "met")},
            **{name: ends.get(name) for name in ("arm", "low", "high", "seasons")},
            who=scope_label(claim["by"], claim["who"]),
            all_arms=claim["arm"] is None,
            withdrawn=result.get("withdrawn"),
        )
        for result in body["rules"]
        for claim in result["claims"]
        for ends in claim["ranges"]
    ]
    demands = body["demands"] or {"kind": None, "reason": ""}
    place = (0, "", "") if event is None else (event.seq, event.time, event.actor)
    return Look(
        *place,
        **{name: body[name] for name in ("cause", "episode", "decisions", "outcomes", "hash")},
        claims=claims,
        limits=[Limit(**limit) for limit in body["limits"]],
        floor_ends=[scope_label(*key.split(":", 1)) for key in body["ends"]],
        demands=demands["kind"],
        reason=demands["reason"],
    )


def looks(ledger: Ledger, *, until: int | None = None) -> Iterator[Look]:
    """All recorded looks, in order."""
    return (look_record(e.body, e) for e in ledger.events(kinds=[kinds.LOOK], until=until))
