"""A look: what each stopping rule says of a trial as it stands, as a pure function of its log.

Ranges hold at all times at once, so any number of looks may be taken. What a look found is recorded with the hash of
all that it said, and `verify` repeats it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from drimed.evaluation.stopping_rules import OF_ALL_ARMS
from drimed.records import unconfirmed
from drimed.trial import estimates
from drimed.trial.dataset import Gathered, gather
from drimed.trial.estimates import model_is_wrong
from drimed.trial.spec import StoppingRule
from drimed.trial.state import TrialState
from drimed.trial.stopping import DOES, View, called, claim_key, limits, whose
from drimed.trial.store import Ledger

Ranges = Mapping[tuple[str, str], tuple[float, float]]  # name of a group or user, and arm -> low, high


def look(
    ledger: Ledger, state: TrialState, cause: str, before: Gathered | None = None
) -> tuple[dict[str, Any], Gathered | None]:
    """What a look says now, as it is recorded, and what it has gathered; `before` is what an earlier one gathered."""
    before = before if before is not None and before.state.seq <= state.seq else None
    seen = gather(ledger, state, before) if beyond_model(state) else None
    body = says(state, seen, cause)
    if any(map(_met_by_model, body["rules"])):  # only then is the check worth its time
        seen = gather(ledger, state, before) if seen is None else seen
        wrong = model_is_wrong(seen)
        body = body if wrong is None else says(state, seen, cause, wrong)
    return body | {"hash": digest(body)}, seen


def says(state: TrialState, seen: Gathered | None, cause: str, wrong: str | None = None) -> dict[str, Any]:
    """What a look says of a state; `seen` is needed by rules that do not rest on the model.

    `wrong` is what shows that the model is: no rule that rests on it is met then.
    """
    rules = {} if state.spec.stopping is None else state.spec.stopping.rules
    said = [_said(state, seen, name, rule, wrong) for name, rule in rules.items()]
    bounds = limits(state, cause)
    return {
        "after": state.seq,
        "cause": cause,
        "episode": state.episode.number,
        "decisions": state.counts.decisions,
        "outcomes": state.counts.complete,
        "rules": said,
        "limits": bounds,
        "ends": _ends(state, said),
        "demands": _demands(state, said, bounds),
    }


def beyond_model(state: TrialState) -> bool:
    """Whether a rule rests on more than the model."""
    rules = {} if state.spec.stopping is None else state.spec.stopping.rules
    return any(rule.evidence != "model" for rule in rules.values())


def digest(body: Mapping[str, Any]) -> str:
    """The hash of what a look says."""
    text = json.dumps({k: v for k, v in body.items() if k != "hash"}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _met_by_model(said: Mapping[str, Any]) -> bool:
    return said["evidence"] == "model" and any(claim["met"] for claim in said["claims"])


def _said(state: TrialState, seen: Gathered | None, name: str, rule: StoppingRule, wrong: str | None) -> dict[str, Any]:
    """What one rule says: a claim for each of whom it asks about, and each arm of these or all of them together."""
    view = state.looked.views[name]
    members = {who: _members(state, view, who) for who in view.names}
    alpha = view.alpha(rule)
    told: Mapping[tuple[str, str], int] = {}  # seasons that have, where that matters
    if rule.evidence == "model":
        told = estimates.seasons(state, members, view.arms, metric=rule.metric)
        found: Ranges = estimates.ranges(
            state, members, view.arms, alpha=alpha, metric=rule.metric, own=view.by == "user"
        )
    else:
        assert seen is not None
        exact = rule.evidence == "exact"
        found = estimates.ranges_model_free(seen, members, view.arms, alpha=alpha, metric=rule.metric, exact=exact)
    claims = []
    for who in view.names:
        if rule.kind in OF_ALL_ARMS:
            arms = [arm for arm in view.arms if rule.arm is not None or _in_question(state, arm, members[who])]
            claims.append(_claim(rule, view, who, rule.arm, arms, found, told))
        else:
            claims += [_claim(rule, view, who, arm, [arm], found, told) for arm in view.arms]
    on = estimates.REWARD if rule.metric is None else rule.metric
    asked = {"rule": name, "kind": rule.kind, "on": on, "margin": rule.margin, "better": view.better}
    said = asked | {"evidence": rule.evidence, "alpha": alpha, "claims": claims}
    if wrong is None or rule.evidence != "model":
        return said
    return said | {"withdrawn": wrong, "claims": [claim | {"met": False} for claim in claims]}


def _members(state: TrialState, view: View, who: str) -> list[int]:
    """The places of those that a claim is about."""
    if view.by == "all":
        return list(range(len(state.users)))
    if view.by == "group":
        return [h for h, name in enumerate(state.users) if state.profile(name).group == who]
    return [h for h, name in enumerate(state.users) if name == who]


def _in_question(state: TrialState, arm: str, members: list[int]) -> bool:
    """Whether anybody of these may still get an arm: of others nothing can be learned, and nothing is claimed."""
    if arm in state.retired:
        return False
    k, names = state.problem.arm(arm), list(state.users)
    allowed = (state.profile(names[h]).allowed for h in members)
    return not members or any(may is None or bool(may[k]) for may in allowed)


def _claim(
    rule: StoppingRule,
    view: View,
    who: str,
    arm: str | None,
    arms: Sequence[str],
    found: Ranges,
    told: Mapping[tuple[str, str], int],
) -> dict[str, Any]:
    """What is said of one arm, or (None) of all arms together: nothing that one season alone has told."""
    distance = np.inf
    if arms:
        low, high = np.array([found[who, name] for name in arms]).T
        distance = float(view.rule(rule).distance_all(low, high))
    return {
        "by": view.by,
        "who": who,
        "arm": arm,
        "met": distance < 0 and not any(unconfirmed(told.get((who, name))) for name in arms),
        "distance": _finite(distance),
        "ranges": [_range(name, *found[who, name], told.get((who, name))) for name in arms],
    }


def _range(arm: str, low: float, high: float, seasons: int | None) -> dict[str, Any]:
    ends = {"arm": arm, "low": _finite(low), "high": _finite(high)}
    return ends if seasons is None else ends | {"seasons": seasons}


def _finite(value: float) -> float | None:
    """A number; None: nothing can be told yet."""
    return value if abs(value) < np.inf else None


# What follows


def _ends(state: TrialState, said: list[dict[str, Any]]) -> list[str]:
    """For whom the floor ends now."""
    until = None if state.spec.floors is None else state.spec.floors.until
    claims = [claim for one in said if one["rule"] == until for claim in one["claims"] if claim["met"]]
    ended = dict.fromkeys(whose(claim["by"], claim["who"]) for claim in claims)
    return [who for who in ended if who not in state.looked.ended]


def _demands(state: TrialState, said: list[dict[str, Any]], bounds: list[dict[str, Any]]) -> dict[str, str] | None:
    """What must follow: limits stop a trial, and rules do what they say when they are met for the first time."""
    if state.status == "stopped":
        return None
    wanted: dict[str, list[str]] = {"stop": [], "pause": []}
    for bound in bounds:
        if bound["met"]:
            wanted["stop"].append(f"the largest number of {bound['limit']}, {bound['of']}, is reached")
    rules = {} if state.spec.stopping is None else state.spec.stopping.rules
    for one in said:
        name, before = one["rule"], state.looked.met.get(one["rule"], {})
        new = [claim for claim in one["claims"] if claim["met"] and claim_key(claim) not in before]
        if new and rules[name].then in wanted:
            wanted[rules[name].then].append(f"stopping rule {name!r} is met: {'; '.join(map(_words, new))}")
    for what, why in wanted.items():
        if why and (what == "stop" or state.status == "running"):
            return {"kind": DOES[what], "reason": ". ".join(why)}
    return None


def _words(claim: Mapping[str, Any]) -> str:
    arm = "all arms" if claim["arm"] is None else claim["arm"]
    return f"{arm} for {called(claim['by'], claim['who'])}"
