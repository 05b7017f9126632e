"""The scope of each stopping rule, and what looks have found so far.

A rule looks at the arms, groups and users that were there when it was fixed or changed: alpha is divided among these.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from drimed.evaluation.stopping_rules import Better, Rule, bound_shape, sequential_bound, share_of
from drimed.records import Claim
from drimed.trial.spec import Stopping, StoppingRule, TrialSpec, User

if TYPE_CHECKING:
    from drimed.trial.state import TrialState

By = Literal["all", "group", "user"]
ALL_USERS = "all users"
SEASON, DECISIONS, BY_HAND = "season", "decisions", "by hand"  # causes of a look


@dataclass(frozen=True)
class RuleScope:
    """The arms and users of one rule."""

    arms: tuple[str, ...]
    by: By
    names: tuple[str, ...]  # of groups or users, or all users
    better: Better

    def question(self, rule: StoppingRule) -> Rule:
        """The question of the rule, on the scale of what is measured."""
        return Rule(kind=rule.kind, margin=rule.margin, better=self.better)

    def alpha(self, rule: StoppingRule) -> float:
        """The level of each of its ranges; calibration allows for all arms and groups together."""
        sizes = {} if rule.evidence == "calibrated" else {"arms": len(self.arms), "groups": len(self.names)}
        return share_of(1 - rule.confidence, **{"arms": 1} | sizes, together=rule.of_all_arms)


@dataclass(frozen=True)
class LookHistory:
    """The results of all looks so far."""

    scopes: Mapping[str, RuleScope] = field(default_factory=dict)  # by rule
    count: int = 0
    last: int = 0  # the event of the last look, or of the last arm that it dropped; 0: there was none
    planned: int = 0  # the number of the last planned look
    cause: str = ""  # of the last look
    decisions: int = 0  # at the last look
    asked: str = ""  # when the last decisions were taken, where looks follow their number
    met: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # rule -> claim -> the event that found it met
    ended: tuple[str, ...] = ()  # scopes for which the floor has ended
    demands: tuple[Mapping[str, str], ...] = ()  # events that must follow the last look: kind, reason and maybe arm
    halted: str = ""  # why a rule has paused or stopped the trial

    def with_rules(self, before: TrialSpec, after: TrialSpec, users: Mapping[str, User]) -> LookHistory:
        """The history with other rules: one that stays as it was keeps its scope and its claims."""
        same = {name for name, rule in after.rules.items() if before.rules.get(name) == rule}
        kept = {rule: scope for rule, scope in self.scopes.items() if rule in same}
        met = {rule: claims for rule, claims in self.met.items() if rule in same}
        return replace(self, scopes=rule_scopes(after, users) | kept, met=met)

    def after(self, seq: int, body: Mapping[str, Any]) -> LookHistory:
        """The history with another look, of event `seq`."""
        met = {rule: dict(claims) for rule, claims in self.met.items()}
        for claim in (Claim(**one) for one in body["claims"] if one["met"]):
            met.setdefault(claim.rule, {}).setdefault(claim_key(claim), seq)
        return replace(
            self,
            count=self.count + 1,
            last=seq,
            planned=body["planned"] or self.planned,
            cause=body["cause"],
            decisions=body["decisions"],
            met=met,
            ended=(*self.ended, *body["ends"]),
            demands=tuple(body["demands"]),
        )


def scope_key(by: str, name: str) -> str:
    """One key for all users, a group or a user."""
    return f"{by}:{name}"


def claim_key(claim: Claim) -> str:
    """The key of a claim: its scope, and its arm (of all: nothing)."""
    return scope_key(claim.by, claim.who) + ("" if claim.all_arms else f"|{claim.arm}")


def look_hash(body: Mapping[str, Any]) -> str:
    text = json.dumps({k: v for k, v in body.items() if k != "hash"}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def due(state: TrialState, *, opens: bool) -> str | None:
    """The cause of a look that must be taken before a decision now; `opens`: before an episode is opened."""
    stopping, looked, n = state.spec.stopping, state.looked, state.counts.decisions
    if stopping is None or not n:
        return None
    if stopping.decisions is not None and n >= stopping.decisions:
        return DECISIONS
    over = stopping.seasons is not None and state.episode.number >= stopping.seasons
    if opens and (over or (stopping.rules and stopping.looks == "season" and _reached(stopping, state.episode.number))):
        return SEASON
    if stopping.rules and stopping.looks != "season" and _reached(stopping, n) > _reached(stopping, looked.decisions):
        return DECISIONS
    return None


def _reached(stopping: Stopping, count: int) -> int:
    """The number of looks that so many seasons or decisions ask for."""
    if stopping.looks == "by hand":
        return 0
    step = stopping.looks if isinstance(stopping.looks, int) else 1
    return max(0, 1 + (count - (stopping.first or step)) // step)


def planned_look(state: TrialState, cause: str) -> int:
    """The number of the planned look that a look now would be, the first after it is reached; 0: it is not planned."""
    stopping, over = state.spec.stopping or Stopping(), state.counts.decisions
    planned = stopping.planned()
    if planned and stopping.looks == "season":
        complete = cause == SEASON or (state.episode.number >= planned[-1] and not state.counts.pending)
        over = state.episode.number - (not complete)
    number = bisect_right(planned, over)
    return number if number > state.looked.planned else 0


def deviations(state: TrialState, name: str, look: int) -> float:
    """Deviations to either side of an estimate, in the range of a rule at this planned look; infinite: not known."""
    rule, planned = state.spec.rules[name], (state.spec.stopping or Stopping()).planned()
    information = tuple(at / planned[-1] for at in planned)
    shape = rule.shape or "pocock"
    if rule.evidence == "calibrated":
        bound = state.thresholds.get(name, inf)
    else:
        bound = sequential_bound(state.looked.scopes[name].alpha(rule), information, shape)
    return bound * float(bound_shape(shape, information[max(look, 1) - 1]))


def is_fresh(state: TrialState, cause: str) -> bool:
    """Whether a look of this cause was just taken."""
    return state.looked.last == state.seq and state.looked.cause == cause


def has_floor(state: TrialState, user: str) -> bool:
    group = state.profile(user).group
    scopes = [("all", ALL_USERS), ("user", user), *([] if group is None else [("group", group)])]
    return not any(scope_key(*scope) in state.looked.ended for scope in scopes)


def rule_scopes(spec: TrialSpec, users: Mapping[str, User]) -> dict[str, RuleScope]:
    """The scope of each rule, with these users in the trial."""
    controls = [spec.control, *(cohort.control for cohort in spec.cohorts.values())]
    controls += [spec.resolved(user).control for user in users.values()] if spec.rules else []
    only = {str(c) if isinstance(c, str) else None for c in controls if c is not None}
    arms = tuple(arm for arm in spec.arms if only != {arm})  # but for the control of all users
    scopes = {}
    for name, rule in spec.rules.items():
        by: By = "all"
        names: tuple[str, ...] = (ALL_USERS,)
        if rule.each is not None:
            by, names = rule.each, tuple(groups_of(spec, users) if rule.each == "group" else users)
        elif rule.group is not None or rule.user is not None:
            by, names = "user" if rule.group is None else "group", (rule.group or rule.user or "",)
        better = "higher" if rule.metric is None else better_direction(spec, users, rule.metric)
        scopes[name] = RuleScope(arms if rule.arm is None else (rule.arm,), by, names, better)
    return scopes


def groups_of(spec: TrialSpec, users: Mapping[str, User]) -> list[str]:
    """All groups, also those of cohorts without users."""
    groups = [spec.resolved(user).group for user in users.values()] + [cohort.group for cohort in spec.cohorts.values()]
    return list(dict.fromkeys(group for group in groups if group is not None))


def better_direction(spec: TrialSpec, users: Mapping[str, User], metric: str) -> Better:
    """The good direction of a metric: as in the file, or down where every user who weighs it counts it as a cost."""
    if spec.metrics[metric].better == "lower":
        return "lower"
    preferences = [spec.preference, *(spec.resolved(user).preference for user in users.values())]
    weights = [p[metric] for p in preferences if p is not None and metric in p]
    return "lower" if any(w < 0 for w in weights) and not any(w > 0 for w in weights) else "higher"
