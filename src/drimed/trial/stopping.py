"""The stopping rules of a trial: what each has in view, and what looks have found so far.

A rule looks at the arms, groups and users that were there when it was fixed: alpha is divided among these. Whoever or
whatever joins later has no share in it, until the rule is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from drimed.evaluation.stopping_rules import Better, Rule, share_of
from drimed.trial import events as kinds
from drimed.trial.spec import Stopping, StoppingRule, TrialSpec, User

if TYPE_CHECKING:
    from drimed.trial.state import TrialState

By = Literal["all", "group", "user"]
EVERYBODY = "all users"
SEASON, DECISIONS, BY_HAND = "season", "decisions", "by hand"  # why a look is taken
DOES = {"pause": kinds.PAUSED, "stop": kinds.STOPPED}


@dataclass(frozen=True)
class View:
    """What one rule looks at."""

    arms: tuple[str, ...]
    by: By
    names: tuple[str, ...]  # of groups or users; one empty name for all users together
    better: Better

    def rule(self, asked: StoppingRule) -> Rule:
        """The question, on the scale of what is measured."""
        return Rule(kind=asked.kind, margin=asked.margin, better=self.better)

    def alpha(self, asked: StoppingRule) -> float:
        """Of each of its ranges."""
        return share_of(1 - asked.confidence, asked.kind, arms=len(self.arms), groups=len(self.names))


@dataclass(frozen=True)
class Looked:
    """What is known from looks."""

    views: Mapping[str, View] = field(default_factory=dict)  # rule -> what it looks at
    count: int = 0
    last: int = 0  # the event of the last look; 0: there was none
    cause: str = ""  # why it was taken
    decisions: int = 0  # how many there were then
    asked: str = ""  # when the last decisions were taken, where looks follow their number
    met: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # rule -> claim -> the event that found it met
    ended: tuple[str, ...] = ()  # for whom the floor has ended
    demands: tuple[str, str] | None = None  # what must follow the last look: the kind of event, and its reason
    halted: str = ""  # why a rule has paused or stopped the trial

    @staticmethod
    def read(data: Mapping[str, Any]) -> Looked:
        """From JSON data."""
        views = {
            name: View(tuple(v["arms"]), v["by"], tuple(v["names"]), v["better"]) for name, v in data["views"].items()
        }
        demands = None if data["demands"] is None else (str(data["demands"][0]), str(data["demands"][1]))
        return Looked(**{**data, "views": views, "ended": tuple(data["ended"]), "demands": demands})


# When


def due(state: TrialState, *, opens: bool) -> str | None:
    """Why a look must be taken before anything is decided now; `opens`: before an episode is opened."""
    stopping, n, looked = state.spec.stopping, state.counts.decisions, state.looked
    if stopping is None or not n:
        return None
    if stopping.decisions is not None and n >= stopping.decisions:
        return DECISIONS
    rules = bool(stopping.rules)
    over = stopping.seasons is not None and state.episode.number >= stopping.seasons
    if opens and (over or (rules and stopping.looks == "season")):
        return SEASON
    if rules and isinstance(stopping.looks, int) and n - looked.decisions >= stopping.looks:
        return DECISIONS
    return None


def fresh(state: TrialState, cause: str) -> bool:
    """Whether such a look was just taken."""
    return state.looked.last == state.seq and state.looked.cause == cause


def most_decisions(state: TrialState) -> int | None:
    """How many decisions the trial may have in all."""
    return None if state.spec.stopping is None else state.spec.stopping.decisions


def limits(state: TrialState, cause: str) -> list[dict[str, Any]]:
    """The largest numbers, what was reached of them, and whether that is all."""
    stopping, n, seasons = state.spec.stopping, state.counts.decisions, state.episode.number
    found: list[dict[str, Any]] = []
    if stopping is not None and stopping.seasons is not None:
        over = cause == SEASON and seasons >= stopping.seasons  # the last season is over when another would begin
        found.append({"limit": "seasons", "of": stopping.seasons, "reached": seasons, "met": over})
    if stopping is not None and stopping.decisions is not None:
        found.append({"limit": "decisions", "of": stopping.decisions, "reached": n, "met": n >= stopping.decisions})
    return found


# What is in view


def views(spec: TrialSpec, users: Mapping[str, User]) -> dict[str, View]:
    """What each rule looks at, with these users in the trial."""
    rules = spec.stopping.rules if spec.stopping is not None else {}
    arms = _in_question(spec, users) if rules else ()
    return {name: _view(spec, users, rule, arms) for name, rule in rules.items()}


def changed(state: TrialState, new: Stopping) -> tuple[TrialSpec, dict[str, View]]:
    """The trial with other rules, and what they look at: a rule that stays as it was keeps what it had in view."""
    spec = state.spec.model_copy(update={"stopping": new})
    old = state.spec.stopping.rules if state.spec.stopping is not None else {}
    found = views(spec, {name: state.profile(name).definition for name in state.users})
    return spec, {
        name: state.looked.views[name] if old.get(name) == new.rules[name] else v for name, v in found.items()
    }


def groups_of(spec: TrialSpec, users: Mapping[str, User]) -> list[str]:
    """All groups, also those of cohorts that nobody has joined yet."""
    there = [spec.group_of(user) for user in users.values()] + [cohort.group for cohort in spec.cohorts.values()]
    return list(dict.fromkeys(group for group in there if group is not None))


def _in_question(spec: TrialSpec, users: Mapping[str, User]) -> tuple[str, ...]:
    """Every arm but the one that is everybody's control."""
    given = [spec.control, *(cohort.control for cohort in spec.cohorts.values())]
    given += [spec.resolved(user).control for user in users.values()]
    controls = {str(control) if isinstance(control, str) else None for control in given if control is not None}
    return tuple(arm for arm in spec.arms if controls != {arm})


def _view(spec: TrialSpec, users: Mapping[str, User], rule: StoppingRule, arms: tuple[str, ...]) -> View:
    wanted = arms if rule.arm is None else (rule.arm,)
    better = "higher" if rule.metric is None else better_way(spec, users, rule.metric)
    if rule.each == "group":
        return View(wanted, "group", tuple(groups_of(spec, users)), better)
    if rule.each == "user":
        return View(wanted, "user", tuple(users), better)
    by: By = "group" if rule.group is not None else "user" if rule.user is not None else "all"
    return View(wanted, by, (rule.group or rule.user or "",), better)


def better_way(spec: TrialSpec, users: Mapping[str, User], metric: str) -> Better:
    """Which way of a metric is good: as the file says, or down where everybody who weighs it counts it as a cost."""
    if spec.metrics[metric].better == "lower":
        return "lower"
    given = [spec.preference, *(spec.resolved(user).preference for user in users.values())]
    weights = [weight[metric] for weight in given if weight is not None and metric in weight]
    return "lower" if any(w < 0 for w in weights) and not any(w > 0 for w in weights) else "higher"


# For whom


def whose(by: str, name: str) -> str:
    """One key for all users, a group or a user."""
    return f"{by}:{name}"


def called(by: str, name: str) -> str:
    """The same for a reader."""
    return EVERYBODY if by == "all" else name


def has_floor(state: TrialState, user: str) -> bool:
    """Whether the floor has not ended for this user."""
    group = state.profile(user).group
    own = {whose("all", ""), whose("user", user), *(() if group is None else (whose("group", group),))}
    return own.isdisjoint(state.looked.ended)


def after_look(looked: Looked, seq: int, body: Mapping[str, Any]) -> Looked:
    """What is known once a look is recorded."""
    met = {rule: dict(claims) for rule, claims in looked.met.items()}
    for said in body["rules"]:
        for claim in said["claims"]:
            if claim["met"]:
                met.setdefault(said["rule"], {}).setdefault(claim_key(claim), seq)
    demands = body["demands"]
    return replace(
        looked,
        count=looked.count + 1,
        last=seq,
        cause=body["cause"],
        decisions=body["decisions"],
        met=met,
        ended=(*looked.ended, *body["ends"]),
        demands=None if demands is None else (demands["kind"], demands["reason"]),
    )


def claim_key(claim: Mapping[str, Any]) -> str:
    """By which a claim is known again: for whom, and of which arm (of all: nothing)."""
    return whose(claim["by"], claim["who"]) + ("" if claim["arm"] is None else f"|{claim['arm']}")
